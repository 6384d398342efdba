//! Buffers of intermediates, planned before any is made: a program is compiled once to learn how long each intermediate lives, and
//! once more with the buffers. The largest intermediates choose first (Pisarchyk and Lee, 2020, "Greedy by Size for Shared
//! Objects"). Buffers are shared as wholes: no dispatch reads and writes parts of one.

use std::{cmp::Reverse, ops::Range};

use crate::{
    engine::gpu::{device::GpuDevice, pipeline::allocate},
    graph::PlanBytes,
};

/// An intermediate of a [`Places`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlaceId(usize);

/// All intermediates of a pass.
pub(super) struct Places<'a> {
    device: &'a GpuDevice,
    lives: Vec<Life>,
    /// The step that comes next.
    now: usize,
    plan: Plan,
    /// Those of the plan.
    buffers: Vec<wgpu::Buffer>,
    /// What stands for each of them until there is a plan.
    nothing: wgpu::Buffer,
    /// Buffers made so far, others than the plan's included.
    pub(super) n_buffers: u64,
}

/// When an intermediate is in use.
#[derive(Clone, Debug)]
struct Life {
    bytes: u64,
    /// Of steps; it ends with the pass if nobody releases it.
    steps: Range<usize>,
    n_users: usize,
}

/// Which intermediate is in which buffer.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Bytes of each buffer.
    buffers: Vec<u64>,
    /// For each intermediate.
    buffer_of: Vec<usize>,
}

impl Plan {
    fn of(lives: &[Life]) -> Self {
        let mut largest_first: Vec<usize> = (0..lives.len()).collect();
        largest_first.sort_by_key(|index| Reverse(lives[*index].bytes));
        let mut buffers: Vec<(u64, Vec<Range<usize>>)> = Vec::new();
        let mut buffer_of = vec![0; lives.len()];
        for index in largest_first {
            let Life { bytes, steps, .. } = &lives[index];
            let is_free = |(_, taken): &(u64, Vec<Range<usize>>)| {
                taken.iter().all(|other| other.end <= steps.start || steps.end <= other.start)
            };
            // The last is the smallest, and as large as this one.
            let buffer = buffers.iter().rposition(is_free).unwrap_or_else(|| {
                buffers.push((*bytes, Vec::new()));
                buffers.len() - 1
            });
            buffers[buffer].1.push(steps.clone());
            buffer_of[index] = buffer;
        }
        Self { buffers: buffers.into_iter().map(|(bytes, _)| bytes).collect(), buffer_of }
    }
}

impl<'a> Places<'a> {
    /// Without a plan yet.
    pub(super) fn unplanned(device: &'a GpuDevice) -> Self {
        use wgpu::BufferUsages as Usage;

        let nothing = allocate(device, "nothing", 64, Usage::STORAGE, &mut 0);
        let (lives, plan) = (Vec::new(), Plan::default());
        Self { device, lives, now: 0, plan, buffers: Vec::new(), nothing, n_buffers: 0 }
    }

    /// The plan for what was taken.
    pub(super) fn plan(&self) -> Plan {
        Plan::of(&self.lives)
    }

    /// With the buffers of a plan, for what was taken when it was made.
    pub(super) fn planned(device: &'a GpuDevice, plan: Plan) -> Self {
        use wgpu::BufferUsages as Usage;

        let mut places = Self::unplanned(device);
        let usage = Usage::STORAGE | Usage::COPY_SRC | Usage::COPY_DST;
        places.buffers = plan.buffers.iter().map(|bytes| places.buffer("place", *bytes, usage)).collect();
        Self { plan, ..places }
    }

    /// A buffer that is no intermediate.
    pub(super) fn buffer(&mut self, label: &str, bytes: u64, usage: wgpu::BufferUsages) -> wgpu::Buffer {
        allocate(self.device, label, bytes.next_multiple_of(4), usage, &mut self.n_buffers)
    }

    /// An intermediate of `bytes` with one user, from the next step on.
    pub(super) fn take(&mut self, bytes: usize) -> PlaceId {
        // A vector of four words is the smallest that a kernel binds.
        let bytes = (bytes as u64).next_multiple_of(16).max(64);
        self.lives.push(Life { bytes, steps: self.now..usize::MAX, n_users: 1 });
        PlaceId(self.lives.len() - 1)
    }

    /// An intermediate in a buffer that no other is in: a dispatch that binds what others have bound waits for these.
    pub(super) fn take_apart(&mut self, bytes: usize) -> PlaceId {
        let place = self.take(bytes);
        // Until the pass ends, since one of its users never releases it.
        self.lives[place.0].steps.start = 0;
        self.share(place);
        place
    }

    /// One more user.
    pub(super) fn share(&mut self, place: PlaceId) {
        self.lives[place.0].n_users += 1;
    }

    /// One user less, before the next step.
    pub(super) fn release(&mut self, place: PlaceId) {
        let life = &mut self.lives[place.0];
        life.n_users -= 1;
        if life.n_users == 0 {
            // What is bound by one step alone, and not read, is in use in it.
            life.steps.end = self.now.max(life.steps.start + 1);
        }
    }

    /// A step was appended.
    pub(super) fn step_is_over(&mut self) {
        self.now += 1;
    }

    /// Bytes of all buffers, and those of one for each intermediate.
    pub(super) fn plan_bytes(&self) -> PlanBytes {
        let naive: u64 = self.lives.iter().map(|life| life.bytes).sum();
        PlanBytes { planned: self.plan.buffers.iter().sum::<u64>() as usize, naive: naive as usize }
    }

    /// Whether a buffer stands for intermediates that have none yet.
    pub(super) fn is_nothing(&self, buffer: &wgpu::Buffer) -> bool {
        *buffer == self.nothing
    }

    /// The buffer of an intermediate; before there is a plan, what stands for it.
    pub(super) fn get(&self, place: PlaceId) -> wgpu::Buffer {
        let buffer = self.plan.buffer_of.get(place.0).map_or(&self.nothing, |buffer| &self.buffers[*buffer]);
        buffer.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life(bytes: u64, steps: Range<usize>) -> Life {
        Life { bytes, steps, n_users: 0 }
    }

    #[test]
    fn the_largest_choose_first_and_none_shares_a_buffer_while_it_lives() {
        let lives = [life(16, 0..2), life(64, 1..3), life(32, 2..5), life(64, 3..4), life(16, 4..usize::MAX)];
        let plan = Plan::of(&lives);
        assert_eq!((plan.buffers, plan.buffer_of), (vec![64, 32], vec![1, 0, 1, 0, 0]));
    }

    #[test]
    fn what_is_apart_is_in_a_buffer_of_its_own() {
        let Some(device) = crate::engine::gpu::tests::device() else { return };
        let mut places = Places::unplanned(&device);
        let mut of_one_step = |is_apart: bool| {
            let place = if is_apart { places.take_apart(64) } else { places.take(64) };
            places.step_is_over();
            places.release(place);
        };
        [false, true, false, true].into_iter().for_each(&mut of_one_step);
        assert_eq!(places.plan().buffer_of, [0, 1, 0, 2]);
    }

    #[test]
    fn no_plan_lets_two_that_live_together_share() {
        let mut state = 7_u64;
        let mut number = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for _ in 0..200 {
            let lives: Vec<Life> = (0..40)
                .map(|_| {
                    let start = number(30) as usize;
                    life(16 * (1 + number(20)), start..start + 1 + number(8) as usize)
                })
                .collect();
            let plan = Plan::of(&lives);
            for (i, a) in lives.iter().enumerate() {
                assert!(plan.buffers[plan.buffer_of[i]] >= a.bytes);
                for (j, b) in lives.iter().enumerate().skip(i + 1) {
                    let together = a.steps.start < b.steps.end && b.steps.start < a.steps.end;
                    assert!(!together || plan.buffer_of[i] != plan.buffer_of[j]);
                }
            }
            // No plan is smaller than what lives at once.
            let at = |step| {
                let alive = lives.iter().filter(|life| life.steps.contains(&step));
                alive.map(|life| life.bytes).sum::<u64>()
            };
            assert!(plan.buffers.iter().sum::<u64>() >= (0..40).map(at).max().unwrap());
        }
    }
}
