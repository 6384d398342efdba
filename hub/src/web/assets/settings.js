// How answers are written: what is sent with every question, kept in this browser. An empty field is the hub's own choice.

import { ofBrowser } from "./store.js";

const KEY = "moex.settings";
/** Fields of numbers, and what the API calls them. */
const NUMBERS = { temperature: "temperature", "top-p": "top_p", "max-tokens": "max_completion_tokens", seed: "seed" };
const TEXTS = ["system"];

const at = (id) => document.getElementById(id);
const fields = [...Object.keys(NUMBERS), ...TEXTS].map(at);

/** What a request for an answer says besides its messages. */
export function options() {
  const asked = { chat_template_kwargs: { enable_thinking: at("thinking").checked } };
  for (const [id, name] of Object.entries(NUMBERS)) {
    const value = at(id).valueAsNumber;
    if (!Number.isNaN(value)) asked[name] = value;
  }
  return asked;
}

/** The messages with the system prompt before them, if there is one. */
export function withSystem(messages) {
  const content = at("system").value.trim();
  return content ? [{ role: "system", content }, ...messages] : messages;
}

function keep() {
  const set = Object.fromEntries(fields.filter(({ value }) => value).map(({ id, value }) => [id, value]));
  ofBrowser.write(KEY, JSON.stringify({ ...set, thinking: at("thinking").checked }));
  reflect();
}

function restore() {
  let kept = {};
  try {
    kept = JSON.parse(ofBrowser.read(KEY)) ?? {};
  } catch {
    // Damaged: as if nothing had been set.
  }
  for (const field of fields) field.value = typeof kept[field.id] === "string" ? kept[field.id] : "";
  at("thinking").checked = kept.thinking !== false;
  reflect();
}

/** What is set is said outside too: a forgotten setting changes every answer. */
function reflect() {
  const n = fields.filter(({ value }) => value.trim()).length;
  at("settings-button").textContent = n ? `Settings (${n} set)` : "Settings";
}

at("settings-reset").addEventListener("click", () => {
  for (const field of fields) field.value = "";
  keep();
});
for (const field of [...fields, at("thinking")]) field.addEventListener("input", keep);
restore();
