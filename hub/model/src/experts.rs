//! The sparse half of a layer, wherever it runs: the one line where the model meets the swarm.

use moex_protocol::Routing;

/// What a layer asks of its experts.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The layer.
    pub layer: usize,
    /// The normalised rows (T, D).
    pub rows: &'a [f32],
    /// Which experts each row goes to, and how much each counts (T, K).
    pub routing: &'a Routing,
}

/// Names a layer that is computed elsewhere, until its sum is fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(pub u64);

/// Computes the experts of layers, here and now or elsewhere meanwhile.
pub trait Experts: Send {
    /// Has the gated sum of the chosen experts computed, for `sum` (T, D). It is there when this returns none; else the
    /// ticket fetches it, and other layers of other rows may be asked for in between.
    ///
    /// Every (row, expert) of the routing counts exactly once; what cannot be computed is an error, never dropped.
    ///
    /// # Errors
    /// Why a block could not be computed; the step is then void, `sum` of no use, and the next step may succeed.
    ///
    /// # Panics
    /// If `sum` is not as long as the rows.
    fn begin(&mut self, asked: Asked<'_>, sum: &mut [f32]) -> Result<Option<Ticket>, ExpertsError>;

    /// Waits for what [`Self::begin`] gave the ticket for, and writes it to `sum` (T, D). A ticket is good for once.
    ///
    /// # Errors
    /// As [`Self::begin`].
    fn finish(&mut self, ticket: Ticket, sum: &mut [f32]) -> Result<(), ExpertsError> {
        let _ = (ticket, sum);
        Ok(())
    }

    /// How many layers may be away at once; 1 where all are computed by the calling thread.
    fn max_in_flight(&self) -> usize {
        1
    }

    /// [`Self::begin`] and [`Self::finish`].
    ///
    /// # Errors
    /// As [`Self::begin`].
    fn apply_into(&mut self, asked: Asked<'_>, sum: &mut [f32]) -> Result<(), ExpertsError> {
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
        self.apply_into(Asked { layer, rows, routing }, &mut sum)?;
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
    fn begin(&mut self, asked: Asked<'_>, sum: &mut [f32]) -> Result<Option<Ticket>, ExpertsError> {
        (**self).begin(asked, sum)
    }

    fn finish(&mut self, ticket: Ticket, sum: &mut [f32]) -> Result<(), ExpertsError> {
        (**self).finish(ticket, sum)
    }

    fn max_in_flight(&self) -> usize {
        (**self).max_in_flight()
    }

    fn step_begins(&mut self) {
        (**self).step_begins();
    }

    fn step_ends(&mut self, n_rows: usize, n_tokens: usize) {
        (**self).step_ends(n_rows, n_tokens);
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
