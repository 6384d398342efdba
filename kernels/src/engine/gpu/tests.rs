//! The engine on whatever adapter this machine has, lavapipe at least. Where there is none, every test says that it was
//! skipped, and fails if `MOEX_REQUIRE_GPU=1`.

mod quotient;

use std::{
    future::Future,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::{Duration, Instant},
};

use super::{
    self_test::{Case, answers, tolerance},
    *,
};
use crate::{
    ExpertFormat, ExpertKind, ExpertShape, ExpertShapes, WeightFormat,
    engine::{ActivationFormat, Call, CpuEngine, Halves, Output, Pair},
    noise::noise,
};

#[test]
fn f32_experts_agree_with_their_twin() {
    every_variant(WeightFormat::F32);
}

#[test]
fn f16_experts_agree_with_their_twin() {
    every_variant(WeightFormat::F16);
}

#[test]
fn bf16_experts_agree_with_their_twin() {
    every_variant(WeightFormat::Bf16);
}

#[test]
fn int4_experts_agree_with_their_twin() {
    every_variant(WeightFormat::Int4G128);
}

#[test]
fn int4_experts_with_zero_points_agree_with_their_twin() {
    every_variant(WeightFormat::Int4ZpG128);
}

#[test]
fn experts_in_blocks_of_32_agree_with_their_twin() {
    every_variant_in_blocks_of(32);
}

#[test]
fn experts_in_blocks_of_256_agree_with_their_twin() {
    every_variant_in_blocks_of(256);
}

fn every_variant_in_blocks_of(cols: usize) {
    for format in WeightFormat::ALL.into_iter().filter(|format| format.block_cols() == cols) {
        every_variant(format);
    }
}

#[test]
fn slots_hold_experts_of_any_format_of_the_plan() {
    let Some(device) = device() else { return };
    let mixed = ExpertFormat::new(WeightFormat::Q4K, WeightFormat::Q6K);
    let uniform = ExpertFormat::uniform(WeightFormat::Q4_0);
    let shapes = ExpertShapes::new(72, 40, mixed, [uniform]).unwrap();
    let activations = ActivationFormat::F32;
    let plan = EnginePlan { shapes, activations, n_slots: 2, max_rows: 2, max_pairs: 4 };
    let report = block_on(GpuEngine::self_test(&device, &plan));
    assert!(report.passed && report.detail.is_empty(), "{report:?}");
    let (gpu, cpu) = (block_on(GpuEngine::new(&device, plan)).unwrap(), CpuEngine::new(plan).unwrap());
    let pairs = |rows: &[u32]| rows.iter().map(|&row| Pair { row, gate: 0.5 }).collect();
    let calls = vec![Call { slot: 1, pairs: pairs(&[1]) }, Call { slot: 0, pairs: pairs(&[0, 1]) }];
    let batch = Batch { rows: noise(9, 2 * 72, 1.0), calls };
    for formats in [[mixed, uniform], [uniform, mixed]] {
        for (slot, format) in (0..).zip(formats) {
            let weights = |i: u32| noise(u64::from(slot * 3 + i), 72 * 40, 0.2);
            let block = shapes.with(format).unwrap().pack(&weights(1), &weights(2), &weights(3));
            block_on(gpu.load(slot, format, &block)).unwrap();
            cpu.load(slot, format, &block).unwrap();
        }
        let error = crate::nmse(&block_on(gpu.compute(&batch)).unwrap(), &cpu.compute(&batch).unwrap());
        assert!(error <= 1e-6, "{formats:?}: NMSE {error}");
    }
}

#[test]
fn an_answer_in_f16_has_the_nearest_numbers() {
    let Some(device) = device() else { return };
    // Large, small and infinite values; an odd number of them, and an even one, which kernels for one row pack themselves.
    let pairs = [1.0, 1e-5, 3e-8, 2e4, 1e9].map(|gate| Pair { row: 0, gate });
    nearest_numbers(&device, 33, vec![Call { slot: 0, pairs: pairs.into() }]);
    nearest_numbers(&device, 34, pairs.map(|pair| Call { slot: 0, pairs: vec![pair] }).into());
}

fn nearest_numbers(device: &GpuDevice, hidden: usize, calls: Vec<Call>) {
    let shape = ExpertShape::uniform(hidden, 40, WeightFormat::Q4_0);
    let activations = ActivationFormat::Int8;
    let plan = EnginePlan { shapes: shape.into(), activations, n_slots: 1, max_rows: 1, max_pairs: 5 };
    let gpu = block_on(GpuEngine::new(device, plan)).unwrap();
    block_on(gpu.load(0, shape.format, &shape.noise(3, 0.5))).unwrap();
    let batch = Batch { rows: noise(4, hidden, 1.0), calls };
    let exact = block_on(gpu.compute_with_products(&batch)).unwrap();
    let halves = |values: &[f32]| -> Vec<u8> {
        values.iter().flat_map(|value| half::f16::from_f32(*value).to_le_bytes()).collect()
    };
    assert!(exact.rows.iter().any(|value| half::f16::from_f32(*value).is_infinite()));
    let products = halves(exact.products.as_deref().unwrap());
    for (wanted, products) in [(true, Some(products)), (false, None)] {
        let wanted = Wanted { products: wanted, halves: true };
        let answer = block_on(gpu.answer(&batch, wanted)).unwrap();
        assert_eq!(answer, Output::Halves(Halves { rows: halves(&exact.rows), products: products.clone() }));
    }
}

fn every_variant(format: WeightFormat) {
    let Some(device) = device() else { return };
    let shapes = [
        // (D, F, pairs of each call)
        (64, 32, vec![1]),
        (8, 8, vec![1, 1]),
        (200, 72, vec![3, 0, 4, 1]),
        (40, 264, vec![33]),
        (2048, 96, vec![1, 5]),
    ];
    for (shader_f16, subgroups) in [(false, false), (false, true), (true, false), (true, true)] {
        let offered = GpuTuning::of(&device);
        if shader_f16 && !offered.shader_f16 || subgroups && !offered.subgroups {
            eprintln!("SKIPPED: {format} with shader-f16 {shader_f16}, subgroups {subgroups}: not offered");
            continue;
        }
        let tuning = GpuTuning { shader_f16, subgroups, ..offered };
        for (seed, (hidden, inner, pairs_of_calls)) in (1..).zip(shapes.clone()) {
            // Both kinds in turn.
            let kind = ExpertKind::ALL[seed as usize % 2];
            let format = ExpertFormat::uniform(format).of_kind(kind);
            let shape = ExpertShape { hidden, inner, format };
            let case = Case { shape, activations: ActivationFormat::F32, pairs_of_calls, seed };
            let format = format.gate_up;
            let [actual, expected] = block_on(answers(&device, tuning, &case)).unwrap();
            let error = crate::nmse(&actual, &expected);
            assert!(error <= tolerance(format), "{tuning:?} {case:?}: NMSE {error}");
        }
    }
}

/// Tests every format and kind, gate and up in one format and down in another: the bits are the CPU engine's, which are
/// the naive twin's.
#[test]
fn int8_experts_are_their_twins_to_the_bit() {
    let Some(device) = device() else { return };
    let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let shapes = [
        (64, 32, vec![1]),
        (8, 9, vec![1, 1]),
        (200, 72, vec![3, 0, 4, 1]),
        (41, 264, vec![9]),
        (1000, 96, vec![5]),
    ];
    let n = WeightFormat::ALL.len();
    let tuning = GpuTuning::of(&device);
    for (i, gate_up) in WeightFormat::ALL.into_iter().enumerate() {
        for (seed, (hidden, inner, pairs_of_calls)) in (1..).zip(shapes.clone()) {
            let kind = ExpertKind::ALL[(i + seed as usize) % 2];
            let format = ExpertFormat { gate_up, down: WeightFormat::ALL[(i + seed as usize - 1) % n], kind };
            let shape = ExpertShape { hidden, inner, format };
            let case = Case { shape, activations: ActivationFormat::Int8, pairs_of_calls, seed };
            let [actual, expected] = block_on(answers(&device, tuning, &case)).unwrap();
            let differ = bits(&actual).iter().zip(bits(&expected)).filter(|(a, b)| **a != *b).count();
            assert_eq!(
                differ,
                0,
                "of {} values, {case:?}: {:?} {:?}",
                actual.len(),
                &actual[..4],
                &expected[..4]
            );
        }
    }
}

/// When a thread of a driver ends after the driver is gone, its destructor points nowhere: NVIDIA's does, and the
/// process dies.
#[cfg(target_os = "linux")]
#[test]
fn a_driver_stays_loaded_when_its_last_device_is_dropped() {
    let libraries = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let paths = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
        paths.filter(|path| path.contains(".so")).map(str::to_owned).collect::<BTreeSet<_>>()
    };
    let opened = move || device().map(|_device| libraries());
    let Some(open) = thread::spawn(opened).join().unwrap() else { return };
    assert!(open.iter().any(|path| path.contains("vulkan")), "no Vulkan driver among {open:?}");
    let unloaded: Vec<_> = open.difference(&libraries()).cloned().collect();
    assert!(unloaded.is_empty(), "unloaded with the device: {unloaded:?}");
}

#[test]
fn the_self_test_passes() {
    let Some(device) = device() else { return };
    for activations in [ActivationFormat::F32, ActivationFormat::Int8] {
        let (shapes, n_slots) = (SHAPE.into(), 1);
        let plan = EnginePlan { shapes, activations, n_slots, max_rows: 1, max_pairs: 1 };
        let report = block_on(GpuEngine::self_test(&device, &plan));
        assert!(report.passed && report.worst_nmse < 1e-9 && report.detail.is_empty(), "{report:?}");
    }
}

#[test]
fn a_device_compiles_a_kernel_once_for_experts_of_all_shapes() {
    let Some(device) = device() else { return };
    let plan = |hidden, inner| EnginePlan {
        shapes: ExpertShape::uniform(hidden, inner, WeightFormat::Q4K).into(),
        activations: ActivationFormat::Int8,
        n_slots: 1,
        max_rows: 1,
        max_pairs: 1,
    };
    assert!(block_on(GpuEngine::self_test(&device, &plan(512, 256))).passed);
    // For both projections the kernel that multiplies tiles of pairs and the one for wide tiles, and the one that rounds between
    // them; for one pair, gate and up of rows of the test's own width and of 512 columns, and down of such and of 256. And the one that rounds answers.
    assert_eq!(device.compiled().len(), 8);
    block_on(GpuEngine::new(&device, plan(512, 256))).unwrap();
    assert_eq!(device.compiled().len(), 8);
    // Down of rows of 768 columns.
    block_on(GpuEngine::new(&device, plan(256, 768))).unwrap();
    assert_eq!(device.compiled().len(), 9);
}

#[test]
fn a_row_keeps_its_bits_in_any_batch() {
    let Some(device) = device() else { return };
    let engine = loaded(&device, 1);
    let rows = noise(7, 5 * SHAPE.hidden, 1.0);
    let pairs: Vec<_> = (0..5).map(|row| Pair { row, gate: 0.3 }).collect();
    let together = Batch { rows: rows.clone(), calls: vec![Call { slot: 0, pairs }] };
    let together = block_on(engine.compute(&together)).unwrap();
    for (rows, together) in rows.chunks(SHAPE.hidden).zip(together.chunks(SHAPE.hidden)) {
        let alone = Batch {
            rows: rows.to_vec(),
            calls: vec![Call { slot: 0, pairs: vec![Pair { row: 0, gate: 0.3 }] }],
        };
        assert_eq!(block_on(engine.compute(&alone)).unwrap(), together);
    }
}

#[test]
fn messages_under_way_together_do_not_mix_and_allocate_nothing() {
    let Some(device) = device() else { return };
    let engine = loaded(&device, 3);
    let buffers = engine.buffers_created();
    let batches: Vec<_> = (0..3 * READBACK_BUFFERS as u32).map(batch).collect();
    let alone: Vec<_> = batches.iter().map(|batch| block_on(engine.compute(batch)).unwrap()).collect();
    let together = block_on(join(batches.iter().map(|batch| engine.compute(batch)).collect()));
    for (together, alone) in together.into_iter().zip(alone) {
        assert_eq!(together.unwrap(), alone);
    }
    assert_eq!(engine.buffers_created(), buffers);
}

#[test]
fn what_keeps_a_gpu_awake_is_one_submission_at_a_time_and_changes_no_bits() {
    let Some(device) = device() else { return };
    let engine = loaded(&device, 3);
    let alone = block_on(engine.compute(&batch(0))).unwrap();
    let work = keep_awake::Work::new(&device);
    for _ in 0..3 {
        assert!(work.turn(), "the last is done once what came after it is");
        work.turn();
        assert_eq!(block_on(engine.compute(&batch(0))).unwrap(), alone);
    }
}

#[test]
fn an_answer_nobody_waits_for_frees_its_buffer() {
    let Some(device) = device() else { return };
    let engine = loaded(&device, 2);
    for i in 0..3 * READBACK_BUFFERS as u32 {
        let batch = batch(i);
        let mut abandoned = pin!(engine.compute(&batch));
        let _ = abandoned.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    }
    assert!(block_on(engine.compute(&batch(0))).is_ok());
}

#[test]
fn slots_are_empty_until_loaded_and_can_be_loaded_again() {
    let Some(device) = device() else { return };
    let engine = engine(&device, 2);
    let batch = Batch {
        rows: noise(1, SHAPE.hidden, 1.0),
        calls: vec![Call { slot: 1, pairs: vec![Pair { row: 0, gate: 1.0 }] }],
    };
    assert_eq!(block_on(engine.compute(&batch)), Err(EngineError::EmptySlot(1)));
    let (first, second) = (block(1), block(2));
    block_on(engine.load(1, SHAPE.format, &first)).unwrap();
    let with_first = block_on(engine.compute(&batch)).unwrap();
    block_on(engine.load(1, SHAPE.format, &second)).unwrap();
    assert_ne!(block_on(engine.compute(&batch)).unwrap(), with_first);
    block_on(engine.load(1, SHAPE.format, &first)).unwrap();
    assert_eq!(block_on(engine.compute(&batch)).unwrap(), with_first);

    assert!(matches!(block_on(engine.load(1, SHAPE.format, &first[1..])), Err(EngineError::Shape(_))));
    assert!(matches!(block_on(engine.load(2, SHAPE.format, &first)), Err(EngineError::NoSuchSlot { .. })));
}

#[test]
fn the_later_of_two_loads_of_a_slot_wins() {
    let Some(device) = device() else { return };
    // More pieces than staging buffers, so that the first load usually waits in the middle.
    let shape = ExpertShape::uniform(1024, 2048, WeightFormat::F32);
    let (shapes, activations) = (shape.into(), ActivationFormat::F32);
    let plan = EnginePlan { shapes, activations, n_slots: 1, max_rows: 1, max_pairs: 1 };
    let engine = block_on(GpuEngine::new(&device, plan)).unwrap();
    let blocks = [1, 2].map(|seed| {
        let [gate, up, down] = [1, 2, 3].map(|i| noise(seed * 10 + i, 1024 * 2048, 0.05));
        shape.pack(&gate, &up, &down)
    });
    let load = |block| engine.load(0, shape.format, block);
    let results = block_on(join(vec![load(&blocks[0]), load(&blocks[1])]));
    assert!(matches!(results[..], [Ok(()) | Err(EngineError::Superseded(0)), Ok(())]), "{results:?}");
    let batch = Batch {
        rows: noise(1, 1024, 1.0),
        calls: vec![Call { slot: 0, pairs: vec![Pair { row: 0, gate: 1.0 }] }],
    };
    let mut expected = vec![0.0; 1024];
    crate::cpu::expert_ffn(
        &shape.view(&blocks[1]).unwrap(),
        &batch.rows,
        &batch.calls[0].pairs,
        &mut expected,
    );
    assert!(crate::nmse(&block_on(engine.compute(&batch)).unwrap(), &expected) < 1e-9);
}

#[test]
fn a_lost_device_is_an_error_for_all_and_no_hang() {
    let Some(device) = device() else { return };
    let engine = loaded(&device, 1);
    device.wgpu().destroy();
    for i in 0..2 * READBACK_BUFFERS as u32 {
        assert!(block_on(engine.compute(&batch(i * 3))).is_err());
    }
    assert!(block_on(engine.load(0, SHAPE.format, &block(1))).is_err());
    assert!(block_on(GpuEngine::new(&device, *engine.plan())).is_err());
}

#[test]
fn plans_beyond_the_device_are_refused_as_data() {
    let Some(device) = device() else { return };
    let (shapes, activations) = (SHAPE.into(), ActivationFormat::F32);
    let plan = EnginePlan { shapes, activations, n_slots: 1, max_rows: 1 << 15, max_pairs: 1 };
    let tuning = GpuTuning { max_slab_bytes: 1 << 20, ..GpuTuning::of(&device) };
    assert!(matches!(block_on(GpuEngine::with_tuning(&device, plan, tuning)), Err(EngineError::Plan(_))));
    let odd = EnginePlan { shapes: ExpertShape { hidden: 44, ..SHAPE }.into(), ..plan };
    assert!(matches!(block_on(GpuEngine::new(&device, odd)), Err(EngineError::Plan(_))));
    assert!(matches!(
        block_on(GpuDevice::open(GpuSelect::Named("no such thing".into()))),
        Err(EngineError::NoAdapter(_))
    ));
}

#[test]
fn a_round_trip_takes_some_time() {
    let Some(device) = device() else { return };
    let start = Instant::now();
    let sync = block_on(loaded(&device, 1).measure_sync(&|| start.elapsed())).unwrap();
    assert!(sync > Duration::ZERO && sync < Duration::from_secs(1), "{sync:?}");
}

const SHAPE: ExpertShape = ExpertShape::uniform(72, 40, WeightFormat::Int4G128);

/// A future that is not woken for this long hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// A GPU if there is one, or a software adapter.
pub(super) fn device() -> Option<GpuDevice> {
    let found = block_on(async {
        match GpuDevice::open(GpuSelect::Auto).await {
            Ok(device) => Ok(device),
            Err(_) => GpuDevice::open(GpuSelect::Software).await,
        }
    });
    match found {
        Ok(device) => Some(device),
        Err(error) => {
            let required = std::env::var("MOEX_REQUIRE_GPU").is_ok_and(|v| v == "1");
            assert!(!required, "MOEX_REQUIRE_GPU=1, but {error}");
            eprintln!("SKIPPED, nothing was tested: {error}");
            None
        }
    }
}

fn engine(device: &GpuDevice, n_slots: u32) -> GpuEngine {
    let (shapes, activations) = (SHAPE.into(), ActivationFormat::F32);
    let plan = EnginePlan { shapes, activations, n_slots, max_rows: 8, max_pairs: 16 };
    block_on(GpuEngine::new(device, plan)).unwrap()
}

/// An engine with an expert in every slot.
fn loaded(device: &GpuDevice, n_slots: u32) -> GpuEngine {
    let engine = engine(device, n_slots);
    for slot in 0..n_slots {
        block_on(engine.load(slot, SHAPE.format, &block(u64::from(slot)))).unwrap();
    }
    engine
}

fn block(seed: u64) -> Vec<u8> {
    let [gate, up, down] = [1, 2, 3].map(|i| noise(seed * 10 + i, SHAPE.hidden * SHAPE.inner, 0.2));
    SHAPE.pack(&gate, &up, &down)
}

/// One of many batches that differ in everything; those with numbers divisible by three use slot 0 alone.
fn batch(i: u32) -> Batch {
    let pairs = (0..1 + i % 5).map(|row| Pair { row: row % 2, gate: 0.1 * (1 + row) as f32 }).collect();
    Batch { rows: noise(u64::from(i), 2 * SHAPE.hidden, 1.0), calls: vec![Call { slot: i % 3 % 2, pairs }] }
}

pub(super) fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => {
                let asleep = Instant::now();
                thread::park_timeout(PATIENCE);
                assert!(asleep.elapsed() < PATIENCE, "nobody woke it");
            }
        }
    }
}

/// Awaits all futures at once, in one task.
pub(super) async fn join<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    let mut futures: Vec<Pin<Box<F>>> = futures.into_iter().map(Box::pin).collect();
    let mut outputs: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (future, output) in futures.iter_mut().zip(&mut outputs) {
            if output.is_none()
                && let Poll::Ready(ready) = future.as_mut().poll(context)
            {
                *output = Some(ready);
            }
        }
        if outputs.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    outputs.into_iter().flatten().collect()
}
