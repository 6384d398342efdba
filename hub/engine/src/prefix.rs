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

use moex_model::{KvPool, KvTable, PAGE_POSITIONS, PageId};

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
    page: PageId,
    parent: Option<usize>,
    children: Vec<usize>,
    used: u64,
}

impl PrefixCache {
    /// Fills the empty `table` with cached pages for a prefix of `ids`; returns the number of tokens.
    pub(super) fn take_up(&mut self, ids: &[u32], kv: &mut KvPool, table: &mut KvTable) -> usize {
        self.now += 1;
        let (mut at, mut n) = (None, 0);
        while let Some((node, n_common)) = self.best_child(at, &ids[n..]) {
            self.nodes[node].used = self.now;
            let page = self.nodes[node].page;
            if n_common == PAGE_POSITIONS {
                kv.share(table, page);
                (at, n) = (Some(node), n + n_common);
                continue;
            }
            if kv.copy(table, page) {
                n += n_common;
            }
            break;
        }
        n
    }

    /// Caches the pages of `table`, which hold `ids`. The last page may be partial once nobody writes to it.
    pub(super) fn keep(&mut self, ids: &[u32], kv: &mut KvPool, table: &KvTable) {
        self.now += 1;
        let mut at = None;
        for (tokens, page) in ids.chunks(PAGE_POSITIONS).zip(table.pages()) {
            let node = match self.best_child(at, tokens) {
                Some((node, n_common)) if n_common == tokens.len() => node,
                // The cached page was partial, and this one holds more.
                Some((node, n_common)) if n_common == self.nodes[node].tokens.len() => {
                    let shorter = std::mem::replace(&mut self.nodes[node].page, page);
                    if shorter != page {
                        kv.let_go(shorter);
                    }
                    kv.keep(page);
                    self.nodes[node].tokens = tokens.to_vec();
                    node
                }
                _ => {
                    kv.keep(page);
                    self.insert(Node {
                        tokens: tokens.to_vec(),
                        page,
                        parent: at,
                        children: Vec::new(),
                        used: 0,
                    })
                }
            };
            self.nodes[node].used = self.now;
            at = Some(node);
        }
    }

    /// Frees the least recently used leaf page that no sequence uses; returns false if there is none.
    pub(super) fn let_one_go(&mut self, kv: &mut KvPool) -> bool {
        let is_idle = |node: &Node| node.children.is_empty() && kv.is_idle(node.page);
        let idle = self.in_use().filter(|(_, node)| is_idle(node));
        let Some((oldest, _)) = idle.min_by_key(|(_, node)| node.used) else { return false };
        let node = &mut self.nodes[oldest];
        node.tokens.clear();
        kv.let_go(node.page);
        let parent = node.parent;
        self.children(parent).retain(|child| *child != oldest);
        self.unused.push(oldest);
        true
    }

    /// Forgets all pages.
    pub(super) fn clear(&mut self, kv: &mut KvPool) {
        self.in_use().for_each(|(_, node)| kv.let_go(node.page));
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

#[cfg(test)]
mod tests {
    use moex_model::KvLayout;

    use super::*;

    const PAGE: u32 = PAGE_POSITIONS as u32;

    fn pool(n_pages: usize) -> KvPool {
        let layout = KvLayout {
            n_layers: 1,
            n_kv_heads: 1,
            head_width: 1,
            packed: None,
            state_lens: Vec::new(),
            max_positions: 1 << 20,
        };
        let budget = n_pages * PAGE_POSITIONS * layout.position_bytes();
        KvPool::new(layout, budget, 1)
    }

    /// A text that comes and goes.
    fn read(cache: &mut PrefixCache, kv: &mut KvPool, ids: &[u32]) -> usize {
        let mut table = KvTable::default();
        let n = cache.take_up(ids, kv, &mut table);
        while !kv.reserve(&mut table, ids.len()) {
            assert!(cache.let_one_go(kv), "room for {} tokens", ids.len());
        }
        cache.keep(ids, kv, &table);
        kv.release(&mut table);
        n
    }

    #[test]
    fn a_text_takes_up_what_it_has_in_common_with_an_earlier_one() {
        let (mut cache, mut kv) = (PrefixCache::default(), pool(64));
        let first: Vec<u32> = (0..2 * PAGE + 7).collect();
        assert_eq!(read(&mut cache, &mut kv, &first), 0);
        assert_eq!(read(&mut cache, &mut kv, &first), first.len());
        let longer: Vec<u32> = (0..3 * PAGE + 1).collect();
        assert_eq!(read(&mut cache, &mut kv, &longer), first.len(), "to the middle of a page");
        assert_eq!(read(&mut cache, &mut kv, &longer), longer.len(), "the fuller page is in its place");
        let mut other = longer.clone();
        other[40] = 9999;
        assert_eq!(read(&mut cache, &mut kv, &other), 40);
        assert_eq!(read(&mut cache, &mut kv, &other), other.len());
        assert_eq!(read(&mut cache, &mut kv, &[5, 6]), 0);
        assert_eq!(kv.free_pages(), 64 - 4 - 3 - 1, "the first page of `longer` and `other` is one");
    }

    #[test]
    fn what_was_used_longest_ago_goes_first_and_ends_before_beginnings() {
        let (mut cache, mut kv) = (PrefixCache::default(), pool(4));
        let text = |first: u32| -> Vec<u32> { (first..first + 2 * PAGE).collect() };
        read(&mut cache, &mut kv, &text(0));
        read(&mut cache, &mut kv, &text(1000));
        assert_eq!(read(&mut cache, &mut kv, &text(0)), 2 * PAGE_POSITIONS);
        assert_eq!((kv.free_pages(), kv.idle_pages()), (0, 4));
        assert!(cache.let_one_go(&mut kv));
        let mut table = KvTable::default();
        assert_eq!(cache.take_up(&text(1000), &mut kv, &mut table), PAGE_POSITIONS, "its end is gone");
        assert_eq!(kv.idle_pages(), 2, "a page in use is not idle");
        assert!(cache.let_one_go(&mut kv) && cache.let_one_go(&mut kv) && !cache.let_one_go(&mut kv));
        kv.release(&mut table);
        assert!(cache.let_one_go(&mut kv));
        assert_eq!(kv.free_pages(), 4);
    }
}
