//! Table 3: a token from end to end, with the round trip counted twice as in the paper, and once.

use super::{column, log_steps};
use crate::{
    geometry::{CHECKPOINT, PAPER},
    plot::{Axis, Chart, Curve, Legend, Scale},
    report::Table,
    token::{LayerCost, PAPER_ROUND_TRIPS_MS},
};

/// The paper's h = 1 column, milliseconds, over [`PAPER_ROUND_TRIPS_MS`].
const PAPER_MS: [f64; 4] = [163.2, 307.2, 1075.2, 4915.2];
const NETWORKS: [&str; 4] = ["LAN", "Wi-Fi", "10 ms", "50 ms"];

/// A token's time over the paper's four networks.
pub fn table() -> Table {
    let (checkpoint, paper) = costs();
    let rows = PAPER_ROUND_TRIPS_MS.iter().enumerate().map(|(i, &rtt)| {
        let once = checkpoint.round_trip_once_ms(rtt);
        vec![
            NETWORKS[i].into(),
            rtt.into(),
            PAPER_MS[i].into(),
            checkpoint.as_the_paper_counts_ms(rtt).into(),
            once.into(),
            paper.round_trip_once_ms(rtt).into(),
            (1e3 / once).into(),
        ]
    });
    Table {
        name: "3",
        title: "One token from end to end, h = 1: layers x (1.5 + wait + 0.7 + 0.2) ms".to_owned(),
        columns: vec![
            column("network", "network", 0),
            column("round_trip_ms", "round trip, ms", 1),
            column("paper_ms", "paper, ms", 1),
            column("counted_twice_ms", "wait = 2 x round trip, ms", 1),
            column("counted_once_ms", "wait = round trip, ms", 1),
            column("counted_once_46_layers_ms", "the same, 46 layers, ms", 1),
            column("tokens_per_s", "tokens/s, 48 layers", 2),
        ],
        rows: rows.collect(),
        notes: vec![
            "Why the paper differs: round trip counted twice. It defines T_net as one way, counts it twice, and puts the \
             round trip into it."
                .to_owned(),
            "Geometry: the paper's table has the checkpoint's 48 layers, its memory figures have 46; both are shown.".to_owned(),
            "h >= 2: every time here is a constant, and the fastest of several equal constants is that constant, so copies \
             change nothing. The paper's columns for h >= 2 follow from no formula in it and are not repeated."
                .to_owned(),
        ],
    }
}

/// A token's time against the round trip, both counts.
pub fn chart() -> Chart {
    let (cost, _) = costs();
    let curve = |label: &str, time: &dyn Fn(f64) -> f64| Curve {
        label: label.to_owned(),
        points: log_steps(0.1, 100.0, 200).map(|rtt| (rtt, time(rtt))).collect(),
        dots: PAPER_ROUND_TRIPS_MS.iter().map(|&rtt| (rtt, time(rtt))).collect(),
        drops: false,
    };
    Chart {
        title: "One token through 48 layers".to_owned(),
        x: Axis { label: "round trip, ms", from: 0.1, to: 100.0, scale: Scale::Log },
        y: Axis { label: "ms per token", from: 100.0, to: 10_000.0, scale: Scale::Log },
        curves: vec![
            curve("round trip counted twice (the paper)", &|rtt| cost.as_the_paper_counts_ms(rtt)),
            curve("round trip counted once", &|rtt| cost.round_trip_once_ms(rtt)),
        ],
        legend: Legend::UpperLeft,
    }
}

/// The paper's layer costs over the checkpoint's layers and over its own.
fn costs() -> (LayerCost, LayerCost) {
    (LayerCost::paper(CHECKPOINT.n_moe_layers), LayerCost::paper(PAPER.n_moe_layers))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_3_holds_as_the_paper_counts_and_with_the_round_trip_once() {
        let text = table().to_text();
        for row in [
            ["LAN", "0.5", "163.2", "163.2", "139.2", "133.4", "7.18"],
            ["Wi-Fi", "2.0", "307.2", "307.2", "211.2", "202.4", "4.73"],
            ["10 ms", "10.0", "1075.2", "1075.2", "595.2", "570.4", "1.68"],
            ["50 ms", "50.0", "4915.2", "4915.2", "2515.2", "2410.4", "0.40"],
        ] {
            let printed = text.lines().any(|line| {
                line.split('|').map(str::trim).filter(|cell| !cell.is_empty()).eq(row.iter().copied())
            });
            assert!(printed, "{row:?} is not in\n{text}");
        }
    }
}
