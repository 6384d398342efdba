//! A token on the hub alone allocates nothing, on no thread: counted by this program's own allocator. Through the engine
//! that `serve` runs, which gives its text away, it allocates that text.
//!
//! Without the test harness, whose threads allocate whenever they like: this program has no others than those it counts.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    ops::ControlFlow,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
};

use moex_engine::{Engine, EngineConfig, Event, Request};

use moex_kernels::{
    WeightFormat,
    simd::{KvFormat, Processor, Simd},
};
use moex_model::text::Text;
use moex_model::{
    Checkpoint, Compute, Fast, FloatWeights, Keep, KvTable, Model, Span, WantedLogits, Workspace,
    local_experts::{ExpertPanels, LocalExperts},
};
use moex_protocol::Dtype;

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: the system's allocator, counted.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: by the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: by the caller's contract.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: by the caller's contract.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const NAME: &str = "a_token_on_the_hub_alone_allocates_nothing";

/// What test runners ask of a program without a harness: to list its tests, of which there is one, or to run them.
fn main() -> anyhow::Result<()> {
    let asked = |flag: &str| std::env::args().any(|argument| argument == flag);
    match (asked("--list"), asked("--ignored")) {
        (true, true) => Ok(()),
        (true, false) => {
            println!("{NAME}: test");
            Ok(())
        }
        (false, _) => {
            a_token_on_the_hub_alone_allocates_nothing()?;
            a_token_that_is_served_allocates_its_text()
        }
    }
}

fn a_token_on_the_hub_alone_allocates_nothing() -> anyhow::Result<()> {
    const PROMPT: usize = 20;
    const TOKENS: usize = 40;
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data");
    let processor = Arc::new(Processor::new(Simd::detect(), 2));
    // A thread's own beginning allocates, and on a busy machine that may be long after it was asked for.
    let n_begun = AtomicUsize::new(0);
    processor.pool().run(2, &|_| {
        n_begun.fetch_add(1, Ordering::SeqCst);
        while n_begun.load(Ordering::SeqCst) < 2 {
            std::thread::yield_now();
        }
    });
    for (model, weights, wire) in [
        ("tiny-qwen3-moe", None, Dtype::F16),
        ("tiny-qwen3-moe", Some(WeightFormat::Q8_0), Dtype::Int8),
        // With a dense layer.
        ("variants/mlp-only-layers", None, Dtype::F16),
    ] {
        let checkpoint = Checkpoint::open(&data.join(model))?;
        let weights = weights.map_or(FloatWeights::Native, FloatWeights::To);
        let fast = Fast { processor: processor.clone(), weights, kv: KvFormat::F16 };
        let model = Arc::new(Model::load_for(&checkpoint, &Compute::Fast(fast))?);
        let panels = ExpertPanels::new(model.clone(), processor.clone(), Keep::All)?;
        let mut experts = LocalExperts::from_panels(Arc::new(panels), wire);
        let mut kv = model.kv_pool(usize::MAX, 1);
        let (mut table, mut space) = (KvTable::default(), Workspace::default());
        assert!(kv.reserve(&mut table, PROMPT + 1 + TOKENS));
        let vocab = model.spec().vocab as u32;
        let ids: Vec<u32> = (0..(PROMPT + 1 + TOKENS) as u32).map(|i| i * 37 % vocab).collect();
        let mut step = |ids: &[u32], start: usize| {
            let span = Span { ids, start, table: &table, wanted: WantedLogits::Last };
            model.step(&[span], &mut kv, &mut experts, &mut space).map(|logits| logits.len())
        };
        step(&ids[..PROMPT], 0)?;
        step(&ids[PROMPT..=PROMPT], PROMPT)?;
        for position in PROMPT + 1..ids.len() {
            let before = ALLOCATIONS.load(Ordering::Relaxed);
            let n_logits = step(&ids[position..=position], position)?;
            let n_allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;
            assert_eq!(n_logits, model.spec().vocab);
            assert_eq!(n_allocations, 0, "allocations of the token at {position} over {wire}");
        }
    }
    Ok(())
}

/// As `serve` runs it: an engine on its thread, whose sink is called there with each piece of text. Between most pieces
/// lies one allocation, that of the piece; texts and their tables grow by doubling, and a page of keys and values comes
/// every 32 tokens.
fn a_token_that_is_served_allocates_its_text() -> anyhow::Result<()> {
    const TOKENS: u32 = 200;
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/tiny-qwen3-moe");
    let checkpoint = Checkpoint::open(&data)?;
    let processor = Arc::new(Processor::new(Simd::detect(), 2));
    let weights = FloatWeights::To(WeightFormat::Q8_0);
    let fast = Fast { processor: processor.clone(), weights, kv: KvFormat::F16 };
    let model = Arc::new(Model::load_for(&checkpoint, &Compute::Fast(fast))?);
    let panels = ExpertPanels::new(model.clone(), processor, Keep::All)?;
    let experts = Box::new(LocalExperts::from_panels(Arc::new(panels), Dtype::Int8));
    let text = Arc::new(Text::load(&checkpoint)?);
    let config = EngineConfig { guesses: false, ..EngineConfig::default() };
    let engine = Engine::start(model, text, experts, config)?;
    let (done, counted) = mpsc::channel();
    let mut at_pieces = Vec::with_capacity(TOKENS as usize);
    let request = Request {
        prompt_ids: (1..20).collect(),
        ignore_eos: true,
        max_tokens: Some(TOKENS),
        ..Request::default()
    };
    let sink = move |event| {
        match event {
            Event::Text(_) => at_pieces.push(ALLOCATIONS.load(Ordering::Relaxed)),
            // It is the last event, and nobody else hears of it.
            Event::Finished(_) => drop(done.send(std::mem::take(&mut at_pieces))),
            _ => {}
        }
        ControlFlow::Continue(())
    };
    engine.submit(request, Box::new(sink))?;
    let at_pieces = counted.recv()?;
    let each: Vec<usize> = at_pieces.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let of_text_alone = each.iter().filter(|n| **n <= 1).count();
    assert!(each.len() >= 100, "pieces: {each:?}");
    assert!(of_text_alone * 10 >= each.len() * 8, "allocations between pieces of text: {each:?}");
    println!("{of_text_alone} of {} tokens allocated their text alone: {each:?}", each.len());
    Ok(())
}
