"""Scalar instructions with inputs for them: what an H200 was asked, and what tests ask again.

`capture_scalar.py` runs every form on a GPU and writes a checksum of its results to
golden/scalar_h200.txt; tests compute the same results on the CPU. Inputs come from NumPy's legacy
generator, whose streams never change, seeded with the PTX text.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

GOLDEN = Path(__file__).parent / "golden" / "scalar_h200.txt"
FLOATS = {"f16": (5, 10), "bf16": (8, 7), "f32": (8, 23), "f64": (11, 52)}  # exponent, mantissa
FLOAT, HALF = ("f16", "bf16", "f32", "f64"), ("f16", "bf16")
BYTES = ("s8", "u8")
INT16 = ("s16", "u16", "s32", "u32", "s64", "u64")
DIRECTED = ("rn", "rz", "rm", "rp")
INTEGRAL = ("rni", "rzi", "rmi", "rpi")


@dataclass(frozen=True)
class Form:
    """PTX over registers %d, %a, %b, %c; ``function(*args, *operands, **words)`` is its meaning.

    ``prepare`` makes the operands from the inputs where the PTX text does so itself.
    """

    ptx: str
    result: str
    inputs: tuple[str, ...]
    function: str
    args: tuple[Any, ...]
    words: dict[str, Any] = field(default_factory=dict)
    count: int = 3072
    prepare: Callable[..., tuple[Any, ...]] | None = None


def bits_of(kind: str) -> int:
    return int(kind.lstrip("bfsu"))


def dtype(kind: str) -> type:
    return {8: np.uint16, 16: np.uint16, 32: np.uint32, 64: np.uint64}[bits_of(kind)]


# --- inputs ----------------------------------------------------------------------------------


def specials(kind: str) -> list[int]:
    """Borders of a type: zero, subnormal, one, largest, infinite, NaN; or extreme integers."""
    if kind not in FLOATS:
        w = bits_of(kind)
        top = 1 << w - 1
        return [
            0,
            1,
            2,
            3,
            7,
            2 * top - 1,
            2 * top - 2,
            top,
            top - 1,
            top + 1,
            1 << w // 2,
            (1 << w // 2) - 1,
        ]
    e, m = FLOATS[kind]
    one, inf, quiet = ((1 << e - 1) - 1) << m, ((1 << e) - 1) << m, 1 << m - 1
    codes = [
        0,
        1,
        (1 << m) - 1,
        1 << m,
        one,
        one | quiet,
        one + 1,
        inf - 1,
        inf,
        inf | quiet,
        inf | quiet | 5,
        inf | 3,
    ]
    return [code | sign for code in codes for sign in (0, 1 << e + m)]


def random_ints(kind: str, n: int, r: np.random.RandomState) -> np.ndarray:
    """All bits, few high bits, their complements, and small numbers."""
    mask = np.uint64((1 << bits_of(kind)) - 1)
    u = r.randint(0, 256, size=(n, 8)).astype(np.uint8).view(np.uint64)[:, 0] & mask
    choice, shift = r.randint(0, 4, size=n), r.randint(0, bits_of(kind), size=n).astype(np.uint64)
    return np.choose(choice, [u, u >> shift, ~(u >> shift) & mask, u & np.uint64(0xFF)])


def random_floats(kind: str, n: int, r: np.random.RandomState) -> np.ndarray:
    """Exponents near each other, near both ends and near the square root of the least; mantissas
    random, with few bits set, and with few bits clear; a third with all bits random."""
    e, m = FLOATS[kind]
    bias, fraction = (1 << e - 1) - 1, np.uint64((1 << m) - 1)
    u = random_ints(f"u{1 + e + m}", n, r)
    few = (np.uint64(1) << r.randint(0, m + 1, size=n).astype(np.uint64)) & fraction
    few ^= r.randint(0, 4, size=n).astype(np.uint64)
    mantissa = np.choose(r.randint(0, 3, size=n), [u & fraction, few, fraction ^ few])
    near, low = r.randint(-4, 5, size=n), r.randint(0, 4, size=n)
    exponents = [bias + near, low, (1 << e) - 2 - low, bias // 2 + near, r.randint(0, 1 << e, size=n)]
    exponent = np.clip(np.choose(r.randint(0, 5, size=n), exponents), 0, (1 << e) - 1)
    sign = r.randint(0, 2, size=n).astype(np.uint64) << np.uint64(e + m)
    made = sign | exponent.astype(np.uint64) << np.uint64(m) | mantissa
    return np.where(r.randint(0, 3, size=n) == 0, u, made)


def inputs(form: Form) -> list[np.ndarray]:
    """A column for each input: every value of a single 16-bit one, else specials and random."""
    kinds, n = form.inputs, form.count
    if len(kinds) == 1 and bits_of(kinds[0]) <= 16:
        return [np.arange(1 << bits_of(kinds[0])).astype(np.uint16)]
    r = np.random.RandomState(zlib.crc32(form.ptx.encode()))
    columns = [(random_floats if k in FLOATS else random_ints)(k, n, r) for k in kinds]
    for i in range(1, len(kinds)):  # a sixth almost cancels the first input, or squares it
        if kinds[i] == kinds[0] and kinds[0] in FLOATS:
            near = columns[0] ^ (np.uint64(1) << r.randint(0, 4, size=n).astype(np.uint64))
            near ^= r.randint(0, 2, size=n).astype(np.uint64) << np.uint64(bits_of(kinds[0]) - 1)
            columns[i] = np.where(r.randint(0, 6, size=n) == 0, near, columns[i])
    chosen = [specials(k)[:: len(kinds) // 3 + 1] for k in kinds]
    cross = np.array(list(itertools.product(*chosen)), np.uint64).T[:, :n]
    for column, values in zip(columns, cross, strict=True):
        column[: len(values)] = values
    return [c.astype(dtype(k)) for c, k in zip(columns, kinds, strict=True)]


# --- forms -----------------------------------------------------------------------------------


def words(text: str) -> dict[str, bool]:
    """Modifiers of a mnemonic as keyword arguments."""
    names = {"NaN": "nan"}
    return {names.get(w, w): True for w in text.split(".") if w}


def simple(op: str, suffix: str, kind: str, operands: int, **more: Any) -> Form:
    """op + suffix + .type over operands of that type."""
    ptx = f"{op}{suffix}.{kind} %d, {', '.join(('%a', '%b', '%c')[:operands])};"
    register = "b32" if kind.endswith("x2") else kind
    return Form(ptx, register, (register,) * operands, "arith", (op, kind), **more)


def arithmetic() -> Iterator[Form]:
    for op, n in (("add", 2), ("sub", 2), ("mul", 2), ("fma", 3), ("div", 2), ("rcp", 1), ("sqrt", 1)):
        for rounding, kind, ftz in itertools.product(DIRECTED, ("f32", "f64"), ("", ".ftz")):
            if kind == "f32" or not ftz:
                more = {"rounding": rounding, **words(ftz)}
                yield simple(op, f".{rounding}{ftz}", kind, n, words=more, count=6144)
        if op in ("add", "sub", "mul", "fma"):
            for q in (".sat", ".ftz.sat"):
                yield simple(op, f".rn{q}", "f32", n, words=words(q))
            for q in ("", ".ftz", ".sat", ".ftz.sat"):
                yield simple(op, f".rn{q}", "f16", n, words=words(q), count=6144)
            yield simple(op, ".rn", "bf16", n, words={}, count=6144)
    for q, kind in itertools.product((".relu", ".oob", ".oob.relu"), HALF):
        yield simple("fma", f".rn{q}", kind, 3, words=words(q))
        yield (simple("fma", f".rn{q}", f"{kind}x2", 3, words=words(q)) if q == ".relu" else oob(q, kind))
    yield from (simple(op, ".rn", f"{t}x2", 2, words={}) for op in ("add", "mul") for t in HALF)


def oob(q: str, kind: str) -> Form:
    """1 * a + a for every a, the NaN for "out of bounds" among them."""
    one = {"f16": 0x3C00, "bf16": 0x3F80}[kind]
    ptx = f"mov.b16 %h, {one}; fma.rn{q}.{kind} %d, %a, %h, %h;"
    operands = lambda a: (a, np.uint16(one), np.uint16(one))
    return Form(ptx, kind, (kind,), "arith", ("fma", kind), words(q), prepare=operands)


def border() -> Iterator[Form]:
    """Results that are tiny or not depending on how they are rounded (.ftz)."""
    for r in DIRECTED:
        ptx = (
            "and.b32 %x, %a, 15; sub.u32 %x, 0x3f7fffff, %x; and.b32 %y, %b, 15; add.u32 %y, 0x00800000, %y; "
        )
        operands = lambda a, b: (
            np.uint32(0x3F7FFFFF) - (a & np.uint32(15)),
            (b & np.uint32(15)) + np.uint32(0x800000),
        )
        more = {"rounding": r, "ftz": True}
        yield Form(
            ptx + f"mul.{r}.ftz.f32 %d, %x, %y;",
            "f32",
            ("b32", "b32"),
            "arith",
            ("mul", "f32"),
            more,
            prepare=operands,
        )
        ptx = f"and.b32 %x, %a, 63; add.u32 %x, %x, 0x7e7fffe0; rcp.{r}.ftz.f32 %d, %x;"
        operands = lambda a: ((a & np.uint32(63)) + np.uint32(0x7E7FFFE0),)
        yield Form(ptx, "f32", ("b32",), "arith", ("rcp", "f32"), more, prepare=operands)
        ptx = f"and.b64 %z, %a, 0x7fffffff; add.u64 %z, %z, 0x380fffffc0000000; cvt.{r}.ftz.f32.f64 %d, %z;"
        operands = lambda a: ((a & np.uint64(0x7FFFFFFF)) + np.uint64(0x380FFFFFC0000000),)
        yield Form(ptx, "f32", ("b64",), "convert", ("f64", "f32", r), {"ftz": True}, prepare=operands)


def signs() -> Iterator[Form]:
    for op, (kind, q) in itertools.product(
        ("neg", "abs"),
        (("f32", ""), ("f32", ".ftz"), ("f64", ""), ("f16", ""), ("f16", ".ftz"), ("bf16", "")),
    ):
        yield simple(op, q, kind, 1, words=words(q))
    yield from (simple("copysign", "", kind, 2) for kind in ("f32", "f64"))
    for op, nan, xor in itertools.product(("min", "max"), ("", ".NaN"), ("", ".xorsign.abs")):
        for kind, ftz in (("f32", ""), ("f32", ".ftz"), ("f16", ""), ("f16", ".ftz"), ("bf16", "")):
            yield simple(op, ftz + nan + xor, kind, 2, words=words(ftz + nan + xor))
    yield from (simple(op, "", "f64", 2) for op in ("min", "max"))


def tests() -> Iterator[Form]:
    ops = ["eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"]
    for kind, op, q in itertools.product(FLOAT, ops, ("", ".ftz")):
        if not q or kind in ("f16", "f32"):
            ptx = f"setp.{op}{q}.{kind} %p, %a, %b; selp.b32 %d, 1, 0, %p;"
            yield Form(ptx, "u32", (kind, kind), "compare", (op, kind), words(q), 1024)
    for kind, op in itertools.product(
        ("f32", "f64"), ["finite", "infinite", "number", "notanumber", "normal", "subnormal"]
    ):
        ptx = f"testp.{op}.{kind} %p, %a; selp.b32 %d, 1, 0, %p;"
        yield Form(ptx, "u32", (kind,), "testp", (op, kind), {}, 1024)


def conversion(
    to: str, source: str, suffix: str, rounding: str | None, more: str = "", **fields: Any
) -> Form:
    return Form(
        f"cvt{suffix}.{to}.{source} %d, %a;",
        to,
        (source,),
        "convert",
        (source, to, rounding),
        words(more),
        **fields,
    )


def conversions() -> Iterator[Form]:
    for source, to in itertools.product(FLOAT, (*BYTES, *INT16)):
        if source == "bf16" and to in BYTES:
            continue
        for r in INTEGRAL:
            yield conversion(to, source, f".{r}", r)
            if source == "f32":
                yield conversion(to, source, f".{r}.ftz", r, ".ftz")
        if source == "f32":
            yield conversion(to, source, ".rni.sat", "rni", ".sat")
    for source, to, r in itertools.product((*BYTES, *INT16), FLOAT, DIRECTED):
        if not (to == "bf16" and source in BYTES):
            yield conversion(to, source, f".{r}", r)
    for source, to in itertools.product((*BYTES, *INT16), repeat=2):
        yield conversion(to, source, "", None, count=1024)
        low = {k: -(1 << bits_of(k) - 1) if k[0] == "s" else 0 for k in (source, to)}
        high = {k: low[k] + (1 << bits_of(k)) for k in (source, to)}
        if low[source] < low[to] or high[source] > high[to]:
            yield conversion(to, source, ".sat", None, ".sat", count=1024)
    for kind in FLOAT:
        yield from (conversion(kind, kind, f".{r}", r) for r in INTEGRAL)
        yield conversion(kind, kind, "", None)
        if kind != "bf16":
            yield conversion(kind, kind, ".sat", None, ".sat")
    for q in (".rpi.ftz", ".rni.ftz.sat", ".ftz"):
        yield conversion(
            "f32", "f32", q, q[1:4] if q[1] == "r" else None, q.replace(".rpi", "").replace(".rni", "")
        )
    yield from between_floats()


def between_floats() -> Iterator[Form]:
    for source, to in itertools.permutations(FLOAT, 2):
        loses = bits_of(source) > bits_of(to) or bits_of(source) == bits_of(to)
        for r, q in itertools.product(DIRECTED if loses else (None,), ("", ".ftz", ".sat")):
            if (q == ".ftz" and "f32" not in (source, to)) or (q == ".sat" and "bf16" in (source, to)):
                continue
            yield conversion(to, source, (f".{r}" if r else "") + q, r, q)
    for to, r, q in itertools.product(HALF, ("rn", "rz"), (".relu", ".satfinite", ".relu.satfinite")):
        yield conversion(to, "f32", f".{r}{q}", r, q)
        yield packing(f"{to}x2", r, q)
    for r, q in (
        ("rna", ""),
        ("rna", ".satfinite"),
        ("rn", ""),
        ("rz", ""),
        ("rn", ".relu"),
        ("rz", ".relu"),
    ):
        ptx = f"cvt.{r}{q}.tf32.f32 %d, %a;"
        yield Form(ptx, "b32", ("f32",), "convert", ("f32", "tf32", r), words(q), 8192)
    for to, q in itertools.product(("e4m3x2", "e5m2x2"), ("", ".relu")):
        yield packing(to, "rn", f".satfinite{q}", "b16")
        ptx = f"cvt.rn.satfinite{q}.{to}.f16x2 %d, %a;"
        yield Form(ptx, "b16", ("b32",), "convert", ("f16x2", to, "rn"), words(f".satfinite{q}"), 32768)
        yield Form(f"cvt.rn{q}.f16x2.{to} %d, %a;", "b32", ("b16",), "convert", (to, "f16x2", "rn"), words(q))
    for to in ("u16", "s16", "u2", "s2", "u4", "s4", "u8", "s8"):
        third = to[1:] != "16"
        ptx = f"cvt.pack.sat.{to}.s32{'.b32' if third else ''} %d, %a, %b{', %c' if third else ''};"
        inputs = ("s32", "s32", "b32") if third else ("s32", "s32")
        operands = (lambda a, b, c: (a, b, c)) if third else (lambda a, b: (a, b, None))
        yield Form(ptx, "b32", inputs, "convert_pack", (to,), prepare=operands)


def packing(to: str, r: str, q: str, result: str = "b32") -> Form:
    ptx = f"cvt.{r}{q}.{to}.f32 %d, %a, %b;"
    return Form(ptx, result, ("f32", "f32"), "convert_pair", ("f32", to, r), words(q))


def whole(op: str, kind: str, result: str, *inputs: str, ptx: str | None = None, **fields: Any) -> Form:
    text = ptx or f"{op}.{kind} %d, {', '.join(('%a', '%b', '%c')[: len(inputs)])};"
    return Form(text, result, inputs, "integer", (op, kind), **fields)


def integers() -> Iterator[Form]:
    wide = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}
    for t in INT16:
        yield from (whole(op, t, t, t, t) for op in ("add", "sub", "div", "rem", "min", "max"))
        yield whole("sad", t, t, t, t, t)
        for m in ("lo", "hi", "wide"):
            if m != "wide" or t in wide:
                d = wide[t] if m == "wide" else t
                yield whole(f"mul.{m}", t, d, t, t)
                yield whole(f"mad.{m}", t, d, t, t, d)
        if t[0] == "s":
            yield from (whole(op, t, t, t) for op in ("neg", "abs"))
    for op in ("add", "sub"):
        yield whole(op, "s32", "s32", "s32", "s32", ptx=f"{op}.sat.s32 %d, %a, %b;", words={"sat": True})
    for op in ("mad.hi", "mad24.hi"):
        yield whole(
            op, "s32", "s32", "s32", "s32", "s32", ptx=f"{op}.sat.s32 %d, %a, %b, %c;", words={"sat": True}
        )
    for t in ("u16x2", "s16x2"):
        yield from (whole(op, t, "b32", "b32", "b32") for op in ("add", "min", "max"))
    for t, op in itertools.product(("s16x2", "s32"), ("min", "max")):
        yield whole(op, t, "b32", "b32", "b32", ptx=f"{op}.relu.{t} %d, %a, %b;", words={"relu": True})
    for t, m in itertools.product(("u32", "s32"), ("lo", "hi")):
        yield whole(f"mul24.{m}", t, t, t, t)
        yield whole(f"mad24.{m}", t, t, t, t, t)
    yield from logic()
    yield from fields()


def logic() -> Iterator[Form]:
    for w in (16, 32, 64):
        t = f"b{w}"
        yield from (whole(op, t, t, t, t, count=512) for op in ("and", "or", "xor"))
        yield from (whole(op, t, t, t, count=512) for op in ("not", "cnot"))
        yield whole("shl", t, t, t, "u32")
        yield from (whole("shr", f"{s}{w}", t, t, "u32") for s in "bus")
    for d, m in itertools.product("lr", ("clamp", "wrap")):
        yield whole(f"shf.{d}.{m}", "b32", "b32", "b32", "b32", "b32")
    for m in ("", ".f4e", ".b4e", ".rc8", ".ecl", ".ecr", ".rc16"):
        yield whole(f"prmt{m}", "b32", "b32", "b32", "b32", "b32", ptx=f"prmt.b32{m} %d, %a, %b, %c;")
    for table in (0x80, 0xFE, 0x40, 0x1A, 0x96, 0xCA, 0x3F, 0x01):
        operands = lambda a, b, c, table=table: (a, b, c, table)
        yield whole(
            "lop3",
            "b32",
            "b32",
            "b32",
            "b32",
            "b32",
            ptx=f"lop3.b32 %d, %a, %b, %c, {table};",
            prepare=operands,
        )


def fields() -> Iterator[Form]:
    for w in (32, 64):
        t = f"b{w}"
        yield from (whole(op, t, "u32", t) for op in ("popc", "clz"))
        yield whole("brev", t, t, t)
        for s in "us":
            yield from (whole(f"bfind{q}", f"{s}{w}", "u32", t) for q in ("", ".shiftamt"))
            yield whole("bfe", f"{s}{w}", t, t, "u32", "u32", count=8192)
        ptx = f"shr.u32 %x, %c, 8; bfi.{t} %d, %a, %b, %c, %x;"
        operands = lambda a, b, c: (a, b, c, c >> np.uint32(8))
        yield whole("bfi", t, t, t, t, "b32", ptx=ptx, prepare=operands, count=8192)
    ptx = "and.b32 %x, %b, 31; and.b32 %y, %c, 63; sub.s32 %y, %y, 32; fns.b32 %d, %a, %x, %y;"
    operands = lambda a, b, c: (a, b & np.uint32(31), (c & np.uint32(63)) - np.uint32(32))
    yield whole("fns", "b32", "b32", "b32", "b32", "b32", ptx=ptx, prepare=operands)
    for x, y in itertools.product(("u32", "s32"), repeat=2):
        for op in ("dp4a", "dp2a.lo", "dp2a.hi"):
            yield whole(op, f"{x}.{y}", "b32", "b32", "b32", "b32")
    for m in ("clamp", "wrap"):
        yield whole(f"bmsk.{m}", "b32", "b32", "b32", "b32")
        yield from (whole(f"szext.{m}", t, "b32", "b32", "b32") for t in ("u32", "s32"))


def functions() -> Iterator[Form]:
    """The approximate functions that are known for every input."""
    for op, kind in itertools.product(("ex2", "tanh"), HALF):
        q = ".ftz" if (op, kind) == ("ex2", "bf16") else ""
        yield simple(op, f".approx{q}", kind, 1, words=words(q))


def forms() -> list[Form]:
    return [*functions(), *arithmetic(), *border(), *signs(), *tests(), *conversions(), *integers()]


def result(form: Form) -> np.ndarray:
    """The form's results on the CPU, as registers."""
    from tensorcore_dsl.numerics import convert, integer, scalar

    functions = {name: getattr(scalar, name) for name in ("arith", "compare", "testp")}
    functions |= {name: getattr(convert, name) for name in ("convert", "convert_pair", "convert_pack")}
    functions["integer"] = integer.integer
    columns = inputs(form)
    operands = form.prepare(*columns) if form.prepare else columns
    first = form.function in ("arith", "compare", "testp", "integer")
    args = (*form.args, *operands) if first else (*operands, *form.args)
    d = np.asarray(functions[form.function](*args, **form.words))
    return d.astype(np.uint32) if d.dtype == np.bool_ else d


def checksum(results: np.ndarray) -> int:
    return zlib.crc32(np.ascontiguousarray(results).tobytes())


def golden() -> dict[str, int]:
    """Checksums of the results of a GPU by PTX text."""
    lines = (line.split(maxsplit=1) for line in GOLDEN.read_text().splitlines())
    return {ptx: int(crc, 16) for crc, ptx in lines if crc != "#"}
