"""Wheel and sdist: what they hold, and an installation beside another package named `kernels`."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pip
import pytest

from tests.wheels import FILES, FOLDERS, OTHER, ROOT, environment, run

pytestmark = pytest.mark.thorough

SHORT_DEMO = """
import tensorcore_dsl as tc
from tensorcore_dsl.kernels import demo

demo.cases = lambda target: [demo.Case(tc.f64, tc.f64, (64, 64, 32), ("row", "col"))]
raise SystemExit(demo.run_all())
"""


def modules(folder):
    return {p.relative_to(ROOT / folder).as_posix() for p in (ROOT / folder).rglob("*.py")}


def files(folder):
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


def is_generated(name):
    return name == "PKG-INFO" or ".egg-info/" in name


def test_the_sdist_has_all_sources(sdist, source):
    """Tests, golden results, docs, benchmarks and the program of the CI are sources too.

    Recorded results of benchmarks are not.
    """
    results = "benchmarks/results/"
    expected = {name for name in files(source) if not is_generated(name)}
    expected = {n for n in expected if not n.startswith(results)} | {f"{results}README.md"}
    assert {name for name in files(sdist) if not is_generated(name)} == expected
    assert any(name.startswith("tests/golden/") for name in expected)


@pytest.mark.quick
def test_no_source_is_forgotten():
    """What lies at the top of a checkout is in the lists above, or git ignores it."""
    if not (ROOT / ".git").exists():
        pytest.skip("an sdist has no list of what is in the repository")
    try:
        tracked = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"git does not list the files: {error}")
    tops = {name.split("/")[0] for name in tracked.split("\0") if name}
    assert tops <= {*FOLDERS, *FILES, ".gitignore"}


PROGRAM = re.compile(r"^```.*?^```$", re.M | re.S)


def targets(text):
    """Where the links of a page lead."""
    return re.findall(r"\]\(([^)]+)\)", PROGRAM.sub("", text))


@pytest.mark.quick
def test_metadata_name_the_licence_and_the_readme(wheel):
    archive = zipfile.ZipFile(wheel)
    (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
    head, _, text = archive.read(name).decode().partition("\n\n")
    assert "\nLicense-Expression: Apache-2.0\n" in head and "\nLicense-File: LICENSE\n" in head
    assert all(t.startswith(("https://", "#")) for t in targets(text)), "links to files lead nowhere"
    assert text.startswith("# tensorcore_dsl") and "docs/fidelity.md" in text
    programs = PROGRAM.findall((ROOT / "README.md").read_text())
    assert PROGRAM.findall(text) == programs and len(programs) > 6


def test_links_lead_to_the_repository_once_it_is_named(source, tmp_path):
    copy = tmp_path / "source"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("build", "tests", "*.egg-info"))
    script = "from setuptools.build_meta import prepare_metadata_for_build_wheel as p; print(p('.'))"
    place = "https://example.org/some/where"
    folder = run(sys.executable, "-c", script, cwd=copy, REPOSITORY=f"{place}/").splitlines()[-1]
    head, _, text = (copy / folder / "METADATA").read_text().partition("\n\n")
    assert f"\nProject-URL: Repository, {place}\n" in head and f"Issues, {place}/issues\n" in head
    place += "/blob/HEAD/"
    linked = [t.partition("#")[0] for t in targets(text) if not t.startswith("#")]
    ours = [t.removeprefix(place) for t in linked if t.startswith(place)]
    assert len(ours) > 30 and all((ROOT / name).exists() for name in ours)
    assert all(t.startswith("https://") for t in linked)


def test_the_wheel_holds_the_package_and_its_kernels(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    version = wheel.name.split("-")[1]
    assert {name.split("/")[0] for name in names} == {"tensorcore_dsl", f"tensorcore_dsl-{version}.dist-info"}
    installed = {name for name in names if name.endswith(".py")}
    expected = {f"tensorcore_dsl/{name}" for name in modules("tensorcore_dsl")}
    assert installed == expected | {f"tensorcore_dsl/kernels/{name}" for name in modules("kernels")}
    assert {"tensorcore_dsl/py.typed", "tensorcore_dsl/_typing.pyi"} <= set(names)
    assert {f"tensorcore_dsl/viewer/page.{end}" for end in ("html", "css", "js")} <= set(names)


def run_beside_requirements(*command, cwd):
    """Requirements come from the environment of the tests, where the package is not looked for."""
    paths = [p for p in sys.path if Path(p).name in ("site-packages", "dist-packages")]
    return run(*command, cwd=cwd, PYTHONPATH=os.pathsep.join(paths), TENSORCORE_DSL_TARGET="cpu")


def test_a_checkout_has_its_kernels(source, tmp_path):
    """Python finds the package in the folder where it starts, installed or not."""
    python, _ = environment(tmp_path)
    code = "import tensorcore_dsl.kernels as k, kernels; print(k.__file__, kernels.__file__)"
    actual = run_beside_requirements(python, "-c", code, cwd=source)
    assert actual.split() == [str(source / "kernels" / "__init__.py")] * 2
    assert "tensorcore-dsl" in run_beside_requirements(
        python, "-m", "tensorcore_dsl", "--version", cwd=source
    )


def test_install_run_uninstall(wheel, tmp_path):
    """A package named `kernels` stays what it is, and the wheel runs outside of the repository."""
    python, site = environment(tmp_path)
    only_pip = tmp_path / "pip"  # the environment's pip, without its other packages
    only_pip.mkdir()
    (only_pip / "pip").symlink_to(Path(pip.__file__).parent)

    def with_pip(*arguments):
        run(python, "-m", "pip", "--quiet", *arguments, cwd=tmp_path, PYTHONPATH=str(only_pip))

    def run_installed(*arguments):
        return run_beside_requirements(python, *arguments, cwd=tmp_path)

    with_pip("install", "--no-index", "--no-deps", wheel)
    imported = run_installed(
        "-c", "import tensorcore_dsl.kernels as k, kernels; print(k.__file__, kernels.NAME)"
    )
    assert imported == f"{site / 'tensorcore_dsl/kernels/__init__.py'} kernels of somebody else\n"
    program = python.with_name("tensorcore-dsl")
    assert "m16n8k16" in run_installed(program, "list", "--opcode", "mma")
    assert run_installed(program, "--help") == run_installed("-m", "tensorcore_dsl", "--help")
    demo = run_installed("-c", SHORT_DEMO)
    assert " ok" in demo and "WRONG" not in demo
    assert run_installed(program, "museum", "flashinfer_1351").endswith("\nfixed: clean\n")

    with_pip("uninstall", "--yes", "tensorcore-dsl")
    assert (site / "kernels" / "__init__.py").read_text() == OTHER
    assert not list(site.glob("tensorcore_dsl/**/*.py")), "only caches may stay"
