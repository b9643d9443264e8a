"""The reference's pages: every public name, in groups.

The groups of `tensorcore_dsl` are those of its docstring; other public modules are a group each.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.dtypes import DType
from tensorcore_dsl.isa.namespaces import Namespace
from tensorcore_dsl.isa.reference import braces

# Public modules beside the package itself -> the title of their page.
MODULES = {
    "tensorcore_dsl.kernels": "Finished kernels",
    "tensorcore_dsl.numba": "Instructions for Numba kernels",
    "tensorcore_dsl.ptx": "PTX of other compilers",
    "tensorcore_dsl.testing": "Timing",
    "tensorcore_dsl.debugger": "The debugger",
    "tensorcore_dsl.viz.plot": "Pictures",
    "tensorcore_dsl.host": "For libraries of kernels",
}
# Public modules that need a package which builds of the site lack: they are read, not imported.
READ = {"tensorcore_dsl.torch": "Operators of PyTorch", "tensorcore_dsl.jax": "Functions of JAX"}
# What users receive and do not name: classes of values in kernels, and of results.
RECEIVED = (
    "tensorcore_dsl.values.values.Scalar",
    "tensorcore_dsl.values.values.RegisterGroup",
    "tensorcore_dsl.values.values.Mask",
    "tensorcore_dsl.lang.local.Local",
    "tensorcore_dsl.lang.mbarrier.Mbarrier",
    "tensorcore_dsl.lang.tma.TensorMap",
    "tensorcore_dsl.isa.spec.Instruction",
    "tensorcore_dsl.isa.spec.Operand",
    "tensorcore_dsl.layout.Layout",
    "tensorcore_dsl.kernel.launch.Launch",
    "tensorcore_dsl.interpreter.core.report.Report",
    "tensorcore_dsl.interpreter.core.report.Traffic",
    "tensorcore_dsl.interpreter.timeline.timeline.Timeline",
    "tensorcore_dsl.codegen.cubin.Resources",
)
# Names whose values have no docstring of their own.
DATA = {
    "ARCHS": f"An ``Arch`` for each name: {', '.join(f'``{name}``' for name in tc.ARCHS)}.",
    "threadIdx": "The thread within its block: ``.x``, ``.y`` and ``.z``, s32 from 0 on.",
    "blockIdx": "The block within the grid: ``.x``, ``.y`` and ``.z``, s32 from 0 on.",
    "blockDim": "Threads of a block along each axis: ``.x``, ``.y`` and ``.z``, s32.",
    "gridDim": "Blocks of the grid along each axis: ``.x``, ``.y`` and ``.z``, s32.",
    "CURRENT_DEVICE": "The ordinal that stands for the GPU which is current.",
}
# Kinds of element types, as DType.kind names them.
KINDS = {
    "f": "Floating point",
    "s": "Signed integer",
    "u": "Unsigned integer",
    "b": "Plain bits",
    "p": "Predicate",
}
# Classes that have more methods than users need -> those that the page shows.
MEMBERS = {
    "Kernel": "configured, emulate, emulator, check, explore, ir, ptx, cubin, resources",
    "Array": "ndim, size, T, at",
    "Tile": "ndim, size, bytes, T, at, remote",
    "Pointer": "as_type, load, store, remote",
    "range": "",
    "Debugger": "",
    "Arch": "name, cc",
    "Autotuned": "configured, emulate, emulator, check, explore, ir, ptx, cubin, resources, forget",
    "Finding": "severity, as_dict",
    "CheckResult": "ok, summary, as_dict, json, raise_first",
    "Layout": "per_register, slots, registers, coords, owner",
    "Instruction": "ptx, opcode, threads",
    "Operand": "is_fragment, zeros",
    "Report": "",
    "Scalar": "to, bits",
    "RegisterGroup": "dtype, layout, slots, registers, elements, map, map_coordinates, to, coordinates",
    "Mask": "",
    "Mbarrier": "init, arrive, arrive_expect_tx, test, wait, remote",
    "TensorMap": "bytes, prefetch",
    "Local": "ndim, size, T",
    "Event": "record, wait, synchronize",
    "Launch": "prepare",
    "Timeline": "cycles, seconds, cta_cycles, busy, waves, resident, sms, from_dram, cold, "
    "assuming, save, plot",
}
INTRODUCTION = """\
Reference
=========

Every public name, by topic. In kernels and examples ``tc`` is ``tensorcore_dsl``, ``np`` is NumPy
and ``kernels`` is ``tensorcore_dsl.kernels``. The examples run as they stand, on the CPU.

These words name types of parameters:

number
    A number of Python, known when the kernel is compiled; ``int``, ``str``, ``bool`` as well.
scalar
    A run-time value in a register of each thread: an element of an array, or ``tc.lane_id()``.
integer
    An ``int`` or a scalar of an integer type.
predicate
    A scalar that is true or false: the result of a comparison.
operand
    An operand of an instruction: ``mma.a`` of ``mma = tc.mma.m16n8k16(...)``.
fragment
    The value of an operand, a matrix that is spread over the registers of a warp or warpgroup.
mask
    True or false for each element of a fragment: the result of comparing it.
dtype
    An element type, ``tc.f16``, or what stands for one: its name, a dtype of NumPy or torch.
array
    On the host, an array of NumPy, torch, CuPy, Numba, or of a library with DLPack.

Where a function *raises* ``OperandError`` or ``ArchError``, it does so when the kernel is compiled,
at the line that calls it. All functions that emit instructions raise ``OperandError`` outside of
kernels, and all errors derive from ``TensorCoreError``.
"""


@dataclass(frozen=True)
class Group:
    """A page of the reference: public names of one module."""

    title: str
    module: str
    names: tuple[str, ...]

    @property
    def own(self) -> list[str]:
        """The names that no page before this one shows: modules repeat some of the package."""
        if self.module == tc.__name__:
            return list(self.names)
        module = module_of(self.module)
        return [n for n in self.names if not _same(getattr(module, n), getattr(tc, n, None))]

    @property
    def file(self) -> str:
        return "_".join(re.findall(r"[a-z]+", self.title.lower())) + ".rst"


def _same(value: Any, other: Any) -> bool:
    """Are they one object? Modules wrap the functions that they publish."""
    return inspect.unwrap(value) is inspect.unwrap(other)


def module_of(name: str) -> ModuleType:
    """A public module by the name that users write: `tensorcore_dsl.debugger` is an attribute."""
    head, _, tail = name.rpartition(".")
    if head == tc.__name__ and isinstance(getattr(tc, tail, None), ModuleType):
        return getattr(tc, tail)  # type: ignore[no-any-return]
    return import_module(name)


def read_page(module: str) -> str:
    """The page of a module that is not imported: signatures and docstrings from its source."""
    from numpydoc.docscrape_sphinx import SphinxDocString

    title, tree = READ[module], _tree(_source(module))
    parts = [title, "=" * len(title), "", ast.get_docstring(tree) or ""]
    parts.append(f"\n.. module:: {module}\n")
    for name, node in _read_names(module).items():
        text = str(SphinxDocString(ast.get_docstring(node) or "", config={}))
        kind, given = ("class", "") if isinstance(node, ast.ClassDef) else ("function", "()")
        if isinstance(node, ast.FunctionDef):
            given = f"({', '.join(_parameters(node.args))})"
        parts.append(f".. {kind}:: {name}{given}\n\n{textwrap.indent(text, '   ')}\n")
    return "\n".join(parts)


def _read_names(module: str) -> dict[str, ast.FunctionDef | ast.ClassDef]:
    """The definition of each name in `__all__`, which the package imports from its modules."""
    found: dict[str, ast.FunctionDef | ast.ClassDef] = {}
    nodes = _tree(_source(module)).body
    (listed,) = (n.value for n in nodes if ast.unparse(n).startswith("__all__ = "))  # type: ignore[attr-defined]
    wanted = ast.literal_eval(listed)
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith(module):
            names = {alias.name for alias in node.names} & set(wanted)
            for inner in _tree(_source(str(node.module))).body:
                if isinstance(inner, (ast.FunctionDef, ast.ClassDef)) and inner.name in names:
                    found[inner.name] = inner
    return {n: found[n] for n in sorted(wanted, key=lambda n: isinstance(found[n], ast.ClassDef))}


def _parameters(given: ast.arguments) -> Iterator[str]:
    """Parameters without their annotations, as `inspect` writes them."""
    plain = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(plain) - len(given.defaults)) + list(given.defaults)
    yield from map(_parameter, plain, defaults)
    if given.vararg:
        yield f"*{given.vararg.arg}"
    elif given.kwonlyargs:
        yield "*"
    yield from map(_parameter, given.kwonlyargs, given.kw_defaults)
    if given.kwarg:
        yield f"**{given.kwarg.arg}"


def _parameter(argument: ast.arg, default: ast.expr | None) -> str:
    return argument.arg if default is None else f"{argument.arg}={ast.unparse(default)}"


def _source(module: str) -> Path:
    """The file of a module of the package."""
    folder = Path(tc.__file__).parent.joinpath(*module.split(".")[1:])
    return folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def read_modules() -> list[str]:
    """Modules of `READ` that this version has."""
    return [module for module in READ if _source(module).exists()]


def received_page() -> str:
    """The page of what users receive."""
    title = "Values and results"
    intro = "What functions give and kernels work with. Nobody makes these objects by their class."
    parts = [title, "=" * len(title), "", intro, ""]
    return "\n".join([*parts, *(_class(path) for path in RECEIVED)])


def groups() -> list[Group]:
    """All pages, in the order of the package's docstring; of other modules functions come first."""
    found = [Group(title, tc.__name__, names) for title, names in _sections(tc.__doc__ or "")]
    for name, title in MODULES.items():
        module = module_of(name)
        names = sorted(module.__all__, key=lambda n: inspect.isclass(getattr(module, n)))
        found.append(Group(title, name, tuple(names)))
    return found


def _sections(text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(title, names) of each title at the margin with indented lines under it."""
    every = set(tc.__all__) - {name.rpartition(".")[2] for name in MODULES}
    for title, body in re.findall(r"^(\S[^\n]*)\n((?:[ ]+\S[^\n]*\n?)+)", text, re.M):
        named = re.findall(r"\w+", body)
        names = {name: None for name in named if name in every}
        if title == "Errors":
            errors = [n for n in every if inspect.isclass(getattr(tc, n))]
            names |= {n: None for n in sorted(errors) if issubclass(getattr(tc, n), Exception)}
        if names:
            yield title, tuple(names)


def documented(name: str, value: Any) -> str:
    """The directive that shows one name."""
    if isinstance(value, DType):
        return _element_type(name, value)
    if inspect.isclass(value) and issubclass(value, BaseException):
        return f".. autoexception:: {name}\n   :show-inheritance:\n"
    if inspect.isclass(value) and value.__name__ != name:
        return _renamed(name, value)
    if inspect.isclass(value):
        return _class(name, value)
    if isinstance(value, Namespace):
        return _namespace(name, value)
    if name in DATA:
        return f".. data:: {name}\n\n   {DATA[name]}\n"
    if callable(value) and (given := _as_called(value)):
        return f".. autofunction:: {name}{given}\n"
    if inspect.isroutine(value) or hasattr(value, "__wrapped__"):
        return f".. autofunction:: {name}\n"
    return f".. autodata:: {name}\n   :no-value:\n"


def _class(path: str, value: type | None = None) -> str:
    """A class with the methods and properties that users need."""
    shown = MEMBERS.get(path.rpartition(".")[2])
    other = bool(shown) and value is not None and not any(hasattr(value, n) for n in shown.split(", "))
    if shown is None or other:  # other: a class of another module with this name
        return f".. autoclass:: {path}\n   :members:\n"
    members = f"   :members: {shown}\n" if shown else ""
    return f".. autoclass:: {path}\n{members}"


def _as_called(value: Any) -> str:
    """The parameters of an intrinsic of Numba in a kernel, where its typing context is none."""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    first, *rest = [*found.parameters.values(), None]
    if first is None or first.name != "typingctx":
        return ""
    bare = [p.replace(annotation=p.empty) for p in rest if p is not None]
    return str(inspect.Signature(bare))


def _namespace(name: str, value: Namespace) -> str:
    """The shapes of its instructions, and the groups that have more."""
    inside = [n for n in dir(value) if n != "__class__"]
    shapes = [n for n in inside if re.fullmatch(r"m\d+n\d+k\d+", n)]
    shapes.sort(key=lambda shape: [int(n) for n in re.findall(r"\d+", shape)])
    usual = [s for s in ("m16n8k16", "m64n128k16", "m16n16k16") if s in shapes]
    one = (usual or shapes)[0]
    groups = [n for n in inside if n not in shapes and not n.startswith("_")]
    shown = shapes
    if len(shapes) > 20:  # those of wgmma: any multiple of 8 as N
        by_depth = {depth: [s for s in shapes if s.endswith(depth)] for depth in _depths(shapes)}
        shown = [braces(of_depth) for of_depth in by_depth.values()]
    text = (
        f"The matrix products of ``{name}``, by shape and element types: "
        f"``tc.{name}.{one}(...)`` is an instruction, and an error lists the types that it "
        f"has.\n\n   Shapes: {', '.join(f'``{s}``' for s in shown)}."
    )
    if groups:
        text += f"\n\n   Groups, with shapes of their own: {', '.join(f'``{g}``' for g in groups)}."
    return f".. data:: {name}\n\n   {text}\n"


def _depths(shapes: list[str]) -> list[str]:
    """The parts of shapes that give K, each once."""
    return list(dict.fromkeys(shape[shape.index("k") :] for shape in shapes))


def _renamed(name: str, value: type) -> str:
    """A class under another name than its own, which autodoc would call an alias."""
    from numpydoc.docscrape_sphinx import get_doc_object

    text = str(get_doc_object(value, config={"show_class_members": False}))
    return f".. class:: {name}\n\n{textwrap.indent(text, '   ')}\n"


def _element_type(name: str, dtype: DType) -> str:
    """An element type is data: its facts instead of the docstring of its class."""
    stored = f"NumPy: ``{dtype.numpy}``" if dtype.numpy is not None else "no NumPy type"
    lanes = f", {dtype.lanes} in a register" if dtype.lanes > 1 else ""
    return f".. data:: {name}\n\n   {KINDS[dtype.kind]}, {dtype.bits} bits{lanes}; {stored}.\n"


def all_names() -> str:
    """A list of every public name with a line about it, by page."""
    parts = ["All names", "---------", ""]
    for group in groups():
        module = module_of(group.module)
        parts += [f"**{group.title}**", ""]
        for name in group.own:
            line = _line(name, getattr(module, name))
            parts.append(f":obj:`{name} <{group.module}.{name}>`\n    {line}\n")
    for module in read_modules():
        parts += [f"**{READ[module]}**", ""]
        for name, node in _read_names(module).items():
            line = _plain(ast.get_docstring(node) or "")
            parts.append(f":obj:`{name} <{module}.{name}>`\n    {line}\n")
    return "\n".join(parts)


def _line(name: str, value: Any) -> str:
    """The first sentence about a name."""
    if isinstance(value, DType):
        return f"{KINDS[value.kind]}, {value.bits} bits."
    if isinstance(value, Namespace):
        return f"Matrix products of ``{name}``, by shape and types."
    text = DATA.get(name) or (inspect.getdoc(value) if callable(value) else "") or f"{type(value).__name__}."
    return _plain(text)


def _plain(text: str) -> str:
    """The first paragraph as one line of reStructuredText."""
    return " ".join(re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", text.partition("\n\n")[0]).split())


def page(group: Group) -> str:
    """The page of a group in reStructuredText."""
    module = module_of(group.module)
    intro = (inspect.getdoc(module) or "") if group.module != tc.__name__ else ""
    intro = re.sub(r"`([^`]+)`", r"``\1``", intro)
    parts = [f"{group.title}\n{'=' * len(group.title)}\n", intro + "\n" if intro else ""]
    if group.module == tc.__name__:
        parts.append("Names of ``tensorcore_dsl``, which these pages call ``tc``.\n")
    parts.append(f".. currentmodule:: {group.module}\n")
    parts += [documented(name, getattr(module, name)) for name in group.own]
    repeated = [f":obj:`~tensorcore_dsl.{n}`" for n in group.names if n not in group.own]
    if repeated:
        parts.append(f"From ``tensorcore_dsl``, under the same names: {', '.join(repeated)}.\n")
    return "\n".join(parts)
