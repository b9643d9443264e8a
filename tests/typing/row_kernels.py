"""Kernels that work on rows, as users write them; type checkers find nothing wrong here."""

import math

import numpy as np

import tensorcore_dsl as tc

WARPS = 4
THREADS = 32 * WARPS


def warp_sum(value: tc.f32) -> tc.f32:
    for step in (16, 8, 4, 2, 1):
        value = value + tc.shfl_xor(value, step)
    return value


def block_sum(value: tc.f32, parts: tc.Tile) -> tc.f32:
    """The sum over all threads of a block, in every thread."""
    value = warp_sum(value)
    if tc.lane_id() == 0:
        parts[tc.warp_id()] = value
    tc.barrier()
    total = tc.f32(0)
    for warp in tc.static_range(WARPS):
        total += parts[warp]
    tc.barrier()
    return total


@tc.kernel(threads=THREADS)
def layer_norm(x: tc.Array, weight: tc.Array, bias: tc.Array, y: tc.Array, eps: float = 1e-5) -> None:
    row, columns = tc.blockIdx.x, x.shape[1]
    parts = tc.shared(WARPS, tc.f32)
    total = tc.f32(0)
    for column in range(tc.threadIdx.x, columns, THREADS):
        total += x[row, column]
    mean = block_sum(total, parts) / columns
    square = tc.f32(0)
    for column in range(tc.threadIdx.x, columns, THREADS):
        difference = x[row, column] - mean
        square += difference * difference
    scale = 1 / math.sqrt(block_sum(square, parts) / columns + eps)
    for column in range(tc.threadIdx.x, columns, THREADS):
        normal = (x[row, column] - mean) * scale
        y[row, column] = (normal * weight[column] + bias[column]).to(y.dtype)


@tc.kernel
def scan(x: tc.Array, y: tc.Array, count: tc.s32, exclusive: tc.Const = False) -> None:
    """Prefix sums of a row of at most 1024 integers: in a warp, of the warps, and both."""
    i, lane, warp = tc.threadIdx.x, tc.lane_id(), tc.warp_id()
    sums = tc.shared(32, tc.s32)
    value = 0
    if i < count:
        value = x[i]
    total = tc.s32(value)
    step = 1
    while step < 32:
        below = tc.shfl_up(total, step)
        if lane >= step:
            total = total + below
        step *= 2
    if lane == 31:
        sums[warp] = total
    tc.barrier()
    before = 0
    for other in range(warp):
        before += sums[other]
    if i < count:
        y[i] = total + before - (value if exclusive else 0)


@tc.kernel
def top_two(x: tc.Array, indices: tc.Array, values: tc.Array) -> None:
    """The two largest elements of each row and their columns, one thread a row."""
    row = tc.blockIdx.x * tc.blockDim.x + tc.threadIdx.x
    found, best = False, -math.inf
    second = best
    place = [0, 0]
    if row < len(x):
        for column in range(x.shape[1]):
            value = x[row, column]
            if not found or value > best:
                second, best = best, value
                place = [column, place[0]]
                found = True
            elif value > second:
                second = value
                place[1] = column
        indices[row, 0], indices[row, 1] = place
        values.at(row, 0).store([best, second])


@tc.kernel
def quantise(x: tc.Array, y: tc.Array, scales: tc.Array, largest: tc.Const[float] = 448.0) -> None:
    """Each row to fp8 with a scale of its own; four columns a thread, 128 a warp."""
    row, column = tc.blockIdx.x, 4 * tc.lane_id()
    loaded = x.at(row, column).load(4)
    most = tc.f32(0)
    for value in loaded:
        most = max(most, abs(value))
    for step in (16, 8, 4, 2, 1):
        most = tc.maximum(most, tc.shfl_xor(most, step))
    scale = tc.select(most > 0, largest / most, 1.0)
    y.at(row, column).store([(value * scale).to(y.dtype, satfinite=True) for value in loaded])
    if tc.lane_id() == 0:
        scales[row] = 1 / scale


BYTES = {tc.f16: 2, tc.bf16: 2, tc.f32: 4}


@tc.kernel
def copy(x: tc.Array, y: tc.Array, dtype: tc.Const[tc.DType] = tc.f32) -> None:
    """Vectors of 16 bytes."""
    assert x.dtype in (tc.f16, tc.bf16, tc.f32) and BYTES[x.dtype] == x.dtype.itemsize
    wide = dtype
    if x.dtype != tc.f32:
        wide = x.dtype
    count = 16 // wide.itemsize
    i = tc.blockIdx.x * tc.blockDim.x + tc.threadIdx.x
    quotient, rest = divmod(x.shape[0], count)
    if i < quotient:
        (y.at(0) + i * count).store((x.at(0) + i * count).load(count))
    elif i - quotient < rest:
        index = quotient * count + (i - quotient)
        y[index] = x[index]


def main() -> None:
    """Run them against NumPy."""
    draw = np.random.default_rng(0)
    x = draw.standard_normal((8, 200)).astype(np.float32)
    weight, bias = draw.standard_normal((2, 200)).astype(np.float32)
    y = np.empty_like(x)
    layer_norm[8, THREADS](x, weight, bias, y)
    exact = (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + 1e-5)
    assert np.allclose(y, exact * weight + bias, atol=1e-4)

    numbers, sums = draw.integers(-9, 9, 200).astype(np.int32), np.zeros(200, np.int32)
    scan[1, 256](numbers, sums, 200)
    assert np.array_equal(sums, np.cumsum(numbers))
    scan[1, 256](numbers, sums, 200, exclusive=True)
    assert np.array_equal(sums, np.cumsum(numbers) - numbers)

    places, values = np.zeros((8, 2), np.int32), np.zeros((8, 2), np.float32)
    top_two[1, 32](x, places, values)
    assert np.array_equal(values, -np.sort(-x, axis=1)[:, :2])
    assert np.array_equal(places, np.argsort(-x, axis=1)[:, :2])

    rows = np.ascontiguousarray(x[:, :128])
    q, scales = np.zeros((8, 128), tc.e4m3.numpy), np.zeros(8, np.float32)
    quantise.emulator("sm_90a", profile=True)[8, 32](rows, q, scales)
    assert np.allclose(q.astype(np.float32) * scales[:, None], rows, rtol=0.07, atol=0.02)

    target = np.zeros(200, np.float32)
    copy[1, 64](weight, target)
    assert np.array_equal(weight, target)


if __name__ == "__main__":
    main()
