//! What one thread sends another, as 32-bit words: a plan, a batch and its answer. Both are parts of one worker, with the same
//! code: what does not parse is a bug.
//!
//! ```text
//! plan    activations | D | F | slots | rows | pairs | format …
//! batch   wants_products | n_values | values … | for each call: slot | n_pairs | for each pair: row | gate
//! answer  has_products   | n_values | values (P, D) … | products (P, 2F) …
//! ```

use moex_kernels::engine::{ActivationFormat, Batch, Call, Computed, EnginePlan, Pair};
use moex_kernels::{ExpertFormat, ExpertKind, ExpertShapes, WeightFormat};

/// The words of a plan.
pub(crate) fn from_plan(plan: &EnginePlan) -> Vec<u32> {
    let EnginePlan { shapes, activations, n_slots, max_rows, max_pairs } = *plan;
    let is_int8 = u32::from(activations == ActivationFormat::Int8);
    let mut words = vec![is_int8, shapes.hidden as u32, shapes.inner as u32, n_slots, max_rows, max_pairs];
    words.extend(shapes.iter().map(|shape| from_format(shape.format)));
    words
}

/// The plan.
pub(crate) fn to_plan(words: &[u32]) -> Option<EnginePlan> {
    let &[is_int8, hidden, inner, n_slots, max_rows, max_pairs, first, ref others @ ..] = words else {
        return None;
    };
    let activations = if is_int8 != 0 { ActivationFormat::Int8 } else { ActivationFormat::F32 };
    let others = others.iter().filter_map(|&word| to_format(word));
    let shapes = ExpertShapes::new(hidden as usize, inner as usize, to_format(first)?, others).ok()?;
    Some(EnginePlan { shapes, activations, n_slots, max_rows, max_pairs })
}

/// The word of a format: its parts' numbers, a byte each.
pub(crate) fn from_format(ExpertFormat { gate_up, down, kind }: ExpertFormat) -> u32 {
    let number = |format| WeightFormat::ALL.iter().position(|known| *known == format).unwrap_or(0xff);
    let kind = ExpertKind::ALL.iter().position(|known| *known == kind).unwrap_or(0xff);
    (number(gate_up) | number(down) << 8 | kind << 16) as u32
}

/// The format.
pub(crate) fn to_format(word: u32) -> Option<ExpertFormat> {
    let [gate_up, down, kind, _] = word.to_le_bytes().map(usize::from);
    let (gate_up, down) = (*WeightFormat::ALL.get(gate_up)?, *WeightFormat::ALL.get(down)?);
    Some(ExpertFormat { gate_up, down, kind: *ExpertKind::ALL.get(kind)? })
}

/// The words of a batch.
pub(crate) fn from_batch(batch: &Batch, wants_products: bool) -> Vec<u32> {
    let n_words = 2 + batch.rows.len() + 2 * batch.calls.len() + 2 * batch.n_pairs();
    let mut words = Vec::with_capacity(n_words);
    words.extend([u32::from(wants_products), batch.rows.len() as u32]);
    words.extend(batch.rows.iter().map(|value| value.to_bits()));
    for call in &batch.calls {
        words.extend([call.slot, call.pairs.len() as u32]);
        words.extend(call.pairs.iter().flat_map(|pair| [pair.row, pair.gate.to_bits()]));
    }
    words
}

/// The batch, and whether products are wanted.
pub(crate) fn to_batch(words: &[u32]) -> Option<(Batch, bool)> {
    let (wants_products, values, mut rest) = start(words)?;
    let mut calls = Vec::new();
    while let [slot, n_pairs, others @ ..] = rest {
        let (pairs, others) = others.split_at_checked((*n_pairs as usize).checked_mul(2)?)?;
        let pair = |words: &[u32]| Pair { row: words[0], gate: f32::from_bits(words[1]) };
        calls.push(Call { slot: *slot, pairs: pairs.chunks_exact(2).map(pair).collect() });
        rest = others;
    }
    rest.is_empty().then(|| (Batch { rows: floats(values), calls }, wants_products))
}

/// The words of an answer.
pub(crate) fn from_computed(computed: &Computed) -> Vec<u32> {
    let products = computed.products.as_deref();
    let mut words = Vec::with_capacity(2 + computed.rows.len() + products.map_or(0, <[f32]>::len));
    words.extend([u32::from(products.is_some()), computed.rows.len() as u32]);
    words.extend(computed.rows.iter().chain(products.unwrap_or_default()).map(|value| value.to_bits()));
    words
}

/// The answer.
pub(crate) fn to_computed(words: &[u32]) -> Option<Computed> {
    let (has_products, values, products) = start(words)?;
    Some(Computed { rows: floats(values), products: has_products.then(|| floats(products)) })
}

/// What both begin with: the flag, the values, and the words behind them.
fn start(words: &[u32]) -> Option<(bool, &[u32], &[u32])> {
    let [flag, n_values, rest @ ..] = words else { return None };
    let (values, rest) = rest.split_at_checked(*n_values as usize)?;
    Some((*flag != 0, values, rest))
}

fn floats(words: &[u32]) -> Vec<f32> {
    words.iter().map(|&bits| f32::from_bits(bits)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch() -> Batch {
        let pair = |row, gate| Pair { row, gate };
        let calls = vec![
            Call { slot: 3, pairs: vec![pair(0, 0.25), pair(1, -0.0)] },
            Call { slot: 9, pairs: vec![] },
            Call { slot: 0, pairs: vec![pair(1, f32::MIN_POSITIVE / 2.0)] },
        ];
        Batch { rows: vec![1.5, -2.0, 1e-40, f32::MAX], calls }
    }

    #[test]
    fn plans_of_every_format_arrive_as_they_were_sent() {
        for activations in [ActivationFormat::F32, ActivationFormat::Int8] {
            for kind in ExpertKind::ALL {
                for gate_up in WeightFormat::ALL {
                    let mixed = ExpertFormat { gate_up, down: WeightFormat::Q6K, kind };
                    let shapes = ExpertShapes::new(40, 24, mixed, [WeightFormat::F16.into()]).unwrap();
                    let plan = EnginePlan { shapes, activations, n_slots: 3, max_rows: 4, max_pairs: 5 };
                    assert_eq!(to_plan(&from_plan(&plan)), Some(plan));
                }
            }
        }
        assert_eq!(to_plan(&[1, 40, 24, 3, 4, 5]), None, "without a format");
        assert_eq!(to_format(0xff), None);
    }

    #[test]
    fn batches_and_answers_arrive_as_they_were_sent() {
        for wants_products in [false, true] {
            assert_eq!(to_batch(&from_batch(&batch(), wants_products)), Some((batch(), wants_products)));
        }
        for products in [None, Some(vec![0.5; 6])] {
            let computed = Computed { rows: vec![1.0, -0.0, 3e-41], products };
            assert_eq!(to_computed(&from_computed(&computed)), Some(computed));
        }
    }

    #[test]
    fn what_is_cut_short_does_not_parse() {
        let words = from_batch(&batch(), true);
        // Cut between calls it is a shorter batch.
        let starts_of_calls = [6, 12, 14];
        for n in (0..words.len()).filter(|n| !starts_of_calls.contains(n)) {
            assert_eq!(to_batch(&words[..n]), None, "{n} words");
        }
        assert_eq!(to_computed(&[0, 3, 1, 2]), None);
    }
}
