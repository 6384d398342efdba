//! Assembles a hub: the checkpoint, its packed experts, the swarm, the engine and the API.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use moex_kernels::{ExpertFormat, engine::ActivationFormat, graph::DevicePass};
use moex_protocol::{CompressionMode, Dtype, LayerId, ModelSummary, ProductFormat, ProductShape};
use moex_worker::native::BusyPoll;

use super::{CorsOrigins, PublicUrl};
use crate::access::revocations::Revocations;
use crate::api::{Api, ApiKey, ApiParts};
use crate::net;
use crate::pass_device::{self, DeviceWish};
use crate::shards::{ModelExperts, ShardError, ShardStore};
use moex_engine::{Engine, EngineConfig};
use moex_model::text::{Text, TextError};
use moex_model::{
    Checkpoint, Compute, Keep, MemoryNeeds, MemoryPlan, Model, ModelError, Packing, free_bytes,
};
use moex_swarm::{Hedge, JoinToken, SwarmConfig, Verify, max_pairs_a_message};
use tracing::warn;

/// T unless it is said, on a CPU: a stream waits for one chunk of another's prompt. GPUs take more, since they read their weights
/// once for all of them.
const MAX_ROWS_CPU: usize = 128;

/// Maximum sequences at once, where a GPU computes the whole model: 32 users get 1.2 times the tokens a second that they get in two
/// lots of 16 (`ARCHITECTURE.md`). On a CPU they get a little less, and each waits for all others.
const MAX_SEQUENCES_GPU: usize = 32;

/// Configuration of a hub; the default serves the demo model and lacks a token.
#[derive(Clone, Debug)]
pub struct HubConfig {
    /// Folder or file of the checkpoint; none for the demo model.
    pub model: Option<PathBuf>,
    /// Format that experts are packed to; none keeps a quantised checkpoint's own, or packs to int4.
    pub experts: Option<ExpertFormat>,
    /// Formats of the computation, on the hub and on workers.
    pub compute: Compute,
    /// Where the forward pass runs. On a GPU the hub computes all experts there, and asks no worker.
    pub device: DeviceWish,
    /// Format of rows on the wire.
    pub wire: Dtype,
    /// When messages are compressed.
    pub compression: CompressionMode,
    /// Number of workers that hold each expert, r.
    pub replicas: usize,
    /// How many workers are asked for each expert, and when.
    pub hedge: Hedge,
    /// Which answers are checked before they are used.
    pub verify: Verify,
    /// One answer in this many is checked against the hub's own; 1 checks each before it is used, 0 none.
    pub check_every: u32,
    /// Seed for the choice of answers to check: a secret.
    pub seed: u64,
    /// How long a worker may take to answer.
    pub timeout: Duration,
    /// Whether to poll for messages before sleeping.
    pub busy_poll: BusyPoll,
    /// Whether the hub computes experts that no worker holds.
    pub hub_compute: bool,
    /// Who computes what the hub and workers both can.
    pub prefer: net::Prefer,
    /// How long a layer waits for a worker with its experts if the hub does not compute.
    pub coverage_wait: Duration,
    /// Number of workers that share this machine's memory.
    pub local_workers: usize,
    /// Context: prompt and answer together; none for the model's own, as far as memory allows.
    pub context_tokens: Option<usize>,
    /// T, the maximum rows of a step; none for 128, on a GPU 512.
    pub max_rows: Option<usize>,
    /// Groups of rows in flight; none chooses by measured speed.
    pub in_flight: Option<usize>,
    /// Whether to use speculative decoding where it is faster.
    pub guesses: bool,
    /// Folder for packed experts; none for the user's cache folder.
    pub shards: Option<PathBuf>,
    /// The token that workers must send to join, or an invitation derived from it.
    pub token: String,
    /// The invitations that admit nobody any more.
    pub revocations: Revocations,
    /// The API key that clients must send, if any.
    pub api_key: Option<String>,
    /// Other sites whose pages may use the API.
    pub cors_origins: CorsOrigins,
    /// Time limit of an answer, if any.
    pub request_timeout: Option<Duration>,
    /// The `moex` binary, which checks grammars before they are compiled here; without it, none is checked.
    pub grammar_checker: Option<PathBuf>,
    /// URL by which others reach the hub through a proxy, if there is one.
    pub public_url: Option<PublicUrl>,
    /// File for the trace, if any.
    pub trace: Option<PathBuf>,
}

impl Default for HubConfig {
    fn default() -> Self {
        Self {
            model: None,
            experts: None,
            compute: Compute::Exact,
            device: DeviceWish::CPU,
            wire: Dtype::F16,
            compression: CompressionMode::Off,
            replicas: 2,
            hedge: Hedge::default(),
            verify: Verify::default(),
            check_every: 256,
            seed: 0,
            timeout: Duration::from_millis(500),
            busy_poll: BusyPoll::default(),
            hub_compute: true,
            prefer: net::Prefer::default(),
            coverage_wait: Duration::from_secs(60),
            local_workers: 0,
            context_tokens: None,
            max_rows: None,
            in_flight: None,
            guesses: true,
            shards: None,
            token: String::new(),
            revocations: Revocations::default(),
            api_key: None,
            cors_origins: CorsOrigins::default(),
            request_timeout: None,
            grammar_checker: None,
            public_url: None,
            trace: None,
        }
    }
}

/// How a hub may be reached; known before it is ready.
#[derive(Clone, Debug, Default)]
pub struct Reach {
    /// A name in addition to its addresses.
    pub public_url: Option<PublicUrl>,
    /// Whether clients must send an API key.
    pub has_api_key: bool,
    /// Other sites whose pages may use the API.
    pub cors: CorsOrigins,
}

impl HubConfig {
    /// How the hub with this config may be reached.
    pub fn reach(&self) -> Reach {
        Reach {
            public_url: self.public_url.clone(),
            has_api_key: self.api_key.is_some(),
            cors: self.cors_origins.clone(),
        }
    }

    /// Whether answers can be verified as asked.
    fn check_verify(&self) -> Result<(), OpenError> {
        let mode = self.verify;
        let refused = |needs| Err(OpenError::Verify { mode, needs });
        match (mode, self.wire) {
            (Verify::Audit, _) => Ok(()),
            _ if !self.hub_compute => {
                refused("has the hub compute what a worker answered wrong: leave out --no-hub-compute")
            }
            (_, Dtype::F16 | Dtype::Bf16) => Ok(()),
            (_, Dtype::Int8 | Dtype::Int4) => {
                refused("needs --wire f16 or bf16: the others round so much that a lie can hide in it")
            }
        }
    }

    /// T: as many rows as asked for, if an expert's answer for all of them fits into a message.
    fn max_rows(&self, checkpoint: &Checkpoint, model: &Model) -> usize {
        let spec = &checkpoint.spec;
        let format = ProductFormat::F32; // the larger
        let shape = u16::try_from(spec.moe.inner).map(|inner| ProductShape { inner, format });
        let products = shape.ok().filter(|_| self.verify != Verify::Audit);
        let usual = || model.device().map_or(MAX_ROWS_CPU, DevicePass::rows_at_once);
        let wished = self.max_rows.unwrap_or_else(usual);
        wished.min(max_pairs_a_message(self.wire, spec.hidden, products).max(1))
    }

    /// Divides the memory that is free before the model is loaded.
    fn memory(
        &self,
        checkpoint: &Checkpoint,
        model: &Model,
        packing: Packing,
        free: Option<usize>,
    ) -> Result<MemoryPlan, String> {
        let n_sequences = EngineConfig::default().max_sequences.min(self.max_rows.unwrap_or(usize::MAX));
        let mut needs = MemoryNeeds::of(checkpoint, model, &self.compute, packing, n_sequences)?;
        needs.worker_bytes = needs.expert_bytes.saturating_mul(self.local_workers.min(self.replicas));
        if !self.hub_compute {
            needs.expert_bytes = 0;
        }
        if self.verify != Verify::Audit {
            let n_blocks = model.spec().sparse_layers().map(|layer| model.experts(layer).len()).sum();
            needs.check_bytes =
                net::projection_bytes(n_blocks, checkpoint.spec.hidden, checkpoint.spec.moe.inner);
        }
        Ok(MemoryPlan::new(&needs, &checkpoint.spec, &self.compute, free, self.context_tokens))
    }
}

/// Why a hub could not be opened. Each is one sentence.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The checkpoint cannot be used.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Its tokenizer or template cannot be used.
    #[error(transparent)]
    Text(#[from] TextError),
    /// Its experts cannot be packed.
    #[error(transparent)]
    Shards(#[from] ShardError),
    /// Its `generation_config.json` cannot be used.
    #[error("{0}")]
    Generation(String),
    /// The requested context exceeds the model's.
    #[error("--context {asked} is more than the model's context of {most} tokens")]
    Context {
        /// The requested context.
        asked: usize,
        /// `max_position_embeddings`.
        most: usize,
    },
    /// What was asked to be verified cannot be.
    #[error("--verify {mode} {needs}; or let answers be used unchecked with --verify audit")]
    Verify {
        /// `blocking` or `exact`.
        mode: Verify,
        /// What it needs.
        needs: &'static str,
    },
    /// A hub without a token would accept any worker.
    #[error("the join token is empty")]
    NoToken,
    /// The trace file cannot be created.
    #[error("the trace {} cannot be written: {error}", path.display())]
    Trace {
        /// The file.
        path: PathBuf,
        /// The error.
        error: std::io::Error,
    },
    /// The chosen device cannot run the forward pass.
    #[error("{0}")]
    Device(String),
    /// The system cannot start a thread.
    #[error("the hub cannot start: {0}")]
    Io(#[from] std::io::Error),
}

/// A hub that is ready to serve.
pub struct Hub {
    pub(super) api: Api,
    pub(super) swarm: net::SwarmServer,
    description: String,
    asks_workers: bool,
    reach: Reach,
}

impl Hub {
    /// Opens the checkpoint, packs its experts if needed, and starts engine and swarm. `progress(done, total)` counts
    /// the packed experts.
    ///
    /// # Errors
    /// If the checkpoint or the config is invalid.
    pub async fn open(
        config: HubConfig,
        progress: impl Fn(usize, usize) + Send + Sync + 'static,
    ) -> Result<Self, OpenError> {
        if config.token.is_empty() {
            return Err(OpenError::NoToken);
        }
        config.check_verify()?;
        let loading = tokio::task::spawn_blocking(move || Loaded::load(config, &progress));
        let loaded = loading.await.map_err(std::io::Error::other)??;
        loaded.start()
    }

    pub(super) fn reach(&self) -> &Reach {
        &self.reach
    }

    /// The model and the formats it is computed with: two lines for the user.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// Whether workers compute experts of the model: if it has any, and no GPU of the hub computes them.
    pub fn asks_workers(&self) -> bool {
        self.asks_workers
    }
}

/// The parts that take time to load.
struct Loaded {
    config: HubConfig,
    checkpoint: Checkpoint,
    model: Arc<Model>,
    text: Arc<Text>,
    store: Arc<ShardStore>,
    memory: MemoryPlan,
    /// T, the maximum rows of a step.
    max_rows: usize,
    /// The model's maximum context.
    most_positions: usize,
    /// The first layer whose experts are on no GPU of the hub, and the sentence that says where the forward pass runs; if that was
    /// chosen.
    device: Option<(usize, String)>,
}

impl Loaded {
    fn load(config: HubConfig, progress: &(dyn Fn(usize, usize) + Sync)) -> Result<Self, OpenError> {
        let mut checkpoint = match &config.model {
            Some(folder) => Checkpoint::open(folder)?,
            None => Checkpoint::demo()?,
        };
        let free = free_bytes();
        let most = checkpoint.spec.max_positions;
        if let Some(asked) = config.context_tokens {
            if asked > most {
                return Err(OpenError::Context { asked, most });
            }
            checkpoint.spec.max_positions = asked;
        }
        let model = Arc::new(Model::load_for(&checkpoint, &config.compute)?);
        let text = Arc::new(Text::load(&checkpoint)?);
        let source = ModelExperts::new(checkpoint.name.clone(), model.clone());
        let packing = Packing::or_default(config.experts, &model);
        let memory = config.memory(&checkpoint, &model, packing, free).map_err(ShardError::Format)?;
        let folder = match &config.shards {
            Some(folder) => folder.clone(),
            None => ShardStore::default_folder(&source, packing),
        };
        let open = || ShardStore::open(&folder, &source, packing, progress);
        let mut store = open()?;
        let mut device = None;
        let is_placed = config.hub_compute || config.device != DeviceWish::CPU;
        // Nobody computes them here.
        let keep = if config.hub_compute { memory.keep } else { Keep::From(usize::MAX) };
        if let (Compute::Fast(fast), true) = (&config.compute, is_placed) {
            let place = |store: &ShardStore| {
                let panels = |keep| store.panels(fast.processor.clone(), keep);
                pass_device::place(&model, config.device, keep, panels)
            };
            let mut placed = place(&store);
            // A file can rot and keep its length and time of change: reading it shows that.
            if placed.is_err() && store.is_damaged() {
                warn!(folder = %folder.display(), "a packed file is damaged: packing the experts again");
                store = open()?;
                placed = place(&store);
            }
            let placed = placed.map_err(|error| OpenError::Device(format!("{error:#}")))?;
            store = store.asking_from(placed.first_away);
            if config.hub_compute {
                store = store.with_panels(placed.panels);
            }
            device = Some((placed.first_away, placed.why));
        }
        let max_rows = config.max_rows(&checkpoint, &model);
        let store = Arc::new(store);
        Ok(Self { config, checkpoint, model, text, store, memory, max_rows, most_positions: most, device })
    }

    fn start(self) -> Result<Hub, OpenError> {
        let Self { config, checkpoint, model, text, store, memory, max_rows, most_positions, device } = self;
        let reach = config.reach();
        let summary = summary(&checkpoint, &store, config.compute.activations(), max_rows);
        let swarm = SwarmConfig {
            replicas: config.replicas,
            hedge: config.hedge,
            verify: config.verify,
            check_every: config.check_every,
            seed: config.seed,
            timeout: config.timeout,
            wire: config.wire,
            compression: config.compression,
            hub_compute: config.hub_compute,
            coverage_wait: config.coverage_wait,
            ..SwarmConfig::new(JoinToken::new(config.token), summary.clone())
        };
        let experts = Packing::or_default(config.experts, &model).describe();
        let arithmetic = model.compute().describe(&experts, model.spec());
        let tracer = config.trace.map(create_trace).transpose()?;
        let own = store.experts(config.wire).filter(|_| config.hub_compute);
        let swarm = net::SwarmServer::start_with(swarm, store, tracer, config.busy_poll, config.revocations)?;
        let usual = EngineConfig::default();
        let is_on_gpu = device.as_ref().is_some_and(|(away, _)| *away == checkpoint.spec.layers.len());
        let engine = EngineConfig {
            max_rows,
            max_sequences: if is_on_gpu { MAX_SEQUENCES_GPU } else { usual.max_sequences },
            kv_bytes: memory.kv_bytes,
            in_flight: config.in_flight,
            guesses: config.guesses,
            ..usual
        };
        let engine = Engine::start(
            model,
            text.clone(),
            Box::new(net::HubExperts::new(swarm.handle(), own, config.prefer)),
            engine,
        )?;
        let context = engine.limits().context;
        let parts = ApiParts {
            checkpoint: &checkpoint,
            engine,
            text,
            swarm: swarm.handle(),
            key: config.api_key.as_deref().map(ApiKey::new),
            request_timeout: config.request_timeout,
            grammar_checker: config.grammar_checker,
        };
        let ModelSummary { name, n_layers, n_experts, format, layer_formats, .. } = summary;
        let others: BTreeSet<String> = layer_formats.into_iter().filter(|other| *other != format).collect();
        let format = others.into_iter().fold(format, |all, other| format!("{all}, {other}"));
        let less = match config.context_tokens {
            None if context < most_positions => {
                format!(" of the model's {most_positions}, as memory allows: set another with `--context`")
            }
            _ => String::new(),
        };
        let experts = match n_experts {
            0 => "no experts, so the hub computes alone".to_owned(),
            n => format!("{n} experts in {format}"),
        };
        let (first_away, device) =
            device.map_or_else(Default::default, |(first_away, why)| (first_away, format!("\n{why}")));
        let asks_workers = n_experts > 0 && first_away < checkpoint.spec.layers.len();
        let description =
            format!("{name}: {n_layers} layers, {experts}, context {context}{less}\n{arithmetic}{device}");
        Ok(Hub {
            api: Api::new(parts).map_err(OpenError::Generation)?,
            swarm,
            description,
            asks_workers,
            reach,
        })
    }
}

fn create_trace(path: PathBuf) -> Result<net::Tracer, OpenError> {
    net::Tracer::create(&path).map_err(|error| OpenError::Trace { path, error })
}

/// Description of the model for workers, if steps have at most `max_rows` rows. A worker that holds a whole layer gets
/// every (row, expert) pair of a step, and a plain dispatch carries one row per pair.
pub(crate) fn summary(
    checkpoint: &Checkpoint,
    store: &ShardStore,
    activations: ActivationFormat,
    max_rows: usize,
) -> ModelSummary {
    let spec = &checkpoint.spec;
    let max_pairs = max_rows.saturating_mul(spec.moe.n_chosen);
    let formats: Vec<Option<String>> = (0..spec.layers.len())
        .map(|layer| Some(store.shape(LayerId(u16::try_from(layer).ok()?))?.format.to_string()))
        .collect();
    let format = formats.iter().flatten().next().cloned().unwrap_or_default();
    let layer_formats: Vec<String> =
        formats.into_iter().map(|of_layer| of_layer.unwrap_or_else(|| format.clone())).collect();
    let is_one = layer_formats.iter().all(|of_layer| *of_layer == format);
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    ModelSummary {
        name: checkpoint.name.clone(),
        hidden: number(spec.hidden),
        inner: number(spec.moe.inner),
        n_layers: number(spec.layers.len()),
        n_experts: number(spec.moe.n_experts),
        n_experts_per_token: number(spec.moe.n_chosen),
        format,
        layer_formats: if is_one { Vec::new() } else { layer_formats },
        activations: activations.name().to_owned(),
        block_bytes: store.block_bytes() as u64,
        max_rows: number(max_pairs),
        max_pairs: number(max_pairs),
    }
}
