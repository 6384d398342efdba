//! A hub on a loopback port, real HTTP and WebSocket clients, and native workers.

mod checked;
mod liars;
mod served;
mod strangers;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use futures_util::{SinkExt, StreamExt};
use moex_kernels::WeightFormat;
use moex_protocol::{
    Block, Compression, Dtype, ErrorCode, ExpertId, Frame, Heartbeat, Join, LayerId, ModelSummary,
    SUBPROTOCOL, SelfTest, WorkerId, WorkerKey, WorkerKind, decode_message,
};
use moex_worker::device::DeviceChoice;
use moex_worker::native::{self, BusyPoll, HubOptions, Memory, WorkerOptions};
use reqwest::header;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};
use tokio_tungstenite::tungstenite::{self, Message};

use super::accept::serve_forever;
use super::*;
use crate::shards::tests::tiny;
use crate::shards::{ModelExperts, ShardStore};
use moex_model::local_experts::LocalExperts;
use moex_model::{Checkpoint, Experts, Model, Packing, Routing};
use moex_swarm::{JoinToken, SwarmConfig, SwarmStatus};

const TOKEN: &str = "a-token-of-some-length";
const HIDDEN: usize = 64;

struct Running {
    server: SwarmServer,
    store: Arc<ShardStore>,
    address: SocketAddr,
    _folder: tempfile::TempDir,
}

/// A hub of the tiny model in int4 on a free port.
async fn start(edit: impl FnOnce(&mut SwarmConfig)) -> Running {
    start_packed(&tiny(), Packing::To(WeightFormat::Int4G128.into()), edit).await
}

/// A hub of a model of the tiny one's sizes.
async fn start_packed(
    source: &ModelExperts,
    packing: Packing,
    edit: impl FnOnce(&mut SwarmConfig),
) -> Running {
    start_computing(source, packing, |store| store, edit).await
}

/// A hub whose store is made to compute in some way.
async fn start_computing(
    source: &ModelExperts,
    packing: Packing,
    computing: impl FnOnce(ShardStore) -> ShardStore,
    edit: impl FnOnce(&mut SwarmConfig),
) -> Running {
    let folder = tempfile::tempdir().unwrap();
    let store = ShardStore::open(folder.path(), source, packing, &|_, _| {}).unwrap();
    let store = Arc::new(computing(store));
    let format_of = |layer| store.shape(LayerId(layer)).unwrap().format.to_string();
    let model = ModelSummary {
        name: "tiny".to_owned(),
        hidden: HIDDEN as u32,
        inner: 32,
        n_layers: 2,
        n_experts: 8,
        n_experts_per_token: 2,
        format: format_of(0),
        layer_formats: if format_of(0) == format_of(1) {
            Vec::new()
        } else {
            vec![format_of(0), format_of(1)]
        },
        activations: "f32".to_owned(),
        block_bytes: store.block_bytes() as u64,
        max_rows: 32,
        max_pairs: 64,
    };
    let mut config = SwarmConfig::new(JoinToken::new(TOKEN), model);
    edit(&mut config);
    let server = SwarmServer::start(config, store.clone()).unwrap();
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    tokio::spawn(serve_forever(socket, server.router()));
    Running { server, store, address, _folder: folder }
}

/// A worker; it is cut off when this is dropped.
#[must_use]
struct Joined(#[expect(dead_code, reason = "the worker waits for its end")] oneshot::Sender<()>);

impl Running {
    /// A native worker on the CPU that serves until the test ends.
    fn join(&self, id: u128) -> Joined {
        let options = WorkerOptions {
            hubs: vec![HubOptions {
                join_url: format!("http://{}/join#{TOKEN}", self.address),
                memory: Memory::Bytes(1 << 30),
            }],
            free_bytes: None,
            ca: None,
            device: DeviceChoice::Cpu,
            store: None,
            name: String::new(),
            key: Some(WorkerKey(id)),
            patience: Duration::from_secs(60),
            status: None,
            busy_poll: BusyPoll::default(),
        };
        let (gone, is_gone) = oneshot::channel::<()>();
        // A worker's future stays on its thread: a GPU's error scopes do.
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                tokio::select! {
                    ended = native::run(options, std::future::pending()) => ended.unwrap(),
                    _ = is_gone => {}
                }
            });
        });
        Joined(gone)
    }

    async fn wait_until(&self, what: &str, holds: impl Fn(&SwarmStatus) -> bool) {
        for _ in 0..3_000 {
            if holds(&self.server.handle().status().await) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("{what} within a minute: {:?}", self.server.handle().status().await);
    }

    /// The layer on the swarm, and what one machine makes of it, as bits.
    async fn apply(&self, seed: u32) -> [Vec<u32>; 2] {
        self.apply_layer(1, seed).await
    }

    async fn apply_layer(&self, at: usize, seed: u32) -> [Vec<u32>; 2] {
        let (mut swarm, store) = (SwarmExperts::new(self.server.handle()), self.store.clone());
        tokio::task::spawn_blocking(move || {
            let (rows, routing) = layer(seed);
            let mut alone = LocalExperts::exact(store, Dtype::F16);
            [swarm.apply(at, &rows, &routing), alone.apply(at, &rows, &routing)]
                .map(|sum| sum.unwrap().into_iter().map(f32::to_bits).collect())
        })
        .await
        .unwrap()
    }

    async fn get(&self, path: &str, headers: &[(&str, &str)]) -> reqwest::Response {
        native::install_crypto();
        let mut request = reqwest::Client::new().get(format!("http://{}{path}", self.address));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.send().await.unwrap()
    }
}

/// Seven rows, two experts each.
fn layer(seed: u32) -> (Vec<f32>, Routing) {
    let noise =
        |i: u32| (i.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 8) as f32 / (1 << 23) as f32 - 1.0;
    let rows = (0..7 * HIDDEN as u32).map(noise).collect();
    let experts = (0..7u16).flat_map(|row| [(row + seed as u16) % 8, (row + seed as u16 + 3) % 8]).collect();
    (rows, Routing { k: 2, experts, gates: [0.625, 0.375].repeat(7) })
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_and_the_hub_alone_give_the_same_bits() {
    let running = start(|config| config.timeout = Duration::from_secs(20)).await;
    let [alone_on_hub, alone] = running.apply(1).await;
    assert_eq!(alone_on_hub, alone, "no worker");

    let worker = running.join(1);
    let _other = running.join(2);
    running
        .wait_until("two workers hold everything twice", |status| {
            status.workers.iter().map(|worker| worker.blocks_resident).sum::<usize>() == 32
        })
        .await;
    // New workers are tried beside the hub until it is known how fast they answer.
    let rows = |status: &SwarmStatus| status.workers.iter().map(|worker| worker.rows).sum::<u64>();
    let (mut before, mut after) =
        (running.server.handle().status().await, running.server.handle().status().await);
    for _ in 0..1_000 {
        let [with_two, alone] = running.apply(2).await;
        assert_eq!(with_two, alone, "two workers");
        (before, after) = (after, running.server.handle().status().await);
        if after.totals.hub_computed == before.totals.hub_computed {
            break;
        }
    }
    assert_eq!(after.totals.hub_computed, before.totals.hub_computed, "by the workers alone: {after:?}");
    assert_eq!(rows(&after) - rows(&before), 14);
    let status = after;
    let block_bytes = running.store.block_bytes() as u64;
    assert_eq!(status.weights_served_bytes, 32 * block_bytes);
    assert!(status.workers.iter().all(|worker| worker.weights_served_bytes == 16 * block_bytes));

    drop(worker);
    running.wait_until("one worker is left", |status| status.workers.len() == 1).await;
    let [with_one, alone] = running.apply(3).await;
    assert_eq!(with_one, alone, "one worker");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_holds_layers_of_several_formats() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/tiny-mixed.gguf");
    let checkpoint = Checkpoint::open(Path::new(path)).unwrap();
    let source = ModelExperts::new("mixed", Arc::new(Model::load(&checkpoint).unwrap()));
    let running = start_packed(&source, Packing::Native, |config| {
        config.timeout = Duration::from_secs(20);
        config.hub_compute = false;
    })
    .await;
    let _worker = running.join(1);
    running
        .wait_until("a worker holds everything", |status| {
            status.workers.iter().map(|worker| worker.blocks_resident).sum::<usize>() == 16
        })
        .await;
    for layer in [0, 1] {
        let [by_worker, alone] = running.apply_layer(layer, 5).await;
        assert_eq!(by_worker, alone, "layer {layer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_layer_that_nobody_may_compute_fails_in_time_and_in_words() {
    let running = start(|config| {
        config.hub_compute = false;
        config.coverage_wait = Duration::from_millis(200);
    })
    .await;
    let mut swarm = SwarmExperts::new(running.server.handle());
    let result = tokio::task::spawn_blocking(move || {
        let (rows, routing) = layer(0);
        swarm.apply(0, &rows, &routing)
    });
    let error = result.await.unwrap().unwrap_err().to_string();
    assert!(error.contains("layer 0 expert 0") && error.contains("add workers"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_the_end_layers_fail_and_sockets_are_closed() {
    let running = start(|_| {}).await;
    let mut socket = connect(&running, true).await.unwrap();
    running.server.shut_down().await;
    let closed = tokio::time::timeout(Duration::from_secs(10), async {
        while let Some(Ok(message)) = socket.next().await {
            if message.is_close() {
                return;
            }
        }
    });
    closed.await.expect("the socket is closed");
    let mut swarm = SwarmExperts::new(running.server.handle());
    let result = tokio::task::spawn_blocking(move || {
        let (rows, routing) = layer(0);
        swarm.apply(0, &rows, &routing)
    });
    assert!(result.await.unwrap().unwrap_err().to_string().contains("shutting down"));
}

type Socket = tokio_tungstenite::WebSocketStream<tokio_tungstenite::MaybeTlsStream<TcpStream>>;

async fn connect(running: &Running, with_subprotocol: bool) -> Result<Socket, Box<tungstenite::Error>> {
    connect_to(running.address, with_subprotocol).await
}

async fn connect_to(hub: SocketAddr, with_subprotocol: bool) -> Result<Socket, Box<tungstenite::Error>> {
    let mut request = format!("ws://{hub}/ws").into_client_request().unwrap();
    if with_subprotocol {
        request.headers_mut().insert(header::SEC_WEBSOCKET_PROTOCOL, SUBPROTOCOL.parse().unwrap());
    }
    tokio_tungstenite::connect_async(request).await.map(|(socket, _)| socket).map_err(Box::new)
}

/// All that the hub says until it closes, and the code it closes with.
async fn read_to_close(mut socket: Socket) -> (Vec<Frame>, Option<u16>) {
    let mut frames = Vec::new();
    let read = async {
        while let Some(Ok(message)) = socket.next().await {
            match message {
                Message::Binary(message) => frames.extend(decode_message(&message).unwrap()),
                Message::Close(frame) => return frame.map(|frame| frame.code.into()),
                _ => {}
            }
        }
        None
    };
    let code = tokio::time::timeout(Duration::from_secs(20), read).await.expect("the hub closes");
    (frames, code)
}

fn join(token: &str) -> Message {
    Message::Binary(Heartbeat::Join(introduction(token)).encode(Compression::Off))
}

fn introduction(token: &str) -> Join {
    Join {
        token: token.to_owned(),
        key: WorkerKey(7),
        name: String::new(),
        kind: WorkerKind::Native,
        build: String::new(),
        adapter: "test".to_owned(),
        backend: "cpu".to_owned(),
        features: Vec::new(),
        limits: Default::default(),
        memory_budget_bytes: 1 << 30,
        self_test: SelfTest { passed: true, worst_nmse: 0.0, detail: String::new() },
        sync_latency_micros: 0,
        gigabytes_per_second: 1.0,
        teraflops: 1.0,
        input_slots: 1,
        gives_products: true,
        gives_digests: true,
    }
}

fn error_code(frames: &[Frame]) -> Option<ErrorCode> {
    frames.iter().find_map(|frame| match frame {
        Frame::Error(error) => Some(error.code),
        _ => None,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_token_a_socket_gets_unauthorized_and_no_weights() {
    let running = start(|_| {}).await;
    let mut socket = connect(&running, true).await.unwrap();
    socket.send(join("guess")).await.unwrap();
    let (frames, code) = read_to_close(socket).await;
    assert_eq!((error_code(&frames), code), (Some(ErrorCode::Unauthorized), Some(1008)));

    for headers in [&[][..], &[("authorization", "Bearer guess")], &[("authorization", TOKEN)]] {
        let response = running.get("/shards/layer-00.safetensors", headers).await;
        assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
    }
    assert_eq!(running.server.handle().status().await.weights_served_bytes, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_moex_is_turned_away() {
    let running = start(|_| {}).await;
    let Err(error) = connect(&running, false).await else { panic!("no subprotocol, and yet a socket") };
    assert!(matches!(*error, tungstenite::Error::Http(response) if response.status() == 400));

    let mut socket = connect(&running, true).await.unwrap();
    socket.send(Message::text("hello")).await.unwrap();
    assert_eq!(read_to_close(socket).await.1, Some(1003));

    let mut socket = connect(&running, true).await.unwrap();
    socket.send(Message::binary(&b"MoEy and then something that is long enough"[..])).await.unwrap();
    let (frames, code) = read_to_close(socket).await;
    assert_eq!((error_code(&frames), code), (Some(ErrorCode::BadFrame), Some(1002)));
}

/// A worker's socket behind TLS crosses to the swarm's thread with all that TLS has buffered.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_behind_tls_joins_and_is_told_what_to_hold() {
    let Running { server, store: _store, address: _, _folder } = start(|_| {}).await;
    let key = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let certificate = key.cert.der().clone();
    let tls = rustls::ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key.signing_key.serialize_der().try_into().unwrap())
        .unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate).unwrap();
    let client = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = tcp.local_addr().unwrap();
    let (_stop, stopping) = tokio::sync::watch::channel(false);
    let tls = Some(tokio_rustls::TlsAcceptor::from(Arc::new(tls)));
    let on = AcceptOn { tcp, tls, answer: call(server.router()) };
    tokio::spawn(accept(on, ConnectionLimit::new(16), stopping));

    let tcp = TcpStream::connect(address).await.unwrap();
    let name = "localhost".try_into().unwrap();
    let stream = tokio_rustls::TlsConnector::from(Arc::new(client)).connect(name, tcp).await.unwrap();
    let mut request = format!("wss://localhost:{}/ws", address.port()).into_client_request().unwrap();
    request.headers_mut().insert(header::SEC_WEBSOCKET_PROTOCOL, SUBPROTOCOL.parse().unwrap());
    let (mut socket, _) = tokio_tungstenite::client_async(request, stream).await.unwrap();
    socket.send(join(TOKEN)).await.unwrap();
    let told = async {
        let mut frames = Vec::new();
        while !frames.iter().any(|frame| matches!(frame, Frame::WeightSync(_))) {
            let message = socket.next().await.unwrap().unwrap();
            frames.extend(decode_message(&message.into_data()).unwrap());
        }
    };
    tokio::time::timeout(Duration::from_secs(20), told).await.expect("it is told what to hold");
    assert_eq!(server.handle().status().await.workers.len(), 1);
}

/// Whoever watches is answered while the swarm is at work.
#[tokio::test(flavor = "multi_thread")]
async fn readiness_waits_for_nobody() {
    let running = start(|_| {}).await;
    let mut socket = connect(&running, true).await.unwrap();
    socket.send(join(TOKEN)).await.unwrap();
    running.wait_until("it has joined", |status| status.workers.len() == 1).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let _at_work = running.server.hold_driver().await;
    assert_eq!(running.server.handle().readiness().workers, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_never_answers_is_let_go_and_the_layer_still_comes() {
    let running = start(|_| {}).await;
    let mut socket = connect(&running, true).await.unwrap();
    socket.send(join(TOKEN)).await.unwrap();
    running.wait_until("it has joined", |status| status.workers.len() == 1).await;
    let [sum, alone] = running.apply(5).await;
    assert_eq!(sum, alone);
    // It never answers a ping.
    running.wait_until("it is let go", |status| status.workers.is_empty()).await;
}

#[test]
fn a_local_swarm_whose_workers_end_says_what_they_said() {
    let folder = tempfile::tempdir().unwrap();
    let store =
        ShardStore::open(folder.path(), &tiny(), Packing::To(WeightFormat::Int4G128.into()), &|_, _| {})
            .unwrap();
    let model = ModelSummary { hidden: 64, inner: 32, max_rows: 8, max_pairs: 16, ..ModelSummary::default() };
    let config = LocalSwarmConfig {
        n_workers: 2,
        swarm: SwarmConfig::new(JoinToken::new(TOKEN), model),
        // Takes the arguments of a worker for files to list.
        busy_poll: BusyPoll::default(),
        program: Some("ls".into()),
        coverage_deadline: Duration::from_secs(30),
    };
    let Err(error) = LocalSwarm::start(config, Arc::new(store)) else { panic!("`ls` is no worker") };
    assert!(error.to_string().starts_with("a worker ended with"), "{error}");
}
