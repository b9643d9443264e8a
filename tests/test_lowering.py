"""Loops that are translated straight to LLVM compute what Python does."""

from __future__ import annotations

import ctypes
import math
import os
import sys
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tensorcore_dsl.interpreter.core import native, shadow
from tensorcore_dsl.lowering import compiled, inlined
from tensorcore_dsl.lowering.forms import COMPILED
from tensorcore_dsl.numerics.softfloat import as_bits, as_float, fused

EDGES = [0, 1, -1, 2, -2, 7, -7, 63, 2**31, -(2**31), 2**62, -(2**63), 2**63 - 1]
Table = namedtuple("Table", "rows size")


def wrapped(x: int) -> int:
    """The low 64 bits, signed."""
    return (x + 2**63) % 2**64 - 2**63


@compiled
def operators(a: int, b: int, shift: int, out: Any) -> None:
    out[0], out[1], out[2] = a + b, a - b, a * b
    out[3], out[4], out[5] = a & b, a | b, a ^ b
    out[6], out[7], out[8] = ~a, -a, a >> shift
    out[9], out[10] = a << shift, min(a, b, 3)
    out[11], out[12] = max(a, b), int(a < b) + 2 * (a <= b) + 4 * (a == b) + 8 * (a != b)
    if b != 0:
        out[13], out[14] = a // b, a % b
    out[15], out[16] = a // 8, a % 8
    out[17] = 1 if a > b and b > 0 or not a else 2
    out[18] = a in (0, 7, b)


def test_operators_agree_with_python():
    for a in EDGES:
        for b in EDGES:
            for shift in (0, 1, 5, 63):
                if b != -1 or a != -(2**63):
                    found, expected = np.zeros((2, 19), np.int64)
                    operators(a, b, shift, found)
                    operators.lowered.py_func(a, b, shift, wide := [0] * 19)
                    expected[:] = [wrapped(int(x)) for x in wide]
                    assert found.tolist() == expected.tolist(), (a, b, shift)


def test_division_by_zero_gives_zero():
    @compiled
    def divided(a: int, b: int) -> int:
        return a // b + a % b

    assert divided(5, 0) == 0


@compiled
def unsigned(a: Any, b: Any, out: Any) -> None:
    out[0], out[1], out[2] = a + b, a * b, a >> np.uint64(3)
    out[3], out[4] = a // b, a % b
    out[5], out[6] = a < b, a == b
    out[7] = np.int64(np.uint32(a))


def test_unsigned_numbers():
    for a in (0, 1, 2**63, 2**64 - 1, 0x0101010101010100):
        for b in (1, 3, 2**63 + 1, 0x0101010101010101):
            out = np.zeros(8, np.uint64)
            unsigned(np.uint64(a), np.uint64(b), out)
            expected = [a + b, a * b, a >> 3, a // b, a % b, a < b, a == b, a % 2**32]
            assert out.tolist() == [x % 2**64 for x in expected]


def test_mixed_comparisons_are_refused():
    @compiled
    def mixed(a: Any, b: int) -> bool:
        return a < b

    with pytest.raises(NotImplementedError, match="uint64 < int64: convert one of them"):
        mixed(np.uint64(1), 2)


def test_a_variable_keeps_its_type():
    @compiled
    def changes(a: int) -> int:
        found = a == 3
        found = a + 1
        return found

    with pytest.raises(NotImplementedError, match="found was bool before, and int64 now"):
        changes(1)


@inlined
def collatz(n: int) -> int:
    steps = 0
    while True:
        if n == 1:
            break
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


@compiled
def flow(most: int, out: Any) -> int:
    """Loops up and down, `continue`, `break`, and a return from inside."""
    total = 0
    for i in range(most):
        if i % 3 == 0:
            continue
        for j in range(i, 0, -2):
            if j == 4:
                break
            total += collatz(j)
        out[i] = total
        if total > 1000:
            return i
    return -1


@pytest.mark.parametrize("most", [0, 1, 10, 50])
def test_control_flow(most):
    found, expected = np.zeros(50, np.int32), np.zeros(50, np.int32)
    assert flow(most, found) == flow.lowered.py_func(most, expected)
    assert (found == expected).all()


@compiled
def parts(table: Any, mask: Any, first: int, last: int) -> tuple[int, int]:
    rows = table.rows
    rows[0, :] = rows[1, :]
    rows[1, first:last] = 7
    rows[2] = 0
    count = np.int64(mask.any()) + 10 * np.int64(mask[first:last].any())
    scratch = np.zeros(4, np.uint16)
    scratch[2] -= 1
    return count + table.size[0], np.int64(scratch[2]) + np.int64(scratch[1]) + rows.size


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("first, last", [(0, 3), (2, 5), (3, 3), (4, 2), (1, 99)])
def test_parts_of_arrays(order, first, last):
    rows = np.array(np.arange(15).reshape(3, 5), np.uint8, order=order)
    mask = np.arange(5) == 2
    same = rows.copy(order)
    actual = parts(Table(rows, np.array([100])), mask, first, last)
    assert actual == (101 + 10 * mask[first:last].any(), 0xFFFF + 15)
    same[0] = same[1]
    same[1, first:last], same[2] = 7, 0
    assert (rows == same).all()


def test_a_function_that_cannot_be_translated():
    @compiled
    def text(a: int) -> int:
        return len([a])

    with pytest.raises(NotImplementedError, match=r"List, in a compiled loop \(.*test_lowering.py:\d+\)"):
        text(1)


@compiled
def states(bytes_: Any) -> int:
    return shadow.shadow_error(bytes_.ctypes.data, bytes_.size) + 100 * shadow.all_written(
        bytes_.ctypes.data, bytes_.size
    )


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16])
def test_one_byte_that_is_not_written(size):
    written = np.full(size, shadow.WRITTEN, np.uint8)
    assert states(written) == 100
    for byte in range(size):
        some = written.copy()
        some[byte] = shadow.NEVER
        assert states(some) == shadow.UNWRITTEN


def test_words_at_addresses():
    @compiled
    def swap(source: Any, target: Any) -> int:
        native.poke64(target.ctypes.data, native.peek64(source.ctypes.data))
        native.poke8(target.ctypes.data, 0x1FF)
        return native.lowest_bit(native.peek16(source.ctypes.data + 1))

    source, target = np.arange(8, dtype=np.uint8), np.zeros(8, np.uint8)
    assert swap(source, target) == 0
    assert target.tolist() == [255, 1, 2, 3, 4, 5, 6, 7]
    with pytest.raises(NotImplementedError, match="the address of an array that is not contiguous"):
        swap(np.arange(16, dtype=np.uint8)[::2], target)


def test_python_may_call_inlined_functions():
    assert collatz(6) == 8
    assert os.path.basename(flow.lowered.py_func.__code__.co_filename) == "test_lowering.py"


# -- floating-point numbers ----------------------------------------------------------------------


@compiled
def of_floats(x: Any, y: Any, z: Any, single: Any, out: Any, bits: Any, tests: Any) -> None:
    for i in range(x.size):
        a, b, c = x[i], y[i], z[i]
        out[i, 0], out[i, 1], out[i, 2], out[i, 3] = a + b, a - b, a * b, a / b
        out[i, 4], out[i, 5], out[i, 6] = fused(a, b, c), math.sqrt(a), -a
        out[i, 7], out[i, 8] = np.rint(a), np.trunc(a)
        out[i, 9], out[i, 10] = np.floor(a), np.ceil(a)
        out[i, 11], out[i, 12], out[i, 13] = np.copysign(a, b), abs(a), 3 * a
        out[i, 14], out[i, 15] = as_float(as_bits(a)), b if a < b else c
        out[i, 16], out[i, 17] = np.float32(a), np.float32(a) * np.float32(b)
        single[i] = np.float32(a) * np.float32(b) + np.float32(c)
        bits[i, 0], bits[i, 1] = as_bits(a), as_bits(np.float32(a))
        tests[i, 0], tests[i, 1], tests[i, 2] = a < b, a <= b, a == b
        tests[i, 3], tests[i, 4], tests[i, 5] = a != b, a > b, not a >= b


NUMBERS = [
    0.0,
    -0.0,
    1.0,
    -1.5,
    2.5,
    0.1,
    -7.3,
    1e300,
    -1e300,
    5e-324,
    2.0**-126,
    3e38,
    1e-40,
    math.inf,
    -math.inf,
    math.nan,
]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_floats_agree_with_numpy():
    x, y = (np.repeat(NUMBERS, 16), np.tile(NUMBERS, 16))
    z = np.roll(y, 5)
    out, bits = np.zeros((x.size, 18)), np.zeros((x.size, 2), np.uint64)
    single, tests = np.zeros(x.size, np.float32), np.zeros((x.size, 6), np.bool_)
    of_floats(x, y, z, single, out, bits, tests)
    a, b, c = (v.astype(np.float32) for v in (x, y, z))
    rounded_once = [float_sum(*v) for v in zip(x.tolist(), y.tolist(), z.tolist())]
    expected = [
        x + y, x - y, x * y, x / y, rounded_once, np.sqrt(x), -x, np.rint(x), np.trunc(x),
        np.floor(x), np.ceil(x), np.copysign(x, y), abs(x), 3 * x, x, np.where(x < y, y, z), a,
        a * b,
    ]  # fmt: skip
    for i, column in enumerate(expected):
        np.testing.assert_array_equal(out[:, i], column, err_msg=str(i))
        numbers = ~np.isnan(out[:, i])
        assert (np.signbit(out[:, i]) == np.signbit(column))[numbers].all(), i
    np.testing.assert_array_equal(single, a * b + c, "no fused operation that is not asked for")
    assert (bits[:, 0] == x.view(np.uint64)).all()
    assert (bits[:, 1] == a.view(np.uint32))[~np.isnan(a)].all()
    relations = [x < y, x <= y, x == y, x != y, x > y, ~(x >= y)]
    assert (tests == np.stack(relations, axis=1)).all()


def float_sum(x, y, z):
    """x * y + z rounded once, by exact fractions."""
    if not all(map(math.isfinite, (x, y, z))):
        return x * y + z
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    try:
        return float(exact) if exact else x * y + z
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


@compiled
def casts(x: Any, out: Any) -> None:
    out[0], out[1] = np.int32(x[0]), np.int64(np.int32(x[1]))
    out[2], out[3] = np.int64(np.float64(np.uint64(1) << np.uint64(63)) < 0), int(x[2])
    out[4] = np.uint64(x[3])


def test_casts_of_floats():
    out = np.zeros(5, np.int64)
    casts(np.array([-3.9, 2.0**31 - 1, 1e15 + 0.5, 2.0**62]), out)
    assert out.tolist() == [-3, 2**31 - 1, 0, 10**15, 2**62]


def test_a_variable_keeps_its_precision():
    @compiled
    def changes(x: Any) -> float:
        found = np.float32(x[0])
        found = x[1]
        return found

    with pytest.raises(NotImplementedError, match="found was float32 before, and float64 now"):
        changes(np.zeros(2))


def in_place(x, mode, scale):
    """Translated anew for each call: what is known of `mode` decides what remains."""
    if mode == 0:
        return x, scale
    for y in (x, scale):
        if y > 2:
            return y, scale + 1
    return x * scale, np.uint64(7)


def test_results_of_any_kind():
    function = inlined(in_place)

    @compiled
    def calls(x: int, scale: int, out: Any) -> None:
        out[0], out[1] = function(x, 0, scale)
        out[2], out[3] = function(x, 1, scale)

    for x, scale in ((1, 2), (1, 5), (4, 1)):
        calls(x, scale, out := np.zeros(4, np.int64))
        assert out.tolist() == [*in_place(x, 0, scale), *map(int, in_place(x, 1, scale))]


def test_a_procedure_that_returns_early():
    @inlined
    def fill(x, out):
        for i in range(out.size):
            if x == 0:
                return
            out[i] = x

    @compiled
    def fills(x: int, out: Any) -> None:
        fill(x, out)
        out[0] += 1

    for x in (0, 3):
        fills(x, out := np.zeros(3, np.int64))
        assert out.tolist() == [x + 1, x, x]


class Point(ctypes.Structure):
    _fields_ = [("x", ctypes.c_uint16), ("weights", ctypes.c_float * 3)]


class Cloud(ctypes.Structure):
    _fields_ = [
        ("number", ctypes.c_int64),
        ("points", ctypes.POINTER(Point)),
        ("numbers", ctypes.POINTER(ctypes.c_uint32)),
    ]


def count_up(cloud: Any, several: Any, at: int) -> int:
    point = cloud.points[at]
    point.x, point.weights[2] = cloud.number, 0.5
    cloud.number += 1
    several[1].numbers[at] += point.x
    return int(several[1].numbers[at])


def test_objects_of_ctypes():
    """Compiled code reads and writes fields, items of arrays, and items behind pointers, as Python does."""
    results = []
    for function in (count_up, compiled(count_up)):
        points, numbers = (Point * 4)(), (ctypes.c_uint32 * 4)(10, 20, 30, 40)
        several = (Cloud * 2)(Cloud(7, points, numbers), Cloud(8, points, numbers))
        sums = [function(several[0], several, at) for at in (1, 3, 1)]
        everything = [(point.x, *point.weights) for point in points]
        results.append((sums, everything, several[0].number, list(numbers)))
    assert results[0] == results[1]
    assert results[1][0] == [27, 48, 36]
    assert results[1][2] == 10


def test_structures_of_other_layout_get_code_of_their_own():
    @compiled
    def second(x: Any) -> int:
        return x.b

    wide, narrow = (
        type("Pair", (ctypes.Structure,), {"_fields_": [("a", kind), ("b", kind)]})(1, 2)
        for kind in (ctypes.c_int64, ctypes.c_int8)
    )
    assert (second(wide), second(narrow)) == (2, 2)
    assert len(second.forms) == 2


# -- arguments -----------------------------------------------------------------------------------


@compiled
def second(x: Any, i: int, negative: bool) -> float:
    return -x[i, 1] if negative else x[i, 1]


def test_arguments_of_all_kinds():
    """Other kinds of arrays get code of their own; numbers of NumPy serve as well."""
    x = np.arange(12.0).reshape(3, 4)
    for given in (x, np.asfortranarray(x), x[:, 1:], x.astype(np.float32), x.astype(np.int8)):
        for i in (2, np.int64(2), np.uint8(2), True + 1):
            for negative in (False, True, np.True_, 0):
                expected = -given[i, 1] if negative else given[i, 1]
                assert second(given, i, negative) == expected
    assert len(second.forms) == 4
    assert second(x.view(type("Sub", (np.ndarray,), {})), 1, False) == 5
    assert second(x.view(np.dtype(np.float64, metadata={"a": 1})), 1, False) == 5
    assert len(second.forms) == 4


def test_wrong_arguments():
    x = np.zeros((2, 2))
    with pytest.raises(TypeError, match="second takes 3 arguments"):
        second(x, 1)
    with pytest.raises(TypeError, match=">f8 in a call of a compiled loop"):
        second(x.astype(">f8"), 1, False)
    with pytest.raises(TypeError, match="list in a call of a compiled loop"):
        second([[1]], 1, False)
    with pytest.raises(TypeError):
        second(x, "1", False)
    with pytest.raises(ValueError, match="truth value"):
        second(x, 1, x)
    for number in (2**64, -(2**63) - 1):
        with pytest.raises(TypeError, match="beyond 64 bits"):
            second(x, number, False)


def test_arguments_are_not_leaked():
    x = np.zeros((2, 2))
    before = sys.getrefcount(x), sys.getrefcount(second), sys.getrefcount(NotImplemented)
    for _ in range(1000):
        second(x, 1, False)
        with pytest.raises(TypeError):
            second(x, 2**64, False)
    after = sys.getrefcount(x), sys.getrefcount(second), sys.getrefcount(NotImplemented)
    assert max(b - a for a, b in zip(before, after)) < 10


def test_threads_compile_once():
    @compiled
    def total(x: Any) -> int:
        found = 0
        for i in range(x.size):
            found += x[i]
        return found

    before = len(COMPILED)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(total, [np.arange(1000, dtype=np.int16)] * 8))
    assert found == [499500] * 8 and len(COMPILED) <= before + 1 and len(total.forms) == 1


@compiled
def filled(words: Any, table: Any, value: int, low: int, high: int, doubled: bool) -> int:
    for i in range(low, high):
        words[i] = value * (1 + doubled) + table[i, 1]
    return high - low


def twice(function: int, words: int, middle: int, end: int) -> int:
    run = ctypes.CFUNCTYPE(*[ctypes.c_int64] * 4)(function)
    return run(words, 0, middle) + run(words, middle, end)


def test_a_part_is_called_with_other_bounds():
    """Also with an array that is not contiguous; what it is given may change between calls."""
    words, table = np.zeros(8), np.arange(32).reshape(8, 4)[:, ::2]
    part = filled.part(words, table, 3, 0, 0, False)
    assert twice(part.function, part.words.ctypes.data, 2, 6) == 6
    assert words.tolist() == [3 + x for x in (2, 6, 10, 14, 18, 22)] + [0, 0]
    part.words[part.word_numbers["doubled"]] = True
    part.words[part.word_numbers["words"]] = words[2:].ctypes.data
    assert twice(part.function, part.words.ctypes.data, 0, 1) == 1
    assert words[2] == 6 + 2
    assert filled(words, table, 3, 0, 8, False) == 8
