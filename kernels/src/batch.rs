//! One message's request to an engine: input rows, each once, and for each expert the rows and gates it applies to.

use crate::engine::{EngineError, EnginePlan};

/// One row for one expert.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// Indexes the batch's rows.
    pub row: u32,
    /// The factor of the expert's output.
    pub gate: f32,
}

/// All the rows for one expert.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// The slot that holds the expert.
    pub slot: u32,
    /// Its rows, in the order of the answer.
    pub pairs: Vec<Pair>,
}

/// Rows and calls; the answer is (P, D): `gate * expert(row)` for every pair, in the order of the calls.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// (R, D).
    pub rows: Vec<f32>,
    /// In the order of the answer.
    pub calls: Vec<Call>,
}

/// An engine's answer to a batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Computed {
    /// (P, D): `gate * expert(row)` for every pair of every call, in order.
    pub rows: Vec<f32>,
    /// (P, 2F): for each pair the products of its row with gate, then with up, without biases. A hub checks the answer
    /// by them. `None` unless they were asked for.
    pub products: Option<Vec<f32>>,
}

/// What an answer is to have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The products of gate and up too.
    pub products: bool,
    /// All numbers are sent in f16, so that an engine may round them itself.
    pub halves: bool,
}

/// An engine's answer in f16, little-endian: what [`Computed`] has, each number rounded to the nearest, ties to even.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Halves {
    /// (P, D).
    pub rows: Vec<u8>,
    /// (P, 2F).
    pub products: Option<Vec<u8>>,
}

/// An engine's answer in the numbers that it gives.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// In f32.
    Floats(Computed),
    /// In f16.
    Halves(Halves),
}

impl Output {
    /// The numbers in f32; none if they are in f16, which only an engine gives that was told that it is enough.
    pub fn floats(self) -> Option<Computed> {
        match self {
            Self::Floats(computed) => Some(computed),
            Self::Halves(_) => None,
        }
    }
}

impl From<Halves> for Output {
    fn from(halves: Halves) -> Self {
        Self::Halves(halves)
    }
}

impl From<Computed> for Output {
    fn from(computed: Computed) -> Self {
        Self::Floats(computed)
    }
}

impl From<Vec<f32>> for Output {
    fn from(rows: Vec<f32>) -> Self {
        Self::Floats(rows.into())
    }
}

impl From<Vec<f32>> for Computed {
    fn from(rows: Vec<f32>) -> Self {
        Self { rows, products: None }
    }
}

impl Batch {
    /// P, the rows of the answer.
    pub fn n_pairs(&self) -> usize {
        self.calls.iter().map(|call| call.pairs.len()).sum()
    }

    /// Checks that the batch fits an engine with this plan.
    ///
    /// # Errors
    /// If something does not fit: rows, pairs, a slot or a row index.
    pub fn check(&self, plan: &EnginePlan) -> Result<(), EngineError> {
        let hidden = plan.shapes.hidden;
        if hidden == 0 || !self.rows.len().is_multiple_of(hidden) {
            return Err(EngineError::RaggedRows { values: self.rows.len(), hidden });
        }
        let n_rows = self.rows.len() / hidden;
        let max_rows = plan.max_rows as usize;
        if n_rows > max_rows {
            return Err(EngineError::TooManyRows { rows: n_rows, max_rows });
        }
        let (pairs, max_pairs) = (self.n_pairs(), plan.max_pairs as usize);
        if pairs > max_pairs {
            return Err(EngineError::TooManyPairs { pairs, max_pairs });
        }
        for call in &self.calls {
            if call.slot >= plan.n_slots {
                return Err(EngineError::NoSuchSlot { slot: call.slot, n_slots: plan.n_slots });
            }
            if let Some(pair) = call.pairs.iter().find(|pair| pair.row as usize >= n_rows) {
                return Err(EngineError::NoSuchRow { row: pair.row, rows: n_rows });
            }
        }
        Ok(())
    }
}
