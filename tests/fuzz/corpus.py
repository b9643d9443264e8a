"""Kernels that the fuzzer changes: small ones that together use most of the language."""

from __future__ import annotations

import itertools
import linecache
import random
import types
from functools import cache
from typing import Any

import numpy as np

HEADER = "import tensorcore_dsl as tc\nimport math\n\n"

PLAIN = """
@tc.kernel
def kernel(x, y, n):
    i = tc.blockIdx.x * tc.blockDim.x + tc.threadIdx.x
    total = tc.f32(0)
    for k in range(n):
        if k == 3:
            continue
        if total > 100.0:
            break
        total += x[(i + k) % x.shape[0]] * 0.5 + tc.sqrt(total)
    while total > 10.0 and i < 5:
        total -= 1.0
    if i < 7:
        y[i] = total
    elif i == 8 or n > 2:
        y[i] = -total
    else:
        y[i] = tc.f32(i)
"""

SHARED = """
def twice(value, count=2):
    for _ in range(count):
        value = value + value
    return value

@tc.kernel
def kernel(x, y, n):
    tile = tc.shared((8, 32), tc.f32)
    t = tc.threadIdx.x
    tile[t // 32 % 8, t % 32] = x[t]
    tc.barrier()
    value = tile[t // 32 % 8, 31 - t % 32]
    value = twice(value)
    value += tc.shfl_down(value, 16)
    if tc.vote("any", value > 3.0):
        value = max(value, 1.0)
    tc.syncwarp()
    old = tc.atomic("add", y.at(0), 1.0)
    y[t] = value if t > n else old
"""

ASYNC = """
@tc.kernel
def kernel(x, y, n):
    tile = tc.shared((128,), tc.f32, align=128)
    bar = tc.mbarriers(2)
    t = tc.threadIdx.x
    if t == 0:
        bar[0].init(tc.blockDim.x)
        bar[1].init(1)
    tc.barrier()
    tc.cp_async(tile.at(t), x.at(t), 4)
    tc.cp_async_commit()
    tc.cp_async_wait(0)
    bar[0].arrive()
    bar[0].wait(0)
    y[t] = tile[63 - t % 64]
"""

TENSOR = """
@tc.kernel
def kernel(x, y, n):
    map = tc.tensor_map(x, (32,))
    tile = tc.shared((32,), tc.f32, align=128)
    bar = tc.mbarriers(1)[0]
    t = tc.threadIdx.x
    if t == 0:
        bar.init(1)
        tc.fence_mbarrier_init()
    tc.barrier()
    if t == 0:
        bar.arrive_expect_tx(map.bytes)
        tc.tma_load(tile, map, (n * 4,), bar)
    bar.wait(0)
    if t < 32:
        y[t] = tile[t]
"""

PRODUCT = """
@tc.kernel
def kernel(x, y, n):
    mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
    a = mma.a.zeros()
    b = mma.b.zeros()
    c = mma.c.zeros()
    for k in range(n):
        c = mma(a, b, c)
    lane = tc.threadIdx.x
    values = [c[i] for i in range(4)]
    for i, v in enumerate(values):
        y[(lane + i) % 32] = v + x[i]
    print(lane, c[0])
"""

SOURCES = {"plain": PLAIN, "shared": SHARED, "async": ASYNC, "tensor": TENSOR, "product": PRODUCT}
BLOCK = 128
_numbers = itertools.count()


def load(source: str) -> Any:
    """The kernel of a source, whose lines `inspect` finds."""
    name = f"<fuzz {next(_numbers)}>"
    lines = (HEADER + source).splitlines(keepends=True)
    linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    module = types.ModuleType("fuzzed")
    exec(compile(HEADER + source, name, "exec"), module.__dict__)
    return module.__dict__["kernel"]


def arguments(draw: random.Random | None = None) -> tuple[np.ndarray, np.ndarray, int]:
    number = 2 if draw is None else draw.choice((0, 1, 2, 5, 31, -1, 10**6))
    return np.ones(256, np.float32), np.zeros(256, np.float32), number


@cache
def texts() -> dict[str, str]:
    """The IR of each kernel."""
    kernels = {name: load(source) for name, source in SOURCES.items()}
    return {name: kernel.ir(*arguments(), arch="sm_90a") for name, kernel in kernels.items()}
