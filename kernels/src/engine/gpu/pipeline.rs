//! A compiled kernel: compiled once for a device, with a bind group for each slab.

use std::sync::Mutex;

use super::{
    device::GpuDevice,
    int8::Constants,
    shaders::{Binding, BindingKind, Resource, Shader},
    signal::lock,
};

/// One kernel of an engine.
#[derive(Debug)]
pub(super) struct Pipeline {
    compiled: Compiled,
    /// One for each slab.
    bind_groups: Vec<wgpu::BindGroup>,
}

/// The kernels that a device has compiled so far. A driver takes up to seconds for one. So experts of every shape, the
/// self-test and the benchmarks before serving share the kernels of the formats that they have in common.
#[derive(Debug, Default)]
pub(super) struct CompiledKernels(Mutex<Vec<CompiledKernel>>);

#[derive(Debug)]
struct CompiledKernel {
    shader: &'static Shader,
    constants: Constants,
    compiled: Compiled,
}

/// A kernel for experts of any shape.
#[derive(Clone, Debug)]
struct Compiled {
    pipeline: wgpu::ComputePipeline,
    bind_group_layout: wgpu::BindGroupLayout,
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

impl CompiledKernels {
    fn get(&self, device: &wgpu::Device, shader: &'static Shader, constants: Constants) -> Compiled {
        let mut kernels = lock(&self.0);
        // A shader's constants have the same names every time.
        let is_it = |kernel: &&CompiledKernel| {
            std::ptr::eq(kernel.shader, shader)
                && kernel.constants.iter().zip(&constants).all(|((_, known), (_, value))| known == value)
        };
        if let Some(known) = kernels.iter().find(is_it) {
            return known.compiled.clone();
        }
        let compiled = Compiled::new(device, shader, &constants);
        kernels.push(CompiledKernel { shader, constants, compiled: compiled.clone() });
        compiled
    }

    /// Forgets all kernels: the device may have refused one of them.
    pub(super) fn clear(&self) {
        lock(&self.0).clear();
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        lock(&self.0).len()
    }
}

impl Compiled {
    fn new(device: &wgpu::Device, shader: &Shader, constants: &[(&'static str, f64)]) -> Self {
        let label = Some(shader.entry_point);
        let entries: Vec<_> = shader.bindings.iter().map(layout_entry).collect();
        let bind_group_layout =
            device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label, entries: &entries });
        let pipeline_layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label,
            bind_group_layouts: &[Some(&bind_group_layout)],
            immediate_size: 0,
        });
        let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
            label,
            source: wgpu::ShaderSource::Wgsl(shader.text().into()),
        });
        let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label,
            layout: Some(&pipeline_layout),
            module: &module,
            entry_point: Some(shader.entry_point),
            compilation_options: wgpu::PipelineCompilationOptions { constants, ..Default::default() },
            cache: None,
        });
        Self { pipeline, bind_group_layout }
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

fn layout_entry(binding: &Binding) -> wgpu::BindGroupLayoutEntry {
    let ty = match binding.kind {
        BindingKind::Uniform => wgpu::BufferBindingType::Uniform,
        BindingKind::ReadOnlyStorage => wgpu::BufferBindingType::Storage { read_only: true },
        BindingKind::Storage => wgpu::BufferBindingType::Storage { read_only: false },
    };
    wgpu::BindGroupLayoutEntry {
        binding: binding.index,
        visibility: wgpu::ShaderStages::COMPUTE,
        ty: wgpu::BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size: None },
        count: None,
    }
}
