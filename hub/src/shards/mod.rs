//! Experts packed for workers: one file a layer, found again by range and hash.
//!
//! ```text
//! FOLDER/manifest.json            what was packed, from what, and every block's file, range and BLAKE3
//! FOLDER/layer-00.safetensors     a U8 tensor `layers.0.experts.E` for each expert, its data aligned to 16 bytes
//! FOLDER/...
//! ```
//!
//! Here: packing (`pack`), checking what lies there (`load`), and blocks for those who ask ([`ShardStore`]). Serving them
//! over HTTP is `net`'s matter; which worker needs which block is the swarm's.

mod compute;
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
use moex_model::mapped::Mapped;
use moex_swarm::BlockCatalog;

/// The path under which a hub serves its shards.
pub const URL_PREFIX: &str = "/shards/";

/// Why there is no store. Each is one sentence that names the file.
#[derive(Debug, thiserror::Error)]
pub enum ShardError {
    /// A file or folder cannot be used.
    #[error("the packed experts in {} cannot be used: {source} (name another folder with --shards)", path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The source failed to give an expert.
    #[error("{block} cannot be packed: {reason}")]
    Source {
        /// Which.
        block: Block,
        /// Why.
        reason: String,
    },
    /// The experts of a layer have no shape in common.
    #[error("the experts cannot be packed: {0}")]
    Format(String),
    /// What was just written does not read back.
    #[error("the packed experts in {} are damaged right after they were written: {reason}", path.display())]
    Unreadable {
        /// The folder.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

/// A folder of packed experts, mapped and checked. Clones share its memory.
#[derive(Clone, Debug)]
pub struct ShardStore {
    /// By layer, sparse ones only.
    shapes: BTreeMap<u16, ExpertShape>,
    /// What computes answers with int8 activations; none computes with f32.
    panels: Option<Arc<ExpertPanels>>,
    files: Vec<ShardFile>,
    /// Ascending by block.
    blocks: Vec<StoredBlock>,
    /// Whether each has been found to have its hash since the store was opened.
    right: Arc<[AtomicBool]>,
    folder: PathBuf,
}

/// Why there are no bytes of a block.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    /// The model has no such block.
    #[error("{0} is not in the packed experts")]
    Missing(Block),
    /// Its bytes are not those that were packed.
    #[error("{block} does not have its hash: {} is damaged; start the hub again and it is packed anew", path.display())]
    Damaged {
        /// Which.
        block: Block,
        /// The file it is in.
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
    /// All of it, mapped: slices of it are pages of the file.
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
    /// Opens the store of `source` in `folder`, and packs it first if it is not there, of other weights, or damaged.
    /// `progress(done, total)` counts the blocks packed.
    ///
    /// Two hubs that come to the same folder at once take turns; the second finds what the first one packed. A store in
    /// use is never written to: new files take the old ones' names, and whoever has mapped those keeps them.
    ///
    /// # Errors
    /// If the folder cannot be written, or the source fails to give an expert.
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
        // Released when `lock` goes, or with the process.
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

    /// Where the store of `source` lies unless the user says otherwise: in the user's cache, by content and packing.
    pub fn default_folder(source: &dyn ExpertSource, packing: Packing) -> PathBuf {
        let home_cache = || std::env::home_dir().map(|home| home.join(".cache"));
        let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        let cache = cache.or_else(home_cache).unwrap_or_else(std::env::temp_dir);
        cache.join("moex").join("shards").join(format!("{}-{packing}", source.fingerprint()))
    }

    /// Has [`Self::answer`] compute with int8 activations, as workers do that are told to.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn computing_int8(mut self, processor: Arc<Processor>, keep: Keep) -> io::Result<Self> {
        let blocks = Arc::new(self.clone());
        self.panels = Some(Arc::new(ExpertPanels::new(blocks, processor, keep)?));
        Ok(self)
    }

    /// The same experts for who asks for them here, rounding to `wire`; none unless [`Self::computing_int8`].
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

    /// The shape of a layer's blocks; none if it has no experts.
    pub fn shape(&self, layer: LayerId) -> Option<ExpertShape> {
        self.shapes.get(&layer.0).copied()
    }

    /// The bytes of the largest block.
    pub fn block_bytes(&self) -> usize {
        self.shapes.values().map(ExpertShape::block_bytes).max().unwrap_or(0)
    }

    /// A block's bytes, compared with its hash the first time: a disk may have changed them since they were packed, and
    /// what the hub computes is right for whoever compares it with a worker's.
    ///
    /// # Errors
    /// If the model has no such block, or it is damaged; the next start then packs it anew.
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

    /// Where workers fetch a block. The URL names the version, so that caches never mix two models.
    pub fn source(&self, block: Block) -> Option<BlockSource> {
        self.find(block).map(|stored| self.source_of(stored))
    }

    /// All blocks with their sources.
    pub fn catalog(&self) -> BlockCatalog {
        let sources = self.blocks.iter().map(|stored| self.source_of(stored)).collect();
        BlockCatalog::new(sources, self.block_bytes() as u64)
    }

    /// A file by its name.
    pub fn file(&self, name: &str) -> Option<&ShardFile> {
        self.files.iter().find(|file| file.name == name)
    }

    /// The files, one a sparse layer.
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
