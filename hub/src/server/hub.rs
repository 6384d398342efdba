//! A hub put together: the checkpoint, its packed experts, the swarm, the engine and the API over them.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use moex_kernels::{ExpertFormat, engine::ActivationFormat};
use moex_protocol::header::HEADER_BYTES;
use moex_protocol::limits::MAX_MESSAGE_BYTES;
use moex_protocol::{CompressionMode, Dtype, LayerId, ModelSummary, Products};
use moex_worker::native::BusyPoll;

use super::{CorsOrigins, PublicUrl};
use crate::api::{Api, ApiKey, ApiParts};
use crate::net;
use crate::shards::{ModelExperts, ShardError, ShardStore};
use moex_engine::{Engine, EngineConfig};
use moex_model::text::{Text, TextError};
use moex_model::{Checkpoint, Compute, MemoryNeeds, MemoryPlan, Model, ModelError, Packing, free_bytes};
use moex_swarm::{Hedge, JoinToken, SwarmConfig, Verify};

/// What a hub is made of; the default is the demo model's, with a token that has to be set.
#[derive(Clone, Debug)]
pub struct HubConfig {
    /// A checkpoint's folder; none is the demo model.
    pub model: Option<PathBuf>,
    /// What experts are packed to; none is as they are if the checkpoint is quantised, and int4 if not.
    pub experts: Option<ExpertFormat>,
    /// What it is computed with, and so what workers compute with.
    pub compute: Compute,
    /// How rows travel.
    pub wire: Dtype,
    /// When what travels is compressed.
    pub compression: CompressionMode,
    /// Workers that hold each expert, r.
    pub replicas: usize,
    /// How many workers are asked for each expert, and when.
    pub hedge: Hedge,
    /// What is known of a worker's answer before it is used.
    pub verify: Verify,
    /// One answer in so many is checked against the hub's own; 1 is each before it is used, 0 none.
    pub check_every: u32,
    /// What the choice of the answers to check is drawn from: a secret.
    pub seed: u64,
    /// How long a worker may take to answer.
    pub timeout: Duration,
    /// Whether to look for messages before sleeping.
    pub busy_poll: BusyPoll,
    /// Whether the hub computes what no worker holds.
    pub hub_compute: bool,
    /// How long a layer waits for a holder when the hub does not compute.
    pub coverage_wait: Duration,
    /// Workers that share this machine's memory.
    pub local_workers: usize,
    /// Positions of prompt and answer together; none is as many as the model was made for and memory allows.
    pub context_tokens: Option<usize>,
    /// T, the most rows of a step.
    pub max_rows: usize,
    /// Groups of rows under way at once; none is as many as are measured to pay.
    pub in_flight: Option<usize>,
    /// Whether tokens are guessed where that pays.
    pub guesses: bool,
    /// Where packed experts are kept; none is the user's cache folder.
    pub shards: Option<PathBuf>,
    /// What workers must show to join.
    pub token: String,
    /// What clients must show, if anything.
    pub api_key: Option<String>,
    /// Whose pages may use the API, beside the hub's own.
    pub cors_origins: CorsOrigins,
    /// How long an answer may take, if not as long as it likes.
    pub request_timeout: Option<Duration>,
    /// By which others reach the hub, if a proxy stands before it.
    pub public_url: Option<PublicUrl>,
    /// Where what becomes of each layer is written, if anywhere.
    pub trace: Option<PathBuf>,
}

impl Default for HubConfig {
    fn default() -> Self {
        Self {
            model: None,
            experts: None,
            compute: Compute::Exact,
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
            coverage_wait: Duration::from_secs(60),
            local_workers: 0,
            context_tokens: None,
            max_rows: 128,
            in_flight: None,
            guesses: true,
            shards: None,
            token: String::new(),
            api_key: None,
            cors_origins: CorsOrigins::default(),
            request_timeout: None,
            public_url: None,
            trace: None,
        }
    }
}

/// How a hub may be reached, which is known before it is ready.
#[derive(Clone, Debug, Default)]
pub struct Reach {
    /// A name of its own beside those of its addresses.
    pub public_url: Option<PublicUrl>,
    /// Whether clients must show a key.
    pub has_api_key: bool,
    /// Whose pages may use the API, beside the hub's own.
    pub cors: CorsOrigins,
}

impl HubConfig {
    /// How the hub of this config may be reached.
    pub fn reach(&self) -> Reach {
        Reach {
            public_url: self.public_url.clone(),
            has_api_key: self.api_key.is_some(),
            cors: self.cors_origins.clone(),
        }
    }

    /// Whether answers can be verified as asked.
    fn check_verify(&self) -> Result<(), OpenError> {
        match (self.verify, self.wire) {
            (Verify::Audit, _) => Ok(()),
            _ if !self.hub_compute => Err(OpenError::Verify(
                "has the hub compute what a worker answered wrong: leave out --no-hub-compute",
            )),
            (Verify::Blocking, Dtype::F16 | Dtype::Bf16) => Ok(()),
            (Verify::Blocking, Dtype::Int8 | Dtype::Int4) => Err(OpenError::Verify(
                "needs --wire f16 or bf16: others round more away than a lie may hide in",
            )),
        }
    }

    /// T: as many rows as asked for, if one worker's answer for all of them fits into a message.
    fn max_rows(&self, checkpoint: &Checkpoint) -> usize {
        let spec = &checkpoint.spec;
        let products = match self.verify {
            Verify::Audit => 0,
            Verify::Blocking => Products::row_bytes(spec.moe.inner),
        };
        let row_bytes = self.wire.row_bytes(spec.hidden) + HEADER_BYTES + products;
        let fits = MAX_MESSAGE_BYTES / (row_bytes * spec.moe.n_chosen.max(1));
        self.max_rows.min(fits.max(1))
    }

    /// What becomes of the memory that is free before the model is loaded.
    fn memory(
        &self,
        checkpoint: &Checkpoint,
        model: &Model,
        packing: Packing,
        free: Option<usize>,
    ) -> Result<MemoryPlan, String> {
        let n_sequences = EngineConfig::default().max_sequences.min(self.max_rows);
        let mut needs = MemoryNeeds::of(checkpoint, model, &self.compute, packing, n_sequences)?;
        needs.worker_bytes = needs.expert_bytes.saturating_mul(self.local_workers.min(self.replicas));
        if !self.hub_compute {
            needs.expert_bytes = 0;
        }
        if self.verify == Verify::Blocking {
            let n_blocks = model.spec().sparse_layers().map(|layer| model.experts(layer).len()).sum();
            needs.check_bytes =
                net::projection_bytes(n_blocks, checkpoint.spec.hidden, checkpoint.spec.moe.inner);
        }
        Ok(MemoryPlan::new(&needs, &checkpoint.spec, &self.compute, free, self.context_tokens))
    }
}

/// Why a hub could not be put together. Each is one sentence.
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
    /// A longer context than the model has positions for.
    #[error("--context {asked} is more than the {most} tokens that the model was made for")]
    Context {
        /// What was asked for.
        asked: usize,
        /// `max_position_embeddings`.
        most: usize,
    },
    /// What cannot be verified.
    #[error("--verify blocking {0}; or let answers be used unchecked with --verify audit")]
    Verify(&'static str),
    /// No worker can look up a token that no one may know.
    #[error("the join token is empty")]
    NoToken,
    /// The trace's file cannot be made.
    #[error("the trace {} cannot be written: {error}", path.display())]
    Trace {
        /// The file.
        path: PathBuf,
        /// Why not.
        error: std::io::Error,
    },
    /// The system gave no thread.
    #[error("the hub cannot start: {0}")]
    Io(#[from] std::io::Error),
}

/// A hub that is ready to be served.
pub struct Hub {
    pub(super) api: Api,
    pub(super) swarm: net::SwarmServer,
    description: String,
    reach: Reach,
}

impl Hub {
    /// Opens the checkpoint, packs its experts if that was not done before, and starts engine and swarm.
    /// `progress(done, total)` counts the experts packed.
    ///
    /// # Errors
    /// What is wrong with the checkpoint or the config.
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

    /// What is served, and with what it is computed: two lines for people.
    pub fn description(&self) -> &str {
        &self.description
    }
}

/// What takes time to load.
struct Loaded {
    config: HubConfig,
    checkpoint: Checkpoint,
    model: Arc<Model>,
    text: Arc<Text>,
    store: Arc<ShardStore>,
    memory: MemoryPlan,
    /// Positions that the model was made for.
    most_positions: usize,
}

impl Loaded {
    fn load(mut config: HubConfig, progress: &(dyn Fn(usize, usize) + Sync)) -> Result<Self, OpenError> {
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
        config.max_rows = config.max_rows(&checkpoint);
        let memory = config.memory(&checkpoint, &model, packing, free).map_err(ShardError::Format)?;
        let folder = match &config.shards {
            Some(folder) => folder.clone(),
            None => ShardStore::default_folder(&source, packing),
        };
        let mut store = ShardStore::open(&folder, &source, packing, progress)?;
        if let (Compute::Fast(fast), true) = (&config.compute, config.hub_compute) {
            store = store.computing_int8(fast.processor.clone(), memory.keep).map_err(OpenError::Io)?;
        }
        let store = Arc::new(store);
        Ok(Self { config, checkpoint, model, text, store, memory, most_positions: most })
    }

    fn start(self) -> Result<Hub, OpenError> {
        let Self { config, checkpoint, model, text, store, memory, most_positions } = self;
        let reach = config.reach();
        let summary = summary(&checkpoint, &store, config.compute.activations(), config.max_rows);
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
        let arithmetic = model.compute().describe(&Packing::or_default(config.experts, &model).describe());
        let tracer = config.trace.map(create_trace).transpose()?;
        let own = store.experts(config.wire).filter(|_| config.hub_compute);
        let swarm = net::SwarmServer::start_with(swarm, store, tracer, config.busy_poll)?;
        let engine = EngineConfig {
            max_rows: config.max_rows,
            kv_bytes: memory.kv_bytes,
            in_flight: config.in_flight,
            guesses: config.guesses,
            ..EngineConfig::default()
        };
        let engine =
            Engine::start(model, text.clone(), Box::new(net::HubExperts::new(swarm.handle(), own)), engine)?;
        let context = engine.limits().context;
        let parts = ApiParts {
            checkpoint: &checkpoint,
            engine,
            text,
            swarm: swarm.handle(),
            key: config.api_key.as_deref().map(ApiKey::new),
            request_timeout: config.request_timeout,
        };
        let ModelSummary { name, n_layers, n_experts, format, layer_formats, .. } = summary;
        let others: BTreeSet<String> = layer_formats.into_iter().filter(|other| *other != format).collect();
        let format = others.into_iter().fold(format, |all, other| format!("{all}, {other}"));
        let less = match config.context_tokens {
            None if context < most_positions => {
                format!(" of the model's {most_positions}, as memory allows: `--context` asks for another")
            }
            _ => String::new(),
        };
        let experts = match n_experts {
            0 => "no experts, so that the hub computes alone".to_owned(),
            n => format!("{n} experts in {format}"),
        };
        let description =
            format!("{name}: {n_layers} layers, {experts}, context {context}{less}\n{arithmetic}");
        Ok(Hub { api: Api::new(parts).map_err(OpenError::Generation)?, swarm, description, reach })
    }
}

fn create_trace(path: PathBuf) -> Result<net::Tracer, OpenError> {
    net::Tracer::create(&path).map_err(|error| OpenError::Trace { path, error })
}

/// What workers are told of the model whose steps have at most `max_rows` rows. A worker that holds all of a layer gets
/// every pair of a step, and a plain dispatch carries a row for each.
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
