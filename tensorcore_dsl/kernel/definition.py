"""Definition of a kernel: function, parameters, options, and the arguments of calls."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from html import escape
from typing import Any, TypeVar

from tensorcore_dsl.dtypes import DType, s32, u64
from tensorcore_dsl.errors import ArgumentError, listing, nearest
from tensorcore_dsl.interpreter.core.geometry import PerRank
from tensorcore_dsl.isa.context import MULTIMEM_SHIFT
from tensorcore_dsl.kernel.parameters import Parameter, parameters_of
from tensorcore_dsl.lang.peers import PeerArray
from tensorcore_dsl.runtime.arguments import ArrayType, ScalarType, class_name, describe
from tensorcore_dsl.runtime.devices import current_devices, each_rank
from tensorcore_dsl.runtime.named import Named
from tensorcore_dsl.viz.html import html_python

Own = TypeVar("Own", bound="Definition")


class Definition(Named):
    """A kernel's Python function with the options of `@tc.kernel`.

    Attributes
    ----------
    runtime_parameters, runtime_names : list
        The parameters that each launch passes (not Const), and their names.
    variadic : str or None
        The name of `*arguments`, if the function has it.
    collected : tuple of str or None
        The names that `with_arguments` gave to `*arguments`.
    worlds : dict
        The names of the parts of each PeerArray, for a kernel that `with_peers` returned.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        threads: int | None = None,
        max_registers: int | None = None,
        min_blocks: int | None = None,
        checks: bool | None = None,
        lineinfo: bool | None = None,
    ) -> None:
        self.function = self.__kernel_function__ = function
        self._stand_for(function)
        self.__name__ = name or function.__name__
        self.threads, self.max_registers, self.min_blocks = threads, max_registers, min_blocks
        self.checks, self.lineinfo = checks, lineinfo
        self.parameters = parameters_of(function)
        self.variadic = inspect.getfullargspec(function).varargs
        self.collected: tuple[str, ...] | None = None if self.variadic else ()
        self.worlds: dict[str, tuple[str, ...]] = {}
        self._with_peers: dict[tuple[tuple[str, ...], ...], Any] = {}
        self._with_arguments: dict[tuple[str, ...], Any] = {}
        self._base: Definition = self  # of a kernel that with_arguments returned: the one with *arguments
        self._prepare()

    def _prepare(self) -> None:
        """Derive attributes from the others, and empty the caches."""
        self.runtime_parameters = [p for p in self.parameters if not p.const]
        self.runtime_names = [p.name for p in self.runtime_parameters]

    def variant(self: Own, **options: Any) -> Own:
        """Copy the kernel with other options, such as max_registers."""
        copy = object.__new__(type(self))
        vars(copy).update(vars(self), _base=copy, _with_arguments={})
        vars(copy).update(options)
        copy._prepare()
        return copy

    def with_arguments(self: Own, *names: str) -> Own:
        """Replace the parameter `*arguments` by parameters with these names.

        Inside the kernel, `arguments` is a tuple of them.
        """
        known: Own | None = self._with_arguments.get(names)
        if known is not None:
            return known
        taken = [p.name for p in self.parameters]
        if self.variadic is None or len({*names, *taken}) < len(names) + len(taken):
            raise ArgumentError(
                f"{self.__name__} cannot have the parameters {listing(names)}: a kernel with a "
                f"parameter *arguments takes names that differ from each other and {listing(taken)}"
            )
        parameters = sorted((*self.parameters, *map(Parameter, names)), key=lambda p: p.by_name)
        named = self.variant(parameters=parameters, collected=names, _base=self)
        self._with_arguments[names] = named
        return named

    def with_peers(
        self: Own, args: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[Own, tuple[Any, ...], dict[str, Any]]:
        """Expand PeerArrays: return a kernel and its arguments.

        The kernel has a parameter for each array of a PeerArray, one for its rank and one for multicast.
        A kernel without PeerArrays stays as it is.
        """
        if not any(p.peers for p in self.parameters):
            return self, args, named
        runtime, constants = self.split(args, named)
        expanded: dict[str, Any] = dict(constants)
        parameters: list[Parameter] = []
        worlds: dict[str, tuple[str, ...]] = {}
        values = iter(runtime)
        for p in self.parameters:
            value = None if p.const else next(values)
            if not p.peers:
                parameters.append(p)
                expanded[p.name] = constants[p.name] if p.const else value
                continue
            if not isinstance(value, PeerArray):
                raise ArgumentError(
                    f"{self.__name__}: argument {p.name!r} is a {class_name(value)}; the parameter takes "
                    "a tc.PeerArray, made of the arrays of all ranks"
                )
            label, beside = f"{self.__name__}: argument {p.name!r}", []
            arrays = [f"{p.name}[{rank}]" for rank in range(value.world)]
            names = worlds[p.name] = (f"{p.name}.rank", *arrays)
            parameters.append(replace(p, name=names[0], dtype=s32, peers=False))
            parameters += [replace(p, name=n, array=True, peers=False, shared=True) for n in arrays]
            if value.beside is not None:
                worlds[p.name] = names = (*names, f"{p.name}.multicast")
                parameters.append(replace(p, name=names[-1], dtype=u64, peers=False))
                beside = [_beside(value, label)]
            expanded.update(zip(names, (_rank(value, label), *value.arrays, *beside), strict=True))
        key = tuple(worlds.values())
        if key not in self._with_peers:
            self._with_peers[key] = self.variant(parameters=parameters, worlds=worlds, _base=self)
        return self._with_peers[key], (), expanded

    def peers_of(self, variables: dict[str, Any]) -> dict[str, Any]:
        """Rebuild PeerArrays from the variables of their arrays and ranks, which are removed."""
        peer_arrays = {}
        for name, names in self.worlds.items():
            rank, *arrays = [variables.pop(n) for n in names]
            beside = arrays.pop() if names[-1].endswith(".multicast") else None
            peer_arrays[name] = PeerArray(arrays, rank, beside)
        return peer_arrays

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self._base is self:
            return super().__reduce_ex__(protocol)
        return type(self).with_arguments, (self._base, *(self.collected or ()))

    def split(
        self, args: Sequence[Any], named_args: dict[str, Any], without: Collection[str] = ()
    ) -> tuple[list[Any], dict[str, Any]]:
        """Split arguments: return the run-time ones in order, and the Const values by name.

        Arguments bind as in Python. Arguments that cannot are bound as if each Const parameter
        stood after `*`. The caller knows the Const parameters `without`.
        """
        if self.collected is None:
            raise ArgumentError(
                f"{self.__name__} has a parameter *{self.variadic}: name its arguments by "
                f"{self.__name__}.with_arguments(...)"
            )
        parameters = [p for p in self.parameters if p.name not in without]
        try:
            values = self._bound(args, named_args, parameters, parameters)
        except ArgumentError as error:
            try:
                values = self._bound(args, named_args, parameters, self.runtime_parameters)
            except ArgumentError:
                raise error from None
        constants = {p.name: values[p.name] for p in parameters if p.const}
        runtime = [
            values[p.name]
            if p.peers
            else each_rank(values[p.name], f"{self.__name__}: argument {p.name!r}", p.shared)
            for p in self.runtime_parameters
        ]
        return runtime, constants

    def _bound(
        self,
        args: Sequence[Any],
        named_args: dict[str, Any],
        parameters: Sequence[Parameter],
        positional: Sequence[Parameter],
    ) -> dict[str, Any]:
        """Bind arguments to parameters by name; `positional` take `args`."""
        names = [p.name for p in parameters]
        named = [p.name for p in positional if not p.by_name]
        if len(args) > len(named):
            kind = "positional arguments" if len(named) < len(names) else "arguments"
            raise ArgumentError(
                f"{self.__name__} takes {len(named)} {kind} ({listing(named)}), {len(args)} were given"
            )
        values = dict(zip(named, args, strict=False))
        for name, value in named_args.items():
            if name not in names or name in values:
                problem = "given twice" if name in values else "unknown"
                raise ArgumentError(
                    f"{self.__name__}: argument {name!r} is {problem}; the parameters are "
                    f"{listing(names)}{_hint(name, names) if problem == 'unknown' else ''}"
                )
            values[name] = value
        for p in parameters:
            if values.setdefault(p.name, p.default) is inspect.Parameter.empty:
                raise ArgumentError(
                    f"{self.__name__}: argument {p.name!r} is missing; the parameters are {listing(names)}"
                )
        return values

    def types_of(self, runtime: Sequence[Any]) -> tuple[Any, ...]:
        """Return the types to compile for, from run-time arguments or their types."""
        return tuple(map(self._type_of, runtime, self.runtime_parameters))

    def _type_of(self, value: Any, parameter: Parameter) -> Any:
        label = f"{self.__name__}: argument {parameter.name!r}"
        if isinstance(value, PerRank):
            return _common_type([self._type_of(one, parameter) for one in value], label)
        if isinstance(value, DType):
            value = ScalarType(value)
        if value is None:
            if parameter.optional:
                return None
            raise ArgumentError(
                f"{label} is None; {parameter} takes None where it has the default None, or the "
                f"annotation {parameter.kind} | None"
            )
        if not isinstance(value, (ArrayType, ScalarType)):
            value = describe(value, label, parameter.dtype).type
        if parameter.array and isinstance(value, ScalarType):
            raise ArgumentError(f"{label} is a {value} number; the parameter takes an array")
        if parameter.dtype is not None and value != ScalarType(parameter.dtype):
            raise ArgumentError(
                f"{label} is compiled for {value}; the parameter is declared as {parameter.dtype}"
            )
        return value

    def _repr_html_(self) -> str:
        """Its signature and its source."""
        try:
            lines, _ = inspect.getsourcelines(self.function)
        except OSError:
            return f"<code>{escape(repr(self))}</code>"
        return f"<code>{escape(repr(self))}</code>{html_python(textwrap.dedent(''.join(lines)))}"

    def __repr__(self) -> str:
        return f"<kernel {self.__name__}({', '.join(map(str, self.parameters))})>"


def _rank(peers: PeerArray, label: str) -> Any:
    """Return the rank that runs the kernel; each virtual GPU has its own rank."""
    group = current_devices()
    if group is None and peers.rank is None:
        raise ArgumentError(
            f"{label} is a PeerArray without a rank: give the rank of this process, "
            "tc.PeerArray(arrays, rank), or emulate all ranks inside `with tc.devices(n)`"
        )
    if group is not None and (peers.world != group.count or peers.rank is not None):
        raise ArgumentError(
            f"{label} has {peers.world} arrays{'' if peers.rank is None else ' and a rank'}; under "
            f"tc.devices({group.count}) a PeerArray has {group.count} arrays and no rank"
        )
    return peers.rank if group is None else PerRank(range(group.count))


def _beside(peers: PeerArray, label: str) -> int:
    """How far the multimem address lies behind the array of rank 0."""
    emulated = current_devices() is not None
    if emulated != (peers.beside is True):
        raise ArgumentError(
            f"{label} has multicast={peers.beside!r}; under tc.devices it is True, and on a GPU the address "
            "that torch's symmetric memory has in multicast_ptr, where NVLink multicast is on"
        )
    if emulated:
        return peers.world << MULTIMEM_SHIFT
    first = peers.arrays[0]
    start = 0 if isinstance(first, ArrayType) else describe(first, label).pointer
    return int(peers.beside - start) % 2**64


def _common_type(types: list[Any], label: str) -> Any:
    """Return the common type of an argument of all ranks. Ranks may differ in alignment."""
    if all(isinstance(kind, ArrayType) for kind in types):
        align = min(kind.align for kind in types)
        types = [replace(kind, align=align) for kind in types]
    if len({*types}) > 1:
        raise ArgumentError(f"{label} has different types on the ranks: {listing(types)}")
    return types[0]


def _hint(name: str, names: Sequence[str]) -> str:
    close = nearest(name, names)
    return f"; did you mean {close!r}?" if close else ""
