//! Answers requests while the hub is loading: its progress, for people, programs and workers.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::Request;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use serde_json::json;

use crate::{api::ApiError, web};

/// Value of `Retry-After`.
const RETRY_AFTER_SECONDS: u16 = 2;

/// Progress of loading. Clones share it.
#[derive(Clone, Debug)]
pub struct Loading(Arc<Mutex<State>>);

#[derive(Clone, Copy, Debug)]
struct State {
    phase: Phase,
    done: u64,
    total: u64,
    /// When the phase began, and how much was done then.
    begun: Option<(Instant, u64)>,
}

/// What the hub is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Downloading,
    Reading,
    Packing,
    Starting,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Downloading => "downloading the model",
            Self::Reading => "reading the model",
            Self::Packing => "packing experts",
            Self::Starting => "starting",
        })
    }
}

impl Phase {
    fn takes_time(self) -> bool {
        matches!(self, Self::Downloading | Self::Packing)
    }
}

impl Default for Loading {
    fn default() -> Self {
        let state = State { phase: Phase::Reading, done: 0, total: 0, begun: None };
        Self(Arc::new(Mutex::new(state)))
    }
}

impl Loading {
    /// Reports `done` of `total` bytes downloaded.
    pub fn downloaded(&self, done: u64, total: u64) {
        self.reached(if done < total { Phase::Downloading } else { Phase::Reading }, done, total);
    }

    /// Reports `done` of `total` experts packed.
    pub fn packed(&self, done: usize, total: usize) {
        let phase = if done < total { Phase::Packing } else { Phase::Starting };
        self.reached(phase, done as u64, total as u64);
    }

    fn reached(&self, phase: Phase, done: u64, total: u64) {
        let mut state = self.state();
        if state.phase != phase {
            // Bytes present before a download say nothing about its speed; packing always starts at the first expert.
            let before = if phase == Phase::Downloading { done } else { 0 };
            state.begun = Some((Instant::now(), before));
        }
        (state.phase, state.done, state.total) = (phase, done, total);
    }

    /// Answers any request while loading.
    pub(super) fn answer(&self, request: &Request) -> Response {
        let State { phase, done, total, .. } = *self.state();
        let eta = self.eta();
        let path = request.uri().path();
        let mut response = match path {
            "/health" => Json(json!({
                "status": "loading",
                "phase": phase.to_string(),
                "done": done,
                "total": total,
                "percent": self.percent(),
                "eta_seconds": eta.map(|eta| eta.as_secs()),
            }))
            .into_response(),
            _ if is_page(request) => match web::loading_page() {
                Some(page) => Html(page.replace("{progress}", &self.sentence())).into_response(),
                None => self.sentence().into_response(),
            },
            _ => ApiError::unavailable("loading", format!("{}.", self.sentence())).into_response(),
        };
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        let headers = response.headers_mut();
        headers.insert(header::RETRY_AFTER, HeaderValue::from(RETRY_AFTER_SECONDS));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }

    /// `moex is loading: 43 %, packing experts, about 12 s left`
    fn sentence(&self) -> String {
        let percent = self.percent().map(|percent| format!("{percent} %, ")).unwrap_or_default();
        let left = self.eta().map(|eta| format!(", about {} s left", eta.as_secs())).unwrap_or_default();
        format!("moex is loading: {percent}{}{left}", self.state().phase)
    }

    /// Percentage of downloading or packing, the slow phases.
    fn percent(&self) -> Option<u64> {
        let State { phase, done, total, .. } = *self.state();
        phase.takes_time().then(|| (done.saturating_mul(100)).checked_div(total).unwrap_or(0))
    }

    /// Remaining time at the speed so far.
    fn eta(&self) -> Option<Duration> {
        let State { phase, done, total, begun } = *self.state();
        let (since, done_before) = begun.filter(|_| phase.takes_time())?;
        let n_done = done.checked_sub(done_before).filter(|n| *n > 0)?;
        let seconds = since.elapsed().as_secs_f64() * total.saturating_sub(done) as f64 / n_done as f64;
        Duration::try_from_secs_f64(seconds).ok()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a browser requests a page.
fn is_page(request: &Request) -> bool {
    const PROGRAMS: [&str; 4] = ["/v1", "/api/", "/shards/", "/metrics"];
    let path = request.uri().path();
    *request.method() == Method::GET
        && path != "/ws"
        && !PROGRAMS.iter().any(|program| path.starts_with(program))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_what_it_does_how_far_it_is_and_how_long_it_takes() {
        let loading = Loading::default();
        assert_eq!(loading.sentence(), "moex is loading: reading the model");
        loading.packed(0, 200);
        assert_eq!(loading.sentence(), "moex is loading: 0 %, packing experts");
        std::thread::sleep(Duration::from_millis(20));
        loading.packed(86, 200);
        assert!(loading.sentence().starts_with("moex is loading: 43 %, packing experts, about 0 s left"));
        loading.packed(200, 200);
        assert_eq!(loading.sentence(), "moex is loading: starting");
    }

    #[test]
    fn a_download_counts_from_where_it_went_on() {
        let loading = Loading::default();
        loading.downloaded(0, 0);
        assert_eq!(loading.sentence(), "moex is loading: reading the model");
        loading.downloaded(600, 1000);
        assert_eq!(loading.sentence(), "moex is loading: 60 %, downloading the model");
        std::thread::sleep(Duration::from_millis(20));
        loading.downloaded(700, 1000);
        let said = loading.sentence();
        assert!(said.starts_with("moex is loading: 70 %, downloading the model, about 0 s left"), "{said}");
        loading.downloaded(1000, 1000);
        assert_eq!(loading.sentence(), "moex is loading: reading the model");
    }

    #[test]
    fn a_bar_without_a_length_is_no_division_by_nothing() {
        let loading = Loading::default();
        loading.packed(0, 0);
        assert_eq!(loading.sentence(), "moex is loading: starting");
    }
}
