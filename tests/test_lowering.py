"""Loops that are translated straight to LLVM compute what Python does."""

from __future__ import annotations

import os
from collections import namedtuple
from typing import Any

import numpy as np
import pytest
from numba import types

from tensorcore_dsl.interpreter.core import native, shadow
from tensorcore_dsl.lowering import compiled, inlined

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


def test_operators():
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
    out[0], out[1], out[2] = a + b, a * b, a >> types.uint64(3)
    out[3], out[4] = a // b, a % b
    out[5], out[6] = a < b, a == b
    out[7] = types.int64(types.uint32(a))


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
    count = types.int64(mask.any()) + 10 * types.int64(mask[first:last].any())
    scratch = np.zeros(4, np.uint16)
    scratch[2] -= 1
    return count + table.size[0], types.int64(scratch[2]) + types.int64(scratch[1]) + rows.size


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("first, last", [(0, 3), (2, 5), (3, 3), (4, 2), (1, 99)])
def test_parts_of_arrays(order, first, last):
    rows = np.array(np.arange(15).reshape(3, 5), np.uint8, order=order)
    mask = np.arange(5) == 2
    same = rows.copy(order)
    found = parts(Table(rows, np.array([100])), mask, first, last)
    assert found == (101 + 10 * mask[first:last].any(), 0xFFFF + 15)
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


def test_python_may_call_inlined_functions():
    assert collatz(6) == 8
    assert os.path.basename(flow.lowered.py_func.__code__.co_filename) == "test_lowering.py"
