"""How the emulator uses the machine: cores, worker processes, the size of chunks, compiled regions.

Results of correct kernels do not depend on it. Tests and benchmarks choose with `executing`; a launch
reads `current`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class ExecutionPolicy:
    """What a launch uses of the machine.

    Attributes
    ----------
    cores : int or None
        Threads or processes of a launch. None: the processors that this process may use.
    processes : bool or None
        Whether launches that may run in worker processes do. None: if they take long.
    threaded_chunks : int
        Chunks that run at a time in threads. More would wait for the interpreter's lock.
    chunk_threads : int
        Largest number of threads of a chunk of more than one cluster, if CTAs do not wait for each other.
    shared_work : int
        Nanoseconds of work in a step that are worth another thread.
    compile_cost : int
        Nanoseconds to compile a micro-operation at level FAST, measured on an EPYC. A region is compiled
        when its single steps have taken as long as its compilation would. 0: before it first runs.
    regions : bool
        False executes single steps only.
    regions_on_disk : bool
        Whether the machine code of regions is read from the disk and written to it.
    """

    cores: int | None = None
    processes: bool | None = None
    threaded_chunks: int = 2
    chunk_threads: int = 1 << 18
    shared_work: int = 300_000
    compile_cost: int = 120_000
    regions: bool = True
    regions_on_disk: bool = True


current = ExecutionPolicy()


@contextmanager
def executing(**changes: Any) -> Iterator[None]:
    """Change fields of the policy for all launches inside."""
    global current
    before, current = current, replace(current, **changes)
    try:
        yield
    finally:
        current = before
