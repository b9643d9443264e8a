"""What the chip can do at best, measured: tensor cores on operands at hand, and reads of memory.

Shares of these ceilings tell how much is left to win at the clocks and the power of this chip.
Zeros take less power than data and would show a ceiling that no product can reach: operands are
random.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorcore_dsl as tc
from benchmarks.gemm_cases import Case
from benchmarks.gpu import Contestant, compete
from benchmarks.operands import fill
from tensorcore_dsl.kernels.host.problem_shape import SMS

BM, BN, SLOTS, LINE = 128, 256, 4, 128  # as large as a block's tiles get, in lines of 128 bytes
THREADS = 256
ROUNDS = 400  # turns over the slots in a launch
READ_BYTES = 4 * 2**30


@dataclass(frozen=True)
class Loop:
    """An instruction to repeat: element types of A and B as the instruction has them, and of D."""

    element: Any
    depth: int
    sum: Any

    @property
    def form(self) -> Any:
        make = getattr(tc.wgmma, f"m64n{BN}k{self.depth}")
        return make(self.element, self.element, self.sum)


LOOPS = {
    "bf16": Loop(tc.bf16, 16, tc.f32),
    "f16": Loop(tc.f16, 16, tc.f32),
    "tf32": Loop(tc.tf32, 8, tc.f32),
    "e4m3": Loop(tc.e4m3, 32, tc.f32),
    "s8": Loop(tc.s8, 32, tc.s32),
}


@tc.kernel
def tensor_loop(a: tc.Array, b: tc.Array, d: tc.Array, rounds: tc.s32, mma: tc.Const):
    """d[warpgroup, thread] = the first sum that a thread holds, of `rounds` turns over the slots.

    A is SLOTS BM x 128 bytes, B SLOTS BN x 128 bytes; two warpgroups multiply 64 rows each.
    """
    tc.launch_bounds(THREADS, 1)
    tile_a = copied(a, BM)
    tile_b = copied(b, BN)
    tc.fence_proxy_async()
    tc.barrier()
    group = tc.warpgroup_id()
    acc = mma.d.zeros()
    for turn in tc.range(rounds):
        for slot in tc.static_range(SLOTS):
            tc.wgmma_fence()
            rows = halves(tile_a)[slot, group]
            acc = tc.wgmma_async(mma, acc, rows, tile_b[slot], accumulate=(turn | slot) != 0)
            tc.wgmma_commit()
            tc.wgmma_wait(1)
    tc.wgmma_wait(0)
    d[group, tc.threadIdx.x % 128] = acc[0]


def copied(array, lines: int):
    """The array's lines in slots of shared memory, as wgmma reads them."""
    depth = LINE // array.dtype.itemsize
    tile = tc.shared((SLOTS, lines, depth), array.dtype, swizzle=LINE)
    for i in tc.range(tc.threadIdx.x, SLOTS * lines * depth, THREADS):
        line = i // depth
        tile[line // lines, line % lines, i % depth] = array[line, i % depth]
    return tile


def halves(tile):
    """The slots' lines in blocks of 64."""
    slots, lines, depth = tile.shape
    slot, line, step = tile.strides
    return tile.with_parts(
        shape=(slots, lines // 64, 64, depth), strides=(slot, line * 64, line, step)
    )


def operations(dtype: str, rounds: int = ROUNDS) -> int:
    """Of one block."""
    depth = LINE // Case(dtype, 1, 1, 1).element.itemsize
    return 2 * BM * BN * depth * SLOTS * rounds


def loop_operands(torch: Any, dtype: str, device: str = "cuda") -> tuple[Any, Any, Any]:
    generator = torch.Generator(device).manual_seed(0)
    case = Case(dtype, 1, 1, 1)
    depth = LINE // case.element.itemsize
    a, b = (fill(torch, case, (SLOTS * lines, depth), generator) for lines in (BM, BN))
    kind = torch.int32 if dtype == "s8" else torch.float32
    return a, b, torch.zeros((THREADS // 128, 128), dtype=kind, device=a.device)


def measured(torch: Any, dtypes: list[str], seconds: float = 0.3) -> dict[str, Any]:
    """FLOP/s by element type and bytes/s of reads; what fails is told in its place."""
    found: dict[str, Any] = {"flops": {}, "failures": {}}
    for dtype in dtypes:
        if dtype in LOOPS:
            _note(found, dtype, lambda name=dtype: tensor_rate(torch, name, seconds))
    _note(found, "bytes", lambda: read_rate(torch, seconds))
    return found


def _note(found: dict[str, Any], name: str, measure: Callable[[], float]) -> None:
    try:
        rate = measure()
    except Exception as error:  # a share less, and nothing else
        found["failures"][name] = f"{type(error).__name__}: {error}"
        return
    if name == "bytes":
        found["bytes"] = rate
    else:
        found["flops"][name] = rate


def tensor_rate(torch: Any, dtype: str, seconds: float) -> float:
    """FLOP/s of all tensor cores, as warm as products make them."""
    a, b, d = loop_operands(torch, dtype)
    launch, form = tensor_loop[SMS, THREADS], LOOPS[dtype].form
    contestant = Contestant(torch, lambda i: launch(a, b, d, ROUNDS, form), 1)
    (timing,) = compete([contestant], 5, seconds)
    return SMS * operations(dtype) / timing.median


def read_rate(torch: Any, seconds: float) -> float:
    """Bytes/s of the fastest of torch's passes over much memory."""
    half = torch.zeros(READ_BYTES // 8, dtype=torch.float32, device="cuda")
    other = torch.empty_like(half)
    passes = {
        "sum": (lambda i: half.sum(), half.nbytes),
        "copy": (lambda i: other.copy_(half), 2 * half.nbytes),
    }
    rates = []
    for launch, count in passes.values():
        (timing,) = compete([Contestant(torch, launch, 1)], 5, seconds / 2)
        rates.append(count / timing.median)
    return max(rates)


def with_shares(results: list[dict[str, Any]], ceilings: dict[str, Any]) -> None:
    """Adds to each result the share of the time that its ceiling would allow.

    The ceiling is arithmetic or memory, whichever binds; where no loop told the arithmetic's, or
    a product beat it, it is the best rate among the results. Sparse products may run twice as fast.
    """
    peaks = dict(ceilings.get("flops", {}))
    for found in results:
        doubled = 2 if found.get("kind") == "sparse" else 1
        for timing in (found.get("ours"), found.get("reference")):
            if timing:
                peak = timing["flops"] / doubled
                peaks[found["dtype"]] = max(peaks.get(found["dtype"], 0.0), peak)
    for found in results:
        if "ours" not in found:
            continue
        doubled = 2 if found.get("kind") == "sparse" else 1
        least = found["operations"] / (doubled * peaks[found["dtype"]])
        if "bytes" in ceilings:
            least = max(least, Case.of(found).bytes / ceilings["bytes"])
        found["share"] = least / found["ours"]["median"]
