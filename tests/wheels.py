"""Builds the sdist and the wheel, and environments to install them in."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = (
    ".ci",
    ".github",
    "benchmarks",
    "docs",
    "examples",
    "kernels",
    "packaging",
    "tensorcore_dsl",
    "tests",
)
FILES = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "MANIFEST.in",
    "Makefile",
    "README.md",
    "pyproject.toml",
    "setup.cfg",
    "setup.py",
)
OTHER = "NAME = 'kernels of somebody else'\n"


def run(*command, cwd, **environment):
    """The command's stdout; PYTHONPATH and the like of the tests do not reach it."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PIP_"))}
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def copy_sources(folder):
    """Copy the sources of the repository."""
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, folder)
    return folder


def build(kind, source, directory):
    """Path of the "sdist" or "wheel" of a source folder, built without a network."""
    script = f"from setuptools.build_meta import build_{kind} as b; print(b({str(directory)!r}))"
    return directory / run(sys.executable, "-c", script, cwd=source).splitlines()[-1]


def environment(directory):
    """A virtual environment with a package named `kernels`; its python and site-packages."""
    run(sys.executable, "-m", "venv", "--without-pip", directory, cwd=directory)
    python = directory / "bin" / "python"
    site = Path(run(python, "-c", "import site; print(site.getsitepackages()[0])", cwd="/").strip())
    (site / "kernels").mkdir()
    (site / "kernels" / "__init__.py").write_text(OTHER)
    return python, site
