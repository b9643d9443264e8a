"""`python -m tests.planted`: which planted bugs the emulator reports, and which twins it blames."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.planted import CLASSES
from tests.planted.harness import RIGHT, VERDICTS, Result, examine
from tests.planted.known import HUNG


def table(found: dict[str, list[Result]]) -> str:
    """Verdicts by class."""
    columns = ("class", "bugs", *VERDICTS, "twins blamed")
    rows = [columns]
    total: Counter[str] = Counter()
    for kind, results in found.items():
        counts = Counter(r.bug.verdict for r in results)
        counts["bugs"], counts["twins blamed"] = len(results), sum(bool(r.complaints) for r in results)
        total += counts
        rows.append((kind, *(str(counts[column]) for column in columns[1:])))
    rows.append(("all", *(str(total[column]) for column in columns[1:])))
    widths = [max(len(row[i]) for row in rows) for i in range(len(columns))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths)).rstrip() for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.planted", description=__doc__)
    parser.add_argument("--class", dest="kinds", action="append", choices=CLASSES)
    parser.add_argument("--only", action="append", default=[], help="a part of a case's name")
    parser.add_argument("--orders", type=int, default=2, help="drawn orders for each twin")
    parser.add_argument("--limit", type=float, default=20.0, help="seconds for each run")
    parser.add_argument("--skip-hung", action="store_true", help="not those that known.py has as hung")
    parser.add_argument("--verbose", "-v", action="store_true", help="print each report")
    given = parser.parse_args()

    def progress(kind: str, result: Result) -> None:
        if given.verbose:
            print(f"{kind}/{result.case.name}: {result.bug.verdict} ({result.bug.seconds:.2f} s)")
            print("    " + result.bug.report.replace("\n", "\n    "), flush=True)

    start = time.perf_counter()
    found = examine(
        given.kinds or CLASSES,
        given.only,
        given.orders,
        given.limit,
        progress,
        HUNG if given.skip_hung else frozenset(),
    )
    for kind, results in found.items():
        for result in results:
            if result.missed:
                report = result.bug.report.splitlines()[:6] if result.bug.verdict != "wrong result" else []
                print(f"{kind}/{result.case.name}: {result.bug.verdict}", *report, sep="\n    ")
            for outcome in result.complaints:
                print(f"TWIN {kind}/{result.case.name}: {outcome.verdict}\n{outcome.report}")
    print(table(found))
    print(f"{time.perf_counter() - start:.0f} s")
    results = [r for rs in found.values() for r in rs]
    return int(any(r.bug.verdict != RIGHT or r.complaints for r in results))


if __name__ == "__main__":
    sys.exit(main())
