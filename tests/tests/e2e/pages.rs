//! The chat page and the swarm page in a real Chromium: by localhost, and by an address with plain http as on a phone.

mod look;
mod markdown;
mod swarm;
mod talk;

use std::net::IpAddr;
use std::time::Duration;

use moex_tests::browser::{Browser, Tab};
use moex_tests::chat::API_KEY;
use moex_tests::host::Host;
use moex_tests::hub::{Hub, Moex};
use moex_tests::proxy::{Link, Proxy};
use serde_json::Value;

const STORY: &str = "Tell me a story about a bear.";
/// The last answer has ended, successfully or not.
const ENDED: &str = "document.querySelector('.assistant') && !document.querySelector('.writing')";

#[tokio::test]
async fn a_message_that_is_too_long_is_refused_in_words_and_stays_editable() {
    let hub = Hub::start(&[]).unwrap();
    let browser = Browser::launch().await.unwrap();
    let (tab, complaints) = browser.open_heard(&hub.url).await.unwrap();
    ask(&tab, "49 + 34 = ?").await;
    tab.until(ENDED).await.unwrap();

    let long = "word ".repeat(5000);
    ask(&tab, &long).await;
    tab.until("!refused.hidden").await.unwrap();
    let words = tab.text("#refused").await.unwrap();
    assert!(words.contains("too long") && words.contains("2048"), "{words}");
    assert_eq!(
        tab.eval("document.querySelector('#prompt').value").await.unwrap(),
        long.trim(),
        "the message is there to be shortened"
    );
    assert_eq!(count(&tab, ".message").await, 2, "it is no part of the conversation");

    tab.eval("document.querySelector('#prompt').value = ''").await.unwrap();
    ask(&tab, "51 + 20 = ?").await;
    tab.until(&format!("document.querySelectorAll('.message').length === 4 && {ENDED}")).await.unwrap();
    assert!(tab.text(".assistant:last-child .text:not(details *)").await.unwrap().contains("71"));
    assert_eq!(tab.eval("refused.hidden").await.unwrap(), true);
    tab.reload().await.unwrap();
    tab.until("document.querySelectorAll('.message').length === 4").await.unwrap();
    assert_eq!(complaints.heard(), Vec::<String>::new());
    browser.close().await.unwrap();
}

#[tokio::test]
async fn a_question_and_what_was_answered_survive_a_reload_in_mid_answer() {
    let hub = Hub::start(&[]).unwrap();
    let proxy = Proxy::start(hub.address().unwrap(), Link::Open).await.unwrap();
    let browser = Browser::launch().await.unwrap();
    let (tab, complaints) = browser.open_heard(&format!("http://{}", proxy.address)).await.unwrap();
    tab.until("model.textContent === 'moex-demo'").await.unwrap();
    proxy.set(Link::Slow(3000));
    tab.eval("thinking.click()").await.unwrap();
    ask(&tab, STORY).await;
    tab.until("document.querySelector('.writing')?.innerText.length > 40").await.unwrap();
    let before = tab.text(".writing").await.unwrap();
    // The link stays slow until the page has gone; otherwise the whole answer would arrive before that.
    tab.begin_reload().await.unwrap();
    tab.until("!document.querySelector('.writing')").await.unwrap();
    proxy.set(Link::Open);
    tab.until("document.querySelector('.assistant .notice')").await.unwrap();
    assert_eq!(tab.text(".user").await.unwrap(), STORY);
    let after = tab.text(".assistant").await.unwrap();
    let kept: String = before.chars().take(30).collect();
    assert!(after.contains(&kept) && after.contains("did not end"), "{before:?} became {after:?}");

    tab.click(".assistant .offers button").await.unwrap();
    tab.until("document.querySelector('.assistant .meta')").await.unwrap();
    assert_eq!(count(&tab, ".message").await, 2, "the answer is written in the place of the one cut off");
    assert_eq!(complaints.heard(), Vec::<String>::new());
    browser.close().await.unwrap();
}

#[tokio::test]
async fn several_conversations_are_kept_and_a_deletion_is_taken_back() {
    let hub = Hub::start(&[]).unwrap();
    let browser = Browser::launch().await.unwrap();
    let (tab, complaints) = browser.open_heard(&hub.url).await.unwrap();
    tab.look(1440, 900, false).await.unwrap();
    for question in ["49 + 34 = ?", "51 + 20 = ?"] {
        ask(&tab, question).await;
        tab.until(ENDED).await.unwrap();
        tab.click("#new").await.unwrap();
    }
    assert_eq!(count(&tab, ".message").await, 0);
    assert_eq!(titles(&tab).await, ["51 + 20 = ?", "49 + 34 = ?"]);

    tab.click("#chat-list li:nth-child(2) .open").await.unwrap();
    assert_eq!(tab.text(".user").await.unwrap(), "49 + 34 = ?");
    tab.reload().await.unwrap();
    tab.until("document.querySelector('.user')?.innerText === '49 + 34 = ?'").await.unwrap();

    tab.click("#chat-list li:nth-child(2) .bin").await.unwrap();
    tab.until("document.querySelectorAll('#chat-list li').length === 1").await.unwrap();
    assert_eq!(count(&tab, ".message").await, 0, "a deleted conversation is not shown");
    tab.click("#undo button").await.unwrap();
    tab.until("document.querySelector('.user')?.innerText === '49 + 34 = ?'").await.unwrap();
    assert_eq!(titles(&tab).await, ["51 + 20 = ?", "49 + 34 = ?"]);
    assert_eq!(complaints.heard(), Vec::<String>::new());
    browser.close().await.unwrap();
}

#[tokio::test]
async fn a_full_storage_is_said_and_the_chat_goes_on() {
    let hub = Hub::start(&[]).unwrap();
    let browser = Browser::launch().await.unwrap();
    let (tab, complaints) = browser.open_heard(&hub.url).await.unwrap();
    let fill = "for (let n = 2 ** 22; n >= 1; n >>= 1) try { for (let i = 0; ; i++) localStorage.setItem(`f${n}.${i}`, 'x'.repeat(n)) } catch {}";
    tab.eval(&format!("(() => {{ {fill} }})()")).await.unwrap();
    ask(&tab, "49 + 34 = ?").await;
    tab.until(ENDED).await.unwrap();
    assert!(tab.text("#unkept").await.unwrap().contains("full"));
    assert!(tab.text(".assistant").await.unwrap().contains("83"));
    assert_eq!(complaints.heard(), Vec::<String>::new());
    browser.close().await.unwrap();
}

/// However slowly a link carries the pieces of an answer, the page shows the hub's rate.
#[tokio::test]
async fn the_tokens_a_second_that_are_shown_are_the_engines_and_fit_the_wall_clock() {
    // What the stream takes for a token.
    const EVENT_BYTES: f64 = 270.0;
    // In f32 the answer takes long enough to be distinguished from the page's own time.
    let hub = Hub::start(&["--activations", "f32"]).unwrap();
    let proxy = Proxy::start(hub.address().unwrap(), Link::Open).await.unwrap();
    let browser = Browser::launch().await.unwrap();
    let (tab, complaints) = browser.open_heard(&format!("http://{}", proxy.address)).await.unwrap();
    tab.until("model.textContent === 'moex-demo'").await.unwrap();
    tab.eval("thinking.click(); temperature.value = '0'").await.unwrap();
    let (mut shown, mut link) = (Vec::new(), Link::Open);
    for _ in 0..2 {
        proxy.set(link);
        tab.eval("performance.clearResourceTimings()").await.unwrap();
        ask(&tab, STORY).await;
        tab.until("document.querySelector('.writing')").await.unwrap();
        tab.until(ENDED).await.unwrap();
        let millis = "performance.getEntriesByType('resource').find(({ name }) => name.endsWith('/completions')).duration";
        let wall_seconds = tab.eval(millis).await.unwrap().as_f64().unwrap() / 1e3;
        let meta = tab.text(".assistant:last-child .meta").await.unwrap();
        let (tokens, rate) = tokens_and_rate(&meta);
        println!("{link:?}: {tokens} tokens, {rate} tokens/s shown, {wall_seconds:.2} s by the page's clock");
        shown.push((tokens, rate, wall_seconds));
        // The same answer takes the second link several times as long as it took the hub, however fast this machine is, and if it is
        // busy with something else meanwhile.
        link = Link::Slow((tokens * EVENT_BYTES / (8.0 * wall_seconds)) as u64);
        proxy.set(Link::Open);
        tab.click("#new").await.unwrap();
    }
    let [(tokens, rate, wall), (_, slow_rate, slow_wall)] = shown[..] else { panic!("two answers") };
    let generation = (tokens - 1.0) / rate;
    assert!(generation <= wall, "{generation} s of tokens within {wall} s");
    assert!(generation >= 0.3 * wall, "{generation} s of tokens within {wall} s: what else took so long?");
    assert!((tokens - 1.0) / slow_rate < 0.5 * slow_wall, "the link's speed is no speed of the hub");
    assert_eq!(complaints.heard(), Vec::<String>::new());
    browser.close().await.unwrap();
}

#[tokio::test]
async fn a_page_of_which_a_part_does_not_arrive_loads_again_until_it_does() {
    let hub = Hub::start(&[]).unwrap();
    let browser = Browser::launch().await.unwrap();
    let pages = [
        ("/", "message.js", "health.textContent.startsWith('ready')"),
        ("/swarm", "chart.js", "live.textContent === 'live'"),
        ("/swarm", "swarm.css", "live.textContent === 'live'"),
        ("/join", "words.js", "window.moexStatus"),
        (
            "/bench",
            "cpu.js",
            "performance.getEntriesByName(`${location.origin}/bench/cpu.js`)[0]?.responseStatus === 200",
        ),
    ];
    for (path, part, is_whole) in pages {
        let tab = browser.empty_window().await.unwrap();
        tab.refuse(&[&format!("*/{part}")]).await.unwrap();
        tab.go(&format!("{}{path}", hub.url)).await.unwrap();
        // It waits for a second, for two, and so on.
        tab.until("performance.getEntriesByType('navigation')[0].type === 'reload'").await.unwrap();
        let waits = tab.eval("history.state").await.unwrap();
        tab.until(&format!("history.state >= 2 * {waits}")).await.unwrap();
        tab.refuse(&[]).await.unwrap();
        tab.until(is_whole).await.unwrap();
        tab.close().await.unwrap();
    }
    browser.close().await.unwrap();
}

#[tokio::test]
async fn a_missing_key_is_asked_for_on_plain_http_and_the_join_link_copies() {
    let outside = Outside::new();
    let hub = Moex::under_test().open_hub(&[]).unwrap();
    let origin = outside.origin(&hub);
    let browser = Browser::launch().await.unwrap();
    let (tab, complaints) = browser.open_heard(&origin).await.unwrap();
    assert_eq!(tab.eval("isSecureContext").await.unwrap(), false, "{origin}");

    // The page reports a wrong key; after a cancelled prompt it asks again with the first question.
    give_key(&tab, "not the key").await;
    tab.until("document.querySelector('.wrong').textContent.includes('key is wrong')").await.unwrap();
    tab.press("Escape").await.unwrap();
    tab.until("!document.querySelector('dialog')").await.unwrap();
    ask(&tab, "49 + 34 = ?").await;
    give_key(&tab, API_KEY).await;
    tab.until(&format!("document.querySelector('.meta') && {ENDED}")).await.unwrap();
    assert!(tab.text(".assistant").await.unwrap().contains("83"));
    assert_eq!(count(&tab, ".message").await, 2);

    // The tab keeps the key, and the hub shows the link with the origin that the visitor used.
    tab.click("nav a[href='/swarm']").await.unwrap();
    tab.until("document.querySelector('.join-url')").await.unwrap();
    let link = tab.text(".join-url").await.unwrap();
    let token = hub.join_url.split_once('#').unwrap().1;
    assert_eq!(link, format!("{origin}/join#{token}"));
    assert_eq!(
        tab.eval("document.querySelector('svg.qr path').getAttribute('d').length > 500").await.unwrap(),
        true
    );
    assert_eq!(tab.eval("document.querySelector('dialog') === null").await.unwrap(), true);
    tab.click(".invite button").await.unwrap();
    tab.until("document.querySelector('.invite button').textContent === 'Copied'").await.unwrap();
    assert_eq!(tab.clipboard().await.unwrap(), link);
    assert_eq!(complaints.heard(), Vec::<String>::new());
    tab.close().await.unwrap();

    // Another tab has no key: the swarm page asks too, and reports what is missing without one.
    let (tab, complaints) = browser.open_heard(&format!("{origin}/swarm")).await.unwrap();
    tab.until("document.querySelector('dialog')").await.unwrap();
    tab.press("Escape").await.unwrap();
    tab.until("!trouble.hidden").await.unwrap();
    assert!(!tab.text("body").await.unwrap().contains(token));
    tab.click("#give-key").await.unwrap();
    give_key(&tab, API_KEY).await;
    tab.until("document.querySelector('.join-url') && trouble.hidden").await.unwrap();
    assert_eq!(complaints.heard(), Vec::<String>::new());
    browser.close().await.unwrap();
}

#[tokio::test]
async fn who_computes_and_how_to_join_is_told_to_no_stranger() {
    moex_worker::native::install_crypto();
    let outside = Outside::new();
    let hub = Moex::under_test().open_hub(&[]).unwrap();
    for path in ["/api/join", "/api/swarm", "/metrics"] {
        let answer = reqwest::get(format!("{}{path}", outside.origin(&hub))).await.unwrap();
        assert_eq!(answer.status(), 401, "{path}");
    }
    let own = Hub::start(&[]).unwrap();
    for path in ["/api/join", "/api/swarm", "/metrics"] {
        assert_eq!(reqwest::get(format!("{}{path}", own.url)).await.unwrap().status(), 200, "{path}");
        let proxied =
            reqwest::Client::new().get(format!("{}{path}", own.url)).header("x-forwarded-for", "192.0.2.1");
        assert_eq!(proxied.send().await.unwrap().status(), 403, "{path}");
    }
}

#[tokio::test]
async fn a_device_is_lent_beside_the_chat() {
    let hub = Hub::start(&[]).unwrap();
    let browser = Browser::launch().await.unwrap();
    let (tab, complaints) = browser.open_heard(&hub.url).await.unwrap();
    for (width, height) in [(390, 844), (1440, 900)] {
        tab.look(width, height, false).await.unwrap();
        tab.click("#lend-button").await.unwrap();
        let status = hub.wait_for_workers(1).await.unwrap();
        tab.until("document.querySelector('#lend-state').textContent === 'serving'").await.unwrap();
        assert_eq!(tab.eval("document.querySelector('#lend-frame').checkVisibility() && document.querySelector('#prompt').checkVisibility()").await.unwrap(), true);
        ask(&tab, "49 + 34 = ?").await;
        tab.until(&format!("document.querySelector('.meta') && {ENDED}")).await.unwrap();
        let adapter = status["workers"][0]["adapter"].as_str().unwrap_or_default().to_owned();
        let meta = tab.text(".meta").await.unwrap();
        assert!(meta.contains("experts computed by"), "{meta} should name {adapter}");

        // A folded panel keeps serving; only ending it removes the worker.
        tab.click("#lend-hide").await.unwrap();
        tokio::time::sleep(Duration::from_secs(2)).await;
        hub.wait_for_workers(1).await.unwrap();
        tab.until("document.querySelector('#lend-button').textContent === 'Lending: serving'").await.unwrap();
        tab.click("#lend-button").await.unwrap();
        tab.click("#lend-stop").await.unwrap();
        hub.wait_until("no worker", |status| status["workers"] == serde_json::json!([])).await.unwrap();
        tab.click("#new").await.unwrap();
    }
    assert_eq!(complaints.heard(), Vec::<String>::new());
    browser.close().await.unwrap();
}

// ---- a person at the page -----------------------------------------------------------------------------------------

async fn ask(tab: &Tab, question: &str) {
    tab.until("document.querySelector('#send')?.checkVisibility() && !document.querySelector('dialog')")
        .await
        .unwrap();
    tab.eval("document.querySelector('#prompt').focus()").await.unwrap();
    tab.paste(question).await.unwrap();
    tab.press("Enter").await.unwrap();
}

async fn give_key(tab: &Tab, key: &str) {
    tab.until("document.activeElement?.id === 'api-key'").await.unwrap();
    tab.paste(key).await.unwrap();
    tab.press("Enter").await.unwrap();
}

async fn count(tab: &Tab, selector: &str) -> u64 {
    tab.eval(&format!("document.querySelectorAll('{selector}').length")).await.unwrap().as_u64().unwrap()
}

async fn titles(tab: &Tab) -> Vec<String> {
    let found =
        tab.eval("[...document.querySelectorAll('#chat-list .open')].map((item) => item.textContent)").await;
    found.unwrap().as_array().unwrap().iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// "123 tokens, 400 tokens/s · ..."
fn tokens_and_rate(meta: &str) -> (f64, f64) {
    let number = |text: &str| text.replace(',', "").parse::<f64>().unwrap();
    let (tokens, rest) = meta.split_once(" tokens, ").unwrap_or_else(|| panic!("{meta:?} shows no rate"));
    (number(tokens), number(rest.split_once(" tokens/s").unwrap().0))
}

/// An address of this machine that is not loopback: the near end of a cable to an unused host.
struct Outside(Host);

impl Outside {
    fn new() -> Self {
        Self(Host::new().unwrap())
    }

    fn origin(&self, hub: &Hub) -> String {
        let address: IpAddr = self.0.gateway().into();
        format!("http://{address}:{}", hub.address().unwrap().port())
    }
}
