//! Where a graph's matrices come from.

use std::fmt::Debug;

use crate::{MatrixView, WeightFormat};

/// A matrix of weights, wherever it lies.
pub trait MatrixSource: Debug + Send + Sync {
    /// (out, in).
    fn shape(&self) -> (usize, usize);

    /// How its weights are stored.
    fn format(&self) -> WeightFormat;

    /// The matrix as kernels take it. Anything made for this is kept.
    fn view(&self) -> MatrixView<'_>;

    /// Shows the matrix to `read`. Anything made for this is dropped afterwards.
    fn read(&self, read: &mut dyn FnMut(MatrixView<'_>));
}

/// Whether a matrix of floats may be rounded to the format that an engine is configured with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// The engine's configuration decides.
    Allowed,
    /// Stays as it is: for small matrices with a large influence.
    Never,
}

/// The format that a matrix is packed in: `to`, if the matrix is one of floats and may be rounded; otherwise its own.
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
