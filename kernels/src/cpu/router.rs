//! The router: which experts a row goes to, and how much each counts.

use super::softmax;

/// Softmax over all experts of each row of `logits` (T, E), in place, then the K largest to `experts` and `gates` (T, K),
/// largest first, the lower expert first of equals; `renormalise` divides a row's gates by their sum (config
/// `norm_topk_prob`).
///
/// # Panics
/// If the lengths do not fit one T, or K is zero, above E, or E above 65,536.
pub fn route(
    logits: &mut [f32],
    n_experts: usize,
    k: usize,
    renormalise: Renormalise,
    experts: &mut [u16],
    gates: &mut [f32],
) {
    assert!((1..=n_experts).contains(&k) && n_experts <= 1 << 16, "{k} of {n_experts} experts");
    let n_rows = logits.len() / n_experts; // T
    assert_eq!(logits.len(), n_rows * n_experts, "rows of {n_experts}");
    assert_eq!((experts.len(), gates.len()), (n_rows * k, n_rows * k), "{n_rows} rows of {k}");
    let outputs = experts.chunks_exact_mut(k).zip(gates.chunks_exact_mut(k));
    for (probabilities, (experts, gates)) in logits.chunks_exact_mut(n_experts).zip(outputs) {
        softmax(probabilities);
        for (expert, probability) in probabilities.iter().enumerate() {
            // In order of their numbers, each behind those that are not smaller, so equals stay in ascending order.
            let n_before = expert.min(k);
            let place = gates[..n_before].partition_point(|gate| gate.total_cmp(probability).is_ge());
            if place < k {
                let end = (n_before + 1).min(k);
                gates[place..end].rotate_right(1);
                experts[place..end].rotate_right(1);
                (gates[place], experts[place]) = (*probability, expert as u16);
            }
        }
        if renormalise == Renormalise::Yes {
            let sum: f32 = gates.iter().sum();
            gates.iter_mut().for_each(|gate| *gate /= sum);
        }
    }
}

/// Whether the gates of a row sum to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renormalise {
    /// Config `norm_topk_prob` true.
    Yes,
    /// Config `norm_topk_prob` false: they keep what softmax gave them.
    No,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_the_largest_and_the_lower_of_equals() {
        let mut logits = [0.0, 2.0, 1.0, 2.0, /* row 1 */ 5.0, 5.0, 5.0, 5.0];
        let (mut experts, mut gates) = ([9; 6], [f32::NAN; 6]);
        route(&mut logits, 4, 3, Renormalise::No, &mut experts, &mut gates);
        assert_eq!(experts, [1, 3, 2, 0, 1, 2]);
        let sum = 1.0 + 1.0_f32.exp() + 2.0 * 2.0_f32.exp();
        assert!((gates[0] - 2.0_f32.exp() / sum).abs() < 1e-6);
        assert!((gates[3] - 0.25).abs() < 1e-6);
    }

    #[test]
    fn renormalised_gates_sum_to_one() {
        let (mut experts, mut gates) = ([0; 2], [0.0; 2]);
        route(&mut [0.0, 3.0, 1.0], 3, 2, Renormalise::Yes, &mut experts, &mut gates);
        assert_eq!(experts, [1, 2]);
        assert!((gates[0] + gates[1] - 1.0).abs() < 1e-6);
        assert!((gates[0] / gates[1] - 2.0_f32.exp()).abs() < 1e-4);
    }
}
