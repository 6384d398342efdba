//! Errors for bytes that are not a matrix, and names that are not a format.

use super::WeightFormat;

/// Bytes that do not have the length of their matrix or block.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// A matrix of another length.
    #[error("a ({rows}, {cols}) {format} matrix has {expected} bytes, not {actual}")]
    MatrixLength {
        /// Its format.
        format: WeightFormat,
        /// Its rows.
        rows: usize,
        /// Its columns.
        cols: usize,
        /// The bytes such a matrix has.
        expected: usize,
        /// The bytes given.
        actual: usize,
    },
    /// An expert block of another length.
    #[error("an expert block of this shape has {expected} bytes, not {actual}")]
    BlockLength {
        /// The bytes such a block has.
        expected: usize,
        /// The bytes given.
        actual: usize,
    },
    /// No format has this name.
    #[error("no weight format is called {0:?}: there are {known}", known = WeightFormat::ALL.map(WeightFormat::name).join(", "))]
    UnknownFormat(String),
}
