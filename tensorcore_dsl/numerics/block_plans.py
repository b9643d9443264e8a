"""Plans of products in blocks of D: bit offsets of the lanes of all vectors, and constants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from . import block_code as code
from . import block_sums as sums
from . import blocks
from .architectures import Model, Product
from .block_groups import MAX_GROUPS
from .formats import FORMATS, Format

Array = npt.NDArray[Any]
MAX_AHEAD = 64  # blocks of an operand that are prefetched into the cache
NO_SPECIAL = (1 << 32) - 1  # above all codes of a format without infinities and NaN
PRODUCT_BIAS = 2 * sums.BIAS  # bias of exponents of products
MAX_FRACTION = 36  # bits of sums of groups, so that binary64 holds them
ENGINE_OF_ACCUMULATOR = {"s32": blocks.INTEGER, "f64": blocks.CHAIN}
PAIRED = blocks.INTEGER, blocks.GROUPED  # numbers are two elements of 16 bits
HALVES = ("f16",)  # types of C and D of which two elements share a word
NUMBERS = {**dict.fromkeys(PAIRED, 2), blocks.BITS: 32}  # engine -> most elements of a number


@dataclass(frozen=True, eq=False)
class BlockPlan:
    """Arguments of the loops in `blocks` for a product.

    Attributes
    ----------
    loop : function
        One of `blocks.LOOPS`.
    call : Call
        Sizes and memory of a call.
    kept : tuple of arrays
        Memory that `call` points to.
    swapped : bool
        A and B are exchanged, because D is computed transposed.
    """

    loop: Any  # an entry of `blocks.LOOPS`
    call: blocks.Call
    kept: tuple[Array, ...]
    swapped: bool

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of the decoded values of one A and one B, and of one D."""
        return self.call.a.size, self.call.b.size, self.call.d.size


@dataclass(frozen=True)
class Layouts:
    """Layouts of the operands in memory.

    Attributes
    ----------
    bit_offsets : dict
        32 * word + shift of each element: (tiles, m, k), (tiles, k, n), (tiles, m, n) of A, B, C and
        D, with k in the order of the hardware.
    steps : dict
        Distance of two warps in words.
    packed : tuple of int
        Elements in a word of A and of B.
    """

    bit_offsets: dict[str, Array]
    steps: dict[str, int]
    packed: tuple[int, int]

    def swapped(self) -> Layouts:
        """Layouts of the transposed product."""
        renamed = {"a": "b", "b": "a", "c": "c", "d": "d"}
        return Layouts(
            {renamed[name]: x.swapaxes(1, 2) for name, x in self.bit_offsets.items()},
            {renamed[name]: x for name, x in self.steps.items()},
            self.packed[::-1],
        )


def block_plan(product: Product, model: Model, layouts: Layouts, order: Array) -> BlockPlan | None:  # noqa: PLR0915
    """Plan a product; None if it cannot be computed in blocks. order: the k of the bit offsets."""
    engine = ENGINE_OF_ACCUMULATOR.get(model.accumulator, blocks.FUSED)
    if model.engine == "grouped":
        engine = blocks.GROUPED
    if product.a == "b1":
        engine = blocks.BITS
    settings = _settings(product, model, max(layouts.packed))
    if settings is None or product.m % 8 or product.n % 8:
        return None
    swapped = product.m % 16 != 0 and product.n % 16 == 0
    if swapped:
        layouts = layouts.swapped()
    m, n = (product.n, product.m) if swapped else (product.m, product.n)
    packed, bit_offsets = max(layouts.packed), layouts.bit_offsets
    each = min(NUMBERS.get(engine, 1), packed)  # elements of a number
    if each > 1 and packed != min(layouts.packed):
        return None
    length = int(settings[code.LENGTH])
    keys = [(i // length, k // (4 * packed), k % packed, k) for i, k in enumerate(order.tolist())]
    chosen = [i for i in range(len(keys)) if keys[i][2] < packed // each]
    by_word = sorted(chosen, key=keys.__getitem__)
    columns = np.arange(n).reshape(-1, 4, 2).swapaxes(1, 2).ravel()
    rows = np.arange(max(m // 4, code.BAND)) % (m // 4)  # blocks of rows
    tiles, depth = len(bit_offsets["a"]), len(by_word)
    if depth % 4:
        return None
    a = bit_offsets["a"][:, :, by_word].reshape(tiles, -1, 4, depth // 4, 4)[:, rows]
    b = bit_offsets["b"][:, by_word].reshape(tiles, depth // 4, 4, n // 8, code.PAIR, 4)
    vectors = {  # (tiles, sets, blocks, 16)
        "a": a.reshape(tiles, -1, code.BAND, 4, depth // 4, 4).transpose(0, 1, 4, 2, 3, 5),
        "b": b.transpose(0, 3, 1, 4, 5, 2),
    }
    half = m == 8 and product.c not in HALVES and product.d not in HALVES
    for name in "cd":
        cut = bit_offsets[name][:, :, columns].reshape(tiles, -1, 4, n // 4, 4)
        paired = _paired(cut.transpose(0, 1, 3, 2, 4).reshape(-1, 2, 16))
        if paired is None:
            return None
        if name == "d":
            settings[code.PAIRED_D] = paired
        if half:  # (tiles, blocks of rows, 4 rows, eights, parity, 4 columns)
            cut = cut.reshape(tiles, 2, 4, n // 8, 2, 4)
            vectors[name] = cut.transpose(0, 3, 4, 1, 2, 5)
            continue
        cut = cut[:, rows].reshape(tiles, -1, code.BAND, 4, n // 4, 4)
        vectors[name] = cut.transpose(0, 1, 4, 2, 3, 5)
    flat = {
        name: np.ascontiguousarray(
            v.reshape(tiles, -1, code.PAIR if name == "b" else code.BAND, 16), np.int32
        )
        for name, v in vectors.items()
    }
    operand_names = dict(zip("abcd", "bacd" if swapped else "abcd", strict=True))
    ups = {name: _ups(product, operand_names[name], engine, v) for name, v in flat.items()}
    of_k = ups["a"].reshape(tiles, -1, 16, 4)
    if (of_k != of_k[:, :, :1]).any():
        return None
    settings[[code.BANDS, code.DEPTH]] = len(rows) // code.BAND, depth
    settings[code.COLUMNS] = n // 8 if half else n // 4
    return _plan(product, model, engine, half, layouts, settings, flat, ups, swapped)


def _plan(
    product: Product,
    model: Model,
    engine: int,
    half: bool,
    layouts: Layouts,
    settings: Array,
    flat: dict[str, Array],
    ups: dict[str, Array],
    swapped: bool,
) -> BlockPlan:
    bands, quarters = int(settings[code.BANDS]), int(settings[code.DEPTH]) // 4
    size = 8 if engine == blocks.CHAIN else 4
    kinds = {name: _kinds(v, name in "ab") for name, v in flat.items()}
    operand_names, alone = "bac" if swapped else "abc", max(layouts.packed) == 1
    forms = {
        name: _form(product, model, x, engine, alone) for name, x in zip("abc", operand_names, strict=True)
    }
    counts = {name: v.shape[1] * v.shape[2] for name, v in flat.items()}  # blocks
    call = blocks.Call(len(flat["a"]), bands, counts["b"] // code.PAIR // quarters, quarters)
    sizes = {"a": 64 * quarters * bands, "b": 16 * counts["b"], "c": 0, "d": 16 * counts["d"]}
    for name, vectors in flat.items():
        operand = getattr(call, name)
        operand.step, operand.size = size * layouts.steps[name], size * sizes[name]
        operand.blocks, operand.ahead = counts[name], min(counts[name], MAX_AHEAD)
        operand.bit_offsets, operand.ups = _address(vectors), _address(ups[name])
        operand.kinds = _address(kinds[name])
        operand.form = _address(forms[name]) if name in forms else 0
    call.settings = _address(settings)
    call.scales = product.m * product.stored if product.sparse else 0
    alive = (*flat.values(), *ups.values(), *kinds.values(), *forms.values(), settings)
    return BlockPlan(blocks.LOOPS[engine][half], call, alive, swapped)


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def _paired(pairs: Array) -> bool | None:
    """Whether two blocks of C or D share words as halves; None if they share them otherwise."""
    low, high = pairs[:, 0], pairs[:, 1]
    if not (pairs & 31).any():
        return False
    return True if not (low & 31).any() and (high == low + 16).all() else None


def _ups(product: Product, name: str, engine: int, bit_offsets: Array) -> Array:
    """Numbers of bits by which elements are shifted up to the highest bit of the register, or of its
    half if a number is two integers."""
    low, bits = bit_offsets & 31, FORMATS[getattr(product, name)].bits
    if name in "ab" and engine in PAIRED:
        up = 16 - bits - low
        return np.ascontiguousarray(up | up << 16, np.int32)
    return np.ascontiguousarray(np.maximum(32 - bits - low, 0), np.int32)


def _kinds(vectors: Array, repeated: bool) -> Array:
    """Layouts of the words of sets (tiles, sets, blocks, 16). repeated: whether AGAIN is allowed."""
    words = vectors >> 5
    fours = words.reshape(*words.shape[:3], 4, 4)
    four, kinds = np.arange(4), np.full(vectors.shape[:2], code.ANYWHERE, np.int32)
    kinds[(fours - fours[..., :1, :] == four[:, None]).all((2, 3, 4))] = code.ACROSS
    kinds[(fours - fours[..., :1] == four).all((2, 3, 4))] = code.ROWS
    kinds[(words - words[..., :1] == np.arange(16)).all((2, 3))] = code.RUN
    if repeated:
        kinds[:, 1:][(words[:, 1:] == words[:, :-1]).all((2, 3))] = code.AGAIN
    return kinds


def _settings(product: Product, model: Model, packed: int) -> Array | None:
    """Settings of a product; None if blocks cannot compute it. packed: elements in a word."""
    s = np.zeros(code.SETTINGS, np.int64)
    if product.a == "f64":
        s[code.LENGTH] = 1
        return s if model.engine == "double" and product.rounding == "rn" else None
    s[[code.SINGLE_C, code.SINGLE_D]] = product.c == "f32", product.d == "f32"
    if model.engine == "grouped":
        return _of_groups(s, product, model, packed)
    s[code.SCALED] = product.scale_kind is not None
    if model.engine != "fused" or (s[code.SCALED] and product.scale_vec != 1):
        return None
    if model.accumulator == "s32":
        s[[code.LENGTH, code.SATURATE]] = product.k, product.satfinite
        s[code.XOR] = product.operation == "xor"
        return s
    # int32 holds C and PART products. The code checks larger sums.
    room = (2.0**31 - sums.ROOM) / 2.0**model.fraction - 2
    bound = room / _significand(product.a) / _significand(product.b)
    parts = (model.length >> i for i in range(3))
    part = next((x for x in parts if (x // 2 if product.sparse else x) < bound), 0)
    if product.sparse and part % (4 * packed):  # A stores half of the elements
        return None
    half = model.accumulator == "f16"
    if (
        part == 0
        or part % 4
        or model.length % part
        or product.k % model.length
        or not 0 <= model.fraction < 30
        or model.floor > sums.MAX_EXPONENT
        or model.nearest != half
        or (model.kept != 10 if half else model.kept > 23)
    ):
        return None
    accumulator = FORMATS[model.accumulator]
    s[[code.LENGTH, code.PART]] = model.length, part
    s[[code.STEPS, code.PARTS]] = product.k // model.length, model.length // part
    s[[code.ALIGNED, code.BOTTOM]] = model.fraction + sums.BIAS, max(model.floor, sums.MIN_EXPONENT)
    s[[code.ALIGNED, code.BOTTOM]] += PRODUCT_BIAS
    s[code.MIN_C] = accumulator.least + sums.BIAS
    s[[code.KEPT, code.NEAREST, code.LATE]] = model.kept, model.nearest, model.late
    s[code.CONVERT] = product.d == "f16" and not half
    return s


def _of_groups(s: Array, product: Product, model: Model, packed: int) -> Array | None:
    """`_settings` of 4-bit elements in groups. PART: numbers of a group; PARTS: scales along K."""
    s[code.STEPS], part = product.k // model.length, model.length // min(packed, 2)
    if s[code.STEPS] > MAX_GROUPS or part % 4 or product.k % model.length:
        return None
    if model.fraction > MAX_FRACTION or model.kept != 23 or model.floor > sums.MAX_EXPONENT:
        return None
    s[[code.LENGTH, code.PART, code.PARTS]] = model.length, part, product.scale_vec
    s[[code.ALIGNED, code.BOTTOM]] = model.fraction, model.floor
    s[code.FINE_SCALES] = product.scale_type == "ue4m3"
    return s


def _significand(name: str) -> float:
    return 2 - 2.0 ** -FORMATS[name].fraction


def _form(product: Product, model: Model, name: str, engine: int, alone: bool) -> Array:
    """Settings of `Blocks.decode` for an operand. alone: whether each word holds one element."""
    form = FORMATS[getattr(product, name)]
    f = np.zeros(code.FORMAT, np.int64)
    if engine in NUMBERS and name != "c":
        f[code.MASK] = (1 << form.bits) - 1 if alone else -1
    if engine == blocks.INTEGER and name != "c":
        f[code.DOWN] = (16 - form.bits) * 0x10001
        f[code.SIGNED] = (1 << form.bits - 1) * 0x10001 if form.signed else 0
    elif engine == blocks.FUSED and form.bits < 32:
        least = model.least if model.least is not None and name != "c" else form.least
        if name == "c":
            least = FORMATS[model.accumulator].least
        f[code.MASK] = 0x7FFFFFFF & -(1 << 32 - form.bits)
        f[[code.DOWN, code.RAISED]] = 8 - form.width, (sums.BIAS + 1 - (1 << form.width - 1)) << 23
        f[[code.MIN_EXPONENT, code.FIRST_SPECIAL]] = least + sums.BIAS, _first_special(form)
    return f


def _first_special(form: Format) -> int:
    """Smallest code of an infinity or NaN, without its sign, in the highest bits."""
    top = (1 << form.width + form.fraction) - 1
    first = {"ieee": top + 1 - (1 << form.fraction), "nan": top}.get(form.special)
    return NO_SPECIAL if first is None else first << 32 - form.bits
