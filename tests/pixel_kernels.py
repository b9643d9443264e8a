"""Kernels with tensor copies in im2col mode."""

from __future__ import annotations

import tensorcore_dsl as tc

# shape, index, offsets, (box, lower, upper, steps, swizzle)
CASES = {
    "a row": ((2, 40, 16), (0, 0, 0), (0,), ((32, 16), (0,), (0,), (1,), 0)),
    "over the end of the batch": ((2, 9, 16), (1, 5, 0), (1,), ((24, 16), (-1,), (-1,), (1,), 0)),
    "an image's corner": ((2, 4, 5, 16), (0, -1, -1, 0), (0, 0), ((32, 16), (-1, -1), (-1, -1), (1, 1), 32)),
    "from image to image": ((3, 4, 5, 32), (0, 2, 3, 0), (2, 1), ((48, 32), (-1, -1), (-1, -1), (1, 1), 64)),
    "valid taps only": ((2, 6, 7, 16), (0, 1, 2, 0), (2, 2), ((24, 16), (0, 0), (-2, -2), (1, 1), 0)),
    "steps": ((2, 9, 7, 16), (0, 1, -1, 0), (1, 1), ((24, 16), (-1, -1), (-1, -1), (2, 2), 32)),
    "uneven steps": ((2, 7, 8, 16), (0, 3, 2, 0), (0, 2), ((16, 16), (0, -1), (0, -2), (3, 1), 0)),
    "a part of the channels": ((2, 3, 4, 24), (0, 0, 0, 16), (0, 0), ((16, 16), (0, 0), (0, 0), (1, 1), 0)),
    "a volume": ((2, 3, 4, 3, 16), (0, 1, 3, 1, 0), (1, 0, 2), ((40, 16), (-1, 0, -1), (-1, 0, -1), (1, 1, 1), 0)),
    "a volume in steps": (
        (2, 5, 4, 3, 16), (0, 1, 0, -1, 0), (1, 1, 1), ((16, 16), (-1, 0, -1), (-1, 0, -1), (2, 1, 2), 32),
    ),
    "steps without a margin": ((2, 9, 7, 16), (0, 2, 2, 0), (0, 0), ((12, 16), (0, 0), (0, 0), (2, 2), 32)),
    "over the end without a margin": ((2, 9, 16), (1, 5, 0), (0,), ((24, 16), (0,), (0,), (1,), 0)),
    "a positive corner": ((2, 9, 9, 16), (0, 1, 1, 0), (0, 0), ((24, 16), (1, 1), (0, 0), (1, 1), 0)),
    "a volume without a margin": (
        (2, 5, 4, 3, 16), (0, 1, 0, 0, 0), (0, 0, 0), ((24, 16), (0, 0, 0), (0, 0, 0), (1, 1, 1), 0),
    ),
    "a positive far corner": ((2, 9, 9, 16), (0, 1, 1, 0), (0, 0), ((24, 16), (0, 0), (1, 1), (1, 1), 0)),
    "1024 pixels": ((5, 16, 17, 8), (0, 0, 3, 0), (0, 0), ((1024, 8), (0, 0), (0, 0), (1, 1), 0)),
}  # fmt: skip
# What the manual leaves open.
OPEN = {"between two steps": ((2, 9, 7, 16), (0, 1, 3, 0), (0, 0), ((12, 16), (0, 0), (0, 0), (2, 2), 32))}


@tc.kernel(threads=32)
def load_column(x, out, index: tc.Const, offsets: tc.Const, described: tc.Const, nan_fill: tc.Const = False):
    """Load one column of pixels to a tile, and the tile to `out`, (pixels, channels)."""
    box, lower, upper, steps, swizzle = described
    corners = lower, upper
    column = tc.tensor_map(x, box, swizzle, im2col=corners, element_strides=steps, nan_fill=nan_fill)
    tile = tc.shared(box, x.dtype, swizzle=swizzle, align=1024)
    bar, lane = tc.mbarriers(1)[0], tc.threadIdx.x
    if lane == 0:
        bar.init(1)
        tc.fence_mbarrier_init()
        column.prefetch(index, offsets)
        bar.arrive_expect_tx(column.bytes)
        tc.tma_load(tile, column, index, bar, offsets=offsets)
    tc.barrier()
    bar.wait(0)
    for pixel in tc.range(box[0]):
        for channel in tc.range(lane, box[1], 32):
            out[pixel, channel] = tile[pixel, channel]


@tc.kernel(threads=32)
def store_column(x, out, index: tc.Const, described: tc.Const, reduce: tc.Const = None):
    """Store `x`, (pixels, channels), to a column of pixels of `out`, or reduce it there."""
    box, lower, upper, steps, swizzle = described
    column = tc.tensor_map(out, box, swizzle, im2col=(lower, upper), element_strides=steps)
    tile, lane = tc.shared(box, x.dtype, swizzle=swizzle, align=1024), tc.threadIdx.x
    for pixel in tc.range(box[0]):
        for channel in tc.range(lane, box[1], 32):
            tile[pixel, channel] = x[pixel, channel]
    tc.fence_proxy_async()
    tc.barrier()
    if lane == 0:
        tc.tma_store(column, index, tile, reduce=reduce)
        tc.tma_store_commit()
        tc.tma_store_wait(0)


@tc.kernel(threads=128)
def convolve(x, taps, out, shape: tc.Const, geometry: tc.Const):
    """An implicit GEMM: 64 pixels of `out`, (pixels, 16), of images `x`, (N, H, W, 64), in a block.

    taps: of `shape`, (R, S, 16, 64), f16. One load brings the input of a tap for all pixels of the
    block.
    """
    (pad, stride, dilation), channels = geometry, shape[3]
    upper = [pad - (extent - 1) * dilation for extent in shape[:2]]
    column = tc.tensor_map(
        x, (64, channels), 128, im2col=((-pad, -pad), upper), element_strides=(stride, stride)
    )
    weights = tc.tensor_map(taps, (1, 1, 16, channels), 128)
    a = tc.shared((64, channels), x.dtype, swizzle=128, align=1024)
    b = tc.shared((16, channels), x.dtype, swizzle=128, align=1024)
    bar, first = tc.mbarriers(1)[0], tc.threadIdx.x == 0
    height = (x.shape[1] + pad + upper[0] - 1) // stride + 1  # of the output
    width = (x.shape[2] + pad + upper[1] - 1) // stride + 1
    pixel = 64 * tc.blockIdx.x
    image, row, col = pixel // (height * width), pixel // width % height, pixel % width
    base = (image, row * stride - pad, col * stride - pad, 0)
    if first:
        bar.init(1)
        tc.fence_mbarrier_init()
    tc.barrier()
    mma = tc.wgmma.m64n16k16(tc.f16, tc.f16, tc.f32)
    acc = mma.d.zeros()
    for tap in tc.static_range(shape[0] * shape[1]):
        if first:
            r, s = divmod(tap, shape[1])
            bar.arrive_expect_tx(column.bytes + weights.bytes)
            tc.tma_load(a, column, base, bar, offsets=(r * dilation, s * dilation))
            tc.tma_load(b, weights, (r, s, 0, 0), bar)
        bar.wait(tap % 2)
        tc.wgmma_fence()
        acc = tc.wgmma_async(mma, acc, a, b)
        tc.wgmma_commit()
        tc.wgmma_wait(0)
        tc.barrier()
    for slot in tc.static_range(len(acc)):
        r, c = acc.coordinates(slot)
        if pixel + r < out.shape[0]:
            out[pixel + r, c] = acc[slot]
