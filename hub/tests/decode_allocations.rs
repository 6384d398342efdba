//! A token on the hub alone allocates nothing, on no thread: counted by this program's own allocator.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use moex_hub::model::{
    Checkpoint, Compute, Fast, KvPool, KvTable, Model, Span, Wanted, Workspace,
    panels::{Keep, PanelExperts, Panels},
};
use moex_kernels::{
    WeightFormat,
    simd::{KvFormat, Processor, Simd},
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

#[test]
fn a_token_on_the_hub_alone_allocates_nothing() {
    const PROMPT: usize = 20;
    const TOKENS: usize = 40;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/tiny-qwen3-moe");
    let checkpoint = Checkpoint::open(&folder).unwrap();
    let processor = Arc::new(Processor::new(Simd::detect(), 2));
    for (weights, wire) in [(None, Dtype::F16), (Some(WeightFormat::Q8_0), Dtype::Int8)] {
        let fast = Fast { processor: processor.clone(), weights, kv: KvFormat::F16 };
        let model = Arc::new(Model::load_for(&checkpoint, &Compute::Fast(fast)).unwrap());
        let panels = Panels::new(model.clone(), processor.clone(), Keep::All).unwrap();
        let mut experts = PanelExperts::new(Arc::new(panels), wire);
        let mut kv = KvPool::new_for(model.compute(), model.config(), usize::MAX, 1);
        let (mut table, mut space) = (KvTable::default(), Workspace::default());
        assert!(kv.reserve(&mut table, PROMPT + 1 + TOKENS));
        let ids: Vec<u32> = (0..(PROMPT + 1 + TOKENS) as u32).collect();
        let mut step = |ids: &[u32], start: usize| {
            let span = Span { ids, start, table: &table, wanted: Wanted::Last };
            model.step(&[span], &mut kv, &mut experts, &mut space).unwrap().len()
        };
        step(&ids[..PROMPT], 0);
        step(&ids[PROMPT..=PROMPT], PROMPT);
        // The test harness has a thread too, which allocates when it first waits: once, where a step's own allocations
        // would be in every round.
        let rounds = [(); 3].map(|()| {
            let before = ALLOCATIONS.load(Ordering::Relaxed);
            for position in PROMPT + 1..ids.len() {
                assert_eq!(step(&ids[position..=position], position), model.config().vocab);
            }
            ALLOCATIONS.load(Ordering::Relaxed) - before
        });
        assert!(rounds.contains(&0), "{rounds:?} allocations in {TOKENS} tokens over {wire}");
    }
}
