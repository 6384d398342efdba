//! The moex wire: frames, their limits, and the state machines of both ends.
//!
//! Invariant: no I/O, no clock, no randomness, no async. Bytes and times come in, bytes, deadlines and events go
//! out. What the bytes are computed with lives in `moex-kernels`; who is asked lives in the hub's swarm.
//!
//! Read in the order of the modules: names ([`id`], [`limits`], [`dtype`], [`tensor`]), then one frame
//! ([`header`], [`compression`], [`frame`]), then a conversation ([`session`]).

pub mod id;
pub mod limits;

pub mod dtype;
mod half_bits;
mod routing;
pub mod tensor;

mod peer_text;

pub mod compression;
pub mod header;

pub mod frame;

pub mod error;
pub mod error_code;
pub mod session;

#[doc(hidden)]
pub mod fuzzing;

pub use compression::{Compression, CompressionMode};
pub use dtype::Dtype;
pub use error::{Blame, DecodeError, ShapeError};
pub use error_code::ErrorCode;
#[cfg(not(target_arch = "wasm32"))]
pub use frame::answer_bytes;
pub use frame::cancel;
pub use frame::digests::{self, Digest};
pub use frame::dispatch::{Call, Dispatch, Form, Pair};
pub use frame::error::WireError;
pub use frame::heartbeat::{
    Accepted, Beat, Heartbeat, INT8_EXACT, Join, ModelSummary, Ping, SelfTest, Visibility, WorkerKind,
};
pub use frame::products::{ProductFormat, ProductShape, Products};
pub use frame::reply::Reply;
pub use frame::result::{Answer, AnswerPart, AnswerShape};
pub use frame::weight_sync::{BlockReport, BlockSource, WeightSync, WeightSyncFrame};
pub use frame::{Frame, decode_message};
pub use id::{AttemptId, Block, ExpertId, LayerId, ParseHexError, WorkerId, WorkerKey};
pub use peer_text::{MAX_SHOWN_CHARS, PeerText, peer_text};
pub use routing::Routing;
pub use session::State;
pub use session::error::{CloseReason, SendError};
pub use session::hub::{HubEvent, HubSession, SessionConfig};
pub use session::worker::{WorkerConfig, WorkerEvent, WorkerSession};
pub use tensor::has_non_finite;

/// The WebSocket subprotocol both ends ask for.
pub const SUBPROTOCOL: &str = "moex.v1";

/// The one header version this crate speaks.
pub const VERSION: u16 = 2;
