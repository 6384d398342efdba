//! A model of noise with the geometry of Qwen3-30B-A3B, for measurements: the same experts and matrices in every layer, each
//! with its own copy on the GPU.

use std::sync::Arc;

use moex_kernels::{
    ExpertFormat, ExpertShape, MatrixView, WeightFormat,
    cpu::{Renormalise, Rope, RopePairs, RopePlace},
    graph::{
        Attention, Graph, KvLayout, MatrixSource, PackedExperts, Program, Recorder, Rounding, RouterKind,
        Stage, TensorId,
    },
    simd::{KvFormat, PackedExpertShape, Processor},
};

const HIDDEN: usize = 2048;
const INNER: usize = 768;
/// Of a layer, where the GPU binds as many at once.
const N_EXPERTS: usize = 128;
const CHOSEN: usize = 8;
const N_HEADS: usize = 32;
const N_KV_HEADS: usize = 4;
const WIDTH: usize = 128;
/// Where the GPU binds as many rows of the head at once.
const VOCABULARY: usize = 151_936;
/// What the smallest limits of a GPU leave of it, and more.
pub(crate) const LEAST_VOCABULARY: usize = 32_768;
/// Rows of noise that larger matrices repeat.
const NOISE_ROWS: usize = 1024;

/// Formats of a model, as llama.cpp's quantisations choose them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Formats {
    pub(crate) name: &'static str,
    most: WeightFormat,
    /// Of values and of down in every second layer.
    second: WeightFormat,
    head: WeightFormat,
}

impl Formats {
    pub(crate) const ALL: [Self; 2] = [
        Self { name: "q4_0", most: WeightFormat::Q4_0, second: WeightFormat::Q4_0, head: WeightFormat::Q6K },
        Self { name: "q4_K_M", most: WeightFormat::Q4K, second: WeightFormat::Q6K, head: WeightFormat::Q6K },
    ];

    fn second(self, layer: usize) -> WeightFormat {
        if layer.is_multiple_of(2) { self.most } else { self.second }
    }
}

/// A program, and the experts of its layers.
pub(crate) struct Model {
    pub(crate) program: Program,
    pub(crate) experts: Experts,
    n_layers: usize,
    kv: KvFormat,
    max_positions: usize,
}

impl Model {
    pub(crate) fn new(
        formats: Formats,
        n_layers: usize,
        (kv, max_positions): (KvFormat, usize),
        most_bytes: u64,
        processor: &Arc<Processor>,
    ) -> std::io::Result<Self> {
        let experts = [0, 1].map(|layer| {
            let format = ExpertFormat::new(formats.most, formats.second(layer));
            let shape = ExpertShape { hidden: HIDDEN, inner: INNER, format };
            let packed = PackedExpertShape::from(shape);
            let block = shape.noise(layer as u64, 0.05);
            let mut bytes = vec![0; packed.bytes()];
            let view = shape.view(&block).expect("the block was made for this shape");
            packed.pack(processor.pool(), &view, &mut bytes);
            (packed, bytes)
        });
        let largest = experts.iter().map(|(_, bytes)| bytes.len()).max().unwrap_or(1);
        // Up to a byte for each weight.
        let vocabulary = VOCABULARY.min(most_bytes as usize / HIDDEN).max(LEAST_VOCABULARY);
        let n_experts = N_EXPERTS.min(most_bytes as usize / largest);
        let program =
            Program::simd(graph(formats, n_layers, [n_experts, vocabulary]), processor.clone(), None, || {})?;
        Ok(Self { program, experts: Experts(experts, n_experts), n_layers, kv, max_positions })
    }

    pub(crate) fn kv_layout(&self) -> KvLayout {
        KvLayout {
            windows: vec![None; self.n_layers],
            n_kv_heads: N_KV_HEADS,
            head_width: WIDTH,
            packed: Some(self.kv),
            state_lens: Vec::new(),
            max_positions: self.max_positions,
        }
    }
}

/// The expert of even layers and that of odd ones, and how many a layer has.
pub(crate) struct Experts([(PackedExpertShape, Vec<u8>); 2], usize);

impl PackedExperts for Experts {
    fn n_experts(&self, _: usize) -> usize {
        self.1
    }

    fn shape(&self, layer: usize) -> Option<PackedExpertShape> {
        Some(self.0[layer % 2].0)
    }

    fn copy(&self, layer: usize, _: usize, panels: &mut Vec<u8>) -> Result<(), String> {
        panels.clone_from(&self.0[layer % 2].1);
        Ok(())
    }
}

#[derive(Debug)]
struct Noise {
    format: WeightFormat,
    rows: usize,
    cols: usize,
    bytes: Vec<u8>,
}

impl Noise {
    fn matrix(format: WeightFormat, rows: usize, cols: usize) -> Arc<Self> {
        let n = rows.min(NOISE_ROWS);
        let values: Vec<f32> = (0..n * cols).map(|i| noise(i as u64) * 0.05).collect();
        let mut bytes = format.quantize(n, cols, &values);
        let row_bytes = bytes.len() / n;
        for row in n..rows {
            bytes.extend_from_within((row - n) * row_bytes..(row - n + 1) * row_bytes);
        }
        Arc::new(Self { format, rows, cols, bytes })
    }
}

/// Between -1 and 1.
fn noise(i: u64) -> f32 {
    let bits = (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    bits as f32 / 8_388_608.0 - 1.0
}

impl MatrixSource for Noise {
    fn shape(&self) -> (usize, usize) {
        (self.rows, self.cols)
    }

    fn format(&self) -> WeightFormat {
        self.format
    }

    fn view(&self) -> MatrixView<'_> {
        let view = MatrixView::new(self.format, self.rows, self.cols, &self.bytes);
        view.expect("the bytes were made for this shape")
    }

    fn read(&self, read: &mut dyn FnMut(MatrixView<'_>)) {
        read(self.view());
    }
}

fn graph(formats: Formats, n_layers: usize, [n_experts, vocabulary]: [usize; 2]) -> Graph {
    let mut recorder = Recorder::default();
    let linear = |recorder: &mut Recorder, name, x: TensorId, (format, rows)| {
        let matrix = Noise::matrix(format, rows, recorder.width(x));
        let matrix = recorder.matrix(matrix, Rounding::Never);
        recorder.linear(name, x, (matrix, None))
    };
    let table = recorder.matrix(Noise::matrix(WeightFormat::Q4_0, vocabulary, HIDDEN), Rounding::Never);
    let mut x = recorder.embed(table);
    let weight = recorder.vector(vec![1.0; HIDDEN]);
    let of_head = recorder.vector(vec![1.0; WIDTH]);
    let rope = recorder.rope(Rope::new(WIDTH, 1e6, None));
    for layer in 0..n_layers {
        let rows = recorder.norm(x, weight, 1e-6);
        let q = linear(&mut recorder, "q, k, v", rows, (formats.most, N_HEADS * WIDTH));
        let k = linear(&mut recorder, "k", rows, (formats.most, N_KV_HEADS * WIDTH));
        let v = linear(&mut recorder, "v", rows, (formats.second(layer), N_KV_HEADS * WIDTH));
        for heads in [q, k] {
            recorder.norm_in_place(heads, of_head, 1e-6);
            recorder.rotate(heads, WIDTH, rope, (RopePairs::Halves, RopePlace::First));
        }
        recorder.cache_write(layer, k, v);
        let scale = 1.0 / (WIDTH as f32).sqrt();
        let attention = Attention { n_heads: N_HEADS, scale, softcap: None, window: None, sinks: None };
        let heads = recorder.attend(layer, q, attention);
        let out = linear(&mut recorder, "attention's output", heads, (formats.most, HIDDEN));
        recorder.add(x, out);
        if layer + 1 == n_layers {
            x = recorder.keep_wanted(x);
        }
        let rows = recorder.norm(x, weight, 1e-6);
        let logits = linear(&mut recorder, "router", rows, (WeightFormat::F32, n_experts));
        recorder.route(logits, CHOSEN, RouterKind::Softmax, (Renormalise::Yes, 1.0));
        let sum = recorder.experts(layer, rows);
        recorder.add(x, sum);
        recorder.done(Stage::Experts);
    }
    let rows = recorder.norm(x, weight, 1e-6);
    let logits = linear(&mut recorder, "logits", rows, (formats.head, vocabulary));
    recorder.finish(logits)
}
