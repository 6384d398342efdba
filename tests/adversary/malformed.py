"""Malformed messages of a worker that has the token: lengths, types, versions, counts, widths, JSON, LZ4 bombs, and answers that
are none."""

import asyncio
import struct
import time

import wire
from arithmetic import encode_row
from members import rest
from wire import (BY_ROW, CANCEL, COMPRESSED, DISPATCH, ERROR, F16, HEARTBEAT, NO_EXPERT, RESULT, WEIGHT_SYNC, Closed, Frame, Refused,
                  Socket)
from worker import Company, Honest, Silent, fresh_id


def block(layer, expert):
    return {"layer": layer, "expert": expert}


def malformed(join):
    """Bad messages of a joined worker, by name: bytes, and whether the session may go on."""
    good = wire.control(HEARTBEAT, {"type": "beat"})
    tensor = dict(layer=0, expert=0, tokens=1, hidden=256, dtype=F16)
    result = lambda **other: Frame(RESULT, bytes(512), 1 << 20, **{**tensor, **other}).encode()
    report = lambda **fields: wire.control(WEIGHT_SYNC, {"type": "report", "epoch": 1, **fields})
    deep = b'{"type":"beat","x":' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    bad = {
        "no bytes": b"",
        "half a header": good[:20],
        "another magic": b"MOEX" + good[4:],
        "version 0": Frame(HEARTBEAT, b"{}", version=0).encode(),
        "version 65535": Frame(HEARTBEAT, b"{}", version=0xFFFF).encode(),
        "a length of 4 GiB": Frame(HEARTBEAT, b"{}", length=0xFFFFFFFF).encode(),
        "a length one too long": Frame(HEARTBEAT, b"{}", length=3).encode(),
        "a length one too short": Frame(HEARTBEAT, b"{} ", length=2).encode(),
        "a good frame and half of one": good + good[:-1],
        "1,025 frames": Frame(99).encode() * 1025,
        "2 MiB of JSON": wire.control(HEARTBEAT, {"type": "beat", "x": "y" * (2 << 20)}),
        "no JSON": Frame(HEARTBEAT, b"{").encode(),
        "JSON that is no UTF-8": Frame(HEARTBEAT, b'{"type":"beat","x":"\xff"}').encode(),
        "JSON of depth 200,000": Frame(HEARTBEAT, deep).encode(),
        "no type": wire.control(HEARTBEAT, {"echo": 1}),
        "an unknown type": wire.control(HEARTBEAT, {"type": "greeting"}),
        "a type that is no text": wire.control(HEARTBEAT, {"type": 7}),
        "a number too large": Frame(HEARTBEAT, b'{"type":"beat","echo":1e400}').encode(),
        "a negative count": wire.control(HEARTBEAT, {"type": "beat", "queue_depth": -1}),
        "the hub's own accepted": wire.control(HEARTBEAT, {"type": "accepted", "session": 1, "heartbeat_interval_millis": 1,
                                                           "dispatch_timeout_millis": 1, "model": {}}),
        "the hub's own ping": wire.control(HEARTBEAT, {"type": "ping", "hub_micros": 1}),
        "the hub's own sync": wire.control(WEIGHT_SYNC, {"type": "sync", "epoch": 1, "hold": [], "drop": []}),
        "a second join": wire.control(HEARTBEAT, join),
        "a dispatch": Frame(DISPATCH, bytes(514), 1, **tensor).encode(),
        "a cancel": Frame(CANCEL, b"", 1).encode(),
        "a cancel with a payload": Frame(CANCEL, b"now", 1).encode(),
        "a result of an attempt never sent": result(),
        "a result without rows": Frame(RESULT, b"", 1, **{**tensor, "tokens": 0}).encode(),
        "a result of 4 G rows": result(tokens=0xFFFFFFFF),
        "a result without width": result(hidden=0),
        "a result of width 65535": result(hidden=0xFFFF),
        "a result of dtype 0": result(dtype=0),
        "a result of dtype 9": result(dtype=9),
        "unknown flags": result(flags=0x80),
        "the flag of sums": result(flags=2),
        "a result by row": result(flags=BY_ROW),
        "a result of expert 0xFFFF": result(expert=NO_EXPERT),
        "tensor fields in a control frame": Frame(HEARTBEAT, b'{"type":"beat"}', tokens=1).encode(),
        "1,025 blocks": report(resident=[block(0, i) for i in range(1025)]),
        "blocks that are not there": report(resident=[block(9999, 9999), block(0xFFFF, 0xFFFF)]),
        "blocks beyond 16 bits": report(resident=[block(70_000, 1)]),
        "the same block twice": report(resident=[block(0, 0)] * 500),
        "blocks both resident and failed": report(resident=[block(0, 0)], failed=[[block(0, 0), "no"]]),
        "the most bytes": report(bytes_done=(1 << 64) - 1, bytes_total=1, bytes_downloaded=(1 << 64) - 1),
        "an epoch to come": wire.control(WEIGHT_SYNC, {"type": "report", "epoch": (1 << 64) - 1, "resident": [block(0, 0)]}),
        "an ERROR of an unknown code": wire.control(ERROR, {"code": "boredom", "message": ""}),
        "an ERROR of another attempt": wire.control(ERROR, {"code": "preempted", "attempt": 3}, 4),
        "an ERROR of no attempt of ours": wire.control(ERROR, {"code": "preempted", "attempt": 4}, 4),
        "a compressed frame of two bytes": Frame(HEARTBEAT, b"ab", flags=COMPRESSED).encode(),
        "LZ4 that refers to nothing": Frame(HEARTBEAT, struct.pack("<I", 64) + b"\x0f\0\0\xff\xff", flags=COMPRESSED).encode(),
        "LZ4 of another size": Frame(HEARTBEAT, wire.compress(b'{"type":"beat"}', announced=16), flags=COMPRESSED).encode(),
        "LZ4 that announces 4 GiB": Frame(HEARTBEAT, wire.compress(b"{}", announced=0xFFFFFFFF), flags=COMPRESSED).encode(),
        "a bomb of JSON": Frame(HEARTBEAT, wire.bomb(64 << 20), flags=COMPRESSED).encode(),
        "1,000 bombs of JSON": Frame(HEARTBEAT, wire.bomb(1 << 20), flags=COMPRESSED).encode() * 1000,
        "a bomb of rows": Frame(RESULT, wire.bomb(65_535 * 512), 1, 0, 0, 65_535, 256, F16, COMPRESSED).encode(),
        "a bomb of unknown frames": Frame(99, wire.bomb(31 << 20), flags=COMPRESSED).encode() * 200,
        "a bomb of padding": Frame(wire.PADDING, wire.bomb(31 << 20), flags=COMPRESSED).encode() * 200,
    }
    joins = {
        "no slots": {"input_slots": 0}, "65 slots": {"input_slots": 65}, "slots beyond a byte": {"input_slots": 300},
        "an id that is none": {"worker": "me"}, "an id too long": {"worker": "0" * 33}, "a token that is no text": {"token": 1},
        "a name of a kilobyte": {"name": "n" * 1024}, "an adapter of 2 KiB": {"adapter": "a" * 2048},
        "300 features": {"features": ["f"] * 300}, "no self-test": {"self_test": None}, "another kind": {"kind": "toaster"},
        "memory beyond 64 bits": {"memory_budget_bytes": 1 << 70}, "a negative speed": {"teraflops": -1.0, "gigabytes_per_second": -5.0},
        "an endless speed": {"teraflops": 1e38, "gigabytes_per_second": 1e38, "memory_budget_bytes": (1 << 64) - 1},
    }
    return bad, joins


# What is no frame of its own that could be bad, or says what cannot be and is not believed.
MAY_GO_ON = {"blocks that are not there", "the same block twice", "blocks both resident and failed", "the most bytes", "no bytes",
             "an epoch to come", "a bomb of unknown frames", "a bomb of padding", "a negative speed", "an endless speed"}


async def malformed_frames(hub, until):
    """Every malformed message once, each on a session of its own, again and again until the time is up."""
    template = Honest(hub.join_url)
    bad, joins = malformed(template.join())
    ends, rounds = {}, 0

    async def one(name, messages):
        try:
            socket = await Socket.open(hub.url)
        except (Refused, OSError) as error:
            ends[name] = str(error)
            return
        try:
            for message in messages:
                await socket.send(message)
            # What must end is waited for; what may go on is looked at for a moment.
            deadline = time.monotonic() + (0.3 if name in MAY_GO_ON else 15)
            while (left := deadline - time.monotonic()) > 0:
                await asyncio.wait_for(socket.message(), left)
            ends[name] = "goes on"
        except TimeoutError:
            ends[name] = "goes on"
        except Closed as closed:
            ends[name] = closed.code
        except OSError:
            ends[name] = None
        finally:
            socket.reset()
    while rounds == 0 or time.monotonic() < until:
        rounds += 1
        cases = [(name, [wire.control(HEARTBEAT, {**template.join(), "worker": fresh_id()}), message]) for name, message in bad.items()]
        cases += [(name, [wire.control(HEARTBEAT, {**template.join(), "worker": fresh_id(), **fields})]) for name, fields in joins.items()]
        for i in range(0, len(cases), 16):
            await asyncio.gather(*(one(*case) for case in cases[i:i + 16]))
    goes_on = sorted(name for name, end in ends.items() if end == "goes on")
    assert set(goes_on) <= MAY_GO_ON, f"sessions that go on: {sorted(set(goes_on) - MAY_GO_ON)}"
    return {"kinds": len(ends), "sessions": rounds * len(ends), "go on": len(goes_on)}


def malformed_answers():
    """Wrong answers to what was asked, by name: what makes a message of the dispatch and the true rows."""
    def parts_of(asked, rows):
        return [(expert, b"".join(encode_row(asked.dtype, row) for row in part)) for (expert, _), part in zip(asked.calls, rows)]

    def frames(asked, parts, **other):
        size = wire.row_bytes(asked.dtype, asked.hidden)
        fields = dict(sequence=asked.attempt, layer=asked.layer, hidden=asked.hidden, dtype=asked.dtype)
        return b"".join(Frame(RESULT, data, expert=expert, **{**fields, "tokens": len(data) // size, **other}).encode()
                        for expert, data in parts)

    def filled(pattern):
        return lambda a, r: frames(a, [(e, pattern * (len(d) // 2)) for e, d in parts_of(a, r)])
    return {
        "NaN": filled(b"\x00\x7e"), "infinity": filled(b"\x00\x7c"), "the least infinity": filled(b"\x00\xfc"),
        "another layer": lambda a, r: frames(a, parts_of(a, r), layer=a.layer + 1),
        "another expert": lambda a, r: frames(a, [(e + 100, d) for e, d in parts_of(a, r)]),
        "an expert twice": lambda a, r: frames(a, [p for p in parts_of(a, r) for _ in range(2)]),
        "experts backwards": lambda a, r: frames(a, parts_of(a, r)[::-1] if len(a.calls) > 1 else parts_of(a, r) * 2),
        "an expert too few": lambda a, r: frames(a, parts_of(a, r)[1:] or [(a.calls[0][0] ^ 1, parts_of(a, r)[0][1])]),
        "a row too many": lambda a, r: frames(a, [(e, d + bytes(wire.row_bytes(a.dtype, a.hidden))) for e, d in parts_of(a, r)]),
        "half the width": lambda a, r: frames(a, [(e, d[:len(d) // 2]) for e, d in parts_of(a, r)], hidden=a.hidden // 2,
                                              tokens=len(r[0])),
        "another dtype": lambda a, r: frames(a, [(e, d) for e, d in parts_of(a, r)], dtype=wire.BF16),
        "another attempt": lambda a, r: frames(a, parts_of(a, r), sequence=a.attempt + 1),
        "twice": lambda a, r: frames(a, parts_of(a, r)) * 2,
        "a byte short": lambda a, r: frames(a, parts_of(a, r))[:-1],
        "two attempts in one": lambda a, r: frames(a, parts_of(a, r)) + frames(a, parts_of(a, r), sequence=a.attempt ^ 0x80000000),
        "text": lambda a, r: "here you are",
        "an ERROR that ends it": lambda a, r: wire.control(ERROR, {"code": "device_lost", "message": "gone"}),
        "not resident after all": lambda a, r: wire.control(ERROR, {"code": "not_resident", "attempt": a.attempt}, a.attempt),
        "a bomb of this shape": lambda a, r: b"".join(
            Frame(RESULT, wire.bomb(len(d)), a.attempt, a.layer, e, len(d) // wire.row_bytes(a.dtype, a.hidden), a.hidden, a.dtype,
                  COMPRESSED).encode() for e, d in parts_of(a, r)),
    }


class Malformed(Silent):
    """Answers as `make` says, with zeros."""

    def __init__(self, *args, make, **said):
        super().__init__(*args, **said)
        self.make = make

    async def answer(self, asked):
        self.n_answers += 1
        zeros = [0.0] * asked.hidden
        message = self.make(asked, [[zeros] * len(pairs) for _, pairs in asked.calls])
        if isinstance(message, str):
            return await self.socket.send(message.encode(), opcode=1)
        await self.socket.send(message)


async def malformed_results(hub, until):
    """A worker for every malformed answer, all at once, returning whenever they are thrown out."""
    workers = {name: Malformed(hub.join_url, make=make) for name, make in malformed_answers().items()}
    async with Company(*workers.values()):
        await rest(until)
    asked = sum(worker.n_answers > 0 for worker in workers.values())
    ended = sum(worker.n_ended for worker in workers.values())
    return {"kinds": len(workers), "asked": asked, "bad answers": sum(w.n_answers for w in workers.values()), "sessions ended": ended}
