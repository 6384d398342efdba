"""The frame of every attack: a hub, an honest client at the same time, and bounds that are measured and printed."""

import asyncio
import os
import time
from contextlib import contextmanager
from dataclasses import dataclass, field

from hub import QUESTIONS, Probe, Sink
from worker import Company, Honest

# The promise for a hub that has the whole machine.
MEMORY_MIB, HEALTH_P99_MILLIS, RATE = 256, 20, 0.9
# What workers leave a hub of its speed alone, whatever they do.
LIVENESS_RATE = 0.5
# Tokens of an answer, for attacks that count answers.
SHORT = 12
N_QUESTIONS = 4


@dataclass
class Bounds:
    """The largest cost of an attack. The promise's figures are printed; a test on a shared machine asserts looser
    bounds."""

    rate: float = 0.12  # relative to the rate before and after
    health_millis: float = 1500
    memory_mib: float = MEMORY_MIB
    yields: bool = False  # the attacker leaves the processor to the hub, as if it ran on another machine
    beside: bool = False  # the same attack also on a server that only refuses, to measure what it costs the machine
    rounds: int = 1  # attacks, with quiet time before, between and after them: a machine's own speed drifts


@dataclass
class Verdict:
    name: str
    holds: bool
    figures: dict = field(default_factory=dict)
    why: str = ""

    def line(self):
        figures = ", ".join(f"{key} {value}" for key, value in self.figures.items())
        return f"{'holds ' if self.holds else 'BROKEN'} {self.name}: {figures}{'; ' + self.why if self.why else ''}"


async def under(name, hub, attack, seconds, bounds=None):
    """Runs `attack(hub, until)` with an honest stream and /health beside it. Compares rates with those before and
    after, so that other work on the machine affects both. An attack returns further figures, and may raise
    AssertionError."""
    if getattr(attack, "has_honest", False) and not hub.honest:
        hub.honest = Honest(hub.join_url, weights=hub.weights)
        async with Company(hub.honest):
            await hub.serving([hub.honest.id])
            return await under(name, hub, attack, seconds, bounds)
    bounds = bounds or Bounds()
    figures, why = {}, []
    expected = await hub.complete(QUESTIONS[0])
    quiet, attacked, beside = [], [], None
    async with Probe(hub) as probe:
        await asyncio.sleep(0.5)
        memory = hub.memory()
        quiet.append(await silence(seconds))
        if bounds.beside:
            begin = time.monotonic()
            async with Sink() as sink:
                with yielding(bounds.yields):
                    await attack(sink, begin + seconds)
            beside = [(begin, time.monotonic())]
        watch = asyncio.create_task(peak(hub))
        for _ in range(bounds.rounds):
            begin = time.monotonic()
            try:
                with yielding(bounds.yields):
                    figures = await attack(hub, begin + seconds) or {}
            except AssertionError as error:
                why.append(str(error))
            attacked.append((begin, time.monotonic()))
            quiet.append(await silence(seconds))
        watch.cancel()
        await probe.end()
    alone, rate, p99 = probe.rate(quiet), probe.rate(attacked), probe.health_p99(attacked)
    texts, errors = probe.wrong_texts()
    n_wrong = sum(n for text, n in texts.items() if text != expected)
    shown = {"tokens/s": f"{rate:.0f} of {alone:.0f} ({rate / max(alone, 1e-9):.0%})"}
    if bounds.beside:
        machine = probe.rate(beside)
        shown["while another server is attacked"] = f"{machine:.0f} ({machine / max(alone, 1e-9):.0%})"
    shown["/health p99"] = f"{p99:.1f} ms (alone {probe.health_p99(quiet):.1f})"
    if memory is not None:
        grown = PEAKS.pop(id(hub), memory) - memory
        shown["memory"] = f"+{grown:.0f} MiB"
        if grown > bounds.memory_mib:
            why.append(f"{grown:.0f} MiB are more than {bounds.memory_mib}")
    shown["the promise"] = "met" if rate >= RATE * alone and p99 <= HEALTH_P99_MILLIS else "not met here"
    shown["answers"] = f"{sum(texts.values())}, {n_wrong} wrong"
    if rate < bounds.rate * alone:
        why.append(f"the honest stream has {rate / alone:.0%} of its rate, less than {bounds.rate:.0%}")
    if p99 > bounds.health_millis:
        why.append(f"/health takes {p99:.0f} ms")
    if n_wrong:
        why.append(f"{n_wrong} wrong texts")
    if errors:
        why.append(f"{len(errors)} errors, the first {errors[0]!r}")
    if not hub.alive():
        why.append("the hub has died")
    if b"panicked" in hub.said():
        why.append("the hub panicked")
    return Verdict(name, not why, {**shown, **figures}, "; ".join(why))


async def silence(seconds):
    """Waits for a third of an attack's time; returns when that was."""
    begin = time.monotonic()
    await asyncio.sleep(max(0.7, seconds / 3))
    return begin, time.monotonic()


@contextmanager
def yielding(yields):
    """Lowers this process's priority meanwhile, but only if it may raise it again."""
    may = yields and os.geteuid() == 0
    if may:
        os.setpriority(os.PRIO_PROCESS, 0, 19)
    try:
        yield
    finally:
        if may:
            os.setpriority(os.PRIO_PROCESS, 0, 0)


PEAKS = {}


async def peak(hub):
    """Records the largest memory of a hub."""
    while True:
        now = hub.memory()
        if now is None:
            return
        PEAKS[id(hub)] = max(PEAKS.get(id(hub), 0), now)
        await asyncio.sleep(0.02)


async def wrong_texts(hub, expected, seconds, streams=2):
    """Asks until the time is up; returns the number of answers, and those that differ from the hub's own."""
    n, wrong, until = 0, [], time.monotonic() + seconds

    async def ask(first):
        nonlocal n
        i = first
        while time.monotonic() < until:
            text = QUESTIONS[i % N_QUESTIONS]
            answer = await hub.complete(text, SHORT)
            n += 1
            if answer != expected[text]:
                wrong.append(f"{answer!r} for {expected[text]!r}")
            i += 1
    await asyncio.gather(*(ask(i) for i in range(streams)))
    return n, wrong


async def references(hub):
    """The hub's own answers to every question."""
    return {text: await hub.complete(text, SHORT) for text in QUESTIONS[:N_QUESTIONS]}
