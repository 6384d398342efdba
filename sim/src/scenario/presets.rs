//! Links, devices and models by name. `sim/README.md` and comments beside them name the source of each figure.

use std::time::Duration;

use crate::{
    geometry,
    world::{Delay, Lane, Link, from_millis},
};

use super::{DeviceKeys, LinkKeys, ModelKeys};

/// A link by name: round trip and its spread in ms, Mbit/s down and up.
pub(super) fn link(name: &str) -> Option<LinkKeys> {
    let keys = |round_trip_ms, sigma, jitter_ms, down_mbit, up_mbit| {
        Some(LinkKeys {
            preset: None,
            round_trip_ms: Some(round_trip_ms),
            jitter_ms: Some(jitter_ms),
            jitter_sigma: Some(sigma),
            down_mbit: Some(down_mbit),
            up_mbit: Some(up_mbit),
        })
    };
    match name {
        "ethernet" => keys(0.3, 0.4, 0.05, 1_000.0, 1_000.0),
        "wifi" => keys(2.0, 0.9, 1.0, 200.0, 200.0),
        "wan-city" => keys(10.0, 0.7, 1.5, 100.0, 40.0),
        "wan-cross" => keys(50.0, 0.7, 4.0, 100.0, 40.0),
        _ => None,
    }
}

/// Bytes a second of a rate in Mbit/s.
pub(super) fn bytes_per_s(mbit: f64) -> u64 {
    (mbit * 125_000.0) as u64
}

/// The names of the preset links.
pub const LINKS: &str = "ethernet, wifi, wan-city, wan-cross";

/// A device by name: weight bandwidth, arithmetic, and the costs of each message.
pub(super) fn device(name: &str) -> Option<DeviceKeys> {
    let keys = |gigabytes_per_s, teraflops, launch_ms, sync_ms| {
        Some(DeviceKeys {
            preset: None,
            gigabytes_per_s: Some(gigabytes_per_s),
            teraflops: Some(teraflops),
            launch_ms: Some(launch_ms),
            sync_ms: Some(sync_ms),
            jitter_sigma: Some(0.2),
        })
    };
    match name {
        // Data sheets: 1,008 GB/s and 82.6 TFLOP/s; 360 and 12.7; 100 and 3.6. Kernels reach half of each.
        "rtx-4090" => keys(504.0, 41.0, 0.1, 0.47),
        "rtx-3060" => keys(180.0, 6.3, 0.1, 0.47),
        "apple-m2" => keys(50.0, 1.8, 0.1, 0.47),
        // LPDDR5X on 64 bits has 67 GB/s, the GPU about 2 TFLOP/s; a browser on a phone reaches a quarter of both.
        "phone" => keys(17.0, 0.5, 0.3, 1.5),
        // The same laptop GPU in Firefox, which completes GPU work on a 100 ms timer.
        "firefox" => keys(50.0, 1.8, 0.1, 103.0),
        // One core: about the rate at which a plain loop reads memory, half of it in WebAssembly.
        "wasm-simd" => keys(9.0, 0.02, 0.02, 0.0),
        _ => None,
    }
}

/// The names of the preset devices.
pub const DEVICES: &str = "rtx-4090, rtx-3060, apple-m2, phone, firefox, wasm-simd";

/// A model by name.
pub(super) fn model(name: &str) -> Option<ModelKeys> {
    let geometry = match name {
        "qwen3-30b-a3b" => geometry::CHECKPOINT,
        "paper" => geometry::PAPER,
        _ => return None,
    };
    Some(ModelKeys {
        preset: None,
        hidden: Some(geometry.hidden),
        inner: Some(geometry.inner),
        layers: Some(geometry.n_moe_layers as u16),
        experts: Some(geometry.n_experts as u16),
        k: Some(geometry.k as u16),
        format: None,
    })
}

/// The names of the preset models.
pub const MODELS: &str = "qwen3-30b-a3b, paper";

impl LinkKeys {
    /// The link: half of the round trip each way, jitter log-normal on top.
    pub(super) fn link(&self) -> Result<Link, crate::error::ModelError> {
        let lane = |mbit: Option<f64>| {
            let one_way = self.round_trip_ms.unwrap_or(0.0) / 2.0;
            let delay = delay(one_way, self.jitter_ms.unwrap_or(0.0), self.jitter_sigma.unwrap_or(0.0))?;
            Ok(Lane::new(delay, mbit.map(bytes_per_s)))
        };
        Ok(Link { up: lane(self.up_mbit)?, down: lane(self.down_mbit)? })
    }
}

/// Always `fixed_ms`, plus a log-normal of this median and sigma if both are given.
pub(super) fn delay(fixed_ms: f64, median_ms: f64, sigma: f64) -> Result<Delay, crate::error::ModelError> {
    if median_ms == 0.0 {
        return Ok(Delay::Fixed(from_millis(fixed_ms)));
    }
    if sigma == 0.0 {
        return Ok(Delay::Fixed(from_millis(fixed_ms + median_ms)));
    }
    Ok(Delay::Random(crate::latency::Latency::shifted_log_normal(fixed_ms, median_ms, sigma)?))
}

/// Seconds as a duration, to the nanosecond.
pub(super) fn from_seconds(seconds: f64) -> Duration {
    from_millis(seconds * 1e3)
}
