//! Causal grouped-query attention over cached keys and values where they lie.
//!
//! The positions that a row attends to are taken in segments of [`SEGMENT`]. A segment gives scores, their softmax
//! within the segment, and the weighted sum of the values; segments are then joined one after another. The query heads
//! that share a key head meet each of its vectors together. With few rows, segments are spread over all threads; with
//! many, they stay with their row. The arithmetic, and so every bit, is the same.

#[cfg(test)]
mod tests;

use super::{
    Processor,
    disjoint::Disjoint,
    exp::exp,
    isa::{Isa, Kernel, ROWS},
    kv::{KvFormat, KvShape, PAGE_POSITIONS, SCALE_BYTES},
    kv_vector::CachedVector,
};
use crate::{
    cpu::fold,
    quant::{
        UNIT,
        float::{F16, F32},
        q8_0::Q8_0,
    },
};

/// Positions whose scores are normalised together; a part of the result's definition.
const SEGMENT: usize = 256;
/// The most query heads that meet a vector at once.
const MAX_HEADS: usize = 8;
/// How many pages ahead values are prefetched: of each page a kilobyte is read, then the next page's.
const PAGES_AHEAD: usize = 3;
/// The most floats in which segments wait to be joined: 4 MiB.
const MAX_WAITING: usize = 1 << 20;

/// The cached pages of the sequences in a query.
pub trait Pages: Sync {
    /// S, how many positions row `row` attends to: the first ones, its own included.
    fn positions(&self, row: usize) -> usize;
    /// Page `page` of the sequence that row `row` belongs to.
    fn page(&self, row: usize, page: usize) -> &[u8];
}

/// Working memory of [`attention`]. It grows to the largest step, then allocates no more.
#[derive(Clone, Debug, Default)]
pub struct AttentionScratch {
    /// (T, H, padded C), where C is no multiple of 16.
    q: Vec<f32>,
    /// (T, H, segments, 2 + padded C): a segment's largest score, the sum of its weights, its weighted values.
    waiting: Vec<f32>,
}

/// `softmax(q . k / sqrt(C)) v` for each row and head: `q` (T, H, C) to `out` (T, H, C), row `t` over its own pages of
/// `shape`. Query head `h` reads key and value head `h / (H / G)`.
///
/// # Panics
/// If `q` and `out` are not T rows of `n_heads` heads, the heads do not share evenly, a page has another shape, or a row
/// attends to nothing.
pub fn attention(
    processor: &Processor,
    shape: &KvShape,
    n_heads: usize,
    q: &[f32],
    pages: &impl Pages,
    scratch: &mut AttentionScratch,
    out: &mut [f32],
) {
    let KvShape { n_kv_heads, head_width, .. } = *shape;
    assert!(n_kv_heads > 0 && n_heads.is_multiple_of(n_kv_heads), "query heads share key heads evenly");
    let n_rows = q.len() / (n_heads * head_width); // T
    assert_eq!((q.len(), out.len()), (n_rows * n_heads * head_width, q.len()), "rows of (H, C)");
    let width = shape.padded_width();
    let AttentionScratch { q: padded, waiting } = scratch;
    let q = if width == head_width { q } else { pad(q, head_width, width, padded) };

    let most = (0..n_rows).map(|row| pages.positions(row)).max().unwrap_or(0).div_ceil(SEGMENT);
    let n_floats = n_rows * n_heads * most * (2 + width);
    let (heads_each, at_once) = (n_heads / n_kv_heads, processor.simd().max_heads());
    let job = Attention { shape, q, width, heads_each, at_once, n_heads, pages };
    let out = Disjoint::new(out);
    let n_groups = n_rows * n_kv_heads;
    if most <= 1 || n_floats > MAX_WAITING {
        return processor.pool().run(n_groups, &|group| job.whole(processor, group, &out));
    }
    waiting.resize(n_floats, 0.0);
    let stored = Disjoint::new(waiting);
    processor.pool().run(n_groups * most, &|task| {
        let (group, segment) = (task / most, task % most);
        job.each_tile(group, |row, head, n| {
            if segment * SEGMENT >= pages.positions(row) {
                return;
            }
            let mut sums = [[0.0; 2]; MAX_HEADS];
            let at = |h: usize| ((row * n_heads + head + h) * most + segment) * (2 + width);
            let mut values: [&mut [f32]; MAX_HEADS] = std::array::from_fn(|h| {
                // SAFETY: this segment of these heads of this row is this task's alone.
                if h < n { unsafe { stored.part(at(h) + 2..at(h) + 2 + width) } } else { &mut [] }
            });
            job.segment(processor, (row, head), segment, &mut sums[..n], &mut values[..n]);
            for (h, sums) in sums[..n].iter().enumerate() {
                // SAFETY: as above.
                unsafe { stored.part(at(h)..at(h) + 2) }.copy_from_slice(sums);
            }
        });
    });
    processor.pool().run(n_groups, &|group| {
        job.each_tile(group, |row, head, n| {
            for head in head..head + n {
                let n_segments = pages.positions(row).div_ceil(SEGMENT);
                let start = (row * n_heads + head) * most * (2 + width);
                // SAFETY: this head of this row is this task's alone.
                let stored = unsafe { stored.part(start..start + n_segments * (2 + width)) };
                let (joined, rest) = stored.split_at_mut(2 + width);
                let (sums, values) = joined.split_at_mut(2);
                for segment in rest.chunks_exact(2 + width) {
                    join(sums, values, &segment[..2], &segment[2..]);
                }
                // SAFETY: as above.
                let out = unsafe { job.out(&out, row, head) };
                finish(sums, values, out);
            }
        });
    });
}

/// Pads heads to `width` columns with zeros.
fn pad<'a>(q: &[f32], head_width: usize, width: usize, padded: &'a mut Vec<f32>) -> &'a [f32] {
    padded.clear();
    padded.resize(q.len() / head_width * width, 0.0);
    for (padded, q) in padded.chunks_exact_mut(width).zip(q.chunks_exact(head_width)) {
        padded[..head_width].copy_from_slice(q);
    }
    padded
}

/// Joins one more segment to `sums` and `values`; the sums are a largest score and the sum of the weights.
fn join(sums: &mut [f32], values: &mut [f32], more_sums: &[f32], more_values: &[f32]) {
    let largest = sums[0].max(more_sums[0]);
    let (kept, taken) = (libm::expf(sums[0] - largest), libm::expf(more_sums[0] - largest));
    (sums[0], sums[1]) = (largest, sums[1] * kept + more_sums[1] * taken);
    for (value, more) in values.iter_mut().zip(more_values) {
        *value = *value * kept + more * taken;
    }
}

fn finish(sums: &[f32], values: &[f32], out: &mut [f32]) {
    let scale = 1.0 / sums[1];
    for (out, value) in out.iter_mut().zip(values) {
        *out = value * scale;
    }
}

struct Attention<'a, P> {
    shape: &'a KvShape,
    /// (T, H, width).
    q: &'a [f32],
    /// C, padded.
    width: usize,
    /// H / G.
    heads_each: usize,
    /// Of these, how many meet a vector together.
    at_once: usize,
    /// H.
    n_heads: usize,
    pages: &'a P,
}

impl<P: Pages> Attention<'_, P> {
    /// Runs `work(row, first head, heads)` for the query heads of a group: heads of one row that share a key head.
    fn each_tile(&self, group: usize, work: impl Fn(usize, usize, usize)) {
        let (row, g) = (group / self.shape.n_kv_heads, group % self.shape.n_kv_heads);
        let mut done = 0;
        while done < self.heads_each {
            let n = match (self.heads_each - done).min(self.at_once) {
                MAX_HEADS.. => MAX_HEADS,
                4.. => 4,
                2.. => 2,
                _ => 1,
            };
            work(row, g * self.heads_each + done, n);
            done += n;
        }
    }

    /// Computes a group with all its segments.
    fn whole(&self, processor: &Processor, group: usize, out: &Disjoint<'_, f32>) {
        /// Working memory for heads of an ordinary width.
        const FLOATS: usize = 2 * MAX_HEADS * 256;
        self.each_tile(group, |row, head, n| {
            let (mut small, mut large) = ([0.0; FLOATS], Vec::new());
            let floats = if 2 * n * self.width <= FLOATS {
                &mut small[..2 * n * self.width]
            } else {
                large.resize(2 * n * self.width, 0.0);
                &mut large[..]
            };
            let (joined, rest) = floats.split_at_mut(n * self.width);
            let mut all = [[0.0; 2]; MAX_HEADS];
            for segment in 0..self.pages.positions(row).div_ceil(SEGMENT) {
                let mut sums = [[0.0; 2]; MAX_HEADS];
                let mut parts =
                    if segment == 0 { &mut *joined } else { &mut *rest }.chunks_exact_mut(self.width);
                let mut values: [&mut [f32]; MAX_HEADS] =
                    std::array::from_fn(|_| parts.next().unwrap_or_default());
                self.segment(processor, (row, head), segment, &mut sums[..n], &mut values[..n]);
                if segment == 0 {
                    all = sums;
                    continue;
                }
                let heads = joined.chunks_exact_mut(self.width).zip(rest.chunks_exact(self.width));
                for ((all, sums), (joined, values)) in all.iter_mut().zip(&sums).zip(heads) {
                    join(all, joined, sums, values);
                }
            }
            for (h, (sums, values)) in all.iter().zip(joined.chunks_exact(self.width)).enumerate() {
                // SAFETY: these heads of this row are this task's alone.
                finish(sums, values, unsafe { self.out(out, row, head + h) });
            }
        });
    }

    /// # Safety
    /// While the slice is in use, nobody else may have the same head of the same row.
    unsafe fn out<'o>(&self, out: &Disjoint<'o, f32>, row: usize, head: usize) -> &'o mut [f32] {
        let width = self.shape.head_width;
        let start = (row * self.n_heads + head) * width;
        // SAFETY: by the contract.
        unsafe { out.part(start..start + width) }
    }

    /// Computes one segment of `sums.len()` heads of a row, starting at head `head`.
    fn segment(
        &self,
        processor: &Processor,
        (row, head): (usize, usize),
        segment: usize,
        sums: &mut [[f32; 2]],
        values: &mut [&mut [f32]],
    ) {
        match self.shape.format {
            KvFormat::F32 => self.tile::<F32>(processor, (row, head), segment, sums, values),
            KvFormat::F16 => self.tile::<F16>(processor, (row, head), segment, sums, values),
            KvFormat::Q8_0 => self.tile::<Q8_0>(processor, (row, head), segment, sums, values),
        }
    }

    fn tile<V: CachedVector>(
        &self,
        processor: &Processor,
        at: (usize, usize),
        segment: usize,
        sums: &mut [[f32; 2]],
        values: &mut [&mut [f32]],
    ) {
        match sums.len() {
            8 => self.heads::<V, 8>(processor, at, segment, sums, values),
            4 => self.heads::<V, 4>(processor, at, segment, sums, values),
            2 => self.heads::<V, 2>(processor, at, segment, sums, values),
            _ => self.heads::<V, 1>(processor, at, segment, sums, values),
        }
    }

    fn heads<V: CachedVector, const N: usize>(
        &self,
        processor: &Processor,
        (row, head): (usize, usize),
        segment: usize,
        sums: &mut [[f32; 2]],
        values: &mut [&mut [f32]],
    ) {
        let first = segment * SEGMENT;
        let n_positions = SEGMENT.min(self.pages.positions(row) - first);
        let mut pages: [&[u8]; SEGMENT / PAGE_POSITIONS] = [&[]; _];
        for (index, page) in pages[..n_positions.div_ceil(PAGE_POSITIONS)].iter_mut().enumerate() {
            *page = self.pages.page(row, first / PAGE_POSITIONS + index);
            assert_eq!(page.len(), self.shape.page_bytes(), "a page of this shape");
        }
        let q = |h: usize| &self.q[(row * self.n_heads + head + h) * self.width..][..self.width];
        let kernel = Segment::<V, N> {
            shape: self.shape,
            g: head / self.heads_each,
            q: std::array::from_fn(q),
            pages,
            n_positions,
            sums,
            values,
            format: std::marker::PhantomData,
        };
        processor.simd().run(kernel);
    }
}

/// One segment of N query heads that share a key head.
struct Segment<'a, 'v, V, const N: usize> {
    shape: &'a KvShape,
    g: usize,
    /// (padded C) each.
    q: [&'a [f32]; N],
    pages: [&'a [u8]; SEGMENT / PAGE_POSITIONS],
    n_positions: usize,
    sums: &'a mut [[f32; 2]],
    /// (padded C) each.
    values: &'a mut [&'v mut [f32]],
    format: std::marker::PhantomData<V>,
}

impl<V: CachedVector, const N: usize> Segment<'_, '_, V, N> {
    /// The keys of the sixteen positions after those from `first` on; empty after the last.
    #[inline(always)]
    fn keys_after(&self, first: usize) -> &[u8] {
        let next = first + ROWS;
        if next >= self.n_positions {
            return &[];
        }
        self.shape.keys(self.pages[next / PAGE_POSITIONS], self.g, next / ROWS % 2)
    }

    /// The values that are read [`PAGES_AHEAD`] pages after these; empty after the last.
    #[inline(always)]
    fn values_after(&self, sixteenth: usize, page: usize) -> &[u8] {
        let n_pages = self.n_positions.div_ceil(PAGE_POSITIONS);
        let (mut sixteenth, mut page) = (sixteenth, page + PAGES_AHEAD);
        while page >= n_pages {
            (sixteenth, page) = (sixteenth + 1, page - n_pages);
        }
        if sixteenth >= self.values[0].len() / ROWS {
            return &[];
        }
        self.shape.values(self.pages[page], self.g, sixteenth)
    }
}

impl<V: CachedVector, const N: usize> Kernel for Segment<'_, '_, V, N> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let scale = isa.splat(1.0 / (self.shape.head_width as f32).sqrt());
        let mut weights = [[0.0_f32; SEGMENT]; N];
        for first in (0..self.n_positions).step_by(ROWS) {
            let (page, half) = (self.pages[first / PAGE_POSITIONS], first / ROWS % 2);
            let keys = self.shape.keys(page, self.g, half);
            let mut next = self.keys_after(first).chunks(ROWS * V::BYTES);
            let mut scores = [isa.splat(0.0); N];
            for (c, columns) in keys.chunks_exact(ROWS * V::BYTES).enumerate() {
                let mut q: [&[f32; ROWS]; N] = [&[0.0; ROWS]; N];
                for (q, all) in q.iter_mut().zip(&self.q) {
                    *q = all[c * ROWS..].first_chunk().expect("padded to whole vectors");
                }
                if I::CACHE_AHEAD {
                    isa.prefetch(next.next().unwrap_or_default());
                }
                let scales = V::scales(isa, self.shape.key_scales(page, self.g, half, c * ROWS / UNIT));
                for (i, column) in columns.chunks_exact(V::BYTES).enumerate() {
                    let key = V::load(isa, column, scales);
                    for n in 0..N {
                        scores[n] = isa.mul_add(key, isa.splat(q[n][i]), scores[n]);
                    }
                }
            }
            for n in 0..N {
                weights[n][first..first + ROWS].copy_from_slice(&isa.to_array(isa.mul(scores[n], scale)));
            }
        }
        for (sums, weights) in self.sums.iter_mut().zip(&mut weights) {
            *sums = softmax(isa, weights, self.n_positions);
        }
        for sixteenth in 0..self.values[0].len() / ROWS {
            let mut sums = [isa.splat(0.0); N];
            for (page, bytes) in self.pages[..self.n_positions.div_ceil(PAGE_POSITIONS)].iter().enumerate() {
                if I::CACHE_AHEAD {
                    isa.prefetch(self.values_after(sixteenth, page));
                }
                let n_here = PAGE_POSITIONS.min(self.n_positions - page * PAGE_POSITIONS);
                let mut weights_here: [&[f32; PAGE_POSITIONS]; N] = [&[0.0; PAGE_POSITIONS]; N];
                for n in 0..N {
                    weights_here[n] =
                        weights[n][page * PAGE_POSITIONS..].first_chunk().expect("a segment is whole pages");
                }
                let mut scales = [[0.0; ROWS]; PAGE_POSITIONS / ROWS];
                let stored = self.shape.value_scales(bytes, self.g, sixteenth * ROWS / UNIT);
                for (scales, stored) in scales.iter_mut().zip(stored.chunks_exact(SCALE_BYTES)) {
                    *scales = isa.to_array(V::scales(isa, stored));
                }
                let values = self.shape.values(bytes, self.g, sixteenth);
                for (p, value) in values.chunks_exact(V::BYTES).take(n_here).enumerate() {
                    let scale = scales.as_flattened()[p % PAGE_POSITIONS];
                    let value = V::load(isa, value, isa.splat(scale));
                    for n in 0..N {
                        sums[n] = isa.mul_add(value, isa.splat(weights_here[n][p % PAGE_POSITIONS]), sums[n]);
                    }
                }
            }
            for (values, sums) in self.values.iter_mut().zip(sums) {
                values[sixteenth * ROWS..][..ROWS].copy_from_slice(&isa.to_array(sums));
            }
        }
    }
}

/// The first `n` scores become `exp(score - largest)`, the others 0; returns the largest and the sum.
#[inline(always)]
fn softmax<I: Isa>(isa: I, scores: &mut [f32; SEGMENT], n: usize) -> [f32; 2] {
    scores[n..].fill(f32::NEG_INFINITY);
    let (vectors, _) = scores.as_chunks_mut::<ROWS>();
    let mut largest = [f32::NEG_INFINITY; ROWS];
    for vector in &mut *vectors {
        for (largest, score) in largest.iter_mut().zip(&*vector) {
            *largest = if *score > *largest { *score } else { *largest };
        }
    }
    let largest = largest.iter().fold(f32::NEG_INFINITY, |m, &x| if x > m { x } else { m });
    let mut sums = isa.splat(0.0);
    for (index, vector) in vectors[..n.div_ceil(ROWS)].iter_mut().enumerate() {
        *vector = isa.to_array(exp(isa, isa.sub(isa.lanes(vector), isa.splat(largest))));
        let beyond = n - index * ROWS;
        if beyond < ROWS {
            vector[beyond..].fill(0.0);
        }
        sums = isa.add(sums, isa.lanes(vector));
    }
    [largest, fold(isa.to_array(sums))]
}
