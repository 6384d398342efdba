"""What protocol/README.md says, done and looked at: every kind of frame, and the bits of an expert."""

import asyncio
import json

import wire
from arithmetic import encode_row
from hub import STORY
from wire import ERROR, HEARTBEAT, RESULT, Closed, Frame, Socket
from worker import Company, Honest, Weights, fresh_id


class Compressing(Honest):
    """Answers now and then with compressed payloads, which an end may do once the hub has asked for it."""

    may_compress = False

    async def beat(self, ping):
        self.may_compress = ping.get("compression", "off") != "off"
        await super().beat(ping)

    async def send_rows(self, asked, parts):
        if not self.may_compress or self.n_answers % 4:
            return await super().send_rows(asked, parts)
        self.seen.add("compressed result")
        await self.socket.send(b"".join(
            Frame(RESULT, wire.compress(b"".join(encode_row(asked.dtype, row) for row in rows)), asked.attempt, asked.layer, expert,
                  len(rows), asked.hidden, asked.dtype, wire.COMPRESSED).encode()
            for (expert, _), rows in zip(asked.calls, parts)))


class Sleepy(Honest):
    """Keeps some answers back until the hub has given them up."""

    naps = 0

    async def answer(self, asked):
        if self.naps > 0:
            self.naps -= 1
            self.task = asyncio.create_task(self.later(asked))
        else:
            await super().answer(asked)

    async def later(self, asked):
        await asyncio.sleep(1.5)
        self.seen.add("late answer")
        await super().answer(asked)


async def bits(alone, workers_only, text, max_tokens, **said):
    """The worker alone computes every expert of `workers_only`; `alone` is a hub that computes its own."""
    asked = {"max_tokens": max_tokens, "logprobs": True, "top_logprobs": 0}
    expected = await alone.complete(text, **asked)
    worker = Compressing(workers_only.join_url, **said)
    async with Company(worker):
        await workers_only.serving([worker.id])
        found = await workers_only.complete(text, **asked)
        status = await workers_only.status()
    assert isinstance(expected, list) and len(expected) > 0, expected
    assert found == expected, f"the log probabilities differ: {found} instead of {expected}"
    assert status["hub"]["rows"] == 0, "the hub computed experts"
    rows = next(w["rows"] for w in status["workers"] if w["id"] == worker.id)
    assert rows > 0 and status["totals"]["mismatches"] == 0
    return f"{len(found)} tokens with their log probabilities, {rows} rows of experts, {worker.weights.n_hashed} blocks hashed", worker


async def frames(hub, alone=None):
    """Plain and rows-once dispatches, syncs, pings, a connection that replaces another; and where workers alone compute experts,
    and `alone` says what is right, what becomes of an answer that comes too late."""
    expected = await (alone or hub).complete(STORY)
    weights = Weights()
    first = (Sleepy if alone else Honest)(hub.join_url, weights=weights)
    second, third = (Honest(hub.join_url, weights=weights) for _ in range(2))
    dropped = []
    original = first.sync

    async def sync(body):
        dropped.extend(body.get("drop", []))
        await original(body)
    first.sync = sync
    async with Company(first):
        await hub.serving([first.id])
        assert await hub.complete("What is 27 + 15?") != ""
        # Three workers with two thirds of the blocks each: a layer asks some for several experts and some for one.
        async with Company(second, third):
            await hub.serving([first.id, second.id, third.id])
            first.naps = 3
            assert await hub.complete(STORY) == expected
            await asyncio.sleep(1.6 if alone else 0)
        # It is replaced by another connection under the same id.
        again = Honest(hub.join_url, first.id, weights)
        first_ended = first.n_ended
        await again_joins(hub, again)
        for _ in range(100):
            if first.n_ended > first_ended:
                break
            await asyncio.sleep(0.05)
        assert first.n_ended > first_ended, "the older connection of an id does not end"
        seen = first.seen | second.seen | third.seen | again.seen
    wanted = {"accepted", "ping", "sync", "dispatch, plain", "dispatch, rows once"} | ({"cancel", "late answer"} if alone else set())
    assert wanted <= seen, f"never met: {wanted - seen}"
    totals = (await hub.status())["totals"]
    assert totals["mismatches"] == 0 and (totals["late"] > 0 or not alone), totals
    return f"{', '.join(sorted(seen))}; {len(dropped)} blocks to drop"


async def again_joins(hub, worker):
    worker.begin()
    worker.socket = await Socket.open(hub.url)
    await worker.socket.send(wire.control(HEARTBEAT, worker.join()))
    while not worker.is_accepted:
        await worker.take(wire.decode(await worker.socket.message()))
    await worker.socket.send(wire.control(HEARTBEAT, {"type": "beat", "visibility": "leaving"}))
    try:
        while True:
            await worker.socket.message()
    except Closed as closed:
        assert closed.code == 1001, closed


def join_of(hub, **said):
    return Honest(hub.join_url, fresh_id(), **said).join()


async def ending(hub, *messages, text=None):
    """The ERROR and the close code that a hub answers these messages with."""
    socket, error = await Socket.open(hub.url), None
    try:
        for message in messages:
            await socket.send(message)
        if text is not None:
            await socket.send(text, opcode=1)
        while True:
            for frame in wire.decode(await asyncio.wait_for(socket.message(), 20)):
                error = frame.json()["code"] if frame.type == ERROR else error
    except Closed as closed:
        return error, closed.code
    finally:
        socket.close()


async def refusals(hub):
    """What the page says ends a session, and with which code; weights without the token."""
    join = join_of(hub)
    said = wire.control(HEARTBEAT, join)
    other_version = Frame(HEARTBEAT, json.dumps(join).encode(), version=2).encode()
    unknown = Frame(99, b"of a later version").encode()
    leaving = wire.control(HEARTBEAT, {"type": "beat", "visibility": "leaving"})
    cases = {
        "text": (await ending(hub, said, text=b"hello"), (None, 1003)),
        "another version": (await ending(hub, other_version), ("version", 1002)),
        "a wrong token": (await ending(hub, wire.control(HEARTBEAT, {**join, "token": "wrong"})), ("unauthorized", 1008)),
        "a failed self-test": (await ending(hub, wire.control(HEARTBEAT, {**join, "self_test": {"passed": False}})), ("self_test", 1008)),
        "a beat before a join": (await ending(hub, leaving), ("bad_frame", 1002)),
        "an overlong join": (await ending(hub, wire.control(HEARTBEAT, {**join, "limits": {str(i): i for i in range(20_000)}})), (None, 1009)),
        "a bad frame": (await ending(hub, said, b"MoEy" + said[4:]), ("bad_frame", 1002)),
        "unknown frames, then leaving": (await ending(hub, unknown + said, unknown, leaving), (None, 1001)),
    }
    for what, (found, expected) in cases.items():
        assert found == expected, f"{what}: {found} instead of {expected}"
    catalog = (await hub.http("GET", "/api/terms"))[0]
    assert catalog == 401, catalog
    code, terms = await hub.http("GET", "/api/terms", headers=[f"Authorization: Bearer {hub.url.token}"])
    assert code == 200 and json.loads(terms)["model"]["hidden"] > 0
    weights = (await hub.http("GET", "/shards/layer-0.safetensors"))[0]
    assert weights == 401, weights
    return ", ".join(cases)
