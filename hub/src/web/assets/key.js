// Asks for the hub's API key, once for all who need it, and keeps it for the tab.

import { apiKey, passes } from "./hub.js";
import { element } from "./format.js";

let asking = null;

/** Resolves to true once the hub took a key, to false if its user will not give one. */
export function askForKey() {
  asking ??= ask().finally(() => (asking = null));
  return asking;
}

function ask() {
  const dialog = element("dialog", "key");
  const form = element("form");
  const label = element("label", "", "API key");
  const input = element("input");
  const wrong = element("p", "wrong");
  const cancel = element("button", "", "Not now");
  const use = element("button", "primary", "Use this key");
  const title = element("h2", "", "This hub needs its API key");
  title.id = "key-title";
  dialog.setAttribute("aria-labelledby", title.id);
  input.type = "password";
  input.id = "api-key";
  input.autocomplete = "off";
  input.required = true;
  label.append(input);
  wrong.setAttribute("role", "alert");
  cancel.type = "button";
  use.type = "submit";
  const row = element("div", "row");
  row.append(cancel, use);
  const words = "The hub printed it at its start; ask the person who runs the hub. This tab keeps it until it is closed.";
  form.append(title, element("p", "", words), label, wrong, row);
  dialog.append(form);
  document.body.append(dialog);
  if (apiKey.read()) wrong.textContent = "This tab's API key is wrong.";

  return new Promise((resolve) => {
    const done = (given) => {
      dialog.close();
      dialog.remove();
      resolve(given);
    };
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const key = input.value.trim();
      if (!key) return;
      use.disabled = true;
      wrong.textContent = "";
      const verdict = await passes(key);
      use.disabled = false;
      if (verdict === true) {
        apiKey.write(key);
        done(true);
        return;
      }
      wrong.textContent = verdict === false ? "That key is wrong. Try again." : "The hub cannot be reached. Is it still running?";
      input.select();
    });
    cancel.addEventListener("click", () => done(false));
    dialog.addEventListener("cancel", (event) => {
      event.preventDefault();
      done(false);
    });
    dialog.showModal();
    input.focus();
  });
}
