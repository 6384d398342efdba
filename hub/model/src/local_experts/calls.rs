//! Sorts a routing by expert: each expert's rows, and the position of each row's results.

use half::f16;
use moex_kernels::engine::Pair;
use moex_protocol::Routing;

/// A sorted routing, in reused memory.
#[derive(Default)]
pub(super) struct SortedCalls {
    /// By expert, then row (P).
    chosen: Vec<(u16, Pair)>,
    pairs: Vec<Pair>,
    /// Experts, with the end of their pairs.
    ends: Vec<(u16, usize)>,
    k: usize,
    /// Positions of each row's results, in ascending expert order (T, K).
    of_row: Vec<u32>,
    /// Number of known positions per row (T).
    n_of_row: Vec<u32>,
}

impl SortedCalls {
    /// Sorts `routing`; rounds its gates as on the wire, if there is one.
    pub(super) fn sort(&mut self, routing: &Routing, crosses_wire: bool) {
        self.k = routing.k.max(1);
        let n_rows = routing.experts.len() / self.k;
        self.chosen.clear();
        for (i, (expert, gate)) in routing.experts.iter().zip(&routing.gates).enumerate() {
            let gate = if crosses_wire { f16::from_f32(*gate).to_f32() } else { *gate };
            self.chosen.push((*expert, Pair { row: (i / self.k) as u32, gate }));
        }
        self.chosen.sort_unstable_by_key(|(expert, pair)| (*expert, pair.row));
        self.pairs.clear();
        self.ends.clear();
        self.of_row.resize(self.chosen.len(), 0);
        self.n_of_row.clear();
        self.n_of_row.resize(n_rows, 0);
        for (p, (expert, pair)) in self.chosen.iter().enumerate() {
            self.pairs.push(*pair);
            match self.ends.last_mut() {
                Some((last, end)) if last == expert => *end = p + 1,
                _ => self.ends.push((*expert, p + 1)),
            }
            let n = &mut self.n_of_row[pair.row as usize];
            self.of_row[pair.row as usize * self.k + *n as usize] = p as u32;
            *n += 1;
        }
    }

    /// T.
    pub(super) fn n_rows(&self) -> usize {
        self.n_of_row.len()
    }

    /// (P), expert after expert, rows ascending.
    pub(super) fn pairs(&self) -> &[Pair] {
        &self.pairs
    }

    /// Experts, ascending, with the end of their pairs.
    pub(super) fn ends(&self) -> &[(u16, usize)] {
        &self.ends
    }

    /// Each expert with its pairs.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u16, &[Pair])> {
        let starts = std::iter::once(0).chain(self.ends.iter().map(|(_, end)| *end));
        self.ends.iter().zip(starts).map(|((expert, end), start)| (*expert, &self.pairs[start..*end]))
    }

    /// The pairs of row `t`, in ascending expert order (K).
    pub(super) fn of_row(&self, t: usize) -> &[u32] {
        &self.of_row[t * self.k..][..self.k]
    }
}
