"""Stub `_typing.pyi`: element types and instructions for type checkers and editors.

At run time an element type is an object of the class DType, and `tc.mma.m16n8k16` is looked up in
the table. A checker needs a class where an annotation names an element type, and a method for each
shape; both are written here from the tables.
"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterable, Iterator, Sequence

from tensorcore_dsl import dtypes
from tensorcore_dsl.dtypes import DType
from tensorcore_dsl.errors import listing
from tensorcore_dsl.isa import namespaces
from tensorcore_dsl.isa.namespaces import FIXED, Namespace
from tensorcore_dsl.isa.spec import Instruction

HEADER = '''\
"""Element types and instructions as type checkers and editors see them.

Written by `make docs` from the table of instructions; there is no module of this name at run time.
"""

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Protocol, TypeAlias, overload
from typing_extensions import TypeVar

from tensorcore_dsl.dtypes import DType, DTypeLike
from tensorcore_dsl.isa.spec import Instruction, Operand
from tensorcore_dsl.layout import Layout
from tensorcore_dsl.lang.local import Local
from tensorcore_dsl.values.values import RegisterGroup, RuntimeValue, Struct

_T = TypeVar("_T", default=Any)

Const: TypeAlias = Annotated[_T, "known at compile time"]
"""Annotation of a parameter whose value is known at compile time: `Const`, or `Const[int]`."""

class Operators:
    """Python's operators on values of a kernel.

    Results are Any: their types are promoted, and what they go to may be a Python number before.
    """

{operators}
class AnyDType(DType, Any):  # type: ignore[misc]
    """The element type of an array or tile: any of them, also where a dict has `tc.f32` as a key."""

class _ElementType(DType, type):  # type: ignore[misc]
    """The class of the class Element, so that `tc.f32` is a DType and `x: tc.f32` an annotation."""

class _Bits:
    """`x.bits(dtype)` of a value, and `tc.f32.bits`, the width of an element type."""

    @overload
    def __get__(self, instance: None, owner: Any) -> int: ...
    @overload
    def __get__(self, instance: Element, owner: Any) -> _Reinterpret: ...

class _Reinterpret:
    def __call__(self, dtype: DTypeLike) -> Element:
        """Read the register as another type of its size."""

class Element(Operators, metaclass=_ElementType):
    """A value in one register of each thread, of the element type that the annotation names."""

    dtype: DType
    bits: _Bits

    def __init__(self, value: Any) -> None:
        """Convert a value of a kernel to this type, or make a typed constant."""

    def to(
        self, dtype: DTypeLike, *, rounding: str | None = None, relu: bool = False,
        satfinite: bool = False,
    ) -> Any:
        """Converted to `dtype`; options: rounding="rn|rz|rm|rp|rna", relu, satfinite."""
'''
BINARY = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "divmod"),
    *("and", "or", "xor", "lshift", "rshift"),
)
COMPARISONS = ("lt", "le", "gt", "ge")
UNARY = ("neg", "pos", "abs", "invert")
CONVERSIONS = {"bool": "bool", "int": "int", "float": "float", "index": "int", "hash": "int"}

INSTRUCTION = '''
class {name}(Instruction):
    """An instruction of {opcode}; called inside a kernel, it emits itself."""

{operands}
    @property
    def shape(self) -> tuple[int, int, int]: ...
    def __call__(  # type: ignore[override]
        {parameters}, pred: Any = None, otherwise: Any = ...
    ) -> RegisterGroup:
        """The result in registers. pred: emit it guarded; otherwise: the result where it fails."""
'''
NAMESPACE = '''
class {name}:
    """{opcode}: a method for each shape, which takes element types."""

{below}    def __call__(self, *types: DTypeLike, **options: Any) -> {instruction}:
        """The instruction with these types; `shape=` selects one if several shapes have them."""
'''
SHAPE = '''
    def {shape}(
        self, a: DTypeLike, b: DTypeLike, accumulator: DTypeLike, d: DTypeLike = ..., /,
        {options}
    ) -> {instruction}:
        """{text}
        """
'''
OPERANDS = '''
class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]

InKernel: TypeAlias = (
    Struct | Local | RuntimeValue | Element | DType | Instruction | Operand | _Dataclass
    | float | str | tuple[Any, ...] | list[Any] | dict[Any, Any] | Callable[..., Any] | None
)
"""What kernels hold. Arrays of NumPy and other libraries are not among it: they take a launch."""

class FragmentOperand(Operand):
    """An operand of a matrix instruction that is spread over the registers of all threads."""

    layout: Layout  # type: ignore[assignment]

    def zeros(self) -> RegisterGroup:
        """In a kernel: a fragment of this operand filled with zeros."""

class NamedInstruction(Instruction):
    """An instruction of the table, whose text names its operands."""

    def __getattr__(self, name: str) -> FragmentOperand: ...

def instruction(mnemonic: str) -> NamedInstruction:
    """The instruction with this mnemonic, for example "add.rn.f32"."""
'''


def page() -> str:
    """The text of the stub."""
    texts = [
        HEADER.format(operators="".join(_operators())),
        "\n",
        *map(_element_type, dtypes.ALL.values()),
        OPERANDS,
    ]
    for name in ("mma", "wgmma", "wmma"):
        texts += _namespace(getattr(namespaces, name))
    texts.append("\n")
    texts += [f"{name}: {_class_of(getattr(namespaces, name))}\n" for name in ("mma", "wgmma", "wmma")]
    return "".join(texts)


def _element_type(dtype: DType) -> str:
    """Alias of a type, with its description."""
    kind = {"f": "a float", "s": "a signed integer", "u": "an unsigned integer"}.get(dtype.kind)
    text = f"{kind or 'plain bits'}, {dtype.bits} bits" if dtype.kind != "p" else "a predicate"
    text = f"two floats, {dtype.bits} bits" if dtype.lanes == 2 else text
    return f'{dtype.name}: TypeAlias = Element\n"""{dtype.name}: {text}."""\n'


def _operators() -> Iterator[str]:
    """The methods of Operators."""
    for name in BINARY:
        for prefix in ("", "r"):
            yield f"    def __{prefix}{name}__(self, other: Any, /) -> Any: ...\n"
    yield "    def __pow__(self, exponent: Any, /) -> Any: ...\n"
    for name in COMPARISONS:
        yield f"    def __{name}__(self, other: Any, /) -> Any: ...\n"
    for name in ("eq", "ne"):
        yield f"    def __{name}__(self, other: Any, /) -> Any: ...  # type: ignore[override]\n"
    for name in UNARY:
        yield f"    def __{name}__(self) -> Any: ...\n"
    yield "    def __round__(self) -> Any: ...\n"
    for name in ("floor", "ceil", "trunc"):
        yield f"    def __{name}__(self) -> Any: ...\n"
    for name, result in CONVERSIONS.items():
        yield f"    def __{name}__(self) -> {result}: ...\n"


def _class_of(namespace: Namespace, suffix: str = "") -> str:
    """The name of the stub's class: `mma.sp` is _MmaSp."""
    words = namespace._name.replace("_", ".").split(".")
    return "_" + "".join(word.capitalize() for word in words) + suffix


def _namespace(namespace: Namespace) -> Iterator[str]:
    """The classes of a namespace, of its instructions, and of the namespaces below it."""
    for below in namespace._below.values():
        yield from _namespace(below)
    instructions, instruction = namespace._instructions(), _class_of(namespace, "Instruction")
    yield INSTRUCTION.format(
        name=instruction,
        opcode=namespace._name,
        operands="".join(_operands(instructions)),
        parameters=_parameters(instructions),
    )
    fields = (f"    {name}: {_class_of(below)}\n" for name, below in namespace._below.items())
    yield NAMESPACE.format(
        name=_class_of(namespace), opcode=namespace._name, below="".join(fields), instruction=instruction
    )
    for shape in dict.fromkeys(i.params["shape"] for i in instructions):
        variants = [i for i in instructions if i.params["shape"] == shape]
        yield SHAPE.format(
            shape=shape,
            instruction=instruction,
            options=", ".join(_options(variants)),
            text=_documentation(f"{namespace._name}.{shape}", variants),
        )


def _operands(instructions: Sequence[Instruction]) -> Iterator[str]:
    """Operands of all variants, each with its description."""
    every = {o.name: o for i in instructions for o in i.sides}
    for name, operand in every.items():
        kind = "FragmentOperand" if operand.is_fragment else "Operand"
        yield f"    {name}: {kind}\n"


def _parameters(instructions: Sequence[Instruction]) -> str:
    """The parameters of a call; variants that differ in number take any operands."""
    names = {tuple(o.name for o in i.operands) for i in instructions}
    if len(names) > 1:
        return "self, *operands: Any"
    return ", ".join(["self", *(f"{name}: Any" for name in names.pop()), "/, *"])


def _options(variants: Sequence[Instruction]) -> Iterator[str]:
    """The options as keywords; a flag is stored under its own name."""
    if _values(variants):
        yield "*"
    for key, values in _values(variants).items():
        kind = "bool" if key in values else "str | int" if values[-1].isdigit() else "str"
        yield f"{key}: {kind} = ..."


def _values(variants: Sequence[Instruction]) -> dict[str, list[str]]:
    """The values of each option."""
    keys = dict.fromkeys(k for i in variants for k in i.params if k not in (*FIXED, "ptx"))
    return {k: list(dict.fromkeys(i.params[k] for i in variants if i.params.get(k))) for k in keys}


def _documentation(name: str, variants: Sequence[Instruction]) -> str:
    """The lines of a shape's docstring."""
    sentences = [f"{name}: {_types(variants)}.", *_sentences(variants)]
    lines = (textwrap.wrap(s, 89, subsequent_indent="    ") for s in sentences)
    return "\n        ".join(itertools.chain.from_iterable(lines))


def _sentences(variants: Sequence[Instruction]) -> Iterator[str]:
    """Sentences about the options and architectures."""
    for key, values in _values(variants).items():
        if key not in values:
            yield f"{key}: {listing(map(repr, values))}."
    yield f"Architectures: {listing(dict.fromkeys(str(i.requires) for i in variants))}."


def _types(variants: Iterable[Instruction]) -> str:
    """The allowed element types: `f16 x f16 with f16 or f32; bf16 x bf16 with f32`."""
    accumulators: dict[tuple[str, str], dict[str, None]] = {}
    for i in variants:
        accumulators.setdefault((i.params["a"], i.params["b"]), {})[i.params["c"]] = None
    groups: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    for pair, types in accumulators.items():
        groups.setdefault(tuple(types), []).append(pair)
    return "; ".join(f"{_products(pairs)} with {' or '.join(c)}" for c, pairs in groups.items())


def _products(pairs: list[tuple[str, str]]) -> str:
    """Pairs of types, by one product of sets if they are all of it."""
    left, right = (list(dict.fromkeys(p[side] for p in pairs)) for side in (0, 1))
    if len(pairs) > 1 and len(left) * len(right) == len(pairs):
        return " x ".join("{" + ", ".join(side) + "}" for side in (left, right))
    return ", ".join(f"{a} x {b}" for a, b in pairs)
