//! Dispatches: what is answered, in which order, and what is not.

use moex_kernels::cpu;
use moex_kernels::engine::Pair;
use moex_protocol::{
    Answer, AttemptId, Dispatch, Dtype, ErrorCode, Form, HubEvent, ProductFormat, ProductShape, Reply, tensor,
};

use crate::harness::{HIDDEN, SHAPE, World, block, block_bytes, dispatch};

/// gate x expert(row) for each pair of each call, as the wire carries it: (P, D) per call.
fn expected(dispatch: &Dispatch) -> Vec<Vec<f32>> {
    let rows = tensor::decode_rows(dispatch.dtype, &dispatch.rows, HIDDEN).unwrap();
    let call = |call: &moex_protocol::Call| {
        let pairs = call.pairs.iter().map(|pair| Pair { row: pair.row.into(), gate: pair.gate.to_f32() });
        let pairs: Vec<_> = pairs.collect();
        let mut out = vec![0.0; pairs.len() * HIDDEN];
        let bytes = block_bytes(call.expert.0);
        cpu::expert_ffn(&SHAPE.view(&bytes).unwrap(), &rows, &pairs, &mut out);
        out
    };
    dispatch.calls.iter().map(call).collect()
}

fn on_the_wire(dtype: Dtype, rows: &[f32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    tensor::encode_rows(dtype, rows, HIDDEN, &mut bytes);
    bytes
}

fn answers(world: &mut World) -> Vec<(AttemptId, Answer)> {
    let answered = |event| match event {
        HubEvent::Answered { attempt, answer, .. } => Some((attempt, answer)),
        _ => None,
    };
    world.take_events().into_iter().filter_map(answered).collect()
}

fn failures(world: &mut World) -> Vec<(AttemptId, ErrorCode)> {
    let failed = |event| match event {
        HubEvent::Failed { attempt, error, .. } => Some((attempt, error.code)),
        _ => None,
    };
    world.take_events().into_iter().filter_map(failed).collect()
}

#[test]
fn every_form_and_dtype_is_answered_to_the_bit() {
    let mut world = World::serving(8, &[0, 2, 5]);
    let mut attempt = 0;
    for dtype in [Dtype::F16, Dtype::Bf16, Dtype::Int8, Dtype::Int4] {
        for form in [Form::Plain, Form::RowsOnce] {
            attempt += 1;
            let dispatch = dispatch(form, dtype, 5, &[0, 2, 5]);
            world.dispatch(attempt, &dispatch);
            let [(answered, answer)] = &answers(&mut world)[..] else { panic!("one answer") };
            assert_eq!(*answered, AttemptId(attempt));
            for (part, rows) in answer.parts.iter().zip(expected(&dispatch)) {
                assert_eq!(part.payload, on_the_wire(dtype, &rows), "{form:?} {dtype:?}");
            }
        }
    }
    let status = world.core.status();
    assert_eq!((status.dispatches, status.answers, status.errors), (8, 8, 0));
    assert_eq!(status.rows, 8 * (5 + 3 + 3));
}

#[test]
fn dispatches_are_computed_one_at_a_time_in_order_of_arrival() {
    let mut world = World::serving(8, &[0, 1]);
    world.hold_computations = true;
    for attempt in 1..=3 {
        world.dispatch(attempt, &dispatch(Form::Plain, Dtype::F16, 1, &[0]));
    }
    let mut order = Vec::new();
    for _ in 0..3 {
        world.compute_one();
        order.extend(answers(&mut world).into_iter().map(|(attempt, _)| attempt.0));
    }
    assert_eq!(order, [1, 2, 3]);
}

#[test]
fn beyond_the_input_slots_the_oldest_waiting_is_preempted() {
    let mut world = World::serving(8, &[0]);
    world.hold_computations = true;
    // One runs, two fill the slots, the fourth takes the place of the second.
    for attempt in 1..=4 {
        world.dispatch(attempt, &dispatch(Form::Plain, Dtype::F16, 1, &[0]));
    }
    assert_eq!(failures(&mut world), [(AttemptId(2), ErrorCode::Preempted)]);
}

#[test]
fn cancelled_work_is_skipped() {
    let mut world = World::serving(8, &[0]);
    world.hold_computations = true;
    for attempt in 1..=3 {
        world.dispatch(attempt, &dispatch(Form::Plain, Dtype::F16, 1, &[0]));
    }
    world.hub.cancel(world.now, AttemptId(1));
    world.hub.cancel(world.now, AttemptId(2));
    world.drive();
    world.compute_one();
    assert!(answers(&mut world).is_empty(), "the running one was cancelled");
    assert_eq!(world.computations[0].0, AttemptId(3), "the waiting one never starts");
    world.compute_one();
    assert_eq!(answers(&mut world).len(), 1);
}

#[test]
fn a_block_that_is_not_resident_is_refused() {
    let mut world = World::serving(8, &[0]);
    world.dispatch(1, &dispatch(Form::Plain, Dtype::F16, 1, &[0, 3]));
    assert_eq!(failures(&mut world), [(AttemptId(1), ErrorCode::NotResident)]);
    world.drop_blocks(2, &[0]);
    world.dispatch(2, &dispatch(Form::Plain, Dtype::F16, 1, &[0]));
    assert_eq!(failures(&mut world), [(AttemptId(2), ErrorCode::NotResident)]);
}

#[test]
fn a_block_dropped_under_a_running_computation_still_answers() {
    let mut world = World::serving(1, &[0]);
    world.hold_computations = true;
    let dispatch = dispatch(Form::Plain, Dtype::F16, 2, &[0]);
    world.dispatch(1, &dispatch);
    world.drop_blocks(2, &[0]);
    world.hold(3, &[4]);
    assert!(!world.fetched.contains(&block(4)), "the only slot is being read");
    world.compute_one();
    let [(_, answer)] = &answers(&mut world)[..] else { panic!("one answer") };
    assert_eq!(answer.parts[0].payload, on_the_wire(Dtype::F16, &expected(&dispatch)[0]));
    assert!(world.fetched.contains(&block(4)), "now it is free");
}

#[test]
fn results_that_are_not_finite_are_never_sent() {
    let mut world = World::serving(8, &[0]);
    world.hold_computations = true;
    for (attempt, value) in [(1, f32::NAN), (2, f32::INFINITY), (3, 1e9)] {
        world.dispatch(attempt, &dispatch(Form::Plain, Dtype::F16, 1, &[0]));
        world.computations.clear();
        let mut rows = vec![0.5; HIDDEN];
        rows[7] = value;
        world.core.computed(world.now, AttemptId(attempt), Ok(rows.into()));
        world.drive();
        assert_eq!(failures(&mut world), [(AttemptId(attempt), ErrorCode::BadFrame)], "{value}");
    }
    assert_eq!(world.core.status().errors, 3);
}

#[test]
fn an_engine_that_fails_fails_the_attempt_and_goes_on() {
    let mut world = World::serving(8, &[0]);
    world.hold_computations = true;
    world.dispatch(1, &dispatch(Form::Plain, Dtype::F16, 1, &[0]));
    world.computations.clear();
    world.core.computed(world.now, AttemptId(1), Err("gone".into()));
    world.drive();
    assert_eq!(failures(&mut world), [(AttemptId(1), ErrorCode::DeviceLost)]);
    world.dispatch(2, &dispatch(Form::Plain, Dtype::F16, 1, &[0]));
    world.compute_one();
    assert_eq!(answers(&mut world).len(), 1);
}

#[test]
fn a_wrong_amount_of_output_is_never_sent() {
    let mut world = World::serving(8, &[0]);
    world.hold_computations = true;
    world.dispatch(1, &dispatch(Form::Plain, Dtype::F16, 2, &[0]));
    world.computations.clear();
    world.core.computed(world.now, AttemptId(1), Ok(vec![0.0; HIDDEN].into()));
    world.drive();
    assert_eq!(failures(&mut world), [(AttemptId(1), ErrorCode::BadFrame)]);
}

#[test]
fn digests_are_of_the_rows_that_would_have_been_sent() {
    let mut world = World::serving(8, &[0, 1]);
    let rows = dispatch(Form::RowsOnce, Dtype::F16, 2, &[0, 1]);
    world.dispatch(1, &rows);
    let (_, answer) = answers(&mut world).pop().unwrap();
    world.dispatch(2, &Dispatch { reply: Reply::Digests, ..rows });
    let digested = world.take_events().into_iter().find_map(|event| match event {
        HubEvent::Digested { attempt, digests } => Some((attempt, digests)),
        _ => None,
    });
    let (attempt, digests) = digested.expect("digests were asked for");
    assert_eq!((attempt, digests.len()), (AttemptId(2), 2));
    assert_eq!(digests, answer.digests(attempt));
}

#[test]
fn products_come_with_the_answer_where_they_were_agreed_on_and_asked_for() {
    let mut world = World::new(8);
    world.wants_products = true;
    world.drive();
    world.accept();
    world.hold(1, &[0, 1]);
    let asking =
        Dispatch { reply: Reply::RowsAndProducts, ..dispatch(Form::RowsOnce, Dtype::F16, 2, &[0, 1]) };
    world.dispatch(1, &asking);
    let (_, answer) = answers(&mut world).pop().unwrap();
    let products = answer.products.expect("they were asked for");
    let inner = u16::try_from(SHAPE.inner).unwrap();
    assert_eq!(products.shape, ProductShape { inner, format: ProductFormat::F32 });
    assert_eq!(products.payload.len(), asking.n_pairs() * products.shape.row_bytes());
    world.dispatch(2, &dispatch(Form::Plain, Dtype::F16, 1, &[0]));
    assert_eq!(answers(&mut world).pop().unwrap().1.products, None, "nobody asked");

    let mut world = World::serving(8, &[0]);
    world.dispatch(
        1,
        &Dispatch { reply: Reply::RowsAndProducts, ..dispatch(Form::Plain, Dtype::F16, 1, &[0]) },
    );
    assert_eq!(failures(&mut world), [(AttemptId(1), ErrorCode::BadFrame)], "not agreed on");
}
