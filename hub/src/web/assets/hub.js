// What the pages ask the hub: JSON, and answers as they are written.

const KEY = "moex.api-key";

/** The API key of this tab, or "". */
export const apiKey = {
  read: () => sessionStorage.getItem(KEY) ?? "",
  write: (key) => sessionStorage.setItem(KEY, key),
};

/** An answer that is no success: its status and the hub's own sentence. */
export class HubError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

function headers(more = {}) {
  const key = apiKey.read();
  return key ? { ...more, Authorization: `Bearer ${key}` } : more;
}

async function failure(response) {
  const body = await response.json().catch(() => null);
  return new HubError(response.status, body?.error?.message ?? `The hub answered ${response.status}.`);
}

/** GETs JSON. `/health` answers 503 with a body too: `accept` lists such statuses. */
export async function getJson(path, accept = []) {
  const response = await fetch(path, { headers: headers(), cache: "no-store" });
  if (!response.ok && !accept.includes(response.status)) throw await failure(response);
  return response.json();
}

/** Streams a chat completion; calls `onChunk` with each parsed chunk. */
export async function streamChat(request, signal, onChunk) {
  const response = await fetch("/v1/chat/completions", {
    method: "POST",
    headers: headers({ "Content-Type": "application/json" }),
    body: JSON.stringify({ ...request, stream: true, stream_options: { include_usage: true } }),
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
