"""TENSORCORE_DSL_DUMP and the log: what they say of launches, on the CPU and on the GPU's path."""

import json
import logging

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import kernels
from tensorcore_dsl.kernel import dump
from tensorcore_dsl.runtime import targets
from tests.fake_gpu import FakeGpu, OnGpu


@tc.kernel
def scale(x: tc.Array, factor: tc.f32, y: tc.Array | None = None, n: tc.Const = 1):
    i = tc.blockIdx.x * tc.blockDim.x + tc.threadIdx.x
    if i < x.shape[0]:
        x[i] *= factor * n


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(dump.VARIABLE, str(tmp_path / "dump"))
    return tmp_path / "dump"


def launches(folder):
    return [json.loads(line) for line in (folder / dump.LAUNCHES).read_text().splitlines()]


def test_each_kind_of_launch_is_written_once(folder):
    x = np.ones(64, np.float32)
    for factor in (2.0, 3.0):
        scale[1, 64](x, factor)
    scale[2, 32](x, 2.0, n=2)
    scale[2, 32](x[:32], 2.0, n=2)
    first, second, third = launches(folder)
    assert first["launch"] == {"grid": [1, 1, 1], "block": [64, 1, 1]} and first["target"] == "cpu"
    assert first["arguments"]["x"] == {"type": "f32[strides 1; 16 B aligned]", "shape": [64], "strides": [1]}
    assert first["arguments"]["factor"] == "f32" and first["arguments"]["y"] == "None"
    assert second["kernel"] == third["kernel"] != first["kernel"]
    assert third["arguments"]["x"]["shape"] == [32] and third["constants"] == {"n": "2"}
    assert {path.suffix for path in folder.iterdir()} == {".ir", ".ptx", ".json", ".jsonl", ".regions", ".ll"}


def test_the_code_is_that_of_a_gpu(folder):
    """Without the checks of the emulation."""
    x = np.ones(64, np.float32)
    scale[1, 64](x, 2.0)
    (launch,) = launches(folder)
    assert (folder / f"{launch['kernel']}.ptx").read_text() == scale.ptx(x, 2.0)
    assert (folder / f"{launch['kernel']}.ir").read_text() == scale.ir(x, 2.0)
    known = json.loads((folder / f"{launch['kernel']}.json").read_text())
    assert known["file"] == __file__ and known["arch"] == "sm_90a"
    assert {"registers", "unknown"} & set(known["resources"])


def test_a_product_has_its_configuration(folder):
    a = np.ones((32, 64), np.float16)
    kernels.gemm(a, a.T)
    (launch,) = launches(folder)
    assert launch["constants"]["config"].startswith("HopperConfig(BM=64, ")


def test_launches_on_a_gpu(folder, monkeypatch):
    pytest.importorskip("cuda.core", reason="needs nvJitLink")
    gpu = FakeGpu()
    monkeypatch.setattr(targets.driver, "cuda_driver", lambda: gpu)
    monkeypatch.setattr(targets.driver, "cuda_available", lambda: True)
    monkeypatch.delenv(targets.TARGET_VARIABLE)
    x = OnGpu(np.ones(64, np.float32))
    for _ in range(3):
        scale[1, 64](x, 2.0)
    scale[1, 64].prepare(OnGpu(np.ones(32, np.float32)), 2.0)
    assert len(gpu.records) == 3
    assert [launch["arguments"]["x"]["shape"] for launch in launches(folder)] == [[64], [32]]
    assert {launch["target"] for launch in launches(folder)} == {"cuda"}


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(dump.VARIABLE, str(tmp_path / "file"))
    x = np.ones(64, np.float32)
    with pytest.warns(RuntimeWarning, match="TENSORCORE_DSL_DUMP=.*file: cannot be written"):
        scale[1, 64](x, 2.0)
    assert (x == 2).all()


def test_the_log_says_what_was_chosen_and_compiled(caplog, tmp_path, monkeypatch):
    pytest.importorskip("cuda.core", reason="needs nvJitLink")
    monkeypatch.setenv("TENSORCORE_DSL_CACHE", str(tmp_path))
    caplog.set_level(logging.DEBUG, "tensorcore_dsl")
    a = np.ones((24, 40), np.float16)
    kernels.gemm(a, a.T)
    assert "product of 24 x 24 x 40 of f16: " in caplog.text and ", HopperConfig(" in caplog.text
    caplog.clear()
    for kernel in (scale.variant(), scale.variant()):
        kernel.cubin(np.ones(64, np.float32), 2.0)
    made, found = caplog.messages
    assert made.startswith("scale for sm_90a: assembled in ") and made.endswith(" registers")
    assert found == "scale for sm_90a: machine code is in the cache"


@pytest.mark.parametrize("kind", ["sparse", "packed"])
def test_sparse_and_packed_products_log_what_they_chose(kind, caplog):
    a, b, one = np.ones((64, 128), np.float16), np.ones((128, 64), np.float16), np.ones((1, 64), np.float16)
    if kind == "sparse":
        a = kernels.compress(a, prune=True)
    else:
        b = kernels.pack(np.ones((128, 64), np.int8), one)
    with pytest.raises(tc.ArgumentError, match=f"{kind[:3]}.*; `tune` takes dense operands. kernels.plan"):
        kernels.tune(a, b, timer=lambda launch: 1.0)
    caplog.set_level(logging.INFO, "tensorcore_dsl")
    kernels.gemm(a, b)
    chosen = {
        "sparse": "matrix> by 128 x 64: HopperConfig(",
        "packed": "product of 64 x 128 by <packed 128x64",
    }
    assert chosen[kind] in caplog.text and "Config(" in caplog.text
