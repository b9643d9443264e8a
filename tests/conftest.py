"""Where tests run kernels, and what no test leaves behind for the next one."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

from tensorcore_dsl.runtime import targets

# Tests compare what processes print: the notice of compilations would depend on what is cached.
os.environ.setdefault("TENSORCORE_DSL_NOTICE", "off")
# Tests are about the emulator, on a machine with a GPU too, except those marked `gpu`. Modules are
# imported, and fixtures of modules made, with this value.
os.environ[targets.TARGET_VARIABLE] = "cpu"
# torch.compile starts a process for each core, in each of pytest's workers.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")


@pytest.fixture(autouse=True)
def isolated(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each test begins with the same target, environment and folder, whatever ran before it."""
    folder, emulating = os.getcwd(), targets._emulating
    target = targets._target.set((None, None))
    with mock.patch.dict(os.environ):
        if request.node.get_closest_marker("gpu"):
            del os.environ[targets.TARGET_VARIABLE]
        yield
    targets._target.reset(target)
    targets._emulating = emulating
    os.chdir(folder)


@pytest.fixture(autouse=True, scope="session")
def fresh_ir():
    """Tests evaluate kernels themselves: some change how, and no process may find what they made."""
    from tensorcore_dsl.codegen import ir_cache

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ir_cache, "_load", lambda entry: None)
        patch.setattr(ir_cache, "_store", lambda entry, made: None)
        yield


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say which tests a missing package has skipped: they are more than one line of a count."""
    for package, tests in (("torch", "tests/test_torch*.py and parts of others"), ("jax", "those of JAX")):
        if importlib.util.find_spec(package) is None:
            terminalreporter.write_line(f"{package} is not installed: {tests} did not run", yellow=True)
