//! Invitations: join links for one machine each, which can be revoked.

use std::process::Command;
use std::time::{Duration, Instant};

use moex_tests::hub::{Hub, Moex, PATIENCE, Signal, Worker, workers};

/// Waits until a worker has ended by itself; it may not have succeeded.
async fn until_refused(worker: &mut Worker) {
    let begin = Instant::now();
    loop {
        if let Some(status) = worker.ended().unwrap() {
            assert!(!status.success(), "{status}");
            return;
        }
        assert!(begin.elapsed() < PATIENCE, "it does not end");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// What `moex invite ARGS` says of this hub.
fn invite(hub: &Hub, args: &[&str]) -> (bool, String, String) {
    invite_at(&hub.url, args)
}

fn invite_at(url: &str, args: &[&str]) -> (bool, String, String) {
    let output = Command::new(moex_tests::moex())
        .args(["invite", "--url", url])
        .args(args)
        .env_remove("MOEX_API_KEY")
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap().trim().to_owned();
    (output.status.success(), text(output.stdout), text(output.stderr))
}

#[tokio::test]
async fn an_invitation_admits_one_worker_until_it_is_revoked() {
    let state = tempfile::tempdir().unwrap();
    let moex = Moex::under_test().keeping(state.path());
    let hub = moex.hub(&[]).unwrap();
    let (ok, link, said) = invite(&hub, &["anna"]);
    assert!(ok && link.contains("/join#anna~") && said.contains("--revoke"), "{link} {said}");
    assert_eq!(invite(&hub, &["anna"]).1, link, "asking again gives the same");

    let mut anna = Worker::start(&link, &[]).unwrap();
    let status = hub.wait_for_workers(1).await.unwrap();
    assert_eq!(workers(&status).next().unwrap()["invitation"], "anna");
    // Another machine with the same link is let in no more than one without any.
    until_refused(&mut Worker::start(&link, &[]).unwrap()).await;
    until_refused(&mut Worker::start(&link.replace("anna", "otto"), &[]).unwrap()).await;
    // The hub's own link is for everyone, as before.
    let _everyone = Worker::start(&hub.join_url, &[]).unwrap();
    let status = hub.wait_for_workers(2).await.unwrap();
    assert_eq!(workers(&status).filter(|worker| worker["invitation"].is_null()).count(), 1);

    let (ok, _, said) = invite(&hub, &["anna", "--revoke"]);
    assert!(ok, "{said}");
    until_refused(&mut anna).await;
    hub.wait_for_workers(1).await.unwrap();
    let (ok, _, said) = invite(&hub, &["anna"]);
    assert!(!ok && said.contains("was revoked: choose another name"), "{said}");

    // It is so after a restart, for weights too.
    hub.end(Signal::TERM).await.unwrap();
    let hub = moex.hub(&[]).unwrap();
    let token = link.split_once('#').unwrap().1;
    let terms = reqwest::Client::new().get(format!("{}/api/terms", hub.url)).bearer_auth(token).send().await;
    assert_eq!(terms.unwrap().status(), 401);
    let link = format!("{}/join#{token}", hub.url);
    until_refused(&mut Worker::start(&link, &[]).unwrap()).await;
    drop(hub);

    // A new token ends the others, and begins anew.
    let hub = moex.hub(&["--new-token"]).unwrap();
    let (ok, link, said) = invite(&hub, &["anna"]);
    assert!(ok && !link.ends_with(token), "{said}");
}

#[tokio::test]
async fn what_is_no_name_and_no_hub_is_one_sentence() {
    let hub = Hub::start(&[]).unwrap();
    let (ok, _, said) = invite(&hub, &["an na"]);
    assert!(!ok && said.contains("letters, digits"), "{said}");
    let (ok, _, said) = invite_at("http://127.0.0.1:9", &["anna"]);
    assert!(!ok && said.contains("no hub answers") && said.lines().count() == 1, "{said}");
}
