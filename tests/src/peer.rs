//! Scripted workers: they speak the real protocol, hold and compute nothing, and answer as scripted. Liars, which
//! compute the true answer and change it, are in [`crate::liar`].

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use moex_protocol::{
    Answer, AnswerPart, AttemptId, Beat, BlockReport, Compression, Dispatch, ErrorCode, Join, ProductShape,
    Products, Reply, SUBPROTOCOL, SelfTest, Visibility, WeightSync, WireError, WorkerConfig, WorkerEvent,
    WorkerKey, WorkerKind, WorkerSession, limits,
};
use moex_worker::native::{BusyPoll, poll_again};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use crate::liar::{Liar, Lie};

/// The wait before a peer that was thrown out returns.
const RETURN_DELAY: Duration = Duration::from_millis(200);
/// The same as in the native worker.
const READ_BUFFER_BYTES: usize = 16 << 10;
/// The time between two bytes of a message that never ends.
const DRIBBLE: Duration = Duration::from_millis(50);

/// The line that [`Behaviour::Forges`] tries to put into the hub's log.
pub const FORGED_LINE: &str = "2026-11-22T00:00:00Z  INFO all is well";

/// How a peer answers dispatches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Behaviour {
    /// With the true answer, changed.
    Lies(Lie),
    /// Zeros, at once: finite values of the right shape, but wrong.
    Zeros,
    /// With values that are not numbers.
    NotFinite,
    /// Hands the attempt back, then answers it anyway.
    Stale,
    /// With an attempt that another peer was given.
    Foreign,
    /// With a frame whose header announces 4 GiB.
    Overlong,
    /// With a message above the size limit.
    Huge,
    /// With a message that ends in the middle of its last frame.
    Truncated,
    /// With text.
    Text,
    /// With a message whose bytes arrive now and then, and whose last byte never does.
    SlowLoris,
    /// Not at all.
    Mute,
    /// With an ERROR that ends the session, whose text contains line breaks and escapes for a terminal.
    Forges,
    /// It gets no dispatches, since it reports that every block failed to load.
    LoadsNothing,
}

/// A peer's identity and behaviour.
#[derive(Clone, Debug)]
pub struct PeerConfig {
    /// Its id, the same in every session.
    pub key: WorkerKey,
    /// The memory that it reports.
    pub memory_budget_bytes: u64,
    /// The speed that it reports.
    pub teraflops: f32,
    /// How it answers.
    pub behaviour: Behaviour,
    /// Whether it looks for messages before it sleeps.
    pub busy_poll: bool,
    /// Whether it returns under another id after each time that it is thrown out.
    pub renames: bool,
}

impl PeerConfig {
    /// An ordinary worker except for its behaviour: it keeps its key and reports a gibibyte.
    pub fn new(id: u128, behaviour: Behaviour) -> Self {
        Self {
            key: WorkerKey(id),
            memory_budget_bytes: 1 << 30,
            teraflops: 1.0,
            behaviour,
            busy_poll: false,
            renames: false,
        }
    }
}

/// Counts of a peer so far.
#[derive(Debug, Default)]
pub struct PeerCounts {
    /// Attempts that it was given and handled in its behaviour.
    pub answers: AtomicU64,
    /// Connections that the hub ended.
    pub thrown_out: AtomicU64,
}

/// A peer that returns whenever it is thrown out; dropping it ends it.
pub struct Peer {
    counts: Arc<PeerCounts>,
    task: JoinHandle<()>,
}

impl Peer {
    /// Joins.
    pub fn start(join_url: &str, config: PeerConfig) -> Result<Self> {
        let join = JoinAddress::parse(join_url)?;
        let mut config = config;
        let counts = Arc::new(PeerCounts::default());
        let theirs = counts.clone();
        let task = tokio::spawn(async move {
            loop {
                if serve(&join, &config, &theirs, pending()).await.is_ok() {
                    theirs.thrown_out.fetch_add(1, Ordering::Relaxed);
                    if config.renames {
                        config.key.0 += 1 << 64;
                    }
                }
                sleep(RETURN_DELAY).await;
            }
        });
        Ok(Self { counts, task })
    }

    /// The counts so far: attempts answered, and times thrown out.
    pub fn counts(&self) -> [u64; 2] {
        [&self.counts.answers, &self.counts.thrown_out].map(|count| count.load(Ordering::Relaxed))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// How a visit ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// It announces that it leaves, and finishes its work.
    Orderly,
    /// Its socket closes.
    Abrupt,
}

/// Runs one connection of a peer for `stay`.
///
/// # Errors
/// If it cannot connect.
pub async fn visit(join_url: &str, config: &PeerConfig, stay: Duration, end: Departure) -> Result<()> {
    let leave = async {
        sleep(stay).await;
        end
    };
    serve(&JoinAddress::parse(join_url)?, config, &PeerCounts::default(), leave).await
}

/// The parts of a join URL.
struct JoinAddress {
    socket: String,
    token: String,
}

impl JoinAddress {
    fn parse(url: &str) -> Result<Self> {
        let (page, token) = url.split_once('#').context("a join URL carries its token")?;
        let host = page.trim_start_matches("http://").trim_end_matches("/join");
        Ok(Self { socket: format!("ws://{host}/ws"), token: token.to_owned() })
    }
}

/// Drives a session of the real protocol on a real socket, until either end leaves.
async fn serve(
    join: &JoinAddress,
    config: &PeerConfig,
    counts: &PeerCounts,
    leave: impl Future<Output = Departure>,
) -> Result<()> {
    let mut request = join.socket.as_str().into_client_request()?;
    request.headers_mut().insert("Sec-WebSocket-Protocol", SUBPROTOCOL.parse()?);
    let buffers = WebSocketConfig::default().read_buffer_size(READ_BUFFER_BYTES);
    let (socket, _) = tokio_tungstenite::connect_async_with_config(request, Some(buffers), true).await?;
    let started = Instant::now();
    let worker = WorkerConfig { join: introduction(join, config) };
    let mut visit = PeerConnection {
        session: WorkerSession::new(worker, Duration::ZERO),
        socket,
        started,
        behaviour: config.behaviour,
        counts,
        products: None,
        origin: join.socket.trim_end_matches("/ws").replacen("ws://", "http://", 1),
        token: join.token.clone(),
        is_patient: config.key.0 % 2 == 1,
        liar: None,
    };
    let mut leave = std::pin::pin!(leave);
    let mut is_leaving = false;
    let mut busy_poll = BusyPoll::new(config.busy_poll);
    loop {
        if visit.flush().await.is_err() || visit.session.close_code().is_some() {
            return Ok(());
        }
        let deadline = visit.session.poll_timeout().map(|deadline| started + deadline);
        tokio::select! {
            biased;
            () = sleep_until(deadline.unwrap_or(started)), if deadline.is_some() => {
                visit.session.handle_timeout(started.elapsed());
            }
            message = visit.socket.next() => match message {
                Some(Ok(Message::Binary(message))) => {
                    busy_poll.stir();
                    visit.session.handle_message(started.elapsed(), message);
                }
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                _ => return Ok(()),
            },
            departure = &mut leave, if !is_leaving => match departure {
                Departure::Abrupt => return Ok(()),
                Departure::Orderly => {
                    is_leaving = true;
                    let beat = Beat { visibility: Visibility::Leaving, ..Beat::default() };
                    visit.session.report_beat(started.elapsed(), beat);
                }
            },
            () = poll_again(), if busy_poll.is_awake() => {}
        }
    }
}

fn introduction(join: &JoinAddress, config: &PeerConfig) -> Join {
    Join {
        token: join.token.clone(),
        key: config.key,
        name: String::new(),
        kind: WorkerKind::Native,
        build: "scripted".to_owned(),
        adapter: "none".to_owned(),
        backend: "cpu".to_owned(),
        features: Vec::new(),
        limits: BTreeMap::new(),
        memory_budget_bytes: config.memory_budget_bytes,
        self_test: SelfTest { passed: true, worst_nmse: 0.0, detail: String::new() },
        sync_latency_micros: 0,
        gigabytes_per_second: 10.0,
        teraflops: config.teraflops,
        input_slots: 4,
        gives_products: true,
        gives_digests: false,
    }
}

/// One connection.
struct PeerConnection<'a> {
    session: WorkerSession,
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    started: Instant,
    behaviour: Behaviour,
    counts: &'a PeerCounts,
    /// Of the products, once the hub has sent its model.
    products: Option<ProductShape>,
    origin: String,
    token: String,
    is_patient: bool,
    /// For a peer that computes, once it knows the model.
    liar: Option<Liar>,
}

impl PeerConnection<'_> {
    /// Does everything that the session asks for.
    async fn flush(&mut self) -> Result<()> {
        loop {
            while let Some(message) = self.session.poll_transmit() {
                self.socket.send(Message::Binary(message)).await?;
            }
            let now = self.started.elapsed();
            if let Some(event) = self.session.poll_event() {
                match event {
                    WorkerEvent::Accepted(accepted) => {
                        self.products = accepted.model.product_shape();
                        if let Behaviour::Lies(lie) = self.behaviour {
                            let (origin, token) = (self.origin.clone(), self.token.clone());
                            let is_patient = self.is_patient;
                            self.liar = Some(Liar::new(lie, is_patient, origin, token, accepted.model)?);
                        }
                    }
                    WorkerEvent::Sync(sync) => {
                        let report = match (self.behaviour, &mut self.liar) {
                            (Behaviour::LoadsNothing, _) => none_loaded(sync),
                            (_, Some(liar)) => liar.load(sync).await?,
                            (_, None) => all_resident(sync),
                        };
                        self.session.report_blocks(now, report);
                    }
                    _ => {}
                }
            } else if let Some((attempt, dispatch)) = self.session.next_work(now) {
                self.counts.answers.fetch_add(1, Ordering::Relaxed);
                self.answer(now, attempt, &dispatch).await?;
            } else {
                return Ok(());
            }
        }
    }

    async fn answer(&mut self, now: Duration, attempt: AttemptId, dispatch: &Dispatch) -> Result<()> {
        let zeros = answer_of(dispatch, [0x00, 0x00], self.products);
        let message = match self.behaviour {
            Behaviour::Lies(_) => {
                let liar = self.liar.as_mut().context("it knows what is served")?;
                return Ok(self.session.complete(now, attempt, liar.answer(dispatch)?)?);
            }
            Behaviour::Zeros => return Ok(self.session.complete(now, attempt, zeros)?),
            // The first half-precision number that is not finite.
            Behaviour::NotFinite => {
                return Ok(self.session.complete(
                    now,
                    attempt,
                    answer_of(dispatch, [0x00, 0x7E], self.products),
                )?);
            }
            Behaviour::Mute | Behaviour::LoadsNothing => return Ok(()),
            Behaviour::Stale => {
                self.session.fail(now, attempt, ErrorCode::Preempted, "in vain");
                while let Some(message) = self.session.poll_transmit() {
                    self.socket.send(Message::Binary(message)).await?;
                }
                Message::Binary(zeros.encode(attempt, Compression::Off)?)
            }
            Behaviour::Foreign => Message::Binary(zeros.encode(attempt.next(), Compression::Off)?),
            Behaviour::Overlong => {
                let mut message = zeros.encode(attempt, Compression::Off)?.to_vec();
                message[8..12].fill(0xFF);
                Message::Binary(message.into())
            }
            Behaviour::Huge => Message::Binary(vec![0; limits::MAX_MESSAGE_BYTES + 1].into()),
            Behaviour::Truncated => {
                let message = zeros.encode(attempt, Compression::Off)?;
                Message::Binary(message.slice(..message.len() - 1))
            }
            Behaviour::Forges => {
                let message = format!("gone\n{FORGED_LINE}\u{1b}[2J");
                let error = WireError { code: ErrorCode::DeviceLost, message, attempt: None };
                Message::Binary(error.encode(Compression::Off))
            }
            Behaviour::Text => Message::text("here you are"),
            Behaviour::SlowLoris => return self.dribble().await,
        };
        Ok(self.socket.send(message).await?)
    }

    /// Begins a masked binary message of 64 KiB - 1 and sends it byte by byte until the hub ends the connection.
    async fn dribble(&mut self) -> Result<()> {
        let stream = self.socket.get_mut();
        stream.write_all(&[0x82, 0xFE, 0xFF, 0xFF, 0, 0, 0, 0]).await?;
        for byte in b"MoEx".iter().cycle() {
            stream.write_all(&[*byte]).await?;
            sleep(DRIBBLE).await;
        }
        Ok(())
    }
}

/// Reports every requested block as loaded.
fn all_resident(sync: WeightSync) -> BlockReport {
    let bytes = sync.hold.iter().map(|source| source.end - source.start).sum();
    BlockReport {
        epoch: sync.epoch,
        resident: sync.hold.into_iter().map(|source| source.block).collect(),
        failed: Vec::new(),
        bytes_done: bytes,
        bytes_total: bytes,
        bytes_downloaded: 0,
    }
}

/// Reports every requested block as failed.
fn none_loaded(sync: WeightSync) -> BlockReport {
    let failed = sync.hold.into_iter().map(|source| (source.block, "no such file".to_owned()));
    BlockReport { epoch: sync.epoch, failed: failed.collect(), ..BlockReport::default() }
}

/// An answer of the requested shape whose values are all `half`, for half-precision wires.
fn answer_of(dispatch: &Dispatch, half: [u8; 2], products: Option<ProductShape>) -> Answer {
    let shape = dispatch.answer_shape();
    let row_bytes = shape.dtype.row_bytes(usize::from(shape.hidden));
    let parts = shape.parts.into_iter().map(|(expert, rows)| {
        let payload = Bytes::from(half.repeat(rows as usize * row_bytes / 2));
        AnswerPart { expert, rows, payload }
    });
    let parts = parts.collect();
    let products = products.filter(|_| shape.reply == Reply::RowsAndProducts).map(|shape| {
        let payload = vec![0; dispatch.n_pairs() * shape.row_bytes()].into();
        Products { shape, payload }
    });
    Answer { layer: shape.layer, hidden: shape.hidden, dtype: shape.dtype, parts, products }
}
