//! Tests places and joins, and that both engines compute the same graph.

use std::sync::Arc;

use super::*;
use crate::{
    MatrixView, WeightFormat,
    cpu::{RopePairs, RopePlace},
    nmse,
    noise::noise,
    simd::{KvFormat, Processor, Simd},
};

const HIDDEN: usize = 32;
const WIDTH: usize = 16;

#[derive(Debug)]
struct Floats(usize, usize, Vec<f32>);

impl MatrixSource for Floats {
    fn shape(&self) -> (usize, usize) {
        (self.0, self.1)
    }

    fn format(&self) -> WeightFormat {
        WeightFormat::F32
    }

    fn view(&self) -> MatrixView<'_> {
        MatrixView::of_f32(self.0, self.1, &self.2).unwrap()
    }

    fn read(&self, read: &mut dyn FnMut(MatrixView<'_>)) {
        read(self.view());
    }
}

/// Two dense layers.
fn graph() -> Graph {
    let mut recorder = Recorder::default();
    let mut seed = 0;
    let mut matrix = |recorder: &mut Recorder, rows: usize, cols: usize| {
        seed += 1;
        recorder.matrix(Arc::new(Floats(rows, cols, noise(seed, rows * cols, 0.3))), Rounding::Allowed)
    };
    let table = matrix(&mut recorder, 20, HIDDEN);
    let rope = recorder.rope(Rope::new(WIDTH, 1e4, None));
    let mut x = recorder.embed(table);
    for layer in 0..2 {
        let weight = recorder.vector(vec![1.0; HIDDEN]);
        let rows = recorder.norm(x, weight, 1e-6);
        let [q, k, v] = ["q", "k", "v"].map(|name| {
            let matrix = matrix(&mut recorder, if name == "q" { 2 * WIDTH } else { WIDTH }, HIDDEN);
            recorder.linear(name, rows, (matrix, None))
        });
        let head_norm = recorder.vector(noise(99, WIDTH, 1.0));
        for heads in [q, k] {
            // The first layer has norms, the second has none.
            if layer == 0 {
                recorder.norm_in_place(heads, head_norm, 1e-6);
            }
            recorder.rotate(heads, WIDTH, rope, (RopePairs::Halves, RopePlace::First));
        }
        recorder.cache_write(layer, k, v);
        let attention = Attention { n_heads: 2, scale: 0.25, softcap: None, window: None, sinks: None };
        let heads = recorder.attend(layer, q, attention);
        let output = matrix(&mut recorder, HIDDEN, 2 * WIDTH);
        let out = recorder.linear("output", heads, (output, None));
        recorder.add(x, out);
        recorder.done(Stage::Output);
        if layer == 1 {
            x = recorder.keep_wanted(x);
        }
        let rows = recorder.norm(x, weight, 1e-6);
        let matrices = [(48, HIDDEN), (48, HIDDEN), (HIDDEN, 48)];
        let [gate, up, down] = matrices.map(|(rows, cols)| matrix(&mut recorder, rows, cols));
        let gate = recorder.linear("gate", rows, (gate, None));
        let up = recorder.linear("up", rows, (up, None));
        recorder.activate(gate, up, Activation::Silu);
        let out = recorder.linear("down", gate, (down, None));
        recorder.add(x, out);
    }
    let logits = recorder.linear("logits", x, (table, None));
    recorder.finish(logits)
}

fn layout(packed: Option<KvFormat>) -> KvLayout {
    KvLayout {
        windows: vec![None; 2],
        n_kv_heads: 1,
        head_width: WIDTH,
        packed,
        state_lens: Vec::new(),
        max_positions: 64,
    }
}

fn run(program: &Program, packed: Option<KvFormat>, chunks: &[usize], wanted: WantedLogits) -> Vec<f32> {
    let mut kv = KvPool::new(layout(packed), usize::MAX, 1);
    let (mut table, mut space) = (KvTable::default(), Workspace::default());
    let ids: Vec<u32> = (0..12).map(|i| i * 7 % 20).collect();
    let (mut start, mut logits) = (0, Vec::new());
    for n in chunks {
        assert!(kv.reserve(&mut table, start + n));
        let spans = [Span { ids: &ids[start..start + n], start, table: &table, wanted }];
        program.begin(&spans, &mut space);
        assert_eq!(program.advance(&spans, &mut kv, &mut space), Ok(Pause::Done));
        logits.extend_from_slice(program.logits(&mut space));
        start += n;
    }
    logits
}

#[test]
fn both_engines_compute_the_same_and_a_row_keeps_its_bits_in_any_step() {
    let exact = Program::exact(graph());
    let mut packed = 0;
    let processor = Arc::new(Processor::new(Simd::detect(), 2));
    let fast = Program::simd(graph(), processor, None, || packed += 1).unwrap();
    assert_eq!(packed, 11, "each matrix once, an MLP's together");
    let expected = run(&exact, None, &[12], WantedLogits::All);
    assert_eq!(expected.len(), 12 * 20);
    for (program, format) in [(&exact, None), (&fast, Some(KvFormat::F32))] {
        let whole = run(program, format, &[12], WantedLogits::All);
        assert!(nmse(&whole, &expected) < 1e-9);
        assert_eq!(run(program, format, &[1, 7, 4], WantedLogits::All), whole);
        assert_eq!(run(program, format, &[12], WantedLogits::Last), whole[11 * 20..]);
        assert!(run(program, format, &[12], WantedLogits::Nothing).is_empty());
    }
}

#[test]
fn f32_weights_that_bf16_has_are_read_as_bf16_with_the_same_bits() {
    let in_bf16 = |seed: u64, n: usize| -> Vec<f32> {
        noise(seed, n, 0.3).into_iter().map(|x| f32::from_bits(x.to_bits() & 0xffff_0000)).collect()
    };
    let program = |weights: Vec<f32>| {
        let mut recorder = Recorder::default();
        let table =
            recorder.matrix(Arc::new(Floats(20, HIDDEN, noise(1, 20 * HIDDEN, 1.0))), Rounding::Never);
        let x = recorder.embed(table);
        let x = recorder.keep_wanted(x);
        let head = recorder.matrix(Arc::new(Floats(48, HIDDEN, weights)), Rounding::Never);
        let logits = recorder.linear("logits", x, (head, None));
        let processor = Arc::new(Processor::new(Simd::detect(), 1));
        Program::simd(recorder.finish(logits), processor, None, || {}).unwrap()
    };
    let weights = in_bf16(2, 48 * HIDDEN);
    let mut other = weights.clone();
    // The last of a row.
    other[48 * HIDDEN - 1] = 0.1;
    let [halves, whole] = [weights, other].map(program);
    assert_eq!(whole.weight_bytes() - halves.weight_bytes(), 2 * 48 * HIDDEN);
    let [halves, whole] = [halves, whole].map(|of| run(&of, None, &[12], WantedLogits::All));
    for (halves, whole) in halves.chunks(48).zip(whole.chunks(48)) {
        assert_eq!(halves[..47], whole[..47]);
        assert_ne!(halves[47], whole[47]);
    }
}

#[test]
fn what_one_kernel_does_is_one_operation() {
    let processor = Arc::new(Processor::new(Simd::detect(), 1));
    let fast = Program::simd(graph(), processor, None, || {}).unwrap();
    let count = |is: fn(&Op) -> bool| fast.ops().iter().filter(|op| is(op)).count();
    assert_eq!(count(|op| matches!(op, Op::Mlp { .. })), 2);
    assert_eq!(count(|op| matches!(op, Op::Linears { projections, .. } if projections.len() == 3)), 2);
    // The first layer's two sums, each followed by a norm. In the last layer a choice of rows comes between.
    assert_eq!(count(|op| matches!(op, Op::AddNorm { .. })), 2);
    assert_eq!(count(|op| matches!(op, Op::HeadsToCache { q: Heads { norm: Some(_), .. }, .. })), 1);
    assert_eq!(count(|op| matches!(op, Op::HeadsToCache { q: Heads { norm: None, .. }, .. })), 1);
    let rest = |op: &Op| {
        matches!(op, Op::Activate { .. } | Op::Rope { .. } | Op::NormInPlace { .. } | Op::CacheWrite { .. })
    };
    assert_eq!(count(rest), 0);
}

#[test]
fn tensors_that_live_together_lie_apart_and_others_share_places() {
    let graph = graph();
    let (recorded, joined) = (graph.recorded_bytes(512, 1), graph.joined_bytes(512, 1));
    assert!(recorded.planned * 2 < recorded.naive, "{recorded:?}");
    // At the widest moment the step's rows have x, normed rows, gate and up. Joined, neither gate nor up is there.
    let row = |columns: usize| columns * 512 * 4;
    assert!(recorded.planned >= row(2 * HIDDEN + 2 * 48), "{recorded:?}");
    assert!(joined.planned < recorded.planned && joined.planned >= row(4 * HIDDEN), "{joined:?}");
}

#[test]
fn a_token_without_an_embedding_is_an_error() {
    let exact = Program::exact(graph());
    let mut kv = KvPool::new(layout(None), usize::MAX, 1);
    let (mut table, mut space) = (KvTable::default(), Workspace::default());
    assert!(kv.reserve(&mut table, 1));
    let spans = [Span { ids: &[20], start: 0, table: &table, wanted: WantedLogits::Last }];
    exact.begin(&spans, &mut space);
    let error = exact.advance(&spans, &mut kv, &mut space).unwrap_err();
    assert_eq!(error.to_string(), "token 20 is not in a vocabulary of 20");
}
