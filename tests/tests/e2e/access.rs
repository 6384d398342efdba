//! Links that others can open, and that stay valid when the hub restarts.

use std::process::Stdio;
use std::time::Duration;

use moex_tests::host::Host;
use moex_tests::hub::{Moex, PATIENCE, Signal, Worker, workers};
use moex_tests::{chat, moex};
use serde_json::Value;

/// A port that is free now, for commands that cannot choose one themselves.
fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[tokio::test]
async fn every_address_of_the_machine_is_a_link_to_share_and_loopback_never_is() {
    let host = Host::new().unwrap();
    let logs = tempfile::tempdir().unwrap();
    let hub = Moex::under_test()
        .logging_to(logs.path())
        .hub_at("0.0.0.0:0", &["--api-key", chat::API_KEY])
        .unwrap();
    let (port, token) = (hub.address().unwrap().port(), hub.started["token"].as_str().unwrap().to_owned());
    let shared = format!("http://{}:{port}/join#{token}", host.gateway());
    let urls: Vec<&str> =
        hub.started["join_urls"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(urls.contains(&shared.as_str()), "{shared} is not among {urls:?}");
    assert!(urls.iter().all(|url| !url.contains("127.0.0.1") && !url.contains("0.0.0.0")), "{urls:?}");

    let log = logs.path().join("hub.log");
    let said = wait_for_text(&log, "Ctrl-C stops it").await;
    assert!(said.lines().any(|line| line.trim_start().trim_start_matches("join").trim() == shared), "{said}");
    assert!(!said.contains("127.0.0.1"), "{said}");

    // The printed link works from there.
    let from_there = Moex::under_test().on(host.into());
    let _worker = from_there.worker("worker", &shared, &[]).unwrap();
    hub.wait_for_workers(1).await.unwrap();
}

#[tokio::test]
async fn a_restart_with_the_same_flags_strands_no_worker_and_a_new_token_does() {
    let state = tempfile::tempdir().unwrap();
    let moex = Moex::under_test().keeping(state.path());
    let listen = format!("127.0.0.1:{}", free_port());
    let hub = moex.hub_at(&listen, &[]).unwrap();
    let link = hub.join_url.clone();
    let mut worker = Worker::start(&link, &[]).unwrap();
    let before = hub.wait_for_workers(1).await.unwrap();
    hub.end(Signal::TERM).await.unwrap();

    let hub = moex.hub_at(&listen, &[]).unwrap();
    assert_eq!(hub.join_url, link, "the link is the same");
    let after = hub.wait_for_workers(1).await.unwrap();
    let id = |status: &Value| workers(status).next().unwrap()["id"].clone();
    assert_eq!(id(&after), id(&before), "the worker that was there came back");
    assert!(worker.ended().unwrap().is_none());
    hub.end(Signal::TERM).await.unwrap();

    let hub = moex.hub_at(&listen, &["--new-token"]).unwrap();
    assert_ne!(hub.join_url, link);
    let stranded = tokio::time::timeout(PATIENCE, async {
        while worker.ended().unwrap().is_none() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    stranded.await.expect("the old token joins no more");
}

#[cfg(unix)]
#[tokio::test]
async fn a_kept_token_that_others_can_read_or_that_is_damaged_is_one_sentence() {
    use std::os::unix::fs::PermissionsExt;
    let state = tempfile::tempdir().unwrap();
    let moex = Moex::under_test().keeping(state.path());
    drop(moex.hub(&[]).unwrap());
    let token = state.path().join("join-token");
    let mode = |mode| std::fs::set_permissions(&token, std::fs::Permissions::from_mode(mode)).unwrap();
    mode(0o644);
    assert_fails_with(&state, &["--listen", "127.0.0.1:0"], "can be read by other users");
    mode(0o600);
    std::fs::write(&token, "not one token").unwrap();
    assert_fails_with(&state, &["--listen", "127.0.0.1:0"], "is damaged");
}

#[test]
fn one_port_for_plain_pages_and_for_https_is_one_sentence() {
    let state = tempfile::tempdir().unwrap();
    let said = "port 8443 is the https port of --lan";
    assert_fails_with(&state, &["--lan", "--listen", "0.0.0.0:8443"], said);
    assert_fails_with(&state, &["--lan", "--port", "8443"], said);
}

fn assert_fails_with(state: &tempfile::TempDir, args: &[&str], words: &str) {
    let state = state.path().display().to_string();
    let output = crate::run(&[&["serve", "--state", &state], args].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(words) && said.trim().lines().count() == 1, "{said}");
}

#[tokio::test]
async fn every_way_to_write_the_address_serves() {
    let port = free_port();
    for args in [
        vec!["--listen".to_owned(), port.to_string()],
        vec!["--listen".to_owned(), format!(":{port}")],
        vec!["--listen".to_owned(), format!("localhost:{port}")],
        vec!["--port".to_owned(), port.to_string()],
    ] {
        let state = tempfile::tempdir().unwrap();
        let mut hub = std::process::Command::new(moex())
            .env("MOEX_STATE", state.path())
            .arg("serve")
            .args(&args)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let answered = tokio::time::timeout(PATIENCE, async {
            let http = chat::client().unwrap();
            while http.get(format!("http://127.0.0.1:{port}/health")).send().await.is_err() {
                assert!(hub.try_wait().unwrap().is_none(), "{args:?}: the hub ended");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        let answered = answered.await;
        hub.kill().unwrap();
        hub.wait().unwrap();
        assert!(answered.is_ok(), "{args:?}");
    }
}

/// The content of the file once it contains these words.
async fn wait_for_text(file: &std::path::Path, words: &str) -> String {
    let waited = tokio::time::timeout(PATIENCE, async {
        loop {
            let text = std::fs::read_to_string(file).unwrap_or_default();
            if text.contains(words) {
                return text;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("{} never says {words:?}", file.display()))
}
