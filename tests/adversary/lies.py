"""Workers that answer wrong. Only the hub's texts count: how many of them differ from the hub's own.

Half of the liars of each attack send true products with a false answer; the others send products from which the false
answer follows.
"""

import math
import random
import time

from attacks import references, wrong_texts
from worker import Company, Honest, Told, Weights, fresh_key


# True answers of a liar before it lies: more than a hub's trial of a newcomer.
PATIENCE = 24
# How long a lie goes on at most to be told in as many answers as are asked for.
MOST_SECONDS = 300
# The number of lies of which a hub that checks every answer must have caught one: the first may arrive too late to be
# used.
SURELY = 8


class Liar(Honest):
    """Is honest until the hub knows it, then changes true answers by `lie`. After detection it returns under another
    id."""

    def __init__(self, *args, lie, fits, layers=None, **said):
        super().__init__(*args, **said)
        self.lie, self.fits, self.layers, self.n_lies = lie, fits, layers, 0

    def takes(self, block):
        return self.layers is None or block["layer"] in self.layers

    def begin(self):
        super().begin()
        self.n_true = 0

    def changed(self, asked, parts):
        self.n_true += 1
        if self.n_true <= PATIENCE:
            return parts
        changed = [[self.lie(told, self.fits) for told in part] for part in parts] if self.lie.is_now() else parts
        self.n_lies += sum(a != b for a, b in zip(changed, parts))
        return changed

    def returns(self):
        self.key = fresh_key()


class Lie:
    """A change of a row's true answer, alone or with products from which it follows; used in this share of answers."""

    forms = "beside true products", "with products that fit"
    is_caught = True  # values that are not finite are rejected without any check

    def __init__(self, share=1.0, seed=1):
        self.share, self.chance = share, random.Random(seed)

    def is_now(self):
        return self.chance.random() < self.share

    def __call__(self, told, fits):
        raise NotImplementedError


class Times(Lie):
    """A multiple of the truth. The answer is linear in the products with up."""

    def __init__(self, factor, **more):
        super().__init__(**more)
        self.factor = factor

    def __call__(self, told, fits):
        return scaled(told, self.factor, fits)


class Noise(Lie):
    """Noise of this share: in each value, or, if the products have to fit, in the length."""

    def __init__(self, of_value, **more):
        super().__init__(**more)
        self.of_value = of_value

    def __call__(self, told, fits):
        if fits:
            return scaled(told, 1 + self.chance.choice((-1, 1)) * self.of_value, fits)
        return told._replace(row=[value * (1 + self.chance.gauss(0, self.of_value)) for value in told.row])


class Shuffled(Lie):
    """Each row backwards, which only has the right size; or the true answer for the row before, with its products."""

    before = None

    def __call__(self, told, fits):
        if not fits:
            return told._replace(row=list(told.row)[::-1])
        before, self.before = self.before or told, told
        return before


class Filled(Lie):
    """One number everywhere."""

    def __init__(self, number, **more):
        super().__init__(**more)
        self.number, self.is_caught = number, math.isfinite(number)

    def __call__(self, told, fits):
        return Told([self.number] * len(told.row), [self.number] * len(told.products) if fits else told.products)


class OneInfinity(Lie):
    """3 times the truth, beside one value that is infinite: it makes every bound infinite that a checker computes from it."""

    def __call__(self, told, fits):
        lie = scaled(told, 3.0, fits)
        (lie.products if fits else lie.row)[0] = math.inf
        return lie


class Unfounded(Lie):
    """The truth with false products: a hub computes the answer again, and finds no lie in it."""

    forms = "beside zeros", "beside gate's and up's exchanged"
    is_caught = False

    def __call__(self, told, fits):
        n = len(told.products) // 2
        return told._replace(products=[*told.products[n:], *told.products[:n]] if fits else [0.0] * (2 * n))


def scaled(told, factor, fits):
    """Multiplies the answer by `factor`, and if they must fit, the products with up as well."""
    row, n = [factor * value for value in told.row], len(told.products) // 2
    return Told(row, [*told.products[:n], *(factor * value for value in told.products[n:])] if fits else told.products)


async def rehearsed(hub):
    """Computes the rows of every question in advance, on a worker of a hub that computes no experts: slow liars get few
    dispatches."""
    worker = Honest(hub.join_url, weights=hub.weights)
    async with Company(worker):
        await hub.serving([worker.id])
        await references(hub)


async def lied_to(hub, until, expected, liars):
    async with Company(*liars):
        await hub.serving([liar.id for liar in liars])
        seconds = until - time.monotonic()
        n, wrong = 0, []

        async def ask(seconds):
            nonlocal n
            n_asked, more = await wrong_texts(hub, expected, seconds)
            n += n_asked
            wrong.extend(more)
        # Until they lie, or are detected.
        for _ in range(20):
            if any(liar.n_lies or liar.n_ended for liar in liars):
                break
            await ask(0.2)
        await ask(max(seconds, 1.0))
        latest = time.monotonic() + MOST_SECONDS
        while n < hub.n_answers and time.monotonic() < latest:
            await ask(2.0)
        status = await hub.status()
    totals, checks = status["totals"], status["verification"]
    lies = [sum(liar.n_lies for liar in liars if liar.fits == fits) for fits in (False, True)]
    figures = {"wrong texts": f"{len(wrong)} of {n}", "lies": ", ".join(f"{n} {form}" for n, form in zip(lies, liars[0].lie.forms)),
               "checked": checks["checked"], "refuted": checks["refuted"], "caught": checks["lies"],
               "strikes": totals["mismatches"], "quarantined": totals["quarantined"]}
    if wrong:
        figures["the first"] = wrong[0]
    if not sum(lies):
        figures["says nothing"] = "they were asked for too little to lie"
    assert n >= hub.n_answers, f"fewer than {hub.n_answers} answers in {MOST_SECONDS} s: {figures}"
    may_be_caught = [liar for liar in liars if liar.lie.is_caught and liar.n_lies >= SURELY]
    assert checks["mode"] != "blocking" or checks["lies"] or not may_be_caught, f"no lie was caught: {figures}"
    return len(wrong), figures


def attack(make):
    """An attack after which no text may be wrong; `make(hub, liar)` returns its liars. The products of every second
    liar fit its lie."""
    async def run(hub, until, expected):
        weights = hub.weights or Weights()
        n = 0

        def liar(lie, **more):
            nonlocal n
            n += 1
            made = Liar(hub.join_url, weights=weights, lie=lie, fits=n % 2 == 0, **more)
            # Each from an address of its own, as where two addresses have to agree.
            made.source = f"127.0.0.{1 + n}"
            return made
        return await lied_to(hub, until, expected, make(hub, liar))
    run.__doc__ = make.__doc__
    return run


@attack
def last_layer(hub, liar):
    """Two liars that hold only the last layer answer each row backwards, or with another row's answer."""
    return [liar(Shuffled(), layers={hub.n_layers - 1}) for _ in range(2)]


@attack
def rare(_hub, liar):
    """-20 times the truth, in one answer of a hundred."""
    return [liar(Times(-20.0, share=0.01, seed=seed)) for seed in range(2)]


@attack
def noisy(_hub, liar):
    """3 % of noise in every answer."""
    return [liar(Noise(0.03, seed=seed)) for seed in range(2)]


@attack
def tripled(_hub, liar):
    """3 times the truth, in every answer."""
    return [liar(Times(3.0)) for _ in range(2)]


@attack
def no_numbers(_hub, liar):
    """NaN in every answer."""
    return [liar(Filled(float("nan"))) for _ in range(2)]


@attack
def one_infinity(_hub, liar):
    """One infinite value in every answer, or in its products, the others 3 times the truth."""
    return [liar(OneInfinity()) for _ in range(2)]


@attack
def unfounded(_hub, liar):
    """True answers with false products, in every answer."""
    return [liar(Unfounded()) for _ in range(2)]


@attack
def collusion(_hub, liar):
    """All workers tell the same lie: each confirms the others."""
    return [liar(Filled(0.0)) for _ in range(4)]
