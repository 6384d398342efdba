//! `moex serve --compress`: it changes bytes on the wire, and no text.

use moex_tests::hub::{Hub, Moex};
use moex_tests::proxy::{Link, Proxy, Weather};

use crate::several_hubs::{answers, cases};

#[tokio::test]
async fn compression_changes_no_text_whether_always_on_or_chosen_on_a_slow_link() {
    let cases = cases(2);
    let expected = answers(&Hub::start(&[]).unwrap(), &cases).await;
    for compress in ["on", "auto", "off"] {
        let hub = Hub::start(&["--no-hub-compute", "--compress", compress]).unwrap();
        let slow = Weather { bytes_per_second: Some(4_000_000), ..Weather::default() };
        let proxy =
            Proxy::start(hub.address().unwrap(), Link::Shaped { up: slow, down: slow }).await.unwrap();
        let join_url = hub.join_url_by(proxy.address).unwrap();
        let _worker = Moex::under_test().worker("worker", &join_url, &[]).unwrap();
        hub.wait_for_workers(1).await.unwrap();
        assert_eq!(answers(&hub, &cases).await, expected, "--compress {compress}");
    }
    let output = crate::run(&["serve", "--compress", "sometimes"]);
    assert_eq!(output.status.code(), Some(2));
}
