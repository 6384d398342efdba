//! Downloads that never come to an end: how long they are tried. The rest is tested from outside, with the command.

use std::{sync::Arc, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use super::{Progress, PullError, Settings, fetch::Fetch};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
/// Of its 4,000,000 bytes this many come in each answer.
const PIECE: usize = 1 << 20;

/// A hub whose one file breaks off after `piece` bytes, each time.
async fn hub(piece: usize) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let mut request = vec![0; 4096];
            let n = socket.read(&mut request).await.unwrap_or(0);
            let request = String::from_utf8_lossy(&request[..n]).to_lowercase();
            let list = format!(r#"{{"sha": "{COMMIT}", "siblings": [{{"rfilename": "x.gguf"}}]}}"#);
            let (head, body) = if request.starts_with("get /api/") {
                (format!("200 OK\r\ncontent-length: {}", list.len()), list.into_bytes())
            } else if request.starts_with("head") {
                ("200 OK\r\netag: \"no-hash\"\r\ncontent-length: 4000000".to_owned(), Vec::new())
            } else {
                let start = request.split("range: bytes=").nth(1).and_then(|rest| rest.split('-').next());
                let start: usize = start.and_then(|start| start.parse().ok()).unwrap_or(0);
                let range = format!("206 Part\r\ncontent-range: bytes {start}-3999999/4000000");
                (
                    format!("{range}\r\ncontent-length: {}", 4_000_000 - start),
                    vec![1; piece.min(4_000_000 - start)],
                )
            };
            let head = format!("HTTP/1.1 {head}\r\nconnection: close\r\n\r\n");
            // Whoever asks hangs up as it likes.
            drop(socket.write_all(&[head.as_bytes(), &body].concat()).await);
        }
    });
    url
}

async fn pull(piece: usize) -> (Result<Vec<u8>, PullError>, Progress) {
    moex_worker::native::install_crypto();
    let (folder, url) = (tempfile::tempdir().unwrap(), hub(piece).await);
    let variable = |name: &str| match name {
        "HF_ENDPOINT" => Some(url.clone().into()),
        "HF_HOME" => Some(folder.path().into()),
        _ => None,
    };
    let mut settings = Settings::read(&variable, None).unwrap();
    settings.download_pauses = vec![Duration::from_millis(1); 2];
    let progress = Arc::new(Progress::default());
    let fetch = Fetch::new(&"a/b/x.gguf".parse().unwrap(), &settings, progress.clone()).unwrap();
    let pulled = fetch.model().await.map(|path| std::fs::read(path).unwrap());
    drop(fetch);
    (pulled, Arc::into_inner(progress).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn as_long_as_a_download_gains_it_goes_on() {
    let (pulled, progress) = pull(PIECE).await;
    assert!(pulled.unwrap() == vec![1; 4_000_000]);
    let counted = (progress.done_bytes(), progress.total_bytes(), progress.received_bytes());
    assert_eq!(counted, (4_000_000, 4_000_000, 4_000_000));
    assert_eq!(progress.trouble(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_gains_little_ends_and_says_how_far_it_is() {
    let (pulled, progress) = pull(PIECE / 8).await;
    let said = pulled.unwrap_err().to_string();
    assert!(
        said.contains("x.gguf could not be downloaded") && said.contains("384.00 KiB of 3.81 MiB"),
        "{said}"
    );
    assert_eq!(progress.done_bytes(), 3 * (PIECE as u64 / 8));
}
