//! What is wrong with bytes that are no matrix, and with names that are no format.

use super::WeightFormat;

/// Bytes that are not the matrix or the block they are said to be.
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
