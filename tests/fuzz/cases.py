"""What all families of cases share: the property, and the loop that a child process runs."""

from __future__ import annotations

import importlib
import io
import random
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any

import numpy as np
from numba.core.compiler_lock import global_compiler_lock

from tensorcore_dsl.errors import TensorCoreError

FAMILIES = ("emulated", "ir_text", "sources", "launches", "capsules")
ENDLESS = frozenset({"ir_text", "sources", "launches"})  # their programs may loop forever


class Alarm(BaseException):
    """A case has used up its time."""


def _ring(*_: Any) -> None:
    if not global_compiler_lock.is_locked():  # Numba's compiler must not be interrupted
        raise Alarm


def prepare(family: str) -> Callable[[random.Random], None]:
    """The function that runs a case, when all is done that takes long."""
    module = importlib.import_module(f"tests.fuzz.{family}")
    if hasattr(module, "prepare"):
        module.prepare()
    case: Callable[[random.Random], None] = module.case
    return case


def run_case(family: str, seed: int, seconds: float) -> str:
    """How a case failed, as text; "" if it did not.

    A program that does not end within `seconds` of processor time is interrupted, as by Ctrl-C.
    """
    try:
        return _run_timed(prepare(family), family, seed, seconds)
    except Alarm:  # the time was over as the case ended
        return ""


def _run_timed(case: Callable[[random.Random], None], family: str, seed: int, seconds: float) -> str:
    signal.signal(signal.SIGPROF, _ring)
    signal.setitimer(signal.ITIMER_PROF, seconds, 5)  # again, should one be lost
    try:
        with redirect_stdout(io.StringIO()), warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            case(random.Random(f"{family} {seed}"))
    except TensorCoreError as error:
        return "" if str(error).strip() else f"{type(error).__name__} without a text"
    except Alarm:
        return "" if family in ENDLESS else "it takes too long\n" + traceback.format_exc()
    except RecursionError as error:
        return f"RecursionError: {error}\n" + "".join(traceback.format_exc().splitlines(True)[-12:])
    except BaseException:
        return traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return ""


def child(family: str, first: int, seconds: float) -> None:
    """Run cases from number `first` on until the process is ended; report on stdout."""
    prepare(family)
    seed = first
    while True:
        print(f"begin {seed}", flush=True)
        failure = run_case(family, seed, seconds)
        if failure:
            print(f"failed {seed} {failure!r}", flush=True)
        seed += 1


if __name__ == "__main__":
    sys.setswitchinterval(0.001)
    child(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
