//! Provides experts for packing.

use std::sync::Arc;

use moex_kernels::ExpertShape;
use moex_protocol::Block;

use moex_model::{Model, Packing};

/// Weights up to this size are hashed completely for their fingerprint, larger ones by samples.
const MAX_HASHED_BYTES: usize = 256 << 20;
/// Bytes of each matrix in the fingerprint of larger weights.
const SAMPLE_BYTES: usize = 256;

/// A checkpoint's experts.
pub trait ExpertSource: Sync {
    /// The model's name, for messages.
    fn name(&self) -> &str;

    /// Fingerprint of the weights: letters and digits, different for different weights.
    fn fingerprint(&self) -> String;

    /// The shape of a layer's experts with this packing.
    ///
    /// # Errors
    /// If they have different shapes.
    fn shape(&self, layer: u16, packing: Packing) -> Result<ExpertShape, String>;

    /// (layer, number of experts), ascending, MoE layers only.
    fn layers(&self) -> Vec<(u16, u16)>;

    /// A block of `shape.block_bytes()` bytes. Called from several threads at once.
    ///
    /// # Errors
    /// If there is no such expert, or it cannot be read.
    fn pack(&self, block: Block, shape: &ExpertShape) -> Result<Vec<u8>, String>;

    /// Frees the memory that a layer's experts were read into.
    fn release(&self) {}
}

/// The experts of a loaded model.
pub struct ModelExperts {
    name: String,
    model: Arc<Model>,
}

impl ModelExperts {
    /// The experts of `model`, whose name is `name`.
    pub fn new(name: impl Into<String>, model: Arc<Model>) -> Self {
        Self { name: name.into(), model }
    }

    fn experts(&self) -> impl Iterator<Item = (usize, &[moex_model::Expert])> {
        (0..self.model.spec().layers.len())
            .map(|layer| (layer, self.model.experts(layer)))
            .filter(|(_, experts)| !experts.is_empty())
    }
}

impl ExpertSource for ModelExperts {
    fn name(&self) -> &str {
        &self.name
    }

    fn fingerprint(&self) -> String {
        let total: usize =
            self.experts().flat_map(|(_, experts)| experts).map(moex_model::Expert::n_bytes).sum();
        let max_bytes = if total <= MAX_HASHED_BYTES { usize::MAX } else { SAMPLE_BYTES };
        let mut hasher = blake3::Hasher::new();
        for (layer, experts) in self.experts() {
            for expert in experts {
                hasher.update(format!("{layer} ").as_bytes());
                expert.describe(max_bytes, |part| {
                    hasher.update(part);
                });
            }
        }
        hasher.finalize().to_hex()[..32].to_owned()
    }

    fn shape(&self, layer: u16, packing: Packing) -> Result<ExpertShape, String> {
        packing.shape(&self.model, usize::from(layer))
    }

    fn layers(&self) -> Vec<(u16, u16)> {
        self.experts().map(|(layer, experts)| (layer as u16, experts.len() as u16)).collect()
    }

    fn pack(&self, block: Block, shape: &ExpertShape) -> Result<Vec<u8>, String> {
        let experts = self.model.experts(usize::from(block.layer.0));
        let expert = experts.get(usize::from(block.expert.0)).ok_or("the model has no such expert")?;
        Ok(expert.read(|view| shape.convert(view)))
    }

    fn release(&self) {
        self.model.release();
    }
}
