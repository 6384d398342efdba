//! Joining, being refused, hiding and leaving.

use moex_protocol::{ErrorCode, HubEvent, State, Visibility};

use crate::harness::{World, dispatch};

fn visibilities(world: &mut World) -> Vec<Visibility> {
    let beat = |event| match event {
        HubEvent::Beat { beat, .. } => Some(beat.visibility),
        _ => None,
    };
    world.take_events().into_iter().filter_map(beat).collect()
}

#[test]
fn the_join_is_the_first_word() {
    let mut world = World::new(1);
    world.drive();
    let [HubEvent::Joined(join)] = &world.events[..] else { panic!("a join: {:?}", world.events) };
    assert_eq!(join.token, "token");
    assert_eq!(world.core.status().state, "joining");
    assert!(!world.core.was_accepted());
    world.accept();
    assert!(world.core.was_accepted());
}

#[test]
fn a_wrong_token_is_final_and_a_full_hub_is_not() {
    for (code, is_final) in [
        (ErrorCode::Unauthorized, true),
        (ErrorCode::Version, true),
        (ErrorCode::OutOfMemory, true),
        (ErrorCode::Draining, false),
        (ErrorCode::TooLarge, false),
    ] {
        let mut world = World::new(1);
        world.drive();
        world.hub.reject(world.now, code, "no");
        world.drive();
        assert_eq!(world.stopped.is_some(), is_final, "{code:?}");
        assert!(world.core.status().problem.is_some_and(|problem| problem.contains("no")), "{code:?}");
    }
}

#[test]
fn a_model_that_cannot_be_served_stops_the_worker_with_a_sentence() {
    type Spoil = fn(&mut World);
    let cases: [(&str, Spoil); 4] = [
        ("weight format", |world| world.model.format = "q9".into()),
        ("builds do not match", |world| world.model.block_bytes += 16),
        ("builds do not match", |world| world.model.inner = u32::MAX),
        ("holds no block", |world| *world = World::new(0)),
    ];
    for (words, spoil) in cases {
        let mut world = World::new(4);
        spoil(&mut world);
        world.drive();
        world.accept();
        let reason = world.stopped.expect(words);
        assert!(reason.contains(words), "{reason}");
        assert_eq!(world.plans, 0);
    }
}

#[test]
fn visibility_is_told_at_once_and_once() {
    let mut world = World::serving(1, &[0]);
    world.take_events();
    for visibility in [Visibility::Hidden, Visibility::Hidden, Visibility::Frozen, Visibility::Visible] {
        world.core.set_visibility(world.now, visibility);
        world.drive();
    }
    assert_eq!(visibilities(&mut world), [Visibility::Hidden, Visibility::Frozen, Visibility::Visible]);
    assert_eq!(world.core.status().state, "serving");
}

#[test]
fn a_tab_opened_hidden_says_so_when_it_connects() {
    let mut world = World::new(1);
    world.core.set_visibility(world.now, Visibility::Hidden);
    world.drive();
    world.accept();
    world.hold(1, &[0]);
    assert_eq!(world.hub.state(), State::Paused);
    world.reconnect();
    world.accept();
    world.hold(1, &[0]);
    assert_eq!(world.hub.state(), State::Paused, "the next session knows it too");
}

#[test]
fn a_leaving_worker_finishes_what_it_started() {
    let mut world = World::serving(1, &[0]);
    world.hold_computations = true;
    world.dispatch(1, &dispatch(moex_protocol::Form::Plain, moex_protocol::Dtype::F16, 1, &[0]));
    world.core.leave(world.now);
    world.drive();
    assert_eq!(world.core.status().state, "draining");
    assert_eq!(world.core.close_code(), None);
    world.take_events();
    world.compute_one();
    assert!(world.events.iter().any(|event| matches!(event, HubEvent::Answered { .. })));
    assert_eq!(world.core.close_code(), Some(1001));
}

#[test]
fn a_lost_device_ends_the_session_with_its_code() {
    let mut world = World::serving(1, &[0]);
    world.hold_computations = true;
    world.dispatch(1, &dispatch(moex_protocol::Form::Plain, moex_protocol::Dtype::F16, 1, &[0]));
    world.core.device_failed(world.now, ErrorCode::DeviceLost, "The GPU was lost.".into());
    world.drive();
    assert_eq!(world.stopped.as_deref(), Some("The GPU was lost."));
    let closed = world.events.iter().any(|event| match event {
        HubEvent::Closed { reason } => {
            reason.to_string().contains("device_lost") || format!("{reason:?}").contains("DeviceLost")
        }
        _ => false,
    });
    assert!(closed, "{:?}", world.events);
}

#[test]
fn a_message_that_is_no_frame_closes_the_session_and_the_worker_connects_again() {
    let mut world = World::serving(2, &[0]);
    world
        .core
        .handle_message(world.now, bytes::Bytes::from_static(b"no frame at all, but longer than a header"));
    world.drive();
    assert_eq!(world.core.close_code(), Some(1002));
    assert_eq!(world.stopped, None);
    world.take_events();
    world.reconnect();
    world.accept();
    world.hold(1, &[0]);
    assert_eq!(world.core.status().state, "serving");
    assert_eq!(world.fetched.len(), 1, "its block was still there");
}
