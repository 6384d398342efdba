//! Blocks: what is loaded, kept, dropped and reported.

use std::time::Duration;

use moex_protocol::{Block, BlockReport, HubEvent, WeightSync};
use moex_worker::core::REPORT_INTERVAL;

use crate::harness::{SHAPE, World, block, source};

fn reports(world: &mut World) -> Vec<BlockReport> {
    let report = |event| match event {
        HubEvent::Blocks(report) => Some(report),
        _ => None,
    };
    world.take_events().into_iter().filter_map(report).collect()
}

#[test]
fn blocks_load_in_the_order_of_the_hub_and_are_reported() {
    let mut world = World::new(8);
    world.drive();
    world.accept();
    world.hold(7, &[5, 0, 3]);
    assert_eq!(world.fetched, [block(5), block(0), block(3)]);
    let reports = reports(&mut world);
    let resident: Vec<Block> = reports.iter().flat_map(|report| report.resident.clone()).collect();
    assert_eq!(resident, [block(5), block(0), block(3)]);
    let last = reports.last().unwrap();
    let bytes = 3 * SHAPE.block_bytes() as u64;
    assert_eq!(
        (last.epoch, last.bytes_done, last.bytes_total, last.bytes_downloaded),
        (7, bytes, bytes, bytes)
    );
    let status = world.core.status();
    assert_eq!((status.blocks_assigned, status.blocks_resident), (3, 3));
    assert_eq!((status.bytes_resident, status.bytes_downloaded), (bytes, bytes));
}

#[test]
fn a_slow_load_does_not_hold_back_the_report_of_the_others() {
    let mut world = World::new(8);
    world.drive();
    world.accept();
    let sync = WeightSync { epoch: 1, hold: vec![source(0), source(1)], drop: Vec::new() };
    world.hub.sync_weights(world.now, sync).unwrap();
    // The second block stays under way: only the first is reported, when its interval is over.
    while let Some(message) = world.hub.poll_transmit() {
        world.core.handle_message(world.now, message);
    }
    let loads: Vec<_> = std::iter::from_fn(|| world.core.poll_task()).collect();
    assert_eq!(loads.len(), 2);
    let bytes = SHAPE.block_bytes() as u64;
    let loaded = moex_worker::core::Loaded { bytes, downloaded: 0 };
    world.core.loaded(world.now, block(0), Ok(loaded));
    world.drive();
    assert!(reports(&mut world).is_empty());
    assert_eq!(world.core.poll_timeout(), Some(world.now + REPORT_INTERVAL));
    world.advance(REPORT_INTERVAL);
    let [report] = &reports(&mut world)[..] else { panic!("one report") };
    assert_eq!((&report.resident[..], report.bytes_done), (&[block(0)][..], bytes));
    assert!(world.core.poll_timeout().is_none_or(|time| time > world.now + Duration::from_millis(1)));
}

#[test]
fn the_budget_is_never_passed() {
    let mut world = World::serving(2, &[0, 1]);
    world.take_events();
    world.hold(2, &[2]);
    let [report] = &reports(&mut world)[..] else { panic!("one report") };
    assert_eq!(report.failed[0].0, block(2));
    assert_eq!(world.core.status().blocks_resident, 2);
    // A block given up makes room for another.
    world.drop_blocks(3, &[0]);
    world.hold(4, &[2]);
    assert!(world.resident().contains(&block(2)));
    assert_eq!(world.core.status().blocks_resident, 2);
    assert_eq!(world.engine.as_ref().unwrap().plan().n_slots, 2);
}

#[test]
fn a_block_that_cannot_be_had_is_reported_with_the_reason() {
    let mut world = World::new(4);
    world.unreachable.insert(block(1));
    world.drive();
    world.accept();
    world.hold(1, &[0, 1, 2]);
    let reports = reports(&mut world);
    let failed: Vec<_> = reports.iter().flat_map(|report| report.failed.clone()).collect();
    assert_eq!(failed, [(block(1), "unreachable".to_owned())]);
    assert_eq!((world.core.status().blocks_resident, world.core.status().blocks_failed), (2, 1));
    // Asked for again, it is tried again.
    world.unreachable.clear();
    world.hold(2, &[1]);
    assert!(world.resident().contains(&block(1)));
}

#[test]
fn a_range_of_another_length_is_not_even_asked_for() {
    let mut world = World::new(4);
    world.drive();
    world.accept();
    for (start, end) in [(0, 3), (10, 3), (0, u64::MAX)] {
        let hold = vec![moex_protocol::BlockSource { start, end, ..source(0) }];
        world.hub.sync_weights(world.now, WeightSync { epoch: 1, hold, drop: Vec::new() }).unwrap();
        world.drive();
    }
    assert!(world.fetched.is_empty());
    assert_eq!(world.core.status().blocks_failed, 3);
}

#[test]
fn a_lost_connection_loses_no_block() {
    let mut world = World::serving(4, &[0, 1, 2]);
    world.take_events();
    world.reconnect();
    world.accept();
    assert_eq!(
        (world.plans, world.core.status().blocks_resident),
        (1, 0),
        "the hub has not asked for any yet"
    );
    world.hold(1, &[2, 0, 5]);
    assert_eq!(world.fetched, [block(0), block(1), block(2), block(5)], "only the new one is fetched");
    assert_eq!(world.resident(), [block(2), block(0), block(5)].into());
    let downloaded: Vec<u64> = reports(&mut world).iter().map(|report| report.bytes_downloaded).collect();
    assert_eq!(downloaded.last(), Some(&(SHAPE.block_bytes() as u64)));
}

#[test]
fn another_model_gets_another_engine() {
    let mut world = World::serving(4, &[0]);
    world.reconnect();
    world.model.n_layers = 1;
    world.model.n_experts = 3;
    world.accept();
    assert_eq!(world.plans, 2);
    assert_eq!(world.engine.as_ref().unwrap().plan().n_slots, 3, "never more slots than blocks");
    world.take_events();
    world.hold(1, &[0]);
    assert_eq!(world.resident(), [block(0)].into());
    assert_eq!(world.fetched, [block(0), block(0)], "the old engine's blocks are gone");
}
