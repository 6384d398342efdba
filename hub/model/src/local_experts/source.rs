//! Provides experts from the checkpoint, or from blocks packed for workers.

use std::sync::{Arc, OnceLock};

use moex_kernels::{ExpertShape, ExpertView};
use moex_protocol::{Block, ExpertId, LayerId};

use crate::{packing::Packing, transformer::Model};

/// A source of experts.
pub trait ExpertSource: Send + Sync {
    /// (L): the number of experts per layer, none in dense ones.
    fn n_experts(&self) -> Vec<usize>;

    /// The shape of a layer's experts.
    ///
    /// # Errors
    /// If the layer has none, or their shapes differ.
    fn shape(&self, layer: usize) -> Result<ExpertShape, String>;

    /// Passes an expert's matrices to `read`.
    ///
    /// # Errors
    /// If there is no such expert, or it cannot be read.
    fn read(&self, layer: usize, expert: usize, read: &mut dyn FnMut(&ExpertView<'_>)) -> Result<(), String>;

    /// Frees the memory that files were read into; experts stay available.
    fn release(&self);
}

/// The checkpoint's own experts, in its formats.
impl ExpertSource for Arc<Model> {
    fn n_experts(&self) -> Vec<usize> {
        (0..self.spec().layers.len()).map(|layer| self.experts(layer).len()).collect()
    }

    fn shape(&self, layer: usize) -> Result<ExpertShape, String> {
        Packing::Native.shape(self, layer)
    }

    fn read(&self, layer: usize, expert: usize, read: &mut dyn FnMut(&ExpertView<'_>)) -> Result<(), String> {
        self.experts(layer).get(expert).ok_or("the model has no such expert")?.read(read);
        Ok(())
    }

    fn release(&self) {
        Model::release(self);
    }
}

/// The checkpoint's own experts; converted matrices are kept.
pub(super) struct Resident(pub(super) Arc<Model>);

impl ExpertSource for Resident {
    fn n_experts(&self) -> Vec<usize> {
        self.0.n_experts()
    }

    fn shape(&self, layer: usize) -> Result<ExpertShape, String> {
        self.0.shape(layer)
    }

    fn read(&self, layer: usize, expert: usize, read: &mut dyn FnMut(&ExpertView<'_>)) -> Result<(), String> {
        read(&self.0.experts(layer).get(expert).ok_or("the model has no such expert")?.view());
        Ok(())
    }

    fn release(&self) {
        Model::release(&self.0);
    }
}

/// A source of packed experts, as workers hold them.
pub trait Blocks: Send + Sync {
    /// (L): the number of experts per layer, up to the last layer with experts.
    fn n_experts(&self) -> Vec<usize>;

    /// The shape of a layer's blocks.
    ///
    /// # Errors
    /// If the layer has none.
    fn shape(&self, layer: LayerId) -> Result<ExpertShape, String>;

    /// The bytes of a block.
    ///
    /// # Errors
    /// If there is no such block, or it cannot be read.
    fn block(&self, block: Block) -> Result<&[u8], String>;

    /// Frees the memory that files were read into; blocks stay available.
    fn release(&self) {}
}

impl<B: Blocks> Blocks for Arc<B> {
    fn n_experts(&self) -> Vec<usize> {
        (**self).n_experts()
    }

    fn shape(&self, layer: LayerId) -> Result<ExpertShape, String> {
        (**self).shape(layer)
    }

    fn block(&self, block: Block) -> Result<&[u8], String> {
        (**self).block(block)
    }

    fn release(&self) {
        (**self).release();
    }
}

impl<B: Blocks> ExpertSource for B {
    fn n_experts(&self) -> Vec<usize> {
        Blocks::n_experts(self)
    }

    fn shape(&self, layer: usize) -> Result<ExpertShape, String> {
        Blocks::shape(self, LayerId(number(layer)?))
    }

    fn read(&self, layer: usize, expert: usize, read: &mut dyn FnMut(&ExpertView<'_>)) -> Result<(), String> {
        let block = Block { layer: LayerId(number(layer)?), expert: ExpertId(number(expert)?) };
        let shape = Blocks::shape(self, block.layer)?;
        read(&shape.view(self.block(block)?).map_err(|error| error.to_string())?);
        Ok(())
    }

    fn release(&self) {
        Blocks::release(self);
    }
}

fn number(n: usize) -> Result<u16, String> {
    u16::try_from(n).map_err(|_| "the model has no such expert".to_owned())
}

/// The blocks of a model's experts, packed on first use and kept.
pub struct MemoryBlocks {
    model: Arc<Model>,
    packing: Packing,
    /// (L, E).
    packed: Vec<Vec<OnceLock<Vec<u8>>>>,
}

impl MemoryBlocks {
    /// Packs the experts of `model`.
    pub fn new(model: Arc<Model>, packing: Packing) -> Self {
        let of_layer = |layer| model.experts(layer).iter().map(|_| OnceLock::new()).collect();
        let packed = (0..model.spec().layers.len()).map(of_layer).collect();
        Self { model, packing, packed }
    }
}

impl Blocks for MemoryBlocks {
    fn n_experts(&self) -> Vec<usize> {
        self.packed.iter().map(Vec::len).collect()
    }

    fn shape(&self, layer: LayerId) -> Result<ExpertShape, String> {
        self.packing.shape(&self.model, usize::from(layer.0))
    }

    fn block(&self, block: Block) -> Result<&[u8], String> {
        let shape = Blocks::shape(self, block.layer)?;
        let (layer, expert) = (usize::from(block.layer.0), usize::from(block.expert.0));
        let slot = self.packed.get(layer).and_then(|layer| layer.get(expert));
        let slot = slot.ok_or_else(|| "the model has no such expert".to_owned())?;
        Ok(slot.get_or_init(|| self.model.experts(layer)[expert].read(|view| shape.convert(view))))
    }
}
