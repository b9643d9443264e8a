"""`python -m tests.fuzz --seconds 60 --seed 1`: cases run in child processes, which may die."""

from __future__ import annotations

import argparse
import sys

from tests.fuzz.cases import FAMILIES, run_case
from tests.fuzz.children import Failure, watch


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="time in all, shared by the families")
    parser.add_argument("--seed", type=int, default=0, help="number of the first case")
    parser.add_argument("--family", choices=FAMILIES, help="only this one")
    parser.add_argument(
        "--cases", type=int, help="run so many cases in this process, without a limit of time"
    )
    parser.add_argument("--limit", type=float, default=2, help="seconds that a case may take")
    given = parser.parse_args()
    families = (given.family,) if given.family else FAMILIES
    failures: list[Failure] = []
    for family in families:
        if given.cases is not None:
            for seed in range(given.seed, given.seed + given.cases):
                text = run_case(family, seed, given.limit)
                failures += [Failure(family, seed, text)] if text else []
            continue
        found, count = watch(family, given.seed, given.seconds / len(families), given.limit)
        print(f"{family}: {count} cases, {len(found)} failures", flush=True)
        failures += found
    for failure in failures:
        print(failure, end="\n\n")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
