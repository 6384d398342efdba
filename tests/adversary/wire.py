"""The wire protocol of moex according to protocol/README.md: a WebSocket client, frames in and out, LZ4.

It does not check what it sends: an adversary sends anything.
"""

import asyncio
import base64
import hashlib
import json
import os
import struct
from dataclasses import dataclass, field

SUBPROTOCOL = "moex.v1"
MAGIC = b"MoEx"
VERSION = 2
DISPATCH, RESULT, CANCEL, HEARTBEAT, WEIGHT_SYNC, ERROR, PADDING, PRODUCTS, DIGESTS = range(1, 10)
F16, BF16, INT8, INT4 = range(1, 5)
COMPRESSED, BY_ROW, PRODUCTS_WANTED, DIGESTS_WANTED = 1, 4, 8, 16
DIGEST_BYTES = 16
NO_EXPERT = 0xFFFF
HEADER = struct.Struct("<4sHHIIHHIHBB")
CONTROL = (HEARTBEAT, WEIGHT_SYNC, ERROR)


class Closed(Exception):
    """The hub closed the connection; `code` is the close code, if there was one."""

    def __init__(self, code=None, reason=""):
        super().__init__(f"closed with {code} {reason}")
        self.code = code


class Refused(Exception):
    """The hub did not open a WebSocket; holds the status line."""


@dataclass
class Frame:
    type: int
    payload: bytes = b""
    sequence: int = 0
    layer: int = 0
    expert: int = 0
    tokens: int = 0
    hidden: int = 0
    dtype: int = 0
    flags: int = 0
    version: int = VERSION
    magic: bytes = MAGIC
    length: int | None = None  # the payload's length in the header, if it is a lie

    def encode(self):
        length = len(self.payload) if self.length is None else self.length
        return HEADER.pack(self.magic, self.version, self.type, length, self.sequence, self.layer, self.expert,
                           self.tokens, self.hidden, self.dtype, self.flags) + self.payload

    def json(self):
        return json.loads(self.payload)


def control(kind, body, sequence=0):
    return Frame(kind, json.dumps(body).encode(), sequence).encode()


def decode(message):
    """The frames of a hub's message, with expanded payloads; unknown types are skipped."""
    frames, at = [], 0
    while at < len(message):
        magic, version, kind, length, sequence, layer, expert, tokens, hidden, dtype, flags = HEADER.unpack_from(message, at)
        assert magic == MAGIC and version == VERSION, (magic, version)
        payload = message[at + HEADER.size:at + HEADER.size + length]
        assert len(payload) == length, "a message is whole frames"
        at += HEADER.size + length
        if flags & COMPRESSED:
            payload = expand(payload)
        if kind <= ERROR:
            frames.append(Frame(kind, payload, sequence, layer, expert, tokens, hidden, dtype, flags & ~COMPRESSED))
    return frames


def row_bytes(dtype, hidden):
    groups = -(-hidden // 128)
    return {F16: 2 * hidden, BF16: 2 * hidden, INT8: 2 + hidden, INT4: 2 * groups + -(-hidden // 2)}[dtype]


@dataclass
class Dispatch:
    """One attempt's request: rows (bytes each) and for each expert its (row, gate as f16 bytes) pairs."""

    attempt: int
    layer: int
    hidden: int
    dtype: int
    rows: list = field(default_factory=list)
    calls: list = field(default_factory=list)
    form: str = "plain"
    wants_products: bool = False
    wants_digests: bool = False


def dispatches(frames):
    """The attempts among the frames of one message: consecutive DISPATCH frames of one attempt belong together."""
    found = []
    for frame in frames:
        if frame.type != DISPATCH:
            continue
        if not found or found[-1].attempt != frame.sequence:
            found.append(Dispatch(frame.sequence, frame.layer, frame.hidden, frame.dtype,
                                  wants_products=bool(frame.flags & PRODUCTS_WANTED),
                                  wants_digests=bool(frame.flags & DIGESTS_WANTED)))
        asked, size = found[-1], row_bytes(frame.dtype, frame.hidden)
        if frame.flags & BY_ROW:
            pairs = [(struct.unpack_from("<H", frame.payload, 4 * i)[0], frame.payload[4 * i + 2:4 * i + 4])
                     for i in range(frame.tokens)]
            asked.calls.append((frame.expert, pairs))
            continue
        first = len(asked.rows)
        asked.rows += [frame.payload[i * size:(i + 1) * size] for i in range(frame.tokens)]
        if frame.expert == NO_EXPERT:
            asked.form = "rows once"
        else:
            gates = frame.payload[frame.tokens * size:]
            asked.calls.append((frame.expert, [(first + i, gates[2 * i:2 * i + 2]) for i in range(frame.tokens)]))
    return found


def results(asked, parts):
    """The answer to a dispatch: `parts` holds for each expert the bytes of its rows, in the order of its pairs."""
    return b"".join(result_frames(asked, parts))


def result_frames(asked, parts):
    return [Frame(RESULT, b"".join(rows), asked.attempt, asked.layer, expert, len(rows), asked.hidden, asked.dtype).encode()
            for (expert, _), rows in zip(asked.calls, parts)]


def digests(asked, parts, blake3):
    """What stands for the results on request: 16 bytes for each."""
    made = [bytes.fromhex(blake3(frame))[:DIGEST_BYTES] for frame in result_frames(asked, parts)]
    return Frame(DIGESTS, b"".join(made), asked.attempt).encode()


def halves(values):
    """f16 of some values, ties to even; what is too large becomes infinite."""
    try:
        return struct.pack(f"<{len(values)}e", *values)
    except OverflowError:
        return b"".join(half(value) for value in values)


def half(value):
    try:
        return struct.pack("<e", value)
    except OverflowError:
        return b"\x00\x7c" if value > 0 else b"\x00\xfc"


def products(asked, rows, dtype=F16, **other):
    """The frame of products that follows the results on request: 2F products for each of their rows, in f16 with int8
    activations, else in f32 (dtype 0)."""
    encoded = halves if dtype == F16 else lambda row: struct.pack(f"<{len(row)}f", *row)
    data = b"".join(map(encoded, rows))
    fields = dict(sequence=asked.attempt, layer=asked.layer, expert=NO_EXPERT, tokens=len(rows), hidden=len(rows[0]) // 2,
                  dtype=dtype)
    return Frame(PRODUCTS, data, **{**fields, **other})


def expand(payload):
    """LZ4: the expanded size as a u32, then one block."""
    size, block, out, at = struct.unpack_from("<I", payload)[0], payload[4:], bytearray(), 0
    while at < len(block):
        token, at = block[at], at + 1
        literals, at = more(token >> 4, block, at)
        out += block[at:at + literals]
        at += literals
        if at >= len(block):
            break
        offset, at = block[at] | block[at + 1] << 8, at + 2
        length, at = more(token & 15, block, at)
        for _ in range(length + 4):
            out.append(out[-offset])
    assert len(out) == size, "the size that was announced"
    return bytes(out)


def more(n, block, at):
    if n == 15:
        while True:
            n, at = n + block[at], at + 1
            if block[at - 1] != 255:
                break
    return n, at


def compress(payload, announced=None):
    """A valid LZ4 block with only literals, which saves nothing; `announced` is the size that it claims."""
    n, head = len(payload), bytearray()
    if n < 15:
        head.append(n << 4)
    else:
        head.append(15 << 4)
        head += b"\xff" * ((n - 15) // 255) + bytes([(n - 15) % 255])
    return struct.pack("<I", len(payload) if announced is None else announced) + bytes(head) + payload


def bomb(expanded):
    """A block that announces and contains so many zeros, 255 of them for each byte."""
    matched = expanded - 1 - 5 - 4
    head = bytes([1 << 4 | 15, 0, 1, 0]) + b"\xff" * ((matched - 15) // 255) + bytes([(matched - 15) % 255])
    return struct.pack("<I", expanded) + head + bytes([5 << 4]) + b"\0" * 5


@dataclass
class JoinUrl:
    """http://HOST:PORT/join#TOKEN, or ...#TOKEN,ca=HEX where the hub speaks TLS."""

    host: str
    port: int
    token: str

    @classmethod
    def parse(cls, url):
        page, _, fragment = url.partition("#")
        address = page.removeprefix("http://").partition("/")[0]
        host, _, port = address.rpartition(":")
        return cls(host, int(port), fragment.partition(",")[0])

    @property
    def address(self):
        return f"{self.host}:{self.port}"


class Socket:
    """A WebSocket to a hub."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, url, path="/ws", subprotocol=SUBPROTOCOL, headers=(), source=None):
        """`source`: the address to connect from, if not any."""
        source = source and (source, 0)
        reader, writer = await asyncio.open_connection(url.host, url.port, limit=64 << 20, local_addr=source)
        key = base64.b64encode(os.urandom(16)).decode()
        lines = [f"GET {path} HTTP/1.1", f"Host: {url.address}", "Connection: Upgrade", "Upgrade: websocket",
                 "Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {key}", f"Sec-WebSocket-Protocol: {subprotocol}", *headers]
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        try:
            # Not wait_for, which before Python 3.12 loses a cancellation that comes with the answer.
            async with asyncio.timeout(30):
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise Refused(str(error)) from error
        if " 101 " not in head.splitlines()[0]:
            writer.close()
            raise Refused(head.splitlines()[0])
        accept = base64.b64encode(hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()).decode()
        fields = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in head.splitlines()[1:])}
        assert fields["sec-websocket-accept"] == accept and fields["sec-websocket-protocol"] == SUBPROTOCOL, fields
        return cls(reader, writer)

    async def send(self, payload, opcode=2, fin=True):
        """One frame of a WebSocket, masked with zeros: a client must mask, and this mask changes nothing."""
        n = len(payload)
        length = bytes([0x80 | n]) if n < 126 else b"\xfe" + struct.pack(">H", n) if n < 1 << 16 else b"\xff" + struct.pack(">Q", n)
        self.writer.write(bytes([(0x80 if fin else 0) | opcode]) + length + b"\0\0\0\0" + payload)
        await self.writer.drain()

    async def raw(self, data):
        self.writer.write(data)
        await self.writer.drain()

    async def message(self):
        """The next binary message; answers pings. Raises Closed."""
        whole = b""
        try:
            while True:
                first, second = await self.reader.readexactly(2)
                n = second & 127
                if n == 126:
                    n = struct.unpack(">H", await self.reader.readexactly(2))[0]
                elif n == 127:
                    n = struct.unpack(">Q", await self.reader.readexactly(8))[0]
                payload, opcode = await self.reader.readexactly(n), first & 15
                if opcode == 8:
                    raise Closed(struct.unpack(">H", payload[:2])[0] if len(payload) >= 2 else None, payload[2:].decode())
                if opcode == 9:
                    await self.send(payload, opcode=10)
                elif opcode in (0, 2):
                    whole += payload
                    if first & 0x80:
                        return whole
        except (asyncio.IncompleteReadError, ConnectionError, OSError) as error:
            raise Closed(None, str(error)) from error

    def close(self):
        self.writer.close()

    def reset(self):
        self.writer.transport.abort()
