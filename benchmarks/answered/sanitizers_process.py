"""Batches of planted bugs in child processes, with or without a tool of compute-sanitizer."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.answered.sanitizers_case import FAILED, ROOT

PLAIN = "plain"  # without a tool
TOOLS = ("racecheck", "synccheck", "memcheck", "initcheck")
HUNG, DIED, LOST = "hung", "died", "not started"
COMMAND = "compute-sanitizer"
# Options that are passed if `compute-sanitizer --help` lists them.
OPTIONS = {
    "--print-limit": "20000",  # of all runs of a process
    "--show-backtrace": "device",
    "--report-api-errors": "no",  # calls of the driver that fail after the kernel has
    "--max-connections": "100",  # processes side by side
}
START_LIMIT = 90.0  # seconds until a process is ready, and to compile a kernel
END_LIMIT = 15.0  # seconds after the last run
ATTEMPTS = 2  # to start a process
MAX_KEPT = 600  # characters of a report
MAX_UNNAMED = 200  # reports without a kernel's name that a batch keeps
# Lines of compute-sanitizer's output that report nothing.
FRAME = re.compile(
    r"COMPUTE-SANITIZER|(ERROR|RACECHECK|LEAK) SUMMARY|Target application returned an error"
    r"|Error: process didn't terminate|Error: Target application terminated"
)
API_ERROR = re.compile(r"Program hit ")


def available() -> str | None:
    """The path of compute-sanitizer; None without it."""
    return shutil.which(COMMAND) or shutil.which(COMMAND, path="/usr/local/cuda/bin")


@dataclass
class Sanitizer:
    """Command line of compute-sanitizer."""

    path: str

    def __post_init__(self) -> None:
        told = subprocess.run([self.path, "--help"], capture_output=True, text=True, timeout=60)
        known = told.stdout + told.stderr
        self.options = [
            part for name, value in OPTIONS.items() if name.lstrip("-") in known for part in (name, value)
        ]
        told = subprocess.run([self.path, "--version"], capture_output=True, text=True, timeout=60)
        self.version = told.stdout.strip().splitlines()[-1] if told.stdout.strip() else ""

    def command(self, tool: str, log: Path) -> list[str]:
        return [self.path, "--tool", tool, *self.options, "--log-file", str(log)]


@dataclass
class Batch:
    """Runs for one process, with one tool."""

    tool: str
    runs: list[dict[str, Any]]
    timeout: float = 20.0  # seconds of one run


class Process:
    """A child process and its output."""

    def __init__(
        self, batch: Batch, runs: list[dict[str, Any]], sanitizer: Sanitizer, target: str, stem: Path
    ) -> None:
        self.out, self.log = stem.with_suffix(".jsonl"), stem.with_suffix(".log")
        self.errors = stem.with_suffix(".err")
        runs_file = stem.with_suffix(".json")
        runs_file.write_text(json.dumps(runs), encoding="utf-8")
        self.out.touch()
        tool = [] if batch.tool == PLAIN else sanitizer.command(batch.tool, self.log)
        child = [sys.executable, "-m", "benchmarks.answered.sanitizers_case"]
        with self.errors.open("w") as errors:
            self.child = subprocess.Popen(
                [*tool, *child, str(runs_file), str(self.out), target],
                stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, cwd=ROOT,
                start_new_session=True, env={**os.environ, "NUMBA_NUM_THREADS": "1"},
            )  # fmt: skip
        self.lines: list[dict[str, Any]] = []

    def read(self) -> bool:
        """Read the output of the process; returns whether there is new output."""
        text = self.out.read_text(encoding="utf-8")
        lines = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        new = len(lines) > len(self.lines)
        self.lines = lines
        return new

    def said(self, key: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if key in line]

    def stop(self) -> None:
        """End the launching process, then the tool, which may still write its report."""
        for line in self.said("process"):
            with contextlib.suppress(ProcessLookupError):
                if self.child.poll() is None:
                    os.kill(line["process"], signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.child.wait(3)
        with contextlib.suppress(ProcessLookupError):
            if self.child.poll() is None:
                os.killpg(self.child.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.child.wait(20)

    def last_words(self) -> str:
        return self.errors.read_text(encoding="utf-8", errors="replace").strip()[-300:]


class Runner:
    """Runs batches. `records` receives a record for each (run, tool)."""

    def __init__(self, folder: Path, sanitizer: Sanitizer, target: str, deadline: float) -> None:
        self.folder, self.sanitizer, self.target = folder, sanitizer, target
        self.deadline = deadline
        self.records: dict[tuple[str, str], dict[str, Any]] = {}
        self.unnamed: list[dict[str, Any]] = []
        self._numbers = count(1)

    def run(self, batch: Batch) -> None:
        """Run a batch. If a process ends early, a new one takes the remaining runs, until the deadline."""
        left, attempts = list(batch.runs), 0
        while left and time.monotonic() < self.deadline:
            stem = self.folder / f"{batch.tool}_{next(self._numbers):04d}_{left[0]['id']}"
            process = Process(batch, left, self.sanitizer, self.target, stem)
            try:
                hung = self._watch(process, len(left), batch.timeout)
            finally:
                process.stop()
                process.read()
            self._record(batch, left, process, hung)
            done = [run for run in left if (run["id"], batch.tool) in self.records]
            attempts = 0 if done else attempts + 1
            if attempts == ATTEMPTS:
                lost = {"result": LOST, "text": process.last_words()}
                self.records |= {(run["id"], batch.tool): lost for run in left}
            left = [run for run in left if (run["id"], batch.tool) not in self.records]

    def _watch(self, process: Process, number: int, timeout: float) -> bool:
        """Wait for the process; true if its current run takes too long."""
        since = time.monotonic()
        while process.child.poll() is None:
            time.sleep(0.05)
            now = time.monotonic()
            if process.read():
                since = now
            last = process.lines[-1] if process.lines else {}
            failed = last.get("result") == FAILED
            limit = timeout if "start" in last else START_LIMIT
            if failed or len(process.said("end")) == number:
                limit = END_LIMIT
            if now - since > limit:
                return "start" in last or "prepare" in last
            if now > self.deadline:
                return False
        return False

    def _record(self, batch: Batch, runs: list[dict[str, Any]], process: Process, hung: bool) -> None:
        """Results of the runs of a process, with the reports of the tool."""
        reports, unnamed = reports_of(process.log)
        ended = {line["end"]: line for line in process.said("end")}
        started = [line["prepare"] for line in process.said("prepare")]
        late = time.monotonic() > self.deadline and not hung
        last = started[-1] if started else None
        for name in started:
            result = {k: v for k, v in ended.get(name, {}).items() if k != "end"}
            if not result:
                if late:  # the end of the time, not of the run
                    continue
                result = {"result": HUNG if hung else DIED, "exit": process.child.returncode}
                if not hung:
                    result["text"] = process.last_words()
            named = reports.get(name, [])
            if name == last and result["result"] in (FAILED, DIED, HUNG):
                named = named + unnamed
                unnamed = []
            counted = [r for r in named if not API_ERROR.match(r)]
            result["reports"] = len(counted)
            if named:
                result["report"] = (counted or named)[0][:MAX_KEPT]
            self.records[name, batch.tool] = result
        if unnamed:
            first_unnamed = unnamed[:MAX_UNNAMED]
            self.unnamed.append({"tool": batch.tool, "runs": started, "reports": first_unnamed})


def reports_of(log: Path) -> tuple[dict[str, list[str]], list[str]]:
    """Return a log's reports by kernel name, and the reports without a kernel name."""
    named: dict[str, list[str]] = {}
    unnamed = []
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    for report in blocks(text.splitlines()):
        names = re.findall(r"\bsan_\d+_(?:bug|twin)\b", report)
        if names:
            named.setdefault(names[0], []).append(report)
        else:
            unnamed.append(report)
    return named, unnamed


def blocks(lines: Iterable[str]) -> list[str]:
    """Reports: a line that is not indented, and the indented ones after it."""
    reports: list[list[str]] = []
    for line in lines:
        text = line.removeprefix("=========")[1:]
        if not line.startswith("=========") or not text.strip():
            continue
        if not text.startswith(" ") or not reports:
            reports.append([])
        reports[-1].append(text.strip())
    return ["\n".join(report) for report in reports if not FRAME.match(report[0])]
