"""The benchmark of the examples: that none is left out, its comparison, its tables."""

import sys
from pathlib import Path

import pytest

import benchmarks.__main__ as command
from benchmarks.harness import Timing
from benchmarks.programs import examples

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parent.parent


def test_every_example_is_measured():
    several_gpus = {"tensor_parallel"}  # `python -m benchmarks distributed` measures its products
    programs = {path.stem for path in (ROOT / "examples").glob("*.py")}
    assert set(examples.EXAMPLES) == programs - several_gpus
    for name, (make, problems) in examples.EXAMPLES.items():
        names = make.__code__.co_varnames[1 : make.__code__.co_argcount]
        assert problems and all(len(problem) == len(names) for problem in problems), name


@pytest.mark.parametrize(
    "mine, reference, apart",
    [([1, 2], [1, 2], 0), ([1, 3], [1, -4], 7 / 4), ([0, 0], [0, 0], 0), ([1, float("nan")], [1, 2], None)],
)
def test_difference_of_torch_tensors_is_relative_to_the_largest(mine, reference, apart):
    torch = pytest.importorskip("torch")
    assert examples.difference(torch.tensor(mine), torch.tensor(reference)) == apart


def test_a_small_problem_that_differs_is_a_failure(monkeypatch):
    from importlib import import_module

    program = import_module("examples.reduction")

    assert examples_small("reduction") == {"correct": True}
    monkeypatch.setattr(program, "reference", lambda x: (1e9, 0.0))
    assert examples_small("reduction") == {"failure": "the sum DIFFERS from NumPy"}


def examples_small(name):
    from tensorcore_dsl import target

    with target("cpu"):
        return examples.small(name)


def test_tables_have_all_others_and_what_failed():
    timing = Timing((1e-5, 2e-5, 3e-5)).json()
    measured = {"timing": timing, "captured": True}
    results = [
        {"example": "w4a16", "problem": "small", "correct": True},
        {"example": "w4a16", "problem": "M 1", **measured, "rate": 3e12, "unit": "B/s", "ratio": 1.2,
         "others": {"a": measured, "b": {"failure": "E: no"}}, "correct": True, "error": 0.1},
        {"example": "w4a16", "problem": "M 2", "failure": "E: bad", "raised_at": []},
        {"example": "reduction", "problem": "2", **measured, "rate": 3e12, "unit": "B/s", "ratio": 0.5,
         "others": {"a": measured}, "correct": False, "error": 0.1},
    ]  # fmt: skip
    first, second = examples.tables({"results": results})
    assert list(first.markdown()) == [
        "**w4a16**\n",
        "| problem | ours | TB/s | a | ratio | notes |",
        "|---|---|---|---|---|---|",
        "| M 1 | 20 us | 3 | 20 us | 1.20 | b: E: no |",
        "| M 2 | - | - | - | - | E: bad |",
        "",
    ]
    assert second.cells[0][-1] == "WRONG RESULT"


def test_the_command_needs_a_gpu(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # where there is a GPU, too
    assert command.main(["examples", "--quick"]) == 1
    assert "benchmarks on a GPU" in capsys.readouterr().err
