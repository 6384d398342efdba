//! Why a session does not send, and why it ends.

use thiserror::Error;

use super::state::State;
use crate::error::{Blame, DecodeError, ShapeError};
use crate::error_code::ErrorCode;
use crate::frame::error::WireError;
use crate::id::{AttemptId, Block};

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
    /// [`crate::limits::MAX_OUTSTANDING_ATTEMPTS`] answers are owed already.
    #[error("the worker owes too many answers already")]
    TooManyOutstanding,
    /// The outbound queue is full: the peer does not read.
    #[error("the outbound queue is full")]
    Backlog,
    /// One block's entry alone is over [`crate::limits::MAX_CONTROL_BYTES`].
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
