//! Which thread holds which of an engine's slots.

use moex_protocol::LayerId;

/// A slot of one thread's engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The thread; 0 is the worker itself.
    pub(crate) thread: usize,
    /// The slot of its engine.
    pub(crate) slot: u32,
}

/// The places of an engine's slots. A slot is dealt when an expert is loaded into it, so that the experts of each layer,
/// which are computed together, are spread evenly.
#[derive(Debug)]
pub(crate) struct Deal {
    /// By slot of the whole engine.
    places: Vec<Option<(Place, LayerId)>>,
    /// By thread, the slots of its engine that nothing is dealt to.
    free: Vec<Vec<u32>>,
}

impl Deal {
    /// Slots that are not dealt yet, for `n_threads` threads with [`Self::slots_each`] places each.
    pub(crate) fn new(n_slots: u32, n_threads: usize) -> Self {
        let free = (0..Self::slots_each(n_slots, n_threads)).rev().collect();
        Self { places: vec![None; n_slots as usize], free: vec![free; n_threads] }
    }

    /// The slots of each thread's engine.
    pub(crate) fn slots_each(n_slots: u32, n_threads: usize) -> u32 {
        n_slots.div_ceil(u32::try_from(n_threads).unwrap_or(u32::MAX).max(1))
    }

    /// The place of a slot that something was loaded into.
    pub(crate) fn place(&self, slot: u32) -> Option<Place> {
        self.places.get(slot as usize)?.map(|(place, _)| place)
    }

    /// Deals a slot for an expert of `layer`, anew if it was dealt before: to the thread with the fewest experts of that layer
    /// among those with room, of these to the one with the most room. `None` if there is no such slot.
    pub(crate) fn deal(&mut self, slot: u32, layer: LayerId) -> Option<Place> {
        let before = self.places.get_mut(slot as usize)?.take();
        if let Some((place, _)) = before {
            self.free[place.thread].push(place.slot);
        }
        let mut of_layer = vec![0; self.free.len()];
        for (place, _) in self.places.iter().flatten().filter(|(_, of)| *of == layer) {
            of_layer[place.thread] += 1;
        }
        let with_room = (0..self.free.len()).filter(|&thread| !self.free[thread].is_empty());
        let thread =
            with_room.min_by_key(|&thread| (of_layer[thread], usize::MAX - self.free[thread].len()))?;
        let place = Place { thread, slot: self.free[thread].pop()? };
        self.places[slot as usize] = Some((place, layer));
        Some(place)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// How many experts of each layer each thread holds, after dealing the layers of slots 0, 1, ….
    fn dealt(n_threads: usize, layers: &[u16]) -> Vec<Vec<usize>> {
        let mut deal = Deal::new(layers.len() as u32, n_threads);
        let mut counts = vec![vec![0; n_threads]; 1 + usize::from(*layers.iter().max().unwrap())];
        let mut places = BTreeSet::new();
        for (slot, layer) in (0..).zip(layers) {
            let place = deal.deal(slot, LayerId(*layer)).unwrap();
            assert_eq!(deal.place(slot), Some(place));
            assert!(places.insert((place.thread, place.slot)), "two slots share {place:?}");
            counts[usize::from(*layer)][place.thread] += 1;
        }
        counts
    }

    #[test]
    fn the_experts_of_each_layer_are_spread_evenly_in_whatever_order_they_come() {
        let in_order: Vec<u16> = (0..4).flat_map(|layer| [layer; 10]).collect();
        let mixed: Vec<u16> = (0..40).map(|n| n * 7 % 4).collect();
        for layers in [in_order, mixed] {
            for n_threads in [1, 2, 3, 8] {
                for counts in dealt(n_threads, &layers) {
                    // The last places may be where a layer has more experts already.
                    let (most, least) = (counts.iter().max().unwrap(), counts.iter().min().unwrap());
                    assert!(most - least <= 2, "{n_threads} threads: {counts:?}");
                }
            }
        }
    }

    #[test]
    fn a_slot_that_is_loaded_again_leaves_its_old_place_to_others() {
        let mut deal = Deal::new(4, 2);
        let first: Vec<Place> = (0..4).map(|slot| deal.deal(slot, LayerId(0)).unwrap()).collect();
        // Every place is taken, so the only one for it is its own.
        assert_eq!(deal.deal(2, LayerId(1)), Some(first[2]));
        assert_eq!(deal.deal(4, LayerId(0)), None, "there is no such slot");
        assert_eq!(deal.place(4), None);
    }

    #[test]
    fn no_thread_gets_more_than_its_share_of_the_memory() {
        assert_eq!(Deal::slots_each(10, 3), 4);
        for counts in dealt(3, &[0; 10]) {
            assert!(counts.iter().all(|&count| count <= 4), "{counts:?}");
        }
    }
}
