//! What an engine takes of what its device offers.

use super::GpuDevice;

/// Which kernels an engine uses and how large its slabs are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuTuning {
    /// Whether shaders use f16.
    pub shader_f16: bool,
    /// Whether shaders use subgroups.
    pub subgroups: bool,
    /// The most bytes of one slab.
    pub max_slab_bytes: u64,
}

impl GpuTuning {
    /// All that the device offers.
    pub fn of(device: &GpuDevice) -> Self {
        let limits = device.wgpu().limits();
        Self {
            shader_f16: device.has("shader-f16"),
            subgroups: device.has("subgroups"),
            max_slab_bytes: limits.max_storage_buffer_binding_size.min(limits.max_buffer_size),
        }
    }
}
