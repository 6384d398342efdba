//! Logs to stderr: one printable line per event, and a limited number of lines.

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Context, Filter, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry};

/// Maximum bytes of a line; the rest is cut off.
const MAX_LINE_BYTES: usize = 2048;
/// Maximum lines per place in the code in [`WINDOW`]. `debug` and `trace`, which are off by default, are not limited.
const MAX_LINES: u32 = 20;
/// Window over which lines are counted.
const WINDOW: Duration = Duration::from_secs(10);

/// Starts logging to stderr with this filter.
pub fn start(filter: EnvFilter) {
    let lines = tracing_subscriber::fmt::layer().with_writer(Stderr).with_ansi(false);
    let limited: Box<dyn Layer<Registry> + Send + Sync> = lines.with_filter(Limited::default()).boxed();
    Registry::default().with(limited).with(filter).init();
}

/// Limits the events of each place in the code.
#[derive(Default)]
struct Limited {
    places: Mutex<HashMap<Identifier, Window>>,
}

#[derive(Debug)]
struct Window {
    begun: Instant,
    n: u32,
}

impl Limited {
    /// Returns whether one more line may be written, and how many were omitted in the window that just ended.
    fn count(&self, place: Identifier, now: Instant) -> (bool, u32) {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let window = places.entry(place).or_insert(Window { begun: now, n: 0 });
        let mut left_out = 0;
        if now.duration_since(window.begun) >= WINDOW {
            left_out = window.n.saturating_sub(MAX_LINES);
            *window = Window { begun: now, n: 0 };
        }
        window.n = window.n.saturating_add(1);
        (window.n <= MAX_LINES, left_out)
    }
}

impl<S: Subscriber> Filter<S> for Limited {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        let metadata = event.metadata();
        if *metadata.level() > Level::INFO {
            return true;
        }
        let (may_be_written, left_out) = self.count(metadata.callsite(), Instant::now());
        if left_out > 0 {
            let line = format!("{left_out} more lines like the next one were omitted\n");
            // A failure to write the log cannot be reported anywhere.
            let _ = io::stderr().write_all(line.as_bytes());
        }
        may_be_written
    }
}

/// Writes each event as one printable line.
struct Stderr;

impl<'a> MakeWriter<'a> for Stderr {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        Self
    }
}

impl Write for Stderr {
    /// Each event arrives in one call.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        io::stderr().write_all(printable(event).as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// The text as one line; line breaks and control characters are escaped.
fn printable(event: &[u8]) -> String {
    let text = String::from_utf8_lossy(event);
    let text = text.strip_suffix('\n').unwrap_or(&text);
    let mut line = String::with_capacity(text.len() + 1);
    for character in text.chars() {
        if line.len() >= MAX_LINE_BYTES {
            line.push('…');
            break;
        }
        match is_dangerous(character) {
            true => line.extend(character.escape_unicode()),
            false => line.push(character),
        }
    }
    line.push('\n');
    line
}

/// Control characters, and those that change the text direction.
fn is_dangerous(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_peer_says_stays_on_its_line() {
        let said = "adapter=\u{1b}[2Jgone\nINFO all is well\r\u{202e}";
        let line = printable(format!("WARN a worker joined {said}\n").as_bytes());
        assert_eq!(line.matches('\n').count(), 1);
        assert!(!line.contains(['\u{1b}', '\r', '\u{202e}']) && line.contains("\\u{1b}[2Jgone\\u{a}INFO"));
        assert_eq!(printable("größer\n".as_bytes()), "größer\n");
    }

    #[test]
    fn a_line_has_an_end() {
        let line = printable(&[b'x'; 1 << 20]);
        assert!(line.len() <= MAX_LINE_BYTES + 4 && line.ends_with("…\n"));
        assert!(printable(&[0xff; 64]).ends_with('\n'));
    }

    #[test]
    fn a_flood_of_lines_is_counted_instead() {
        let limited = Limited::default();
        let place = || Identifier(&NOWHERE);
        let now = Instant::now();
        let n_written = (0..1000).filter(|_| limited.count(place(), now).0).count();
        assert_eq!(n_written, MAX_LINES as usize);
        assert_eq!(limited.count(place(), now + WINDOW), (true, 1000 - MAX_LINES));
        assert_eq!(limited.count(place(), now + 2 * WINDOW), (true, 0));
    }

    struct Nowhere;
    static NOWHERE: Nowhere = Nowhere;

    impl tracing::Callsite for Nowhere {
        fn set_interest(&self, _: tracing::subscriber::Interest) {}

        fn metadata(&self) -> &Metadata<'_> {
            unreachable!("nobody asks a place of a test what it is")
        }
    }
}
