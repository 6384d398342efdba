// One answer on its way: asks the hub, writes what comes into the message, and says how it ended.

import { withFiles } from "./files.js";
import { count, percent, plural, workerName } from "./format.js";
import { HubError, getJson, streamChat } from "./hub.js";

/** Workers named under an answer; the others are counted. */
const MAX_NAMED = 4;
/** How long a question waits for the count of what was computed before it. */
const COUNT_MILLIS = 150;

/** An answer without a word yet. */
export const newAnswer = () => ({ role: "assistant", content: "", reasoning: "", state: "writing", note: "" });

/**
 * Streams the answer to `messages` into `answer`, calling `changed()` after each piece. Resolves when `answer.state` is
 * one of the ends, to null or to the HubError of a request that was refused as it is.
 */
export async function write(answer, messages, options, signal, changed) {
  const before = shares();
  // What is counted only once the answer has begun is no count of what was before.
  await Promise.race([before, new Promise((done) => setTimeout(done, COUNT_MILLIS))]);
  let timings = null;
  let finish = "stop";
  try {
    await streamChat({ messages: asApi(messages), ...options }, signal, (chunk) => {
      timings = chunk.timings ?? timings;
      const choice = chunk.choices[0];
      if (!choice) return;
      finish = choice.finish_reason ?? finish;
      answer.content += choice.delta.content ?? "";
      answer.reasoning += choice.delta.reasoning_content ?? "";
      changed();
    });
    const parts = [speed(timings), finish === "length" ? "cut at the token limit" : "", whoComputed(await before, await shares())];
    answer.note = parts.filter(Boolean).join(" · ");
    answer.state = "done";
    return null;
  } catch (error) {
    if (error.name === "AbortError") {
      answer.state = "stopped";
      answer.note = "stopped";
      return null;
    }
    answer.state = "failed";
    answer.note = inWords(error);
    return error instanceof HubError ? error : null;
  }
}

function inWords(error) {
  if (!(error instanceof HubError)) return "The hub cannot be reached. Is it still running?";
  return error.status === 401 ? "This hub needs its API key." : error.message;
}

/** Messages as the API takes them: reasoning is not sent again, and an answer without a word is none. */
const asApi = (messages) =>
  messages
    .filter(({ role, content }) => role !== "assistant" || content)
    .map(({ role, content, files }) => ({ role, content: withFiles(content, files ?? []) }));

/** As the engine measured it; the network and this page are not in it. */
function speed(timings) {
  if (!timings) return "";
  const rate = timings.predicted_per_second;
  const tokens = plural(timings.predicted_n, "token");
  return rate ? `${tokens}, ${rate < 100 ? rate.toFixed(1) : count(rate)} tokens/s` : tokens;
}

// ---- who computed -------------------------------------------------------------------------------------------------

/** Rows computed so far: id -> [name, rows]. Null when the hub does not say. */
async function shares() {
  try {
    const status = await getJson("/api/swarm");
    const rows = new Map(status.workers.map((worker) => [worker.id, [workerName(worker), worker.rows]]));
    return rows.set("hub", ["the hub", status.hub.rows]);
  } catch {
    return null;
  }
}

/** Who added what between two looks, the largest share first; other requests at the same time count too. */
function whoComputed(before, after) {
  if (!before || !after) return "";
  const added = [...after]
    .map(([id, [name, rows]]) => [name, rows - (before.get(id)?.[1] ?? 0)])
    .filter(([, rows]) => rows > 0)
    .sort((a, b) => b[1] - a[1]);
  const total = added.reduce((sum, [, rows]) => sum + rows, 0);
  const named = added.slice(0, MAX_NAMED).map(([name, rows]) => `${name} ${percent(rows, total)}`);
  const others = added.length - named.length;
  if (others > 0) named.push(plural(others, "other"));
  return named.length ? `experts computed by ${named.join(", ")}` : "";
}
