//! The swarm page compared with the hub's status: the same numbers, and names as plain text.

use moex_tests::browser::Browser;
use moex_tests::hub::{Hub, Worker, workers};
use serde_json::json;

use super::{STORY, count};

#[tokio::test]
async fn the_swarm_page_says_who_computes_what_and_a_name_is_never_markup() {
    let hub = Hub::start(&["--no-hub-compute", "--replicas", "1"]).unwrap();
    let name = "<img src=x onerror=alert(1)>";
    let _named = Worker::start(&hub.join_url, &["--name", name]).unwrap();
    let _other = Worker::start(&hub.join_url, &[]).unwrap();
    hub.wait_for_workers(2).await.unwrap();
    let browser = Browser::launch().await.unwrap();
    let (tab, complaints) = browser.open_heard(&format!("{}/swarm", hub.url)).await.unwrap();
    tab.until("document.querySelectorAll('.worker').length === 2").await.unwrap();
    hub.answer(&json!({ "messages": [{ "role": "user", "content": STORY }] })).await.unwrap();

    // No more requests are sent, so the page must come to show the hub's present status.
    let status = hub.status().await.unwrap();
    let layers = status["totals"]["layers"].as_u64().unwrap();
    assert!(layers > 0);
    let now = format!(
        "document.querySelector('#now-text').textContent.replace(',', '').includes(' {layers} layers')"
    );
    tab.until(&now).await.unwrap();
    let rows: Vec<f64> = workers(&status).map(|worker| worker["rows"].as_f64().unwrap()).collect();
    let all: f64 = rows.iter().sum();
    for (card, rows) in rows.iter().enumerate() {
        let share = format!("{}\u{a0}%", (100.0 * rows / all).round());
        let shown = format!(
            "document.querySelectorAll('.worker')[{card}].querySelector('dd').textContent === '{share}'"
        );
        tab.until(&shown).await.unwrap();
    }
    assert!(tab.text("#hub-share").await.unwrap().contains("computed 0\u{a0}% of the rows"));
    let names = tab
        .eval("[...document.querySelectorAll('.worker h3')].map((each) => each.textContent)")
        .await
        .unwrap();
    assert!(names.as_array().unwrap().contains(&json!(name)), "{names}");
    assert_eq!(count(&tab, "img").await, 0);

    // The map has a place for each expert, and experts that were used are warm.
    let experts = hub.get("/api/swarm/experts").await.unwrap();
    let load =
        experts["layers"].as_array().unwrap().iter().flat_map(|layer| layer["load"].as_array().unwrap());
    let hottest = load.filter_map(serde_json::Value::as_u64).max().unwrap();
    tab.until(&format!("document.querySelector('#hottest')?.textContent.includes(': {hottest} rows')"))
        .await
        .unwrap();
    assert_eq!(tab.eval("[map.width, map.height].join()").await.unwrap(), "16,4");
    tab.until("document.querySelector('.chart svg').getAttribute('aria-label').startsWith('Tokens: ')")
        .await
        .unwrap();
    assert_eq!(complaints.heard(), Vec::<String>::new());
    browser.close().await.unwrap();
}
