"""Each constant that the recorded results rest on is held by one of them: changed by one, the
replay of some form fails."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from tensorcore_dsl.numerics import architectures, fallback, formats, plans
from tests import mutants, test_golden_matrix
from tests.matrix_probes import probe_of
from tests.matrix_records import CHUNKS, digest, replayed
from tests.mutants import Mutant

pytestmark = [pytest.mark.usefixtures("fresh_ir"), pytest.mark.thorough]

ARCH = "sm_90a"
descriptor, fragments, matrix, mma, sparse, wgmma, wmma = (
    importlib.import_module(f"tensorcore_dsl.isa.{name}")
    for name in ("descriptor", "fragments", "matrix", "mma", "sparse", "wgmma", "wmma")
)


def mma_form(shape: str, d: str, a: str, b: str = "", c: str = "", layout: str = "row.col") -> str:
    return f"mma.sync.aligned.{shape}.{layout}.{d}.{a}.{b or a}.{c or d}"


def sparse_form(shape: str, d: str, a: str) -> str:
    return mma_form(shape, d, a).replace("mma.sync", "mma.sp.sync")


def wgmma_form(shape: str, d: str, a: str, b: str = "", *, tail: str = "", sp: str = "") -> str:
    return f"wgmma.mma_async{sp}.sync.aligned.{shape}.{d}.{a}.{b or a}{tail}"


def wmma_form(layout: str, shape: str, types: str) -> str:
    return f"wmma.mma.sync.aligned.{layout}.{shape}.{types}"


F16, F16_F16 = mma_form("m16n8k16", "f32", "f16"), mma_form("m16n8k16", "f16", "f16")
BF16, TF32 = mma_form("m16n8k16", "f32", "bf16"), mma_form("m16n8k8", "f32", "tf32")
FP8 = [mma_form("m16n8k32", d, "e4m3", "e5m2") for d in ("f32", "f16")]
FP8_GROUP = [
    wgmma_form("m64n32k32", "f32", "e4m3"),
    wgmma_form("m64n32k32", "f16", "e5m2"),
    wgmma_form("m64n32k32", "f32", "e5m2"),
]
WMMA_TF32 = wmma_form("row.col", "m16n16k8", "f32.tf32.tf32.f32")
DENSE = [F16, mma_form("m8n8k16", "s32", "s8")]
QUADS = [
    mma_form("m8n8k4", "f32", "f16", layout="row.col"),
    mma_form("m8n8k4", "f16", "f16", layout="col.row"),
]
SPARSE = [
    sparse_form(*what.split())
    for what in (
        "m16n8k16 f32 f16",
        "m16n8k32 f32 bf16",
        "m16n8k32 s32 s8",
        "m16n8k64 s32 u8",
        "m16n8k64 s32 s4",
        "m16n8k128 s32 s4",
        "m16n8k8 f32 tf32",
        "m16n8k16 f32 tf32",
    )
]
GROUP = [
    wgmma_form("m64n24k16", "f32", "f16"),
    wgmma_form("m64n16k16", "f16", "f16", tail=".registers"),
    wgmma_form("m64n248k16", "f32", "bf16"),
    wgmma_form("m64n8k256", "s32", "b1", tail=".and.popc"),
    wgmma_form("m64n8k64", "f32", "e4m3", "e5m2", sp=".sp"),
    wgmma_form("m64n8k32", "f16", "e5m2", tail=".registers"),
    wgmma_form("m64n8k8", "f32", "tf32", tail=".registers"),
]
WMMA = [
    wmma_form("row.col", "m16n16k16", "f32.f32"),
    wmma_form("col.row", "m8n32k16", "s32.s8.s8.s32"),
    wmma_form("row.row", "m32n8k16", "f16.f16"),
    wmma_form("row.col", "m8n8k32", "s32.s4.s4.s32"),
    WMMA_TF32,
]
SMALL = [
    *FP8,
    *FP8_GROUP,
    mma_form("m8n8k16", "s32", "s8", "u8"),
    mma_form("m8n8k32", "s32", "s4", "u4"),
    sparse_form("m16n8k32", "s32", "s8"),
    sparse_form("m16n8k64", "s32", "s4"),
]
TYPES = [
    F16_F16,
    BF16,
    TF32,
    *SMALL,
    mma_form("m8n8k128", "s32", "b1") + ".and.popc",
    mma_form("m8n8k4", "f64", "f64"),
]
MOVE = ["movmatrix.sync.aligned.m8n8.trans.b16"]

FLOATS = [F16, F16_F16, BF16, TF32, *FP8, *FP8_GROUP]

# functions that say where elements lie, and forms that use them
FORMULAS: list[tuple[Any, str, list[str]]] = [
    (fragments, "a_formula", DENSE),
    (fragments, "b_formula", DENSE),
    (fragments, "c_formula", DENSE),
    (mma, "_quad_row", QUADS),
    (mma, "_quad_run", QUADS),
    (plans, "_tiles_of_lanes", QUADS),
    (plans, "_order", FP8),
    (fallback, "_exponents", FLOATS),
    (fallback, "_rounded", FLOATS),
    (fallback, "_encoded", FLOATS),
    (fallback, "_step", FLOATS),
    (sparse, "stored_per_nibble", SPARSE),
    (sparse, "nibbles_per_row", SPARSE),
    (sparse, "places", SPARSE),
    (sparse, "selection", SPARSE),
    (sparse, "_columns", SPARSE),
    (wgmma, "_c", GROUP),
    (wgmma, "_a", GROUP),
    (descriptor.Descriptor, "chunks", GROUP),
    (descriptor.Descriptor, "_chunks", GROUP),
    (descriptor, "swizzled", GROUP),
    (wgmma.Lines, "of", GROUP),
    (wgmma.Multiplication, "__init__", GROUP),
    (wgmma.Multiplication, "operand", GROUP),
    (wgmma, "_negated", GROUP),
    (wmma, "_formula", WMMA),
    (wmma, "fragment", WMMA),
    (matrix, "transpose", MOVE),
]
TABLES: list[tuple[Any, str, list[str]]] = [
    (formats, "FORMATS", TYPES),
    (mma, "QUAD", QUADS),
    (wgmma, "_SIGNS", GROUP),
    (descriptor, "FIELDS", GROUP),
    (descriptor, "DESCRIPTOR_SWIZZLES", GROUP),
]


def formats_of(row: str, *numbers: int) -> Iterator[str]:
    """How the mutants of a row of the table of formats are called."""
    for at, by in itertools.product(range(len(numbers)), (1, -1)):
        parts = [f"<{n + by}>" if i == at else str(n) for i, n in enumerate(numbers)]
        yield "numerics.formats.FORMATS: " + row.format(*parts)


# Mutants that compute the same, and why.
SAME = {
    **dict.fromkeys(
        (
            *formats_of('Format("e3m2", {}, {}, {}),', 6, 2, 3),
            *formats_of('Format("e2m3", {}, {}, {}),', 6, 3, 2),
            *formats_of('Format("e2m1", {}, {}, {}),', 4, 1, 2),
        ),
        "sm_90a multiplies no such numbers",
    ),
    **dict.fromkeys(
        (
            *formats_of('Format("f64", 64, {}, {}, "ieee"),', 52, 11),
            *formats_of('Format("s32", {}),', 32),
        ),
        "they take whole registers",
    ),
    **dict.fromkeys(
        (
            *(f'numerics.formats.FORMATS: Format("tf32", 19, <{n}>, 8, "ieee"),' for n in (11, 9)),
            *(f'numerics.formats.FORMATS: Format("bf16", 16, <{n}>, 8, "ieee"),' for n in (8, 6)),
            'numerics.formats.FORMATS: Format("e5m2", 8, <1>, 5, "ieee"),',
            'numerics.formats.FORMATS: Format("e4m3", 8, <2>, 4, "nan"),',
        ),
        "it bounds the sums of blocks only; the recorded ones are below both bounds",
    ),
    "isa.sparse.nibbles_per_row: return size(shape)[2] // 2 // (<5> if packed else "
    "stored_per_nibble(dtype))": "sm_90a has no e2m1",
    "isa.sparse.nibbles_per_row: return size(shape)[2] // 2 // (<3> if packed else "
    "stored_per_nibble(dtype))": "sm_90a has no e2m1",
    "Lines.of: addresses = descriptor.chunks(outer, size, transposed) & <262142>": (
        "chunks start at multiples of 16"
    ),
    'Multiplication.__init__: transposed = by_name.get(f"trans_{name}", <-1>) == 1': "neither is 1",
    "isa.fragments.a_formula: blocks = rows // <7>": "rows are 8 or 16",
    'isa.sparse.selection: wide = dtypes.named(p["a"]).bits >= <15>': "no type has 15 bits",
    "isa.wgmma._a: inner = fragments.a_formula(<17>, e)": "17 rows are two blocks of 8 too",
    'isa.descriptor.FIELDS: "stride":  Field(32, <16382>16),': "recorded strides are multiples of 32",
    "Descriptor._chunks: places = line // 8 * stride + line % 8 * 16 + byte // <15> * leading":
        "K has 64 bytes at most",
    "isa.descriptor.swizzled: mask = width - <15> if width else 0": "bit 0 of the flip is 0",
    "isa.descriptor.swizzled: mask = width - 16 if width else <1>": "bit 0 of the flip is 0",
    "isa.wmma._formula: rows = min(m, <17>)": "17 rows are two blocks of 8 too",
    "isa.wmma._formula: return stacked(a_formula(rows, e), rows * k // <31>, 16, 0)":
        "the quotient is the same",
    "isa.wmma._formula: return stacked(b_formula(e), <9> * k // 32, 0, 8)":
        "the quotient is the same",
    "isa.wmma._formula: return stacked(b_formula(e), 8 * k // <31>, 0, 8)":
        "the quotient is the same",
    'isa.wmma.fragment: copies = <513> // (rows * cols) if role in "ab" and dtype == "f16" else 1':
        "the quotient is the same",
    "isa.wmma.fragment: if copies > <0>:": "one copy is the formula itself",
    "isa.wmma.fragment: formula = stacked(formula, rows * cols // <31>, 0, 0)":
        "the quotient is the same",
    "HOPPER_F16.length: 17": "no instruction has more than 16 stored elements",
    "HOPPER_TF32.length: 9": "no instruction has more than 8 stored elements",
    "HOPPER_F8.length: 33": "no instruction has more than 32 stored elements",
    "HOPPER_TF32.floor_f16: -20": "tf32 has no f16 accumulators",
    "HOPPER_TF32.floor_f16: -22": "tf32 has no f16 accumulators",
    "isa.wgmma._SIGNS: _SIGNS = {8: 0x80808080, 16: 0x80008000, 32: <2147483649>": "tf32 has no bit 0",
    **{
        f"HOPPER_F8.{floor}": "products of 8-bit floats have no bits below 2**-32"
        for floor in ("floor_f32: -132", "floor_f32: -134", "floor_f16: -20", "floor_f16: -22")
    },
}  # fmt: skip


def permuting(order: Any) -> Any:
    """Refuses an order that compiled loops would follow out of bounds."""

    def checked(product: Any, model: Any) -> Any:
        found = order(product, model)
        if sorted(found.tolist()) != list(range(product.stored)):
            raise ValueError("no permutation")
        return found

    return checked


GUARDS = {"_order": permuting}

# -- constants of the architecture ----------------------------------------------------------------

UNIT_FORMS = {"HOPPER_F16": [F16, F16_F16, BF16], "HOPPER_TF32": [TF32], "HOPPER_F8": FP8_GROUP}


def units() -> Iterator[tuple[Mutant, list[str]]]:
    """Every number of every unit of sm_90a."""
    assert {id(u) for u in architectures.UNITS[ARCH].values()} == {
        id(getattr(architectures, name)) for name in UNIT_FORMS
    }
    for name, instrs in UNIT_FORMS.items():
        unit = getattr(architectures, name)
        for field in dataclasses.fields(unit):
            value = getattr(unit, field.name)
            for other in (value + 1, value - 1) if field.name != "engine" else ():
                changed = dataclasses.replace(unit, **{field.name: other})
                rows = architectures.UNITS[ARCH].items()
                table = {k: changed if u is unit else u for k, u in rows}
                whole = {**architectures.UNITS, ARCH: table}
                says = f"{name}.{field.name}: {other}"
                yield Mutant(architectures, "UNITS", whole, says), instrs


REWRITTEN = {
    "m8n8k4 of f16 is a sequence": QUADS,
    "8-bit floats are unpacked to f16": [*FP8, mma_form("m16n8k32", "f32", "e5m2")],
    "tf32 of wmma": [WMMA_TF32],
}


def rewrites() -> Iterator[tuple[Mutant, list[str]]]:
    """Every rewrite of sm_90a left out, and each of the fields that it sets changed."""
    for rewrite in architectures.REWRITES:
        if ARCH not in rewrite.architectures:
            continue
        instrs = next(f for words, f in REWRITTEN.items() if rewrite.name.startswith(words))
        for field, change in changes(rewrite):
            others = [r for r in architectures.REWRITES if r is not rewrite]
            added = [dataclasses.replace(rewrite, change=change)] if change else []
            says = f"{rewrite.name}: {field}"
            yield Mutant(architectures, "REWRITES", (*others, *added), says), instrs


def changes(rewrite: Any) -> Iterator[tuple[str, Any]]:
    """(what is changed, the changed function); None leaves the rewrite out."""
    yield "left out", None
    own = {"length": (1, -1), "least": (1, -1), "late": (-1,), "order": ("ascending",)}
    for field, values in own.items():
        for value in values:

            def change(p: Any, given: Any, field: str = field, value: Any = value) -> Any:
                found = dict(rewrite.change(p, given))
                if field in found:
                    found[field] = value if field == "order" else type(found[field])(found[field] + value)
                return found

            product = architectures.Product("mma", 16, 8, 32, "e4m3", "e5m2", "f32", "f32")
            if field in rewrite.change(product, architectures.UNITS[ARCH]):
                yield f"{field} {value}", change


# -- the proof ------------------------------------------------------------------------------------


def chunks_of(mnemonic: str) -> list[int]:
    """Four chunks: every swizzle, and every variant, or most of them."""
    return [(replayed(mnemonic) + 5 * i) % CHUNKS for i in range(4)]


def fails(mutant: Mutant, instrs: list[str]) -> bool:
    """Does the replay of some form give other bits than the recorded ones, or none?"""
    with mutants.applied(mutant):
        return any(differs(name, chunk) for name in instrs for chunk in chunks_of(name))


def differs(name: str, chunk: int) -> bool:
    try:
        probe = probe_of(mutants.remade(name))
        assert probe is not None
        return digest(probe.on_cpu(chunk, ARCH)) != test_golden_matrix.KNOWN[name].chunks[chunk]
    except Exception:
        return True


Found = list[tuple[Mutant, list[str]]]


def of_target(
    make: Callable[[Any, str], Iterator[Mutant]], owner: Any, name: str, instrs: list[str]
) -> Found:
    guard = GUARDS.get(name, lambda value: value)
    return [(dataclasses.replace(m, value=guard(m.value)), instrs) for m in make(owner, name)]


CASES: dict[str, Callable[[], Found]] = {
    f"{owner.__name__.rpartition('.')[2]}.{name}": partial(of_target, make, owner, name, instrs)
    for make, targets in ((mutants.of_function, FORMULAS), (mutants.of_table, TABLES))
    for owner, name, instrs in targets
} | {"units": lambda: list(units()), "rewrites": lambda: list(rewrites())}


@pytest.mark.parametrize("name", CASES)
def test_every_mutant_fails(name):
    found = CASES[name]()
    assert len(found) >= 2
    alive = [str(m) for m, instrs in found if str(m) not in SAME and not fails(m, instrs)]
    assert not alive


def test_the_same_is_said_of_real_mutants():
    """None of them fails, so that nothing is excused that is held."""
    every = {str(m): (m, instrs) for case in CASES.values() for m, instrs in case()}
    assert set(SAME) - set(every) == set()
    assert not [name for name in SAME if fails(*every[name])]


@pytest.mark.quick
def test_the_package_is_whole_again():
    """Mutants leave nothing behind."""
    mutant = next(mutants.of_function(fragments, "c_formula"))
    before = fragments.c_formula
    with mutants.applied(mutant):
        assert wmma.c_formula is fragments.c_formula is mutant.value is not before
    assert wmma.c_formula is fragments.c_formula is before
    assert not differs(F16, replayed(F16))
