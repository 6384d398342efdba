//! Interface of grammars, which restrict the tokens that a text may contain.
//!
//! The engine contains no grammar. Before each draw it asks for the allowed tokens, and afterwards reports the drawn
//! one.

use std::fmt::Debug;

/// A grammar, shared by all sequences of a request.
pub trait Grammar: Debug + Send + Sync {
    /// The state at the start of a text.
    fn begin(&self) -> Box<dyn Constraint>;
}

/// A text's position in its grammar.
pub trait Constraint: Debug + Send {
    /// Sets the logits (V) of all tokens that are not allowed next to minus infinity. If the text is complete, only
    /// tokens that end it are allowed.
    ///
    /// # Errors
    /// If no token can be allowed: the text is aborted.
    fn allow(&mut self, logits: &mut [f32]) -> Result<(), String>;

    /// Advances by `token`.
    ///
    /// # Errors
    /// If the token is not accepted: the text is aborted.
    fn accept(&mut self, token: u32) -> Result<(), String>;
}
