"""Sequences without a call, statement by statement in emulation, against NumPy and the assembler."""

from __future__ import annotations

import itertools
import re
import warnings
from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import isa
from tensorcore_dsl.isa.call_free import CALL_FREE, DIVISOR
from tests.assembler import assembles

NAN = 0x7FFFFFFF


def literal(text: str) -> Any:
    """0f3F800000 or 0d3FE0000000000000 as bits."""
    return (np.uint32 if text[1] == "f" else np.uint64)(int(text[2:], 16))


def executed(mnemonic: str, *operands: np.ndarray) -> np.ndarray:
    """The result of a sequence. Each statement is an instruction of the table."""
    names, count = "ab"[: len(operands)], len(operands[0])
    text = CALL_FREE[mnemonic].replace("{n}", "1")
    text = text.format(d="d", **dict(zip(names, names, strict=True)))
    if mnemonic != "sqrt.rn.f32":
        text = DIVISOR.format(b=names[-1], n=1) + text
    warps = [np.resize(o, (-(-count // 32), 32)) for o in operands]
    values: dict[str, Any] = dict(zip(names, warps, strict=True))
    for line in re.sub("[!{}]", "", text).split(";"):
        opcode, _, rest = line.strip().partition(" ")
        if opcode not in ("", ".reg"):
            target, *sources = rest.split(", ")
            given = (values[s] if s in values else literal(s) for s in sources)
            values[target] = tc.emulate(opcode, *(np.broadcast_to(g, warps[0].shape) for g in given))
    return values["d"].ravel()[:count]


def bits(values: Any) -> np.ndarray:
    """f32 as bits, all NaN as the one of the hardware."""
    values = np.asarray(values, np.float32)
    return np.where(np.isnan(values), np.uint32(NAN), values.view(np.uint32))


def quotients(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    with np.errstate(all="ignore"):
        return executed("div.rn.f32", a, b), bits(a.view(np.float32) / b.view(np.float32))


def agree(a: np.ndarray, b: np.ndarray) -> None:
    actual, wanted = quotients(a, b)
    mismatches = np.flatnonzero(actual != wanted)
    assert not mismatches.size, [
        (hex(a[i]), hex(b[i]), hex(actual[i]), hex(wanted[i])) for i in mismatches[:5]
    ]


def special() -> np.ndarray:
    """Zeros, subnormal and extreme numbers, powers of two and their neighbours, infinity and NaN."""
    powers = [e << 23 for e in (1, 2, 24, 63, 64, 103, 126, 127, 128, 150, 191, 192, 253, 254)]
    positive = {0, 1, 2, 3, 5, 0x3FFFFF, 0x400000, 0x400001, 0x7FFFFE, 0x7FFFFF, 0x7F7FFFFF}
    positive |= {p + d for p in powers for d in (-1, 0, 1, 0x400000, 0x7FFFFF)}
    positive |= {0x7F800000, 0x7FC00000, 0x7F800001}
    numbers = np.array(sorted(positive), np.uint32)
    return np.concatenate([numbers, numbers | np.uint32(1 << 31)])


def test_quotients_of_all_special_numbers():
    agree(*np.array(list(itertools.product(special(), repeat=2)), np.uint32).T.copy())


def test_quotients_of_special_and_random_numbers():
    rng = np.random.default_rng(1)
    every = np.repeat(special(), 256)
    divisors = rng.integers(0, 1 << 32, every.size, np.uint32)
    agree(every, divisors)
    agree(divisors, every)


@pytest.mark.parametrize("seed", range(2))
def test_quotients_of_random_numbers(seed):
    agree(*np.random.default_rng(seed).integers(0, 1 << 32, (2, 1 << 20), np.uint32))


def test_quotients_next_to_ties():
    """a is the number next to b times a midpoint of two f32, in the range of subnormals too."""
    rng = np.random.default_rng(2)
    count = 1 << 18
    b = rng.integers(1 << 23, 1 << 24, count).astype(np.float64)
    kept = rng.integers(1, 25, count)  # bits of the quotient
    middle = np.floor(rng.integers(1 << 23, 1 << 24, count) / 2.0 ** (24 - kept)) + 0.5
    exponent = np.where(kept == 24, rng.integers(-120, 100, count), 0)
    with np.errstate(over="ignore"):
        a = np.ldexp(middle * b, exponent - 149 - np.where(kept == 24, 0, 20)).astype(np.float32)
        divisor = np.ldexp(b, -np.where(kept == 24, 0, 20)).astype(np.float32)
    for off in (-1, 0, 1):
        agree(a.view(np.uint32) + np.uint32(off % (1 << 32)), divisor.view(np.uint32))


def test_quotients_that_are_ties():
    odd = np.arange(1, 1 << 16, 2, dtype=np.float32)
    for power in range(1, 20):
        a = np.ldexp(odd, -149).astype(np.float32).view(np.uint32)
        agree(a, np.full_like(a, np.float32(2.0**power).view(np.uint32)))
        agree(a | np.uint32(1 << 31), np.full_like(a, np.float32(2.0**power).view(np.uint32)))


def roots_next_to_ties() -> np.ndarray:
    """The numbers of two binades whose roots are nearest to midpoints of two f32."""
    every = np.arange(127 << 23, 129 << 23, dtype=np.uint32)
    roots = np.sqrt(every.view(np.float32), dtype=np.float64) * 2.0**23
    return every[np.abs(roots % 1 - 0.5) < 1e-4]


def test_reciprocals_and_roots():
    rng = np.random.default_rng(3)
    numbers = np.concatenate([special(), rng.integers(0, 1 << 32, 1 << 19, np.uint32)])
    squares = np.arange(1 << 12, 1 << 14, dtype=np.float32) ** 2
    a = np.concatenate([numbers, squares.view(np.uint32), roots_next_to_ties()])
    with np.errstate(all="ignore"):
        x = a.view(np.float32)
        assert np.array_equal(executed("rcp.rn.f32", a), bits(np.float32(1) / x))
        assert np.array_equal(executed("sqrt.rn.f32", a), bits(np.sqrt(x)))


@pytest.mark.parametrize("mnemonic", sorted(CALL_FREE))
def test_a_sequence_has_the_bits_of_its_instruction(mnemonic):
    count = len(isa.instruction(mnemonic).operands)
    operands = np.random.default_rng(4).integers(0, 1 << 32, (count, 128, 32), np.uint32)
    wanted = tc.emulate(mnemonic, *operands).ravel()
    assert np.array_equal(executed(mnemonic, *(g.ravel() for g in operands)), wanted)


def multiplied(use: Any, dtype: Any, values: int = 2) -> Any:
    """A kernel that multiplies with wgmma, and beside that stores `use` of two values."""

    @tc.kernel(threads=128)
    def product(x: tc.Array, y: tc.Array):
        mma = tc.wgmma.m64n64k16(tc.bf16, tc.bf16, tc.f32)
        tile = tc.shared((64, 64), tc.bf16, swizzle=128)
        acc = mma.d.zeros()
        for _ in range(x.shape[0]):
            tc.wgmma_fence()
            acc = tc.wgmma_async(mma, acc, tile, tile)
            tc.wgmma_commit()
            tc.wgmma_wait(0)
        tc.store_elements(x, acc)
        i = tc.threadIdx.x
        y[2, i] = use(y[0, i], y[1, i])

    return product, (np.zeros((64, 64), np.float32), np.ones((3, 128), dtype.numpy))


def log_of(use: Any, dtype: Any) -> str:
    kernel, args = multiplied(use, dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tc.PerformanceWarning)
        return "".join(kernel.resources(*args, arch="sm_90a").warnings)


CALL_FREE_OPERATORS = [
    (lambda x, y: x / y, "f32 f16 bf16 s32"),
    (lambda x, y: x // y, "f32 s16 u16 s32 u32"),
    (lambda x, y: x % y, "s16 u16 s32 u32"),
    (lambda x, y: tc.sqrt(x), "f32"),
    (lambda x, y: 2.0 / x + y / 3.0, "f32"),
]
CALLS = [
    (lambda x, y: x / y, "f64 s64"),
    (lambda x, y: x // y, "f64 s64 u64"),
    (lambda x, y: x % y, "s64 u64"),
    (lambda x, y: tc.sqrt(x), "f64"),
]


@pytest.mark.parametrize(("use", "names"), CALL_FREE_OPERATORS)
def test_operators_without_calls(use, names):
    pytest.importorskip("cuda.core", reason="needs nvJitLink")
    for name in names.split():
        assert log_of(use, getattr(tc, name)) == "", name


@pytest.mark.parametrize(("use", "names"), CALLS)
def test_operators_that_are_calls(use, names):
    pytest.importorskip("cuda.core", reason="needs nvJitLink")
    for name in names.split():
        assert "C7509" in log_of(use, getattr(tc, name)), name


def test_only_kernels_with_wgmma_have_sequences():
    @tc.kernel
    def divided(x: tc.Array):
        x[0] = x[1] / x[2]

    kernel, args = multiplied(lambda x, y: x / y, tc.f32)
    assert "div.rn.f32" in divided.ptx(args[1][0], arch="sm_90a")
    text = kernel.ptx(*args, arch="sm_90a")
    assert "div.rn.f32" not in text and "rcp.approx.ftz.f32" in text
    assert assembles(text, "sm_90a") == ""


def test_a_guarded_quotient():
    """A predicate skips a sequence as a whole."""
    kernel, args = multiplied(lambda x, y: tc.emit("div.rn.f32", x, y, pred=x > 0, otherwise=7.0), tc.f32)
    text = kernel.ptx(*args, arch="sm_90a")
    assert re.search(r"@!%p\d+ bra (\$L\d+);\n    \{\n[^}]*\}\n\1:", text)
    assert assembles(text, "sm_90a") == ""


def test_quotients_share_what_they_need_of_a_divisor():
    """Within straight code, as long as the divisor's register stays as it is."""

    def use(x: Any, y: Any) -> Any:
        result = x / y + 1.0 / y  # one reciprocal for two quotients
        total = y
        for _ in tc.range(3):
            result += 3.0 / x  # in the loop
            total += x / total + 2.0 / total  # one for two, of a register that then changes
            result += 6.0 / total
        return result + 4.0 / x + 5.0 / total  # behind the loop, which may not have run

    kernel, args = multiplied(use, tc.f32)
    text = kernel.ptx(*args, arch="sm_90a")
    assert text.count("rcp.approx.ftz.f32") == 6
    assert text.count("setp.ne.f64") == 8
    assert assembles(text, "sm_90a") == ""
