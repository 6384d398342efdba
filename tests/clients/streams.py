#!/usr/bin/env python3
"""Measures servers of OpenAI's completions API beside each other, at 1, 4 and 16 streams; by hand:

    streams.py moex=http://127.0.0.1:8080 llama-server=http://127.0.0.1:8081

Every request has another prompt of some 300 tokens, from this project's own pages, and an answer of 64 tokens; the
servers take turns, three times for each number of streams. Prints tokens a second of all streams together, by the
servers' own counts: those of answers alone, and with those of prompts, in both cases over the whole time.
"""

import json
import statistics
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

STREAMS = (1, 4, 16)
TURNS = 3
WORDS, TOKENS = 110, 64
BOOK = (Path(__file__).parents[2] / "ARCHITECTURE.md").read_text().split()


def usage(url, number):
    """One request's counts. `number` makes its prompt another than all before."""
    start = number * 97 % (len(BOOK) - WORDS)
    body = {
        "model": "default", "prompt": f"{time.time_ns()} {' '.join(BOOK[start:][:WORDS])}", "max_tokens": TOKENS,
        "temperature": 0, "ignore_eos": True,
    }
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=600) as response:
        return json.load(response)["usage"]


def rates(url, n, numbers):
    """Tokens a second of answers, and of answers and prompts, over `n` requests at once."""
    begun = time.monotonic()
    with ThreadPoolExecutor(n) as pool:
        usages = list(pool.map(lambda _: usage(url, next(numbers)), range(n)))
    took = time.monotonic() - begun
    return [sum(usage[name] for usage in usages) / took for name in ("completion_tokens", "total_tokens")]


def main():
    servers = dict(argument.split("=", 1) for argument in sys.argv[1:])
    if not servers:
        sys.exit(__doc__)
    numbers = count()
    print("| streams | server | answers, tokens/s | with prompts |\n|---|---|---|---|")
    for n in STREAMS:
        measured = {name: [] for name in servers}
        for _ in range(TURNS):
            for name, url in servers.items():
                measured[name].append(rates(url, n, numbers))
        for name, runs in measured.items():
            answers, both = (statistics.median(column) for column in zip(*runs))
            print(f"| {n} | {name} | {answers:.1f} | {both:.0f} |", flush=True)


if __name__ == "__main__":
    main()
