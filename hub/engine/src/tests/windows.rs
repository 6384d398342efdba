//! Families with windows, on small random checkpoints (`tests/data/families`): what a window has left is given back, and no
//! text changes.

use std::path::Path;

use moex_model::{Compute, KvTable, Span, WantedLogits, Workspace};

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

    fn scheduler(&self, config: EngineConfig) -> (Scheduler, LocalExperts) {
        let experts = LocalExperts::of_checkpoint(self.model.clone());
        (Scheduler::new(self.model.clone(), self.text.clone(), config), experts)
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
        let layout = family.model.kv_layout();
        let lasting_pages = layout.lasting_position_bytes() * PAGE_POSITIONS / layout.page_bytes();
        let windowed_pages = layout.pages_per_block() - lasting_pages;
        assert!(windowed_pages > 0, "{name} has windows");
        // 319 tokens are cached.
        assert!(most <= 10 * lasting_pages + MOST_BLOCKS * windowed_pages, "{name}: {most} pages");
    }
}
