"""The benchmark of whole emulated kernels: results, checks, other checkouts, tables."""

import json

import numpy as np
import pytest

import benchmarks.__main__ as command
from benchmarks import emulated_kernels, emulation, emulation_process
from benchmarks.emulation_process import package_of

pytestmark = pytest.mark.thorough


def run(tmp_path, *arguments):
    """Exit status and contents of the file of `python -m benchmarks emulation ...`."""
    status = command.main(["emulation", *arguments, "--out", str(tmp_path)])
    (path,) = tmp_path.glob("emulation-*.json")
    return status, json.loads(path.read_text())


@pytest.mark.parametrize("name", emulated_kernels.CHECKED)
def test_kernels_pass_all_checks(name):
    problem = emulated_kernels.CHECKED[name]()
    result = problem.runner(True)()
    problem.compare(result)
    assert problem.amount > 0
    result.ravel()[-1] += 1
    with pytest.raises(ValueError, match="WRONG RESULT"):
        problem.compare(result)


def test_nan_is_a_wrong_result():
    problem = emulated_kernels.numpy_product(2)
    with pytest.raises(ValueError, match="WRONG RESULT: the largest error is nan"):
        problem.compare(np.full((2, 2), np.nan))


def test_a_product_and_a_kernel(tmp_path, monkeypatch, capsys):
    s8, kernel = "s8 mma.sync GEMM", "Mandelbrot set"
    monkeypatch.setattr(emulation, "products", lambda size: {s8: emulated_kernels.products(size)[s8]})
    monkeypatch.setattr(emulation, "CHECKED", {kernel: emulated_kernels.CHECKED[kernel]})
    monkeypatch.setattr(emulation, "SAMPLES", 1)
    monkeypatch.setattr(emulation, "FIRST", ())
    status, report = run(tmp_path, "--size", "32")
    product, kernel = report["results"]
    assert status == 0 and "failure" not in product | kernel
    assert product["amount"] == 2 * 32**3 and "checked" not in product
    assert kernel["ratio"] == pytest.approx(kernel["checked"] / kernel["seconds"])
    printed = capsys.readouterr().out
    assert "M iterations/s" in printed and "checked / unchecked" in printed


def test_a_wrong_result_is_a_failure(tmp_path, monkeypatch, capsys):
    wrong = emulated_kernels.Problem(None, lambda _: np.ones(1), 2, 0.5, 1)
    monkeypatch.setattr(emulation, "products", lambda size: {"product": lambda: wrong})
    status, report = run(tmp_path, "--only", "product")
    assert status == 1
    assert report["results"][0]["failure"] == "ValueError: WRONG RESULT: the largest error is 1.00e+00"
    assert "WRONG RESULT" in capsys.readouterr().out


def checkout(folder, package):
    """A folder like a checkout, whose package has this text."""
    (folder / "kernels").mkdir()
    (folder / "tensorcore_dsl").mkdir()
    (folder / "tensorcore_dsl/__init__.py").write_text(package)
    return folder


def test_another_package_runs_in_turns_with_this_one(tmp_path, monkeypatch):
    monkeypatch.setattr(emulation_process, "TURNS", 1)
    monkeypatch.setattr(emulation_process, "BATCH", 1e-9)
    here, damaged = emulation_process.ROOT, checkout(tmp_path, "raise ImportError('another one')")
    with package_of(here) as this, package_of(damaged) as broken:
        packages = {"this": this, "other": broken}
        actual = emulation_process.in_turns(packages, ("NumPy float32 @", False, 16, 1), 1)
    assert actual.pop("seconds").keys() == {"this"}
    assert actual == {"failure_of_other": "ImportError: another one"}


def test_a_process_that_dies_is_a_failure(tmp_path):
    with package_of(checkout(tmp_path, "import os; os._exit(3)")) as dying:
        actual = emulation_process.in_turns({"this": dying}, ("vector add", False, 16, 1), 1)
    assert actual == {"seconds": {}, "failure": "the process ended with 3"}


def test_the_first_launch_with_each_state_of_the_cache():
    with package_of(emulation_process.ROOT) as this:
        actual = emulation_process.first_launches({"this": this}, ("vector add", True, 16, 1), 1)
    assert list(actual) == ["empty", "filled"]
    assert all(0 < each["seconds"]["this"] < 60 and len(each) == 1 for each in actual.values())


def test_the_comparison_has_the_least_times(tmp_path, monkeypatch, capsys):
    asked = []

    def in_turns(packages, arguments, rounds):
        asked.append((*packages, *arguments, rounds))
        if arguments[0] == "vector add":
            return {"seconds": {"this": 0.5}, "failure_of_other": "AttributeError: no vector"}
        answers = [("this", 3.0), ("other", 8.0), ("this", 2.0), ("other", 9.0)]
        return emulation_process._summary([(who, {"seconds": s}) for who, s in answers])

    monkeypatch.setattr(emulation, "in_turns", in_turns)
    monkeypatch.setattr(emulation, "FIRST", ())
    older = checkout(tmp_path, "")
    more = "--rounds", "2", "--workers", "1", "--size", "64"
    status, report = run(tmp_path, "--only", "add", "--against", str(older), *more)
    assert status == 0, "what another checkout cannot run is no failure of this one"
    assert asked == [("this", "other", "vector add", checks, 64, 1, 2) for checks in (False, True)]
    (tmp_path / "results").mkdir()
    status, report = run(tmp_path / "results", "--only", "f64", "--against", str(older), *more)
    (result,) = report["results"]
    assert result["seconds"] == {"this": 2.0, "other": 8.0} and result["ratio"] == 0.25
    printed = capsys.readouterr().out
    assert "vector add, all checks" in printed and "AttributeError: no vector" in printed
    assert "geometric mean" in printed and printed.count("0.250") == 2
