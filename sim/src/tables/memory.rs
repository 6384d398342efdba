//! Equation 3 over swarm sizes and replicas (`table eq4`): what one worker must hold.

use super::{column, log_steps};
use crate::{
    error::ModelError,
    geometry::{CHECKPOINT, Geometry, PAPER, WeightBits},
    plot::{Axis, Chart, Curve, Legend, Scale},
    report::{Cell, Table},
};

/// The paper's share for [`PAPER_CASE`], GB.
const PAPER_GB: f64 = 9.2;
/// Workers and replicas of the paper's example.
const PAPER_CASE: (u32, u32) = (16, 2);
const WORKERS: [u32; 5] = [4, 8, 16, 32, 64];
const REPLICAS: [u32; 3] = [1, 2, 3];

/// GB per worker for each number of workers and replicas.
pub fn table() -> Result<Table, ModelError> {
    let mut rows = Vec::new();
    for n_workers in WORKERS {
        for n_replicas in REPLICAS {
            let gb = |geometry: Geometry, bits| -> Result<Cell, ModelError> {
                Ok((geometry.worker_bytes(bits, n_workers, n_replicas)? / 1e9).into())
            };
            rows.push(vec![
                n_workers.into(),
                n_replicas.into(),
                ((n_workers, n_replicas) == PAPER_CASE).then_some(PAPER_GB).into(),
                gb(PAPER, WeightBits::Int4Bare)?,
                gb(PAPER, WeightBits::Int4G128)?,
                gb(CHECKPOINT, WeightBits::Int4G128)?,
                gb(CHECKPOINT, WeightBits::F16)?,
            ]);
        }
    }
    Ok(Table {
        name: "eq4",
        title: "Memory per worker (equation 3): layers x experts x bytes x replicas / workers, GB".to_owned(),
        columns: vec![
            column("workers", "workers", 0),
            column("replicas", "replicas", 0),
            column("paper_gb", "paper", 1),
            column("paper_geometry_int4_bare_gb", "paper's geometry, 4 bits alone", 2),
            column("paper_geometry_int4_gb", "the same with scales", 2),
            column("checkpoint_int4_gb", "checkpoint, 4 bits + scales", 2),
            column("checkpoint_f16_gb", "checkpoint, f16", 2),
        ],
        rows,
        notes: vec![
            "Why the paper differs: wrong geometry, which makes a worker's share about five times what it is. Its 9.2 GB is \
             its 12.5 MB an expert, 25 M parameters at half a byte: rounded, and without scales."
                .to_owned(),
            "Shares are even and of experts alone; activations and buffers come on top.".to_owned(),
        ],
    })
}

/// GB per worker against the number of workers: two replicas in the paper's geometry, one to three in the checkpoint's.
pub fn chart() -> Result<Chart, ModelError> {
    let curve = |label: &str, geometry: Geometry, bits, n_replicas: u32| -> Result<Curve, ModelError> {
        let at = |n: u32| Ok((f64::from(n), geometry.worker_bytes(bits, n, n_replicas)? / 1e9));
        let mut workers: Vec<u32> = log_steps(4.0, 64.0, 100).map(|n| n.round() as u32).collect();
        workers.dedup();
        Ok(Curve {
            label: label.to_owned(),
            points: workers.into_iter().map(at).collect::<Result<_, ModelError>>()?,
            dots: WORKERS.into_iter().map(at).collect::<Result<_, ModelError>>()?,
            drops: false,
        })
    };
    Ok(Chart {
        title: "Experts a worker holds, 4 bits".to_owned(),
        x: Axis { label: "workers", from: 4.0, to: 64.0, scale: Scale::Log },
        y: Axis { label: "GB per worker", from: 0.1, to: 100.0, scale: Scale::Log },
        curves: vec![
            curve("paper's geometry, 2 replicas", PAPER, WeightBits::Int4Bare, 2)?,
            curve("checkpoint, 3 replicas", CHECKPOINT, WeightBits::Int4G128, 3)?,
            curve("checkpoint, 2 replicas", CHECKPOINT, WeightBits::Int4G128, 2)?,
            curve("checkpoint, 1 replica", CHECKPOINT, WeightBits::Int4G128, 1)?,
        ],
        legend: Legend::UpperRight,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_example_stands_beside_both_geometries() {
        let table = table().unwrap();
        let row = table.rows.iter().find(|row| row[2] != Cell::Missing).unwrap();
        let printed: Vec<String> = row
            .iter()
            .map(|cell| match cell {
                Cell::Number(number) => format!("{number:.1}"),
                _ => panic!("a gap in {row:?}"),
            })
            .collect();
        // 9.2 follows from 12.5 MB an expert; from the exact 25.17 M parameters it is 9.3.
        assert_eq!(printed, ["16.0", "2.0", "9.2", "9.3", "9.6", "1.9", "7.2"]);
    }
}
