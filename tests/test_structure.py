"""The structure of the package: import order, public names, and who knows an instruction by name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tensorcore_dsl import isa
from tensorcore_dsl.codegen.cache_key import OUTSIDE_IR

ROOT = Path(__file__).resolve().parent.parent
PACKAGE, KERNELS = "tensorcore_dsl", "tensorcore_dsl.kernels"

# Folders and modules of the package from the bottom to the top; an import points to a lower level
# or stays in its folder.
FLOOR = ("environment", "lowering", "numerics", "layout", "dtypes", "arch", "tracing", "errors", "origins")
TOP = ("kernel", "checking", "export", "ptx", "host", "testing", "tuning", "viewer", "__init__")
LEVELS = (
    FLOOR,
    ("viz",),
    ("isa",),
    ("ir",),
    ("interpreter",),
    ("values", "codegen"),
    ("lang", "runtime"),
    ("frontend", "numba"),
    TOP,
)
# Folders of the interpreter from the bottom to the top, likewise. Modules directly in interpreter/ lie
# above them.
INTERPRETER_LEVELS = (
    ("core",),
    ("sanitizer", "scheduling"),
    ("sync",),
    ("memory",),
    ("regions", "display"),
    ("execution",),
    ("debugging", "timeline"),
)
PUBLIC_MODULES = (f"{PACKAGE}.host", KERNELS)
# Folders of the kernels from the bottom to the top. Modules directly in kernels/ lie below them, except the
# public names and the programs, which lie above them.
KERNEL_LEVELS = ("ampere", "hopper", "problem", "choosing", "host")
ABOVE_FOLDERS = ("", "bench", "demo")


# -- imports -----------------------------------------------------------------------------------


@cache
def modules() -> dict[str, Path]:
    """Every module of the package and of the kernels, by name."""
    named = {}
    for folder, prefix in ((PACKAGE, PACKAGE), ("kernels", KERNELS)):
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            named[".".join((prefix, *(p for p in parts if p != "__init__")))] = path
    return named


@cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(modules()[module].read_text())


@cache
def imports_of(module: str) -> frozenset[str]:
    """Modules that `module` imports anywhere: at the top, in functions, for type checking."""
    return frozenset(target for target in _imported(module) if target != module)


def _imported(module: str) -> Iterator[str]:
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name in modules())
        elif isinstance(node, ast.ImportFrom):
            base = _base(module, node)
            for alias in node.names:
                full = f"{base}.{alias.name}"
                if full in modules():
                    yield full
                elif base in modules():
                    yield base


def _base(module: str, node: ast.ImportFrom) -> str:
    """The module that a `from` names, relative dots resolved."""
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    if modules()[module].name != "__init__.py":
        parts = parts[:-1]
    return ".".join([*parts[: len(parts) - node.level + 1], *(node.module or "").split(".")])


def place_of(module: str) -> str:
    """The folder of a module, or its own name directly under the package."""
    if module == PACKAGE:
        return "__init__"
    return module.split(".")[1]


# The kernels, the operators that are made of them, and the program that runs some of them.
ABOVE = ("kernels", "jax", "torch", "__main__")
PLACES = [place for level in LEVELS for place in level] + [*ABOVE]


def test_no_module_imports_itself_through_others():
    """CycleError names the modules of a circle."""
    TopologicalSorter({module: imports_of(module) for module in modules()}).prepare()


def test_folders_import_downwards():
    level = {place: number for number, places in enumerate(LEVELS) for place in places}
    level |= {place: len(LEVELS) + number for number, place in enumerate(ABOVE)}
    violations = [
        f"{module} imports {target}"
        for module in modules()
        for target in imports_of(module)
        for here, there in [(place_of(module), place_of(target))]
        if here != there
        and level[there] >= level[here]
        and not {here, there} <= set(FLOOR)
        and not {here, there} <= set(TOP)
    ]
    assert violations == []


def level_of_kernels(module: str) -> int:
    place = module.removeprefix(KERNELS).lstrip(".").partition(".")[0]
    if place in ABOVE_FOLDERS:
        return len(KERNEL_LEVELS) + 1
    return KERNEL_LEVELS.index(place) + 1 if place in KERNEL_LEVELS else 0


def test_folders_of_the_kernels_import_downwards():
    violations = [
        f"{module} imports {target}"
        for module in modules()
        for target in imports_of(module)
        if place_of(module) == place_of(target) == "kernels"
        and level_of_kernels(target) > level_of_kernels(module)
    ]
    assert violations == []
    assert level_of_kernels(f"{KERNELS}.host.plan") > level_of_kernels(f"{KERNELS}.sizes")


def interpreter_folder(module: str) -> str:
    """The folder of a module of the interpreter; '' for modules directly in interpreter/."""
    folder = modules()[module].parent.name
    return "" if folder == "interpreter" else folder


def test_folders_of_the_interpreter_import_downwards():
    level = {folder: number for number, folders in enumerate(INTERPRETER_LEVELS) for folder in folders}
    level[""] = len(INTERPRETER_LEVELS)
    inside = [module for module in modules() if place_of(module) == "interpreter"]
    assert {interpreter_folder(module) for module in inside} == {*level}
    violations = [
        f"{module} imports {target}"
        for module in inside
        for target in imports_of(module) & {*inside}
        for here, there in [(interpreter_folder(module), interpreter_folder(target))]
        if here != there and level[there] >= level[here]
    ]
    assert violations == []


def test_the_page_on_architecture_has_the_levels_of_the_interpreter():
    """Its table of the interpreter names the folders in the order of their levels, the lowest first."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| `(\w+)/` \| (\d) \|", text, re.M)
    levels = enumerate(INTERPRETER_LEVELS, start=1)
    assert rows == [(folder, str(number)) for number, folders in levels for folder in folders]


def test_what_makes_ir_imports_nothing_that_the_key_of_ir_omits():
    makers = {"frontend", "lang", "values", "ir"}
    omitted = {name.removesuffix(".py") for name in OUTSIDE_IR}
    assert omitted <= {*PLACES}
    violations = [
        f"{module} imports {target}"
        for module in modules()
        for target in imports_of(module)
        if place_of(module) in makers and place_of(target) in omitted
    ]
    assert violations == []


def test_the_page_on_architecture_has_these_levels():
    """Each row of its table names the folders and modules of one level, the top one first."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| \d \| (.*) \|$", text, re.M)
    named = [{n.strip("`/").removesuffix(".py") for n in row.split(", ")} for row in rows]
    assert named[::-1] == [{*places} - {"__init__"} for places in (*_merged(LEVELS), ABOVE)]


def _merged(levels):
    """The levels of the page, where what imports nothing but the lowest level belongs to it."""
    floor, viz, *above = levels
    return [(*floor, *viz), *above]


def test_the_package_has_few_modules_at_its_top():
    assert len(list((ROOT / PACKAGE).glob("*.py"))) <= 10
    unknown = {place_of(module) for module in modules()} - set(PLACES)
    assert unknown == set(), "name new folders in LEVELS"


@pytest.mark.parametrize("folder", sorted(p.parent.name for p in (ROOT / PACKAGE).glob("*/__init__.py")))
def test_a_folder_says_its_stage_in_one_sentence(folder):
    text = ast.get_docstring(tree_of(f"{PACKAGE}.{folder}"))
    assert text is not None and text.endswith(".") and not re.search(r"[.!?]\s", text)


# -- instructions ------------------------------------------------------------------------------

# numerics/ lies below the table: it names arithmetic operations, which rows of the table choose.
KNOWS_INSTRUCTIONS = ("isa", "numerics", "kernels")
# Opcodes that are also words of English, or names of Python's operators and of functions.
WORDS = {
    *("add", "sub", "mul", "div", "rem", "neg", "abs", "min", "max", "and", "or", "xor", "not"),
    *("fma", "sqrt", "rsqrt", "rcp", "sin", "cos", "tanh"),
    *("shared", "match", "vote", "barrier", "fence", "trap", "elect", "prefetch"),
}


def _documentation(tree: ast.Module) -> set[ast.AST]:
    """The nodes of docstrings and of the names in `__all__`."""
    nodes: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            nodes.add(node.value)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            nodes.update(ast.walk(node.value))
    return nodes


def strings_of(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, text) of each string; what an f-string formats becomes X."""
    skipped = _documentation(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [v.value if isinstance(v, ast.Constant) else "X" for v in node.values]
            yield node.lineno, "".join(map(str, parts))
            skipped.update(node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in skipped:
            yield node.lineno, node.value


def spelled_instructions(tree: ast.Module) -> list[str]:
    """Strings that are an opcode, or hold an opcode with modifiers (`tile.load(...)` is none)."""
    opcodes = set(isa.opcodes())
    pattern = re.compile(rf"(?<![\w.%])({'|'.join(opcodes)})\.\w[\w.:]*(?![\w.:(])")
    return [
        f"line {line}: {text}"
        for line, text in strings_of(tree)
        if text in opcodes - WORDS or pattern.search(text)
    ]


@pytest.mark.parametrize("place", [p for p in PLACES if p not in KNOWS_INSTRUCTIONS])
def test_only_the_table_knows_an_instruction_by_name(place):
    spelled = {m: spelled_instructions(tree_of(m)) for m in modules() if place_of(m) == place}
    assert {m: lines for m, lines in spelled.items() if lines} == {}


@pytest.mark.parametrize(
    "source",
    [
        'emit("wgmma.fence.sync.aligned")',
        'emit(f"add.{dtype}", a, b)',
        'opcode == "ldmatrix"',
        'raise E(f"{x} needs fence.proxy.async first")',
        'emit("cp.async.bulk.commit_group")',
    ],
)
def test_a_spelled_instruction_is_noticed(source):
    assert spelled_instructions(ast.parse(source))


@pytest.mark.parametrize(
    "source", ['"""Emits add.rn.f32."""', 'apply("add", a, b)', 'E("its barrier is barrier.remote(rank)")']
)
def test_documentation_and_words_are_no_instructions(source):
    assert not spelled_instructions(ast.parse(source))


def test_names_are_instructions_of_the_table():
    """The constants of isa/names.py exist in the table."""
    from tensorcore_dsl.isa import names

    texts = [v for n, v in vars(names).items() if n.isupper() and isinstance(v, str) and "." in v]
    whole = [text for text in texts if text not in (names.CP_ASYNC, names.WGMMA_MMA)]
    outside = (names.FRAGMENT_EXAMPLE, names.ADDRESS_OF_PARAMETER)
    assert len(whole) > 30
    for text in whole:
        assert text in outside or isa.instruction(text).mnemonic == text


# -- kernels -----------------------------------------------------------------------------------


@pytest.mark.parametrize("module", sorted(m for m in modules() if place_of(m) == "kernels"))
def test_kernels_import_public_names(module):
    internal = [
        target
        for target in imports_of(module)
        if target != PACKAGE and not f"{target}.".startswith(tuple(f"{p}." for p in PUBLIC_MODULES))
    ]
    assert internal == []
