"""Measured ceilings of the chip: FLOP/s of the tensor cores, bytes/s of memory.

A GEMM's fraction of these ceilings shows what is left to gain at the clocks and the power limit of
this chip. Operands are random: zeros take less power, and their rate is out of reach for GEMMs.
"""

from __future__ import annotations

from typing import Any

import tensorcore_dsl as tc
from benchmarks.gpu import TimedLaunch, time_interleaved
from benchmarks.products.gemm_cases import DTYPES, Case
from benchmarks.products.operands import fill
from tensorcore_dsl.kernels.problem.problem_shape import SMS

BM, BN, STAGES = 128, 256, 4  # the largest tile of a CTA
SWIZZLE_BYTES = 128  # bytes of K in a row of a stage
THREADS = 256
ROUNDS = 400  # passes over the stages in a launch
SECONDS = 0.3  # length of a measurement
READ_BYTES = 4 * 2**30
# The instruction to repeat for each type of A and B.
LOOPS = {
    "bf16": tc.wgmma.m64n256k16(tc.bf16, tc.bf16, tc.f32),
    "f16": tc.wgmma.m64n256k16(tc.f16, tc.f16, tc.f32),
    "tf32": tc.wgmma.m64n256k8(tc.tf32, tc.tf32, tc.f32),
    "e4m3": tc.wgmma.m64n256k32(tc.e4m3, tc.e4m3, tc.f32),
    "s8": tc.wgmma.m64n256k32(tc.s8, tc.s8, tc.s32),
}


@tc.kernel
def tensor_loop(a: tc.Array, b: tc.Array, d: tc.Array, rounds: tc.s32, mma: tc.Const):
    """d[warpgroup, thread] = first accumulator of the thread after `rounds` passes over the stages.

    A is STAGES BM x 128 bytes, B STAGES BN x 128 bytes; two warpgroups multiply 64 rows each.
    """
    tc.launch_bounds(THREADS, 1)
    tile_a = load_stages(a, BM)
    tile_b = load_stages(b, BN)
    tc.fence_proxy_async()
    tc.barrier()
    group = tc.warpgroup_id()
    acc = mma.d.zeros()
    for i in tc.range(rounds):
        for stage in tc.static_range(STAGES):
            tc.wgmma_fence()
            rows = blocks_of_64_rows(tile_a)[stage, group]
            acc = tc.wgmma_async(mma, acc, rows, tile_b[stage], accumulate=(i | stage) != 0)
            tc.wgmma_commit()
            tc.wgmma_wait(1)
    tc.wgmma_wait(0)
    d[group, tc.threadIdx.x % 128] = acc[0]


def load_stages(array, rows: int):
    """The array in stages of shared memory, `rows` x 128 bytes each, swizzled for wgmma."""
    depth = SWIZZLE_BYTES // array.dtype.itemsize
    tile = tc.shared((STAGES, rows, depth), array.dtype, swizzle=SWIZZLE_BYTES)
    for i in tc.range(tc.threadIdx.x, STAGES * rows * depth, THREADS):
        row = i // depth
        tile[row // rows, row % rows, i % depth] = array[row, i % depth]
    return tile


def blocks_of_64_rows(tile):
    """View of the tile with each stage's rows split into blocks of 64."""
    stages, rows, depth = tile.shape
    stage, row, step = tile.strides
    return tile.with_parts(shape=(stages, rows // 64, 64, depth), strides=(stage, row * 64, row, step))


def operations(dtype: str, rounds: int = ROUNDS) -> int:
    """FLOPs of one CTA."""
    depth = SWIZZLE_BYTES // DTYPES[dtype].itemsize
    return 2 * BM * BN * depth * STAGES * rounds


def loop_operands(torch: Any, dtype: str) -> tuple[Any, Any, Any]:
    generator = torch.Generator("cuda").manual_seed(0)
    case = Case(dtype, 1, 1, 1)
    depth = SWIZZLE_BYTES // case.element.itemsize
    a, b = (fill(torch, case, (STAGES * rows, depth), generator) for rows in (BM, BN))
    accumulator = torch.int32 if dtype == "s8" else torch.float32
    return a, b, torch.zeros((THREADS // 128, 128), dtype=accumulator, device=a.device)


def measured(torch: Any, dtypes: list[str]) -> dict[str, Any]:
    """FLOP/s by element type and bytes/s of memory; failures by name."""
    ceilings: dict[str, Any] = {"flops": {}, "failures": {}}
    for name in (*(dtype for dtype in dtypes if dtype in LOOPS), "bytes"):
        try:
            if name == "bytes":
                ceilings["bytes"] = memory_rate(torch)
            else:
                ceilings["flops"][name] = tensor_rate(torch, name)
        except Exception as error:
            ceilings["failures"][name] = f"{type(error).__name__}: {error}"
    return ceilings


def tensor_rate(torch: Any, dtype: str) -> float:
    """FLOP/s of all tensor cores, after a warm-up as for GEMMs."""
    a, b, d = loop_operands(torch, dtype)
    launch, instruction = tensor_loop[SMS, THREADS], LOOPS[dtype]
    loop = TimedLaunch(torch, lambda i: launch(a, b, d, ROUNDS, instruction), 1)
    (timing,) = time_interleaved([loop], 5, SECONDS)
    return SMS * operations(dtype) / timing.median


def memory_rate(torch: Any) -> float:
    """Bytes/s of a sum or a copy of a large tensor, whichever is faster."""
    half = torch.zeros(READ_BYTES // 8, dtype=torch.float32, device="cuda")
    target = torch.empty_like(half)
    rates = []
    for launch, count in (
        (lambda i: half.sum(), half.nbytes),
        (lambda i: target.copy_(half), 2 * half.nbytes),
    ):
        (timing,) = time_interleaved([TimedLaunch(torch, launch, 1)], 5, SECONDS / 2)
        rates.append(count / timing.median)
    return max(rates)
