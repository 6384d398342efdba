//! The sum has the same bits whoever answers, in whatever order, and however often things go wrong.

use proptest::prelude::*;

use super::room::*;
use crate::*;

fn bits(sum: &[f32]) -> Vec<u32> {
    sum.iter().map(|value| value.to_bits()).collect()
}

fn finished(room: &mut Room, id: JobId) -> Vec<f32> {
    room.finished.remove(&id).expect("the job has finished").expect("and well")
}

#[test]
fn workers_give_what_the_hub_alone_gives() {
    for hedge in 1..=4u8 {
        let mut room = Room::new(SwarmConfig { hedge: Hedge::Fixed(hedge), ..config() });
        let workers = [1, 2, 3].map(|id| room.join(id));
        let id = room.start(job());
        assert!(room.computes.is_empty(), "every block has a holder");
        for worker in workers {
            room.answer(worker);
        }
        assert_eq!(bits(&finished(&mut room, id)), bits(&alone(&job())));
    }
}

#[test]
fn a_job_without_rows_is_done_at_once() {
    let mut room = Room::new(config());
    let mut empty = job();
    empty.rows.clear();
    empty.routing.experts.clear();
    empty.routing.gates.clear();
    let id = room.start(empty);
    assert!(finished(&mut room, id).is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// A random script: who answers when, who hangs, fails, leaves or comes.
    #[test]
    fn whatever_happens_the_bits_are_the_same(
        script in proptest::collection::vec((0usize..4, 0u8..8), 0..40),
        hedge in 0u8..=4,
        check_every in 0u32..=2,
        replicas in 1usize..=3,
    ) {
        let mut room = Room::new(SwarmConfig {
            hedge: if hedge == 0 { Hedge::Adaptive { budget: 0.5 } } else { Hedge::Fixed(hedge) },
            check_every,
            replicas,
            ..config()
        });
        let mut workers = Vec::new();
        for id in 1..=4 {
            workers.push(room.join(id));
        }
        let jobs = [room.start(job()), room.start(job())];
        let mut next_id = 5;
        for (who, what) in script {
            let worker = workers[who];
            match what {
                0 => room.answer(worker),
                1 => room.advance_millis(600),
                2 => { room.close(worker); workers[who] = room.join(next_id); next_id += 1; }
                3 => { if let Some((attempt, dispatch)) = room.take(worker) {
                        room.complete(worker, attempt, answer(&dispatch));
                } }
                4 => { if let Some((attempt, _)) = room.take(worker) {
                        let now = room.now;
                        room.worker(worker).session.fail(now, attempt, moex_protocol::ErrorCode::Preempted, "");
                        room.step();
                } }
                5 => room.compute_on_hub(),
                // A lie that is found out before it is used; without the check it could win.
                6 if check_every == 1 => { if let Some((attempt, dispatch)) = room.take(worker) {
                        room.complete(worker, attempt, super::trust::lie(&dispatch));
                } }
                6 => room.advance_millis(25),
                _ => room.show(worker, if who % 2 == 0 {
                    moex_protocol::Visibility::Hidden
                } else {
                    moex_protocol::Visibility::Visible
                }),
            }
        }
        for _ in 0..20 {
            room.advance_millis(1_000);
            room.compute_on_hub();
        }
        let expected = bits(&alone(&job()));
        for id in jobs {
            prop_assert_eq!(&bits(&finished(&mut room, id)), &expected);
        }
    }
}
