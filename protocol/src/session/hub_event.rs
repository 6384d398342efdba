//! What the hub's end of a connection tells its owner.

use core::time::Duration;

use super::error::CloseReason;
use crate::frame::digests::Digest;
use crate::frame::error::WireError;
use crate::frame::heartbeat::{Beat, Join};
use crate::frame::result::Answer;
use crate::frame::weight_sync::BlockReport;
use crate::id::AttemptId;

/// An event of the worker.
#[derive(Clone, Debug, PartialEq)]
pub enum HubEvent {
    /// It asks to join: answer with [`super::hub::HubSession::accept`] or [`super::hub::HubSession::reject`].
    Joined(Join),
    /// It reports its state. The round trip is known if this answers one of the last pings.
    Beat {
        /// How it is.
        beat: Beat,
        /// From the ping to this, the worker's loop included; if it brought padding, the shortest of those without.
        round_trip: Option<Duration>,
    },
    /// Its blocks changed.
    Blocks(BlockReport),
    /// An answer of the shape that its attempt asked for; all values finite, unless products come with it for a check.
    Answered {
        /// The attempt, now settled.
        attempt: AttemptId,
        /// Its answer.
        answer: Answer,
    },
    /// Digests in place of an answer, as many as were asked for. Also late ones, of which nothing is checked.
    Digested {
        /// The attempt, now settled.
        attempt: AttemptId,
        /// One for each expert.
        digests: Vec<Digest>,
    },
    /// The same as an answer with a value that is not finite. A worker answers what it cannot compute with an ERROR, never so.
    NotFinite {
        /// The attempt, now settled.
        attempt: AttemptId,
    },
    /// The attempt failed: the worker said so, or answered in another shape (`bad_frame`).
    Failed {
        /// The attempt, now settled.
        attempt: AttemptId,
        /// Why.
        error: WireError,
    },
    /// An answer to an attempt that was settled or cancelled, counted in [`super::hub::HubSession::late_answers`]. Its shape is not
    /// checked: nothing is known of the attempt any more.
    Late {
        /// The attempt.
        attempt: AttemptId,
        /// What it says.
        answer: Answer,
    },
    /// The session is over. The last event; attempts still owed will not be answered.
    Closed {
        /// Why.
        reason: CloseReason,
    },
}
