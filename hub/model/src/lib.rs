//! Transformer models, from the checkpoint to the logits.
//!
//! This crate contains the model as data ([`ModelSpec`]), checkpoint files and weights, the forward pass up to the call
//! for a layer's experts ([`Experts`]), local computation of experts, tokenizers and chat templates (`text`). It knows
//! no requests, sampling or swarm.
//!
//! Legend of every shape: T rows in a step, W of them whose logits are wanted, D hidden, F expert inner, E experts,
//! K chosen, H/G query/KV heads, C head width, V vocabulary, L layers. Row `t` of a (T, N) tensor is `[t * N..][..N]`.
//!
//! Every operation gives a row the same bits whatever other rows are in the step, so no text depends on other requests.

pub mod spec;

pub mod budget;
mod error;
pub(crate) mod families;

mod checkpoint;
pub mod gguf;
pub mod mapped;
pub mod text;

mod compute;
mod forward;
mod transformer;

mod experts;
mod free_memory;
#[doc(hidden)]
pub mod fuzzing;
pub mod local_experts;
mod memory;
mod one_or_many;
mod packing;

#[cfg(test)]
mod accuracy_tests;
#[cfg(test)]
mod family_tests;
#[cfg(test)]
mod fast_tests;
#[cfg(test)]
mod fuzzing_tests;
#[cfg(test)]
mod gguf_family_tests;
#[cfg(test)]
mod gguf_tests;
#[cfg(test)]
mod reference_tests;
#[cfg(test)]
mod variant_tests;

pub use checkpoint::{Checkpoint, Expert, Matrix, TextFiles, TokenizerSource, llama_cpp};
pub use compute::{Compute, Fast, FloatWeights};
pub use error::{ConfigError, ModelError};
pub use experts::{Experts, ExpertsError, LayerRequest, SwarmFailure, Ticket};
pub use free_memory::free_bytes;
pub use memory::{Keep, MemoryNeeds, MemoryPlan};
pub use moex_kernels::{
    graph::{Block, KvLayout, KvPool, KvTable, MAX_BEST, PageId, PlanBytes, Span, Stage, WantedLogits},
    simd::{Draw, PAGE_POSITIONS, draw, total, weights},
};
pub use moex_protocol::Routing;
pub use packing::Packing;
pub use spec::{MAX_LAYERS, ModelSpec};
pub use transformer::{MicroBatch, Model, RowLogits, StepError, Workspace};
