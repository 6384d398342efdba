//! A scripted Hugging Face hub: it stalls, disconnects, redirects to another host, refuses and sends wrong data.
//!
//! It answers like huggingface.co: a list of files, small files by a relative redirect, large ones by a redirect to
//! another origin. Each [`Misbehaviour`] applies once, or always. The requests are recorded.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256, digest};
use serde_json::json;

/// The commit of every revision.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
/// Its only model.
pub const REPO: &str = "some-owner/Some-Model";
/// How long it is silent in a stall.
const STALL: Duration = Duration::from_secs(60);

/// A request that a trick applies to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HubRequest {
    /// The list of files.
    Files,
    /// The description of this file.
    Describe(&'static str),
    /// This file's bytes.
    Bytes(&'static str),
}

/// What the hub does instead of answering.
#[derive(Clone, Debug)]
pub enum Misbehaviour {
    /// The connection ends after this many bytes of the body.
    CutAt(usize),
    /// The hub stalls after this many bytes of the body.
    StallAt(usize),
    /// All bytes are sent, whatever range was requested.
    IgnoreRange,
    /// The announced length differs from the file's; this many bytes are sent.
    Length(usize),
    /// More bytes are sent than were announced, in a body without a length.
    More,
    /// Wrong bytes are sent, in the right number.
    Wrong,
    /// The answer has this status and these headers.
    Status(u16, &'static [(&'static str, &'static str)]),
    /// The request is redirected to this URL.
    Redirect(String),
}

/// A recorded request.
#[derive(Clone, Debug)]
pub struct RecordedRequest {
    /// `GET`, `HEAD`.
    pub method: String,
    /// Including the part behind `?`.
    pub path: String,
    /// Whether the hub received it, rather than the origin that it redirects to.
    pub by_hub: bool,
    /// The header `Authorization`.
    pub token: Option<String>,
    /// The header `Range`.
    pub range: Option<String>,
}

/// A running hub. Its threads end with the process.
pub struct HfHub {
    /// The value for `HF_ENDPOINT`.
    pub url: String,
    shared: Arc<Shared>,
}

struct Shared {
    files: BTreeMap<String, Vec<u8>>,
    /// Names in the list of files that have no content.
    more_names: Vec<String>,
    /// An origin different from the hub's.
    elsewhere: String,
    tricks: Mutex<Vec<(HubRequest, Misbehaviour, Times)>>,
    asked: Mutex<Vec<RecordedRequest>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Times {
    Once,
    Always,
}

impl HfHub {
    /// Starts a hub with these files. Files of a thousand bytes and more are large.
    pub fn start(files: impl IntoIterator<Item = (String, Vec<u8>)>, more_names: &[&str]) -> Result<Self> {
        let (hub, elsewhere) = (TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?);
        let url = |address: SocketAddr| format!("http://{address}");
        let shared = Arc::new(Shared {
            files: files.into_iter().collect(),
            more_names: more_names.iter().map(|name| (*name).to_owned()).collect(),
            elsewhere: url(elsewhere.local_addr()?),
            tricks: Mutex::default(),
            asked: Mutex::default(),
        });
        let started = Self { url: url(hub.local_addr()?), shared };
        for (listener, by_hub) in [(hub, true), (elsewhere, false)] {
            let shared = started.shared.clone();
            std::thread::spawn(move || {
                for socket in listener.incoming().flatten() {
                    let shared = shared.clone();
                    // The client may hang up at any time.
                    std::thread::spawn(move || drop(shared.answer(socket, by_hub)));
                }
            });
        }
        Ok(started)
    }

    /// Applies a trick once.
    pub fn once(&self, question: HubRequest, trick: Misbehaviour) {
        self.play(question, trick, Times::Once);
    }

    /// Applies a trick to every such request.
    pub fn always(&self, question: HubRequest, trick: Misbehaviour) {
        self.play(question, trick, Times::Always);
    }

    /// The requests so far.
    pub fn asked(&self) -> Vec<RecordedRequest> {
        self.shared.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How many times a file's bytes were sent, even in part.
    pub fn n_sent(&self, file: &str) -> usize {
        let sent = |asked: &&RecordedRequest| {
            asked.method == "GET" && self.shared.bytes_of(&asked.path) == Some(file)
        };
        self.asked().iter().filter(sent).count()
    }

    fn play(&self, question: HubRequest, trick: Misbehaviour, times: Times) {
        self.shared.tricks.lock().unwrap_or_else(PoisonError::into_inner).push((question, trick, times));
    }
}

/// The hub's name for a file's bytes.
pub fn etag(bytes: &[u8]) -> String {
    let hex = |hash: &[u8]| hash.iter().map(|byte| format!("{byte:02x}")).collect();
    if is_large(bytes) {
        return hex(digest(&SHA256, bytes).as_ref());
    }
    let mut git = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
    git.update(format!("blob {}\0", bytes.len()).as_bytes());
    git.update(bytes);
    hex(git.finish().as_ref())
}

fn is_large(bytes: &[u8]) -> bool {
    bytes.len() >= 1000
}

impl Shared {
    fn answer(&self, mut socket: TcpStream, by_hub: bool) -> std::io::Result<()> {
        let mut reader = BufReader::new(socket.try_clone()?);
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let mut words = line.split_whitespace().map(str::to_owned);
        let (Some(method), Some(path)) = (words.next(), words.next()) else { return Ok(()) };
        let mut asked = RecordedRequest { method, path, by_hub, token: None, range: None };
        loop {
            let mut header = String::new();
            reader.read_line(&mut header)?;
            let Some((name, value)) = header.trim_end().split_once(": ") else { break };
            match name.to_ascii_lowercase().as_str() {
                "authorization" => asked.token = Some(value.to_owned()),
                "range" => asked.range = Some(value.to_owned()),
                _ => {}
            }
        }
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).push(asked.clone());
        self.reply(&mut socket, &asked)
    }

    fn reply(&self, socket: &mut TcpStream, asked: &RecordedRequest) -> std::io::Result<()> {
        let path = asked.path.as_str();
        if path.starts_with(&format!("/api/models/{REPO}/revision/")) && asked.by_hub {
            if let Some(trick) = self.trick(|question| *question == HubRequest::Files) {
                return self.play(socket, trick, b"", 0);
            }
            let names = self.files.keys().chain(&self.more_names);
            let siblings: Vec<_> = names.map(|name| json!({ "rfilename": name })).collect();
            let body = json!({ "id": REPO, "sha": COMMIT, "siblings": siblings }).to_string();
            return send(socket, 200, &[("Content-Length", &body.len().to_string())], body.as_bytes());
        }
        let file = |revision: &str| path.strip_prefix(&format!("/{REPO}/resolve/{revision}/"));
        if let Some(file) = file(COMMIT).or_else(|| file("main")).filter(|_| asked.by_hub) {
            return self.resolve(socket, asked, file);
        }
        let Some(file) = self.bytes_of(path) else { return send(socket, 404, &[], b"") };
        let bytes = &self.files[file];
        let etag = format!("\"{}\"", etag(bytes));
        let start = asked.range.as_deref().and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-'));
        let start = start.and_then(|start| start.parse().ok()).unwrap_or(0);
        let is_asked = |question: &HubRequest| match question {
            HubRequest::Describe(name) => asked.method == "HEAD" && *name == file,
            HubRequest::Bytes(name) => asked.method == "GET" && *name == file,
            HubRequest::Files => false,
        };
        if let Some(trick) = self.trick(is_asked) {
            return self.play(socket, trick, bytes, start);
        }
        let length = (bytes.len() - start.min(bytes.len())).to_string();
        let mut headers =
            vec![("ETag", etag.as_str()), ("X-Repo-Commit", COMMIT), ("Content-Length", &length)];
        if asked.method == "HEAD" {
            return send(socket, 200, &headers, b"");
        }
        let range = range(start, bytes);
        match start {
            0 => send(socket, 200, &headers, bytes),
            _ => {
                headers.push(("Content-Range", &range));
                send(socket, 206, &headers, &bytes[start..])
            }
        }
    }

    /// Redirects to a file; for a large one, also describes it.
    fn resolve(&self, socket: &mut TcpStream, asked: &RecordedRequest, file: &str) -> std::io::Result<()> {
        let Some(bytes) = self.files.get(file) else {
            return send(socket, 404, &[("X-Error-Code", "EntryNotFound")], b"");
        };
        if !is_large(bytes) {
            let location = format!("/api/resolve-cache/models/{REPO}/{COMMIT}/{file}?etag=%22x%22");
            return send(socket, 307, &[("Location", &location), ("X-Repo-Commit", COMMIT)], b"");
        }
        if asked.method == "HEAD"
            && let Some(trick) =
                self.trick(|question| matches!(question, HubRequest::Describe(name) if *name == file))
        {
            return self.play(socket, trick, bytes, 0);
        }
        let (etag, size) = (format!("\"{}\"", etag(bytes)), bytes.len().to_string());
        let location = format!("{}/large/{file}?signature=secret", self.elsewhere);
        let headers = [
            ("Location", location.as_str()),
            ("X-Repo-Commit", COMMIT),
            ("X-Linked-Etag", &etag),
            ("X-Linked-Size", &size),
            ("ETag", "\"of-the-redirect\""),
        ];
        send(socket, 302, &headers, b"")
    }

    /// The file whose bytes are at a path.
    fn bytes_of(&self, path: &str) -> Option<&str> {
        let path = path.split('?').next()?;
        let file = path
            .strip_prefix("/large/")
            .or_else(|| path.strip_prefix(&format!("/api/resolve-cache/models/{REPO}/{COMMIT}/")))?;
        self.files.get_key_value(file).map(|(name, _)| name.as_str())
    }

    fn trick(&self, is_asked: impl Fn(&HubRequest) -> bool) -> Option<Misbehaviour> {
        let mut tricks = self.tricks.lock().unwrap_or_else(PoisonError::into_inner);
        let at = tricks.iter().position(|(question, ..)| is_asked(question))?;
        if tricks[at].2 == Times::Once {
            return Some(tricks.remove(at).1);
        }
        Some(tricks[at].1.clone())
    }

    fn play(
        &self,
        socket: &mut TcpStream,
        trick: Misbehaviour,
        bytes: &[u8],
        start: usize,
    ) -> std::io::Result<()> {
        let rest = &bytes[start.min(bytes.len())..];
        let (length, range) = (rest.len().to_string(), range(start, bytes));
        let headers = [("Content-Length", length.as_str()), ("Content-Range", &range)];
        let (status, headers) = if start > 0 { (206, &headers[..]) } else { (200, &headers[..1]) };
        match trick {
            Misbehaviour::CutAt(n) => send(socket, status, headers, &rest[..n.min(rest.len())]),
            Misbehaviour::StallAt(n) => {
                send(socket, status, headers, &rest[..n.min(rest.len())])?;
                std::thread::sleep(STALL);
                Ok(())
            }
            Misbehaviour::IgnoreRange => {
                send(socket, 200, &[("Content-Length", &bytes.len().to_string())], bytes)
            }
            Misbehaviour::Length(n) => {
                let body: Vec<u8> = bytes.iter().copied().chain(std::iter::repeat(0)).take(n).collect();
                send(socket, 200, &[("Content-Length", &n.to_string())], &body)
            }
            Misbehaviour::More => send(socket, status, &[], &[rest, &[0; 1 << 20]].concat()),
            Misbehaviour::Wrong => {
                let wrong: Vec<u8> = rest.iter().map(|byte| !byte).collect();
                send(socket, status, headers, &wrong)
            }
            Misbehaviour::Status(status, headers) => send(socket, status, headers, b""),
            Misbehaviour::Redirect(location) => send(socket, 302, &[("Location", &location)], b""),
        }
    }
}

fn range(start: usize, bytes: &[u8]) -> String {
    format!("bytes {start}-{}/{}", bytes.len().saturating_sub(1), bytes.len())
}

fn send(socket: &mut TcpStream, status: u16, headers: &[(&str, &str)], body: &[u8]) -> std::io::Result<()> {
    let mut head = format!("HTTP/1.1 {status} Said\r\nConnection: close\r\n");
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    socket.write_all(format!("{head}\r\n").as_bytes())?;
    socket.write_all(body)?;
    socket.flush()
}
