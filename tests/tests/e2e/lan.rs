//! `moex serve --lan` from another host: the page, the certificate, native workers and tabs over TLS.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use moex_tests::host::Host;
use moex_tests::hub::{Hub, Moex, PATIENCE, Signal, workers};
use moex_tests::moex;
use serde_json::Value;

/// A hub with `--lan` on free ports, with its secrets in `state`.
fn open(state: &Path, args: &[&str]) -> Hub {
    let moex = Moex::under_test().keeping(state);
    moex.hub_at("0", &[&["--lan", "--https-port", "0"], args].concat()).unwrap()
}

/// A URL of the hub as seen from this host.
pub(crate) fn from(host: &Host, urls: &Value) -> String {
    let gateway = format!("//{}:", host.gateway());
    let urls = urls.as_array().unwrap().iter().filter_map(Value::as_str);
    urls.clone()
        .find(|url| url.contains(&gateway))
        .unwrap_or_else(|| panic!("{gateway} is not among {:?}", urls.collect::<Vec<_>>()))
        .to_owned()
}

/// Runs curl on the host; returns its output, headers included.
fn curl(host: &Host, args: &[&str]) -> Output {
    host.command("curl".as_ref())
        .args(["--silent", "--show-error", "--max-time", "20"])
        .args(args)
        .output()
        .unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[tokio::test]
async fn from_another_host_the_setup_page_shows_the_way_and_no_secret() {
    let (host, state) = (Host::new().unwrap(), tempfile::tempdir().unwrap());
    let hub = open(state.path(), &[]);
    let (setup, web) = (from(&host, &hub.started["setup_urls"]), from(&host, &hub.started["urls"]));
    let token = hub.started["token"].as_str().unwrap();
    let key = hub.started["api_key"].as_str().unwrap();

    let iphone = "Mozilla/5.0 (iPhone; CPU iPhone OS 17_5 like Mac OS X) AppleWebKit/605.1.15 Version/17.5 Mobile Safari/604.1";
    let page = text(&curl(&host, &["-i", "-A", iphone, &format!("{setup}/")]));
    assert!(page.starts_with("HTTP/1.1 200") && page.contains("text/html"), "{page}");
    assert!(page.contains("<details id=\"ios\" open"), "{page}");
    let fingerprint = hub.started["ca"]["fingerprint"].as_str().unwrap();
    let spelled = fingerprint.to_uppercase();
    let spelled: Vec<&str> = (0..32).map(|n| &spelled[2 * n..2 * n + 2]).collect();
    assert!(page.contains(&spelled.join(" ")), "{page}");
    assert!(
        page.contains(&format!("\"{web}/\"")),
        "the way on is by the address that the visitor came by: {page}"
    );
    for path in [
        "/",
        "/ca.crt",
        "/ca.pem",
        "/setup/setup.js",
        "/health",
        "/join",
        "/swarm",
        "/api/swarm",
        "/v1/models",
    ] {
        let said = text(&curl(&host, &["-i", &format!("{setup}{path}")]));
        assert!(!said.contains(token) && !said.contains(key), "{path} tells strangers a secret");
    }

    // The downloaded certificate is the one on the page, and makes the https port trusted; without it, the port is not
    // trusted.
    let folder = tempfile::tempdir().unwrap();
    let pem = folder.path().join("ca.pem");
    let headers = text(&curl(&host, &["-D", "-", "-o", pem.to_str().unwrap(), &format!("{setup}/ca.pem")]));
    assert!(headers.contains("application/x-pem-file"), "{headers}");
    let headers = text(&curl(&host, &["-D", "-", "-o", "/dev/null", &format!("{setup}/ca.crt")]));
    assert!(headers.contains("application/x-x509-ca-cert"), "{headers}");
    let trusted = curl(&host, &["-i", "--cacert", pem.to_str().unwrap(), &format!("{web}/reached")]);
    assert!(text(&trusted).starts_with("HTTP/1.1 204"), "{trusted:?}");
    assert!(
        !curl(&host, &[&format!("{web}/reached")]).status.success(),
        "nobody trusts it without being told"
    );
    for (version, is_spoken) in [("1.0", false), ("1.1", false), ("1.2", true), ("1.3", true)] {
        let max = format!("--tls-max {version}");
        let args: Vec<&str> = max.split(' ').collect();
        let url = format!("{web}/reached");
        let asked =
            curl(&host, &[&args[..], &["--tlsv1.0", "--cacert", pem.to_str().unwrap(), &url]].concat());
        assert_eq!(asked.status.success(), is_spoken, "TLS {version}: {asked:?}");
    }

    // The plain port is only for joining; chat and API are behind TLS and the key.
    let chat = text(&curl(&host, &["-i", &format!("{setup}/v1/models")]));
    assert!(chat.starts_with("HTTP/1.1 403"), "{chat}");
    let ask = |key: &str| {
        let header = format!("Authorization: Bearer {key}");
        text(&curl(
            &host,
            &["-i", "--cacert", pem.to_str().unwrap(), "-H", &header, &format!("{web}/v1/models")],
        ))
    };
    assert!(ask("wrong").starts_with("HTTP/1.1 401") && ask(key).starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn a_native_worker_of_another_host_knows_the_hub_by_the_fingerprint_in_its_link_and_outlives_a_restart()
{
    let (host, state) = (std::sync::Arc::new(Host::new().unwrap()), tempfile::tempdir().unwrap());
    let ports = [free_port(), free_port()].map(|port| port.to_string());
    let moex_there = Moex::under_test().on(host.clone());
    let start = || {
        let moex = Moex::under_test().keeping(state.path());
        moex.hub_at(&ports[0], &["--lan", "--https-port", &ports[1]]).unwrap()
    };
    let hub = start();
    let web = from(&host, &hub.started["urls"]);
    let (token, fingerprint) = (hub.started["token"].clone(), hub.started["ca"]["fingerprint"].clone());
    let link = format!("{web}/join#{},ca={}", token.as_str().unwrap(), fingerprint.as_str().unwrap());
    let mut worker = moex_there.worker("worker", &link, &[]).unwrap();
    let before = hub.wait_for_workers(1).await.unwrap();
    let cases = std::fs::read_to_string(crate::data("demo-cases.jsonl")).unwrap();
    let case: Value = serde_json::from_str(cases.lines().next().unwrap()).unwrap();
    assert!(!hub.answer(&case).await.unwrap().is_empty());
    hub.end(Signal::TERM).await.unwrap();

    let hub = start();
    assert_eq!((&hub.started["token"], &hub.started["ca"]["fingerprint"]), (&token, &fingerprint));
    let after = hub.wait_for_workers(1).await.unwrap();
    let id = |status: &Value| workers(status).next().unwrap()["id"].clone();
    assert_eq!(id(&after), id(&before));
    assert!(worker.ended().unwrap().is_none());

    // A worker does not join a hub of another authority at this address, or one without a trusted certificate.
    let wrong = format!("{web}/join#{},ca={}", token.as_str().unwrap(), "00".repeat(32));
    assert_refuses(&host, &[&wrong], "another fingerprint");
    let unknown = format!("{web}/join#{}", token.as_str().unwrap());
    assert_refuses(&host, &[&unknown], "not trusted");
    let file = hub.started["ca"]["certificate"].as_str().unwrap();
    let _by_file = moex_there.worker("worker", &unknown, &["--ca", file]).unwrap();
    hub.wait_for_workers(2).await.unwrap();
}

/// `moex worker` on the host ends with one sentence that contains these words.
fn assert_refuses(host: &Host, args: &[&str], words: &str) {
    let mut command = host.command(&moex());
    let output = command.args(["worker", "--device", "cpu"]).args(args).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().last().unwrap_or_default();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(last.starts_with("moex: ") && last.contains(words), "{said}");
}

#[tokio::test]
async fn an_address_that_comes_while_the_hub_runs_is_in_its_certificate_soon() {
    let state = tempfile::tempdir().unwrap();
    let hub = open(state.path(), &[]);
    let port = from_port(&hub.started["urls"]);
    let file = hub.started["ca"]["certificate"].as_str().unwrap().to_owned();
    let host = Host::new().unwrap();
    let url = format!("https://{}:{port}/reached", host.gateway());
    let soon = tokio::time::timeout(Duration::from_secs(20), async {
        while !curl(&host, &["--cacert", &file, &url]).status.success() {
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    });
    soon.await.expect("the certificate names the new address");
}

#[tokio::test]
async fn a_native_worker_waits_until_the_hubs_certificate_names_a_new_address() {
    let state = tempfile::tempdir().unwrap();
    let hub = open(state.path(), &[]);
    let (port, token) = (from_port(&hub.started["urls"]), hub.started["token"].as_str().unwrap());
    let host = std::sync::Arc::new(Host::new().unwrap());
    // Before the hub looks at its addresses again.
    let web = format!("https://{}:{port}", host.gateway());
    let fingerprint = hub.started["ca"]["fingerprint"].as_str().unwrap();
    let link = format!("{web}/join#{token},ca={fingerprint}");
    let mut worker = Moex::under_test().on(host.clone()).worker("worker", &link, &[]).unwrap();
    let begin = std::time::Instant::now();
    assert_refuses(&host, &[&format!("{web}/join#{token},ca={}", "00".repeat(32))], "another fingerprint");
    assert!(begin.elapsed() < Duration::from_secs(20), "another authority is not waited for");
    hub.wait_for_workers(1).await.unwrap();
    assert!(worker.ended().unwrap().is_none());
}

#[tokio::test]
async fn a_certificate_of_ones_own_is_served_without_lan() {
    let folder = tempfile::tempdir().unwrap();
    let (chain, key) = (folder.path().join("chain.pem"), folder.path().join("key.pem"));
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "2",
        ])
        .args(["-subj", "/CN=own", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout"])
        .arg(&key)
        .arg("-out")
        .arg(&chain)
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    let (chain, key) = (chain.to_str().unwrap(), key.to_str().unwrap());
    let hub = Moex::under_test().hub(&["--tls-cert", chain, "--tls-key", key, "--workers", "1"]).unwrap();
    let url = hub.started["urls"][0].as_str().unwrap();
    let waited = tokio::time::timeout(PATIENCE, async {
        loop {
            let asked = Command::new("curl")
                .args(["-s", "--cacert", chain, &format!("{url}/api/swarm")])
                .output()
                .unwrap();
            let status: Value = serde_json::from_slice(&asked.stdout).unwrap_or_default();
            if workers(&status).any(|worker| worker["state"] == "serving") {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    waited.await.expect("its own worker serves, past the certificate");
    let output = crate::run(&["serve", "--listen", "127.0.0.1:0", "--tls-cert", key, "--tls-key", key]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("key.pem") && said.trim().lines().count() == 1, "{said}");
}

#[tokio::test]
async fn a_worker_without_a_url_finds_the_hub_of_its_network() {
    let (host, state) = (Host::new().unwrap(), tempfile::tempdir().unwrap());
    let hub = open(state.path(), &[]);
    let web = from(&host, &hub.started["urls"]);
    // There is nobody to ask.
    assert_refuses(&host, &[], &web);
    let quiet = Host::new().unwrap();
    quiet.unplug().unwrap();
    assert_refuses(&quiet, &[], "no hub announces itself");
}

/// A port that is free now, on every address.
pub(crate) fn free_port() -> u16 {
    std::net::TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap().local_addr().unwrap().port()
}

fn from_port(urls: &Value) -> u16 {
    urls[0].as_str().unwrap().rsplit(':').next().unwrap().parse().unwrap()
}
