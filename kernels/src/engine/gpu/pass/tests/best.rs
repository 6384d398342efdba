//! The best logits of a row, beside all of them.

use super::*;

/// Several parts of a row.
const WORDS: usize = 5000;

#[test]
fn the_best_logits_are_those_of_the_sorted_row() {
    let Some(device) = device() else { return };
    let mut pass = Pass { recorder: Recorder::default(), seed: 0 };
    // The logits after the first row are alike.
    let table = Matrix::noise(1, WeightFormat::F32, WORDS, HIDDEN).beginning_with_zeros();
    let table = pass.recorder.matrix(Arc::new(table), Rounding::Never);
    let x = pass.recorder.embed(table);
    let x = pass.recorder.keep_wanted(x);
    let logits = pass.linear(x, "logits", WeightFormat::Q8_0, (WORDS, false));
    let processor = Arc::new(Processor::new(Simd::detect(), 2));
    let program = Program::simd(pass.recorder.finish(logits), processor.clone(), None, || {}).unwrap();
    let kind = Kind::exact(WeightFormat::Q8_0);
    let pass =
        GpuPass::new(from_ref(&device), &program, (&Packed::new(kind, &processor), ALL), &layout(kind))
            .unwrap();
    let mut kv = pass.kv_pool(layout(kind), usize::MAX, 1);
    let (mut table, mut out) = (KvTable::default(), DeviceOutput::default());
    assert!(kv.reserve(&mut table, N_TOKENS));
    // More rows than a pass gives logits of at once.
    let ids: Vec<u32> = (0..N_TOKENS as u32).map(|i| i * 61 % WORDS as u32).collect();
    let spans = [Span { ids: &ids, start: 0, table: &table, wanted: WantedLogits::All }];
    pass.step(&spans, &kv, &mut nowhere, &mut out).unwrap();
    let logits = std::mem::take(&mut out.logits);
    assert!(out.best.is_empty());
    assert!(ids[0] == 0 && logits[..WORDS].iter().all(|logit| *logit == 0.0));
    for n_best in [1, 2, 40, MAX_BEST] {
        out.n_best = n_best;
        pass.step(&spans, &kv, &mut nowhere, &mut out).unwrap();
        assert!(out.logits.is_empty());
        assert_eq!(out.best.len(), N_TOKENS * n_best);
        for (row, best) in logits.chunks(WORDS).zip(out.best.chunks(n_best)) {
            let mut sorted: Vec<(u32, f32)> = (0..).zip(row.iter().copied()).collect();
            sorted.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            assert_eq!(best, &sorted[..n_best]);
        }
    }
    out.n_best = 0;
    pass.step(&spans, &kv, &mut nowhere, &mut out).unwrap();
    assert!(out.best.is_empty() && out.logits == logits);
}
