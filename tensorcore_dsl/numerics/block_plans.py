"""Preparation of the products in blocks of D: places of the lanes of all vectors, and constants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from . import block_code as code
from . import block_sums as sums
from . import blocks
from .architectures import Model, Product
from .formats import FORMATS, Format, bit_table

Array = npt.NDArray[Any]
MOST_AHEAD = 64  # vectors of C that are fetched into the cache ahead
NONE = 1 << 30  # no code of a format without infinities and NaN


@dataclass(frozen=True, eq=False)
class BlockPlan:
    """What `blocks` needs to compute a product; `kept` keeps the memory that `call` points to."""

    engine: int  # an index into `blocks.LOOPS`
    call: Array
    kept: tuple[Array, ...]

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Bytes of the decoded values of one A and one B, and of one D."""
        return tuple(self.call[[blocks.SIZE_A, blocks.SIZE_B, blocks.SIZE_D]].tolist())


def block_plan(
    product: Product, model: Model, places: dict[str, Array], steps: dict[str, int], order: Array,
    packed: int,
) -> BlockPlan | None:  # fmt: skip
    """The plan, or None if the product cannot be computed in blocks.

    places: (tiles, m, k), (tiles, k, n), (tiles, m, n) of A, B, C and D, 32 * word + shift, with k
    in the order of the hardware; steps: distance of two warps in words; packed: elements in a word.
    """
    engines = {"s32": blocks.EXACT, "f64": blocks.CHAIN}
    engine = engines.get(model.accumulator, blocks.FUSED)
    size = 8 if engine == blocks.CHAIN else 4
    settings = _settings(product, model)
    if settings is None or product.m % 8 or product.n % 8 or product.k % 4:
        return None
    length = int(settings[code.LENGTH])
    keys = [(i // length, k // (4 * packed), k % packed, k) for i, k in enumerate(order.tolist())]
    by_word = sorted(range(len(keys)), key=keys.__getitem__)
    columns = np.arange(product.n).reshape(-1, 4, 2).swapaxes(1, 2).ravel()
    tiles, depth = len(places["a"]), len(by_word)
    a = places["a"][:, :, by_word].reshape(tiles, -1, 4, depth // 4, 4)
    b = places["b"][:, by_word][:, :, columns].reshape(tiles, depth // 4, 4, -1, 4)
    vectors = {"a": a.transpose(0, 1, 3, 4, 2), "b": b.transpose(0, 3, 1, 2, 4)}
    for name in "cd":
        cut = places[name][:, :, columns].reshape(tiles, -1, 4, product.n // 4, 4)
        vectors[name] = cut.transpose(0, 1, 3, 2, 4)
    for name, index in (("c", code.PAIRED_C), ("d", code.PAIRED_D)):
        paired = _paired(vectors[name].reshape(-1, 2, 16))
        if paired is None:
            return None
        settings[index] = paired
    flat = {
        name: np.ascontiguousarray(v.reshape(tiles, -1, 16), np.int32)
        for name, v in vectors.items()
    }
    kinds = {name: _kinds(v) for name, v in flat.items()}
    forms = {name: _form(product, model, name, engine) for name in "abc"}
    call = np.zeros(blocks.DESCRIPTION, np.int64)
    call[[blocks.TILES, blocks.VECTORS_A]] = tiles, flat["a"].shape[1]
    call[[blocks.VECTORS_B, blocks.BLOCKS]] = flat["b"].shape[1], flat["d"].shape[1]
    call[[blocks.SIZE_A, blocks.SIZE_B]] = size * 64 * flat["a"].shape[1], size * flat["b"][0].size
    call[[blocks.QUARTERS, blocks.SIZE_D]] = product.k // 4, size * flat["d"][0].size
    ahead = [min(flat[name].shape[1], MOST_AHEAD) for name in "dab"]
    call[blocks.AHEAD : blocks.AHEAD_B + 1] = ahead
    call[blocks.STEP_A : blocks.STEP_D + 1] = [size * steps[name] for name in "abcd"]
    call[blocks.PLACES_A : blocks.PLACES_D + 1] = [_address(flat[name]) for name in "abcd"]
    call[blocks.KINDS_A : blocks.KINDS_D + 1] = [_address(kinds[name]) for name in "abcd"]
    call[blocks.FORM_A : blocks.FORM_C + 1] = [_address(forms[name]) for name in "abc"]
    call[blocks.SETTINGS] = _address(settings)
    return BlockPlan(engine, call, (*flat.values(), *kinds.values(), *forms.values(), settings))


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def _paired(pairs: Array) -> bool | None:
    """Do two blocks of C or D share words, as halves? None if they do so in another way."""
    low, high = pairs[:, 0], pairs[:, 1]
    if not (pairs & 31).any():
        return False
    return True if not (low & 31).any() and (high == low + 16).all() else None


def _kinds(vectors: Array) -> Array:
    """How the words of each vector (tiles, vectors, 16) lie in memory."""
    words = vectors >> 5
    kinds = np.full(vectors.shape[:2], code.ANYWHERE, np.int32)
    for number, way in enumerate(code.WAYS):
        fits = (words - words[..., :1] == np.array(code.distances(*way))).all(-1)
        kinds[fits] = 2 + number
    again = (words[:, 1:] == words[:, :-1]).all(-1)
    kinds[:, 1:][again] = code.AGAIN
    return kinds


def _settings(product: Product, model: Model) -> Array | None:
    s = np.zeros(code.SETTINGS, np.int64)
    s[[code.ROWS, code.COLUMNS, code.DEPTH]] = product.m // 4, product.n // 4, product.k
    if product.a == "f64":
        s[code.LENGTH] = 1
        return s if product.rounding == "rn" and model.engine == "double" else None
    if product.sparse or product.scale_kind or model.engine != "fused":
        return None
    if model.accumulator == "s32":
        largest = [np.abs(_numbers(product, i)).max() for i in range(2)]
        if largest[0] * largest[1] * product.k + product.k > 1 << 24:
            return None
        s[[code.LENGTH, code.SATURATE]] = product.k, product.satfinite
        s[code.ADDED] = product.k // 2 if product.operation == "xor" else 0
        return s
    # int32 holds C and PART products; larger sums are checked.
    room = (2.0**31 - sums.ROOM) / 2.0**model.fraction - 2
    bound = room / _significand(product.a) / _significand(product.b)
    part = next((model.length >> i for i in range(3) if model.length >> i < bound), 0)
    half = model.accumulator == "f16"
    if (
        part == 0 or part % 4 or model.length % part or product.k % model.length
        or not 0 <= model.fraction < 30 or model.floor > sums.MOST
        or model.nearest != half or (model.kept != 10 if half else model.kept > 23)
    ):  # fmt: skip
        return None
    accumulator = FORMATS[model.accumulator]
    s[[code.LENGTH, code.PART, code.ALIGNED]] = model.length, part, model.fraction
    s[[code.BOTTOM, code.LEAST_C]] = max(model.floor, sums.LEAST), accumulator.least
    s[[code.KEPT, code.NEAREST, code.LATE]] = model.kept, model.nearest, model.late
    s[[code.SINGLE_C, code.SINGLE_D]] = product.c == "f32", product.d == "f32"
    s[code.CONVERT] = product.d == "f16" and not half
    return s


def _significand(name: str) -> float:
    return 2 - 2.0 ** -FORMATS[name].fraction


def _numbers(product: Product, operand: int) -> Array:
    """The numbers that the codes of an integer format stand for."""
    form = FORMATS[(product.a, product.b)[operand]]
    if product.a == "b1":
        return bit_table(product.operation, operand)[0, :2]
    return np.array([form.value(c) for c in range(1 << form.bits)])


def _form(product: Product, model: Model, name: str, engine: int) -> Array:
    """A format as the settings of `Blocks.decode` or `Blocks.integers`."""
    form = FORMATS[getattr(product, name)]
    f = np.zeros(code.FORMAT, np.int64)
    f[code.BITS] = form.bits
    if engine == blocks.EXACT and name != "c":
        zero, one = _numbers(product, "ab".index(name))[:2]
        f[[code.SIGNED, code.SCALE, code.OFFSET]] = form.signed, 2 * (one - zero), 2 * zero
    elif engine == blocks.FUSED and form.bits < 32:
        least = model.least if model.least is not None and name != "c" else form.least
        if name == "c":
            least = FORMATS[model.accumulator].least
        f[[code.FRACTION, code.SHIFT_UP]] = form.fraction, 23 - form.fraction
        f[[code.FACTOR, code.LEAST_EXPONENT]] = 128 - (1 << form.width - 1), least
        f[code.FIRST_SPECIAL] = _first_special(form)
    return f


def _first_special(form: Format) -> int:
    """The smallest code, without its sign, of an infinity or NaN."""
    top = (1 << form.width + form.fraction) - 1
    return {"ieee": top + 1 - (1 << form.fraction), "nan": top, "finite": NONE}[form.special]
