"""Memory of chunks that serves the next ones: zeros each time, and never memory in use."""

from __future__ import annotations

import gc
import weakref
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import kernels
from tensorcore_dsl.checking.session import checking
from tensorcore_dsl.interpreter import launch
from tensorcore_dsl.interpreter.core import memory_pool
from tensorcore_dsl.interpreter.core.memory_pool import MAX_BYTES, MIN_BLOCK_BYTES, zeros
from tensorcore_dsl.interpreter.core.policy import executing
from tensorcore_dsl.interpreter.execution.machine import Machine
from tests.fuzz.ways import dirty


@pytest.fixture(autouse=True)
def nothing_kept():
    memory_pool.forget()
    yield
    memory_pool.forget()


def place(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


@pytest.mark.parametrize(("shape", "dtype"), [(MIN_BLOCK_BYTES, np.uint8), ((3, MIN_BLOCK_BYTES), np.uint32)])
def test_memory_serves_again_and_holds_zeros(shape, dtype):
    first = zeros(shape, dtype)  # type: ignore[arg-type]
    assert not first.any()
    first.fill(7)
    where = place(first)
    del first
    second = zeros(shape, dtype)  # type: ignore[arg-type]
    assert place(second) == where
    assert second.dtype == dtype
    assert not second.any()


def test_memory_of_which_a_view_is_left_is_in_use():
    first = zeros(2 * MIN_BLOCK_BYTES)
    view = np.ndarray(4, np.uint32, first, 64)
    view[...] = 9
    where = place(first)
    del first
    second = zeros(2 * MIN_BLOCK_BYTES)
    assert place(second) != where
    assert (view == 9).all()
    del view
    assert place(zeros(MIN_BLOCK_BYTES)) == where  # it serves smaller arrays, too


def test_the_smallest_block_that_suffices_is_taken():
    large, small = zeros(4 * MIN_BLOCK_BYTES), zeros(2 * MIN_BLOCK_BYTES)
    where = place(small)
    del large, small
    assert place(zeros(MIN_BLOCK_BYTES)) == where


def test_no_more_is_kept_than_allowed():
    arrays = [zeros(MAX_BYTES // 2), zeros(MAX_BYTES // 2), zeros(MAX_BYTES // 2)]
    assert memory_pool.kept() == MAX_BYTES
    del arrays
    last = zeros(MAX_BYTES // 2 + MIN_BLOCK_BYTES)  # the free blocks make room
    assert memory_pool.kept() == last.size
    zeros(MIN_BLOCK_BYTES - 1)
    assert memory_pool.kept() == last.size


@pytest.fixture
def one_core():
    """One chunk after the other, in this process."""
    with executing(cores=1):
        yield


@tc.kernel
def leaves_traces(out: tc.Array, BYTES: tc.Const = 1 << 16):
    tile = tc.shared((BYTES // 4,), tc.u32)
    thread = tc.threadIdx.x
    total = tc.u32(0)
    for i in range(0, BYTES // 4, 128):
        total = total | tile[i + thread]
        tile[i + thread] = 0xFFFFFFFF
    out[tc.blockIdx.x * 128 + thread] = total


def test_unwritten_memory_reads_as_zeros_in_each_chunk(one_core):
    out = np.ones((96, 128), np.uint32)
    leaves_traces.emulator(checks=False)[96, 128](out.reshape(-1))
    assert not out.any()


def test_a_launch_leaves_what_is_allowed(one_core, monkeypatch):
    out = np.ones((96, 128), np.uint32)
    leaves_traces.emulator(checks=False)[96, 128](out.reshape(-1))
    before = memory_pool.kept()
    assert 0 < before <= memory_pool.MAX_IDLE_BYTES
    monkeypatch.setattr(memory_pool, "MAX_IDLE_BYTES", before - 1)
    leaves_traces.emulator(checks=False)[96, 128](out.reshape(-1))
    assert memory_pool.kept() < before
    assert not out.any()


def test_the_oldest_blocks_are_forgotten():
    arrays = [zeros(size * MIN_BLOCK_BYTES) for size in (3, 1, 2)]
    memory_pool.forget(5 * MIN_BLOCK_BYTES)
    assert memory_pool.kept() == 3 * MIN_BLOCK_BYTES
    memory_pool.forget(2 * MIN_BLOCK_BYTES)
    assert memory_pool.kept() == 2 * MIN_BLOCK_BYTES
    assert not any(array.any() for array in arrays)


def products() -> list[bytes]:
    rng = np.random.default_rng(3)
    found = []
    with tc.target("cpu", "sm_90a"):
        for dtype in (np.int8, np.float16):
            a, b = (rng.integers(-5, 6, (256, 256)).astype(dtype) for _ in range(2))
            found.append(kernels.gemm(a, b.T).tobytes())
    return found


@pytest.mark.thorough
def test_products_do_not_depend_on_what_memory_held():
    """Registers and shared memory are not cleared where checks see to it that nobody reads them."""
    plain = products()
    with dirty():
        assert products() == plain


@pytest.mark.thorough
@pytest.mark.parametrize("races", [False, True])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int8])
def test_chunks_leave_no_cycles(dtype, arch, races, one_core, monkeypatch):
    """Worker processes collect none, so that each chunk's memory would stay."""
    alive: list[Any] = []

    class Followed(Machine):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            alive.extend(map(weakref.ref, (self, self.ctx, self.registers, self.ctx.shared)))

    monkeypatch.setattr(launch, "Machine", Followed)
    a, b = np.ones((256, 128), dtype), np.ones((128, 256), dtype)
    gc.collect()
    gc.disable()
    try:
        with tc.target("cpu", arch), checking() if races else nullcontext():
            assert np.all(kernels.gemm(a, b) != 0)
        left = [each() for each in alive]
    finally:
        gc.enable()
    assert len(left) >= 4 and set(left) == {None}
