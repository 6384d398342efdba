//! The prefix cache: keeps KV pages of finished sequences for prompts that begin with the same tokens.
//!
//! ```text
//! root ─┬─ [32 tokens] ── [32 tokens] ─┬─ [32 tokens]
//!       │                              └─ [7 tokens]      the end of a text: its page is not full
//!       └─ [32 tokens] ── [19 tokens]
//! ```
//! A tree: a node is a page with its tokens, valid only after the tokens above it. Tokens are compared, not hashes.
//! Sequences share full pages; of a page in whose middle a sequence diverges it gets a copy. If memory is needed, the
//! least recently used unreferenced page is evicted, leaves before their parents.
//!
//! Pages of layers with windows are optional: a sequence gives them back while it goes on, and they are evicted from the
//! middle of a text too. A prefix is reused up to where the window of the next row has all of its pages.

#[cfg(test)]
mod tests;

use std::slice;

use moex_model::{Block, KvPool, KvTable, PAGE_POSITIONS, PageId};
use smallvec::SmallVec;

/// The cached pages; the cache holds a reference to each.
#[derive(Default)]
pub(super) struct PrefixCache {
    nodes: Vec<Node>,
    /// Free entries of the node list.
    unused: Vec<usize>,
    roots: Vec<usize>,
    /// Logical clock, advanced by each lookup.
    now: u64,
}

struct Node {
    /// 1 to [`PAGE_POSITIONS`].
    tokens: Vec<u32>,
    /// Of the layers that see all positions.
    lasting: Pages,
    /// Of the layers with windows; none if there are none any more.
    windowed: Pages,
    parent: Option<usize>,
    children: Vec<usize>,
    used: u64,
    /// When its windowed pages were last used: seldom in the middle of a text.
    windowed_used: u64,
}

/// One page in a model without windows.
type Pages = SmallVec<[PageId; 1]>;

/// What [`PrefixCache::let_one_go`] may free.
enum Idle {
    Leaf(usize),
    Windowed(usize),
}

impl Node {
    fn pages(&self) -> impl Iterator<Item = &PageId> {
        self.lasting.iter().chain(&self.windowed)
    }
}

impl PrefixCache {
    /// Fills the empty `table` with cached pages for a prefix of `ids`; returns the number of tokens.
    pub(super) fn take_up(&mut self, ids: &[u32], kv: &mut KvPool, table: &mut KvTable) -> usize {
        self.now += 1;
        let mut path = self.path(ids);
        loop {
            let n = self.cut_to_seen(&mut path, kv);
            if self.fill(&path, kv.first_seen_block(n), kv, table) {
                return n;
            }
            // No page is free for the copy of the last.
            kv.release(table);
            path.pop();
        }
    }

    /// Appends the pages of `path` to `table`, windowed ones from block `first_windowed` on; false if none is free for a copy.
    fn fill(
        &mut self,
        path: &[(usize, usize)],
        first_windowed: usize,
        kv: &mut KvPool,
        table: &mut KvTable,
    ) -> bool {
        for (index, (node, n_common)) in path.iter().enumerate() {
            let node = &mut self.nodes[*node];
            let mut block = Block { lasting: &node.lasting, windowed: &[] };
            node.used = self.now;
            if index >= first_windowed {
                block.windowed = &node.windowed;
                node.windowed_used = self.now;
            }
            if *n_common == PAGE_POSITIONS {
                kv.share(table, block);
            } else if !kv.copy(table, block) {
                return false;
            }
        }
        true
    }

    /// The nodes that `ids` begin with, and how many tokens they have in common with each: of all but the last, all.
    fn path(&self, ids: &[u32]) -> Vec<(usize, usize)> {
        let (mut path, mut n) = (Vec::new(), 0);
        while let Some((node, n_common)) = self.best_child(path.last().map(|(node, _)| *node), &ids[n..]) {
            path.push((node, n_common));
            n += n_common;
            if n_common < PAGE_POSITIONS {
                break;
            }
        }
        path
    }

    /// Cuts `path` to the longest after which the next row finds all that it sees; returns the number of tokens.
    fn cut_to_seen(&self, path: &mut Vec<(usize, usize)>, kv: &KvPool) -> usize {
        let (mut n, mut n_longest, mut blocks) = (0, 0, 0);
        // From which block on windowed pages are there without a gap.
        let mut first_there = 0;
        for (index, (node, n_common)) in path.iter().enumerate() {
            n += n_common;
            if kv.has_windows() && self.nodes[*node].windowed.is_empty() {
                first_there = index + 1;
            }
            if first_there <= kv.first_seen_block(n) {
                (n_longest, blocks) = (n, index + 1);
            }
        }
        path.truncate(blocks);
        n_longest
    }

    /// Caches the pages of `table`, which hold `ids`. The last page may be partial once nobody writes to it.
    pub(super) fn keep(&mut self, ids: &[u32], kv: &mut KvPool, table: &KvTable) {
        self.now += 1;
        let mut at = None;
        for (index, tokens) in ids.chunks(PAGE_POSITIONS).enumerate() {
            let Block { lasting, windowed } = kv.block(table, index);
            let (lasting, windowed) = (Pages::from_slice(lasting), Pages::from_slice(windowed));
            let node = match self.best_child(at, tokens) {
                Some((node, n_common)) if n_common == tokens.len() => {
                    let cached = &mut self.nodes[node];
                    // Its windowed pages were freed since, and these hold as much.
                    if cached.windowed.is_empty() && cached.tokens.len() == n_common {
                        kv.keep(&windowed);
                        cached.windowed = windowed;
                        cached.windowed_used = self.now;
                    }
                    node
                }
                // The cached page was partial, and this one holds more.
                Some((node, n_common)) if n_common == self.nodes[node].tokens.len() => {
                    let cached = &mut self.nodes[node];
                    for shorter in
                        cached.pages().filter(|page| !lasting.contains(page) && !windowed.contains(page))
                    {
                        kv.let_go(slice::from_ref(shorter));
                    }
                    kv.keep(&lasting);
                    kv.keep(&windowed);
                    (cached.lasting, cached.windowed) = (lasting, windowed);
                    cached.tokens = tokens.to_vec();
                    cached.windowed_used = self.now;
                    node
                }
                _ => {
                    kv.keep(&lasting);
                    kv.keep(&windowed);
                    self.insert(Node {
                        tokens: tokens.to_vec(),
                        lasting,
                        windowed,
                        parent: at,
                        children: Vec::new(),
                        used: 0,
                        windowed_used: self.now,
                    })
                }
            };
            self.nodes[node].used = self.now;
            at = Some(node);
        }
    }

    /// Frees pages that no sequence uses: the least recently used leaf's, or windowed ones of any node; returns false if there
    /// are none.
    pub(super) fn let_one_go(&mut self, kv: &mut KvPool) -> bool {
        let is_idle = |page: &PageId| kv.is_idle(*page);
        let idle = self.in_use().filter_map(|(index, node)| {
            if node.children.is_empty() && node.pages().all(is_idle) {
                return Some((node.used, Idle::Leaf(index)));
            }
            let is_freed = !node.windowed.is_empty() && node.windowed.iter().all(is_idle);
            is_freed.then_some((node.windowed_used, Idle::Windowed(index)))
        });
        let Some((_, oldest)) = idle.min_by_key(|(used, _)| *used) else { return false };
        match oldest {
            Idle::Windowed(node) => kv.let_go(&std::mem::take(&mut self.nodes[node].windowed)),
            Idle::Leaf(index) => {
                let node = &mut self.nodes[index];
                node.tokens.clear();
                kv.let_go(&std::mem::take(&mut node.lasting));
                kv.let_go(&std::mem::take(&mut node.windowed));
                let parent = node.parent;
                self.children(parent).retain(|child| *child != index);
                self.unused.push(index);
            }
        }
        true
    }

    /// Forgets all pages.
    pub(super) fn clear(&mut self, kv: &mut KvPool) {
        self.in_use().flat_map(|(_, node)| node.pages()).for_each(|page| kv.let_go(slice::from_ref(page)));
        *self = Self { now: self.now, ..Self::default() };
    }

    fn in_use(&self) -> impl Iterator<Item = (usize, &Node)> {
        self.nodes.iter().enumerate().filter(|(_, node)| !node.tokens.is_empty())
    }

    /// The child with the longest common prefix with `ids`, and its length: at least one.
    fn best_child(&self, parent: Option<usize>, ids: &[u32]) -> Option<(usize, usize)> {
        let children = parent.map_or(&self.roots, |parent| &self.nodes[parent].children);
        let common = |child: &usize| (*child, n_common(&self.nodes[*child].tokens, ids));
        children.iter().map(common).filter(|(_, n)| *n > 0).max_by_key(|(_, n)| *n)
    }

    fn insert(&mut self, node: Node) -> usize {
        let parent = node.parent;
        let index = match self.unused.pop() {
            Some(index) => {
                self.nodes[index] = node;
                index
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() - 1
            }
        };
        self.children(parent).push(index);
        index
    }

    fn children(&mut self, parent: Option<usize>) -> &mut Vec<usize> {
        match parent {
            Some(parent) => &mut self.nodes[parent].children,
            None => &mut self.roots,
        }
    }
}

/// Length of the common prefix.
pub(super) fn n_common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
