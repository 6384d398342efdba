// Chat and lend in one window: the join page in a frame beside the chat.

import { element } from "./format.js";
import { HubError, getJoin } from "./hub.js";
import { askForKey } from "./key.js";
import { ofTab } from "./store.js";

/** Whether this tab lends, so that a reload goes on. */
const LENDING = "moex.lending";
const LOOK_MILLIS = 1000;
/** A glance at another window is no reason for a note. */
const AWAY_MILLIS = 3000;
const POPUP = "popup,width=440,height=760";

const at = (id) => document.getElementById(id);
const page = { title: document.title };

let frame = null;
let token = "";
let hiddenSince = 0;
/** Counts starts and stops, so that an answer of the hub that comes after a stop starts nothing. */
let turn = 0;

async function start() {
  turn += 1;
  const mine = turn;
  say("");
  show(true);
  at("lend-state").textContent = "asking the hub";
  try {
    const told = await getJoin();
    if (mine !== turn) return;
    token = told.token;
  } catch (error) {
    if (mine !== turn) return;
    if (error.status === 401) {
      if (await askForKey()) return start();
      say("Lending needs the hub's API key, which gives access to the join link.");
    } else {
      say(error instanceof HubError ? error.message : "The hub cannot be reached. Is it still running?");
    }
    at("lend-state").textContent = "not lending";
    return;
  }
  frame?.remove();
  frame = element("iframe");
  frame.title = "Lending this device";
  frame.src = `/join?embed&auto#${encodeURIComponent(token)}`;
  frame.addEventListener("load", () => {
    if (statusOfFrame() === null) say("The browser does not show the join page here.", true);
  });
  at("lend-frame").append(frame);
  ofTab.write(LENDING, "1");
  look();
}

function stop() {
  turn += 1;
  frame?.remove();
  frame = null;
  ofTab.remove(LENDING);
  at("lend-button").textContent = "Lend this device";
  document.title = page.title;
  show(false);
}

function show(isOpen) {
  const panel = at("lend");
  panel.hidden = !isOpen && frame === null;
  // A frame that is taken out of the page stops computing, so one at work is only folded away.
  panel.classList.toggle("folded", !isOpen && frame !== null);
  panel.inert = !isOpen;
  at("lend-button").setAttribute("aria-expanded", String(isOpen));
}

const isOpen = () => at("lend-button").getAttribute("aria-expanded") === "true";

function say(words, canMove = false) {
  at("lend-note").hidden = words === "";
  at("lend-note-text").textContent = words;
  at("lend-window").hidden = !canMove;
}

const STATES = {
  checking: "asking the hub",
  idle: "not lending",
  starting: "testing the device",
  connecting: "connecting",
  joining: "joining",
  syncing: "loading experts",
  serving: "serving",
  paused: "paused",
  draining: "leaving",
};

/** What the join page says of its worker; null while it loads, or if the browser shows something else in its place. */
function statusOfFrame() {
  try {
    return frame?.contentWindow?.moexStatus ?? null;
  } catch {
    return null;
  }
}

function look() {
  if (!frame) return;
  const { phase, state } = statusOfFrame() ?? {};
  const word = phase === "connected" ? (STATES[state] ?? state ?? "joining") : (STATES[phase] ?? (phase ? "not lending" : "loading"));
  at("lend-state").textContent = word;
  at("lend-button").textContent = `Lending: ${word}`;
}

function onVisibility() {
  if (!frame) return;
  if (document.visibilityState === "hidden") {
    hiddenSince = Date.now();
    document.title = `Not lending while hidden · ${page.title}`;
    return;
  }
  document.title = page.title;
  const away = Date.now() - hiddenSince;
  if (hiddenSince === 0 || away < AWAY_MILLIS) return;
  const minutes = Math.round(away / 60_000);
  const span = minutes < 1 ? "a moment" : minutes === 1 ? "a minute" : `${minutes} minutes`;
  say(
    `This window was out of sight for ${span}, and the browser paused lending. To keep both in sight, put this window ` +
      "beside your others, or let the lending have a small window of its own.",
    true,
  );
  if (!isOpen()) show(true);
}

/** The join page in its own window, this one's frame gone: one browser window, one worker. */
function moveOut() {
  const own = window.open(`/join?auto#${encodeURIComponent(token)}`, "moex-lend", POPUP);
  if (own === null) {
    say("The browser did not allow another window. Open the join link of the swarm page in one yourself.");
    return;
  }
  stop();
}

at("lend-button").addEventListener("click", () => {
  if (isOpen()) show(false);
  else if (frame) show(true);
  else start();
});
at("lend-hide").addEventListener("click", () => {
  show(false);
  at("lend-button").focus();
});
at("lend-stop").addEventListener("click", () => {
  stop();
  at("lend-button").focus();
});
at("lend-window").addEventListener("click", moveOut);
at("lend-seen").addEventListener("click", () => say(""));
document.addEventListener("visibilitychange", onVisibility);
setInterval(look, LOOK_MILLIS);
if (ofTab.read(LENDING)) start();
