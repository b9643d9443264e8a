"""Where tests run kernels, and what no test leaves behind for the next one."""

from __future__ import annotations

import faulthandler
import gc
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import pytest

from tensorcore_dsl.codegen import ir_cache
from tensorcore_dsl.runtime import driver, targets
from tests import quick, suite_record, wheels

BEGUN = time.monotonic()
CRASHES = pytest.StashKey[TemporaryDirectory[str]]()
DEATHS = pytest.StashKey[list[str]]()
STACK_LINES = 20  # that the summary shows of a crashed worker
CRASH_LOG = Path("build", "crashes.txt")  # `make test-all` prints it at the very end

# Tests keep the kernels that they compile: millions of objects. With the thresholds of Python, the
# collector takes a quarter of the time to walk along them.
gc.set_threshold(10_000, 10, 50)
# Tests compare what processes print: the notice of compilations would depend on what is cached.
os.environ.setdefault("TENSORCORE_DSL_NOTICE", "off")
# Tests are about the emulator, on a machine with a GPU too, except those marked `gpu`. Modules are
# imported, and fixtures of modules made, with this value.
os.environ[targets.TARGET_VARIABLE] = "cpu"
os.environ.pop(targets.ARCH_VARIABLE, None)
# torch.compile starts a process for each core, in each of pytest's workers.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
# JAX would take most of a GPU's memory, in each of pytest's workers.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


@pytest.fixture(autouse=True)
def isolated(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each test begins with the same target, environment, folder and random numbers, whatever ran before it."""
    folder, emulating = os.getcwd(), targets._emulating
    target = targets._target.set((None, None))
    if whole_numbers := sys.modules.get("tests.whole_numbers"):
        whole_numbers.RNG.bit_generator.state = whole_numbers.START
    with mock.patch.dict(os.environ):
        if request.node.get_closest_marker("gpu"):
            del os.environ[targets.TARGET_VARIABLE]
        yield
    targets._target.reset(target)
    targets._emulating = emulating
    os.chdir(folder)
    if processes := sys.modules.get("tensorcore_dsl.interpreter.processes"):
        processes.shutdown()  # they would not see what the next test changes
    if order := sys.modules.get("tensorcore_dsl.interpreter.sanitizer.stream_order"):
        order.forget()  # launches of one test are not in front of those of the next one
    if dynamo := sys.modules.get("torch._dynamo"):
        dynamo.reset()  # graphs of one test are not those of the next one


@pytest.fixture
def fresh_ir(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluate kernels anew, for tests of their evaluation: no IR of another process is taken."""
    monkeypatch.setattr(ir_cache, "_load", lambda entry: None)
    monkeypatch.setattr(ir_cache, "_store", lambda entry, made: None)


@pytest.fixture
def on_hopper() -> Iterator[None]:
    """Emulate sm_90a."""
    with targets.target("cpu", "sm_90a"):
        yield


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources of the repository."""
    return wheels.copy_sources(tmp_path_factory.mktemp("dist") / "source")


@pytest.fixture(scope="session")
def sdist(source: Path) -> Path:
    """The folder of the unpacked sdist."""
    packed = wheels.build("sdist", source, source.parent)
    shutil.unpack_archive(packed, source.parent)
    return source.parent / packed.name.removesuffix(".tar.gz")


@pytest.fixture(scope="session")
def wheel(sdist: Path) -> Path:
    copy = shutil.copytree(sdist, sdist.parent / "wheel")  # a build leaves files beside the sources
    return wheels.build("wheel", copy, sdist.parent)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield chromium
        chromium.close()


ON_GPU = pytest.param("cuda", marks=pytest.mark.gpu)


@pytest.fixture(params=["cpu", ON_GPU])
def device(request: pytest.FixtureRequest) -> str:
    """Where tensors of PyTorch lie: in host memory, which means emulation, or on a GPU."""
    if request.param == "cuda":
        request.getfixturevalue("gpu")
    sys.modules["torch"].manual_seed(0)
    return request.param


@pytest.fixture
def gpu() -> None:
    if not driver.cuda_available() or driver.compute_capability() != 90:
        pytest.skip("needs sm_90a")
    sys.modules["torch"].manual_seed(0)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", metavar="FILE", help="write what the run gave (suite_record.py)")
    quick.pytest_addoption(parser)


pytest_collection_modifyitems = quick.pytest_collection_modifyitems


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give each worker the folder for the stack of one that dies of a signal."""
    if CRASHES not in node.config.stash:
        node.config.stash[CRASHES] = TemporaryDirectory()
    node.workerinput["crashes"] = node.config.stash[CRASHES].name


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Note with which status a worker ended that died: a negative one is a signal."""
    if error:
        with suppress(subprocess.TimeoutExpired):
            status = node.gateway._io.popen.wait(5)
            node.config.stash.setdefault(DEATHS, []).append(f"{node.gateway.id} ended with status {status}")


@pytest.hookimpl(trylast=True)  # behind pytest's own, which writes to standard error
def pytest_configure(config: pytest.Config) -> None:
    if worker := getattr(config, "workerinput", None):
        path = Path(worker["crashes"], worker["workerid"])
        faulthandler.enable(os.open(path, os.O_WRONLY | os.O_CREAT))


# Packages without which whole files, or the tests that matter on a GPU, do not run.
OPTIONAL = {
    "torch": "tests/test_torch*.py and parts of others",
    "jax": "those of JAX",
    "mypy": "what mypy says of kernels",
    "pyright": "what pyright says of kernels",
    "playwright": "tests/test_*_browser.py",
}


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    """Print the stacks of crashed workers, and which tests a missing package has skipped."""
    lines = config.stash.get(DEATHS, [])
    crashes = config.stash.get(CRASHES, None)
    for path in sorted(Path(crashes.name).iterdir()) if crashes else ():
        if text := path.read_text():
            stack = text.rpartition("Current thread ")[2]
            lines += [f"{path.name}: {text.splitlines()[0]}", *stack.splitlines()[:STACK_LINES]]
    if lines:
        terminalreporter.section("workers that died")
        terminalreporter.write_line("\n".join(lines))
        CRASH_LOG.parent.mkdir(exist_ok=True)
        with CRASH_LOG.open("a") as log:
            print(*lines, sep="\n", file=log)
    for package, tests in OPTIONAL.items():
        if importlib.util.find_spec(package) is None:
            terminalreporter.write_line(f"{package} is not installed: {tests} did not run", yellow=True)
    if config.option.record and exitstatus in (0, 1):  # not of a run that was cut
        outcomes = {name: len(reports) for name, reports in terminalreporter.stats.items()}
        command = shlex.join(map(str, config.invocation_params.args))
        arguments = re.sub(r"(^| )--record=\S+", "", command).strip()
        row = suite_record.row(outcomes, time.monotonic() - BEGUN, arguments)
        Path(config.option.record).write_text(row)
