// The workers as cards: who each is, how it goes, and in words why it is not asked for everything.

import { setText, showFacts } from "./facts.js";
import { bytes, count, element, micros, percent } from "./format.js";
import { revokeInvitation } from "./hub.js";
import { button } from "./message.js";

const GOOD = { serving: "good", joining: "warn", syncing: "warn", paused: "warn", draining: "warn", closed: "bad" };

/** What a worker is asked for, when it is not everything. */
const TIER = { prefill: "for prompts", fallback: "fallback" };
const TIER_IN_WORDS = { decode: "everything", prefill: "prompts", fallback: "experts that no other worker holds" };

/** Cards by worker id: updated in place, so that a selection and the scroll position stay. */
const cards = new Map();

/** Shows a card a worker in `list`; `recentShare(id)` is what it computed lately, as a part of all. */
export function showWorkers(list, { workers, hub }, recentShare) {
  const all = workers.reduce((sum, { rows }) => sum + rows, hub.rows);
  const present = new Set(workers.map((worker) => worker.id));
  for (const [id, card] of cards) {
    if (!present.has(id)) {
      card.root.remove();
      cards.delete(id);
    }
  }
  for (const worker of workers) {
    let card = cards.get(worker.id);
    if (!card) {
      card = newCard();
      cards.set(worker.id, card);
      list.append(card.root);
    }
    const state = String(worker.state).toLowerCase();
    card.name.textContent = worker.name || worker.adapter || worker.kind;
    card.state.className = `state ${GOOD[state] ?? "bad"}`;
    card.state.textContent = [state, worker.visibility === "visible" ? "" : worker.visibility, TIER[worker.tier] ?? ""]
      .filter(Boolean)
      .join(", ");
    if (worker.tier === "fallback" && state === "serving") card.state.className = "state warn";
    const why = worker.reason || whyNot(worker, state);
    setText(card.reason, why);
    card.reason.hidden = !why;
    const adapter = worker.name ? worker.adapter : "";
    card.invitedAs = worker.invitation;
    card.invited.hidden = !worker.invitation;
    setText(card.invitation, worker.invitation ? `Invited as ${worker.invitation}. ` : "");
    card.who.textContent = [adapter, worker.kind, worker.backend, worker.address, worker.id.slice(0, 8)].filter(Boolean).join(" · ");
    const share = { all: worker.rows / Math.max(all, 1), recent: recentShare(worker.id) };
    card.share.style.width = `${100 * share.all}%`;
    showFacts(card.facts, facts(worker, share));
  }
}

/** What the hub computed itself, in words. */
export function hubShare({ workers, hub }, recentShare) {
  const all = workers.reduce((sum, { rows }) => sum + rows, hub.rows);
  if (all === 0) return "";
  const recent = recentShare("hub");
  const lately = recent === null ? "" : `, ${percent(recent, 1)} in the last minute`;
  return [`The hub itself computed ${percent(hub.rows, all)} of the rows of experts${lately}.`, whoIsFaster(hub.compared)].filter(Boolean).join(" ");
}

/** Who computes what the hub and workers both hold, and why. */
function whoIsFaster(compared) {
  if (!compared) return "";
  if (compared.workers_micros === null) return `A step takes ${micros(compared.own_micros)} with the hub's own experts, and no worker answered when asked, so the hub computes, and asks them now and then.`;
  const times = `A step takes ${micros(compared.own_micros)} with the hub's own experts and ${micros(compared.workers_micros)} with those of its workers`;
  return compared.is_hub_used ? `${times}, so the hub computes, and looks at its workers now and then.` : `${times}, so workers compute.`;
}

/** Why nothing is asked of a worker, where the hub gives no reason of its own. */
function whyNot(worker, state) {
  switch (state) {
    case "joining":
      return "It tests its device.";
    case "syncing":
      return `It loads its experts: ${count(worker.blocks_resident)} of ${count(worker.blocks_assigned)} are there.`;
    case "paused":
      return worker.visibility === "visible" ? "Its owner paused it." : "Its tab is out of sight, and browsers pause such tabs.";
    case "draining":
      return "It leaves once its last answers are given.";
    case "unhealthy":
      return "It failed several times in a row; it gets occasional probes.";
    case "closed":
      return "Its connection is closed.";
    default:
      return "";
  }
}

function newCard() {
  const card = {
    root: element("article", "worker"),
    name: element("h3"),
    state: element("span"),
    who: element("p", "who"),
    reason: element("p", "reason"),
    invited: element("p", "invited"),
    invitation: element("span"),
    share: element("div"),
    facts: element("dl"),
  };
  const header = element("header");
  header.append(card.name, card.state);
  // The same is said in words below.
  const bar = element("div", "share");
  bar.setAttribute("aria-hidden", "true");
  bar.append(card.share);
  const wrong = element("span", "wrong");
  const revoke = button("Revoke", async () => {
    wrong.textContent = "";
    await revokeInvitation(card.invitedAs).catch((error) => (wrong.textContent = ` ${error.message}`));
  });
  card.invited.append(card.invitation, revoke, wrong);
  card.root.append(header, card.who, card.invited, card.reason, bar, card.facts);
  return card;
}

const facts = (worker, share) => [
  ["share of the work", percent(share.all, 1)],
  ["in the last minute", share.recent === null ? "-" : percent(share.recent, 1)],
  ["asked for", TIER_IN_WORDS[worker.tier] ?? worker.tier],
  ["error of its self-test", exactness(worker.self_test_nmse)],
  ["with int8 activations", worker.is_exact ? "the hub\u2019s bits" : "not exact: not asked"],
  ["median latency", micros(worker.latency_p50_micros)],
  ["99\u00a0% within", micros(worker.latency_p99_micros)],
  ["its key", worker.is_on_probation ? "new: a bounded share until it has answered" : "may hold any share"],
  ["experts held", `${count(worker.blocks_resident)} of ${count(worker.blocks_assigned)}`],
  ["memory", bytes(worker.bytes_resident)],
  ["rows computed", count(worker.rows)],
  ["answers", `${count(worker.answers)} of ${count(worker.dispatches)}`],
  ["timeouts, errors", `${count(worker.timeouts)}, ${count(worker.errors)}`],
  ["messages waiting", count(worker.queue_depth)],
  ["a GPU sync", micros(worker.sync_latency_micros)],
  ["downloaded", bytes(worker.bytes_downloaded)],
];

/** How far its kernels are from exact: a normalised mean squared error. */
function exactness(nmse) {
  if (typeof nmse !== "number") return "-";
  return nmse === 0 ? "none" : nmse.toExponential(0);
}

