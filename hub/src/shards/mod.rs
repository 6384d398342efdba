//! Experts packed for workers, served by range and hash.
