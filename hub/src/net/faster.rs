//! Who computes a step's experts where the hub can: the hub itself or its workers, whoever was faster at steps of as many rows.
//!
//! Whole steps are compared, as the engine sees them: with the way to the workers, the checks of their answers, and what the
//! engine computes in the meantime. Texts do not depend on it, since both give the same bits.
//!
//! ```text
//! a side without measurements --> looked at: the next 4 steps are its
//! own < 0.9 x workers'        --> the hub computes          } the other side is looked at again
//! otherwise                   --> the workers are asked     } when that costs a hundredth of the time since
//! ```
//! A look ends early where a step takes three times as long as the other side's: the rest of that step is the other side's.

use std::time::Duration;

/// Who computes a step's experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// The hub, on the engine's thread.
    Own,
    /// The workers, and the hub for what none of them holds.
    Workers,
}

/// The shortest recent step of each side, for steps of about as many rows as the last one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Compared {
    pub own: Duration,
    /// None if their last step failed, or if none of them answered anything in it.
    pub workers: Option<Duration>,
    pub side: Side,
}

/// See the [module's description](self).
#[derive(Debug, Default)]
pub(super) struct Faster {
    classes: [Class; N_CLASSES],
    strength: usize,
    /// When workers were last looked at because they had become more.
    renewed: Option<Duration>,
    step: Option<Step>,
}

/// Classes of steps by rows: 1, 2 to 3, 4 to 7, and so on.
const N_CLASSES: usize = 14;
/// Steps of a look, and those of each side whose shortest counts: one may have met something else.
const LOOK: usize = 4;
/// A side is worth a change if its steps take less than this part of the other's. Of equals, workers: they leave the hub's
/// cores to attention.
const WORTH: f64 = 0.9;
/// A step of a look that takes this many times as long as the other side's ends the look.
const TOO_LONG: u32 = 3;
/// A look may cost one part in so many of the time until the next.
const COST: u32 = 100;
/// Least time from one look to the next, also when workers come.
const PAUSE: Duration = Duration::from_secs(2);

/// What a step counts as that failed, or that workers computed nothing of.
const FAILED: Duration = Duration::from_secs(3600);

fn class_of(n_rows: usize) -> usize {
    (n_rows.max(1).ilog2() as usize).min(N_CLASSES - 1)
}

/// Measurements of steps of about as many rows.
#[derive(Clone, Debug, Default)]
struct Class {
    own: Recent,
    workers: Recent,
    /// The side that is looked at, for so many steps more, at this cost so far.
    look: Option<(Side, usize, Duration)>,
    next_look: Duration,
}

/// The last steps of a side.
#[derive(Clone, Debug, Default)]
struct Recent {
    steps: [Duration; LOOK],
    n: usize,
}

#[derive(Debug)]
struct Step {
    class: usize,
    begun: Duration,
    side: Side,
    /// When the rest of the step goes to the other side.
    limit: Option<Duration>,
    /// Whether it has gone there.
    is_over_limit: bool,
    has_failed: bool,
}

impl Faster {
    /// A step of `n_rows` begins: who computes it. `strength` grows with the workers and what they hold; at 0 there are none, and
    /// the hub computes.
    pub(super) fn step_begins(&mut self, now: Duration, n_rows: usize, strength: usize) -> Side {
        self.renew(now, strength);
        let at = class_of(n_rows);
        let class = &mut self.classes[at];
        let (side, limit) = if strength == 0 { (Side::Own, None) } else { class.choose(now) };
        let limit = limit.map(|limit| now + limit);
        self.step =
            Some(Step { class: at, begun: now, side, limit, is_over_limit: false, has_failed: false });
        side
    }

    /// Whether this step is a measurement of workers so far.
    pub(super) fn looks_at_workers(&self) -> bool {
        self.step.as_ref().is_some_and(|step| step.side == Side::Workers && !step.is_over_limit)
    }

    /// Who computes the next layer of the step.
    pub(super) fn side(&mut self, now: Duration) -> Side {
        let Some(step) = &mut self.step else { return Side::Workers };
        step.is_over_limit |= step.limit.is_some_and(|limit| now > limit);
        if step.is_over_limit { step.side.other() } else { step.side }
    }

    /// A layer of the step failed, or its side computed none: however soon that was, this side is no fast one.
    pub(super) fn step_fails(&mut self) {
        if let Some(step) = &mut self.step {
            step.has_failed = true;
        }
    }

    /// The step is over.
    pub(super) fn step_ends(&mut self, now: Duration) {
        let Some(step) = self.step.take() else { return };
        let took = now.saturating_sub(step.begun);
        let counts_as = if step.has_failed { FAILED.max(took) } else { took };
        let is_all = step.is_over_limit || step.has_failed;
        self.classes[step.class].learn(now, step.side, took, counts_as, is_all);
    }

    /// Who computes steps like the last one, and why; none until both sides are measured.
    pub(super) fn compared(&self, n_rows: usize) -> Option<Compared> {
        let class = &self.classes[class_of(n_rows)];
        let (own, workers) = (class.own.best()?, class.workers.best()?);
        Some(Compared { own, workers: (workers < FAILED).then_some(workers), side: class.faster()? })
    }

    /// More workers may be faster than those that were measured.
    fn renew(&mut self, now: Duration, strength: usize) {
        let is_soon = self.renewed.is_some_and(|renewed| now < renewed + PAUSE);
        if strength <= self.strength || is_soon {
            self.strength = self.strength.min(strength);
            return;
        }
        (self.strength, self.renewed) = (strength, Some(now));
        for class in &mut self.classes {
            class.next_look = now;
        }
    }
}

impl Class {
    /// The side of the next step, and how long it may take if that is a look.
    fn choose(&mut self, now: Duration) -> (Side, Option<Duration>) {
        let is_due = now >= self.next_look;
        let (side, is_look) = match (self.faster(), self.look) {
            (_, Some((side, ..))) => (side, true),
            (Some(faster), None) if is_due => (faster.other(), true),
            (Some(faster), None) => (faster, false),
            // Workers first: the hub's own experts may have to come from a disk.
            (None, None) if self.workers.best().is_none() => (Side::Workers, true),
            (None, None) => (Side::Own, true),
        };
        if is_look && self.look.is_none() {
            self.look = Some((side, LOOK, Duration::ZERO));
        }
        let limit = self.recent(side.other()).best().filter(|_| is_look);
        (side, limit.map(|best| best.saturating_mul(TOO_LONG)))
    }

    /// A step of this side `took` so long and `counts_as` so long; it `is_all` that counts of the side, and ends a look at it.
    fn learn(&mut self, now: Duration, side: Side, took: Duration, counts_as: Duration, is_all: bool) {
        let recent = match side {
            Side::Own => &mut self.own,
            Side::Workers => &mut self.workers,
        };
        if is_all {
            *recent = Recent { steps: [counts_as; LOOK], n: LOOK };
        } else {
            recent.steps[recent.n % LOOK] = counts_as;
            recent.n += 1;
        }
        if let Some((looked, left, cost)) = self.look.filter(|(looked, ..)| *looked == side) {
            let (left, cost) = (left - 1, cost + took);
            let is_over = left == 0 || is_all;
            self.look = (!is_over).then_some((looked, left, cost));
            if is_over {
                self.next_look = now + cost.saturating_mul(COST).max(PAUSE);
            }
        }
    }

    fn faster(&self) -> Option<Side> {
        let (own, workers) = (self.own.best()?, self.workers.best()?);
        let is_own = own.as_secs_f64() < WORTH * workers.as_secs_f64();
        Some(if is_own { Side::Own } else { Side::Workers })
    }

    fn recent(&self, side: Side) -> &Recent {
        match side {
            Side::Own => &self.own,
            Side::Workers => &self.workers,
        }
    }
}

impl Recent {
    /// The shortest of the last steps, once there are enough.
    fn best(&self) -> Option<Duration> {
        self.steps.iter().min().copied().filter(|_| self.n >= LOOK)
    }
}

impl Side {
    fn other(self) -> Self {
        match self {
            Self::Own => Self::Workers,
            Self::Workers => Self::Own,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Runs steps of one row, in ten layers each, for `time`; gives what each side took of it.
    fn run(
        faster: &mut Faster,
        now: &mut Duration,
        time: Duration,
        strength: usize,
        step: [Duration; 2],
    ) -> [f64; 2] {
        let (end, mut took) = (*now + time, [0.0; 2]);
        while *now < end {
            faster.step_begins(*now, 1, strength);
            for _ in 0..10 {
                let side = usize::from(faster.side(*now) == Side::Workers);
                *now += step[side] / 10;
                took[side] += step[side].as_secs_f64() / 10.0;
            }
            faster.step_ends(*now);
        }
        took
    }

    #[test]
    fn the_faster_side_computes_and_the_other_costs_a_hundredth() {
        for (own, workers) in [(1, 2), (5, 2), (10, 10), (1, 1000), (1000, 1)] {
            let (mut faster, mut now) = (Faster::default(), Duration::ZERO);
            run(&mut faster, &mut now, 10 * MS, 0, [own * MS, workers * MS]);
            let took = run(&mut faster, &mut now, Duration::from_secs(30), 3, [own * MS, workers * MS]);
            let right = usize::from(own >= workers);
            assert!(took[1 - right] < 0.03 * took[right], "{own} and {workers} ms: {took:?} s");
            assert!(took[1 - right] > 0.0, "{own} and {workers} ms: never looked at");
            let compared = faster.compared(1).unwrap();
            assert_eq!(usize::from(compared.side == Side::Workers), right, "{compared:?}");
        }
    }

    #[test]
    fn what_changes_is_found_out() {
        let (mut faster, mut now) = (Faster::default(), Duration::ZERO);
        run(&mut faster, &mut now, Duration::from_secs(5), 1, [2 * MS, 6 * MS]);
        let more_came = run(&mut faster, &mut now, Duration::from_secs(5), 4, [2 * MS, MS]);
        assert!(more_came[1] > 4.0, "{more_came:?}");
        let slowed_down = run(&mut faster, &mut now, Duration::from_secs(20), 4, [2 * MS, 8 * MS]);
        assert!(slowed_down[0] > 18.0, "{slowed_down:?}");
    }

    #[test]
    fn a_hub_whose_experts_are_on_a_disk_is_looked_at_for_three_steps_of_its_workers() {
        let (mut faster, mut now) = (Faster::default(), Duration::ZERO);
        let step = [Duration::from_secs(20), 5 * MS];
        run(&mut faster, &mut now, 20 * MS, 2, step);
        let begun = now;
        assert_eq!(faster.step_begins(now, 1, 2), Side::Own, "never measured");
        now += step[0] / 10;
        assert_eq!(faster.side(now), Side::Workers, "the rest of the step");
        faster.step_ends(now);
        let looked = now - begun;
        let [by_hub, by_workers] = run(&mut faster, &mut now, 50 * looked, 2, step);
        assert!(by_hub == 0.0 && by_workers > 99.0, "{by_hub} {by_workers}");
    }

    #[test]
    fn who_fails_at_once_is_not_the_faster() {
        let (mut faster, mut now) = (Faster::default(), Duration::ZERO);
        run(&mut faster, &mut now, Duration::from_secs(5), 1, [5 * MS, MS]);
        assert_eq!(faster.step_begins(now, 1, 1), Side::Workers);
        faster.step_fails();
        faster.step_ends(now + MS / 100);
        assert_eq!(
            faster.compared(1).map(|compared| (compared.workers, compared.side)),
            Some((None, Side::Own))
        );
        assert_eq!(faster.step_begins(now, 1, 1), Side::Own);
        faster.step_ends(now + 5 * MS);
        // They answer again.
        let took = run(&mut faster, &mut now, Duration::from_secs(20), 1, [5 * MS, MS]);
        assert!(took[1] > 10.0, "{took:?}");
    }

    #[test]
    fn without_workers_the_hub_computes() {
        let mut faster = Faster::default();
        assert_eq!(faster.side(MS), Side::Workers, "no step");
        for n_rows in [0, 1, 100, usize::MAX] {
            assert_eq!(faster.step_begins(MS, n_rows, 0), Side::Own);
            assert_eq!(faster.side(2 * MS), Side::Own);
            faster.step_ends(3 * MS);
            assert_eq!(faster.compared(n_rows), None);
        }
    }
}
