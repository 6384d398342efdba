//! A lock that the tabs of one origin share, by name.

use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, select};
use js_sys::{Function, Promise};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;

use super::js;

/// Held until dropped, or until the tab is gone.
pub(super) struct Lock {
    release: Function,
}

impl Lock {
    /// Waits for the lock; `None` if it does not come within `patience`, or if the browser has no locks.
    pub(super) async fn acquire(name: &str, patience: Duration) -> Option<Self> {
        let (granted, grant) = promise();
        let (held, release) = promise();
        let callback = Closure::once(move |_lock: JsValue| {
            drop(grant.call0(&JsValue::UNDEFINED));
            held
        });
        let signal = js::AbortSignal::timeout(patience.as_secs_f64() * 1e3);
        let options = js::object([("signal", signal.into())]);
        let request = pin!(js::request_lock(name, &options, callback.as_ref().unchecked_ref()));
        match select(pin!(JsFuture::from(granted)), request).await {
            Either::Left(_) => Some(Self { release }),
            // The request ends before it is granted only by failing.
            Either::Right(_) => None,
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        drop(self.release.call0(&JsValue::UNDEFINED));
    }
}

/// A promise and what resolves it.
fn promise() -> (Promise, Function) {
    let mut resolver = None;
    let promise = Promise::new(&mut |resolve, _| resolver = Some(resolve));
    (promise, resolver.expect("a promise calls its executor before its constructor returns"))
}
