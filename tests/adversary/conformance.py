"""Tests the rules of protocol/README.md: every kind of frame, and the exact arithmetic of an expert."""

import asyncio
import json
import time

import wire
from arithmetic import encode_row
from hub import STORY
from wire import ERROR, HEARTBEAT, RESULT, Closed, Frame, Socket
from worker import Company, Honest, Weights, fresh_key


class Compressing(Honest):
    """Compresses some answers, which a worker may do once the hub has asked for it."""

    may_compress = False

    async def beat(self, ping):
        self.may_compress = ping.get("compression", "off") != "off"
        await super().beat(ping)

    async def send_rows(self, asked, parts):
        if not self.may_compress or self.n_answers % 4 or asked.wants_digests:
            return await super().send_rows(asked, parts)
        self.seen.add("compressed result")
        message = b"".join(
            Frame(RESULT, wire.compress(b"".join(encode_row(asked.dtype, told.row) for told in part)), asked.attempt, asked.layer,
                  expert, len(part), asked.hidden, asked.dtype, wire.COMPRESSED).encode()
            for (expert, _), part in zip(asked.calls, parts))
        if asked.wants_products:
            frame = wire.products(asked, [told.products for part in parts for told in part],
                                  self.products_dtype, flags=wire.COMPRESSED)
            frame.payload = wire.compress(frame.payload)
            message += frame.encode()
        await self.socket.send(message)


class Sleepy(Honest):
    """Delays some answers until the hub has abandoned them."""

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


# Tokens of an answer, and the seconds within which even a hub that is faster than its workers must have asked them.
SHORT, PATIENCE_SECONDS = 24, 15


async def asked_until(hub, is_enough, text, expected, **asked):
    """Repeats a request until the hub's status suffices, or time runs out; returns the last status."""
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        found = await hub.complete(text, **asked)
        assert found == expected, f"{found} instead of {expected}"
        status = await hub.status()
        if is_enough(status) or time.monotonic() > until:
            return status


async def bits(checking, workers_only, text, max_tokens):
    """The worker computes every expert of `workers_only`, and then some of those of `checking`, a hub that also
    computes by itself and checks answers."""
    asked = {"max_tokens": max_tokens, "logprobs": True, "top_logprobs": 0}
    expected = await checking.complete(text, **asked)
    assert isinstance(expected, list) and len(expected) > 0, expected
    weights, counts = checking.weights or Weights(), []
    for hub in (workers_only, checking):
        worker = Compressing(hub.join_url, weights=weights)
        async with Company(worker):
            await hub.serving([worker.id])
            status = await asked_until(hub, has_used, text, expected, **asked)
        counts.append(next(w["rows"] for w in status["workers"] if w["id"] == worker.id))
        assert counts[-1] > 0 and status["totals"]["mismatches"] == 0, status["totals"]
        assert hub is checking or status["hub"]["rows"] == 0, "the hub computed experts"
    checks = checked(status)
    return (f"{len(expected)} tokens with their log probabilities, {counts[0]} rows of experts, {weights.n_hashed} blocks hashed; "
            f"{counts[1]} rows with their products: {checks}")


def has_used(status):
    """Whether a hub that checks answers has used any; other hubs need no check."""
    found = status["verification"]
    return found["mode"] == "audit" or found["checked"] > found["recomputed"]


def checked(status):
    """The status of checks at a hub that checks answers; it must have found no lie of honest workers."""
    found = status["verification"]
    assert has_used(status), found
    assert found["refuted"] == found["lies"] == 0, found
    return f"{found['checked'] - found['recomputed']} of {found['checked']} answers checked and passed"


class Unasked(Honest):
    """Sends products that nobody asked for."""

    async def send_rows(self, asked, parts):
        asked.wants_products, asked.wants_digests = not asked.wants_products, False
        await super().send_rows(asked, parts)


class Rows(Honest):
    """Sends rows where digests were asked for."""

    n_wrong = 0

    async def send_rows(self, asked, parts):
        self.n_wrong += asked.wants_digests
        asked.wants_digests = False
        await super().send_rows(asked, parts)


async def unasked(hub, expected):
    """Answers with products that were not asked for are not used, nor answers without those that were."""
    weights = hub.weights or Weights()
    honest, other = (kind(hub.join_url, weights=weights) for kind in (Honest, Unasked))
    async with Company(honest, other):
        await hub.serving([honest.id, other.id])
        status = await asked_until(hub, lambda _: other.n_answers > 0, STORY, expected, max_tokens=SHORT)
    used = sum(w["rows"] for w in status["workers"] if w["id"] == other.id)
    assert other.n_answers > 0 and used == 0, f"{used} rows of {other.n_answers} answers"
    return f"{other.n_answers} answers of the wrong shape"


# The frames that every hub sends, sooner or later.
PLAIN = {"accepted", "ping", "sync", "dispatch, plain", "dispatch, rows once"}


async def frames(hub, alone=None):
    """Tests plain and rows-once dispatches, syncs, pings, and a connection that replaces another. Where only workers
    compute experts, and `alone` has the right text, also tests an answer that arrives too late."""
    expected = await (alone or hub).complete(STORY, SHORT)
    weights = hub.weights or Weights()
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
        # Three workers with two thirds of the blocks each: a layer asks some of them for several experts, some for one.
        async with Company(second, third):
            await hub.serving([first.id, second.id, third.id])
            first.naps = 3
            is_all = lambda status: PLAIN <= first.seen | second.seen | third.seen and has_used(status)
            await asked_until(hub, is_all, STORY, expected, max_tokens=SHORT)
            await asyncio.sleep(1.6 if alone else 0)
        # Another connection under the same id replaces it.
        again = Honest(hub.join_url, first.key, weights)
        first_ended = first.n_ended
        await again_joins(hub, again)
        for _ in range(100):
            if first.n_ended > first_ended:
                break
            await asyncio.sleep(0.05)
        assert first.n_ended > first_ended, "the older connection of an id does not end"
        seen = first.seen | second.seen | third.seen | again.seen
    wanted = PLAIN | ({"cancel", "late answer"} if alone else set())
    assert wanted <= seen, f"never met: {wanted - seen}"
    status = await hub.status()
    totals = status["totals"]
    assert totals["mismatches"] == 0 and (totals["late"] > 0 or not alone), totals
    checks = [checked(status)] if is_checking(status) else []
    shapes = await unasked(hub, expected)
    return "; ".join([", ".join(sorted(seen)), f"{len(dropped)} blocks to drop", *checks, shapes])


async def agreement(hub):
    """Where two addresses have to agree: uses nothing of two workers at one address, and both of two at two. One of the two is
    asked for digests, if it gives any; rows in place of them are not used."""
    expected = await hub.complete(STORY, SHORT)
    weights = hub.weights or Weights()
    pair = [Honest(hub.join_url, weights=weights) for _ in range(2)]
    async with Company(*pair):
        await hub.serving([worker.id for worker in pair])
        for _ in range(3):
            assert await hub.complete(STORY, SHORT) == expected
        status = await hub.status()
        assert status["verification"]["checked"] == 0, "an answer of one address was used"
        assert all("another address" in worker["reason"] for worker in status["workers"]), status["workers"]
        other = Honest(hub.join_url, weights=weights)
        other.source = "127.0.0.9"
        async with Company(other):
            await hub.serving([worker.id for worker in (*pair, other)])
            used = lambda status: sum(w["rows"] > 0 for w in status["workers"]) > 1
            await asked_until(hub, used, STORY, expected, max_tokens=SHORT)
            status = await hub.status()
    assert status["totals"]["mismatches"] == 0, status["totals"]
    assert "dispatch, digests" in set().union(*(worker.seen for worker in (*pair, other))), "nobody was asked for digests"
    old, stubborn = Honest(hub.join_url, weights=weights, gives_digests=False), Rows(hub.join_url, weights=weights)
    stubborn.source = "127.0.0.10"
    async with Company(old, stubborn):
        await hub.serving([old.id, stubborn.id])
        await asked_until(hub, lambda _: stubborn.n_wrong > 0, STORY, expected, max_tokens=SHORT)
    assert "dispatch, digests" not in old.seen, "digests of one that gives none"
    assert stubborn.n_wrong > 0, "nobody was asked for digests"
    return ", ".join(f"{worker['rows']} rows from {worker['address'].partition(':')[0]}" for worker in status["workers"])


def is_checking(status):
    return status["verification"]["mode"] != "audit"


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
    return Honest(hub.join_url, fresh_key(), **said).join()


async def ending(hub, *messages, text=None):
    """The ERROR and the close code of the hub after these messages."""
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
    """Tests the documented ends of a session and their codes, and weights requested without the token."""
    join = join_of(hub)
    said = wire.control(HEARTBEAT, join)
    other_version = Frame(HEARTBEAT, json.dumps(join).encode(), version=wire.VERSION + 1).encode()
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
    if is_checking(await hub.status()):
        cases["no products"] = (await ending(hub, wire.control(HEARTBEAT, {**join, "gives_products": False})), ("self_test", 1008))
    for what, (found, expected) in cases.items():
        assert found == expected, f"{what}: {found} instead of {expected}"
    catalog = (await hub.http("GET", "/api/terms"))[0]
    assert catalog == 401, catalog
    code, terms = await hub.http("GET", "/api/terms", headers=[f"Authorization: Bearer {hub.url.token}"])
    assert code == 200 and json.loads(terms)["model"]["hidden"] > 0
    weights = (await hub.http("GET", "/shards/layer-0.safetensors"))[0]
    assert weights == 401, weights
    return ", ".join(cases)
