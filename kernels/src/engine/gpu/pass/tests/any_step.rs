//! A row has the same bits in a step of any length, whatever else is in it, however deep it is in its sequence.

use std::ops::Range;

use super::*;

/// More positions than ranges of one page.
const N: usize = 1060;
/// Rows whose logits are compared.
const N_LAST: usize = 17;

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

#[test]
fn a_row_has_the_same_bits_in_steps_of_any_length_beside_any_others() {
    let Some(device) = device() else { return };
    let ids: Vec<u32> = (0..N as u32).map(|i| i * i % VOCABULARY as u32).collect();
    let (float, integer) = (WeightFormat::F32, WeightFormat::Q4K);
    for (format, kv, group, head_width) in [
        (float, KvFormat::F16, 2, 32),
        (integer, KvFormat::F16, 12, 40),
        (integer, KvFormat::F16, 8, 128),
        (integer, KvFormat::Q8_0, 32, 64),
    ] {
        let kind = Kind { kv, group, head_width, ..Kind::whole(format, format) };
        let layout = KvLayout { max_positions: N, ..layout(kind) };
        let (program, packed, _) = programs(kind);
        let mut pass = GpuPass::new(from_ref(&device), &program, (&packed, ALL), &layout).unwrap();
        let mut kv = pass.kv_pool(layout, usize::MAX, 2);
        let [mut table, mut other] = [KvTable::default(), KvTable::default()];
        assert!(kv.reserve(&mut table, N) && kv.reserve(&mut other, N));
        let span =
            |start: usize, end: usize, wanted| Span { ids: &ids[start..end], start, table: &table, wanted };
        let step = |pass: &GpuPass, spans: &[Span<'_>]| {
            let mut out = DeviceOutput::default();
            pass.step(spans, &kv, &mut nowhere, &mut out).unwrap();
            bits(&out.logits)
        };
        let read = |pass: &GpuPass, rows: Range<usize>, n_rows: usize, wanted| {
            let steps = rows.clone().step_by(n_rows);
            let of_step = |start| step(pass, &[span(start, rows.end.min(start + n_rows), wanted)]);
            steps.flat_map(of_step).collect::<Vec<_>>()
        };
        read(&pass, 0..N - N_LAST, N, WantedLogits::Nothing);
        let expected = read(&pass, N - N_LAST..N, N_LAST, WantedLogits::All);
        for n_rows in [16, 5, 1] {
            let logits = read(&pass, N - N_LAST..N, n_rows, WantedLogits::All);
            assert!(logits == expected, "{kind:?} in steps of {n_rows}");
        }
        // The same keys and values, read in other steps.
        read(&pass, 0..40, 1, WantedLogits::Nothing);
        read(&pass, 40..N - N_LAST, 100, WantedLogits::Nothing);
        let logits = read(&pass, N - N_LAST..N, N_LAST, WantedLogits::All);
        assert!(logits == expected, "{kind:?} after one row at a time, and a hundred");
        // Another sequence, not as deep.
        let of_last = &expected[expected.len() - VOCABULARY..];
        for (start, n_rows) in [(0, 1), (0, 40), (40, 400), (440, 3)] {
            let ids = &ids[start..start + n_rows];
            let others = Span { ids, start, table: &other, wanted: WantedLogits::Nothing };
            let logits = step(&pass, &[others, span(N - 1, N, WantedLogits::All)]);
            assert!(logits == of_last, "{kind:?} beside {n_rows} rows from {start} on");
        }
        // As one of many users.
        let users = (100..130).map(|at| Span {
            ids: &ids[at..=at],
            start: at,
            table: &other,
            wanted: WantedLogits::Nothing,
        });
        let spans: Vec<_> = users.chain([span(N - 1, N, WantedLogits::All)]).collect();
        assert!(step(&pass, &spans) == of_last, "{kind:?} beside rows of many sequences");
        pass.parts[0].attention.shallow_pages = 0;
        assert!(read(&pass, N - 1..N, 1, WantedLogits::All) == of_last, "{kind:?}, as a deep row");
    }
}
