//! Pages come and go; what windows leave goes early.

use super::{contents::LayerRows, paging::Paging, *};
use crate::simd::{KvFormat, PAGE_POSITIONS};

fn layout() -> KvLayout {
    let state_lens = vec![3, 5];
    KvLayout {
        windows: vec![None; 4],
        n_kv_heads: 2,
        head_width: 8,
        packed: None,
        state_lens,
        max_positions: 2048,
    }
}

fn pool(pages: usize) -> KvPool {
    let layout = layout();
    let budget = pages * PAGE_POSITIONS * layout.position_bytes() + 100 * layout.state_bytes();
    KvPool::new(layout, budget, 100)
}

#[test]
fn pages_come_from_a_bounded_pool_and_go_back() {
    let mut pool = pool(3);
    assert_eq!(pool.max_positions(), 3 * PAGE_POSITIONS);
    let (mut a, mut b) = (KvTable::default(), KvTable::default());
    assert!(pool.reserve(&mut a, PAGE_POSITIONS + 1));
    assert!(pool.reserve(&mut a, 2 * PAGE_POSITIONS), "the second page has room");
    assert!(!pool.reserve(&mut b, PAGE_POSITIONS + 1), "one page is left");
    assert_eq!(pool.free_pages(), 1, "a refusal takes nothing");
    assert!(pool.reserve(&mut b, 1));
    pool.release(&mut a);
    assert_eq!(pool.free_pages(), 2);
    assert!(pool.reserve(&mut b, 3 * PAGE_POSITIONS));
    assert_eq!(pool.pages.len(), 3, "pages are used again");
}

#[test]
fn sequences_do_not_see_each_other() {
    let mut pool = pool(4);
    let width = pool.layout.width();
    let (mut a, mut b) = (KvTable::default(), KvTable::default());
    for position in 0..PAGE_POSITIONS + 3 {
        assert!(pool.reserve(&mut a, position + 1) && pool.reserve(&mut b, position + 1));
        pool.write(2, &a, position, &vec![position as f32; width], &vec![1.0; width]);
        pool.write(2, &b, position, &vec![-1.0; width], &vec![2.0; width]);
    }
    let LayerRows { keys, values, .. } = pool.rows(2, &a);
    assert_eq!(keys.len(), 2);
    assert_eq!(keys[1][2 * width], (PAGE_POSITIONS + 2) as f32);
    assert!(values[0].iter().all(|v| *v == 1.0));
    assert!(pool.rows(1, &a).keys[0].iter().all(|v| *v == 0.0), "another layer");
}

#[test]
fn a_page_is_free_when_its_last_holder_let_it_go_and_a_copy_is_its_own() {
    let mut pool = pool(3);
    let width = pool.layout.width();
    let (mut a, mut b) = (KvTable::default(), KvTable::default());
    assert!(pool.reserve(&mut a, 1));
    pool.write(1, &a, 0, &vec![1.0; width], &vec![2.0; width]);
    let page = a.lasting[0];
    let block = Block { lasting: &[page], windowed: &[] };
    pool.share(&mut b, block);
    pool.keep(&[page]);
    pool.release(&mut a);
    assert_eq!((pool.is_idle(page), pool.pages_in_tables()), (false, 1));
    pool.release(&mut b);
    assert_eq!((pool.is_idle(page), pool.pages_in_tables()), (true, 0));
    assert_eq!((pool.idle_pages(), pool.free_pages()), (1, 2));
    assert!(pool.copy(&mut b, block));
    pool.write(1, &b, 1, &vec![3.0; width], &vec![4.0; width]);
    let keys = pool.rows(1, &b).keys;
    assert_eq!((keys[0][0], keys[0][width]), (1.0, 3.0), "what was there, and what came");
    pool.share(&mut a, block);
    assert_eq!(pool.rows(1, &a).keys[0][width], 0.0, "the original is as it was");
    assert_eq!(pool.idle_pages(), 0);
    pool.let_go(&[page]);
    assert_eq!(pool.free_pages(), 1, "a table has it still");
    pool.release(&mut a);
    assert_eq!((pool.idle_pages(), pool.free_pages()), (0, 2));
    assert!(pool.reserve(&mut a, 2 * PAGE_POSITIONS) && !pool.copy(&mut b, block), "none is left");
}

#[test]
fn a_tiny_budget_is_one_page_and_a_huge_one_what_is_useful() {
    assert_eq!(pool(0).max_positions(), PAGE_POSITIONS);
    assert_eq!(KvPool::new(layout(), usize::MAX, 2).max_positions(), 2 * 2048);
}

#[test]
fn a_sequence_has_states_of_its_own_and_begins_with_zeros() {
    let mut pool = KvPool::new(layout(), usize::MAX, 2);
    let mut tables: [KvTable; 3] = Default::default();
    assert!(pool.reserve(&mut tables[0], 1) && pool.reserve(&mut tables[1], 1));
    assert!(!pool.reserve(&mut tables[2], 1), "two sequences");
    pool.state(1, &tables[0], 0).copy_from_slice(&[1.0; 5]);
    assert_eq!(pool.state(0, &tables[0], 1), [0.0; 3]);
    assert_eq!(pool.state(1, &tables[1], 1), [0.0; 5]);
    assert_eq!(pool.state(1, &tables[0], 1), [1.0; 5]);
    let [first, _, third] = &mut tables;
    pool.release(first);
    assert!(pool.reserve(third, 1));
    assert_eq!(pool.state(1, third, 0), [0.0; 5]);
}

/// Windows of 40 in all layers but every third: two pages of a block for those, one for the others.
fn with_windows(packed: Option<KvFormat>) -> KvLayout {
    let windows = vec![Some(40), Some(40), None, Some(40), Some(40), None];
    KvLayout { windows, packed, state_lens: Vec::new(), ..layout() }
}

#[test]
fn layers_share_pages_of_one_size_apart_from_those_with_windows() {
    let paging = |n_lasting: usize, n_windowed: usize| {
        let windows = [vec![None; n_lasting], vec![Some(9); n_windowed]].concat();
        let paging = Paging::of(&KvLayout { windows, ..layout() });
        (paging.layers_per_page, paging.n_lasting, paging.n_windowed)
    };
    assert_eq!(paging(48, 0), (48, 1, 0), "one page as without windows");
    assert_eq!(paging(12, 12), (12, 1, 1), "GPT-OSS 20b");
    assert_eq!(paging(10, 52), (2, 5, 26), "Gemma 3 27b");
    assert_eq!(paging(5, 29), (1, 5, 29), "Gemma 3 4b");
    assert_eq!(paging(0, 7), (7, 0, 1), "nothing lasts");
    assert_eq!(paging(0, 0), (0, 1, 0), "states alone");
    let wide = KvLayout { windows: vec![None, Some(2048)], ..layout() };
    assert_eq!(wide.window(), None, "as long as the longest sequence");
    assert_eq!(wide.pages_per_block(), 1);
}

#[test]
fn a_sequence_has_as_many_pages_as_its_windows_reach_and_each_layer_its_own_rows() {
    for packed in [None, Some(KvFormat::F32), Some(KvFormat::F16), Some(KvFormat::Q8_0)] {
        let layout = with_windows(packed);
        let mut pool = KvPool::new(layout.clone(), usize::MAX, 1);
        let width = layout.width();
        let mut table = KvTable::default();
        for position in 0..300 {
            assert!(pool.reserve(&mut table, position + 1));
            for layer in 0..6 {
                let value = (layer + position % 7) as f32;
                pool.write(layer, &table, position, &vec![value; width], &vec![-value; width]);
            }
            assert!(pool.pages_in_tables() <= pool.pages_of(position + 1, 1), "position {position}");
            pool.release_unseen(&mut table, position + 1);
        }
        // A row at 300 sees 261 to 300: from the ninth block on.
        assert_eq!((table.n_blocks, table.n_released), (10, 8));
        assert_eq!(pool.pages_in_tables(), 10 + 2 * 2);
        assert_eq!(pool.pages.len(), 10 + 2 * 3, "pages that windows left are used again");
        if packed.is_none() {
            for layer in 0..6 {
                let LayerRows { first, keys, .. } = pool.rows(layer, &table);
                assert_eq!(first, if layer % 3 == 2 { 0 } else { 256 });
                let row = (299 - first) % PAGE_POSITIONS * width;
                assert_eq!(keys[(299 - first) / PAGE_POSITIONS][row], (layer + 299 % 7) as f32);
            }
        }
        pool.release(&mut table);
        assert_eq!((pool.pages_in_tables(), table.n_blocks, table.n_released), (0, 0, 0));
    }
}

#[test]
fn a_released_page_stays_with_its_other_holders_and_a_copy_is_whole() {
    for packed in [None, Some(KvFormat::F16), Some(KvFormat::Q8_0)] {
        let layout = with_windows(packed);
        let mut pool = KvPool::new(layout.clone(), usize::MAX, 2);
        let width = layout.width();
        let (mut a, mut b, mut c) = (KvTable::default(), KvTable::default(), KvTable::default());
        assert!(pool.reserve(&mut a, 70));
        for (layer, position) in (0..6).flat_map(|layer| (0..70).map(move |position| (layer, position))) {
            let value = (layer + position) as f32;
            pool.write(layer, &a, position, &vec![value; width], &vec![-value; width]);
        }
        let blocks: Vec<(Vec<PageId>, Vec<PageId>)> = (0..3)
            .map(|n| pool.block(&a, n))
            .map(|block| (block.lasting.to_vec(), block.windowed.to_vec()))
            .collect();
        let block = |n: usize| Block { lasting: &blocks[n].0, windowed: &blocks[n].1 };
        pool.keep(block(1).windowed);
        // Its row at 71 sees 32 to 71, and so do those of the sequence that begins alike.
        pool.share(&mut b, Block { windowed: &[], ..block(0) });
        pool.share(&mut b, block(1));
        assert!(pool.copy(&mut b, block(2)));
        assert_eq!((b.n_blocks, b.n_released), (3, 1));
        pool.release_unseen(&mut a, 200);
        assert_eq!(a.n_released, 3, "no further than it has room");
        assert_eq!(pool.idle_pages(), 0, "the other table has what is kept");
        for layer in 0..6 {
            if packed.is_none() {
                let LayerRows { first, keys, values } = pool.rows(layer, &b);
                let at = |position: usize| {
                    ((position - first) / PAGE_POSITIONS, position % PAGE_POSITIONS * width)
                };
                for position in first..70 {
                    let (page, row) = at(position);
                    assert_eq!(keys[page][row], (layer + position) as f32);
                    assert_eq!(values[page][row], -((layer + position) as f32));
                }
            } else {
                assert_eq!(pool.packed_page(layer, &b, 1).len(), layout.shape().unwrap().page_bytes());
            }
        }
        let of_copy = b.block(&Paging::of(&layout), 2);
        assert!(of_copy.lasting.iter().chain(of_copy.windowed).all(|page| !blocks[2].0.contains(page)));
        pool.release(&mut a);
        pool.release(&mut b);
        assert_eq!((pool.pages_in_tables(), pool.idle_pages()), (0, 2));
        pool.let_go(&blocks[1].1);
        assert_eq!(pool.idle_pages(), 0);
        // With room for all, it has as many pages as before.
        assert!(pool.reserve(&mut c, 70));
        assert_eq!(pool.pages_in_tables(), 9);
    }
}

#[test]
fn positions_and_the_pages_that_they_need_are_each_others_inverse() {
    let layout = with_windows(None);
    // A row sees 40 positions and a step brings 32: in three blocks at most, or four.
    for (positions, pages) in [(32, 3), (96, 9), (128, 12), (160, 13), (2048, 64 + 8)] {
        let mut pool = KvPool::new(layout.clone(), usize::MAX, 1);
        assert_eq!(pool.pages_of(positions, PAGE_POSITIONS), pages, "{positions}");
        pool.set_max_pages(pages);
        assert_eq!(pool.max_positions(), positions);
        pool.set_max_pages(pages - 1);
        assert_eq!(pool.max_positions(), positions - PAGE_POSITIONS);
    }
    assert_eq!(layout.sequence_bytes(2048), 72 * layout.page_bytes());
    let lasting = KvLayout { windows: vec![Some(40); 2], ..layout };
    let mut pool = KvPool::new(lasting, usize::MAX, 1);
    pool.set_max_pages(4);
    assert_eq!(pool.max_positions(), 2048, "nothing grows beyond the window");
}
