// The swarm page: asks the hub each second who is connected, what is covered and how it goes.

import { expertMap } from "./experts.js";
import { setText, showFacts } from "./facts.js";
import { bytes, count, element, micros, plural } from "./format.js";
import { HubError, getJson } from "./hub.js";
import { invitesByName, showInvite } from "./invite.js";
import { askForKey } from "./key.js";
import { liveCharts } from "./live.js";
import { showPrediction } from "./prediction.js";
import { hubShare, showWorkers } from "./workers.js";

const POLL_MILLIS = 1000;
const at = (id) => document.getElementById(id);
const live = liveCharts({ root: at("charts"), words: at("now-text") });

function show(status) {
  at("live").className = "state good";
  at("live").textContent = "live";
  for (const section of document.querySelectorAll(".told")) section.hidden = false;
  showCoverage(status);
  live.add(status);
  showPrediction(
    { words: at("prediction-text"), table: at("prediction-table"), advice: at("advice"), list: at("what-ifs") },
    status.prediction,
  );
  showWorkers(at("workers"), status, live.recentShare);
  setText(at("hub-share"), hubShare(status, live.recentShare));
  at("no-workers").hidden = status.workers.length > 0;
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

const ALONE = "No worker has joined yet: the hub computes alone. Open a join link above to lend a machine.";
const ALONE_WAITING = "No worker has joined yet, and this hub does not compute experts itself: open a join link above to lend a machine.";

// ---- facts --------------------------------------------------------------------------------------------------------

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

// ---- asking -------------------------------------------------------------------------------------------------------

/** Whether the join links are shown; they stay the same while the hub runs. */
let isInvited = false;
/** Whether the map of experts is shown, which then looks after itself. */
let isMapped = false;

async function poll() {
  try {
    show(await getJson("/api/swarm"));
    trouble("");
    if (!isMapped) {
      isMapped = true;
      expertMap({ section: at("experts"), canvas: at("map"), words: at("experts-text"), hottest: at("hottest"), byLoad: at("by-load"), cell: at("cell") });
    }
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
        trouble("The list of workers needs the hub's API key.", true);
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

invitesByName(at("invitation"), at("invitation-links"), at("invitation-wrong"));

at("give-key").addEventListener("click", () => {
  trouble("");
  poll();
});

poll();
