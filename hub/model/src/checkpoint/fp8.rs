//! Reads FP8 folders as Qwen and DeepSeek publish them: e4m3 codes with a scale for each 128 rows by 128 columns.
//! Matrices are converted to bf16, as transformers does without an FP8 kernel.
//!
//! A (rows, cols) matrix is stored as `weight` (rows, cols) in F8_E4M3 and `weight_scale_inv` (rows / 128, cols / 128)
//! in bf16 or f32, both dimensions rounded up. Despite its name, codes are multiplied by `weight_scale_inv`.

use bytes::Bytes;
use half::bf16;
use moex_kernels::{MatrixView, WeightFormat};

use super::{
    gptq::wrong,
    quantisation::{FP8_BLOCK as BLOCK, Quantisation},
    tensors::{Checkpoint, Stored, Tensor},
};
use crate::error::ModelError;

/// A stored matrix with checked shapes.
#[derive(Clone, Debug)]
pub(super) struct Fp8 {
    rows: usize,
    cols: usize,
    codes: Bytes,
    scales: (WeightFormat, Bytes),
}

impl Fp8 {
    /// The format it is converted to.
    pub(super) const FORMAT: WeightFormat = WeightFormat::Bf16;

    /// Finds the (rows, cols) matrix whose tensors begin with `stem`; none if there is no such FP8 matrix.
    ///
    /// # Errors
    /// If a tensor is missing or has another shape or type.
    pub(super) fn find(
        checkpoint: &Checkpoint,
        stem: &str,
        rows: usize,
        cols: usize,
    ) -> Result<Option<Self>, ModelError> {
        let scales = format!("{stem}.weight_scale_inv");
        if checkpoint.quantisation != Some(Quantisation::Fp8) || checkpoint.tensor(&scales).is_err() {
            return Ok(None);
        }
        let name = format!("{stem}.weight");
        let codes = checkpoint.tensor(&name)?;
        let is_e4m3 = matches!(&codes.stored, Stored::Other(name) if name == "F8_E4M3");
        let n_codes = rows.checked_mul(cols);
        if !is_e4m3 || codes.shape != [rows, cols] || Some(codes.bytes.len()) != n_codes {
            return Err(wrong(&name, codes, &format!("F8_E4M3 {:?}", [rows, cols])));
        }
        let shape = [rows.div_ceil(BLOCK), cols.div_ceil(BLOCK)];
        let tensor = checkpoint.tensor(&scales)?;
        match scales_of(&tensor, shape) {
            Some(scales) => Ok(Some(Self { rows, cols, codes: codes.bytes, scales })),
            None => Err(wrong(&scales, tensor, &format!("bf16 or f32 {shape:?}"))),
        }
    }

    /// Converts the weights to [`Self::FORMAT`], each to the value nearest to its code times its scale.
    pub(super) fn convert(&self) -> Vec<u8> {
        let [n_rows, n_cols] = [self.rows.div_ceil(BLOCK), self.cols.div_ceil(BLOCK)];
        let scales = MatrixView::new(self.scales.0, n_rows, n_cols, &self.scales.1)
            .expect("its length was checked when it was found")
            .dequantize();
        let values: [f32; 256] = std::array::from_fn(|code| value(code as u8));
        let mut bytes = Vec::with_capacity(2 * self.codes.len());
        for (row, codes) in self.codes.chunks_exact(self.cols.max(1)).enumerate() {
            let scales = &scales[row / BLOCK * n_cols..];
            for (codes, scale) in codes.chunks(BLOCK).zip(scales) {
                let weight = |code: &u8| bf16::from_f32(values[usize::from(*code)] * scale).to_le_bytes();
                bytes.extend(codes.iter().flat_map(weight));
            }
        }
        bytes
    }

    /// The stored bytes, in order, for a fingerprint.
    pub(super) fn stored(&self) -> [&[u8]; 3] {
        [&self.codes, &self.scales.1, &[]]
    }
}

fn scales_of(tensor: &Tensor, shape: [usize; 2]) -> Option<(WeightFormat, Bytes)> {
    let Stored::Weights(format) = tensor.stored else { return None };
    let is_right = tensor.shape == shape && tensor.bytes.len() == format.matrix_bytes(shape[0], shape[1]);
    (is_right && !format.is_quantised()).then(|| (format, tensor.bytes.clone()))
}

/// e4m3 without infinities: a sign, four exponent bits with bias 7, three fraction bits; all ones is NaN.
fn value(code: u8) -> f32 {
    /// Scales from f32's bias of 127 to 7.
    const REBIASED: f32 = f32::from_bits((127 + 120) << 23);
    let magnitude = match code & 0x7f {
        0x7f => f32::NAN,
        // The bits are moved to their place in an f32; subnormal codes become normal by the product.
        bits => f32::from_bits(u32::from(bits) << 20) * REBIASED,
    };
    if code < 0x80 { magnitude } else { -magnitude }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use safetensors::{Dtype, tensor::TensorView};
    use serde_json::{Value, json};

    use super::*;

    /// Of the one matrix looked at: `o_proj` (D, H x C), of more blocks than one in both directions, the last ones narrow.
    const ROWS: usize = 136;
    const COLS: usize = 256;
    const STEM: &str = "model.layers.0.self_attn.o_proj";

    #[test]
    fn codes_have_the_values_of_the_standard() {
        for (code, expected) in [
            (0x00, 0.0),
            (0x01, 2.0_f32.powi(-9)),
            (0x07, 7.0 * 2.0_f32.powi(-9)),
            (0x08, 2.0_f32.powi(-6)),
            (0x38, 1.0),
            (0x3c, 1.5),
            (0x7e, 448.0),
            (0xfe, -448.0),
            (0x81, -(2.0_f32.powi(-9))),
        ] {
            assert_eq!(value(code), expected, "{code:#x}");
        }
        assert!(value(0x7f).is_nan() && value(0xff).is_nan());
    }

    fn code(row: usize, col: usize) -> u8 {
        match (row * 31 + col * 7) as u8 {
            0x7f | 0xff => 0,
            code => code,
        }
    }

    fn scale(row: usize, col: usize) -> bf16 {
        bf16::from_f32(0.001 * (1 + row / BLOCK + 2 * (col / BLOCK)) as f32)
    }

    /// The matrix's values, in a folder of a model of that shape whose scales are (`scale_rows`, 2).
    fn open(scale_rows: usize, quantisation: &Value) -> Result<Vec<f32>, ModelError> {
        let folder = tempfile::tempdir().unwrap();
        let config = json!({"model_type": "qwen3_moe", "hidden_size": ROWS, "num_hidden_layers": 1,
            "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 128, "vocab_size": 8,
            "max_position_embeddings": 16, "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8,
            "quantization_config": quantisation});
        fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        let places =
            |rows: usize, cols: usize| (0..rows).flat_map(move |row| (0..cols).map(move |col| (row, col)));
        let codes: Vec<u8> = places(ROWS, COLS).map(|(row, col)| code(row, col)).collect();
        let scales: Vec<u8> = places(scale_rows, COLS / BLOCK)
            .flat_map(|(row, col)| scale(row * BLOCK, col * BLOCK).to_le_bytes())
            .collect();
        let tensors = [
            ("weight", TensorView::new(Dtype::F8_E4M3, vec![ROWS, COLS], &codes).unwrap()),
            (
                "weight_scale_inv",
                TensorView::new(Dtype::BF16, vec![scale_rows, COLS / BLOCK], &scales).unwrap(),
            ),
        ];
        let tensors = tensors.into_iter().map(|(name, view)| (format!("{STEM}.{name}"), view));
        safetensors::serialize_to_file(tensors, None, &folder.path().join("model.safetensors")).unwrap();
        let checkpoint = Checkpoint::open(folder.path())?;
        let matrix = checkpoint.matrix(&format!("{STEM}.weight"), ROWS, COLS)?;
        Ok(matrix.view().dequantize())
    }

    #[test]
    fn every_weight_is_its_code_times_the_scale_of_its_block() {
        let config = json!({"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
            "weight_block_size": [128, 128]});
        let values = open(2, &config).unwrap();
        for (i, actual) in values.iter().enumerate() {
            let (row, col) = (i / COLS, i % COLS);
            let expected = bf16::from_f32(value(code(row, col)) * scale(row, col).to_f32()).to_f32();
            assert_eq!(*actual, expected, "{row} {col}");
        }
        let error = open(1, &config).unwrap_err().to_string();
        assert!(error.contains("o_proj.weight_scale_inv") && error.contains("[2, 2]"), "{error}");
    }

    #[test]
    fn other_kinds_of_fp8_are_refused_by_name() {
        for (field, value) in [("weight_block_size", json!([64, 64])), ("fmt", json!("e5m2"))] {
            let mut config = json!({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]});
            config[field] = value;
            let error = open(2, &config).unwrap_err().to_string();
            assert!(error.contains(field), "{error}");
        }
    }
}
