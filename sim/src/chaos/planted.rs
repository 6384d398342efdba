//! Tests the checks: a broken layer between the shipped swarm and the checks corrupts results, in one way each.

use std::time::Duration;

use moex_protocol::Routing;
use moex_protocol::{Block, ExpertId};
use moex_swarm::{JobError, JobId, LayerJob};

use super::{Chaos, SETTLING, Scenario};
use crate::world::Notice;

/// How long [`Bug::Stalls`] delays a layer.
const STALL: Duration = Duration::from_secs(10);

type Result<T> = std::result::Result<T, JobError>;

/// A bug planted in the swarm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    /// No bug: the checks must not object.
    None,
    /// The first expert's answer is missing from the sum.
    DropsCell,
    /// Two workers answered for the first expert, and the sum contains both answers.
    CountsCellTwice,
    /// One value has another last bit.
    RoundsOnce,
    /// A job ends without a notice.
    ForgetsJob,
    /// A job ends twice.
    EndsTwice,
    /// Every layer takes as long as a silent worker could once delay it.
    Stalls,
    /// A job is given up though the hub could have computed it.
    GivesUp,
    /// New keys may hold a replica of every block.
    NoCap,
}

/// Runs the faults of a seed against a swarm with this bug until the checks object; returns how many jobs
/// succeeded.
fn run(seed: u64, bug: Bug) -> std::result::Result<usize, String> {
    let mut scenario = Scenario::new(seed);
    if bug == Bug::NoCap {
        scenario.swarm.probation.every = 1;
    }
    let mut chaos = Chaos::of(scenario, seed, false);
    chaos.start_chained();
    let until = chaos.scenario.length + SETTLING;
    let mut n_jobs = 0;
    while chaos.world.next_at().is_some_and(|at| at <= until) {
        chaos.world.step();
        while let Some(notice) = chaos.world.poll_notice() {
            let Notice::Finished(id, result) = notice else {
                chaos.take(notice)?;
                continue;
            };
            n_jobs += usize::from(result.is_ok());
            for (id, result) in broken(&mut chaos, bug, id, result) {
                chaos.take(Notice::Finished(id, result))?;
            }
        }
        chaos.checks.step(&chaos.world)?;
    }
    Ok(n_jobs)
}

/// Applies the bug to the end of a job.
fn broken(
    chaos: &mut Chaos,
    bug: Bug,
    id: JobId,
    result: Result<Vec<f32>>,
) -> Vec<(JobId, Result<Vec<f32>>)> {
    let (Ok(sum), Some(job)) = (&result, chaos.checks.job(id)) else { return vec![(id, result)] };
    let Scenario { model, swarm, .. } = &chaos.scenario;
    let alone = |job: &LayerJob| model.alone(job, swarm.wire).expect("a job of the model");
    let first = *job.routing.experts.first().expect("a job has rows");
    match bug {
        Bug::None | Bug::NoCap => vec![(id, result)],
        Bug::DropsCell => {
            vec![(id, Ok(alone(&with_gates(job, |expert, gate| if expert == first { 0.0 } else { gate }))))]
        }
        Bug::CountsCellTwice => {
            let one = alone(&with_gates(job, |expert, gate| if expert == first { gate } else { 0.0 }));
            vec![(id, Ok(sum.iter().zip(&one).map(|(sum, one)| sum + one).collect()))]
        }
        Bug::RoundsOnce => {
            let mut sum = sum.clone();
            if let Some(value) = sum.iter_mut().find(|value| **value != 0.0) {
                *value = f32::from_bits(value.to_bits() ^ 1);
            }
            vec![(id, Ok(sum))]
        }
        Bug::Stalls => {
            chaos.checks.delay(id, STALL);
            vec![(id, result)]
        }
        Bug::ForgetsJob => Vec::new(),
        Bug::EndsTwice => vec![(id, result.clone()), (id, result)],
        Bug::GivesUp => {
            let block = Block { layer: job.layer, expert: ExpertId(first) };
            vec![(id, Err(JobError::Uncovered { block, waited: swarm.coverage_wait }))]
        }
    }
}

/// A job whose gates come from `gate`, called for each (row, expert).
fn with_gates(job: &LayerJob, gate: impl Fn(u16, f32) -> f32) -> LayerJob {
    let Routing { k, experts, gates } = &job.routing;
    let gates = experts.iter().zip(gates).map(|(expert, old)| gate(*expert, *old)).collect();
    LayerJob { routing: Routing { k: *k, experts: experts.clone(), gates }, ..job.clone() }
}

#[test]
fn a_planted_bug_is_found_and_no_bug_is_not() {
    const SEEDS: u64 = 12;
    let found = |bug| (0..SEEDS).filter(|seed| run(*seed, bug).is_err()).count() as u64;
    let worked =
        (0..SEEDS).filter(|seed| run(*seed, Bug::None).expect("nothing is wrong") > 0).count() as u64;
    assert!(worked > SEEDS / 2, "{worked} seeds have jobs");
    for bug in [Bug::DropsCell, Bug::CountsCellTwice, Bug::ForgetsJob, Bug::EndsTwice] {
        assert_eq!(found(bug), worked, "{bug:?}");
    }
    // Where workers add up, sums may differ in their last bits. Where the hub does not compute, a job may be given up
    // or take long.
    for bug in [Bug::RoundsOnce, Bug::GivesUp, Bug::Stalls] {
        assert!(found(bug) > 0, "{bug:?}");
    }
    // New keys come to workers that have proven themselves in few seeds.
    assert!(
        (0..16 * SEEDS).any(|seed| run(seed, Bug::NoCap).is_err_and(|what| what.contains("new keys hold")))
    );
}
