//! Texts that begin alike, with and without windows.

use moex_model::KvLayout;

use super::*;

const PAGE: u32 = PAGE_POSITIONS as u32;

fn pool(n_pages: usize) -> KvPool {
    pool_of(vec![None], n_pages)
}

fn pool_of(windows: Vec<Option<usize>>, n_pages: usize) -> KvPool {
    let layout = KvLayout {
        windows,
        n_kv_heads: 1,
        head_width: 1,
        packed: None,
        state_lens: Vec::new(),
        max_positions: 1 << 20,
    };
    let budget = n_pages * layout.page_bytes();
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

/// A layer that sees all positions, and one that sees 40: the window before a row is the last 39, in two blocks or three.
fn with_window(n_pages: usize) -> KvPool {
    pool_of(vec![None, Some(40)], n_pages)
}

/// A text that is read in chunks of a block and then goes, as the scheduler does it; returns what it took up.
fn read_in_chunks(cache: &mut PrefixCache, kv: &mut KvPool, ids: &[u32]) -> usize {
    let mut table = KvTable::default();
    let found = cache.take_up(ids, kv, &mut table);
    let mut cached = found;
    while cached < ids.len() {
        cached = (cached + PAGE_POSITIONS).min(ids.len());
        while !kv.reserve(&mut table, cached) {
            assert!(cache.let_one_go(kv), "room for {cached} tokens");
        }
        cache.keep(&ids[..cached / PAGE_POSITIONS * PAGE_POSITIONS], kv, &table);
        kv.release_unseen(&mut table, cached);
    }
    cache.keep(ids, kv, &table);
    kv.release(&mut table);
    found
}

#[test]
fn a_prefix_is_taken_up_to_where_the_next_row_finds_all_that_it_sees() {
    let (mut cache, mut kv) = (PrefixCache::default(), with_window(100));
    let ids: Vec<u32> = (0..8 * PAGE + 6).collect();
    // Generated, not read: what the window left on the way is in no cache. The row at 262 sees 223 to 262: it keeps
    // blocks 6, 7 and 8, from 192 on.
    let mut table = KvTable::default();
    for n in 1..=ids.len() {
        assert!(kv.reserve(&mut table, n));
        kv.release_unseen(&mut table, n);
    }
    cache.keep(&ids, &mut kv, &table);
    kv.release(&mut table);
    let mut found = |n: usize| {
        let n = cache.take_up(&ids[..n], &mut kv, &mut table);
        let pages = kv.pages_in_tables();
        kv.release(&mut table);
        (n, pages)
    };
    assert_eq!(found(262), (262, 9 + 3), "its end");
    assert_eq!(found(250), (250, 8 + 2), "the row at 250 sees 211 to 250: blocks 6 and 7");
    assert_eq!(found(231), (231, 8 + 2), "192 to 231");
    assert_eq!(found(230), (0, 0), "191 is gone");
    assert_eq!(kv.idle_pages(), 9 + 3);
}

#[test]
fn what_is_read_again_heals_the_middle_of_a_text() {
    let (mut cache, mut kv) = (PrefixCache::default(), with_window(100));
    let ids: Vec<u32> = (0..4 * PAGE).collect();
    assert_eq!(read_in_chunks(&mut cache, &mut kv, &ids), 0);
    assert_eq!(kv.idle_pages(), 8, "read, not generated: all is kept as long as there is memory");
    assert_eq!(read_in_chunks(&mut cache, &mut kv, &ids[..70]), 70);
    // 70 tokens have used the windowed pages of three blocks last, the text's own reading those of the fourth.
    for _ in 0..2 {
        assert!(cache.let_one_go(&mut kv));
    }
    assert_eq!(read_in_chunks(&mut cache, &mut kv, &ids), 96, "the last block is gone");
    let mut changed = ids.clone();
    changed[80] = 9999;
    assert_eq!(read_in_chunks(&mut cache, &mut kv, &changed), 80);
    let n_freed = (0..).take_while(|_| cache.let_one_go(&mut kv)).count();
    assert!(n_freed > 6, "windowed pages and whole leaves: {n_freed}");
    assert_eq!((kv.idle_pages(), kv.free_pages()), (0, 100), "nothing is lost");
    assert_eq!(read_in_chunks(&mut cache, &mut kv, &ids), 0);
    assert_eq!(read_in_chunks(&mut cache, &mut kv, &changed), 80);
}

#[test]
fn where_no_page_is_free_for_a_copy_less_is_taken_up() {
    // Four blocks are eight pages, and one more is free: too few for a copy, which is two.
    let (mut cache, mut kv) = (PrefixCache::default(), with_window(9));
    let ids: Vec<u32> = (0..4 * PAGE).collect();
    read_in_chunks(&mut cache, &mut kv, &ids);
    assert_eq!((kv.free_pages(), kv.idle_pages()), (1, 8));
    let mut table = KvTable::default();
    assert_eq!(cache.take_up(&ids[..110], &mut kv, &mut table), 96);
    assert_eq!(kv.pages_in_tables(), 3 + 2, "from 57 on");
}
