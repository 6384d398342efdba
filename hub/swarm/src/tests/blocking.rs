//! Answers that are checked before they are used: what whoever checks is given, and what follows from what it finds.

use moex_protocol::{Answer, Dispatch, ErrorCode, ProductShape, Reply, WorkerId};

use super::room::*;
use super::trust::{lie, scaled};
use crate::*;

fn blocking() -> SwarmConfig {
    SwarmConfig { verify: Verify::Blocking, check_every: 0, ..config() }
}

/// The hub's own answer to these items of a finished layer takes the place of workers'.
fn replace(result: &mut LayerResult, items: &[usize], is_exact: bool) -> Vec<Lie> {
    let own = answer(&result.dispatch(items));
    result.replace(items, &Answer { products: None, ..own }, is_exact).expect("an answer to that")
}

#[test]
fn workers_are_asked_for_products_and_not_asked_without() {
    let mut room = Room::new(blocking());
    let old = room.join_with(1, |join| join.gives_products = false, true);
    assert_eq!(room.worker(old).rejected, Some(ErrorCode::SelfTest));
    let new = room.join(2);
    room.start(job());
    assert!(room.take(new).unwrap().1.reply == Reply::RowsAndProducts);

    let mut room = Room::new(config());
    let old = room.join_with(1, |join| join.gives_products = false, true);
    room.start(job());
    assert!(room.take(old).unwrap().1.reply == Reply::Rows);
}

#[test]
fn a_finished_layer_says_by_what_it_can_be_checked() {
    let mut room = Room::new(blocking());
    let worker = room.join(1);
    let id = room.start(job());
    room.answer(worker);
    let result = room.results.remove(&id).unwrap();
    let layer = job().encode(room.swarm.layer_encoding()).unwrap();
    let rows = layer.dispatch(&[0, 1, 2, 3, 4]).rows;
    assert_eq!(result.rows(), (moex_protocol::Dtype::F16, &rows[..]));
    let mut experts = Vec::new();
    for part in result.unchecked() {
        assert_eq!(part.answer.len(), part.pairs.len() * 2 * HIDDEN);
        assert_eq!(part.products.len(), part.pairs.len() * PRODUCTS.row_bytes());
        experts.push(part.block.expert.0);
    }
    experts.sort_unstable();
    assert_eq!(experts, [0, 1, 3, 5, 7]);

    let id = room.start(job());
    room.close(worker);
    room.compute_on_hub();
    assert_eq!(room.results[&id].unchecked().count(), 0, "the hub does not check itself");
}

#[test]
fn one_lie_is_enough_and_what_else_the_liar_says_is_not_used() {
    let mut room = Room::new(blocking());
    let (liar, honest) = (room.join(1), room.join(2));
    let first = room.start(job());
    let (attempt, dispatch) = room.take(liar).unwrap();
    room.complete(liar, attempt, lie(&dispatch));
    room.answer(honest);
    let mut result = room.results.remove(&first).unwrap();
    let n_items = result.unchecked().count();
    let lies = replace(&mut result, &(0..n_items).collect::<Vec<_>>(), false);
    assert_eq!(result.sum(), alone(&job()), "the hub's own are used");
    assert_eq!(result.unchecked().count(), 0);
    assert!(!lies.is_empty() && lies.iter().all(|lie| lie.worker == WorkerId(1)), "{lies:?}");
    assert!((lies[0].evidence.nmse - 1.0).abs() < 1e-2 && lies[0].evidence.against.is_none());

    // Another answer of it is in already, of a layer that waits for somebody else's.
    let second = room.start(job());
    let (attempt, dispatch) = room.take(liar).unwrap();
    room.complete(liar, attempt, lie(&dispatch));
    assert!(!room.results.contains_key(&second));
    room.swarm.caught(room.now, lies);
    room.step();
    assert_eq!(room.closed, [(liar, 1008)]);
    let status = room.swarm.status();
    assert_eq!((status.quarantined.len(), status.quarantined[0].id), (1, WorkerId(1)));
    assert_eq!(status.quarantined[0].evidence.len(), 1, "one is enough");
    assert_eq!(status.totals.mismatches, 1, "what else it said of that layer is not counted again");
    room.answer(honest);
    room.answer(honest);
    room.compute_on_hub();
    assert_eq!(room.finished[&second], Ok(alone(&job())));
    let again = room.join(1);
    assert_eq!(room.worker(again).rejected, Some(ErrorCode::SelfTest));
}

#[test]
fn a_bit_is_a_lie_where_honest_workers_give_the_hubs_bits() {
    let mut room = Room::new(blocking());
    let worker = room.join(1);
    let mut said = |change: &dyn Fn(&Dispatch) -> Answer| {
        let id = room.start(job());
        let (attempt, dispatch) = room.take(worker).unwrap();
        room.complete(worker, attempt, change(&dispatch));
        room.results.remove(&id).unwrap()
    };
    let honest = said(&answer);
    assert_eq!(replace(&mut honest.clone(), &[0, 1, 2, 3, 4], true), []);
    let noisy = said(&|dispatch| scaled(dispatch, 1.001));
    assert_eq!(replace(&mut noisy.clone(), &[0, 1, 2, 3, 4], false), [], "another kernel's rounding");
    let found = replace(&mut noisy.clone(), &[1, 3], true);
    assert_eq!(found.len(), 2);
    let mut untrue = honest.clone();
    let infinite = scaled(&untrue.dispatch(&[0]), f32::INFINITY);
    assert_eq!(untrue.replace(&[0], &infinite, true), None, "the hub's own is no number");
}

#[test]
fn products_of_another_width_are_no_answer() {
    let mut room = Room::new(blocking());
    let (bad, honest) = (room.join(1), room.join(2));
    let id = room.start(job());
    let (attempt, dispatch) = room.take(bad).unwrap();
    let products = products(&dispatch, ProductShape { inner: PRODUCTS.inner + 1, ..PRODUCTS });
    room.complete(bad, attempt, Answer { products: Some(products), ..answer(&dispatch) });
    room.answer(honest);
    room.answer(honest);
    room.compute_on_hub();
    assert_eq!(room.finished[&id], Ok(alone(&job())));
    assert_eq!(room.swarm.status().totals.errors, 1);
}
