//! The kernels of a device, each compiled once.

use std::sync::Mutex;

use super::{
    shaders::{Binding, BindingKind, Constants, Shader},
    signal::lock,
};

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
pub(super) struct Compiled {
    pub(super) pipeline: wgpu::ComputePipeline,
    pub(super) bind_group_layout: wgpu::BindGroupLayout,
}

impl CompiledKernels {
    /// The kernel with these constants, compiled if it is not yet.
    pub(super) fn get(
        &self,
        device: &wgpu::Device,
        shader: &'static Shader,
        constants: Constants,
    ) -> Compiled {
        let mut kernels = lock(&self.0);
        // A shader's constants have the same names every time, but that some have more at the end.
        let is_it = |kernel: &&CompiledKernel| {
            std::ptr::eq(kernel.shader, shader)
                && kernel.constants.len() == constants.len()
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
        let descriptor =
            wgpu::ShaderModuleDescriptor { label, source: wgpu::ShaderSource::Wgsl(shader.text().into()) };
        // SAFETY: these shaders are this crate's own. Their loops end, since each counts up to a bound that its dispatch is told;
        // they divide by sizes and counts that are not 0; and they index what their plan has made room for.
        let module = unsafe {
            device.create_shader_module_trusted(descriptor, wgpu::ShaderRuntimeChecks::unchecked())
        };
        let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label,
            layout: Some(&pipeline_layout),
            module: &module,
            entry_point: Some(shader.entry_point),
            compilation_options: wgpu::PipelineCompilationOptions {
                constants,
                // Every kernel writes a workgroup's memory before it reads it.
                zero_initialize_workgroup_memory: false,
            },
            cache: None,
        });
        Self { pipeline, bind_group_layout }
    }
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
