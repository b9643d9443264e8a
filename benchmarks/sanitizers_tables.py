"""Tables of planted bugs: what compute-sanitizer, the GPU alone and the emulator find."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks.sanitizers_process import PLAIN, TOOLS
from benchmarks.tables import Table, duration

NO_REPORT = ("wrong result", "silent", "hung")  # verdicts of the emulator on a bug
FINE, RIGHT_LINE = "fine", "right line"
NOT_RUN = ("refused", "not started")

Result = dict[str, Any]
Judge = Callable[[Result], bool]


def by_tool(tool: str) -> Judge:
    return lambda result: bool(result["runs"].get(tool, {}).get("reports"))


def by_any(result: Result) -> bool:
    return any(by_tool(tool)(result) for tool in TOOLS)


def told_apart(results: Sequence[Result]) -> Judge:
    """Whether some tool reports a bug and not its twin."""
    twins = {(r["class"], bug): r for r in results if r["twin"] for bug in r["bugs"]}

    def judge(result: Result) -> bool:
        twin = twins.get((result["class"], result["name"]), {"runs": {}})
        return any(by_tool(tool)(result) and not by_tool(tool)(twin) for tool in TOOLS)

    return judge


def by_gpu(result: Result) -> bool:
    """Without a tool: a wrong result, an error, or a launch that does not end."""
    return result["runs"].get(PLAIN, {}).get("result") != "right"


def by_emulator(result: Result) -> bool:
    return result["emulator"]["verdict"] not in (*NO_REPORT, FINE)


def at_line(result: Result) -> bool:
    return bool(result["emulator"]["verdict"] == RIGHT_LINE)


def launched(result: Result) -> bool:
    """Whether the GPU ran it: not what the compiler refuses, or what there was no time for."""
    plain = result["runs"].get(PLAIN)
    return plain is not None and plain["result"] not in NOT_RUN


def complete(result: Result) -> bool:
    """Launched, and with all tools unless it hangs."""
    hung = result["runs"].get(PLAIN, {}).get("result") == "hung"
    return launched(result) and (hung or all(tool in result["runs"] for tool in TOOLS))


def tables_of(document: dict[str, Any]) -> Iterator[Table]:
    results = [r for r in document["results"] if complete(r)]
    bugs, twins = ([r for r in results if r["twin"] == twin] for twin in (False, True))
    tools: dict[str, Judge] = {**{tool: by_tool(tool) for tool in TOOLS}, "any of them": by_any}
    emulated: dict[str, Judge] = {}
    if any("emulator" in r for r in results):
        emulated = {"emulator": by_emulator}
    if bugs:
        columns = {"GPU alone": by_gpu, **tools, "any, not the twin": told_apart(results), **emulated}
        if emulated:
            columns["at its line"] = at_line
        yield by_class("Bugs that are found", "bugs", bugs, columns)
    if twins:
        yield by_class("Correct twins that are blamed", "twins", twins, tools | emulated)
    if document["summary"].get("costs"):
        yield costs(document["summary"]["costs"])


def by_class(title: str, unit: str, results: list[Result], judges: dict[str, Judge]) -> Table:
    """How many of each class each judge reports."""
    kinds = list(dict.fromkeys(r["class"] for r in results))
    rows = [(kind, [r for r in results if r["class"] == kind]) for kind in kinds]
    return Table(
        title,
        [
            {
                "class": kind,
                unit: str(len(some)),
                **{name: str(sum(map(judge, some))) for name, judge in judges.items()},
            }
            for kind, some in (*rows, ("all", results))
        ],
    )


def costs(measured: Sequence[dict[str, Any]]) -> Table:
    """Times of launches of correct twins, medians over them."""
    pairs = [(tool, PLAIN) for tool in TOOLS] + [("checked", "unchecked")]
    names = {"checked": "emulator, with and without checks"}
    rows = []
    for tool, base in pairs:
        both = [c["seconds"] for c in measured if {tool, base} <= c["seconds"].keys()]
        if both:
            rows.append(
                {
                    "tool": names.get(tool, tool),
                    "launches": str(len(both)),
                    "without": duration(statistics.median(s[base] for s in both)),
                    "with": duration(statistics.median(s[tool] for s in both)),
                    "ratio": f"{statistics.median(s[tool] / s[base] for s in both):.1f}",
                }
            )
    return Table("Time of a launch, medians", rows)


def missed(document: dict[str, Any]) -> list[Result]:
    """Bugs that a tool of compute-sanitizer reports and the emulator does not."""
    return [r for r in document["results"] if not r["twin"] and by_any(r) and not by_emulator(r)]


def markdown(document: dict[str, Any]) -> Iterator[str]:
    for table in tables_of(document):
        yield from table.markdown()
    yield "Reported by compute-sanitizer, not by the emulator:\n"
    for result in missed(document):
        tools = [tool for tool in TOOLS if by_tool(tool)(result)]
        report = result["runs"][tools[0]]["report"].replace("\n", " ")
        yield f"- {result['class']}/{result['name']} ({', '.join(tools)}): {report[:200]}"
    yield "\nTwins that are blamed:\n"
    for result in document["results"]:
        if result["twin"]:
            for tool in TOOLS:
                if by_tool(tool)(result):
                    report = result["runs"][tool]["report"].replace("\n", " ")
                    yield f"- {result['class']}/{result['name']} by {tool}: {report[:200]}"
            if by_emulator(result):
                yield f"- {result['class']}/{result['name']} by the emulator"
    unsaid = [r for r in document["results"] if not complete(r)]
    yield f"\nNot compared: {len(unsaid)}"
    for result in unsaid:
        states = {tool: run["result"] for tool, run in result["runs"].items()}
        yield f"- {result['class']}/{result['name']} twin={result['twin']}: {states}"
