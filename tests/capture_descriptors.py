"""Which bytes of shared memory a matrix descriptor names.

Shared memory holds the number of each 16-byte chunk; A is the identity, so that D shows where each
element of B came from. All swizzles and base offsets, starts at all lines of 1,024 bytes and inside
lines, K-major and MN-major, dense (32 bytes of K) and sparse (64 bytes: more than the narrowest
swizzle has, and so the leading offset counts). See tests/capture.py.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl import isa
from tests.matrix_probes import CODES, SWIZZLES, WARPGROUP, warpgroup_kernel

ARCH = "sm_90a"
FORMS = {
    "dense": "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16.registers",
    "sparse": "wgmma.mma_async.sp.sync.aligned.m64n64k32.f32.f16.f16.registers",
}
CHUNKS = 1536  # of shared memory: numbers that f16 holds exactly
CASES = list(itertools.product(SWIZZLES, range(8), range(8)))  # swizzle, base offset, first line
LAYOUTS = ("K", "MN", "K, inside lines")


def descriptors(depth: int) -> np.ndarray:
    """(LAYOUTS * CASES,): MN-major matrices are packed tightly; `depth` bytes of K."""
    words = []
    for layout, (swizzle, base, line) in itertools.product(LAYOUTS, CASES):
        atom, start = 8 * (swizzle or 16), 128 * line
        if layout == "MN":  # atoms along K (depth / 16 of them), then along N
            along_k, along_n = atom, atom * (depth // 16)
            leading, stride = (along_n, along_k) if swizzle else (along_k, along_n)
        else:
            leading = 16 * (1 + 37 * (8 * base + line) % 300)
            stride = atom if swizzle else 8 * depth
            start += 16 * (1 + (base + line) % 7) if layout != "K" else 0
        fields = start >> 4, leading >> 4 << 16, stride >> 4 << 32
        words.append(sum(fields) | base << 49 | CODES[swizzle] << 62)
    return np.array(words, np.uint64)


def identity(sparse: bool) -> tuple[np.ndarray, np.ndarray]:
    """A warpgroup's registers of A (128, 4) and metadata (128, 1): row r takes row r of B."""
    instr = isa.instruction(FORMS["sparse" if sparse else "dense"])
    row, col = (instr.operand("a").layout.coords[..., i] for i in range(2))
    place = 2 * (row // 4) + row % 2 if sparse else row
    held = np.where((col == place) & (row < (32 if sparse else 16)), 0x3C00, 0).astype(np.uint16)
    lane = np.arange(WARPGROUP)
    rows = 16 * (lane // 32) + lane % 32 // 4
    low, high = (np.where(r % 4 < 2, 0x4444, 0xEEEE) for r in (rows, rows + 8))
    return held.view(np.uint32), (low | high << 16).astype(np.uint32)[:, None]


def arrays(sparse: bool) -> tuple[np.ndarray, ...]:
    """Arguments of the kernel; the last is the output."""
    words = descriptors(64 if sparse else 32)
    groups = len(words)
    a, meta = identity(sparse)
    own = np.hstack([np.zeros((WARPGROUP, 32), np.uint32), a, *([meta] if sparse else [])])
    numbers = np.arange(CHUNKS).astype(np.float16).view(np.uint16).astype(np.uint32)
    image = np.repeat(numbers * 0x10001, 4)
    places = np.stack([np.zeros_like(words), words, np.zeros_like(words)], axis=1)
    out = np.zeros((groups * WARPGROUP, 32), np.uint32)
    return np.tile(own, (groups, 1)), np.tile(image, (groups, 1)), places, out


def constants(sparse: bool) -> dict[str, object]:
    instr = isa.instruction(FORMS["sparse" if sparse else "dense"])
    names = [o.name for o in instr.operands if o.kind == "imm"]
    variants = tuple(
        tuple({"trans_b": int(layout == "MN"), "selector": 0}.get(n, 1) for n in names) for layout in LAYOUTS
    )
    return {"instr": instr, "variants": variants, "sizes": ((0, 0), (CHUNKS, 16 * CHUNKS))}


def numbers(out: np.ndarray, sparse: bool) -> np.ndarray:
    """(layouts, swizzles, bases, lines, k, n): the chunk that each element of B was read from."""
    rows = 32 if sparse else 16
    instr = isa.instruction(FORMS["sparse" if sparse else "dense"])
    row, col = (instr.results[0].layout.coords[..., i] for i in range(2))
    values = out.view(np.float32).reshape(-1, WARPGROUP, 32)
    matrices = np.zeros((len(values), 64, 64), np.uint16)
    matrices[:, row, col] = values.astype(np.uint16)
    return matrices[:, :rows].reshape(len(LAYOUTS), len(SWIZZLES), 8, 8, rows, 64)


def run(sparse: bool, emulate: bool) -> np.ndarray:
    inputs = arrays(sparse)
    shape = len(inputs[2]), WARPGROUP
    if emulate:
        warpgroup_kernel.emulator(ARCH)[shape](*inputs, **constants(sparse))
    else:
        with tc.target("cuda"):
            warpgroup_kernel[shape](*inputs, **constants(sparse))
    return numbers(inputs[-1], sparse)


def capture(path: Path, emulate: bool) -> int:
    """Write what the GPU reads to `path`, as npz; the number of cases that the emulator reads
    differently."""
    results = {kind: run(kind == "sparse", emulate) for kind in FORMS}
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **results)
    return sum(compared(kind, got) for kind, got in results.items())


def compared(kind: str, got: np.ndarray) -> int:
    """Print how many cases the emulator reads differently, and return it."""
    differs = (got != run(kind == "sparse", True)).any(axis=(-1, -2))
    for layout, which in itertools.product(range(len(LAYOUTS)), range(len(SWIZZLES))):
        cases = differs[layout, which]
        print(
            f"descriptors: {kind}, major {LAYOUTS[layout]}, swizzle {SWIZZLES[which]}: "
            f"{cases.sum()} of {cases.size} differ, {cases[0].sum()} of them without a base offset"
        )
    return int(differs.sum())
