"""The rest of the language, typed strictly; type checkers find nothing wrong here."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import tensorcore_dsl as tc


@dataclass(frozen=True)
class Config:
    tile: int = 16
    dtype: tc.DType = tc.f16
    fast: bool = False


@dataclass
class Running:
    """The state of an online softmax."""

    largest: tc.f32
    total: tc.f32

    def add(self, value: tc.f32) -> None:
        largest = max(self.largest, value)
        self.total = self.total * tc.exp(self.largest - largest) + tc.exp(value - largest)
        self.largest = largest


def make(operation: Callable[[Any], Any], dtype: tc.DType = tc.f32) -> tc.Kernel:
    """A kernel that applies a function to each element."""

    @tc.kernel(name="apply")
    def apply(x: tc.Array, y: tc.Array) -> None:
        i = tc.blockIdx.x * tc.blockDim.x + tc.threadIdx.x
        if i < x.shape[0]:
            y[i] = operation(dtype(x[i]))

    return apply


@tc.kernel
def states(x: tc.Array, y: tc.Array, config: tc.Const[Config] = Config()) -> None:  # noqa: B008
    lane = tc.lane_id()
    running = Running(tc.f32(-1e30), tc.f32(0))
    for column in tc.range(lane, x.shape[1], 32):
        running.add(x[0, column])
    phase, parity, found = 0, 1, False
    while phase < 3:
        phase += 1
        parity ^= 1
        found = found or running.total > 2
    kept = tc.local((2, 2), tc.f32, fill=1)
    kept[0, 1] = running.largest
    kept[1, 0] = kept[0, :][1] + kept.T[1, 0]
    index = lane % 4
    if config.fast:
        index = 0
    elif lane > 4 and not found:
        index = lane & 3
    values = [kept[i, j] for i in range(2) for j in range(2)]
    y[0, lane] = sum(values) + min(values) + max(*values) + abs(values[0]) + kept[index % 2, 0]
    y[1, lane] = float(index) + tc.f32(int(running.total)) + round(running.total) + parity
    y[2, lane] = math.floor(running.total) + pow(running.total, 2) + running.total**3
    y[3, lane] = -lane + ~lane + (lane << 2) + (1 << index) + 7 // (index + 1) + (2.0 * lane)
    y[4, lane] = (1 / running.total).to(tc.f16) + (0.5 * tc.f32(lane)).to(tc.f16)
    print(f"lane {lane}: {running.total:.3f}", lane, config.tile)


@tc.kernel
def warps(x: tc.Array, y: tc.Array) -> None:
    i = tc.threadIdx.x
    value = x[i]
    ballot = tc.vote("ballot", value > 0)
    same = tc.match_any(tc.s32(value)) & ballot
    first = tc.redux("min", tc.s32(same))
    old = tc.s32(0)
    if tc.elect():
        old = tc.atomic("add", y.at(0), 1)
    old = tc.shfl(old, 0)
    swapped = value.to(tc.f16).bits(tc.u16) if x.dtype == tc.f32 else old
    pointer = y.at(i) + 1
    if pointer >= y.at(1) and pointer - y.at(0) < len(y):
        pointer.store(old + first + swapped, pred=i < 31, cache=".cg")
    tc.syncwarp()
    tc.barrier(1, 32)


@tc.kernel
def fragments(x: tc.Array, y: tc.Array) -> None:
    mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
    tile = tc.shared((32, 16), tc.f16, swizzle=32)
    for row in tc.static_range(32):
        if tc.lane_id() < 16:
            tile[row, tc.lane_id()] = x[row, tc.lane_id()]
    tc.barrier()
    upper, lower = tc.ldmatrix(tile, mma.a)
    b = tc.load_elements(tile[:16, :8], mma.b)
    acc = mma.d.zeros()
    for a in (upper, lower):
        acc = mma(a, b, acc)
    acc = acc.map(lambda value: value * 2)
    acc = 0.5 * acc + acc
    rows = [acc.coordinates(slot)[0] for slot in range(len(acc))]
    largest = max(acc[0], acc[1])
    for element in acc:
        largest = max(largest, element)
    halves = [(element - largest).to(tc.f16) for element in acc]
    assert len(halves) == len(rows) == 4
    tc.store_elements(y[:16, :8], acc)


def main() -> None:
    """Compile them for a GPU, and run what fits here."""
    x, y = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
    with tc.target("cpu", arch="sm_80"):
        make(lambda value: 2 * value)[1, 32](x, y)
    assert np.array_equal(y, 2 * x)
    rows = np.zeros((5, 32), np.float32)
    launch = states[1, 32]
    launch(x.reshape(1, 32), rows, config=Config(fast=True))
    launch.prepare(x.reshape(1, 32), rows)(x.reshape(1, 32), rows)
    halves, out = np.ones((32, 16), np.float16), np.zeros((16, 8), np.float32)
    report = fragments.emulator("sm_90a", profile=True)[1, 32](halves, out)
    assert report.instructions and (out == 96).all()
    counts = np.zeros(34, np.int32)
    warps.emulate[1, 32](x, counts)
    types = tc.ArrayType(tc.f32, 1, (True,), 16), tc.ArrayType(tc.s32, 1, (True,), 4)
    for arch in ("sm_80", tc.ARCHS["sm_90a"]):
        text: str = states.ptx(x.reshape(1, 32), rows, arch=arch)
        assert text.startswith(".version")
    assert ".entry" in warps.ptx(*types, arch="sm_90a")
    try:
        warps[0, 32](x, y)
    except tc.TensorCoreError as error:
        assert isinstance(error, tc.LaunchError)


if __name__ == "__main__":
    main()
