//! `moex serve --trace FILE`: writes one JSON object per line about each layer, on its own thread.
//!
//! ```text
//! driver task, engine thread --records, bounded, never waited for--> writer thread --lines--> FILE
//! ```
//! If the queue is full, a [`Tracer`] drops the record and counts it; the last line holds the count.
//! [`moex_swarm::trace`] documents the records.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use moex_swarm::trace::Record;

/// Maximum queued records: some seconds of a fast model, a few megabytes.
const MAX_WAITING_RECORDS: usize = 8192;
/// Time without new records after which the file is flushed.
const FLUSH_AFTER: Duration = Duration::from_millis(200);
/// How long [`Tracer::finish`] waits for a hanging file system.
const FINISH_WITHIN: Duration = Duration::from_secs(5);

/// Queues records without waiting; a thread writes them to the file. Clones share it.
#[derive(Clone, Debug)]
pub struct Tracer {
    queue: SyncSender<Message>,
    dropped: Arc<AtomicU64>,
}

#[derive(Debug)]
enum Message {
    Record(Box<Record>),
    /// Write the last line and confirm.
    Finish(SyncSender<()>),
}

impl Tracer {
    /// Creates the file, replacing an existing one, and starts the thread.
    ///
    /// # Errors
    /// If the file cannot be created, or the system cannot start a thread.
    pub fn create(path: &Path) -> io::Result<Self> {
        Self::start(File::create(path)?)
    }

    fn start(to: impl Write + Send + 'static) -> io::Result<Self> {
        let (queue, records) = sync_channel(MAX_WAITING_RECORDS);
        let dropped = Arc::new(AtomicU64::new(0));
        let counted = dropped.clone();
        let write = move || {
            if let Err(error) = write_all(BufWriter::new(to), &records, &counted) {
                tracing::error!(%error, "writing the trace failed; it ends here");
            }
        };
        thread::Builder::new().name("moex-trace".to_owned()).spawn(write)?;
        Ok(Self { queue, dropped })
    }

    /// Queues a record, or counts it as dropped if the queue is full.
    pub(super) fn record(&self, record: Record) {
        if self.queue.try_send(Message::Record(Box::new(record))).is_err() {
            self.count_dropped(1);
        }
    }

    /// Counts records dropped elsewhere.
    pub(super) fn count_dropped(&self, n: u64) {
        self.dropped.fetch_add(n, Ordering::Relaxed);
    }

    /// Writes the queued records and the last line. Blocks its thread for at most a few seconds.
    pub fn finish(&self) {
        let (done, told) = sync_channel(1);
        // A writer that has ended has logged why.
        if self.queue.send(Message::Finish(done)).is_ok() {
            let _ = told.recv_timeout(FINISH_WITHIN);
        }
    }
}

fn write_all(mut to: impl Write, records: &Receiver<Message>, dropped: &AtomicU64) -> io::Result<()> {
    loop {
        match records.recv_timeout(FLUSH_AFTER) {
            Ok(Message::Record(record)) => write_line(&mut to, &record)?,
            Err(RecvTimeoutError::Timeout) => to.flush()?,
            Ok(Message::Finish(done)) => {
                end(&mut to, dropped)?;
                // Fails if the caller no longer waits.
                let _ = done.try_send(());
                return Ok(());
            }
            Err(RecvTimeoutError::Disconnected) => return end(&mut to, dropped),
        }
    }
}

fn end(to: &mut impl Write, dropped: &AtomicU64) -> io::Result<()> {
    write_line(to, &Record::End { dropped: dropped.load(Ordering::Relaxed) })?;
    to.flush()
}

fn write_line(to: &mut impl Write, record: &Record) -> io::Result<()> {
    serde_json::to_writer(&mut *to, record)?;
    to.write_all(b"\n")
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, mpsc};

    use super::*;

    /// A file whose writes wait until they may go on.
    struct Slow {
        may_write: Receiver<()>,
        written: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            // Once whoever holds it up is gone, nothing does.
            let _ = self.may_write.recv();
            self.written.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_writer_that_lags_holds_nobody_up_and_the_last_line_says_what_was_lost() {
        let (go_on, may_write) = mpsc::channel();
        let written = Arc::new(Mutex::new(Vec::new()));
        let tracer = Tracer::start(Slow { may_write, written: written.clone() }).unwrap();
        let n = 2 * MAX_WAITING_RECORDS as u64;
        for at in 0..n {
            tracer.record(Record::Late { attempt: 7, at });
        }
        tracer.count_dropped(3);
        drop(go_on);
        tracer.finish();
        let text = String::from_utf8(written.lock().unwrap().clone()).unwrap();
        let lines: Vec<Record> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let Some(Record::End { dropped }) = lines.last() else { panic!("{:?}", lines.last()) };
        assert!(*dropped > 3, "the queue is bounded");
        assert_eq!(lines.len() as u64 - 1 + dropped - 3, n, "every record is written or counted");
        assert_eq!(lines[0], Record::Late { attempt: 7, at: 0 });
    }
}
