//! Checks of answers, in a room with a worker.

use std::time::Instant;

use moex_kernels::simd::Simd;

use super::projections::Projections;
use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn what_answers_are_checked_by_is_made_before_the_first_answer() {
    let running = start(|_| {}).await;
    let _worker = running.join(1);
    let n_bytes = projection_bytes(16, HIDDEN, 32) - projection_bytes(0, HIDDEN, 32);
    running.wait_until("all are made", |status| status.verification.bytes == n_bytes as u64).await;
    // At first the hub computes beside the new worker, and may be sooner.
    let mut verification = running.server.handle().status().await.verification;
    for seed in 0..200 {
        if verification.checked > 0 {
            break;
        }
        let [ours, alone] = running.apply(seed).await;
        assert_eq!(ours, alone);
        verification = running.server.handle().status().await.verification;
    }
    assert!(verification.checked > 0, "{verification:?}");
    assert_eq!(verification.recomputed, 0, "{verification:?}");
}

#[test]
fn what_is_made_ahead_pushes_out_nothing_that_is_in_use() {
    let folder = tempfile::tempdir().unwrap();
    let packing = Packing::To(WeightFormat::Int4G128.into());
    let store = Arc::new(ShardStore::open(folder.path(), &tiny(), packing, &|_, _| {}).unwrap());
    let of_one = projection_bytes(1, HIDDEN, 32) - projection_bytes(0, HIDDEN, 32);
    let projections = Projections::start(store, Simd::detect(), 3 * of_one).unwrap().unwrap();
    let blocks = |n| (0..n).map(|expert| Block { layer: LayerId(0), expert: ExpertId(expert) });
    projections.prepare(blocks(8));
    let start = Instant::now();
    let soon = |what: &str| {
        assert!(start.elapsed() < Duration::from_secs(10), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    };
    while projections.n_bytes() < 3 * of_one {
        soon("three are made");
    }
    projections.prepare(blocks(8));
    std::thread::sleep(Duration::from_millis(50));
    let mut found = Vec::new();
    projections.of(blocks(3), &mut found);
    assert!(found.iter().all(Option::is_some));
    // Whoever is answered for has one made.
    projections.of(blocks(4).skip(3), &mut found);
    while found[0].is_none() {
        soon("the fourth is made");
        projections.of(blocks(4).skip(3), &mut found);
    }
    assert_eq!(projections.n_bytes(), 3 * of_one);
}
