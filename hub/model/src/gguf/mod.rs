//! Reads and writes GGUF, llama.cpp's file format: metadata by key and tensors by name.
//!
//! This module knows the container and the keys' names; `families` and `checkpoint` interpret them as models.
//!
//! ```text
//! magic "GGUF"   version u32   tensors u64   keys u64
//! key string, value type u32, value              for each key
//! name string, n u32, n dimensions u64, type u32, offset u64      for each tensor, columns first
//! padding to general.alignment, then the tensors' bytes, each at a multiple of it
//! ```
//!
//! Reading borrows from the file and allocates only a list of keys and one of tensors, both bounded by the file's
//! length. Every length is checked before use, so no file causes a panic.

mod cursor;
mod error;
mod header;
mod kind;
mod split;
mod value;
mod vocabulary;
mod write;

#[cfg(test)]
mod tests;

pub use error::GgufError;
pub use header::{Gguf, TensorInfo};
pub use split::shards;
pub use value::{Array, Value};
pub use vocabulary::{Merges, TokenKind, Vocabulary, Words};
pub use write::padding;
pub use write::{Header, MetaValue};

/// The first bytes of every file.
pub const MAGIC: [u8; 4] = *b"GGUF";
/// Where the tensors' bytes start, and each tensor's, unless `general.alignment` says otherwise.
pub const DEFAULT_ALIGNMENT: u64 = 32;

/// The most keys that are read.
pub const MAX_KEYS: u64 = 1 << 16;
/// The most tensors that are read: far above 94 layers of 13.
pub const MAX_TENSORS: u64 = 1 << 16;
/// The longest key or tensor name that is read, in bytes.
pub const MAX_NAME_BYTES: u64 = 1 << 10;
/// The longest string that is read, in bytes: chat templates have some thousands.
pub const MAX_STRING_BYTES: u64 = 1 << 24;
/// The most elements of an array that are read: vocabularies have some 150,000.
pub const MAX_ELEMENTS: u64 = 1 << 23;
/// The most dimensions of a tensor.
pub const MAX_DIMENSIONS: u32 = 4;
/// The largest `general.alignment` that is read.
pub const MAX_ALIGNMENT: u64 = 1 << 16;
