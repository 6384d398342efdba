//! Messages of one row have the CPU engine's bits whatever was recorded for the ones before.

use super::{
    super::{
        GpuTuning,
        tests::{block_on, device, join},
    },
    *,
};
use crate::{
    ExpertFormat, ExpertShapes, WeightFormat,
    engine::{Call, Computed, CpuEngine, Output, Pair},
    noise::noise,
};

const HIDDEN: usize = 200;
const INNER: usize = 72;
const MAX_SLAB_BYTES: u64 = 3 << 20;
/// Of every second slot.
const OTHER: ExpertFormat = ExpertFormat::new(WeightFormat::Q4_0, WeightFormat::Q8_0);

/// Engines of two slabs with experts of two shapes, in turn; the last slot is empty.
fn engines(device: &GpuDevice) -> (GpuEngine, CpuEngine, u32) {
    let first = ExpertFormat::new(WeightFormat::Q4K, WeightFormat::Q6K);
    let shapes = ExpertShapes::new(HIDDEN, INNER, first, [OTHER]).unwrap();
    let plan = |n_slots| EnginePlan {
        shapes,
        activations: crate::engine::ActivationFormat::Int8,
        n_slots,
        max_rows: 3,
        max_pairs: 60,
    };
    let in_slab = Layout::new(plan(100), MAX_SLAB_BYTES).unwrap().slots_per_slab;
    assert!(in_slab >= 2 * MAX_PAIRS as u32 + 2, "{in_slab}");
    let plan = plan(2 * in_slab);
    let tuning = GpuTuning { max_slab_bytes: MAX_SLAB_BYTES, ..GpuTuning::of(device) };
    let gpu = block_on(GpuEngine::with_tuning(device, plan, tuning)).unwrap();
    let cpu = CpuEngine::new(plan).unwrap();
    let shapes: Vec<_> = shapes.iter().collect();
    for slot in 0..2 * in_slab - 1 {
        let shape = shapes[slot as usize % 2];
        let block = shape.noise(u64::from(slot), 0.2);
        block_on(gpu.load(slot, shape.format, &block)).unwrap();
        cpu.load(slot, shape.format, &block).unwrap();
    }
    (gpu, cpu, in_slab)
}

/// One row for these slots, each once.
fn batch(seed: u64, slots: impl IntoIterator<Item = u32>) -> Batch {
    let gate = |slot: u32| 1.0 / (1 + slot) as f32;
    let call = |slot| Call { slot, pairs: vec![Pair { row: 0, gate: gate(slot) }] };
    Batch { rows: noise(seed, HIDDEN, 1.0), calls: slots.into_iter().map(call).collect() }
}

/// So many slots of one shape from `first` on.
fn every_second(first: u32, n: u32) -> impl Iterator<Item = u32> {
    (first..).step_by(2).take(n as usize)
}

fn bits(computed: Computed) -> Vec<u32> {
    computed.rows.into_iter().chain(computed.products.into_iter().flatten()).map(f32::to_bits).collect()
}

/// In f16.
fn packed(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| half::f16::from_f32(*value).to_le_bytes()).collect()
}

fn n_recorded(gpu: &GpuEngine) -> usize {
    lock(&gpu.ahead.as_ref().unwrap().recorded).len()
}

#[test]
fn messages_of_one_row_have_their_twins_bits_in_any_order() {
    let Some(device) = device() else { return };
    let (gpu, cpu, in_slab) = engines(&device);
    let n_buffers = gpu.buffers_created();
    // Of either shape in either slab, from one pair to as many as a form has; then what has no form.
    let messages = [
        (batch(1, every_second(0, 8)), true),
        (batch(2, every_second(0, 8)), true),
        (batch(3, every_second(1, 3)), true),
        (batch(4, every_second(in_slab, 1)), true),
        (batch(5, every_second(2, 1)), true),
        (batch(6, every_second(1, 16)), true),
        (batch(7, every_second(0, 9)), true),
        (batch(8, every_second(0, 17)), false),
        (batch(9, [0, 1]), false),
        (batch(10, [0, in_slab + in_slab % 2]), false),
        (Batch { rows: noise(11, 2 * HIDDEN, 1.0), ..batch(11, [4, 0]) }, false),
        (Batch { calls: [batch(12, [4]).calls, batch(12, [4]).calls].concat(), ..batch(12, [4]) }, true),
    ];
    for turn in 0..3 {
        for (i, (batch, has_form)) in messages.iter().enumerate() {
            for (products, halves) in [(false, false), (true, false), (false, true), (true, true)] {
                let expected = match products {
                    true => cpu.compute_with_products(batch).unwrap(),
                    false => Computed { rows: cpu.compute(batch).unwrap(), products: None },
                };
                let before = n_recorded(&gpu);
                gpu.fill_output(f32::NAN);
                let answer = block_on(gpu.answer(batch, Wanted { products, halves })).unwrap();
                let case = format!("message {i}, turn {turn}, products {products}, halves {halves}");
                match answer {
                    Output::Halves(answer) => {
                        assert!(halves && answer.rows == packed(&expected.rows), "{case}");
                        assert!(answer.products == expected.products.as_deref().map(packed), "{case}");
                    }
                    answer => assert!(bits(answer.floats().unwrap()) == bits(expected), "{case}"),
                }
                match (has_form, turn) {
                    (false, _) | (_, 1..) => assert_eq!(n_recorded(&gpu), before, "message {i}, turn {turn}"),
                    _ => {}
                }
            }
        }
    }
    assert_eq!(n_recorded(&gpu), gpu.ahead.as_ref().unwrap().max_forms);
    assert_eq!(gpu.buffers_created(), n_buffers);
}

#[test]
fn more_messages_under_way_than_buffers_do_not_mix() {
    let Some(device) = device() else { return };
    let (gpu, cpu, in_slab) = engines(&device);
    let n = 2 * gpu.ahead.as_ref().unwrap().max_forms as u32 + 8;
    let batches: Vec<_> =
        (0..n).map(|i| batch(u64::from(i), every_second(i % 2 + i / 2 % 2 * in_slab, 1 + i % 5))).collect();
    let answers = block_on(join(batches.iter().map(|batch| gpu.compute(batch)).collect()));
    for (batch, answer) in batches.iter().zip(answers) {
        assert!(answer.unwrap() == cpu.compute(batch).unwrap());
    }
}

#[test]
fn a_message_for_an_empty_slot_takes_no_buffer() {
    let Some(device) = device() else { return };
    let (gpu, cpu, in_slab) = engines(&device);
    let empty = 2 * in_slab - 1;
    for _ in 0..3 * gpu.ahead.as_ref().unwrap().max_forms {
        assert_eq!(block_on(gpu.compute(&batch(1, [empty]))), Err(EngineError::EmptySlot(empty)));
    }
    for _ in 0..3 {
        let batch = batch(2, [empty - 2]);
        assert!(block_on(gpu.compute(&batch)).unwrap() == cpu.compute(&batch).unwrap());
    }
    // A slot with an expert of the other shape has the form of that one.
    let shape = gpu.plan.shapes.with(OTHER).unwrap();
    let block = shape.noise(7, 0.2);
    block_on(gpu.load(0, OTHER, &block)).unwrap();
    cpu.load(0, OTHER, &block).unwrap();
    let batch = batch(3, [0, 1]);
    assert!(block_on(gpu.compute(&batch)).unwrap() == cpu.compute(&batch).unwrap());
}
