//! A hub that is killed again and again under load: workers return, streams end, and packed experts stay sound.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use moex_tests::chat::{self, Reply};
use moex_tests::hub::{Hub, Moex, Signal, Worker, workers};
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::data;
use crate::lan::free_port;

/// `$MOEX_RESTARTS` says otherwise.
const N_RESTARTS: u64 = 4;
const N_WORKERS: usize = 2;
const N_CLIENTS: usize = 3;
/// A stream whose hub is gone ends within this time.
const ENDS_WITHIN: Duration = Duration::from_secs(5);

/// A hub's clients. Each asks for one stream after another, whether or not there is a hub.
struct Load {
    clients: Vec<JoinHandle<()>>,
    whole: Arc<AtomicU64>,
    cut: Arc<AtomicU64>,
}

impl Load {
    fn start(url: &str, expected: &[(Value, Reply)]) -> Self {
        let (whole, cut) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let client = |n: usize| {
            let (url, expected, whole, cut) = (url.to_owned(), expected.to_vec(), whole.clone(), cut.clone());
            tokio::spawn(async move {
                let http = chat::client().unwrap();
                for (case, text) in expected.iter().cycle().skip(n) {
                    let mut last_piece = Instant::now();
                    match chat::stream(&http, &url, case, || last_piece = Instant::now()).await {
                        Ok(said) => {
                            assert_eq!(said, *text, "case {}", case["id"]);
                            whole.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error) => {
                            let waited = last_piece.elapsed();
                            assert!(
                                waited < ENDS_WITHIN,
                                "a stream ended {waited:?} after its hub: {error:#}"
                            );
                            cut.fetch_add(1, Ordering::Relaxed);
                            tokio::time::sleep(Duration::from_millis(20)).await;
                        }
                    }
                }
            })
        };
        Self { clients: (0..N_CLIENTS).map(client).collect(), whole, cut }
    }

    /// Waits until the clients have received as many whole answers again.
    async fn answered(&self) {
        let until = self.whole.load(Ordering::Relaxed) + N_CLIENTS as u64;
        let begin = Instant::now();
        while self.whole.load(Ordering::Relaxed) < until {
            assert!(self.clients.iter().all(|client| !client.is_finished()), "a client has failed");
            assert!(begin.elapsed() < moex_tests::hub::PATIENCE, "no answer is complete");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

#[cfg(unix)]
#[tokio::test]
async fn a_hub_killed_under_load_gets_its_workers_back_and_loses_nothing_packed() {
    let n_restarts = std::env::var("MOEX_RESTARTS").map_or(N_RESTARTS, |n| n.parse().unwrap());
    let (state, shards) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let moex = Moex::under_test().keeping(state.path());
    let listen = format!("127.0.0.1:{}", free_port());
    let start = || moex.hub_at(&listen, &["--shards", shards.path().to_str().unwrap()]).unwrap();

    let mut hub = start();
    let expected = expected(&hub).await;
    let link = hub.join_url.clone();
    let _workers: Vec<Worker> = (0..N_WORKERS).map(|_| Worker::start(&link, &[]).unwrap()).collect();
    let ids = ids(&hub.wait_for_workers(N_WORKERS).await.unwrap());
    let packed = files(shards.path());
    let load = Load::start(&hub.url, &expected);

    for n in 0..n_restarts {
        load.answered().await;
        // A kill at another point of an answer each time.
        tokio::time::sleep(Duration::from_millis(7 * (n % 11))).await;
        hub.end(if n % 4 == 3 { Signal::TERM } else { Signal::KILL }).await.unwrap();
        if n % 2 == 1 {
            damage(shards.path(), n);
        }
        hub = start();
        let status = hub.wait_for_workers(N_WORKERS).await.unwrap();
        assert_eq!(self::ids(&status), ids, "the workers that were there come back, and none is suspected");
        assert!(files(shards.path()) == packed, "packed experts are what they were");
    }
    load.answered().await;
    let [whole, cut] = [&load.whole, &load.cut].map(|count| count.load(Ordering::Relaxed));
    println!("{n_restarts} restarts: {whole} answers whole, {cut} cut off");
    let quarantined = hub.status().await.unwrap()["quarantined"].clone();
    assert_eq!(quarantined.as_array().map(Vec::len), Some(0), "no honest worker is quarantined");
    for client in load.clients {
        assert!(!client.is_finished(), "a client has failed");
        client.abort();
    }
}

/// Some cases and their answers from a hub without workers.
async fn expected(hub: &Hub) -> Vec<(Value, Reply)> {
    let lines = fs::read_to_string(data("demo-cases.jsonl")).unwrap();
    let http = chat::client().unwrap();
    let mut expected = Vec::new();
    for line in lines.lines().step_by(40) {
        let case: Value = serde_json::from_str(line).unwrap();
        let said = chat::ask(&http, &hub.url, &case).await.unwrap();
        expected.push((case, said));
    }
    expected
}

fn ids(status: &Value) -> Vec<String> {
    let mut ids: Vec<_> = workers(status).map(|worker| worker["id"].to_string()).collect();
    ids.sort();
    ids
}

/// The content of each file of packed experts, in all folders below.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.extension().is_some_and(|extension| extension == "safetensors") {
            found.insert(path.display().to_string(), fs::read(path).unwrap());
        }
    }
    found
}

/// Damages one file of packed experts: a byte of it, or its end.
fn damage(folder: &Path, n: u64) {
    let files = files(folder);
    let (path, mut bytes) = files.into_iter().nth(n as usize % 4).expect("the demo model has four layers");
    if n % 4 == 1 {
        let at = bytes.len() / 2 + n as usize;
        bytes[at] ^= 1;
    } else {
        bytes.truncate(bytes.len() / 2);
    }
    fs::write(path, bytes).unwrap();
}
