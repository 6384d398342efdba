//! The defaults for a user who names only a model: its own weights for workers, int8 activations, a context that fits.

use std::path::Path;
use std::time::{Duration, Instant};

use moex_model::gguf::Gguf;
use moex_tests::hub::{Hub, Moex, PATIENCE, Worker, workers};
use moex_tests::proxy::{Link, Proxy, Weather};
use serde_json::Value;

use crate::{data, json, succeed};

/// Longer than an answer takes over a link of 4 ms.
const PAUSE: Duration = Duration::from_millis(30);
/// Every matrix of a block starts at a multiple of this.
const PLANE_ALIGN: usize = 16;

#[tokio::test]
async fn the_experts_of_a_quantised_checkpoint_reach_workers_byte_for_byte() {
    let folder = tempfile::tempdir().unwrap();
    let (model, shards) = (folder.path().join("model.gguf"), folder.path().join("shards"));
    let (model, shards) = (model.to_str().unwrap(), shards.to_str().unwrap());
    succeed(&["synth", "--like", "tiny", "--format", "q4_K_M", "--gguf", model]);
    let _hub = Hub::start(&["--model", model, "--shards", shards]).unwrap();

    let file = std::fs::read(model).unwrap();
    let gguf = Gguf::parse(&file).unwrap();
    let manifest = read_when(&Path::new(shards).join("manifest.json"), |text| !text.is_empty()).await;
    let manifest: Value = serde_json::from_str(&manifest).unwrap();
    let blocks = manifest["blocks"].as_array().unwrap();
    assert_eq!(blocks.len(), 2 * 8, "{manifest:#}");
    for block in blocks {
        let (layer, expert) = (&block["layer"], block["expert"].as_u64().unwrap() as usize);
        let mut bytes: Vec<u8> = Vec::new();
        for matrix in ["gate", "up", "down"] {
            let name = format!("blk.{layer}.ffn_{matrix}_exps.weight");
            let tensor = gguf.tensors().iter().find(|tensor| tensor.name == name).unwrap();
            let each = tensor.bytes.len() / tensor.shape[0];
            bytes.extend_from_slice(&file[tensor.bytes.start + expert * each..][..each]);
            bytes.resize(bytes.len().next_multiple_of(PLANE_ALIGN), 0);
        }
        let hash = blake3::hash(&bytes).to_hex();
        assert_eq!(block["blake3"], hash.as_str(), "expert {expert} of layer {layer}");
    }
}

#[tokio::test]
async fn gate_and_up_may_have_another_format_than_down() {
    let folder = tempfile::tempdir().unwrap();
    let shards = folder.path().to_str().unwrap();
    let hub = Hub::start(&["--experts", "q4_K+q6_K", "--shards", shards]).unwrap();
    assert_eq!(hub.status().await.unwrap()["model"]["format"], "q4_K+q6_K");
}

/// A worker does not slow a hub that is faster alone, least of all one behind a slow link, and the hub reports this.
#[tokio::test]
async fn a_hub_that_is_faster_than_its_workers_computes_itself_and_says_the_same() {
    let question = serde_json::json!([{"role": "user", "content": "What is 478 + 356?"}]);
    let [whole, short] = [200, 4].map(|n| serde_json::json!({ "messages": question, "max_tokens": n }));
    let hub = Hub::start(&[]).unwrap();
    let alone = [hub.answer(&whole).await.unwrap(), hub.answer(&short).await.unwrap()];
    drop(hub);
    let hub = Hub::start(&["--prefer", "faster"]).unwrap();
    // A worker computes beside the hub until it has answered a few times. Between two questions it has the processor for itself.
    let ask = async |counts: &str| {
        assert_eq!(hub.answer(&short).await.unwrap(), alone[1]);
        tokio::time::sleep(PAUSE).await;
        let status = hub.status().await.unwrap();
        let count: u64 = workers(&status).map(|worker| worker[counts].as_u64().unwrap()).sum();
        (status, count)
    };
    // Over 10 ms an answer, a worker is not asked at all: where the processor is busy, another one may have more luck.
    let is_empty = |status: &Value| workers(status).next().is_none();
    let (begun, mut is_looked_at) = (Instant::now(), false);
    while !is_looked_at {
        assert!(begun.elapsed() < PATIENCE, "no worker was looked at and not used");
        let worker = Worker::start(&hub.join_url, &[]).unwrap();
        hub.wait_for_workers(1).await.unwrap();
        let joined = Instant::now();
        while !is_looked_at && joined.elapsed() < PATIENCE / 12 {
            let (status, by_worker) = ask("rows").await;
            let is_hub_used = status["hub"]["compared"]["is_hub_used"] == true;
            let is_mostly_hub = 4 * by_worker < status["hub"]["rows"].as_u64().unwrap();
            is_looked_at = is_hub_used && is_mostly_hub && by_worker > 0;
        }
        drop(worker);
        hub.wait_until("no worker", is_empty).await.unwrap();
    }

    let way = Weather { delay: Duration::from_millis(2), ..Weather::default() };
    let proxy = Proxy::start(hub.address().unwrap(), Link::Shaped { up: way, down: way }).await.unwrap();
    let _worker = Worker::start(&hub.join_url_by(proxy.address).unwrap(), &[]).unwrap();
    hub.wait_for_workers(1).await.unwrap();
    let begun = Instant::now();
    let mut asked = 0;
    while asked < 8 && begun.elapsed() < PATIENCE {
        asked = ask("dispatches").await.1;
    }
    assert!(asked >= 8, "asked {asked} times");
    assert_eq!(hub.answer(&whole).await.unwrap(), alone[0]);
    let (status, by_worker) = ask("rows").await;
    let compared = &status["hub"]["compared"];
    assert_eq!(compared["is_hub_used"], true, "{status:#}");
    // None if the hub itself has given up on the worker, which it measures apart.
    let by_them = compared["workers_micros"].as_u64().unwrap_or(u64::MAX);
    assert!(compared["own_micros"].as_u64() < Some(by_them), "{compared}");
    let by_hub = status["hub"]["rows"].as_u64().unwrap();
    assert!(4 * by_worker < by_hub, "not used: {by_worker} beside {by_hub}");
}

#[tokio::test]
async fn int8_activations_are_the_default_and_said_at_start_with_the_way_out() {
    let logs = tempfile::tempdir().unwrap();
    let moex = Moex::under_test().logging_to(logs.path());
    for (args, activations, said) in [
        (&[][..], "int8", "int8 activations, experts int4, other weights q8_0"),
        (
            &["--activations", "f32"][..],
            "f32",
            "f32 activations, experts int4, other weights as in the checkpoint",
        ),
    ] {
        let hub = moex.hub(args).unwrap();
        let status = hub.status().await.unwrap();
        assert_eq!(status["model"]["activations"], activations, "{args:?}");
        // In lines as wide as the window.
        let one_line = |log: &str| log.split_whitespace().collect::<Vec<_>>().join(" ");
        let log = read_when(&logs.path().join("hub.log"), |log| one_line(log).contains(said)).await;
        assert!(one_line(&log).contains(said) && log.contains("--activations"), "{args:?} said:\n{log}");
    }
    let info = succeed(&["info"]);
    let text = String::from_utf8(info.stdout).unwrap();
    assert!(text.contains("int8 activations, experts int4, other weights q8_0"), "{text}");
}

/// The effect of rounding on the demo model's answers: none.
#[test]
fn the_default_answers_the_demo_cases_no_worse_than_f32_does() {
    let report = json(&["eval", "--cases", &data("demo-cases.jsonl")]);
    assert_eq!(report["cases"], 300);
    assert!(report["right"].as_u64() >= Some(278), "{} of 300 right", report["right"]);
}

/// `info` and `serve` compute the context with the same function, from the free memory.
#[tokio::test]
async fn the_context_that_info_says_is_what_serve_gives() {
    let folder = tempfile::tempdir().unwrap();
    let (model, shards) = (folder.path().join("model.gguf"), folder.path().join("shards"));
    let (model, shards) = (model.to_str().unwrap(), shards.to_str().unwrap());
    succeed(&["synth", "--like", "context", "--format", "q8_0", "--gguf", model]);
    let info = json(&["info", "--model", model]);
    let hub = Hub::start(&["--model", model, "--shards", shards]).unwrap();
    let models = hub.get("/v1/models").await.unwrap();
    assert_eq!(models["data"][0]["context_length"], info["context"], "{info:#}");
    // At least a gigabyte is always there for keys and values, which holds ten thousand tokens.
    assert!(info["context"].as_u64() > Some(10_000), "{info:#}");
    assert_eq!(info["model_context"], 40_960);
}

/// The content of the file once it is as expected, or when patience ends.
pub(crate) async fn read_when(path: &Path, is_there: impl Fn(&str) -> bool) -> String {
    let begun = Instant::now();
    loop {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        if is_there(&text) || begun.elapsed() > PATIENCE {
            return text;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
