"""The exact arithmetic of an expert as protocol/README.md defines it, in plain Python, and the hash of its block.

Each operation on f32 is computed in f64 and rounded: sums, products and quotients of two f32 are then the same as in
f32. `array("f")` rounds many at once. Integer sums are exact: all outputs of a matrix are fields of one large integer.
"""

import struct
from array import array
from operator import add, mul, sub, truediv

from wire import BF16, F16, halves

GROUP = 128
LANES = 16
# f32 fields of the packed sums: at most 15 x 254 x 128, below 2^32.
FIELD = 32


def f32(values):
    """Values, each rounded to the nearest f32."""
    return array("f", values)


def one(value):
    return array("f", [value])[0]


def of_halves(data):
    return struct.unpack(f"<{len(data) // 2}e", data)


def decode_row(dtype, data):
    if dtype == F16:
        return f32(of_halves(data))
    if dtype == BF16:
        return f32(struct.unpack(f"<{len(data) // 2}f", b"".join(b"\0\0" + data[i:i + 2] for i in range(0, len(data), 2))))
    raise NotImplementedError(f"rows of dtype {dtype}")


def encode_row(dtype, row):
    """Converts f32 to the wire's format, ties to even; values that are too large become infinite."""
    if dtype == F16:
        return halves(row)
    if dtype == BF16:
        words = struct.unpack(f"<{len(row)}I", struct.pack(f"<{len(row)}f", *row))
        return struct.pack(f"<{len(row)}H", *((w + 0x7FFF + (w >> 16 & 1)) >> 16 & 0xFFFF for w in words))
    raise NotImplementedError(f"rows of dtype {dtype}")


class Matrix:
    """A matrix (out, in) in int4: a plane of codes, then a plane of f16 scales."""

    def __init__(self, block, at, n_out, n_in):
        self.n_out, self.n_in, self.groups = n_out, n_in, -(-n_in // GROUP)
        codes_end = at + n_out * self.groups * GROUP // 2
        scales = codes_end + -codes_end % 16
        self.end = scales + 2 * n_out * self.groups
        width = self.groups * GROUP
        nibbles = bytearray(n_out * width)
        nibbles[0::2] = block[at:codes_end].translate(LOW)
        nibbles[1::2] = block[at:codes_end].translate(HIGH)
        self.codes = [bytes(nibbles[o * width:o * width + n_in]) for o in range(n_out)]
        of_rows = of_halves(block[scales:self.end])
        self.scales = [of_rows[g::self.groups] for g in range(self.groups)]  # for each group, of all outputs
        self.columns = self.lanes = None

    def times_int8(self, row):
        """Multiplies the row in int8 with the codes, exactly, then with both scales: one rounding an operation, group
        by group."""
        if self.columns is None:
            place = [1 << FIELD * o for o in range(self.n_out)]
            self.columns = [sum(map(mul, column, place)) for column in zip(*self.codes)]
            self.sums = [[sum(row[g:g + GROUP]) for row in self.codes] for g in range(0, self.n_in, GROUP)]
        out = array("f", bytes(4 * self.n_out))
        for g in range(self.groups):
            x = row[g * GROUP:(g + 1) * GROUP]
            scale, steps = quantised(x)
            packed = sum(map(mul, self.columns[g * GROUP:g * GROUP + len(x)], [step + 127 for step in steps]))
            raised = memoryview(packed.to_bytes(FIELD // 8 * self.n_out, "little")).cast("I")
            lowered = 8 * sum(steps)
            # A code is the weight's step plus 8, and the row's steps are raised by 127.
            p = [r - 127 * s - lowered for r, s in zip(raised, self.sums[g])]
            scales = f32(map(mul, self.scales[g], [scale] * self.n_out))
            out = f32(map(add, out, f32(map(mul, p, scales))))
        return out

    def times_f32(self, row):
        """Lane i mod 16 sums its products in order; then the upper half of the lanes is added to the lower, until one
        is left."""
        if self.lanes is None:
            weights = [[one(self.scales[c // GROUP][o] * (code - 8)) for c, code in enumerate(codes)]
                       for o, codes in enumerate(self.codes)]
            self.lanes = [[w for codes in weights for w in codes[c:c + LANES] + [0.0] * (c + LANES - self.n_in)]
                          for c in range(0, self.n_in, LANES)]
        sums = array("f", bytes(4 * LANES * self.n_out))
        for c, weights in enumerate(self.lanes):
            x = list(row[c * LANES:(c + 1) * LANES])
            products = f32(map(mul, weights, (x + [0.0] * (LANES - len(x))) * self.n_out))
            sums = f32(map(add, sums, products))
        lanes = [sums[lane::LANES] for lane in range(LANES)]
        while len(lanes) > 1:
            middle = len(lanes) // 2
            lanes = [f32(map(add, lower, upper)) for lower, upper in zip(lanes[:middle], lanes[middle:])]
        return lanes[0]


LOW = bytes(byte & 15 for byte in range(256))
HIGH = bytes(byte >> 4 for byte in range(256))


def quantised(x):
    """Quantises a row's group to int8: returns its scale, and its values in steps of it, halves to even."""
    largest = max(map(abs, x))
    inverse = one(127.0 / largest) if largest > 0 else 0.0
    steps = [round(max(-127.0, min(127.0, value))) for value in f32(map(mul, x, [inverse] * len(x)))]
    return one(largest / 127.0), steps


def exp_vector(x):
    """Cephes' expf of many values, as the int8 arithmetic uses it."""
    n = len(x)
    x = [max(-87.0, min(88.0, value)) for value in x]
    turns = f32(map(mul, x, [one(1.4426950408889634)] * n))
    turns = f32(map(float, map(round, turns)))
    r = f32(map(sub, x, f32(map(mul, turns, [one(0.6933594)] * n))))
    r = f32(map(sub, r, f32(map(mul, turns, [one(-2.1219444e-4)] * n))))
    total = [one(1.9875691e-4)] * n
    for coefficient in (1.3981999e-3, 8.333452e-3, 4.1665796e-2, 1.6666665e-1, 0.5):
        total = f32(map(add, f32(map(mul, total, r)), [one(coefficient)] * n))
    total = f32(map(mul, f32(map(mul, total, r)), r))
    total = f32(map(add, total, f32(map(add, r, [1.0] * n))))
    return f32(map(mul, total, [2.0 ** turn for turn in turns]))


def exp_libm(x):
    """FreeBSD's expf of one value, as the f32 arithmetic uses it."""
    magnitude = abs(x)
    if magnitude >= 87.33655:
        if x > 0 and magnitude >= 88.72283:
            return float("inf")
        if x < 0 and magnitude >= 103.97208:
            return 0.0
    high, low, k = x, 0.0, 0
    if magnitude > LN_2_HALF:
        if magnitude > LN_2_THREE_HALVES:
            k = int(one(one(one(1.4426950216) * x) + (0.5 if x >= 0 else -0.5)))
        else:
            k = 1 if x >= 0 else -1
        high, low = one(x - one(k * LN_2[0])), one(k * LN_2[1])
        x = one(high - low)
    elif magnitude <= 2.0 ** -13:
        return one(1.0 + x)
    square = one(x * x)
    c = one(x - one(square * one(P[0] + one(square * P[1]))))
    y = one(1.0 + one(one(one(one(x * c) / one(2.0 - c)) - low) + high))
    return one(y * 2.0 ** k)


LN_2_HALF, LN_2_THREE_HALVES = (struct.unpack("<f", struct.pack("<I", bits))[0] for bits in (0x3EB17218, 0x3F851592))
LN_2 = one(6.9314575195e-01), one(1.4286067653e-06)
P = one(1.6666625440e-1), one(-2.7667332906e-3)


class Expert:
    """`gate x down(silu(gate_proj(row)) x up(row))` of a block in int4."""

    def __init__(self, block, hidden, inner, activations):
        aligned = lambda at: at + -at % 16
        self.gate = Matrix(block, 0, inner, hidden)
        self.up = Matrix(block, aligned(self.gate.end), inner, hidden)
        self.down = Matrix(block, aligned(self.up.end), hidden, inner)
        assert len(block) == aligned(self.down.end), "the block is as long as its planes"
        self.is_int8 = activations == "int8"
        self.times = Matrix.times_int8 if self.is_int8 else Matrix.times_f32

    def products(self, row):
        """The products of a row of f32 with gate, and with up; with int8 activations rounded to f16."""
        products = self.times(self.gate, row) + self.times(self.up, row)
        return f32(of_halves(halves([max(-65504.0, min(65504.0, p)) for p in products]))) if self.is_int8 else products

    def answer(self, products, gate):
        """The expert's answer in f32, computed from the products, times the gate."""
        h, up = products[:self.gate.n_out], products[self.gate.n_out:]
        negative = f32(0.0 - x for x in h)
        exps = exp_vector(negative) if self.is_int8 else map(exp_libm, negative)
        silu = f32(map(truediv, h, f32(1.0 + e for e in exps)))
        y = self.times(self.down, f32(map(mul, silu, up)))
        return f32(map(mul, y, [gate] * len(y)))


def blake3(data):
    """BLAKE3 of some bytes, https://github.com/BLAKE3-team/BLAKE3-specs, 32 bytes in hex."""
    chunks = [data[i:i + 1024] for i in range(0, len(data), 1024)] or [b""]

    def chunk(index, last):
        blocks = [chunks[index][i:i + 64] for i in range(0, len(chunks[index]), 64)] or [b""]
        value = IV
        for i, block in enumerate(blocks):
            flags = (1 if i == 0 else 0) | (2 if i + 1 == len(blocks) else 0)
            if i + 1 == len(blocks) and last:
                flags |= 8
            value = squeezed(value, struct.unpack("<16I", block.ljust(64, b"\0")), index, len(block), flags)
        return value

    def tree(first, n, root):
        if n == 1:
            return chunk(first, root)
        left = 1 << (n - 1).bit_length() - 1
        words = tree(first, left, False) + tree(first + left, n - left, False)
        return squeezed(IV, words, 0, 64, 4 | (8 if root else 0))

    return struct.pack("<8I", *tree(0, len(chunks), True)).hex()


IV = (0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19)
PERMUTATION = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
QUARTERS = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15),
            (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))


def squeezed(value, block, counter, length, flags):
    v = [*value, *IV[:4], counter & 0xFFFFFFFF, counter >> 32, length, flags]
    m = block
    for _ in range(7):
        for i, (a, b, c, d) in enumerate(QUARTERS):
            va, vb, vc, vd = v[a], v[b], v[c], v[d]
            va = va + vb + m[2 * i] & 0xFFFFFFFF
            vd ^= va
            vd = (vd >> 16 | vd << 16) & 0xFFFFFFFF
            vc = vc + vd & 0xFFFFFFFF
            vb ^= vc
            vb = (vb >> 12 | vb << 20) & 0xFFFFFFFF
            va = va + vb + m[2 * i + 1] & 0xFFFFFFFF
            vd ^= va
            vd = (vd >> 8 | vd << 24) & 0xFFFFFFFF
            vc = vc + vd & 0xFFFFFFFF
            vb ^= vc
            v[a], v[b], v[c], v[d] = va, (vb >> 7 | vb << 25) & 0xFFFFFFFF, vc, vd
        m = [m[i] for i in PERMUTATION]
    return tuple(v[i] ^ v[i + 8] for i in range(8))
