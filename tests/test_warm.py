"""`kernels.warm`: what it compiles lies on disk, and is what `gemm` launches."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import kernels
from tensorcore_dsl.codegen import kernel_cache
from tensorcore_dsl.kernels import HopperConfig
from tensorcore_dsl.kernels.host import warming
from tests.fake_gpu import FakeGpu, OnGpu

SIZES = ((64, 96, 128), (300, 304, 304), (8, 4096, 2048))


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    """A cache that is empty."""
    monkeypatch.setenv("TENSORCORE_DSL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def entries(directory: Path) -> int:
    return sum(1 for _ in directory.rglob("*.cubin"))


def product(dtype: Any, M: int, N: int, K: int) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros((M, K), dtype), np.zeros((K, N), dtype, order="F")


AGAIN = f"""
import ml_dtypes, numpy as np
import tensorcore_dsl as tc
from tensorcore_dsl import kernels
from tensorcore_dsl.codegen import assemble
from tensorcore_dsl.kernels.host import warming

def refuse(*arguments, **named):
    raise SystemExit("assembled again")

assemble.assemble, count = refuse, 0
for dtype, (M, N, K) in ((ml_dtypes.bfloat16, {SIZES[1]}), (np.float64, {SIZES[2]})):
    a, b = np.zeros((M, K), dtype), np.zeros((K, N), dtype, order="F")
    with tc.target("cpu", "sm_90a"), warming.recorded() as launches:
        kernels.gemm(a, b)
    for bound in launches:
        bound.compile()
        count += 1
print(count)
"""


def test_the_kernels_lie_on_disk(directory):
    """A process that starts after others have compiled them assembles nothing for them."""
    pytest.importorskip("numba.cuda.cudadrv.driver", reason="needs numba-cuda")
    done = kernels.warm((tc.bf16, tc.f64), "sm_90a", sizes=SIZES, processes=2)
    assert done.kernels >= 4 and not done.failures
    before = entries(directory)
    assert before >= done.kernels
    done_again = subprocess.run([sys.executable, "-c", AGAIN], capture_output=True, text=True)
    assert done_again.returncode == 0, done_again.stderr
    assert int(done_again.stdout) >= 2 and entries(directory) == before


def test_the_same_kernels_as_on_a_gpu(monkeypatch):
    """A GPU asks the cache for the entry that was compiled without one."""
    asked: list[str | None] = []
    named = kernel_cache.entry_name

    def entry_name(*arguments: Any, **options: Any) -> str | None:
        asked.append(named(*arguments, **options))
        raise LookupError("asked")

    monkeypatch.setattr(kernel_cache, "entry_name", entry_name)
    a, b = product(np.float16, *SIZES[1])
    d = np.zeros((300, 304), np.float16)
    (bound,) = warming.kernels_of([(a, b, {})], "sm_90a")
    with pytest.raises(LookupError):
        bound.compile()
    FakeGpu().of_the_machine(monkeypatch)
    bound.kernel._specialisations.clear()
    with tc.target("cuda"), pytest.raises(LookupError):
        kernels.gemm(OnGpu(a), OnGpu(b), out=OnGpu(d))
    assert len(asked) == 2 and asked[0] == asked[1] is not None


def test_configurations_that_were_pickled_have_the_same_entry():
    """Pickling marks their class, which is not part of what is compiled."""
    import pickle

    from tensorcore_dsl.codegen.cache_key import cache_key

    config = HopperConfig()
    before = cache_key(config)
    again = pickle.loads(pickle.dumps(config))
    assert cache_key(config) == cache_key(again) == before


@pytest.mark.thorough
def test_many_sizes_share_kernels():
    products = warming._products((tc.bf16,), warming.SIZES, ("row.col",), None)
    actual = warming.kernels_of(products, "sm_90a")
    assert 10 < len(actual) < len(warming.SIZES) / 2
    assert len({bound.key for bound in actual}) == len(actual)


def test_what_is_recorded_does_not_run():
    a, b = np.ones((64, 64), np.float16), np.ones((64, 64), np.float16)
    out = np.zeros((64, 64), np.float16)
    with tc.target("cpu", "sm_90a"):
        with warming.recorded() as launches:
            kernels.gemm(a, b, out=out)
        assert len(launches) == 1 and not out.any()
        kernels.gemm(a, b, out=out)  # nor is it remembered
    assert (out == 64).all()


def test_failures_are_told(monkeypatch):
    monkeypatch.setattr(warming, "WORK", "import sys; sys.exit('no such module')")
    done = kernels.warm(device="sm_90a", sizes=SIZES[:1], processes=1)
    assert done.kernels and done.failures == ("no such module",)


WRONG = [
    (dict(dtypes=(tc.s32,)), "dtypes has s32"), (dict(layouts=("row",)), "layouts has 'row'"),
    (dict(device="sm_1"), "architectures are"), (dict(processes=0), "processes is 0"),
    (dict(device=None), "there is no GPU here"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), WRONG, ids=[m for _, m in WRONG])
def test_wrong_arguments(changes, message, monkeypatch):
    monkeypatch.setattr(warming, "current_target", lambda: "cpu")
    with pytest.raises(tc.ArgumentError, match=message):
        kernels.warm(**{"device": "sm_90a", "sizes": SIZES[:1], **changes})


def test_without_a_cache(monkeypatch):
    monkeypatch.setenv("TENSORCORE_DSL_CACHE", "off")
    with pytest.raises(tc.ArgumentError, match="the cache on disk is off"):
        kernels.warm(device="sm_90a")
