"""IR on disk: later processes evaluate no Python, and no entry is stale or believed blindly."""

import os
import pickle
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from tensorcore_dsl.codegen import cache_key
from tensorcore_dsl.environment import disk_cache

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = """
import os
import numpy as np
import tensorcore_dsl as tc
from tensorcore_dsl.codegen import ir_cache
from tensorcore_dsl.frontend.statements import Evaluator

ir_cache.MIN_SECONDS = float(os.environ.get("LEAST", 0))
evaluated = []
run = Evaluator.run
Evaluator.run = lambda *given: evaluated.append(1) or run(*given)
FACTOR = 3.0
mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)

def scaled(x):
    return x * FACTOR

@tc.kernel(threads=32)
def product(a: tc.Array, d: tc.Array, turns: tc.Const = 2):
    tile = tc.shared((16, 16), tc.f16)
    tc.copy_tile(tile, a, (0, 0))
    tc.cp_async_commit()
    tc.cp_async_wait(0)
    tc.barrier()
    acc = mma.d.zeros()
    for _ in range(turns):
        acc = mma(tc.ldmatrix(tile, mma.a), tc.ldmatrix(tile[:, :8], mma.b), acc)
    tc.store_elements(d, acc.map(scaled))

a, d = np.arange(256).reshape(16, 16).astype(np.float16) / 256, np.zeros((16, 8), np.float32)
if "RUN" in os.environ:
    product[1, 32](a, d)
    expected = 2 * FACTOR * (a.astype(np.float32) @ a.astype(np.float32)[:, :8])
    assert np.allclose(d, expected, rtol=1e-3), (d, expected)
text = product.ir(a, d)
print(len(evaluated), len(text), hash(product.ptx(a, d)))
"""


@pytest.fixture
def process(tmp_path):
    """Runs the script, changed as asked: what it prints, and whether Python was evaluated."""
    path, directory = tmp_path / "script.py", tmp_path / "caches"

    def run(*change, **variables):
        path.write_text(SCRIPT.replace(*change) if change else SCRIPT)
        settings = {
            "PYTHONPATH": str(ROOT),
            "TENSORCORE_DSL_CACHE": str(directory),
            "PYTHONHASHSEED": "0",
            "TENSORCORE_DSL_TARGET": "cpu",
            **variables,
        }
        done = subprocess.run(
            [sys.executable, "-B", path],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            env={**os.environ, **settings},
        )
        assert done.returncode == 0, done.stderr
        count, *text = done.stdout.split()
        return int(count), text

    run.entries = lambda: [p for p in directory.rglob("*.cubin") if "loops" not in p.parts]
    return run


def test_later_processes_evaluate_nothing(process):
    """The launch is of a build with checks, the texts are of one without."""
    evaluated, text = process(RUN="1")
    assert evaluated == len(process.entries()) == 2
    assert process(RUN="1") == (0, text), "the same IR and PTX"


@pytest.mark.thorough
def test_what_the_kernel_depends_on(process):
    process()
    assert process("FACTOR = 3.0", "FACTOR = 5.0")[0] == 1
    assert process("x * FACTOR", "FACTOR * x")[0] == 1
    assert process("turns: tc.Const = 2", "turns: tc.Const = 1 + 1")[0] == 1, "another source"
    assert process()[0] == 0


def test_what_only_runs_ir_does_not_count(tmp_path):
    folder = tmp_path / "tensorcore_dsl"
    shutil.copytree(ROOT / "tensorcore_dsl", folder)
    states = lambda: [
        cache_key._hash(cache_key._files(str(folder), without))
        for without in (frozenset(), cache_key.OUTSIDE_IR)
    ]
    of_all, of_ir = states()
    (folder / "interpreter" / "launch.py").write_text("# edited")
    edited, of_ir_then = states()
    assert (edited != of_all, of_ir_then == of_ir) == (True, True)
    (folder / "lang" / "tiles.py").write_text("# edited")
    assert of_ir not in states()


@pytest.mark.thorough
def test_entries_that_are_no_ir(process):
    """Nothing that is not of this package is called, and each entry is written again."""
    process()
    (path,) = process.entries()
    for content in (
        b"",
        b"text",
        zlib.compress(b""),
        zlib.compress(b"\x80\x05N."),
        zlib.compress(b"cos\nabort\n."),
        zlib.compress(pickle.dumps([1, 2])),
        zlib.compress(b"cposix\n_exit\n(I7\ntR."),
    ):
        disk_cache.store(path.stem, content, "", path.parent.parent)
        assert process()[0] == 1, content
    assert process()[0] == 0


def test_a_damaged_entry(process):
    process()
    (path,) = process.entries()
    path.write_bytes(path.read_bytes()[:-1])
    assert process()[0] == 1


@pytest.mark.thorough
def test_small_kernels_and_no_cache(process):
    for variables in ({"LEAST": "1000"}, {"TENSORCORE_DSL_CACHE": "off"}):
        assert process(**variables)[0] == process(**variables)[0] == 1
    assert process.entries() == []
