//! Compares the same figures of the measurement and of the simulation.

use std::time::Duration;

use moex_swarm::trace::AttemptKind;

use super::{
    Fit,
    trace::{Step, Trace},
};
use crate::{
    histogram::Histogram,
    plot::{Axis, Chart, Curve, Legend, Scale},
    report::{Cell, Column, Digits, Table},
};

/// The sums of some steps.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// The number of steps.
    pub steps: u64,
    /// Tokens that these steps produced.
    pub tokens: u64,
    /// The total time of these steps, without the time between them.
    pub time: Duration,
    /// From the start of a layer in the swarm to its last answer.
    pub layers: Histogram,
    /// Messages to workers.
    pub dispatches: u64,
    /// Of these, second copies.
    pub hedges: u64,
}

/// Measured and predicted figures.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// From the trace.
    pub measured: Figures,
    /// From the simulation.
    pub predicted: Figures,
    /// The fit that the prediction uses.
    pub fit: Fit,
    /// The number of steps that were fitted.
    pub n_fitted: usize,
}

impl Figures {
    /// The figures of measured steps.
    pub fn measured(steps: &[Step]) -> Self {
        let mut figures =
            Self { steps: steps.len() as u64, tokens: Trace::n_tokens(steps), ..Self::default() };
        for step in steps {
            figures.time += Duration::from_micros(step.ended - step.begun);
            for layer in &step.layers {
                figures.layers.record(Duration::from_micros(layer.done - layer.started));
                figures.dispatches += layer.attempts.len() as u64;
                let is_copy = |kind| kind != AttemptKind::Probe;
                let copies = layer.attempts.iter().filter(|a| a.copies > 0 && is_copy(a.kind));
                figures.hedges += copies.count() as u64;
            }
        }
        figures
    }

    /// Tokens a second of the steps' time.
    pub fn tokens_per_s(&self) -> f64 {
        if self.time.is_zero() { 0.0 } else { self.tokens as f64 / self.time.as_secs_f64() }
    }

    fn rows(&self) -> Vec<(&'static str, &'static str, f64)> {
        let per_step = |n: u64| n as f64 / self.steps.max(1) as f64;
        vec![
            ("tokens_per_s", "1/s", self.tokens_per_s()),
            ("step_mean", "ms", self.time.as_secs_f64() * 1e3 / self.steps.max(1) as f64),
            ("layer_mean", "ms", self.layers.mean_ms()),
            ("layer_p50", "ms", self.layers.quantile_ms(0.5)),
            ("layer_p95", "ms", self.layers.quantile_ms(0.95)),
            ("layer_p99", "ms", self.layers.quantile_ms(0.99)),
            ("dispatches", "/step", per_step(self.dispatches)),
            ("hedges", "/step", per_step(self.hedges)),
        ]
    }
}

impl Comparison {
    /// The relative error of the predicted tokens a second.
    pub fn error(&self) -> f64 {
        self.predicted.tokens_per_s() / self.measured.tokens_per_s() - 1.0
    }

    /// A table with one line for each figure.
    pub fn table(&self) -> Table {
        let pairs = self.predicted.rows().into_iter().zip(self.measured.rows());
        let rows = pairs.map(|((key, unit, predicted), (_, _, measured))| {
            let error = if measured == 0.0 {
                Cell::Missing
            } else {
                Cell::Number(100.0 * (predicted / measured - 1.0))
            };
            vec![Cell::from(key), predicted.into(), measured.into(), error, unit.into()]
        });
        let column = |key, heading, digits| Column { key, heading, digits };
        let mut notes = vec![format!(
            "Fitted on {} steps, compared over the {} that follow.",
            self.n_fitted, self.measured.steps
        )];
        notes.extend(self.fit.workers.iter().map(|(id, fit)| {
            format!(
                "Worker {}: link {:.3} ms there and back; device {:.3} ms a message (p95 {:.3}), {:.4} ms an expert and {:.4} ms a pair; from {} answers.",
                &id.to_string()[..8.min(id.to_string().len())],
                fit.round_trip_ms,
                fit.per_message.mean(),
                fit.per_message.sample_quantile(0.95).unwrap_or_default(),
                fit.per_expert_ms,
                fit.per_pair_ms,
                fit.n_observed
            )
        }));
        if self.fit.workers.len() > 1 {
            let percent = 100.0 * self.fit.contention;
            notes.push(format!(
                "Each further worker that computes slows one down by {percent:.0} % of its own time."
            ));
        }
        let hub = &self.fit.hub;
        notes.push(format!(
            "Hub, one row: {:.3} ms before a step's first layer, {:.3} ms attention and router, {:.3} ms to hand over, {:.3} ms to combine, {:.3} ms head and sampler.",
            hub.begin.at(1), hub.attention.at(1), hub.hand_over.at(1), hub.combine.at(1), hub.end.at(1)
        ));
        Table {
            name: "replay",
            title: "Predicted and measured".to_owned(),
            columns: vec![
                column("figure", "figure", Digits::Mixed),
                column("predicted", "predicted", Digits::After(3)),
                column("measured", "measured", Digits::After(3)),
                column("error_percent", "error, %", Digits::After(1)),
                column("unit", "unit", Digits::Mixed),
            ],
            rows: rows.collect(),
            notes,
        }
    }

    /// Distributions of a layer's time.
    pub fn chart(&self) -> Chart {
        let curve = |label: &str, histogram: &Histogram| Curve {
            label: label.to_owned(),
            points: histogram.cdf(),
            dots: Vec::new(),
            drops: false,
        };
        let curves =
            vec![curve("measured", &self.measured.layers), curve("predicted", &self.predicted.layers)];
        let ends =
            || curves.iter().flat_map(|curve| curve.points.first().into_iter().chain(curve.points.last()));
        let from = ends().map(|(ms, _)| *ms).fold(f64::INFINITY, f64::min).clamp(1e-3, 1e6);
        let to = ends().map(|(ms, _)| *ms).fold(from, f64::max);
        Chart {
            title: "A layer's experts, predicted and measured".to_owned(),
            x: Axis {
                label: "milliseconds",
                from: libm::pow(10.0, libm::floor(libm::log10(from))),
                to: 5.0 * to.max(2.0 * from),
                scale: Scale::Log,
            },
            y: Axis { label: "share that is done", from: 0.0, to: 1.0, scale: Scale::Linear },
            curves,
            legend: Legend::LowerRight,
        }
    }
}
