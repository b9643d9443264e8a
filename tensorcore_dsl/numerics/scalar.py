# mypy: disable-error-code="no-any-return"
"""PTX floating-point instructions of one thread, on arrays of register bits (9.7.3 to 9.7.6).

`arith`, `compare` and `testp` take the parts of the mnemonic: ``arith("fma", "f32", a, b, c,
rounding="rz", ftz=True)`` is ``fma.rz.ftz.f32``. Results are bit-exact.

NaN results, as measured on sm_90: 0x7FFFFFFF for f32, 0x7FFF for f16 and bf16, whatever the input.
f64 keeps the sign and payload of the first NaN among b, c, a and sets the quiet bit; an invalid
operation gives 0xFFF8000000000000. min and max of two NaNs give the canonical NaN (f64: b,
quieted); copysign copies bits. Flushing (.ftz) applies to the rounded result.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial, reduce
from typing import Any, NamedTuple

import numpy as np

from . import approximate
from .convert import convert
from .elementwise import compile_elementwise
from .ieee import ARITY, Ufunc, ieee, signature
from .number_formats import FLOATS, INTS, Bits, FloatFormat, find, packed, register_dtype
from .registers import flush, halves, is_nan, register_constants, registers, relu, saturate
from .softfloat import as_float

# --- signs and extremes -----------------------------------------------------------------------


@cache
def _extreme(type: str, largest: bool, propagate: bool) -> Ufunc:
    """min or max of two; with ``propagate`` (.NaN), one NaN suffices for a NaN result."""
    f = FLOATS[type]
    sign, magnitude, inf = (np.uint64(x) for x in (1 << f.sign_shift, f.magnitude, f.inf or 0))
    nan, quiet = np.uint64(f.nan), np.uint64(1 << (f.mantissa - 1))
    keep = type == "f64"

    def extreme(x: Any, y: Any) -> Any:
        a, b = np.uint64(x), np.uint64(y)
        a_nan, b_nan = a & magnitude > inf, b & magnitude > inf
        if (a_nan and b_nan) or (propagate and (a_nan or b_nan)):
            return b | quiet if keep else nan
        a_key = sign - (a & magnitude) if a & sign else sign + a + np.uint64(1)
        b_key = sign - (b & magnitude) if b & sign else sign + b + np.uint64(1)
        return a if b_nan or (not a_nan and (a_key > b_key) == largest) else b

    return compile_elementwise(extreme, signature(type, 2))


@cache
def _sign(type: str, op: str) -> Ufunc:
    """neg or abs; NaN gives the canonical NaN, f64 keeps its sign and payload."""
    f = FLOATS[type]
    sign, magnitude, inf = (np.uint64(x) for x in (1 << f.sign_shift, f.magnitude, f.inf or 0))
    nan, quiet, keep, negate = np.uint64(f.nan), np.uint64(1 << 51), type == "f64", op == "neg"

    def change(x: Any) -> Any:
        a = np.uint64(x)
        d = a ^ sign if negate else a & magnitude
        return (a | quiet if keep else nan) if a & magnitude > inf else d

    return compile_elementwise(change, signature(type, 1))


def _copysign(type: str, a: Bits, b: Bits) -> Bits:
    k = register_constants(type)
    return (a & k["sign"]) | (b & k["magnitude"])


def _min_max(op: str, type: str, *x: Bits, nan: bool, abs: bool, xorsign: bool) -> Bits:
    """min or max of two or three operands (9.7.3.11, 9.7.4.7)."""
    k = register_constants(type)
    if not 2 <= len(x) <= 3 or (xorsign and (len(x) == 3 or not abs)):
        raise ValueError(f"{op} takes two operands, or three without .xorsign, which needs .abs")
    sign = (x[0] ^ x[1]) & k["sign"]
    if abs:
        x = tuple(v & k["magnitude"] for v in x)
    d: Bits = _extreme(type, op == "max", nan)(x[0], x[1])
    if len(x) == 3:
        d = _extreme(type, op == "max", nan)(d, x[2])
    return np.where(is_nan(d, type), d, (d & k["magnitude"]) | sign) if xorsign else d


# --- the instructions -------------------------------------------------------------------------


class Modifiers(NamedTuple):
    """The modifiers of a mnemonic that change the result, as flags."""

    ftz: bool = False
    sat: bool = False
    relu: bool = False
    nan: bool = False
    abs: bool = False
    xorsign: bool = False
    oob: bool = False


Core = tuple[int, Callable[..., Any]]  # the number of operands (0: two or three) and the function

_SIGNS: dict[str, Core] = {
    "neg": (1, lambda type, a: _sign(type, "neg")(a)),
    "abs": (1, lambda type, a: _sign(type, "abs")(a)),
    "copysign": (2, _copysign),
}
_EXTREMES = ("min", "max")
OOB_NAN = 0x7FF7  # NaN of f16 and of bf16, measured on sm_90: the manual has no number
_MIXED = {"add": 1, "sub": 1, "fma": 2}
TYPES: dict[str, FloatFormat] = {name: FLOATS[name] for name in ("f16", "bf16", "f32", "f64")}
_ALLOWED = {"ftz": "f16 bf16 f32 f64", "sat": "f16 f32", "relu": "f16 bf16", "oob": "f16 bf16"}


def arith(op: str, type: str, *operands: Any, rounding: str | None = None, **modifiers: bool) -> Bits:
    """A floating-point instruction; ``op`` and ``type`` are written as in PTX.

    op: add sub mul fma mad div rcp sqrt (rounded rn rz rm rp; div, rcp, sqrt also approx, div also
    full), neg abs min max copysign, and rsqrt ex2 lg2 sin cos tanh (approx). Parts of ``op`` after
    a dot are modifiers: "div.approx", "min.xorsign.abs", "testp.finite". type: f16 bf16 f32 f64,
    f16x2 bf16x2 f32x2, and f32.f16, f32.bf16 for add sub fma. modifiers: those of `Modifiers`.
    """
    arity, dtypes, run = _instruction(op, type, rounding, Modifiers(**modifiers))
    if not (len(operands) == arity or (arity == 0 and len(operands) in (2, 3))):
        raise ValueError(f"{op}.{type} takes {arity or '2 or 3'} operands, not {len(operands)}")
    result: Bits = run(*map(registers, operands, dtypes))
    return result


@cache
def _instruction(
    op: str, type: str, rounding: str | None, modifiers: Modifiers
) -> tuple[int, tuple[np.dtype[Any], ...], Callable[..., Bits]]:
    """Number of operands, their register dtypes, and the function of the instruction."""
    op, *words = op.split(".")
    if op == "testp":
        test = words[0] if words else ""
        return 1, (register_dtype(find(TYPES, type, "type").bits),), lambda a: testp(test, type, a)
    element, count = packed(type)
    main, _, source = element.partition(".")
    f = find(TYPES, main, "type of floating-point arithmetic")
    for word in words:
        if word in ("approx", "full"):
            rounding = word
        elif word in ("abs", "xorsign"):
            modifiers = modifiers._replace(**{word: True})
        else:
            raise ValueError(f"{op} has no modifier .{word}")
    arity, run = _modified(op, main, rounding, modifiers)
    dtypes = [register_dtype(f.bits)] * 3
    if source:
        dtypes, run = _mixed(op, main, source, dtypes, run)
    if count == 2:
        whole = register_dtype(2 * f.bits)
        return arity, (whole,) * 3, lambda *x: halves(run, f.bits, *x)
    return arity, tuple(dtypes), run


def _mixed(
    op: str, type: str, source: str, dtypes: list[np.dtype[Any]], run: Callable[..., Bits]
) -> tuple[list[np.dtype[Any]], Callable[..., Bits]]:
    """Convert the narrow operands of add.f32.f16 and similar instructions first (9.7.5)."""
    count = find(_MIXED, op, "mixed precision operation")
    narrow = register_dtype(find(TYPES, source, "source type").bits)

    def widened(*x: Bits) -> Bits:
        return run(*(convert(v, source, type) for v in x[:count]), *x[count:])

    return [narrow] * count + dtypes[count:], widened


def _modified(op: str, type: str, rounding: str | None, m: Modifiers) -> Core:
    """The operation with its modifiers applied before and after."""
    for name, types in _ALLOWED.items():
        if getattr(m, name) and type not in types.split():
            raise ValueError(f".{name} is for {types}, not for {op}.{type}")
    if (m.nan or m.abs or m.xorsign) and op not in _EXTREMES:
        raise ValueError(f".NaN, .abs and .xorsign are for {' '.join(_EXTREMES)}, not {op}")
    arity, core, flushes = _core(op, type, rounding, m)
    if not (m.sat or m.relu or m.oob or (m.ftz and not flushes)):
        return arity, core

    def run(*operands: Bits) -> Bits:
        x = operands
        if m.ftz and not flushes:
            x = tuple(flush(v, type) for v in x)
        d = core(*x)
        if m.ftz and not flushes:
            d = flush(d, type)
        if m.sat:
            d = saturate(d, type)
        if m.relu:
            d = relu(d, type)
        return _out_of_bounds(d, type, *operands) if m.oob else d

    return arity, run


def _core(op: str, type: str, rounding: str | None, m: Modifiers) -> tuple[int, Callable[..., Any], bool]:
    """Number of operands, function, and whether the function handles .ftz itself."""
    if op in _EXTREMES:
        return 0, partial(_min_max, op, type, nan=m.nan, abs=m.abs, xorsign=m.xorsign), False
    if op in _SIGNS:
        arity, function = _SIGNS[op]
        return arity, partial(function, type), False
    if rounding in ("approx", "full") or op in approximate.ONLY:
        arity, function = approximate.instruction(op, type, rounding == "full", m.ftz)
        return arity, function, True
    rounding = rounding or "rn"
    if op == "rcp":
        one = np.asarray(register_constants(type)["one"])
        return 1, partial(ieee("div", type, rounding, m.ftz), one), True
    op = "fma" if op == "mad" else op
    return ARITY.get(op, 0), ieee(op, type, rounding, m.ftz), True


def _out_of_bounds(d: Bits, type: str, *operands: Bits) -> Bits:
    """.oob: +0.0 where a or b is the NaN (of either sign) that marks "out of bounds"."""
    k = register_constants(type)
    hit = reduce(np.logical_or, (v & k["magnitude"] == OOB_NAN for v in operands[:2]))
    return np.where(hit, register_dtype(16).type(0), d)


# --- comparison -------------------------------------------------------------------------------

LESS, EQUAL, GREATER, UNORDERED = 1, 2, 4, 8
_ORDERED = {"eq": 2, "ne": 5, "lt": 1, "le": 3, "gt": 4, "ge": 6}
_FLOAT_TESTS = {
    **_ORDERED,
    **{f"{op}u": mask | UNORDERED for op, mask in _ORDERED.items()},
    "num": 7,
    "nan": UNORDERED,
}
_INT_TESTS: dict[str, Ufunc] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}
_KIND_TESTS = {"b": "eq ne", "s": "eq ne lt le gt ge", "u": "eq ne lt le gt ge lo ls hi hs"}


@cache
def _order(type: str) -> Ufunc:
    """The relation of a to b as one bit: LESS, EQUAL, GREATER or UNORDERED."""
    f = FLOATS[type]
    sign, magnitude, inf = 0x8000, 0x7FFF, 0x7C00 if type == "f16" else 0x7F80

    def order16(x: Any, y: Any) -> Any:
        a, b = np.int64(x), np.int64(y)
        if a & magnitude > inf or b & magnitude > inf:
            return UNORDERED
        a = -(a & magnitude) if a & sign else a
        b = -(b & magnitude) if b & sign else b
        return LESS if a < b else GREATER if a > b else EQUAL

    def order(x: Any, y: Any) -> Any:
        a, b = as_float(x), as_float(y)
        return LESS if a < b else GREATER if a > b else EQUAL if a == b else UNORDERED

    kernel = order16 if f.bits == 16 else order
    name = register_dtype(f.bits).name
    return compile_elementwise(kernel, f"uint8({name},{name})")


def compare(op: str, type: str, a: Any, b: Any, ftz: bool = False) -> Any:
    """The comparison of set and setp (9.3.1): bool; for f16x2 and bf16x2 a pair (low, high)."""
    element, count = packed(type)
    if count == 2:
        words = [registers(v, np.dtype(np.uint32)) for v in (a, b)]
        split = [(v.astype(np.uint16), (v >> np.uint32(16)).astype(np.uint16)) for v in words]
        return tuple(compare(op, element, x, y, ftz) for x, y in zip(*split, strict=True))
    if type in TYPES:
        mask = np.uint8(find(_FLOAT_TESTS, op, f"comparison of {type}"))
        x, y = (registers(v, register_dtype(FLOATS[type].bits)) for v in (a, b))
        if ftz:
            x, y = flush(x, type), flush(y, type)
        return np.not_equal(np.bitwise_and(_order(type)(x, y), mask), 0)
    if type == "pred":
        return find({"eq": np.equal, "ne": np.not_equal}, op, "comparison of pred")(a, b)
    width = find(INTS, type, "type")
    allowed = _KIND_TESTS[type[0]].split()
    test = find({name: _INT_TESTS[name] for name in allowed}, op, f"comparison of {type}")
    signed = np.dtype(f"i{register_dtype(width.bits).itemsize}")
    x, y = (registers(v, register_dtype(width.bits)) for v in (a, b))
    return test(x.view(signed), y.view(signed)) if width.signed else test(x, y)


def testp(op: str, type: str, a: Any) -> Bits:
    """testp.op.type: finite infinite number notanumber normal subnormal; zero counts as normal."""
    k = register_constants(find({t: t for t in ("f32", "f64")}, type, "type of testp"))
    m = registers(a, register_dtype(FLOATS[type].bits)) & k["magnitude"]
    tests: dict[str, Callable[[], Bits]] = {
        "finite": lambda: m < k["inf"],
        "infinite": lambda: m == k["inf"],
        "number": lambda: m <= k["inf"],
        "notanumber": lambda: m > k["inf"],
        "normal": lambda: (m == 0) | ((m >= k["least"]) & (m < k["inf"])),
        "subnormal": lambda: (m != 0) & (m < k["least"]),
    }
    return find(tests, op, "test of testp")()
