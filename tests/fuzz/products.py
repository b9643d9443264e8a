"""Compare whole products on a GPU and in emulation: random cases, and a hash of what each gives.

    python -m tests.fuzz.products --run gpu --seed 1 --count 1000 --out gpu.json
    python -m tests.fuzz.products --run cpu --seed 1 --count 1000 --out cpu.json
    python -m tests.fuzz.products --compare gpu.json cpu.json
    python -m tests.fuzz.products --run cpu --like tests/golden/products_h200.json --out cpu.json

Each run also notes which kernel was chosen, and its configuration. A case is derived from seed and
number alone (product_cases.py), and a case that is refused has the text of its error instead of a
hash. `--only 17,23 --dump results.npz` keeps the results of some cases to look at. `--like FILE` runs
the cases of a file again, each by the kernel that it ran by then, and compares them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from multiprocessing import connection, get_context
from pathlib import Path
from typing import Any

import numpy as np

import tensorcore_dsl as tc
from tests.fuzz import product_cases

HANG = 120  # seconds that a case may take
Record = dict[str, Any]


def record(index: int, target: str, seed: int, keep: bool = False, **more: Any) -> Record:
    """What a case gives on a target: `hash`, and `nan` where the bits of NaN change it; `choice`.

    Or else `refused`, the text of an error, or `failed`, where the library is to blame. keep: also
    `results`. more: options of the call beside those of the case.
    """
    arch, case = None if target == "cuda" else "sm_90a", product_cases.product(seed, index)
    try:
        with tc.target(target, arch), warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            results, choice = product_cases.run(case, seed, index, **more)
    except tc.ArgumentError as error:
        return {"refused": error.message}
    except Exception as error:
        lines = traceback.format_exc().splitlines()[-6:]
        return {"failed": f"{type(error).__name__}: {error}", "at": "\n".join(lines)}
    one, exact = product_cases.digests(results)
    entry: Record = {"hash": one, "choice": choice}
    entry |= {"nan": exact} if exact else {}
    return entry | ({"results": results} if keep else {})


def replayed(index: int, recorded: Record, target: str, seed: int) -> Record:
    """`record` of a case by the kernel that has made the one that is `recorded`.

    Where another kernel is chosen now, the configurations are tried that the recorded choice may be
    of; where none of them leads to that choice, it is the record of what is chosen now.
    """
    replay = record(index, target, seed)
    if "choice" not in recorded or replay.get("choice") == recorded["choice"]:
        return replay
    for config in product_cases.configurations(recorded["choice"]):
        again = record(index, target, seed, config=config)
        if again.get("choice") == recorded["choice"]:
            return again
    return replay


# -- processes ---------------------------------------------------------------------------------


def serve(pipe: Any, work: Callable[[int], Record]) -> None:
    """A worker: receive numbers of cases, and send their records."""
    with suppress(EOFError, KeyboardInterrupt):
        while True:
            pipe.send(work(pipe.recv()))


class Workers:
    """Processes that call `work`. One that dies, hangs or has failed is replaced by another one."""

    def __init__(self, count: int, work: Callable[[int], Record], hang: float = HANG) -> None:
        self._count, self._work, self._hang = count, work, hang
        self._context = get_context("spawn")
        self._busy: dict[Any, tuple[Any, int, float]] = {}

    def run(self, indices: Iterable[int], limit: float) -> dict[int, Record]:
        """Records of the cases; of those that were done after `limit` seconds."""
        end, rest, records = time.monotonic() + limit, iter(indices), dict[int, Record]()
        try:
            for index in _first(rest, self._count):
                self._give(*self._start(), index)
            while self._busy and time.monotonic() < end:
                for pipe in connection.wait([*self._busy], timeout=1):
                    process, index, _ = self._busy.pop(pipe)
                    records[index] = self._receive(pipe, process)
                    if "failed" in records[index]:  # after an error of a GPU nothing else works
                        process.kill()
                        pipe, process = self._start()
                    for following in _first(rest, 1):
                        self._give(pipe, process, following)
                for process, _, since in self._busy.values():
                    if time.monotonic() - since > self._hang:
                        process.kill()  # its pipe ends then
        finally:
            for process, _, _ in self._busy.values():
                process.kill()
                process.join()
        return records

    def _start(self) -> tuple[Any, Any]:
        mine, other = self._context.Pipe()
        process = self._context.Process(target=serve, args=(other, self._work), daemon=True)
        process.start()
        other.close()
        return mine, process

    def _give(self, pipe: Any, process: Any, index: int) -> None:
        pipe.send(index)
        self._busy[pipe] = process, index, time.monotonic()

    def _receive(self, pipe: Any, process: Any) -> Record:
        try:
            received: Record = pipe.recv()
        except (EOFError, OSError):
            process.join()
            return {"failed": f"the process ended with {process.exitcode}"}
        return received


def _first(rest: Any, count: int) -> list[int]:
    """The next numbers, `count` at most."""
    return [index for _, index in zip(range(count), rest, strict=False)]


# -- the command -------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz.products",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--run", choices=("gpu", "cpu"), help="cpu emulates sm_90a")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--only", type=str, help="numbers of cases, 3,17,23, instead of a range")
    parser.add_argument("--out", type=Path, help="JSON file for the hashes")
    parser.add_argument("--dump", type=Path, help="npz file for the results themselves")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--limit", type=float, default=1e6, help="seconds, then write what there is")
    parser.add_argument("--compare", nargs=2, type=Path, metavar="FILE")
    parser.add_argument("--like", type=Path, metavar="FILE", help="records to run again")
    options = parser.parse_args()
    if options.compare:
        return compare(*(json.loads(path.read_text()) for path in options.compare))
    if not options.run:
        parser.error("--run or --compare")
    return capture(options)


def capture(options: argparse.Namespace) -> int:
    """Run cases and write their records."""
    like = json.loads(options.like.read_text()) if options.like else None
    indices: Iterable[int] = range(options.first, options.first + options.count)
    target, began = {"gpu": "cuda", "cpu": "cpu"}[options.run], time.monotonic()
    if like:
        options.seed, indices = like["seed"], map(int, like["cases"])
        work: Any = partial(_like, like["cases"], target, options.seed)
    else:
        work = partial(record, target=target, seed=options.seed, keep=options.dump is not None)
    chosen = [int(i) for i in options.only.split(",")] if options.only else list(indices)
    records = Workers(options.workers, work).run(chosen, options.limit)
    failed = [index for index, one in sorted(records.items()) if "failed" in one]
    if options.dump:
        results = {
            f"{index}_{i}": _bits(x)
            for index, one in sorted(records.items())
            for i, x in enumerate(one.pop("results", ()))
        }
        np.savez_compressed(options.dump, **results)  # type: ignore[arg-type]
    if options.out:
        write(options.out, options.seed, records)
    distinct = {_kernel_of(options.seed, i, one) for i, one in records.items() if "choice" in one}
    print(
        f"{len(records)} of {len(chosen)} cases in {time.monotonic() - began:.0f} s: "
        f"{sum('refused' in one for one in records.values())} refused, {len(failed)} failed, "
        f"{len(distinct)} kernels"
    )
    for index in failed:
        print(f"FAILED {index}: {product_cases.product(options.seed, index)}\n    {records[index]}")
    if like:
        cases = {str(index): one for index, one in sorted(records.items())}
        return compare(like, {"seed": options.seed, "cases": cases})
    return bool(failed)


def _like(cases: dict[str, Record], target: str, seed: int, index: int) -> Record:
    """`replayed`; a refusal counts as the recorded one, whatever its words are by now."""
    wanted = cases[str(index)]
    replay = replayed(index, wanted, target, seed)
    return wanted if "refused" in wanted and "refused" in replay else replay


def _kernel_of(seed: int, index: int, one: Record) -> Any:
    """What distinguishes compiled kernels, roughly: the grid does not."""
    case = product_cases.product(seed, index)
    name, _, traits = one["choice"].partition(" ")
    return name, traits.partition(" ")[2], case.dtype, case.out_dtype, case.c[:4], str(case.extra)


def _bits(x: Any) -> Any:
    """NumPy's own types, which `np.load` knows everywhere."""
    flat = np.ascontiguousarray(x)
    return flat if flat.dtype.kind in "iuf" and flat.dtype.isbuiltin == 1 else flat.view(f"u{flat.itemsize}")


def write(path: Path, seed: int, records: dict[int, Record]) -> None:
    """A line for each case, and the command that made the file."""
    lines = [f'"command": {json.dumps(" ".join(["python -m tests.fuzz.products", *sys.argv[1:]]))}']
    lines += [f'"seed": {seed}']
    cases = [f'"{index}": {json.dumps(one)}' for index, one in sorted(records.items())]
    path.write_text("{\n" + ",\n".join(lines) + ',\n"cases": {\n' + ",\n".join(cases) + "\n}}\n")


def compare(one: Any, other: Any) -> int:
    """Print the cases of two files whose results or choices differ; how many results do."""
    if one["seed"] != other["seed"]:
        raise SystemExit("the files are of different seeds")
    common = [i for i in one["cases"] if i in other["cases"]]
    unequal, choices, payloads = 0, 0, 0
    for index in common:
        a, b = one["cases"][index], other["cases"][index]
        differ = [key for key in ("hash", "refused", "failed") if a.get(key) != b.get(key)]
        differ += ["failed"] * ("failed" in a and not differ)
        unequal += bool(differ)
        choices += a.get("choice") != b.get("choice")
        payloads += not differ and a.get("nan") != b.get("nan")
        if differ or a.get("choice") != b.get("choice"):
            what = "DIFFERENT" if differ else "the same by other kernels"
            print(f"{what} {index}: {product_cases.product(one['seed'], int(index))}")
            for side in (a, b) if a.get("choice") != b.get("choice") else (a,):
                print("    " + str(side.get("choice") or side.get("refused") or side.get("failed")))
    print(
        f"{len(common)} cases: {unequal} results differ, {choices} choices, and {payloads} in the "
        f"bits of NaN alone"
    )
    return bool(unequal)


if __name__ == "__main__":
    sys.exit(main())
