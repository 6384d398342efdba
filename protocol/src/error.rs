//! Errors as data: whose fault each is ([`Blame`]) and what it ends ([`Scope`]). The ERROR frame, which reports one to the
//! other end, is [`crate::frame::error`].

use thiserror::Error;

use crate::frame::error::{ErrorCode, WireError};
use crate::id::{AttemptId, Block};
use crate::limits;
use crate::session::State;

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

/// What an error ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// One attempt; the session goes on.
    Attempt,
    /// The session; the hub and every other session go on.
    Session,
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
    #[error("version {version} is not spoken here; spoken: 1")]
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

/// Why a session did not take something to send. Nothing was sent; the session goes on.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SendError {
    /// The state does not allow it: dispatches go to a serving worker only.
    #[error("the session is {0}")]
    State(State),
    /// The dispatch or answer contradicts itself.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// An attempt id that is not above all earlier ones of this session.
    #[error("attempt {attempt} does not follow {last}")]
    AttemptOrder {
        /// The one given.
        attempt: AttemptId,
        /// The last one sent.
        last: AttemptId,
    },
    /// [`limits::MAX_OUTSTANDING_ATTEMPTS`] answers are owed already.
    #[error("the worker owes too many answers already")]
    TooManyOutstanding,
    /// The outbound queue is full: the peer does not read.
    #[error("the outbound queue is full")]
    Backlog,
    /// One block's entry alone is over [`limits::MAX_CONTROL_BYTES`].
    #[error("the entry of {0} does not fit a control frame")]
    EntryTooLarge(Block),
    /// An answer that is not of the shape that its attempt asked for.
    #[error("the answer to attempt {0} is not of the shape that was asked for")]
    AnswerShape(AttemptId),
}

impl SendError {
    /// Whose fault it is.
    pub const fn blame(&self) -> Blame {
        match self {
            Self::State(_) | Self::TooManyOutstanding | Self::Backlog => Blame::Circumstance,
            Self::Shape(_) | Self::AttemptOrder { .. } | Self::EntryTooLarge(_) | Self::AnswerShape(_) => {
                Blame::Caller
            }
        }
    }

    /// What it ends: never more than the attempt.
    pub const fn scope(&self) -> Scope {
        Scope::Attempt
    }
}

/// Why a session ended.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CloseReason {
    /// The connection went away.
    #[error("the connection closed")]
    Transport,
    /// A text message, where all are binary.
    #[error("the peer sent a text message")]
    Text,
    /// Bytes that are no message.
    #[error("the peer sent a bad message: {0}")]
    Decode(#[from] DecodeError),
    /// A frame that its sender may not send, or not now.
    #[error("the peer sent {0}")]
    Unexpected(&'static str),
    /// An answer to an attempt that was never sent.
    #[error("the peer answered attempt {0}, which was never sent")]
    NeverSent(AttemptId),
    /// No join, or no answer to it, in time.
    #[error("no join within the deadline")]
    JoinDeadline,
    /// Nothing was heard for longer than the heartbeat allows.
    #[error("the peer fell silent")]
    Silent,
    /// This end refused the peer or gave up, and said why.
    #[error("refused: {0}")]
    Refused(WireError),
    /// The peer ended the session and said why.
    #[error("the peer ended the session: {0}")]
    Peer(WireError),
    /// One end left in good order.
    #[error("drained")]
    Drained,
    /// A bounded queue overflowed: the peer does not read, or the driver does not poll.
    #[error("a queue of the session overflowed")]
    Backlog,
}

impl CloseReason {
    /// Whose fault it is.
    pub const fn blame(&self) -> Blame {
        match self {
            Self::Text | Self::Decode(_) | Self::Unexpected(_) | Self::NeverSent(_) | Self::JoinDeadline => {
                Blame::Peer
            }
            Self::Transport
            | Self::Silent
            | Self::Refused(_)
            | Self::Peer(_)
            | Self::Drained
            | Self::Backlog => Blame::Circumstance,
        }
    }

    /// What it ends.
    pub const fn scope(&self) -> Scope {
        Scope::Session
    }

    /// The code to close the WebSocket with; `None` when there is nothing left to close.
    pub const fn close_code(&self) -> Option<u16> {
        match self {
            Self::Transport => None,
            Self::Text => Some(1003),
            Self::Decode(error) if matches!(error.code(), ErrorCode::TooLarge) => Some(1009),
            Self::Decode(_) | Self::Unexpected(_) | Self::NeverSent(_) => Some(1002),
            Self::JoinDeadline | Self::Refused(_) => Some(1008),
            Self::Silent | Self::Drained => Some(1001),
            Self::Peer(_) => Some(1000),
            Self::Backlog => Some(1013),
        }
    }

    /// The ERROR to send before closing, if the peer is to be told.
    pub(crate) fn farewell(&self) -> Option<WireError> {
        let code = match self {
            Self::Decode(error) => error.code(),
            Self::Unexpected(_) | Self::NeverSent(_) => ErrorCode::BadFrame,
            Self::JoinDeadline => ErrorCode::Unauthorized,
            Self::Refused(error) => return Some(error.clone()),
            _ => return None,
        };
        Some(WireError { code, message: self.to_string(), attempt: None })
    }
}
