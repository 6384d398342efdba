//! Editing a conversation: versions of a question and an answer, files, settings, the keyboard.

use moex_tests::browser::{Browser, Tab};
use moex_tests::hub::Hub;
use serde_json::{Value, json};

use super::{ENDED, ask, count};

/// Records the bodies of requests for answers in `window.asked`.
const LISTEN: &str = "(() => {
    window.asked = [];
    const real = window.fetch;
    window.fetch = (path, init) => {
        if (init?.method === 'POST') window.asked.push(JSON.parse(init.body));
        return real(path, init);
    };
})()";

#[tokio::test]
async fn a_changed_question_and_a_second_answer_stand_beside_the_first() {
    let hub = Hub::start(&[]).unwrap();
    let browser = Browser::launch().await.unwrap();
    let (tab, complaints) = browser.open_heard(&hub.url).await.unwrap();
    tab.eval("thinking.click()").await.unwrap();
    ask(&tab, "49 + 34 = ?").await;
    tab.until(ENDED).await.unwrap();
    ask(&tab, "51 + 20 = ?").await;
    tab.until(&format!("document.querySelectorAll('.message').length === 4 && {ENDED}")).await.unwrap();

    // The first question reworded: its old follow-up is on another branch.
    tab.click("[aria-label='Edit the question']").await.unwrap();
    tab.eval("document.querySelector('.editor textarea').select()").await.unwrap();
    tab.paste("62 + 11 = ?").await.unwrap();
    tab.press("Enter").await.unwrap();
    tab.until(&format!("document.querySelectorAll('.message').length === 2 && {ENDED}")).await.unwrap();
    assert_eq!(tab.text(".user").await.unwrap(), "62 + 11 = ?");
    assert!(tab.text(".assistant .text:not(details *)").await.unwrap().contains("73"));
    assert_eq!(tab.text(".versions").await.unwrap().replace(char::is_whitespace, ""), "‹2/2›");

    tab.click(".versions [aria-label='Version before']").await.unwrap();
    assert_eq!(count(&tab, ".message").await, 4, "the first branch is whole");
    assert_eq!(tab.text(".user").await.unwrap(), "49 + 34 = ?");
    assert_eq!(tab.eval("document.activeElement.getAttribute('aria-label')").await.unwrap(), "Version after");

    // A second answer to the last question, and both survive a reload.
    tab.click(".assistant:last-child .meta .changing:last-child").await.unwrap();
    tab.until(&format!("document.querySelectorAll('.versions').length === 2 && {ENDED}")).await.unwrap();
    assert_eq!(count(&tab, ".message").await, 4);
    assert!(tab.text(".assistant:last-child .versions").await.unwrap().contains("2/2"));
    tab.reload().await.unwrap();
    tab.until("document.querySelectorAll('.versions').length === 2").await.unwrap();
    tab.click(".versions [aria-label='Version after']").await.unwrap();
    assert_eq!(tab.text(".user").await.unwrap(), "62 + 11 = ?");
    assert_eq!(complaints.heard(), Vec::<String>::new());
    browser.close().await.unwrap();
}

/// The format stored by an earlier version of the page: a list without parents.
#[tokio::test]
async fn a_conversation_that_an_earlier_page_kept_is_still_there() {
    let hub = Hub::start(&[]).unwrap();
    let browser = Browser::launch().await.unwrap();
    let (tab, complaints) = browser.open_heard(&hub.url).await.unwrap();
    let messages = json!([
        { "role": "user", "content": "49 + 34 = ?" },
        { "role": "assistant", "content": "83", "reasoning": "", "state": "done", "note": "" },
    ]);
    let kept = json!({ "id": "aa", "title": "49 + 34 = ?", "updated": 1, "messages": messages }).to_string();
    let damaged = kept.replace("\"aa\"", "\"bb\"").replace("\"note\":\"\"", "\"parent\":7");
    tab.eval(&format!("localStorage.setItem('moex.chat.aa', {})", json!(kept))).await.unwrap();
    tab.eval(&format!("localStorage.setItem('moex.chat.bb', {})", json!(damaged))).await.unwrap();
    tab.reload().await.unwrap();
    tab.until("document.querySelectorAll('#chat-list .open').length === 1").await.unwrap();
    tab.click("#chat-list .open").await.unwrap();
    tab.until("document.querySelectorAll('.message').length === 2").await.unwrap();
    assert_eq!(complaints.heard(), Vec::<String>::new());
    browser.close().await.unwrap();
}

#[tokio::test]
async fn files_and_settings_go_with_a_question() {
    let hub = Hub::start(&[]).unwrap();
    let browser = Browser::launch().await.unwrap();
    let (tab, complaints) = browser.open_heard(&hub.url).await.unwrap();
    set(&tab, "system", "You are brief.").await;
    set(&tab, "top-p", "0.5").await;
    set(&tab, "max-tokens", "3").await;
    set(&tab, "seed", "7").await;
    tab.reload().await.unwrap();
    tab.until("document.querySelector('#settings-button')?.textContent === 'Settings (4 set)'")
        .await
        .unwrap();
    tab.eval(LISTEN).await.unwrap();

    drop_file(&tab, "notes.txt", "'a ``` b'").await;
    tab.until("document.querySelectorAll('#files li').length === 1").await.unwrap();
    drop_file(&tab, "cat.png", "new Uint8Array([137, 80, 78, 71, 0, 255])").await;
    tab.until("refused.textContent.includes('no text')").await.unwrap();
    drop_file(&tab, "long.txt", "'x'.repeat(300000)").await;
    tab.until("refused.textContent.includes('256 KiB')").await.unwrap();
    assert_eq!(count(&tab, "#files li").await, 1);

    ask(&tab, "49 + 34 = ?").await;
    tab.until(ENDED).await.unwrap();
    let asked = tab.eval("window.asked[0]").await.unwrap();
    let told = |name: &str| asked[name].as_f64();
    assert_eq!(
        (told("top_p"), told("max_completion_tokens"), told("seed")),
        (Some(0.5), Some(3.0), Some(7.0))
    );
    assert_eq!(asked.get("temperature"), None, "an empty field is the hub's own choice");
    let content = "notes.txt:\n````\na ``` b\n````\n\n49 + 34 = ?";
    let expected =
        json!([{ "role": "system", "content": "You are brief." }, { "role": "user", "content": content }]);
    assert_eq!(asked["messages"], expected);
    assert!(tab.text(".meta:last-child").await.is_ok());
    assert!(tab.text(".assistant").await.unwrap().contains("cut at the token limit"));
    assert!(tab.text(".user summary").await.unwrap().contains("notes.txt"));
    assert_eq!(count(&tab, "#files li").await, 0);
    assert_eq!(complaints.heard(), Vec::<String>::new());
    browser.close().await.unwrap();
}

#[tokio::test]
async fn a_conversation_needs_no_pointer() {
    let hub = Hub::start(&[]).unwrap();
    let browser = Browser::launch().await.unwrap();
    let (tab, complaints) = browser.open_heard(&hub.url).await.unwrap();
    // Tab reaches every control, in the order of the page, and then the first one again.
    let mut seen = Vec::new();
    for _ in 0..14 {
        tab.press("Tab").await.unwrap();
        let name = "document.activeElement.id || document.activeElement.textContent.trim()";
        seen.push(tab.eval(name).await.unwrap().as_str().unwrap().to_owned());
    }
    for name in ["chats-button", "lend-button", "prompt", "attach", "thinking", "settings-button"] {
        assert!(seen.iter().any(|each| each == name), "{name} is not among {seen:?}");
    }
    ask(&tab, "49 + 34 = ?").await;
    tab.until(ENDED).await.unwrap();
    tab.press("ArrowUp").await.unwrap();
    assert_eq!(tab.eval("document.activeElement.value").await.unwrap(), "49 + 34 = ?");
    tab.press("Escape").await.unwrap();
    assert_eq!(count(&tab, ".editor").await, 0);
    assert_eq!(complaints.heard(), Vec::<String>::new());
    browser.close().await.unwrap();
}

/// Types into a field of the settings.
async fn set(tab: &Tab, id: &str, value: &str) {
    tab.click("#settings-button").await.unwrap();
    tab.eval(&format!("document.getElementById('{id}').focus()")).await.unwrap();
    tab.paste(value).await.unwrap();
    tab.press("Escape").await.unwrap();
    tab.until("!document.querySelector(':popover-open')").await.unwrap();
}

/// Drops a file onto the page; `content` is a JavaScript expression.
async fn drop_file(tab: &Tab, name: &str, content: &str) {
    let script = format!(
        "(() => {{ const dataTransfer = new DataTransfer();
        dataTransfer.items.add(new File([{content}], '{name}'));
        document.body.dispatchEvent(new DragEvent('drop', {{ dataTransfer, bubbles: true, cancelable: true }})); }})()"
    );
    assert_eq!(tab.eval(&script).await.unwrap(), Value::Null);
}
