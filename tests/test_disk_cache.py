"""The cache on disk: round trips, damage, several writers."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tensorcore_dsl.environment.disk_cache import cache_directory, entry_name, load, store


@pytest.fixture
def directory(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORCORE_DSL_CACHE", str(tmp_path / "cubins"))
    return tmp_path / "cubins"


def test_the_directory_is_chosen_by_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("TENSORCORE_DSL_CACHE", str(tmp_path))
    assert cache_directory() == tmp_path
    monkeypatch.setenv("TENSORCORE_DSL_CACHE", "~/kernels")
    assert cache_directory() == Path.home() / "kernels"
    for off in ("off", "OFF", "0"):
        monkeypatch.setenv("TENSORCORE_DSL_CACHE", off)
        assert cache_directory() is None
    monkeypatch.delenv("TENSORCORE_DSL_CACHE")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "tensorcore_dsl"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_directory() == Path.home() / ".cache" / "tensorcore_dsl"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache_directory() == Path.home() / "Library" / "Caches" / "tensorcore_dsl"


def test_names_tell_all_parts_apart():
    assert entry_name("a", "bc") != entry_name("ab", "c")
    assert entry_name("a", None) != entry_name("a")
    assert entry_name("a", 1) == entry_name("a", 1)


def test_what_is_stored_is_loaded(directory):
    name = entry_name("x")
    assert load(name) is None
    store(name, b"\0code", "log é")
    assert load(name) == (b"\0code", "log é")
    store(name, b"new", "")
    assert load(name) == (b"new", "")
    assert [f.suffix for f in directory.rglob("*") if f.is_file()] == [".cubin"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: d[:-1],
        lambda d: d[:20],
        lambda d: b"",
        lambda d: d + b"x",
        lambda d: b"X" + d[1:],
        lambda d: d[:-1] + bytes([d[-1] ^ 1]),
        lambda d: d[:40] + bytes([d[40] ^ 1]) + d[41:],
    ],
)
def test_damage_is_noticed(directory, damage):
    name = entry_name("x")
    store(name, b"code", "log")
    (path,) = directory.rglob("*.cubin")
    path.write_bytes(damage(path.read_bytes()))
    assert load(name) is None
    store(name, b"code", "log")
    assert load(name) == (b"code", "log")


def test_disk_that_refuses(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TENSORCORE_DSL_CACHE", str(tmp_path / "file" / "below"))
    store("ab" * 32, b"code", "log")
    assert load("ab" * 32) is None


def test_failed_write_leaves_nothing(directory, monkeypatch):
    def broken(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", broken)
    store("ab" * 32, b"code", "log")
    assert not [f for f in directory.rglob("*") if f.is_file()]


def test_the_cache_can_be_switched_off(monkeypatch):
    monkeypatch.setenv("TENSORCORE_DSL_CACHE", "off")
    store("ab" * 32, b"code", "log")
    assert load("ab" * 32) is None


WRITER = """
import sys
from tensorcore_dsl.environment.disk_cache import load, store
name = "cd" * 32
for i in range(60):
    store(name, bytes([i]) * 20000, str(i))
    code, log = load(name)
    assert len(code) == 20000 and code == code[:1] * 20000 and int(log) == code[0]
"""


@pytest.mark.thorough
def test_many_processes(directory):
    """Readers never see half a file, whoever writes."""
    root = str(Path(__file__).resolve().parent.parent)
    run = [sys.executable, "-c", WRITER]
    writers = [subprocess.Popen(run, cwd=root) for _ in range(2)]
    assert [w.wait(60) for w in writers] == [0, 0]


def test_many_threads(directory):
    def work(i):
        for _ in range(20):
            store("ef" * 32, bytes([i]) * 5000, str(i))
            code, log = load("ef" * 32)
            assert code == bytes([int(log)]) * 5000

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(8)))
