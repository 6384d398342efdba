//! Controls a tab like a user: reads the page, and uses pointer and keyboard.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::{BLANK, Browser, Tab};
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

    /// Takes an event of the page's session, if it is a complaint.
    pub(super) fn hear(&self, event: &str, parameters: &Value) {
        let entry = &parameters["entry"];
        let complaint = match event {
            "Runtime.exceptionThrown" => &parameters["exceptionDetails"],
            "Runtime.consoleAPICalled" if parameters["type"] == "error" => &parameters["args"],
            "Log.entryAdded" if entry["level"] == "error" && entry["source"] != "network" => &entry["text"],
            _ => return,
        };
        if let Ok(mut heard) = self.0.lock() {
            heard.push(complaint.to_string());
        }
    }
}

impl Browser {
    /// Opens a page in its own window, and records the errors of its scripts from the first on.
    pub async fn open_heard(&self, url: &str) -> Result<(Tab, Complaints)> {
        let tab = self.visit(BLANK).await?;
        tab.command("Runtime.enable", json!({})).await?;
        tab.command("Log.enable", json!({})).await?;
        tab.visit(url).await?;
        let complaints = tab.complaints();
        Ok((tab, complaints))
    }
}

impl Tab {
    /// Gives the page a screen size, in its own pixels, and light or dark colours.
    pub async fn look(&self, width: u32, height: u32, is_dark: bool) -> Result<()> {
        let screen =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.command("Emulation.setDeviceMetricsOverride", screen).await?;
        let scheme = if is_dark { "dark" } else { "light" };
        let colours = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.command("Emulation.setEmulatedMedia", colours).await?;
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
        let middle = format!(
            "(() => {{
                const element = document.querySelector({});
                element.scrollIntoViewIfNeeded();
                const box = element.getClientRects()[0];
                return {{ x: box.x + box.width / 2, y: box.y + box.height / 2 }};
            }})()",
            json!(selector)
        );
        let mut pointer = self.eval(&middle).await?;
        for (event, button, n_clicks) in
            [("mouseMoved", "none", 0), ("mousePressed", "left", 1), ("mouseReleased", "left", 1)]
        {
            pointer["type"] = json!(event);
            pointer["button"] = json!(button);
            pointer["clickCount"] = json!(n_clicks);
            self.command("Input.dispatchMouseEvent", pointer.clone()).await?;
        }
        Ok(())
    }

    /// Types a text at once into the focused element.
    pub async fn paste(&self, text: &str) -> Result<()> {
        self.command("Input.insertText", json!({ "text": text })).await?;
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
        let mut event = json!({ "type": "keyDown", "key": key, "code": key, "windowsVirtualKeyCode": code });
        if key == "Enter" {
            event["text"] = json!("\r");
        }
        self.command("Input.dispatchKeyEvent", event.clone()).await?;
        event["type"] = json!("keyUp");
        self.command("Input.dispatchKeyEvent", event).await?;
        Ok(())
    }

    /// The clipboard's content, pasted into a field of the page as Ctrl+V would.
    pub async fn clipboard(&self) -> Result<String> {
        self.eval(
            "document.body.append(Object.assign(document.createElement('textarea'), { id: 'pasted' })); pasted.focus()",
        )
        .await?;
        let paste =
            json!({ "type": "keyDown", "key": "v", "code": "KeyV", "modifiers": 2, "commands": ["paste"] });
        self.command("Input.dispatchKeyEvent", paste).await?;
        let pasted = self.eval("pasted.value").await?;
        self.eval("pasted.remove()").await?;
        Ok(pasted.as_str().unwrap_or_default().to_owned())
    }
}
