"""Worker processes for the chunks of a launch, each with its own interpreter lock.

A worker is a fork of this process, so it has the programs and the compiled loops already. It gets
the rest of a launch through a pipe; the arrays lie in shared memory (`Arena`). Workers without work
are used again by the launches that follow, if their programs existed when the worker was made. A
worker uses no GPU, holds no file of this process, does not get its signals, and ends without its
exit handlers.
"""

from __future__ import annotations

import ctypes
import gc
import io
import math
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection, Pipe, wait
from threading import Event
from typing import Any, NoReturn

import numpy as np

from tensorcore_dsl.environment import switches
from tensorcore_dsl.environment.compile_notice import VARIABLE as NOTICE
from tensorcore_dsl.errors import EmulationError
from tensorcore_dsl.interpreter.arena import MIN_BYTES, Arena
from tensorcore_dsl.interpreter.core import memory_pool, policy
from tensorcore_dsl.interpreter.core.program import PROGRAMS, Program, next_serial
from tensorcore_dsl.interpreter.core.report import Report
from tensorcore_dsl.interpreter.core.team import ALONE, Team
from tensorcore_dsl.lowering.forms import COMPILING

VARIABLE = "TENSORCORE_DSL_PROCESSES"
_SIGNAL_AT_END = 1  # PR_SET_PDEATHSIG
PATIENCE_SECONDS = 2.0  # seconds for the other processes to say where they stood
REUSE_SECONDS = 2.0  # time in which a worker without work is used again
IDLE_SECONDS = 3 * REUSE_SECONDS  # time after which a worker without work ends
MAX_AGE_SECONDS = 60.0  # age limit of workers: they hold memory that this process has freed
SPARE_FILES = 8  # descriptors that a new worker and a launch need
_TEAM = "team"  # stands for a team in what is sent: a worker has one thread

# Runs CTAs, from the first one on, so many of them, until an event is set.
Chunk = Callable[[int, int, Event], Report]
Job = tuple[int, int]  # the first CTA of a chunk, and how many it has


# -- when ----------------------------------------------------------------------------------------


def can_fork() -> bool:
    """True if this process may make others.

    False if the system cannot copy a process, and in workers of `multiprocessing`, which may have no
    children. False if there are other threads: a lock that another thread holds at the fork stays locked in
    the child. Threads that serve in the background and emulate nothing, as a notebook has them, do no harm.
    """
    here = threading.current_thread()
    return (
        sys.platform.startswith("linux")
        and not multiprocessing.current_process().daemon
        and not switches.is_off(VARIABLE)
        and all(thread is here or thread.daemon for thread in threading.enumerate())
        and all(number == here.ident for number in _launches)
    )


_launches: list[int | None] = []  # numbers of the threads that emulate
_changing = threading.Lock()  # held where this list changes, and while a process is copied


@contextmanager
def launching() -> Iterator[None]:
    """Note that this thread emulates: meanwhile no other thread may fork workers."""
    number = threading.current_thread().ident
    with _changing:
        _launches.append(number)
    try:
        yield
    finally:
        with _changing:
            _launches.remove(number)


@contextmanager
def pool(arguments: Sequence[Any]) -> Iterator[tuple[ProcessPool | None, Sequence[Any]]]:
    """The processes for a launch, and its arguments with their arrays where these see them.

    None, and the arguments as they are, where there may be no processes. At the end the arrays are
    copied back, whatever has happened. Only one launch has processes at a time.
    """
    global _kept
    if not can_fork() or not _in_use.acquire(blocking=False):
        yield None, arguments
        return
    try:
        room = Arena.room(arguments)
        if _kept is None or not _kept.serves(room):
            shutdown()
            try:
                _kept = ProcessPool(room)
            except (OSError, MemoryError):
                yield None, arguments
                return
        kept = _kept
        kept.arena.used = math.inf  # all workers stay, also workers without a chunk
        try:
            yield kept, kept.arena.take(arguments)
        finally:
            kept.arena.give_back()
            kept.arena.used = time.monotonic()
    finally:
        _in_use.release()


def has_idle_workers(program: Program) -> bool:
    """True if there are workers without work that know a program."""
    kept = _kept
    workers = kept.workers if kept is not None and kept.serves(0) else []
    return bool(workers) and all(worker.serves(program.serial) for worker in workers)


def shutdown() -> None:
    """End the processes that wait for another launch."""
    global _kept
    if _kept is not None:
        _kept.end()
    _kept = None


# -- processes -----------------------------------------------------------------------------------


class _Pickler(pickle.Pickler):
    """Writes programs as numbers, arrays in the arena as offsets, and a team as a mark."""

    def __init__(self, file: io.BytesIO, arena: Arena) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.arena, self.newest = arena, -1

    def persistent_id(self, item: Any) -> Any:
        if isinstance(item, Program):
            self.newest = max(self.newest, item.serial)
            return item.serial
        if isinstance(item, Team):
            return _TEAM
        return self.arena.view(item) if type(item) is np.ndarray else None


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, arena: Arena) -> None:
        super().__init__(io.BytesIO(data))
        self.arena = arena

    def persistent_load(self, name: Any) -> Any:
        if name == _TEAM:
            return ALONE
        return PROGRAMS[name] if isinstance(name, int) else self.arena.array(name)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Hold back interrupts until the end.

    They stay held in processes that are made meanwhile, until `_work` handles them: before, one
    would leave the launch there, and a second copy of the user's program would go on.
    """
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


class _Worker:
    """A process that runs one chunk after the other. It is made with interrupts held back.

    Attributes
    ----------
    job : tuple of int or None
        The chunk that the process runs.
    newest : int
        The process knows the programs with lower serial numbers.
    """

    def __init__(self, arena: Arena) -> None:
        self.job: Job | None = None
        self.answers, end = Pipe()
        self._status: int | None = None
        with end, ExitStack() as spare:
            for _ in range(SPARE_FILES):
                spare.enter_context(open(os.devnull, "rb"))
            with _changing, COMPILING, warnings.catch_warnings():
                if len(set(_launches)) > 1:
                    raise BlockingIOError("another thread has begun to emulate")
                self.newest = next_serial()
                # Python warns if there are other threads, because their locks stay locked in the
                # child. The child uses nothing that threads of BLAS lock.
                warnings.simplefilter("ignore")
                # No process of `multiprocessing`: copies of this one would end it with their own.
                self.number = os.fork()
            if not self.number:
                spare.close()
                _work(end, arena)

    def serves(self, newest: int) -> bool:
        """True if it is there, and knows the program with a serial number."""
        return self.newest > newest and self.status(os.WNOHANG) is None

    def status(self, options: int = 0) -> int | None:
        """Its exit code; None while it runs, with the option not to wait."""
        if self._status is None:
            try:
                number, status = os.waitpid(self.number, options)
            except ChildProcessError:  # others have waited for it
                number, status = self.number, 0
            if number:
                self._status = os.waitstatus_to_exitcode(status)
        return self._status

    def begin(self, job: Job, launch: bytes | None = None) -> None:
        """Let the worker run a chunk of `launch`, or of its previous launch if `launch` is None."""
        self.job = job
        with suppress(ConnectionError):  # The worker has ended, as its answer tells.
            self.answers.send((job, launch))

    def answer(self) -> Report | BaseException:
        """The report of the chunk, or its error."""
        try:
            answer: Report | BaseException = self.answers.recv()
        except (EOFError, ConnectionError):
            answer = EmulationError(
                f"a process that emulated CTAs ended with exit code {self.status()}; is there "
                f"enough memory? {VARIABLE}=off uses none"
            )
        self.job = None
        return answer

    def signal(self, number: int) -> None:
        if self.status(os.WNOHANG) is None:
            os.kill(self.number, number)

    def end(self) -> None:
        """Wait for its end, after a signal."""
        self.status()
        self.answers.close()


def _work(end: Connection, arena: Arena) -> NoReturn:
    """Run the chunks that are asked for, until nobody has asked for a while."""
    try:
        stop, data, chunk = Event(), b"", None
        _leave(end.fileno())
        signal.signal(signal.SIGINT, lambda *_: stop.set())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        os.environ[NOTICE] = "off"  # Otherwise each worker would report what it compiles.
        gc.disable()  # do not finalise objects of the parent
        memory_pool.forget()  # writes to memory of the parent are as slow as to new memory
        with suppress(EOFError, ConnectionError):
            while (left := arena.used + IDLE_SECONDS - time.monotonic()) > 0:
                if end.poll(min(left, IDLE_SECONDS)):
                    job, launch = end.recv()
                    if launch is not None:
                        stop.clear()
                        data, chunk = launch, None
                    chunk = _run(data, chunk, job, arena, stop, end)
        os._exit(0)
    except BaseException:
        try:
            traceback.print_exc()
        finally:
            os._exit(1)


def _leave(own: int) -> None:
    """Detach from the parent: reset signal handlers, and replace its files except `own` by /dev/null.

    Readers of the parent's pipes then see their end. The descriptors stay in use, so that an
    inherited object that closes its file closes no other file.
    """
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    with suppress(OSError, AttributeError):  # end with the other process, however that ends
        ctypes.CDLL(None).prctl(_SIGNAL_AT_END, signal.SIGKILL)
    null = os.open(os.devnull, os.O_RDWR)
    for file in map(int, os.listdir("/proc/self/fd")):
        if file > 2 and file not in (own, null):
            with suppress(OSError):  # The descriptor of the listed directory is closed.
                os.fstat(file)
                os.dup2(null, file)


def _run(
    data: bytes, chunk: Chunk | None, job: Job, arena: Arena, stop: Event, end: Connection
) -> Chunk | None:
    """Run a chunk and return it. If it is None, read it and the policy of its launch from `data`."""
    try:
        if chunk is None:
            policy.current, chunk = _Unpickler(data, arena).load()
        answer: Any = chunk(*job, stop)
    except BaseException as error:
        answer = error
    try:
        end.send(answer)
    except Exception as error:  # an error that cannot be sent
        end.send(EmulationError(f"{type(answer).__name__}: {answer} ({error})"))
    return chunk


def _free_memory() -> int:
    """Bytes that this machine could give to programs."""
    with open("/proc/meminfo", encoding="ascii") as lines:
        sizes = dict(line.split(":") for line in lines)
    return int(sizes.get("MemAvailable", "0").split()[0]) << 10


def _settings() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("TENSORCORE_DSL")}


class ProcessPool:
    """Processes that run the chunks of one launch after the other."""

    def __init__(self, room: int) -> None:
        if room > MIN_BYTES and room > _free_memory() // 2:
            raise MemoryError(f"arrays of {room} bytes are too large for another copy")
        self.arena, self.workers = Arena(room), list[_Worker]()
        self.arena.used = self._began = time.monotonic()
        self._owner, self._made, self._broken = os.getpid(), _settings(), False

    def serves(self, room: int) -> bool:
        """True if another launch, with arrays of `room` bytes, may use them."""
        return (
            self._owner == os.getpid()
            and not self._broken
            and self.arena.bytes.size >= room
            and time.monotonic() < self.arena.used + REUSE_SECONDS
            and time.monotonic() < self._began + MAX_AGE_SECONDS
            and self._made == _settings()
        )

    def end(self) -> None:
        """End the workers, unless they belong to another process."""
        workers, self.workers = self.workers, []
        if self._owner == os.getpid():
            for worker in workers:
                worker.signal(signal.SIGKILL)
            for worker in workers:
                worker.end()

    def run(
        self, chunk: Chunk, jobs: Iterable[Job], count: int, stop: Event, advance: Callable[[int], None]
    ) -> Report:
        """The sum of the reports of `chunk` for `jobs`, in the order of their CTAs.

        Each of the `count` processes has a job, and takes the next one when it is done.

        Raises the error of the first chunk that fails, and ends the chunks after it. stop: asks a
        chunk to end. advance: is told of each number of CTAs that have ended.
        """
        try:
            return self._run(chunk, jobs, count, stop, advance)
        except BaseException:
            self._broken = True  # another interrupt may leave some that write to the arena
            self.end()
            raise

    def _run(
        self, chunk: Chunk, jobs: Iterable[Job], count: int, stop: Event, advance: Callable[[int], None]
    ) -> Report:
        total, failed, left = Report(), dict[int, BaseException](), iter(jobs)
        workers = self._begin(chunk, left, count)
        if not workers:  # the system refuses all
            for job in left:
                total += chunk(*job, stop)
                advance(job[1])
        try:
            while running := _running(workers, min(failed, default=math.inf)):
                for ready in wait([worker.answers for worker in running]):
                    worker = next(w for w in running if w.answers is ready)
                    assert worker.job is not None
                    (first, ctas), answer = worker.job, worker.answer()
                    if isinstance(answer, BaseException):
                        failed[first] = answer
                        continue
                    total += answer
                    advance(ctas)
                    following = None if failed else next(left, None)
                    if following is not None:
                        worker.begin(following)
        except KeyboardInterrupt as error:
            _note_place(error, workers)
            raise
        if failed:
            raise failed[min(failed)]
        return total

    def _begin(self, chunk: Chunk, jobs: Iterator[Job], count: int) -> list[_Worker]:
        """Let up to `count` processes, as many as the system grants, begin with one of `jobs`
        each."""
        data = io.BytesIO()
        pickler = _Pickler(data, self.arena)
        pickler.dump((policy.current, chunk))
        for worker in [w for w in self.workers if not w.serves(pickler.newest)]:
            self.workers.remove(worker)
            worker.signal(signal.SIGKILL)
            worker.end()
        with _interrupts_held():
            for _ in range(count - len(self.workers)):
                with suppress(OSError):
                    self.workers.append(_Worker(self.arena))
        used = self.workers[:count]
        for worker, job in zip(used, jobs):
            worker.begin(job, data.getvalue())
        return used


def _running(workers: Sequence[_Worker], end: float) -> list[_Worker]:
    """Select the workers that run a chunk before CTA `end`."""
    return [worker for worker in workers if worker.job is not None and worker.job[0] < end]


def _note_place(error: KeyboardInterrupt, workers: Sequence[_Worker]) -> None:
    """Say in `error` where the first chunk stood that the interrupt has ended."""
    running = sorted((w.job, i) for i, w in enumerate(workers) if w.job is not None)
    for _, i in running:
        workers[i].signal(signal.SIGINT)
    for _, i in running:
        if workers[i].answers.poll(PATIENCE_SECONDS):
            answer = workers[i].answer()
            if isinstance(answer, KeyboardInterrupt):
                error.args = answer.args
                return


_kept: ProcessPool | None = None
_in_use = threading.Lock()
