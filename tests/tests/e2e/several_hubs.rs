//! One native worker process between two hubs.

use moex_tests::hub::{Hub, Signal, Worker, workers};
use serde_json::Value;

/// The first conversations of the demo model.
pub(crate) fn cases(n: usize) -> Vec<Value> {
    let cases = std::fs::read_to_string(crate::data("demo-cases.jsonl")).unwrap();
    cases.lines().take(n).map(|line| serde_json::from_str(line).unwrap()).collect()
}

pub(crate) async fn answers(hub: &Hub, cases: &[Value]) -> Vec<String> {
    let mut answers = Vec::new();
    for case in cases {
        answers.push(hub.answer(case).await.unwrap());
    }
    answers
}

/// The bytes that one worker holds, according to the hub.
fn bytes_resident(status: &Value) -> u64 {
    workers(status).next().unwrap()["bytes_resident"].as_u64().unwrap()
}

#[tokio::test]
async fn one_worker_serves_two_hubs_with_formats_of_their_own_and_outlives_one() {
    let cases = cases(3);
    let formats = ["int4", "q8_0"];
    let mut expected = Vec::new();
    for format in formats {
        expected.push(answers(&Hub::start(&["--experts", format]).unwrap(), &cases).await);
    }
    // Without the hubs' own experts, the worker computes every answer.
    let hub = |format| Hub::start(&["--no-hub-compute", "--experts", format]).unwrap();
    let [first, second] = formats.map(hub);
    let mut worker = Worker::start(&first.join_url, &[&second.join_url, "--memory", "2GiB,1GiB"]).unwrap();
    let held = [
        bytes_resident(&first.wait_for_workers(1).await.unwrap()),
        bytes_resident(&second.wait_for_workers(1).await.unwrap()),
    ];
    assert!(held[0] > 0 && held[1] > held[0], "q8_0 takes more than int4: {held:?}");
    let (one, other) = tokio::join!(answers(&first, &cases), answers(&second, &cases));
    assert_eq!([&one, &other], [&expected[0], &expected[1]]);

    // One hub disconnects without notice: the other one still gets answers, from the same process.
    first.end(Signal::KILL).await.unwrap();
    assert_eq!(answers(&second, &cases).await, expected[1]);
    assert!(worker.ended().unwrap().is_none());
    assert_eq!(bytes_resident(&second.status().await.unwrap()), held[1]);
}

#[tokio::test]
async fn two_hubs_with_the_same_model_each_get_what_the_other_gets() {
    let cases = cases(2);
    let hubs = [(); 2].map(|()| Hub::start(&["--no-hub-compute"]).unwrap());
    let store = tempfile::tempdir().unwrap();
    let store = store.path().to_str().unwrap();
    let args = [&hubs[1].join_url, "--memory", "2GiB", "--store", store];
    let _worker = Worker::start(&hubs[0].join_url, &args).unwrap();
    for hub in &hubs {
        hub.wait_for_workers(1).await.unwrap();
    }
    let (one, other) = tokio::join!(answers(&hubs[0], &cases), answers(&hubs[1], &cases));
    assert_eq!(one, other);
    assert!(one.iter().all(|answer| !answer.is_empty()));
}

#[test]
fn a_hub_that_is_given_twice_or_shares_that_do_not_match_are_one_sentence() {
    let url = "http://127.0.0.1:9/join#t";
    for (args, words) in [
        (&["worker", url, url][..], "given twice"),
        (&["worker", url, "--memory", "1GiB,1GiB"][..], "2 sizes for 1 join URLs"),
    ] {
        let output = crate::run(args);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.lines().last().is_some_and(|line| line.contains(words)), "{said}");
    }
}
