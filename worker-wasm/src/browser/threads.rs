//! The threads of a tab: Web Workers besides this one, each with the same module, a memory and an engine of its own. They
//! need no shared memory, so every page has them, one of another machine's `http://` address too.
//!
//! The page's scripts start them, carry the calls ([`super::thread`] has their side), and notice when one dies: then they
//! tell the page, which starts the worker anew.

use std::cell::RefCell;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use js_sys::{Array, Float64Array, Uint8Array, Uint32Array};
use moex_kernels::ExpertFormat;
use moex_kernels::engine::{Batch, Computed, CpuEngine, EngineError, EnginePlan, Output, Wanted};
use moex_protocol::{BlockSource, LayerId};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;

use super::js;
use crate::core::Loaded;
use crate::threads::deal::{Deal, Place};
use crate::threads::message;
use crate::threads::shares::Shares;

/// The threads besides this one; they end with the last clone.
#[derive(Clone, Debug, Default)]
pub struct Threads(Rc<Others>);

#[derive(Debug, Default)]
struct Others(Vec<js::Thread>);

impl Drop for Others {
    fn drop(&mut self) {
        self.0.iter().for_each(js::Thread::end);
    }
}

impl Threads {
    /// Starts as many threads as the page's script finds right for this device; fewer, or none, if they do not start.
    pub(super) async fn start(hub: &str, token: &str, worker: &str) -> Self {
        let started = js::start_threads(hub, token, worker)
            .await
            .map_or_else(|_| Array::new(), |started| Array::from(&started));
        let others = started.iter().map(JsCast::unchecked_into);
        Self(Rc::new(Others(others.collect())))
    }

    /// How many compute, this one included.
    pub(crate) fn count(&self) -> usize {
        1 + self.0.0.len()
    }

    /// An engine on the CPU that is spread over all threads.
    ///
    /// # Errors
    /// As [`CpuEngine::new`], or if a thread fails.
    pub(crate) async fn engine(&self, plan: EnginePlan) -> Result<Engine, EngineError> {
        plan.check()?;
        let n_slots = Deal::slots_each(plan.n_slots, self.count());
        let of_each = EnginePlan { n_slots, ..plan };
        let own = moex_kernels::engine::Engine::Cpu(CpuEngine::new(of_each)?);
        let planned: Vec<JsFuture> = self
            .0
            .0
            .iter()
            .map(|thread| ask(thread, "plan", &[words(&message::from_plan(&of_each))]))
            .collect();
        for planned in planned {
            planned.await.map_err(failed)?;
        }
        let deal = RefCell::new(Deal::new(plan.n_slots, self.count()));
        Ok(Engine { own, spread: Some(Spread { plan, threads: self.clone(), deal }) })
    }

    /// An engine that needs no threads.
    pub(crate) fn alone(own: moex_kernels::engine::Engine) -> Engine {
        Engine { own, spread: None }
    }

    /// What the adapter's name says of them.
    pub(crate) fn words(&self) -> String {
        format!(", {} thread{}", self.count(), if self.count() == 1 { "" } else { "s" })
    }
}

/// An engine on this thread, and its parts on others.
#[derive(Debug)]
pub struct Engine {
    own: moex_kernels::engine::Engine,
    spread: Option<Spread>,
}

#[derive(Debug)]
struct Spread {
    /// Of the whole engine.
    plan: EnginePlan,
    threads: Threads,
    deal: RefCell<Deal>,
}

impl Engine {
    /// Loads an expert, which is copied if its slot is another thread's.
    ///
    /// # Errors
    /// As the kernels' engine, or if a thread fails.
    pub(crate) async fn load(
        &self,
        slot: u32,
        format: ExpertFormat,
        block: &[u8],
    ) -> Result<(), EngineError> {
        match self.deal(slot, LayerId(0))? {
            (None, slot) => self.own.load(slot, format, block).await,
            (Some(thread), slot) => {
                let block = Uint8Array::from(block).into();
                let arguments = [slot.into(), message::from_format(format).into(), block];
                ask(thread, "load", &arguments).await.map_err(failed)?;
                Ok(())
            }
        }
    }

    /// Fetches a block into a slot: another thread's slot by that thread, so that its bytes never pass through this one's
    /// memory. `fetch` does it here.
    ///
    /// # Errors
    /// A description of the failure.
    pub(super) async fn fetch(
        &self,
        slot: u32,
        format: ExpertFormat,
        source: &BlockSource,
        fetch: impl Future<Output = Result<(Vec<u8>, Loaded), String>>,
    ) -> Result<Loaded, String> {
        let told = |error: EngineError| error.to_string();
        match self.deal(slot, source.block.layer).map_err(told)? {
            (None, slot) => {
                let (bytes, loaded) = fetch.await?;
                self.own.load(slot, format, &bytes).await.map_err(told)?;
                Ok(loaded)
            }
            (Some(thread), slot) => {
                let range = Float64Array::from(&[source.start as f64, source.end as f64][..]);
                let (url, blake3) = (source.url.as_str().into(), source.blake3.as_str().into());
                let arguments = [slot.into(), message::from_format(format).into(), url, range.into(), blake3];
                let downloaded = ask(thread, "fetch", &arguments).await.map_err(|error| js::words(&error))?;
                let downloaded = downloaded.as_f64().unwrap_or(0.0) as u64;
                Ok(Loaded { bytes: source.end.saturating_sub(source.start), downloaded })
            }
        }
    }

    /// What is wanted of a batch, for sending it.
    ///
    /// # Errors
    /// As the kernels' engine, or if a thread fails.
    pub(crate) async fn answer(&self, batch: &Batch, wanted: Wanted) -> Result<Output, EngineError> {
        match &self.spread {
            None => self.nudging(self.own.answer(batch, wanted)).await,
            Some(spread) => Ok(self.compute_spread(spread, batch, wanted.products).await?.into()),
        }
    }

    /// The outcome of a computation on this thread's own engine, which the browser is made to notice if it is a GPU's.
    #[cfg_attr(not(feature = "gpu"), expect(clippy::unused_self, reason = "only a GPU is waited for"))]
    async fn nudging<T>(&self, computation: impl Future<Output = T>) -> T {
        match &self.own {
            #[cfg(feature = "gpu")]
            moex_kernels::engine::Engine::Gpu(gpu) => {
                let mut outcome = None;
                let computation = async { outcome = Some(computation.await) };
                super::nudge::nudging(pin!(computation), &|| gpu.device().nudge()).await;
                outcome.expect("it has ended")
            }
            _ => computation.await,
        }
    }

    async fn compute_spread(
        &self,
        spread: &Spread,
        batch: &Batch,
        wants_products: bool,
    ) -> Result<Computed, EngineError> {
        batch.check(&spread.plan)?;
        let shares = Shares::of(batch, &spread.deal.borrow(), spread.threads.count())?;
        let (its, others) = shares.batches.split_first().expect("this thread is one");
        let ask = |(thread, batch): (&js::Thread, &Batch)| {
            let words = || words(&message::from_batch(batch, wants_products));
            (!batch.calls.is_empty()).then(|| ask(thread, "compute", &[words()]))
        };
        // The others begin before this one, which does nothing else while it computes.
        let asked: Vec<Option<JsFuture>> = spread.threads.0.0.iter().zip(others).map(ask).collect();
        let nothing = || Computed { rows: Vec::new(), products: wants_products.then(Vec::new) };
        let wanted = Wanted { products: wants_products, halves: false };
        let mut parts = vec![match its.calls.is_empty() {
            true => nothing(),
            false => self.own.answer(its, wanted).await?.floats().ok_or_else(nonsense)?,
        }];
        for answer in asked {
            parts.push(match answer {
                Some(answer) => {
                    let words: Uint32Array = answer.await.map_err(failed)?.unchecked_into();
                    message::to_computed(&words.to_vec()).ok_or_else(nonsense)?
                }
                None => nothing(),
            });
        }
        let shapes = &spread.plan.shapes;
        shares.join(&parts, [shapes.hidden, shapes.inner]).ok_or_else(nonsense)
    }

    /// The median time of waiting for the device, as [`moex_kernels::engine::Engine::measure_sync`].
    ///
    /// # Errors
    /// If the device fails.
    pub(crate) async fn measure_sync(&self, now: &dyn Fn() -> Duration) -> Result<Duration, EngineError> {
        self.nudging(self.own.measure_sync(now)).await
    }

    /// Where a slot is from now on: on which other thread, if it is on one, and its slot there.
    fn deal(&self, slot: u32, layer: LayerId) -> Result<(Option<&js::Thread>, u32), EngineError> {
        let Some(spread) = &self.spread else { return Ok((None, slot)) };
        let n_slots = spread.plan.n_slots;
        let place = spread.deal.borrow_mut().deal(slot, layer);
        let Place { thread, slot } = place.ok_or(EngineError::NoSuchSlot { slot, n_slots })?;
        Ok((thread.checked_sub(1).and_then(|other| spread.threads.0.0.get(other)), slot))
    }
}

/// Calls a method of a thread's [`super::thread::TabThread`], at once.
fn ask(thread: &js::Thread, method: &str, arguments: &[JsValue]) -> JsFuture {
    thread.call(method, arguments.iter().collect()).into()
}

/// A copy that can be sent.
fn words(words: &[u32]) -> JsValue {
    Uint32Array::from(words).into()
}

/// A thread's exception. A thread that dies is told to the page by its script; this ends what waits for it.
fn failed(error: JsValue) -> EngineError {
    EngineError::Device(js::words(&error))
}

fn nonsense() -> EngineError {
    EngineError::Device("a thread answered something else than was asked".into())
}
