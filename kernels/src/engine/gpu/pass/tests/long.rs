//! Attention to so many positions that workgroups share them, and that each takes several times four pages.

use super::*;

const N: usize = 600;
/// Rows of the last steps: few.
const N_LAST: usize = 16;

#[test]
fn rows_attend_alike_to_many_positions_in_steps_of_many_of_few_and_of_one() {
    let Some(device) = device() else { return };
    let ids: Vec<u32> = (0..N as u32).map(|i| i * i % VOCABULARY as u32).collect();
    for (kv, group) in [(KvFormat::F16, 2), (KvFormat::F16, 12), (KvFormat::Q8_0, 32)] {
        let kind = Kind { kv, group, ..Kind::whole(WeightFormat::F32, WeightFormat::F32) };
        let layout = KvLayout { max_positions: N, ..layout(kind) };
        let (program, packed, _) = programs(kind);
        let mut pass = GpuPass::new(from_ref(&device), &program, (&packed, ALL), &layout).unwrap();
        let mut kv = pass.kv_pool(layout, usize::MAX, 1);
        let mut table = KvTable::default();
        assert!(kv.reserve(&mut table, N));
        // The logits of the last row.
        let last = |pass: &GpuPass, start: usize, n_rows: usize| {
            let mut out = DeviceOutput::default();
            for start in (start..N).step_by(n_rows) {
                let ids = &ids[start..N.min(start + n_rows)];
                let span = Span { ids, start, table: &table, wanted: WantedLogits::Last };
                pass.step(&[span], &kv, &mut nowhere, &mut out).unwrap();
            }
            out.logits
        };
        let expected = last(&pass, 0, N);
        let few = last(&pass, N - N_LAST, N_LAST);
        let shallow = last(&pass, N - N_LAST, 1);
        pass.parts[0].attention.shallow_pages = 0;
        let deep = last(&pass, N - N_LAST, 1);
        for (name, logits) in [("few", few), ("shallow", shallow), ("deep", deep)] {
            let error = nmse(&logits, &expected);
            assert!(error < 1e-9, "{name} {kind:?}: NMSE {error:e}");
        }
    }
}
