"""Chunks in processes of their own: the same bits, counts and errors as in threads."""

from __future__ import annotations

import ctypes
import math
import multiprocessing
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import kernels
from tensorcore_dsl.errors import EmulationError, OutOfBounds
from tensorcore_dsl.interpreter import launch, processes
from tensorcore_dsl.interpreter.arena import Arena
from tensorcore_dsl.interpreter.core import memory_pool, policy
from tensorcore_dsl.interpreter.core.policy import executing
from tensorcore_dsl.interpreter.core.program import Program
from tensorcore_dsl.interpreter.core.report import Report
from tensorcore_dsl.interpreter.execution.compiler import compile_program
from tensorcore_dsl.interpreter.memory.global_memory import ALIGNMENT, GlobalPointer, TensorMapArgument
from tensorcore_dsl.interpreter.processes import ProcessPool
from tensorcore_dsl.lowering.forms import COMPILING
from tests.emulation_scripts import ended, interrupted, start
from tests.kit import CTAID, LESS, LOAD_GLOBAL, STORE_GLOBAL, Builder, u64

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="processes are copied on Linux alone"
)


@pytest.fixture
def three(monkeypatch):
    """Three processes for each launch that may have some; the numbers of those that were made."""
    made: list[int] = []
    run = ProcessPool.run

    def noted(self: ProcessPool, chunk: Any, jobs: Any, count: int, *more: Any) -> Report:
        made.append(count)
        return run(self, chunk, jobs, count, *more)

    monkeypatch.setattr(ProcessPool, "run", noted)
    with executing(cores=3, processes=True):
        yield made


def matrices(kind: str, *shapes: tuple[int, int]) -> list[np.ndarray]:
    rng = np.random.default_rng(11)
    if kind == "s8":
        return [rng.integers(-128, 128, shape).astype(np.int8) for shape in shapes]
    dtype = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f64": np.float64}[kind]
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


class TestProducts:
    @pytest.mark.parametrize(
        "kind,arch",
        [("bf16", "sm_90a"), ("f16", "sm_80"), ("s8", "sm_90a"), ("f64", "sm_90a"), ("f64", "sm_80")],
    )
    def test_have_the_same_bits(self, kind, arch, three, monkeypatch):
        a, b = matrices(kind, (300, 128), (272, 128))
        with tc.target("cpu", arch):
            actual = kernels.gemm(a, b.T)
            assert three and set(three) <= {1, 2, 3}
            monkeypatch.setenv(processes.VARIABLE, "off")
            three.clear()
            assert actual.tobytes() == kernels.gemm(a, b.T).tobytes()
            assert not three

    def test_c_may_be_overwritten_within_a_larger_array(self, three, monkeypatch):
        a, b, c = matrices("f16", (256, 64), (240, 64), (256, 245))

        def product() -> np.ndarray:
            whole = np.full((260, 256), 7, np.float16)
            out = whole[2:258, 5:250][:, :240]
            out[...] = c[:, :240]
            with tc.target("cpu", "sm_90a"):
                kernels.gemm(a, b.T, c=out, beta=0.5, out=out)
            return whole

        actual = product()
        assert three
        monkeypatch.setenv(processes.VARIABLE, "off")
        assert actual.tobytes() == product().tobytes()


class TestLaunches:
    def test_count_the_same(self, three):
        b = Builder(("out", u64))
        t = b.thread(64)
        b.op(STORE_GLOBAL, b.element(b.params[0], t), b.op(CTAID))
        out = np.zeros(64 * 9, np.uint32)
        report = b.run(out, grid=9, block=64)
        assert three == [3] and np.array_equal(out, np.arange(64 * 9) // 64)
        assert str(report) == str(b.run(out, grid=9, block=64, workers=1)) and three == [3]

    def test_make_no_process_without_a_chunk(self, three):
        """The first block of a first launch runs in this process, which loads the loops."""
        b = Builder(("out", u64))
        b.op(STORE_GLOBAL, b.element(b.params[0], b.thread(64)), 1)
        b.run(np.zeros(64 * 3, np.uint32), grid=3, block=64)
        assert three == [2]

    def test_name_the_first_block_that_fails(self, three):
        """Every block from 10 on fails."""
        b = Builder(("out", u64))
        b.op(STORE_GLOBAL, b.element(b.params[0], b.thread(1024)), 1)
        with b.when(b.op(LESS, b.op(CTAID), 10)):
            b.jump("return")
        b.op(LOAD_GLOBAL, 0)
        out = np.zeros((40, 1024), np.uint32)
        with pytest.raises(OutOfBounds, match="of CTA 10") as error:
            b.run(out, grid=40, block=1024)
        assert three and error.value.loc is not None and error.value.loc.filename == "kernel.py"
        assert out[:10].all()  # what was written is there

    def test_not_beside_other_threads(self, three):
        """A process would wait for ever for what another thread has locked."""
        b = Builder(("out", u64))
        b.op(STORE_GLOBAL, b.element(b.params[0], b.thread(32)), 1)
        outs = [np.zeros(32 * 8, np.uint32) for _ in range(3)]
        with ThreadPoolExecutor(3) as pool:
            for future in [pool.submit(b.run, out, grid=8, block=32) for out in outs]:
                future.result()
        assert not three and all(out.all() for out in outs)

    def test_beside_threads_in_the_background(self, three):
        """Unless they emulate, too."""
        b, end = Builder(("out", u64)), Event()
        b.op(STORE_GLOBAL, b.element(b.params[0], b.thread(32)), 1)

        def emulates() -> None:
            with processes.launching():
                end.wait()

        for work, count in ((end.wait, 1), (emulates, 0)):
            thread = Thread(target=work, daemon=True)
            thread.start()
            while count == 0 and not processes._launches:
                time.sleep(0.001)
            b.run(np.zeros(32 * 8, np.uint32), grid=8, block=32)
            end.set()
            thread.join()
            end.clear()
            assert len(three) == count, work
            three.clear()

    @pytest.mark.parametrize("how", ["order", "races", "workers"])
    def test_others_run_in_threads(self, how, three):
        b = Builder(("out", u64))
        b.op(STORE_GLOBAL, b.element(b.params[0], b.thread(32)), 1)
        options: dict[str, Any] = {"order": {"order": 5}, "races": {"races": True}}.get(how, {"workers": 1})
        b.run(np.zeros(32 * 6, np.uint32), grid=6, block=32, **options)
        assert not three

    def test_only_long_ones_are_worth_it(self):
        """The first launch of a program is judged by what it holds, others by the last one."""
        b = Builder(("out", u64))
        b.op(STORE_GLOBAL, b.element(b.params[0], b.thread(32)), 1)
        program = compile_program(b.kernel)
        assert not launch._is_long(program, 10**6, 1024, [])
        b.run(np.zeros(320, np.uint32), grid=10, block=32, program=program)
        assert program.seconds is not None and program.seconds < 1
        program.seconds = 0.01
        assert not launch._is_long(program, 10, 32, []) and launch._is_long(program, 100, 32, [])
        large = [GlobalPointer(np.empty(10**9, np.uint8), "x")]  # copied in a second
        assert not launch._is_long(program, 100, 32, large)
        assert launch._is_long(program, 1000, 32, large)

    def test_shorter_ones_where_processes_wait(self):
        b = Builder(("out", u64))
        b.op(STORE_GLOBAL, b.element(b.params[0], b.thread(32)), 1)
        programs = [compile_program(b.kernel) for _ in range(2)]
        for program in programs:
            program.seconds = 0.1
        assert not launch._is_long(programs[0], 1, 32, [])
        with executing(cores=2):
            b.run(np.zeros(320, np.uint32), grid=10, block=32, program=programs[0])
        for program in (*programs, compile_program(b.kernel)):
            program.seconds = 0.1
            assert launch._is_long(program, 1, 32, []) == (program in programs[:2])
            assert not launch._is_long(program, 1, 32, [GlobalPointer(np.empty(10**8), "x")])

    def test_not_in_processes_that_may_have_none(self):
        with multiprocessing.get_context("fork").Pool(1) as pool:
            assert not pool.apply(processes.can_fork)

    @pytest.mark.parametrize("grid", [8, 2**31 - 1])
    def test_an_interrupt_ends_all(self, grid):
        text = interrupted(f"""
import os
from tensorcore_dsl.interpreter.core import policy
policy.current = policy.ExecutionPolicy(cores=2, processes=True)
print('ready', flush=True)
try:
    emulate({grid}, 2**31 - 1)
finally:
    try:
        raise AssertionError(os.waitpid(-1, os.WNOHANG))
    except ChildProcessError:
        pass
""")
        assert "KeyboardInterrupt" in text and "AssertionError" not in text
        if sys.version_info >= (3, 11):
            assert "interrupted" in text


def report(first: int, ctas: int, _: Event) -> Report:
    counted = Report()
    counted.bytes["global", "load"] = ctas
    return counted


def fails_from_four(first: int, ctas: int, stop: Event) -> Report:
    if first >= 4:
        raise ValueError(f"CTA {first}")
    return report(first, ctas, stop)


def ends_at_two(first: int, ctas: int, stop: Event) -> Report:
    if first == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return report(first, ctas, stop)


def fails_by_an_error_of_its_own(*_: Any) -> Report:
    class Local(Exception):
        pass

    raise Local("of its own")


def told_by_its_process(*_: Any) -> Report:
    counted = Report()
    counted.bytes["global", "load"] = os.getpid()
    return counted


@dataclass
class NotesRegions:
    """A chunk that notes whether its process executes regions."""

    array: np.ndarray

    def __call__(self, first: int, ctas: int, _: Event) -> Report:
        self.array[first : first + ctas] = policy.current.regions
        return Report()


@dataclass
class Adds:
    """A chunk that adds to an array, and ends with an error where it is another one."""

    array: np.ndarray
    program: Program

    def __call__(self, first: int, ctas: int, _: Event) -> Report:
        self.array[first : first + ctas] += self.program.vregs
        return Report()


def wait_until(reached: Callable[[], bool]) -> None:
    """Return after 20 seconds at the latest."""
    end = time.monotonic() + 20
    while not reached() and time.monotonic() < end:
        time.sleep(0.001)


@dataclass
class TakesLocks:
    """A chunk that notes whether its process could take all locks."""

    array: np.ndarray

    def __call__(self, first: int, ctas: int, _: Event) -> Report:
        locks: list[Any] = [COMPILING, processes._changing, memory_pool._changing]
        taken = [lock for lock in locks if lock.acquire(timeout=5)]
        for lock in taken:
            lock.release()
        self.array[first] = len(taken) == len(locks)
        return Report()


@dataclass
class Waits:
    """A chunk that notes its process in an array, the first CTA when all others have done so."""

    array: np.ndarray

    def __call__(self, first: int, ctas: int, _: Event) -> Report:
        wait_until(lambda: first > 0 or bool(self.array[1:].all()))
        self.array[first] = os.getpid()
        return Report()


class TestProcesses:
    pool: ProcessPool

    @pytest.fixture(autouse=True)
    def made_and_ended(self, monkeypatch):
        made: list[int] = []
        fork = os.fork

        def noted_fork() -> int:
            made.append(fork())
            return made[-1]

        monkeypatch.setattr(os, "fork", noted_fork)
        self.pool = ProcessPool(0)
        yield
        self.pool.end()
        for number in made:  # other tests may have left children
            with pytest.raises(ChildProcessError):
                os.waitpid(number, os.WNOHANG)

    def run(self, chunk: Any, ctas: int = 10, size: int = 2, count: int = 3) -> tuple[Report, int]:
        ended: list[int] = []
        jobs = [(first, min(size, ctas - first)) for first in range(0, ctas, size)]
        return self.pool.run(chunk, jobs, min(count, len(jobs)), Event(), ended.append), sum(ended)

    def numbers(self) -> list[int]:
        return [worker.number for worker in self.pool.workers]

    @pytest.mark.parametrize("ctas,size,count", [(10, 2, 3), (9, 2, 5), (3, 1, 3), (100, 7, 2)])
    def test_every_chunk_is_run_once(self, ctas, size, count):
        for _ in range(2):
            total, ended = self.run(report, ctas, size, count)
            assert total.bytes["global", "load"] == ended == ctas

    def test_who_is_done_first_gets_the_next_chunk(self):
        """The first chunk ends only when others have run all that follow."""
        (told,) = self.pool.arena.take([GlobalPointer(np.zeros(9, np.int64), "x")])
        jobs = [(first, 1) for first in range(9)]
        self.pool.run(Waits(told.array), jobs, 2, Event(), lambda _: None)
        first, *others = told.array.tolist()
        assert first and first not in others and len({*others}) == 1

    def test_processes_have_the_policy_of_each_launch(self):
        """The processes are made by the first launch."""
        (regions,) = self.pool.arena.take([GlobalPointer(np.zeros(6, np.bool_), "x")])
        for changes in ({}, {"regions": False}, {}):
            expected = changes.get("regions", True)
            regions.array[:] = not expected
            with executing(**changes):
                self.run(NotesRegions(regions.array), ctas=6)
            assert (regions.array == expected).all()
        assert len(self.numbers()) == 3

    def test_a_process_may_take_all_locks(self):
        """The process that was copied held some of them."""
        (told,) = self.pool.arena.take([GlobalPointer(np.zeros(2, np.bool_), "x")])
        self.pool.run(TakesLocks(told.array), [(0, 1), (1, 1)], 2, Event(), lambda _: None)
        assert told.array.all()

    def test_an_interrupt_before_it_runs_does_not_end_in_the_users_program(self):
        """Control-C reaches copies, too: one must not go on with what follows the launch."""
        code = """
import os, signal
from threading import Event
from tensorcore_dsl.interpreter.core.report import Report
from tensorcore_dsl.interpreter.processes import ProcessPool

def report(*_):
    return Report()

def interrupted(fork=os.fork):
    number = fork()
    if not number:
        os.kill(os.getpid(), signal.SIGINT)
    return number

os.fork = interrupted
try:
    ProcessPool(0).run(report, [(0, 1), (1, 1)], 2, Event(), lambda _: None)
finally:
    print("ended", flush=True)
"""
        process = start(code)
        out, text = ended(process)
        assert (process.returncode, out) == (0, "ended\n"), text

    def test_an_interrupt_while_it_is_made_leaves_none(self, monkeypatch):
        mask = signal.pthread_sigmask

        def interrupted(how: int, signals: Any) -> Any:
            masked = mask(how, signals)
            if how == signal.SIG_SETMASK:
                raise KeyboardInterrupt
            return masked

        monkeypatch.setattr(signal, "pthread_sigmask", interrupted)
        with pytest.raises(KeyboardInterrupt):
            self.run(report)
        assert not self.pool.workers  # and the fixture finds no child

    def test_stay_for_what_follows(self):
        self.run(report)
        first = self.numbers()
        total, _ = self.run(told_by_its_process, 1, 1, 1)
        assert total.bytes["global", "load"] == first[0]
        self.run(report, count=4)
        assert self.numbers()[:3] == first and len(self.numbers()) == 4

    def test_know_the_programs_that_were_there(self):
        """A copy of an array that both see is changed by copies of the program."""
        programs = [Program(Builder().kernel, vregs=3), Program(Builder().kernel, vregs=50)]
        programs[0].publish()
        (moved,) = self.pool.arena.take([GlobalPointer(np.zeros(10, np.int32), "x")])
        self.run(Adds(moved.array, programs[0]))
        first = self.numbers()
        self.run(Adds(moved.array, programs[0]))
        assert self.numbers() == first and moved.array.tolist() == [6] * 10
        programs[1].publish()  # it was there, but may have been incomplete
        self.run(Adds(moved.array, programs[1]))
        assert not set(self.numbers()) & set(first) and moved.array.tolist() == [56] * 10
        again = self.numbers()
        self.run(Adds(moved.array, programs[0]))
        assert self.numbers() == again and moved.array.tolist() == [59] * 10

    def test_the_first_error_counts(self):
        assert self.pool.serves(0)
        with pytest.raises(ValueError, match="CTA 4"):
            self.run(fails_from_four)
        assert not self.pool.workers and not self.pool.serves(0)

    @pytest.mark.parametrize("refused", [{0, 1, 2}, {1, 2}, {0}, {1}])
    def test_the_system_may_refuse_processes(self, refused, monkeypatch):
        asked: list[int] = []

        class Few(processes._Worker):
            def __init__(self, *given: Any) -> None:
                asked.append(len(asked))
                if asked[-1] in refused:
                    raise BlockingIOError("no more processes")
                super().__init__(*given)

        monkeypatch.setattr(processes, "_Worker", Few)
        total, ended = self.run(report)
        assert total.bytes["global", "load"] == ended == 10
        assert len(self.pool.workers) == 3 - len(refused)

    def test_there_may_be_few_files(self, capfd):
        """No more processes are made than have files to begin with."""
        used = len(os.listdir("/proc/self/fd"))
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 14, limits[1]))
        try:
            total, ended = self.run(report, 40, 1, 40)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert total.bytes["global", "load"] == ended == 40
        assert 0 < len(self.pool.workers) < 14
        assert "Traceback" not in capfd.readouterr().err

    def test_one_that_ends_is_an_error(self):
        with pytest.raises(EmulationError, match="exit code -9; is there enough memory"):
            self.run(ends_at_two)

    def test_one_that_has_ended_before_is_replaced(self):
        self.run(report)
        first = self.numbers()
        os.kill(first[1], signal.SIGKILL)
        while self.pool.workers[1].status(os.WNOHANG) is None:
            time.sleep(0.001)
        assert self.run(report)[1] == 10
        assert first[1] not in self.numbers() and {first[0], first[2]} < set(self.numbers())

    def test_one_for_which_others_have_waited_is_replaced(self):
        self.run(report)
        first = self.numbers()
        os.kill(first[0], signal.SIGKILL)
        os.waitpid(first[0], 0)
        assert self.run(report)[1] == 10 and first[0] not in self.numbers()

    def test_an_error_that_cannot_be_sent_is_told(self):
        with pytest.raises(EmulationError, match="Local: of its own"):
            self.run(fails_by_an_error_of_its_own)

    def test_an_error_before_the_first_block_is_told(self):
        with pytest.raises(KeyError, match="-1"):
            self.run(Adds(np.zeros(3), Program(Builder().kernel)))

    def test_end_when_nothing_follows(self, monkeypatch):
        """And not before, however long those of others run."""
        monkeypatch.setattr(processes, "IDLE_SECONDS", 0.05)
        self.pool.arena.used = math.inf
        self.run(report)
        time.sleep(0.2)
        assert all(worker.status(os.WNOHANG) is None for worker in self.pool.workers)
        self.pool.arena.used = time.monotonic()
        assert [worker.status() for worker in self.pool.workers] == [0, 0, 0]

    def test_hold_no_file_of_this_process(self):
        reads, writes = os.pipe()
        self.run(report)
        os.close(writes)
        assert select.select([reads], [], [], 10)[0]
        assert os.read(reads, 1) == b""
        os.close(reads)

    def test_get_no_signal_of_this_process(self):
        """Handlers of Python are those of this process alone."""
        told: list[int] = []
        before = signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
        self.run(report)
        signal.signal(signal.SIGTERM, before)
        for number in self.numbers():
            os.kill(number, signal.SIGTERM)
        assert [w.status() for w in self.pool.workers] == [-signal.SIGTERM] * 3 and not told

    def test_are_no_children_that_a_copy_of_this_process_would_end(self):
        self.run(report)
        assert not multiprocessing.active_children()


class TestProcessPools:
    """Which launches have the processes of the one before."""

    @staticmethod
    def pool(size: int = 8) -> ProcessPool | None:
        with processes.pool([GlobalPointer(np.zeros(size, np.uint8), "x")]) as (workers, _):
            return workers

    def test_stay(self):
        first = self.pool()
        assert first is not None and self.pool() is first

    def test_a_pool_is_not_reused_after_a_pause(self, monkeypatch):
        first = self.pool()
        monkeypatch.setattr(processes, "REUSE_SECONDS", 0)
        assert self.pool() is not first

    def test_a_pool_expires_after_its_greatest_age(self, monkeypatch):
        """They hold memory that this process has freed."""
        first = self.pool()
        monkeypatch.setattr(processes, "MAX_AGE_SECONDS", 0)
        assert self.pool() is not first

    def test_a_pool_is_not_reused_under_other_settings(self, monkeypatch):
        first = self.pool()
        monkeypatch.setenv("TENSORCORE_DSL_CACHE", "elsewhere")
        assert self.pool() is not first

    def test_not_for_more_memory(self, monkeypatch):
        monkeypatch.setattr("tensorcore_dsl.interpreter.arena.MIN_BYTES", 100)
        first = self.pool()
        assert self.pool(100) is first and self.pool(101) is not first

    def test_not_in_a_copy_of_the_process(self):
        """It does not end those of the other process either."""
        first = self.pool()
        assert first is not None
        first.run(report, [(0, 5), (5, 5)], 2, Event(), lambda _: None)
        if not (number := os.fork()):
            os._exit(self.pool() is first)
        assert os.waitpid(number, 0)[1] == 0
        assert all(worker.status(os.WNOHANG) is None for worker in first.workers)

    def test_one_launch_at_a_time(self):
        with processes.pool([]) as (first, _), processes.pool([]) as (second, _):
            assert first is not None and second is None

    def test_none_without_memory(self, monkeypatch):
        class Full(Arena):
            def __init__(self, size: int) -> None:
                raise OSError("Cannot allocate memory")

        monkeypatch.setattr(processes, "Arena", Full)
        x = GlobalPointer(np.zeros(3), "x")
        with processes.pool([x]) as (workers, arrays):
            assert workers is None and arrays == [x]
        monkeypatch.undo()
        assert self.pool() is not None

    def test_none_for_arrays_that_leave_no_memory(self, monkeypatch):
        monkeypatch.setattr(processes, "MIN_BYTES", 100)
        assert self.pool(1000) is not None
        processes.shutdown()
        monkeypatch.setattr(processes, "_free_memory", lambda: 1900)
        assert self.pool(1000) is None and self.pool(100) is not None
        monkeypatch.undo()
        assert processes._free_memory() > 1 << 20


class TestMemory:
    @pytest.fixture
    def arena(self):
        return Arena(1)

    def test_views_of_one_array_move_together(self, arena):
        whole = np.arange(1000, dtype=np.int16)
        low, turned = whole[3:200], whole[100:900].reshape(40, 20)[::-2, 3:]
        one, two = self.moved(
            arena, GlobalPointer(low, "low"), TensorMapArgument(turned, "turned", (0,), (1,))
        )
        assert np.array_equal(one, low) and np.array_equal(two, turned)
        assert (one.strides, two.strides) == (low.strides, turned.strides)
        assert not np.shares_memory(one, whole) and np.shares_memory(one, two)
        shift = low.ctypes.data - whole.ctypes.data
        assert (one.ctypes.data - shift) % ALIGNMENT == 0
        assert two.ctypes.data - one.ctypes.data == turned.ctypes.data - low.ctypes.data
        one[-1], two[0, 0] = -5, -6
        assert low[-1] != -5
        arena.give_back()
        assert low[-1] == -5 and turned[0, 0] == -6

    def test_read_only_and_empty_arrays_stay_so(self, arena):
        alone, none = np.arange(5.0), np.empty((0, 4))
        alone.flags.writeable = False
        copy, empty = self.moved(arena, GlobalPointer(alone, "alone"), GlobalPointer(none, "none"))
        assert np.array_equal(copy, alone) and not copy.flags.writeable and empty is none
        assert arena.take([3]) == [3]

    @staticmethod
    def moved(arena: Arena, *arguments: Any) -> list[np.ndarray]:
        return [argument.array for argument in arena.take(arguments)]

    def test_an_interrupt_while_arrays_are_copied_leaves_them(self, arena, monkeypatch):
        """What the arena held before is not copied back."""
        old, new = np.full(5, 77), np.ones(5, np.int64)
        arena.take([GlobalPointer(old, "old")])
        arena.give_back()

        def interrupted(*_: int) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr("ctypes.memmove", interrupted)
            arena.take([GlobalPointer(new, "new")])
        arena.give_back()
        assert (new == 1).all()

    def test_much_memory_is_given_back_at_the_end(self, arena):
        def occupied() -> int:
            sizes = dict(x.split(":", 1) for x in Path("/proc/self/status").read_text().splitlines())
            return int(sizes["RssShmem"].split()[0]) << 10

        before, arena.used = occupied(), 5.0
        x = np.ones(100 << 20, np.uint8)
        arena.take([GlobalPointer(x, "x")])
        assert occupied() >= before + x.size
        arena.give_back()
        assert occupied() < before + x.size // 2 and arena.used == 5.0

    def test_what_arguments_share_is_copied_back_once(self, arena, monkeypatch):
        """A kernel's tensor maps name arrays that pointers name, too."""
        whole = np.zeros((6, 8), np.int32)
        two, apart = whole[:2], np.zeros(4, np.int64)
        pointers = [
            GlobalPointer(whole[1:3], "c"),
            TensorMapArgument(two, "a", (1, 0), (8, 1)),
            GlobalPointer(two, "a"),
            GlobalPointer(whole[4], "b"),
            GlobalPointer(whole[3], "d", writable=False),
            GlobalPointer(apart, "e"),
        ]
        moved: Any = arena.take(pointers)
        for argument in moved:
            argument.array[...] = 7
        copied: list[int] = []
        copy = ctypes.memmove

        def noted(to: int, start: int, size: int) -> None:
            copied.append(size)
            copy(to, start, size)

        monkeypatch.setattr("ctypes.memmove", noted)
        arena.give_back()
        row = whole[0].nbytes
        assert sorted(copied) == [row, apart.nbytes, 3 * row]
        assert whole[:, 0].tolist() == [7, 7, 7, 0, 7, 0] and (apart == 7).all()

    def test_what_is_not_written_is_not_copied_back(self, arena):
        x = np.arange(8)
        (moved,) = arena.take([GlobalPointer(x, "x", writable=False)])
        moved.array[2] = 50
        arena.give_back()
        assert x[2] == 2

    def test_a_described_array_is_the_same_memory(self, arena):
        x = np.arange(24).reshape(4, 6)[::-1, 1:4]
        (moved,) = arena.take([GlobalPointer(x, "x")])
        described = arena.view(moved.array)
        assert described is not None and arena.view(x) is None
        view = arena.array(described)
        assert np.array_equal(view, x) and np.shares_memory(view, moved.array)

    def test_copied_back_after_an_error(self):
        x = np.arange(8)
        with pytest.raises(ZeroDivisionError), processes.pool([GlobalPointer(x, "x")]) as (_, moved):
            moved[0].array[2] = 50
            _ = 1 // 0
        assert x[2] == 50
