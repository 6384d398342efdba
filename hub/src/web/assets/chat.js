// The chat page: the conversation, its answers as they are written, and who computed them.

import { count, element, percent, plural, workerName } from "./format.js";
import { HubError, apiKey, getJson, streamChat } from "./hub.js";

const STORED = "moex.conversation";
const HEALTH_MILLIS = 3000;
/** Workers named under an answer; the others are counted. */
const MAX_NAMED = 4;

const page = Object.fromEntries(
  ["scroll", "welcome", "examples", "conversation", "composer", "prompt", "send", "stop", "clear", "model", "health",
    "thinking", "temperature", "key", "key-field"].map((id) => [id, document.getElementById(id)]),
);

/** The messages as the API takes them. */
let messages = [];
/** Set while an answer is being written. */
let running = null;

// ---- asking -------------------------------------------------------------------------------------------------------

async function ask(text) {
  messages.push({ role: "user", content: text });
  showUser(text);
  await answer();
}

async function answer() {
  const view = showAnswer();
  running = new AbortController();
  reflect();
  const before = await swarmRows();
  const started = performance.now();
  let firstToken = 0;
  let usage = null;
  let finish = "stop";
  const written = { role: "assistant", content: "", reasoning_content: "" };
  try {
    await streamChat(request(), running.signal, (chunk) => {
      usage = chunk.usage ?? usage;
      const choice = chunk.choices[0];
      if (!choice) return;
      finish = choice.finish_reason ?? finish;
      const { content = "", reasoning_content: reasoning = "" } = choice.delta;
      if (!firstToken && (content || reasoning)) firstToken = performance.now();
      written.content += content;
      written.reasoning_content += reasoning;
      following(() => view.write(written));
    });
    const seconds = (performance.now() - (firstToken || started)) / 1000;
    const who = whoComputed(before, await swarmRows());
    following(() => view.finish([speed(usage, seconds), finish === "length" ? "cut at the token limit" : "", who]));
    keep(written);
  } catch (error) {
    if (error.name === "AbortError") {
      following(() => view.finish(["stopped"]));
      keep(written);
    } else {
      page["key-field"].hidden = page["key-field"].hidden && error.status !== 401;
      following(() => view.fail(inWords(error)));
    }
  } finally {
    running = null;
    reflect();
    page.prompt.focus();
  }
}

function request() {
  const asked = { messages, chat_template_kwargs: { enable_thinking: page.thinking.checked } };
  const temperature = page.temperature.valueAsNumber;
  return Number.isNaN(temperature) ? asked : { ...asked, temperature };
}

function inWords(error) {
  if (!(error instanceof HubError)) return "The hub cannot be reached. Is it still running?";
  return error.status === 401 ? "This hub wants its API key: enter it below, then try again." : error.message;
}

/** Keeps an answer in the conversation; reasoning is not sent again. */
function keep(written) {
  if (!written.content) return;
  messages.push({ role: "assistant", content: written.content });
  sessionStorage.setItem(STORED, JSON.stringify(messages));
}

function speed(usage, seconds) {
  if (!usage) return "";
  const tokens = usage.completion_tokens;
  // The first token ends the wait for the prompt; the others are what the time since was spent on.
  const rate = tokens > 1 && seconds > 0 ? `, ${((tokens - 1) / seconds).toFixed(1)} tokens/s` : "";
  return plural(tokens, "token") + rate;
}

// ---- who computed -------------------------------------------------------------------------------------------------

/** Rows computed so far: name -> rows. Null when the hub does not say. */
async function swarmRows() {
  try {
    const status = await getJson("/api/swarm");
    const rows = new Map(status.workers.map((worker) => [workerName(worker), worker.rows]));
    return rows.set("the hub", status.hub.rows);
  } catch {
    return null;
  }
}

/** Who added what between two looks, the largest share first; other requests at the same time count too. */
function whoComputed(before, after) {
  if (!before || !after) return "";
  const added = [...after]
    .map(([name, rows]) => [name, rows - (before.get(name) ?? 0)])
    .filter(([, rows]) => rows > 0)
    .sort((a, b) => b[1] - a[1]);
  const total = added.reduce((sum, [, rows]) => sum + rows, 0);
  const shares = added.slice(0, MAX_NAMED).map(([name, rows]) => `${name} ${percent(rows, total)}`);
  const others = added.length - shares.length;
  if (others > 0) shares.push(`${plural(others, "other")}`);
  return shares.length ? `experts computed by ${shares.join(", ")}` : "";
}

// ---- showing ------------------------------------------------------------------------------------------------------

function showUser(text) {
  page.welcome.hidden = true;
  const box = element("div", "message user");
  box.append(element("div", "text", text));
  page.conversation.append(box);
}

/** An answer's place on the page. */
function showAnswer() {
  const box = element("div", "message assistant writing");
  const thought = element("details");
  thought.open = true;
  thought.hidden = true;
  const thoughtText = element("div", "text");
  const thoughtTitle = element("summary", "", "Thinking");
  thought.append(thoughtTitle, thoughtText);
  const text = element("div", "text");
  box.append(thought, text);
  page.conversation.append(box);
  page.scroll.scrollTop = page.scroll.scrollHeight;
  const ended = () => {
    box.classList.remove("writing");
    thought.open = false;
    thoughtTitle.textContent = "Thought";
  };
  return {
    write(written) {
      thought.hidden = !written.reasoning_content;
      thoughtText.textContent = written.reasoning_content;
      text.textContent = written.content;
    },
    finish(parts) {
      ended();
      box.append(element("div", "meta", parts.filter(Boolean).join(" · ")));
    },
    fail(sentence) {
      ended();
      const notice = element("div", "notice bad");
      notice.setAttribute("role", "alert");
      const again = element("button", "", "Try again");
      again.type = "button";
      again.addEventListener("click", () => {
        if (running) return;
        box.remove();
        answer();
      });
      notice.append(element("span", "", sentence), again);
      box.append(notice);
    },
  };
}

/** Changes the page and stays at the end of the conversation if the reader was there. */
function following(change) {
  const { scroll } = page;
  const atEnd = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 80;
  change();
  if (atEnd) scroll.scrollTop = scroll.scrollHeight;
}

function reflect() {
  page.send.hidden = running !== null;
  page.stop.hidden = running === null;
  page.send.disabled = page.prompt.value.trim() === "";
  page.clear.disabled = running !== null || messages.length === 0;
}

function grow() {
  page.prompt.style.height = "auto";
  page.prompt.style.height = `${page.prompt.scrollHeight + 2}px`;
  reflect();
}

async function showHealth() {
  try {
    const health = await getJson("/health", [503]);
    page.model.textContent = health.model;
    const ready = health.status === "ok";
    page.health.className = `state ${ready ? "good" : "warn"}`;
    const { covered, blocks } = health.coverage;
    page.health.textContent = ready
      ? `ready, ${health.workers ? plural(health.workers, "worker") : "no worker yet"}`
      : `waiting for workers: ${count(covered)} of ${count(blocks)} experts held`;
  } catch {
    page.health.className = "state bad";
    page.health.textContent = "hub not reachable";
  }
}

// ---- controls -----------------------------------------------------------------------------------------------------

page.composer.addEventListener("submit", (event) => {
  event.preventDefault();
  const text = page.prompt.value.trim();
  if (!text || running) return;
  page.prompt.value = "";
  grow();
  ask(text);
});

page.prompt.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    page.composer.requestSubmit();
  }
});

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
});

page.stop.addEventListener("click", () => running?.abort());
page.prompt.addEventListener("input", grow);
page.key.value = apiKey.read();
page.key.addEventListener("input", () => apiKey.write(page.key.value));

page.examples.addEventListener("click", (event) => {
  if (event.target instanceof HTMLButtonElement && !running) ask(event.target.textContent);
});

page.clear.addEventListener("click", () => {
  messages = [];
  sessionStorage.removeItem(STORED);
  page.conversation.replaceChildren();
  page.welcome.hidden = false;
  reflect();
  page.prompt.focus();
});

// The token of a page opened with one goes along to the swarm page, which shows the join address then.
document.getElementById("swarm-link").hash = location.hash;

function restore() {
  try {
    messages = JSON.parse(sessionStorage.getItem(STORED) ?? "[]");
  } catch {
    messages = [];
  }
  for (const message of messages) {
    if (message.role === "user") {
      showUser(message.content);
    } else {
      const view = showAnswer();
      view.write({ content: message.content, reasoning_content: "" });
      view.finish([]);
    }
  }
}

restore();
reflect();
showHealth();
setInterval(showHealth, HEALTH_MILLIS);
