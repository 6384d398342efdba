"""Workers that answer wrong. What counts is the hub's text alone: how many of so many answers are not the hub's own."""

import random
import time

from attacks import references, wrong_texts
from worker import Company, Honest, Weights, fresh_id


# Answers that a liar gives truly before it lies: more than a hub tries a newcomer with.
PATIENCE = 24


class Liar(Honest):
    """Is honest until it is known, then answers with `lie` of the true rows."""

    def __init__(self, *args, lie, layers=None, renews=False, **said):
        super().__init__(*args, **said)
        self.lie, self.layers, self.renews, self.n_lies = lie, layers, renews, 0

    def takes(self, block):
        return self.layers is None or block["layer"] in self.layers

    def begin(self):
        super().begin()
        self.n_true = 0

    def changed(self, asked, parts):
        self.n_true += 1
        if self.n_true <= PATIENCE:
            return parts
        changed = self.lie(parts)
        self.n_lies += changed is not parts
        return changed

    def returns(self):
        if self.renews:
            self.id = fresh_id()


def times(factor):
    return lambda parts: [[[factor * value for value in row] for row in rows] for rows in parts]


def rarely(lie, share, seed=1):
    chance = random.Random(seed)
    return lambda parts: lie(parts) if chance.random() < share else parts


def noise(share, seed=1):
    chance = random.Random(seed)
    return lambda parts: [[[value * (1 + chance.gauss(0, share)) for value in row] for row in rows] for rows in parts]


def shuffled(parts):
    """Each row backwards: of the right size, and nothing else."""
    return [[list(row)[::-1] for row in rows] for rows in parts]


def nothing(parts):
    return [[[0.0] * len(row) for row in rows] for rows in parts]


def not_a_number(parts):
    return [[[float("nan")] * len(row) for row in rows] for rows in parts]


async def rehearsed(hub):
    """Weights that know the rows of every question, of a hub that computes no experts: liars that are slow are asked for little."""
    weights = Weights()
    worker = Honest(hub.join_url, weights=weights)
    async with Company(worker):
        await hub.serving([worker.id])
        await references(hub)
    return weights


async def lied_to(hub, until, expected, liars):
    async with Company(*liars):
        await hub.serving([liar.id for liar in liars])
        seconds = until - time.monotonic()
        counts = [0, 0]
        # Until they lie, or are found out before.
        for _ in range(20):
            if any(liar.n_lies or liar.n_ended for liar in liars):
                break
            counts = [a + b for a, b in zip(counts, await wrong_texts(hub, expected, 0.2))]
        n, n_wrong = (a + b for a, b in zip(counts, await wrong_texts(hub, expected, max(seconds, 1.0))))
        status = await hub.status()
    totals = status["totals"]
    figures = {"wrong texts": f"{n_wrong} of {n}", "lies": sum(liar.n_lies for liar in liars),
               "caught": totals["mismatches"], "quarantined": totals["quarantined"]}
    if not figures["lies"]:
        figures["says nothing"] = "they were asked for too little to lie"
    return n_wrong, figures


def attack(make):
    """An attack whose promise is that no text is wrong; `make(hub, weights)` gives its liars."""
    async def run(hub, until, expected):
        n_wrong, figures = await lied_to(hub, until, expected, make(hub, hub.weights or Weights()))
        return n_wrong, figures
    run.__doc__ = make.__doc__
    return run


@attack
def last_layer(hub, weights):
    """Two that hold the last layer alone."""
    last = {hub.n_layers - 1}
    return [Liar(hub.join_url, weights=weights, lie=shuffled, layers=last) for _ in range(2)]


@attack
def rare(hub, weights):
    """-20 times, in one answer of a hundred."""
    return [Liar(hub.join_url, weights=weights, lie=rarely(times(-20.0), 0.01, seed)) for seed in range(2)]


@attack
def noisy(hub, weights):
    """3 % of noise in every answer."""
    return [Liar(hub.join_url, weights=weights, lie=noise(0.03, seed)) for seed in range(2)]


@attack
def renewed(hub, weights):
    """3 times, in every answer, under a new id after every end."""
    return [Liar(hub.join_url, weights=weights, lie=times(3.0), renews=True) for _ in range(2)]


@attack
def no_numbers(hub, weights):
    """NaN in every answer."""
    return [Liar(hub.join_url, weights=weights, lie=not_a_number) for _ in range(2)]


@attack
def collusion(hub, weights):
    """All workers there are, with the same lie: what one says the others confirm."""
    return [Liar(hub.join_url, weights=weights, lie=nothing) for _ in range(4)]
