//! Table 2: the model's sizes in the paper's geometry and in the checkpoint's.

use super::column;
use crate::{
    geometry::{CHECKPOINT, Geometry, PAPER, WeightBits},
    report::{Cell, Column, Digits, Table},
};

/// A quantity, the paper's value if known, its formula for a geometry, and the reason for a difference.
type Row = (&'static str, Option<f64>, &'static dyn Fn(&Geometry) -> Option<f64>, &'static str);

/// A table of sizes, without a curve.
pub fn table() -> Table {
    let quantities: [Row; 12] = [
        ("hidden width D", Some(4096.0), &|g| Some(g.hidden.into()), "wrong geometry"),
        ("expert inner width F", Some(2048.0), &|g| Some(g.inner.into()), "wrong geometry"),
        ("MoE layers", Some(46.0), &|g| Some(g.n_moe_layers.into()), "wrong geometry"),
        (
            "parameters per expert, M",
            Some(25.0),
            &|g| Some(g.expert_params() / 1e6),
            "wrong geometry; rounded",
        ),
        (
            "parameters of all experts, G",
            Some(24.0),
            &|g| Some(g.all_expert_params() / 1e9),
            "the paper's total is not its own layers x experts x parameters",
        ),
        (
            "parameters on the hub, G",
            Some(6.5),
            &|g| g.shared_params().map(|params| params / 1e9),
            "no formula in the paper; counted from the checkpoint's tensors",
        ),
        (
            "hub in f16, GB",
            Some(13.0),
            &|g| g.shared_params().map(|params| params * WeightBits::F16.bytes_per_weight() / 1e9),
            "follows from the line above",
        ),
        (
            "one expert, 4 bits alone, MB",
            Some(12.5),
            &|g| Some(g.expert_bytes(WeightBits::Int4Bare) / 1e6),
            "wrong geometry; 25 M rounded",
        ),
        (
            "one expert, 4 bits + f16 scale per 128, MB",
            None,
            &|g| Some(g.expert_bytes(WeightBits::Int4G128) / 1e6),
            "what a worker stores",
        ),
        (
            "all experts, 4 bits + scales, GB",
            None,
            &|g| Some(g.n_blocks() * g.expert_bytes(WeightBits::Int4G128) / 1e9),
            "what the swarm stores once",
        ),
        ("activation row, f16, B", Some(8192.0), &|g| Some(g.row_bytes()), "wrong geometry"),
        (
            "rows out per token, f16, KiB",
            None,
            &|g| Some(f64::from(g.n_moe_layers) * f64::from(g.k) * g.row_bytes() / 1024.0),
            "layers x k x row, one copy of each",
        ),
    ];
    let row = |(name, paper, formula, why): Row| {
        vec![name.into(), paper.into(), formula(&PAPER).into(), formula(&CHECKPOINT).into(), why.into()]
    };
    Table {
        name: "2",
        title: "Sizes of Qwen3-30B-A3B".to_owned(),
        columns: vec![
            column("quantity", "quantity", 0),
            mixed("paper", "paper says"),
            mixed("paper_geometry", "paper's geometry gives"),
            mixed("checkpoint", "checkpoint has"),
            column("why", "why they differ", 0),
        ],
        rows: quantities.into_iter().map(row).collect::<Vec<Vec<Cell>>>(),
        notes: vec![
            "Both geometries have 128 experts a layer and visit 8. M, G, MB, GB are powers of ten; KiB is 1024 B.".to_owned(),
            "The paper's geometry names no attention heads and no vocabulary, so its hub part has no formula here.".to_owned(),
        ],
    }
}

const fn mixed(key: &'static str, heading: &'static str) -> Column {
    Column { key, heading, digits: Digits::Mixed }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_geometries_give_their_known_sizes() {
        let rows: Vec<String> = table()
            .to_csv()
            .lines()
            .map(|line| line.split(',').take(6).collect::<Vec<_>>().join(","))
            .collect();
        let has = |start: &str| assert!(rows.iter().any(|row| row.starts_with(start)), "{start}: {rows:#?}");
        has("hidden width D,4096,4096,2048,");
        has("MoE layers,46,46,48,");
        has("\"parameters per expert, M\",25,25.165824,4.718592,");
        has("\"parameters of all experts, G\",24,148.176371712,28.991029248");
        has("\"parameters on the hub, G\",6.5,,1.541");
        has("\"one expert, 4 bits alone, MB\"");
        has("\"activation row, f16");
    }
}
