"""Compare the ways in which the emulator may run a launch: `python -m tests.fuzz.ways --seed 1`.

Random whole products (product_cases.py) are emulated in each of `WAYS`, and all must give the bits
of the first one, those of every NaN included. A way changes how the emulator works, not what it
is asked for: threads, processes, also with threads in each, small chunks, shared steps, regions,
checks, orders of threads, the loops of products, and what new memory holds. `--only 17,23` runs some cases, `--ways order,races`
some ways.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl.checking.session import checking
from tensorcore_dsl.interpreter import EmulatedLaunch, processes
from tensorcore_dsl.interpreter.core.policy import executing
from tensorcore_dsl.kernel import specialisation
from tensorcore_dsl.numerics.plans import without_blocks
from tests.fuzz import product_cases

ARCHS = ("sm_90a", "sm_90a", "sm_90a", "sm_80")
BIG = 1 << 19  # multiply-adds from which the slow ways are left out
SLOW = ("order", "loops")


@contextmanager
def options(**given: Any) -> Iterator[None]:
    """Launches have these fields of `EmulatedLaunch`."""

    def launch(*args: Any, **named: Any) -> EmulatedLaunch:
        return EmulatedLaunch(*args, **named | given)

    with patch.object(specialisation, "EmulatedLaunch", launch):
        yield


@contextmanager
def apart() -> Iterator[None]:
    """All launches that may run in processes do, three of them; those of other ways do not."""
    with patch.dict(os.environ), executing(cores=3, processes=True):
        os.environ.pop(processes.VARIABLE, None)
        yield


@contextmanager
def shared(**policy: Any) -> Iterator[None]:
    """Four threads share all steps that can be shared, and take turns as often as they can."""
    interval = sys.getswitchinterval()
    with executing(cores=4, shared_work=1, **policy):
        sys.setswitchinterval(1e-6)
        try:
            yield
        finally:
            sys.setswitchinterval(interval)


@contextmanager
def dirty() -> Iterator[None]:
    """New memory holds a pattern, which is a NaN of f64 and a large number of other types."""
    empty = np.empty

    def filled(*args: Any, **named: Any) -> Any:
        made = empty(*args, **named)
        if not made.dtype.hasobject:
            made.reshape(-1).view(np.uint8)[...] = 0x7F
        return made

    with patch.object(np, "empty", filled):
        yield


@contextmanager
def ordered(seed: int) -> Iterator[None]:
    with options(order=seed):
        yield


WAYS: dict[str, Callable[[int], AbstractContextManager[Any]]] = {
    "alone": lambda seed: options(workers=1),
    "chunks": lambda seed: executing(cores=4, chunk_threads=1),
    "processes": lambda seed: apart(),
    "shared": lambda seed: shared(),
    "shared chunks": lambda seed: shared(chunk_threads=1),
    "regions": lambda seed: shared(compile_cost=0, regions_on_disk=False),
    "dirty": lambda seed: dirty(),
    "unchecked": lambda seed: options(checks=False),
    "races": lambda seed: checking(collect=False),
    "order": ordered,
    "loops": lambda seed: without_blocks(),
}


def differences(seed: int, index: int, names: Sequence[str]) -> list[str]:
    """What a case gives otherwise than in the first way, one line for each way."""
    case = product_cases.product(seed, index)
    draw = product_cases.Draw(seed, index, 2)
    plain = case.kind in ("gemm", "epilogue") and case.dtype not in product_cases.FP8
    arch = draw.choice(ARCHS) if plain and case.config is None else "sm_90a"
    invariant = draw.chance(25) and case.kind != "requantised"
    more = {"bits": "batch_invariant"} if invariant else {}
    lines: list[str] = []
    first: Any = None
    for name in names:
        if name in SLOW and case.M * case.N * case.K > BIG:
            continue
        with (
            tc.target("cpu", arch),
            np.errstate(all="ignore"),
            patch.dict(os.environ, {processes.VARIABLE: "off"}),
            WAYS[name](1 + draw.below(1 << 20)),
        ):
            try:
                results, choice = product_cases.run(case, seed, index, **more)
                one: Any = [np.ascontiguousarray(x).tobytes() for x in results]
            except Exception as error:
                one = f"{type(error).__name__}: {getattr(error, 'message', error)}"
                choice = ""
        if first is None:
            first = one, choice
            if isinstance(one, str) and not one.startswith("ArgumentError"):
                lines.append(f"{name}: {one}")
        elif one != first[0]:
            what = one if isinstance(one, str) else "other bits"
            lines.append(f"{name}: {what} ({arch} {more} {first[1]})")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz.ways", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--only", help="numbers of cases, 3,17,23, instead of a range")
    parser.add_argument("--ways", help="some of: " + ", ".join(WAYS))
    parser.add_argument("--limit", type=float, default=1e6, help="seconds, then no more cases")
    arguments = parser.parse_args()
    names = arguments.ways.split(",") if arguments.ways else list(WAYS)
    chosen = [int(i) for i in arguments.only.split(",")] if arguments.only else None
    began, done, wrong = time.monotonic(), 0, 0
    for index in chosen or range(arguments.first, arguments.first + arguments.count):
        if time.monotonic() - began > arguments.limit:
            break
        lines = differences(arguments.seed, index, names)
        done, wrong = done + 1, wrong + bool(lines)
        for line in lines:
            print(
                f"DIFFERENT {index}: {product_cases.product(arguments.seed, index)}\n    {line}", flush=True
            )
    print(f"{done} cases in {time.monotonic() - began:.0f} s, {wrong} differ")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
