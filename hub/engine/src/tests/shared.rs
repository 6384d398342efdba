//! What sequences share, groups of rows under way and guesses: none of it changes a text.

use moex_kernels::simd::{KvFormat, Processor, Simd};
use moex_model::{Compute, Fast, FloatWeights};

use super::prompt_logprobs::{asked, told};
use super::*;

#[test]
fn texts_are_the_same_whatever_is_cached() {
    texts_are_the_same_with_and_without_the_cache(&demo().0, 1000);
}

/// Whose keys and values are rounded when they are written: once, cached or not. As many turns as fill the cache several times.
#[test]
fn texts_are_the_same_whatever_is_cached_in_q8_0() {
    texts_are_the_same_with_and_without_the_cache(&in_q8_0(), 200);
}

/// The demo model on the vector kernels, with keys and values in q8_0.
fn in_q8_0() -> Arc<Model> {
    let processor = Arc::new(Processor::new(Simd::detect(), 1));
    let fast = Fast { processor, weights: FloatWeights::ByCheckpoint, kv: KvFormat::Q8_0 };
    Arc::new(Model::load_for(&Checkpoint::demo().unwrap(), &Compute::Fast(fast)).unwrap())
}

/// Turns of conversations that begin alike, in any order, with room for a few of them: the texts are those of an engine that
/// keeps nothing, and only what is new is computed.
fn texts_are_the_same_with_and_without_the_cache(model: &Arc<Model>, n_turns: usize) {
    let config = EngineConfig { kv_bytes: 24 * page_bytes(model), guesses: false, ..EngineConfig::default() };
    let (mut cached, mut experts) = scheduler_of(model, config);
    let mut begun: Vec<Vec<u32>> = QUESTIONS.map(|question| request(question).prompt_ids).into();
    let mut seed = 7_u64;
    let mut draw = |n: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % n
    };
    let mut n_found = 0;
    for turn in 0..n_turns {
        let pick = draw(begun.len());
        let begin = &begun[pick];
        let ids: Vec<u32> = begin[..begin.len() - draw(begin.len() / 2)].to_vec();
        let ask = || Request {
            prompt_ids: ids.clone(),
            max_tokens: Some(4),
            ignore_eos: true,
            ..Request::default()
        };
        let rows_before = cached.counts().rows();
        let heard = Heard::default();
        cached.submit(ask(), heard.sink()).unwrap();
        while !cached.is_idle() {
            cached.step(&mut experts);
        }
        let finish = heard.finish();
        let alone = run_all_on(model, EngineConfig::default(), vec![ask()]).remove(0);
        assert_eq!(finish.ids, alone.finish().ids, "turn {turn}");
        assert_eq!(heard.text(), alone.text());
        let computed = (cached.counts().rows() - rows_before) as usize;
        assert_eq!(
            computed,
            ids.len() - finish.usage.cached_tokens + 3,
            "prompt and answer, but for the last token"
        );
        n_found += finish.usage.cached_tokens;
        begun.push([ids, finish.ids].concat());
    }
    assert_eq!(cached.counts().cached() as usize, n_found);
    assert!(n_found > 10 * n_turns, "{n_found} tokens found");
}

fn page_bytes(model: &Model) -> usize {
    model.compute().kv_layout(model.spec()).position_bytes() * PAGE_POSITIONS
}

/// What is computed again after preemption, and drafted tokens that are taken back, leave nothing behind in q8_0 either.
#[test]
fn preempted_and_drafted_texts_are_the_same_in_q8_0() {
    let model = in_q8_0();
    let ask = |question: &str, prediction_ids: &[u32]| Request {
        max_tokens: Some(40),
        ignore_eos: true,
        prediction_ids: prediction_ids.to_vec(),
        ..request(question)
    };
    let ids = |config: EngineConfig, requests: Vec<Request>| -> Vec<Vec<u32>> {
        run_all_on(&model, config, requests).iter().map(|heard| heard.finish().ids).collect()
    };
    let plain = EngineConfig { guesses: false, ..EngineConfig::default() };
    let alone: Vec<Vec<u32>> =
        QUESTIONS.iter().flat_map(|question| ids(plain, vec![ask(question, &[])])).collect();
    // Room for fewer than all four.
    let tight = EngineConfig { kv_bytes: 6 * page_bytes(&model), ..plain };
    assert_eq!(ids(tight, QUESTIONS.map(|question| ask(question, &[])).into()), alone);
    for (question, text) in QUESTIONS.iter().zip(&alone) {
        let mut prediction = text.clone();
        prediction[20] = 7;
        assert_eq!(ids(EngineConfig::default(), vec![ask(question, &prediction)]).concat(), *text);
    }
}

/// Asked at once, a common beginning is computed once.
#[test]
fn chats_with_one_system_prompt_compute_it_once() {
    let system: Vec<u32> = request(QUESTIONS[2]).prompt_ids.iter().copied().cycle().take(200).collect();
    let ask = |n: u32| {
        let prompt_ids = [&system[..], &[n + 5, n + 6, n + 7]].concat();
        Request { prompt_ids, max_tokens: Some(4), ignore_eos: true, ..Request::default() }
    };
    let (mut together, mut experts) = scheduler(EngineConfig::default());
    let heard: Vec<Heard> = (0..16).map(|_| Heard::default()).collect();
    for (n, heard) in heard.iter().enumerate() {
        together.submit(ask(n as u32), heard.sink()).unwrap();
    }
    while !together.is_idle() {
        together.step(&mut experts);
    }
    let found: usize = heard.iter().map(|heard| heard.finish().usage.cached_tokens).sum();
    // Whole pages as soon as they are there, parts of one once their sequence is over.
    assert!((15 * (200 / PAGE_POSITIONS * PAGE_POSITIONS)..=15 * 200).contains(&found), "{found}");
    assert_eq!(together.counts().rows() as usize, 16 * (203 + 3) - found);
    for (n, heard) in heard.iter().enumerate() {
        let alone = run_all(EngineConfig::default(), vec![ask(n as u32)]).remove(0);
        assert_eq!(heard.finish().ids, alone.finish().ids, "chat {n}");
    }
}

/// Experts that are computed elsewhere: a layer's sum is there when it is fetched, not before.
pub(super) struct Elsewhere {
    experts: LocalExperts,
    sums: Vec<(Ticket, Vec<f32>)>,
    n: u64,
    most_away: usize,
}

impl Elsewhere {
    pub(super) fn new(experts: LocalExperts) -> Self {
        Self { experts, sums: Vec::new(), n: 0, most_away: 0 }
    }
}

impl Experts for Elsewhere {
    fn begin(&mut self, asked: LayerRequest<'_>, _: &mut [f32]) -> Result<Option<Ticket>, ExpertsError> {
        self.n += 1;
        self.sums.push((Ticket(self.n), self.experts.apply(asked.layer, asked.rows, asked.routing)?));
        self.most_away = self.most_away.max(self.sums.len());
        Ok(Some(Ticket(self.n)))
    }

    fn finish(&mut self, ticket: Ticket, sum: &mut [f32]) -> Result<(), ExpertsError> {
        let at = self.sums.iter().position(|(away, _)| *away == ticket).expect("it was asked for");
        sum.copy_from_slice(&self.sums.swap_remove(at).1);
        Ok(())
    }

    fn max_in_flight(&self) -> usize {
        8
    }
}

#[test]
fn texts_are_the_same_however_many_groups_are_under_way() {
    let long: Vec<u32> = QUESTIONS.iter().flat_map(|question| request(question).prompt_ids).collect();
    let requests = || {
        let mut requests: Vec<Request> = QUESTIONS.map(request).into();
        requests.push(Request { prompt_ids: long.clone(), max_tokens: Some(9), ..Request::default() });
        requests
    };
    let alone: Vec<Vec<u32>> = requests().into_iter().map(|request| run_one(request).finish().ids).collect();
    for (in_flight, most) in [(Some(1), 1), (Some(2), 2), (Some(8), 8), (None, 2)] {
        let (mut scheduler, experts) =
            scheduler(EngineConfig { max_rows: 16, in_flight, ..EngineConfig::default() });
        let mut experts = Elsewhere::new(experts);
        let heard: Vec<Heard> = requests().iter().map(|_| Heard::default()).collect();
        for (request, heard) in requests().into_iter().zip(&heard) {
            scheduler.submit(request, heard.sink()).unwrap();
        }
        while !scheduler.is_idle() {
            scheduler.step(&mut experts);
        }
        let ids: Vec<Vec<u32>> = heard.iter().map(|heard| heard.finish().ids).collect();
        assert_eq!(ids, alone, "{in_flight:?} groups");
        assert_eq!(experts.most_away, most, "{in_flight:?} groups");
        assert!(experts.sums.is_empty(), "all were fetched");
    }
}

/// Experts elsewhere, which are gone each `gone_every`th time they are asked: then they are computed at once.
struct Wavering {
    elsewhere: Elsewhere,
    gone_every: u64,
    n_asked: u64,
}

impl Experts for Wavering {
    fn begin(&mut self, asked: LayerRequest<'_>, sum: &mut [f32]) -> Result<Option<Ticket>, ExpertsError> {
        self.n_asked += 1;
        match self.n_asked.is_multiple_of(self.gone_every) {
            true => self.elsewhere.experts.begin(asked, sum),
            false => self.elsewhere.begin(asked, sum),
        }
    }

    fn finish(&mut self, ticket: Ticket, sum: &mut [f32]) -> Result<(), ExpertsError> {
        self.elsewhere.finish(ticket, sum)
    }

    fn max_in_flight(&self) -> usize {
        8
    }
}

/// A prompt's later rows see the keys and values of its earlier ones: no group gets ahead of the one before it.
#[test]
fn workers_that_leave_between_two_groups_of_a_prompt_change_nothing() {
    let ids: Vec<u32> = QUESTIONS.iter().flat_map(|question| request(question).prompt_ids).collect();
    let alone = told(&run_one(asked(&ids)));
    for gone_every in [2, 3, 5, 7] {
        let config = EngineConfig { max_rows: 16, in_flight: Some(8), ..EngineConfig::default() };
        let (mut scheduler, experts) = scheduler(config);
        let mut experts = Wavering { elsewhere: Elsewhere::new(experts), gone_every, n_asked: 0 };
        let heard = Heard::default();
        scheduler.submit(asked(&ids), heard.sink()).unwrap();
        while !scheduler.is_idle() {
            scheduler.step(&mut experts);
        }
        assert_eq!(told(&heard), alone, "gone each {gone_every}th time");
        assert!(experts.elsewhere.most_away > 1, "several groups were under way");
    }
}

/// Steps take 40 ms and 1 for each row, as behind a link: guesses are worth their rows.
fn far_away(config: EngineConfig) -> (Scheduler, Arc<AtomicU64>) {
    let (scheduler, _) = scheduler(config);
    let now = Arc::new(AtomicU64::new(0));
    let clock = now.clone();
    (scheduler.with_clock(Box::new(move || Duration::from_millis(clock.load(Ordering::Relaxed)))), now)
}

/// Experts for which time passes.
struct Slow(LocalExperts, Arc<AtomicU64>);

impl Experts for Slow {
    fn begin(&mut self, asked: LayerRequest<'_>, sum: &mut [f32]) -> Result<Option<Ticket>, ExpertsError> {
        let n_rows = asked.routing.experts.len() / asked.routing.k;
        self.1.fetch_add(10 + n_rows as u64 / 4, Ordering::Relaxed);
        self.0.begin(asked, sum)
    }
}

#[test]
fn guesses_change_no_text_and_save_steps_where_a_text_repeats_itself() {
    let prompt_ids: Vec<u32> = request(QUESTIONS[1]).prompt_ids;
    let ask = |temperature: f32, prediction_ids: &[u32]| Request {
        prompt_ids: prompt_ids.clone(),
        sampling: Sampling { temperature, seed: 3, ..Sampling::default() },
        prediction_ids: prediction_ids.to_vec(),
        max_tokens: Some(120),
        ignore_eos: true,
        ..Request::default()
    };
    let run = |guesses: bool, request: Request| {
        let (mut scheduler, now) = far_away(EngineConfig { guesses, ..EngineConfig::default() });
        let mut experts = Slow(LocalExperts::of_checkpoint(demo().0), now);
        let heard = Heard::default();
        scheduler.submit(request, heard.sink()).unwrap();
        while !scheduler.is_idle() {
            scheduler.step(&mut experts);
        }
        (heard, scheduler.counts().steps())
    };
    for temperature in [0.0, 0.7] {
        let (plain, steps) = run(false, ask(temperature, &[]));
        assert_eq!((plain.finish().usage.guessed_tokens, steps), (0, 120));
        let (guessed, _) = run(true, ask(temperature, &[]));
        assert_eq!(guessed.finish().ids, plain.finish().ids, "temperature {temperature}");
        assert_eq!(guessed.text(), plain.text());
        // What it will say is known but for one token.
        let mut prediction = plain.finish().ids;
        prediction[60] = 7;
        let (predicted, steps) = run(true, ask(temperature, &prediction));
        assert_eq!(predicted.finish().ids, plain.finish().ids, "temperature {temperature}");
        let usage = predicted.finish().usage;
        assert!(usage.accepted_tokens > 90 && steps < 30, "{usage:?} in {steps} steps");
        assert_eq!(usage.completion_tokens, 120);
    }
}
