//! The pass on whatever adapter this machine has, lavapipe at least, against the CPU's vector kernels.

mod any_step;
mod best;
mod heads;
mod matrix;
mod near;
mod one_row;
mod refusals;
mod several_gpus;
mod shared_numbers;

use std::{slice::from_ref, sync::Arc};

use matrix::Matrix;
use near::assert_near;

use super::{super::tests::device, pages::pollster, *};
use crate::engine::GpuSelect;
use crate::{
    ExpertFormat, ExpertShape, WeightFormat,
    batch::Pair,
    cpu::{self, Renormalise, Rope, RopePairs, RopePlace},
    graph::{
        Activation, Attention, Graph, KvTable, Pause, Recorder, Rounding, RouterKind, Stage, TensorId,
        WantedLogits, Workspace,
    },
    nmse,
    noise::noise,
    simd::{ExpertCall, ExpertScratch, KvFormat, PackedExpertShape, Processor, Simd, experts},
};

const HIDDEN: usize = 256;
const INNER: usize = 256;
const N_EXPERTS: usize = 10;
const VOCABULARY: usize = 40;
const N_TOKENS: usize = 90;
const ALL: ResidentExperts = ResidentExperts::first(usize::MAX);

/// What a model of these tests has.
#[derive(Clone, Copy, Debug)]
struct Kind {
    format: WeightFormat,
    /// Of values and of down.
    second: WeightFormat,
    n_chosen: usize,
    /// Two for keys and values, and for each so many of queries.
    group: usize,
    head_width: usize,
    has_attention: bool,
    has_dense_layer: bool,
    has_biases: bool,
    kv: KvFormat,
}

impl Kind {
    fn whole(format: WeightFormat, second: WeightFormat) -> Self {
        Self {
            format,
            second,
            n_chosen: 3,
            group: 2,
            head_width: 32,
            has_attention: true,
            has_dense_layer: true,
            has_biases: true,
            kv: KvFormat::F16,
        }
    }

    /// Nothing but what a GPU computes to the bit: products, a single expert with gate 1, and one sum.
    fn exact(format: WeightFormat) -> Self {
        Self {
            format,
            second: format,
            n_chosen: 1,
            has_attention: false,
            has_dense_layer: false,
            has_biases: false,
            ..Self::whole(format, format)
        }
    }
}

/// Experts in panels.
struct Packed(PackedExpertShape, Vec<Vec<u8>>);

impl Packed {
    fn new(kind: Kind, processor: &Processor) -> Self {
        let shape =
            ExpertShape { hidden: HIDDEN, inner: INNER, format: ExpertFormat::new(kind.format, kind.second) };
        let packed = PackedExpertShape::from(shape);
        let expert = |expert: usize| {
            let weights = |i: u64| noise(1000 + 3 * expert as u64 + i, HIDDEN * INNER, 0.1);
            let block = shape.pack(&weights(0), &weights(1), &weights(2));
            let mut bytes = vec![0; packed.bytes()];
            packed.pack(processor.pool(), &shape.view(&block).unwrap(), &mut bytes);
            bytes
        };
        Self(packed, (0..N_EXPERTS).map(expert).collect())
    }
}

impl PackedExperts for Packed {
    fn n_experts(&self, _: usize) -> usize {
        self.1.len()
    }

    fn shape(&self, _: usize) -> Option<PackedExpertShape> {
        Some(self.0)
    }

    fn copy(&self, _: usize, expert: usize, panels: &mut Vec<u8>) -> Result<(), String> {
        panels.clone_from(&self.1[expert]);
        Ok(())
    }
}

struct Pass {
    recorder: Recorder,
    seed: u64,
}

impl Pass {
    fn linear(
        &mut self,
        x: TensorId,
        name: &'static str,
        format: WeightFormat,
        (rows, has_bias): (usize, bool),
    ) -> TensorId {
        self.seed += 1;
        let matrix = Matrix::noise(self.seed, format, rows, self.recorder.width(x));
        let matrix = self.recorder.matrix(Arc::new(matrix), Rounding::Never);
        let bias = has_bias.then(|| self.recorder.vector(noise(self.seed + 500, rows, 0.5)));
        self.recorder.linear(name, x, (matrix, bias))
    }

    fn normed(&mut self, kind: Kind, x: TensorId) -> TensorId {
        if !kind.has_attention {
            return x;
        }
        let weight = self.recorder.vector(noise(77, HIDDEN, 1.0));
        self.recorder.norm(x, weight, 1e-6)
    }

    fn attention(&mut self, kind: Kind, slot: usize, x: TensorId) {
        let Kind { head_width, group, .. } = kind;
        let rope = self.recorder.rope(Rope::new(head_width, 1e4, None));
        let rows = self.normed(kind, x);
        let q = self.linear(rows, "q", kind.format, (2 * group * head_width, kind.has_biases));
        let k = self.linear(rows, "k", kind.format, (2 * head_width, false));
        let v = self.linear(rows, "v", kind.second, (2 * head_width, kind.has_biases));
        let weight = self.recorder.vector(noise(99, head_width, 1.0));
        for heads in [q, k] {
            // The first layer has norms of heads, the second has none.
            if slot == 0 {
                self.recorder.norm_in_place(heads, weight, 1e-6);
            }
            let pairs = [RopePairs::Halves, RopePairs::Neighbours][slot];
            self.recorder.rotate(heads, head_width, rope, (pairs, RopePlace::First));
        }
        self.recorder.cache_write(slot, k, v);
        self.recorder.done(Stage::Projections);
        let scale = 1.0 / (head_width as f32).sqrt();
        let attention = Attention { n_heads: 2 * group, scale, softcap: None, window: None, sinks: None };
        let heads = self.recorder.attend(slot, q, attention);
        let format = if kind.second == WeightFormat::F32 { WeightFormat::F32 } else { WeightFormat::Q8_0 };
        let out = self.linear(heads, "output", format, (HIDDEN, false));
        self.recorder.add(x, out);
    }
}

/// Two layers: one with experts, and one with a dense MLP if the kind has one.
fn graph(kind: Kind) -> Graph {
    let mut pass = Pass { recorder: Recorder::default(), seed: 0 };
    let table = Matrix::noise(42, WeightFormat::F32, VOCABULARY, HIDDEN);
    let table = pass.recorder.matrix(Arc::new(table), Rounding::Never);
    let mut x = pass.recorder.embed(table);
    for layer in 0..if kind.has_dense_layer { 2 } else { 1 } {
        if kind.has_attention {
            pass.attention(kind, layer, x);
        }
        if layer == 1 || !kind.has_dense_layer {
            x = pass.recorder.keep_wanted(x);
        }
        let rows = pass.normed(kind, x);
        let sum = if layer == 0 {
            let logits = pass.linear(rows, "router", WeightFormat::F32, (N_EXPERTS, false));
            pass.recorder.route(logits, kind.n_chosen, RouterKind::Softmax, (Renormalise::Yes, 1.0));
            pass.recorder.experts(layer, rows)
        } else {
            let gate = pass.linear(rows, "gate", kind.format, (INNER, false));
            let up = pass.linear(rows, "up", kind.format, (INNER, false));
            pass.recorder.activate(gate, up, Activation::Silu);
            pass.linear(gate, "down", kind.second, (HIDDEN, false))
        };
        pass.recorder.add(x, sum);
        pass.recorder.done(Stage::Experts);
    }
    let rows = pass.normed(kind, x);
    let logits = pass.linear(rows, "logits", kind.format, (VOCABULARY, false));
    pass.recorder.finish(logits)
}

fn layout(kind: Kind) -> KvLayout {
    KvLayout {
        windows: vec![None; if kind.has_attention { 2 } else { 0 }],
        n_kv_heads: 2,
        head_width: kind.head_width,
        packed: Some(kind.kv),
        state_lens: Vec::new(),
        max_positions: 128,
    }
}

fn ids() -> Vec<u32> {
    (0..N_TOKENS as u32).map(|i| i * 7 % VOCABULARY as u32).collect()
}

/// What the vector kernels give for the experts chosen for `rows` (T, D): their gated sum (T, D).
fn experts_on_cpu(
    (packed, processor): (&Packed, &Processor),
    (n_chosen, experts_of, gates): (usize, &[u16], &[f32]),
    rows: &[f32],
    sum: &mut [f32],
) {
    let mut scratch = ExpertScratch::default();
    sum.fill(0.0);
    for (t, (row, sum)) in rows.chunks(HIDDEN).zip(sum.chunks_mut(HIDDEN)).enumerate() {
        let of_row = t * n_chosen..(t + 1) * n_chosen;
        let mut pairs: Vec<_> = experts_of[of_row.clone()].iter().zip(&gates[of_row]).collect();
        pairs.sort_by_key(|(expert, _)| **expert);
        for (expert, gate) in pairs {
            let pairs = [Pair { row: 0, gate: *gate }];
            let calls = [ExpertCall { expert: &packed.1[usize::from(*expert)], pairs: &pairs }];
            let mut out = [0.0; HIDDEN];
            let (simd, pool) = (processor.simd(), processor.pool());
            experts(simd, pool, &packed.0, &mut scratch, &calls, row, &mut out).unwrap();
            cpu::add(sum, &out);
        }
    }
}

/// Logits of all rows, and the chosen experts, by the vector kernels.
fn on_cpu(kind: Kind, program: &Program, packed: &Packed, processor: &Processor) -> (Vec<f32>, Vec<u16>) {
    let mut kv = KvPool::new(layout(kind), usize::MAX, 1);
    let (mut table, mut space) = (KvTable::default(), Workspace::default());
    let mut chosen = Vec::new();
    assert!(kv.reserve(&mut table, N_TOKENS));
    let spans = [Span { ids: &ids(), start: 0, table: &table, wanted: WantedLogits::All }];
    program.begin(&spans, &mut space);
    while let Pause::Experts(wanted) = program.advance(&spans, &mut kv, &mut space).unwrap() {
        let call = program.experts(&mut space, wanted);
        chosen.extend_from_slice(call.experts);
        let routing = (call.n_chosen, call.experts, call.gates);
        experts_on_cpu((packed, processor), routing, call.rows, call.sum);
    }
    (program.logits(&mut space).to_vec(), chosen)
}

/// Experts elsewhere, where there are none.
fn nowhere(_: &LayerRouting, _: &[f32], _: &mut [f32]) -> Result<(), DeviceError> {
    Err(DeviceError::Experts)
}

/// [`on_cpu`] on the GPU, in steps of these lengths.
fn on_gpu(kind: Kind, pass: &GpuPass, steps: &[usize]) -> (Vec<f32>, Vec<u16>) {
    on_gpu_with(kind, pass, steps, &mut nowhere)
}

fn on_gpu_with(
    kind: Kind,
    pass: &GpuPass,
    steps: &[usize],
    elsewhere: &mut ExpertsElsewhere<'_>,
) -> (Vec<f32>, Vec<u16>) {
    let mut kv = pass.kv_pool(layout(kind), usize::MAX, 1);
    let (mut table, mut out) = (KvTable::default(), DeviceOutput::default());
    let (ids, mut start, mut logits, mut chosen) = (ids(), 0, Vec::new(), Vec::new());
    for n in steps {
        assert!(kv.reserve(&mut table, start + n));
        let span = Span { ids: &ids[start..start + n], start, table: &table, wanted: WantedLogits::All };
        pass.step(&[span], &kv, elsewhere, &mut out).unwrap();
        logits.extend_from_slice(&out.logits);
        out.routing.iter().for_each(|of_layer| chosen.extend_from_slice(&of_layer.experts));
        start += n;
    }
    (logits, chosen)
}

fn programs(kind: Kind) -> (Program, Packed, Arc<Processor>) {
    let processor = Arc::new(Processor::new(Simd::detect(), 2));
    let program = Program::simd(graph(kind), processor.clone(), None, || {}).unwrap();
    (program, Packed::new(kind, &processor), processor)
}

#[test]
fn a_pass_agrees_with_the_cpu_and_chooses_the_same_experts() {
    let Some(device) = device() else { return };
    for (format, second) in [
        (WeightFormat::Q8_0, WeightFormat::Q8_0),
        (WeightFormat::Q4K, WeightFormat::Q6K),
        (WeightFormat::Int4G128, WeightFormat::Int4G128),
        (WeightFormat::F32, WeightFormat::Bf16),
    ] {
        let kind = Kind::whole(format, second);
        let (program, packed, processor) = programs(kind);
        let (expected, chosen) = on_cpu(kind, &program, &packed, &processor);
        let pass = GpuPass::new(from_ref(&device), &program, (&packed, ALL), &layout(kind)).unwrap();
        let n_buffers = pass.buffers_created();
        for steps in [&[N_TOKENS][..], &[1, 1, 63, 2, 23]] {
            let (logits, ours) = on_gpu(kind, &pass, steps);
            assert_eq!(ours, chosen, "{kind:?} {steps:?}");
            assert_near((&logits, &expected), N_TOKENS / 10, &format!("{kind:?} {steps:?}"));
        }
        assert_eq!(pass.buffers_created(), n_buffers);
    }
}

#[test]
fn products_and_experts_have_the_cpus_bits_in_every_format() {
    let Some(device) = device() else { return };
    for format in WeightFormat::ALL {
        let kind = Kind::exact(format);
        let (program, packed, processor) = programs(kind);
        let (expected, chosen) = on_cpu(kind, &program, &packed, &processor);
        let pass = GpuPass::new(from_ref(&device), &program, (&packed, ALL), &layout(kind)).unwrap();
        let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        let (logits, ours) = on_gpu(kind, &pass, &[1, 64, 25]);
        assert_eq!(ours, chosen, "{format}");
        assert!(bits(&logits) == bits(&expected), "{format}: NMSE {:e}", nmse(&logits, &expected));
    }
}

#[test]
fn experts_elsewhere_give_the_bits_of_experts_on_the_gpu() {
    let Some(device) = device() else { return };
    let none = ResidentExperts::first(0);
    for (kind, n_calls) in
        [(Kind::exact(WeightFormat::Q8_0), 3), (Kind::whole(WeightFormat::Q4K, WeightFormat::Q6K), 4)]
    {
        let (program, packed, processor) = programs(kind);
        let here = GpuPass::new(from_ref(&device), &program, (&packed, ALL), &layout(kind)).unwrap();
        let away = GpuPass::new(from_ref(&device), &program, (&packed, none), &layout(kind)).unwrap();
        assert_eq!((here.n_resident(), away.n_resident()), (1, 0));
        assert!(away.weight_bytes() + packed.1.concat().len() as u64 <= here.weight_bytes());
        let n_buffers = away.buffers_created();
        let steps: &[usize] = if n_calls == 3 { &[1, 64, 25] } else { &[1, 66, 23] };
        let (expected, chosen) = on_gpu(kind, &here, steps);
        let (mut n, mut chosen_away) = (0, Vec::new());
        let mut elsewhere = |routing: &LayerRouting, rows: &[f32], sum: &mut [f32]| {
            n += 1;
            chosen_away.extend_from_slice(&routing.experts);
            let chosen = (routing.n_chosen, &routing.experts[..], &routing.gates[..]);
            experts_on_cpu((&packed, &processor), chosen, rows, sum);
            Ok(())
        };
        let (logits, ours) = on_gpu_with(kind, &away, steps, &mut elsewhere);
        assert!(ours.is_empty(), "the GPU computes none");
        assert_eq!((n, &chosen_away), (n_calls, &chosen), "{kind:?}");
        assert!(logits.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits()), "{kind:?}");
        assert_eq!(away.buffers_created(), n_buffers);
    }
}

#[test]
fn a_pass_whose_experts_fail_elsewhere_fails_and_goes_on() {
    let Some(device) = device() else { return };
    let kind = Kind::whole(WeightFormat::Q8_0, WeightFormat::Q8_0);
    let (program, packed, processor) = programs(kind);
    let pass = GpuPass::new(from_ref(&device), &program, (&packed, ResidentExperts::first(0)), &layout(kind))
        .unwrap();
    let mut elsewhere = |routing: &LayerRouting, rows: &[f32], sum: &mut [f32]| {
        let chosen = (routing.n_chosen, &routing.experts[..], &routing.gates[..]);
        experts_on_cpu((&packed, &processor), chosen, rows, sum);
        Ok(())
    };
    let (expected, _) = on_gpu_with(kind, &pass, &[N_TOKENS], &mut elsewhere);
    let mut kv = pass.kv_pool(layout(kind), usize::MAX, 1);
    let (mut table, mut out) = (KvTable::default(), DeviceOutput::default());
    assert!(kv.reserve(&mut table, N_TOKENS));
    let spans = [Span { ids: &ids(), start: 0, table: &table, wanted: WantedLogits::All }];
    let failed = pass.step(&spans, &kv, &mut nowhere, &mut out).unwrap_err();
    assert_eq!(failed, DeviceError::Experts);
    pass.step(&spans, &kv, &mut elsewhere, &mut out).unwrap();
    assert_eq!(out.logits, expected);
    let unread = [Span { wanted: WantedLogits::Nothing, ..spans[0] }];
    pass.step(&unread, &kv, &mut elsewhere, &mut out).unwrap();
    assert!(out.logits.is_empty());
}

#[test]
fn as_many_layers_as_fit_are_on_the_gpu() {
    let Some(device) = device() else { return };
    let kind = Kind::whole(WeightFormat::Q8_0, WeightFormat::Q8_0);
    let (program, packed, _) = programs(kind);
    for (resident, n) in [
        (ResidentExperts { n_layers: None, beside: 0, spread: false }, 1),
        (ResidentExperts::first(7), 1),
        (ResidentExperts::first(0), 0),
    ] {
        let pass = GpuPass::new(from_ref(&device), &program, (&packed, resident), &layout(kind)).unwrap();
        assert_eq!(pass.n_resident(), n, "{resident:?}");
    }
}

#[test]
fn sequences_share_a_step_and_a_copied_page_is_its_own() {
    let Some(device) = device() else { return };
    for kv in [KvFormat::F16, KvFormat::Q8_0] {
        let kind = Kind { kv, ..Kind::whole(WeightFormat::Q8_0, WeightFormat::Q8_0) };
        let (program, packed, _) = programs(kind);
        let pass = GpuPass::new(from_ref(&device), &program, (&packed, ALL), &layout(kind)).unwrap();
        let (alone, _) = on_gpu(kind, &pass, &[N_TOKENS]);
        let mut kv = pass.kv_pool(layout(kind), usize::MAX, 2);
        let (mut a, mut b, mut out) = (KvTable::default(), KvTable::default(), DeviceOutput::default());
        let ids = ids();
        assert!(kv.reserve(&mut a, 20));
        let span =
            |start, end, table| Span { ids: &ids[start..end], start, table, wanted: WantedLogits::Last };
        pass.step(&[span(0, 20, &a)], &kv, &mut nowhere, &mut out).unwrap();
        assert!(kv.copy(&mut b, kv.block(&a, 0)));
        // The first sequence goes on with other tokens.
        let others = Span { ids: &[1, 2, 3], start: 20, table: &a, wanted: WantedLogits::Nothing };
        pass.step(&[others, span(20, 25, &b)], &kv, &mut nowhere, &mut out).unwrap();
        let error = nmse(&out.logits, &alone[24 * VOCABULARY..][..VOCABULARY]);
        assert!(error < 1e-5, "{kind:?}: NMSE {error:e}");
        let nothing = Span { ids: &[1, 2, 3], start: 23, table: &a, wanted: WantedLogits::Nothing };
        pass.step(&[nothing], &kv, &mut nowhere, &mut out).unwrap();
        assert!(out.logits.is_empty());
    }
}

#[test]
fn a_timed_step_gives_the_same_bits_and_a_time_for_each_dispatch() {
    if device().is_none() {
        return;
    }
    let open = |select| pollster(GpuDevice::open_timed(select));
    let device = open(GpuSelect::Auto).or_else(|_| open(GpuSelect::Software)).unwrap();
    let Some(clock) = GpuClock::new(&device) else {
        return eprintln!("SKIPPED, nothing was tested: this GPU has no timestamps");
    };
    let kind = Kind::whole(WeightFormat::Q8_0, WeightFormat::Q8_0);
    let (program, packed, _) = programs(kind);
    let pass = GpuPass::new(from_ref(&device), &program, (&packed, ALL), &layout(kind)).unwrap();
    let mut kv = pass.kv_pool(layout(kind), usize::MAX, 1);
    let (mut table, mut out) = (KvTable::default(), DeviceOutput::default());
    assert!(kv.reserve(&mut table, 6));
    let ids = ids();
    let span = |start, end| Span { ids: &ids[start..end], start, table: &table, wanted: WantedLogits::Last };
    pass.step(&[span(0, 5)], &kv, &mut nowhere, &mut out).unwrap();
    pass.step(&[span(5, 6)], &kv, &mut nowhere, &mut out).unwrap();
    let untimed = out.logits.clone();
    for stamps in [Stamps::Ends, Stamps::Each] {
        let time = pass.timed_step((&clock, stamps), &[span(5, 6)], &kv, &mut out).unwrap();
        assert_eq!(out.logits, untimed);
        let n = if stamps == Stamps::Each { pass.n_dispatches() } else { 0 };
        assert_eq!(time.dispatches.len(), n);
        let all: f64 = time.dispatches.iter().map(|dispatch| dispatch.micros).sum();
        assert!(all <= time.micros, "{all} {}", time.micros);
        let attend = time.dispatches.iter().find(|dispatch| dispatch.kernel == "row_attend");
        // Six positions of keys and values: two heads of 32 columns, two bytes each.
        assert!((stamps == Stamps::Ends) == attend.is_none());
        assert!(attend.is_none_or(|attend| attend.bytes == 6 * 2 * 2 * kind.head_width * 2));
    }
    assert!(clock.read_rate(16 << 20).unwrap() > 0.0 && clock.empty_dispatch().unwrap() > 0.0);
}
