"""Matrix instructions on 4,096 warps each, in many processes: see tests/capture.py."""

from __future__ import annotations

import multiprocessing
import queue
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl import isa
from tests import matrix_probes, matrix_records
from tests.matrix_inputs import seed_of
from tests.matrix_probes import CHUNKS, Probe, probe_of
from tests.matrix_records import Record

KEPT = 2 * 128  # threads of a differing chunk that are kept, and
MOST = 3_000_000  # words of all
SILENCE = 120.0  # seconds without an answer after which the rest is given up
ARCH = "sm_90a"


@dataclass
class Answer:
    """What a worker found out about a form."""

    mnemonic: str
    seconds: float = 0.0
    record: Record | None = None
    error: str = ""
    differing: dict[int, str] = field(default_factory=dict)  # chunks, and how
    kept: dict[int, np.ndarray] = field(default_factory=dict)


# -- one form -------------------------------------------------------------------------------------


def on_gpu(probe: Probe) -> list[np.ndarray]:
    """The results of all chunks."""
    from numba import cuda

    arrays = probe.arrays(0, CHUNKS)
    held = [cuda.to_device(a) for a in arrays]
    with tc.target("cuda"):
        probe.kernel[probe.launch_shape(CHUNKS)](*held, **probe.constants())
    outputs = 2 if isinstance(probe, matrix_probes.MemoryProbe) else 1
    inputs = [None] * (len(arrays) - outputs)
    return probe.results((*inputs, *(h.copy_to_host() for h in held[-outputs:])), CHUNKS)


def emulated(probe: Probe) -> list[np.ndarray]:
    """Run all chunks in the emulator, and assemble the kernel."""
    probe.kernel.cubin(*probe.arrays(0, 1), arch=ARCH, **probe.constants())
    return [probe.on_cpu(chunk, ARCH) for chunk in range(CHUNKS)]


def capture(mnemonic: str, run: Callable[[Probe], list[np.ndarray]], check: bool) -> Answer:
    """Run a form; `check`: on the emulator too."""
    probe = probe_of(isa.instruction(mnemonic))
    assert probe is not None
    results = run(probe)
    answer = Answer(mnemonic, record=Record.of(results))
    for chunk in checked(probe) if check else ():
        want, got = probe.on_cpu(chunk, ARCH), results[chunk]
        mismatches = np.flatnonzero(want.reshape(-1) != got.reshape(-1))
        if len(mismatches):
            at = int(mismatches[0])
            answer.differing[chunk] = (
                f"{len(mismatches)} of {got.size} words; word {at}: "
                f"{got.reshape(-1)[at]:08x}, emulated {want.reshape(-1)[at]:08x}"
            )
            if len(answer.kept) < 4:
                answer.kept[chunk] = got[:KEPT]
    return answer


def checked(probe: Probe) -> range:
    """The chunks that are compared at once: all, of wgmma every fifth, which meets every swizzle
    and variant. `--replay-all` compares the others."""
    return range(0, CHUNKS, 5 if isinstance(probe, matrix_probes.WarpgroupProbe) else 1)


def replay(mnemonic: str, wanted: Record) -> Answer:
    """Compare the emulator with a record."""
    probe = probe_of(isa.instruction(mnemonic))
    assert probe is not None
    answer = Answer(mnemonic, record=wanted)
    for chunk, digest in enumerate(wanted.chunks):
        if matrix_records.digest(probe.on_cpu(chunk, ARCH)) != digest:
            answer.differing[chunk] = "another hash"
    return answer


# -- many, in processes -----------------------------------------------------------------------------


def work(tasks: Any, answers: Any, task: Callable[[str], Answer]) -> None:
    """A worker: forms from one queue, answers into the other. Leaves after an error."""
    while True:
        try:
            mnemonic = tasks.get(timeout=1.0)
        except queue.Empty:
            return
        start = time.time()
        try:
            answer = task(mnemonic)
        except Exception as error:
            lines = traceback.format_exc().strip().splitlines()
            answer = Answer(mnemonic, error=f"{type(error).__name__}: {error} ({lines[-3].strip()})")
        answer.seconds = time.time() - start
        answers.put(answer)
        if answer.error:  # the context may be lost with it
            return


def spread(names: list[str], task: Callable[[str], Answer], workers: int, seconds: float) -> Iterator[Answer]:
    """Answers as they come, from processes that are replaced when they fail."""
    context = multiprocessing.get_context("fork")
    tasks, answers = context.Queue(), context.Queue()
    for name in names:
        tasks.put(name)
    last, left = time.time(), len(names)
    end = last + seconds
    running: list[Any] = []
    while left and time.time() < min(end, last + SILENCE):
        running = [p for p in running if p.is_alive()]
        while len(running) < min(workers, left):
            process = context.Process(target=work, args=(tasks, answers, task), daemon=True)
            process.start()
            running.append(process)
        try:
            answer = answers.get(timeout=1.0)
        except queue.Empty:
            continue
        last, left = time.time(), left - 1
        yield answer
    for process in running:
        process.terminate()


# -- what tests/capture.py asks for -----------------------------------------------------------------


def capture_all(folder: Path, only: str, check: bool, emulate: bool, workers: int, seconds: float) -> int:
    """Write records of all forms to `folder`; how many differ from the emulator, or failed."""
    run = emulated if emulate else on_gpu
    names = [p.instr.mnemonic for p in matrix_probes.probes_of(ARCH, only)]
    answers = spread(ordered(names), lambda m: capture(m, run, check), workers, seconds)
    reports = list(reported(answers))
    matrix_records.write(folder, {a.mnemonic: a.record for a in reports if a.record is not None})
    keep(folder / "mismatches.npz", reports)
    return summary(names, reports)


def replay_all(folder: Path, only: str, workers: int, seconds: float) -> int:
    """Compare all recorded chunks with the emulator; the number of forms that differ."""
    known = matrix_records.read(folder)
    names = [n for n in known if only in n]
    answers = spread(ordered(names), lambda m: replay(m, known[m]), workers, seconds)
    return summary(names, list(reported(answers)))


def ordered(names: list[str]) -> list[str]:
    """Families one after the other, wgmma last, with large and small shapes mixed."""
    return sorted(names, key=lambda n: (n.startswith("wgmma"), seed_of(n)))


def reported(answers: Iterator[Answer]) -> Iterator[Answer]:
    start = time.time()
    for count, answer in enumerate(answers, 1):
        for chunk, how in list(answer.differing.items())[:1]:
            print(f"DIFFERENT {answer.mnemonic}: {len(answer.differing)} chunks, as {chunk}: {how}")
        if answer.error:
            print(f"FAILED {answer.mnemonic}: {answer.error}")
        if count % 200 == 0:
            print(f"{count} instrs, {time.time() - start:.0f} s", flush=True)
        yield answer


def keep(path: Path, answers: list[Answer]) -> None:
    """The first words of chunks that differ, as long as there is room."""
    tables: dict[str, np.ndarray] = {}
    left = MOST
    for answer in answers:
        for chunk, words in answer.kept.items():
            if words.size <= left:
                tables[f"{answer.mnemonic} {chunk}"] = words
                left -= words.size
    if tables:
        np.savez_compressed(path, **tables)


def summary(names: list[str], answers: list[Answer]) -> int:
    """Print counts by family; the number of forms that differ or are missing."""
    answered = {a.mnemonic: a for a in answers}
    bad = 0
    for name in sorted({matrix_records.family(n) for n in names}):
        instrs = [n for n in names if matrix_records.family(n) == name]
        done = [answered[n] for n in instrs if n in answered]
        wrong = sum(bool(a.differing) for a in done)
        failed = sum(bool(a.error) for a in done)
        bad += wrong + failed + len(instrs) - len(done)
        spent = sum(a.seconds for a in done)
        print(
            f"{name}: {len(done)} of {len(instrs)} instrs, {wrong} differ, {failed} failed, "
            f"{spent:.0f} s of processes"
        )
    return bad
