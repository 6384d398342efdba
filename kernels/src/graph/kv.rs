//! The KV cache: keys and values of every cached position that a later row may see, in pages that sequences borrow from
//! one bounded pool. Pages hold rows of f32, which the oracle reads, or are packed for the vector kernels. Layers that
//! keep a state instead have it here too.
//!
//! ```text
//! positions            0..32     32..64    64..96    96..128
//! layers that see all  [page]    [page]    [page]    [page]     one page or more for each block of positions
//! layers with windows  released  released  [page]    [page]     from the block that the next row's window begins in
//! ```
//! All pages have one size, so that a page that a window has left is free for any layer of any sequence.
//!
//! A page may have several holders: sequences with the same beginning, and a cache that keeps it for the next one. The
//! engine decides who gets pages, and who gives them back when none is free.

mod contents;
mod layout;
mod page;
mod paging;
mod pool;
mod table;
#[cfg(test)]
mod tests;

pub use layout::KvLayout;
pub use pool::KvPool;
pub use table::{Block, KvTable, PageId};
