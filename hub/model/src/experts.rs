//! The interface between the model and its experts, wherever they are computed.

use moex_protocol::Routing;

/// A layer's request to its experts.
#[derive(Clone, Copy, Debug)]
pub struct LayerRequest<'a> {
    /// The layer.
    pub layer: usize,
    /// The normalised rows (T, D).
    pub rows: &'a [f32],
    /// Each row's experts and gates (T, K).
    pub routing: &'a Routing,
}

/// Identifies a layer that is computed elsewhere, until its sum is fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(pub u64);

/// Computes the experts of layers, on the calling thread or elsewhere.
pub trait Experts: Send {
    /// Starts computing the gated sum of the chosen experts, into `sum` (T, D). If this returns none, the sum is
    /// complete; otherwise the returned ticket fetches it, and other layers of other rows may be started in between.
    ///
    /// Every (row, expert) of the routing counts exactly once; if one cannot be computed, the call fails.
    ///
    /// # Errors
    /// If a block could not be computed; the step is then void and `sum` undefined, but the next step may succeed.
    ///
    /// # Panics
    /// If `sum` does not have the rows' length.
    fn begin(&mut self, asked: LayerRequest<'_>, sum: &mut [f32]) -> Result<Option<Ticket>, ExpertsError>;

    /// Waits for the layer of a ticket from [`Self::begin`], and writes its sum to `sum` (T, D). Each ticket is used
    /// once.
    ///
    /// # Errors
    /// As [`Self::begin`].
    fn finish(&mut self, ticket: Ticket, sum: &mut [f32]) -> Result<(), ExpertsError> {
        let _ = (ticket, sum);
        Ok(())
    }

    /// As [`Self::finish`], but the sum may be given before it is known to be right. If it was false, a later call of this or of
    /// [`Self::confirm`] fails by [`ExpertsError::FalseAnswer`]: the step is void, and may begin again.
    ///
    /// # Errors
    /// As [`Self::begin`], and [`ExpertsError::FalseAnswer`].
    fn finish_early(&mut self, ticket: Ticket, sum: &mut [f32]) -> Result<(), ExpertsError> {
        self.finish(ticket, sum)
    }

    /// Waits until it is known whether all sums of [`Self::finish_early`] were right: before that, nothing computed from them may
    /// leave the hub.
    ///
    /// # Errors
    /// [`ExpertsError::FalseAnswer`] if one was false; as [`Self::begin`] if that cannot be known.
    fn confirm(&mut self) -> Result<(), ExpertsError> {
        Ok(())
    }

    /// How often so far a wrong answer put in doubt what was computed before: others of its worker were used unchecked.
    fn n_doubts(&self) -> u64 {
        0
    }

    /// How many layers may be away at once; 1 if the calling thread computes all.
    fn max_in_flight(&self) -> usize {
        1
    }

    /// [`Self::begin`] and [`Self::finish`].
    ///
    /// # Errors
    /// As [`Self::begin`].
    fn apply_into(&mut self, asked: LayerRequest<'_>, sum: &mut [f32]) -> Result<(), ExpertsError> {
        match self.begin(asked, sum)? {
            Some(ticket) => self.finish(ticket, sum),
            None => Ok(()),
        }
    }

    /// [`Self::apply_into`] new memory.
    ///
    /// # Errors
    /// As [`Self::begin`].
    fn apply(&mut self, layer: usize, rows: &[f32], routing: &Routing) -> Result<Vec<f32>, ExpertsError> {
        let mut sum = vec![0.0; rows.len()];
        self.apply_into(LayerRequest { layer, rows, routing }, &mut sum)?;
        Ok(sum)
    }

    /// The experts that a layer's router chose were computed by the device that the model runs on. Used for recording.
    fn computed_elsewhere(&mut self, layer: usize, routing: &Routing) {
        let _ = (layer, routing);
    }

    /// A step of `n_rows`, T, begins; its layers follow. Used for timing.
    fn step_begins(&mut self, n_rows: usize) {
        let _ = n_rows;
    }

    /// The step is over; `n_rows` is T, and it generated this many tokens.
    fn step_ends(&mut self, n_rows: usize, n_tokens: usize) {
        let _ = (n_rows, n_tokens);
    }
}

impl Experts for Box<dyn Experts> {
    fn begin(&mut self, asked: LayerRequest<'_>, sum: &mut [f32]) -> Result<Option<Ticket>, ExpertsError> {
        (**self).begin(asked, sum)
    }

    fn finish(&mut self, ticket: Ticket, sum: &mut [f32]) -> Result<(), ExpertsError> {
        (**self).finish(ticket, sum)
    }

    fn finish_early(&mut self, ticket: Ticket, sum: &mut [f32]) -> Result<(), ExpertsError> {
        (**self).finish_early(ticket, sum)
    }

    fn confirm(&mut self) -> Result<(), ExpertsError> {
        (**self).confirm()
    }

    fn n_doubts(&self) -> u64 {
        (**self).n_doubts()
    }

    fn max_in_flight(&self) -> usize {
        (**self).max_in_flight()
    }

    fn computed_elsewhere(&mut self, layer: usize, routing: &Routing) {
        (**self).computed_elsewhere(layer, routing);
    }

    fn step_begins(&mut self, n_rows: usize) {
        (**self).step_begins(n_rows);
    }

    fn step_ends(&mut self, n_rows: usize, n_tokens: usize) {
        (**self).step_ends(n_rows, n_tokens);
    }
}

/// Why a layer's experts were not computed. It fails only the requests with rows in the step.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExpertsError {
    /// No worker holds a block that the router chose.
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
        /// The reason.
        reason: String,
    },
    /// A sum of [`Experts::finish_early`] was false.
    #[error("an answer that was used before its check was false")]
    FalseAnswer,
    /// The swarm has no result for the layer.
    #[error("{message}")]
    Swarm {
        /// What kind of failure it is.
        failure: SwarmFailure,
        /// Why, in one sentence.
        message: String,
    },
}

/// Why a swarm has no result, by what the caller can do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwarmFailure {
    /// It accepts no more layers now.
    Busy,
    /// No responsive worker holds a block, and the hub does not compute.
    Uncovered,
    /// It is shutting down.
    Stopping,
    /// It failed; a retry would not help.
    Failed,
}
