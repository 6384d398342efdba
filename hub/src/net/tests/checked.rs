//! Checks of answers, in a room with a worker.

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
