//! Errors of a GGUF file; each is a sentence that names the key or the tensor. The caller adds the file's name.

use moex_kernels::WeightFormat;

/// Why a file could not be read as GGUF.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GgufError {
    /// It does not begin with the magic.
    #[error("not a GGUF file: it does not begin with \"GGUF\"")]
    Magic,
    /// It has an unsupported version.
    #[error("GGUF version {0}, but only versions 2 and 3 are supported")]
    Version(u32),
    /// It has the other byte order.
    #[error("a big-endian GGUF, but only little-endian ones are supported")]
    BigEndian,
    /// It ends before something that its header announces.
    #[error("truncated: {what} ends at byte {end} and the file at byte {len}")]
    Truncated {
        /// The key, the tensor, or the part of the header.
        what: String,
        /// The byte after its last.
        end: u64,
        /// The file's length.
        len: u64,
    },
    /// A count or a length exceeds its limit.
    #[error("{what} {count}, but at most {most} are supported")]
    TooMany {
        /// What is counted, with the verb.
        what: String,
        /// How many.
        count: u64,
        /// The limit.
        most: u64,
    },
    /// A value has an unknown type.
    #[error("{key} has the unknown value type {kind}")]
    ValueType {
        /// The key.
        key: String,
        /// The type's number.
        kind: u32,
    },
    /// A string is not UTF-8.
    #[error("{0} is no UTF-8")]
    Utf8(String),
    /// A key or a tensor occurs twice.
    #[error("{0} occurs twice")]
    Duplicate(String),
    /// An invalid alignment.
    #[error("general.alignment is {0}, not a power of two up to {most}", most = super::MAX_ALIGNMENT)]
    Alignment(u64),
    /// A tensor with too many dimensions, or none.
    #[error("{tensor} has {n} dimensions, but only 1 to {most} are supported", most = super::MAX_DIMENSIONS)]
    Dimensions {
        /// The tensor.
        tensor: String,
        /// How many.
        n: u32,
    },
    /// A tensor whose size overflows.
    #[error("the size of {tensor} overflows: its dimensions are {dimensions:?}")]
    Overflow {
        /// The tensor.
        tensor: String,
        /// Columns first.
        dimensions: Vec<u64>,
    },
    /// A tensor with an unsupported type.
    #[error("{tensor} has the type {kind}, but only {known} are supported", known = super::kind::known())]
    Type {
        /// The tensor.
        tensor: String,
        /// The type's name, or its number.
        kind: String,
    },
    /// A tensor whose rows are not whole blocks.
    #[error("{tensor} has rows of {cols}, which are not whole blocks of {format}")]
    Ragged {
        /// The tensor.
        tensor: String,
        /// Its columns.
        cols: u64,
        /// Its type.
        format: WeightFormat,
    },
    /// A tensor that starts at an unaligned offset.
    #[error("{tensor} starts at byte {offset} of the data, which is not a multiple of {alignment}")]
    Misaligned {
        /// The tensor.
        tensor: String,
        /// From the start of the data.
        offset: u64,
        /// `general.alignment`.
        alignment: u64,
    },
    /// A missing key.
    #[error("the key {0} is missing")]
    MissingKey(String),
    /// A key with a value of another type, or out of its range.
    #[error("the key {key} is not {expected}")]
    WrongValue {
        /// The key.
        key: String,
        /// What it must be.
        expected: &'static str,
    },
}
