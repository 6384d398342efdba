//! Anything at once, by a seed: texts of any length that begin alike, in groups of any size, with guesses and little memory, over
//! experts that are here and elsewhere by turns, lie, fail, and are found out later; some readers leave. What is finished is what a
//! request gets alone, to the bits of its log probabilities.

use std::path::Path;

use moex_kernels::simd::{KvFormat, Processor, Simd};
use moex_model::{Compute, Fast, FloatWeights, SwarmFailure};
use rand::{RngExt, SeedableRng, rngs::Xoshiro256PlusPlus};

use super::prompt_logprobs::told;
use super::*;
use crate::sampler::TokenLogprobs;

/// Seeds that each test tries; `MOEX_ENGINE_SEEDS` sets another number.
const SEEDS: u64 = 8;
const N_REQUESTS: usize = 8;

/// A model on the vector kernels, and its text.
struct Served {
    model: Arc<Model>,
    text: Arc<Text>,
}

impl Served {
    fn open(checkpoint: &Checkpoint, kv: KvFormat) -> Self {
        let processor = Arc::new(Processor::new(Simd::detect(), 1));
        let fast = Fast { processor, weights: FloatWeights::ByCheckpoint, kv };
        let model = Arc::new(Model::load_for(checkpoint, &Compute::Fast(fast)).unwrap());
        Self { model, text: Arc::new(Text::load(checkpoint).unwrap()) }
    }

    fn family(name: &str) -> Self {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/families").join(name);
        Self::open(&Checkpoint::open(&data).unwrap(), KvFormat::F16)
    }

    fn scheduler(&self, config: EngineConfig) -> (Scheduler, LocalExperts) {
        let experts = LocalExperts::of_checkpoint(self.model.clone());
        (Scheduler::new(self.model.clone(), self.text.clone(), config), experts)
    }

    /// What a request gets with nothing beside it.
    fn alone(&self, request: Request) -> Got {
        let (mut scheduler, mut experts) =
            self.scheduler(EngineConfig { guesses: false, ..EngineConfig::default() });
        let heard = Heard::default();
        scheduler.submit(request, heard.sink()).unwrap();
        while !scheduler.is_idle() {
            scheduler.step(&mut experts);
        }
        got(&heard)
    }
}

struct Random(Xoshiro256PlusPlus);

impl Random {
    fn new(seed: u64) -> Self {
        Self(Xoshiro256PlusPlus::seed_from_u64(seed))
    }

    fn below(&mut self, n: usize) -> usize {
        self.0.random_range(0..n)
    }

    fn is_one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn one_of<T: Copy>(&mut self, some: &[T]) -> T {
        some[self.below(some.len())]
    }
}

/// One in how many layers does what; `usize::MAX` for never.
#[derive(Clone, Copy, Debug)]
struct Odds {
    here: usize,
    lies: usize,
    fails: usize,
    /// Of steps, not layers.
    doubts: usize,
}

struct Faulty {
    experts: LocalExperts,
    random: Random,
    odds: Odds,
    sums: Vec<(Ticket, Vec<f32>)>,
    n_asked: u64,
    n_doubts: u64,
    /// A false sum was given.
    is_false: bool,
}

impl Faulty {
    /// Finds out about a false sum; what is under way was computed from it.
    fn check(&mut self) -> Result<(), ExpertsError> {
        if !std::mem::take(&mut self.is_false) {
            return Ok(());
        }
        self.sums.clear();
        Err(ExpertsError::FalseAnswer)
    }
}

impl Experts for Faulty {
    fn begin(&mut self, asked: LayerRequest<'_>, sum: &mut [f32]) -> Result<Option<Ticket>, ExpertsError> {
        if self.random.is_one_in(self.odds.fails) {
            // What fails may have been asked for because of a false sum.
            self.check()?;
            return Err(ExpertsError::Swarm {
                failure: SwarmFailure::Failed,
                message: "by chance".to_owned(),
            });
        }
        if self.random.is_one_in(self.odds.here) {
            return self.experts.begin(asked, sum);
        }
        self.n_asked += 1;
        // A step that failed left some behind.
        self.sums.truncate(7);
        self.sums.push((Ticket(self.n_asked), self.experts.apply(asked.layer, asked.rows, asked.routing)?));
        Ok(Some(Ticket(self.n_asked)))
    }

    fn finish(&mut self, ticket: Ticket, sum: &mut [f32]) -> Result<(), ExpertsError> {
        let at = self.sums.iter().position(|(away, _)| *away == ticket).expect("it was asked for");
        sum.copy_from_slice(&self.sums.swap_remove(at).1);
        Ok(())
    }

    fn finish_early(&mut self, ticket: Ticket, sum: &mut [f32]) -> Result<(), ExpertsError> {
        self.check()?;
        self.finish(ticket, sum)?;
        if self.random.is_one_in(self.odds.lies) {
            self.is_false = true;
            sum.iter_mut().for_each(|value| *value = 3.0 * *value - 1.0);
        }
        Ok(())
    }

    fn confirm(&mut self) -> Result<(), ExpertsError> {
        self.check()
    }

    fn n_doubts(&self) -> u64 {
        self.n_doubts
    }

    fn max_in_flight(&self) -> usize {
        8
    }

    fn step_begins(&mut self, _: usize) {
        self.n_doubts += u64::from(self.random.is_one_in(self.odds.doubts));
        self.sums.clear();
    }
}

/// What a request gets: its tokens, its text, and the log probabilities of the prompt and of the text.
type Got = (Vec<u32>, String, Vec<TokenLogprobs>, Vec<TokenLogprobs>);

fn got(heard: &Heard) -> Got {
    let of_text = |event: &Event| match event {
        Event::Logprobs(told) => Some(told.clone()),
        _ => None,
    };
    let logprobs = heard.0.lock().unwrap().iter().filter_map(of_text).collect();
    (heard.finish().ids, heard.text(), told(heard), logprobs)
}

/// Requests with what each gets alone. Half begin as an earlier one does.
fn requests(served: &Served, random: &mut Random) -> Vec<(Request, Got)> {
    let n_ids = served.model.spec().vocab as u32;
    let words = QUESTIONS.iter().flat_map(|question| request(question).prompt_ids);
    let words: Vec<u32> = words.map(|id| id % n_ids).collect();
    let mut asked: Vec<(Request, Got)> = Vec::new();
    for seed in 0..N_REQUESTS {
        let n = 2 + random.one_of(&[8, 40, 200]);
        let mut ids: Vec<u32> =
            words.iter().cycle().skip(random.below(words.len())).take(1 + random.below(n)).copied().collect();
        if !asked.is_empty() && random.is_one_in(2) {
            let begin = &asked[random.below(asked.len())].0.prompt_ids;
            ids.splice(..0, begin[..random.below(begin.len() + 1)].iter().copied());
            ids.truncate(240);
        }
        let mut ask = Request {
            prompt_ids: ids,
            sampling: Sampling {
                temperature: random.one_of(&[0.0, 0.0, 0.8]),
                seed: seed as u64,
                ..Sampling::default()
            },
            ignore_eos: random.is_one_in(2),
            min_tokens: random.one_of(&[0, 0, 5]),
            stop: random
                .one_of(&[&[][..], &[], &["a", "is"], &["."]])
                .iter()
                .map(|stop| (*stop).to_owned())
                .collect(),
            max_tokens: Some(1 + random.below(16) as u32),
            top_logprobs: Some(2),
            prompt_logprobs: random.is_one_in(4).then_some(1),
            ..Request::default()
        };
        let alone = served.alone(ask.clone());
        if random.is_one_in(2) {
            ask.prediction_ids.clone_from(&alone.0);
            let at = random.below(alone.0.len());
            ask.prediction_ids[at] = 7;
        }
        asked.push((ask, alone));
    }
    asked
}

/// A listener that listens no more after so many events.
fn leaving(heard: &Heard, after: usize) -> Sink {
    let heard = heard.0.clone();
    Box::new(move |event| {
        let mut heard = heard.lock().unwrap();
        heard.push(event);
        if heard.len() < after { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })
}

/// How many of the requests were finished; the others failed or were left, as some are.
fn run(served: &Served, seed: u64) -> usize {
    let mut random = Random::new(seed);
    let odds = Odds {
        here: random.one_of(&[usize::MAX, 2, 3, 10]),
        lies: random.one_of(&[usize::MAX, 7, 30]),
        fails: random.one_of(&[usize::MAX, usize::MAX, 300]),
        doubts: random.one_of(&[usize::MAX, usize::MAX, 40]),
    };
    let layout = served.model.kv_layout();
    let block_bytes = layout.page_bytes() * layout.pages_per_block();
    let config = EngineConfig {
        max_rows: random.one_of(&[3, 16, 64]),
        in_flight: random.one_of(&[None, Some(1), Some(2), Some(8)]),
        kv_bytes: block_bytes * random.one_of(&[20, 200]),
        max_sequences: 1 + random.below(6),
        ..EngineConfig::default()
    };
    let asked = requests(served, &mut random);
    let now = AtomicU64::new(0);
    let pace = random.one_of(&[1, 40_000]);
    let clock = move || Duration::from_micros(now.fetch_add(pace, Ordering::Relaxed));
    let (scheduler, experts) = served.scheduler(config);
    let mut scheduler = scheduler.with_clock(Box::new(clock));
    let mut experts = Faulty {
        experts,
        random: Random::new(seed + 1_000_000),
        odds,
        sums: Vec::new(),
        n_asked: 0,
        n_doubts: 0,
        is_false: false,
    };
    let heard: Vec<Heard> = asked.iter().map(|_| Heard::default()).collect();
    let leaves_after: Vec<usize> = asked
        .iter()
        .map(|_| random.one_of(&[usize::MAX, usize::MAX, usize::MAX, usize::MAX, usize::MAX, 1, 12]))
        .collect();
    let mut waiting = asked.iter().zip(heard.iter().zip(&leaves_after));
    loop {
        if scheduler.is_idle() || random.is_one_in(3) {
            match waiting.next() {
                Some(((ask, _), (heard, n))) => scheduler.submit(ask.clone(), leaving(heard, *n)).unwrap(),
                None if scheduler.is_idle() => break,
                None => {}
            }
        }
        scheduler.step(&mut experts);
    }
    let mut n_finished = 0;
    for (number, ((_, alone), heard)) in asked.iter().zip(&heard).enumerate() {
        if heard.0.lock().unwrap().len() == leaves_after[number] {
            continue;
        }
        match heard.last() {
            Some(Event::Finished(_)) => {
                assert!(got(heard) == *alone, "seed {seed}, request {number}: {odds:?} {config:?}");
                n_finished += 1;
            }
            Some(Event::Failed(failure)) => {
                let may_fail = odds.fails != usize::MAX || odds.doubts != usize::MAX;
                assert!(may_fail, "seed {seed}, request {number}: {failure:?} {odds:?} {config:?}");
            }
            other => panic!("seed {seed}, request {number}: {other:?}"),
        }
    }
    n_finished
}

/// Runs [`SEEDS`].
fn finished_is_what_each_gets_alone(served: &Served) {
    let n_seeds = std::env::var("MOEX_ENGINE_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(SEEDS);
    let n_finished: usize = (0..n_seeds).map(|seed| run(served, seed)).sum();
    println!("{n_finished} of {} requests were finished", n_seeds * N_REQUESTS as u64);
    assert!(n_finished > n_seeds as usize * N_REQUESTS / 2);
}

#[test]
fn whatever_happens_at_once_changes_no_bit() {
    finished_is_what_each_gets_alone(&Served::open(&Checkpoint::demo().unwrap(), KvFormat::F16));
}

#[test]
fn whatever_happens_at_once_changes_no_bit_in_q8_0() {
    finished_is_what_each_gets_alone(&Served::open(&Checkpoint::demo().unwrap(), KvFormat::Q8_0));
}

/// Sinks, and windows whose pages are given back.
#[test]
fn whatever_happens_at_once_changes_no_bit_of_a_model_with_windows() {
    finished_is_what_each_gets_alone(&Served::family("gpt-oss"));
}

/// Whose states cannot be restored once they have advanced.
#[test]
fn whatever_happens_at_once_changes_no_bit_of_a_model_with_states() {
    finished_is_what_each_gets_alone(&Served::family("qwen3-next"));
}

/// Keys and values of one narrow row for all heads, and a layer without experts.
#[test]
fn whatever_happens_at_once_changes_no_bit_of_a_model_with_latent_attention() {
    finished_is_what_each_gets_alone(&Served::family("deepseek-v3"));
}
