"""Where code comes from: users' modules are theirs, also those named like Python's."""

import importlib.util
import os
import queue
import sys

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import origins
from tensorcore_dsl.origins import is_foreign, is_installed, is_library, is_pythons

HELPER = """
def clipped(x):
    if x > 2:
        x = x * 0 + 2
    return x
"""


@pytest.fixture
def user_module(tmp_path, monkeypatch):
    """A module of the user with a name of Python's library."""
    path = tmp_path / "queue.py"
    path.write_text(HELPER)
    spec = importlib.util.spec_from_file_location("queue", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "queue", module)
    spec.loader.exec_module(module)
    return module


def test_a_module_named_like_one_of_python_is_kernel_code(user_module):
    helper = user_module.clipped

    @tc.kernel
    def run(x: tc.Array):
        x[tc.threadIdx.x] = helper(x[tc.threadIdx.x])

    x = np.arange(32, dtype=np.float32)
    run.emulate[1, 32](x)
    assert (x == np.minimum(np.arange(32), 2)).all()


def test_modules():
    assert is_pythons("queue", queue.__file__) and not is_pythons("queue", "/home/me/queue.py")
    assert is_pythons("os", os.__file__) and is_pythons("sys", None) and not is_pythons("numpy", None)
    assert is_installed(np.__file__) and not is_installed(__file__) and not is_installed(None)
    assert is_library("tensorcore_dsl.lang.math") and not is_library("tensorcore_dsl_extra")
    assert not is_library("tensorcore_dsl.kernels") and is_library("tensorcore_dsl.kernels_of")
    assert is_foreign("numpy", np.__file__, vars(np)) and not is_foreign("mine", __file__, {})


def test_folders_into_which_pip_installs(tmp_path, monkeypatch):
    """`pip install --target` puts packages beside what a user may have there."""
    for package in ("other", "mine"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("")
    files = {str(tmp_path / name / "__init__.py"): name for name in ("other", "mine")}
    monkeypatch.syspath_prepend(tmp_path)
    assert not any(map(is_installed, files))
    origins._installed_into.cache_clear()
    record = tmp_path / "other-1.0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (record / "RECORD").write_text("other/__init__.py,,\nother-1.0.dist-info/METADATA,,\n")
    assert [name for path, name in files.items() if is_installed(path)] == ["other"]
    origins._installed_into.cache_clear()
