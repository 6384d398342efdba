// The swarm page: asks the hub each second who is connected, what is covered and how it goes.

import { bytes, count, element, micros, plural } from "./format.js";
import { HubError, getJson } from "./hub.js";
import { showInvite } from "./invite.js";
import { askForKey } from "./key.js";

const POLL_MILLIS = 1000;
const at = (id) => document.getElementById(id);

function show(status) {
  at("live").className = "state good";
  at("live").textContent = "live";
  for (const section of document.querySelectorAll(".told")) section.hidden = false;
  showCoverage(status);
  showWorkers(status.workers);
  setText(at("no-workers"), status.hub_compute === false ? ALONE_WAITING : ALONE);
  showQuarantined(status.quarantined ?? []);
  showFacts(at("totals"), totals(status));
  showFacts(at("model"), model(status.model));
}

function showCoverage({ coverage, workers, hub_compute: hubComputes }) {
  const { blocks, covered, replicas } = coverage;
  at("coverage").max = Math.max(blocks, 1);
  at("coverage").value = covered;
  const rest = blocks - covered;
  const held = `${count(covered)} of ${plural(blocks, "expert")} held by a worker`;
  const wanted = `${plural(replicas, "copy", "copies")} of each wanted`;
  const missing = hubComputes === false ? "wait for a worker" : "are computed by the hub";
  at("coverage-text").textContent = rest && workers.length ? `${held}, ${wanted}; the rest ${missing}.` : `${held}, ${wanted}.`;
}

const ALONE = "Nobody has joined yet: the hub computes alone. Open a join link above to lend a machine.";
const ALONE_WAITING = "Nobody has joined yet, and this hub does not compute experts itself: open a join link above to lend a machine.";

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// ---- workers ------------------------------------------------------------------------------------------------------

const GOOD = { serving: "good", joining: "warn", syncing: "warn", paused: "warn", draining: "warn", closed: "bad" };

/** What a worker is asked for, when it is not everything. */
const TIER = { prefill: "for prompts", fallback: "fallback" };

/** Cards by worker id: updated in place, so that a selection and the scroll position stay. */
const cards = new Map();

function showWorkers(workers) {
  at("no-workers").hidden = workers.length > 0;
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
      at("workers").append(card.root);
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
    card.who.textContent = [adapter, worker.kind, worker.backend, worker.address, worker.id.slice(0, 8)].filter(Boolean).join(" · ");
    showFacts(card.facts, facts(worker));
  }
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
      return "It failed several times in a row; it is tried again from time to time.";
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
    facts: element("dl"),
  };
  const header = element("header");
  header.append(card.name, card.state);
  card.root.append(header, card.who, card.reason, card.facts);
  return card;
}

/** Those whose answers were wrong: refused until the hub starts anew. */
function showQuarantined(quarantined) {
  at("quarantine").hidden = quarantined.length === 0;
  at("quarantined").replaceChildren(
    ...quarantined.map(({ id, address, evidence }) => {
      const found = evidence.map((e) => `layer ${e.layer} expert ${e.expert} off by ${e.nmse.toPrecision(2)}`).join("; ");
      return element("li", "", `${id.slice(0, 8)} from ${address}: ${found}`);
    }),
  );
}

const facts = (worker) => [
  ["experts held", `${count(worker.blocks_resident)} of ${count(worker.blocks_assigned)}`],
  ["memory", bytes(worker.bytes_resident)],
  ["rows computed", count(worker.rows)],
  ["answers", `${count(worker.answers)} of ${count(worker.dispatches)}`],
  ["median latency", micros(worker.latency_p50_micros)],
  ["99\u00a0% within", micros(worker.latency_p99_micros)],
  ["timeouts, errors", `${count(worker.timeouts)}, ${count(worker.errors)}`],
  ["downloaded", bytes(worker.bytes_downloaded)],
];

// ---- facts --------------------------------------------------------------------------------------------------------

const totals = ({ totals: t, hub, weights_served_bytes: served }) => [
  ["layers computed", count(t.layers)],
  ["dispatches", count(t.dispatches)],
  ["answers", count(t.answers)],
  ["retries", count(t.retries)],
  ["hedges, first to answer", `${count(t.hedges)}, ${count(t.hedge_wins)}`],
  ["hedges beyond the budget", count(t.hedges_denied)],
  ["late answers", count(t.late)],
  ["answers compared, wrong", `${count(t.compared)}, ${count(t.mismatches)}`],
  ["checked by the hub", count(t.checks)],
  ["timeouts", count(t.timeouts)],
  ["errors", count(t.errors)],
  ["probes of the slow", count(t.probes)],
  ["out for failing in a row", count(t.unhealthy)],
  ["sessions ended", count(t.sessions_ended)],
  ["joins refused, over a limit", `${count(t.refused)}, ${count(t.limited)}`],
  ["quarantined", count(t.quarantined)],
  ["sent, received", `${bytes(t.bytes_sent)}, ${bytes(t.bytes_received)}`],
  ["of this twice", bytes(t.duplicate_bytes)],
  ["median of a layer", micros(t.layer_p50_micros)],
  ["95\u00a0%, 99\u00a0% of layers within", `${micros(t.layer_p95_micros)}, ${micros(t.layer_p99_micros)}`],
  ["rows computed by the hub", count(hub.rows)],
  ["weights served", bytes(served)],
];

const model = (m) => [
  ["name", m.name],
  ["layers", count(m.n_layers)],
  ["experts a layer", `${count(m.n_experts)}, ${count(m.n_experts_per_token)} a token`],
  ["hidden, inner width", `${count(m.hidden)}, ${count(m.inner)}`],
  ["expert weights", m.format],
  ["one expert", bytes(m.block_bytes)],
];

function showFacts(list, pairs) {
  while (list.childElementCount < pairs.length) {
    const pair = element("div");
    pair.append(element("dt"), element("dd"));
    list.append(pair);
  }
  pairs.forEach(([name, value], index) => {
    const [dt, dd] = list.children[index].children;
    setText(dt, name);
    setText(dd, value);
  });
}

// ---- asking -------------------------------------------------------------------------------------------------------

/** Whether the join links are shown; they stay the same while the hub runs. */
let isInvited = false;

async function poll() {
  try {
    show(await getJson("/api/swarm"));
    trouble("");
    if (!isInvited) {
      await showInvite(at("join"));
      isInvited = true;
    }
  } catch (error) {
    at("live").className = "state bad";
    if (!(error instanceof HubError)) {
      // What was seen last stays; it is news again once the hub is back.
      at("live").textContent = "hub not reachable";
      isInvited = false;
    } else if (error.status === 401) {
      at("live").textContent = "needs the API key";
      if (!(await askForKey())) {
        trouble("Who computes is told to those who have the hub's API key.", true);
        return;
      }
    } else {
      at("live").textContent = error.status === 403 ? "not shown here" : "not answered";
      trouble(error.message);
    }
  }
  setTimeout(poll, POLL_MILLIS);
}

function trouble(words, wantsKey = false) {
  at("trouble").hidden = words === "";
  at("trouble-text").textContent = words;
  at("give-key").hidden = !wantsKey;
}

at("give-key").addEventListener("click", () => {
  trouble("");
  poll();
});

poll();
