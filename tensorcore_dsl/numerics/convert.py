# mypy: disable-error-code="no-any-return"
"""PTX cvt on arrays of register bits (9.7.9.21, 9.7.9.22).

`convert` has one source, scalar or packed: ``convert(a, "f32", "bf16", "rn", relu=True)`` is
``cvt.rn.relu.bf16.f32``, ``convert(a, "e4m3x2", "f16x2", "rn")`` unpacks. `convert_several`
packs two or four f32; `convert_pack` is cvt.pack. All results are bit-exact.

NaN, as measured on sm_90: f64 to a narrower type and any type to f64 keep the sign and the upper
payload bits and set the quiet bit; bf16 to f32 and a conversion to the same type copy the bits; all
other conversions give the canonical NaN (0x7FFFFFFF, 0x7FFF, 0x7F). An 8-bit result is
sign-extended to its 16-bit register.

Not measured, for lack of hardware: fp6, fp4, ue8m0, s2f6, .rs and additions of sm_100. They follow
the manual; ue8m0 converts the magnitude of its input, as NVIDIA's headers do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from .encode import (
    FTZ,
    KEEP_NAN,
    NO_RANDOM,
    RELU,
    SAT,
    SATFINITE,
    encode_floats,
    encode_integers,
    encode_integral,
    nearest,
    parameters,
    run,
    to_f64,
    to_integers,
)
from .number_formats import FLOATS, INTS, Bits, IntFormat, find, packed, register_dtype, values
from .registers import flush, is_nan, registers
from .softfloat import INTEGRAL, ROUNDINGS
from .symbols import as_array, look_up

Converter = Callable[..., Bits]

_RANDOM_BITS = {"f16": 13, "bf16": 16, "e4m3": 16, "e5m2": 16, "e2m3": 16, "e3m2": 16, "e2m1": 16}


def _flush_input(bits: Bits) -> Bits:
    """.ftz of an f32 source: subnormal numbers become zero, NaN the canonical NaN."""
    return np.where(is_nan(bits, "f32"), np.uint32(FLOATS["f32"].nan), flush(bits, "f32"))


def _flags(sat: bool, satfinite: bool, relu: bool, keep: bool, ftz: bool) -> int:
    chosen = ((SAT, sat), (SATFINITE, satfinite), (RELU, relu), (KEEP_NAN, keep), (FTZ, ftz))
    return sum(bit for bit, on in chosen if on)


def _keeps_nan(source: str, to: str) -> bool:
    """Whether the conversion preserves the sign and payload of a NaN."""
    return to == "f64" or (source == "f64" and to in ("f32", "f16", "bf16"))


def _float_to_float(
    source: str, to: str, rounding: str | None, flags: tuple[bool, bool, bool, bool]
) -> Converter:
    sat, satfinite, relu, ftz = flags
    f = FLOATS[to]
    if (rounding or "rn") not in ROUNDINGS and (rounding not in INTEGRAL or source != to):
        raise ValueError(f"cvt.{to}.{source} rounds {' '.join(ROUNDINGS)}, not {rounding!r}")
    if to == "ue8m0":
        return lambda bits, random: _to_ue8m0(to_f64(bits, source), rounding or "rz", satfinite)
    flush_in = ftz and source == "f32" and to != "f16"
    if rounding is None and source == to and f.bits > 16 and not (sat or relu or satfinite):
        return lambda bits, random: _flush_input(bits) if flush_in else bits
    if to == "tf32" and rounding == "rna":
        return lambda bits, random: _to_tf32_away(bits, satfinite)
    if (source, to) == ("bf16", "f32") and not (sat or ftz):
        return lambda bits, random: bits.astype(np.uint32) << np.uint32(16)
    if source == "f32" and f.bits <= 16 and rounding == "rn" and not (sat or ftz):
        top = f.max_finite if satfinite or f.inf is None else f.inf
        return lambda bits, random: as_array(nearest(f, top, relu)(bits))
    chosen = _flags(sat, satfinite, relu, _keeps_nan(source, to), ftz and to == "f32")
    dtype = register_dtype(f.bits)
    if rounding in INTEGRAL:
        p = parameters(f, ROUNDINGS["rz"], INTEGRAL[rounding], chosen)
    else:
        p = parameters(f, ROUNDINGS[rounding or "rn"], _RANDOM_BITS.get(to, 0), chosen)

    def encode(bits: Bits, random: Any) -> Bits:
        wide = to_f64(_flush_input(bits) if flush_in else bits, source)
        if rounding in INTEGRAL:
            return run(encode_integral, wide, p).astype(dtype)
        return run(encode_floats, wide, p, random).astype(dtype)

    return encode


def _to_tf32_away(bits: Bits, satfinite: bool) -> Bits:
    """cvt.rna.tf32.f32, which truncates a NaN like a number (.satfinite: one less)."""
    step = np.uint32(1 << FLOATS["tf32"].pad)
    inf = np.uint32(FLOATS["f32"].inf or 0)
    magnitude = bits & np.uint32(FLOATS["f32"].magnitude)
    d = np.where(magnitude < inf, magnitude + (step >> np.uint32(1)), magnitude)
    d = d & ~(step - np.uint32(1))
    if satfinite:
        d = np.where(d >= inf, d - step, d)
    return d | (bits ^ magnitude)


def _to_ue8m0(wide: Bits, rounding: str, satfinite: bool) -> Bits:
    """Biased exponent of the magnitude; 0 up to 2**-127, NaN or the maximum on overflow."""
    if rounding not in ("rz", "rp"):
        raise ValueError(f"a conversion to ue8m0 rounds rz or rp, not {rounding!r}")
    magnitude = (wide & np.uint64((1 << 63) - 1)).astype(np.int64)
    code = (magnitude >> 52) - (1023 - FLOATS["ue8m0"].bias)
    if rounding == "rp":
        code = code + ((magnitude & ((1 << 52) - 1)) != 0)
    code = np.clip(code, 0, 0xFE if satfinite else 0xFF)
    return np.where(magnitude > 0x7FF << 52, FLOATS["ue8m0"].nan, code).astype(np.uint16)


def _float_to_int(source: str, to: IntFormat, rounding: str | None, ftz: bool) -> Converter:
    """NaN gives 0, or 1 << (bits - 1) if the source is f64 or the destination has 64 bits."""
    if rounding not in INTEGRAL:
        raise ValueError(f"cvt.{to.name}.{source} rounds {' '.join(INTEGRAL)}, not {rounding!r}")
    nan = -1 << (to.bits - 1) if source == "f64" or to.bits == 64 else 0
    nan = -nan if nan and not to.signed and to.bits < 64 else nan
    p = np.array([to.bits, to.signed, INTEGRAL[rounding], nan], np.int64)
    dtype = register_dtype(to.bits)

    def to_integer(bits: Bits, random: Any) -> Bits:
        wide = to_f64(_flush_input(bits) if ftz and source == "f32" else bits, source)
        return run(to_integers, wide, p).astype(dtype)

    return to_integer


def _int_values(bits: Bits, source: IntFormat) -> Bits:
    """Register bits as an array of the integer type."""
    kind = "i" if source.signed else "u"
    return bits.astype(f"u{source.bits // 8}").view(f"{kind}{source.bits // 8}")


def _int_to_float(source: IntFormat, to: str, rounding: str | None, sat: bool) -> Converter:
    if rounding not in ("rn", "rz", "rm", "rp"):
        raise ValueError(f"cvt.{to}.{source.name} rounds rn rz rm rp, not {rounding!r}")
    f = FLOATS[to]
    p = parameters(f, ROUNDINGS[rounding], source.signed, SAT * sat)
    dtype = register_dtype(f.bits)
    wide = np.int64 if source.signed else np.uint64

    def encode(bits: Bits, random: Any) -> Bits:
        value = _int_values(bits, source).astype(wide).view(np.uint64)
        return run(encode_integers, value, p).astype(dtype)

    return encode


def _int_to_int(source: IntFormat, to: IntFormat, sat: bool) -> Converter:
    low, high = max(source.low, to.low), min(source.high, to.high)
    kind = "i" if to.signed else "u"
    dtype = register_dtype(to.bits)

    def resize(bits: Bits, random: Any) -> Bits:
        value = _int_values(bits, source)
        if sat:
            value = np.clip(value, low, high)
        d = value.astype(f"{kind}{to.bits // 8}")
        return d.astype(f"{kind}{dtype.itemsize}").view(dtype)

    return resize


_CONVERTED_INTS = {name: f for name, f in INTS.items() if f.bits >= 8 and name[0] != "b"}
_CONVERTED = {**_CONVERTED_INTS, **FLOATS}


def _register_bits(type: str) -> int:
    return FLOATS[type].bits if type in FLOATS else INTS[type].bits


@cache
def _converter(
    source: str, to: str, rounding: str | None, sat: bool, flags: tuple[bool, bool, bool]
) -> Converter:
    """Function of registers and random bits that converts one type to another."""
    find(_CONVERTED, source, "source type")
    find(_CONVERTED, to, "destination type")
    satfinite, relu, ftz = flags
    if source in FLOATS and to in FLOATS:
        direct = _float_to_float(source, to, rounding, (sat, satfinite, relu, ftz))
    elif satfinite or relu:
        raise ValueError(f".satfinite and .relu are for floats, not cvt.{to}.{source}")
    elif source in FLOATS:
        direct = _float_to_int(source, INTS[to], rounding, ftz)
    elif to in FLOATS:
        direct = _int_to_float(INTS[source], to, rounding, sat)
    else:
        direct = _int_to_int(INTS[source], INTS[to], sat)
    if source in INTS or _register_bits(source) > 16 or rounding == "rs":
        return direct
    return _tabulated(direct, 8 if _register_bits(source) <= 8 else 16)


def _tabulated(convert_one: Converter, bits: int) -> Converter:
    """Convert through a table of all results, created at first use."""
    table: list[Bits] = []

    def through_table(x: Bits, random: Any) -> Bits:
        if not table:
            table.append(convert_one(np.arange(1 << bits, dtype=np.uint16), random))
        return as_array(look_up(table[0], x if bits == 16 else x & np.uint16(0xFF)))

    return through_table


# --- packed registers -------------------------------------------------------------------------


def _slot(element: str) -> int:
    """Bits of an element in a packed register: 6-bit formats are padded to 8."""
    bits = 8 if element == "s2f6" else FLOATS[element].bits
    return 8 if bits == 6 else bits


def _split(bits: Any, element: str, count: int) -> list[Bits]:
    """The elements of a packed register, lowest first, each in a register of its own."""
    slot = _slot(element)
    dtype, part = register_dtype(slot * count), register_dtype(slot)
    x = registers(bits, dtype)
    mask = dtype.type((1 << slot) - 1)
    return [((x >> dtype.type(slot * i)) & mask).astype(part) for i in range(count)]


def _join(parts: Sequence[Bits], element: str) -> Bits:
    """Pack elements, lowest first."""
    slot = _slot(element)
    dtype = register_dtype(slot * len(parts))
    d = parts[0].astype(dtype)
    for i, part in enumerate(parts[1:], 1):
        d = d | part.astype(dtype) << dtype.type(slot * i)
    return d


def convert(
    bits: Any,
    src: str,
    dst: str,
    rounding: str | None = None,
    *,
    sat: bool = False,
    satfinite: bool = False,
    relu: bool = False,
    ftz: bool = False,
    scale: Any = None,
) -> Bits:
    """cvt with one source, to registers of ``dst``; see the module.

    ``rounding``: rn rz rm rp (tf32 also rna); rni rzi rmi rpi to integers and, within one float
    type, to integral values. It is optional, and ignored, for exact conversions. ``scale``: the two
    ue8m0 factors of .scaled::n2::ue8m0 (s2f6x2 only), a 16-bit register.
    """
    flags = (satfinite, relu, ftz)
    from_element, count = packed(src)
    if count == 1:
        convert_one = _converter(src, dst, rounding, sat, flags)
        return convert_one(registers(bits, register_dtype(_register_bits(src))), NO_RANDOM)
    to_element, to_count = packed(dst)
    if to_count != count:
        raise ValueError(f"{src} has {count} elements and {dst} has {to_count}")
    if "s2f6" in (from_element, to_element):
        return _fixed(_split(bits, from_element, 2), from_element, to_element, relu, scale)
    convert_one = _converter(from_element, to_element, rounding, sat, flags)
    return _join([convert_one(x, NO_RANDOM) for x in _split(bits, from_element, count)], to_element)


def convert_several(
    sources: Sequence[Any],
    src: str,
    dst: str,
    rounding: str | None = "rn",
    *,
    satfinite: bool = False,
    relu: bool = False,
    rbits: Any = None,
    scale: Any = None,
) -> Bits:
    """cvt.dst.src d, a, b or d, {a, b, e, f}, rbits: pack two or four f32, ``a`` into the highest element.

    ``rbits`` is for .rs only.
    """
    element, count = packed(dst)
    if count != len(sources):
        raise ValueError(f"{len(sources)} sources are packed into a type of as many elements, not {dst}")
    dtype = register_dtype(_register_bits(src))
    x = [registers(v, dtype) for v in reversed(sources)]
    if element == "s2f6":
        return _fixed(x, src, element, relu, scale)
    convert_one = _converter(src, element, rounding, False, (satfinite, relu, False))
    random = _random(element, rounding, rbits, count)
    return _join([convert_one(*pair) for pair in zip(x, random, strict=True)], element)


def _random(element: str, rounding: str | None, rbits: Any, count: int) -> list[Any]:
    """The random bits of each element, lowest first (figures 38 to 41 of the manual).

    e2m1x4 uses the low bytes of both halves for its lower two elements and the high bytes for the
    others. That both elements of a pair share 16 bits is an interpretation of the figures.
    """
    if rounding != "rs":
        return [NO_RANDOM] * count
    if rbits is None:
        raise ValueError(".rs needs rbits")
    r = registers(rbits, np.dtype(np.uint32)).astype(np.uint64)
    half, byte = np.uint64(0xFFFF), np.uint64(0xFF)
    low, high = r & half, r >> np.uint64(16)
    if element == "e2m1":
        low, high = (
            (r & byte) | (r >> np.uint64(8)) & np.uint64(0xFF00),
            (r >> np.uint64(8)) & byte | (r >> np.uint64(16)) & np.uint64(0xFF00),
        )
    if element == "f16":
        low, high = low & np.uint64(0x1FFF), high & np.uint64(0x1FFF)
    return [low, high] if count == 2 else [low, low, high, high]


def _fixed(parts: list[Bits], source: str, to: str, relu: bool, scale: Any) -> Bits:
    """To and from s2f6, an s8 in units of 1/64; NaN gives the maximum."""
    factors = _split(0x7F7F if scale is None else scale, "ue8m0", 2)
    weights = [values("ue8m0")[x] for x in factors]
    if to == "s2f6":
        exact = [to_f64(x, source).view(np.float64) for x in parts]
        with np.errstate(all="ignore"):
            steps = [np.rint(x / w * 64) for x, w in zip(exact, weights, strict=True)]
        codes = [np.where(np.isnan(x), 127, np.clip(x, 0 if relu else -128, 127)) for x in steps]
        return _join([x.astype(np.int64).astype(np.uint8) for x in codes], to)
    signed = [x.astype(np.uint8).view(np.int8) / 64 for x in parts]
    exact = [np.asarray(x * w) for x, w in zip(signed, weights, strict=True)]
    return _join([convert(x.view(np.uint64), "f64", to, "rn", relu=relu) for x in exact], to)


def convert_pack(a: Any, b: Any, c: Any, to: str) -> Bits:
    """cvt.pack.sat.to.s32{.b32} d, a, b{, c}: a above b above the low bits of c (None: no c)."""
    f = find({n: i for n, i in INTS.items() if n[0] != "b" and i.bits <= 16}, to, "type")
    dtype = np.dtype(np.uint32)
    x = [np.clip(registers(v, dtype).view(np.int32), f.low, f.high) for v in (b, a)]
    mask = np.uint32((1 << f.bits) - 1)
    low, high = (v.view(np.uint32) & mask for v in x)
    d = low | high << np.uint32(f.bits)
    return d if c is None else d | registers(c, dtype) << np.uint32(2 * f.bits)
