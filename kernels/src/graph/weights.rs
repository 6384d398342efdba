//! Where a graph's matrices come from.

use std::fmt::Debug;

use crate::{MatrixView, WeightFormat};

/// A matrix of weights, wherever it lies.
pub trait MatrixSource: Debug + Send + Sync {
    /// (out, in).
    fn shape(&self) -> (usize, usize);

    /// How its weights are stored.
    fn format(&self) -> WeightFormat;

    /// As kernels take it; what has to be made for it is kept.
    fn view(&self) -> MatrixView<'_>;

    /// The same for `read` alone: what has to be made for it is not kept.
    fn read(&self, read: &mut dyn FnMut(MatrixView<'_>));
}

/// Whether a matrix of floats may be rounded to the format that an engine is told to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// As its user wishes.
    Allowed,
    /// What is small and decides much stays as it is.
    Never,
}

/// The format that a matrix is packed in: `to`, if it is one of floats and may be rounded.
pub(super) fn packed_format(
    format: WeightFormat,
    rounding: Rounding,
    to: Option<WeightFormat>,
) -> WeightFormat {
    let is_float = matches!(format, WeightFormat::F32 | WeightFormat::F16 | WeightFormat::Bf16);
    match to {
        Some(to) if is_float && rounding == Rounding::Allowed => to,
        _ => format,
    }
}
