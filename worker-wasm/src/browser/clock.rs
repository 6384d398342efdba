//! Time in a browser: the time since the worker started, waits, and one alarm.

use std::time::Duration;

use js_sys::Promise;
use wasm_bindgen::prelude::*;

use super::js;

/// The longest single wait; `setTimeout` takes a signed 32-bit number of milliseconds.
const MAX_WAIT: Duration = Duration::from_secs(24 * 3600);

/// The time since the page of the worker was created, which is the core's unit of time.
pub(super) fn now() -> Duration {
    Duration::from_secs_f64(js::performance_now().max(0.0) / 1e3)
}

/// Resolves after `delay`.
pub(super) async fn sleep(delay: Duration) {
    let promise = Promise::new(&mut |resolve, _| {
        js::set_timeout(&resolve, millis(delay));
    });
    // A timer's promise is never rejected.
    drop(wasm_bindgen_futures::JsFuture::from(promise).await);
}

/// Calls back at the earliest time that it is set to.
pub(super) struct Alarm {
    ring: Closure<dyn FnMut()>,
    armed: Option<(Duration, i32)>,
}

impl Alarm {
    pub(super) fn new(ring: impl FnMut() + 'static) -> Self {
        Self { ring: Closure::new(ring), armed: None }
    }

    /// Sets the alarm to `deadline`, unless it is set to an earlier time: a wake-up that is too early does no harm.
    pub(super) fn set(&mut self, deadline: Duration) {
        match self.armed {
            Some((armed, _)) if armed <= deadline => return,
            Some((_, handle)) => js::clear_timeout(handle),
            None => {}
        }
        let delay = deadline.saturating_sub(now());
        let handle = js::set_timeout(self.ring.as_ref().unchecked_ref(), millis(delay));
        self.armed = Some((deadline, handle));
    }

    /// The alarm has rung.
    pub(super) fn rang(&mut self) {
        self.armed = None;
    }
}

/// Rounded up, so that the time has passed when the browser calls back.
fn millis(delay: Duration) -> f64 {
    (delay.min(MAX_WAIT).as_secs_f64() * 1e3).ceil()
}
