//! Families with windows, on small random checkpoints (`tests/data/families`): what a window has left is given back, and no
//! text changes.

use std::path::Path;

use moex_kernels::simd::{KvFormat, Processor, Simd};
use moex_model::{Compute, Fast, FloatWeights, KvTable, Span, WantedLogits, Workspace};

use super::*;

/// Windows of 12, 12 and 16 tokens: each reaches into two blocks of 32 at most.
const FAMILIES: [&str; 3] = ["gemma2", "gemma3", "gpt-oss"];
/// The blocks that windows reach into while a token is generated.
const MOST_BLOCKS: usize = 2;

struct Family {
    model: Arc<Model>,
    text: Arc<Text>,
}

impl Family {
    fn open(name: &str, compute: &Compute) -> Self {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/families").join(name);
        let checkpoint = Checkpoint::open(&data).unwrap();
        let model = Arc::new(Model::load_for(&checkpoint, compute).unwrap());
        Self { model, text: Arc::new(Text::load(&checkpoint).unwrap()) }
    }

    fn exact(name: &str) -> Self {
        Self::open(name, &Compute::Exact)
    }

    /// On the vector kernels. `kv` does not apply to windows, whose keys and values are rows of f32 with any.
    fn fast(name: &str, kv: KvFormat) -> Self {
        let processor = Arc::new(Processor::new(Simd::detect(), 1));
        Self::open(name, &Compute::Fast(Fast { processor, weights: FloatWeights::Native, kv }))
    }

    /// In f32, and with int8 activations beside each format of keys and values.
    fn all(name: &str) -> Vec<Self> {
        let fast = [KvFormat::F32, KvFormat::F16, KvFormat::Q8_0].map(|kv| Self::fast(name, kv));
        [Self::exact(name)].into_iter().chain(fast).collect()
    }

    fn scheduler(&self, config: EngineConfig) -> (Scheduler, LocalExperts) {
        let experts = LocalExperts::of_checkpoint(self.model.clone());
        (Scheduler::new(self.model.clone(), self.text.clone(), config), experts)
    }

    /// Pages of this many blocks of positions, and of this many that windows reach into.
    fn pages(&self, n_blocks: usize, n_windowed: usize) -> usize {
        let layout = self.model.kv_layout();
        let lasting = layout.lasting_position_bytes() * PAGE_POSITIONS / layout.page_bytes();
        n_blocks * lasting + n_windowed * (layout.pages_per_block() - lasting)
    }

    /// Runs `request` to its end, calling `look` after every step.
    fn run(&self, config: EngineConfig, request: Request, mut look: impl FnMut(&mut Scheduler)) -> Finish {
        let (mut scheduler, mut experts) = self.scheduler(config);
        let heard = Heard::default();
        scheduler.submit(request, heard.sink()).unwrap();
        while !scheduler.is_idle() {
            scheduler.step(&mut experts);
            look(&mut scheduler);
        }
        heard.finish()
    }

    /// The tokens that follow `ids` greedily, where every key and value stays: a model's own pass, without an engine.
    fn greedily(&self, ids: &[u32], n: usize) -> Vec<u32> {
        let mut kv = self.model.kv_pool(usize::MAX, 1);
        let (mut table, mut space) = (KvTable::default(), Workspace::default());
        let mut experts = LocalExperts::of_checkpoint(self.model.clone());
        let (mut all, mut start) = (ids.to_vec(), 0);
        while all.len() < ids.len() + n {
            assert!(kv.reserve(&mut table, all.len()));
            let span = Span { ids: &all[start..], start, table: &table, wanted: WantedLogits::Last };
            let logits = self.model.step(&[span], &mut kv, &mut experts, &mut space).unwrap();
            start = all.len();
            let best = logits.iter().enumerate().max_by(|(i, a), (j, b)| a.total_cmp(b).then(j.cmp(i)));
            all.push(best.unwrap().0 as u32);
        }
        all.split_off(ids.len())
    }
}

fn numbers(n: u32) -> Vec<u32> {
    (0..n).map(|i| i * i % 251).collect()
}

fn ask(prompt_ids: Vec<u32>, max_tokens: u32) -> Request {
    Request { prompt_ids, max_tokens: Some(max_tokens), ignore_eos: true, ..Request::default() }
}

const PLAIN: EngineConfig = EngineConfig {
    max_rows: 128,
    max_sequences: 16,
    max_waiting: 128,
    kv_bytes: 1 << 30,
    in_flight: None,
    guesses: false,
};

#[test]
fn a_long_text_keeps_only_what_its_windows_reach_and_is_the_same() {
    for name in FAMILIES {
        let family = Family::exact(name);
        let ids = numbers(20);
        let mut most = 0;
        let finish = family.run(PLAIN, ask(ids.clone(), 300), |scheduler| {
            let in_tables = scheduler.kv().pages_in_tables();
            most = most.max(in_tables);
        });
        assert_eq!(finish.ids, family.greedily(&ids, 300), "{name}");
        // 319 tokens are cached.
        let bound = family.pages(10, MOST_BLOCKS);
        assert!(most <= bound && bound < family.pages(10, 10) / 2 + 10, "{name}: {most} pages");
    }
}

/// Every row's, not only the chosen tokens.
#[test]
fn logits_are_the_same_to_the_bit_where_pages_are_given_back() {
    for family in FAMILIES.iter().flat_map(|name| Family::all(name)) {
        let ids = numbers(210);
        let logits = |chunk: usize, is_released: bool| {
            let mut kv = family.model.kv_pool(usize::MAX, 1);
            let (mut table, mut space) = (KvTable::default(), Workspace::default());
            let mut experts = LocalExperts::of_checkpoint(family.model.clone());
            let mut all = Vec::new();
            for (index, ids) in ids.chunks(chunk).enumerate() {
                let start = index * chunk;
                assert!(kv.reserve(&mut table, start + ids.len()));
                let span = Span { ids, start, table: &table, wanted: WantedLogits::All };
                let logits = family.model.step(&[span], &mut kv, &mut experts, &mut space).unwrap();
                all.extend(logits.iter().map(|logit| logit.to_bits()));
                if is_released {
                    kv.release_unseen(&mut table, start + ids.len());
                }
            }
            let expected = if is_released { family.pages(7, 1) } else { family.pages(7, 7) };
            assert_eq!(kv.pages_in_tables(), expected);
            all
        };
        let whole = logits(210, false);
        for chunk in [1, 31, 50] {
            assert!(logits(chunk, true) == whole, "{}, chunks of {chunk}", family.model.spec().family);
        }
    }
}

/// Every look at the clock takes 10 ms: a step takes as long with many rows as with one, so guesses pay.
#[test]
fn guesses_that_are_taken_back_leave_the_window_whole() {
    for name in FAMILIES {
        let family = Family::exact(name);
        let ids = numbers(20);
        let plain = family.greedily(&ids, 200);
        let mut prediction_ids = plain.clone();
        (10..200).step_by(10).for_each(|wrong| prediction_ids[wrong] = 7);
        let (scheduler, mut experts) = family.scheduler(EngineConfig { guesses: true, ..PLAIN });
        let looks = AtomicU64::new(0);
        let clock = move || Duration::from_millis(10 * looks.fetch_add(1, Ordering::Relaxed));
        let mut scheduler = scheduler.with_clock(Box::new(clock));
        let heard = Heard::default();
        scheduler.submit(Request { prediction_ids, ..ask(ids, 200) }, heard.sink()).unwrap();
        while !scheduler.is_idle() {
            scheduler.step(&mut experts);
            assert!(scheduler.kv().pages_in_tables() <= family.pages(7, MOST_BLOCKS), "{name}");
        }
        let Finish { ids, usage, .. } = heard.finish();
        assert_eq!(ids, plain, "{name}");
        assert!(usage.accepted_tokens > 50, "{usage:?}");
        assert!(usage.guessed_tokens > usage.accepted_tokens + 10, "{usage:?}");
        assert_eq!(scheduler.kv().pages_in_tables(), 0);
    }
}

#[test]
fn who_leaves_in_the_middle_gives_all_pages_back() {
    for name in FAMILIES {
        let family = Family::exact(name);
        let (mut scheduler, mut experts) = family.scheduler(PLAIN);
        let mut left = 100;
        let leaves = move |_| {
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        scheduler.submit(ask(numbers(70), 4000), Box::new(leaves)).unwrap();
        let mut steps = 0;
        while !scheduler.is_idle() {
            scheduler.step(&mut experts);
            steps += 1;
        }
        assert!((50..1000).contains(&steps), "{name}: {steps} steps");
        let kv = scheduler.kv();
        assert_eq!((kv.pages_in_tables(), kv.free_pages() + kv.idle_pages()), (0, kv.max_pages()));
    }
}

#[test]
fn a_second_turn_computes_what_is_new_and_one_that_changes_the_middle_what_no_page_is_there_for() {
    for name in FAMILIES {
        let family = Family::exact(name);
        let (mut scheduler, mut experts) = family.scheduler(PLAIN);
        let mut turn = |ids: &[u32]| {
            let heard = Heard::default();
            scheduler.submit(ask(ids.to_vec(), 60), heard.sink()).unwrap();
            while !scheduler.is_idle() {
                scheduler.step(&mut experts);
            }
            let finish = heard.finish();
            assert_eq!(finish.ids, family.greedily(ids, 60), "{name}");
            (finish.usage.cached_tokens, finish.ids)
        };
        let first = numbers(100);
        let (found, answer) = turn(&first);
        assert_eq!(found, 0);
        let second = [&first[..], &answer, &[5, 6, 7]].concat();
        assert_eq!(turn(&second).0, 159, "{name}: all but the answer's last, which was never computed");
        let mut changed = second.clone();
        changed[120] = 9;
        // Of the answer, windowed pages are there from 128 on.
        assert_eq!(turn(&changed).0, 96, "{name}: the prompt's whole blocks");
        assert_eq!(turn(&changed).0, 160, "{name}: now its own whole blocks");
    }
}

#[test]
fn choices_of_one_prompt_share_its_pages() {
    for name in FAMILIES {
        let family = Family::exact(name);
        let ids = numbers(100);
        let (mut scheduler, mut experts) = family.scheduler(PLAIN);
        let heard: Vec<Heard> = (0..4).map(|_| Heard::default()).collect();
        for heard in &heard {
            scheduler.submit(ask(ids.clone(), 60), heard.sink()).unwrap();
        }
        let mut most = 0;
        while !scheduler.is_idle() {
            scheduler.step(&mut experts);
            most = most.max(scheduler.kv().pages_in_tables());
        }
        let expected = family.greedily(&ids, 60);
        for (n, heard) in heard.iter().enumerate() {
            let Finish { ids, usage, .. } = heard.finish();
            assert_eq!((ids, usage.cached_tokens), (expected.clone(), if n == 0 { 0 } else { 96 }));
        }
        // Three blocks of the prompt are one, and each has two of its own.
        assert!(most <= family.pages(3 + 4 * 2, 4 * MOST_BLOCKS), "{name}: {most} pages");
    }
}

/// With room for few texts, so that pages of windows and whole texts are evicted again and again.
#[test]
fn turns_at_random_are_the_same_whatever_is_cached() {
    for family in FAMILIES.iter().flat_map(|name| Family::all(name)) {
        let kv_bytes = family.pages(16, 8) * family.model.kv_layout().page_bytes();
        let (mut cached, mut experts) = family.scheduler(EngineConfig { kv_bytes, max_rows: 48, ..PLAIN });
        let mut begun: Vec<Vec<u32>> = (0..4).map(|n| numbers(60 + n)[n as usize..].to_vec()).collect();
        let mut seed = 11_u64;
        let mut draw = |n: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize % n
        };
        let (mut n_found, mut n_read) = (0, 0);
        for turn in 0..60 {
            let begin = &begun[draw(begun.len())];
            let mut ids = begin[..begin.len() - draw(begin.len() / 3)].to_vec();
            ids.extend((0..draw(9)).map(|n| n as u32));
            ids.truncate(180);
            let heard = Heard::default();
            cached.submit(ask(ids.clone(), 30), heard.sink()).unwrap();
            while !cached.is_idle() {
                cached.step(&mut experts);
            }
            let Finish { ids: answer, usage, .. } = heard.finish();
            let alone = family.run(PLAIN, ask(ids.clone(), 30), |_| {});
            assert_eq!(answer, alone.ids, "{}, turn {turn}", family.model.spec().family);
            (n_found, n_read) = (n_found + usage.cached_tokens, n_read + usage.prompt_tokens);
            begun.push([ids, answer].concat());
        }
        assert!(n_found * 5 > n_read, "{n_found} of {n_read} tokens found");
        assert_eq!(cached.kv().pages_in_tables(), 0);
    }
}

/// Its chunks are shortened where the pool has too few pages for what windows have not left yet.
#[test]
fn a_text_as_long_as_the_pool_fits_into_it_however_long_its_chunks_are() {
    for name in FAMILIES {
        let family = Family::exact(name);
        let kv_bytes = family.model.kv_layout().sequence_bytes(512);
        let config = EngineConfig { kv_bytes, max_rows: 500, ..PLAIN };
        let (scheduler, _) = family.scheduler(config);
        assert_eq!(scheduler.limits().context, 512, "{name}");
        let ids = numbers(480);
        let finish = family.run(config, ask(ids.clone(), 32), |_| {});
        assert_eq!(finish.ids, family.greedily(&ids, 32), "{name}");
        // Beside another, whose turn comes when this one is over.
        let (mut scheduler, mut experts) = family.scheduler(config);
        let heard = [Heard::default(), Heard::default()];
        for heard in &heard {
            scheduler.submit(ask(ids.clone(), 32), heard.sink()).unwrap();
        }
        while !scheduler.is_idle() {
            scheduler.step(&mut experts);
        }
        assert_eq!(heard.map(|heard| heard.finish().ids), [finish.ids.clone(), finish.ids]);
    }
}
