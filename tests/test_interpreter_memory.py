"""Memory of the interpreter: what is caught, atomics, asynchronous copies, what is counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl.errors import EmulationError, Misaligned, OutOfBounds
from tensorcore_dsl.interpreter import EmulatedLaunch, GlobalPointer
from tensorcore_dsl.interpreter.memory import accesses
from tensorcore_dsl.ir.nodes import Address, Part
from tensorcore_dsl.isa import reductions
from tests.kit import (
    ADD,
    BUMP_GLOBAL,
    BUMP_SHARED,
    COMMIT,
    COPY,
    LESS,
    LOAD_GLOBAL,
    LOAD_GLOBAL4,
    LOAD_SHARED,
    LOAD_SHARED4,
    MUL,
    STORE_GLOBAL,
    STORE_SHARED,
    SYNC,
    TID,
    WAIT,
    Builder,
    reported_line,
    u32,
    u64,
)


def loads(array: np.ndarray, offset: int = 0, instr: Any = LOAD_GLOBAL) -> Builder:
    """Every thread loads the element of its number, `offset` bytes further on."""
    b = Builder(("a", u64))
    b.op(instr, Address(b.element(b.params[0], b.thread(32)), offset))
    return b


class TestGlobal:
    def test_the_error_names_argument_bytes_and_thread(self):
        a = np.zeros((4, 10), np.float32)
        b = loads(a)
        with pytest.raises(OutOfBounds) as error:
            b.run(a, grid=2)
        assert reported_line(error) == b.line
        assert (
            "global load of 4 bytes at 0x180000000a0 by thread 8 of CTA 1: byte 160 of argument "
            "'a', which has bytes 0 to 159 (shape (4, 10), dtype float32)"
        ) in str(error.value)

    def test_before_the_start(self):
        a = np.zeros(32, np.uint32)
        with pytest.raises(OutOfBounds, match="byte -4 of argument 'a'"):
            loads(a, -4).run(a)

    def test_a_number_is_no_pointer(self):
        with pytest.raises(OutOfBounds, match="belongs to no argument"):
            loads(np.zeros(1)).run(4096)

    def test_misaligned(self):
        a = np.zeros(64, np.uint32)
        with pytest.raises(Misaligned, match="thread 0 of CTA 0, which is not a multiple of 4"):
            loads(a, 2).run(a)
        with pytest.raises(Misaligned, match="load of 16 bytes .* by thread 1 of"):
            loads(a, 0, LOAD_GLOBAL4).run(a)

    def test_a_slice_keeps_its_alignment(self):
        a = np.zeros(257, np.uint32)
        loads(a).run(a[1:])
        with pytest.raises(Misaligned, match="by thread 0 of"):
            loads(a, 0, LOAD_GLOBAL4).run(a[1:])

    @pytest.mark.parametrize("guilty", ["argument", "array"])
    def test_read_only(self, guilty):
        b = Builder(("a", u64))
        b.op(STORE_GLOBAL, b.params[0], 1)
        a = np.zeros(4, np.uint32)
        a.flags.writeable = guilty != "array"
        pointer = GlobalPointer(a, "a", writable=guilty != "argument")
        with pytest.raises(EmulationError, match="read-only memory: global store of 4 bytes"):
            EmulatedLaunch(b.kernel, (1, 1, 1), (32, 1, 1), [pointer], arch="sm_80").run()
        assert not a.any()

    def test_strides_and_overlap(self):
        """Two views of one array: what is stored through one is loaded through the other."""
        a = np.arange(64, dtype=np.uint32)
        b = Builder(("x", u64), ("y", u64))
        t = b.op(TID)
        b.op(STORE_GLOBAL, b.element(b.params[0], t, 8), b.op(ADD, t, 500))
        low = Address(b.element(b.params[1], t, 4), -4 * 63)  # y points at the last element
        seen = b.op(LOAD_GLOBAL, low)
        b.op(STORE_GLOBAL, Address(b.element(b.params[0], t, 8), 4), seen)
        b.run(a[::2], a[::-1], block=1)
        assert a[:3].tolist() == [500, 500, 2]
        with pytest.raises(OutOfBounds, match="argument 'x', which has bytes 0 to 251"):
            b.run(a[::2], a[::-1], block=32)

    def test_unchecked_runs_still_stay_in_bounds(self):
        a = np.zeros(40, np.uint32)
        loads(a, 2).run(a, checks=False)
        with pytest.raises(OutOfBounds):
            loads(a, 64).run(a, checks=False)


class TestShared:
    def test_bounds_and_alignment(self):
        for address, kind, message in (
            (64, OutOfBounds, "the CTA has bytes 0 to 0x3f"),
            (0xFFFFFFFC, OutOfBounds, "0xfffffffc"),
            (6, Misaligned, "not a multiple of 4"),
        ):
            b = Builder(shared=64)
            b.op(STORE_SHARED, address, 1)
            with pytest.raises(kind, match=message):
                b.run()

    def test_a_launch_may_add_shared_memory(self):
        b = Builder(shared=8, dynamic=16)
        b.op(STORE_SHARED, 28, 1)
        b.run(dynamic_shared=16)
        with pytest.raises(OutOfBounds):
            b.run(dynamic_shared=8)


class TestAtomics:
    @pytest.mark.parametrize("space", ["global", "shared"])
    def test_threads_come_in_order(self, space):
        """Old values of one word are the sums of all threads before."""
        b = Builder(("word", u64), ("out", u64), shared=4)
        t = b.thread(64)
        value = b.op(ADD, t, 1)
        if space == "global":
            old = b.op(BUMP_GLOBAL, b.params[0], value)
        else:
            with b.when(b.op(LESS, b.op(TID), 1)):
                b.op(STORE_SHARED, 0, 0)
            b.op(SYNC, 0)
            old = b.op(BUMP_SHARED, 0, value)
        b.op(STORE_GLOBAL, b.element(b.params[1], t), old)
        word, out = np.zeros(1, np.uint32), np.zeros((4, 64), np.uint32)
        b.run(word, out, grid=4, block=64)
        added = np.arange(256).reshape(4, 64) + 1
        sums = np.cumsum(added) if space == "global" else np.cumsum(added, axis=1)
        assert np.array_equal(out.ravel(), sums.ravel() - added.ravel())


class TestAsynchronousCopies:
    def test_the_rest_is_zero(self):
        """A copy of 12 of 16 bytes."""
        b = Builder(("a", u64), ("out", u64), shared=512)
        at = b.op(MUL, b.op(TID), 16)
        b.op(STORE_SHARED, Address(at, 12), 0xFFFF)
        b.op(COPY, at, b.element(b.params[0], b.op(TID), 16), 16, 12)
        b.op(COMMIT)
        b.op(WAIT, 0)
        vector = b.op(LOAD_SHARED4, at)
        for i in range(4):
            b.op(STORE_GLOBAL, Address(b.element(b.params[1], b.op(TID), 16), 4 * i), Part(vector, i))
        a, out = np.arange(128, dtype=np.uint32), np.ones(128, np.uint32)
        b.run(a, out)
        assert np.array_equal(out, np.where(a % 4 < 3, a, 0))

    def test_a_copy_is_done_once(self):
        """Half of the lanes wait and write over what was copied; then all wait."""
        b = Builder(("a", u64), ("out", u64), shared=128)
        t = b.op(TID)
        at = b.op(MUL, t, 4)
        b.op(COPY, at, b.element(b.params[0], t), 4, 4)
        b.op(COMMIT)
        with b.when(b.op(LESS, t, 16)):
            b.op(WAIT, 0)
            b.op(STORE_SHARED, at, 99)
        b.op(WAIT, 0)
        b.op(STORE_GLOBAL, b.element(b.params[1], t), b.op(LOAD_SHARED, at))
        a, out = np.arange(32, dtype=np.uint32), np.zeros(32, np.uint32)
        b.run(a, out)
        assert np.array_equal(out, np.where(a < 16, 99, a))

    @pytest.mark.parametrize(
        ("target", "offset", "valid", "kind", "message"),
        [
            (1024, 0, 16, OutOfBounds, "shared asynchronous copy of 16 bytes at 0x400"),
            (0, 512, 16, OutOfBounds, "global asynchronous copy of 16 bytes .* argument 'a'"),
            (8, 0, 16, Misaligned, "shared asynchronous copy"),
            (0, 8, 16, Misaligned, "global asynchronous copy"),
        ],
    )
    def test_mistakes_show_where_the_copy_starts(self, target, offset, valid, kind, message):
        b = Builder(("a", u64), shared=1024)
        b.op(COPY, target, Address(b.params[0], offset), 16, valid)
        with pytest.raises(kind, match=message) as error:
            b.run(np.zeros(128, np.uint32), block=1)
        assert reported_line(error) == b.line


class TestReport:
    def test_instructions_and_bytes(self):
        b = Builder(("a", u64), ("n", u32))
        t = b.op(TID)
        with b.loop(0, b.params[1]):
            value = b.op(LOAD_GLOBAL, b.element(b.params[0], t))
        with b.when(b.op(LESS, t, 16)):
            b.op(STORE_GLOBAL, b.element(b.params[0], t), value)
        report = b.run(np.zeros(64, np.uint32), 5, grid=3, block=64)
        assert report.instructions["ld.globals"] == 5 * 3 * 2
        assert report.instructions["st.globals"] == 3
        assert report.bytes == {("global", "load"): 5 * 3 * 256, ("global", "store"): 3 * 64}
        assert "30  ld.globals" in str(report)

    @pytest.mark.parametrize(
        ("stride", "sectors", "passes"), [(1, 4, 1), (2, 8, 2), (8, 32, 8), (32, 32, 32), (0, 1, 1)]
    )
    def test_sectors_and_bank_conflicts(self, stride, sectors, passes):
        b = Builder(("a", u64), shared=4096)
        index = b.op(MUL, b.op(TID), stride)
        b.op(LOAD_GLOBAL, b.element(b.params[0], index))
        load = b.line
        b.op(STORE_SHARED, b.op(MUL, index, 4), 0)
        report = b.run(np.zeros(1024, np.uint32), profile=True)
        coalesced = report.lines[f"kernel.py:{load}", "global", "load"]
        assert (coalesced.units, coalesced.ideal) == (sectors, 4 if stride else 1)
        assert coalesced.excess >= 0  # lanes that read one word need one sector
        banks = report.lines[f"kernel.py:{b.line}", "shared", "store"]
        assert (banks.units, banks.ideal, banks.excess) == (passes, 1, passes - 1)

    def test_wide_accesses_go_by_quarter_warps(self):
        b = Builder(("a", u64), shared=4096)
        b.op(LOAD_GLOBAL4, b.element(b.params[0], b.op(TID), 16))
        for i in range(4):
            b.op(STORE_SHARED, Address(b.op(MUL, b.op(TID), 16), 4 * i), 0)
        b.op(LOAD_SHARED4, b.op(MUL, b.op(TID), 16))
        report = b.run(np.zeros(128, np.uint32), profile=True)
        assert report.lines[f"kernel.py:{b.line}", "shared", "load"].units == 4
        stores = [t for key, t in report.lines.items() if key[1:] == ("shared", "store")]
        assert [t.units for t in stores] == [4] * 4


@pytest.mark.parametrize("name", ["u32", "s32", "u64", "s64", "b32", "b64"])
def test_atomics_in_one_loop_are_those_thread_by_thread(name):
    rng, width = np.random.default_rng(0), int(name[1:]) // 8
    kind, threads = f"u{width}", 256
    updates = [reductions.BIT_UPDATES[op] for op in ("and", "or", "xor")]
    if name[0] != "b":
        updates = [reductions.integer_update(op, name) for op in ("add", "min", "max")]
    words = lambda count: (
        rng.integers(0, 1 << 8 * width, count, kind, endpoint=False)
        if width < 8
        else (rng.integers(0, 1 << 64, count, kind))
    )
    for update in updates:
        code = reductions.simple(update)
        memory, values, which = words(8), words(threads), rng.integers(0, 8, threads)
        active = rng.random(threads) < 0.8
        wanted, wanted_old = memory.copy(), np.zeros(threads, kind)
        for thread in np.flatnonzero(active):
            here = slice(which[thread], which[thread] + 1)
            wanted_old[thread] = wanted[here][0]
            wanted[here] = update(wanted[here], values[thread : thread + 1])
        updated, old = memory.copy(), np.zeros(threads, kind)
        places = updated.ctypes.data + which * width
        bytes_of = lambda array: array.view(np.uint8)
        assert accesses.change_words(code, places, bytes_of(values), bytes_of(old), active, width)
        np.testing.assert_array_equal(updated, wanted)
        np.testing.assert_array_equal(old, wanted_old)
        nobody = np.zeros(threads, bool)
        assert not accesses.change_words(code, places, bytes_of(values), bytes_of(old), nobody, width)


@tc.kernel
def discards(x: tc.Array, start: tc.Const):
    if tc.threadIdx.x < 2:
        tc.emit("discard.global.L2", x.at(32 * tc.threadIdx.x + start), 128)


def test_discarded_lines_have_other_values():
    x = np.arange(96, dtype=np.int32)
    discards.emulator("sm_90a")[1, 32](x, start=0)
    assert not (x[:64] == np.arange(64)).any() and np.array_equal(x[64:], np.arange(64, 96))
    with pytest.raises(Misaligned, match="not a multiple of 128"):
        discards.emulator("sm_90a")[1, 32](x, start=4)
    with pytest.raises(OutOfBounds):
        discards.emulator("sm_90a")[1, 32](x, start=64)
    assert discards.resources(x, arch="sm_90a", start=0).registers > 0
