"""A server that only refuses: it reads what strangers send as slowly as a hub does, gives an answer that is always the same, and
computes nothing. What strangers cost beside it, they cost the machine.

    sink.py

Prints its port, and serves on loopback until its stdin is closed.
"""

import asyncio
import base64
import contextlib
import hashlib
import os
import sys
import time

# What the hub allows: bytes of a socket before its JOIN, and bytes a second of all sockets and of all bodies.
STRANGER_BYTES, SOCKETS_RATE, BODIES_RATE = 66 << 10, 2e6, 8e6
REFUSED = b'{"error":{"code":"queue_full"}}'


class Pace:
    def __init__(self, rate):
        self.rate, self.due = rate, 0.0

    async def has_read(self, n):
        self.due = max(self.due, time.monotonic()) + n / self.rate
        await asyncio.sleep(self.due - time.monotonic())


async def take(reader, n, pace):
    while n > 0 and (data := await reader.read(min(n, 1 << 16))):
        n -= len(data)
        await pace.has_read(len(data))


def answer(status, body):
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (status, len(body), body)


async def serve(reader, writer, sockets=Pace(SOCKETS_RATE), bodies=Pace(BODIES_RATE)):  # noqa: B008: the same of all connections
    with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        head = await reader.readuntil(b"\r\n\r\n")
        fields = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:] if b":" in line)
        key = next((line.split(b":", 1)[1].strip() for line in head.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key")), None)
        if key:
            accept = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
            writer.write(b"HTTP/1.1 101 -\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Protocol: moex.v1\r\n"
                         b"Sec-WebSocket-Accept: %s\r\n\r\n" % accept)
            await take(reader, STRANGER_BYTES, sockets)
        elif head.startswith(b"POST"):
            await take(reader, int(fields.get(b"content-length", b"0")), bodies)
            writer.write(answer(b"429 -", REFUSED))
        else:
            writer.write(answer(b"200 -", b"{}"))
        await writer.drain()
    writer.close()


async def main():
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, 19)
    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=64 << 10, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    os._exit(0)


asyncio.run(main())
