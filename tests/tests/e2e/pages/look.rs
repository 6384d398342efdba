//! Every page on a phone and on a desktop, light and dark: no error on the console, nothing wider than the screen, and
//! no violations found by axe-core, a third-party checker. The screenshots are in `target/pictures`.

use std::path::PathBuf;
use std::process::Command;

use moex_tests::browser::{Browser, Tab};
use moex_tests::host::Host;
use moex_tests::hub::{Hub, Moex};

use super::{ENDED, ask};
use crate::lan::{free_port, from};

const SCREENS: [(u32, u32); 2] = [(390, 844), (1440, 900)];
/// The script's exit code if axe-core is not available.
const NOT_THERE: i32 = 3;

/// A text with everything that Markdown is rendered for, as an answer of a stored conversation.
const TALK: &str = r##"(() => {
    const content = "# Title\n\nSome *emphasis*, **strong**, `code` and a [link](https://example.com/).\n\n### Deeper\n\n" +
        "1. one\n2. two\n   - nested\n\n- [x] done\n\n| Name | Count |\n|:--|--:|\n| a | 1 |\n\n> A quote\n\n" +
        "```python\ndef f(x):\n    return x * 2  # " + "a long line ".repeat(20) + "\n```\n\n---\n\nThe end.";
    const answer = (content, more) => ({ role: "assistant", content, reasoning: "", state: "done", note: "", ...more });
    const messages = [
        { role: "user", content: "What is this?", files: [{ name: "notes.txt", text: "word ".repeat(200) }] },
        answer(content, { reasoning: "First this.\nThen that.", note: "123 tokens, 88.1 tokens/s" }),
        { role: "user", content: "And this?" },
        answer("", { state: "failed", note: "The hub cannot be reached. Is it still running?" }),
    ];
    localStorage.setItem("moex.chat.aa", JSON.stringify({ id: "aa", title: "What is this?", updated: 1, messages }));
    sessionStorage.setItem("moex.open-chat", "aa");
})()"##;

#[tokio::test]
async fn the_chat_page_looks_right_everywhere() {
    let Some(axe) = axe() else { return };
    let hub = Hub::start(&[]).unwrap();
    let browser = Browser::launch().await.unwrap();
    let (tab, complaints) = browser.open_heard(&hub.url).await.unwrap();
    tab.until("model.textContent === 'moex-demo'").await.unwrap();
    look(&tab, &axe, "chat").await;

    tab.eval(TALK).await.unwrap();
    tab.reload().await.unwrap();
    tab.until("document.querySelectorAll('.message').length === 4").await.unwrap();
    look(&tab, &axe, "chat-talk").await;
    tab.eval("document.querySelectorAll('details').forEach((each) => (each.open = true))").await.unwrap();
    look(&tab, &axe, "chat-open").await;
    tab.click("#settings-button").await.unwrap();
    look(&tab, &axe, "chat-settings").await;
    tab.press("Escape").await.unwrap();

    ask(&tab, "49 + 34 = ?").await;
    tab.until(ENDED).await.unwrap();
    tab.click(".turn:nth-last-child(2) [aria-label='Edit the question']").await.unwrap();
    look(&tab, &axe, "chat-edit").await;
    assert_eq!(complaints.heard(), Vec::<String>::new());
    browser.close().await.unwrap();
}

#[tokio::test]
async fn the_swarm_and_join_pages_look_right_everywhere() {
    let Some(axe) = axe() else { return };
    // A hub that may compute does so while its workers are new, and predicts nothing.
    let hub = Hub::start(&["--workers", "2", "--no-hub-compute"]).unwrap();
    hub.wait_for_workers(2).await.unwrap();
    let browser = Browser::launch().await.unwrap();
    let (tab, complaints) = browser.open_heard(&format!("{}/swarm", hub.url)).await.unwrap();
    tab.until("document.querySelector('#prediction-text').textContent.startsWith('Too little')")
        .await
        .unwrap();
    look(&tab, &axe, "swarm-unmeasured").await;
    // A prediction needs 64 steps, and 16 answers of each worker with more than a tenth of the pairs.
    for thing in ["a bear", "a lamp", "a boat", "a bird", "a tree", "a king", "a shoe", "a moon"] {
        let story = format!("Tell me a story about {thing}.");
        hub.answer(&serde_json::json!({ "messages": [{ "role": "user", "content": story }] })).await.unwrap();
        if hub.status().await.unwrap()["prediction"]["reason"].is_null() {
            break;
        }
    }
    tab.until("!document.querySelector('#prediction-table').hidden").await.unwrap();
    tab.until("document.querySelectorAll('.worker').length === 2 && document.querySelector('.join-url') && !document.querySelector('#experts').hidden")
        .await
        .unwrap();
    look(&tab, &axe, "swarm").await;
    assert_eq!(complaints.heard(), Vec::<String>::new());
    tab.close().await.unwrap();

    let (tab, complaints) = browser.open_heard(&hub.join_url).await.unwrap();
    tab.until("!document.querySelector('#lend').disabled").await.unwrap();
    look(&tab, &axe, "join").await;
    tab.click("#lend").await.unwrap();
    tab.wait_until("serving", |status| status["state"] == "serving").await.unwrap();
    look(&tab, &axe, "join-lending").await;
    assert_eq!(complaints.heard(), Vec::<String>::new());
    browser.close().await.unwrap();
}

#[tokio::test]
async fn the_bench_page_measures_this_browser_and_looks_right_everywhere() {
    let Some(axe) = axe() else { return };
    let hub = Hub::start(&[]).unwrap();
    let browser = Browser::launch().await.unwrap();
    let (tab, complaints) = browser.open_heard(&format!("{}/bench", hub.url)).await.unwrap();
    tab.until("document.querySelector('#start')").await.unwrap();
    look(&tab, &axe, "bench-before").await;
    tab.click("#start").await.unwrap();
    tab.until("['Measured', 'Stopped'].includes(document.querySelector('#state').textContent)")
        .await
        .unwrap();
    assert_eq!(tab.text("#trouble").await.unwrap(), "");
    look(&tab, &axe, "bench").await;
    let facts = tab.text("#facts").await.unwrap();
    for said in [
        "to the hub and back",
        "GB/s of weights",
        "16 rows of a prompt",
        "billion operations/s",
        "GPU, memory read",
    ] {
        assert!(facts.contains(said), "{said}: {facts}");
    }
    assert!(!facts.contains("NaN") && !facts.contains("Infinity") && !facts.contains("undefined"), "{facts}");
    assert_eq!(complaints.heard(), Vec::<String>::new());
    browser.close().await.unwrap();
}

#[tokio::test]
async fn the_page_of_the_plain_port_looks_right_everywhere() {
    let Some(axe) = axe() else { return };
    let (host, state) = (Host::new().unwrap(), tempfile::tempdir().unwrap());
    let ports = [free_port(), free_port()].map(|port| port.to_string());
    let moex = Moex::under_test().keeping(state.path());
    let hub = moex.hub_at(&ports[0], &["--lan", "--https-port", &ports[1]]).unwrap();
    let browser = Browser::launch().await.unwrap();
    let (tab, complaints) = browser.open_heard(&from(&host, &hub.started["setup_urls"])).await.unwrap();
    tab.until("document.querySelector('details')").await.unwrap();
    look(&tab, &axe, "setup").await;
    assert_eq!(complaints.heard(), Vec::<String>::new());
    browser.close().await.unwrap();
}

/// Checks the page on each screen size in each colour scheme.
async fn look(tab: &Tab, axe: &str, name: &str) {
    let pictures = moex_tests::root().join("target/pictures");
    std::fs::create_dir_all(&pictures).unwrap();
    for (width, height) in SCREENS {
        for (is_dark, scheme) in [(false, "light"), (true, "dark")] {
            tab.look(width, height, is_dark).await.unwrap();
            let which = format!("{name}-{width}-{scheme}");
            // A phone's window grows with what is too wide for it.
            let wider = format!("document.documentElement.scrollWidth - {width}");
            let wider = tab.eval(&wider).await.unwrap();
            assert!(wider.as_i64() <= Some(0), "{which}: {wider} pixels wider than the screen");
            tab.eval(axe).await.unwrap();
            let found = tab.eval(VIOLATIONS).await.unwrap();
            assert_eq!(found, serde_json::json!([]), "{which}");
            std::fs::write(pictures.join(format!("{which}.png")), tab.screenshot().await.unwrap()).unwrap();
        }
    }
}

/// The violations: what, where, and why.
const VIOLATIONS: &str = "axe.run(document).then(({ violations }) => violations.map(({ id, nodes }) => \
                          `${id}: ${nodes.map((node) => `${node.target} ${node.failureSummary}`).join('; ')}`))";

/// The script of axe-core; `None` if npm cannot fetch it.
fn axe() -> Option<String> {
    let script = moex_tests::root().join("tests/clients/axe.sh");
    let output = Command::new(script).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(NOT_THERE) {
        eprintln!("{said}");
        return None;
    }
    assert!(output.status.success(), "{said}");
    let path = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    // The value of the script's last expression is not needed, and may not be JSON.
    Some(format!("{};null", std::fs::read_to_string(path).unwrap()))
}
