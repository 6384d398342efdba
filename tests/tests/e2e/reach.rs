//! Who can reach a hub: loopback only unless told, and no worker without the token.

use std::net::{TcpStream, UdpSocket};
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use moex_tests::hub::Hub;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

/// The machine's own address, if it has one beside loopback; no packet is sent to find it.
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
    let join = br#"{"token":"wrong","worker":"000102030405060708090a0b0c0d0e0f","kind":"native","build":"test","adapter":"none","backend":"cpu","features":[],"limits":{},"memory_budget_bytes":1,"self_test":{"passed":true,"worst_nmse":0.0,"detail":""},"sync_latency_micros":0,"gigabytes_per_second":0.0,"teraflops":0.0,"input_slots":1}"#;
    let mut frame = b"MoEx\x01\x00\x04\x00".to_vec();
    frame.extend_from_slice(&u32::try_from(join.len()).unwrap().to_le_bytes());
    frame.extend_from_slice(&[0; 16]);
    frame.extend_from_slice(join);
    socket.send(Message::Binary(frame.into())).await.unwrap();
    let mut heard = Vec::new();
    while let Ok(Some(Ok(message))) = tokio::time::timeout(Duration::from_secs(10), socket.next()).await {
        heard.extend_from_slice(&message.into_data());
    }
    assert!(heard.starts_with(b"MoEx\x01\x00\x06\x00"), "an ERROR frame comes first: {heard:?}");
    assert!(String::from_utf8_lossy(&heard).contains("unauthorized"), "{}", String::from_utf8_lossy(&heard));
}
