//! Attention with heads of every width, with few or many of queries for each of keys and values, which are in f16 or q8_0.

use super::*;

/// What a step of many rows takes at once depends on both: 16 queries or 32, or a row and a head at a time where 32 are not
/// divided evenly.
const HEADS: [(usize, usize); 8] =
    [(32, 1), (64, 2), (64, 8), (128, 2), (128, 8), (128, 32), (128, 3), (256, 4)];

#[test]
fn heads_of_every_width_attend_as_on_the_cpu() {
    let Some(device) = device() else { return };
    let kinds =
        [KvFormat::F16, KvFormat::Q8_0].map(|kv| HEADS.map(|(head_width, group)| (kv, head_width, group)));
    for (kv, head_width, group) in kinds.into_iter().flatten() {
        let kind = Kind { head_width, group, kv, ..Kind::whole(WeightFormat::F32, WeightFormat::F32) };
        let (program, packed, processor) = programs(kind);
        let (expected, chosen) = on_cpu(kind, &program, &packed, &processor);
        let pass = GpuPass::new(from_ref(&device), &program, (&packed, ALL), &layout(kind)).unwrap();
        for steps in [&[N_TOKENS][..], &[1, 63, 3, 23]] {
            let (logits, ours) = on_gpu(kind, &pass, steps);
            let what = format!("{group} heads of {head_width} columns in {kv}, {steps:?}");
            assert_eq!(ours, chosen, "{what}");
            // With weights in f32 only keys and values are rounded: now and then one to another step, at most 1/127 of 1/C of a
            // row's. A kernel that is wrong gives more than a thousandth.
            let error = nmse(&logits, &expected);
            assert!(error < 1e-7, "{what}: NMSE {error:e}");
        }
    }
}
