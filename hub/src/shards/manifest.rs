//! `manifest.json`: what a store holds, from what it was packed, and the range and hash of every block.

use moex_kernels::{ExpertShape, WeightFormat};
use serde::{Deserialize, Serialize};

use super::ExpertSource;

/// The manifest's name in the folder. It is written last: a folder without one is half-written.
pub(super) const FILE_NAME: &str = "manifest.json";

/// Changes whenever a store of an older hub must not be used: the layout of files, of blocks, or the rounding.
const VERSION: u32 = 1;

/// What a store must be for a hub to use it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Identity {
    version: u32,
    /// Names the checkpoint's weights.
    pub source: String,
    /// `int4`, `f16`, ...
    pub format: String,
    /// D
    pub hidden: usize,
    /// F
    pub inner: usize,
    pub block_bytes: usize,
    /// (layer, its experts), ascending, sparse layers only.
    pub layers: Vec<(u16, u16)>,
}

/// The whole manifest.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Manifest {
    /// The model's name, for people.
    pub model: String,
    #[serde(flatten)]
    pub identity: Identity,
    /// Ascending by layer and expert.
    pub blocks: Vec<BlockEntry>,
}

/// Where a block is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct BlockEntry {
    pub layer: u16,
    pub expert: u16,
    pub file: String,
    /// The first byte in the file.
    pub start: u64,
    /// Behind the last byte.
    pub end: u64,
    /// Of these bytes, in hex.
    pub blake3: String,
}

impl Identity {
    pub(super) fn of(source: &dyn ExpertSource, format: WeightFormat) -> Self {
        let shape = source.shape(format);
        Self {
            version: VERSION,
            source: source.fingerprint(),
            format: format.name().to_owned(),
            hidden: shape.hidden,
            inner: shape.inner,
            block_bytes: shape.block_bytes(),
            layers: source.layers(),
        }
    }

    /// The shape of every block; none if the format is not one that this build knows.
    pub(super) fn shape(&self) -> Option<ExpertShape> {
        let format = self.format.parse().ok()?;
        Some(ExpertShape { hidden: self.hidden, inner: self.inner, format })
    }

    /// (layer, expert) of every block, ascending.
    pub(super) fn blocks(&self) -> impl Iterator<Item = (u16, u16)> + '_ {
        self.layers.iter().flat_map(|(layer, n)| (0..*n).map(move |expert| (*layer, expert)))
    }
}

/// The file of a layer.
pub(super) fn layer_file(layer: u16) -> String {
    format!("layer-{layer:02}.safetensors")
}
