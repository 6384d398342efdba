//! Traces as they are read, and a simulated room predicted from its own trace.

use moex_protocol::{Dtype, ModelSummary, WorkerId, WorkerKind};
use moex_sim::replay::{Comparison, Fit, ReplayError, Trace, replay};
use moex_swarm::{
    Hedge,
    trace::{
        AttemptKind, AttemptRecord, HubRecord, JoinedRecord, LayerRecord, Outcome, Record, TRACE_VERSION,
    },
};

const N_LAYERS: u16 = 4;
const N_STEPS: u64 = 200;
/// A step's times, microseconds: before its first layer, each layer's answer, after its last layer.
const BEGIN: u64 = 300;
const ANSWER: u64 = 2_000;
const HEAD: u64 = 900;

fn hub() -> Record {
    Record::Hub(HubRecord {
        version: TRACE_VERSION,
        model: ModelSummary {
            name: "m".to_owned(),
            hidden: 64,
            inner: 64,
            n_layers: N_LAYERS.into(),
            n_experts: 8,
            n_experts_per_token: 2,
            format: "int4".to_owned(),
            layer_formats: Vec::new(),
            activations: "f32".to_owned(),
            block_bytes: 6_528,
            max_rows: 16,
            max_pairs: 16,
        },
        replicas: 1,
        hedge: Hedge::Fixed(1),
        timeout: 500_000,
        wire: Dtype::F16,
        check_every: 0,
        hub_compute: true,
    })
}

/// One worker that answers in the same time always.
fn records() -> Vec<Record> {
    records_of(&[WorkerId(7)], |_| ANSWER)
}

/// Workers each of which is asked for its part of two experts, and takes so long for it at the n-th layer.
fn records_of(workers: &[WorkerId], took: impl Fn(u64) -> u64) -> Vec<Record> {
    let joined = |worker: &WorkerId| {
        Record::Joined(JoinedRecord {
            worker: *worker,
            at: 1,
            kind: WorkerKind::Native,
            backend: "cpu".to_owned(),
            memory_budget_bytes: 1 << 30,
            input_slots: 4,
            sync_latency: 0,
            teraflops: None,
        })
    };
    let mut records = vec![hub()];
    records.extend(workers.iter().map(joined));
    let experts = 2 / workers.len() as u32;
    let (mut now, mut job, mut id) = (1_000_000, 0, 0);
    for _ in 0..N_STEPS {
        let begun = now;
        now += BEGIN;
        for layer in 0..N_LAYERS {
            job += 1;
            let answer = took(job);
            let attempt = |worker: &WorkerId| {
                id += 1;
                AttemptRecord {
                    id,
                    worker: *worker,
                    kind: AttemptKind::Ask,
                    experts,
                    copies: 0,
                    pairs: experts,
                    rows: 1,
                    bytes_out: 220,
                    bytes_back: 312,
                    sent: now,
                    ended: now + answer,
                    outcome: Outcome::Answered,
                    won: experts,
                }
            };
            let attempts = workers.iter().map(attempt).collect();
            let (asked, done) = (now, now + answer);
            records.push(Record::Layer(LayerRecord {
                job,
                layer,
                rows: 1,
                experts: vec![layer, 5],
                asked,
                started: asked,
                sent: asked,
                done,
                replied: done,
                is_ok: true,
                attempts,
                hub: Vec::new(),
            }));
            now = done;
        }
        now += HEAD;
        records.push(Record::Step { begun, ended: now, rows: 1, tokens: 1 });
        // What lies between two steps is nobody's time.
        now += 5_000;
    }
    records.push(Record::End { dropped: 3 });
    records
}

fn text(records: &[Record]) -> String {
    records.iter().map(|record| serde_json::to_string(record).expect("a record is JSON") + "\n").collect()
}

fn read(text: &str) -> Result<Trace, ReplayError> {
    Trace::read(text.as_bytes())
}

#[test]
fn a_steady_swarm_is_predicted_to_the_microsecond() {
    let trace = read(&text(&records())).unwrap();
    assert_eq!((trace.steps.len() as u64, trace.dropped), (N_STEPS, 3));
    let comparison = replay(&trace, 1).unwrap();
    let step_ms = (BEGIN + u64::from(N_LAYERS) * ANSWER + HEAD) as f64 / 1e3;
    assert!((comparison.measured.tokens_per_s() - 1e3 / step_ms).abs() < 1e-6);
    assert!(comparison.error().abs() < 1e-5, "{}", comparison.error());
    assert_eq!(comparison.measured.dispatches, comparison.predicted.dispatches);
    assert_eq!(comparison.table().to_json(), replay(&trace, 1).unwrap().table().to_json());
}

#[test]
fn workers_that_are_late_together_are_predicted_to_be() {
    // One layer in four takes thrice as long, for both. Late each by itself, seven in sixteen would.
    let late = |job: u64| if job % 4 == 1 { 3 * ANSWER } else { ANSWER };
    let trace = read(&text(&records_of(&[WorkerId(7), WorkerId(8)], late))).unwrap();
    let comparisons: Vec<_> = (1..=16).map(|seed| replay(&trace, seed).unwrap()).collect();
    let predicted = &comparisons[0].predicted;
    assert!(predicted.dispatches > predicted.steps * u64::from(N_LAYERS), "both are asked");
    // One seed's hundred steps may be off by 3 % by chance.
    let error = comparisons.iter().map(Comparison::error).sum::<f64>() / 16.0;
    assert!(error.abs() < 0.03, "{error:+.3}");
}

#[test]
fn the_fit_sees_the_first_half_only() {
    let mut records = records();
    let n = records.len();
    for record in &mut records[n / 2 + 10..] {
        if let Record::Layer(layer) = record {
            layer.attempts[0].ended += 1_000_000;
        }
    }
    let trace = read(&text(&records)).unwrap();
    let fit = Fit::of(&trace, trace.steps.len() / 2);
    assert!((fit.workers[&WorkerId(7)].per_message.mean() - ANSWER as f64 / 1e3).abs() < 1e-9);
}

#[test]
fn a_cut_off_line_is_left_out_and_a_wrong_one_is_told() {
    let whole = text(&records());
    let cut = &whole[..whole.len() - 30];
    assert_eq!(read(cut).unwrap().dropped, 0);
    let lines: Vec<&str> = whole.lines().collect();
    let error = |lines: &[&str]| read(&(lines.join("\n") + "\n")).unwrap_err().to_string();
    assert!(error(&lines[1..]).contains("line 1: the first line"));
    assert!(error(&[lines[0], "{}"]).contains("line 2: it is no record"));
    assert!(error(&[lines[0], lines[0]]).contains("line 2: a second hub's trace"));
    for (right, wrong) in [
        ("\"layer\":0", "\"layer\":4"),
        ("[0,5]", "[0,9]"),
        ("[0,5]", "[5,5]"),
        ("[0,5]", "[0]"),
        ("\"rows\":1", "\"rows\":900"),
    ] {
        let layer = lines[2].replacen(right, wrong, 1);
        assert!(error(&[lines[0], lines[1], &layer]).starts_with("line 3: "), "{wrong}");
    }
    let hub = lines[0].replace("\"hidden\":64", "\"hidden\":4000000000");
    assert!(error(&[&hub]).contains("hidden"));
    let short = replay(&read(&text(&records()[..20])).unwrap(), 1).unwrap_err();
    assert!(short.to_string().contains("steps"), "{short}");
    assert!(read("").unwrap_err().to_string().contains("empty"));
}

#[test]
fn answers_that_warmed_up_are_left_out() {
    let mut trace = read(&text(&records())).unwrap();
    // Three answers of ten steps; the second prompt came in two chunks.
    trace.steps.truncate(30);
    for (at, rows, tokens) in [(0, 9, 1), (10, 9, 0), (11, 4, 1), (20, 9, 1)] {
        (trace.steps[at].rows, trace.steps[at].tokens) = (rows, tokens);
    }
    let left = |n: usize| {
        let mut trace = trace.clone();
        trace.skip_answers(n);
        trace.steps.len()
    };
    assert_eq!([0, 1, 2, 3].map(left), [30, 20, 10, 0]);
}
