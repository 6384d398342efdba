//! The download of one block: which bytes to request next, whether they are complete, and when to retry.
//!
//! HTTP and files are left to the browser's and the native worker's fetchers.

use std::time::Duration;

use moex_protocol::BlockSource;

use crate::backoff::Backoff;
use crate::core::Loaded;

/// How many attempts may receive nothing before the download fails.
pub(crate) const MAX_FRUITLESS_ATTEMPTS: u32 = 5;
/// The first and the longest wait between two attempts.
const RETRY_DELAY: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(2)];

/// A download, resumable at every byte. It holds at most the block: a server that sends more is cut off.
#[derive(Debug)]
pub(crate) struct Download {
    source: BlockSource,
    bytes: Vec<u8>,
    downloaded: u64,
    /// The length before the current attempt.
    len_before: usize,
    attempts_left: u32,
    backoff: Backoff,
}

/// What to do after an attempt.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The block is complete and has its hash.
    Done,
    /// Request the missing bytes after this time.
    Retry(Duration),
    /// Too many attempts received nothing.
    Failed(String),
}

impl Download {
    /// A download that resumes after `kept`, the first bytes of the block from an earlier download; may be empty.
    pub(crate) fn resume(source: BlockSource, kept: Vec<u8>) -> Self {
        let backoff = Backoff::new(RETRY_DELAY[0], RETRY_DELAY[1]);
        let mut download = Self {
            source,
            bytes: kept,
            downloaded: 0,
            len_before: 0,
            attempts_left: MAX_FRUITLESS_ATTEMPTS,
            backoff,
        };
        if download.bytes.len() > download.wanted() || (download.is_full() && !download.has_hash()) {
            download.bytes.clear();
        }
        download.len_before = download.bytes.len();
        download
    }

    /// The next request: the URL and the value of the `Range` header. `None` when nothing is missing.
    pub(crate) fn request(&self) -> Option<(&str, String)> {
        let first = self.source.start + self.bytes.len() as u64;
        let range = || format!("bytes={first}-{}", self.source.end.saturating_sub(1));
        (!self.is_full()).then(|| (self.source.url.as_str(), range()))
    }

    /// Bytes received so far, including the kept ones.
    #[cfg(any(test, target_arch = "wasm32"))]
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Adds the next bytes of the range; fails if there are more than were requested.
    pub(crate) fn append(&mut self, chunk: &[u8]) -> Result<(), String> {
        if self.bytes.len() + chunk.len() > self.wanted() {
            return Err("the server sent more than the range that was asked for".into());
        }
        self.bytes.extend_from_slice(chunk);
        self.downloaded += chunk.len() as u64;
        Ok(())
    }

    /// Ends an attempt and decides the next step.
    pub(crate) fn attempted(&mut self, result: Result<(), String>) -> Next {
        let reason = match result {
            Err(reason) => reason,
            Ok(()) if !self.is_full() => format!("the download stopped at byte {}", self.bytes.len()),
            Ok(()) if self.has_hash() => return Next::Done,
            Ok(()) => {
                self.bytes.clear();
                "the bytes do not have the hash that the hub named".into()
            }
        };
        if self.bytes.len() > self.len_before {
            self.backoff.reset();
        } else {
            self.attempts_left = self.attempts_left.saturating_sub(1);
        }
        self.len_before = self.bytes.len();
        if self.attempts_left == 0 { Next::Failed(reason) } else { Next::Retry(self.backoff.delay()) }
    }

    /// The bytes, and how many of them were downloaded.
    pub(crate) fn into_bytes(self) -> (Vec<u8>, Loaded) {
        let loaded = Loaded { bytes: self.bytes.len() as u64, downloaded: self.downloaded };
        (self.bytes, loaded)
    }

    fn wanted(&self) -> usize {
        usize::try_from(self.source.end.saturating_sub(self.source.start)).unwrap_or(usize::MAX)
    }

    fn is_full(&self) -> bool {
        self.bytes.len() == self.wanted()
    }

    fn has_hash(&self) -> bool {
        hash_matches(&self.bytes, &self.source.blake3)
    }
}

/// Downloads the whole block: makes attempts, with waits between them, until it is complete or has failed too often.
///
/// # Errors
/// A description of the last attempt's failure.
pub(crate) async fn complete(
    mut download: Download,
    mut attempt: impl AsyncFnMut(&mut Download) -> Result<(), String>,
    sleep: impl AsyncFn(Duration),
) -> Result<(Vec<u8>, Loaded), String> {
    loop {
        let result = attempt(&mut download).await;
        match download.attempted(result) {
            Next::Done => return Ok(download.into_bytes()),
            Next::Retry(delay) => sleep(delay).await,
            Next::Failed(reason) => return Err(reason),
        }
    }
}

/// Whether `bytes` have the BLAKE3 hash written in `hex`.
pub(crate) fn hash_matches(bytes: &[u8], hex: &str) -> bool {
    blake3::Hash::from_hex(hex).is_ok_and(|hash| hash == blake3::hash(bytes))
}

/// The hash as a file name, in lower case; `None` for text that is not a hash.
pub(crate) fn file_name(blake3: &str) -> Option<String> {
    blake3::Hash::from_hex(blake3).ok().map(|hash| hash.to_hex().to_string())
}

#[cfg(test)]
mod tests {
    use moex_protocol::{Block, ExpertId, LayerId};

    use super::*;

    const BYTES: &[u8] = b"gate, up and down";

    fn source() -> BlockSource {
        let block = Block { layer: LayerId(0), expert: ExpertId(0) };
        let blake3 = blake3::hash(BYTES).to_hex().to_string();
        BlockSource { block, url: "/shards/a".into(), start: 100, end: 100 + BYTES.len() as u64, blake3 }
    }

    #[test]
    fn goes_on_where_it_was_cut_off() {
        let mut download = Download::resume(source(), Vec::new());
        assert_eq!(download.request(), Some(("/shards/a", "bytes=100-116".into())));
        download.append(&BYTES[..5]).unwrap();
        assert!(matches!(download.attempted(Ok(())), Next::Retry(_)), "half a block is no block");
        assert_eq!(download.request(), Some(("/shards/a", "bytes=105-116".into())));
        download.append(&BYTES[5..]).unwrap();
        assert_eq!(download.attempted(Ok(())), Next::Done);
        assert_eq!(download.into_bytes(), (BYTES.to_vec(), Loaded { bytes: 17, downloaded: 17 }));
    }

    #[test]
    fn counts_only_what_came_over_the_network() {
        let mut download = Download::resume(source(), BYTES[..10].to_vec());
        assert_eq!(download.request(), Some(("/shards/a", "bytes=110-116".into())));
        download.append(&BYTES[10..]).unwrap();
        assert_eq!(download.attempted(Ok(())), Next::Done);
        assert_eq!(download.into_bytes().1.downloaded, 7);
    }

    #[test]
    fn a_full_file_needs_no_request_and_a_wrong_one_starts_over() {
        let mut download = Download::resume(source(), BYTES.to_vec());
        assert_eq!(download.request(), None);
        assert_eq!(download.attempted(Ok(())), Next::Done);
        for wrong in [b"gate, up and d0wn".to_vec(), BYTES.repeat(2)] {
            assert_eq!(Download::resume(source(), wrong).len(), 0);
        }
    }

    #[test]
    fn wrong_bytes_are_asked_for_again_and_then_given_up() {
        let mut download = Download::resume(source(), Vec::new());
        for attempt in 1..=MAX_FRUITLESS_ATTEMPTS {
            download.append(&[0; 17]).unwrap();
            let next = download.attempted(Ok(()));
            assert_eq!(download.len(), 0);
            assert_eq!(matches!(next, Next::Failed(_)), attempt == MAX_FRUITLESS_ATTEMPTS, "{next:?}");
        }
    }

    #[test]
    fn a_line_that_breaks_at_every_byte_still_brings_the_block() {
        let mut download = Download::resume(source(), Vec::new());
        for byte in BYTES {
            download.append(&[*byte]).unwrap();
            let next = download.attempted(Err("cut off".into()));
            assert!(matches!(next, Next::Retry(_)), "{next:?}");
        }
        assert_eq!(download.request(), None);
        assert_eq!(download.attempted(Ok(())), Next::Done);
    }

    #[test]
    fn a_server_that_sends_too_much_is_cut_off() {
        let mut download = Download::resume(source(), Vec::new());
        assert!(download.append(&[0; 18]).is_err());
        assert_eq!(download.len(), 0);
    }

    #[test]
    fn only_hashes_become_file_names() {
        assert_eq!(file_name(&source().blake3).unwrap(), source().blake3);
        assert_eq!(file_name(&source().blake3.to_uppercase()).unwrap(), source().blake3);
        for hostile in ["", "../../etc/passwd", "abc"] {
            assert_eq!(file_name(hostile), None);
        }
    }
}
