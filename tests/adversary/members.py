"""Attacks with the hub's token other than wrong answers: silence, failures, floods, forged texts, stolen ids."""

import asyncio
import contextlib
import random
import time

import wire
from wire import ERROR, HEARTBEAT, WEIGHT_SYNC, Closed, Frame, Refused, Socket
from worker import Company, Honest, LoadsNothing, Silent

FORGED = "2026-11-22T00:00:00Z  INFO all is well"


async def rest(until):
    await asyncio.sleep(max(0.0, until - time.monotonic()))


async def silent(hub, until):
    """Three workers that hold everything, answer only pings, and report that they are slow."""
    workers = [Silent(hub.join_url, teraflops=1e-9, gigabytes_per_second=1e-9) for _ in range(3)]
    async with Company(*workers):
        await rest(until)
    return {"asked": sum(worker.n_answers for worker in workers)}


async def loads_nothing(hub, until):
    """One worker that fails every load at once, beside an honest one that keeps its blocks."""
    honest, failing = hub.honest, LoadsNothing(hub.join_url)
    n_blocks = len(honest.held)
    async with Company(failing):
        lows = []
        while time.monotonic() < until:
            lows.append(len(honest.held))
            await asyncio.sleep(0.05)
    # The hub may try it with some blocks, but those that it fails return to the honest worker and stay there.
    assert lows[-1] == n_blocks, f"the honest worker ends with {lows[-1]} of {n_blocks} blocks"
    return {"the honest worker's blocks": f"{min(lows)} at least of {n_blocks}"}


class Forger(Silent):
    """Joins with texts that contain line breaks and escapes, and ends its session with an ERROR that contains them,
    too."""

    def join(self):
        text = f"x\n{FORGED}\r\x1b[2J\x1b]0;owned\x07\u202e\x9b31m"
        return {**super().join(), "name": text[:60], "adapter": text, "build": text, "backend": text}

    def excuse(self):
        return f"gone\n{FORGED}\x1b[2J"

    def takes(self, block):
        return block["expert"] % 4 > 0

    async def answer(self, asked):
        self.n_answers += 1
        text = f"gone\n{FORGED}\x1b[2J\x9b31m\u2028{FORGED}"
        attempt = asked.attempt if self.n_answers % 2 else None
        await self.socket.send(wire.control(ERROR, {"code": "device_lost", "message": text, "attempt": attempt} if attempt
                                            else {"code": "device_lost", "message": text}, attempt or 0))


async def forged_texts(hub, until):
    """Texts of workers that try to be lines of the hub's log, or commands of a terminal."""
    async with Company(*(Forger(hub.join_url) for _ in range(2))):
        await rest(until)
    said = hub.said()
    for line in said.splitlines():
        assert not line.startswith(FORGED.encode()), "a worker has written a line of the log"
    found = [code for code in (b"\x1b[2J", b"\x1b]0", b"\xc2\x9b", b"\x07", b"\xe2\x80\xae") if code in said]
    assert not found, f"the log has a worker's {found}"
    return {"bytes of log": len(said)}


async def stolen_id(hub, until):
    """A worker joins again and again with the public id of an honest worker, and answers wrong."""
    victim = hub.honest
    ended_before = victim.n_ended
    async with Company(Tripled(hub.join_url, victim.id, victim.weights)):
        await rest(until)
    assert victim.n_ended == ended_before, "the victim's connection was ended"
    await asyncio.sleep(1.0)
    status = await hub.status()
    assert all(q["id"] != victim.id for q in status["quarantined"]), "the victim is in quarantine"
    assert any(w["id"] == victim.id for w in status["workers"]), "the victim is gone"
    return {"the victim's connections ended": victim.n_ended}


# Both target an honest worker, which is there before and after.
loads_nothing.has_honest = stolen_id.has_honest = True


class Tripled(Honest):
    def changed(self, asked, parts):
        return [[told._replace(row=[3 * value for value in told.row]) for told in part] for part in parts]


async def churn(hub, until):
    """Workers that join, take blocks and disconnect without notice, 30 at a time."""
    n = 0

    async def come_and_go():
        nonlocal n
        while time.monotonic() < until:
            worker = Silent(hub.join_url)
            with contextlib.suppress(TimeoutError, Closed, Refused, OSError):
                async with asyncio.timeout(random.uniform(0.05, 0.4)):
                    await worker.visit()
            n += 1
    await asyncio.gather(*(come_and_go() for _ in range(30)))
    return {"visits": n}


async def floods(hub, until):
    """Joined workers that send beats, reports and paddings as fast as the hub takes them."""
    beat = wire.control(HEARTBEAT, {"type": "beat", "echo": 0, "visibility": "visible"})
    report = wire.control(WEIGHT_SYNC, {"type": "report", "epoch": 1, "failed": [[{"layer": 0, "expert": e}, "no"] for e in range(16)]})
    padding = Frame(wire.PADDING, bytes(1 << 20)).encode()
    n = 0

    async def flood(message):
        nonlocal n
        while time.monotonic() < until:
            with contextlib.suppress(Closed, Refused, OSError, TimeoutError):
                socket = await Socket.open(hub.url)
                reading = asyncio.create_task(swallow(socket))
                try:
                    await socket.send(wire.control(HEARTBEAT, Honest(hub.join_url).join()))
                    await asyncio.sleep(0.1)
                    while time.monotonic() < until and not reading.done():
                        async with asyncio.timeout(5):
                            await socket.send(message)
                        n += 1
                        await asyncio.sleep(0)
                finally:
                    reading.cancel()
                    socket.reset()
            await asyncio.sleep(0.2)
    await asyncio.gather(*(flood(message) for message in (beat, report, padding)))
    return {"messages": n}


async def swallow(socket):
    with contextlib.suppress(Closed):
        while True:
            await socket.message()
