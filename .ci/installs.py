"""Builds sdist and wheel, installs them as users do, and tests what was installed: `make installs`.

Three environments, each made anew: the wheel alone, without a writable home; the oldest versions
that pyproject.toml allows, with CUDA 12; the newest ones, with CUDA 13. The last two run test files
of the unpacked sdist, on the oldest and the newest Python of this machine that the project names.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # which pytest brings

ROOT = Path(__file__).parent.parent
NAMED = re.compile(r"Python :: (3\.\d+)$")
LOWER_BOUND = re.compile(r"([\w-]+)(?:\[[\w,]+\])?>=([\d.]+)")
# What depends most on the versions of others: compiled loops, NumPy's types, the assembler, Numba.
TESTS = (
    "test_lowering", "test_interpreter", "test_arguments", "test_kernel", "test_assemble",
    "test_cubin", "test_driver", "test_numba_border", "test_cache_contents", "test_cli",
)  # fmt: skip


def main() -> int:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pythons = interpreters(project)
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(3) as pool:
        folder = Path(name)
        sdist, wheel = build(folder)
        oldest, newest = folder / "oldest", folder / "newest"
        for place in (oldest, newest):
            shutil.unpack_archive(sdist, place)
        running = [
            pool.submit(wheel_alone, wheel, folder / "alone"),
            pool.submit(tested, oldest, pythons[0], "cu12", lowest(project, "cu12")),
            pool.submit(tested, newest, pythons[-1], "cu13", ()),
        ]
        for job in as_completed(running):
            print(job.result(), flush=True)
    return 0


def interpreters(project: dict[str, list[str]]) -> list[str]:
    """Paths of those Pythons that the project names and this machine has, the oldest first."""
    found = {}
    for classifier in project["classifiers"]:
        if version := NAMED.search(classifier):
            path = interpreter(version[1])
            found[version[1]] = path
            print(f"Python {version[1]}: {path or 'not on this machine, NOT TESTED'}", flush=True)
    return [path for path in found.values() if path] or [sys.executable]


def interpreter(version: str) -> str | None:
    """A Python of this version: the running one, one on PATH, or one of pyenv."""
    code = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
    places = [sys.executable, shutil.which(f"python{version}")]
    places += sorted(map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python")))
    for place in filter(None, places):
        done = subprocess.run([place, "-c", code], capture_output=True, text=True)
        if done.stdout.strip() == version:
            return place
    return None


def build(folder: Path) -> tuple[Path, Path]:
    """The sdist of the repository, and the wheel of the unpacked sdist."""
    script = "from setuptools.build_meta import build_{0} as b; print(b({1!r}))"
    copy = folder / "source"
    made = (".git", ".venv", "build", "*.egg-info", "__pycache__", ".*_cache")
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*made))
    sdist = run(copy, sys.executable, "-c", script.format("sdist", str(folder))).split()[-1]
    shutil.unpack_archive(folder / sdist, folder / "unpacked")
    (unpacked,) = (folder / "unpacked").iterdir()
    wheel = run(unpacked, sys.executable, "-c", script.format("wheel", str(folder))).split()[-1]
    return folder / sdist, folder / wheel


def lowest(project: dict[str, dict[str, list[str]]], extra: str) -> list[str]:
    """The lower bound of every direct requirement, as an exact version."""
    extras = project["optional-dependencies"]
    needed = [*project["dependencies"], *extras[extra], *extras["test"]]
    bounds = [LOWER_BOUND.fullmatch(requirement) for requirement in needed]
    assert all(bounds), f"each of {needed} needs a lower bound"
    return [f"{bound[1]}=={bound[2]}" for bound in bounds if bound]


def wheel_alone(wheel: Path, folder: Path) -> str:
    """The program in an environment with nothing but the wheel, and no home."""
    python = environment(folder, sys.executable)
    install(python, str(wheel))
    program = python.with_name("tensorcore-dsl")
    home = folder / "home"
    home.write_text("no directory, so that root cannot write there either")
    away = {"HOME": str(home), "TENSORCORE_DSL_TARGET": "cpu"}
    for arguments in (["--version"], ["list", "--opcode", "wgmma"], ["bench", "--sizes", "64"]):
        shown = run(folder, program, *arguments, **away)
    assert " ok" in shown, shown
    return f"{wheel.name} installs and runs without a home"


def tested(folder: Path, interpreter: str, extra: str, exactly: Sequence[str]) -> str:
    """Test files of the unpacked sdist, with an extra and some exact versions."""
    (source,) = folder.iterdir()
    python = environment(folder / "env", interpreter)
    limits = folder / "limits.txt"
    limits.write_text("\n".join(exactly))
    install(python, "-e", f"{source}[{extra},test]", "-c", str(limits))
    freeze = run(folder, sys.executable, "-m", "pip", "--python", python, "freeze")
    versions = re.findall(r"^(?:num|llvm|ml_|cuda-[bc]|nvidia-nvj).*", freeze, re.M)
    files = [f"tests/{name}.py" for name in TESTS]
    cache = {"TENSORCORE_DSL_CACHE": str(folder / "cache")}
    said = run(source, python, "-m", "pytest", "-n", "2", "--durations=0", *files, **cache)
    return f"{interpreter}, {', '.join(versions)}: {said.strip().splitlines()[-1]}"


def environment(folder: Path, interpreter: str) -> Path:
    """A new virtual environment; its python."""
    run(ROOT, interpreter, "-m", "venv", "--without-pip", folder)
    return folder / "bin" / "python"


def install(python: Path, *arguments: str) -> None:
    run(ROOT, sys.executable, "-m", "pip", "--python", python, "install", "--quiet", *arguments)


def run(folder: Path, *command: object, **variables: str) -> str:
    """What a command prints; its output and the end of this program if it fails."""
    dropped = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    inherited = {name: value for name, value in os.environ.items() if name not in dropped}
    done = subprocess.run(
        list(map(str, command)), cwd=folder, env={**inherited, **variables}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed in {folder}:\n{done.stdout}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
