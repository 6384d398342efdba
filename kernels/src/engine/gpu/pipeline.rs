//! A compiled kernel with a bind group for each slab.

use super::{
    compiled::Compiled,
    device::GpuDevice,
    shaders::{Constants, Resource, Shader},
};

/// One kernel of an engine.
#[derive(Debug)]
pub(super) struct Pipeline {
    compiled: Compiled,
    /// One for each slab.
    bind_groups: Vec<wgpu::BindGroup>,
}

impl Pipeline {
    /// `constants` are values of the shader's override constants; `bind` makes the bind groups for a bind group layout.
    pub(super) fn new(
        device: &GpuDevice,
        shader: &'static Shader,
        constants: Constants,
        bind: impl FnOnce(&wgpu::BindGroupLayout) -> Vec<wgpu::BindGroup>,
    ) -> Self {
        let compiled = device.compiled().get(device.wgpu(), shader, constants);
        Self { bind_groups: bind(&compiled.bind_group_layout), compiled }
    }

    pub(super) fn pipeline(&self) -> &wgpu::ComputePipeline {
        &self.compiled.pipeline
    }

    pub(super) fn bind_group(&self, slab: u32) -> &wgpu::BindGroup {
        &self.bind_groups[slab as usize]
    }
}

/// Makes a bind group for each slab; `place` returns a resource's part of a buffer: (buffer, start, size or the rest).
pub(super) fn slab_bind_groups<'a>(
    device: &GpuDevice,
    shader: &Shader,
    layout: &wgpu::BindGroupLayout,
    slabs: &[wgpu::Buffer],
    place: impl Fn(Resource, u32) -> (&'a wgpu::Buffer, u64, Option<u64>),
) -> Vec<wgpu::BindGroup> {
    let bind_group = |slab| {
        let entries: Vec<_> = shader
            .bindings
            .iter()
            .map(|binding| {
                let (buffer, offset, size) = place(binding.resource, slab);
                let size = size.and_then(std::num::NonZeroU64::new);
                let resource = wgpu::BindingResource::Buffer(wgpu::BufferBinding { buffer, offset, size });
                wgpu::BindGroupEntry { binding: binding.index, resource }
            })
            .collect();
        let descriptor =
            wgpu::BindGroupDescriptor { label: Some(shader.entry_point), layout, entries: &entries };
        device.wgpu().create_bind_group(&descriptor)
    };
    (0..slabs.len() as u32).map(bind_group).collect()
}

/// Creates a buffer of an engine and counts it. A buffer that the CPU writes is mapped from the start.
pub(super) fn allocate(
    device: &GpuDevice,
    label: &str,
    size: u64,
    usage: wgpu::BufferUsages,
    count: &mut u64,
) -> wgpu::Buffer {
    *count += 1;
    device.wgpu().create_buffer(&wgpu::BufferDescriptor {
        label: Some(label),
        size,
        usage,
        mapped_at_creation: usage.contains(wgpu::BufferUsages::MAP_WRITE),
    })
}
