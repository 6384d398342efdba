//! What a text may say at all: a grammar that allows some tokens and forbids the others.
//!
//! The engine knows no grammar. It asks before each draw which tokens may come, and tells which one came.

use std::fmt::Debug;

/// A grammar that texts may be held to, shared by all of a request.
pub trait Grammar: Debug + Send + Sync {
    /// At the beginning of a text.
    fn begin(&self) -> Box<dyn Constraint>;
}

/// Where one text stands in its grammar.
pub trait Constraint: Debug + Send {
    /// Sets the logits (V) of all tokens that may not come next to minus infinity. Where the text is complete, only the
    /// tokens that end it are left.
    ///
    /// # Errors
    /// Why nothing can be said: the text is given up.
    fn allow(&mut self, logits: &mut [f32]) -> Result<(), String>;

    /// `token` came.
    ///
    /// # Errors
    /// Why it cannot be taken: the text is given up.
    fn accept(&mut self, token: u32) -> Result<(), String>;
}
