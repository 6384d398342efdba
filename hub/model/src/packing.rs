//! Formats that experts are packed to for workers: one format, or those of the checkpoint.

use std::fmt;

use moex_kernels::{ExpertFormat, ExpertShape, WeightFormat};

use super::{checkpoint::Expert, transformer::Model};

/// How experts are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// In the checkpoint's formats, without requantising.
    Native,
    /// All in one format, or in one for gate and up and another for down.
    To(ExpertFormat),
}

impl Packing {
    /// The requested packing; by default the checkpoint's formats if it is quantised, otherwise int4.
    pub fn or_default(asked: Option<ExpertFormat>, model: &Model) -> Self {
        match asked {
            Some(format) => Self::To(format),
            None if is_quantised(model) => Self::Native,
            None => Self::To(WeightFormat::Int4G128.into()),
        }
    }

    /// A description for the user.
    pub fn describe(self) -> String {
        match self {
            Self::Native => "as in the checkpoint".to_owned(),
            Self::To(format) => format.to_string(),
        }
    }

    /// The shape of a layer's blocks.
    ///
    /// # Errors
    /// If the layer has no experts, or its native formats differ between experts.
    pub fn shape(self, model: &Model, layer: usize) -> Result<ExpertShape, String> {
        let spec = model.spec();
        let format = match self {
            Self::To(format) => format.of_kind(spec.moe.kind),
            Self::Native => of_layer(model, layer)?,
        };
        Ok(ExpertShape { hidden: spec.hidden, inner: spec.moe.inner, format })
    }
}

impl fmt::Display for Packing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Native => f.write_str("native"),
            Self::To(format) => write!(f, "{format}"),
        }
    }
}

/// The common format of a layer's experts.
fn of_layer(model: &Model, layer: usize) -> Result<ExpertFormat, String> {
    let experts = model.experts(layer);
    let first = experts.first().ok_or_else(|| format!("layer {layer} has no experts"))?;
    let differ = || {
        format!(
            "the experts of layer {layer} have different formats for gate and up, or for down: choose one for \
             workers with --experts"
        )
    };
    let format = first.format().ok_or_else(differ)?;
    match experts.iter().all(|expert| expert.format() == Some(format)) {
        true => Ok(format),
        false => Err(differ()),
    }
}

/// Whether the experts have fewer than 16 bits per weight.
fn is_quantised(model: &Model) -> bool {
    let first = model.spec().sparse_layers().find_map(|layer| model.experts(layer).first());
    first.is_some_and(Expert::is_quantised)
}
