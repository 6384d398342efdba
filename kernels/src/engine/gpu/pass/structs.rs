//! What the kernels of a forward pass are told besides their step, as it lies in buffers; the build script compares each with the
//! shader that defines it, where the fields are documented.

use bytemuck::{Pod, Zeroable};

/// `Width` in `shader/keep_rows.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub(crate) struct Width {
    pub(crate) columns: u32,
}

/// `Norm` in `shader/shared/norm.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub(crate) struct Norm {
    pub(crate) has_places: u32,
    pub(crate) is_normed: u32,
    pub(crate) is_rounded: u32,
    pub(crate) stride: u32,
    pub(crate) result_stride: u32,
    pub(crate) eps: f32,
}

/// `Heads` in `shader/shared/heads.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub(crate) struct Heads {
    pub(crate) n_heads: u32,
    pub(crate) n_kv_heads: u32,
    pub(crate) columns: u32,
    pub(crate) rope: u32,
    pub(crate) half: u32,
    pub(crate) first: u32,
    pub(crate) is_neighbours: u32,
    pub(crate) has_q_norm: u32,
    pub(crate) has_k_norm: u32,
    pub(crate) q_eps: f32,
    pub(crate) k_eps: f32,
    pub(crate) q_stride: u32,
    pub(crate) k_stride: u32,
    pub(crate) v_stride: u32,
    pub(crate) k_start: u32,
    pub(crate) v_start: u32,
}

/// `Attend` in `shader/shared/attend.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub(crate) struct Attend {
    pub(crate) n_heads: u32,
    pub(crate) n_kv_heads: u32,
    pub(crate) columns: u32,
    pub(crate) scale: f32,
}

/// `Joined` in `shader/attend_rows.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub(crate) struct Joined {
    pub(crate) columns: u32,
    pub(crate) result_stride: u32,
}

/// `Router` in `shader/shared/router.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub(crate) struct Router {
    pub(crate) n_experts: u32,
    pub(crate) n_chosen: u32,
    pub(crate) layer: u32,
    pub(crate) of_wanted: u32,
    pub(crate) renormalise: u32,
    pub(crate) block: u32,
    pub(crate) x_stride: u32,
    pub(crate) max_tiles: u32,
}
