//! Where a model lies that is given by its path or by its name, and how far its download is, for people.

use std::{
    collections::VecDeque,
    io::{Write, stderr},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use indicatif::{HumanBytes, HumanDuration, ProgressBar, ProgressStyle};

use crate::pull::{self, ModelName, Progress, Settings};

/// How often a line is written where no terminal can be redrawn.
const LINE_INTERVAL: Duration = Duration::from_secs(30);
/// How often it is said what holds a file up.
const TROUBLE_INTERVAL: Duration = Duration::from_secs(2);
/// The time that the speed is the mean of.
const SPEED_WINDOW: Duration = Duration::from_secs(10);

/// The path of what `--model` names: itself if it is one, else that of the model of this name in the cache, downloaded if it
/// is not there. `report` hears of the bytes that are there, of how many.
///
/// # Errors
/// If it is neither, or cannot be downloaded.
pub(super) fn locate(model: &Path, report: &mut dyn FnMut(u64, u64)) -> anyhow::Result<PathBuf> {
    // What cannot be looked at is there: whoever opens it says why it cannot.
    if model.try_exists().unwrap_or(true) {
        return Ok(model.to_owned());
    }
    let Some(name) = model.to_str().and_then(|text| text.parse::<ModelName>().ok()) else {
        bail!(
            "{} is no file or folder here, and no name of a model: that is OWNER/REPO or OWNER/REPO/FILE.gguf, each with \
             :REVISION behind it if wanted",
            model.display()
        );
    };
    let settings = Settings::from_env()?;
    match pull::find(&name, &settings) {
        Some(path) => Ok(path),
        None => download(&name, &settings, report)
            .with_context(|| format!("{name} is no file or folder here, and cannot be had by that name")),
    }
}

/// Downloads what is missing of a model, shows how far it is on stderr, and returns its path.
///
/// # Errors
/// Why it cannot be had.
pub(super) fn download(
    name: &ModelName,
    settings: &Settings,
    report: &mut dyn FnMut(u64, u64),
) -> anyhow::Result<PathBuf> {
    let begin = Instant::now();
    let mut shown = Shown::new()?;
    let title = format!(
        "Downloading {name} from {} into {}; Ctrl-C stops, and the same command goes on there.",
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

/// How far a download is: one line that is redrawn, or a line now and then. What holds a file up has a line of its own.
struct Shown {
    bar: ProgressBar,
    speed: Speed,
    said_at: Instant,
    trouble: Option<(Instant, String)>,
}

impl Shown {
    fn new() -> anyhow::Result<Self> {
        // Cut at the terminal's edge, however narrow that is.
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

/// Bytes a second in the last few.
#[derive(Default)]
struct Speed(VecDeque<(Instant, u64)>);

impl Speed {
    /// With `n_received` bytes having come by `now`; none before that says something.
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
    // Whoever closed stderr does not want to see it.
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
            assert!(said.starts_with(&format!("{neither} is no file or folder here")), "{said}");
            assert!(said.contains("OWNER/REPO"), "{said}");
        }
    }
}
