//! Steps of one row, which have dispatches of their own.

use super::*;

/// A prompt of so many tokens, then one at a time.
fn decoded(n_prompt: usize) -> Vec<usize> {
    let mut steps = vec![n_prompt];
    steps.resize(1 + N_TOKENS - n_prompt, 1);
    steps
}

#[test]
fn a_sequence_that_is_decoded_row_by_row_agrees_with_the_cpu() {
    let Some(device) = device() else { return };
    for (format, second) in [(WeightFormat::Q4_0, WeightFormat::Q4_0), (WeightFormat::Q4K, WeightFormat::Q6K)]
    {
        let kind = Kind::whole(format, second);
        let (program, packed, processor) = programs(kind);
        let (expected, chosen) = on_cpu(kind, &program, &packed, &processor);
        let pass = GpuPass::new(from_ref(&device), &program, (&packed, ALL), &layout(kind)).unwrap();
        for n_prompt in [33, 1] {
            let (logits, ours) = on_gpu(kind, &pass, &decoded(n_prompt));
            assert_eq!(ours, chosen, "{kind:?} after {n_prompt}");
            assert_near((&logits, &expected), N_TOKENS / 10, &format!("{kind:?} after {n_prompt}"));
        }
    }
}

#[test]
fn layers_whose_experts_are_elsewhere_are_decoded_row_by_row_with_the_same_bits() {
    let Some(device) = device() else { return };
    let kind = Kind::whole(WeightFormat::Q4K, WeightFormat::Q6K);
    let (program, packed, processor) = programs(kind);
    let [here, away] = [ALL, ResidentExperts::first(0)].map(|resident| {
        GpuPass::new(from_ref(&device), &program, (&packed, resident), &layout(kind)).unwrap()
    });
    let mut elsewhere = |routing: &LayerRouting, rows: &[f32], sum: &mut [f32]| {
        let chosen = (routing.n_chosen, &routing.experts[..], &routing.gates[..]);
        experts_on_cpu((&packed, &processor), chosen, rows, sum);
        Ok(())
    };
    let (expected, _) = on_gpu(kind, &here, &decoded(33));
    let (logits, _) = on_gpu_with(kind, &away, &decoded(33), &mut elsewhere);
    assert!(logits.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits()));
}

#[test]
fn a_step_of_one_row_takes_few_dispatches() {
    let Some(device) = device() else { return };
    for (second, n) in [(WeightFormat::Q4K, 17), (WeightFormat::Q6K, 19)] {
        let kind = Kind::whole(WeightFormat::Q4K, second);
        let (program, packed, _) = programs(kind);
        let pass = GpuPass::new(from_ref(&device), &program, (&packed, ALL), &layout(kind)).unwrap();
        // q, k, v | attention | its join | output | router | gates and ups | down: seven in the layer with experts.
        assert_eq!(pass.n_dispatches(), n, "{second}");
    }
}
