//! The best logits of a row, beside all of them.

use super::*;
use crate::{
    graph::MatrixSource,
    simd::{Draw, draw},
};

/// Several parts of a row.
const WORDS: usize = 5000;

#[test]
fn the_best_logits_are_those_of_the_sorted_row() {
    // The logits after the first row are alike.
    let table = Matrix::noise(1, WeightFormat::F32, WORDS, HIDDEN).beginning_with_zeros();
    let head = Matrix::noise(2, WeightFormat::Q8_0, WORDS, HIDDEN);
    // More rows than a pass gives logits of at once.
    let ids: Vec<u32> = (0..N_TOKENS as u32).map(|i| i * 61 % WORDS as u32).collect();
    let Some(logits) = logits_with_best(table, head, &ids) else { return };
    assert!(ids[0] == 0 && logits[..WORDS].iter().all(|logit| *logit == 0.0));
}

#[test]
fn the_best_logits_are_found_where_few_threads_have_most_of_them() {
    // Four parts are dealt to 256 threads in turn: of 64 threads one has no large logit, and the others have more than a workgroup
    // keeps.
    const PART: usize = 64;
    let is_large = |part: usize, at: usize| at < if part % 4 == 3 { 15 } else { 16 };
    let logit = |part: usize, at: usize| if is_large(part, at) { (PART - part) as f32 } else { 0.0 };
    let of_column = |word: usize| [vec![logit(word / PART, word % PART)], vec![0.0; HIDDEN - 1]].concat();
    let words = PART * PART;
    let head: Vec<f32> = (0..words).flat_map(of_column).collect();
    let table: Vec<f32> = (0..words).flat_map(|_| [vec![1.0], vec![0.0; HIDDEN - 1]].concat()).collect();
    let head = Matrix::of(WeightFormat::Q8_0, (words, HIDDEN), &head);
    let table = Matrix::of(WeightFormat::F32, (words, HIDDEN), &table);
    let Some(logits) = logits_with_best(table, head, &[0]) else { return };
    let n_large = logits.iter().filter(|logit| **logit > 0.5).count();
    assert_eq!(n_large, PART * 16 - PART / 4);
}

/// The logits (T, V) after `ids`, of a model that is its embedding and its head; the best that a GPU gives are their best, and what it
/// draws is what the CPU draws. None without a GPU.
fn logits_with_best(table: Matrix, head: Matrix, ids: &[u32]) -> Option<Vec<f32>> {
    let device = device()?;
    let words = head.shape().0;
    let mut recorder = Recorder::default();
    let table = recorder.matrix(Arc::new(table), Rounding::Never);
    let x = recorder.embed(table);
    let x = recorder.keep_wanted(x);
    let head = recorder.matrix(Arc::new(head), Rounding::Never);
    let logits = recorder.linear("logits", x, (head, None));
    let processor = Arc::new(Processor::new(Simd::detect(), 2));
    let program = Program::simd(recorder.finish(logits), processor.clone(), None, || {}).unwrap();
    let kind = Kind::exact(WeightFormat::Q8_0);
    let packed = Packed::new(kind, &processor);
    let pass = GpuPass::new(from_ref(&device), &program, (&packed, ALL), &layout(kind)).unwrap();
    let mut kv = pass.kv_pool(layout(kind), usize::MAX, 1);
    let (mut table, mut out) = (KvTable::default(), DeviceOutput::default());
    assert!(kv.reserve(&mut table, ids.len()));
    let spans = [Span { ids, start: 0, table: &table, wanted: WantedLogits::All }];
    let step = |out: &mut DeviceOutput| pass.step(&spans, &kv, &mut nowhere, out).unwrap();
    step(&mut out);
    let logits = std::mem::take(&mut out.logits);
    assert!(out.best.is_empty());
    for n_best in [1, 2, 40, MAX_BEST] {
        out.n_best = n_best;
        step(&mut out);
        assert!(out.logits.is_empty());
        assert_eq!(out.best.len(), ids.len() * n_best);
        for (row, best) in logits.chunks(words).zip(out.best.chunks(n_best)) {
            let mut sorted: Vec<(u32, f32)> = (0..).zip(row.iter().copied()).collect();
            sorted.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            assert_eq!(best, &sorted[..n_best]);
        }
    }
    let mut random = 0x9e37_79b9_u32;
    for temperature in [f32::from_bits(1), 0.3, 1.0, 50.0, 100.0] {
        let mut draw_of = |i: usize| {
            random = random.wrapping_mul(2_654_435_761).wrapping_add(1);
            let random = [random, 0, u32::MAX][if i < 4 { i % 3 } else { 0 }];
            if i % 5 == 4 { Draw::NOTHING } else { Draw { temperature, random } }
        };
        out.draws = (0..ids.len()).map(&mut draw_of).collect();
        step(&mut out);
        assert!(out.logits.is_empty() && out.best.len() == ids.len() * MAX_BEST);
        let expected = logits.chunks(words).zip(&out.draws).map(|(row, &how)| {
            let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            if how == Draw::NOTHING { u32::MAX } else { draw(&mut row.to_vec(), largest, how).unwrap() }
        });
        assert_eq!(out.drawn, expected.collect::<Vec<_>>(), "{temperature}");
    }
    out.n_best = 0;
    step(&mut out);
    assert!(out.best.is_empty() && out.drawn.is_empty() && out.logits == logits);
    Some(logits)
}
