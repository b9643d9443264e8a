"""Results of kernels with arrivals, asynchronous stores, carries, tensor maps in memory and im2col mode:
`python -m tests.capture_async --out DIR` records them on a GPU.

    --out DIR    where async.npz goes (tests/golden/sm_90a, replayed by tests/test_async_records.py)
    --emulate    ask the emulator instead of a GPU
    --check      compare with the emulator; print the cases that differ
    --only TEXT  cases whose name has TEXT in it; the records of others stay
"""

from __future__ import annotations

import argparse
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl.ir.nodes import Im2col
from tests import async_kernels, carry_kernels, cluster_kernels, hopper_kernels, map_kernels, pixel_kernels

GOLDEN = Path(__file__).parent / "golden" / "sm_90a" / "async.npz"
ARCH = "sm_90a"
THREADS = 128
Run = Callable[..., None]


def on_gpu(kernel: Any, grid: int, block: int, *arguments: Any, **constants: Any) -> None:
    with tc.target("cuda"):
        kernel[grid, block](*arguments, **constants)


def on_cpu(kernel: Any, grid: int, block: int, *arguments: Any, **constants: Any) -> None:
    kernel.emulator(ARCH)[grid, block](*arguments, **constants)


class Case:
    """A kernel, its launch, and which of its arguments it writes; inputs depend on the name alone."""

    def __init__(
        self,
        name: str,
        kernel: Any,
        launch: tuple[int, int],
        given: list[Any],
        written: list[tuple[tuple[int, ...], Any]],
        after: bool = False,
        **constants: Any,
    ) -> None:
        self.name, self.kernel, self.launch = name, kernel, launch
        self.given, self.written, self.after, self.constants = given, written, after, constants

    def run(self, run: Run) -> np.ndarray:
        """The bytes of all that the kernel has written."""
        rng = np.random.default_rng(zlib.crc32(self.name.encode()))
        inputs = [made(rng) if callable(made) else np.copy(made) for made in self.given]
        written = [np.zeros(shape, dtype) for shape, dtype in self.written]
        arguments = [*written, *inputs] if self.after else [*inputs, *written]
        run(self.kernel, *self.launch, *arguments, **self.constants)
        return np.concatenate([w.reshape(-1).view(np.uint8) for w in written])


def words(shape: tuple[int, ...], dtype: Any) -> Callable[[np.random.Generator], np.ndarray]:
    """Integers of the whole range, many at its ends; floats are small whole numbers."""

    def made(rng: np.random.Generator) -> np.ndarray:
        if np.dtype(dtype).kind == "f":
            return rng.integers(-99, 99, shape).astype(dtype)
        info = np.iinfo(dtype)
        values = rng.integers(info.min, info.max, shape, dtype, endpoint=True)
        ends = np.array([info.min, info.max, 0, 1, info.max - 1], dtype)
        return np.where(rng.random(shape) < 0.4, rng.choice(ends, shape), values)

    return made


def cases() -> Iterator[Case]:
    i32, u32 = np.int32, np.uint32
    yield Case("arrive_drop", async_kernels.drops, (1, 64), [], [((3, 64), i32)])
    yield Case("complete_tx", async_kernels.cancels, (2, 32), [], [((2, 32), i32)])
    for noinc in (False, True):
        yield Case(
            f"cp.async.mbarrier.arrive noinc={noinc}",
            async_kernels.copies,
            (1, 64),
            [words((3, 128), i32)],
            [((4, 128), i32)],
            noinc=noinc,
        )
    for ctas, width, rounds, dtype in (
        (2, 1, 1, i32),
        (4, 2, 3, np.float32),
        (2, 4, 2, u32),
        (2, 1, 4, np.int64),
        (8, 2, 2, np.float64),
    ):
        shape = 2 * ctas, 32 * width
        yield Case(
            f"st.async {ctas} {width} {rounds} {np.dtype(dtype)}",
            async_kernels.sends,
            (2 * ctas, 32),
            [words(shape, dtype)],
            [(shape, dtype)],
            ctas=ctas,
            width=width,
            rounds=rounds,
        )
    for operation, dtype in (
        ("add", u32),
        ("add", i32),
        ("add", np.uint64),
        ("min", i32),
        ("min", u32),
        ("max", i32),
        ("max", u32),
        ("and", i32),
        ("or", u32),
        ("xor", i32),
    ):
        yield Case(
            f"red.async {operation} {np.dtype(dtype)}",
            async_kernels.collects,
            (8, 32),
            [words((8, 32), dtype)],
            [((8, 32), dtype)],
            operation=operation,
        )
    limits = np.full((2, 32), 3, u32)
    limits[:, :8] = np.arange(8)
    for operation in ("inc", "dec"):
        yield Case(
            f"red.async {operation}",
            async_kernels.collects,
            (2, 32),
            [limits],
            [((2, 32), u32)],
            operation=operation,
            ctas=2,
        )
    for dtype in (u32, np.uint64):
        name, four, two = np.dtype(dtype).name, words((4, THREADS), dtype), words((2, THREADS), dtype)
        for sign in "us":
            yield Case(
                f"addc subc {name} {sign}",
                carry_kernels.long_sums,
                (1, THREADS),
                [four, four],
                [((5, THREADS), dtype), ((5, THREADS), dtype)],
                sign=sign,
            )
        yield Case(
            f"madc {name}", carry_kernels.long_products, (1, THREADS), [two, two], [((4, THREADS), dtype)]
        )
    one = words((1, THREADS), u32)
    yield Case(
        "carry and borrow", carry_kernels.mixed_carries, (1, THREADS), [one, one], [((4, THREADS), u32)]
    )
    for hint in ("", ".L2::cache_hint"):
        yield Case(
            f"shared::cta loads{hint}",
            hopper_kernels.own_load,
            (2, 32),
            [words((64,), i32)],
            [((2, 32), i32)],
            hint=hint,
        )
    yield Case(
        "atomics of cluster scope",
        cluster_kernels.counts_clusters,
        (6, 32),
        [],
        [((3,), i32)],
        together=False,
    )
    for through in ("shared", "global"):
        for shape, dtype, box, corners, swizzle in map_kernels.CASES:
            yield Case(
                f"tensormap {through} {shape} {np.dtype(dtype)}",
                map_kernels.boxes_by_maps,
                (len(corners), 32),
                [
                    lambda rng, n=len(corners): map_kernels.room_for_maps(n),
                    np.array(corners, i32),
                    words(shape, dtype),
                ],
                [(shape, dtype)],
                after=True,
                box=box,
                element=map_kernels.ELEMENT[np.dtype(dtype).name],
                swizzle=swizzle,
                through=through,
            )
    for name, (shape, index, offsets, described) in (pixel_kernels.CASES | pixel_kernels.OPEN).items():
        box, half = described[0], np.float16
        yield Case(
            f"im2col load, {name}",
            pixel_kernels.load_column,
            (1, 32),
            [words(shape, half)],
            [(box, half)],
            index=index,
            offsets=offsets,
            described=described,
        )
        for reduce in () if Im2col(*described[1:4]).refuses_stores else (None, "add"):
            yield Case(
                f"im2col store, {name}, {reduce}",
                pixel_kernels.store_column,
                (1, 32),
                [words(box, half)],
                [(shape, half)],
                index=index,
                described=described,
                reduce=reduce,
            )
    for dtype in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64):
        rows = np.arange(1, 321).reshape(20, 16).astype(dtype)
        yield Case(
            f"NaN fill of {np.dtype(dtype)}",
            hopper_kernels.load_box,
            (1, THREADS),
            [rows],
            [((rows.itemsize * 64,), u32)],
            corner=np.array([10, 8], i32),
            box=(16, 16),
            nan_fill=True,
        )
    shape, index, offsets, described = pixel_kernels.CASES["an image's corner"]
    yield Case(
        "im2col load, NaN fill",
        pixel_kernels.load_column,
        (1, 32),
        [words(shape, np.float16)],
        [(described[0], np.float16)],
        index=index,
        offsets=offsets,
        described=described,
        nan_fill=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=GOLDEN.parent)
    parser.add_argument("--emulate", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    path, different, failed = options.out / GOLDEN.name, 0, 0
    records = dict(np.load(path)) if path.exists() else {}
    chosen = [case for case in cases() if options.only in case.name]
    for case in chosen:
        try:
            records[case.name] = case.run(on_cpu if options.emulate else on_gpu)
        except tc.TensorCoreError as error:
            failed += 1
            print(f"NOT CAPTURED {case.name}: {error}", flush=True)
            continue
        if options.check and not np.array_equal(records[case.name], case.run(on_cpu)):
            different += 1
            print(f"DIFFERENT {case.name}", flush=True)
        known = {c.name: records[c.name] for c in cases() if c.name in records}
        np.savez_compressed(path, **known)  # each time: a case may hang
    print(f"{len(chosen) - failed} of {len(chosen)} kernels captured, {different} differ")
    sys.exit(bool(different or failed))


if __name__ == "__main__":
    main()
