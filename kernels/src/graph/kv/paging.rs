//! How layers are spread over pages: those with windows apart from those that see all positions, in pages of one size.

use super::KvLayout;
use crate::simd::PAGE_POSITIONS;

/// The pages of a block of [`PAGE_POSITIONS`] positions.
#[derive(Debug)]
pub(super) struct Paging {
    /// Layers in a page.
    pub(super) layers_per_page: usize,
    /// Pages of a block that a sequence has to its end.
    pub(super) n_lasting: usize,
    /// Pages of a block that a sequence has while a window reaches it.
    pub(super) n_windowed: usize,
    /// The widest window; 0 if no layer has one.
    pub(super) window: usize,
    /// Where each layer's keys and values are (L).
    places: Vec<Place>,
}

/// Where the keys and values of a layer are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Whether they are in pages that windows leave.
    pub(super) is_windowed: bool,
    /// The page among those of its kind in a block.
    pub(super) page: usize,
    /// The layer's number in the page.
    pub(super) layer: usize,
}

impl Paging {
    /// A window as wide as the longest sequence is none.
    pub(super) fn of(layout: &KvLayout) -> Self {
        let window_of = |window: &Option<usize>| window.filter(|window| *window < layout.max_positions);
        let windows: Vec<Option<usize>> = layout.windows.iter().map(window_of).collect();
        let n_windowed_layers = windows.iter().flatten().count();
        let n_lasting_layers = windows.len() - n_windowed_layers;
        let layers_per_page = match n_windowed_layers {
            0 => n_lasting_layers,
            n => gcd(n_lasting_layers, n),
        };
        let (mut seen, mut places) = ([0; 2], Vec::new());
        for window in &windows {
            let n = &mut seen[usize::from(window.is_some())];
            places.push(Place {
                is_windowed: window.is_some(),
                page: *n / layers_per_page,
                layer: *n % layers_per_page,
            });
            *n += 1;
        }
        Self {
            layers_per_page,
            n_lasting: if n_windowed_layers == 0 { 1 } else { n_lasting_layers / layers_per_page },
            n_windowed: n_windowed_layers.checked_div(layers_per_page).unwrap_or(0),
            window: windows.iter().flatten().copied().max().unwrap_or(0),
            places,
        }
    }

    pub(super) fn place(&self, layer: usize) -> Place {
        self.places[layer]
    }

    /// Layers that see all positions.
    pub(super) fn n_lasting_layers(&self) -> usize {
        self.n_lasting * self.layers_per_page
    }

    /// The first block that a row at `position` or later sees through a window.
    pub(super) fn first_block(&self, position: usize) -> usize {
        (position + 1).saturating_sub(self.window) / PAGE_POSITIONS
    }

    /// The most pages of a sequence of `positions`, if steps bring up to `rows` rows.
    pub(super) fn pages_of(&self, positions: usize, rows: usize) -> usize {
        let n_blocks = positions.div_ceil(PAGE_POSITIONS);
        let n_windowed = n_blocks.min(self.windowed_blocks(rows)).saturating_mul(self.n_windowed);
        n_blocks.saturating_mul(self.n_lasting).saturating_add(n_windowed)
    }

    /// The positions that fit into `pages`, if steps bring up to `rows` rows; at most `most`.
    pub(super) fn positions_in(&self, pages: usize, rows: usize, most: usize) -> usize {
        let n_windowed = self.windowed_blocks(rows);
        let whole_blocks = pages / (self.n_lasting + self.n_windowed);
        if whole_blocks < n_windowed || self.n_windowed == 0 {
            return whole_blocks * PAGE_POSITIONS;
        }
        let lasting = pages - n_windowed * self.n_windowed;
        let n_blocks = lasting.checked_div(self.n_lasting).unwrap_or(usize::MAX);
        n_blocks.saturating_mul(PAGE_POSITIONS).min(most)
    }

    /// The most blocks that hold what the rows of a step and the windows before them see.
    fn windowed_blocks(&self, rows: usize) -> usize {
        // As many positions in a row, which may begin at the end of a block.
        let n_positions = (self.window + rows).saturating_sub(1);
        (n_positions + PAGE_POSITIONS - 2) / PAGE_POSITIONS + 1
    }
}

/// The greatest common divisor.
fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
