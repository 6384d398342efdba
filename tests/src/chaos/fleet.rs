//! Carries out a chaos script: workers as processes, each behind its link, and tabs.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures_util::future::try_join_all;
use tempfile::TempDir;
use tokio::time::{Instant, sleep, sleep_until};

use super::Config;
use super::script::{Event, Fault, Track, script};
use crate::browser::{Browser, Tab};
use crate::host::Host;
use crate::hub::{Hub, Moex, PATIENCE, Signal, Worker};
use crate::proxy::{Hiccup, Link, Proxy, Weather};

/// Memory of a worker: twice the demo model.
const MEMORY: &str = "64MiB";

/// The number of faults of each kind.
#[derive(Debug, Default)]
pub(super) struct Tally(Mutex<BTreeMap<Fault, usize>>);

impl Tally {
    fn count(&self, fault: Fault) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(fault).or_default() += 1;
    }

    pub(super) fn into_counts(self) -> BTreeMap<Fault, usize> {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Everything that faults can hit, with the faults of each.
pub(super) struct Stage {
    actors: Vec<(Actor, Vec<Event>)>,
    _stores: TempDir,
}

/// The target of one track.
enum Actor {
    Worker(ChaosWorker),
    Guest(ChaosWorker),
    Host(ChaosHost),
    Link(Arc<Proxy>),
    Tab(ChaosTab),
}

impl Stage {
    /// Starts all workers and tabs except guests.
    pub(super) async fn set(hub: &Hub, config: &Config, browser: Option<Arc<Browser>>) -> Result<Self> {
        let stores = tempfile::tempdir()?;
        let mut links = Vec::new();
        for index in 0..config.n_workers {
            let seed = config.seed.wrapping_add(index as u64 * 0x1_0000);
            let link = Proxy::start_from(hub.address()?, Link::Open, seed, address_of(index)).await?;
            links.push(Arc::new(link));
        }
        let mut actors = Vec::new();
        for track in config.tracks() {
            let actor = match track {
                Track::Worker(index) => {
                    let join_url = hub.join_url_by(links[index].address)?;
                    let mut post =
                        ChaosWorker::new(config, format!("worker-{index}"), join_url, &stores, track);
                    post.start()?;
                    Actor::Worker(post)
                }
                Track::Guest(index) => {
                    let name = format!("guest-{index}");
                    Actor::Guest(ChaosWorker::new(config, name, hub.join_url.clone(), &stores, track))
                }
                Track::Host(index) => {
                    let host = Arc::new(Host::new().context("a host of its own for a worker")?);
                    let (name, join_url) = (format!("host-{index}"), hub.join_url_from(&host)?);
                    let mut post = ChaosWorker::new(config, name, join_url, &stores, track);
                    post.moex = post.moex.on(host.clone());
                    post.start()?;
                    Actor::Host(ChaosHost { host, post })
                }
                Track::Link(index) => Actor::Link(links[index].clone()),
                Track::Tab(_) => {
                    let browser = browser.clone().context("tabs want a browser")?;
                    let tab = Some(browser.open(&hub.join_url).await?);
                    Actor::Tab(ChaosTab { browser, join_url: hub.join_url.clone(), tab })
                }
            };
            actors.push((actor, script(track, config.seed, config.length)));
        }
        Ok(Self { actors, _stores: stores })
    }

    /// Runs the script, all tracks at once.
    pub(super) async fn play(self, begin: Instant, tally: &Tally) -> Result<Self> {
        let playing = self.actors.into_iter().map(async |(mut actor, events)| {
            for event in &events {
                sleep_until(begin + event.at).await;
                tally.count(event.fault);
                actor.suffer(event).await?;
            }
            Ok::<_, anyhow::Error>((actor, events))
        });
        Ok(Self { actors: try_join_all(playing).await?, _stores: self._stores })
    }

    /// Checks that every worker that should be running still is.
    pub(super) fn check(&mut self) -> Result<()> {
        for (actor, _) in &mut self.actors {
            if let Actor::Worker(post) | Actor::Host(ChaosHost { post, .. }) = actor {
                let ended = post.worker.as_mut().context("a worker was not restarted")?.ended()?;
                ensure!(ended.is_none(), "{} ended by itself: {ended:?}", post.name);
            }
        }
        Ok(())
    }
}

impl Actor {
    /// Applies an event's fault, and undoes it when its time is over.
    async fn suffer(&mut self, event: &Event) -> Result<()> {
        let Event { lasting, fault, .. } = *event;
        match self {
            Self::Worker(post) => match fault {
                Fault::Stop => {
                    post.signal(Signal::STOP)?;
                    sleep(lasting).await;
                    post.signal(Signal::CONT)?;
                }
                Fault::Leave => {
                    post.leave().await?;
                    sleep(lasting).await;
                    post.start()?;
                }
                _ => {
                    post.worker = None;
                    sleep(lasting).await;
                    post.start()?;
                }
            },
            Self::Guest(post) => {
                post.start()?;
                sleep(lasting).await;
                post.worker = None;
            }
            Self::Host(house) => house.suffer(fault, lasting).await?,
            Self::Link(proxy) => {
                match link(fault) {
                    Some(link) => proxy.set(link),
                    None => proxy.reset(),
                }
                sleep(lasting).await;
                proxy.set(Link::Open);
            }
            Self::Tab(seat) => seat.suffer(fault, lasting).await?,
        }
        Ok(())
    }
}

/// The address at which the hub sees the worker behind link `index`; each worker has its own, where the system allows
/// that.
fn address_of(index: usize) -> Ipv4Addr {
    match u8::try_from(index) {
        Ok(index) if cfg!(target_os = "linux") => Ipv4Addr::new(127, 0, 1, index),
        _ => Ipv4Addr::LOCALHOST,
    }
}

/// The link that a fault produces; `None` for a reset, which ends at once.
fn link(fault: Fault) -> Option<Link> {
    let calm = Weather::default();
    let weather = match fault {
        Fault::Delay => Weather { delay: Duration::from_millis(40), ..calm },
        Fault::Jitter => Weather { jitter: Duration::from_millis(60), ..calm },
        Fault::Hiccups => {
            Weather { hiccup: Some(Hiccup { one_in: 10, pause: Duration::from_millis(300) }), ..calm }
        }
        Fault::Slow => Weather { bytes_per_second: Some(50_000), ..calm },
        Fault::Stall => return Some(Link::Stalled),
        Fault::Cut => return Some(Link::Cut),
        _ => return None,
    };
    Some(Link::Shaped { up: weather, down: weather })
}

/// A worker's process, running or not: its key and its store are kept.
struct ChaosWorker {
    moex: Moex,
    name: String,
    join_url: String,
    store: PathBuf,
    key: String,
    worker: Option<Worker>,
}

impl ChaosWorker {
    fn new(config: &Config, name: String, join_url: String, stores: &TempDir, track: Track) -> Self {
        let n = match track {
            Track::Guest(index) => 0x100 + index,
            Track::Host(index) => 0x200 + index,
            Track::Worker(index) | Track::Link(index) | Track::Tab(index) => 1 + index,
        };
        let store = stores.path().join(&name);
        Self { moex: config.moex.clone(), name, join_url, store, key: format!("{n:032x}"), worker: None }
    }

    fn start(&mut self) -> Result<()> {
        let store = self.store.display().to_string();
        let args = ["--key", &self.key, "--store", &store, "--memory", MEMORY];
        self.worker = Some(self.moex.worker(&self.name, &self.join_url, &args)?);
        Ok(())
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        self.worker.as_ref().context("the worker does not run")?.signal(signal)
    }

    /// Asks the process to end, and waits until it has ended.
    async fn leave(&mut self) -> Result<()> {
        self.signal(Signal::TERM)?;
        let worker = self.worker.as_mut().context("the worker does not run")?;
        let deadline = Instant::now() + PATIENCE;
        while worker.ended()?.is_none() {
            ensure!(Instant::now() < deadline, "{} does not end when it is asked to", self.name);
            sleep(Duration::from_millis(10)).await;
        }
        self.worker = None;
        Ok(())
    }
}

/// A worker on its own host.
struct ChaosHost {
    host: Arc<Host>,
    post: ChaosWorker,
}

impl ChaosHost {
    async fn suffer(&mut self, fault: Fault, lasting: Duration) -> Result<()> {
        if fault == Fault::PowerCut {
            self.host.cut_power()?;
            self.post.worker = None;
            sleep(lasting).await;
            self.host.boot()?;
            self.post.start()
        } else {
            self.host.unplug()?;
            sleep(lasting).await;
            self.host.plug()
        }
    }
}

/// A tab, open or closed.
struct ChaosTab {
    browser: Arc<Browser>,
    join_url: String,
    tab: Option<Tab>,
}

impl ChaosTab {
    async fn suffer(&mut self, fault: Fault, lasting: Duration) -> Result<()> {
        let tab = self.tab.take().context("no tab is open")?;
        if fault == Fault::FreezeTab {
            tab.freeze().await?;
            sleep(lasting).await;
            tab.close().await?;
        } else {
            tab.close().await?;
            sleep(lasting).await;
        }
        self.tab = Some(self.browser.open(&self.join_url).await?);
        Ok(())
    }
}
