//! The native worker against a hub session behind real sockets.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use moex_protocol::{
    Accepted, AttemptId, Dtype, ErrorCode, Form, HubEvent, HubSession, ModelSummary, SUBPROTOCOL,
    SessionConfig, WeightSync, WorkerKey,
};
use moex_worker::core::Status;
use moex_worker::device::DeviceChoice;
use moex_worker::native::{BusyPoll, HubOptions, Memory, WorkerError, WorkerOptions, run};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server::{Request, Response};

use crate::harness::{SHAPE, World, block_bytes, dispatch, source};

const TOKEN: &str = "token";
const EXPERTS: [u16; 3] = [0, 1, 2];

/// A hub on a port of its own: gives every worker the same blocks, asks one question, hangs up after the answer.
struct Hub {
    url: String,
    shared: Arc<Shared>,
    answers: mpsc::Receiver<WorkerKey>,
}

struct Shared {
    model: ModelSummary,
    answers: mpsc::Sender<WorkerKey>,
    bytes_served: AtomicU64,
    /// Whether the next block is to be cut off halfway.
    cut_off: AtomicBool,
    last_worker: Mutex<WorkerKey>,
    sessions: AtomicU64,
}

impl Hub {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (sender, answers) = mpsc::channel(16);
        let shared = Arc::new(Shared {
            model: World::new(8).model,
            answers: sender,
            bytes_served: AtomicU64::new(0),
            cut_off: AtomicBool::new(false),
            last_worker: Mutex::new(WorkerKey(0)),
            sessions: AtomicU64::new(0),
        });
        let serving = shared.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serving.clone().handle(stream));
            }
        });
        Self { url, shared, answers }
    }

    fn joined_by(&self, token: &str) -> HubOptions {
        let join_url = format!("{}/join#{token}", self.url);
        HubOptions { join_url, memory: Memory::Bytes(8 * SHAPE.block_bytes() as u64) }
    }

    fn options(&self, token: &str) -> WorkerOptions {
        WorkerOptions {
            hubs: vec![self.joined_by(token)],
            free_bytes: None,
            ca: None,
            device: DeviceChoice::Cpu,
            store: None,
            name: String::new(),
            key: None,
            patience: Duration::from_secs(20),
            status: None,
            busy_poll: BusyPoll::default(),
        }
    }

    /// Runs a worker until `n` answers have come; whose they were.
    async fn answers_of(&mut self, options: WorkerOptions, n: usize) -> Vec<WorkerKey> {
        let (stop, stopped) = oneshot::channel::<()>();
        let worker = run(options, async move { drop(stopped.await) });
        let answers = async {
            let mut workers = Vec::new();
            for _ in 0..n {
                let answer = tokio::time::timeout(Duration::from_secs(20), self.answers.recv());
                workers.push(answer.await.expect("an answer in time").unwrap());
            }
            drop(stop);
            workers
        };
        let (ended, workers) = tokio::join!(worker, answers);
        ended.unwrap();
        workers
    }

    fn bytes_served(&self) -> u64 {
        self.shared.bytes_served.load(Ordering::SeqCst)
    }
}

impl Shared {
    async fn handle(self: Arc<Self>, stream: TcpStream) {
        let mut start = [0; 7];
        while stream.peek(&mut start).await.unwrap_or(0) < start.len() {}
        if &start == b"GET /ws" { self.session(stream).await } else { self.file(stream).await }
    }

    /// Answers one range request, as `/shards/layer-01` with three blocks at offset 0.
    async fn file(&self, mut stream: TcpStream) {
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            request.push(stream.read_u8().await.unwrap());
        }
        let request = String::from_utf8(request).unwrap().to_lowercase();
        if request.starts_with("get /api/terms ") {
            let is_refused = request.contains("authorization: bearer wrong\r");
            let status = if is_refused { "401 Unauthorized" } else { "404 Not Found" };
            let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            stream.write_all(answer.as_bytes()).await.unwrap();
            return;
        }
        assert!(request.contains(&format!("authorization: bearer {TOKEN}")), "{request}");
        assert!(request.contains("x-moex-worker: "), "{request}");
        let range = request.split("range: bytes=").nth(1).unwrap().split("\r\n").next().unwrap();
        let (first, last) = range.split_once('-').unwrap();
        let file: Vec<u8> = EXPERTS.into_iter().flat_map(block_bytes).collect();
        let body = &file[first.parse().unwrap()..=last.parse().unwrap()];
        let cut_off = self.cut_off.swap(false, Ordering::SeqCst);
        let sent = if cut_off { &body[..body.len() / 2] } else { body };
        let head = format!("HTTP/1.1 206 Partial Content\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(sent).await.unwrap();
        stream.shutdown().await.unwrap();
        self.bytes_served.fetch_add(sent.len() as u64, Ordering::SeqCst);
    }

    async fn session(&self, stream: TcpStream) {
        self.sessions.fetch_add(1, Ordering::SeqCst);
        #[expect(clippy::result_large_err, reason = "the type of the handshake's callback")]
        let subprotocol = |request: &Request, mut response: Response| {
            assert_eq!(request.headers()["sec-websocket-protocol"], SUBPROTOCOL);
            response.headers_mut().insert("sec-websocket-protocol", SUBPROTOCOL.parse().unwrap());
            Ok(response)
        };
        let mut socket = tokio_tungstenite::accept_hdr_async(stream, subprotocol).await.unwrap();
        let start = Instant::now();
        let mut hub = HubSession::new(SessionConfig::default(), Duration::ZERO);
        let mut resident = 0;
        while let Some(Ok(message)) = socket.next().await {
            let Message::Binary(bytes) = message else { continue };
            hub.handle_message(start.elapsed(), bytes);
            while let Some(event) = hub.poll_event() {
                match event {
                    HubEvent::Joined(join) if join.token == TOKEN => {
                        *self.last_worker.lock().unwrap() = join.key;
                        let accepted = Accepted {
                            session: 1,
                            heartbeat_interval_millis: 1000,
                            dispatch_timeout_millis: 500,
                            model: self.model.clone(),
                            wants_products: false,
                        };
                        hub.accept(start.elapsed(), accepted);
                        hub.sync_weights(start.elapsed(), self.blocks()).unwrap();
                    }
                    HubEvent::Joined(_) => {
                        hub.reject(start.elapsed(), ErrorCode::Unauthorized, "wrong token");
                    }
                    HubEvent::Blocks(report) => {
                        assert!(report.failed.is_empty(), "{report:?}");
                        resident += report.resident.len();
                        if resident == EXPERTS.len() {
                            let dispatch = dispatch(Form::RowsOnce, Dtype::F16, 4, &EXPERTS);
                            hub.dispatch(start.elapsed(), AttemptId(1), &dispatch).unwrap();
                        }
                    }
                    HubEvent::Answered { .. } => {
                        let worker = *self.last_worker.lock().unwrap();
                        self.answers.send(worker).await.unwrap();
                        return;
                    }
                    HubEvent::Failed { error, .. } => panic!("{error:?}"),
                    _ => {}
                }
            }
            while let Some(message) = hub.poll_transmit() {
                socket.send(Message::Binary(message)).await.unwrap();
            }
            if hub.close_code().is_some() {
                return;
            }
        }
    }

    fn blocks(&self) -> WeightSync {
        let size = SHAPE.block_bytes() as u64;
        let place = |(start, expert)| {
            let source = source(expert);
            moex_protocol::BlockSource { start: start * size, end: (start + 1) * size, ..source }
        };
        WeightSync { epoch: 1, hold: (0..).zip(EXPERTS).map(place).collect(), drop: Vec::new() }
    }
}

#[tokio::test]
async fn answers_comes_back_and_downloads_nothing_twice() {
    let mut hub = Hub::start().await;
    hub.shared.cut_off.store(true, Ordering::SeqCst);
    let workers = hub.answers_of(hub.options(TOKEN), 3).await;
    assert_eq!(workers, [workers[0]; 3], "it is the same worker after each lost connection");
    let size = SHAPE.block_bytes() as u64;
    assert_eq!(hub.bytes_served(), 3 * size, "the block cut off halfway was resumed, none was fetched again");
}

#[tokio::test]
async fn a_store_outlives_the_worker() {
    let folder = tempfile::tempdir().unwrap();
    let mut hub = Hub::start().await;
    let options = || WorkerOptions { store: Some(folder.path().to_owned()), ..hub.options(TOKEN) };
    let (first, second) = (options(), options());
    let before = hub.answers_of(first, 1).await;
    let served = hub.bytes_served();
    let after = hub.answers_of(second, 1).await;
    assert_eq!(before, after, "the id is kept beside the blocks");
    assert_eq!(hub.bytes_served(), served, "a new process downloads nothing it has");
}

#[tokio::test]
async fn two_hubs_are_served_and_one_that_never_answers_holds_up_neither() {
    // It accepts connections and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut hubs = [Hub::start().await, Hub::start().await];
    let mut joined: Vec<_> = hubs.iter().map(|hub| hub.joined_by(TOKEN)).collect();
    let join_url = format!("http://{}/join#{TOKEN}", silent.local_addr().unwrap());
    joined.insert(0, HubOptions { join_url, ..joined[0].clone() });
    let options = WorkerOptions { hubs: joined, ..hubs[0].options(TOKEN) };
    let (stop, stopped) = oneshot::channel::<()>();
    let worker = run(options, async move { drop(stopped.await) });
    let begin = Instant::now();
    let answers = async {
        let mut workers = Vec::new();
        for _ in 0..2 {
            for hub in &mut hubs {
                let answer = tokio::time::timeout(Duration::from_secs(20), hub.answers.recv());
                workers.push(answer.await.expect("an answer in time").unwrap());
            }
        }
        drop(stop);
        workers
    };
    let (ended, workers) = tokio::join!(worker, answers);
    ended.unwrap();
    assert_eq!(workers, [workers[0]; 4], "it is the same worker for both");
    assert!(begin.elapsed() < Duration::from_secs(9), "nobody has waited for the silent one");
}

#[tokio::test]
async fn a_hub_that_refuses_the_worker_leaves_it_to_the_others_and_the_last_ones_refusal_ends_it() {
    let mut hub = Hub::start().await;
    let refusing = Hub::start().await;
    for token in ["wrong", "refused in the session"] {
        let hubs = vec![refusing.joined_by(token), hub.joined_by(TOKEN)];
        let options = WorkerOptions { hubs, ..hub.options(TOKEN) };
        hub.answers_of(options, 1).await;
    }
    let hubs = vec![refusing.joined_by("refused in the session"), refusing.joined_by("wrong")];
    let error = run(WorkerOptions { hubs, ..hub.options(TOKEN) }, std::future::pending()).await.unwrap_err();
    assert!(matches!(&error, WorkerError::JoinUrl(said) if said.contains("given twice")), "{error}");
    let other = Hub::start().await;
    let hubs = vec![refusing.joined_by("refused in the session"), other.joined_by("wrong")];
    let error = run(WorkerOptions { hubs, ..hub.options(TOKEN) }, std::future::pending()).await.unwrap_err();
    assert!(matches!(&error, WorkerError::Stopped(said) if said.contains("token")), "{error}");
}

#[tokio::test]
async fn a_wrong_token_is_final() {
    let hub = Hub::start().await;
    let (status, shown) = watch::channel(Vec::<Status>::new());
    let options = WorkerOptions { status: Some(status), ..hub.options("refused in the session") };
    let error = run(options, std::future::pending()).await.unwrap_err();
    assert!(matches!(&error, WorkerError::Stopped(reason) if reason.contains("wrong token")), "{error}");
    assert!(shown.borrow()[0].problem.as_ref().is_some_and(|problem| problem.contains("wrong token")));
}

#[tokio::test]
async fn a_wrong_token_is_noticed_before_the_device_is_tested() {
    let hub = Hub::start().await;
    // Where there is no GPU, opening it would be the error.
    let options = WorkerOptions { device: DeviceChoice::Gpu, ..hub.options("wrong") };
    let error = run(options, std::future::pending()).await.unwrap_err();
    assert!(matches!(&error, WorkerError::Stopped(reason) if reason.contains("token")), "{error}");
    assert_eq!(hub.shared.sessions.load(Ordering::SeqCst), 0, "it did not even connect");
}

#[tokio::test]
async fn without_a_hub_patience_ends() {
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let hub = Hub::start().await;
    let options = WorkerOptions {
        hubs: vec![HubOptions { join_url: format!("http://{nobody}/join#{TOKEN}"), ..hub.joined_by(TOKEN) }],
        patience: Duration::from_millis(300),
        ..hub.options(TOKEN)
    };
    let error = run(options, std::future::pending()).await.unwrap_err();
    assert!(matches!(&error, WorkerError::NoHub { .. }), "{error}");
    assert!(error.to_string().contains(&nobody.to_string()), "{error}");
}
