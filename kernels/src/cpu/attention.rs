//! Causal grouped-query attention over a paged KV cache.

use std::ops::Range;

use super::{dot, parallel, softmax};

/// The widths of a model's attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionShape {
    /// H, query heads; a multiple of G.
    pub n_heads: usize,
    /// G, key and value heads.
    pub n_kv_heads: usize,
    /// C, the width of each.
    pub head_width: usize,
    /// Positions in a page.
    pub page_positions: usize,
}

/// How products of queries and keys become scores, and which positions have one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scores<'a> {
    /// What products are multiplied by.
    pub scale: f32,
    /// Scores are `cap * tanh(score / cap)`.
    pub softcap: Option<f32>,
    /// How many positions a row sees: its own and those before it. `None`: all.
    pub window: Option<usize>,
    /// A score for each query head (H) that takes part in the softmax and is then dropped (attention sinks); empty
    /// without sinks.
    pub sinks: &'a [f32],
}

impl Scores<'_> {
    /// `q . k / sqrt(C)` over all positions.
    pub fn plain(head_width: usize) -> Self {
        Self { scale: 1.0 / (head_width as f32).sqrt(), softcap: None, window: None, sinks: &[] }
    }

    /// The first of `positions` that the last of them sees.
    fn first_seen(&self, positions: usize) -> usize {
        self.window.map_or(0, |window| positions.saturating_sub(window))
    }

    fn of(&self, product: f32) -> f32 {
        match self.softcap {
            None => product * self.scale,
            Some(cap) => soft_cap(product * self.scale, cap),
        }
    }
}

/// `cap * tanh(x / cap)`.
pub fn soft_cap(x: f32, cap: f32) -> f32 {
    libm::tanhf(x / cap) * cap
}

/// The cached positions that one row attends to: the first `positions` of its sequence, its own included, as far as its
/// window reaches.
#[derive(Clone, Copy, Debug)]
pub struct CachedRows<'a> {
    /// The position that the first page begins with: what is before it, the row does not see.
    pub first: usize,
    /// Pages of (page_positions, G, C), in order.
    pub keys: &'a [&'a [f32]],
    /// Pages of (page_positions, G, C), in order.
    pub values: &'a [&'a [f32]],
    /// S.
    pub positions: usize,
}

/// `softmax(scores(q . k)) v` for each row and head: `q` (T, H, C), row `t` over `cached[t]`, to `out` (T, H, C).
/// Query head `h` reads key and value head `h / (H / G)`. The rows may be of different sequences.
///
/// # Panics
/// If lengths do not fit the shape, or a row attends to nothing or to what its pages do not hold.
pub fn attention(
    shape: &AttentionShape,
    scoring: &Scores<'_>,
    q: &[f32],
    cached: &[CachedRows<'_>],
    out: &mut [f32],
) {
    let AttentionShape { n_heads, n_kv_heads, head_width, page_positions } = *shape;
    assert!(n_kv_heads > 0 && n_heads.is_multiple_of(n_kv_heads), "query heads share key heads evenly");
    assert_eq!(q.len(), cached.len() * n_heads * head_width, "rows of (H, C)");
    assert_eq!(out.len(), q.len(), "rows of (H, C)");
    assert!(scoring.sinks.is_empty() || scoring.sinks.len() == n_heads, "a sink for each head");
    let widest = cached.iter().map(|row| row.positions).max().unwrap_or(0); // the largest S
    for row in cached {
        let held = row.first + row.keys.len().min(row.values.len()) * page_positions;
        assert!((1..=held).contains(&row.positions), "{} positions of {held}", row.positions);
        let seen = scoring.first_seen(row.positions);
        assert!(row.first <= seen, "position {seen} is seen, and held from {} on", row.first);
    }
    let heads_per_task = (parallel::TASK_MULTIPLICATIONS / (2 * widest * head_width).max(1)).max(1);
    parallel::for_each_chunk(out, heads_per_task * head_width, |chunk, out| {
        let mut scores = Vec::with_capacity(widest + 1); // (S), and a sink
        for (i, out) in out.chunks_exact_mut(head_width).enumerate() {
            let head = chunk * heads_per_task + i; // of all T * H
            let q = &q[head * head_width..][..head_width];
            attend(shape, scoring, q, head % n_heads, &cached[head / n_heads], &mut scores, out);
        }
    });
}

/// Query head `head` of one row: `q` (C) to `out` (C).
fn attend(
    shape: &AttentionShape,
    scoring: &Scores<'_>,
    q: &[f32],
    head: usize,
    row: &CachedRows<'_>,
    scores: &mut Vec<f32>,
    out: &mut [f32],
) {
    let kv_head = head / (shape.n_heads / shape.n_kv_heads);
    let held = scoring.first_seen(row.positions) - row.first..row.positions - row.first;
    let seen = |pages| positions(shape, pages, kv_head, held.clone());
    scores.clear();
    scores.extend(seen(row.keys).map(|key| scoring.of(dot(q, key))));
    scores.extend(scoring.sinks.get(head));
    softmax(scores);
    out.fill(0.0);
    // The last weight is the sink's, which has no value.
    for (weight, value) in scores.iter().zip(seen(row.values)) {
        for (out, value) in out.iter_mut().zip(value) {
            *out += weight * value;
        }
    }
}

/// Key or value head `kv_head` (C) of these positions, counted from the first that `pages` hold.
fn positions<'a>(
    shape: &AttentionShape,
    pages: &'a [&'a [f32]],
    kv_head: usize,
    range: Range<usize>,
) -> impl Iterator<Item = &'a [f32]> {
    let (width, stride) = (shape.head_width, shape.n_kv_heads * shape.head_width);
    let heads = move |position: &'a [f32]| &position[kv_head * width..][..width];
    let first_page = range.start / shape.page_positions;
    let (skipped, n) = (range.start - first_page * shape.page_positions, range.len());
    let pages = pages[first_page..].iter();
    pages.flat_map(move |page| page.chunks_exact(stride).map(heads)).skip(skipped).take(n)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{nmse, noise::noise};

    const SHAPE: AttentionShape =
        AttentionShape { n_heads: 6, n_kv_heads: 2, head_width: 20, page_positions: 4 };

    /// All at once in f64, from keys and values (S, G, C).
    fn plainly(q: &[f32], keys: &[f32], values: &[f32], positions: usize) -> Vec<f32> {
        let AttentionShape { n_heads, n_kv_heads, head_width, .. } = SHAPE;
        let at =
            |x: &[f32], p: usize, g: usize, c: usize| f64::from(x[(p * n_kv_heads + g) * head_width + c]);
        let mut out = Vec::new();
        for h in 0..n_heads {
            let g = h / (n_heads / n_kv_heads);
            let score = |p| -> f64 {
                (0..head_width).map(|c| f64::from(q[h * head_width + c]) * at(keys, p, g, c)).sum()
            };
            let weights: Vec<f64> =
                (0..positions).map(|p| (score(p) / (head_width as f64).sqrt()).exp()).collect();
            let sum: f64 = weights.iter().sum();
            for c in 0..head_width {
                let value: f64 = weights.iter().enumerate().map(|(p, w)| w * at(values, p, g, c)).sum();
                out.push((value / sum) as f32);
            }
        }
        out
    }

    #[test]
    fn agrees_with_the_formula_and_a_row_keeps_its_bits_in_any_batch() {
        let page_len = SHAPE.page_positions * SHAPE.n_kv_heads * SHAPE.head_width;
        let (keys, values) = (noise(1, 3 * page_len, 2.0), noise(2, 3 * page_len, 1.0));
        let (key_pages, value_pages): (Vec<_>, Vec<_>) =
            (keys.chunks(page_len).collect(), values.chunks(page_len).collect());
        let row_len = SHAPE.n_heads * SHAPE.head_width;
        let q = noise(3, 12 * row_len, 2.0);
        let cached: Vec<_> = (1..=12)
            .map(|positions| CachedRows { first: 0, keys: &key_pages, values: &value_pages, positions })
            .collect();
        let mut out = vec![f32::NAN; q.len()];
        let plain = Scores::plain(SHAPE.head_width);
        attention(&SHAPE, &plain, &q, &cached, &mut out);
        for (t, (q, together)) in q.chunks(row_len).zip(out.chunks(row_len)).enumerate() {
            assert!(nmse(together, &plainly(q, &keys, &values, t + 1)) < 1e-10);
            let mut alone = vec![f32::NAN; row_len];
            attention(&SHAPE, &plain, q, &cached[t..=t], &mut alone);
            assert_eq!(alone, together);
        }
    }

    #[test]
    fn a_window_is_a_shorter_past_and_a_cap_bends_scores() {
        let page_len = SHAPE.page_positions * SHAPE.n_kv_heads * SHAPE.head_width;
        let (keys, values) = (noise(1, 3 * page_len, 2.0), noise(2, 3 * page_len, 1.0));
        let (key_pages, value_pages): (Vec<_>, Vec<_>) =
            (keys.chunks(page_len).collect(), values.chunks(page_len).collect());
        let q = noise(3, SHAPE.n_heads * SHAPE.head_width, 2.0);
        let row = CachedRows { first: 0, keys: &key_pages, values: &value_pages, positions: 11 };
        let run = |scores: Scores<'_>| {
            let mut out = vec![f32::NAN; q.len()];
            attention(&SHAPE, &scores, &q, &[row], &mut out);
            out
        };
        let plain = Scores::plain(SHAPE.head_width);
        // The window is the last five of 11 positions: the first six are not seen.
        let skip = 6 * SHAPE.n_kv_heads * SHAPE.head_width;
        let expected = plainly(&q, &keys[skip..], &values[skip..], 5);
        assert!(nmse(&run(Scores { window: Some(5), ..plain }), &expected) < 1e-10);
        assert_eq!(run(Scores { window: Some(11), ..plain }), run(plain), "as wide as the past");
        // Without the first page, whose four positions no window of seven reaches.
        let mut out = vec![f32::NAN; q.len()];
        let held = CachedRows { first: 4, keys: &key_pages[1..], values: &value_pages[1..], positions: 11 };
        attention(&SHAPE, &Scores { window: Some(7), ..plain }, &q, &[held], &mut out);
        assert_eq!(out, run(Scores { window: Some(7), ..plain }));
        let capped = run(Scores { softcap: Some(1e4), ..plain });
        assert!(nmse(&capped, &run(plain)) < 1e-6, "a cap far above all scores");
        assert!(nmse(&run(Scores { softcap: Some(0.5), ..plain }), &run(plain)) > 1e-3);
        // A sink as large as the sum of all others halves a head's output; one far below changes nothing.
        let far_below = run(Scores { sinks: &[-1e4; 6], ..plain });
        assert_eq!(far_below, run(plain));
        let keys_of_zero = [0.0; 240];
        let pages: Vec<&[f32]> = keys_of_zero.chunks(page_len).collect();
        let row = CachedRows { first: 0, keys: &[pages[0]; 3], values: &value_pages, positions: 8 };
        let (mut with, mut without) = (vec![0.0; q.len()], vec![0.0; q.len()]);
        attention(&SHAPE, &Scores { sinks: &[8.0_f32.ln(); 6], ..plain }, &q, &[row], &mut with);
        attention(&SHAPE, &plain, &q, &[row], &mut without);
        with.iter_mut().for_each(|x| *x *= 2.0);
        assert!(nmse(&with, &without) < 1e-10);
    }

    #[test]
    #[should_panic(expected = "position 3 is seen, and held from 4 on")]
    fn a_position_that_is_seen_must_be_held() {
        let page = vec![0.0; SHAPE.page_positions * SHAPE.n_kv_heads * SHAPE.head_width];
        let pages: [&[f32]; 2] = [&page; 2];
        let row = CachedRows { first: 4, keys: &pages, values: &pages, positions: 11 };
        let q = vec![0.0; SHAPE.n_heads * SHAPE.head_width];
        let scores = Scores { window: Some(8), ..Scores::plain(SHAPE.head_width) };
        attention(&SHAPE, &scores, &q, &[row], &mut q.clone());
    }
}
