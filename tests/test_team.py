"""Threads that share the work of one step: the same bits, and the same errors, as one alone."""

from __future__ import annotations

import threading
import time
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import kernels
from tensorcore_dsl.errors import TensorCoreError
from tensorcore_dsl.interpreter.core import team
from tensorcore_dsl.interpreter.core.policy import executing
from tensorcore_dsl.interpreter.core.team import Team


@pytest.fixture
def any_work_is_shared():
    with executing(shared_work=1):
        yield


@pytest.fixture(params=[1, 3, 16])
def cores(request, any_work_is_shared):
    """So many cores, of which each takes a part of every step, and one chunk at a time."""
    with executing(cores=request.param, threaded_chunks=1):
        yield request.param


def test_parts_are_in_order_and_miss_nothing(any_work_is_shared):
    with Team(4) as four:
        parts = four.share(10, 1, lambda first, stop, number: (first, stop, number))
        assert parts == [(0, 2, 0), (2, 5, 1), (5, 7, 2), (7, 10, 3)]
        mask = np.arange(9) % 2 == 0
        some = four.share_mask(mask, 1, lambda part, number: np.flatnonzero(part).tolist())
        assert some == [[0], [2], [4], [6, 8]]
        assert four.share_ctas(64, 32, 1, lambda *part: part) == [(0, 32, 0), (32, 64, 1)]


@pytest.mark.parametrize("granted", [0, 1, 3])
def test_the_system_may_refuse_threads(granted, monkeypatch, any_work_is_shared):
    left, start = [granted], threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if not left[0]:
            raise RuntimeError("can't start new thread")
        left[0] -= 1
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    with Team(4) as four:
        for _ in range(2):
            parts = four.share(12, 1, lambda first, stop, number: (first, stop, number))
            size = 12 // (granted + 1)
            assert parts == [(size * i, size * (i + 1), i) for i in range(granted + 1)]


def test_little_work_is_not_divided():
    with Team(4) as four:
        assert four.share(100, 10, lambda *part: part) == [(0, 100, 0)]


def test_an_error_of_any_part_is_raised(any_work_is_shared):

    def work(first: int, stop: int, number: int) -> None:
        if number == 2:
            raise ValueError("part 2")

    with Team(4) as four, pytest.raises(ValueError, match="part 2"):
        four.share(8, 1, work)


def test_interrupts_leave_nobody_at_work(monkeypatch, any_work_is_shared):
    """Their memory is freed behind an interrupt, also behind one that comes while others work."""
    begun, ended = threading.Event(), list[int]()
    wait = team._Job.wait
    interrupts = iter([KeyboardInterrupt("first"), KeyboardInterrupt("second")])

    def interrupted(job: Any) -> None:
        for interrupt in interrupts:
            raise interrupt
        wait(job)

    def work(first: int, stop: int, number: int) -> None:
        if number:
            begun.set()
            time.sleep(0.2)
            ended.append(number)
        else:
            begun.wait()

    monkeypatch.setattr(team._Job, "wait", interrupted)
    with Team(3) as three:
        with pytest.raises(KeyboardInterrupt, match="first"):
            three.share(3, 1, work)
        assert sorted(ended) == [1, 2]
        assert three.share(3, 1, lambda *part: part[2]) == [0, 1, 2]


@pytest.mark.parametrize("kind", ["f16", "bf16", "tf32", "f64", "s8"])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_products_have_the_same_bits(kind, arch, cores):
    rng = np.random.default_rng(7)
    shape, options = (256, 160, 96), {}
    if kind == "s8":
        a, b = (rng.integers(-128, 128, s).astype(np.int8) for s in (shape[::2], shape[1:]))
    else:
        dtype = {"tf32": np.float32, "f64": np.float64, "f16": np.float16}.get(kind)
        dtype = ml_dtypes.bfloat16 if dtype is None else dtype
        a, b = (rng.standard_normal(s).astype(dtype) for s in (shape[::2], shape[1:]))
        options = {"precision": "tf32"} if kind == "tf32" else {}
    with tc.target("cpu", arch):
        actual = kernels.gemm(a, b.T, **options)
    wanted = _alone(a, b.T, arch, options)
    assert actual.tobytes() == wanted.tobytes()


def _alone(a: Any, b: Any, arch: str, options: dict[str, Any]) -> Any:
    with executing(cores=1), tc.target("cpu", arch):
        return kernels.gemm(a, b, **options)


@tc.kernel(threads=128)
def beyond(x: tc.Array, y: tc.Array):  # type: ignore[no-untyped-def]
    i = tc.blockIdx.x * 128 + tc.threadIdx.x
    y[i] = x[i] * 2.0 + 1.0


def test_the_first_error_in_a_step_is_reported(cores):
    x, y = np.zeros(2048, np.float32), np.zeros(1300, np.float32)
    with pytest.raises(TensorCoreError, match=r"index 1300 .*CTA \(10,0,0\), thread \(20,0,0\)"):
        beyond.emulator("sm_90a")[16, 128](x, y)
