"""Convolution forward as a product of matrices that are never built (implicit GEMM), for Hopper.

    y[n, p, q, k] = sum over r, s, c of x[n, p + r d - padding, q + s d - padding, c] w[k, r, s, c]

Arrays   x (N, H, W, C), w (K, R, S, C), y (N, P, Q, K): channels last, each contiguous; P is
         H + 2 padding - (R - 1) d, Q likewise, for a dilation d.
Types    x, w and y are all f16 or all bf16; sums are f32.
Sizes    C and K are multiples of 8 (rows of 16 bytes, for TMA), all others any. Stride 1.

As a product, y has N P Q rows and K columns, and the sum runs over R S C. For one (r, s) the left
matrix is x itself, moved by (r, s): so TMA loads a box of 64 pixels by 64 channels as it lies in
x, and fills with zeros what lies outside, which is what padding means, at edges of channels
too. There is no matrix of patches, and no index arithmetic for single elements.

A block has a producer warpgroup, one thread of which issues all loads into a ring of stages, and
two consumers, each with its own box of 64 pixels, that multiply by wgmma. Blocks are persistent:
while the consumers store a tile, the producer loads the next one. docs/hopper_tutorial.md develops
this structure step by step.

    python examples/convolution.py --size 9 --channels 24 --filters 40

runs on the GPU if there is a Hopper one, else in emulation, and prints the largest error.
"""

from __future__ import annotations

import argparse
from itertools import product
from math import prod
from typing import Any

import numpy as np

import tensorcore_dsl as tc

PIXELS = 64  # of a box, which one consumer multiplies
CHANNELS = 64  # of a box: 128 bytes, one swizzle
CONSUMERS = 2
FILTERS = 256, 128, 64  # columns of a tile
STAGES = 4
WIDTH = 64  # columns of y that one store takes: 128 bytes
THREADS = 128 * (1 + CONSUMERS)
BLOCKS = 132  # at most: one for each multiprocessor of an H200
DTYPES = {"f16": tc.f16, "bf16": tc.bf16}
ROUNDOFF = {"f16": 2.0**-11, "bf16": 2.0**-8}


@tc.kernel(threads=THREADS, min_blocks=1)
def convolution_kernel(
    x: tc.Array,
    w: tc.Array,
    y: tc.Array,
    padding: tc.s32,
    dilation: tc.s32,
    box: tc.Const = (1, 8, 8),
    filters: tc.Const = 128,
):
    """Any number of blocks. box: images, rows and columns of a box; filters: columns of a tile."""
    mma = getattr(tc.wgmma, f"m64n{filters}k16")(x.dtype, x.dtype, tc.f32)
    tile_x = tc.shared((STAGES, CONSUMERS, PIXELS, CHANNELS), x.dtype, swizzle=128)
    tile_w = tc.shared((STAGES, filters, CHANNELS), x.dtype, swizzle=128)
    staging = tc.shared((CONSUMERS, 2, PIXELS, WIDTH), x.dtype, swizzle=128)
    map_x = tc.tensor_map(x, (*box, CHANNELS), swizzle=128)
    map_w = tc.tensor_map(w, (filters, 1, 1, CHANNELS), swizzle=128)
    map_y = tc.tensor_map(y, (*box, WIDTH), swizzle=128)
    full, empty = tc.mbarriers(STAGES), tc.mbarriers(STAGES)
    (_, height, width, columns), (_, rows_w, columns_w, channels) = y.shape, w.shape
    across, down = -(-width // box[2]), -(-height // box[1])  # boxes of an image
    boxes = -(-y.shape[0] // box[0]) * down * across
    tiles_n = -(-columns // filters)
    tiles = -(-boxes // CONSUMERS) * tiles_n
    steps = rows_w * columns_w * -(-channels // CHANNELS)  # of the sum, for a tile

    if tc.threadIdx.x == 0:
        for stage in tc.static_range(STAGES):
            full[stage].init(1)  # the producer's arrival, and the bytes that it announces
            empty[stage].init(CONSUMERS)
        tc.fence_mbarrier_init()
    tc.barrier()

    def place(tile, consumer):
        """First image, row and column of y of the consumer's box. Tiles of the same pixels follow
        each other, so that x comes from the L2 cache. Behind the last box the image is none of y:
        then loads are zeros, and stores store nothing."""
        number = tile // tiles_n * CONSUMERS + consumer
        p = number // across % down
        return number // (across * down) * box[0], p * box[1], number % across * box[2]

    def produce():
        if tc.threadIdx.x == 0:
            # A new barrier is in phase 0, so a wait for parity 1 returns at once: all stages start
            # out empty. Stage and phase run on from tile to tile.
            stage, phase = tc.u32(0), tc.u32(1)
            for tile in tc.range(tc.blockIdx.x, tiles, tc.gridDim.x):
                places = [place(tile, consumer) for consumer in range(CONSUMERS)]
                k = tile % tiles_n * filters
                for r in tc.range(rows_w):
                    for s in tc.range(columns_w):
                        for c in tc.range(0, channels, CHANNELS):
                            empty[stage].wait(phase)
                            full[stage].arrive_expect_tx(CONSUMERS * map_x.bytes + map_w.bytes)
                            for consumer, (n, p, q) in enumerate(places):
                                moved = n, p + r * dilation - padding, q + s * dilation - padding, c
                                tc.tma_load(tile_x[stage, consumer], map_x, moved, full[stage])
                            tc.tma_load(tile_w[stage], map_w, (k, r, s, c), full[stage])
                            stage, phase = advance(stage, phase)

    def consume(consumer):
        thread = tc.threadIdx.x % 128
        acc = mma.d.zeros()
        stage, phase = tc.u32(0), tc.u32(0)
        previous = stage
        for tile in tc.range(tc.blockIdx.x, tiles, tc.gridDim.x):
            for step in tc.range(steps):
                full[stage].wait(phase)
                tc.wgmma_fence()
                # The first product of a tile overwrites the sums of the tile before.
                acc = tc.wgmma_async(mma, acc, tile_x[stage, consumer], tile_w[stage], accumulate=step > 0)
                tc.wgmma_commit()
                # One product stays in flight; the one before has ended, so its stage is free.
                tc.wgmma_wait(1)
                empty[previous].arrive(pred=(thread == 0) & (step > 0))
                previous = stage
                stage, phase = advance(stage, phase)
            tc.wgmma_wait(0)
            empty[previous].arrive(pred=thread == 0)
            first = tile % tiles_n * filters
            store_tile(acc, staging, consumer, map_y, place(tile, consumer), first)
        # Shared memory must live until TMA has read the last buffers.
        tc.tma_store_wait(0, read=True)

    tc.warp_specialize((1, produce), (CONSUMERS, consume))


def advance(stage, phase):
    """The next stage of the ring; the parity flips when the ring starts again."""
    last = stage == STAGES - 1
    return tc.select(last, tc.u32(0), stage + 1), tc.select(last, phase ^ 1, phase)


def store_tile(acc, staging, consumer, map_y, place, first):
    """WIDTH columns at a time through one of two buffers; TMA leaves out what is not in y."""
    thread, slots = tc.threadIdx.x % 128, len(acc) * WIDTH // acc.layout.cols
    for part in tc.static_range(acc.layout.cols // WIDTH):
        buffer = staging[consumer, part % 2]
        if thread == 0:  # it has issued all stores; the one before last has read this buffer
            tc.tma_store_wait(1, read=True)
        tc.barrier(consumer + 1, 128)  # of this warpgroup; 0 is the block's
        for slot in tc.static_range(part * slots, (part + 1) * slots, 2):
            row, col = acc.coordinates(slot)
            pair = [acc[slot + i].to(map_y.dtype) for i in range(2)]
            buffer.at(row, col - part * WIDTH).store(pair)
        # Threads have written by the generic proxy, TMA reads by the asynchronous one.
        tc.fence_proxy_async()
        tc.barrier(consumer + 1, 128)
        if thread == 0:
            tc.tma_store(map_y, (*place, first + part * WIDTH), buffer)
            tc.tma_store_commit()


def box_for(images: int, height: int, width: int) -> tuple[int, int, int]:
    """Images, rows and columns of a box: the powers of two that cover y with the fewest boxes."""
    powers = [2**i for i in range(PIXELS.bit_length())]
    fitting = [b for b in product(powers, repeat=3) if prod(b) == PIXELS]

    def boxes(box: tuple[int, ...]) -> int:
        n, p, q = (-(-size // part) for size, part in zip((images, height, width), box))
        return n * p * q

    # Of equals the one with the fewest images, whose boxes overlap most from (r, s) to the next.
    return min(fitting, key=lambda box: (boxes(box), box[0], abs(box[1] - box[2])))


def filters_for(boxes: int, columns: int) -> int:
    """Columns of a tile, for which the busiest block has the least work.

    A tile of few columns takes longer than its share: its box of x weighs as much as 32 columns.
    """

    def work(filters: int) -> int:
        tiles = -(-boxes // CONSUMERS) * -(-columns // filters)
        return -(-tiles // BLOCKS) * (filters + 32)

    return min(FILTERS, key=work)


def shape_of(x: Any, w: Any, padding: int, dilation: int) -> tuple[int, int, int, int]:
    """The shape of y."""
    p, q = (x.shape[i] + 2 * padding - (w.shape[i] - 1) * dilation for i in (1, 2))
    return x.shape[0], p, q, w.shape[0]


def launch(x: Any, w: Any, y: Any, padding: int, dilation: int, kernel: Any) -> None:
    """Fill y, of arrays that the caller has checked."""
    box = box_for(*y.shape[:3])
    boxes = prod(-(-size // part) for size, part in zip(y.shape, box))
    filters = filters_for(boxes, y.shape[3])
    tiles = -(-boxes // CONSUMERS) * -(-y.shape[3] // filters)
    kernel[min(BLOCKS, tiles), THREADS](x, w, y, padding, dilation, box=box, filters=filters)


def convolution(
    x: Any, w: Any, padding: int = 0, dilation: int = 1, stride: int = 1, kernel: Any = convolution_kernel
) -> Any:
    """y (N, P, Q, K) of NumPy arrays x (N, H, W, C) and w (K, R, S, C).

    `kernel` may also be an emulator of it, `convolution_kernel.emulator("sm_90a")`.
    Raises tc.ArgumentError for shapes and types that do not fit each other.
    """
    if x.ndim != 4 or w.ndim != 4 or x.shape[3] != w.shape[3]:
        raise tc.ArgumentError(
            f"x is (N, H, W, C) and w (K, R, S, C) of as many channels; they are {x.shape} and {w.shape}"
        )
    if x.shape[3] % 8 or w.shape[0] % 8 or not x.shape[3]:
        raise tc.ArgumentError(
            f"C and K must be multiples of 8 (TMA moves 16 bytes); they are {x.shape[3]} and {w.shape[0]}"
        )
    if stride != 1 or padding < 0 or dilation < 1:
        raise tc.ArgumentError(
            f"the stride is 1, the padding at least 0 and the dilation at least 1; they are "
            f"{stride}, {padding} and {dilation}"
        )
    if x.dtype != w.dtype or x.dtype not in [t.numpy for t in DTYPES.values()]:
        raise tc.ArgumentError(
            f"x and w must be both float16 or both bfloat16; they are {x.dtype} and {w.dtype}"
        )
    shape = shape_of(x, w, padding, dilation)
    if min(shape[1:3]) < 1:
        raise tc.ArgumentError(
            f"w {w.shape} does not fit in x {x.shape} with padding {padding}, dilation {dilation}"
        )
    y = np.zeros(shape, x.dtype)
    if y.size and w.size:
        launch(aligned(x), aligned(w), y, padding, dilation, kernel)
    return y


def aligned(array: Any) -> Any:
    """The array, or a copy that is contiguous and starts at a multiple of 16 bytes."""
    array = np.ascontiguousarray(array)
    return array if array.ctypes.data % 16 == 0 else array.copy()


def reference(x: Any, w: Any, padding: int = 0, dilation: int = 1) -> tuple[Any, Any]:
    """Compute the result in float64, and a bound of the error of each element.

    Tensor cores truncate the terms of a sum 2⁻²² below the largest, so a sum of R S C products is
    off by R S C 2⁻²² times that of their magnitudes. The result is rounded once: u, or 2⁻²⁵ where
    f16 is subnormal.
    """
    u = ROUNDOFF["f16" if x.dtype == np.float16 else "bf16"]
    shape = shape_of(x, w, padding, dilation)
    edges = (padding, padding)
    exact, magnitudes = np.zeros(shape), np.zeros(shape)
    padded = np.pad(x.astype(np.float64), ((0, 0), edges, edges, (0, 0)))
    for r, s in np.ndindex(w.shape[1:3]):
        rows, columns = (slice(i * dilation, i * dilation + n) for i, n in zip((r, s), shape[1:3]))
        moved, weights = padded[:, rows, columns], w[:, r, s].astype(np.float64).T
        exact += moved @ weights
        magnitudes += abs(moved) @ abs(weights)
    terms = w[0].size
    return exact, 1.01 * (terms * 2.0**-22 * magnitudes + u * abs(exact) + 2.0**-25)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="A convolution, compared with NumPy.")
    parser.add_argument("--images", type=int, default=2, help="N (default: %(default)s)")
    parser.add_argument("--size", type=int, default=9, help="H and W (default: %(default)s)")
    parser.add_argument("--channels", type=int, default=24, help="C (default: %(default)s)")
    parser.add_argument("--filters", type=int, default=40, help="K (default: %(default)s)")
    parser.add_argument("--taps", type=int, default=3, help="R and S (default: %(default)s)")
    parser.add_argument("--padding", type=int, default=1, help="(default: %(default)s)")
    parser.add_argument("--dilation", type=int, default=1, help="(default: %(default)s)")
    parser.add_argument("--dtype", default="bf16", choices=DTYPES, help="of x, w and y")
    options = parser.parse_args(arguments)

    draw, dtype = np.random.default_rng(0), DTYPES[options.dtype].numpy
    x_shape = options.images, options.size, options.size, options.channels
    w_shape = options.filters, options.taps, options.taps, options.channels
    x, w = (draw.standard_normal(shape).astype(dtype) for shape in (x_shape, w_shape))
    y = convolution(x, w, options.padding, options.dilation)
    exact, bound = reference(x, w, options.padding, options.dilation)
    error = abs(y.astype(np.float64) - exact)
    where = "the GPU" if tc.current_target() == "cuda" else "the CPU, emulated"
    share = (error / bound).max()
    print(f"ran on {where}; largest error {error.max():.2e}, {share:.2f} of its bound")
    if not (error <= bound).all():
        raise SystemExit("y DIFFERS from NumPy")


if __name__ == "__main__":
    main()
