//! The moments around a hub's start: it can be ended while it loads, mends what has rotted, and soon has its workers back.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use moex_tests::hub::{Moex, Signal, Worker, workers};
use moex_tests::{chat, moex};

use crate::lan::free_port;

/// A hub that has nothing to finish ends within this time, on a busy machine.
#[cfg(unix)]
const ENDS_WITHIN: Duration = Duration::from_secs(3);
/// From when a hub answers until its workers have come back: half a second between tries, and a join.
const BACK_WITHIN: Duration = Duration::from_millis(1_500);

/// The model is asked for at a hub that accepts connections and says nothing.
#[cfg(unix)]
#[test]
fn a_hub_that_still_loads_ends_at_once_when_it_is_told_to() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    for signal in [Signal::TERM, Signal::INT] {
        let state = tempfile::tempdir().unwrap();
        let mut hub = Command::new(moex())
            .args(["serve", "--listen", "127.0.0.1:0", "--model", "some/model"])
            .env("MOEX_STATE", state.path())
            .env("HF_HOME", state.path())
            .env("HF_ENDPOINT", format!("http://{}", silent.local_addr().unwrap()))
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (_connection, _) = silent.accept().unwrap();
        assert!(hub.try_wait().unwrap().is_none(), "it waits for the model");
        let told = Instant::now();
        rustix::process::kill_process(rustix::process::Pid::from_child(&hub), signal).unwrap();
        let ended = hub.wait_with_output().unwrap();
        assert!(told.elapsed() < ENDS_WITHIN, "{:?}", told.elapsed());
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success() && said.contains("before the hub was ready"), "{said}");
    }
}

#[tokio::test]
async fn a_packed_file_that_has_rotted_is_mended_at_the_start_that_finds_it() {
    let (shards, logs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let args = ["--shards", shards.path().to_str().unwrap()];
    let moex = Moex::under_test().logging_to(logs.path());
    moex.hub(&args).unwrap().end(Signal::TERM).await.unwrap();
    let path = layer_file(shards.path());
    let sound = fs::read(&path).unwrap();
    rot(&path);

    let hub = moex.hub(&args).unwrap();
    let case =
        serde_json::json!({ "id": "sum", "messages": [{ "role": "user", "content": "What is 9 x 11?" }] });
    assert!(chat::ask(&chat::client().unwrap(), &hub.url, &case).await.is_ok());
    assert!(fs::read(&path).unwrap() == sound, "it is what it was");
    let said = fs::read_to_string(logs.path().join("hub.log")).unwrap();
    let lines = said.lines().filter(|line| line.contains("a packed file is damaged")).count();
    assert_eq!(lines, 1, "{said}");
    hub.end(Signal::TERM).await.unwrap();
}

#[tokio::test]
async fn a_hub_that_restarts_has_its_workers_back_soon() {
    let state = tempfile::tempdir().unwrap();
    let moex = Moex::under_test().keeping(state.path());
    let listen = format!("127.0.0.1:{}", free_port());
    let hub = moex.hub_at(&listen, &[]).unwrap();
    let link = hub.join_url.clone();
    let _workers: Vec<Worker> = (0..2).map(|_| Worker::start(&link, &[]).unwrap()).collect();
    hub.wait_for_workers(2).await.unwrap();
    // Connections that last are those that are soon tried again.
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    hub.end(Signal::KILL).await.unwrap();
    // Long enough that waits which double would have come to seconds.
    tokio::time::sleep(Duration::from_secs(4)).await;
    let hub = moex.hub_at(&listen, &[]).unwrap();
    let started = Instant::now();
    hub.wait_until("two workers joined", |status| workers(status).count() == 2).await.unwrap();
    assert!(started.elapsed() < BACK_WITHIN, "{:?}", started.elapsed());
}

/// A file of packed experts in a folder.
fn layer_file(folder: &Path) -> PathBuf {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.extension().is_some_and(|end| end == "safetensors")).min().unwrap()
}

/// Changes a byte, as a disk does it: neither the length nor the time of change says so.
fn rot(path: &Path) {
    let changed = fs::metadata(path).unwrap().modified().unwrap();
    let mut bytes = fs::read(path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(path, bytes).unwrap();
    File::options().write(true).open(path).unwrap().set_modified(changed).unwrap();
}
