"""Emulations of large grids: memory does not grow with them, and one Ctrl-C or error ends them."""

from __future__ import annotations

import signal
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl.errors import ArgumentError, OutOfBounds
from tensorcore_dsl.interpreter import compile_program, launch
from tensorcore_dsl.interpreter.core.policy import ExecutionPolicy, executing
from tensorcore_dsl.interpreter.core.program import Program
from tests.emulation_scripts import ended, interrupted, start
from tests.kit import CTAID, LESS, LOAD_GLOBAL, Builder, u64


class TestInterrupts:
    @pytest.mark.parametrize("grid", [2**31 - 1, 5000])
    def test_one_ends_many_chunks(self, grid):
        text = interrupted(f"print('ready', flush=True); emulate({grid}, 100_000)")
        assert "KeyboardInterrupt" in text
        if sys.version_info >= (3, 11):
            assert "interrupted" in text

    def test_no_thread_is_left(self):
        code = """
print('ready', flush=True)
try:
    emulate(2**31 - 1, 1000)
except KeyboardInterrupt:
    print(threading.active_count(), flush=True)
"""
        process = start(code)
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        out, text = ended(process)
        assert out == "1\n", text

    def test_one_ends_a_single_chunk(self):
        assert "KeyboardInterrupt" in interrupted("print('ready', flush=True); emulate(1, 2**31 - 1)")


class TestMemory:
    def test_does_not_grow_with_the_grid(self):
        code = """
emulate(4_000, 1)
before = peak()
emulate(200_000, 1)
print(peak() - before)
"""
        out, text = start(code).communicate(timeout=120)
        assert out and int(out) < 24, (out, text)

    @pytest.mark.thorough
    def test_chunks_count_whole_warps(self, monkeypatch):
        """A block of one thread takes the room of a warp."""
        sizes, chunks = [], launch._chunks

        def noted(*given: Any) -> tuple[int, int]:
            sizes.append(chunks(*given)[0])
            return chunks(*given)

        monkeypatch.setattr(launch, "_chunks", noted)
        for block in (1, 32, 33, 64):
            b = Builder(("out", u64))
            b.op(CTAID)
            b.run(np.zeros(4, np.uint32), grid=ExecutionPolicy.chunk_threads * 2, block=block, workers=64)
        assert sizes[0] == sizes[1] and sizes[2] == sizes[3] == sizes[0] // 2
        assert sizes[0] * 32 <= ExecutionPolicy.chunk_threads

    @pytest.mark.thorough
    def test_large_chunks_need_no_large_stack(self):
        """Chunks grow with the processors; a thread has 512 KiB of stack on some systems."""
        code = """
from tensorcore_dsl.interpreter.core import policy

@tc.kernel
def copy(x, y):
    i = tc.blockIdx.x * tc.blockDim.x + tc.threadIdx.x
    y[i] = x[i] + 1.0

policy.current = policy.ExecutionPolicy(cores=64)
threading.stack_size(1 << 18)
for block in (1, 32, 256):
    x, y = np.arange(1 << 17, dtype=np.float32), np.zeros(1 << 17, np.float32)
    copy.emulate[x.size // block, block](x, y)
    print((y == x + 1).all())
"""
        process = start(code)
        out, text = process.communicate(timeout=120)
        assert (process.returncode, out) == (0, "True\n" * 3), text

    def test_the_largest_grid_starts_at_once(self):
        """Its first CTA fails."""
        b = Builder(("a", u64))
        b.op(LOAD_GLOBAL, 0)
        with pytest.raises(OutOfBounds, match=r"thread 0 of CTA 0"):
            b.run(np.zeros(4, np.uint32), grid=2**31 - 1)

    def test_chunks_of_small_ctas_share_bounded_memory(self):
        program = compile_program(Builder(("a", u64)).kernel)
        size, _ = launch._chunks(program, 10**9, 1, 4, 1, 227 << 10)
        assert size * (227 << 10) <= launch.SHARED
        assert launch._chunks(program, 10**9, 1, 4, 8, 227 << 10)[0] % 8 == 0

    @pytest.mark.parametrize(
        "ctas, workers, cluster, sizes",
        [
            (200, 2, 1, [100, 100]),
            (300, 2, 1, [75] * 4),
            (132, 2, 1, [66, 66]),
            (264, 2, 1, [66] * 4),
            (10, 4, 1, [3, 3, 3, 1]),
            (3, 3, 1, [1] * 3),
            (2400, 2, 1, [120] * 20),
            (132, 2, 4, [68, 64]),
            (104, 4, 8, [32, 32, 32, 8]),
        ],
    )
    def test_workers_have_as_many_ctas(self, ctas, workers, cluster, sizes):
        """CTAs of 256 threads. A chunk has at most 128 CTAs."""
        program = compile_program(Builder(("a", u64)).kernel)
        with executing(chunk_threads=128 * 256):
            size, at_once = launch._chunks(program, ctas, 256, workers, cluster, 0, apart=True)
        assert at_once == workers
        assert [min(size, ctas - at) for at in range(0, ctas, size)] == sizes

    @pytest.mark.parametrize("ctas, chunks", [(1, 1), (32, 1), (64, 1), (100, 2)])
    def test_threads_share_no_small_launch(self, ctas, chunks):
        """The chunk of a thread has at least 64 CTAs of a warp."""
        program = compile_program(Builder(("a", u64)).kernel)
        assert launch._chunks(program, ctas, 32, 2, 1, 0)[1] == chunks

    def test_sums_of_products_stay_in_the_caches(self, monkeypatch):
        """Each product of f64 adds to 16 bytes of a thread."""
        assert 1 << 16 <= launch.cache_bytes() < 1 << 28
        programs, chunks = [], launch._chunks

        def noted(program: Program, *more: Any) -> tuple[int, int]:
            programs.append(program)
            return chunks(program, *more)

        monkeypatch.setattr(launch, "_chunks", noted)
        for count in (1, 8, 32, 64):
            add_products.emulate[1, 32](np.zeros((16, 32)), count)
        assert [program.sum_bytes for program in programs] == [16, 128, 512, 1024]
        for size, threads in ((1, [4096, 3072, 2048]), (2, [4096, 4096, 3072])):
            monkeypatch.setattr(launch, "cache_bytes", lambda size=size: size << 20)
            found = [32 * chunks(p, 10**6, 32, 2, 1, 0, apart=True)[0] for p in programs[1:]]
            assert found == threads


MMA = tc.mma.m8n8k4(tc.f64, tc.f64, tc.f64)


@tc.kernel
def add_products(out, count: tc.Const):  # type: ignore[no-untyped-def]
    sums = [MMA.d.zeros() for _ in range(count)]
    for _ in range(3):
        for i in tc.static_range(count):
            sums[i] = MMA(MMA.a.zeros(), MMA.b.zeros(), sums[i])
    out[0, tc.threadIdx.x] = sums[0][0]


class TestErrors:
    def test_the_first_chunk_that_fails_is_named(self):
        """Every block from 1,000 on fails; later ones may do so earlier."""
        b = Builder(("out", u64))
        with b.when(b.op(LESS, b.op(CTAID), 1000)):
            b.jump("return")
        b.op(LOAD_GLOBAL, 0)
        with pytest.raises(OutOfBounds, match="of CTA 1000"):
            b.run(np.zeros(4, np.uint32), grid=4000, block=1024, workers=3)

    def test_threads_end_with_the_error(self):
        b = Builder(("out", u64))
        b.op(LOAD_GLOBAL, 0)
        before = set(threading.enumerate())
        with pytest.raises(OutOfBounds):
            b.run(np.zeros(4, np.uint32), grid=400, block=1024, workers=4)
        assert set(threading.enumerate()) <= before

    @pytest.mark.parametrize("workers", [0, -1, 10**6, 2.0, "3", True])
    def test_workers_that_cannot_be(self, workers):
        with pytest.raises(ArgumentError, match=r"workers is .*; 1 to 1024 are allowed"):
            Builder(("out", u64)).run(np.zeros(4, np.uint32), workers=workers)
