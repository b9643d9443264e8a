"""The names of the package: what `from ... import *`, dir() and help() show of it."""

import ast
import inspect
import pydoc
import re
from importlib import metadata
from pathlib import Path

import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import dtypes, isa, kernels

ROOT = Path(__file__).parent.parent


def imported_names(path):
    """The public names that a module imports from this package."""
    names = {
        alias.asname or alias.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module.startswith("tensorcore_dsl")
        for alias in node.names
    }
    return {name for name in names if not name.startswith("_")}


@pytest.mark.parametrize("package", [tc, kernels], ids=lambda package: package.__name__)
def test_all_is_what_the_package_imports(package):
    """A function that is exported and not listed in `__all__` would be unknown to checkers."""
    assert sorted(package.__all__) == sorted(imported_names(Path(package.__file__)))
    assert all(hasattr(package, name) for name in package.__all__)


@pytest.mark.parametrize("package", [tc, kernels], ids=lambda package: package.__name__)
def test_dir_shows_the_public_names(package):
    """And no modules that the package has imported."""
    assert sorted(n for n in dir(package) if not n.startswith("__")) == sorted(package.__all__)
    assert {"lang", "isa", "kernel_cache", "host"}.isdisjoint(dir(package))


def test_help_lists_every_name_by_topic():
    """Each public name stands in the docstring of the package once, and nothing else does."""
    described = re.sub(r"^\S.*$", "", tc.__doc__, flags=re.M)  # without the headings
    words = set(re.findall(r"\b[A-Za-z_]\w*\b", described))
    assert set(tc.__all__) - words == set()
    assert "ldmatrix" in pydoc.render_doc(tc) and "Fragments" in pydoc.render_doc(tc)


def test_version_is_declared_once():
    assert re.fullmatch(r"\d+\.\d+\.\d+", tc.__version__)
    assert tc.__version__ == metadata.version("tensorcore-dsl")
    declared = 'version = { attr = "tensorcore_dsl.__version__" }'
    assert declared in (ROOT / "pyproject.toml").read_text()


def test_every_element_type_is_exported():
    assert set(dtypes.ALL) <= set(tc.__all__)


@pytest.mark.parametrize("name", ["mma", "wgmma", "wmma"])
def test_dir_of_a_namespace_shows_its_shapes(name):
    namespace = getattr(tc, name)
    shapes = {i.params["shape"] for i in isa.instructions(name) if not i.params.get("group", "-")}
    assert shapes <= set(dir(namespace))
    assert all(getattr(namespace, shape) is not None for shape in dir(namespace))


def test_dir_of_an_instruction_shows_its_operands():
    mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
    assert {"a", "b", "c", "d", "ptx", "shape"} <= set(dir(mma))
    assert {"e", "f"} <= set(dir(tc.mma.sp.m16n8k32(tc.f16, tc.f16, tc.f32))) - set(dir(mma))
    assert dir(tc.threadIdx) == ["x", "y", "z"]


def test_the_decorator_is_typed_with_all_its_options():
    """The overload `@tc.kernel(...)` names what Kernel takes."""
    tree = ast.parse(Path(inspect.getsourcefile(tc.Kernel)).read_text())
    functions = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "kernel"]
    typed = {a.arg for f in functions if f.decorator_list for a in f.args.kwonlyargs}
    taken = inspect.signature(tc.Kernel.__init__).parameters.values()
    assert typed == {p.name for p in taken if p.kind is p.KEYWORD_ONLY} >= {"threads", "name"}


@tc.kernel
def annotated(x: tc.Array, n: tc.Const[int] = 2, flag: "tc.Const[bool]" = True) -> None:
    x[0] = n if flag else 0


def test_const_takes_the_type_of_the_value():
    """`Const[int]` is Const: the value is known at compile time, and its type is for readers."""
    assert [p.const for p in annotated.parameters] == [False, True, True]
    assert "st.global" in annotated.ptx(tc.ArrayType(tc.s32, 1, (True,), 4), n=7, arch="sm_80")


def test_the_annotation_of_arrays_is_their_class():
    """Checkers and editors know the members of an argument by the annotation."""
    assert annotated.parameters[0].array
    for name in ("shape", "strides", "dtype", "ndim", "T", "at", "__getitem__", "__setitem__"):
        assert hasattr(tc.Array, name) or name in str(inspect.getsource(tc.Array.__init__))
