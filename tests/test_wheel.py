"""The wheel: its contents, and an installation beside another package named `kernels`."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pip
import pytest

ROOT = Path(__file__).parent.parent
SOURCES = ("setup.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md")
OTHER = "NAME = 'kernels of somebody else'\n"
SHORT_DEMO = """
import tensorcore_dsl as tc
from tensorcore_dsl.kernels import demo

demo.cases = lambda target: [demo.Case(tc.f64, tc.f64, (64, 64, 32), ("row", "col"))]
raise SystemExit(demo.run_all())
"""


def run(*command, cwd, **environment):
    """The command's stdout; PYTHONPATH and the like of the tests do not reach it."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PIP_"))}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env={**inherited, **environment}, capture_output=True,
        text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(kind, source, directory):
    """Path of the "sdist" or "wheel" of a source folder, built without a network."""
    script = f"from setuptools.build_meta import build_{kind} as b; print(b({str(directory)!r}))"
    return directory / run(sys.executable, "-c", script, cwd=source).splitlines()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from the unpacked sdist, so that the sdist is complete too."""
    directory = tmp_path_factory.mktemp("dist")
    source = directory / "source"
    ignored = shutil.ignore_patterns("__pycache__")
    for folder in ("tensorcore_dsl", "kernels", "benchmarks", "tests"):
        shutil.copytree(ROOT / folder, source / folder, ignore=ignored)
    for name in SOURCES:
        shutil.copy(ROOT / name, source)
    sdist = build("sdist", source, directory)
    shutil.unpack_archive(sdist, directory)
    return build("wheel", directory / sdist.name.removesuffix(".tar.gz"), directory)


def environment(directory):
    """A virtual environment with a package named `kernels`; its python and site-packages."""
    run(sys.executable, "-m", "venv", "--without-pip", directory, cwd=directory)
    python = directory / "bin" / "python"
    site = Path(run(python, "-c", "import site; print(site.getsitepackages()[0])", cwd="/").strip())
    (site / "kernels").mkdir()
    (site / "kernels" / "__init__.py").write_text(OTHER)
    return python, site


def modules(folder):
    return {p.relative_to(ROOT / folder).as_posix() for p in (ROOT / folder).rglob("*.py")}


def test_contents(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    version = wheel.name.split("-")[1]
    assert {name.split("/")[0] for name in names} == {
        "tensorcore_dsl", f"tensorcore_dsl-{version}.dist-info",
    }  # fmt: skip
    installed = {name for name in names if name.endswith(".py")}
    expected = {f"tensorcore_dsl/{name}" for name in modules("tensorcore_dsl")}
    assert installed == expected | {f"tensorcore_dsl/kernels/{name}" for name in modules("kernels")}
    assert {"tensorcore_dsl/py.typed", "tensorcore_dsl/_typing.pyi"} <= set(names)


def test_install_run_uninstall(wheel, tmp_path):
    """A package named `kernels` stays what it is, and the wheel runs outside of the repository."""
    python, site = environment(tmp_path)
    only_pip = tmp_path / "pip"  # the environment's pip, without its other packages
    only_pip.mkdir()
    (only_pip / "pip").symlink_to(Path(pip.__file__).parent)

    def with_pip(*arguments):
        run(python, "-m", "pip", "--quiet", *arguments, cwd=tmp_path, PYTHONPATH=str(only_pip))

    def run_installed(*arguments):
        """Requirements come from the environment of the tests."""
        paths = [p for p in sys.path if Path(p).name in ("site-packages", "dist-packages")]
        variables = {"PYTHONPATH": os.pathsep.join(paths), "TENSORCORE_DSL_TARGET": "cpu"}
        return run(python, *arguments, cwd=tmp_path, **variables)

    with_pip("install", "--no-index", "--no-deps", wheel)
    imported = run_installed(
        "-c", "import tensorcore_dsl.kernels as k, kernels; print(k.__file__, kernels.NAME)"
    )
    assert imported == f"{site / 'tensorcore_dsl/kernels/__init__.py'} kernels of somebody else\n"
    assert "m16n8k16" in run_installed("-m", "tensorcore_dsl", "list", "--opcode", "mma")
    demo = run_installed("-c", SHORT_DEMO)
    assert " ok" in demo and "WRONG" not in demo

    with_pip("uninstall", "--yes", "tensorcore-dsl")
    assert (site / "kernels" / "__init__.py").read_text() == OTHER
    assert not list(site.glob("tensorcore_dsl/**/*.py")), "only caches may stay"
