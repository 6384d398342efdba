//! A thread's side of [`super::threads`]: an engine for its part of the slots. Its script calls it with what arrives.

use std::cell::RefCell;
use std::rc::Rc;

use js_sys::Promise;
use moex_kernels::engine::{Computed, CpuEngine, EngineError};
use moex_protocol::{Block, BlockSource};
use wasm_bindgen::prelude::*;

use super::fetch::Fetcher;
use super::js;
use super::store::Store;
use crate::driver::Fetch;
use crate::threads::message;

/// One thread. Of its engines only the latest is used; a new one takes the place of the last before it is made.
#[wasm_bindgen]
pub struct TabThread {
    engine: RefCell<Option<Rc<CpuEngine>>>,
    fetcher: Rc<Fetcher>,
}

#[wasm_bindgen]
impl TabThread {
    /// A thread of the worker with this id, which fetches from `hub` (`http://HOST:PORT`) with the join URL's secret.
    #[wasm_bindgen(constructor)]
    pub fn new(hub: String, token: String, worker: String) -> Self {
        // A text without a call is a thread's last words.
        std::panic::set_hook(Box::new(|panic| js::post_message(&panic.to_string())));
        let fetcher = Fetcher { hub, token, worker, store: Store::open() };
        Self { engine: RefCell::default(), fetcher: Rc::new(fetcher) }
    }

    /// Makes an engine for a plan (the words of `threads/message.rs`).
    pub fn plan(&self, plan: &[u32]) -> Result<(), JsValue> {
        let plan = message::to_plan(plan).ok_or("this is no plan")?;
        self.engine.take();
        let engine = CpuEngine::new(plan).map_err(words)?;
        self.engine.replace(Some(Rc::new(engine)));
        Ok(())
    }

    /// Loads a block into a slot.
    pub fn load(&self, slot: u32, format: u32, block: &[u8]) -> Result<(), JsValue> {
        load(self.engine.borrow().as_deref(), slot, format, block).map_err(JsValue::from)
    }

    /// Fetches a block into a slot; resolves to the number of bytes that were downloaded.
    pub fn fetch(&self, slot: u32, format: u32, url: String, range: &[f64], blake3: String) -> Promise {
        let (engine, fetcher) = (self.engine.borrow().clone(), self.fetcher.clone());
        let [start, end] = [0, 1].map(|index| range.get(index).map_or(0, |&at| at as u64));
        // The block's name is of no matter to its bytes.
        let source = BlockSource { block: Block::default(), url, start, end, blake3 };
        let fetched = async move {
            let (bytes, loaded) = fetcher.fetch(&source).await?;
            load(engine.as_deref(), slot, format, &bytes)?;
            Ok::<_, String>(loaded.downloaded as f64)
        };
        let mut fetched = Some(fetched);
        Promise::new(&mut |resolve, reject| {
            let Some(fetched) = fetched.take() else { return };
            wasm_bindgen_futures::spawn_local(async move {
                let called = match fetched.await {
                    Ok(downloaded) => resolve.call1(&JsValue::NULL, &downloaded.into()),
                    Err(reason) => reject.call1(&JsValue::NULL, &reason.into()),
                };
                // A promise's own functions throw nothing.
                drop(called);
            });
        })
    }

    /// Answers a batch, both as words.
    pub fn compute(&self, batch: &[u32]) -> Result<Vec<u32>, JsValue> {
        let (batch, wants_products) = message::to_batch(batch).ok_or("this is no batch")?;
        let engine = self.engine.borrow();
        let engine = engine.as_deref().ok_or("this thread has no engine yet")?;
        let computed = match wants_products {
            true => engine.compute_with_products(&batch),
            false => engine.compute(&batch).map(Computed::from),
        };
        Ok(message::from_computed(&computed.map_err(words)?))
    }
}

/// Loads a block into a slot of `engine`, if there is one.
fn load(engine: Option<&CpuEngine>, slot: u32, format: u32, block: &[u8]) -> Result<(), String> {
    let engine = engine.ok_or("this thread has no engine yet")?;
    let format = message::to_format(format).ok_or("this is no format")?;
    engine.load(slot, format, block).map_err(|error| error.to_string())
}

/// An exception: a text.
fn words(error: EngineError) -> JsValue {
    error.to_string().into()
}
