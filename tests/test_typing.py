"""What type checkers say of kernels: they find the mistakes, and nothing in what is right.

mypy and pyright each check, once, an environment in which the wheel is installed: the files of
tests/typing, the README and the docs as programs, and the installed kernels with their tutorial.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
import zipfile
from collections import defaultdict
from pathlib import Path

import pytest

from docs import generate
from tests.wheels import environment

ROOT = Path(__file__).parent.parent
FILES = Path(__file__).parent / "typing"
KERNELS = (  # strictly typed, as README.md and the mistakes
    "row_kernels",
    "fragment_kernels",
    "features",
    "host_code",
    "star_import",
)
PAGES = ("README.md", *(
    f"docs/{name}.md"
    for name in ("language", "tutorial", "hopper_tutorial", "fragments", "tuning", "debugging",
                 "launch")
))  # fmt: skip

# Users do not annotate every function; the programs of a page assign different things to one name.
MYPY = """
[mypy]
strict = True
[mypy-tensorcore_dsl.kernels.*]
{relaxed}
[mypy-{pages}]
allow_redefinition = True
{relaxed}
"""
RELAXED = """
disallow_untyped_defs = False
disallow_incomplete_defs = False
disallow_untyped_calls = False
disallow_any_generics = False
warn_return_any = False
warn_unused_ignores = False
"""
PYRIGHT = {
    "typeCheckingMode": "standard",
    "strict": [f"{name}.py" for name in (*KERNELS, "doc_readme")],
    "exclude": [],
}

README_MISTAKES = (
    ("tc.mma.m16n8k16(", "tc.mma.m16n8k17(", "attr-defined", "reportAttributeAccessIssue"),
    ("swizzle=32", "swizle=32", "call-arg", "reportCallIssue"),
    ("tc.ldmatrix(tile_a", "tc.ldmatrx(tile_a", "attr-defined", "reportAttributeAccessIssue"),
    ("a.shape[1]", "a.shpe[1]", "attr-defined", "reportAttributeAccessIssue"),
)


def marked():
    """{line: rules} of the comments in mistakes.py."""
    lines = enumerate((FILES / "mistakes.py").read_text().splitlines(), 1)
    return {n: text.split("# error: ")[1].split(", ") for n, text in lines if "# error: " in text}


def readme_kernel():
    """The first program of the README."""
    return generate.blocks((ROOT / "README.md").read_text())[0].text


def with_mistakes():
    """The README's kernel with deliberate mistakes, and the rules at each line."""
    text, found = readme_kernel(), {}
    for right, wrong, *rules in README_MISTAKES:
        assert text.count(right) == 1
        text = text.replace(right, wrong)
        found[text[: text.index(wrong)].count("\n") + 1] = rules
    return text, found


def page_module(name):
    return f"doc_{Path(name).stem.lower()}"


def program(name):
    """The program of a page, without blocks that make code from strings."""
    page = (ROOT / name).read_text()
    lines = generate.program(page).splitlines()
    for block in generate.blocks(page):
        if "exec(" in block.text:
            length = block.text.count("\n")
            lines[block.line : block.line + length] = [""] * length
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def project(wheel, tmp_path_factory):
    """A folder with programs, beside an environment with the wheel; (folder, its site-packages)."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "env").mkdir()
    _, site = environment(folder / "env")
    zipfile.ZipFile(wheel).extractall(site)
    paths = [p for p in sys.path if Path(p).name in ("site-packages", "dist-packages")]
    (site / "requirements.pth").write_text("\n".join(paths))
    for path in FILES.glob("*.py"):
        (folder / path.name).write_text(path.read_text())
    for name in PAGES:
        (folder / f"{page_module(name)}.py").write_text(program(name))
    (folder / "readme_mistakes.py").write_text(with_mistakes()[0])
    return folder, site / "tensorcore_dsl" / "kernels"


def run(*command, cwd):
    inherited = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "MYPYPATH")}
    done = subprocess.run(
        [sys.executable, "-m", *map(str, command)],
        cwd=cwd,
        env=inherited,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


def run_mypy(folder, kernels):
    pages = ",".join(page_module(name) for name in PAGES if name != "README.md")
    (folder / "mypy.ini").write_text(MYPY.format(relaxed=RELAXED, pages=pages))
    python = folder / "env" / "bin" / "python"
    files = [p.name for p in folder.glob("*.py")]
    out = run(
        "mypy",
        "--config-file",
        "mypy.ini",
        "--python-executable",
        python,
        "--no-pretty",
        "--hide-error-context",
        "--cache-dir",
        "cache",
        *files,
        kernels,
        cwd=folder,
    )
    for line in out.splitlines():
        match = re.fullmatch(r"(.+?):(\d+): error: (.*)  \[([\w-]+)\]", line)
        if match:
            yield Path(match[1]).name, int(match[2]), match[4], match[3]
        else:
            assert ": note: " in line or line.startswith(("Found", "Success")), line


def run_pyright(folder, kernels):
    settings = {**PYRIGHT, "include": ["*.py", str(kernels.relative_to(folder))]}
    settings.update(venvPath=".", venv="env")
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    for diagnostic in json.loads(run("pyright", "--outputjson", cwd=folder))["generalDiagnostics"]:
        line = diagnostic["range"]["start"]["line"] + 1
        yield Path(diagnostic["file"]).name, line, diagnostic.get("rule", "syntax"), diagnostic["message"]


CHECKERS = {"mypy": run_mypy, "pyright": run_pyright}


@pytest.mark.thorough
@pytest.mark.parametrize("checker", CHECKERS)
def test_mistakes_are_found_and_nothing_else(project, checker):
    """One run for all files: a checker takes most of its time for the first."""
    pytest.importorskip(checker, reason=f"{checker} is not installed: pip install 'tensorcore-dsl[dev]'")
    by_file = defaultdict(list)
    for file, line, rule, message in CHECKERS[checker](*project):
        by_file[file].append((line, rule, message))
    for file, expected in (("mistakes.py", marked()), ("readme_mistakes.py", with_mistakes()[1])):
        of_checker = [
            (line, rule)
            for line, rules in expected.items()
            for rule in rules
            if rule.startswith("report") == (checker == "pyright")
        ]
        assert len(of_checker) >= 4
        assert sorted((line, rule) for line, rule, _ in by_file.pop(file)) == sorted(of_checker)
    others = [
        f"{file}:{line}: {message} [{rule}]" for file, all in by_file.items() for line, rule, message in all
    ]
    assert not others, "\n".join(others)


def test_everything_is_checked(project):
    """The kernels with the tutorial, the docs, and the programs of tests/typing."""
    folder, kernels = project
    assert len(list(kernels.rglob("*.py"))) > 50 and (kernels / "tutorial").is_dir()
    assert len(list(folder.glob("*.py"))) == len(PAGES) + len(KERNELS) + 2


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", KERNELS)
def test_the_kernels_work(name, monkeypatch):
    monkeypatch.setenv("TENSORCORE_DSL_TARGET", "cpu")
    spec = importlib.util.spec_from_file_location(name, FILES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main()
