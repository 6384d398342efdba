//! A pass over several GPUs, which one adapter stands for where there are no two.

use super::{super::layers, *};
use crate::graph::Op;

/// Two GPUs; none if there is no adapter.
fn two_gpus() -> Option<[GpuDevice; 2]> {
    let first = device()?;
    let open = |select| pollster(GpuDevice::open_all(select, 2));
    let gpus = open(GpuSelect::Auto).or_else(|_| open(GpuSelect::Software)).unwrap();
    Some(<[GpuDevice; 2]>::try_from(gpus).unwrap_or_else(|_| [first.clone(), first]))
}

/// The choices of a step's routers, by layer.
fn chosen(out: &DeviceOutput) -> Vec<(usize, Vec<u16>)> {
    out.routing.iter().map(|of_layer| (of_layer.layer, of_layer.experts.clone())).collect()
}

#[test]
fn the_parts_of_two_gpus_give_what_one_gives() {
    let Some(gpus) = two_gpus() else { return };
    for (format, second) in [(WeightFormat::Q4K, WeightFormat::Q6K), (WeightFormat::F32, WeightFormat::Bf16)]
    {
        let kind = Kind::whole(format, second);
        let (program, packed, processor) = programs(kind);
        let one = GpuPass::new(&gpus[..1], &program, (&packed, ALL), &layout(kind)).unwrap();
        let two = GpuPass::new(&gpus, &program, (&packed, ALL), &layout(kind)).unwrap();
        let n_layers = |pass: &GpuPass| pass.devices().map(|(_, n)| n).collect::<Vec<_>>();
        assert_eq!((n_layers(&one), n_layers(&two)), (vec![2], vec![1, 1]));
        assert_eq!(two.weight_bytes(), one.weight_bytes());
        assert_eq!((two.n_resident(), two.rows_at_once()), (1, 1024));
        let away =
            GpuPass::new(&gpus, &program, (&packed, ResidentExperts::first(0)), &layout(kind)).unwrap();
        let mut elsewhere = |routing: &LayerRouting, rows: &[f32], sum: &mut [f32]| {
            let chosen = (routing.n_chosen, &routing.experts[..], &routing.gates[..]);
            experts_on_cpu((&packed, &processor), chosen, rows, sum);
            Ok(())
        };
        // More than 64 rows with logits go through the parts one behind another.
        for steps in [&[N_TOKENS][..], &[1, 1, 66, 1, 21], &[1, 1, 2, 22, 64]] {
            let (expected, chosen) = on_gpu(kind, &one, steps);
            for (resident, pass) in [(true, &two), (false, &away)] {
                let (logits, ours) = on_gpu_with(kind, pass, steps, &mut elsewhere);
                assert_eq!(ours, if resident { chosen.clone() } else { Vec::new() }, "{kind:?} {steps:?}");
                // A sum and its norm are one kernel on one GPU, and two here.
                let error = nmse(&logits, &expected);
                assert!(error < 1e-3, "{kind:?} {steps:?} {resident}: NMSE {error:e}");
            }
        }
    }
}

#[test]
fn sequences_share_the_pages_of_two_gpus() {
    let Some(gpus) = two_gpus() else { return };
    let kind = Kind::whole(WeightFormat::Q8_0, WeightFormat::Q8_0);
    let (program, packed, _) = programs(kind);
    let pass = GpuPass::new(&gpus, &program, (&packed, ALL), &layout(kind)).unwrap();
    let (alone, _) = on_gpu(kind, &pass, &[N_TOKENS]);
    let mut kv = pass.kv_pool(layout(kind), usize::MAX, 2);
    let (mut a, mut b, mut out) = (KvTable::default(), KvTable::default(), DeviceOutput::default());
    let ids = ids();
    assert!(kv.reserve(&mut a, 20));
    let span = |start, end, table| Span { ids: &ids[start..end], start, table, wanted: WantedLogits::Last };
    pass.step(&[span(0, 20, &a)], &kv, &mut nowhere, &mut out).unwrap();
    assert_eq!(chosen(&out).iter().map(|(layer, of)| (*layer, of.len())).collect::<Vec<_>>(), [(0, 20 * 3)]);
    assert!(kv.copy(&mut b, kv.block(&a, 0)));
    // The first sequence goes on with other tokens.
    let others = Span { ids: &[1, 2, 3], start: 20, table: &a, wanted: WantedLogits::Nothing };
    pass.step(&[others, span(20, 25, &b)], &kv, &mut nowhere, &mut out).unwrap();
    let error = nmse(&out.logits, &alone[24 * VOCABULARY..][..VOCABULARY]);
    assert!(error < 1e-5, "NMSE {error:e}");
    out.n_best = 2;
    pass.step(&[span(24, 25, &b)], &kv, &mut nowhere, &mut out).unwrap();
    assert_eq!((out.best.len(), out.logits.len()), (2, 0));
    let nothing = Span { ids: &[1, 2, 3], start: 23, table: &a, wanted: WantedLogits::Nothing };
    pass.step(&[nothing], &kv, &mut nowhere, &mut out).unwrap();
    assert!(out.best.is_empty());
}

#[test]
fn a_part_that_fails_leaves_the_others_for_the_next_step() {
    let Some(gpus) = two_gpus() else { return };
    let kind = Kind::whole(WeightFormat::Q8_0, WeightFormat::Q8_0);
    let (program, packed, processor) = programs(kind);
    let pass = GpuPass::new(&gpus, &program, (&packed, ResidentExperts::first(0)), &layout(kind)).unwrap();
    let mut compute = |routing: &LayerRouting, rows: &[f32], sum: &mut [f32]| {
        let chosen = (routing.n_chosen, &routing.experts[..], &routing.gates[..]);
        experts_on_cpu((&packed, &processor), chosen, rows, sum);
        Ok(())
    };
    let (expected, _) = on_gpu_with(kind, &pass, &[N_TOKENS], &mut compute);
    let mut kv = pass.kv_pool(layout(kind), usize::MAX, 1);
    let (mut table, mut out) = (KvTable::default(), DeviceOutput::default());
    assert!(kv.reserve(&mut table, N_TOKENS));
    let ids = ids();
    let spans = [Span { ids: &ids, start: 0, table: &table, wanted: WantedLogits::All }];
    // The second time, the part behind has begun the first rows.
    let mut n = 0;
    let mut once = |routing: &LayerRouting, rows: &[f32], sum: &mut [f32]| {
        n += 1;
        if n == 2 { Err(DeviceError::Experts) } else { compute(routing, rows, sum) }
    };
    let failed = pass.step(&spans, &kv, &mut once, &mut out).unwrap_err();
    assert_eq!(failed, DeviceError::Experts);
    pass.step(&spans, &kv, &mut once, &mut out).unwrap();
    assert_eq!(out.logits, expected);
}

#[test]
fn a_pass_is_cut_between_a_sum_and_its_norm() {
    let kind = Kind::whole(WeightFormat::Q8_0, WeightFormat::Q8_0);
    let (program, ..) = programs(kind);
    assert_eq!(layers::layers(program.ops()).len(), 2);
    let whole = layers::cut(program.ops(), &[2]);
    assert_eq!(whole[0].ops, program.ops());
    let parts = layers::cut(program.ops(), &[1, 1]);
    let [first, second] = &parts[..] else { panic!("two parts") };
    assert_eq!((first.from, second.to), (None, None));
    assert!(matches!(first.ops.last(), Some(Op::Add { x, .. }) if Some(*x) == first.to));
    assert!(matches!(second.ops.first(), Some(Op::Norm { x, .. }) if Some(*x) == second.from));
    assert_eq!(first.to, second.from);
    assert_eq!(first.ops.len() + second.ops.len(), program.ops().len() + 1);
}
