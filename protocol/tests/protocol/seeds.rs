//! The fuzz targets' seeds, run through the targets' bodies; and that those of the decoder are what the encoders make.
//! `MOEX_BLESS=1 cargo test -p moex-protocol seeds` writes them anew.

use std::fs;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use moex_protocol::{
    AttemptId, Beat, Compression, Dispatch, ErrorCode, Form, Heartbeat, Ping, Reply, Visibility, WeightSync,
    WeightSyncFrame, WireError, cancel, digests, fuzzing,
};

use crate::samples::{accepted, answer_to, block, dispatch, join, report};

fn folder(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds").join(target)
}

fn run_all(target: &str, body: fn(&[u8])) {
    let mut n_seeds = 0;
    for entry in fs::read_dir(folder(target)).expect("the seeds are committed") {
        let path = entry.expect("the folder can be read").path();
        body(&fs::read(path).expect("a seed can be read"));
        n_seeds += 1;
    }
    assert!(n_seeds >= 5, "{n_seeds} seeds for {target}");
}

#[test]
fn decode_holds_on_its_seeds() {
    run_all("decode", fuzzing::decode);
}

#[test]
fn sessions_holds_on_its_seeds() {
    run_all("sessions", fuzzing::sessions);
}

#[test]
fn decoder_seeds_are_what_the_encoders_make() {
    let bless = std::env::var_os("MOEX_BLESS").is_some();
    for (name, bytes) in decoder_seeds() {
        let path = folder("decode").join(name);
        if bless {
            fs::write(&path, &bytes).unwrap();
        }
        assert_eq!(fs::read(&path).unwrap(), bytes, "{name}: the wire has changed");
    }
}

fn decoder_seeds() -> Vec<(&'static str, Bytes)> {
    let attempt = AttemptId(7);
    let encode = |form, compression| {
        dispatch(form, &[1, 3]).encode(attempt, compression).expect("samples are well formed")
    };
    let answer = |form| {
        let answer = answer_to(&dispatch(form, &[1, 3]));
        answer.encode(attempt, Compression::Off).expect("samples are well formed")
    };
    let wanting = Dispatch { reply: Reply::RowsAndProducts, ..dispatch(Form::RowsOnce, &[1, 3]) };
    let asking = wanting.encode(attempt, Compression::Off).expect("samples are well formed");
    let checkable = answer_to(&wanting).encode(attempt, Compression::Off).expect("samples are well formed");
    let asking_digests = Dispatch { reply: Reply::Digests, ..dispatch(Form::Plain, &[1, 3]) };
    let digesting = asking_digests.encode(attempt, Compression::Off).expect("samples are well formed");
    let digested = digests::encode(attempt, &answer_to(&asking_digests).digests(attempt));
    let sync = WeightSync { epoch: 1, hold: Vec::new(), drop: vec![block(0, 1)] };
    let error = WireError { code: ErrorCode::Preempted, message: "newer".into(), attempt: Some(attempt) };
    let beat = Beat { echo: Some(1), visibility: Visibility::Hidden, ..Beat::default() };
    let heartbeat = |heartbeat: Heartbeat| heartbeat.encode(Compression::Off);
    vec![
        ("dispatch-plain", encode(Form::Plain, Compression::Off)),
        ("dispatch-rows-once", encode(Form::RowsOnce, Compression::Off)),
        ("dispatch-lz4", encode(Form::Plain, Compression::Lz4)),
        ("result-plain", answer(Form::Plain)),
        ("dispatch-products", asking),
        ("result-products", checkable),
        ("dispatch-digests", digesting),
        ("digests", digested),
        ("cancel", cancel::encode(attempt)),
        ("join", heartbeat(Heartbeat::Join(join()))),
        ("accepted", heartbeat(Heartbeat::Accepted(accepted()))),
        ("ping", heartbeat(Heartbeat::Ping(Ping { hub_micros: 1, ..Ping::default() }))),
        ("beat", heartbeat(Heartbeat::Beat(beat))),
        ("weight-sync", WeightSyncFrame::Sync(sync).encode(Compression::Off)),
        ("block-report", WeightSyncFrame::Report(report()).encode(Compression::Lz4)),
        ("error", error.encode(Compression::Off)),
    ]
}
