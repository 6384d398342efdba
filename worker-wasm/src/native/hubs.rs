//! The hubs of a native worker: their routes, their certificates' trust, and the worker's final result.

use std::sync::Arc;
use std::time::Duration;

use moex_protocol::WorkerId;
use tokio::time::timeout;

use super::fetch::Fetcher;
use super::join_url::JoinUrl;
use super::memory::Memory;
use super::route::Route;
use super::store::BlockStore;
use super::tls::{Trust, client_tls};
use super::{WorkerError, WorkerOptions};
use crate::core::Ending;

/// Maximum number of hubs.
const MAX_HUBS: usize = 64;
/// How long the hubs may take to refuse the worker before it connects. A slower one refuses it when it connects.
const ADMISSION_TIMEOUT: Duration = Duration::from_secs(3);

/// One hub.
pub(super) struct Hub {
    pub(super) token: String,
    pub(super) memory: Memory,
    pub(super) route: Arc<Route>,
    pub(super) fetcher: Fetcher,
}

/// Parses the join URLs of the options; a hub must not occur twice.
pub(super) fn urls(options: &WorkerOptions) -> Result<Vec<JoinUrl>, WorkerError> {
    let parse = |hub: &super::HubOptions| JoinUrl::parse(&hub.join_url).map_err(WorkerError::JoinUrl);
    let urls = options.hubs.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
    let twice = urls.iter().enumerate().find(|(n, url)| urls[..*n].iter().any(|other| other.hub == url.hub));
    if let Some((_, url)) = twice {
        let message = format!("{} is given twice: a worker joins each hub once.", url.hub);
        return Err(WorkerError::JoinUrl(message));
    }
    if urls.is_empty() || urls.len() > MAX_HUBS {
        let message = format!("A worker joins 1 to {MAX_HUBS} hubs, not {}.", urls.len());
        return Err(WorkerError::JoinUrl(message));
    }
    Ok(urls)
}

/// The hubs of these URLs, not contacted yet.
pub(super) fn open(
    options: &WorkerOptions,
    urls: Vec<JoinUrl>,
    worker: WorkerId,
    store: Option<&BlockStore>,
) -> Result<Vec<Hub>, WorkerError> {
    let open = |(url, hub): (JoinUrl, &super::HubOptions)| {
        let trust = match (url.authority, &options.ca) {
            (Some(fingerprint), _) => Trust::Authority(fingerprint),
            (None, Some(path)) => Trust::File(path.clone()),
            (None, None) => Trust::System,
        };
        let is_https = url.hub.scheme() == "https";
        let tls = is_https.then(|| client_tls(&trust)).transpose().map_err(WorkerError::Tls)?;
        let fetcher = Fetcher::new(url.clone(), worker, store.cloned(), tls.clone());
        Ok(Hub {
            fetcher: fetcher.map_err(WorkerError::Device)?,
            route: Arc::new(Route::new(&url, &trust, tls).map_err(WorkerError::JoinUrl)?),
            token: url.token,
            memory: hub.memory,
        })
    };
    urls.into_iter().zip(&options.hubs).map(open).collect()
}

/// The hubs that do not refuse the worker at once.
///
/// # Errors
/// The last hub's refusal, if all refuse.
pub(super) async fn admitted(hubs: Vec<Hub>) -> Result<Vec<Hub>, WorkerError> {
    let is_only_one = hubs.len() == 1;
    let checks = hubs
        .iter()
        .map(async |hub| timeout(ADMISSION_TIMEOUT, hub.fetcher.check_token()).await.unwrap_or(Ok(())));
    let checks = futures_util::future::join_all(checks).await;
    let (mut admitted, mut refused) = (Vec::new(), None);
    for (hub, check) in hubs.into_iter().zip(checks) {
        match check {
            Ok(()) => admitted.push(hub),
            Err(reason) if is_only_one => refused = Some(reason),
            Err(reason) => {
                tracing::warn!(%reason, url = hub.route.url(), "joining this hub failed");
                refused = Some(reason);
            }
        }
    }
    match refused {
        Some(reason) if admitted.is_empty() => Err(WorkerError::Stopped(reason)),
        _ => Ok(admitted),
    }
}

/// The worker's result from its hubs' results: one hub's error, unless the worker was told to end.
pub(super) fn outcome(hubs: &[Hub], endings: Vec<Ending>) -> Result<(), WorkerError> {
    if endings.contains(&Ending::Left) {
        return Ok(());
    }
    let error = |(hub, ending): (&Hub, Ending)| match ending {
        Ending::Left => None,
        Ending::Stopped(reason) => Some(WorkerError::Stopped(reason)),
        Ending::DeviceFailed(reason) => Some(WorkerError::Device(reason)),
        Ending::Unreachable(reason) => Some(WorkerError::NoHub { url: hub.route.url().to_owned(), reason }),
    };
    hubs.iter().zip(endings).filter_map(error).next_back().map_or(Ok(()), Err)
}
