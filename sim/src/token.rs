//! Computes a token's time, and the rate of a prefill, from one layer's wait.

use crate::{error::ModelError, geometry::Geometry, latency::check_time};

/// The three fixed costs of a layer in the paper's end-to-end table, milliseconds.
pub const PAPER_FIXED_MS: [f64; 3] = [1.5, 0.7, 0.2];

/// Round trips of the paper's end-to-end table, milliseconds.
pub const PAPER_ROUND_TRIPS_MS: [f64; 4] = [0.5, 2.0, 10.0, 50.0];

/// The costs of every layer besides its wait for the network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerCost {
    /// Layers that a token passes, one after another.
    pub n_layers: u32,
    /// Their fixed costs, milliseconds.
    pub fixed_ms: [f64; 3],
}

impl LayerCost {
    /// The paper's layer costs over `n_layers`; its table uses 48.
    pub const fn paper(n_layers: u32) -> Self {
        Self { n_layers, fixed_ms: PAPER_FIXED_MS }
    }

    /// A token's time, milliseconds, if each layer waits `wait_ms` in addition to the fixed costs.
    ///
    /// By linearity this is the expected time when `wait_ms` is an expected wait, such as equation 18's.
    pub fn token_ms(&self, wait_ms: f64) -> f64 {
        f64::from(self.n_layers) * (self.fixed_ms.iter().sum::<f64>() + wait_ms)
    }

    /// A token's time with a layer's round trip counted once: rows out, sums back.
    pub fn round_trip_once_ms(&self, round_trip_ms: f64) -> f64 {
        self.token_ms(round_trip_ms)
    }

    /// A token's time as the paper's table counts it: twice a one-way time, for which it uses the round trip.
    pub fn as_the_paper_counts_ms(&self, round_trip_ms: f64) -> f64 {
        self.token_ms(2.0 * round_trip_ms)
    }
}

/// A prefill in chunks: all rows of a chunk go through a layer together and share its round trip.
///
/// [`Prefill::tokens_per_s`] is an upper bound set by the network: the fixed costs of a layer do not depend on the
/// rows, so arithmetic that grows with the chunk is not included.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prefill {
    /// Costs of a layer.
    pub cost: LayerCost,
    /// Determines the rows' width and k.
    pub geometry: Geometry,
    /// The round trip between hub and worker, milliseconds.
    pub round_trip_ms: f64,
    /// The hub's link, bytes per second in each direction; infinite where it is no limit.
    pub link_bytes_per_s: f64,
    /// Rows of a chunk.
    pub rows: u32,
}

impl Prefill {
    /// Tokens per second: rows / (layers x (fixed + round trip + bytes / rate)), equation 13's quantity.
    ///
    /// Bytes are those of plain dispatch in f16: k rows out and k rows back for every row of the chunk.
    pub fn tokens_per_s(&self) -> Result<f64, ModelError> {
        check_time("the round trip", self.round_trip_ms)?;
        if self.rows == 0 || self.link_bytes_per_s.is_nan() || self.link_bytes_per_s <= 0.0 {
            return Err(ModelError::Prefill { rows: self.rows, bytes_per_s: self.link_bytes_per_s });
        }
        let one_way_bytes = f64::from(self.rows) * f64::from(self.geometry.k) * self.geometry.row_bytes();
        let link_ms = 1e3 * 2.0 * one_way_bytes / self.link_bytes_per_s;
        Ok(1e3 * f64::from(self.rows) / self.cost.token_ms(self.round_trip_ms + link_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::{CHECKPOINT, PAPER};

    #[test]
    fn the_end_to_end_table_counts_the_round_trip_twice() {
        let cost = LayerCost::paper(48);
        let (twice, once) = ([163.2, 307.2, 1075.2, 4915.2], [139.2, 211.2, 595.2, 2515.2]);
        for (i, rtt) in PAPER_ROUND_TRIPS_MS.into_iter().enumerate() {
            assert!((cost.as_the_paper_counts_ms(rtt) - twice[i]).abs() < 1e-9, "twice, {rtt} ms");
            assert!((cost.round_trip_once_ms(rtt) - once[i]).abs() < 1e-9, "once, {rtt} ms");
        }
    }

    #[test]
    fn a_chunk_shares_the_round_trip_until_the_link_is_full() {
        let rate = |rows, link_bytes_per_s, geometry| {
            let cost = LayerCost::paper(48);
            Prefill { cost, geometry, round_trip_ms: 2.0, link_bytes_per_s, rows }.tokens_per_s().unwrap()
        };
        let unbound = f64::INFINITY;
        // One row is a token of the end-to-end table; without a link's rate, 128 rows are 128 times as many.
        assert!((rate(1, unbound, CHECKPOINT) - 1e3 / 211.2).abs() < 1e-9);
        assert!((rate(128, unbound, CHECKPOINT) - 128.0 * rate(1, unbound, CHECKPOINT)).abs() < 1e-6);
        // A full link gives rate / (layers x 2 x k x row bytes), whatever the chunk; the paper's row is twice as wide.
        let full = 125e6 / (48.0 * 2.0 * 8.0 * 4096.0);
        assert!((rate(u32::MAX, 125e6, CHECKPOINT) / full - 1.0).abs() < 1e-6);
        assert!((rate(u32::MAX, 125e6, PAPER) / full - 0.5).abs() < 1e-6);
    }

    #[test]
    fn impossible_prefills_are_errors() {
        let prefill = |rows, link_bytes_per_s, round_trip_ms| {
            Prefill { cost: LayerCost::paper(48), geometry: PAPER, round_trip_ms, link_bytes_per_s, rows }
                .tokens_per_s()
        };
        assert!(prefill(0, 1e6, 1.0).is_err());
        assert!(prefill(1, 0.0, 1.0).is_err());
        assert!(prefill(1, f64::NAN, 1.0).is_err());
        assert!(prefill(1, 1e6, -1.0).is_err());
    }
}
