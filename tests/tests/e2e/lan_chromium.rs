//! Browsers of other hosts at the setup page of `moex serve --lan`.

use std::path::Path;

use moex_tests::browser::{Browser, Tab};
use moex_tests::host::Host;
use moex_tests::hub::{Hub, Moex, PATIENCE, Signal, workers};
use serde_json::Value;

use crate::lan::{free_port, from};

/// A hub that has the same two ports at each start.
struct Home {
    state: tempfile::TempDir,
    ports: [String; 2],
}

impl Home {
    fn new() -> Self {
        let ports = [free_port(), free_port()].map(|port| port.to_string());
        Self { state: tempfile::tempdir().unwrap(), ports }
    }

    fn start(&self) -> Hub {
        let moex = Moex::under_test().keeping(self.state.path());
        moex.hub_at(&self.ports[0], &["--lan", "--https-port", &self.ports[1]]).unwrap()
    }
}

#[tokio::test]
async fn a_tab_that_trusts_the_authority_has_a_gpu_reloads_for_nothing_and_outlives_a_restart() {
    let (host, home) = (Host::new().unwrap(), Home::new());
    let hub = home.start();
    let authority = hub.started["ca"]["certificate"].as_str().unwrap().to_owned();
    let browser = Browser::launch_trusting(&host, Path::new(&authority)).await.unwrap();
    let token = hub.started["token"].as_str().unwrap();
    let (setup, web) = (from(&host, &hub.started["setup_urls"]), from(&host, &hub.started["urls"]));

    // A browser that scanned the code and already trusts the authority is redirected at once, with the token.
    let scanned = browser.open(&format!("{setup}/#{token}")).await.unwrap();
    wait_for(&scanned, "location.href", &format!("{web}/join#{token}")).await;
    scanned.close().await.unwrap();

    let tab = browser.open(&format!("{web}/join#{token}")).await.unwrap();
    tab.wait_until("serving", is_whole).await.unwrap();
    let facts = "Promise.resolve(navigator.gpu?.requestAdapter()).then((adapter) => \
                 [isSecureContext, Boolean(adapter), Boolean(navigator.storage), Boolean(navigator.locks)].join())";
    assert_eq!(tab.eval(facts).await.unwrap(), "true,true,true,true");
    let before = hub.wait_for_workers(1).await.unwrap();
    tab.reload().await.unwrap();
    let status = tab.wait_until("serving again", is_whole).await.unwrap();
    assert_eq!(status["bytes_downloaded"], 0, "{status:#}");
    let after = hub.wait_for_workers(1).await.unwrap();
    assert_eq!(after["weights_served_bytes"], before["weights_served_bytes"]);
    hub.end(Signal::TERM).await.unwrap();

    let hub = home.start();
    let status = hub.wait_for_workers(1).await.unwrap();
    assert_eq!(workers(&status).next().unwrap()["id"], workers(&before).next().unwrap()["id"]);
    assert_eq!(status["weights_served_bytes"], 0, "it still has what it fetched: {status:#}");
    browser.close().await.unwrap();
}

#[tokio::test]
async fn a_browser_without_the_authority_sees_the_page_that_explains_and_a_way_in_without_it() {
    let (host, home) = (Host::new().unwrap(), Home::new());
    let hub = home.start();
    let browser = Browser::launch_on(&host).await.unwrap();
    let token = hub.started["token"].as_str().unwrap();
    let setup = from(&host, &hub.started["setup_urls"]);
    let tab = browser.open(&format!("{setup}/#{token}")).await.unwrap();
    wait_for(
        &tab,
        "document.querySelector('a[href*=\"/join#\"]:not(.primary)')?.getAttribute('href')",
        &format!("/join#{token}"),
    )
    .await;
    // Long enough for the check of the https port to fail.
    tokio::time::sleep(std::time::Duration::from_secs(4)).await;
    assert_eq!(tab.eval("location.href").await.unwrap(), format!("{setup}/#{token}"));
    assert_eq!(tab.eval("document.getElementById('trusted').hidden").await.unwrap(), true);
    let text = tab.eval("document.body.innerText").await.unwrap();
    let text = text.as_str().unwrap();
    assert!(text.contains("fingerprint") && text.contains("Join now without the graphics chip"), "{text}");
    let open = "[...document.querySelectorAll('details[open]')].map((each) => each.id).join()";
    assert_eq!(tab.eval(open).await.unwrap(), "linux");

    // The way in without the authority, by the same plain port.
    let joined = browser.open(&format!("{setup}/join#{token}")).await.unwrap();
    joined.wait_until("serving", is_whole).await.unwrap();
    hub.wait_for_workers(1).await.unwrap();
    browser.close().await.unwrap();
}

async fn wait_for(tab: &Tab, expression: &str, expected: &str) {
    let begin = tokio::time::Instant::now();
    loop {
        let value = tab.eval(expression).await.unwrap_or(Value::Null);
        if value == expected {
            return;
        }
        assert!(begin.elapsed() < PATIENCE, "{expression} is {value}, not {expected}");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

fn is_whole(status: &Value) -> bool {
    status["state"] == "serving"
        && status["blocks_assigned"].as_u64() > Some(0)
        && status["blocks_resident"] == status["blocks_assigned"]
}
