//! Attention against its twin, and its bits whoever else attends beside a row.

use super::*;
use crate::{
    cpu::{self, AttentionShape, CachedRows, Scores},
    nmse,
    noise::noise,
    simd::Simd,
};

/// Every row attends to the same pages, row `t` to `positions[t]` of them.
struct Cached {
    pages: Vec<Vec<u8>>,
    positions: Vec<usize>,
}

impl Pages for Cached {
    fn positions(&self, row: usize) -> usize {
        self.positions[row]
    }
    fn page(&self, _: usize, page: usize) -> &[u8] {
        &self.pages[page]
    }
}

#[test]
fn agrees_with_its_twin_and_a_row_keeps_its_bits_in_any_batch() {
    // Groups of 8, 3 and 1 heads; widths that are whole vectors and widths that are not.
    for (n_heads, n_kv_heads, head_width) in [(16, 2, 32), (6, 2, 20), (1, 1, 2)] {
        // Rounding of keys moves scores, and so every weight: q8_0 has 4 bits less than f16, 256 times the power.
        let formats = [(KvFormat::F32, 1e-11), (KvFormat::F16, 1e-6), (KvFormat::Q8_0, 2.56e-4)];
        for (format, tolerance) in formats {
            let n_positions = 2 * SEGMENT + 40;
            let shape = KvShape { format, n_kv_heads, head_width };
            let width = n_kv_heads * head_width;
            let n_pages = n_positions.div_ceil(PAGE_POSITIONS);
            let (keys, values) = (noise(1, n_positions * width, 2.0), noise(2, n_positions * width, 1.0));
            let mut pages = vec![vec![0; shape.page_bytes()]; n_pages];
            for (p, (key, value)) in keys.chunks(width).zip(values.chunks(width)).enumerate() {
                shape.write(&mut pages[p / PAGE_POSITIONS], p % PAGE_POSITIONS, key, value).unwrap();
            }
            let positions = vec![1, 15, 33, SEGMENT, SEGMENT + 1, n_positions, 2 * SEGMENT];
            let row_len = n_heads * head_width;
            let q = noise(3, positions.len() * row_len, 2.0);
            let cached = Cached { pages, positions };

            let twin_shape = AttentionShape { n_heads, n_kv_heads, head_width, page_positions: n_positions };
            let (key_pages, value_pages) = ([keys.as_slice()], [values.as_slice()]);
            let rows: Vec<_> = (cached.positions.iter())
                .map(|&positions| CachedRows { first: 0, keys: &key_pages, values: &value_pages, positions })
                .collect();
            let mut twin = vec![f32::NAN; q.len()];
            cpu::attention(&twin_shape, &Scores::plain(head_width), &q, &rows, &mut twin);

            let mut expected: Option<Vec<u32>> = None;
            for simd in Simd::available() {
                let processor = Processor::new(simd, 3);
                let mut scratch = AttentionScratch::default();
                let mut out = vec![f32::NAN; q.len()];
                attention(&processor, &shape, n_heads, &q, &cached, &mut scratch, &mut out);
                assert!(nmse(&out, &twin) < tolerance, "{simd} {format} {}", nmse(&out, &twin));
                let bits: Vec<u32> = out.iter().map(|x| x.to_bits()).collect();
                for (t, (q, out)) in q.chunks(row_len).zip(out.chunks(row_len)).enumerate() {
                    let one = Cached { pages: cached.pages.clone(), positions: vec![cached.positions[t]] };
                    let mut alone = vec![f32::NAN; row_len];
                    attention(&processor, &shape, n_heads, q, &one, &mut scratch, &mut alone);
                    assert_eq!(alone, out, "{simd} {format}");
                    // Without room to spread its segments.
                    let job = Attention {
                        shape: &shape,
                        q: if head_width.is_multiple_of(ROWS) {
                            q
                        } else {
                            pad(q, head_width, shape.padded_width(), &mut scratch.q)
                        },
                        width: shape.padded_width(),
                        heads_each: n_heads / n_kv_heads,
                        at_once: simd.max_heads(),
                        n_heads,
                        pages: &one,
                    };
                    alone.fill(f32::NAN);
                    let parts = Disjoint::new(&mut alone);
                    (0..n_kv_heads).for_each(|group| job.whole(&processor, group, &parts));
                    assert_eq!(alone, out, "{simd} {format}");
                }
                assert_eq!(*expected.get_or_insert_with(|| bits.clone()), bits, "{simd} {format}");
            }
        }
    }
}
