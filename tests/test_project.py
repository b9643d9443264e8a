"""The project as a whole: what it needs, what it says of itself, the demo."""

import ast
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import kernels
from tensorcore_dsl.kernels import demo

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # which pytest brings

ROOT = Path(__file__).parent.parent

BLOCKED = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("cuda", "matplotlib", "torch", "cupy") or name == "numba.cuda":
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Refuse())
import numpy as np
import tensorcore_dsl as tc
from tensorcore_dsl.codegen import assemble

@tc.kernel
def double(x: tc.Array):
    x[tc.threadIdx.x] = 2 * x[tc.threadIdx.x]

x = np.arange(32, dtype=np.float32)
double[1, 32](x)
assert tc.current_target() == "cpu" and x[31] == 62, (tc.current_target(), x)
mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
ones = [np.full((32, o.registers), 0x3C003C00, np.uint32) for o in (mma.a, mma.b)]
d = tc.emulate(mma.ptx, *ones, np.zeros((32, 4), np.uint32)).view(np.float32)
assert (d == 16).all(), d
try:
    double.cubin(x)
except tc.AssemblyError as error:
    assert "tensorcore-dsl[cu13]" in str(error), error
else:
    raise AssertionError("an assembler out of nowhere")
print("done")
"""


def test_emulation_needs_no_cuda_package(tmp_path):
    """A machine with the plain requirements imports the package and runs kernels."""
    script = tmp_path / "plain.py"  # kernels are read from files
    script.write_text(BLOCKED)
    process = subprocess.run(
        [sys.executable, script],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.stdout.endswith("done\n"), process.stderr


LIGHT = """
import sys
import tensorcore_dsl as tc
from tensorcore_dsl.arch import arch
from tensorcore_dsl.codegen import kernel_cache

@tc.kernel
def double(x: tc.Array):
    x[tc.threadIdx.x] *= 2

assert kernel_cache.entry_name(double, (), {}, arch("sm_90a"), "")
print(*sorted({"numba", "importlib.metadata", "rich", "matplotlib"} & set(sys.modules)))
"""


def test_the_import_is_light(tmp_path):
    """What takes long to import is imported where it is used; the name of an entry needs none."""
    script = tmp_path / "light.py"
    script.write_text(LIGHT)
    process = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TENSORCORE_DSL_CACHE": str(tmp_path)},
    )
    assert process.returncode == 0 and process.stdout == "\n", process.stdout + process.stderr


def project():
    """The table `[project]` of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_requirements_of_the_plain_package():
    """No CUDA package, and nothing has a cap: what a newer one breaks is mended at its border."""
    needed = project()["dependencies"]
    assert not [n for n in needed if "cuda" in n or "torch" in n or "numba" in n]
    assert "numpy>=2.0" in needed and not [n for n in needed if "<" in n or "==" in n]


def test_extras_for_both_toolkits():
    extras = project()["optional-dependencies"]
    for extra in ("cu12", "cu13"):
        assert f"numba-cuda[{extra}]>=0.26" in extras[extra]
    assert extras["cuda"] == ["tensorcore-dsl[cu13]"]


def test_the_page_on_libraries_names_each():
    metadata = project()
    extras = metadata["optional-dependencies"].values()
    needed = {re.match(r"[\w-]+", n)[0] for n in [*metadata["dependencies"], *sum(extras, [])]}
    page = (ROOT / "docs" / "libraries.md").read_text().partition("## What is written by hand")[0]
    named = set(re.findall(r"[\w-]+", page.lower()))
    assert not {name.lower() for name in needed} - named - {"tensorcore-dsl"}


def test_what_installs_with_its_oldest_version_names_one():
    """`make installs` takes the lower bounds."""
    metadata = project()
    extras = metadata["optional-dependencies"]
    for requirement in (*metadata["dependencies"], *extras["cu12"], *extras["test"]):
        assert re.fullmatch(r"[\w-]+(\[\w+\])?>=[\d.]+", requirement), requirement


def test_every_python_is_named():
    metadata = project()
    named = {c.removeprefix("Programming Language :: Python :: ") for c in metadata["classifiers"]}
    assert {f"3.{minor}" for minor in range(10, 15)} <= named
    assert metadata["requires-python"] == ">=3.10" and metadata["license"] == "Apache-2.0"


def test_versions_agree():
    assert f"## {tc.__version__}" in (ROOT / "CHANGELOG.md").read_text()
    assert (ROOT / "LICENSE").read_text().lstrip().startswith("Apache License")


def test_the_docs_list_the_variables():
    """Every variable of the environment that the package reads is in one table."""
    read = set()
    for path in (ROOT / "tensorcore_dsl").rglob("*.py"):
        read |= set(re.findall(r'"(TENSORCORE_DSL_\w+)"', path.read_text()))
    rows = re.findall(r"^\| `(TENSORCORE_DSL_\w+)`", (ROOT / "docs" / "deploying.md").read_text(), re.M)
    assert sorted(rows) == sorted(read) and len(read) >= 7


def test_make_lists_its_targets():
    """Every target that is there for users is in the help, and the other way round."""
    text = (ROOT / "Makefile").read_text()
    phony = set(re.search(r"\.PHONY: (.*)", text)[1].split()) - {"help"}
    assert phony == set(re.findall(r'"make ([\w-]+) ', text)) >= {"demo", "test", "lint"}
    for name in phony:
        assert re.search(rf"^{name}:", text, re.M), name


def test_ci_runs_what_contributors_run():
    text = (ROOT / ".ci" / "run").read_text()
    assert "make test" in text and "make lint" in text and re.search(r"^set -e", text, re.M)
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111


TABLES = {"isa/scalar.py", "isa/memory.py"}


def lines_of_code(path):
    """Lines without docstrings, which tell users of shapes, errors and examples."""
    tree = ast.parse(path.read_text())
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    texts = [n.body[0] for n in ast.walk(tree) if isinstance(n, documented) and ast.get_docstring(n)]
    return path.read_text().count("\n") - sum(t.end_lineno - t.lineno + 1 for t in texts)


@pytest.mark.parametrize("folder", ["tensorcore_dsl", "kernels", "benchmarks", "docs"])
def test_no_file_is_long(folder):
    """Nothing but a table is longer than CONTRIBUTING.md allows."""
    limit = int(re.search(r"at most after (\d+) lines", (ROOT / "CONTRIBUTING.md").read_text())[1])
    lines = {
        path.relative_to(ROOT / folder).as_posix(): lines_of_code(path)
        for path in (ROOT / folder).rglob("*.py")
    }
    assert lines
    assert {name: n for name, n in lines.items() if n > limit and name not in TABLES} == {}


def test_no_merge_was_left_half_done():
    places = [p for p in ROOT.iterdir() if not p.name.startswith(".") and p.name != "build"]
    files = [f for p in places for f in (p.rglob("*") if p.is_dir() else [p])]
    ours = [f for f in files if f.suffix in (".py", ".md", ".cfg", ".toml")]
    marks = re.compile(r"^(<{7}|>{7}) ", re.MULTILINE)
    assert ours and not [p for p in ours if marks.search(p.read_text(encoding="utf-8"))]


# -- the demo ------------------------------------------------------------------------------------

SMALL = demo.Case(tc.f16, tc.f16, (64, 64, 32), ("row", "row"))


@pytest.mark.parametrize(
    "case",
    [
        SMALL,
        replace(SMALL, dtype=tc.bf16, out=tc.f32, orders=("row", "col")),
        replace(SMALL, dtype=tc.f32, out=tc.f32, orders=("col", "row")),
        replace(SMALL, dtype=tc.s8, out=tc.s32, orders=("col", "col")),
        replace(SMALL, dtype=tc.f64, out=tc.f64, size=(60, 30, 20)),
    ],
    ids=lambda case: str(case.dtype),
)
def test_demo_accepts_what_is_right(case):
    result = demo.run(case, "cpu")
    assert result.good and result.seconds > 0
    assert len(result.cells()) == len(demo.COLUMNS) and result.cells()[-1] == "ok"


@pytest.mark.parametrize("wrong", [lambda d: d * 1.01, lambda d: d + 0.1, lambda d: 0 * d])
def test_demo_refuses_what_is_wrong(monkeypatch, capsys, wrong):
    """One element that rounding does not explain is enough."""
    real = kernels.gemm

    def broken(*args, **more):
        d = real(*args, **more)
        d[5, 7] = wrong(d[5, 7])
        return d

    monkeypatch.setattr(kernels, "gemm", broken)
    monkeypatch.setattr(demo, "cases", lambda target: [SMALL])
    monkeypatch.setattr(demo, "current_target", lambda: "cpu")
    assert demo.run_all() == 1
    assert "WRONG" in capsys.readouterr().out


def test_demo_prints_a_table(monkeypatch, capsys):
    monkeypatch.setattr(demo, "cases", lambda target: [SMALL, replace(SMALL, out=tc.f32)])
    monkeypatch.setattr(demo, "current_target", lambda: "cpu")
    with tc.target("cpu", arch="sm_80"):
        assert demo.run_all() == 0
    out = capsys.readouterr().out
    rows = [line.split() for line in out.splitlines() if "emulated" in line and "ok" in line]
    assert [r[:5] for r in rows] == [["f16", "f16", "64", "64", "32"], ["f16", "f32", "64", "64", "32"]]
    assert all("sm_80" in r for r in rows)


def test_demo_covers_types_sizes_and_orders():
    demo_cases = list(demo.cases("cpu"))
    assert {c.dtype for c in demo_cases} == {tc.f16, tc.bf16, tc.f32, tc.s8, tc.f64}
    assert len({c.orders for c in demo_cases}) == 4
    assert any(n % 64 for c in demo_cases for n in c.size)


@pytest.mark.parametrize("dtype", [tc.f16, tc.s8])
def test_demo_matrices_are_laid_out_as_asked(dtype):
    a, b = replace(SMALL, dtype=dtype, orders=("row", "col")).matrices()
    assert a.flags.c_contiguous and b.flags.f_contiguous
    assert a.shape == (64, 32) and b.shape == (32, 64) and len(np.unique(a)) > 30


def test_recipes_agree_with_the_project():
    """The image names extras that exist; the recipe of conda has the version and the requirements."""
    metadata, folder = project(), ROOT / "packaging"
    (extras,) = re.findall(
        r"\[([\w,]+)\]", (folder / "Dockerfile").read_text("utf-8").partition("ENTRYPOINT")[0]
    )[:1]
    assert set(extras.split(",")) <= set(metadata["optional-dependencies"])
    recipe = (folder / "conda" / "recipe.yaml").read_text("utf-8")
    assert f'version: "{tc.__version__}"' in recipe and f'summary: "{metadata["description"]}"' in recipe
    needed = {f"- {n.replace('>=', ' >=')}" for n in metadata["dependencies"]}
    assert needed <= {line.strip() for line in recipe.partition("run:")[2].splitlines()}


def test_workflows_run_what_there_is():
    yaml = pytest.importorskip("yaml")
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        workflow = yaml.safe_load(path.read_text("utf-8"))
        steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
        programs = " ".join(step.get("run", "") for step in steps)
        assert all((ROOT / name).exists() for name in re.findall(r"(?:tests|\.ci)/[\w.]+", programs))
    assert "run: .ci/run\n" in (ROOT / ".github/workflows/ci.yml").read_text("utf-8")
