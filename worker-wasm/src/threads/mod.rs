//! Spreads an engine over threads that share no memory: each holds some of its slots, and computes their part of a batch.
//!
//! A browser's threads are such: Web Workers, each with the module and a memory of its own. [`deal`] says which thread holds
//! which slot, [`shares`] takes a batch apart and puts the answers together, [`message`] is how they travel. A row's bits
//! for an expert do not depend on its batch, so they do not depend on the threads. Nothing here sends anything.

pub(crate) mod deal;
pub(crate) mod message;
pub(crate) mod shares;
