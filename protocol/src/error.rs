//! What is wrong with bytes or with what was to be sent, as data, and whose fault it is ([`Blame`]). The errors of a session are in [`crate::session::error`]; the ERROR frame, which reports one to the other
//! end, is [`crate::frame::error`].

use thiserror::Error;

use crate::error_code::ErrorCode;
use crate::limits;

/// Whose fault an error is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// The other end of the connection.
    Peer,
    /// The code that called.
    Caller,
    /// Nobody: a socket that went away, a queue that filled, an orderly end.
    Circumstance,
}

/// Bytes that are not a valid message. The peer is to blame, and the session ends.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// A message without a frame.
    #[error("an empty message")]
    Empty,
    /// A message that ends inside a frame.
    #[error("the message ends {missing} bytes before its frame does")]
    Truncated {
        /// How many bytes are missing.
        missing: u64,
    },
    /// A frame that does not start with `MoEx`.
    #[error("a frame does not start with the magic bytes")]
    Magic,
    /// A version that this crate does not speak.
    #[error("version {version} is not spoken here; spoken: {spoken}", spoken = crate::VERSION)]
    Version {
        /// The version asked for.
        version: u16,
    },
    /// A flag that is reserved or has no meaning in this type of frame.
    #[error("flags {flags:#04x} have no meaning in this frame")]
    Flags {
        /// The whole flags byte.
        flags: u8,
    },
    /// A number format that does not exist.
    #[error("dtype {byte} does not exist")]
    Dtype {
        /// The header's byte.
        byte: u8,
    },
    /// A tensor field set in a frame that has no tensor.
    #[error("a frame without a tensor has tensor fields")]
    NotZero,
    /// A tensor of no rows.
    #[error("a tensor frame has no rows")]
    NoRows,
    /// A tensor of no width.
    #[error("a tensor frame has no width")]
    NoHidden,
    /// A payload length other than the header implies.
    #[error("a payload of {bytes} bytes where the header implies {implied}")]
    Length {
        /// What the frame says or announces.
        bytes: u64,
        /// What the other header fields imply.
        implied: u64,
    },
    /// A payload that is not the LZ4 it says it is.
    #[error("a compressed payload does not expand to the size it announces")]
    Lz4,
    /// JSON that does not have the form that the frame requires.
    #[error("a control frame is not the JSON it should be: {reason}")]
    Json {
        /// What the parser says.
        reason: String,
    },
    /// A join field out of its range.
    #[error("the join's {field} is out of range")]
    JoinField {
        /// Which.
        field: &'static str,
    },
    /// An ERROR whose header and text name different attempts.
    #[error("an ERROR's header and body name different attempts")]
    ErrorAttempt,
    /// Frames of one dispatch or answer that do not belong together.
    #[error("frames of one attempt do not fit together: {reason}")]
    Mixed {
        /// What does not fit.
        reason: &'static str,
    },
    /// A dispatch or an answer whose parts contradict each other.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// Over [`limits::MAX_MESSAGE_BYTES`], or before a join over [`limits::MAX_JOIN_MESSAGE_BYTES`], as received.
    #[error("a message of {bytes} bytes; the limit is {limit}")]
    MessageTooLarge {
        /// Its size.
        bytes: usize,
        /// The limit that it passes.
        limit: usize,
    },
    /// The same, once expanded.
    #[error("a message that expands to over {limit} bytes")]
    ExpandedTooLarge {
        /// The limit that it passes.
        limit: usize,
    },
    /// Over [`limits::MAX_CONTROL_BYTES`].
    #[error("a control frame of {bytes} bytes; the limit is {limit}", limit = limits::MAX_CONTROL_BYTES)]
    ControlTooLarge {
        /// Its expanded size.
        bytes: u64,
    },
    /// Over [`limits::MAX_FRAMES_PER_MESSAGE`].
    #[error("a message of over {limit} frames", limit = limits::MAX_FRAMES_PER_MESSAGE)]
    TooManyFrames,
    /// Over [`limits::MAX_ROWS`].
    #[error("{rows} rows; the limit is {limit}", limit = limits::MAX_ROWS)]
    TooManyRows {
        /// How many.
        rows: u64,
    },
    /// Over [`limits::MAX_HIDDEN`].
    #[error("rows of {hidden} values; the limit is {limit}", limit = limits::MAX_HIDDEN)]
    HiddenTooWide {
        /// How wide.
        hidden: u16,
    },
    /// Over [`limits::MAX_INNER`].
    #[error("products of {inner} values; the limit is {limit}", limit = limits::MAX_INNER)]
    InnerTooWide {
        /// How wide.
        inner: u16,
    },
    /// Over [`limits::MAX_BLOCKS_PER_FRAME`].
    #[error("{blocks} blocks in a WEIGHT_SYNC; the limit is {limit}", limit = limits::MAX_BLOCKS_PER_FRAME)]
    TooManyBlocks {
        /// How many.
        blocks: usize,
    },
}

impl DecodeError {
    /// What the ERROR frame that answers it says.
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::Version { .. } => ErrorCode::Version,
            Self::MessageTooLarge { .. }
            | Self::ExpandedTooLarge { .. }
            | Self::ControlTooLarge { .. }
            | Self::TooManyFrames
            | Self::TooManyRows { .. }
            | Self::HiddenTooWide { .. }
            | Self::TooManyBlocks { .. } => ErrorCode::TooLarge,
            Self::Shape(error) => error.code(),
            _ => ErrorCode::BadFrame,
        }
    }
}

/// A dispatch or an answer whose parts contradict each other or pass a limit. It cannot be encoded, and frames that
/// say it do not decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ShapeError {
    /// No calls, no parts, or a call without pairs.
    #[error("nothing is asked or answered")]
    Empty,
    /// A width of 0 or over [`limits::MAX_HIDDEN`].
    #[error("rows of {hidden} values")]
    Hidden {
        /// The width.
        hidden: u16,
    },
    /// Products of a width of 0 or over [`limits::MAX_INNER`].
    #[error("products of {inner} values")]
    Inner {
        /// The width.
        inner: u16,
    },
    /// Row bytes that are not whole rows.
    #[error("{bytes} bytes are not whole rows of {row_bytes} bytes")]
    RowBytes {
        /// How many bytes there are.
        bytes: usize,
        /// How many a row takes.
        row_bytes: usize,
    },
    /// Experts twice, out of order, or 0xFFFF.
    #[error("experts are not in ascending order")]
    ExpertOrder,
    /// A pair that points behind the rows.
    #[error("a pair names row {row} of {rows}")]
    Row {
        /// The row named.
        row: u16,
        /// How many there are.
        rows: usize,
    },
    /// Over [`limits::MAX_ROWS`].
    #[error("{rows} rows in one message; the limit is {limit}", limit = limits::MAX_ROWS)]
    TooManyRows {
        /// How many.
        rows: u64,
    },
    /// Over [`limits::MAX_PAIRS`].
    #[error("{pairs} (row, expert) pairs in one message; the limit is {limit}", limit = limits::MAX_PAIRS)]
    TooManyPairs {
        /// How many.
        pairs: u64,
    },
    /// Over [`limits::MAX_FRAMES_PER_MESSAGE`].
    #[error("{frames} frames in one message; the limit is {limit}", limit = limits::MAX_FRAMES_PER_MESSAGE)]
    TooManyFrames {
        /// How many.
        frames: usize,
    },
    /// The message, or the answer it asks for, is over [`limits::MAX_MESSAGE_BYTES`].
    #[error("a message or its answer takes {bytes} bytes; the limit is {limit}", limit = limits::MAX_MESSAGE_BYTES)]
    TooLarge {
        /// How many bytes it takes uncompressed.
        bytes: u64,
    },
}

impl ShapeError {
    /// What an ERROR frame says of it.
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::TooManyRows { .. }
            | Self::TooManyPairs { .. }
            | Self::TooManyFrames { .. }
            | Self::TooLarge { .. } => ErrorCode::TooLarge,
            _ => ErrorCode::BadFrame,
        }
    }
}
