//! Reads the step metrics of a hub's engine.

use std::ops::Sub;

use anyhow::{Context, Result};

use crate::chat;
use crate::hub::Hub;

/// The metrics since the hub's start, or since an earlier reading.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stepped {
    steps: f64,
    rows: f64,
    seconds: f64,
    waited_seconds: f64,
}

impl Stepped {
    /// The metrics of a hub.
    pub(super) async fn of(hub: &Hub) -> Result<Self> {
        let text = chat::client()?.get(format!("{}/metrics", hub.url)).send().await?.text().await?;
        let read = |name: &str| -> Result<f64> {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.with_context(|| format!("there is no metric {name}"))?
                .parse()
                .context("a metric is a number")
        };
        Ok(Self {
            steps: read("moex_engine_steps_total")?,
            rows: read("moex_engine_rows_total")?,
            seconds: read("moex_engine_step_seconds_total")?,
            waited_seconds: read("moex_engine_waited_seconds_total")?,
        })
    }

    /// The rows of a step.
    pub(super) fn width(self) -> f64 {
        self.rows / self.steps.max(1.0)
    }

    /// The time of a step.
    pub(super) fn seconds_a_step(self) -> f64 {
        self.seconds / self.steps.max(1.0)
    }

    /// The part of the time in which the hub waited for experts and had nothing else to compute.
    pub(super) fn bubble(self) -> f64 {
        self.waited_seconds / self.seconds.max(1e-9)
    }
}

impl Sub for Stepped {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            steps: self.steps - before.steps,
            rows: self.rows - before.rows,
            seconds: self.seconds - before.seconds,
            waited_seconds: self.waited_seconds - before.waited_seconds,
        }
    }
}
