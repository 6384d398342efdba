"""Malformed messages of a worker that has the token: lengths, types, versions, counts, widths, JSON, LZ4 bombs, and
invalid answers."""

import asyncio
import itertools
import struct
import time

import wire
from arithmetic import encode_row
from members import rest
from wire import (BY_ROW, CANCEL, COMPRESSED, DISPATCH, ERROR, F16, HEARTBEAT, NO_EXPERT, PRODUCTS, RESULT, WEIGHT_SYNC, Closed, Frame,
                  Refused, Socket)
from worker import Company, Honest, Silent, Told, fresh_key


def block(layer, expert):
    return {"layer": layer, "expert": expert}


def malformed(join):
    """Bad messages of a joined worker, by name: bytes, and whether the session may go on."""
    good = wire.control(HEARTBEAT, {"type": "beat"})
    tensor = dict(layer=0, expert=0, tokens=1, hidden=256, dtype=F16)
    result = lambda **other: Frame(RESULT, bytes(512), 1 << 20, **{**tensor, **other}).encode()
    of_products = dict(sequence=1, layer=0, expert=NO_EXPERT, tokens=1, hidden=128)
    products = lambda **other: Frame(PRODUCTS, bytes(1024), **{**of_products, **other}).encode()
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
        "products without a result": products(),
        "products of an attempt never sent": result() + products(sequence=1 << 20),
        "products of an expert": products(expert=0),
        "products of a dtype": products(dtype=wire.BF16),
        "products without rows": products(tokens=0),
        "products of 4 G rows": products(tokens=0xFFFFFFFF),
        "products without width": products(hidden=0),
        "products of width 65535": products(hidden=0xFFFF),
        "products by row": products(flags=BY_ROW),
        "a bomb of products": Frame(PRODUCTS, wire.bomb(31 << 20), 1, 0, NO_EXPERT, 31 << 10, 128, 0, COMPRESSED).encode(),
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
        "a key that is none": {"key": "me"}, "a key too long": {"key": "0" * 33}, "a token that is no text": {"token": 1},
        "a name of a kilobyte": {"name": "n" * 1024}, "an adapter of 2 KiB": {"adapter": "a" * 2048},
        "300 features": {"features": ["f"] * 300}, "no self-test": {"self_test": None}, "another kind": {"kind": "toaster"},
        "memory beyond 64 bits": {"memory_budget_bytes": 1 << 70}, "a negative speed": {"teraflops": -1.0, "gigabytes_per_second": -5.0},
        "an endless speed": {"teraflops": 1e38, "gigabytes_per_second": 1e38, "memory_budget_bytes": (1 << 64) - 1},
    }
    return bad, joins


# Messages that contain no bad frame, or claims that the hub ignores.
MAY_GO_ON = {"blocks that are not there", "the same block twice", "blocks both resident and failed", "the most bytes", "no bytes",
             "an epoch to come", "a bomb of unknown frames", "a bomb of padding", "a negative speed", "an endless speed"}


async def malformed_frames(hub, until):
    """Sends every malformed message, each in its own session, again and again until the time is up."""
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
            # Waits for the end of a session that must end; watches one that may go on for a moment.
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
        cases = [(name, [wire.control(HEARTBEAT, {**template.join(), "key": fresh_key()}), message]) for name, message in bad.items()]
        cases += [(name, [wire.control(HEARTBEAT, {**template.join(), "key": fresh_key(), **fields})]) for name, fields in joins.items()]
        for i in range(0, len(cases), 16):
            await asyncio.gather(*(one(*case) for case in cases[i:i + 16]))
    goes_on = sorted(name for name, end in ends.items() if end == "goes on")
    assert set(goes_on) <= MAY_GO_ON, f"sessions that go on: {sorted(set(goes_on) - MAY_GO_ON)}"
    return {"kinds": len(ends), "sessions": rounds * len(ends), "go on": len(goes_on)}


def malformed_answers():
    """Wrong answers to a dispatch, by name: functions that make a message from the dispatch and the true rows."""
    def parts_of(asked, told):
        return [(expert, b"".join(encode_row(asked.dtype, row) for row, _ in part)) for (expert, _), part in zip(asked.calls, told)]

    def results(asked, parts, **other):
        size = wire.row_bytes(asked.dtype, asked.hidden)
        fields = dict(sequence=asked.attempt, layer=asked.layer, hidden=asked.hidden, dtype=asked.dtype)
        return [Frame(RESULT, data, expert=expert, **{**fields, "tokens": len(data) // size, **other}).encode() for expert, data in parts]

    def rows_of(told):
        return [products for part in told for _, products in part]

    def answer(asked, told, parts, **other):
        """Wrong results, with the products for the dispatch."""
        last = [wire.products(asked, rows_of(told)).encode()] if asked.wants_products else []
        return b"".join(results(asked, parts, **other) + last)

    def filled(pattern):
        return lambda a, t: answer(a, t, [(e, pattern * (len(d) // 2)) for e, d in parts_of(a, t)])

    def with_products(make):
        """Good results, with the products that `make(results, frame, asked, rows)` puts among them."""
        def message(asked, told):
            parts = results(asked, parts_of(asked, told))
            return b"".join(make(parts, lambda rows=None, **other: wire.products(asked, rows or rows_of(told), **other).encode(),
                                 asked, rows_of(told)))
        return message

    def numbers(value):
        return with_products(lambda r, frame, _a, rows: [*r, frame([[value] * len(row) for row in rows])])
    return {
        "NaN": filled(b"\x00\x7e"), "infinity": filled(b"\x00\x7c"), "the least infinity": filled(b"\x00\xfc"),
        "another layer": lambda a, t: answer(a, t, parts_of(a, t), layer=a.layer + 1),
        "another expert": lambda a, t: answer(a, t, [(e + 100, d) for e, d in parts_of(a, t)]),
        "an expert twice": lambda a, t: answer(a, t, [p for p in parts_of(a, t) for _ in range(2)]),
        "experts backwards": lambda a, t: answer(a, t, parts_of(a, t)[::-1] if len(a.calls) > 1 else parts_of(a, t) * 2),
        "an expert too few": lambda a, t: answer(a, t, parts_of(a, t)[1:] or [(a.calls[0][0] ^ 1, parts_of(a, t)[0][1])]),
        "a row too many": lambda a, t: answer(a, t, [(e, d + bytes(wire.row_bytes(a.dtype, a.hidden))) for e, d in parts_of(a, t)]),
        "half the width": lambda a, t: answer(a, t, [(e, d[:len(d) // 2]) for e, d in parts_of(a, t)], hidden=a.hidden // 2,
                                              tokens=len(t[0])),
        "another dtype": lambda a, t: answer(a, t, parts_of(a, t), dtype=wire.BF16),
        "another attempt": lambda a, t: answer(a, t, parts_of(a, t), sequence=a.attempt + 1),
        "twice": lambda a, t: answer(a, t, parts_of(a, t)) * 2,
        "a byte short": lambda a, t: answer(a, t, parts_of(a, t))[:-1],
        "two attempts in one": lambda a, t: answer(a, t, parts_of(a, t)) + answer(a, t, parts_of(a, t), sequence=a.attempt ^ 0x80000000),
        "text": lambda a, t: "here you are",
        "an ERROR that ends it": lambda a, t: wire.control(ERROR, {"code": "device_lost", "message": "gone"}),
        "not resident after all": lambda a, t: wire.control(ERROR, {"code": "not_resident", "attempt": a.attempt}, a.attempt),
        "a bomb of this shape": lambda a, t: b"".join(
            Frame(RESULT, wire.bomb(len(d)), a.attempt, a.layer, e, len(d) // wire.row_bytes(a.dtype, a.hidden), a.hidden, a.dtype,
                  COMPRESSED).encode() for e, d in parts_of(a, t)),
        "the other way about with products":
            lambda a, t: b"".join(results(a, parts_of(a, t)) + [wire.products(a, rows_of(t)).encode()][:not a.wants_products]),
        "products twice": with_products(lambda r, frame, a, _: [*r, frame(), frame()]),
        "products alone": with_products(lambda _r, frame, a, _: [frame()]),
        "products first": with_products(lambda r, frame, a, _: [frame(), *r]),
        "products after the first result": with_products(lambda r, frame, a, _: [r[0], frame(), *(r[1:] or r)]),
        "products after a beat": with_products(lambda r, frame, a, _: [*r, wire.control(HEARTBEAT, {"type": "beat"}), frame()]),
        "products of another layer": with_products(lambda r, frame, a, _: [*r, frame(layer=a.layer + 1)]),
        "products of another attempt": with_products(lambda r, frame, a, _: [*r, frame(sequence=a.attempt + 1)]),
        "products of one expert": with_products(lambda r, frame, a, _: [*r, frame(expert=a.calls[0][0])]),
        "products of a row too many": with_products(lambda r, frame, a, rows: [*r, frame([*rows, rows[0]])]),
        "products of a row too few": with_products(lambda r, frame, a, rows: [*r, frame(rows[1:]) if rows[1:] else b""]),
        "products of half the width": with_products(lambda r, frame, a, rows: [*r, frame([row[::2] for row in rows])]),
        "products of twice the rows": with_products(
            lambda r, frame, a, rows: [*r, frame(tokens=2 * len(rows), hidden=len(rows[0]) // 4)]),
        "digests for rows": lambda a, _t: Frame(wire.DIGESTS, bytes(16 * len(a.calls)), a.attempt).encode(),
        "half a digest": lambda a, _t: Frame(wire.DIGESTS, bytes(8), a.attempt).encode(),
        "no digests": lambda a, _t: Frame(wire.DIGESTS, b"", a.attempt).encode(),
        "digests beyond all experts": lambda a, _t: Frame(wire.DIGESTS, bytes(16 * 1025), a.attempt).encode(),
        "digests of another attempt": lambda a, _t: Frame(wire.DIGESTS, bytes(16), a.attempt + 1).encode(),
        "compressed digests": lambda a, _t: Frame(wire.DIGESTS, wire.compress(bytes(16 * len(a.calls))), a.attempt,
                                                  flags=COMPRESSED).encode(),
        "NaN in products": numbers(float("nan")), "infinity in products": numbers(float("inf")), "large products": numbers(65504.0),
        "a bomb of products": with_products(lambda r, frame, a, rows: [
            *r, Frame(PRODUCTS, wire.bomb(2 * len(rows) * len(rows[0])), a.attempt, a.layer, NO_EXPERT, len(rows), len(rows[0]) // 2, F16,
                      COMPRESSED).encode()]),
    }


class Malformed(Silent):
    """Sends one malformed answer of zeros after another. A hub sends fewer dispatches after failures, so it returns
    under another id."""

    def __init__(self, *args, kinds, told, **said):
        super().__init__(*args, **said)
        self.kinds, self.told = kinds, told

    def returns(self):
        self.key = fresh_key()

    async def answer(self, asked):
        self.n_answers += 1
        name, make = next(self.kinds)
        zeros = Told([0.0] * asked.hidden, [0.0] * (2 * self.model["inner"]))
        message = make(asked, [[zeros] * len(pairs) for _, pairs in asked.calls])
        self.told[name] = self.told.get(name, 0) + 1
        if isinstance(message, str):
            await self.socket.send(message.encode(), opcode=1)
        else:
            await self.socket.send(message)


async def malformed_results(hub, until):
    """Eight workers that send every malformed answer in turn, and return whenever they are thrown out."""
    answers, told = malformed_answers(), {}
    kinds = itertools.cycle(answers.items())
    workers = [Malformed(hub.join_url, kinds=kinds, told=told) for _ in range(8)]
    async with Company(*workers):
        await rest(until)
        # All of them at least once, unless the hub sends too few dispatches.
        for _ in range(100):
            if len(told) == len(answers):
                break
            await asyncio.sleep(0.1)
    ended = sum(worker.n_ended for worker in workers)
    return {"kinds": f"{len(told)} of {len(answers)}", "bad answers": sum(told.values()), "sessions ended": ended}
