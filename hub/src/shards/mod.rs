//! Experts packed for workers: one file per layer, with the range and hash of each block.
//!
//! ```text
//! FOLDER/manifest.json            the origin of the weights, and every block's file, range and BLAKE3
//! FOLDER/layer-00.safetensors     a U8 tensor `layers.0.experts.E` for each expert, its data aligned to 16 bytes
//! FOLDER/...
//! ```
//!
//! This module packs experts (`pack`), checks stored ones (`load`), and gives access to blocks ([`ShardStore`]). `net`
//! serves them over HTTP; the swarm assigns blocks to workers.

mod compute;
#[doc(hidden)]
pub mod fuzzing;
mod load;
mod manifest;
mod pack;
mod source;

#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use bytes::Bytes;
use moex_kernels::{ExpertShape, simd::Processor};
use moex_protocol::{Block, BlockSource, Dtype, LayerId};

pub use self::source::{ExpertSource, ModelExperts};

use moex_model::Keep;
use moex_model::Packing;
use moex_model::local_experts::Blocks;
use moex_model::local_experts::{ExpertPanels, LocalExperts};
use moex_model::mapped::{CutShort, Mapped};
use moex_swarm::BlockCatalog;

/// The path under which a hub serves its shards.
pub const URL_PREFIX: &str = "/shards/";

/// Why a store cannot be opened. Each is one sentence that names the file.
#[derive(Debug, thiserror::Error)]
pub enum ShardError {
    /// A file or folder cannot be used.
    #[error("the packed experts in {} cannot be used: {source} (name another folder with --shards)", path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The source could not provide an expert.
    #[error("{block} cannot be packed: {reason}")]
    Source {
        /// The block.
        block: Block,
        /// The reason.
        reason: String,
    },
    /// A file of the model is not what it was.
    #[error(transparent)]
    CutShort(#[from] CutShort),
    /// The experts of a layer have different shapes.
    #[error("the experts cannot be packed: {0}")]
    Format(String),
    /// The store is invalid right after it was written.
    #[error("the packed experts in {} are damaged right after they were written: {reason}", path.display())]
    Unreadable {
        /// The folder.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
}

/// A folder of packed experts, mapped and checked. Clones share its memory.
#[derive(Clone, Debug)]
pub struct ShardStore {
    /// By layer, MoE layers only.
    shapes: BTreeMap<u16, ExpertShape>,
    /// Computes answers with int8 activations; without it, f32.
    panels: Option<Arc<ExpertPanels>>,
    files: Vec<ShardFile>,
    /// Ascending by block.
    blocks: Vec<StoredBlock>,
    /// Whether each block's hash has been verified since the store was opened.
    right: Arc<[AtomicBool]>,
    folder: PathBuf,
    /// Workers are asked for experts of this layer and of those after it.
    first_asked: usize,
}

/// Why a block cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    /// The model has no such block.
    #[error("{0} is not in the packed experts")]
    Missing(Block),
    /// Its bytes have changed since it was packed.
    #[error("{block} does not match its hash: {} is damaged; restart the hub to pack it again", path.display())]
    Damaged {
        /// The block.
        block: Block,
        /// The file that contains it.
        path: PathBuf,
    },
}

/// One file of the store.
#[derive(Clone, Debug)]
pub struct ShardFile {
    /// Its name in the folder and in URLs.
    pub name: String,
    /// A hash of its blocks' hashes, in hex: the same content has the same version.
    pub version: String,
    /// The file, mapped: slices are pages of the file.
    pub bytes: Bytes,
    mapped: Mapped,
}

#[derive(Clone, Debug)]
struct StoredBlock {
    block: Block,
    /// Index into `files`.
    file: usize,
    start: usize,
    end: usize,
    blake3: String,
}

impl ShardStore {
    /// Opens the store of `source` in `folder`, and packs it first if it is missing, damaged or of other weights.
    /// `progress(done, total)` counts the packed blocks.
    ///
    /// If two hubs open the same folder at once, the second waits and uses what the first packed. A store in use is
    /// never overwritten: new files replace the old ones' names, and existing maps keep the old files.
    ///
    /// # Errors
    /// If the folder is not writable, or the source cannot provide an expert.
    pub fn open(
        folder: &Path,
        source: &dyn ExpertSource,
        packing: Packing,
        progress: &(dyn Fn(usize, usize) + Sync),
    ) -> Result<Self, ShardError> {
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| ShardError::Io { path, source }
        };
        fs::create_dir_all(folder).map_err(io(folder))?;
        let lock_path = folder.join(".lock");
        let lock = File::create(&lock_path).map_err(io(&lock_path))?;
        // Released when `lock` is dropped, or with the process.
        lock.lock().map_err(io(&lock_path))?;
        let wanted = manifest::Identity::of(source, packing)?;
        match load::load(folder, &wanted) {
            Ok(store) => return Ok(store),
            Err(reason) => tracing::info!(folder = %folder.display(), %reason, "packing the experts"),
        }
        pack::pack(folder, source, &wanted, progress)?;
        load::load(folder, &wanted)
            .map_err(|reason| ShardError::Unreadable { path: folder.to_owned(), reason })
    }

    /// Default folder of the store of `source`: in the user's cache, named by content and packing.
    pub fn default_folder(source: &dyn ExpertSource, packing: Packing) -> PathBuf {
        let home_cache = || std::env::home_dir().map(|home| home.join(".cache"));
        let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        let cache = cache.or_else(home_cache).unwrap_or_else(std::env::temp_dir);
        cache.join("moex").join("shards").join(format!("{}-{packing}", source.fingerprint()))
    }

    /// Whether a block was found damaged since its folder was last checked: then [`Self::open`] packs the experts again.
    pub(crate) fn is_damaged(&self) -> bool {
        !load::has_stamps(&self.folder)
    }

    /// Makes [`Self::answer`] compute with int8 activations, as workers then do.
    ///
    /// # Errors
    /// If memory is exhausted.
    pub fn computing_int8(mut self, processor: Arc<Processor>, keep: Keep) -> io::Result<Self> {
        self.panels = Some(Arc::new(self.panels(processor, keep)?));
        Ok(self)
    }

    /// Its blocks in panels.
    ///
    /// # Errors
    /// If memory is exhausted.
    pub(crate) fn panels(&self, processor: Arc<Processor>, keep: Keep) -> io::Result<ExpertPanels> {
        ExpertPanels::new(Arc::new(self.clone()), processor, keep)
    }

    /// [`Self::computing_int8`] with these panels of its blocks.
    pub(crate) fn with_panels(mut self, panels: Arc<ExpertPanels>) -> Self {
        self.panels = Some(panels);
        self
    }

    /// Experts for local computation, rounding to `wire`; none unless [`Self::computing_int8`] was called.
    pub fn experts(&self, wire: Dtype) -> Option<LocalExperts> {
        self.panels.clone().map(|panels| LocalExperts::from_panels(panels, wire))
    }

    /// What [`Self::answer`] computes with; none where that is f32.
    pub(crate) fn processor(&self) -> Option<&Arc<Processor>> {
        self.panels.as_ref().map(|panels| panels.processor())
    }

    /// D and F of its experts; none if there are no experts.
    pub(crate) fn widths(&self) -> Option<(usize, usize)> {
        self.shapes.values().next().map(|shape| (shape.hidden, shape.inner))
    }

    /// Bytes of all blocks.
    pub fn n_bytes(&self) -> usize {
        self.blocks.iter().map(|stored| stored.end - stored.start).sum()
    }

    /// The shape of a layer's blocks; none if the layer has no experts.
    pub fn shape(&self, layer: LayerId) -> Option<ExpertShape> {
        self.shapes.get(&layer.0).copied()
    }

    /// Bytes of the largest block.
    pub fn block_bytes(&self) -> usize {
        self.shapes.values().map(ExpertShape::block_bytes).max().unwrap_or(0)
    }

    /// Returns a block's bytes, and checks their hash on first use: the disk may have changed them, and the hub's
    /// results are the reference for workers' answers.
    ///
    /// # Errors
    /// If the model has no such block, or it is damaged; the next start then packs it again.
    pub fn block(&self, block: Block) -> Result<&[u8], BlockError> {
        let at = self.blocks.binary_search_by_key(&block, |stored| stored.block);
        let at = at.map_err(|_| BlockError::Missing(block))?;
        let (stored, right) = (&self.blocks[at], &self.right[at]);
        if !right.load(Relaxed) {
            if !self.has_its_hash(stored) {
                load::forget_stamps(&self.folder);
                let path = self.folder.join(&self.files[stored.file].name);
                return Err(BlockError::Damaged { block, path });
            }
            right.store(true, Relaxed);
        }
        Ok(self.bytes_of(stored))
    }

    /// Location from which workers fetch a block. Its URL contains the version, so that caches never mix two models.
    pub fn source(&self, block: Block) -> Option<BlockSource> {
        self.find(block).map(|stored| self.source_of(stored))
    }

    /// Asks workers for experts of layer `first` and of those after it: the hub has the others.
    pub(crate) fn asking_from(self, first: usize) -> Self {
        Self { first_asked: first, ..self }
    }

    /// The blocks that workers are asked for, with their sources.
    pub fn catalog(&self) -> BlockCatalog {
        let is_asked = |stored: &&StoredBlock| usize::from(stored.block.layer.0) >= self.first_asked;
        let sources = self.blocks.iter().filter(is_asked).map(|stored| self.source_of(stored)).collect();
        BlockCatalog::new(sources, self.block_bytes() as u64)
    }

    /// A file by its name.
    pub fn file(&self, name: &str) -> Option<&ShardFile> {
        self.files.iter().find(|file| file.name == name)
    }

    /// The files, one per MoE layer.
    pub fn files(&self) -> &[ShardFile] {
        &self.files
    }

    fn bytes_of(&self, stored: &StoredBlock) -> &[u8] {
        &self.files[stored.file].bytes[stored.start..stored.end]
    }

    fn has_its_hash(&self, stored: &StoredBlock) -> bool {
        blake3::hash(self.bytes_of(stored)).to_hex().as_str() == stored.blake3
    }

    fn find(&self, block: Block) -> Option<&StoredBlock> {
        let at = self.blocks.binary_search_by_key(&block, |stored| stored.block).ok()?;
        Some(&self.blocks[at])
    }

    fn source_of(&self, stored: &StoredBlock) -> BlockSource {
        let file = &self.files[stored.file];
        BlockSource {
            block: stored.block,
            url: format!("{URL_PREFIX}{}?v={}", file.name, file.version),
            start: stored.start as u64,
            end: stored.end as u64,
            blake3: stored.blake3.clone(),
        }
    }
}

impl Blocks for ShardStore {
    fn n_experts(&self) -> Vec<usize> {
        let n_layers = self.shapes.last_key_value().map_or(0, |(layer, _)| usize::from(*layer) + 1);
        let mut n_experts = vec![0; n_layers];
        for stored in &self.blocks {
            n_experts[usize::from(stored.block.layer.0)] += 1;
        }
        n_experts
    }

    fn shape(&self, layer: LayerId) -> Result<ExpertShape, String> {
        ShardStore::shape(self, layer).ok_or_else(|| format!("layer {layer} has no packed experts"))
    }

    fn block(&self, block: Block) -> Result<&[u8], String> {
        ShardStore::block(self, block).map_err(|error| error.to_string())
    }

    fn release(&self) {
        self.files.iter().for_each(|file| file.mapped.release());
    }
}
