//! Attacks of strangers on a hub with default flags: each is bounded in count and time, and uses loopback.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use moex_protocol::SUBPROTOCOL;
use moex_tests::hub::{Hub, PATIENCE};
use serde_json::{Value, json};

/// A hub of the demo model.
fn hub() -> (Hub, SocketAddr) {
    let hub = Hub::start(&[]).unwrap();
    let address = hub.address().unwrap();
    (hub, address)
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Requests `/ws`; returns the socket and the first line of the answer.
fn open_socket(address: SocketAddr, origin: Option<&str>) -> (TcpStream, String) {
    let mut stream = connect(address);
    let origin = origin.map(|origin| format!("Origin: {origin}\r\n")).unwrap_or_default();
    let request = format!(
        "GET /ws HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\
         Sec-WebSocket-Protocol: {SUBPROTOCOL}\r\n{origin}\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.extend(byte);
    }
    let head = String::from_utf8(head).unwrap();
    (stream, head.lines().next().unwrap().to_owned())
}

/// Sends `chunk` up to `times` times, until the hub takes no more; returns how many were sent.
fn flood(stream: &mut TcpStream, chunk: &[u8], times: usize) -> usize {
    (0..times).take_while(|_| stream.write_all(chunk).is_ok()).count()
}

/// A field of `/proc/PID/status` in KiB.
#[cfg(target_os = "linux")]
fn memory_kib(hub: &Hub, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", hub.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Requests a path over a new connection.
fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = connect(address);
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_page_of_another_site_opens_no_socket() {
    let (_hub, address) = hub();
    let opened = |origin: Option<&str>| open_socket(address, origin).1;
    assert!(opened(None).contains(" 101 "));
    assert!(opened(Some(&format!("http://{address}"))).contains(" 101 "));
    for origin in ["http://evil.example", "https://127.0.0.1", "null"] {
        assert!(opened(Some(origin)).contains(" 403 "), "{origin}");
    }
}

/// Each connection announces a message of 31 MiB and sends up to 24 MiB of it: more than the sockets' buffers hold.
#[cfg(target_os = "linux")]
#[test]
fn strangers_without_a_token_cost_little_memory() {
    const STRANGERS: usize = 40;
    let (hub, address) = hub();
    let before = memory_kib(&hub, "VmRSS");
    let mut sockets: Vec<TcpStream> = (0..STRANGERS).map(|_| open_socket(address, None).0).collect();
    let mut header = vec![0x82, 0xff];
    header.extend((31_u64 << 20).to_be_bytes());
    header.extend([0; 4]);
    for socket in &mut sockets {
        // The hub may close at any moment, as it should.
        let _ = socket.write_all(&header);
        let n_taken = flood(socket, &[0; 64 << 10], 384);
        assert!(n_taken < 384, "the hub took 24 MiB of someone it does not know");
    }
    let grown = memory_kib(&hub, "VmHWM").saturating_sub(before);
    assert!(grown < 32 << 10, "{STRANGERS} strangers cost {grown} KiB");
    assert!(get(address, "/health").contains("\"ok\""));
}

#[test]
fn a_flood_of_pings_ends_the_connection() {
    let (_hub, address) = hub();
    let (mut socket, _) = open_socket(address, None);
    let ping = [0x89, 0x80, 0, 0, 0, 0];
    let begun = Instant::now();
    flood(&mut socket, &ping.repeat(1000), 1000);
    let _ = socket.shutdown(Shutdown::Write);
    let mut pongs = Vec::new();
    match socket.read_to_end(&mut pongs) {
        Ok(_) => {}
        Err(error) => {
            assert!(matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{error}");
        }
    }
    assert!(pongs.len() < 1000, "{} bytes of pongs", pongs.len());
    assert!(begun.elapsed() < PATIENCE / 2);
}

/// More half-requests than the hub has files for: the one that waits longest makes room.
#[cfg(target_os = "linux")]
#[test]
fn half_requests_keep_nobody_out() {
    use rustix::process::{Pid, Resource, Rlimit, prlimit};
    let (hub, address) = hub();
    let few = Rlimit { current: Some(400), maximum: Some(400) };
    // Below the limit at the hub's start: it must cope with that too.
    prlimit(Pid::from_raw(i32::try_from(hub.pid()).unwrap()), Resource::Nofile, few).unwrap();
    let mut held = Vec::new();
    for _ in 0..600 {
        let Ok(mut stream) = TcpStream::connect_timeout(&address, Duration::from_secs(1)) else { break };
        if stream.write_all(b"GET / HTTP/1.1\r\nHost: 127").is_ok() {
            held.push(stream);
        }
    }
    let begun = Instant::now();
    assert!(get(address, "/health").contains("\"ok\""));
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
}

#[test]
fn a_header_without_end_is_refused() {
    let (_hub, address) = hub();
    let mut stream = connect(address);
    stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ").unwrap();
    assert!(flood(&mut stream, &[b'x'; 64 << 10], 256) < 256, "the hub takes 16 MiB of a header");
    assert!(get(address, "/health").contains("\"ok\""));
}

/// Prompts of almost the largest allowed body.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn long_prompts_are_refused_before_they_cost_much() {
    const PROMPTS: usize = 24;
    let (hub, address) = hub();
    let body = json!({"messages": [{"role": "user", "content": "word ".repeat(800_000)}]}).to_string();
    let http = moex_tests::chat::client().unwrap();
    let asked =
        (0..PROMPTS).map(|_| {
            let asked = http.post(format!("http://{address}/v1/chat/completions")).body(body.clone());
            async move {
                asked.header("content-type", "application/json").send().await.unwrap().json::<Value>().await
            }
        });
    for refused in futures_util::future::join_all(asked).await {
        let code = refused.unwrap()["error"]["code"].clone();
        assert!(code == "context_length_exceeded" || code == "queue_full", "{code}");
    }
    let peak = memory_kib(&hub, "VmHWM") >> 10;
    assert!(peak < 700, "{PROMPTS} prompts of 4 MiB took {peak} MiB");
}
