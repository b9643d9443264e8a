"""The size of the caches: what is counted, what is removed first, and what is never touched."""

import os
import time

import pytest

from tensorcore_dsl.environment import cache_contents as contents
from tensorcore_dsl.environment import disk_cache
from tensorcore_dsl.environment.json_store import JsonStore, read_again
from tensorcore_dsl.errors import ArgumentError

SIZE = 10_000  # bytes of an entry's code
YEAR = 365 * 86400.0


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORCORE_DSL_CACHE", str(tmp_path / "caches"))
    monkeypatch.delenv("TENSORCORE_DSL_CACHE_LIMIT", raising=False)
    monkeypatch.setattr(contents, "MEASURED_IN", {"test.json"})
    read_again()
    yield tmp_path / "caches"
    read_again()


def name(number):
    """Only the last of 16 stores looks at the size."""
    return f"{15 - number % 16:x}{number:063x}"


def store(number, age=0.0, directory=None):
    disk_cache.store(name(number), bytes(SIZE), "", directory)
    path = disk_cache._path(name(number), directory)
    os.utime(path, (time.time() - age,) * 2)
    return path


def kept():
    return [i for i in range(64) if disk_cache.load(name(i)) is not None]


@pytest.mark.parametrize(
    "text, size",
    [
        ("", 1 << 30),
        ("500M", 500 << 20),
        ("2G", 2 << 30),
        ("2 GiB", 2 << 30),
        ("1.5g", 3 << 29),
        ("64KB", 65536),
        ("1T", 1 << 40),
        ("4096", 4096),
        ("0", None),
        ("off", None),
    ],
)
def test_limits_are_read_with_their_units(text, size, monkeypatch):
    monkeypatch.setenv("TENSORCORE_DSL_CACHE_LIMIT", text)
    assert contents.limit() == size


@pytest.mark.parametrize("text", ["much", "-1", "1 K M", "1e9", "5P", "G"])
def test_what_is_no_size(text, root, monkeypatch):
    monkeypatch.setenv("TENSORCORE_DSL_CACHE_LIMIT", text)
    with pytest.raises(ArgumentError, match="TENSORCORE_DSL_CACHE_LIMIT=.* such as 500M or 2G, or off"):
        disk_cache.store(name(1), b"code", "")
    with pytest.raises(ArgumentError, match="TENSORCORE_DSL_CACHE_LIMIT=.* such as 500M or 2G, or off"):
        disk_cache.load(name(1))


def test_what_was_used_longest_ago_goes_first(root, monkeypatch):
    monkeypatch.setenv("TENSORCORE_DSL_CACHE_LIMIT", str(20 * SIZE))
    for i in range(31):
        store(i, age=1000 - i)  # every sixteenth looks; the number 15 found 16 of them
    assert disk_cache.load(name(3)) is not None  # used now
    store(31)
    left = kept()
    assert 3 in left and 31 in left, "used last"
    assert len(left) == 17 and left[2:] == list(range(left[2], 32)) == list(range(16, 32))[-15:]


def test_loops_count_and_go_too(root, monkeypatch):
    loops = root / "loops"
    for i in range(15):
        store(i, age=YEAR, directory=loops)
    for i in range(15):
        store(i)
    monkeypatch.setenv("TENSORCORE_DSL_CACHE_LIMIT", str(18 * SIZE))
    store(15)
    assert kept() == list(range(16))
    assert not list(loops.rglob("*.cubin"))


def test_without_a_limit_nothing_goes(root, monkeypatch):
    monkeypatch.setenv("TENSORCORE_DSL_CACHE_LIMIT", "off")
    for i in range(32):
        store(i)
    assert kept() == list(range(32))


def test_others_files_are_not_touched(root, monkeypatch):
    """A directory that holds other things too, such as a home."""
    mine = store(1, age=YEAR)
    abandoned = mine.with_name(mine.stem + "x7.tmp")
    being_written = mine.with_name(mine.stem + "x8.tmp")
    others = [
        mine.with_name("notes.txt"),
        root / "data.json",
        root / "ab.cubin",
        root / "zz" / mine.name,
        root / "loops" / "readme",
        root / "loops" / "notes" / mine.name,
    ]
    for path in (*others, abandoned, being_written):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(SIZE))
        if path is not being_written:
            os.utime(path, (time.time() - YEAR,) * 2)
    JsonStore("test.json").remember("a", {"b": 1})
    kinds = {file.path: file.kind for file in contents.files(root)}
    assert kinds == {
        str(mine): "kernels",
        str(abandoned): "kernels",
        str(being_written): "kernels",
        str(root / "test.json"): "measurements",
    }
    monkeypatch.setenv("TENSORCORE_DSL_CACHE_LIMIT", str(3 * SIZE // 2))
    store(15)
    assert not mine.exists() and not abandoned.exists() and being_written.exists()
    assert kept() == [15] and all(path.exists() for path in others) and (root / "test.json").exists()
    contents.remove(contents.files(root))
    assert not list(contents.files(root)) and all(path.exists() for path in others)


def test_files_of_writers_that_ended_go_without_a_limit_being_reached(root):
    path = store(1)
    left = path.with_name(path.stem + "x7.tmp")
    left.write_bytes(b"half")
    os.utime(left, (time.time() - YEAR,) * 2)
    store(15)
    assert path.exists() and not left.exists()


def test_a_missing_directory_is_empty(tmp_path):
    assert list(contents.files(tmp_path / "nowhere")) == []
    contents.remove([contents.File(str(tmp_path / "gone"), "kernels", 1, 0.0)])
