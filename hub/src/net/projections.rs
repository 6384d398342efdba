//! The projections by which answers are checked: made on a thread of their own once a worker has a block, or when it is answered
//! for, kept within a bound, and made anew with other secrets every hour.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use moex_kernels::check::{Projection, Secrets};
use moex_kernels::simd::Simd;
use moex_protocol::Block;

use crate::priority;
use crate::shards::ShardStore;

/// Bytes that projections take at most: those that were used longest ago go first. 18,700 experts of Qwen3-30B-A3B.
pub(super) const MAX_PROJECTION_BYTES: usize = 512 << 20;
/// Blocks that wait to be projected. One that finds no place is asked for again when it is answered for.
const MAX_WAITING: usize = 1 << 15;
/// How long secrets are used. A worker that passes or fails learns next to nothing; it has an hour to learn it.
const SECRETS_AGE: Duration = Duration::from_hours(1);
/// Projecting all blocks anew costs a minute of a core for a large model: those in use keep theirs until then.
const KEPT_GENERATIONS: u64 = 1;

/// Bytes that the projections of `n_blocks` blocks of experts of D `hidden` and F `inner` take, with their secrets.
pub(crate) fn projection_bytes(n_blocks: usize, hidden: usize, inner: usize) -> usize {
    let all = n_blocks.saturating_mul(Projection::n_bytes(hidden, inner)).min(MAX_PROJECTION_BYTES);
    all.saturating_add((1 + KEPT_GENERATIONS as usize).saturating_mul(Secrets::n_bytes(hidden, inner)))
}

/// See the [module's description](self).
pub(super) struct Projections {
    table: Arc<Mutex<Table>>,
    /// Its thread ends when this is dropped.
    wanted: mpsc::SyncSender<Block>,
    /// Of one projection.
    bytes_of_one: usize,
}

struct Table {
    secrets: Arc<Secrets>,
    generation: u64,
    drawn: Instant,
    kept: HashMap<Block, CachedProjection>,
    n_bytes: usize,
    max_bytes: usize,
    /// At most [`MAX_WAITING`], and the one that is being projected.
    waiting: HashSet<Block>,
    /// Blocks that need not be made before they are answered for: they were once. Bounded by the model's blocks.
    prepared: HashSet<Block>,
    /// Counts what was looked up.
    n_uses: u64,
}

struct CachedProjection {
    projection: Arc<Projection>,
    generation: u64,
    last_use: u64,
}

impl Projections {
    /// Starts the thread that makes them of `store`'s blocks, within `max_bytes`; none if that has no experts.
    ///
    /// # Errors
    /// If the system gives no thread, or no random bytes.
    pub(super) fn start(
        store: Arc<ShardStore>,
        simd: Simd,
        max_bytes: usize,
    ) -> std::io::Result<Option<Self>> {
        let Some(shape) = store.widths() else { return Ok(None) };
        let table = Table {
            secrets: Arc::new(draw(shape)?),
            generation: 0,
            drawn: Instant::now(),
            kept: HashMap::new(),
            n_bytes: 0,
            max_bytes,
            waiting: HashSet::new(),
            prepared: HashSet::new(),
            n_uses: 0,
        };
        let table = Arc::new(Mutex::new(table));
        let (wanted, blocks) = mpsc::sync_channel(MAX_WAITING);
        let own = table.clone();
        thread::Builder::new().name("moex-projections".to_owned()).spawn(move || {
            // Until they are made the hub computes these experts itself, and needs its cores.
            priority::lower();
            for block in blocks {
                let projection = project(&store, simd, block, lock(&own).secrets_of_now(shape));
                lock(&own).made(block, projection);
            }
        })?;
        let bytes_of_one = Projection::n_bytes(shape.0, shape.1).max(1);
        Ok(Some(Self { table, wanted, bytes_of_one }))
    }

    /// The projection of each block; none where there is none yet, which has it made.
    pub(super) fn of(&self, blocks: impl IntoIterator<Item = Block>, out: &mut Vec<Option<Arc<Projection>>>) {
        let mut table = lock(&self.table);
        out.clear();
        for block in blocks {
            table.n_uses += 1;
            let (n_uses, generation) = (table.n_uses, table.generation);
            let kept = table.kept.get_mut(&block).map(|kept| {
                kept.last_use = n_uses;
                (kept.projection.clone(), kept.generation == generation)
            });
            if !matches!(kept, Some((_, true))) {
                self.want(&mut table, block);
            }
            out.push(kept.map(|(projection, _)| projection));
        }
    }

    /// Has the projections of blocks made that never were, so that the first answers for them need not wait; as many as there is room
    /// for beside those in use.
    pub(super) fn prepare(&self, blocks: impl Iterator<Item = Block>) {
        let mut table = lock(&self.table);
        let n_most = table.max_bytes / self.bytes_of_one;
        for block in blocks {
            if table.kept.len() + table.waiting.len() >= n_most {
                return;
            }
            if table.prepared.insert(block) && !table.kept.contains_key(&block) {
                self.want(&mut table, block);
            }
        }
    }

    fn want(&self, table: &mut Table, block: Block) {
        if table.waiting.insert(block) && self.wanted.try_send(block).is_err() {
            table.waiting.remove(&block);
        }
    }

    /// Bytes that are kept.
    pub(super) fn n_bytes(&self) -> usize {
        lock(&self.table).n_bytes
    }
}

impl Table {
    /// The secrets to project with: new ones if these are old. If the system gives no random bytes, the old ones.
    fn secrets_of_now(&mut self, widths: (usize, usize)) -> (Arc<Secrets>, u64) {
        if self.drawn.elapsed() >= SECRETS_AGE
            && let Ok(secrets) = draw(widths)
        {
            self.renew(secrets);
        }
        (self.secrets.clone(), self.generation)
    }

    fn renew(&mut self, secrets: Secrets) {
        (self.secrets, self.drawn) = (Arc::new(secrets), Instant::now());
        self.generation += 1;
        let oldest = self.generation.saturating_sub(KEPT_GENERATIONS);
        self.kept.retain(|_, kept| kept.generation >= oldest);
        self.n_bytes = self.kept.values().map(|kept| kept.projection.bytes()).sum();
    }

    fn made(&mut self, block: Block, made: Option<(Projection, u64)>) {
        self.waiting.remove(&block);
        let Some((projection, generation)) = made else { return };
        self.n_bytes += projection.bytes();
        let kept = CachedProjection { projection: Arc::new(projection), generation, last_use: self.n_uses };
        if let Some(old) = self.kept.insert(block, kept) {
            self.n_bytes -= old.projection.bytes();
        }
        while self.n_bytes > self.max_bytes {
            let oldest = self.kept.iter().min_by_key(|(_, kept)| kept.last_use).map(|(block, _)| *block);
            let Some(old) = oldest.and_then(|oldest| self.kept.remove(&oldest)) else { break };
            self.n_bytes -= old.projection.bytes();
        }
    }
}

/// None if the block cannot be read: then its answers are computed by the hub, which says why.
fn project(
    store: &ShardStore,
    simd: Simd,
    block: Block,
    (secrets, generation): (Arc<Secrets>, u64),
) -> Option<(Projection, u64)> {
    let shape = store.shape(block.layer)?;
    let view = shape.view(store.block(block).ok()?).ok()?;
    Some((Projection::new(simd, &view, secrets), generation))
}

/// Secrets from the operating system's random bytes, stretched by BLAKE3.
fn draw((hidden, inner): (usize, usize)) -> std::io::Result<Secrets> {
    let mut key = [0; 32];
    getrandom::fill(&mut key).map_err(std::io::Error::other)?;
    let mut stream = blake3::Hasher::new_keyed(&key).finalize_xof();
    Ok(Secrets::new(hidden, inner, || {
        let mut bytes = [0; 4];
        stream.fill(&mut bytes);
        u32::from_le_bytes(bytes)
    }))
}

fn lock(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}
