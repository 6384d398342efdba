//! Controls a tab like a user: reads the page, and uses pointer and keyboard.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use chromiumoxide::cdp::browser_protocol::emulation::{MediaFeature, SetDeviceMetricsOverrideParams};
use chromiumoxide::cdp::browser_protocol::input::{
    DispatchKeyEventParams, DispatchKeyEventType, InsertTextParams,
};
use chromiumoxide::cdp::browser_protocol::log::{EventEntryAdded, LogEntryLevel, LogEntrySource};
use chromiumoxide::cdp::browser_protocol::page::ReloadParams;
use chromiumoxide::cdp::js_protocol::runtime::{
    ConsoleApiCalledType, EventConsoleApiCalled, EventExceptionThrown,
};
use futures_util::StreamExt;
use serde_json::{Value, json};

use super::{Browser, Tab};
use crate::hub::PATIENCE;

/// The errors on a page's console: those of its scripts, uncaught exceptions, and those of the browser itself. Refused
/// requests are not included, since they are often a test's purpose.
#[derive(Clone, Default)]
pub struct Complaints(Arc<Mutex<Vec<String>>>);

impl Complaints {
    /// The errors so far.
    pub fn heard(&self) -> Vec<String> {
        self.0.lock().map(|heard| heard.clone()).unwrap_or_default()
    }

    fn add(&self, words: String) {
        if let Ok(mut heard) = self.0.lock() {
            heard.push(words);
        }
    }
}

impl Browser {
    /// Opens a page in its own window, and records the errors of its scripts from the first on.
    pub async fn open_heard(&self, url: &str) -> Result<(Tab, Complaints)> {
        let tab = self.open("about:blank").await?;
        let complaints = Complaints::default();
        let heard = complaints.clone();
        let mut thrown = tab.page.event_listener::<EventExceptionThrown>().await?;
        tokio::spawn(async move {
            while let Some(event) = thrown.next().await {
                heard.add(format!("{:?}", event.exception_details));
            }
        });
        let heard = complaints.clone();
        let mut said = tab.page.event_listener::<EventConsoleApiCalled>().await?;
        tokio::spawn(async move {
            while let Some(event) = said.next().await {
                if event.r#type == ConsoleApiCalledType::Error {
                    heard.add(format!("{:?}", event.args));
                }
            }
        });
        let heard = complaints.clone();
        let mut logged = tab.page.event_listener::<EventEntryAdded>().await?;
        tokio::spawn(async move {
            while let Some(event) = logged.next().await {
                let entry = &event.entry;
                if entry.level == LogEntryLevel::Error && entry.source != LogEntrySource::Network {
                    heard.add(entry.text.clone());
                }
            }
        });
        tab.page.goto(url).await?;
        Ok((tab, complaints))
    }
}

impl Tab {
    /// Gives the page a screen size, in its own pixels, and light or dark colours.
    pub async fn look(&self, width: u32, height: u32, is_dark: bool) -> Result<()> {
        let metrics = SetDeviceMetricsOverrideParams::builder()
            .width(width)
            .height(height)
            .device_scale_factor(1.0)
            .mobile(width < 600)
            .build()
            .map_err(|error| anyhow::anyhow!(error))?;
        self.page.execute(metrics).await?;
        let scheme = if is_dark { "dark" } else { "light" };
        self.page.emulate_media_features(vec![MediaFeature::new("prefers-color-scheme", scheme)]).await?;
        Ok(())
    }

    /// Waits until a JavaScript expression is true; the error shows the page's text.
    pub async fn until(&self, expression: &str) -> Result<()> {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            // While a page loads, it cannot evaluate anything.
            if self.eval(&format!("Boolean({expression})")).await.unwrap_or(Value::Null) == json!(true) {
                return Ok(());
            }
            if tokio::time::Instant::now() > deadline {
                let text = self.eval("document.body.innerText").await.unwrap_or(Value::Null);
                bail!("{expression} did not become true; the page says {text}");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The text of the first element that a selector finds.
    pub async fn text(&self, selector: &str) -> Result<String> {
        let text = self.eval(&format!("document.querySelector({}).innerText", json!(selector))).await?;
        Ok(text.as_str().with_context(|| format!("{selector} has no text"))?.to_owned())
    }

    /// Clicks on the middle of an element once it is there, with the pointer.
    pub async fn click(&self, selector: &str) -> Result<()> {
        let visible = format!("document.querySelector({})?.checkVisibility()", json!(selector));
        self.until(&visible).await.with_context(|| format!("{selector} is not visible"))?;
        self.page.find_element(selector).await?.click().await?;
        Ok(())
    }

    /// Types a text at once into the focused element.
    pub async fn paste(&self, text: &str) -> Result<()> {
        self.page.execute(InsertTextParams::new(text)).await?;
        Ok(())
    }

    /// Presses a key, as `Enter`, `Tab`, `Escape` or `ArrowUp`.
    pub async fn press(&self, key: &str) -> Result<()> {
        let code = match key {
            "Enter" => 13,
            "Tab" => 9,
            "Escape" => 27,
            "ArrowUp" => 38,
            other => bail!("these tests cannot press the key {other}"),
        };
        let event = |kind| {
            let event = DispatchKeyEventParams::builder()
                .r#type(kind)
                .key(key)
                .code(key)
                .windows_virtual_key_code(code);
            let event = if key == "Enter" { event.text("\r") } else { event };
            event.build().map_err(|error| anyhow::anyhow!(error))
        };
        self.page.execute(event(DispatchKeyEventType::KeyDown)?).await?;
        self.page.execute(event(DispatchKeyEventType::KeyUp)?).await?;
        Ok(())
    }

    /// The clipboard's content, pasted into a field of the page as Ctrl+V would.
    pub async fn clipboard(&self) -> Result<String> {
        self.eval(
            "document.body.append(Object.assign(document.createElement('textarea'), { id: 'pasted' })); pasted.focus()",
        )
        .await?;
        let paste = DispatchKeyEventParams::builder()
            .r#type(DispatchKeyEventType::KeyDown)
            .key("v")
            .code("KeyV")
            .modifiers(2)
            .command("paste")
            .build()
            .map_err(|error| anyhow::anyhow!(error))?;
        self.page.execute(paste).await?;
        let pasted = self.eval("pasted.value").await?;
        self.eval("pasted.remove()").await?;
        Ok(pasted.as_str().unwrap_or_default().to_owned())
    }

    /// Reloads the page without waiting for it, for a link that carries nothing.
    pub async fn begin_reload(&self) -> Result<()> {
        self.page.execute(ReloadParams::default()).await?;
        Ok(())
    }
}
