"""A worker written from protocol/README.md: joins, loads what it is told to hold, answers. A manner
makes it misbehave.

A manner overrides methods of `Honest`: `answer` for dispatches, `report` for reports of its blocks.
"""

import asyncio
import http.client
import os
import struct
import threading
from collections import deque, namedtuple

import wire
from arithmetic import Expert, blake3, decode_row, encode_row
from wire import CANCEL, ERROR, F16, HEARTBEAT, WEIGHT_SYNC, Closed, JoinUrl, Socket

RETURN_DELAY = 0.2
# The number of experts' rows that are cached, two kilobytes each.
MAX_KNOWN = 100_000


# An expert's answer for a row, and the products from which it follows.
Told = namedtuple("Told", "row products")


def fresh_key():
    return os.urandom(16).hex()


class Weights:
    """Fetches blocks over HTTP with the token. The workers of one process share them, so that each is fetched once."""

    def __init__(self):
        self.experts, self.connection, self.n_hashed, self.lock = {}, None, 0, threading.Lock()
        self.known = {}

    def load(self, url, source, model, n_hashed):
        key = (source["url"], source["start"])
        with self.lock:
            if key not in self.experts:
                block = self.fetch(url, source)
                if self.n_hashed < n_hashed:
                    assert blake3(block) == source["blake3"], "the block has the hash that WEIGHT_SYNC says"
                    self.n_hashed += 1
                self.experts[key] = Expert(block, model["hidden"], model["inner"], model.get("activations") or "f32")
            return self.experts[key]

    def fetch(self, url, source):
        if self.connection is None or self.connection.port != url.port:
            self.connection = http.client.HTTPConnection(url.host, url.port, timeout=60)
        n = source["end"] - source["start"]
        self.connection.request("GET", source["url"], headers={
            "Authorization": f"Bearer {url.token}", "Range": f"bytes={source['start']}-{source['end'] - 1}"})
        response = self.connection.getresponse()
        block = response.read()
        assert (response.status, len(block)) == (206, n), (response.status, len(block), n)
        return block


class Honest:
    """Holds the blocks that it is told to hold, and answers exactly."""

    hashes = 4  # blocks whose hash is checked
    source = None  # the address it joins from
    loads = True

    def __init__(self, join_url, key=None, weights=None, **said):
        self.url = JoinUrl.parse(join_url)
        self.key = key or fresh_key()
        self.weights = weights or Weights()
        self.said = said
        self.seen, self.n_answers, self.n_ended, self.is_accepted = set(), 0, 0, False
        self.errors = deque(maxlen=64)
        self.begin()

    @property
    def id(self):
        return blake3(bytes.fromhex(self.key))[:32]

    def begin(self):
        self.held, self.cancelled, self.model, self.bytes_total = {}, set(), None, 0

    def join(self):
        return {"type": "join", "token": self.url.token, "key": self.key, "kind": "native", "build": "adversary",
                "adapter": "Python", "backend": "cpu", "memory_budget_bytes": 1 << 30,
                "self_test": {"passed": True, "worst_nmse": 0.0}, "gigabytes_per_second": 10.0, "teraflops": 0.1,
                "input_slots": 4, "gives_products": True, "gives_digests": True,
                **self.said}

    async def live(self, forever=True):
        """Joins, and joins again whenever it is thrown out; ends if it is refused before it was ever accepted."""
        while True:
            try:
                await self.visit()
            except (Closed, wire.Refused, OSError, asyncio.IncompleteReadError):
                self.n_ended += 1
            if not forever:
                return
            await asyncio.sleep(RETURN_DELAY)
            self.returns()

    def returns(self):
        """Called before it joins again."""

    async def visit(self):
        self.begin()
        self.socket = await Socket.open(self.url, source=self.source)
        try:
            await self.socket.send(wire.control(HEARTBEAT, self.join()))
            while True:
                await self.take(wire.decode(await self.socket.message()))
        finally:
            self.socket.close()

    async def take(self, frames):
        for frame in frames:
            if frame.type == HEARTBEAT:
                body = frame.json()
                self.seen.add(body["type"])
                if body["type"] == "accepted":
                    self.model, self.is_accepted = body["model"], True
                else:
                    await self.beat(body)
            elif frame.type == WEIGHT_SYNC:
                self.seen.add("sync")
                await self.sync(frame.json())
            elif frame.type == ERROR:
                self.seen.add("error")
                self.errors.append(frame.json())
            elif frame.type == CANCEL:
                self.seen.add("cancel")
                self.cancelled.add(frame.sequence)
        for asked in wire.dispatches(frames):
            self.seen.add(f"dispatch, {asked.form}")
            if asked.wants_digests:
                assert not asked.wants_products, "digests are asked for as was agreed"
                self.seen.add("dispatch, digests")
            await self.answer(asked)

    async def beat(self, ping):
        body = {"type": "beat", "echo": ping["hub_micros"], "visibility": "visible", "queue_depth": 0,
                "memory_used_bytes": self.bytes_total, "blocks_resident": len(self.held)}
        if ping.get("compression", "off") != "off":
            body["takes_lz4"] = True
        message = wire.control(HEARTBEAT, body)
        if ping.get("padding_bytes"):
            message += wire.Frame(wire.PADDING, bytes(ping["padding_bytes"])).encode()
        await self.socket.send(message)

    async def sync(self, sync):
        for block in sync.get("drop", []):
            self.held.pop((block["layer"], block["expert"]), None)
        resident, failed, n_bytes = [], [], 0
        for source in sync.get("hold", []):
            block = source["block"]
            n_bytes += source["end"] - source["start"]
            if not self.takes(block):
                failed.append([block, self.excuse()])
                continue
            expert = None
            if self.loads:
                expert = await asyncio.to_thread(self.weights.load, self.url, source, self.model, self.hashes)
            self.held[block["layer"], block["expert"]] = expert
            resident.append(block)
        self.bytes_total += n_bytes
        await self.socket.send(wire.control(WEIGHT_SYNC, {
            "type": "report", "epoch": sync["epoch"], "resident": resident, "failed": failed,
            "bytes_done": n_bytes, "bytes_total": n_bytes, "bytes_downloaded": n_bytes}))

    @property
    def products_dtype(self):
        """Of the products on the wire; 0 is f32."""
        return F16 if self.model.get("activations") == "int8" else 0

    def takes(self, _block):
        """Whether it reports that it holds a block."""
        return True

    def excuse(self):
        return "no such file"

    def computed(self, asked):
        """The answers for the rows of each expert, in f32. The same questions request the same rows again; caching them
        makes a worker in Python nearly as fast as a native one."""
        known = self.weights.known
        if len(known) > MAX_KNOWN:
            known.clear()
        parts = []
        for expert, pairs in asked.calls:
            rows = []
            for row, gate in pairs:
                key = asked.layer, expert, asked.rows[row], gate
                if key not in known:
                    made = self.held[key[:2]]
                    products = made.products(decode_row(asked.dtype, asked.rows[row]))
                    known[key] = Told(made.answer(products, struct.unpack("<e", gate)[0]), products)
                rows.append(known[key])
            parts.append(rows)
        return parts

    async def answer(self, asked):
        missing = [expert for expert, _ in asked.calls if (asked.layer, expert) not in self.held]
        if missing:
            error = {"code": "not_resident", "message": f"layer {asked.layer} expert {missing[0]}", "attempt": asked.attempt}
            return await self.socket.send(wire.control(ERROR, error, asked.attempt))
        parts = self.computed(asked)
        self.n_answers += 1
        # A CANCEL may have arrived meanwhile. The hub drops answers to settled attempts, so this one is sent anyway.
        await self.send_rows(asked, self.changed(asked, parts))
        await asyncio.sleep(0)

    def changed(self, _asked, parts):
        """A liar's change of the true answers."""
        return parts

    async def send_rows(self, asked, parts):
        encoded = [[encode_row(asked.dtype, told.row) for told in part] for part in parts]
        if asked.wants_digests:
            return await self.socket.send(wire.digests(asked, encoded, blake3))
        message = wire.results(asked, encoded)
        if asked.wants_products:
            message += wire.products(asked, [told.products for part in parts for told in part], self.products_dtype).encode()
        await self.socket.send(message)


class Silent(Honest):
    """Reports that it holds everything, and answers only pings."""

    loads = False

    async def answer(self, asked):
        self.n_answers += 1


class LoadsNothing(Silent):
    """Fails every block."""

    def takes(self, _block):
        return False


class Company:
    """Workers that live as long as a `with` block."""

    def __init__(self, *workers):
        self.workers = workers

    async def __aenter__(self):
        self.tasks = [asyncio.create_task(worker.live()) for worker in self.workers]
        return self

    async def __aexit__(self, *_):
        # A wait that ends just as it is cancelled may go on, so it is cancelled again.
        while pending := [task for task in self.tasks if not task.done()]:
            for task in pending:
                task.cancel()
            await asyncio.wait(pending, timeout=1)
        ended = await asyncio.gather(*self.tasks, return_exceptions=True)
        for error in ended:
            if isinstance(error, Exception):
                raise error
