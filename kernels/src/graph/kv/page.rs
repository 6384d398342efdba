//! A page: keys and values of a block of positions in some layers.

use super::KvLayout;
use crate::simd::{PAGE_POSITIONS, PageSize, Slab};

pub(super) enum Page {
    /// (layers of a page, `PAGE_POSITIONS`, G x C) each.
    Rows { keys: Box<[f32]>, values: Box<[f32]> },
    /// (layers of a page), each as [`KvShape`](crate::simd::KvShape) says.
    Packed(Slab),
    /// In a device's memory.
    Device,
}

impl Page {
    /// A page in this machine's memory; `None` if there is none.
    pub(super) fn allocate(layout: &KvLayout, n_layers: usize) -> Option<Self> {
        Some(match layout.shape() {
            None => {
                let n_values = n_layers * PAGE_POSITIONS * layout.width();
                Self::Rows { keys: zeros(n_values)?, values: zeros(n_values)? }
            }
            Some(shape) => Self::Packed(Slab::new(n_layers * shape.page_bytes(), PageSize::Huge).ok()?),
        })
    }

    /// Stores `key` and `value` (G x C each) in layer `layer` of the page, at position `within` it.
    pub(super) fn write(
        &mut self,
        layout: &KvLayout,
        layer: usize,
        within: usize,
        key: &[f32],
        value: &[f32],
    ) {
        match (self, layout.shape()) {
            (Self::Rows { keys, values }, _) => {
                let width = layout.width();
                let start = (layer * PAGE_POSITIONS + within) * width;
                keys[start..][..width].copy_from_slice(key);
                values[start..][..width].copy_from_slice(value);
            }
            (Self::Packed(bytes), Some(shape)) => {
                let n = shape.page_bytes();
                shape.write(&mut bytes[layer * n..][..n], within, key, value).expect("a page of its shape");
            }
            (Self::Packed(_), None) | (Self::Device, _) => {}
        }
    }

    /// Keys and values of layer `layer` of the page, (`PAGE_POSITIONS`, G, C) each; empty where they are packed.
    pub(super) fn rows(&self, layout: &KvLayout, layer: usize) -> [&[f32]; 2] {
        let len = PAGE_POSITIONS * layout.width();
        match self {
            Self::Rows { keys, values } => [keys, values].map(|rows| &rows[layer * len..][..len]),
            Self::Packed(_) | Self::Device => [&[]; 2],
        }
    }

    /// Layer `layer` of the page as [`KvShape`](crate::simd::KvShape) says; empty where it is rows.
    pub(super) fn packed(&self, layout: &KvLayout, layer: usize) -> &[u8] {
        match (self, layout.shape()) {
            (Self::Packed(bytes), Some(shape)) => &bytes[layer * shape.page_bytes()..][..shape.page_bytes()],
            _ => &[],
        }
    }

    pub(super) fn copy_from(&mut self, from: &Self) {
        match (from, self) {
            (Self::Rows { keys, values }, Self::Rows { keys: new_keys, values: new_values }) => {
                new_keys.copy_from_slice(keys);
                new_values.copy_from_slice(values);
            }
            (Self::Packed(from), Self::Packed(to)) => to.copy_from_slice(from),
            _ => {}
        }
    }
}

/// `n` zeros; `None` if the system has no memory for them.
pub(super) fn zeros(n: usize) -> Option<Box<[f32]>> {
    let mut values = Vec::new();
    values.try_reserve_exact(n).ok()?;
    values.resize(n, 0.0);
    Some(values.into())
}
