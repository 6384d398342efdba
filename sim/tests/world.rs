//! The simulation against what can be calculated: one worker without jitter, and many with independent latencies.

use std::{sync::Arc, time::Duration};

use moex_kernels::{ExpertShape, WeightFormat};
use moex_protocol::Routing;
use moex_protocol::{LayerId, WorkerId};
use moex_sim::{
    latency::Latency,
    phase::ExpertPhase,
    run::{self, Part},
    scenario::Scenario,
    world::{
        Arithmetic, Delay, Device, HubDevice, Lane, Link, Model, Notice, Sizes, WorkerSpec, World,
        WorldConfig,
    },
};
use moex_swarm::{Hedge, JobId, JoinToken, LayerJob, SwarmConfig};

const ONE_WORKER: &str = "
[model]
layers = 6

[hub]
attention_ms = 1.5
serialise_ms = 0.7
combine_ms = 0.2
head_ms = 3.0

[swarm]
hedge = 1
check_every = 0
hub_compute = false
verify = 'blocking'

[[workers]]
count = 1
memory_gib = 8.0
device = { gigabytes_per_s = 50.0, teraflops = 1.0, launch_ms = 0.1, sync_ms = 0.5 }
link = { round_trip_ms = 4.0, down_mbit = 100.0, up_mbit = 50.0 }

[load]
tokens = 20
";

#[test]
fn one_worker_without_jitter_takes_what_the_formula_says_to_the_microsecond() {
    let outcome = run::run(&Scenario::parse(ONE_WORKER).unwrap(), |_, _| ()).unwrap();
    // Rows once: a frame with the row, and one with an index and a gate for each of 8 experts; 8 frames with a row back, and one
    // with the products of gate and up by which they are checked.
    let (row, header, k) = (4096.0, 28.0, 8.0);
    let down_ms = (header + row + k * (header + 4.0)) / 12_500.0;
    let up_ms = (k * (header + row) + header + k * 2.0 * 2.0 * 768.0) / 6_250.0;
    let block_bytes = 3.0 * 768.0 * 2048.0 / 2.0 + 3.0 * 768.0 * 32.0;
    let reading_ms = k * block_bytes / 50e6;
    let arithmetic_ms = k * 6.0 * 2048.0 * 768.0 / 1e9;
    let layer_ms = 4.0 + down_ms + up_ms + 0.6 + f64::max(reading_ms, arithmetic_ms);
    assert!((outcome.layers.mean_ms() - layer_ms).abs() < 1e-3, "{} {layer_ms}", outcome.layers.mean_ms());
    let token_ms = 6.0 * (1.5 + 0.7 + layer_ms + 0.2) + 3.0;
    assert!((outcome.tokens.mean_ms() - token_ms).abs() < 1e-3, "{} {token_ms}", outcome.tokens.mean_ms());
    assert_eq!(outcome.counts().0.dispatches, 6 * 20);
    // And each part of it is where it belongs.
    let part_ms = |part| outcome.parts.of(part).as_secs_f64() * 1e3 / (6.0 * 20.0);
    for (part, ms) in [
        (Part::Attention, 1.5),
        (Part::Serialise, 0.7),
        (Part::Network, 4.0 + down_ms + up_ms),
        (Part::Queue, 0.0),
        (Part::Sync, 0.6),
        (Part::Compute, f64::max(reading_ms, arithmetic_ms)),
        (Part::Slowest, 0.0),
        (Part::Combine, 0.2),
    ] {
        // Traces count in microseconds.
        assert!((part_ms(part) - ms).abs() < 3e-3, "{}: {} for {ms}", part.name(), part_ms(part));
    }
    assert_eq!(outcome.parts.total(), outcome.time);
}

/// The mean time of a layer over k experts, each on h workers of its own whose answers take 20 ms, log-normal, and are
/// asked of all h at once.
fn mean_phase_ms(k: u16, h: usize, n_layers: u64) -> f64 {
    let shape = ExpertShape::uniform(8, 8, WeightFormat::F16);
    let model = Model::of_sizes(&Sizes { shape, n_layers: 1, n_experts: k, k, max_rows: 1 });
    let model = Arc::new(model);
    let block_bytes = model.summary().block_bytes;
    let device = Device {
        per_message: Delay::Fixed(Duration::ZERO),
        per_expert: Duration::ZERO,
        per_pair: Duration::ZERO,
        slowdown_percent: 100,
    };
    let mut world = World::new(WorldConfig {
        swarm: SwarmConfig {
            replicas: h,
            hedge: Hedge::Fixed(h as u8),
            check_every: 0,
            hub_compute: false,
            timeout: Duration::from_secs(30),
            heartbeat_interval: Duration::from_hours(1),
            ..SwarmConfig::new(JoinToken::new("t"), model.summary().clone())
        },
        model,
        arithmetic: Arithmetic::Zeros,
        hub: HubDevice { device: device.clone(), bytes_per_s: None },
        seed: 7,
        is_traced: false,
    });
    let up = Delay::Random(Latency::log_normal(20.0, 0.5).expect("a log-normal"));
    for id in 0..usize::from(k) * h {
        world.add_worker(WorkerSpec {
            id: WorkerId(id as u128 + 1),
            token: "t".to_owned(),
            link: Link {
                up: Lane::new(up.clone(), None),
                down: Lane::new(Delay::Fixed(Duration::ZERO), None),
            },
            device: device.clone(),
            // One block each, so that no two experts wait for the same worker.
            memory_budget_bytes: block_bytes,
            input_slots: 4,
            sync_latency_micros: 0,
            teraflops: 1.0,
            is_stocked: true,
        });
    }
    // Far enough apart that no answer of one layer delays one of the next.
    let gap = Duration::from_secs(5);
    let mut total = Duration::ZERO;
    for layer in 1..=n_layers {
        let begun = gap * layer as u32;
        world.drive(begun);
        let routing = Routing { k: k.into(), experts: (0..k).collect(), gates: vec![1.0; k.into()] };
        world.start_layer(JobId(layer), LayerJob { layer: LayerId(0), rows: vec![0.0; 8], routing });
        while world.poll_notice().is_none_or(|notice| !matches!(notice, Notice::Finished(_, Ok(_)))) {
            assert!(world.step());
        }
        total += world.now() - begun;
    }
    assert_eq!(world.swarm().status().totals.hub_computed, 0, "every expert had its workers");
    total.as_secs_f64() * 1e3 / n_layers as f64
}

#[test]
fn independent_latencies_give_equation_18() {
    for (k, h) in [(8, 1), (8, 2), (4, 3)] {
        let phase = ExpertPhase::iid(Latency::log_normal(20.0, 0.5).unwrap(), k.into(), h).unwrap();
        let (expected, simulated) = (phase.mean().unwrap().value, mean_phase_ms(k, h, 6_000));
        assert!((simulated / expected - 1.0).abs() < 0.01, "k {k}, h {h}: {simulated} for {expected}");
    }
}

#[test]
fn a_scenario_repeats_to_the_bit() {
    let text =
        ONE_WORKER.replace("link = {", "leaves_per_hour = 20000.0\naway_s = 0.1\nlink = { preset = 'wifi', ");
    let text = text.replace("device = {", "device = { preset = 'phone', ");
    let run =
        || run::table("twice", &run::run(&Scenario::parse(&text).unwrap(), |_, _| ()).unwrap()).to_json();
    assert_eq!(run(), run());
}
