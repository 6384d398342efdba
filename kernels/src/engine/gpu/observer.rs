//! Tells an observer how far batches have come.

use std::{fmt, sync::OnceLock};

use crate::engine::Stage;

type Call = dyn Fn(Stage) + Send + Sync;

/// At most one observer.
#[derive(Default)]
pub(super) struct Observer(OnceLock<Box<Call>>);

impl Observer {
    /// Tells the observer, if there is one.
    pub(super) fn tell(&self, stage: Stage) {
        if let Some(call) = self.0.get() {
            call(stage);
        }
    }

    /// Sets the observer; returns whether it is the first.
    pub(super) fn set(&self, call: Box<Call>) -> bool {
        self.0.set(call).is_ok()
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Observer").field(&self.0.get().is_some()).finish()
    }
}
