//! Tabs of a real Chromium as workers: WebGPU on SwiftShader, WebAssembly, the browser's own storage.

use std::net::SocketAddr;
use std::time::Duration;

use moex_tests::browser::{Browser, Tab};
use moex_tests::hub::{Hub, workers};
use moex_tests::proxy::{Link, Proxy};
use serde_json::Value;

use crate::{data, json};

/// Texts may differ where the best two logits are closer than this: a GPU adds in another order than the CPU.
const CLEAR_MARGIN: f64 = 0.05;
const N_CASES: usize = 20;

#[tokio::test]
async fn three_tabs_answer_as_the_hub_would_and_one_may_leave() {
    let cases = clear_cases();
    let hub = Hub::start(&["--activations", "f32", "--no-hub-compute", "--replicas", "2"]).unwrap();
    let browser = Browser::launch().await.unwrap();
    let first = serving(&browser, &hub.join_url).await;
    let _second = serving(&browser, &hub.join_url).await;
    let _third = serving(&browser, &hub.join_url.replace("/join", "/join?device=wasm")).await;
    let status = hub.wait_for_workers(3).await.unwrap();
    let backends: Vec<&str> = workers(&status).filter_map(|worker| worker["backend"].as_str()).collect();
    assert_eq!(backends.iter().filter(|&&backend| backend == "webgpu").count(), 2, "{backends:?}");
    assert_eq!(backends.iter().filter(|&&backend| backend == "wasm-simd").count(), 1, "{backends:?}");

    for (case, expected) in &cases[..N_CASES / 2] {
        assert_eq!(hub.answer(case).await.unwrap(), *expected, "case {}", case["id"]);
    }
    // The next answers are running while a tab leaves.
    let rest = async {
        for (case, expected) in &cases[N_CASES / 2..] {
            assert_eq!(hub.answer(case).await.unwrap(), *expected, "case {}, a tab closed", case["id"]);
        }
    };
    let leave = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        first.close().await.unwrap();
    };
    tokio::join!(rest, leave);
    let status = hub.wait_for_workers(2).await.unwrap();
    assert_eq!(status["hub"]["rows"], 0, "the hub computed no expert itself: {status:#}");
    browser.close().await.unwrap();
}

#[tokio::test]
async fn a_reloaded_tab_serves_again_and_downloads_nothing() {
    let hub = Hub::start(&["--activations", "f32"]).unwrap();
    let browser = Browser::launch().await.unwrap();
    let tab = serving(&browser, &hub.join_url).await;
    let before = hub.wait_for_workers(1).await.unwrap();
    assert!(before["weights_served_bytes"].as_u64().unwrap() > 0, "{before:#}");
    let worker = before["workers"][0]["id"].clone();

    tab.reload().await.unwrap();
    let status = tab.wait_until("serving again", is_whole).await.unwrap();
    assert_eq!(status["bytes_downloaded"], 0, "{status:#}");
    let after = hub.wait_for_workers(1).await.unwrap();
    assert_eq!(
        after["weights_served_bytes"], before["weights_served_bytes"],
        "the hub served no weights again"
    );
    assert_eq!(after["workers"][0]["id"], worker, "the tab is the same worker");
    browser.close().await.unwrap();
}

/// The link is cut in the middle of a block, then restored: the tab fetches only the missing bytes.
#[tokio::test]
async fn a_download_cut_off_halfway_goes_on_where_it_stopped() {
    let hub = Hub::start(&["--activations", "f32", "--experts", "f16"]).unwrap();
    let target: SocketAddr = hub.url.trim_start_matches("http://").parse().unwrap();
    let proxy = Proxy::start(target, Link::Slow(4_000_000)).await.unwrap();
    let join_url = hub.join_url.replace(&target.to_string(), &proxy.address.to_string());

    let browser = Browser::launch().await.unwrap();
    let tab = browser.open(&join_url).await.unwrap();
    tab.wait_until("the first blocks", |status| status["blocks_resident"].as_u64() >= Some(3)).await.unwrap();
    proxy.set(Link::Slow(100_000));
    tokio::time::sleep(Duration::from_millis(700)).await;
    proxy.set(Link::Cut);
    let cut = tab.wait_until("no connection", |status| status["phase"] == "connecting").await.unwrap();
    assert!(!is_whole(&cut), "the download was over before it was cut: {cut:#}");
    let files = tab.stored_blocks().await.unwrap();
    let (parts, whole): (Vec<_>, Vec<_>) = files.iter().partition(|(name, _)| name.ends_with(".part"));
    let block_bytes = whole[0].1;
    assert!(
        whole.iter().all(|(_, size)| *size == block_bytes),
        "a cut-off block took a whole block's name: {files:?}"
    );
    assert!(
        parts.iter().any(|(_, size)| (1..block_bytes).contains(size)),
        "nothing was kept of the block: {files:?}"
    );

    proxy.set(Link::Open);
    let done = tab.wait_until("all blocks", is_whole).await.unwrap();
    assert_eq!(done["bytes_downloaded"], done["bytes_resident"], "every byte came once: {done:#}");
    browser.close().await.unwrap();
}

#[tokio::test]
async fn ten_thousand_dispatches_leave_no_trace() {
    const DISPATCHES: u64 = 10_000;
    // A model so small that a dispatch takes little more than a round trip.
    let model = data("tiny-qwen3-moe");
    let flags = ["--model", &model, "--activations", "f32", "--no-hub-compute", "--replicas", "1"];
    let hub = Hub::start(&flags).unwrap();
    let browser = Browser::launch().await.unwrap();
    let tab = serving(&browser, &hub.join_url).await;
    hub.wait_for_workers(1).await.unwrap();
    let cases: Vec<Value> = ["One", "Two", "Three"]
        .map(|content| serde_json::json!({"messages": [{"role": "user", "content": content}]}))
        .into();
    let mut texts: Vec<Option<String>> = vec![None; cases.len()];
    let mut ask = async |until: u64| loop {
        for (case, text) in cases.iter().zip(&mut texts) {
            let answer = hub.answer(case).await.unwrap();
            assert_eq!(answer, *text.get_or_insert_with(|| answer.clone()), "the same text every time");
        }
        let status = tab.status().await.unwrap();
        if status["dispatches"].as_u64() >= Some(until) {
            return status;
        }
    };
    let before = ask(DISPATCHES / 10).await;
    let held_before = held_bytes(&tab).await;
    let after = ask(before["dispatches"].as_u64().unwrap() + DISPATCHES).await;
    let held_after = held_bytes(&tab).await;
    assert_eq!(before["backend"], "webgpu");
    assert_eq!(after["gpu_buffers"], before["gpu_buffers"], "GPU buffers were made while it served");
    assert!(
        held_after <= held_before * 1.05 + 1e6,
        "the tab held {held_before} bytes before, {held_after} after"
    );
    browser.close().await.unwrap();
}

/// Opens the join page and waits until its worker holds all its blocks.
async fn serving(browser: &Browser, url: &str) -> Tab {
    // Without a choice a tab takes the faster device, and SwiftShader is a CPU as well.
    let url = if url.contains('?') { url.to_owned() } else { url.replace("/join", "/join?device=gpu") };
    let tab = browser.open(&url).await.unwrap();
    tab.wait_until("serving", is_whole).await.unwrap();
    tab
}

fn is_whole(status: &Value) -> bool {
    status["state"] == "serving"
        && status["blocks_assigned"].as_u64() > Some(0)
        && status["blocks_resident"] == status["blocks_assigned"]
}

/// Cases that a GPU must answer like the CPU, with the hub's own texts. They are plain answers, since the API removes
/// thoughts and tool calls from the content.
fn clear_cases() -> Vec<(Value, String)> {
    let file = data("demo-cases.jsonl");
    let report = json(&["eval", "--cases", &file, "--experts", "int4", "--activations", "f32"]);
    let lines = std::fs::read_to_string(file).unwrap();
    let cases = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let clear: Vec<(Value, String)> = cases
        .zip(report["results"].as_array().unwrap())
        .filter(|(_, result)| result["min_margin"].as_f64() > Some(CLEAR_MARGIN))
        .map(|(case, result)| (case, result["text"].as_str().unwrap().to_owned()))
        .filter(|(_, text)| !text.contains("<think>") && !text.contains("<tool_call>"))
        .take(N_CASES)
        .collect();
    assert_eq!(clear.len(), N_CASES);
    clear
}

/// The bytes that the page and its worker hold according to the browser, after garbage collection.
async fn held_bytes(tab: &Tab) -> f64 {
    tab.eval("performance.measureUserAgentSpecificMemory().then(({ bytes }) => bytes)")
        .await
        .unwrap()
        .as_f64()
        .unwrap()
}
