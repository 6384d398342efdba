//! Rounds answers to f16 on the GPU, as they travel: half as many bytes leave its memory, and no processor rounds them.

use super::{
    device::GpuDevice,
    layout::Layout,
    pipeline::{Pipeline, slab_bind_groups},
    shaders::{Resource, int8_shader},
};

const KERNEL: &str = "pack_halves";
/// Values of a workgroup: 64 threads with `WORDS` words in `shader/pack_halves.wgsl`.
const VALUES: u64 = 64 * 4 * 2;
/// `GRID` there.
const GRID: u32 = 32_768;

/// The kernels for rows and for products, and where they put them.
#[derive(Debug)]
pub(super) struct Pack {
    rows: Pipeline,
    products: Pipeline,
    /// y (P, D), then products (P, 2F), in f16.
    packed: wgpu::Buffer,
    products_start: u64,
}

impl Pack {
    /// Of `y` and of the products in `h`, into `packed`, which has [`Layout::packed_bytes`].
    pub(super) fn new(
        device: &GpuDevice,
        layout: &Layout,
        [y, h]: [&wgpu::Buffer; 2],
        packed: wgpu::Buffer,
    ) -> Self {
        let products_start = layout.packed_products_start();
        let kernel = |from: (&wgpu::Buffer, u64), start: u64, bytes: Option<u64>| {
            let shader = int8_shader(KERNEL);
            Pipeline::new(device, shader, Vec::new(), |layout| {
                // Of weights it reads nothing: one bind group is enough.
                slab_bind_groups(device, shader, layout, std::slice::from_ref(from.0), |resource, _| {
                    match resource {
                        Resource::X => (from.0, from.1, None),
                        _ => (&packed, start, bytes),
                    }
                })
            })
        };
        let rows = kernel((y, 0), 0, Some(products_start));
        let products = kernel((h, 4 * layout.products_start()), products_start, None);
        Self { rows, products, packed, products_start }
    }

    /// Appends the dispatches for so many values of y and of the products.
    pub(super) fn dispatch(&self, pass: &mut wgpu::ComputePass<'_>, n_values: [u64; 2]) {
        for (kernel, n_values) in [&self.rows, &self.products].into_iter().zip(n_values) {
            let workgroups = n_values.div_ceil(VALUES) as u32;
            if workgroups > 0 {
                pass.set_pipeline(kernel.pipeline());
                pass.set_bind_group(0, kernel.bind_group(0), &[]);
                pass.dispatch_workgroups(workgroups.min(GRID), workgroups.div_ceil(GRID), 1);
            }
        }
    }

    /// Where the products of a message start behind its rows.
    pub(super) fn buffer(&self) -> (&wgpu::Buffer, u64) {
        (&self.packed, self.products_start)
    }
}
