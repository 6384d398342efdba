"""An independent client of moex's wire, and an adversary: written from protocol/README.md, with Python's standard library alone.

    adversary.py list
    adversary.py attack NAME JOIN_URL [--pid PID] [--seconds N]     one attack on a hub that runs
    adversary.py conformance JOIN_URL [--workers-only JOIN_URL]     frames and refusals; the bits of an expert, if there is a
                                                                    second hub of the same model with --no-hub-compute
    adversary.py suite --moex PATH [--seconds N] [--answers N] [--only NAME] [--all]
                                                                    everything, each on its own hub; NAME is a part of
                                                                    a name, or ", blocking", ", exact", ", audit" for all
                                                                    lies in that mode; with --all,
                                                                    rules that are not promised yet count, too

Prints a verdict on one line for each. Exit code 0: all rules hold; 1: a rule is broken. With --pid, memory is measured.
"""

import argparse
import asyncio
import resource
import sys
import time
import traceback

if sys.version_info < (3, 11):
    print("SKIPPED adversary: it needs Python 3.11 or later", file=sys.stderr)
    sys.exit(3)

import attacks
import conformance
import lies
import malformed
import members
import strangers
from attacks import LIVENESS_RATE, Bounds, Verdict, under
from hub import Hub
from worker import Weights

TINY = ["--model", "tests/data/tiny-qwen3-moe"]

# Attacks that are known to do harm, each with what must change first, or why nothing will. They run and print a
# verdict; only `--all` counts it.
NOT_YET = {
}

STRANGERS = {f.__name__: f for f in (strangers.sockets, strangers.pings, strangers.prompts, strangers.shapes, strangers.schemas, strangers.half_requests, strangers.slow,
                                     strangers.garbage)}
MEMBERS = {f.__name__: f for f in (members.silent, members.loads_nothing, members.forged_texts, members.stolen_id, members.churn,
                                   members.floods, malformed.malformed_frames, malformed.malformed_results)}
LIES = {"last_layer": lies.last_layer, "rare": lies.rare, "noisy": lies.noisy, "tripled": lies.tripled,
        "no_numbers": lies.no_numbers, "one_infinity": lies.one_infinity,
        "unfounded": lies.unfounded, "collusion": lies.collusion}
# Lies to a hub that checks answers after it has used them, and the rules that it does not promise.
AUDIT = ["--verify", "audit"]
AUDITED = {f"{name}, audit": name for name in LIES if name != "unfounded"}
# Liveness: whatever these workers do, a hub that asks whoever is faster keeps above half of its speed alone. The demo model's
# hub asks workers first, even slower ones, without this flag.
FASTER = ["--prefer", "faster"]
LEFT_ALONE = {f"{name}, faster": name for name in ("silent", "churn", "floods", "malformed_frames")}
# Lies to a hub where two addresses have to agree.
EXACT = ["--verify", "exact"]
AGREED = {f"{name}, exact": name for name in LIES}
NOT_YET |= {name: "--verify audit checks answers by chance, and after they are used"
            for name, lie in AUDITED.items() if lie != "no_numbers"}
FILES = {"half_requests": 512}


async def together(hub, until):
    """All strangers at once."""
    found = await asyncio.gather(*(attack(hub, until) for attack in STRANGERS.values()))
    return {f"{name}: {key}": value for name, figures in zip(STRANGERS, found) for key, value in figures.items()}


async def run(name, hub, seconds):
    """Runs one attack of any kind; returns its verdict."""
    hub.n_layers = (await hub.status())["model"]["n_layers"]
    if name == "unread":
        return await under(name, hub, strangers.unread, seconds, Bounds(rate=0.0))
    if name == "together":
        bounds = Bounds(rate=0.3, health_millis=2000, yields=True, beside=hub.is_long, rounds=3 if hub.is_long else 1)
        return await under(name, hub, together, seconds, bounds)
    if name == "slow_is_ended":
        return Verdict(name, True, await strangers.slow_is_ended(hub, 0))
    if name in LIES | AUDITED | AGREED:
        expected = await attacks.references(hub)
        n_wrong, figures = await LIES[(AUDITED | AGREED).get(name, name)](hub, time.monotonic() + seconds, expected)
        return Verdict(name, n_wrong == 0, figures)
    attack = (STRANGERS | MEMBERS)[LEFT_ALONE.get(name, name)]
    # Honest workers beside an attack belong to this process.
    bounds = Bounds(yields=not getattr(attack, "has_honest", False))
    if name in LEFT_ALONE:
        bounds.rate = LIVENESS_RATE
    return await under(name, hub, attack, seconds, bounds)


async def judged(name, hub, seconds):
    try:
        most = 180 + 12 * seconds + (lies.MOST_SECONDS if hub.n_answers else 0)
        return await asyncio.wait_for(run(name, hub, seconds), most)
    except AssertionError as error:
        return Verdict(name, False, {}, str(error))
    except Exception:  # noqa: BLE001: an error in one attack must not hide the verdicts of others
        return Verdict(name, False, {}, traceback.format_exc())


async def conforms(hub, alone=None):
    """Runs the checks of frames and refusals on one hub."""
    yield await shown("conformance: refusals", conformance.refusals(hub))
    yield await shown("conformance: frames", conformance.frames(hub, alone))


async def shown(name, part):
    try:
        said = await part
        return Verdict(name, True, {"met": said if isinstance(said, str) else said[0]})
    except AssertionError as error:
        return Verdict(name, False, {}, str(error) or traceback.format_exc())
    except Exception:  # noqa: BLE001
        return Verdict(name, False, {}, traceback.format_exc())


CONFORMANCE = {
    # Name: flags of both hubs, the prompt, tokens.
    "bits: int8 activations": ([], "Tell me a story about a bear.", 24),
    "bits: f32 activations": ([*TINY, "--activations", "f32"], "Hi", 8),
    "bits: int8 activations, bf16 wire, LZ4": (
        [*TINY, "--prefer", "workers", "--wire", "bf16", "--compress", "on"], "Hi", 16,
    ),
}
LONG_CONFORMANCE = {
    "bits: f32 activations, demo model": (["--activations", "f32", "--timeout", "10s"], "Hi", 6),
}


async def suite(options):
    """Runs everything, each on its own hub."""
    # The demo model's weights, shared by all hubs with that model: workers in Python load slowly.
    weights = Weights()

    def start(*flags, files=None):
        hub = Hub.start(options.moex, *flags, files=files)
        hub.n_answers, hub.is_long = options.answers, options.seconds > 5
        hub.weights = None if {"--model", "--activations"} & {*flags} else weights
        return hub

    def wanted(name):
        return options.only is None or options.only in (f"{name}, blocking" if name in LIES else name)
    long = options.seconds > 5
    checks = CONFORMANCE | (LONG_CONFORMANCE if long else {})
    for name, (flags, text, max_tokens) in checks.items():
        if wanted(name):
            with start(*flags) as checking, start(*flags, "--no-hub-compute") as workers_only:
                yield await shown(name, conformance.bits(checking, workers_only, text, max_tokens))
    if wanted("conformance"):
        with start() as alone, start("--no-hub-compute") as hub:
            for name, verdicts in ("workers alone", conforms(hub, alone)), ("default", conforms(alone)):
                async for verdict in verdicts:
                    verdict.name += f", {name}"
                    yield verdict
        with start(*EXACT) as hub:
            yield await shown("conformance: agreement", conformance.agreement(hub))
        if long:
            with start(*AUDIT) as hub:
                async for verdict in conforms(hub):
                    verdict.name += ", audit"
                    yield verdict
    # The short suite runs all strangers at once; the long one also runs each alone.
    names = ["together", "unread", "silent", "loads_nothing", "forged_texts", "stolen_id", "malformed_frames", "malformed_results"]
    names += [*STRANGERS, "slow_is_ended", "churn", "floods"] if long or options.only else []
    names += LEFT_ALONE
    names += [*LIES, *AUDITED, *AGREED] if long or options.only else [*LIES, "noisy, exact", "collusion, exact"]
    is_rehearsed = False
    for name in filter(wanted, dict.fromkeys(names)):
        if name in LIES | AUDITED | AGREED and not is_rehearsed:
            with start("--no-hub-compute") as hub:
                await lies.rehearsed(hub)
            is_rehearsed = True
        flags = AUDIT if name in AUDITED else EXACT if name in AGREED else FASTER if name in LEFT_ALONE else []
        with start(*flags, files=FILES.get(name)) as hub:
            yield await judged(name, hub, options.seconds)


def printed(verdict, everything):
    """Prints a verdict; returns whether it counts as holding."""
    print(verdict.line(), flush=True)
    if verdict.holds:
        if verdict.name in NOT_YET:
            print(f"       {verdict.name} held this time; it is on the list of rules not promised yet", flush=True)
        return True
    if verdict.name in NOT_YET and not everything:
        print(f"  NOT YET: {verdict.name} is not promised: {NOT_YET[verdict.name]}", flush=True)
        return True
    return False


async def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list")
    one = commands.add_parser("attack")
    one.add_argument("name", choices=[*STRANGERS, "together", "unread", "slow_is_ended", *MEMBERS, *LIES])
    one.add_argument("join_url")
    one.add_argument("--pid", type=int)
    one.add_argument("--seconds", type=float, default=10)
    page = commands.add_parser("conformance")
    page.add_argument("join_url")
    page.add_argument("--workers-only")
    every = commands.add_parser("suite")
    every.add_argument("--moex", required=True)
    every.add_argument("--seconds", type=float, default=1.2)
    every.add_argument("--answers", type=int, default=0, help="each lie goes on until so many texts were compared")
    every.add_argument("--only")
    every.add_argument("--all", action="store_true")
    options = parser.parse_args()
    # Each connection needs a socket on both sides.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    if options.command == "list":
        for name, attack in (STRANGERS | {"together": together, "unread": strangers.unread} | MEMBERS | LIES).items():
            print(f"{name}: {attack.__doc__.splitlines()[0]}")
        return 0
    begun, ok, n = time.monotonic(), True, 0
    if options.command == "attack":
        ok = printed(await judged(options.name, Hub(options.join_url, options.pid), options.seconds), everything=True)
    elif options.command == "conformance":
        hub = Hub(options.join_url)
        async for verdict in conforms(hub):
            ok &= printed(verdict, everything=True)
        if options.workers_only:
            found = conformance.bits(hub, Hub(options.workers_only), "Hi", 8)
            ok &= printed(await shown("conformance: bits", found), everything=True)
    else:
        async for verdict in suite(options):
            n += 1
            ok &= printed(verdict, options.all)
        print(f"{n} verdicts in {time.monotonic() - begun:.0f} s", flush=True)
        ok &= n > 0
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
