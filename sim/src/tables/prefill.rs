//! Table 4: the rate of a prefill when a chunk's rows share each layer's round trip (equation 13's quantity).

use super::{column, log_steps};
use crate::{
    error::ModelError,
    geometry::{CHECKPOINT, Geometry, PAPER},
    plot::{Axis, Chart, Curve, Legend, Scale},
    report::Table,
    token::{LayerCost, PAPER_ROUND_TRIPS_MS, Prefill},
};

/// One gigabit per second.
const LINK_BYTES_PER_S: f64 = 125e6;
const CHUNKS: [u32; 3] = [1, 128, 512];

/// Tokens per second over the paper's four networks, for a token at a time and for two sizes of chunk.
pub fn table() -> Result<Table, ModelError> {
    let mut rows = Vec::new();
    for round_trip_ms in PAPER_ROUND_TRIPS_MS {
        for chunk in CHUNKS {
            rows.push(vec![
                round_trip_ms.into(),
                chunk.into(),
                rate(PAPER, round_trip_ms, f64::INFINITY, chunk)?.into(),
                rate(CHECKPOINT, round_trip_ms, f64::INFINITY, chunk)?.into(),
                rate(PAPER, round_trip_ms, LINK_BYTES_PER_S, chunk)?.into(),
                rate(CHECKPOINT, round_trip_ms, LINK_BYTES_PER_S, chunk)?.into(),
            ]);
        }
    }
    Ok(Table {
        name: "4",
        title: "Prefill, tokens/s: rows / (layers x (2.4 ms + round trip + bytes / rate))".to_owned(),
        columns: vec![
            column("round_trip_ms", "round trip, ms", 1),
            column("chunk_rows", "rows in a chunk", 0),
            column("paper_geometry_unlimited", "paper's geometry, no link limit", 1),
            column("checkpoint_unlimited", "checkpoint, no link limit", 1),
            column("paper_geometry_1gbit", "paper's geometry, 1 Gbit/s", 1),
            column("checkpoint_1gbit", "checkpoint, 1 Gbit/s", 1),
        ],
        rows,
        notes: vec![
            "An upper bound set by the network: 2.4 ms are table 3's fixed costs of a layer, and arithmetic that grows \
             with the chunk is not counted. No figure of the paper is set beside these, since none is known to follow \
             from the same terms."
                .to_owned(),
            "Bytes are plain dispatch in f16: k = 8 rows out and 8 back for every row, through the hub's one link. The \
             paper's geometry has 46 layers and rows of 8192 B, the checkpoint 48 and 4096 B."
                .to_owned(),
        ],
    })
}

/// The checkpoint's rate against the size of a chunk, a curve for each round trip.
pub fn chart() -> Result<Chart, ModelError> {
    let curve = |&round_trip_ms: &f64| -> Result<Curve, ModelError> {
        let at = |rows: u32| Ok((f64::from(rows), rate(CHECKPOINT, round_trip_ms, LINK_BYTES_PER_S, rows)?));
        let mut rows: Vec<u32> = log_steps(1.0, 1024.0, 200).map(|rows| rows.round() as u32).collect();
        rows.dedup();
        Ok(Curve {
            label: format!("round trip {round_trip_ms} ms"),
            points: rows.into_iter().map(at).collect::<Result<_, ModelError>>()?,
            dots: CHUNKS.into_iter().map(at).collect::<Result<_, ModelError>>()?,
            drops: false,
        })
    };
    Ok(Chart {
        title: "Prefill of the checkpoint over 1 Gbit/s, bound by the network alone".to_owned(),
        x: Axis { label: "rows in a chunk", from: 1.0, to: 1024.0, scale: Scale::Log },
        y: Axis { label: "tokens/s", from: 0.1, to: 100.0, scale: Scale::Log },
        curves: PAPER_ROUND_TRIPS_MS.iter().map(curve).collect::<Result<_, _>>()?,
        legend: Legend::LowerRight,
    })
}

fn rate(geometry: Geometry, round_trip_ms: f64, link_bytes_per_s: f64, rows: u32) -> Result<f64, ModelError> {
    let cost = LayerCost::paper(geometry.n_moe_layers);
    Prefill { cost, geometry, round_trip_ms, link_bytes_per_s, rows }.tokens_per_s()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_by_hand() {
        let close = |got: f64, want: f64| assert!((got / want - 1.0).abs() < 1e-12, "{got}, not {want}");
        close(rate(CHECKPOINT, 0.5, f64::INFINITY, 128).unwrap(), 128.0 / 0.1392);
        // 512 rows x 8 x 4096 B both ways at 125 MB/s: 268.435456 ms a layer.
        close(rate(CHECKPOINT, 2.0, 125e6, 512).unwrap(), 512e3 / (48.0 * (2.4 + 2.0 + 268.435_456)));
        close(rate(PAPER, 2.0, 125e6, 512).unwrap(), 512e3 / (46.0 * (2.4 + 2.0 + 536.870_912)));
        assert_eq!(table().unwrap().rows.len(), 12);
    }
}
