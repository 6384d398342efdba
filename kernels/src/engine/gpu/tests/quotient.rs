//! Division by `shader/shared/quotient.wgsl`, on devices whose own quotients are off.

use wgpu::util::DeviceExt;

use super::device;
use crate::noise::noise;

/// What the shader starts from.
const NATIVE: &str = "f32(fractions.x) / divisor * 16777216.0";

#[test]
fn quotients_are_the_nearest_however_far_off_the_devices_are() {
    let Some(device) = device() else { return };
    let divides = include_str!("../../../../shader/shared/quotient.wgsl");
    let pairs = pairs();
    let expected: Vec<u32> = pairs.iter().map(|[a, b]| (a / b).to_bits()).collect();
    for off in [0, -60, -5, 1, 5, 60] {
        let off_by_some = divides.replace(NATIVE, &format!("({NATIVE} + {off}.0)"));
        assert_ne!(off_by_some, divides, "the shader divides otherwise");
        let quotients = quotients(&device, &off_by_some, &pairs);
        let wrong = quotients.iter().zip(&expected).position(|(quotient, expected)| quotient != expected);
        assert_eq!(wrong.map(|i| pairs[i]), None, "off by {off}");
    }
}

/// Fractions that are hard to divide, of both signs, beside 2^16 others with quotients of many sizes.
fn pairs() -> Vec<[f32; 2]> {
    let ends = [1.0, f32::from_bits(0x3f80_0001), f32::from_bits(0x3fff_ffff), 1.5, 127.0, 32767.0, -3.0];
    let of_ends = ends.iter().flat_map(|a| ends.map(|b| [*a, b]));
    let zeros = ends.map(|b| [0.0, b.abs()]);
    let n = 1 << 16;
    let sizes = (0..n).map(|i| 2_f32.powi(i % 60 - 30));
    let of_noise = noise(1, n as usize, 1.0).into_iter().zip(noise(2, n as usize, 1.0)).zip(sizes);
    let of_noise = of_noise.filter(|((_, b), _)| *b != 0.0).map(|((a, b), size)| [a * size, b]);
    of_ends.chain(zeros).chain(of_noise).collect()
}

/// The bits of each pair's quotient, by these functions.
fn quotients(device: &super::GpuDevice, functions: &str, pairs: &[[f32; 2]]) -> Vec<u32> {
    let entry = "
        struct Run { zero: u32 }
        @group(0) @binding(0) var<uniform> run: Run;
        @group(0) @binding(1) var<storage, read> pairs: array<vec2<f32>>;
        @group(0) @binding(2) var<storage, read_write> quotients: array<u32>;

        @compute @workgroup_size(64)
        fn divide(@builtin(global_invocation_id) id: vec3<u32>) {
            if id.x < arrayLength(&pairs) {
                quotients[id.x] = bitcast<u32>(quotient_of(pairs[id.x].x, pairs[id.x].y));
            }
        }";
    let (gpu, usage) = (device.wgpu(), wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC);
    let source = wgpu::ShaderSource::Wgsl(format!("{functions}{entry}").into());
    let module = gpu.create_shader_module(wgpu::ShaderModuleDescriptor { label: None, source });
    let pipeline = gpu.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label: None,
        layout: None,
        module: &module,
        entry_point: Some("divide"),
        compilation_options: Default::default(),
        cache: None,
    });
    let filled = |contents, usage| {
        gpu.create_buffer_init(&wgpu::util::BufferInitDescriptor { label: None, contents, usage })
    };
    let zeros = vec![0_u8; 4 * pairs.len()];
    let run = filled(&zeros[..16], wgpu::BufferUsages::UNIFORM);
    let from = filled(bytemuck::cast_slice(pairs), usage);
    let out = filled(&zeros, usage);
    let mapped = filled(&zeros, wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST);
    let entries = [&run, &from, &out].into_iter().zip(0..);
    let entries: Vec<_> = entries
        .map(|(buffer, binding)| wgpu::BindGroupEntry { binding, resource: buffer.as_entire_binding() })
        .collect();
    let group = gpu.create_bind_group(&wgpu::BindGroupDescriptor {
        label: None,
        layout: &pipeline.get_bind_group_layout(0),
        entries: &entries,
    });
    let mut encoder = gpu.create_command_encoder(&Default::default());
    let mut pass = encoder.begin_compute_pass(&Default::default());
    pass.set_pipeline(&pipeline);
    pass.set_bind_group(0, &group, &[]);
    pass.dispatch_workgroups(pairs.len().div_ceil(64) as u32, 1, 1);
    drop(pass);
    encoder.copy_buffer_to_buffer(&out, 0, &mapped, 0, zeros.len() as u64);
    device.queue().submit([encoder.finish()]);
    mapped.map_async(wgpu::MapMode::Read, .., |mapped| mapped.expect("mapped"));
    gpu.poll(wgpu::PollType::wait_indefinitely()).expect("the device works");
    let view = mapped.get_mapped_range(..).expect("mapped");
    bytemuck::cast_slice(&view).to_vec()
}
