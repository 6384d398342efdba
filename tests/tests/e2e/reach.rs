//! Access to a hub: only from loopback by default, and no worker without the token.

use std::collections::BTreeMap;
use std::net::{TcpStream, UdpSocket};
use std::process::Command;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use moex_protocol::{Compression, Heartbeat, Join, SelfTest, WorkerKey, WorkerKind};
use moex_tests::hub::Hub;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

/// The machine's own address, if it has one besides loopback; finding it sends no packet.
fn outer_address() -> Option<std::net::IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    socket.local_addr().ok().map(|address| address.ip()).filter(|ip| !ip.is_loopback())
}

#[tokio::test]
async fn serve_binds_loopback_only() {
    let hub = Hub::start(&[]).unwrap();
    assert!(hub.url.starts_with("http://127.0.0.1:"), "{}", hub.url);
    let port: u16 = hub.url.rsplit(':').next().unwrap().parse().unwrap();
    let Some(address) = outer_address() else {
        eprintln!("SKIPPED: this machine has no address beside loopback to try");
        return;
    };
    let reached = TcpStream::connect_timeout(&(address, port).into(), Duration::from_secs(2));
    assert!(reached.is_err(), "{address}:{port} answers");
}

#[tokio::test]
async fn a_worker_without_the_token_is_unauthorized() {
    let hub = Hub::start(&[]).unwrap();
    let mut request = format!("{}/ws", hub.url.replace("http", "ws")).into_client_request().unwrap();
    request.headers_mut().insert("Sec-WebSocket-Protocol", "moex.v1".parse().unwrap());
    let (mut socket, _) = tokio_tungstenite::connect_async(request).await.unwrap();
    let join = Join { token: "not the token".to_owned(), ..join() };
    let frame = Heartbeat::Join(join).encode(Compression::Off);
    socket.send(Message::Binary(frame)).await.unwrap();
    let mut heard = Vec::new();
    while let Ok(Some(Ok(message))) = tokio::time::timeout(Duration::from_secs(10), socket.next()).await {
        heard.extend_from_slice(&message.into_data());
    }
    assert!(heard.starts_with(b"MoEx\x02\x00\x06\x00"), "an ERROR frame comes first: {heard:?}");
    assert!(String::from_utf8_lossy(&heard).contains("unauthorized"), "{}", String::from_utf8_lossy(&heard));
}

/// A software GPU is not chosen: without a hardware GPU the worker computes on its CPU.
#[tokio::test]
async fn a_native_worker_without_a_gpu_computes_on_its_cpu() {
    let hub = Hub::start(&["--activations", "int8"]).unwrap();
    let mut worker = Command::new(moex_tests::moex())
        .args(["worker", &hub.join_url, "--device", "auto", "--name", "the shelf"])
        .spawn()
        .unwrap();
    let joined = hub.wait_for_workers(1).await;
    worker.kill().unwrap();
    worker.wait().unwrap();
    let worker = &joined.unwrap()["workers"][0];
    assert_eq!((&worker["backend"], &worker["name"]), (&"cpu".into(), &"the shelf".into()));
}

/// A valid worker, except for its token.
fn join() -> Join {
    Join {
        token: String::new(),
        key: WorkerKey(7),
        name: String::new(),
        kind: WorkerKind::Native,
        build: "test".to_owned(),
        adapter: "none".to_owned(),
        backend: "cpu".to_owned(),
        features: Vec::new(),
        limits: BTreeMap::new(),
        memory_budget_bytes: 1 << 20,
        self_test: SelfTest { passed: true, worst_nmse: 0.0, detail: String::new() },
        sync_latency_micros: 0,
        gigabytes_per_second: 0.0,
        teraflops: 0.0,
        input_slots: 1,
        gives_products: true,
        gives_digests: true,
    }
}
