//! Finds a model by its path or name, and shows the progress of its download.

use std::{
    collections::VecDeque,
    io::{Write, stderr},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use indicatif::{HumanBytes, HumanDuration, ProgressBar, ProgressStyle};

use crate::pull::{self, ModelName, Progress, Settings};

/// Interval of progress lines where stderr is no terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(30);
/// Interval of messages about a stalled file.
const TROUBLE_INTERVAL: Duration = Duration::from_secs(2);
/// Window over which the speed is averaged.
const SPEED_WINDOW: Duration = Duration::from_secs(10);

/// Returns the path of what `--model` names: a path itself, or a model in the cache, downloaded if missing. `report`
/// receives the bytes present and in total.
///
/// # Errors
/// If it is neither, or cannot be downloaded.
pub(super) fn locate(model: &Path, report: &mut dyn FnMut(u64, u64)) -> anyhow::Result<PathBuf> {
    // A path that cannot be inspected counts as present: opening it then reports why.
    if model.try_exists().unwrap_or(true) {
        return Ok(model.to_owned());
    }
    let Some(name) = model.to_str().and_then(|text| text.parse::<ModelName>().ok()) else {
        bail!(
            "{} is neither a file or folder here nor a model's name: write OWNER/REPO or OWNER/REPO/FILE.gguf, \
             optionally with :REVISION at the end",
            model.display()
        );
    };
    let settings = Settings::from_env()?;
    match pull::find(&name, &settings) {
        Some(path) => Ok(path),
        None => download(&name, &settings, report).with_context(|| {
            format!("{name} is not a file or folder here, and cannot be downloaded by that name")
        }),
    }
}

/// Downloads the missing files of a model, shows progress on stderr, and returns its path.
///
/// # Errors
/// If the download fails.
pub(super) fn download(
    name: &ModelName,
    settings: &Settings,
    report: &mut dyn FnMut(u64, u64),
) -> anyhow::Result<PathBuf> {
    let begin = Instant::now();
    let mut shown = Shown::new()?;
    let title = format!(
        "Downloading {name} from {} into {}; Ctrl-C stops it, and the same command resumes it.",
        settings.host(),
        settings.cache().display()
    );
    let mut title = Some(title);
    let mut n_received = 0;
    let pulled = pull::pull(name, settings, &mut |progress| {
        n_received = progress.received_bytes();
        if progress.total_bytes() > 0
            && let Some(title) = title.take()
        {
            say(&title);
        }
        shown.show(progress);
        report(progress.done_bytes(), progress.total_bytes());
    });
    shown.bar.finish_and_clear();
    let path = pulled?;
    if n_received > 0 {
        say(&format!("Downloaded {} in {:#}.", HumanBytes(n_received), HumanDuration(begin.elapsed())));
    }
    Ok(path)
}

/// Progress of a download: one redrawn line, or a new line at intervals. A stalled file has its own line.
struct Shown {
    bar: ProgressBar,
    speed: Speed,
    said_at: Instant,
    trouble: Option<(Instant, String)>,
}

impl Shown {
    fn new() -> anyhow::Result<Self> {
        // Cut to the terminal's width.
        let bar = ProgressBar::new(0).with_style(ProgressStyle::with_template("{wide_msg}")?);
        Ok(Self { bar, speed: Speed::default(), said_at: Instant::now(), trouble: None })
    }

    fn show(&mut self, progress: &Progress) {
        let now = Instant::now();
        let (done, total) = (progress.done_bytes(), progress.total_bytes());
        let speed = self.speed.of(now, progress.received_bytes());
        if let Some(trouble) = progress.trouble()
            && self
                .trouble
                .as_ref()
                .is_none_or(|(then, said)| *said != trouble && now >= *then + TROUBLE_INTERVAL)
        {
            self.bar.suspend(|| say(&trouble));
            self.trouble = Some((now, trouble));
        }
        if total == 0 {
            return;
        }
        let line = line(done, total, speed);
        if !self.bar.is_hidden() {
            self.bar.set_message(line);
        } else if now >= self.said_at + LINE_INTERVAL {
            say(&line);
            self.said_at = now;
        }
    }
}

/// `21 %: 12.00 GiB of 57.00 GiB, 101.20 MiB/s, 8m left`
fn line(done: u64, total: u64, speed: Option<f64>) -> String {
    let percent = (done as f64 / total as f64 * 100.0).floor();
    let mut line = format!("{percent} %: {} of {}", HumanBytes(done), HumanBytes(total));
    if let Some(speed) = speed.filter(|speed| *speed >= 1.0) {
        line += &format!(", {}/s", HumanBytes(speed as u64));
        let left = Duration::try_from_secs_f64(total.saturating_sub(done) as f64 / speed);
        if let Some(left) = left.ok().filter(|left| !left.is_zero()) {
            line += &format!(", {:#} left", HumanDuration(left));
        }
    }
    line
}

/// Download speed over the last few seconds.
#[derive(Default)]
struct Speed(VecDeque<(Instant, u64)>);

impl Speed {
    /// Records `n_received` bytes by `now` and returns the speed; none until it is meaningful.
    fn of(&mut self, now: Instant, n_received: u64) -> Option<f64> {
        while self.0.len() > 1 && self.0.front().is_some_and(|(then, _)| now - *then > SPEED_WINDOW) {
            self.0.pop_front();
        }
        self.0.push_back((now, n_received));
        let (then, n_then) = *self.0.front()?;
        let seconds = (now - then).as_secs_f64();
        (seconds >= 1.0).then(|| n_received.saturating_sub(n_then) as f64 / seconds)
    }
}

fn say(line: &str) {
    // Errors are ignored: a user who closed stderr does not want to see the line.
    drop(writeln!(stderr(), "{line}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_far_how_fast_and_how_long() {
        const GIB: u64 = 1 << 30;
        let text = line(12 * GIB, 57 * GIB, Some(100.0 * 1048576.0));
        assert_eq!(text, "21 %: 12.00 GiB of 57.00 GiB, 100.00 MiB/s, 8m left");
        assert_eq!(line(5, 10, None), "50 %: 5 B of 10 B");
        assert_eq!(line(10, 10, Some(5.0)), "100 %: 10 B of 10 B, 5 B/s");
        assert_eq!(line(0, 10, Some(0.0)), "0 %: 0 B of 10 B");
    }

    #[test]
    fn the_speed_is_that_of_the_last_seconds() {
        let (begin, mut speed) = (Instant::now(), Speed::default());
        let at = |seconds: u64| begin + Duration::from_secs(seconds);
        assert_eq!(speed.of(at(0), 0), None);
        assert_eq!(speed.of(at(2), 200), Some(100.0));
        for seconds in 3..=40 {
            speed.of(at(seconds), 200);
        }
        assert_eq!(speed.of(at(41), 200), Some(0.0));
        assert!(speed.0.len() < 20);
    }

    #[test]
    fn a_path_that_is_there_is_itself_and_what_is_neither_is_refused() {
        let here = env!("CARGO_MANIFEST_DIR");
        assert_eq!(locate(here.as_ref(), &mut |_, _| {}).unwrap(), Path::new(here));
        for neither in ["/no/such/model", "nowhere.gguf", "./a/b", "", "a/b/c"] {
            let said = locate(neither.as_ref(), &mut |_, _| {}).unwrap_err().to_string();
            assert!(said.starts_with(&format!("{neither} is neither a file or folder here")), "{said}");
            assert!(said.contains("OWNER/REPO"), "{said}");
        }
    }
}
