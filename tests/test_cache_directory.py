"""The directory of all caches: who may write there, and disks that refuse."""

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from tensorcore_dsl.environment import cache_directory as place
from tensorcore_dsl.environment import disk_cache
from tensorcore_dsl.environment.json_store import JsonStore, read_again

ROOT = Path(__file__).resolve().parent.parent
NAME = "ab" * 32


@pytest.fixture
def directory(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORCORE_DSL_CACHE", str(tmp_path / "caches"))
    monkeypatch.setattr(place, "_warned", set())
    return tmp_path / "caches"


def fill(directory):
    disk_cache.store(NAME, b"code", "log")
    JsonStore("x.json").remember("a", {"b": 1})
    assert disk_cache.load(NAME) == (b"code", "log")
    assert json.loads((directory / "x.json").read_text()) == {"a": {"b": 1}}


def test_folders_are_the_users_own(directory):
    old = os.umask(0)
    try:
        fill(directory)
    finally:
        os.umask(old)
    folders = [directory, *(p for p in directory.rglob("*") if p.is_dir())]
    assert len(folders) == 2 and all(f.stat().st_mode & 0o777 == 0o700 for f in folders)


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o1777])
def test_a_directory_that_others_may_write(directory, mode):
    """Nothing is read or written there, and one warning says so."""
    fill(directory)
    before = {p: p.read_bytes() for p in directory.rglob("*") if p.is_file()}
    directory.chmod(mode)
    read_again()
    with pytest.warns(RuntimeWarning, match=rf"others may write there \(mode {mode:o}\)") as seen:
        assert disk_cache.load(NAME) is None
        disk_cache.store("cd" * 32, b"code", "log")
        disk_cache.store(NAME, b"other", "log")
        store = JsonStore("x.json")
        assert store.location() is None and store.entries() == {}
        store.remember("c", {"d": 2})
        assert store.entries() == {"c": {"d": 2}}, "as long as the process"
    assert len(seen) == 1 and "chmod go-w" in str(seen[0].message)
    assert {p: p.read_bytes() for p in directory.rglob("*") if p.is_file()} == before
    directory.chmod(0o700)
    assert disk_cache.load(NAME) == (b"code", "log")


def test_a_folder_of_it_that_others_may_write(directory):
    fill(directory)
    (directory / NAME[:2]).chmod(0o777)
    with pytest.warns(RuntimeWarning, match="neither read nor written"):
        assert disk_cache.load(NAME) is None


def test_a_directory_of_another_user(directory, monkeypatch):
    fill(directory)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    if directory.stat().st_uid == 0:  # root may do all anyway
        assert disk_cache.load(NAME) == (b"code", "log")
        os.chown(directory, 1234, -1)
    with pytest.warns(RuntimeWarning, match="belongs to the user with number"):
        assert disk_cache.load(NAME) is None


def test_a_user_without_a_home_has_no_cache(monkeypatch):
    """A user without an entry and without HOME: no directory called ~."""
    monkeypatch.delenv("TENSORCORE_DSL_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    monkeypatch.setattr(sys, "platform", "linux")
    assert place.cache_directory() is None


def test_json_that_nobody_wrote(directory):
    fill(directory)
    for text in ("[" * 100_000, "[]", "1" * 6000, '{"a": 1, "b": [2]}', "\0", '"', "NaN"):
        (directory / "x.json").write_text(text)
        read_again()
        assert JsonStore("x.json").entries() == {}, text[:20]
    (directory / "x.json").write_bytes(b'{"\xff": {}}')
    read_again()
    assert JsonStore("x.json").entries() == {}
    JsonStore("x.json").remember("a", {"b": 1})
    assert json.loads((directory / "x.json").read_text()) == {"a": {"b": 1}}


def test_forgetting_on_a_disk_that_refuses(directory):
    fill(directory)
    (directory / "x.json").unlink()
    (directory / "x.json").mkdir()  # unlink fails, also for root
    read_again()
    JsonStore("x.json").forget()
    JsonStore("x.json").remember("a", {"b": 1})
    assert JsonStore("x.json").entries() == {"a": {"b": 1}}


# -- the package in other processes ------------------------------------------------------------

LOOP = """
import numpy as np
import tensorcore_dsl as tc
from tensorcore_dsl.lowering import compiled, compiled_once
from tensorcore_dsl.lowering.forms import COMPILED
from tensorcore_dsl.numerics.elementwise import compile_elementwise

SHIFT = 3

@compiled_once
def shift(x, i: "int") -> "None":
    x[i] += SHIFT

@compiled
def shifted(x):
    for i in range(x.size):
        shift(x, i)

@compiled
def doubled(x, y):
    for i in range(x.size):
        y[i] = 2 * x[i]

def product(x, y):
    return x * y

x = np.arange(4)
shifted(x)
assert x.tolist() == [3, 4, 5, 6]
y = np.zeros(4, np.int64)
doubled(x, y)
assert y.tolist() == [6, 8, 10, 12]
def total(x, y):
    return x + y

elementwise = [compile_elementwise(f, "int64(int64,int64)") for f in (product, total)]
assert elementwise[0](x, y).tolist() == [18, 32, 50, 72]
assert elementwise[1](x, np.int64(2)).tolist() == [5, 6, 7, 8]
print(len(COMPILED))
"""


def run(script, **variables):
    """The output of a Python process that writes no bytecode."""
    process = subprocess.run(
        [sys.executable, "-B", script],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), **{n: str(v) for n, v in variables.items()}},
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.strip(), process.stderr


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "loop.py"
    path.write_text(LOOP)
    return path


def loops(directory):
    return sorted((directory / "loops").rglob("*.cubin"))


def test_loops_are_found_by_later_processes(script, directory):
    assert run(script) == ("5", "")
    written = {path: path.stat().st_ino for path in loops(directory)}
    assert len(written) == 5
    assert run(script) == ("0", "")
    assert {path: path.stat().st_ino for path in loops(directory)} == written
    assert not list(script.parent.glob("__pycache__/*")), "nothing beside the sources"


@pytest.mark.thorough
def test_a_changed_source_is_compiled_again(script, directory):
    run(script)
    script.write_text(LOOP + "# another line\n")
    assert run(script)[0] == "5"
    assert len(loops(directory)) == 5, "old entries are overwritten"
    script.write_text(LOOP.replace("SHIFT = 3", "SHIFT = 5 - 2"))
    assert run(script)[0] == "5"


@pytest.mark.thorough
def test_what_calls_missing_code_is_compiled_again(script, directory):
    run(script)
    again = []
    for path in loops(directory):
        path.unlink()
        again.append(run(script)[0])
    assert sorted(again) == ["1", "1", "1", "1", "2"], "a function and its caller, the others alone"
    assert run(script) == ("0", "")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "damages",
    [
        (lambda d: d[:-1], lambda d: d[:60], lambda d: b"", lambda d: d[: len(d) // 2], lambda d: d[:9]),
        (
            lambda d: b"",
            lambda d: b"\x80" * len(d),
            lambda d: d[:200] + bytes([d[200] ^ 1]) + d[201:],
            lambda d: d[1:],
            lambda d: d + b"\0",
        ),
    ],
    ids=["short", "other"],
)
def test_damaged_loops_are_compiled_again(script, directory, damages):
    run(script)
    damaged = {}
    for path, damage in zip(loops(directory), damages, strict=True):
        damaged[path] = damage(path.read_bytes())
        path.write_bytes(damaged[path])
    assert run(script) == ("5", "")
    assert all(path.read_bytes() != data for path, data in damaged.items())
    assert run(script) == ("0", ""), "the entries are written again"


@pytest.mark.thorough
def test_forged_loops_are_compiled_again(script, directory):
    """A valid checksum over what is no compiled function, or not the one that is asked for."""
    run(script)
    other, _ = disk_cache.load(loops(directory)[0].stem, directory / "loops")
    forged = (b"", b"\x80\x05N.", b"cos\nabort\n.", other, b"")
    for path, code in zip(loops(directory), forged, strict=True):
        _, stamp = disk_cache.load(path.stem, directory / "loops")
        disk_cache.store(path.stem, code, stamp, directory / "loops")
    assert run(script) == ("5", "")
    assert run(script) == ("0", "")


def test_nothing_can_be_written(script, tmp_path):
    """Below a file no directory can be made, not even by root; the home is such a place too."""
    (tmp_path / "file").write_text("")
    nowhere = tmp_path / "file" / "below"
    assert run(script, TENSORCORE_DSL_CACHE=nowhere) == ("5", "")
    homeless = {"TENSORCORE_DSL_CACHE": "", "HOME": nowhere, "XDG_CACHE_HOME": nowhere}
    assert run(script, **homeless) == ("5", "")
    assert run(script, TENSORCORE_DSL_CACHE="off") == ("5", "")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "loop.py"]


FULL = """
import errno, io, os, tempfile
real = os.fdopen
def full(handle, *arguments):
    real(handle, *arguments).close()
    raise OSError(errno.ENOSPC, "No space left on device")
os.fdopen = full
"""


def test_a_full_disk_leaves_no_files(script, directory):
    script.write_text(FULL + LOOP)
    assert run(script) == ("5", "")
    assert not [p for p in directory.rglob("*") if p.is_file()], "nor does anything remain"


@pytest.mark.parametrize(
    "change",
    [
        "mkdir -m 700 {0}/caches && mount -o remount,ro {0}",
        "{{ head -c 1M /dev/zero > {0}/filler 2> {0}.full; true; }}",
    ],
    ids=["read-only", "full"],
)
def test_a_file_system_that_takes_no_more(script, tmp_path, change):
    """A mount that may not be written binds root as well; needs the right to mount."""
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    mount = f"mount -t tmpfs -o size=64k none {mounted} && {change.format(mounted)}"
    inside = f"{mount} && exec {sys.executable} -B {script}"
    command = ["unshare", "--mount", "--map-root-user", "sh", "-c", inside]
    environment = {"PYTHONPATH": str(ROOT), "TENSORCORE_DSL_CACHE": str(mounted / "caches")}
    try:
        allowed = ["unshare", "--mount", "--map-root-user", "mount", "-t", "tmpfs", "none", mounted]
        subprocess.run(allowed, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no right to mount")
    process = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=300, check=False
    )
    assert (process.returncode, process.stdout.strip()) == (0, "5"), process.stderr


@pytest.mark.thorough
def test_loops_that_others_may_have_written(script, directory):
    assert run(script) == ("5", "")
    directory.chmod(0o777)
    out, err = run(script)
    assert out == "5" and err.count("neither read nor written") == 1


def test_warnings_do_not_reach_those_who_trust(directory):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fill(directory)
