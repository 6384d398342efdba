//! The arithmetic of moex: weight formats, the operations of a forward pass and the engines that run a recorded one, and
//! the engines that run experts on a CPU or a GPU.
//!
//! What lives here knows shapes and bytes; it knows no model, no network, no file and no clock but the one it measures
//! a GPU with.
//!
//! Legend, here and in every doc: T rows in a step, D hidden, F expert inner, E experts, K chosen, H/G query/KV heads,
//! C head width, S cached positions, R rows for one worker, P (row, expert) pairs of one message.

mod batch;
pub mod check;
pub mod cpu;
pub mod engine;
mod expert;
mod expert_format;
mod expert_kind;
mod expert_shapes;
pub mod graph;
mod nmse;
mod noise;
pub mod pool;
pub mod quant;
pub mod simd;

pub use expert::{BlockLayout, ExpertBiases, ExpertShape, ExpertView, MatrixLayout};
pub use expert_format::ExpertFormat;
pub use expert_kind::ExpertKind;
pub use expert_shapes::{ExpertShapes, MAX_FORMATS, TooManyFormats};
pub use nmse::nmse;
pub use quant::{MatrixView, ShapeError, WeightFormat};
