//! Messages of one row, of few pairs and of many give the CPU engine's bits in every format of integers, which are the naive
//! twin's.

use super::super::{
    GpuEngine, GpuTuning,
    tests::{block_on, device},
};
use super::*;
use crate::{
    ExpertFormat, ExpertKind, ExpertShapes,
    engine::{ActivationFormat, Batch, Call, CpuEngine, EnginePlan, Pair},
    noise::noise,
};

const HIDDEN: usize = 200;
const INNER: usize = 72;
const MAX_ROWS: u32 = 70;
const MAX_PAIRS: u32 = 200;

/// Pairs of calls for two experts of the first slab, two of the second, and one of the third.
const MESSAGES: [[u32; 5]; 6] = [
    [1, 1, 1, 1, 1],
    [1, 0, 1, 0, 0],
    [3, 2, 1, 0, 5],
    [9, 7, 1, 1, 33],
    [70, 33, 32, 31, 34],
    [1, 65, 3, 1, 0],
];

#[test]
fn messages_of_any_size_have_their_twins_bits() {
    let Some(device) = device() else { return };
    let integers: Vec<_> =
        WeightFormat::ALL.into_iter().filter(|format| format.geometry().is_some()).collect();
    for (i, &gate_up) in integers.iter().enumerate() {
        let kind = ExpertKind::ALL[i % 2];
        let format = ExpertFormat { gate_up, down: integers[(i + i / 2) % integers.len()], kind };
        check(&device, ExpertShape { hidden: HIDDEN, inner: INNER, format }.into());
    }
}

#[test]
fn experts_of_several_formats_share_a_message() {
    let Some(device) = device() else { return };
    let [first, other, floats] = [
        ExpertFormat::new(WeightFormat::Q4K, WeightFormat::Q6K),
        ExpertFormat::uniform(WeightFormat::Q4_0),
        ExpertFormat::new(WeightFormat::Q4_0, WeightFormat::F16),
    ];
    check(&device, ExpertShapes::new(HIDDEN, INNER, first, [other, floats]).unwrap());
}

/// Compares all messages, each with products and without. Slots have the plan's shapes in turn.
fn check(device: &GpuDevice, shapes: ExpertShapes) {
    let activations = ActivationFormat::Int8;
    let (max_rows, max_pairs) = (MAX_ROWS, MAX_PAIRS);
    let plan = |n_slots| EnginePlan { shapes, activations, n_slots, max_rows, max_pairs };
    let max_slab_bytes = 1 << 19;
    let in_slab = Layout::new(plan(100), max_slab_bytes).unwrap().slots_per_slab;
    let plan = plan(2 * in_slab + 1);
    let tuning = GpuTuning { max_slab_bytes, ..GpuTuning::of(device) };
    let gpu = block_on(GpuEngine::with_tuning(device, plan, tuning)).unwrap();
    let cpu = CpuEngine::new(plan).unwrap();
    let slots = [0, 1, in_slab, in_slab + 1, 2 * in_slab];
    for (slot, shape) in slots.into_iter().zip(shapes.iter().collect::<Vec<_>>().into_iter().cycle()) {
        let block = shape.noise(u64::from(slot), 0.2);
        block_on(gpu.load(slot, shape.format, &block)).unwrap();
        cpu.load(slot, shape.format, &block).unwrap();
    }
    let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    for pairs_of_calls in MESSAGES {
        let batch = batch(slots, pairs_of_calls);
        let expected = cpu.compute_with_products(&batch).unwrap();
        gpu.fill_output(f32::NAN);
        let actual = block_on(gpu.compute_with_products(&batch)).unwrap();
        let formats: Vec<_> = shapes.iter().map(|shape| shape.format).collect();
        assert!(bits(&actual.rows) == bits(&expected.rows), "{formats:?} {pairs_of_calls:?}");
        let [of_gpu, of_cpu] = [actual.products, expected.products].map(|products| bits(&products.unwrap()));
        assert!(of_gpu == of_cpu, "products of {formats:?} {pairs_of_calls:?}");
        gpu.fill_output(f32::NAN);
        let without = block_on(gpu.compute(&batch)).unwrap();
        assert!(bits(&without) == bits(&expected.rows), "{formats:?} {pairs_of_calls:?} without products");
    }
}

fn batch(slots: [u32; 5], pairs_of_calls: [u32; 5]) -> Batch {
    // Calls are in another order than slabs, and rows than pairs.
    let call = |(slot, n): (u32, u32)| {
        let pair = |i: u32| Pair { row: (slot + 3 + i * 11) % MAX_ROWS, gate: 1.0 / (1 + i + slot) as f32 };
        Call { slot, pairs: (0..n).map(pair).collect() }
    };
    let calls = slots.into_iter().zip(pairs_of_calls).rev().map(call).collect();
    Batch { rows: noise(5, MAX_ROWS as usize * HIDDEN, 1.0), calls }
}

#[test]
fn a_dispatch_has_wide_tiles_where_they_replace_twice_as_many() {
    let shape = ExpertShape::uniform(HIDDEN, INNER, WeightFormat::Q4_0);
    let activations = ActivationFormat::Int8;
    let (max_rows, max_pairs) = (MAX_ROWS, MAX_PAIRS);
    let plan = EnginePlan { shapes: shape.into(), activations, n_slots: 100, max_rows, max_pairs };
    let layout = Layout::new(plan, 1 << 19).unwrap();
    let in_slab = layout.slots_per_slab;
    let slots = [0, 1, in_slab, in_slab + 1, 2 * in_slab];
    let ways = |pairs_of_calls| {
        let mut tables = layout.tables(&batch(slots, pairs_of_calls), |_| 0);
        Wide::of(&layout, &mut tables, |_| false);
        assert!(tables.dispatches.iter().all(|dispatch| dispatch.way == Way::Few));
        let wide = Wide::of(&layout, &mut tables, |_| true);
        (tables.dispatches.iter().map(|dispatch| dispatch.way).collect::<Vec<_>>(), wide)
    };
    assert_eq!(ways([1, 0, 1, 0, 0]).0, [Way::One, Way::One]);
    assert_eq!(ways([3, 2, 1, 0, 4]).0, [Way::Few, Way::One, Way::Few]);
    let (of_many, many) = ways([9, 70, 1, 4, 34]);
    assert_eq!(of_many, [Way::Wide(4), Way::Few, Way::Wide(2)]);
    // The calls lie from the last to the first: 34, 4, 1, 70 and 9 pairs. 21 and two tiles of four pairs come before the third
    // dispatch's.
    let places: Vec<_> = many.tiles.iter().map(|tile| (tile.first_pair, tile.n_pairs)).collect();
    assert_eq!(places[..4], [(39, 32), (71, 32), (103, 6), (109, 9)]);
    assert_eq!(places[23..], [(0, 32), (32, 2)]);
    assert_eq!(many.pairs.len(), 118);
    assert_eq!(f32::from_bits(many.pairs[110][1]), 0.5);
}
