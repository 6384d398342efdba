//! Reads how a folder was quantised: GPTQ, AWQ or FP8.

use std::borrow::Cow;

use moex_kernels::quant::GROUP;
use serde::Deserialize;

use crate::error::ConfigError;

/// Rows and columns that share a scale in FP8.
pub(super) const FP8_BLOCK: usize = 128;

/// How a folder was quantised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quantisation {
    Gptq {
        /// Offset added to a stored zero point.
        zero_offset: u8,
    },
    Awq,
    /// FP8, read by `fp8`.
    Fp8,
}

/// `quantization_config` in `config.json`, or `quantize_config.json`.
#[derive(Deserialize)]
struct Raw {
    quant_method: Option<String>,
    bits: Option<u32>,
    group_size: Option<i64>,
    desc_act: Option<bool>,
    checkpoint_format: Option<String>,
    fmt: Option<String>,
    weight_block_size: Option<Vec<usize>>,
    version: Option<String>,
}

impl Quantisation {
    /// Reads a folder's `config.json` and `quantize_config.json`; none if neither mentions quantisation.
    ///
    /// # Errors
    /// If the quantisation is not supported; names the field.
    pub(super) fn read(config: &[u8], quantize_config: Option<&[u8]>) -> Result<Option<Self>, ConfigError> {
        #[derive(Deserialize)]
        struct Outer {
            quantization_config: Option<Raw>,
        }
        let raw = match (serde_json::from_slice::<Outer>(config)?.quantization_config, quantize_config) {
            (Some(raw), _) => raw,
            (None, Some(json)) => serde_json::from_slice(json)?,
            (None, None) => return Ok(None),
        };
        let invalid = |field, value: String, reason: &str| {
            Err(ConfigError::Invalid { field: Cow::Borrowed(field), value, reason: reason.to_owned() })
        };
        // `quantize_config.json` is GPTQ's own file, and names no method.
        let method = raw.quant_method.as_deref().unwrap_or("gptq");
        if method == "mxfp4" {
            // For the experts only, whose tensors identify themselves.
            return Ok(None);
        }
        if method == "fp8" {
            let block = raw.weight_block_size.unwrap_or_default();
            return match raw.fmt.as_deref() {
                Some(other) if other != "e4m3" => {
                    invalid("fmt", format!("{other:?}"), "but only \"e4m3\" is supported")
                }
                _ if block != [FP8_BLOCK; 2] => {
                    invalid("weight_block_size", format!("{block:?}"), "but only [128, 128] is supported")
                }
                _ => Ok(Some(Self::Fp8)),
            };
        }
        if !matches!(method, "gptq" | "awq") {
            let reason = "but only \"gptq\", \"awq\", \"fp8\" and \"mxfp4\" are supported";
            return invalid("quant_method", format!("{method:?}"), reason);
        }
        if raw.bits != Some(4) {
            let bits = raw.bits.map_or_else(|| "absent".to_owned(), |bits| bits.to_string());
            return invalid("bits", bits, "but only 4 is supported");
        }
        if raw.group_size != Some(GROUP as i64) {
            let size = raw.group_size.map_or_else(|| "absent".to_owned(), |size| size.to_string());
            return invalid("group_size", size, "but only 128 is supported");
        }
        if raw.desc_act == Some(true) {
            return invalid("desc_act", "true".to_owned(), "but reordered columns are not supported");
        }
        match (method, raw.checkpoint_format.as_deref(), raw.version.as_deref()) {
            ("gptq", None | Some("gptq"), _) => Ok(Some(Self::Gptq { zero_offset: 1 })),
            ("gptq", Some("gptq_v2"), _) => Ok(Some(Self::Gptq { zero_offset: 0 })),
            ("gptq", Some(other), _) => invalid(
                "checkpoint_format",
                format!("{other:?}"),
                "but only \"gptq\" and \"gptq_v2\" are supported",
            ),
            (_, _, None | Some("gemm" | "GEMM")) => Ok(Some(Self::Awq)),
            (_, _, Some(other)) => invalid("version", format!("{other:?}"), "but only \"gemm\" is supported"),
        }
    }
}
