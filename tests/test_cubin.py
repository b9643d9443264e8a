"""What ptxas' log and a cubin tell, and the cache on disk."""

import os
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tensorcore_dsl.codegen.cubin import (
    Cubin,
    cache_directory,
    cache_key,
    cached,
    keep,
    quote,
    threads_that_fit,
)
from tensorcore_dsl.errors import AssemblyError

LOG = """\
ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized \
due to non wgmma instructions defining accumulator registers of a wgmma in the function 'second' \
around line 2
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'first' for 'sm_90a'
ptxas info    : Function properties for first
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 30 registers, used 0 barriers
ptxas info    : Compiling entry function 'second' for 'sm_90a'
ptxas info    : Function properties for second
ptxas         .     504 bytes stack frame, 980 bytes spill stores, 1032 bytes spill loads
ptxas info    : Used 64 registers, used 1 barriers, 1024 bytes smem
"""
EMPTY_ELF = struct.pack("<40xQ12xHH64x", 64, 1, 0)  # one section, without name or bytes


@pytest.fixture
def directory(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORCORE_DSL_CACHE", str(tmp_path / "cubins"))
    return tmp_path / "cubins"


def made(name="second", log=LOG, ptx="one\ntwo;\nthree"):
    return Cubin(name, "sm_90a", ptx, EMPTY_ELF, log)


def test_resources_of_the_right_kernel():
    second = made().resources
    assert (second.registers, second.spill_stores, second.spill_loads) == (64, 980, 1032)
    assert (second.local_bytes, second.shared_bytes, second.spills) == (504, 1024, True)
    first = made("first").resources
    assert (first.registers, first.shared_bytes, first.spills) == (30, 0, False)


def test_warnings_quote_the_ptx():
    (warning,) = made().resources.warnings
    assert "(C7510) Potential Performance Loss" in warning
    assert warning.endswith("\n    2 | two;")


def test_older_log():
    """nvJitLink 12.4 and ptxas 11 print it so."""
    log = (
        "ptxas info    : Compiling entry function 'k' for 'sm_80'\n"
        "ptxas info    : Function properties for k\n"
        "    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads\n"
        "ptxas info    : Used 33 registers, 512 bytes smem, 364 bytes cmem[0]\n"
    )
    found = made("k", log).resources
    assert (found.registers, found.local_bytes, found.spill_stores, found.spill_loads) == (
        33,
        8,
        4,
        12,
    )
    assert found.shared_bytes == 512


@pytest.mark.parametrize("log", ["", "ptxas info : Used 3 registers", "words"])
def test_unknown_log(log):
    with pytest.raises(AssemblyError, match="does not tell the kernel's resources"):
        made(log=log).resources  # noqa: B018


@pytest.mark.parametrize(
    ("registers", "threads"),
    [(16, 1024), (64, 1024), (65, 896), (128, 512), (168, 384), (255, 256), (0, 1024)],
)
def test_threads_that_fit(registers, threads):
    """65536 registers, given to each warp in units of 256, over four partitions."""
    assert threads_that_fit(registers) == threads


def test_quote():
    ptx = "a\n  b;\nc"
    assert quote("line 2: bad", ptx) == "line 2: bad\n    2 | b;"
    assert quote("at line 1 and line 3", ptx).splitlines()[1:] == ["    1 | a", "    3 | c"]
    assert quote("line 9: beyond", ptx) == "line 9: beyond"
    assert quote("no number", ptx) == "no number"


# The cache


def test_directory(monkeypatch, tmp_path):
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


def test_key():
    assert cache_key(["a", "bc"]) != cache_key(["ab", "c"])
    assert cache_key(["a", None]) != cache_key(["a"])
    assert cache_key(["a", 1]) == cache_key(["a", 1])


def test_round_trip(directory):
    key = cache_key(["x"])
    assert cached(key) is None
    keep(key, b"\0code", "log é")
    assert cached(key) == (b"\0code", "log é")
    keep(key, b"new", "")
    assert cached(key) == (b"new", "")
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
    key = cache_key(["x"])
    keep(key, b"code", "log")
    (path,) = directory.rglob("*.cubin")
    path.write_bytes(damage(path.read_bytes()))
    assert cached(key) is None
    keep(key, b"code", "log")
    assert cached(key) == (b"code", "log")


def test_disk_that_refuses(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TENSORCORE_DSL_CACHE", str(tmp_path / "file" / "below"))
    keep("ab" * 32, b"code", "log")
    assert cached("ab" * 32) is None


def test_failed_write_leaves_nothing(directory, monkeypatch):
    def broken(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", broken)
    keep("ab" * 32, b"code", "log")
    assert not [f for f in directory.rglob("*") if f.is_file()]


def test_off(monkeypatch):
    monkeypatch.setenv("TENSORCORE_DSL_CACHE", "off")
    keep("ab" * 32, b"code", "log")
    assert cached("ab" * 32) is None


WRITER = """
import sys
from tensorcore_dsl.codegen.cubin import cached, keep
key = "cd" * 32
for i in range(60):
    keep(key, bytes([i]) * 20000, str(i))
    code, log = cached(key)
    assert len(code) == 20000 and code == code[:1] * 20000 and int(log) == code[0]
"""


def test_many_processes(directory):
    """Readers never see half a file, whoever writes."""
    root = str(Path(__file__).resolve().parent.parent)
    run = [sys.executable, "-c", WRITER]
    writers = [subprocess.Popen(run, cwd=root) for _ in range(2)]
    assert [w.wait(60) for w in writers] == [0, 0]


def test_many_threads(directory):
    def work(i):
        for _ in range(20):
            keep("ef" * 32, bytes([i]) * 5000, str(i))
            code, log = cached("ef" * 32)
            assert code == bytes([int(log)]) * 5000

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(8)))
