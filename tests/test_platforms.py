"""Platforms other than the tested one, as far as a simulation goes: what Windows and macOS lack is taken away."""

import os
import subprocess
import sys

import pytest

from tensorcore_dsl.environment import cache_directory as caches

# Like Windows: no fork, no affinity, no masks of signals, none of Linux's files of the system.
LACKING = """
import builtins, io, os, pathlib, signal, sys
# What belongs to the platform, and has read its name before.
import asyncio, ctypes, multiprocessing.connection, multiprocessing.pool, subprocess
import llvmlite.binding, ml_dtypes, numpy, rich.console, rich.progress

for module, names in ((os, ("fork", "sched_getaffinity", "register_at_fork")), (signal, ("pthread_sigmask",))):
    for name in names:
        delattr(module, name)
def without_system_files(function):
    def called(path, *args, **named):
        if isinstance(path, (str, os.PathLike)) and str(path).startswith(("/proc/", "/sys/")):
            raise FileNotFoundError(2, "there is no such file", str(path))
        return function(path, *args, **named)
    return called
builtins.open = io.open = without_system_files(open)
os.listdir, os.scandir = without_system_files(os.listdir), without_system_files(os.scandir)
sys.platform = PLATFORM
"""

PROGRAM = """
import numpy as np
import tensorcore_dsl as tc
from tensorcore_dsl import kernels

@tc.kernel
def scale(x: tc.Array, factor: tc.f32):
    i = tc.blockIdx.x * 128 + tc.threadIdx.x
    if i < x.shape[0]:
        x[i] *= factor

x = np.arange(100_000, dtype=np.float32)
scale[1000, 128](x, 2.0)
assert np.array_equal(x, 2 * np.arange(100_000, dtype=np.float32))
rng = np.random.default_rng(0)
a, b = rng.standard_normal((2, 128, 128)).astype(np.float16)
print(kernels.gemm(a, b).tobytes().hex()[:4000])
assert scale.ptx(x, 2.0).startswith(".version")
"""


def run(*parts, **environment):
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(parts)],
        capture_output=True,
        text=True,
        env={**os.environ, "TENSORCORE_DSL_TARGET": "cpu", **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="has nothing to take away")
@pytest.mark.parametrize("platform", ["win32", "darwin"])
def test_results_without_what_other_platforms_lack(platform):
    """Launches of many blocks, which use processes here, and a product: with the same bits."""
    assert run(LACKING.replace("PLATFORM", repr(platform)), PROGRAM) == run(PROGRAM)


def test_no_text_depends_on_the_platforms_encoding(tmp_path):
    """Nor on a locale: this package names the encoding of each file of text that it opens."""
    strict = (
        "import warnings; warnings.filterwarnings('error', category=EncodingWarning, module='tensorcore_dsl')"
    )
    environment = {"PYTHONWARNDEFAULTENCODING": "1", "LC_ALL": "C", "PYTHONUTF8": "0"}
    run(
        strict,
        PROGRAM,
        **environment,
        TENSORCORE_DSL_CACHE=str(tmp_path),
        TENSORCORE_DSL_DUMP=str(tmp_path / "d"),
    )


@pytest.mark.parametrize(
    "platform, variables, expected",
    [
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/tensorcore_dsl"),
        ("darwin", {"HOME": "/home/me"}, "/home/me/Library/Caches/tensorcore_dsl"),
        ("linux", {"XDG_CACHE_HOME": "/cache"}, "/cache/tensorcore_dsl"),
    ],
)
def test_each_platform_has_its_place_for_caches(monkeypatch, platform, variables, expected):
    monkeypatch.setattr(caches.sys, "platform", platform)
    for name in (caches.VARIABLE, "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert str(caches.chosen_directory()) == expected
