//! The router: which experts a row goes to, and how much each counts.

use super::softmax;

/// Takes the softmax over all experts of each row of `logits` (T, E), in place. Writes the K largest to `experts` and
/// `gates` (T, K), largest first; of equals, the lower expert comes first. `renormalise` divides a row's gates by their
/// sum (config `norm_topk_prob`).
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
        choose(probabilities, experts, gates);
        if renormalise == Renormalise::Yes {
            let sum: f32 = gates.iter().sum();
            gates.iter_mut().for_each(|gate| *gate /= sum);
        }
    }
}

/// Writes the K largest of `scores` (E) to `experts` and `chosen` (K), largest first; of equals, the lower expert comes
/// first.
fn choose(scores: &[f32], experts: &mut [u16], chosen: &mut [f32]) {
    let k = chosen.len();
    for (expert, score) in scores.iter().enumerate() {
        // Experts enter in ascending order, each behind those that are not smaller, so equals stay in ascending order.
        let n_before = expert.min(k);
        let place = chosen[..n_before].partition_point(|before| before.total_cmp(score).is_ge());
        if place < k {
            let end = (n_before + 1).min(k);
            chosen[place..end].rotate_right(1);
            experts[place..end].rotate_right(1);
            (chosen[place], experts[place]) = (*score, expert as u16);
        }
    }
}

/// How experts are chosen in groups (DeepSeek-V3, section 2.1.2).
#[derive(Clone, Copy, Debug)]
pub struct Groups<'a> {
    /// (E): added to scores for the choice alone.
    pub correction: &'a [f32],
    /// Groups of neighbouring experts, each of at least two.
    pub n_groups: usize,
    /// Groups that experts are chosen from: those whose two best have the largest sum.
    pub n_chosen_groups: usize,
}

/// Takes the sigmoid of each of `logits` (T, E), in place. Writes the K experts with the largest corrected scores among
/// the best groups to `experts`, and their scores to `gates` (T, K), largest first, divided by their sum if
/// `renormalise` says so, times `gate_scale`.
///
/// # Panics
/// As [`route`], and if the groups do not fit E and K.
pub fn route_in_groups(
    logits: &mut [f32],
    groups: &Groups<'_>,
    k: usize,
    (renormalise, gate_scale): (Renormalise, f32),
    experts: &mut [u16],
    gates: &mut [f32],
) {
    let Groups { correction, n_groups, n_chosen_groups } = *groups;
    let n_experts = correction.len();
    let width = n_experts / n_groups;
    assert!(
        width >= 2 && n_chosen_groups <= n_groups && k <= width * n_chosen_groups,
        "groups of {n_experts}"
    );
    let mut corrected = vec![0.0; n_experts]; // (E)
    let (mut kept, mut of_kept) = (vec![0; n_chosen_groups], vec![0.0; n_chosen_groups]);
    let outputs = experts.chunks_exact_mut(k).zip(gates.chunks_exact_mut(k));
    for (scores, (experts, gates)) in logits.chunks_exact_mut(n_experts).zip(outputs) {
        scores.iter_mut().for_each(|score| *score = 1.0 / (1.0 + libm::expf(-*score)));
        for (corrected, (score, correction)) in corrected.iter_mut().zip(scores.iter().zip(correction)) {
            *corrected = score + correction;
        }
        let of_group: Vec<f32> = (corrected.chunks_exact(width))
            .map(|group| {
                let (mut two, mut best) = ([0; 2], [0.0; 2]);
                choose(group, &mut two, &mut best);
                best[0] + best[1]
            })
            .collect();
        choose(&of_group, &mut kept, &mut of_kept);
        for (group, corrected) in corrected.chunks_exact_mut(width).enumerate() {
            if !kept.contains(&(group as u16)) {
                // Below any finite sum of a score and a correction.
                corrected.fill(f32::NEG_INFINITY);
            }
        }
        choose(&corrected, experts, gates);
        // The same experts, in the order of their scores without the correction.
        for (expert, (corrected, score)) in corrected.iter_mut().zip(&*scores).enumerate() {
            *corrected = if experts.contains(&(expert as u16)) { *score } else { f32::NEG_INFINITY };
        }
        choose(&corrected, experts, gates);
        if renormalise == Renormalise::Yes {
            let sum: f32 = gates.iter().sum::<f32>() + 1e-20;
            gates.iter_mut().for_each(|gate| *gate /= sum);
        }
        gates.iter_mut().for_each(|gate| *gate *= gate_scale);
    }
}

/// Whether the gates of a row sum to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renormalise {
    /// Config `norm_topk_prob` true.
    Yes,
    /// Config `norm_topk_prob` false: gates keep their softmax values.
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

    #[test]
    fn a_correction_chooses_and_does_not_weigh_and_other_groups_are_out() {
        // Groups {0, 1}, {2, 3}: the second has the best expert, the first the better two.
        let mut logits = [1.0, 1.0, 2.0, -9.0];
        let groups = Groups { correction: &[0.0, 0.5, 0.0, 0.0], n_groups: 2, n_chosen_groups: 1 };
        let (mut experts, mut gates) = ([9; 2], [f32::NAN; 2]);
        route_in_groups(&mut logits, &groups, 2, (Renormalise::Yes, 3.0), &mut experts, &mut gates);
        assert_eq!(experts, [0, 1], "the lower of equal scores first");
        assert!(gates.iter().all(|gate| (gate - 1.5).abs() < 1e-6), "equal scores: {gates:?}");
    }
}
