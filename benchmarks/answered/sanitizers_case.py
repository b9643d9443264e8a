"""A child process of `benchmarks.answered.sanitizers`: launches planted bugs and twins, one by one.

    python -m benchmarks.answered.sanitizers_case RUNS OUT TARGET

RUNS is a JSON list of runs; the process appends a JSON line to OUT when it is ready, and before a
run is compiled, before its launch and after it. It ends by itself after a launch that fails, since
the GPU's context is unusable then.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl.errors import LaunchError, TensorCoreError

ROOT = Path(__file__).parents[2]
GRAIN = 256  # bytes; arrays start at multiples of it, so they start where their allocations start
SEED = 0  # of the arguments, as in tests.planted.harness
RIGHT, WRONG, FAILED, REFUSED = "right", "wrong", "failed", "refused"


def planted() -> Any:
    """The module tests.planted.harness.

    `tests` has no __init__.py, so a package of that name that is installed would hide it.
    """
    if "tests" not in sys.modules:
        tests = ModuleType("tests")
        tests.__path__ = [str(ROOT / "tests")]
        sys.modules["tests"] = tests
    from tests.planted import harness

    return harness


def kernel_of(case: Any, twin: bool) -> Any:
    return case.twin or case.kernel if twin else case.kernel


def named_arguments(case: Any, twin: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments of a launch by name, with `mistake`, and the results that are right."""
    arguments, expected = case.make(np.random.default_rng(SEED))
    if "mistake" in inspect.signature(kernel_of(case, twin).function).parameters:
        arguments = {**arguments, "mistake": "" if twin else case.mistake}
    return arguments, expected


def aligned(arguments: dict[str, Any]) -> dict[str, Any]:
    """Copies of the arrays at multiples of GRAIN; views stay as they are."""
    made: dict[int, Any] = {}
    for value in arguments.values():
        if isinstance(value, np.ndarray) and value.base is None and value.flags.c_contiguous:
            room = np.empty(value.nbytes + GRAIN, np.uint8)
            start = -room.ctypes.data % GRAIN
            copy = room[start : start + value.nbytes].view(value.dtype).reshape(value.shape)
            copy[...] = value
            copy.flags.writeable = value.flags.writeable
            made[id(value)] = copy
    return {name: made.get(id(value), value) for name, value in arguments.items()}


def prepare(run: dict[str, Any], case: Any, target: str) -> Callable[[], dict[str, Any]]:
    """Compile the kernel; the returned function launches it once and says whether it was right.

    On the target cpu, a trial without a GPU, the emulator runs without checks.
    """
    # The tools' reports tell the runs of a process apart by the kernel's name.
    kernel = kernel_of(case, run["twin"]).variant(__name__=run["id"])
    if target == "cuda":
        kernel.cubin(**named_arguments(case, run["twin"])[0], arch=case.arch)
    launches = kernel if target == "cuda" else kernel.emulator(case.arch, checks=False)

    def launch() -> dict[str, Any]:
        arguments, expected = named_arguments(case, run["twin"])
        arguments = aligned(arguments)
        launches[case.grid, case.block, None, case.shared_bytes](**arguments)
        right = all(
            np.array_equal(arguments[name], value, equal_nan=arguments[name].dtype.kind == "f")
            for name, value in expected.items()
        )
        return {"result": RIGHT if right else WRONG}

    return launch


@tc.kernel
def nothing(out: tc.Array) -> None:
    out[tc.threadIdx.x] = 1


def main(runs_file: str, out_file: str, target: str) -> None:
    warnings.simplefilter("ignore")
    runs = json.loads(Path(runs_file).read_text(encoding="utf-8"))
    with open(out_file, "a", encoding="utf-8", buffering=1) as out, tc.target(target):
        say: Callable[[dict[str, Any]], Any] = lambda line: out.write(json.dumps(line) + "\n")
        say({"process": os.getpid()})
        cases = {
            kind: {case.name: case for case in planted().cases(kind)}
            for kind in dict.fromkeys(run["class"] for run in runs)
        }
        nothing[1, 32](np.zeros(32, np.int32))
        say({"ready": True})
        for run in runs:
            say({"prepare": run["id"]})
            try:
                launch = prepare(run, cases[run["class"]][run["name"]], target)
                say({"start": run["id"]})
                result = launch()
            except Exception as error:
                refused = isinstance(error, TensorCoreError) and not isinstance(error, LaunchError)
                text = f"{type(error).__name__}: {error}"
                result = {"result": REFUSED if refused else FAILED, "text": text[:500]}
            say({"end": run["id"], **result})
            if result["result"] == FAILED:
                break


if __name__ == "__main__":
    main(*sys.argv[1:])
