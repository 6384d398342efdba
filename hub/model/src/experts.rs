//! The sparse half of a layer, wherever it runs: the one line where the model meets the swarm.

use moex_protocol::Routing;

/// Computes the experts of a layer.
pub trait Experts: Send {
    /// The gated sum of the chosen experts of the normalised `rows` (T, D) in layer `layer`, to `sum` (T, D).
    ///
    /// Every (row, expert) of `routing` counts exactly once; what cannot be computed is an error, never dropped.
    ///
    /// # Errors
    /// Why a block could not be computed; the step is then void, `sum` of no use, and the next step may succeed.
    ///
    /// # Panics
    /// If `sum` is not as long as `rows`.
    fn apply_into(
        &mut self,
        layer: usize,
        rows: &[f32],
        routing: &Routing,
        sum: &mut [f32],
    ) -> Result<(), ExpertsError>;

    /// [`Self::apply_into`] new memory.
    ///
    /// # Errors
    /// As [`Self::apply_into`].
    fn apply(&mut self, layer: usize, rows: &[f32], routing: &Routing) -> Result<Vec<f32>, ExpertsError> {
        let mut sum = vec![0.0; rows.len()];
        self.apply_into(layer, rows, routing, &mut sum)?;
        Ok(sum)
    }

    /// A step begins: its layers follow. Of interest to those who keep times.
    fn step_begins(&mut self) {}

    /// The step is over; `n_rows` is T, and it gave so many tokens.
    fn step_ends(&mut self, n_rows: usize, n_tokens: usize) {
        let _ = (n_rows, n_tokens);
    }
}

impl Experts for Box<dyn Experts> {
    fn step_begins(&mut self) {
        (**self).step_begins();
    }

    fn step_ends(&mut self, n_rows: usize, n_tokens: usize) {
        (**self).step_ends(n_rows, n_tokens);
    }

    fn apply_into(
        &mut self,
        layer: usize,
        rows: &[f32],
        routing: &Routing,
        sum: &mut [f32],
    ) -> Result<(), ExpertsError> {
        (**self).apply_into(layer, rows, routing, sum)
    }
}

/// Why a layer's experts were not computed. It ends the requests that had rows in the step, and nothing else.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExpertsError {
    /// Nobody holds a block that the router chose.
    #[error("no worker holds expert {expert} of layer {layer}, and the hub does not compute experts itself")]
    NotCovered {
        /// The block's layer.
        layer: u16,
        /// The block's expert.
        expert: u16,
    },
    /// A block cannot be read.
    #[error("expert {expert} of layer {layer} cannot be read: {reason}")]
    Block {
        /// The block's layer.
        layer: u16,
        /// The block's expert.
        expert: u16,
        /// Why not.
        reason: String,
    },
    /// The swarm has no result for the layer.
    #[error("{message}")]
    Swarm {
        /// What kind of failure it is.
        failure: SwarmFailure,
        /// Why, in one sentence.
        message: String,
    },
}

/// Why a swarm has no result: what whoever asked can do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwarmFailure {
    /// It takes no more layers now.
    Busy,
    /// No worker that answers holds a block, and the hub does not compute.
    Uncovered,
    /// It is shutting down.
    Stopping,
    /// It tried and failed; trying again would not help.
    Failed,
}
