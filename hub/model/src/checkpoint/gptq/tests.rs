//! Folders in miniature, written by the rule of each packing, with the values that every weight must then have.

use std::fs;

use safetensors::{Dtype, tensor::TensorView};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;

/// Of the one matrix looked at: `o_proj` (D, H x C).
const ROWS: usize = 16;
const COLS: usize = 256;
const STEM: &str = "model.layers.0.self_attn.o_proj";

fn code(n: usize, k: usize) -> u32 {
    ((n * 7 + k * 3 + k / 16) % 16) as u32
}

/// From 1 on: what GPTQ's first version can say.
fn zero(n: usize, g: usize) -> u32 {
    1 + ((n * 5 + g * 11) % 15) as u32
}

fn scale(n: usize, g: usize) -> f16 {
    f16::from_f32(0.125 * (1 + n + 16 * g) as f32)
}

/// `(code - zero) * scale`, exact in f32.
fn weights() -> Vec<f32> {
    let weight =
        |n: usize, k: usize| (code(n, k) as f32 - zero(n, k / GROUP) as f32) * scale(n, k / GROUP).to_f32();
    (0..ROWS).flat_map(|n| (0..COLS).map(move |k| weight(n, k))).collect()
}

/// An i32 (rows, cols) whose nibble `i` at (r, c) is `nibble(r, c, i)`.
fn words(rows: usize, cols: usize, nibble: impl Fn(usize, usize, usize) -> u32) -> Vec<u8> {
    let word = |r: usize, c: usize| (0..8).fold(0, |word, i| word | nibble(r, c, i) << (4 * i));
    (0..rows)
        .flat_map(|r| (0..cols).map(move |c| (r, c)))
        .flat_map(|(r, c)| word(r, c).to_le_bytes())
        .collect()
}

struct Folder {
    quantisation: Value,
    qweight: (Vec<usize>, Vec<u8>),
    qzeros: Vec<u8>,
    g_idx: Option<Vec<u32>>,
}

fn gptq(zero_offset: u32) -> Folder {
    Folder {
        quantisation: json!({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": false}),
        qweight: (vec![COLS / 8, ROWS], words(COLS / 8, ROWS, |r, n, i| code(n, 8 * r + i))),
        qzeros: words(COLS / 128, ROWS / 8, |g, c, i| zero(8 * c + i, g).wrapping_sub(zero_offset) & 15),
        g_idx: Some((0..COLS as u32).map(|k| k / 128).collect()),
    }
}

fn awq() -> Folder {
    let order = [0, 2, 4, 6, 1, 3, 5, 7];
    Folder {
        quantisation: json!({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": true, "version": "gemm"}),
        qweight: (vec![COLS, ROWS / 8], words(COLS, ROWS / 8, |k, c, i| code(8 * c + order[i], k))),
        qzeros: words(COLS / 128, ROWS / 8, |g, c, i| zero(8 * c + order[i], g)),
        g_idx: None,
    }
}

impl Folder {
    /// The matrix, in a folder of a model of that shape.
    fn open(&self, in_config: bool) -> Result<Option<Quantised>, ModelError> {
        let folder: TempDir = tempfile::tempdir().unwrap();
        let mut config = json!({"model_type": "qwen3_moe", "hidden_size": ROWS, "num_hidden_layers": 1,
            "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 128, "vocab_size": 8,
            "max_position_embeddings": 16, "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8});
        let put = |name: &str, json: &Value| fs::write(folder.path().join(name), json.to_string()).unwrap();
        if in_config {
            config["quantization_config"] = self.quantisation.clone();
        } else {
            put("quantize_config.json", &self.quantisation);
        }
        put("config.json", &config);
        let scales: Vec<u8> = (0..COLS / 128)
            .flat_map(|g| (0..ROWS).map(move |n| scale(n, g)))
            .flat_map(f16::to_le_bytes)
            .collect();
        let g_idx: Option<Vec<u8>> =
            self.g_idx.as_ref().map(|ids| ids.iter().flat_map(|id| id.to_le_bytes()).collect());
        let view = |dtype, shape: &[usize], bytes| TensorView::new(dtype, shape.to_vec(), bytes).unwrap();
        let mut tensors = vec![
            ("qweight", view(Dtype::I32, &self.qweight.0, &self.qweight.1)),
            ("qzeros", view(Dtype::I32, &[COLS / 128, ROWS / 8], &self.qzeros)),
            ("scales", view(Dtype::F16, &[COLS / 128, ROWS], &scales)),
        ];
        if let Some(g_idx) = &g_idx {
            tensors.push(("g_idx", view(Dtype::I32, &[COLS], g_idx)));
        }
        let tensors = tensors.into_iter().map(|(name, view)| (format!("{STEM}.{name}"), view));
        safetensors::serialize_to_file(tensors, None, &folder.path().join("model.safetensors")).unwrap();
        let checkpoint = Checkpoint::open(folder.path())?;
        let matrix = checkpoint.matrix(&format!("{STEM}.weight"), ROWS, COLS)?;
        assert_eq!(matrix.view().format(), WeightFormat::Int4ZpG128);
        assert_eq!(matrix.view().dequantize(), weights());
        Quantised::find(&checkpoint, STEM, ROWS, COLS)
    }

    fn with(mut self, field: &str, value: Value) -> Self {
        self.quantisation[field] = value;
        self
    }

    fn error(&self) -> String {
        self.open(true).unwrap_err().to_string()
    }
}

#[test]
fn gptq_keeps_every_weight() {
    for in_config in [true, false] {
        gptq(1).open(in_config).unwrap();
        gptq(0).with("checkpoint_format", json!("gptq_v2")).open(in_config).unwrap();
    }
    let without = Folder { g_idx: None, ..gptq(1) };
    without.open(true).unwrap();
}

#[test]
fn awq_keeps_every_weight() {
    let found = awq().open(true).unwrap().unwrap();
    let bytes = found.convert();
    // Row 0: codes 0 and 3, then scale 0.125 = 0x3000 and zero 1 behind all the nibbles.
    assert_eq!(bytes[0], 0x30);
    assert_eq!(bytes[ROWS * COLS / 2..][..4], [0x00, 0x30, 1, 0]);
    assert_eq!(found.stored().map(<[u8]>::len), [ROWS * COLS / 2, ROWS, ROWS * 4]);
}

#[test]
fn what_is_not_read_is_named() {
    for (folder, expected) in [
        (gptq(1).with("bits", json!(8)), "the field bits is 8, but only 4 is supported"),
        (gptq(1).with("group_size", json!(-1)), "the field group_size is -1, but only 128 is supported"),
        (
            gptq(1).with("desc_act", json!(true)),
            "the field desc_act is true, but reordered columns are not supported",
        ),
        (
            gptq(1).with("quant_method", json!("hqq")),
            "the field quant_method is \"hqq\", but only \"gptq\", \"awq\", \"fp8\" and \"mxfp4\"",
        ),
        (gptq(1).with("checkpoint_format", json!("marlin")), "the field checkpoint_format is \"marlin\""),
        (awq().with("version", json!("gemv")), "the field version is \"gemv\", but only \"gemm\""),
    ] {
        let error = folder.error();
        assert!(error.contains(expected), "{error}");
    }
    let mut moved = gptq(1);
    moved.g_idx = moved.g_idx.map(|ids| ids.into_iter().rev().collect());
    let error = moved.error();
    assert!(error.contains("o_proj.g_idx has reordered columns (desc_act)"), "{error}");
    let mut short = gptq(1);
    short.qweight = (vec![ROWS, COLS / 8], short.qweight.1);
    let error = short.error();
    assert!(
        error.contains("o_proj.qweight is I32 [16, 32], but its quantisation requires I32 [32, 16]"),
        "{error}"
    );
}
