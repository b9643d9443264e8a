"""Runs cases in a child process, and notices its crashes, hangs and hunger for memory."""

from __future__ import annotations

import ast
import os
import resource
import selectors
import subprocess
import sys
import time
from dataclasses import dataclass

HANG = 300  # seconds without a new case; the first one compiles, and others use the machine
LEAST = 5  # cases
MEMORY = 12 << 30  # bytes of address space, of which libraries reserve some


@dataclass
class Failure:
    family: str
    seed: int
    text: str

    def __str__(self) -> str:
        return (
            f"{self.text.rstrip()}\n"
            f"again: python -m tests.fuzz --family {self.family} --seed {self.seed} --cases 1"
        )


def watch(family: str, seed: int, seconds: float, limit: float) -> tuple[list[Failure], int]:
    """The failures within so many seconds, and the number of cases; a dead child is replaced.

    There are at least five cases. The start of a child does not count.
    """
    failures: list[Failure] = []
    first = seed
    while seconds > 0 or seed < first + LEAST:
        seed, spent = _child(family, seed, seconds, max(first + LEAST - seed, 1), limit, failures)
        seconds -= spent
    return failures, seed - first


def _child(
    family: str, seed: int, seconds: float, least: int, limit: float, failures: list[Failure]
) -> tuple[int, float]:
    """Run a child until it or the time is over; the next case, and the seconds that it took."""
    process = subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-m", "tests.fuzz.cases", family, str(seed), str(limit)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=_bound_memory,
        bufsize=0,
    )
    assert process.stdout is not None
    selector, rest, heard = selectors.DefaultSelector(), b"", time.monotonic()
    selector.register(process.stdout, selectors.EVENT_READ)
    said: list[str] = []
    began, last = 0.0, seed + least
    try:
        while not began or heard - began < seconds or seed < last:
            heard = time.monotonic()
            if not selector.select(timeout=HANG):
                failures.append(Failure(family, seed, f"it hangs: nothing for {HANG} seconds"))
                break
            data = os.read(process.stdout.fileno(), 1 << 16)
            if not data:
                text = "\n".join(said[-40:])
                failures.append(Failure(family, seed, f"the process ended with {process.wait()}\n{text}"))
                break
            *lines, rest = (rest + data).split(b"\n")
            for line in map(bytes.decode, lines):
                word, _, more = line.partition(" ")
                if word == "begin":
                    seed, began = int(more), began or time.monotonic()
                    said.clear()
                elif word == "failed":
                    number, _, text = more.partition(" ")
                    failures.append(Failure(family, int(number), ast.literal_eval(text)))
                else:
                    said.append(line)
        return seed + 1, max(time.monotonic() - (began or heard), 0.1)
    finally:
        process.kill()
        process.wait()
        selector.close()
        process.stdout.close()


def _bound_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
