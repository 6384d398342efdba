//! Finds, opens and watches a GPU.

#[cfg(not(target_arch = "wasm32"))]
use std::sync::OnceLock;
use std::{collections::BTreeMap, sync::Arc};

use super::{
    compiled::CompiledKernels,
    observer::Observer,
    signal::{Health, Signal},
};
use crate::engine::{EngineError, Stage};

/// Which adapter to take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuSelect {
    /// The strongest that is a GPU; in a browser, what the browser offers.
    Auto,
    /// The first whose name contains this, ignoring case; a software adapter too.
    Named(String),
    /// One that computes on the CPU, such as lavapipe.
    Software,
}

/// What is known about an open GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuInfo {
    /// The driver's name for it; "unnamed" where the browser does not say.
    pub adapter: String,
    /// vulkan, metal, dx12 or webgpu.
    pub backend: String,
    /// Whether it computes on the CPU, as far as its driver says so.
    pub software: bool,
    /// Whether it has memory of its own, as far as its driver says so.
    pub discrete: bool,
    /// The optional features in use: `shader-f16`, `subgroups`.
    pub features: Vec<String>,
    /// The limits that matter here, by their WebGPU names.
    pub limits: BTreeMap<String, u64>,
}

/// An open GPU; clones are the same one.
#[derive(Clone, Debug)]
pub struct GpuDevice(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    device: wgpu::Device,
    queue: wgpu::Queue,
    info: GpuInfo,
    health: Arc<Health>,
    compiled: CompiledKernels,
    observer: Observer,
    #[cfg(not(target_arch = "wasm32"))]
    poller: poller::Poller,
}

/// How many times [`GpuDevice::watch_closely`] polls: for a few milliseconds.
#[cfg(not(target_arch = "wasm32"))]
const MAX_LOOKS: usize = 5_000;

impl GpuDevice {
    /// Finds and opens a GPU, with `shader-f16` and `subgroups` where it has them.
    ///
    /// # Errors
    /// [`EngineError::NoAdapter`] if there is none of this kind, or it refuses to be opened.
    pub async fn open(select: GpuSelect) -> Result<Self, EngineError> {
        Self::open_with(select, wgpu::Features::empty()).await
    }

    /// [`Self::open`], with timestamps where it has them: for measurements.
    ///
    /// # Errors
    /// As [`Self::open`].
    #[cfg(not(target_arch = "wasm32"))]
    pub async fn open_timed(select: GpuSelect) -> Result<Self, EngineError> {
        Self::open_with(select, TIMESTAMPS).await
    }

    /// [`Self::open`] of up to `most` GPUs that are as strong as the one it finds, that one first. What computes on the CPU is opened
    /// as often as asked for.
    ///
    /// # Errors
    /// As [`Self::open`], if any refuses to be opened.
    #[cfg(not(target_arch = "wasm32"))]
    pub async fn open_all(select: GpuSelect, most: usize) -> Result<Vec<Self>, EngineError> {
        let mut devices = Vec::new();
        for adapter in find_all(&select, most).await? {
            devices.push(Self::open_adapter(adapter, wgpu::Features::empty()).await?);
        }
        Ok(devices)
    }

    async fn open_with(select: GpuSelect, also: wgpu::Features) -> Result<Self, EngineError> {
        Self::open_adapter(find(&select).await?, also).await
    }

    async fn open_adapter(adapter: wgpu::Adapter, also: wgpu::Features) -> Result<Self, EngineError> {
        let wanted = wgpu::Features::SHADER_F16 | wgpu::Features::SUBGROUP | also;
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("moex"),
            required_features: adapter.features() & wanted,
            required_limits: limits(&adapter.limits()),
            ..Default::default()
        };
        let opened = adapter.request_device(&descriptor).await;
        let (device, queue) =
            opened.map_err(|e| EngineError::NoAdapter(format!("it cannot be opened: {e}")))?;

        let health = Arc::new(Health::default());
        let lost = Arc::clone(&health);
        device.set_device_lost_callback(move |reason, message| {
            lost.fail(EngineError::DeviceLost(format!("{reason:?}: {}", message.trim_end_matches('.'))));
        });
        let faulty = Arc::clone(&health);
        // Errors outside of any scope: the device's results can no longer be trusted.
        device
            .on_uncaptured_error(Arc::new(move |error| faulty.fail(EngineError::Device(error.to_string()))));

        let info = info(&adapter.get_info(), &device);
        #[cfg(not(target_arch = "wasm32"))]
        let poller = poller::Poller::start(device.clone(), Arc::clone(&health))?;
        Ok(Self(Arc::new(Inner {
            device,
            queue,
            info,
            health,
            compiled: CompiledKernels::default(),
            observer: Observer::default(),
            #[cfg(not(target_arch = "wasm32"))]
            poller,
        })))
    }

    /// What is known about it.
    pub fn info(&self) -> &GpuInfo {
        &self.0.info
    }

    /// Calls `observer` at each stage of each batch of every engine on this device, on the thread that computes the batch. A
    /// device has one observer, the first; returns whether this one is.
    pub fn observe(&self, observer: impl Fn(Stage) + Send + Sync + 'static) -> bool {
        self.0.observer.set(Box::new(observer))
    }

    /// Submits an empty list of commands. Browsers look whether a GPU is done on timers, and when something is submitted: calling
    /// this while an answer is awaited shortens the wait.
    #[cfg(target_arch = "wasm32")]
    pub fn nudge(&self) {
        self.0.queue.submit([]);
    }

    /// Whether the feature is in use.
    pub(super) fn has(&self, feature: &str) -> bool {
        self.0.info.features.iter().any(|f| f == feature)
    }

    /// The most threads of a workgroup beside which others run.
    #[cfg(not(target_arch = "wasm32"))]
    pub(super) fn usual_threads(&self) -> usize {
        self.most_threads().min(USUAL_THREADS)
    }

    /// The most threads of a workgroup.
    #[cfg(not(target_arch = "wasm32"))]
    pub(super) fn most_threads(&self) -> usize {
        self.wgpu().limits().max_compute_invocations_per_workgroup as usize
    }

    /// The memory of a workgroup, in words.
    #[cfg(not(target_arch = "wasm32"))]
    pub(super) fn workgroup_words(&self) -> usize {
        self.wgpu().limits().max_compute_workgroup_storage_size as usize / 4
    }

    pub(super) fn wgpu(&self) -> &wgpu::Device {
        &self.0.device
    }

    pub(super) fn queue(&self) -> &wgpu::Queue {
        &self.0.queue
    }

    pub(super) fn compiled(&self) -> &CompiledKernels {
        &self.0.compiled
    }

    /// Tells the observer of a batch's progress.
    pub(super) fn tell(&self, stage: Stage) {
        self.0.observer.tell(stage);
    }

    pub(super) fn health(&self) -> &Arc<Health> {
        &self.0.health
    }

    /// [`Self::watch`] for a submission that fires `signal`. Natively, the calling thread polls for a while first:
    /// another thread takes longer to wake up than most answers take.
    pub(super) fn watch_closely(&self, submission: wgpu::SubmissionIndex, signal: &Signal) {
        #[cfg(not(target_arch = "wasm32"))]
        for _ in 0..MAX_LOOKS {
            // The polling thread reports errors.
            if self.0.device.poll(wgpu::PollType::Poll).is_err() {
                break;
            }
            if signal.has_fired() {
                return;
            }
            std::thread::yield_now();
        }
        #[cfg(target_arch = "wasm32")]
        let _ = signal;
        self.watch(submission);
    }

    /// Makes sure that the callbacks of a submission are called; browsers do so by themselves.
    pub(super) fn watch(&self, submission: wgpu::SubmissionIndex) {
        #[cfg(not(target_arch = "wasm32"))]
        self.0.poller.watch(submission);
        #[cfg(target_arch = "wasm32")]
        let _ = submission;
    }
}

/// What [`GpuDevice::open_timed`] asks for.
#[cfg(not(target_arch = "wasm32"))]
pub(super) const TIMESTAMPS: wgpu::Features = wgpu::Features::TIMESTAMP_QUERY
    .union(wgpu::Features::TIMESTAMP_QUERY_INSIDE_ENCODERS)
    .union(wgpu::Features::TIMESTAMP_QUERY_INSIDE_PASSES);

/// The most GPUs that are opened together.
#[cfg(not(target_arch = "wasm32"))]
const MAX_GPUS: usize = 16;

/// The largest buffer that is requested. Some drivers count offsets with 31 bits, which those of larger buffers do not
/// fit.
const MAX_BUFFER_BYTES: u64 = 2 << 30;

/// The most threads of a workgroup that are requested: those of the kernels of the forward pass that have few workgroups.
const MAX_THREADS: u32 = 1024;
/// With more, fewer workgroups run beside each other: on an H100 gates and ups of one row take 21 us with [`MAX_THREADS`], 17 with
/// these.
#[cfg(not(target_arch = "wasm32"))]
const USUAL_THREADS: usize = 512;

/// The limits that every device offers, with more threads and larger buffers: one buffer holds a slab of experts, and each slab has
/// its own dispatches. A forward pass's workgroups have as much memory as there is.
fn limits(offered: &wgpu::Limits) -> wgpu::Limits {
    let default = wgpu::Limits::default();
    let most = |offered: u64, default: u64| offered.min(MAX_BUFFER_BYTES).max(default);
    let threads = |offered: u32, default: u32| offered.min(MAX_THREADS).max(default);
    wgpu::Limits {
        max_buffer_size: most(offered.max_buffer_size, default.max_buffer_size),
        max_storage_buffer_binding_size: most(
            offered.max_storage_buffer_binding_size,
            default.max_storage_buffer_binding_size,
        ),
        max_compute_invocations_per_workgroup: threads(
            offered.max_compute_invocations_per_workgroup,
            default.max_compute_invocations_per_workgroup,
        ),
        #[cfg(not(target_arch = "wasm32"))]
        max_compute_workgroup_storage_size: offered
            .max_compute_workgroup_storage_size
            .max(default.max_compute_workgroup_storage_size),
        max_compute_workgroup_size_x: threads(
            offered.max_compute_workgroup_size_x,
            default.max_compute_workgroup_size_x,
        ),
        ..default
    }
}

#[cfg(target_arch = "wasm32")]
async fn find(_select: &GpuSelect) -> Result<wgpu::Adapter, EngineError> {
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
    let options = wgpu::RequestAdapterOptions {
        power_preference: wgpu::PowerPreference::HighPerformance,
        ..Default::default()
    };
    let found = match instance.request_adapter(&options).await {
        // A Chromium that was opened just now answers its first question so, whatever the device has.
        Err(_) => instance.request_adapter(&options).await,
        found => found,
    };
    found.map_err(|e| EngineError::NoAdapter(e.to_string()))
}

#[cfg(not(target_arch = "wasm32"))]
async fn find(select: &GpuSelect) -> Result<wgpu::Adapter, EngineError> {
    Ok(find_all(select, 1).await?.swap_remove(0))
}

/// Up to `most` adapters, at least one.
#[cfg(not(target_arch = "wasm32"))]
async fn find_all(select: &GpuSelect, most: usize) -> Result<Vec<wgpu::Adapter>, EngineError> {
    use wgpu::DeviceType;

    let backends = wgpu::Backends::VULKAN | wgpu::Backends::METAL | wgpu::Backends::DX12;
    let adapters = instance().enumerate_adapters(backends).await;
    let names = adapters.iter().map(|adapter| adapter.get_info().name).collect::<Vec<_>>().join(", ");
    let strength = |adapter: &wgpu::Adapter| match adapter.get_info().device_type {
        DeviceType::DiscreteGpu => 4,
        DeviceType::IntegratedGpu => 3,
        DeviceType::VirtualGpu => 2,
        DeviceType::Other => 1,
        DeviceType::Cpu => 0,
    };
    let is_named = |adapter: &wgpu::Adapter| match select {
        GpuSelect::Auto => strength(adapter) > 0,
        GpuSelect::Software => strength(adapter) == 0,
        GpuSelect::Named(name) => adapter.get_info().name.to_lowercase().contains(&name.to_lowercase()),
    };
    let named: Vec<_> = adapters.into_iter().filter(is_named).collect();
    // `min_by_key`, so that the first of equals wins.
    let best = match select {
        GpuSelect::Auto => named.iter().min_by_key(|adapter| std::cmp::Reverse(strength(adapter))),
        GpuSelect::Software | GpuSelect::Named(_) => named.first(),
    };
    let Some(best) = best.cloned() else {
        return Err(EngineError::NoAdapter(format!(
            "none that fits; adapters here: {}",
            if names.is_empty() { "none" } else { &names }
        )));
    };
    let most = most.clamp(1, MAX_GPUS);
    if strength(&best) == 0 {
        return Ok(vec![best; most]);
    }
    // Several drivers may offer one card, each by the same place on its bus.
    let (backend, mut places) = (best.get_info().backend, Vec::new());
    let mut is_another = |adapter: &wgpu::Adapter| {
        let info = adapter.get_info();
        let place = info.device_pci_bus_id;
        let is_new = place.is_empty() || !places.contains(&place);
        let is_it = info.backend == backend && strength(adapter) == strength(&best) && is_new;
        places.extend(is_it.then_some(place));
        is_it
    };
    let mut alike = vec![best.clone()];
    is_another(&best);
    alike.extend(named.into_iter().filter(|adapter| *adapter != best && is_another(adapter)));
    alike.truncate(most);
    Ok(alike)
}

/// The one instance of this process. It is never dropped: dropping the last one unloads drivers, and some leave behind
/// a pointer to code that is called later. NVIDIA's driver registers a destructor with each thread that used it; when
/// that thread ends, the code is gone and the process dies of SIGSEGV.
#[cfg(not(target_arch = "wasm32"))]
fn instance() -> &'static wgpu::Instance {
    static INSTANCE: OnceLock<wgpu::Instance> = OnceLock::new();
    INSTANCE.get_or_init(|| wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle()))
}

fn info(adapter: &wgpu::AdapterInfo, device: &wgpu::Device) -> GpuInfo {
    let limits = device.limits();
    let features = [
        (device.features().contains(wgpu::Features::SHADER_F16), "shader-f16"),
        (has_subgroups(device), "subgroups"),
    ];
    GpuInfo {
        // Browsers usually withhold the name.
        adapter: if adapter.name.is_empty() { "unnamed".to_owned() } else { adapter.name.clone() },
        backend: adapter.backend.to_string(),
        software: adapter.device_type == wgpu::DeviceType::Cpu,
        discrete: adapter.device_type == wgpu::DeviceType::DiscreteGpu,
        features: features.into_iter().filter(|(has, _)| *has).map(|(_, name)| name.to_owned()).collect(),
        limits: BTreeMap::from([
            ("maxBufferSize".to_owned(), limits.max_buffer_size),
            ("maxStorageBufferBindingSize".to_owned(), limits.max_storage_buffer_binding_size),
        ]),
    }
}

/// wgpu requests subgroups from no browser. The page may have requested them, and the device then reports them.
#[cfg(target_arch = "wasm32")]
fn has_subgroups(device: &wgpu::Device) -> bool {
    device.as_webgpu().is_some_and(|device| device.features().has("subgroups"))
}

#[cfg(not(target_arch = "wasm32"))]
fn has_subgroups(device: &wgpu::Device) -> bool {
    device.features().contains(wgpu::Features::SUBGROUP)
}

#[cfg(not(target_arch = "wasm32"))]
mod poller {
    //! Natively, only polling a device calls its callbacks. One thread polls it: it sleeps until something is
    //! submitted, and then until that is done.

    use std::{
        sync::Arc,
        sync::mpsc,
        thread::{self, JoinHandle},
    };

    use super::{EngineError, Health};

    #[derive(Debug)]
    pub(super) struct Poller {
        /// At most as many at once as the rings have buffers, since each submission waits for one of them.
        submissions: Option<mpsc::Sender<wgpu::SubmissionIndex>>,
        thread: Option<JoinHandle<()>>,
    }

    impl Poller {
        pub(super) fn start(device: wgpu::Device, health: Arc<Health>) -> Result<Self, EngineError> {
            let (sender, submissions) = mpsc::channel();
            // When the thread ends, even by a panic inside wgpu, the device ends for all waiters.
            let farewell = Farewell(health);
            let work = move || {
                let farewell = farewell;
                for submission in submissions {
                    let wait = wgpu::PollType::Wait { submission_index: Some(submission), timeout: None };
                    if let Err(e) = device.poll(wait) {
                        farewell.0.fail(EngineError::DeviceLost(e.to_string()));
                    }
                }
            };
            let thread = thread::Builder::new().name("moex-gpu".into()).spawn(work);
            let thread = thread.map_err(|e| EngineError::NoAdapter(format!("no thread for it: {e}")))?;
            Ok(Self { submissions: Some(sender), thread: Some(thread) })
        }

        pub(super) fn watch(&self, submission: wgpu::SubmissionIndex) {
            if let Some(submissions) = &self.submissions {
                // Without a thread the device has failed, and all waiters know it.
                let _ = submissions.send(submission);
            }
        }
    }

    impl Drop for Poller {
        /// Waits for the thread: a driver must not be unloaded while the thread is still at work.
        fn drop(&mut self) {
            self.submissions = None;
            match self.thread.take() {
                // A callback can drop the last handle of the device, on this very thread.
                Some(thread) if thread.thread().id() != thread::current().id() => {
                    let _ = thread.join();
                }
                _ => {}
            }
        }
    }

    struct Farewell(Arc<Health>);

    impl Drop for Farewell {
        fn drop(&mut self) {
            self.0.fail(EngineError::DeviceLost("its thread has ended".to_owned()));
        }
    }
}
