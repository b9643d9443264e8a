"""Typed constructors over the table, for example `mma.m16n8k16(bf16, bf16, f32)`.

Shapes, types and options are the `params` of the instructions; a namespace stores none of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from tensorcore_dsl.dtypes import DType, as_dtype
from tensorcore_dsl.errors import OperandError, UnknownInstruction, listing, public
from tensorcore_dsl.isa import lookup
from tensorcore_dsl.isa.spec import Instruction

_TYPES = ("a", "b", "c", "d")
FIXED = ("shape", "family", "group", "sparse", "scale_kind", *_TYPES)
_DEFAULTS = {"layout": "row.col"}


@cache
def _instructions(opcode: str, group: str) -> list[Instruction]:
    every = lookup.instructions(opcode)
    return [f for f in every if "shape" in f.params and f.params.get("group", "") == group]


class UnknownShape(UnknownInstruction, AttributeError):
    """The namespace has no such shape."""


class Namespace:
    """The instructions of one opcode and group; attributes are shapes or subgroups."""

    def __init__(self, opcode: str, group: str = "", below: Iterable[str] = ()) -> None:
        self._opcode, self._group = opcode, group
        prefix = f"{group}." if group else ""
        names = [name.partition(".") for name in below]
        self._below = {
            name: Namespace(opcode, prefix + name, [tail for n, _, tail in names if n == name and tail])
            for name in dict.fromkeys(n for n, _, _ in names)
        }

    @property
    def _name(self) -> str:
        return f"{self._opcode}.{self._group}" if self._group else self._opcode

    def _instructions(self) -> list[Instruction]:
        return _instructions(self._opcode, self._group)

    def __dir__(self) -> list[str]:
        return [*dict.fromkeys(f.params["shape"] for f in self._instructions()), *self._below]

    @public
    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name in self._below:
            return self._below[name]
        if not any(f.params["shape"] == name for f in self._instructions()):
            raise UnknownShape(f"{self._name} has no shape {name}; it has {listing(self.__dir__(), 80)}")
        return Shape(self, name)

    @public
    def __call__(self, *types: DType | str, **options: Any) -> Instruction:
        """The instruction with these types; `shape=` selects one if several shapes have them."""
        if "shape" in options:
            return getattr(self, options.pop("shape"))(*types, **options)  # type: ignore[no-any-return]
        _refuse_operands(self._name, self._instructions(), types)
        matches = [f for f in self._instructions() if _matches(f, types)]
        shapes = list(dict.fromkeys(f.params["shape"] for f in matches))
        if len(shapes) > 1:
            raise UnknownInstruction(f"{self._name}{_named(types)} exists as {listing(shapes)}: choose one")
        return _choose(self._name, matches or self._instructions(), types, options)

    def __reduce__(self) -> Any:
        return _namespace, (self._name,)

    def __repr__(self) -> str:
        return f"<{self._name}: {listing(self.__dir__())}>"


class Shape:
    """One shape of a namespace; called with element types, it returns an instruction."""

    def __init__(self, namespace: Namespace, name: str) -> None:
        self._namespace, self._shape = namespace, name

    def instructions(self) -> list[Instruction]:
        """All instructions of this shape."""
        return [f for f in self._namespace._instructions() if f.params["shape"] == self._shape]

    @public
    def __call__(self, *types: DType | str, **options: Any) -> Instruction:
        """`(a, b, accumulator[, d])` and the instruction's options, such as `satfinite=True`."""
        what = f"{self._namespace._name}.{self._shape}"
        _refuse_operands(self._namespace._name, self.instructions(), types)
        if 3 <= len(types) <= 4 and not any(_matches(f, types) for f in self.instructions()):
            raise UnknownInstruction(_no_such(what, self.instructions(), types) + self._others(types))
        return _choose(what, self.instructions(), types, options)

    def _others(self, types: tuple[DType | str, ...]) -> str:
        """Hint at other shapes with these types. Shapes that differ in one extent come first."""
        matches = [f for f in self._namespace._instructions() if _matches(f, types)]
        shape = self.instructions()[0].shape or ()
        shapes = {
            f.params["shape"]: sum(x == y for x, y in zip(f.shape or (), shape, strict=True)) for f in matches
        }
        near = [shape for shape, same in shapes.items() if same == 2] or list(shapes)
        return f"; {_named(types)} exists as {listing(near)}" if near else ""

    def __repr__(self) -> str:
        return f"<{self._namespace._name}.{self._shape}: {_combinations(self.instructions())}>"


def _matches(instr: Instruction, types: tuple[DType | str, ...]) -> bool:
    return all(instr.params[key] == _type_name(t) for key, t in zip(_TYPES, types, strict=False))


def _type_name(dtype: Any) -> str:
    """The name of an element type; types that no dtype stands for, such as s1, are text already."""
    try:
        return as_dtype(dtype).name
    except OperandError:
        return str(dtype)


def _is_type(dtype: Any) -> bool:
    try:
        return isinstance(dtype, str) or bool(as_dtype(dtype))
    except OperandError:
        return False


def _refuse_operands(namespace: str, variants: list[Instruction], arguments: tuple[Any, ...]) -> None:
    """OperandError where fragments or other operands stand in place of the element types."""
    if all(map(_is_type, arguments)):
        return
    arguments = tuple(v[0] if isinstance(v, (list, tuple)) and v else v for v in arguments)
    layouts = [getattr(value, "layout", None) for value in arguments]
    types = tuple(getattr(value, "dtype", value) for value in arguments)
    fitting = [f for f in variants if _matches(f, types)] or variants
    instr = max(fitting, key=lambda f: sum(a is o.layout for a, o in zip(layouts, f.operands, strict=False)))
    opcode = namespace.partition(".")[0]
    call = f"{opcode}({', '.join(o.name for o in instr.operands)})"
    if opcode == "wgmma":
        call = f"tc.wgmma_async({opcode}, acc, a, b)"
    raise OperandError(
        f"tc.{namespace} takes element types and gives an instruction, which takes the operands: "
        f"{opcode} = tc.{namespace}.{instr.params['shape']}({_example([instr])}), then {call}"
    )


def _named(types: Iterable[DType | str]) -> str:
    return f"({', '.join(map(_type_name, types))})"


def _combinations(variants: Iterable[Instruction]) -> str:
    """The allowed `(a, b, accumulator)`, with d where its type differs from c's."""
    kinds = ([f.params[k] for k in _TYPES if k != "d" or f.params["d"] != f.params["c"]] for f in variants)
    return listing(dict.fromkeys(_named(k) for k in kinds), 60)


def _choose(
    what: str, variants: list[Instruction], types: tuple[DType | str, ...], options: Mapping[str, Any]
) -> Instruction:
    if not 3 <= len(types) <= 4:
        raise UnknownInstruction(
            f"{what} takes the element types of a, b and the accumulator (and of d where it "
            f"differs), as in tc.{what}({_example(variants)}); {_named(types)} was given, there are "
            f"{_combinations(variants)}"
        )
    matches = [f for f in variants if _matches(f, types)]
    if len(types) == 3:
        matches = [f for f in matches if f.params["d"] == f.params["c"]] or matches
    if not matches:
        raise UnknownInstruction(_no_such(what, variants, types))
    for key, value in options.items():
        matches = _with_option(what, matches, key, value)
    return _by_default(what, matches)


def _example(variants: list[Instruction]) -> str:
    """The types of the last floating-point product, in the user's words."""
    floats = [f for f in variants if f.params["c"] == "f32"] or variants
    return ", ".join(f"tc.{floats[0].params[key]}" for key in _TYPES[:3])


def _no_such(what: str, variants: list[Instruction], types: tuple[DType | str, ...]) -> str:
    allowed = _combinations(variants)
    return f"{what}{_named(types)} does not exist; (a, b, accumulator) may be {allowed}"


def _option_text(value: Any) -> str:
    return "" if value in (None, False) else str(value)


def _with_option(what: str, variants: list[Instruction], key: str, value: Any) -> list[Instruction]:
    values = list(dict.fromkeys(f.params.get(key, "") for f in variants))
    allowed = [k for f in variants for k in f.params if k not in FIXED]
    if key not in allowed:
        raise UnknownInstruction(
            f"{what} has no option {key!r} here; it has {listing(dict.fromkeys(allowed)) or 'none'}"
        )
    text = key if value is True else _option_text(value)
    matches = [f for f in variants if f.params.get(key, "") == text]
    if not matches:
        shown = listing(repr(_shown(key, v)) for v in values)
        raise UnknownInstruction(f"{what}: {key} may be {shown}; {value!r} was given")
    return matches


def _shown(key: str, value: str) -> Any:
    """An option's value as users write it; a flag is stored as its own name."""
    return True if value == key else value or None


def _by_default(what: str, variants: list[Instruction]) -> Instruction:
    """Select the instruction without the options that were not given, if there is one."""
    for key in dict.fromkeys(k for f in variants for k in f.params if k not in FIXED):
        plain = [f for f in variants if f.params.get(key, "") == _DEFAULTS.get(key, "")]
        variants = plain or variants
    if len(variants) == 1:
        return variants[0]
    keys = {k: dict.fromkeys(f.params.get(k) for f in variants) for k in variants[0].params if k not in FIXED}
    needed = [f"{k}={' or '.join(map(repr, v))}" for k, v in keys.items() if len(v) > 1]
    if not needed:
        needed = ["d, the type of the result: " + listing(dict.fromkeys(f.params["d"] for f in variants))]
    raise UnknownInstruction(f"{what}: say {', '.join(needed)}")


mma = Namespace("mma", below=("sp", "sp.block_scale", "block_scale"))
wgmma = Namespace("wgmma", below=("sp",))
wmma = Namespace("wmma")


def _namespace(name: str) -> Namespace:
    """The namespace of this name, such as `mma.sp`; each exists once."""
    first, *words = name.split(".")
    namespace: Any = {"mma": mma, "wgmma": wgmma, "wmma": wmma}[first]
    for part in words:
        namespace = getattr(namespace, part)
    return namespace  # type: ignore[no-any-return]
