//! Waits for the GPU without a runtime: signals that fire once, and the one place that knows whether the device lives.

use std::{
    future::poll_fn,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::{Poll, Waker},
};

use crate::engine::EngineError;

/// Fires once, with success or an error; one future waits for it.
#[derive(Debug, Default)]
pub(super) struct Signal(Mutex<SignalState>);

#[derive(Debug, Default)]
struct SignalState {
    fired: Option<Result<(), EngineError>>,
    waker: Option<Waker>,
}

impl Signal {
    /// Fires the signal; only the first time counts.
    pub(super) fn fire(&self, result: Result<(), EngineError>) {
        let mut state = lock(&self.0);
        state.fired.get_or_insert(result);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Whether it has fired.
    #[cfg(not(target_arch = "wasm32"))]
    pub(super) fn has_fired(&self) -> bool {
        lock(&self.0).fired.is_some()
    }

    /// Waits until it fires; returns what it was fired with.
    pub(super) async fn wait(&self) -> Result<(), EngineError> {
        poll_fn(|context| {
            let mut state = lock(&self.0);
            match &state.fired {
                Some(result) => Poll::Ready(result.clone()),
                None => {
                    state.waker = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }
}

/// Whether the device lives. When it fails, every signal made here fires with the reason, so that nobody waits for a
/// dead device.
#[derive(Debug, Default)]
pub(super) struct Health(Mutex<HealthState>);

#[derive(Debug, Default)]
struct HealthState {
    fault: Option<EngineError>,
    /// Signals that are still waited for; as many as there are operations under way.
    signals: Vec<Weak<Signal>>,
}

impl Health {
    /// A signal that also fires when the device fails.
    pub(super) fn signal(&self) -> Arc<Signal> {
        let signal = Arc::new(Signal::default());
        let mut state = lock(&self.0);
        match state.fault.clone() {
            Some(fault) => signal.fire(Err(fault)),
            None => {
                state.signals.retain(|signal| signal.strong_count() > 0);
                state.signals.push(Arc::downgrade(&signal));
            }
        }
        signal
    }

    /// Fails if the device has failed.
    pub(super) fn check(&self) -> Result<(), EngineError> {
        lock(&self.0).fault.clone().map_or(Ok(()), Err)
    }

    /// Marks the device as failed; the first reason counts.
    pub(super) fn fail(&self, fault: EngineError) {
        let mut state = lock(&self.0);
        let fault = state.fault.get_or_insert(fault).clone();
        let signals = std::mem::take(&mut state.signals);
        drop(state);
        for signal in signals.iter().filter_map(Weak::upgrade) {
            signal.fire(Err(fault.clone()));
        }
    }
}

/// Locks a mutex. A panic leaves nothing half done, since nothing here panics halfway.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::{future::Future, pin::pin, task::Context};

    use super::*;

    fn poll<F: Future>(future: F) -> Poll<F::Output> {
        pin!(future).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_signal_gives_what_it_was_fired_with_first() {
        let health = Health::default();
        let signal = health.signal();
        assert!(poll(signal.wait()).is_pending());
        signal.fire(Ok(()));
        signal.fire(Err(EngineError::DeviceLost("too late".into())));
        assert_eq!(poll(signal.wait()), Poll::Ready(Ok(())));
    }

    #[test]
    fn a_failing_device_fails_what_waits_and_what_comes_after() {
        let health = Health::default();
        let fault = EngineError::DeviceLost("pulled out".into());
        let before = health.signal();
        health.fail(fault.clone());
        health.fail(EngineError::DeviceLost("again".into()));
        for signal in [before, health.signal()] {
            assert_eq!(poll(signal.wait()), Poll::Ready(Err(fault.clone())));
        }
        assert_eq!(health.check(), Err(fault));
    }
}
