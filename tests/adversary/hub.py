"""A hub seen from outside: started as a process or given by its URL, asked over its API, watched in /proc, and probed
by an honest client in its own process during an attack."""

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from wire import JoinUrl

STORY = "Tell me a story about a bear."
QUESTIONS = [STORY, "What is 27 + 15?", "Sort these numbers: 83, 34, 63.", "What is the capital of France?",
             "Tell me a story about a cat.", "Spell the word apple.", "What is 8 times 7?", "Tell me a story about a fox."]


class Hub:
    """A hub's address; `process` is set if this program started it."""

    def __init__(self, join_url, pid=None, process=None, state=None, log=None):
        self.join_url, self.url, self.pid = join_url, JoinUrl.parse(join_url), pid
        self.process, self.state, self.log = process, state, log
        self.honest = None  # the worker that an attack targets
        self.weights = None  # its experts, if they are known beforehand
        self.n_answers = 0  # texts to be compared at least while workers lie
        self.is_long = True  # attacks are measured, not only tried

    @classmethod
    def start(cls, moex, *flags, files=None):
        """Starts `moex serve` on a free loopback port, with its own folder of secrets."""
        state = tempfile.TemporaryDirectory()
        log = open(Path(state.name) / "log", "w+b")
        command = [moex, "serve", "--json", "--listen", "127.0.0.1:0", *flags]
        if files:
            command = ["bash", "-c", f'ulimit -n {files}; exec "$@"', "hub", *command]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, stderr=log,
                                   env={**os.environ, "MOEX_STATE": state.name})
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the hub did not start: {Path(log.name).read_text()}")
        started = json.loads(line)
        return cls(started["local_join_url"], process.pid, process, state, log)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()
            self.log.close()
            self.state.cleanup()

    def said(self):
        """Its stderr, if this program started it."""
        return Path(self.log.name).read_bytes() if self.log else b""

    def alive(self):
        return self.process is None or self.process.poll() is None

    def memory(self, field="VmRSS"):
        """MiB in /proc/PID/status, with the process's children; None if the process is unknown."""
        if self.pid is None:
            return None
        try:
            hub = memory_of(self.pid, field)
            children = " ".join(task.read_text() for task in Path(f"/proc/{self.pid}/task").glob("*/children"))
        except OSError:
            return None
        for pid in children.split():
            with contextlib.suppress(OSError):  # it has ended
                hub += memory_of(pid, field)
        return hub

    async def http(self, method, path, body=None, timeout=120.0, headers=()):
        """Sends a request over a new connection; returns status and body."""
        reader, writer = await asyncio.wait_for(asyncio.open_connection(self.url.host, self.url.port), timeout)
        try:
            data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
            head = [f"{method} {path} HTTP/1.1", f"Host: {self.url.address}", "Connection: close", *headers,
                    "Content-Type: application/json", f"Content-Length: {len(data)}"]
            writer.write(("\r\n".join(head) + "\r\n\r\n").encode() + data)
            answer = await asyncio.wait_for(reader.read(), timeout)
            head, _, rest = answer.partition(b"\r\n\r\n")
            if b"chunked" in head.lower():
                rest = b"".join(dechunked(rest))
            return int(head.split()[1]), rest
        finally:
            writer.close()

    async def status(self):
        return json.loads((await self.http("GET", "/api/swarm"))[1])

    async def complete(self, text, max_tokens=96, timeout=120.0, **more):
        """The greedy answer to a question, with log probabilities if requested; or the error's text."""
        body = {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": max_tokens,
                "chat_template_kwargs": {"enable_thinking": False}, **more}
        code, answer = await self.http("POST", "/v1/chat/completions", body, timeout)
        answer = json.loads(answer)
        if code != 200:
            return f"{code}: {answer}"
        choice = answer["choices"][0]
        if more.get("logprobs"):
            return [(token["token"], token["logprob"]) for token in choice["logprobs"]["content"]]
        return choice["message"]["content"]

    async def wait(self, condition, what, timeout=60.0):
        """Waits until the status fulfils a condition."""
        deadline = time.monotonic() + timeout
        while True:
            status = await self.status()
            if condition(status):
                return status
            if time.monotonic() > deadline:
                raise TimeoutError(f"the swarm did not reach: {what}")
            await asyncio.sleep(0.05)

    async def serving(self, ids, timeout=60.0):
        """Waits until these workers serve all blocks that they were given."""
        def all_serve(status):
            known = {w["id"]: w for w in status["workers"]}
            return all(i in known and known[i]["state"] == "serving" and known[i]["blocks_resident"] >= known[i]["blocks_assigned"] > 0
                       for i in ids)
        return await self.wait(all_serve, f"{len(ids)} workers that serve", timeout)


def dechunked(data):
    while data:
        size, _, data = data.partition(b"\r\n")
        n = int(size, 16)
        if n == 0:
            return
        yield data[:n]
        data = data[n + 2:]


class Sink(Hub):
    """A server that only refuses, as `sink.py` says, in the place of a hub."""

    def __init__(self):
        command = [sys.executable, str(Path(__file__).with_name("sink.py"))]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        super().__init__(f"http://127.0.0.1:{int(process.stdout.readline())}/join#none", process=process)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


def within(times, t):
    return any(begin <= t < end for begin, end in times)


def memory_of(pid, field):
    found = re.search(rf"{field}:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0


class Probe:
    """An honest client in its own process: one stream after another, and /health every 20 ms, with their times."""

    def __init__(self, hub):
        self.hub = hub

    async def __aenter__(self):
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, str(Path(__file__).with_name("probe.py")), self.hub.url.host, str(self.hub.url.port), STORY,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=64 << 20)
        await self.process.stdout.readline()
        return self

    async def __aexit__(self, *_):
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()

    async def end(self):
        self.process.stdin.close()
        self.found = json.loads(await asyncio.wait_for(self.process.stdout.read(), 60))
        await self.process.wait()
        return self

    def rate(self, times):
        """Tokens a second of the stream, over some times from a begin to an end."""
        return sum(within(times, t) for t in self.found["tokens"]) / sum(end - begin for begin, end in times)

    def health_p99(self, times):
        """Latencies in milliseconds; a request without an answer counts with its time so far."""
        waits = sorted(wait for t, wait in self.found["health"] if within(times, t))
        return 1000 * waits[min(len(waits) - 1, int(0.99 * len(waits)))] if waits else float("inf")

    def wrong_texts(self):
        return self.found["texts"], self.found["errors"]
