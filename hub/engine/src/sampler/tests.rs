//! Each setting on logits small enough to see what it does.

use moex_model::draw;
use proptest::prelude::*;

use super::*;

const LOGITS: [f32; 5] = [1.0, 3.0, 2.0, 0.0, -1.0];

/// How often each token comes in 4,000 draws with seeds 0, 1, 2, ...
fn shares(sampling: &Sampling, logits: &[f32]) -> Vec<f32> {
    let mut counts = vec![0.0; logits.len()];
    for seed in 0..4000 {
        let mut sampler = Sampler::new(Sampling { seed, ..sampling.clone() }, &[]);
        counts[sampler.sample(&mut logits.to_vec(), &[]).unwrap() as usize] += 1.0 / 4000.0;
    }
    counts
}

fn hot() -> Sampling {
    Sampling { temperature: 1.0, ..Sampling::default() }
}

#[test]
fn greedy_takes_the_best_and_the_first_of_equals() {
    let mut sampler = Sampler::new(Sampling::default(), &[]);
    assert_eq!(sampler.sample(&mut LOGITS.to_vec(), &[]), Some(1));
    assert_eq!(sampler.sample(&mut [5.0, 7.0, 7.0], &[]), Some(1));
}

#[test]
fn of_many_equal_logits_the_first_are_among_the_top_k() {
    let mut logits = vec![0.0; 1000];
    logits[700] = 1.0;
    logits[3] = f32::NEG_INFINITY;
    let shares = shares(&Sampling { top_k: 4, ..hot() }, &logits);
    let drawn: Vec<_> = (0..1000).filter(|token| shares[*token] > 0.0).collect();
    assert_eq!(drawn, [0, 1, 2, 700]);
}

#[test]
fn draws_follow_the_distribution() {
    let total: f32 = LOGITS.iter().map(|logit| logit.exp()).sum();
    for (share, logit) in shares(&hot(), &LOGITS).iter().zip(LOGITS) {
        // 4,000 draws: three standard deviations are below 0.024.
        assert!((share - logit.exp() / total).abs() < 0.025, "{share} for {logit}");
    }
    let cold = shares(&Sampling { temperature: 0.1, ..hot() }, &LOGITS);
    assert!(cold[1] > 0.999, "{cold:?}");
}

#[test]
fn top_k_top_p_and_min_p_cut_the_tail() {
    let drawn = |sampling: Sampling| -> Vec<usize> {
        (0..5)
            .zip(shares(&sampling, &LOGITS))
            .filter(|(_, share)| *share > 0.0)
            .map(|(token, _)| token)
            .collect()
    };
    assert_eq!(drawn(Sampling { top_k: 2, ..hot() }), [1, 2]);
    assert_eq!(drawn(Sampling { top_k: 1, ..hot() }), [1]);
    // Probabilities, best first: 0.636, 0.234, 0.086, 0.032, 0.012.
    assert_eq!(drawn(Sampling { top_p: 0.6, ..hot() }), [1]);
    assert_eq!(drawn(Sampling { top_p: 0.7, ..hot() }), [1, 2]);
    assert_eq!(drawn(Sampling { top_p: 0.9, ..hot() }), [0, 1, 2]);
    assert_eq!(drawn(Sampling { top_p: 1e-9, ..hot() }), [1]);
    // Relative to the best: 1, 0.368, 0.135, 0.050, 0.018.
    assert_eq!(drawn(Sampling { min_p: 0.2, ..hot() }), [1, 2]);
    assert_eq!(drawn(Sampling { min_p: 1.0, ..hot() }), [1]);
}

#[test]
fn the_same_seed_draws_the_same_text() {
    let text = |seed| -> Vec<u32> {
        let mut sampler = Sampler::new(Sampling { seed, ..hot() }, &[]);
        (0..50).map(|_| sampler.sample(&mut LOGITS.to_vec(), &[]).unwrap()).collect()
    };
    assert_eq!(text(7), text(7));
    assert_ne!(text(7), text(8));
}

#[test]
fn penalties_count_what_was_there() {
    let second = |sampling: Sampling, prompt: &[u32]| {
        let mut sampler = Sampler::new(sampling, prompt);
        sampler.sample(&mut LOGITS.to_vec(), &[]);
        sampler.sample(&mut LOGITS.to_vec(), &[]).unwrap()
    };
    let greedy = Sampling::default;
    assert_eq!(second(greedy(), &[]), 1);
    assert_eq!(second(Sampling { presence_penalty: 1.1, ..greedy() }, &[]), 2);
    assert_eq!(second(Sampling { frequency_penalty: 1.1, ..greedy() }, &[]), 2);
    assert_eq!(second(Sampling { presence_penalty: 0.9, ..greedy() }, &[]), 1);
    assert_eq!(second(Sampling { repetition_penalty: 2.0, ..greedy() }, &[]), 2);
    let first = |sampling: Sampling| Sampler::new(sampling, &[1]).sample(&mut LOGITS.to_vec(), &[]).unwrap();
    assert_eq!(first(Sampling { repetition_penalty: 2.0, ..greedy() }), 2, "repetition counts the prompt");
    assert_eq!(first(Sampling { presence_penalty: 2.0, ..greedy() }), 1, "presence does not");

    let mut negative = [-1.0, -1.5];
    assert_eq!(
        Sampler::new(Sampling { repetition_penalty: 2.0, ..greedy() }, &[0]).sample(&mut negative, &[]),
        Some(1)
    );
    let mut sampler = Sampler::new(Sampling { frequency_penalty: 0.6, ..greedy() }, &[]);
    let text: Vec<_> = (0..4).map(|_| sampler.sample(&mut LOGITS.to_vec(), &[]).unwrap()).collect();
    assert_eq!(text, [1, 1, 2, 1], "each time costs 0.6");
}

#[test]
fn a_bias_is_added_before_all_else() {
    let first = |logit_bias: Vec<(u32, f32)>| {
        let sampling = Sampling { logit_bias, ..Sampling::default() };
        Sampler::new(sampling, &[]).sample(&mut LOGITS.to_vec(), &[])
    };
    assert_eq!(first(vec![(4, 5.0)]), Some(4));
    assert_eq!(
        first(vec![(1, -100.0), (0, -0.5), (9, 100.0)]),
        Some(2),
        "a token that is not there has no logit"
    );
    let sampling = Sampling { logit_bias: vec![(0, 100.5)], ..Sampling::default() };
    assert_eq!(sampling.check().unwrap_err().field, "logit_bias");
}

#[test]
fn the_nucleus_is_what_a_sorted_vocabulary_begins_with() {
    let weight = |token: u32| (token.wrapping_mul(2_654_435_761) >> 20) as f32; // with equals among them
    let tokens: Vec<(u32, f32)> = (0..5000).map(|token| (token, weight(token))).collect();
    let mut sorted = tokens.clone();
    sorted.sort_by(best_first);
    for part in [0.0, 0.001, 0.5, 0.95, 0.9999, 1.0, 2.0] {
        let enough = part * mass(&tokens);
        let expected = (1..5000).find(|n| mass(&sorted[..*n]) >= enough).unwrap_or(5000);
        let mut found = tokens.clone();
        let kept = nucleus(&mut found, enough);
        found.truncate(kept);
        found.sort_by(best_first);
        assert_eq!(found, sorted[..expected], "{part} of all");
    }
    assert_eq!(nucleus(&mut [], 1.0), 0);
}

#[test]
fn what_is_no_number_is_never_drawn() {
    for sampling in [Sampling::default(), hot(), Sampling { top_k: 1, min_p: 0.5, ..hot() }] {
        let mut sampler = Sampler::new(sampling, &[]);
        assert_eq!(sampler.sample(&mut [f32::NAN, 1.0, f32::NEG_INFINITY], &[]), Some(1));
        assert_eq!(sampler.sample(&mut [f32::NAN, f32::INFINITY, 3.0], &[]), Some(1));
        assert_eq!(sampler.sample(&mut [f32::NAN, f32::NEG_INFINITY], &[]), None);
        assert_eq!(sampler.sample(&mut [], &[]), None);
    }
}

#[test]
fn numbers_out_of_range_are_named() {
    assert_eq!(Sampling::default().check(), Ok(()));
    for (sampling, field) in [
        (Sampling { temperature: -0.1, ..hot() }, "temperature"),
        (Sampling { temperature: f32::NAN, ..hot() }, "temperature"),
        (Sampling { top_p: 0.0, ..hot() }, "top_p"),
        (Sampling { min_p: 1.1, ..hot() }, "min_p"),
        (Sampling { repetition_penalty: 0.0, ..hot() }, "repetition_penalty"),
        (Sampling { presence_penalty: 2.1, ..hot() }, "presence_penalty"),
        (Sampling { frequency_penalty: f32::INFINITY, ..hot() }, "frequency_penalty"),
    ] {
        assert_eq!(sampling.check().unwrap_err().field, field);
    }
}

proptest! {
    #[test]
    fn any_logits_give_a_token_among_them_or_none(
        mut logits in prop::collection::vec(any::<f32>(), 0..40),
        temperature in 0.0_f32..3.0,
        top_k in 0_u32..50,
        top_p in 0.01_f32..=1.0,
        min_p in 0.0_f32..=1.0,
        seed in any::<u64>(),
    ) {
        let before = logits.clone();
        let sampling = Sampling { temperature, top_k, top_p, min_p, seed, ..Sampling::default() };
        match Sampler::new(sampling, &[]).sample(&mut logits, &[]) {
            Some(token) => prop_assert!(before[token as usize] > f32::NEG_INFINITY),
            None => prop_assert!(before.iter().all(|logit| logit.is_nan() || *logit == f32::NEG_INFINITY)),
        }
    }
}

/// Allows one token at a time.
#[derive(Debug)]
struct Only(u32);

impl Grammar for Only {
    fn begin(&self) -> Box<dyn Constraint> {
        Box::new(Self(self.0))
    }
}

impl Constraint for Only {
    fn allow(&mut self, logits: &mut [f32]) -> Result<(), String> {
        for (token, logit) in (0..).zip(logits) {
            if token != self.0 {
                *logit = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        if token == 2 { Err("two came".to_owned()) } else { Ok(()) }
    }
}

#[test]
fn a_grammar_comes_before_biases_and_logprobs_tell_of_the_logits_before_both() {
    for temperature in [0.0, 2.0] {
        let sampling = Sampling { temperature, logit_bias: vec![(1, 100.0)], ..Sampling::default() };
        let mut sampler = Sampler::new(sampling, &[]).held_to(Some(&Only(0))).telling(Some(2));
        assert_eq!(sampler.sample(&mut LOGITS.to_vec(), &[]), Some(0));
        let told = sampler.take_logprobs().unwrap();
        assert_eq!((told.token, told.top.len(), told.top[0].0), (0, 2, 1));
        assert_eq!(sampler.take_logprobs(), None, "told once");
    }
}

#[test]
fn a_broken_grammar_gives_the_text_up_in_its_words() {
    let mut sampler = Sampler::new(Sampling::default(), &[]).held_to(Some(&Only(2)));
    assert_eq!(sampler.sample(&mut LOGITS.to_vec(), &[]), None);
    assert_eq!(sampler.take_broken().as_deref(), Some("two came"));
}

#[test]
fn a_forbidden_token_is_never_drawn_and_its_log_probability_is_still_the_models() {
    let mut sampler = Sampler::new(Sampling::default(), &[]).telling(Some(1));
    let best = Sampler::new(Sampling::default(), &[]).sample(&mut LOGITS.to_vec(), &[]).unwrap();
    let other = sampler.sample(&mut LOGITS.to_vec(), &[best]).unwrap();
    assert_ne!(other, best);
    assert_eq!(sampler.take_logprobs().unwrap().top[0].0, best);
    assert_eq!(sampler.sample(&mut [1.0, 2.0], &[0, 1, 7]), None);
}

#[test]
fn the_best_logits_give_what_all_of_them_give() {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(3);
    for (temperature, top_k, top_p, min_p) in [
        (0.0, 0, 1.0, 0.0),
        (0.7, 20, 0.95, 0.0),
        (1.5, 5, 1.0, 0.1),
        (100.0, 32, 0.5, 0.0),
        (1.0, 1, 1.0, 0.0),
        (1.0, 0, 1.0, 0.0),
        (30.0, 0, 1.0, 0.0),
    ] {
        let sampling = Sampling { temperature, top_k, top_p, min_p, seed: 11, ..Sampling::default() };
        let [mut of_all, mut of_best] = [(); 2].map(|()| Sampler::new(sampling.clone(), &[]));
        let n_best = of_best.n_best().unwrap();
        assert!((2..=MAX_BEST).contains(&n_best));
        for _ in 0..200 {
            // Few values, so that many are equal, and some that are no numbers.
            let logits: Vec<f32> = (0..300)
                .map(|_| match rng.random_range(0..20_u32) {
                    0 => f32::NAN,
                    1 => f32::NEG_INFINITY,
                    n => n as f32 / 4.0,
                })
                .collect();
            let mut best: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
            best.retain(|(_, logit)| *logit > f32::NEG_INFINITY);
            best.sort_by(best_first);
            best.truncate(n_best);
            // As another device does.
            let how = of_best.draws().next().unwrap();
            let drawn = (how != Draw::NOTHING).then(|| draw(&mut logits.clone(), best[0].1, how)).flatten();
            assert_eq!(of_best.sample_best(&best, drawn), of_all.sample(&mut logits.clone(), &[]));
            assert_eq!(of_best.min_margin(), of_all.min_margin());
        }
        assert_eq!(of_best.sample_best(&[(0, f32::NEG_INFINITY); 2], None), None);
    }
}

#[test]
fn what_changes_or_reads_logits_needs_all_of_them() {
    let needs_all = |sampling: Sampling| Sampler::new(sampling, &[1]).n_best().is_none();
    let greedy = Sampling::default();
    assert!(!needs_all(greedy.clone()));
    assert!(!needs_all(Sampling { temperature: 1.0, ..greedy.clone() }));
    assert!(needs_all(Sampling { temperature: 1.0, top_p: 0.9, ..greedy.clone() }));
    assert!(needs_all(Sampling { temperature: 1.0, min_p: 0.1, ..greedy.clone() }));
    assert!(needs_all(Sampling { temperature: 1.0, top_k: MAX_BEST as u32 + 1, ..greedy.clone() }));
    assert!(needs_all(Sampling { presence_penalty: 1.0, ..greedy.clone() }));
    assert!(needs_all(Sampling { repetition_penalty: 1.1, ..greedy.clone() }));
    assert!(needs_all(Sampling { logit_bias: vec![(1, 2.0)], ..greedy.clone() }));
    assert!(Sampler::new(greedy, &[]).telling(Some(0)).n_best().is_none());
}

#[test]
fn a_whole_vocabulary_is_drawn_from_as_from_a_sorted_one() {
    // More than a block of everything, and of several that weigh alike.
    let logits: Vec<f32> =
        (0..5000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 27) as f32 / 2.0).collect();
    for (top_p, min_p) in [(1.0, 0.0), (0.9, 0.0), (0.5, 0.1), (1.0, 0.02)] {
        let sampling = Sampling { temperature: 2.0, top_p, min_p, seed: 5, ..Sampling::default() };
        let mut tokens: Vec<(u32, f64)> = (0..)
            .zip(&logits)
            .map(|(token, logit)| (token, ((f64::from(*logit) - 15.5) / 2.0).exp()))
            .collect();
        let total: f64 = tokens.iter().map(|(_, weight)| weight).sum();
        tokens.retain(|(_, weight)| *weight >= f64::from(min_p));
        tokens.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let mut before = 0.0;
        let is_kept = |&(_, weight): &(u32, f64)| {
            before += weight;
            before - weight < f64::from(top_p) * total
        };
        let kept: Vec<_> = tokens.into_iter().take_while(is_kept).collect();
        let mass: f64 = kept.iter().map(|(_, weight)| weight).sum();
        let mut sampler = Sampler::new(sampling, &[]);
        const DRAWS: usize = 4000;
        let mut of_level = [0_usize; 32];
        for _ in 0..DRAWS {
            let token = sampler.sample(&mut logits.clone(), &[]).unwrap();
            assert!(kept.iter().any(|(kept, _)| *kept == token), "{top_p} {min_p}: {token}");
            of_level[(logits[token as usize] * 2.0) as usize] += 1;
        }
        for (level, drawn) in of_level.into_iter().enumerate() {
            let of_it = kept.iter().filter(|(token, _)| (logits[*token as usize] * 2.0) as usize == level);
            let expected = of_it.map(|(_, weight)| weight / mass).sum::<f64>() * DRAWS as f64;
            // Six standard deviations.
            assert!(
                (drawn as f64 - expected).abs() <= 6.0 * expected.sqrt() + 1.0,
                "{top_p} {min_p}: {level}"
            );
        }
    }
}

#[test]
fn the_lowest_temperature_draws_the_best_token() {
    for (top_k, top_p) in [(0, 1.0), (0, 0.9), (3, 1.0)] {
        let temperature = f32::from_bits(1);
        let sampling = Sampling { temperature, top_k, top_p, ..Sampling::default() };
        let mut logits: Vec<f32> = (0..100_u8).map(f32::from).collect();
        assert_eq!(Sampler::new(sampling, &[]).sample(&mut logits, &[]), Some(99), "{top_k} {top_p}");
    }
}
