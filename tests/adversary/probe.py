"""An honest client: streams one answer after another, requests /health every 20 ms, and reports all times.

    probe.py HOST PORT PROMPT

Prints a line once it has begun, and one JSON object when its stdin is closed.
"""

import asyncio
import json
import os
import sys
import time

HOST, PORT, PROMPT = sys.argv[1], int(sys.argv[2]), sys.argv[3]
found = {"tokens": [], "health": [], "texts": {}, "errors": []}


async def request(writer, method, path, body=b""):
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: {HOST}:{PORT}\r\nContent-Type: application/json\r\n"
                 f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
    await writer.drain()


async def look():
    reader = writer = None
    while True:
        begun = time.monotonic()
        try:
            if writer is None:
                reader, writer = await asyncio.open_connection(HOST, PORT)
            await request(writer, "GET", "/health")
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
            length = next(int(line.split(b":")[1]) for line in head.splitlines() if line.lower().startswith(b"content-length"))
            await reader.readexactly(length)
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            writer = None
        found["health"].append((begun, time.monotonic() - begun))
        await asyncio.sleep(0.02)


async def stream():
    body = json.dumps({"messages": [{"role": "user", "content": PROMPT}], "temperature": 0, "max_tokens": 96, "stream": True,
                       "chat_template_kwargs": {"enable_thinking": False}}).encode()
    while True:
        try:
            reader, writer = await asyncio.open_connection(HOST, PORT)
            await request(writer, "POST", "/v1/chat/completions", body)
            text = ""
            while True:
                line = await asyncio.wait_for(reader.readline(), 60)
                if not line:
                    raise OSError("the stream ended")
                if not line.startswith(b"data: "):
                    continue
                if line.startswith(b"data: [DONE]"):
                    break
                piece = json.loads(line[6:])
                if "error" in piece:
                    raise OSError(str(piece["error"]))
                said = piece["choices"] and piece["choices"][0]["delta"].get("content")
                if said:
                    text += said
                    found["tokens"].append(time.monotonic())
            writer.close()
            found["texts"][text] = found["texts"].get(text, 0) + 1
        except (OSError, TimeoutError) as error:
            found["errors"].append(str(error)[:200])
            await asyncio.sleep(0.05)


async def main():
    loop = asyncio.get_running_loop()
    _tasks = [asyncio.create_task(look()), asyncio.create_task(stream())]
    print("begun", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    print(json.dumps(found), flush=True)
    # A cancelled wait may not end, and nothing here needs to be waited for.
    os._exit(0)


asyncio.run(main())
