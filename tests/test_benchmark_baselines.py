"""Kinds of GEMMs and their baselines on the CPU: a fake cuBLAS, torch, and stubs for kernels."""

import json

import pytest
from fake_cublaslt import FakeCublas, FakeCuda, FakeLibrary, FakeTorch

import benchmarks.__main__ as command
import tensorcore_dsl as tc
from benchmarks import gpu, harness
from benchmarks.products import (
    accuracy,
    baselines,
    ceiling,
    cublas,
    gemm,
    gemm_gpu,
    gemm_summary,
    operands,
    suites,
)
from benchmarks.products.gemm_cases import Case
from tensorcore_dsl import kernels
from tensorcore_dsl.runtime.targets import target as targets_of

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.thorough
ROWS = (16, 40, 3)
CASES = {
    "plain": Case("bf16", 24, 40, 64),
    "batched": Case("bf16", 16, 24, 32, kind="batched", batch=5),
    "grouped": Case("bf16", sum(ROWS), 24, 32, kind="grouped", rows=ROWS),
    "gelu": Case("bf16", 24, 40, 64, kind="gelu"),
    "swiglu": Case("bf16", 24, 40, 64, kind="swiglu"),
    "sparse": Case("bf16", 24, 40, 64, kind="sparse"),
}


def drawn(case, sets=2):
    return operands.operands(torch, case, *operands.draw(torch, case, 0, "cpu"), sets)


def exact(case):
    """What stands for our kernels: double products, rounded once."""

    def gemm(a, b, c=None, *, out, epilogue=None, family=None, accumulate=None, precision=None):
        a = getattr(a, "dense", a)
        found = a.double() @ b.double() + (0 if c is None else c.double())
        found = torch.nn.functional.gelu(found, approximate="tanh") if epilogue else found
        out.copy_(found)

    def grouped_gemm(a, b, offsets, out):
        ends = offsets.tolist()
        parts = [a[i:j].double() @ b[g].double() for g, (i, j) in enumerate(zip(ends, ends[1:]))]
        return out.copy_(torch.cat(parts))

    def swiglu(x, gate, up, out=None):
        silu = torch.nn.functional.silu(x.double() @ gate.double())
        return out.copy_(silu * (x.double() @ up.double()))

    return {"gemm": gemm, "grouped_gemm": grouped_gemm, "swiglu": swiglu}


class Packed:
    """What stands for a compressed matrix."""

    def __init__(self, dense):
        fours = dense.double().unflatten(-1, (-1, 4))
        assert ((fours != 0).sum(-1) <= 2).all(), "2 of 4 are zeros already"
        self.dense = dense


# Operands


def test_every_kind_of_the_suite_has_a_case_here():
    assert set(CASES) == set(gemm_gpu.KINDS) == {c.kind for c in suites.cases("hopper")}


def test_operands_of_each_kind():
    shapes = {
        kind: tuple(map(tuple, (x.a[0].shape, x.b[0].shape, x.d[0].shape)))
        for kind, x in ((kind, drawn(case)) for kind, case in CASES.items())
    }
    assert shapes["batched"] == ((5, 16, 32), (5, 32, 24), (5, 16, 24))
    assert shapes["grouped"] == ((59, 32), (3, 32, 24), (59, 24))
    assert shapes["swiglu"] == ((24, 64), (64, 80), (24, 40))
    data = drawn(CASES["grouped"])
    assert data.offsets.tolist() == [0, 16, 56, 59] and data.bounds == [(0, 16), (16, 56), (56, 59)]
    assert data.offsets.dtype == torch.int32
    for data in map(drawn, CASES.values()):
        assert all(b.stride(-2) == 1 for b in data.b), "K is contiguous, in the copies too"
        assert data.a[0].data_ptr() != data.a[1].data_ptr() and torch.equal(data.b[0], data.b[1])


# Ours


@pytest.mark.parametrize("kind", CASES)
def test_ours_are_called_and_checked(kind, monkeypatch):
    for name, function in exact(CASES[kind]).items():
        monkeypatch.setattr(kernels, name, function, raising=False)
    monkeypatch.setattr(kernels, "compress", Packed)
    data = drawn(CASES[kind])
    launch = gemm_gpu.ours(data)
    launch(1)
    launch(0)
    error, good = accuracy.check(torch, data, data.d[0])
    assert good and 0 < error < 0.01
    assert torch.equal(data.d[0], data.d[1])
    for place in ((0, 0), (-1, -1)):
        wrong = data.d[0].clone()
        wrong[(*[-1] * (wrong.dim() - 2), *place)] += 0.5 * float(wrong.abs().max())
        assert not accuracy.check(torch, data, wrong)[1]


# Baselines


@pytest.fixture
def cuda(monkeypatch):
    cuda = FakeCuda()
    library, grouped = FakeLibrary(cuda), FakeCublas()
    monkeypatch.setattr(cublas, "load", {"cublasLt": library, "cublas": grouped}.get)
    monkeypatch.setattr(gpu, "WARM_UP", 0)
    monkeypatch.setattr(
        gemm_gpu, "time_interleaved", lambda c, rounds: gpu.time_interleaved(c, rounds, warm_up=0)
    )
    monkeypatch.setattr(baselines, "find_spec", lambda name: None)
    cuda.library, cuda.cublas = library, grouped
    return cuda


@pytest.mark.parametrize("kind", CASES)
def test_baselines_multiply(kind, cuda):
    """All that can run on a CPU: the fake libraries, and torch."""
    case, fake = CASES[kind], FakeTorch(cuda)
    ran = []
    for baseline in baselines.available(fake):
        if not baseline.supports(case) or baseline.name == "cuSPARSELt":
            continue
        data = drawn(case)
        ready = baseline.prepare(case, data)
        ready.launch(1)
        ready.launch(0)
        error, good = accuracy.check(torch, data, ready.data.d[0])
        assert good and error < 0.02, baseline.name
        ran.append(baseline.name)
        ready.close()
    assert (
        ran
        == {
            "plain": ["cuBLASLt", "torch"],
            "batched": ["cuBLASLt", "torch"],
            "grouped": ["cuBLASLt loop", "cuBLAS grouped", "torch"],
            "gelu": ["cuBLASLt", "cuBLASLt + pass", "torch"],
            "swiglu": ["cuBLASLt + pass", "torch"],
            "sparse": ["cuBLASLt"],
        }[kind]
    )
    left = [x for x in cuda.library.objects.values() if x["values"]]
    assert not left, "descriptions and layouts are freed"


def test_the_fastest_fair_baseline_with_a_right_result_is_the_reference():
    timing = {"best": 1, "spread": 0, "samples": [1], "launched_as": "", "note": "", "error": 0}
    about = {
        "slow": {"median": 3.0, "name": "slow 1", "correct": True, **timing},
        "fast": {"median": 2.0, "name": "fast 1", "correct": True, **timing},
        "wrong": {"median": 1.0, "name": "wrong 1", "correct": False, **timing},
        "unfair": {"median": 0.5, "name": "unfair 1", "correct": True, **timing},
        "broken": {"failure": "E: no"},
    }
    fair = [type("R", (), {"name": name}) for name in about if name != "unfair"]
    found = gemm_gpu.reference(fair, {"baselines": about})
    assert (found["reference_baseline"], found["reference"]["median"]) == ("fast", 2.0)
    assert gemm_gpu.reference(fair[-1:], {"baselines": about}) == {"reference_failure": "broken: E: no"}


def test_baselines_are_measured_where_our_kernel_fails(cuda, monkeypatch):
    def missing(*operands, out):
        raise ValueError("not here")

    monkeypatch.setattr(kernels, "grouped_gemm", missing)
    fake = FakeTorch(cuda)
    bench = gemm_gpu.GpuBench(
        fake, [baselines.CublasLtLoop(baselines.CublasLt(fake))], gpu.Monitor(False), 3, 0, False
    )
    case = CASES["grouped"]
    found = gemm_summary.derive({**vars(case), "operations": case.operations, **bench(case)})
    assert found["failure"] == "ValueError: not here"
    assert found["reference"]["median"] == pytest.approx(3e-3), "three groups of 1 ms"
    assert found["reference_baseline"] == "cuBLASLt loop" and "ratio" not in found
    assert found["baselines"]["cuBLASLt loop"]["flops"] == pytest.approx(case.operations / 3e-3)
    assert "not here" in gemm_summary.notes(found)
    json.dumps(found, allow_nan=False)


def test_a_baseline_that_fails_is_noted_and_the_others_go_on(cuda, monkeypatch):
    class Broken:
        name = "Broken"
        supports = is_fair = staticmethod(lambda case: True)

        def prepare(self, case, data):
            raise RuntimeError("no such luck")

    def slow(data):
        return lambda i: (cuda.spend(2.0), exact(None)["gemm"](data.a[i], data.b[i], out=data.d[i]))

    monkeypatch.setattr(gemm_gpu, "ours", slow)
    fake, case = FakeTorch(cuda), CASES["plain"]
    bench = gemm_gpu.GpuBench(fake, [Broken(), baselines.CublasLt(fake)], gpu.Monitor(False), 3, 0, False)
    found = gemm_summary.derive({**vars(case), "operations": case.operations, **bench(case)})
    broken = found["baselines"]["Broken"]
    assert broken["failure"] == "RuntimeError: no such luck"
    assert broken["raised_at"][-1].startswith("test_benchmark_baselines.py:")
    assert found["ratio"] == pytest.approx(0.5) and found["reference_baseline"] == "cuBLASLt"
    assert "Broken: RuntimeError: no such luck" in gemm_summary.notes(found)


# Ceilings


# The whole of it


def test_a_suite_on_a_fake_gpu(cuda, monkeypatch, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    fake = FakeTorch(cuda)
    plain = gemm_gpu.ours

    def costly(data):
        launch = plain(data)
        return lambda i: (cuda.spend(0.5), launch(i))[1]

    for name, function in exact(None).items():
        monkeypatch.setattr(kernels, name, function, raising=False)
    monkeypatch.delattr(kernels, "compress")
    monkeypatch.setattr(gemm_gpu, "ours", costly)
    monkeypatch.setattr(gemm, "torch_with_gpu", lambda: fake)
    monkeypatch.setattr(gemm, "ask_gpu", lambda fields: {"clock_sm_mhz": 1800.0})
    monkeypatch.setattr(harness, "gpu", lambda: {"name": "Fake", "driver": "1"})
    monkeypatch.setattr(gemm, "Monitor", lambda wanted: gpu.Monitor(False))
    monkeypatch.setattr(
        gemm,
        "available",
        lambda torch: [
            r
            for r in baselines.available(torch)
            if "torch" not in r.name and r.name not in ("cuSPARSELt", "cuBLAS grouped")
        ],
    )
    monkeypatch.setattr(tc, "target", lambda *where: targets_of("cpu"))
    monkeypatch.setattr(ceiling, "measured", lambda torch, dtypes: {"flops": {"bf16": 1e9}, "failures": {}})
    groups = "batched,grouped,gelu,swiglu,sparse bf16,mma.sync"
    arguments = ["gemm", "--suite", "hopper", "--groups", groups, "--sizes", "32x48x64", "--target", "cuda"]
    status = command.main([*arguments, "--repeats", "2", "--budget", "60", "--out", str(tmp_path)])
    text = capsys.readouterr().out
    (path,) = tmp_path.glob("*.json")
    found = json.loads(path.read_text())
    assert status == 1, "the sparse product is not there"
    assert found["benchmark"] == "gemm-hopper" and found["schema"] == 2
    assert set(found["method"]) >= {"reference", "baselines", "share", "ratio", "reference_chosen"}
    assert found["method"]["reference"] == "cuBLASLt 13.2.4"
    assert {"gpu_before", "gpu_after", "versions"} <= set(found["machine"])
    ratios = {name: each["ratio"] for name, each in found["summary"]["groups"].items()}
    expected = {
        "batched bf16": 2,
        "grouped bf16": 64,
        "bias + GELU bf16": 2,
        "SwiGLU bf16": 2,
        "sparse bf16": None,
        "mma.sync bf16": 2,
    }
    assert ratios == {name: mean and pytest.approx(mean) for name, mean in expected.items()}
    for result in found["results"]:
        assert {"group", "kind", "operations", "baselines", "reference", "reference_name"} <= set(result)
        assert result.get("correct") or "no attribute 'compress'" in result["failure"]
        assert result["reference"]["flops"] > 0
    assert found["summary"]["groups"]["sparse bf16"]["failed"] == 1
    assert "1 failed" in text and "Baselines: cuBLASLt 13.2.4, cuBLASLt + pass, cuBLASLt loop" in text
    assert list(tmp_path.glob("*.png"))
