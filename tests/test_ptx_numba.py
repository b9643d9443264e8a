"""Kernels of Numba's `@cuda.jit`, run on the CPU through their PTX."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl.__main__ import main
from tensorcore_dsl.environment.numba_cuda import numba_cuda
from tensorcore_dsl.interpreter import Report

cuda = pytest.importorskip("numba.cuda")
from numba import float32  # noqa: E402


@cuda.jit
def total(x: Any, out: Any) -> None:
    part = cuda.shared.array(128, float32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    part[t] = x[i] if i < x.size else 0.0
    cuda.syncthreads()
    if t == 0:
        s = float32(0)
        for j in range(128):
            s += part[j]
        cuda.atomic.add(out, 0, s)


@cuda.jit
def product(a: Any, b: Any, c: Any, factor: Any) -> None:
    i, j = cuda.grid(2)
    if i < c.shape[0] and j < c.shape[1]:
        s = 0.0
        for k in range(a.shape[1]):
            s += a[i, k] * b[k, j]
        c[i, j] = s * factor


@cuda.jit
def no_barrier(x: Any) -> None:
    part = cuda.shared.array(64, float32)
    part[cuda.threadIdx.x] = x[cuda.threadIdx.x]
    x[cuda.threadIdx.x] = part[63 - cuda.threadIdx.x]  # RACE


def test_shared_memory_and_atomics():
    x, out = np.arange(1000, dtype=np.float32), np.zeros(1, np.float32)
    tc.ptx.from_numba(total)[8, 128](x, out)
    assert out[0] == x.sum()


@pytest.mark.parametrize("transposed", [False, True])
def test_matrices_with_strides(transposed):
    rng = np.random.default_rng(0)
    a, b, c = rng.random((20, 30)), rng.random((30, 10)), np.zeros((20, 10))
    b = b.T.copy().T if transposed else b
    kernel = tc.ptx.from_numba(product)
    for _ in range(2):
        kernel[(3, 2), (8, 8)](a, b, c, 2.0)
    np.testing.assert_allclose(c, 2 * a @ b)
    assert len(kernel._driver.arrays) == 3  # A launch frees its copies on the device.


@cuda.jit
def doubled(sources: Any, out: Any) -> None:
    i = cuda.grid(1)
    if i < out.size:
        out[i] = 2 * sources[0][i] + sources[1][i]


def test_strided_and_read_only_arrays():
    """Numba itself refuses strided arrays."""
    x, out = np.arange(200.0), np.zeros((100, 2))
    fixed = np.arange(100.0)
    fixed.flags.writeable = False
    kernel = tc.ptx.from_numba(doubled)
    kernel[4, 32]((x[::-2], fixed), out[:, 1])
    assert np.array_equal(out[:, 1], 2 * x[::-2] + fixed) and not out[:, 0].any()
    kernel[4, 32]((np.broadcast_to(3.0, 100), fixed), out[:, 0])
    assert np.array_equal(out[:, 0], 6 + fixed)
    with pytest.raises(Exception, match="Cannot modify readonly array"):
        kernel[4, 32]((fixed, fixed), np.broadcast_to(3.0, 100))


def test_keys_of_launches():
    x, out = np.zeros(128, np.float32), np.zeros(1, np.float32)
    kernel = tc.ptx.from_numba(total)
    for stream in (None, 0, 5):
        kernel[1, 128, stream, 0](x + 1, out)
    assert out[0] == 3 * 128
    with pytest.raises(tc.ArgumentError, match=r"total\[grid, block, .* takes 2 to 4 values, 4 was given"):
        kernel[4]
    with pytest.raises(tc.ArgumentError, match="a stream cannot be a str"):
        kernel[4, 32, "stream"]
    with pytest.raises(tc.LaunchError, match="it must be one to three integers"):
        kernel[1.5, 32]


def test_a_race_is_at_its_line_of_python():
    kernel = tc.ptx.from_numba(no_barrier)
    with pytest.raises(tc.Race) as error:
        kernel[1, 64](np.ones(64, np.float32))
    assert error.value.loc.filename == __file__
    with open(__file__) as file:
        assert "# RACE" in file.read().splitlines()[error.value.loc.line - 1]
    kernel.emulator(checks=False)[1, 64](np.ones(64, np.float32))


@cuda.jit
def half_a_warp(x: Any, factor: Any, y: Any) -> None:
    i = cuda.threadIdx.x
    if i % 32 < 16:
        cuda.syncthreads()
    x[i] = factor * y[i]


def test_reports_speak_as_numba_does():
    x = np.zeros(64, np.float32)
    with tc.ptx.numba_on_cpu(), pytest.raises(tc.errors.Race) as race:
        no_barrier[1, 64](x)
    assert race.value.cure == "cuda.syncthreads() between the two would order them"
    line, source = (
        no_barrier.py_func.__code__.co_firstlineno + 3,
        "part[cuda.threadIdx.x] = x[cuda.threadIdx.x]",
    )
    assert f"at line {line} (`{source}`)" in race.value.message
    with (
        tc.ptx.numba_on_cpu(),
        pytest.raises(tc.errors.Divergence, match=r"^cuda.syncthreads\(\) \(bar.sync\) "),
    ):
        half_a_warp[1, 64](x, 2.0, x)
    outside = r"byte 248 of argument 'y', which has bytes 0 to 247 \(shape \(31,\), dtype float64\)"
    with tc.ptx.numba_on_cpu(), pytest.raises(tc.errors.OutOfBounds, match=outside):
        half_a_warp[1, 48](x, 2, np.zeros(31))


def test_names_of_arrays_behind_an_empty_one_or_a_tuple():
    @cuda.jit
    def first_of_two(arrays: Any, x: Any) -> None:
        x[0] = cuda.threadIdx.x + len(arrays)

    empty, pair, x = np.zeros(0), (np.zeros(2), np.zeros(2)), np.zeros(4)
    for arrays in (empty, pair):
        with tc.ptx.numba_on_cpu(), pytest.raises(tc.errors.Race) as race:
            first_of_two[1, 64](arrays, x)
        assert "argument 'arrays'" not in race.value.message


def test_a_finding_has_the_name_of_the_function(tmp_path, capfd):
    script = tmp_path / "script.py"
    kernel = "@cuda.jit\ndef alone(x):\n    x[64] = 1\n"
    script.write_text(f"import numpy as np\nfrom numba import cuda\n{kernel}alone[1, 1](np.zeros(64))\n")
    assert main(["check", str(script)]) == 1
    assert "OutOfBounds in kernel alone: " in capfd.readouterr().out


EXPLORED = """
import numpy as np
import tensorcore_dsl as tc
from numba import cuda

@cuda.jit
def last(x, pair):
    cuda.atomic.exch(x, 0, cuda.threadIdx.x)
    cuda.atomic.exch(pair[0], 0, cuda.threadIdx.x)

kernel, x, y = tc.ptx.from_numba(last), np.zeros(1, np.int32), np.zeros(1, np.int32)
found = kernel.explore(10)[1, 64](x, (y, 3))
"""


def test_explore():
    """Arrays in tuples are copied and compared, too."""
    names: dict[str, Any] = {"__name__": "explored"}
    exec(EXPLORED, names)
    found, kernel, x, y = (names[name] for name in ("found", "kernel", "x", "y"))
    assert [d.argument for d in found.differences] == ["x", "pair[0]"] and x[0] == y[0] == 0
    kernel.emulator(order=found.order)[1, 64](x, (y, 3))
    assert x[0] == y[0] == found.differences[0].found
    assert kernel.explore(3)[1, 1](x, (y, 3)).ok


def test_explore_in_a_script_that_is_checked(tmp_path, capfd):
    """Its launches are not counted one by one, and the exploration's result is the finding."""
    (script := tmp_path / "script.py").write_text(EXPLORED + "assert not found.ok")
    assert main(["check", str(script)]) == 1
    assert "1 launch checked: 1 finding" in capfd.readouterr().out


def test_a_launch_without_a_grid():
    with pytest.raises(tc.ArgumentError, match=r"grid and a block: no_barrier\[grid, block\]"):
        tc.ptx.from_numba(no_barrier)(np.zeros(64))


def test_a_first_launch_that_fails_leaves_no_other_error(tmp_path):
    """Its arrays end after the emulated driver; Python would print the errors of their destructors."""
    script = tmp_path / "fails.py"
    script.write_text("""
import numpy as np
import tensorcore_dsl as tc
from tests.test_ptx_numba import no_barrier

try:
    tc.ptx.from_numba(no_barrier)[1, 64](np.ones(64, np.float32))
except tc.Race:
    print("race")
""")
    root = Path(__file__).parents[1]
    run = subprocess.run(
        [sys.executable, script],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
    )
    assert run.stdout == "race\n" and "Error" not in run.stderr, run.stderr


def test_what_is_refused():
    with pytest.raises(tc.ArgumentError, match="3 is not a kernel of Numba"):
        tc.ptx.from_numba(3)
    errors = numba_cuda("numba.cuda.core.errors")
    with pytest.raises(errors.TypingError, match="'size' of type reflected list"):
        tc.ptx.from_numba(total)[1, 32]([1, 2], np.zeros(1))


@cuda.jit(device=True)
def triangle(n: Any) -> Any:
    total = 0
    for i in range(n):
        total += i
    return total


@cuda.jit
def printed(x: Any, factors: Any) -> None:
    own = cuda.local.array(8, float32)
    i = cuda.grid(1)
    for j in range(8):
        own[j] = j * i * factors[0]
    if i < 2:
        print("thread", i, factors[1])
    x[i] = own[3 * i & 7] + triangle(i)


def test_device_functions_printing_and_tuples(capsys):
    x = np.zeros(16)
    tc.ptx.from_numba(printed)[1, 16](x, (2.0, 7))
    i = np.arange(16)
    assert np.array_equal(x, (3 * i & 7) * i * 2 + i * (i - 1) // 2)
    assert capsys.readouterr().out == "thread 0 7\nthread 1 7\n"


SCRIPT = """
import numpy as np
from numba import cuda, float32, int32

@cuda.jit(device=True)
def mirrored(t, n):
    return n - 1 - t

@cuda.jit("void(float32[:], float32[:])")
def reverse(x, out):
    part = cuda.shared.array(0, float32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    part[t] = x[i]
    cuda.syncthreads()
    out[i] = part[mirrored(t, cuda.blockDim.x)]

@cuda.jit
def count(x, bins):
    cuda.atomic.add(bins, x[cuda.grid(1)] % 4, 1)

@cuda.jit
def neighbours(x):
    i = cuda.grid(1)
    x[i] = cuda.shfl_down_sync(0xFFFFFFFF, x[i], 1)

assert cuda.is_available() and cuda.get_current_device().compute_capability == (9, 0)
x = np.arange(128, dtype=np.float32)
stream = cuda.stream()
with stream.auto_synchronize():
    device, out = cuda.to_device(x, stream), cuda.device_array(128, np.float32, stream=stream)
    reverse[2, 64, stream, 256](device, out)
    assert (out.copy_to_host(stream=stream) == x.reshape(2, 64)[:, ::-1].ravel()).all()
numbers, bins = np.arange(64, dtype=np.int32), np.zeros(4, np.int32)
count[2, 32](numbers, bins)
neighbours[2, 32](numbers)
cuda.synchronize()
print(bins, numbers[:3], out[5])
"""


def test_a_script_needs_no_change(tmp_path, capfd):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    assert main(["check", str(path)]) == 0
    printed = capfd.readouterr().out
    assert printed.startswith("[16 16 16 16] [1 2 3] 58.0\n")
    assert "3 launches checked: no findings" in printed


def test_a_script_with_a_race_is_reported_at_its_line(tmp_path, capfd):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT.replace("    cuda.syncthreads()\n", ""))
    assert main(["check", str(path)]) == 1
    line = SCRIPT.splitlines().index("    out[i] = part[mirrored(t, cuda.blockDim.x)]")
    assert f"script.py:{line}" in capfd.readouterr().out


@pytest.fixture
def reports() -> Iterator[list[Report]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", numba_cuda("numba.cuda.core.errors").NumbaPerformanceWarning)
        with tc.ptx.numba_on_cpu("sm_80") as reports:
            yield reports


def test_arrays_live_on_the_device(reports):
    assert cuda.get_current_device().compute_capability == (8, 0)
    a, b = np.random.default_rng(0).random((2, 20, 20))
    device, out = cuda.to_device(a), cuda.device_array_like(a)
    product[(3, 3), (8, 8)](device, b, out, 0.5)
    product[(3, 3), (8, 8)](out[:10], device, out[10:], 2.0)
    want = a @ b / 2
    np.testing.assert_allclose(out[:10].copy_to_host(), want[:10])
    np.testing.assert_allclose(out[10:].copy_to_host(), 2 * want[:10] @ a)
    assert len(reports) == 2


def test_an_access_out_of_bounds_is_found(reports):
    with pytest.raises(tc.OutOfBounds, match="thread 8 of CTA 0"):
        no_barrier[1, 64](cuda.to_device(np.zeros(8, np.float32)))


def test_mapped_memory_and_constants(reports):
    table = np.arange(8.0)

    @cuda.jit
    def looked_up(x: Any) -> None:
        x[cuda.grid(1)] += cuda.const.array_like(table)[cuda.threadIdx.x]

    x = cuda.mapped_array(16)
    x[:] = 1
    looked_up[2, 8](x)
    assert np.array_equal(x, 1 + np.tile(table, 2))


def test_records_are_copied_back(reports):
    @cuda.jit
    def written(record: Any, texts: Any) -> None:
        record.a = cuda.warpsize
        texts[0] = texts[1]

    records = np.zeros(2, [("a", np.float64), ("b", np.int32)]).view(np.recarray)
    texts = np.array(["first", "second"])
    written[1, 1](records[1], texts)
    assert records.a.tolist() == [0, 32]
    assert texts.tolist() == ["second", "second"]


def test_read_only_arrays(reports):
    x = np.arange(100.0)
    x.flags.writeable, out = False, np.zeros(100)
    doubled[4, 32]((x, cuda.to_device(x)), out)
    assert np.array_equal(out, 3 * x)


def test_empty_tuples(reports):
    @cuda.jit
    def counted(x: Any, tuples: Any) -> None:
        x[0] = len(tuples)

    x = np.zeros(1)
    counted[1, 1](x, ((), (), ()))
    assert x[0] == 3


def test_events(reports):
    stream, first, last = cuda.stream(), cuda.event(), cuda.event()
    first.record(stream)
    last.record(stream)
    last.synchronize()
    assert first.query()
    assert cuda.event_elapsed_time(first, last) >= 0


def test_functions_of_cuda_are_linked(tmp_path, reports):
    path = tmp_path / "thrice.cu"
    path.write_text('extern "C" __device__ int thrice(int *result, int x) { *result = 3 * x; return 0; }\n')
    thrice = cuda.declare_device("thrice", "int32(int32)", link=str(path))

    @cuda.jit
    def all_thrice(x: Any) -> None:
        x[cuda.grid(1)] = thrice(x[cuda.grid(1)])

    x = np.arange(32, dtype=np.int32)
    all_thrice[1, 32](x)
    assert np.array_equal(x, 3 * np.arange(32))


def test_managed_memory(reports):
    x = cuda.managed_array(100, np.float32)
    x[:], out = np.arange(100), np.zeros(1, np.float32)
    total[1, 128](x, out)
    assert out[0] == 4950


def test_cooperative_grids(reports):
    @cuda.jit
    def reversed_twice(x: Any) -> None:
        i = cuda.grid(1)
        for _ in range(2):
            value = x[x.size - 1 - i]
            cuda.cg.this_grid().sync()
            x[i] = value + 1
            cuda.cg.this_grid().sync()

    x = np.arange(64)
    reversed_twice[4, 16](x)
    assert np.array_equal(x, np.arange(64) + 2)


def test_arrays_made_in_a_kernel(reports):
    """Numba allocates them from the heap, and releases them through a pointer to a function."""

    @cuda.jit
    def doubled(x: Any) -> None:
        y = np.empty(2, np.float64)
        y[:] = x[cuda.grid(1)]
        x[cuda.grid(1)] = y[0] + y[1]

    with mock.patch.object(numba_cuda("numba.cuda.core.config"), "CUDA_ENABLE_NRT", True):
        x = np.arange(8.0)
        doubled[1, 8](x)
    assert np.array_equal(x, 2 * np.arange(8.0))


def test_arrays_of_earlier_launches_are_given_back(reports):
    """Each launch takes 1 MiB of the heap's 8 MiB."""

    @cuda.jit
    def last(x: Any) -> None:
        y = np.empty(4000, np.float64)
        y[3999] = x[cuda.grid(1)]
        x[cuda.grid(1)] = y[3999] + 1

    with mock.patch.object(numba_cuda("numba.cuda.core.config"), "CUDA_ENABLE_NRT", True):
        x = np.arange(32.0)
        for _ in range(10):
            last[1, 32](x)
    assert np.array_equal(x, np.arange(32.0) + 10)


def test_a_launch_that_breaks_a_bound(reports):
    @cuda.jit(launch_bounds=64)
    def bounded() -> None:
        pass

    bounded[1, 64]()
    with pytest.raises(tc.LaunchError, match="CUDA_ERROR_INVALID_VALUE: .* declares .maxntid 64") as error:
        bounded[1, 65]()
    assert "CUDAError" in [base.__name__ for base in type(error.value).__mro__]


def test_what_the_driver_lacks_is_refused(reports):
    with pytest.raises(tc.ArgumentError, match="cuIpcGetMemHandle of CUDA's driver is not emulated"):
        cuda.to_device(np.zeros(8)).get_ipc_handle()
    with pytest.raises(tc.ArgumentError, match="8 bytes at 0x.* are in no allocation"):
        cuda.current_context().device.primary_context.memalloc(4).memset(0, 8)


def test_the_driver_is_itself_again_afterwards():
    driver = numba_cuda("numba.cuda.cudadrv.driver")
    error, device = driver.driver.initialization_error, driver.ExperimentalDevice
    with tc.ptx.numba_on_cpu():
        kept = cuda.to_device(np.ones(4))
    assert driver.driver.initialization_error == error
    assert driver.ExperimentalDevice is device
    del kept  # which warns nobody
