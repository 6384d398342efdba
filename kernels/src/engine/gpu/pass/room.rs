//! How many layers each GPU takes, and of how many of them the experts: before anything is loaded, memory is held to see how much is
//! there.

use super::{layers::layers, pages::pollster};
use crate::{
    engine::gpu::device::GpuDevice,
    graph::{Op, PackedExperts, Program},
};

/// Which layers' experts are on GPUs; those of the others are computed elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResidentExperts {
    /// Those of the first so many layers with experts; none for as many as fit beside the other weights.
    pub n_layers: Option<usize>,
    /// Bytes that are left for keys and values.
    pub beside: u64,
    /// On all GPUs, also where fewer have room.
    pub spread: bool,
}

/// A GPU's part of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) n_layers: usize,
    /// Of so many of its layers the experts are there, from the first layer with experts on.
    pub(super) n_resident: usize,
}

/// Intermediates, tables and the driver's own.
const OWN_BYTES: u64 = 256 << 20;
/// Memory is asked for in pieces of at most so many bytes, and of at least so many where there are no more.
const PIECE_BYTES: [u64; 2] = [1 << 30, 64 << 20];
/// Halvings of the interval in which the fullest GPU's load is looked for.
const N_HALVINGS: usize = 30;

/// Bytes of a layer's weights.
#[derive(Clone, Copy, Debug)]
struct LayerBytes {
    dense: u64,
    experts: Option<u64>,
}

impl ResidentExperts {
    /// Those of the first `n` layers with experts, divided among all GPUs.
    pub const fn first(n: usize) -> Self {
        Self { n_layers: Some(n), beside: 0, spread: true }
    }

    /// What each of the `devices` takes: neighbouring layers, in their order, so that the fullest is as little full as can be. A
    /// device that takes none has no share.
    pub(super) fn shares(
        self,
        devices: &[GpuDevice],
        program: &Program,
        experts: &dyn PackedExperts,
    ) -> Vec<Share> {
        let Self { n_layers, beside, spread } = self;
        let layers: Vec<LayerBytes> =
            layers(program.ops()).into_iter().map(|ops| LayerBytes::of(ops, program, experts)).collect();
        let n_sparse = layers.iter().filter(|layer| layer.experts.is_some()).count();
        let most = n_layers.unwrap_or(n_sparse).min(n_sparse);
        let evenly = |n_resident| {
            let needs = needs(&layers, n_resident, 0);
            let alike = vec![needs.iter().sum(); devices.len()];
            let n_layers = divide(&needs, &alike).expect("each has room for all");
            shares(&layers, &n_layers, n_resident)
        };
        if n_layers.is_some() && (spread || devices.len() == 1) {
            return evenly(most);
        }
        let beside = beside / layers.len() as u64;
        let all: u64 = needs(&layers, most, beside).iter().sum();
        let room = |device| room(device, all + OWN_BYTES).saturating_sub(OWN_BYTES);
        let rooms: Vec<u64> = devices.iter().map(room).collect();
        let least = n_layers.map_or(0, |_| most);
        for n_resident in (least..=most).rev() {
            let needs = needs(&layers, n_resident, beside);
            let fewest = if spread || n_resident < most { devices.len() } else { 1 };
            let n_layers = (fewest..=devices.len()).find_map(|n| divide(&needs, &rooms[..n]));
            if let Some(n_layers) = n_layers {
                return shares(&layers, &n_layers, n_resident);
            }
        }
        // Loading says that there is too little memory, or does with less for keys and values.
        evenly(least)
    }
}

impl LayerBytes {
    fn of(ops: &[Op], program: &Program, experts: &dyn PackedExperts) -> Self {
        let layer = ops.iter().find_map(|op| match op {
            Op::Experts { layer, .. } => Some(*layer),
            _ => None,
        });
        let bytes = |layer| {
            let shape = experts.shape(layer);
            shape.map_or(0, |shape| (experts.n_experts(layer) * shape.bytes()) as u64)
        };
        Self { dense: program.matrix_bytes(ops) as u64, experts: layer.map(bytes) }
    }
}

/// Bytes of each layer with the experts of the first `n_resident` layers that have some, and `beside` more.
fn needs(layers: &[LayerBytes], mut n_resident: usize, beside: u64) -> Vec<u64> {
    let mut need = |layer: &LayerBytes| {
        let experts = layer.experts.filter(|_| n_resident > 0);
        n_resident -= usize::from(experts.is_some());
        layer.dense + experts.unwrap_or(0) + beside
    };
    layers.iter().map(&mut need).collect()
}

fn shares(layers: &[LayerBytes], n_layers: &[usize], mut n_resident: usize) -> Vec<Share> {
    let mut rest = layers;
    let mut share = |n_layers: usize| {
        let (mine, others) = rest.split_at(n_layers);
        rest = others;
        let n_sparse = mine.iter().filter(|layer| layer.experts.is_some()).count();
        let here = n_sparse.min(n_resident);
        n_resident -= here;
        Share { n_layers, n_resident: here }
    };
    n_layers.iter().filter(|n| **n > 0).map(|n| share(*n)).collect()
}

/// How many neighbouring layers each GPU takes, by what they need and what room there is; none if they do not fit.
fn divide(needs: &[u64], rooms: &[u64]) -> Option<Vec<usize>> {
    let fill = |load: f64| {
        let mut rest = needs;
        let take = |room: &u64| {
            // A room is used as a whole at a load of one, without a rounding.
            let mut left = if load < 1.0 { (*room as f64 * load) as u64 } else { *room };
            let takes = |need: &&u64| {
                let fits = **need <= left;
                left -= if fits { **need } else { 0 };
                fits
            };
            let n = rest.iter().take_while(takes).count();
            rest = &rest[n..];
            n
        };
        let n_layers: Vec<usize> = rooms.iter().map(take).collect();
        rest.is_empty().then_some(n_layers)
    };
    let mut best = fill(1.0)?;
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..N_HALVINGS {
        let load = (low + high) / 2.0;
        match fill(load) {
            Some(filled) => (best, high) = (filled, load),
            None => low = load,
        }
    }
    Some(best)
}

/// How many of so many bytes the GPU has room for.
fn room(device: &GpuDevice, bytes: u64) -> u64 {
    let wgpu = device.wgpu();
    let [most, least] = PIECE_BYTES;
    let mut piece = most.min(wgpu.limits().max_buffer_size);
    let mut held: Vec<wgpu::Buffer> = Vec::new();
    let mut room = 0;
    while room < bytes {
        let size = (bytes - room).min(piece);
        let scope = wgpu.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let buffer = wgpu.create_buffer(&wgpu::BufferDescriptor {
            label: Some("room"),
            size: size.next_multiple_of(16),
            usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        match pollster(scope.pop()) {
            None => {
                held.push(buffer);
                room += size;
            }
            Some(_) if piece > least => piece /= 2,
            Some(_) => break,
        }
    }
    held.iter().for_each(wgpu::Buffer::destroy);
    // A device that fails here fails its health, which is looked at later.
    let _ = wgpu.poll(wgpu::PollType::Poll);
    room
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYERS: [LayerBytes; 6] = [
        LayerBytes { dense: 1, experts: None },
        LayerBytes { dense: 1, experts: Some(9) },
        LayerBytes { dense: 1, experts: Some(9) },
        LayerBytes { dense: 1, experts: Some(9) },
        LayerBytes { dense: 1, experts: Some(9) },
        LayerBytes { dense: 5, experts: Some(9) },
    ];

    #[test]
    fn the_fullest_is_as_little_full_as_can_be() {
        let needs = needs(&LAYERS, 5, 0);
        assert_eq!(needs, [1, 10, 10, 10, 10, 14]);
        assert_eq!(divide(&needs, &[55]), Some(vec![6]));
        assert_eq!(divide(&needs, &[54]), None);
        assert_eq!(divide(&needs, &[100, 100]), Some(vec![4, 2]));
        assert_eq!(divide(&needs, &[20, 100]), Some(vec![1, 5]));
        assert_eq!(divide(&needs, &[31, 24]), Some(vec![4, 2]), "both are full");
        assert_eq!(divide(&needs, &[31, 23]), None);
        assert_eq!(divide(&needs, &[0, 100]), Some(vec![0, 6]));
    }

    #[test]
    fn experts_without_room_are_those_of_the_last_layers() {
        let needs = needs(&LAYERS, 2, 3);
        assert_eq!(needs, [4, 13, 13, 4, 4, 8]);
        let n_layers = divide(&needs, &[30, 30]).unwrap();
        assert_eq!(n_layers, [2, 4]);
        let share = |n_layers, n_resident| Share { n_layers, n_resident };
        assert_eq!(shares(&LAYERS, &n_layers, 2), [share(2, 1), share(4, 1)]);
        assert_eq!(shares(&LAYERS, &[0, 6], 0), [share(6, 0)]);
    }
}
