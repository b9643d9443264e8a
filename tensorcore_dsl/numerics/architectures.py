"""Arithmetic of the tensor cores of each architecture, as data.

A product runs on the unit of its input type. A rewrite changes the model where the hardware or the
assembler replaces the product by other instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from tensorcore_dsl.arch import ARCHS

from .formats import FORMATS


@dataclass(frozen=True)
class Product:
    """One matrix product with the properties of its PTX instruction; k counts logical columns."""

    family: str  # "mma" | "wmma" | "wgmma"
    m: int
    n: int
    k: int
    a: str
    b: str
    c: str
    d: str
    operation: str = "mul"  # "mul" | "and" | "xor" (b1, popc)
    rounding: str = "rn"  # f64: rn rz rm rp
    satfinite: bool = False
    sparse: bool = False  # A holds k/2 stored columns
    scale_kind: str | None = None  # "mxf8f6f4" | "mxf4" | "mxf4nvf4"
    scale_vec: int = 0  # 1, 2, 4
    scale_type: str | None = None  # "ue8m0" | "ue4m3"

    @property
    def stored(self) -> int:
        """Stored columns of A."""
        return self.k // 2 if self.sparse else self.k

    def __str__(self) -> str:
        types = ".".join((self.d, self.a, self.b, self.c))
        kind = f" {self.scale_kind}.{self.scale_vec}X.{self.scale_type}" if self.scale_kind else ""
        sparse = ".sp" if self.sparse else ""
        return f"{self.family}{sparse} m{self.m}n{self.n}k{self.k} {types}{kind}"


@dataclass(frozen=True)
class Model:
    """Arithmetic of one product.

    Attributes
    ----------
    engine : str
        "fused" sums aligned, truncated terms. "grouped" first sums groups exactly and scales them.
        "scalar" uses binary32 instructions, "double" binary64 fused multiply-adds.
    length : int
        Stored elements of one fused step, or of one group.
    fraction : int
        Bits of aligned terms below the largest exponent of a step.
    floor : int
        Smallest exponent to which a step aligns.
    accumulator : str
        Type of each step's result.
    kept : int
        Fraction bits of a step's result.
    nearest : bool
        Round a step's result to nearest even instead of towards zero.
    order : str
        Of k: "ascending", or "interleaved": k mod 4 in {0, 1} before {2, 3}.
    late : bool
        Add c to the finished sum, rounding to nearest.
    least : int or None
        Smallest exponent of the type to which inputs are unpacked.
    """

    engine: str
    length: int = 1
    fraction: int = 0
    floor: int = 0
    accumulator: str = "f32"
    kept: int = 23
    nearest: bool = False
    order: str = "ascending"
    late: bool = False
    least: int | None = None


@dataclass(frozen=True)
class Unit:
    """A fused adder: constants of `Model`, with an alignment floor for each accumulator type."""

    length: int
    fraction: int
    kept: int
    floor_f32: int
    floor_f16: int
    engine: str = "fused"


# fmt: off
#                   length fraction kept  floor f32, f16
VOLTA_F16    = Unit(4,     23,      23,   -131,      -19)
AMPERE_F16   = Unit(8,     24,      23,   -132,      -20)
AMPERE_TF32  = Unit(4,     24,      23,   -132,      -20)
ADA_F8       = Unit(16,    13,      13,   -132,      -20)
HOPPER_F16   = Unit(16,    25,      23,   -133,      -21)
HOPPER_TF32  = Unit(8,     25,      23,   -133,      -21)
HOPPER_F8    = Unit(32,    13,      13,   -133,      -21)
BLACKWELL_F8 = Unit(32,    25,      23,   -133,      -21)
BLACKWELL_F4 = Unit(16,    35,      23,   -139,      -139, "grouped")
# fmt: on

F8 = ("e4m3", "e5m2")
F8F6F4 = (*F8, "e3m2", "e2m3", "e2m1")
INTEGERS = (("s8", "u8"), ("s4", "u4"), ("b1",))
GROUPED_KINDS = ("mxf4", "mxf4nvf4")

_AMPERE = {"f16": AMPERE_F16, "bf16": AMPERE_F16, "tf32": AMPERE_TF32}
_HOPPER = {"f16": HOPPER_F16, "bf16": HOPPER_F16, "tf32": HOPPER_TF32}
_RTX = {**dict.fromkeys((*F8F6F4, "mxf8f6f4"), BLACKWELL_F8), **dict.fromkeys(GROUPED_KINDS, BLACKWELL_F4)}

# The unit of each input type, or of each kind of block scaling.
UNITS: Mapping[str, Mapping[str, Unit]] = {
    "sm_70": {"f16": VOLTA_F16},
    "sm_75": {"f16": AMPERE_F16},
    "sm_80": _AMPERE,
    "sm_86": _AMPERE,
    "sm_89": _AMPERE | dict.fromkeys(F8, ADA_F8),
    "sm_90a": _HOPPER | dict.fromkeys(F8, HOPPER_F8),
    "sm_100a": _HOPPER,
    "sm_120a": _HOPPER | _RTX,
}
# An architecture without its own rules uses those of the last architecture before it.
ALIASES = {
    a.name: [name for name in UNITS if ARCHS[name].number <= a.number][-1]
    for a in ARCHS.values()
    if a.name not in UNITS
}
SINCE_AMPERE = tuple(UNITS)[2:]


@dataclass(frozen=True)
class Rewrite:
    """Replacement by other instructions: `change` maps (product, units) to fields of `Model`."""

    name: str
    architectures: tuple[str, ...]
    applies: Callable[[Product], bool]
    change: Callable[[Product, Mapping[str, Unit]], Mapping[str, Any]]


def _is_m8n8k4(p: Product) -> bool:
    return p.a == "f16" and (p.m, p.n, p.k) == (8, 8, 4)


REWRITES = (
    Rewrite(
        "m8n8k4 of f16 keeps the first generation's unit",
        ("sm_75",),
        _is_m8n8k4,
        lambda p, units: _unit_fields(p, VOLTA_F16),
    ),
    Rewrite(
        "m8n8k4 of f16 is a sequence of scalar binary32 instructions",
        SINCE_AMPERE,
        _is_m8n8k4,
        lambda p, units: {"engine": "scalar"},
    ),
    Rewrite(
        "8-bit floats are unpacked to f16, summed in two halves, and c is added at the end",
        ("sm_90a", "sm_100a"),
        lambda p: p.family == "mma" and p.scale_kind is None and {p.a, p.b} <= set(F8),
        lambda p, units: (
            _unit_fields(p, units["f16"])
            | {"length": p.stored // 2, "order": "interleaved", "late": True, "least": -14}
        ),
    ),
    Rewrite(
        "tf32 of wmma runs in steps of k4",
        SINCE_AMPERE,
        lambda p: p.family == "wmma" and p.a == "tf32",
        lambda p, units: {"length": 4},
    ),
)


def architecture(name: str) -> str:
    """Return the architecture whose measured or derived rules apply to `name`."""
    result = ALIASES.get(name, name)
    if result not in UNITS:
        known = ", ".join((*UNITS, *ALIASES))
        raise ValueError(f"no numerics for architecture {name!r}; known are {known}")
    return result


@lru_cache(maxsize=4096)
def model(product: Product, arch: str) -> Model:
    """The arithmetic of a product on an architecture.

    ValueError if it is unknown how the architecture's tensor cores compute the product.
    """
    arch = architecture(arch)
    _check(product)
    if product.family == "wgmma" and arch != "sm_90a":
        raise ValueError(f"{product} has no rule on {arch}; wgmma is for sm_90a")
    if product.a == "f64" and arch in SINCE_AMPERE:
        return Model("double", accumulator="f64", kept=52, nearest=True)
    if _is_integer(product) and arch != "sm_70":
        half = int(product.operation == "xor")  # xor: multiples of 1/2, see BIT_VALUES
        return Model("fused", product.stored, half, accumulator="s32", kept=52)
    units = UNITS[arch]
    unit = units.get(product.scale_kind or product.a)
    if not product.scale_kind and product.b not in units:
        unit = None
    rewrites = [r for r in REWRITES if arch in r.architectures and r.applies(product)]
    if unit is None and not rewrites:
        raise ValueError(f"{product} has no rule on {arch}; inputs known there: {', '.join(units)}")
    result = Model(**({"engine": "fused"} if unit is None else _unit_fields(product, unit)))
    for rewrite in rewrites:
        result = replace(result, **rewrite.change(product, units))
    return result


def _is_integer(product: Product) -> bool:
    return any(product.a in group for group in INTEGERS)


def _unit_fields(product: Product, unit: Unit) -> dict[str, Any]:
    """Fields of `Model` for a unit; products with different types of C and D accumulate in f32."""
    half = product.c == product.d == "f16"
    return {
        "engine": unit.engine,
        "length": min(unit.length, product.stored),
        "fraction": unit.fraction,
        "floor": unit.floor_f16 if half else unit.floor_f32,
        "accumulator": "f16" if half else "f32",
        "kept": FORMATS["f16"].fraction if half else unit.kept,
        "nearest": half,
    }


def _check(product: Product) -> None:
    groups = (("f16",), ("bf16",), ("tf32",), ("f64",), F8F6F4, *INTEGERS)
    partners = next((g for g in groups if product.a in g), None)
    if partners is None:
        allowed = ", ".join(name for group in groups for name in group)
        raise ValueError(f"{product}: element type {product.a!r} of A is none of {allowed}")
    if product.b not in partners:
        raise ValueError(
            f"{product}: A of {product.a} meets B of {product.b}; allowed: {', '.join(partners)}"
        )
    accumulators = _accumulators(product)
    if product.c not in accumulators or product.d not in accumulators:
        raise ValueError(
            f"{product}: C and D of {product.c} and {product.d}; allowed: {', '.join(accumulators)}"
        )
    if product.rounding not in ("rn", "rz", "rm", "rp")[: 4 if product.a == "f64" else 1]:
        raise ValueError(f"{product}: rounding {product.rounding!r}; f64 has rn, rz, rm, rp, others rn")
    if product.satfinite and not _is_integer(product):
        raise ValueError(f"{product}: satfinite is for integers")
    _check_scales(product)


def _accumulators(product: Product) -> tuple[str, ...]:
    if _is_integer(product) or product.a == "f64":
        return ("s32",) if product.a != "f64" else ("f64",)
    return ("f32",) if product.a in ("bf16", "tf32") or product.scale_kind else ("f32", "f16")


# kind: element types, allowed (vector, type) of its scales
_SCALES = {
    "mxf8f6f4": (F8F6F4, ((1, "ue8m0"),)),
    "mxf4": (("e2m1",), ((2, "ue8m0"),)),
    "mxf4nvf4": (("e2m1",), ((2, "ue8m0"), (4, "ue8m0"), (4, "ue4m3"))),
}


def _check_scales(product: Product) -> None:
    if product.scale_kind is None:
        return
    if product.scale_kind not in _SCALES:
        raise ValueError(f"{product}: scale kind is none of {', '.join(_SCALES)}")
    types, scales = _SCALES[product.scale_kind]
    if not {product.a, product.b} <= set(types):
        raise ValueError(f"{product}: {product.scale_kind} takes elements of {', '.join(types)}")
    if (product.scale_vec, product.scale_type) not in scales:
        allowed = ", ".join(f"{vec}X of {name}" for vec, name in scales)
        raise ValueError(f"{product}: {product.scale_kind} takes scales {allowed}")
