//! `manifest.json`: lists the content of a store, its origin, and the range and hash of every block.

use moex_kernels::{ExpertFormat, ExpertShape};
use serde::{Deserialize, Serialize};

use super::{ExpertSource, ShardError};
use moex_model::Packing;

/// The manifest's file name. It is written last, so a folder without one is incomplete.
pub(super) const FILE_NAME: &str = "manifest.json";

/// Version of the layout of files and blocks and of the rounding; stores with another version are not used.
const VERSION: u32 = 2;

/// What identifies a usable store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Identity {
    version: u32,
    /// Identifies the checkpoint's weights.
    pub source: String,
    /// D
    pub hidden: usize,
    /// F
    pub inner: usize,
    /// MoE layers, ascending.
    pub layers: Vec<LayerEntry>,
}

/// The experts of a layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LayerEntry {
    pub layer: u16,
    pub n_experts: u16,
    /// `int4`, `f16`, `q4_K+q6_K`, ...
    pub format: ExpertFormat,
}

/// The manifest.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Manifest {
    /// The model's name, for messages.
    pub model: String,
    #[serde(flatten)]
    pub identity: Identity,
    /// Ascending by layer and expert.
    pub blocks: Vec<BlockEntry>,
}

/// Location of a block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct BlockEntry {
    pub layer: u16,
    pub expert: u16,
    pub file: String,
    /// Offset of the first byte in the file.
    pub start: u64,
    /// Offset after the last byte.
    pub end: u64,
    /// Hash of these bytes, in hex.
    pub blake3: String,
}

impl Identity {
    /// Identity that the store of `source` must have.
    ///
    /// # Errors
    /// [`ShardError::Format`] if a layer's experts have different shapes.
    pub(super) fn of(source: &dyn ExpertSource, packing: Packing) -> Result<Self, ShardError> {
        let (mut hidden, mut inner, mut layers) = (0, 0, Vec::new());
        for (layer, n_experts) in source.layers() {
            let shape = source.shape(layer, packing).map_err(ShardError::Format)?;
            (hidden, inner) = (shape.hidden, shape.inner);
            layers.push(LayerEntry { layer, n_experts, format: shape.format });
        }
        Ok(Self { version: VERSION, source: source.fingerprint(), hidden, inner, layers })
    }

    /// The shape of a layer's blocks.
    pub(super) fn shape(&self, layer: &LayerEntry) -> ExpertShape {
        ExpertShape { hidden: self.hidden, inner: self.inner, format: layer.format }
    }

    /// (layer, expert) of every block, ascending.
    pub(super) fn blocks(&self) -> impl Iterator<Item = (u16, u16)> + '_ {
        self.layers.iter().flat_map(|entry| (0..entry.n_experts).map(|expert| (entry.layer, expert)))
    }
}

/// The file of a layer.
pub(super) fn layer_file(layer: u16) -> String {
    format!("layer-{layer:02}.safetensors")
}
