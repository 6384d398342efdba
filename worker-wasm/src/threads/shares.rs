//! A batch taken apart by the threads that hold its experts, and their answers put together.

use moex_kernels::engine::{Batch, Call, Computed, EngineError};

use super::deal::Deal;

/// The parts of a batch.
#[derive(Debug)]
pub(crate) struct Shares {
    /// By thread: all rows, and the calls for the experts that it holds, which may be none.
    pub(crate) batches: Vec<Batch>,
    /// By call of the whole batch: its thread, and its pairs.
    calls: Vec<(usize, usize)>,
}

impl Shares {
    /// Takes `batch` apart for `n_threads` threads.
    ///
    /// # Errors
    /// [`EngineError::EmptySlot`] if nothing was loaded into a slot.
    pub(crate) fn of(batch: &Batch, deal: &Deal, n_threads: usize) -> Result<Self, EngineError> {
        let mut calls_of = vec![Vec::new(); n_threads];
        let mut calls = Vec::with_capacity(batch.calls.len());
        for call in &batch.calls {
            let place = deal.place(call.slot).ok_or(EngineError::EmptySlot(call.slot))?;
            calls.push((place.thread, call.pairs.len()));
            calls_of[place.thread].push(Call { slot: place.slot, pairs: call.pairs.clone() });
        }
        let with_rows = |calls: Vec<Call>| match calls.is_empty() {
            true => Batch { rows: Vec::new(), calls },
            false => Batch { rows: batch.rows.clone(), calls },
        };
        Ok(Self { batches: calls_of.into_iter().map(with_rows).collect(), calls })
    }

    /// The answer to the whole batch: rows (P, `hidden`), and products (P, 2 `inner`) if the parts have them. `None` if the
    /// parts, by thread, are not of the sizes that were asked for.
    pub(crate) fn join(&self, parts: &[Computed], [hidden, inner]: [usize; 2]) -> Option<Computed> {
        let rows: Vec<&[f32]> = parts.iter().map(|part| part.rows.as_slice()).collect();
        let products: Option<Vec<&[f32]>> = parts.iter().map(|part| part.products.as_deref()).collect();
        Some(Computed {
            rows: self.in_order(rows, hidden)?,
            products: match products {
                Some(products) => Some(self.in_order(products, 2 * inner)?),
                None => None,
            },
        })
    }

    /// The values of all pairs, `width` of each, in the order of the whole batch's calls. `None` if some are missing or
    /// left.
    fn in_order(&self, mut parts: Vec<&[f32]>, width: usize) -> Option<Vec<f32>> {
        let mut all = Vec::with_capacity(parts.iter().map(|part| part.len()).sum());
        for &(thread, n_pairs) in &self.calls {
            let part = parts.get_mut(thread)?;
            let (values, rest) = part.split_at_checked(n_pairs * width)?;
            all.extend_from_slice(values);
            *part = rest;
        }
        parts.iter().all(|part| part.is_empty()).then_some(all)
    }
}

#[cfg(test)]
mod tests {
    use moex_kernels::engine::{ActivationFormat, CpuEngine, EnginePlan, Pair};
    use moex_kernels::{ExpertShape, WeightFormat};
    use moex_protocol::LayerId;

    use super::*;

    const SHAPE: ExpertShape = ExpertShape::uniform(40, 24, WeightFormat::Int4G128);
    const N_SLOTS: u32 = 6;

    fn engine(n_slots: u32, activations: ActivationFormat) -> CpuEngine {
        let plan = EnginePlan { shapes: SHAPE.into(), activations, n_slots, max_rows: 4, max_pairs: 16 };
        CpuEngine::new(plan).unwrap()
    }

    fn batch() -> Batch {
        let call = |slot, rows: &[u32]| Call {
            slot,
            pairs: rows.iter().map(|&row| Pair { row, gate: 0.5 + row as f32 }).collect(),
        };
        let rows = (0..3 * 40).map(|i| (i as f32 * 0.7).sin()).collect();
        Batch { rows, calls: vec![call(5, &[0, 2]), call(0, &[1]), call(3, &[]), call(1, &[2, 1, 0])] }
    }

    #[test]
    fn threads_together_answer_with_the_bits_of_one_engine() {
        for activations in [ActivationFormat::Int8, ActivationFormat::F32] {
            let whole = engine(N_SLOTS, activations);
            for slot in 0..N_SLOTS {
                whole.load(slot, SHAPE.format, &SHAPE.noise(u64::from(slot), 1.0)).unwrap();
            }
            let expected = whole.compute_with_products(&batch()).unwrap();
            for n_threads in [1, 2, 3, 8] {
                let mut deal = Deal::new(N_SLOTS, n_threads);
                let each = Deal::slots_each(N_SLOTS, n_threads);
                let engines: Vec<_> = (0..n_threads).map(|_| engine(each, activations)).collect();
                for slot in 0..N_SLOTS {
                    let place = deal.deal(slot, LayerId(0)).unwrap();
                    let block = SHAPE.noise(u64::from(slot), 1.0);
                    engines[place.thread].load(place.slot, SHAPE.format, &block).unwrap();
                }
                let shares = Shares::of(&batch(), &deal, n_threads).unwrap();
                let parts: Vec<Computed> = (engines.iter().zip(&shares.batches))
                    .map(|(engine, batch)| engine.compute_with_products(batch).unwrap())
                    .collect();
                assert_eq!(shares.join(&parts, [40, 24]), Some(expected.clone()), "{n_threads} threads");
            }
        }
    }

    #[test]
    fn an_answer_of_another_size_is_no_answer() {
        let mut deal = Deal::new(N_SLOTS, 2);
        for slot in 0..N_SLOTS {
            deal.deal(slot, LayerId(0));
        }
        let shares = Shares::of(&batch(), &deal, 2).unwrap();
        let n_pairs: Vec<usize> = shares.batches.iter().map(Batch::n_pairs).collect();
        let right: Vec<Computed> = n_pairs.iter().map(|n| vec![0.5; n * 40].into()).collect();
        assert_eq!(shares.join(&right, [40, 24]).map(|computed| computed.rows.len()), Some(6 * 40));
        for wrong in [n_pairs[1] * 40 - 1, n_pairs[1] * 40 + 1, 0] {
            let parts = [right[0].clone(), vec![0.5; wrong].into()];
            assert_eq!(shares.join(&parts, [40, 24]), None, "{wrong} values");
        }
    }

    #[test]
    fn a_slot_without_an_expert_is_named() {
        let deal = Deal::new(N_SLOTS, 2);
        assert_eq!(Shares::of(&batch(), &deal, 2).unwrap_err(), EngineError::EmptySlot(5));
    }
}
