//! The computing device, a GPU or the CPU: opens it, tests it against the CPU's reference kernels, and measures it for
//! the hub.

#[cfg(not(target_arch = "wasm32"))]
mod one_memory;
mod probe;
mod self_test;

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

#[cfg(all(feature = "native", feature = "gpu", not(target_arch = "wasm32")))]
use moex_kernels::engine::KeepAwake;
#[cfg(all(feature = "native", not(target_arch = "wasm32")))]
use moex_kernels::engine::Stage;
#[cfg(feature = "gpu")]
use moex_kernels::engine::{
    ActivationFormat, Engine as KernelEngine, GpuDevice, GpuEngine, GpuInfo, GpuSelect, SelfTestReport,
};
use moex_kernels::engine::{EngineError, EnginePlan};
use moex_protocol::{Join, SelfTest, WorkerKey, WorkerKind};
use serde::Deserialize;

#[cfg(not(target_arch = "wasm32"))]
pub use self::one_memory::{Engine, Threads};
use self::probe::Speed;
#[cfg(target_arch = "wasm32")]
pub use crate::browser::{Engine, Threads};

/// The device that a worker is told to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceChoice {
    /// A GPU if there is one that passes its self-test, otherwise the CPU. In a browser, which does not tell whether a
    /// GPU is a real one, the faster of the two.
    #[default]
    Auto,
    /// A GPU, or a driver that emulates one on the CPU; otherwise an error.
    Gpu,
    /// The CPU: WASM SIMD in a browser.
    #[serde(alias = "wasm")]
    Cpu,
}

/// The worker's identity and the limits that its user sets.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The secret of the join URL.
    pub token: String,
    /// Its secret, from which its id follows; the same in all sessions.
    pub key: WorkerKey,
    /// The name that its owner gives it; may be empty.
    pub name: String,
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
    kind: Kind,
    self_test: SelfTest,
    /// Why it is not exact; `None` if int8 activations give the CPU's bits.
    inexact: Option<String>,
    /// The measurement that it was chosen by, if there was a choice.
    speed: Option<Speed>,
    note: Option<String>,
}

#[derive(Debug)]
enum Kind {
    Cpu(Threads),
    #[cfg(feature = "gpu")]
    Gpu(GpuDevice),
}

impl Device {
    /// Opens the device of `choice` and tests it. A CPU computes on `threads`. `clock` returns the time since any fixed
    /// moment.
    ///
    /// # Errors
    /// One sentence: the requested GPU is missing, or the device computes wrong results.
    pub async fn open(
        choice: DeviceChoice,
        threads: Threads,
        clock: impl Fn() -> Duration,
    ) -> Result<Self, String> {
        match choice {
            DeviceChoice::Cpu => Self::cpu(None, threads),
            DeviceChoice::Gpu => Self::gpu(choice).await,
            DeviceChoice::Auto => match Self::gpu(choice).await {
                Ok(device) => device.or_faster_cpu(threads, &clock).await,
                Err(reason) => Self::cpu(Some(reason), threads),
            },
        }
    }

    /// Returns this GPU, or the CPU if that reads weights faster in the batch that both are measured with. Natively, a
    /// driver reports whether it computes on the CPU; such a driver is not chosen anyway.
    async fn or_faster_cpu(self, threads: Threads, clock: &dyn Fn() -> Duration) -> Result<Self, String> {
        if !cfg!(target_arch = "wasm32") {
            return Ok(self);
        }
        let cpu = Self::cpu(None, threads)?;
        let failed = |error: EngineError| format!("The device failed: {error}.");
        let on_cpu = probe::measure(&cpu, clock).await.map_err(failed)?;
        let note = match probe::measure(&self, clock).await {
            Ok(speed) if speed.gigabytes_per_second < on_cpu.gigabytes_per_second => format!(
                "The GPU ({}) reads {} MB of weights a second, the CPU {}.",
                self.describe().adapter,
                (speed.gigabytes_per_second * 1e3) as u32,
                (on_cpu.gigabytes_per_second * 1e3) as u32
            ),
            Ok(speed) => return Ok(Self { speed: Some(speed), ..self }),
            Err(error) => format!("The GPU failed: {error}."),
        };
        Ok(Self { speed: Some(on_cpu), note: Some(note), ..cpu })
    }

    fn cpu(note: Option<String>, threads: Threads) -> Result<Self, String> {
        let self_test = self_test::cpu();
        if self_test.passed {
            Ok(Self { kind: Kind::Cpu(threads), self_test, inexact: None, speed: None, note })
        } else {
            Err(format!("This CPU does not compute right: {}.", self_test.detail))
        }
    }

    #[cfg(not(feature = "gpu"))]
    async fn gpu(_: DeviceChoice) -> Result<Self, String> {
        Err("This build has no GPU support.".into())
    }

    #[cfg(feature = "gpu")]
    async fn gpu(choice: DeviceChoice) -> Result<Self, String> {
        let gpu = match GpuDevice::open(GpuSelect::Auto).await {
            Err(_) if choice == DeviceChoice::Gpu => GpuDevice::open(GpuSelect::Software).await,
            opened => opened,
        };
        let gpu = gpu.map_err(|error| format!("No GPU is used: {error}."))?;
        let int8 = GpuEngine::self_test(&gpu, &probe::plan(ActivationFormat::Int8)).await;
        let inexact = (!int8.passed).then(|| int8.detail.clone());
        let report = match inexact {
            None => int8,
            Some(_) => GpuEngine::self_test(&gpu, &probe::plan(ActivationFormat::F32)).await,
        };
        let SelfTestReport { passed, worst_nmse, detail } = report;
        if !passed {
            return Err(format!("The GPU ({}) does not compute right: {detail}", gpu.info().adapter));
        }
        let self_test = SelfTest { passed, worst_nmse, detail };
        Ok(Self { kind: Kind::Gpu(gpu), self_test, inexact, speed: None, note: None })
    }

    /// An engine on this device, after testing that the device computes the plan's formats correctly.
    ///
    /// # Errors
    /// If the plan does not fit the device, or the device gives wrong results.
    pub async fn engine(&self, plan: EnginePlan) -> Result<Engine, EngineError> {
        match &self.kind {
            Kind::Cpu(threads) => threads.engine(plan).await,
            #[cfg(feature = "gpu")]
            Kind::Gpu(gpu) => {
                if let (ActivationFormat::Int8, Some(reason)) = (plan.activations, &self.inexact) {
                    return Err(EngineError::Plan(format!(
                        "the hub computes in int8, and the GPU is not exact: {reason}"
                    )));
                }
                let report = GpuEngine::self_test(gpu, &plan).await;
                if !report.passed {
                    return Err(EngineError::Plan(format!(
                        "the GPU does not compute right: {}",
                        report.detail
                    )));
                }
                Ok(Threads::alone(KernelEngine::Gpu(Box::new(GpuEngine::new(gpu, plan).await?))))
            }
        }
    }

    /// The join message that describes this device to a hub, with its speed, which is measured now if it was not
    /// before. `clock` returns the time since any fixed moment.
    ///
    /// # Errors
    /// One sentence, if the device fails during the measurement.
    pub async fn present(&self, identity: Identity, clock: impl Fn() -> Duration) -> Result<Join, String> {
        let speed = match self.speed {
            Some(speed) => speed,
            None => {
                probe::measure(self, &clock).await.map_err(|error| format!("The device failed: {error}."))?
            }
        };
        let description = self.describe();
        Ok(Join {
            token: identity.token,
            key: identity.key,
            name: identity.name,
            kind: identity.kind,
            build: env!("CARGO_PKG_VERSION").into(),
            adapter: description.adapter,
            backend: description.backend,
            features: description.features,
            limits: description.limits,
            memory_budget_bytes: identity.memory_budget_bytes,
            self_test: self.self_test.clone(),
            sync_latency_micros: u64::try_from(speed.sync_latency.as_micros()).unwrap_or(u64::MAX),
            gigabytes_per_second: speed.gigabytes_per_second,
            teraflops: speed.teraflops,
            input_slots: identity.input_slots,
            gives_products: true,
            gives_digests: true,
        })
    }

    /// Calls `observer` at each stage of each batch on a GPU; a CPU has none.
    #[cfg(all(feature = "native", not(target_arch = "wasm32")))]
    pub(crate) fn observe(&self, observer: impl Fn(Stage) + Send + Sync + 'static) {
        match &self.kind {
            Kind::Cpu(_) => drop(observer),
            #[cfg(feature = "gpu")]
            Kind::Gpu(gpu) => drop(gpu.observe(observer)),
        }
    }

    /// What keeps a graphics card's clock up; `None` where there is no card. To be told each time that the worker looks for a message
    /// whether one was there.
    #[cfg(all(feature = "native", not(target_arch = "wasm32")))]
    pub(crate) fn keep_awake(&self) -> Option<Box<dyn FnMut(bool)>> {
        match &self.kind {
            Kind::Cpu(_) => None,
            #[cfg(feature = "gpu")]
            Kind::Gpu(gpu) => {
                let mut keep_awake = KeepAwake::new(gpu)?;
                Some(Box::new(move |was_there| match was_there {
                    true => keep_awake.found(),
                    false => keep_awake.look(),
                }))
            }
        }
    }

    /// Bytes that a card with memory of its own has free; none for other devices, or where its driver does not say.
    #[cfg(all(feature = "native", not(target_arch = "wasm32")))]
    pub(crate) fn free_bytes(&self) -> Option<u64> {
        match &self.kind {
            Kind::Cpu(_) => None,
            #[cfg(feature = "gpu")]
            Kind::Gpu(gpu) => gpu.free_bytes(),
        }
    }

    /// Whether it is a GPU.
    pub fn is_gpu(&self) -> bool {
        !matches!(self.kind, Kind::Cpu(_))
    }

    /// Whether int8 activations give the CPU's bits on it.
    pub fn is_exact(&self) -> bool {
        self.inexact.is_none()
    }

    /// Why a GPU is not used, for the user; `None` if one is, or none was asked for.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// Threads that compute on it; one that asks for a GPU.
    #[cfg(target_arch = "wasm32")]
    pub(crate) fn n_threads(&self) -> usize {
        match &self.kind {
            Kind::Cpu(threads) => threads.count(),
            #[cfg(feature = "gpu")]
            Kind::Gpu(_) => 1,
        }
    }

    fn describe(&self) -> Description {
        match &self.kind {
            Kind::Cpu(threads) => {
                let wasm = cfg!(target_arch = "wasm32");
                let adapter = || format!("CPU (WASM SIMD{})", threads.words());
                Description {
                    adapter: if wasm { adapter() } else { "CPU".into() },
                    backend: if wasm { "wasm-simd" } else { "cpu" }.into(),
                    features: cfg!(target_feature = "relaxed-simd")
                        .then(|| "relaxed-simd".into())
                        .into_iter()
                        .collect(),
                    limits: BTreeMap::new(),
                }
            }
            #[cfg(feature = "gpu")]
            Kind::Gpu(gpu) => {
                let GpuInfo { adapter, backend, mut features, limits, .. } = gpu.info().clone();
                features.extend(self.is_exact().then(|| moex_protocol::INT8_EXACT.to_owned()));
                Description { adapter, backend, features, limits }
            }
        }
    }
}

/// The part of a [`Join`] that describes the device.
struct Description {
    adapter: String,
    backend: String,
    features: Vec<String>,
    limits: BTreeMap<String, u64>,
}

/// Whether the device itself has failed and cannot be used again.
#[cfg(any(feature = "native", target_arch = "wasm32"))]
pub(crate) fn is_lost(error: &EngineError) -> bool {
    matches!(error, EngineError::DeviceLost(_) | EngineError::Device(_))
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
