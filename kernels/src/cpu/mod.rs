//! Every operation of a forward pass on the CPU, one file each, over plain f32 slices.
//!
//! Every other kernel is checked against them, so they are written to be read. They keep one promise: a row gets the
//! same bits whatever other rows are computed with it, on any number of threads, natively and in a browser. For that,
//! sums run in [`dot()`]'s fixed lanes, multiplications and additions round separately, and `exp` comes from `libm`.
//!
//! Slices of the wrong length are mistakes of the caller and panic; what comes from outside (token ids, batches) is
//! checked and refused as data.

mod add;
mod attention;
mod clamped_swiglu;
mod delta_net;
mod dot;
mod embed;
mod expert_ffn;
mod gelu_mul;
mod linear;
mod llama3;
pub(crate) mod parallel;
mod rms_norm;
mod rope;
mod router;
mod sigmoid;
mod silu_mul;
mod softmax;
mod yarn;

pub use add::{add, add_bias};
pub use attention::{AttentionShape, CachedRows, Scores, attention, soft_cap};
pub use clamped_swiglu::{SWIGLU_ALPHA, SWIGLU_LIMIT, clamped_swiglu};
pub use delta_net::{DeltaNetShape, DeltaNetWeights, delta_net_row};
pub(crate) use dot::fold;
pub use dot::{LANES, dot};
pub use embed::{OutOfVocabulary, embed};
pub use expert_ffn::{expert_ffn, expert_ffn_with};
pub use gelu_mul::gelu_mul;
pub use linear::linear;
pub use llama3::Llama3;
pub use rms_norm::{rms_norm, rms_norm_in_place};
pub use rope::{Rope, RopePairs, RopePlace, RopeScaling, RopeTable, rope, rope_columns, rope_row};
pub use router::{Groups, Renormalise, route, route_in_groups};
pub use sigmoid::{scale_by_sigmoid, sigmoid_mul};
pub use silu_mul::silu_mul;
pub use softmax::softmax;
pub use yarn::Yarn;
