"""Cases of the emulation benchmark in new processes, each with the package of any checkout.

A process answers each line of its input with the seconds of a launch. The first answer is the time
of the first launch, whose result the process compares with NumPy's. Each later answer is the least
time of a batch of launches.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SETTINGS = {"TENSORCORE_DSL_NOTICE": "off"}
BATCH = 0.1  # seconds of launches for one answer, their least time
TURNS = 10  # answers of each package, in turn, from a pair of processes
STATES = ("empty", "filled")  # states of the cache on disk

Packages = dict[str, Path]  # "this", and perhaps "other" -> a folder that has a package
Arguments = tuple[Any, ...]  # arguments of `_seconds`


@contextmanager
def package_of(checkout: Path) -> Iterator[Path]:
    """Make a folder with the package of a checkout, as installed by setup.py, and these benchmarks."""
    with tempfile.TemporaryDirectory() as name:
        package = Path(name, "tensorcore_dsl")
        package.mkdir()
        for path in (*checkout.joinpath("tensorcore_dsl").iterdir(), checkout / "kernels"):
            if path.name != "__pycache__":
                package.joinpath(path.name).symlink_to(path.resolve())
        for folder in ("benchmarks", "examples"):
            Path(name, folder).symlink_to(ROOT / folder)
        yield Path(name)


def in_turns(packages: Packages, arguments: Arguments, rounds: int) -> dict[str, Any]:
    """Measure the least seconds of a launch by each package, in `rounds` new processes of each."""
    answers: list[tuple[str, dict[str, Any]]] = []
    for _ in range(rounds):
        with ExitStack() as stack:
            running = {
                who: stack.enter_context(_process(folder, folder / "cache", arguments))
                for who, folder in packages.items()
            }
            for turn in range(TURNS + 1):
                for who, process in list(running.items()):
                    answer = _ask(process)
                    if "failure" in answer:
                        del running[who]
                    if turn or "failure" in answer:  # the first launch compiles
                        answers.append((who, answer))
    return _summary(answers)


def first_launches(packages: Packages, arguments: Arguments, rounds: int) -> dict[str, Any]:
    """Measure the least seconds of the first launch in new processes, by the state of the cache."""
    answers: dict[str, list[tuple[str, dict[str, Any]]]] = {state: [] for state in STATES}
    for _ in range(rounds):
        for who, folder in packages.items():
            with tempfile.TemporaryDirectory() as cache:
                for answer in answers.values():
                    with _process(folder, Path(cache), arguments) as process:
                        answer.append((who, _ask(process)))
    return {state: _summary(answer) for state, answer in answers.items()}


def _summary(answers: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """Least seconds of each package, their ratio, and why a package has none."""
    seconds: dict[str, float] = {}
    result: dict[str, Any] = {"seconds": seconds}
    for who, answer in answers:
        if "failure" in answer:
            result["failure" if who == "this" else "failure_of_other"] = answer["failure"]
        else:
            seconds[who] = min(answer["seconds"], seconds.get(who, math.inf))
    if len(seconds) == 2:
        result["ratio"] = seconds["this"] / seconds["other"]
    return result


def _process(folder: Path, cache: Path, arguments: Arguments) -> subprocess.Popen[bytes]:
    settings = {**SETTINGS, "TENSORCORE_DSL_CACHE": str(cache), "PYTHONPATH": str(folder)}
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.emulation_process", json.dumps(arguments)],
        bufsize=0,
        cwd=folder,
        env={**os.environ, **settings},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def _ask(process: Any) -> dict[str, Any]:
    try:
        process.stdin.write(b"\n")
        return json.loads(process.stdout.readline())
    except (BrokenPipeError, json.JSONDecodeError):
        return {"failure": f"the process ended with {process.wait()}"}


def _seconds(name: str, checks: bool | None, size: int, workers: int) -> Iterator[float]:
    """Seconds of the first launch of a case, then the least of each batch of launches.

    One worker does all work in this process. Its clock is then CPU time, which other programs on
    the machine disturb less.
    """
    clock = time.process_time if workers == 1 else time.perf_counter
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:workers])
    # Older packages may lack a name that this module imports. The answer then tells which one.
    from benchmarks.emulated_kernels import CHECKED, products

    problem = {**products(size), **CHECKED}[name]()
    results: list[Any] = []
    run = problem.runner(checks)
    seconds = _elapsed(clock, lambda: results.append(run()))
    problem.compare(results.pop())
    while True:
        yield seconds
        begin = clock()
        seconds = _elapsed(clock, run)
        while clock() < begin + BATCH:
            seconds = min(seconds, _elapsed(clock, run))


def _elapsed(clock: Callable[[], float], function: Callable[[], Any]) -> float:
    begin = clock()
    function()
    return clock() - begin


def main(arguments: Arguments) -> None:
    answers = _seconds(*arguments)
    for _ in sys.stdin:
        try:
            answer = {"seconds": next(answers)}
        except Exception as error:  # a package of any version raises other types
            answer = {"failure": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
