//! `cargo xtask bench compression`: measures LZ4 on real messages in each row format: the ratio, the cost, and the link
//! rate below which it pays.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use comfy_table::Table;
use futures_util::{SinkExt, StreamExt};
use moex_protocol::{Compression, Frame, SUBPROTOCOL, decode_message};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::handshake::server::{Request, Response};
use tokio_tungstenite::tungstenite::protocol::Message;

use super::generate;
use crate::hub::{Hub, Moex};

/// The command's arguments.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The formats of rows; the table has a row for each.
    #[arg(long, value_delimiter = ',', default_value = "f16,bf16,int8")]
    wire: Vec<String>,
    /// Tokens to generate.
    #[arg(long, default_value_t = 200)]
    tokens: u32,
    /// A checkpoint; without it, the demo model.
    #[arg(long)]
    model: Option<String>,
}

/// The tensor messages of one direction.
type Messages = Arc<Mutex<Vec<Bytes>>>;

/// Prints the compression of messages.
pub(super) async fn run(moex: &Moex, args: &Args) -> Result<()> {
    let mut table = Table::new();
    table.set_header([
        "wire",
        "direction",
        "messages",
        "bytes each",
        "ratio",
        "best of 100",
        "pack MB/s",
        "unpack MB/s",
        "pays below",
    ]);
    for wire in &args.wire {
        let [rows, results] = record(moex, args, wire).await.with_context(|| format!("rows in {wire}"))?;
        for (direction, messages) in [("rows to workers", rows), ("results", results)] {
            let messages = std::mem::take(&mut *messages.lock().expect("nobody panics with it"));
            table.add_row(measure(wire, direction, &messages)?);
        }
    }
    println!("{table}");
    Ok(())
}

/// The messages between a hub and its only worker while it generates.
async fn record(moex: &Moex, args: &Args, wire: &str) -> Result<[Messages; 2]> {
    // Repeated copies of messages would count twice.
    let mut serve = vec!["--no-hub-compute", "--hedge", "1", "--wire", wire, "--compress", "off"];
    serve.extend(args.model.iter().flat_map(|model| ["--model", model]));
    let hub = moex.hub(&serve)?;
    let messages = [Messages::default(), Messages::default()];
    let relay = relay(&hub, messages.clone()).await?;
    let _worker = moex.worker("worker", &hub.join_url_by(relay)?, &[])?;
    hub.wait_for_workers(1).await?;
    messages.iter().for_each(|seen| seen.lock().expect("nobody panics with it").clear());
    let (n_tokens, _) = generate(&hub, args.tokens).await?;
    ensure!(n_tokens > 1, "the model says nothing");
    Ok(messages)
}

/// Relays everything between workers and the hub, and keeps a copy of the tensor messages in both directions.
async fn relay(hub: &Hub, messages: [Messages; 2]) -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let (address, hub) = (listener.local_addr()?, hub.address()?);
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let messages = messages.clone();
            tokio::spawn(async move {
                let mut start = [0; 7];
                while client.peek(&mut start).await? < start.len() {}
                if &start == b"GET /ws" {
                    return relay_socket(client, hub, &messages).await;
                }
                copy_bidirectional(&mut client, &mut TcpStream::connect(hub).await?).await?;
                anyhow::Ok(())
            });
        }
    });
    Ok(address)
}

async fn relay_socket(client: TcpStream, hub: SocketAddr, [to_worker, to_hub]: &[Messages; 2]) -> Result<()> {
    #[expect(
        clippy::result_large_err,
        clippy::unnecessary_wraps,
        reason = "the callback's shape is the crate's"
    )]
    fn agree(
        _: &Request,
        mut response: Response,
    ) -> Result<Response, tokio_tungstenite::tungstenite::handshake::server::ErrorResponse> {
        let subprotocol = SUBPROTOCOL.parse().expect("it is a header's text");
        response.headers_mut().insert("Sec-WebSocket-Protocol", subprotocol);
        Ok(response)
    }
    let mut worker = tokio_tungstenite::accept_hdr_async(client, agree).await?;
    let mut request = format!("ws://{hub}/ws").into_client_request()?;
    request.headers_mut().insert("Sec-WebSocket-Protocol", SUBPROTOCOL.parse()?);
    let (mut hub, _) = tokio_tungstenite::connect_async(request).await?;
    loop {
        tokio::select! {
            Some(message) = hub.next() => {
                let message = message?;
                keep(&message, to_worker);
                worker.send(message).await?;
            }
            Some(message) = worker.next() => {
                let message = message?;
                keep(&message, to_hub);
                hub.send(message).await?;
            }
            else => return Ok(()),
        }
    }
}

fn keep(message: &Message, messages: &Messages) {
    let Message::Binary(bytes) = message else { return };
    let frames = decode_message(bytes).unwrap_or_default();
    if frames.iter().any(|frame| matches!(frame, Frame::Dispatch(..) | Frame::Result(..))) {
        messages.lock().expect("nobody panics with it").push(bytes.clone());
    }
}

/// A row of the table.
fn measure(wire: &str, direction: &str, messages: &[Bytes]) -> Result<[String; 9]> {
    ensure!(!messages.is_empty(), "nothing was sent");
    let encode = |compression| {
        let encode = |frame: &Frame| match frame {
            Frame::Dispatch(attempt, dispatch) => Ok(dispatch.encode(*attempt, compression)?),
            Frame::Result(attempt, answer) => Ok(answer.encode(*attempt, compression)?),
            _ => Ok(Bytes::new()),
        };
        let frames = messages.iter().flat_map(|message| decode_message(message).unwrap_or_default());
        let frames: Vec<Frame> = frames.collect();
        let begin = Instant::now();
        let encoded = frames.iter().map(encode).collect::<Result<Vec<Bytes>>>()?;
        anyhow::Ok((encoded, begin.elapsed().as_secs_f64()))
    };
    let decode = |messages: &[Bytes]| {
        let begin = Instant::now();
        let n: usize =
            messages.iter().filter_map(|message| decode_message(message).ok()).map(|f| f.len()).sum();
        std::hint::black_box(n);
        begin.elapsed().as_secs_f64()
    };
    let (plain, plain_seconds) = encode(Compression::Off)?;
    let (packed, packed_seconds) = encode(Compression::Lz4)?;
    let (plain_read, packed_read) = (decode(&plain), decode(&packed));
    let size = |messages: &[Bytes]| messages.iter().map(Bytes::len).sum::<usize>() as f64;
    let (bytes, ratio) = (size(&plain), size(&plain) / size(&packed));
    let mut ratios: Vec<f64> =
        plain.iter().zip(&packed).map(|(plain, packed)| plain.len() as f64 / packed.len() as f64).collect();
    ratios.sort_by(f64::total_cmp);
    // The cost of compression beyond the work that is done anyway.
    let (pack, unpack) = ((packed_seconds - plain_seconds).max(1e-9), (packed_read - plain_read).max(1e-9));
    let shrinks = ratio >= 1.0005;
    let pays_below = (bytes - size(&packed)) / (pack + unpack);
    Ok([
        wire.to_owned(),
        direction.to_owned(),
        plain.len().to_string(),
        format!("{:.0}", bytes / plain.len() as f64),
        format!("{ratio:.3}"),
        format!("{:.3}", ratios[ratios.len() * 99 / 100]),
        format!("{:.0}", bytes / pack / 1e6),
        if shrinks { format!("{:.0}", bytes / unpack / 1e6) } else { "-".to_owned() },
        if shrinks { format!("{:.1} Mbit/s", pays_below * 8.0 / 1e6) } else { "never".to_owned() },
    ])
}
