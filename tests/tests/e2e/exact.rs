//! One arithmetic on every device: with int8 activations, a text is byte for byte the hub's own, whoever computes its
//! experts.

use std::collections::BTreeSet;
use std::process::{Child, Command};

use moex_tests::browser::Browser;
use moex_tests::chat;
use moex_tests::hub::{Hub, Worker, workers};
use moex_tests::liar::Lie;
use moex_tests::peer::{Behaviour, Peer, PeerConfig};
use serde_json::{Value, json};

use crate::data;

const N_CASES: usize = 4;

#[tokio::test]
async fn native_workers_answer_with_the_hubs_bytes_on_cpu_and_gpu() {
    let expected = alone().await;
    let hub = hub();
    let worker = Worker::start(&hub.join_url, &[]).unwrap();
    same(&hub, "cpu", &expected).await;
    drop(worker);

    // A hardware GPU if there is one, otherwise lavapipe.
    let hub = self::hub();
    let process = Command::new(moex_tests::moex())
        .args(["worker", &hub.join_url, "--device", "gpu", "--memory", "64MiB"])
        .spawn()
        .unwrap();
    let _worker = Killed(process);
    same(&hub, "vulkan", &expected).await;
}

#[tokio::test]
async fn tabs_answer_with_the_hubs_bytes_on_cpu_and_gpu() {
    let expected = alone().await;
    let browser = Browser::launch().await.unwrap();
    // A software GPU takes a minute to compile the shaders, and seconds for a token.
    for (device, backend, n_cases) in [("wasm", "wasm-simd", N_CASES), ("gpu", "webgpu", 1)] {
        let hub = hub();
        let url = hub.join_url.replace("/join", &format!("/join?device={device}"));
        let tab = browser.open(&url).await.unwrap();
        same(&hub, backend, &expected[..n_cases]).await;
        tab.close().await.unwrap();
    }
    browser.close().await.unwrap();
}

/// A tab's threads share no memory, and each computes the experts that it holds.
#[tokio::test]
async fn a_tab_gives_the_hubs_bytes_on_any_number_of_threads_and_starts_over_when_one_dies() {
    let expected = alone().await;
    let browser = Browser::launch().await.unwrap();
    for n_threads in [1, 2, 3] {
        let hub = hub();
        let choice = format!("/join?device=wasm&threads={n_threads}");
        let tab = browser.open(&hub.join_url.replace("/join", &choice)).await.unwrap();
        same(&hub, "wasm-simd", &expected).await;
        assert_eq!(tab.status().await.unwrap()["n_threads"], n_threads);
        let adapter = hub.status().await.unwrap()["workers"][0]["adapter"].clone();
        assert!(adapter.as_str().unwrap().contains(&format!("{n_threads} thread")), "{adapter}");
        if n_threads == 2 {
            tab.break_worker(&["/join/worker.js", "/join/thread.js"]).await.unwrap();
            let is_whole = |status: &Value| {
                status["n_threads"] == 1
                    && status["state"] == "serving"
                    && status["blocks_resident"] == status["blocks_assigned"]
            };
            tab.wait_until("serving on one thread", is_whole).await.unwrap();
            assert!(tab.text("body").await.unwrap().contains("so it computes on one"));
            same(&hub, "wasm-simd", &expected).await;
        }
        tab.close().await.unwrap();
    }
    browser.close().await.unwrap();
}

/// The GPU of the hub has the experts of two layers, and workers those of the two others.
#[tokio::test]
async fn a_gpu_hub_gives_the_same_text_whoever_computes_the_experts_that_it_does_not_hold() {
    let gpu = ["--device", "gpu", "--gpu-layers", "2"];
    let by_itself = texts(&Hub::start(&gpu).unwrap()).await;
    for more in
        [&["--prefer", "workers"][..], &["--no-hub-compute"], &["--prefer", "workers", "--verify", "audit"]]
    {
        let hub = Hub::start(&[&gpu[..], more].concat()).unwrap();
        let _worker = Worker::start(&hub.join_url, &[]).unwrap();
        hub.wait_for_workers(1).await.unwrap();
        for (case, text) in &by_itself {
            assert_eq!(hub.answer(case).await.unwrap(), *text, "{more:?}, case {}", case["id"]);
        }
        let status = hub.status().await.unwrap();
        assert!(workers(&status).all(|worker| worker["rows"].as_u64() > Some(0)), "{more:?}: {status:#}");
        assert_eq!(status["coverage"]["blocks"], 2 * 16, "{more:?}: nobody is asked for what the GPU holds");
        assert_eq!(status["totals"]["mismatches"], 0, "{more:?}");
    }
    let hub = Hub::start(&[&gpu[..], &["--prefer", "workers"]].concat()).unwrap();
    let _liar =
        Peer::start(&hub.join_url, PeerConfig::new(1, Behaviour::Lies(Lie::Scaled(3.0, 100)))).unwrap();
    hub.wait_for_workers(1).await.unwrap();
    for (case, text) in &by_itself {
        assert_eq!(hub.answer(case).await.unwrap(), *text, "beside a liar, case {}", case["id"]);
    }
    hub.wait_until("it is quarantined", |status| !status["quarantined"].as_array().unwrap().is_empty())
        .await
        .unwrap();
}

/// A token is drawn by the GPU that has the logits; where log probabilities are wanted, all logits come to the CPU, and it draws.
#[tokio::test]
async fn a_gpu_draws_the_tokens_that_the_cpu_draws() {
    let hub = Hub::start(&["--device", "gpu"]).unwrap();
    let http = chat::client().unwrap();
    let props: Value = http.get(format!("{}/props", hub.url)).send().await.unwrap().json().await.unwrap();
    assert_eq!(props["total_slots"], 32, "a GPU gains from more texts at once than a CPU");
    let mut texts = BTreeSet::new();
    for (seed, temperature) in [(1, 0.3), (2, 1.0), (3, 2.0)] {
        let text = async |logprobs: Value| {
            let body = json!({
                "prompt": "Hello", "max_tokens": 48, "temperature": temperature, "top_k": 0, "top_p": 1, "min_p": 0,
                "seed": seed, "ignore_eos": true, "logprobs": logprobs,
            });
            let response = http.post(format!("{}/v1/completions", hub.url)).json(&body).send().await.unwrap();
            let answer: Value = response.json().await.unwrap();
            answer["choices"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
        };
        let by_gpu = text(Value::Null).await;
        assert_eq!(by_gpu, text(json!(1)).await, "seed {seed}, temperature {temperature}");
        texts.insert(by_gpu);
    }
    assert_eq!(texts.len(), 3, "{texts:?}");
}

/// What others ask meanwhile changes no bit, on a GPU either.
#[tokio::test]
async fn a_gpu_hub_gives_the_same_log_probabilities_to_prompts_one_by_one_and_together() {
    let prompts: Vec<String> = (0..6).map(|i| format!("{i} and ").repeat(1 + 12 * i)).collect();
    let ask = async |url: String, prompt: String| {
        let body =
            json!({"prompt": prompt, "max_tokens": 6, "temperature": 0, "logprobs": 3, "ignore_eos": true});
        let sent = chat::client().unwrap().post(format!("{url}/v1/completions")).json(&body).send().await;
        let answer: Value = sent.unwrap().json().await.unwrap();
        answer["choices"][0].clone()
    };
    let hub = Hub::start(&["--device", "gpu"]).unwrap();
    let mut one_by_one = Vec::new();
    for prompt in &prompts {
        let told = ask(hub.url.clone(), prompt.clone()).await;
        assert!(told["logprobs"]["token_logprobs"][0].is_number(), "{told}");
        one_by_one.push(told);
    }
    // A hub that has none of them in its cache.
    let hub = Hub::start(&["--device", "gpu"]).unwrap();
    let together = prompts.iter().map(|prompt| ask(hub.url.clone(), prompt.clone()));
    let together = futures_util::future::join_all(together).await;
    for (together, alone) in together.iter().zip(&one_by_one) {
        assert_eq!((&together["text"], &together["logprobs"]), (&alone["text"], &alone["logprobs"]));
    }
}

/// Two GPUs, which one made of software stands for, have two layers each; then the experts of the last layer are a worker's.
#[tokio::test]
async fn a_hub_divides_its_layers_among_gpus() {
    let [one, two] = [&["--device", "gpu"][..], &["--device", "gpu", "--gpus", "2"]];
    let rounded = ["--kv", "q8_0"];
    let expected = texts(&Hub::start(&[one, &rounded].concat()).unwrap()).await;
    assert_eq!(texts(&Hub::start(&[two, &rounded].concat()).unwrap()).await, expected);
    let expected = texts(&Hub::start(one).unwrap()).await;
    let hub = Hub::start(two).unwrap();
    assert_eq!(texts(&hub).await, expected);
    let bench = ["bench", "-p", "4", "-n", "4", "-r", "1"];
    let said = Command::new(moex_tests::moex()).args([&bench[..], two].concat()).output().unwrap();
    let said = String::from_utf8(said.stderr).unwrap();
    assert!(said.contains("runs on 2 GPUs, ") && said.contains("with layers 0 to 1, "), "{said}");
    let hub = Hub::start(&[two, &["--gpu-layers", "3", "--no-hub-compute"]].concat()).unwrap();
    let _worker = Worker::start(&hub.join_url, &[]).unwrap();
    hub.wait_for_workers(1).await.unwrap();
    assert_eq!(hub.status().await.unwrap()["coverage"]["blocks"], 16);
    assert_eq!(texts(&hub).await, expected);
}

/// A hub that computes no expert itself.
fn hub() -> Hub {
    Hub::start(&["--activations", "int8", "--no-hub-compute", "--replicas", "1"]).unwrap()
}

/// Some cases and their texts from a hub without workers.
async fn alone() -> Vec<(Value, String)> {
    texts(&Hub::start(&["--activations", "int8"]).unwrap()).await
}

/// Some cases and their texts.
async fn texts(hub: &Hub) -> Vec<(Value, String)> {
    let lines = std::fs::read_to_string(data("demo-cases.jsonl")).unwrap();
    let mut texts = Vec::new();
    for line in lines.lines().step_by(7).take(N_CASES) {
        let case: Value = serde_json::from_str(line).unwrap();
        let text = hub.answer(&case).await.unwrap();
        texts.push((case, text));
    }
    texts
}

/// One exact worker with this backend gives the same texts.
async fn same(hub: &Hub, backend: &str, expected: &[(Value, String)]) {
    let status = hub.wait_for_workers(1).await.unwrap();
    let worker = workers(&status).next().unwrap();
    assert_eq!((&worker["backend"], &worker["is_exact"]), (&backend.into(), &true.into()), "{worker:#}");
    for (case, text) in expected {
        assert_eq!(hub.answer(case).await.unwrap(), *text, "{backend}, case {}", case["id"]);
    }
    assert_eq!(hub.status().await.unwrap()["hub"]["rows"], 0, "the hub computed no expert itself");
}

/// A child process, killed when dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
