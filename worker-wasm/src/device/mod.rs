//! What computes: a GPU or the CPU, opened, tested against its twin, and measured, so that the hub knows what it gets.

mod probe;
mod self_test;

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use moex_kernels::engine::{CpuEngine, Engine, EngineError, EnginePlan};
use moex_protocol::{Join, SelfTest, WorkerId, WorkerKind};
use serde::Deserialize;

/// What a worker is told to compute on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceChoice {
    /// A GPU if there is one that passes its self-test, else the CPU.
    #[default]
    Auto,
    /// A GPU, or nothing.
    Gpu,
    /// The CPU: WASM SIMD in a browser.
    #[serde(alias = "wasm")]
    Cpu,
}

/// Who the worker is, and what its user gives it.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The secret of the join URL.
    pub token: String,
    /// Stable across sessions.
    pub worker: WorkerId,
    /// Where it runs.
    pub kind: WorkerKind,
    /// Bytes of expert weights it may hold.
    pub memory_budget_bytes: u64,
    /// Dispatches it may have waiting.
    pub input_slots: u8,
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "gpu" => Ok(Self::Gpu),
            "cpu" => Ok(Self::Cpu),
            _ => Err(format!("`{text}` is none of auto, gpu, cpu")),
        }
    }
}

/// A device that has passed its self-test.
#[derive(Debug)]
pub struct Device {
    self_test: SelfTest,
    note: Option<String>,
}

impl Device {
    /// Opens what `choice` asks for and tests it.
    ///
    /// # Errors
    /// One sentence: the GPU asked for is not there, or the device does not compute right.
    pub async fn open(choice: DeviceChoice) -> Result<Self, String> {
        let note = match choice {
            DeviceChoice::Gpu => return Err("This build has no GPU support.".into()),
            DeviceChoice::Auto | DeviceChoice::Cpu => None,
        };
        let self_test = self_test::cpu();
        if !self_test.passed {
            return Err(format!("This CPU does not compute right: {}.", self_test.detail));
        }
        Ok(Self { self_test, note })
    }

    /// An engine on this device.
    ///
    /// # Errors
    /// If the plan does not fit the device.
    pub async fn engine(&self, plan: EnginePlan) -> Result<Engine, EngineError> {
        Ok(Engine::Cpu(CpuEngine::new(plan)?))
    }

    /// What the device presents itself as to a hub, with figures measured now by `clock`.
    ///
    /// # Errors
    /// One sentence, if the device fails while it is measured.
    pub async fn present(&self, identity: Identity, clock: impl Fn() -> Duration) -> Result<Join, String> {
        let speed =
            probe::measure(self, clock).await.map_err(|error| format!("The device failed: {error}."))?;
        Ok(Join {
            token: identity.token,
            worker: identity.worker,
            kind: identity.kind,
            build: env!("CARGO_PKG_VERSION").into(),
            adapter: cpu_name().into(),
            backend: cpu_backend().into(),
            features: Vec::new(),
            limits: BTreeMap::new(),
            memory_budget_bytes: identity.memory_budget_bytes,
            self_test: self.self_test.clone(),
            sync_latency_micros: 0,
            gigabytes_per_second: speed.gigabytes_per_second,
            teraflops: speed.teraflops,
            input_slots: identity.input_slots,
        })
    }

    /// What the worker does without, in words for its user.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }
}

fn cpu_name() -> &'static str {
    if cfg!(target_arch = "wasm32") { "CPU (WASM SIMD)" } else { "CPU" }
}

fn cpu_backend() -> &'static str {
    if cfg!(target_arch = "wasm32") { "wasm-simd" } else { "cpu" }
}

/// `n` values spread evenly over `-magnitude..magnitude`, the same for the same seed (splitmix64).
fn noise(seed: u64, n: usize, magnitude: f32) -> Vec<f32> {
    let value = |i: u64| {
        let mut z = (seed << 32 | i).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z >> 40) as f32 / (1 << 23) as f32 - 1.0) * magnitude
    };
    (0..n as u64).map(value).collect()
}
