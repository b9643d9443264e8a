"""Kernels in CUDA C++ (cuda_kernels.cu), which NVRTC compiles, run on the CPU through their PTX."""

from __future__ import annotations

import warnings

import ml_dtypes
import numpy as np
import pytest

import tensorcore_dsl as tc
from tests.ptx_cases import SOURCE, floats


@pytest.fixture(scope="module")
def cuda():
    """The kernels of cuda_kernels.cu, by NVRTC."""
    pytest.importorskip("cuda.bindings.nvrtc")
    yield tc.ptx.from_cuda(SOURCE, "sm_90")


def test_saxpy(cuda):
    x, y = floats(1000), floats(1000)[::-1].copy()
    wanted = np.float32(2) * x.astype(float) + y
    report = cuda.saxpy[4, 256](x, y, 2.0, 1000)
    np.testing.assert_allclose(y, wanted, rtol=1e-6, atol=1e-6)
    assert report.instructions


def test_transpose(cuda):
    a, b = floats(70, 70), np.zeros((70, 70), np.float32)
    cuda.transpose[(3, 3), (32, 8)](a, b, 70)
    assert np.array_equal(b, a.T)


def test_histogram(cuda):
    x, counts = np.random.default_rng(0).integers(0, 256, 5000, np.uint8), np.zeros(256, np.uint32)
    cuda.histogram[4, 256](x, counts, 5000)
    assert np.array_equal(counts, np.bincount(x, minlength=256))


def test_halves(cuda):
    x = floats(512).astype(np.float16)
    y = np.zeros_like(x)
    cuda.halves[1, 256](x.view(np.uint32), y.view(np.uint32), 256)
    np.testing.assert_allclose(y, x.astype(float) ** 2 + x * 0.5, rtol=2e-3, atol=1e-3)


def test_softmax(cuda):
    x = floats(4, 300)
    y, e = np.zeros_like(x), np.exp(x - x.max(1, keepdims=True))
    cuda.softmax[4, 128, None, 512](x, y, 300)
    np.testing.assert_allclose(y, e / e.sum(1, keepdims=True), atol=1e-6)


def test_loops_that_end_at_different_times(cuda):
    def steps(v: int) -> int:
        count = 0
        while v != 1:
            v, count = 3 * v + 1 if v & 1 else v // 2, count + 1
        return count

    x, out = np.arange(1, 301, dtype=np.uint32), np.zeros(300, np.int32)
    cuda.collatz[3, 128](x, out, 300)
    assert out.tolist() == [steps(int(v)) for v in x]


def test_a_scan_sums_all_elements_before(cuda):
    x = np.random.default_rng(0).integers(-9, 9, 1024, np.int32)
    y = np.zeros_like(x)
    cuda.scan[1, 1024](x, y)
    assert np.array_equal(y, np.cumsum(x))


def test_vectors_of_four_floats_are_loaded_and_stored(cuda):
    x = floats(100, 4)
    y, wanted = np.zeros_like(x), x.copy()
    cuda.vectors[1, 128](x, y, 100)
    wanted[:, 0] *= 2
    wanted[:, 1] += wanted[:, 0]
    wanted[:, 2] = wanted[:, 3] - wanted[:, 1]
    assert np.array_equal(y, wanted)


def test_doubles(cuda):
    x = np.abs(floats(200)).astype(float)
    y = np.zeros_like(x)
    cuda.doubles[1, 256](x, y, 200)
    np.testing.assert_allclose(y, np.sqrt(x) / (1 + x * x), rtol=1e-15)


def test_functions_of_math_agree_with_numpy(cuda):
    x = floats(500) * 10
    y, e = np.zeros_like(x), x.astype(float)
    cuda.functions[2, 256](x, y, 500)
    wanted = np.sin(e) + np.exp(e) * np.log(abs(e) + 1) + np.tanh(e) + abs(e) ** 1.5
    np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-5)


def test_bit_functions_agree_with_python(cuda):
    x, y = np.random.default_rng(0).integers(-9, 9, 32, np.int32), np.zeros(32, np.uint32)
    cuda.bits[1, 32](x, y)
    b = sum(1 << i for i in range(32) if x[i] > 0)
    reverse = int(f"{b:032b}"[::-1], 2)
    total = b.bit_count() + (b & -b).bit_length() + 32 - b.bit_length() + reverse
    assert (y == total % (1 << 32)).all()


def test_brain_floats(cuda):
    x = floats(100).astype(ml_dtypes.bfloat16)
    y = np.zeros_like(x)
    cuda.brains[1, 128](x, y, 100)
    assert np.array_equal(y, (x.astype(np.float32) * 1.5).astype(ml_dtypes.bfloat16))


def test_a_struct_by_value(cuda):
    x, y = floats(64), np.zeros(64, np.float32)
    cuda.by_value[1, 64]({0: 1.5, 4: 60, 8: x}, y)
    assert np.array_equal(y[:60], np.float32(1.5) * x[:60]) and not y[60:].any()
    with pytest.raises(tc.ArgumentError, match=r"reads by_value_param_0\+8, for which no value was given"):
        cuda.by_value[1, 64]({0: 1.5, 4: 60}, y)
    y[:] = 0
    cuda.by_value[1, 64]({0: np.array([1.5, 0], "f4").tobytes(), 4: 60, 8: x}, y)
    assert np.array_equal(y[:60], np.float32(1.5) * x[:60])
    with pytest.raises(tc.ArgumentError, match="has 16 bytes, as a struct has: pass its bytes"):
        cuda.by_value[1, 64](1.5, y)


def test_constants(cuda):
    y = np.zeros(8, np.float32)
    cuda.constants[1, 8](y)
    assert y.tolist() == [1, 2, 3, 4] * 2
    cuda.memory("table").view(np.float32)[0] = 9
    cuda.constants[1, 8](y)
    assert y.tolist() == [9, 2, 3, 4] * 2
    cuda.memory("table").view(np.float32)[0] = 1


def test_local_memory(cuda):
    x, y = np.random.default_rng(0).integers(0, 16, 16, np.int32), np.zeros(64, np.int32)
    cuda.locals[1, 64](x, y)
    wanted = []
    for k in range(64):
        total = 0
        for _ in range(16):
            k = int(x[k & 15])
            total += k
        wanted.append(total)
    assert y.tolist() == wanted


def test_calls_through_pointers(cuda):
    """From a table of functions, and of virtual functions of objects on the heap."""
    x = np.arange(8, dtype=np.float32)
    y = x.copy()
    cuda.pointers[1, 8](y)
    assert np.array_equal(y, x * np.array([2, 3] * 4, np.float32))
    y = x.copy()
    cuda.virtuals[1, 8](y)
    assert np.array_equal(y, x * x * np.array([0.5, 1] * 4, np.float32))
    with pytest.raises(tc.EmulationError, match="trap"):
        cuda.pointer_of_the_host[1, 1](0, y)


def test_a_heap_ends(cuda):
    failed = np.zeros(64, np.int32)
    cuda.full_heap[1, 64](failed, 1000)
    assert not failed.any()
    for _ in range(2):  # `free` gives the blocks of the first launch back.
        with pytest.warns(RuntimeWarning, match="full_heap: malloc returned NULL, because the heap of 8 MiB"):
            cuda.full_heap[1, 64](failed, 1 << 20)
        assert set(failed.tolist()) == {0, -1} and np.count_nonzero(failed == 0) == 8
    with pytest.warns(RuntimeWarning, match="malloc returned NULL") as told:
        cuda.full_heap[1, 64](failed, (1 << 64) - 2048)
    assert told[0].filename == __file__
    assert set(failed.tolist()) == {-1}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cuda.full_heap[1, 64](failed, 1000)
    assert not failed.any()


HEAP = """
extern "C" __global__ void in_turn(int *flag, int *out) {
  if (blockIdx.x) while (!atomicAdd(flag, 0));
  int *block = (int *)malloc(64);
  *block = blockIdx.x + 5;
  out[blockIdx.x] = *block;
  free(block);
  if (!blockIdx.x) atomicAdd(flag, 1);
}
extern "C" __global__ void too_large(char **blocks) {
  blocks[0] = (char *)malloc(4096);
  blocks[1] = (char *)malloc((size_t)-2048);
  blocks[2] = (char *)malloc(64);
  free(blocks[0]);
  free(blocks[1]);
  blocks[3] = (char *)malloc(64);
  free(blocks[2]);
  free(blocks[3]);
  blocks[4] = (char *)malloc(64);
  free(blocks[4]);
}
"""


@pytest.fixture(scope="module")
def heap():
    pytest.importorskip("cuda.bindings.nvrtc")
    yield tc.ptx.from_cuda(HEAP, "sm_90")


def test_a_block_of_the_heap_has_one_owner_after_another(heap):
    """`free` and `malloc` order their accesses, which is no race."""
    out = np.zeros(2, np.int32)
    heap.in_turn[2, 1](np.zeros(1, np.int32), out)
    assert out.tolist() == [5, 6]


def test_blocks_of_the_heap_do_not_overlap(heap):
    blocks = np.zeros(5, np.uint64)
    with pytest.warns(RuntimeWarning, match="malloc returned NULL"):
        heap.too_large[1, 1](blocks)
    first, huge, second, third, again = blocks.tolist()
    assert huge == 0 and second == first + 4096 and third == second + 64 and again == first


def test_barriers_of_a_grid(cuda):
    x, y = np.zeros((2, 64), np.int32)
    cuda.whole_grid.configured(4, 16, cooperative=True)(x, y)
    assert np.array_equal(y, 2 * np.arange(64)[::-1] + 1)
    with pytest.raises(tc.LaunchError, match="a cooperative launch of 5000 CTAs"):
        cuda.whole_grid.configured(5000, 16, cooperative=True)(
            np.zeros(80000, np.int32), np.zeros(80000, np.int32)
        )
    with pytest.raises(tc.EmulationError, match="trap"):
        cuda.whole_grid[4, 16](x, y)


def test_errors_are_at_the_line_of_cuda(cuda):
    lines = SOURCE.read_text().splitlines()
    with pytest.raises(tc.OutOfBounds) as error:
        cuda.saxpy[4, 256](floats(900), floats(1000), 2.0, 1000)
    assert "y[i] = a * x[i]" in lines[error.value.loc.line - 1]
    assert error.value.loc.filename == str(SOURCE)
    with pytest.raises(tc.Race) as race:
        cuda.no_barrier[1, 64](floats(64), np.zeros(64, np.float32))
    assert "RACE" in lines[race.value.loc.line - 1]
    assert race.value.cure == "__syncthreads() between the two would order them"
    cuda.no_barrier.emulator(checks=False)[1, 64](floats(64), np.zeros(64, np.float32))
