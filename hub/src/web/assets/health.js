// The hub's health in the bar of the chat page, in words.

import { count, plural } from "./format.js";
import { getJson } from "./hub.js";

const INTERVAL_MILLIS = 3000;

/** Shows it in `state`, and the model's name in `model`, from now on. */
export function showHealth({ state, model }) {
  const say = (kind, words) => {
    state.className = `state ${kind}`;
    state.textContent = words;
  };
  const look = async () => {
    try {
      const health = await getJson("/health", [503]);
      model.textContent = health.model ?? "the model";
      const isReady = health.status === "ok";
      say(isReady ? "good" : "warn", inWords(health, isReady));
    } catch {
      say("bad", "hub not reachable");
    }
  };
  look();
  setInterval(look, INTERVAL_MILLIS);
}

function inWords({ phase, percent, workers, coverage }, isReady) {
  if (isReady) return `ready, ${workers ? plural(workers, "worker") : "no worker yet"}`;
  if (!coverage) return ["loading", phase, percent && `${percent}\u00a0%`].filter(Boolean).join(", ");
  return `waiting for workers: ${count(coverage.covered)} of ${count(coverage.blocks)} experts held`;
}
