//! The pages and the embedded worker bundle.
