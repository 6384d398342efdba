//! What experts are packed to for workers: one format, or what each has in the checkpoint.

use std::fmt;

use moex_kernels::{ExpertFormat, ExpertShape, WeightFormat};

use super::{checkpoint::Expert, transformer::Model};

/// How experts are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// As they are in the checkpoint: nothing is quantised anew.
    Native,
    /// All in one format, or in one for gate and up and another for down.
    To(ExpertFormat),
}

impl Packing {
    /// What was asked for; else as they are if the checkpoint is quantised, and int4 if not.
    pub fn or_default(asked: Option<ExpertFormat>, model: &Model) -> Self {
        match asked {
            Some(format) => Self::To(format),
            None if is_quantised(model) => Self::Native,
            None => Self::To(WeightFormat::Int4G128.into()),
        }
    }

    /// For people.
    pub fn describe(self) -> String {
        match self {
            Self::Native => "as in the checkpoint".to_owned(),
            Self::To(format) => format.to_string(),
        }
    }

    /// The shape of a layer's blocks.
    ///
    /// # Errors
    /// If the layer has no experts, or if as they are they do not all have the same formats.
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

/// The one format of all experts of a layer.
fn of_layer(model: &Model, layer: usize) -> Result<ExpertFormat, String> {
    let experts = model.experts(layer);
    let first = experts.first().ok_or_else(|| format!("layer {layer} has no experts"))?;
    let differ = || {
        format!(
            "the experts of layer {layer} do not all have one format for gate and up and one for down: choose one for \
             workers with --experts"
        )
    };
    let format = first.format().ok_or_else(differ)?;
    match experts.iter().all(|expert| expert.format() == Some(format)) {
        true => Ok(format),
        false => Err(differ()),
    }
}

/// Whether the experts are stored in less than 16 bits a weight.
fn is_quantised(model: &Model) -> bool {
    let first = model.spec().sparse_layers().find_map(|layer| model.experts(layer).first());
    first.is_some_and(Expert::is_quantised)
}
