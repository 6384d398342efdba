//! The join page as people use it: opened by the address of a machine on their network, with one tap; and its messages
//! when something is missing.

use moex_kernels::engine::EngineError;
use moex_tests::browser::Browser;
use moex_tests::chat::API_KEY;
use moex_tests::host::Host;
use moex_tests::hub::{Hub, Moex, Signal, workers};
use serde_json::{Value, json};

const TOKEN: &str = "of-this-test";

/// The browser treats no origin as secure: it withholds storage, locks, WebGPU and clipboard.
#[tokio::test]
async fn a_tab_on_another_machine_lends_over_plain_http_and_outlives_a_hub_restart() {
    let host = Host::new().unwrap();
    let start = |listen: &str| {
        let args = ["--token", TOKEN, "--api-key", API_KEY, "--no-hub-compute", "--coverage-wait", "110s"];
        Moex::under_test().hub_at(listen, &args).unwrap()
    };
    let hub = start("0.0.0.0:0");
    let port = hub.address().unwrap().port();
    let browser = Browser::launch_on(&host).await.unwrap();
    let url = hub.join_url_from(&host).unwrap().replace("/join", "/join?threads=2");
    let tab = browser.visit(&url).await.unwrap();
    assert_eq!(tab.eval("isSecureContext").await.unwrap(), false);
    assert_eq!(tab.eval("typeof navigator.storage").await.unwrap(), "undefined");
    tab.wait_until("asking its visitor", |status| status["phase"] == "idle").await.unwrap();
    assert_eq!(workers(&hub.status().await.unwrap()).count(), 0, "nobody joins before the tap");
    assert_eq!(tab.eval("typeof navigator.deviceMemory").await.unwrap(), "undefined");
    assert_eq!(tab.text("#memory-text").await.unwrap(), "1.0 GiB");

    tab.click("#lend").await.unwrap();
    let status = tab.wait_until("serving", is_whole).await.unwrap();
    assert_eq!(status["backend"], "wasm-simd", "{status:#}");
    assert_eq!(status["n_threads"], 2, "threads need no isolated page");
    let said = tab.text("body").await.unwrap();
    assert!(said.contains("not secure") && said.contains("--lan"), "{said}");
    hub.wait_for_workers(1).await.unwrap();
    hub.answer(&question()).await.unwrap();
    // The page gets updates a few times a second.
    let has_answered = |status: &Value| status["answers"].as_u64() > Some(0);
    let before = tab.wait_until("the answer that it computed", has_answered).await.unwrap();

    hub.end(Signal::TERM).await.unwrap();
    tab.wait_until("no hub", |status| status["phase"] == "connecting").await.unwrap();
    let hub = start(&format!("0.0.0.0:{port}"));
    tab.wait_until("serving again", is_whole).await.unwrap();
    hub.wait_for_workers(1).await.unwrap();
    hub.answer(&question()).await.unwrap();
    let has_answered_more = |status: &Value| status["answers"].as_u64() > before["answers"].as_u64();
    let after = tab.wait_until("another answer that it computed", has_answered_more).await.unwrap();
    assert_eq!(after["bytes_downloaded"], before["bytes_downloaded"], "what it held it still holds");
    browser.close().await.unwrap();
}

/// Its GPU serves int8 and f32 alike. By default it uses no emulated GPU; told to choose, it uses the faster of GPU and
/// CPU.
#[tokio::test]
async fn a_tab_takes_the_faster_of_its_gpu_and_its_cpu_whatever_the_hub_computes_with() {
    let browser = Browser::launch().await.unwrap();
    let start = |listen: &str, activations: &str| {
        let args = ["--token", TOKEN, "--no-hub-compute", "--activations", activations];
        Moex::under_test().hub_at(listen, &args).unwrap()
    };
    let hub = start("127.0.0.1:0", "int8");
    let listen = hub.address().unwrap().to_string();
    let tab = browser.open(&hub.join_url).await.unwrap();
    assert_eq!(tab.eval("typeof navigator.gpu").await.unwrap(), "object");
    let status = tab.wait_until("serving", is_whole).await.unwrap();
    assert_eq!(status["backend"], "wasm-simd", "SwiftShader is no GPU, and testing it takes a minute");
    assert!(tab.text("body").await.unwrap().contains("emulates a GPU"));
    hub.answer(&question()).await.unwrap();
    tab.close().await.unwrap();

    let tab = browser.open(&hub.join_url.replace("/join", "/join?device=auto")).await.unwrap();
    let status = tab.wait_until("serving", is_whole).await.unwrap();
    let said = tab.text("body").await.unwrap();
    assert_eq!(said.contains("MB of weights a second"), status["backend"] == "wasm-simd", "{said}");
    hub.answer(&question()).await.unwrap();
    tab.close().await.unwrap();

    let tab = browser.open(&hub.join_url.replace("/join", "/join?device=gpu")).await.unwrap();
    let on_gpu = |status: &Value| is_whole(status) && status["backend"] == "webgpu";
    tab.wait_until("serving on the GPU", on_gpu).await.unwrap();
    hub.answer(&question()).await.unwrap();
    hub.end(Signal::TERM).await.unwrap();
    let hub = start(&listen, "f32");
    hub.wait_for_workers(1).await.unwrap();
    hub.answer(&question()).await.unwrap();
    assert_eq!(tab.status().await.unwrap()["backend"], "webgpu");
    browser.close().await.unwrap();
}

#[tokio::test]
async fn a_wrong_token_is_said_before_the_device_is_tested() {
    let hub = Hub::start(&["--token", TOKEN]).unwrap();
    let browser = Browser::launch().await.unwrap();
    let wrong = hub.join_url.replace(TOKEN, "mistyped");
    for tab in [browser.visit(&wrong).await.unwrap(), browser.open(&wrong).await.unwrap()] {
        tab.wait_until("refused", |status| status["phase"] == "stopped").await.unwrap();
        let said = tab.text("body").await.unwrap();
        assert!(said.contains("The token in this link is wrong"), "{said}");
        let loaded = "performance.getEntriesByType('resource').filter(({ name }) => name.endsWith('worker.js')).length";
        assert_eq!(tab.eval(loaded).await.unwrap(), 0, "no worker was started that could test anything");
    }
    browser.close().await.unwrap();
}

#[tokio::test]
async fn a_normal_join_never_says_that_the_hub_does_not_answer() {
    let hub = Hub::start(&[]).unwrap();
    let browser = Browser::launch().await.unwrap();
    let tab = browser.visit(&hub.join_url).await.unwrap();
    tab.wait_until("asking its visitor", |status| status["phase"] == "idle").await.unwrap();
    let watch = "(() => {
        window.said = [];
        const note = () => window.said.push(document.body.innerText);
        new MutationObserver(note).observe(document.body, { subtree: true, childList: true, characterData: true, attributes: true });
    })()";
    tab.eval(watch).await.unwrap();
    tab.click("#lend").await.unwrap();
    tab.wait_until("serving", is_whole).await.unwrap();
    let said = tab.eval("window.said").await.unwrap();
    let said: Vec<&str> = said.as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(said.iter().any(|text| text.contains("Testing this device")), "{said:?}");
    for alarm in ["does not answer", "Not connected", "Not joined"] {
        assert!(!said.iter().any(|text| text.contains(alarm)), "{alarm}: {said:?}");
    }
    browser.close().await.unwrap();
}

#[tokio::test]
async fn a_tab_offers_a_quarter_of_its_device_until_its_visitor_chooses() {
    let hub = Hub::start(&[]).unwrap();
    let browser = Browser::launch().await.unwrap();
    let tab = browser.visit(&hub.join_url).await.unwrap();
    tab.wait_until("asking its visitor", |status| status["phase"] == "idle").await.unwrap();
    let device = tab.eval("navigator.deviceMemory").await.unwrap().as_f64().unwrap();
    let offered = (device / 4.0).min(2.0);
    assert_eq!(tab.text("#memory-text").await.unwrap(), format!("{offered:.1} GiB"));
    // Four layers: a row of 256 f16, and for each of four experts as many and products of 2 x 128 f16.
    let costs = tab.text("#costs").await.unwrap();
    assert!(costs.contains("up to 18 KiB for each word-piece"), "{costs}");
    tab.click("#lend").await.unwrap();
    let status = tab.wait_until("serving", is_whole).await.unwrap();
    assert_eq!(status["bytes_offered"].as_f64().unwrap(), offered * f64::from(1 << 30), "{status:#}");
    let choose = "(() => {
        const memory = document.getElementById('memory');
        memory.value = 0;
        memory.dispatchEvent(new Event('input'));
    })()";
    tab.eval(choose).await.unwrap();
    assert_eq!(tab.text("#memory-text").await.unwrap(), "128 MiB");
    tab.close().await.unwrap();
    let tab = browser.visit(&hub.join_url).await.unwrap();
    let status = tab.wait_until("serving as it did here before", is_whole).await.unwrap();
    assert_eq!(status["bytes_offered"], 128 << 20, "what was chosen is kept");
    browser.close().await.unwrap();
}

/// No GPU here has too little memory: the page hears what its worker says of one.
#[tokio::test]
async fn a_tab_whose_gpu_has_no_room_offers_half() {
    let hub = Hub::start(&[]).unwrap();
    let browser = Browser::launch().await.unwrap();
    let url = hub.join_url.replace("/join", "/join?device=gpu&memory=512MiB");
    let tab = browser.open(&url).await.unwrap();
    let note = format!("This device cannot serve the hub's model: {}.", EngineError::OutOfMemory);
    let report = json!({ "phase": "crashed", "note": note }).to_string();
    let report = format!("self.postMessage({})", json!(report));
    tab.in_worker(&["/join/worker.js"], &report).await.unwrap();
    let status = tab.wait_until("serving with half", is_whole).await.unwrap();
    assert_eq!((&status["backend"], &status["bytes_offered"]), (&"webgpu".into(), &(256 << 20).into()));
    let said = tab.text("#lacks").await.unwrap();
    assert!(said.contains("The GPU has no room for 512 MiB, so this tab lends 256 MiB."), "{said}");
    browser.close().await.unwrap();
}

#[tokio::test]
async fn a_name_is_shown_to_the_swarm_and_a_paused_or_hidden_tab_gets_no_work() {
    let hub = Hub::start(&[]).unwrap();
    let browser = Browser::launch().await.unwrap();
    let tab = browser.visit(&hub.join_url).await.unwrap();
    tab.eval("Object.assign(document.getElementById('name'), { value: 'Anna\\u2019s phone' }).value")
        .await
        .unwrap();
    tab.click("#lend").await.unwrap();
    tab.wait_until("serving", is_whole).await.unwrap();
    let status = hub.wait_for_workers(1).await.unwrap();
    assert_eq!(status["workers"][0]["name"], "Anna\u{2019}s phone");

    tab.click("#pause").await.unwrap();
    let state = |state: &'static str| move |status: &Value| status["workers"][0]["state"] == state;
    hub.wait_until("a paused worker", state("paused")).await.unwrap();
    assert!(tab.text("body").await.unwrap().contains("Paused by you"));
    tab.click("#pause").await.unwrap();
    hub.wait_until("a worker that serves again", state("serving")).await.unwrap();

    let front = browser.open_in_front("about:blank").await.unwrap();
    let hidden = hub.wait_until("a hidden worker", state("paused")).await.unwrap();
    assert_eq!(hidden["workers"][0]["visibility"], "hidden");
    let asked = hidden["workers"][0]["dispatches"].clone();
    hub.answer(&question()).await.unwrap();
    let after = hub.status().await.unwrap();
    assert_eq!(after["workers"][0]["dispatches"], asked, "a hidden tab was given work: {after:#}");
    front.close().await.unwrap();
    hub.wait_until("a worker that is seen again", state("serving")).await.unwrap();
    assert!(tab.text("body").await.unwrap().contains("This tab was hidden for"));

    tab.click("#stop").await.unwrap();
    hub.wait_until("nobody", |status| workers(status).count() == 0).await.unwrap();
    browser.close().await.unwrap();
}

/// Three hubs at one address, and so of one origin: the first one's stored blocks are removed when the others need the
/// room.
#[tokio::test]
async fn stored_blocks_are_bounded_and_those_not_used_for_longest_go_first() {
    let browser = Browser::launch().await.unwrap();
    let start = |listen: &str, experts: &str| {
        Moex::under_test().hub_at(listen, &["--token", TOKEN, "--experts", experts]).unwrap()
    };
    let mut hub = start("127.0.0.1:0", "int4");
    let listen = hub.address().unwrap().to_string();
    let mut bound = 0;
    let mut first = Vec::new();
    for experts in ["int4", "q4_0", "f16", "int4"] {
        if !first.is_empty() {
            hub.end(Signal::TERM).await.unwrap();
            hub = start(&listen, experts);
        }
        let limit = if bound == 0 { "1GiB".to_owned() } else { format!("{}KiB", bound >> 10) };
        let url = hub.join_url.replace("/join", &format!("/join?device=wasm&store={limit}"));
        let tab = browser.open(&url).await.unwrap();
        let status = tab.wait_until("serving", is_whole).await.unwrap();
        let files = tab.stored_blocks().await.unwrap();
        if first.is_empty() {
            // Room for this and half as much again.
            bound = status["bytes_resident"].as_u64().unwrap() * 3 / 2;
            first = files.iter().map(|(name, _)| name.clone()).collect();
        } else {
            let bytes: u64 = files.iter().map(|(_, bytes)| bytes).sum();
            assert!(bytes <= bound, "{bytes} bytes are kept within {bound} ({experts})");
            assert!(!files.is_empty());
        }
        if experts == "q4_0" {
            let left = files.iter().filter(|(name, _)| first.contains(name)).count();
            assert!(left < first.len(), "nothing of the first hub's went");
            assert_eq!(files.len() - left, first.len(), "what is used now stays: {files:?}");
        }
        tab.close().await.unwrap();
    }
    browser.close().await.unwrap();
}

#[tokio::test]
async fn a_thread_that_ends_gives_its_room_in_the_store_back() {
    let hub = Hub::start(&[]).unwrap();
    let browser = Browser::launch().await.unwrap();
    let tab = browser.visit(&format!("{}/swarm", hub.url)).await.unwrap();
    let rooms = tab.eval(
        "(async () => {
            const { fetchBundle } = await import('/join/bundle.js');
            const { openStore } = await import('/join/store.js');
            const { startThreads } = await import('/join/threads.js');
            const store = await openStore(4096);
            const share = store.divide(4);
            const options = { hub: '', token: '', worker: '', share };
            const threads = await startThreads(3, await fetchBundle(), options, () => {}, () => store.takeBack(share));
            const isEnough = await store.reserve(4096);
            threads.forEach((thread) => thread.end());
            return [threads.length, isEnough, await store.reserve(4096), await store.reserve(1)];
        })()",
    );
    assert_eq!(rooms.await.unwrap(), json!([3, false, true, false]));
    browser.close().await.unwrap();
}

fn is_whole(status: &Value) -> bool {
    status["state"] == "serving"
        && status["phase"] == "connected"
        && status["blocks_assigned"].as_u64() > Some(0)
        && status["blocks_resident"] == status["blocks_assigned"]
}

fn question() -> Value {
    json!({ "messages": [{ "role": "user", "content": "What is the capital of France?" }], "enable_thinking": false })
}
