"""Attacks on a hub without its token."""

import asyncio
import contextlib
import json
import socket
import struct
import time

import wire
from wire import Refused, Socket

# The longest wait for 3 tokens behind 80 streams that nobody reads.
UNREAD_SECONDS = 30
GONE = (OSError, asyncio.IncompleteReadError, Refused, wire.Closed, TimeoutError)


async def raw(hub):
    return await asyncio.open_connection(hub.url.host, hub.url.port)


async def crowd(n, until, one, ends=False):
    """Runs `one` in `n` tasks, over and over until the time is up; if it `ends` by itself, to its end and at least
    once. Returns how often it ran."""
    done = 0

    async def again():
        nonlocal done
        is_first = ends
        while is_first or time.monotonic() < until:
            is_first = False
            with contextlib.suppress(*GONE):
                await (one() if ends else asyncio.wait_for(one(), max(0.1, until - time.monotonic())))
            done += 1
            await asyncio.sleep(0.01)
    await asyncio.gather(*(again() for _ in range(n)))
    return done


async def sockets(hub, until):
    """100 sockets that each announce a message of 31 MiB and send as much of it as they can."""
    async def one():
        socket = await Socket.open(hub.url)
        try:
            await socket.raw(b"\x82\xff" + struct.pack(">Q", 31 << 20) + b"\0" * 4)
            for _ in range(384):
                await socket.raw(bytes(64 << 10))
        finally:
            socket.reset()
        await asyncio.sleep(0.5)
    return {"sockets": await crowd(100, until, one)}


async def pings(hub, until):
    """Four sockets that send only pings."""
    async def one():
        socket = await Socket.open(hub.url)
        try:
            while True:
                await socket.raw(b"\x89\x80\0\0\0\0" * 1000)
        finally:
            socket.reset()
    return {"sockets": await crowd(4, until, one)}


async def prompts(hub, until):
    """24 prompts of 4 MiB at once, again and again."""
    body = json.dumps({"messages": [{"role": "user", "content": "word " * 800_000}]}).encode()
    codes = {}

    async def one():
        code, answer = await hub.http("POST", "/v1/chat/completions", body)
        code = json.loads(answer)["error"]["code"] if code != 200 else code
        codes[code] = codes.get(code, 0) + 1
    await crowd(24, until, one, ends=True)
    assert set(codes) <= {"context_length_exceeded", "queue_full"}, codes
    return {"answers": codes}


async def shapes(hub, until):
    """Bodies of 4 MiB that consist of the smallest parts of JSON, 24 at once: their size in memory is bounded too."""
    def many(head, part, tail, most=4_000_000):
        return (head + ",".join([part] * (most // (len(part) + 1))) + tail).encode()
    hi = '{"messages":[{"role":"user","content":"hi"}],'
    bodies = [
        many('{"messages":[{"role":"user","content":[', '{"type":"text","text":"a"}', "]}]}"),
        many('{"messages":[', '{"role":"user","content":""}', "]}"),
        many(hi + '"x":[', "0", "]}"),
        many(hi + '"x":[', "{}", "]}"),
        many(hi + '"stop":[', '"a"', "]}"),
        many(hi + '"tools":[', '{"type":"function","function":{"name":"f"}}', "]}"),
        (hi + '"logit_bias":{' + ",".join(f'"{i}":1' for i in range(300_000)) + "}}").encode(),
        b'{"messages":' + b"[" * 2_000_000 + b"]" * 2_000_000 + b"}",
    ]
    codes, state = {}, {"i": 0}

    async def one():
        state["i"] += 1
        code, _ = await hub.http("POST", "/v1/chat/completions", bodies[state["i"] % len(bodies)])
        codes[code] = codes.get(code, 0) + 1
    await crowd(24, until, one, ends=True)
    assert set(codes) <= {200, 400, 413, 429, 503}, codes
    return {"answers": codes}


def chain(n, link, end):
    """A schema of `n` definitions, each of which refers to the next."""
    defs = {f"d{i}": link({"$ref": f"#/$defs/d{i + 1}"}) for i in range(n)}
    return {"$defs": defs | {f"d{n}": end}, "$ref": "#/$defs/d0"}


async def schemas(hub, until):
    """Schemas of a few kilobytes that take gigabytes to compile, or more stack than a thread has, each time another."""
    some = {"type": "object", "properties": {"a": {"type": "string"}}}
    both = lambda ref: {"allOf": [ref, {"minProperties": 1}]}
    pair = lambda ref: {"allOf": [ref, {"type": "array", "minItems": 1}]}
    one_of = lambda j: {"anyOf": [{"properties": {f"a{j}": {"type": "object", "required": [f"x{i}"]}}} for i in range(10)]}
    kinds = [
        lambda n: chain(400 + n, lambda ref: {"type": "object", "properties": {"a": ref}, "required": ["a"]}, some),
        lambda n: chain(4000 + n, lambda ref: {"allOf": [ref, some]}, some),
        lambda n: chain(18 + n % 9, lambda ref: {"type": "object", "properties": {"a": both(ref), "b": both(ref)}}, some),
        lambda n: chain(18 + n % 9, lambda ref: {"type": "array", "prefixItems": [pair(ref), pair(ref)]}, {"type": "array"}),
        lambda n: {"allOf": [one_of(j) for j in range(3 + n % 8)]},
        lambda n: {"type": "string", "pattern": "((a|b|c|[a-z ])*[a-f ](a|b|[a-z ])*){100,%d}" % (2000 + n)},
    ]
    codes, state = {}, {"i": 0}

    async def one():
        i = state["i"] = state["i"] + 1
        schema = kinds[i % len(kinds)](i // len(kinds)) | {"title": f"{i}"}
        wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        asked = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "response_format": wanted}
        code, _ = await hub.http("POST", "/v1/chat/completions", json.dumps(asked).encode())
        codes[code] = codes.get(code, 0) + 1
    await crowd(8, until, one, ends=True)
    assert set(codes) <= {200, 400, 413, 429, 503}, codes
    return {"answers": codes}


async def half_requests(hub, until):
    """More half-requests than the hub has files, all held open, those that are closed replaced; newcomers are answered."""
    async def one():
        _, writer = await raw(hub)
        try:
            writer.write(b"GET / HTTP/1.1\r\nHost: 127")
            await asyncio.sleep(until - time.monotonic())
        finally:
            writer.transport.abort()
    crowding = asyncio.create_task(crowd(900, until, one))
    waits = []
    await asyncio.sleep(0.5)
    while not waits or time.monotonic() < until - 0.5:
        begun = time.monotonic()
        code, _ = await hub.http("GET", "/health", timeout=30)
        waits.append(time.monotonic() - begun)
        assert code == 200, code
        await asyncio.sleep(0.05)
    await crowding
    return {"a newcomer waits": f"{max(waits):.2f} s at most of {len(waits)}"}


async def slow(hub, until):
    """300 requests whose headers and bodies are sent a byte at a time."""
    async def dribble(head, byte):
        _, writer = await raw(hub)
        try:
            writer.write(head)
            while time.monotonic() < until:
                writer.write(byte)
                await writer.drain()
                await asyncio.sleep(0.1)
        finally:
            writer.transport.abort()
    host = f"Host: {hub.url.address}\r\n".encode()
    header = b"GET /health HTTP/1.1\r\n" + host + b"X: "
    body = b"POST /v1/chat/completions HTTP/1.1\r\n" + host + b"Content-Type: application/json\r\nContent-Length: 4000000\r\n\r\n"
    handshake = b"GET /ws HTTP/1.1\r\n" + host + b"Connection: Upgrade\r\nUpgrade: websocket\r\nX: "
    n = await asyncio.gather(*(crowd(100, until, lambda head=head: dribble(head, b" ")) for head in (header, body, handshake)))
    return {"requests": sum(n)}


async def slow_is_ended(hub, _until):
    """The hub ends a header, a body and a join that never finish: within 25 s, 65 s and 15 s."""
    host = f"Host: {hub.url.address}\r\n".encode()

    async def ends(head):
        reader, writer = await raw(hub)
        writer.write(head)
        begun = time.monotonic()
        with contextlib.suppress(*GONE):
            await asyncio.wait_for(reader.read(), 90)
        writer.transport.abort()
        return time.monotonic() - begun

    async def silent():
        socket, begun = await Socket.open(hub.url), time.monotonic()
        with contextlib.suppress(*GONE):
            await asyncio.wait_for(socket.message(), 90)
        return time.monotonic() - begun
    body = b"POST /v1/chat/completions HTTP/1.1\r\n" + host + b"Content-Type: application/json\r\nContent-Length: 400\r\n\r\n{"
    found = await asyncio.gather(ends(b"GET / HTTP/1.1\r\n" + host), ends(body), silent())
    for what, seconds, most in zip(("a header", "a body", "a join"), found, (25, 65, 15)):
        assert seconds < most, f"{what} is waited for {seconds:.0f} s"
    return {"ended after": ", ".join(f"{seconds:.0f} s" for seconds in found)}


async def unread(hub, until):
    """80 streams that nobody reads, while another client requests 3 tokens."""
    body = json.dumps({"messages": [{"role": "user", "content": "Tell me a story about a bear."}], "stream": True,
                       "ignore_eos": True, "max_tokens": 1500, "temperature": 1}).encode()
    head = (f"POST /v1/chat/completions HTTP/1.1\r\nHost: {hub.url.address}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n").encode()
    held = []
    for _ in range(80):
        unread = socket.socket()
        unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        unread.connect((hub.url.host, hub.url.port))
        unread.sendall(head + body)
        held.append(unread)
    waits = []
    try:
        await asyncio.sleep(0.5)
        while time.monotonic() < until or not waits:
            begun = time.monotonic()
            # The hub reports a full queue at once, and a client tries again.
            while (await hub.complete("What is 27 + 15?", max_tokens=3, timeout=300)).startswith("429"):
                await asyncio.sleep(0.1)
            waits.append(time.monotonic() - begun)
    finally:
        for unread in held:
            unread.close()
    assert max(waits) < UNREAD_SECONDS, f"3 tokens wait {max(waits):.0f} s"
    return {"3 tokens wait": f"{max(waits):.1f} s at most of {len(waits)}"}


async def garbage(hub, until):
    """Bytes that are not HTTP, not a WebSocket or not a frame, a hundred kinds of each in turn."""
    kinds = [b"\x16\x03\x01\x02\x00" + bytes(512), b"\0" * 4096, b"GET " + b"a" * 200_000, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
             b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFF\r\n", b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 5000,
             b"GET /ws HTTP/1.1\r\nContent-Length: -1\r\n\r\n", b"POST / HTTP/1.1\r\nContent-Length: 18446744073709551615\r\n\r\n"]
    frames = [b"\xff" * 14, b"\x82\xff" + b"\xff" * 12, b"\x02\x80\0\0\0\0" + b"\x00\x80\0\0\0\0" * 5000, b"\x88\x81\0\0\0\0\x01",
              b"\x82\x05hello", b"\x83\x80\0\0\0\0", b"\x89\xfe\xff\xff\0\0\0\0" + bytes(65535)]
    state = {"i": 0}

    async def one():
        i, state["i"] = state["i"], state["i"] + 1
        if i % 2:
            reader, writer = await raw(hub)
            data = kinds[i // 2 % len(kinds)]
        else:
            socket = await Socket.open(hub.url)
            reader, writer, data = socket.reader, socket.writer, frames[i // 2 % len(frames)]
        try:
            writer.write(data)
            await writer.drain()
            await asyncio.wait_for(reader.read(1 << 16), 2)
        finally:
            writer.transport.abort()
    await crowd(8, until, one)
    return {"tried": state["i"]}
