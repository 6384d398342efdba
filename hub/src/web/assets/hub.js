// What the pages ask the hub: JSON, and answers as they are written.

import { ofTab } from "./store.js";

const KEY = "moex.api-key";

/** The largest body that the hub reads. */
const MAX_BODY_BYTES = 4 << 20;

/** The API key of this tab, or "". */
export const apiKey = {
  read: () => ofTab.read(KEY) ?? "",
  write: (key) => ofTab.write(KEY, key),
};

/** An answer that is no success: its status, the hub's own sentence, and its code. */
export class HubError extends Error {
  constructor(status, message, code = "") {
    super(message);
    this.status = status;
    this.code = code;
  }

  /** Whether the request itself is at fault, so that sending it again would not help. */
  get isRefusal() {
    return [400, 404, 413, 422].includes(this.status);
  }
}

function headers(more = {}, key = apiKey.read()) {
  return key ? { ...more, Authorization: `Bearer ${key}` } : more;
}

async function failure(response) {
  const error = (await response.json().catch(() => null))?.error;
  return new HubError(response.status, error?.message ?? `The hub answered ${response.status}.`, error?.code ?? "");
}

/** Whether the hub takes this key; null if it cannot be asked. */
export async function passes(key) {
  // No header can carry other characters, so no hub has such a key.
  if (/[^\x20-\x7e]/.test(key)) return false;
  try {
    const response = await fetch("/v1/models", { headers: headers({}, key), cache: "no-store" });
    return response.status !== 401;
  } catch {
    return null;
  }
}

/** GETs JSON. `/health` answers 503 with a body too: `accept` lists such statuses. */
export async function getJson(path, accept = []) {
  const response = await fetch(path, { headers: headers(), cache: "no-store" });
  if (!response.ok && !accept.includes(response.status)) throw await failure(response);
  return response.json();
}

/** How machines join: `{ token, links: [{ url, reachable, qr_svg }] }`, the link under this page's own origin first. */
export const getJoin = () => getJson(`/api/join?origin=${encodeURIComponent(location.origin)}`);

/** As `getJoin`, by the invitation of this name. */
export const getInvitation = (name) =>
  getJson(`/api/join?origin=${encodeURIComponent(location.origin)}&name=${encodeURIComponent(name)}`);

/** Lets an invitation admit nobody any more; its worker is let go. */
export async function revokeInvitation(name) {
  const body = JSON.stringify({ name });
  const response = await fetch("/api/join/revoked", { method: "POST", headers: headers({ "Content-Type": "application/json" }), body });
  if (!response.ok) throw await failure(response);
}

/** Streams a chat completion; calls `onChunk` with each parsed chunk. */
export async function streamChat(request, signal, onChunk) {
  const body = JSON.stringify({ ...request, stream: true, stream_options: { include_usage: true } });
  const bytes = new TextEncoder().encode(body).length;
  if (bytes > MAX_BODY_BYTES) {
    // The hub would hang up in the middle of it, which browsers show as no answer at all.
    throw new HubError(413, `It has ${bytes.toLocaleString("en")} bytes, and the hub reads ${MAX_BODY_BYTES.toLocaleString("en")}.`);
  }
  const response = await fetch("/v1/chat/completions", {
    method: "POST",
    headers: headers({ "Content-Type": "application/json" }),
    body,
    signal,
  });
  if (!response.ok) throw await failure(response);
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new HubError(200, chunk.error.message);
    onChunk(chunk);
  }
  throw new HubError(200, "The connection closed before the answer ended.");
}

/** The `data` of each server-sent event. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let pending = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      pending += value;
      const lines = pending.split("\n");
      pending = lines.pop();
      for (const line of lines) {
        if (line.startsWith("data:")) yield line.slice(5).trim();
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
