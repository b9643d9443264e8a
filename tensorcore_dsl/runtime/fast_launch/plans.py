"""Plans in the memory layout that the launch functions read, and the launchers' cache of them."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import Any, Protocol

from tensorcore_dsl.dtypes import DType
from tensorcore_dsl.runtime.arguments import Description, arguments_key, describe
from tensorcore_dsl.runtime.fast_launch import argument_kinds, native_function
from tensorcore_dsl.runtime.fast_launch import memory_layout as layout
from tensorcore_dsl.runtime.host_staging import span_of
from tensorcore_dsl.runtime.launch_buffer import LaunchBuffer

MAX_PLANS = 32  # plans of one launch function; the oldest plan is dropped
MAX_POINTERS = 512  # pointers with tensor maps for one argument of a plan; the oldest pointer is dropped


@lru_cache(maxsize=256)
def key_function(classes: tuple[type, ...], written: int = 0) -> Callable[..., Hashable]:
    """A function of arguments of these classes that returns a hashable key.

    Keys are equal for equal types, shapes, strides, devices and alignments (up to 16 bytes). If one of
    the first `written` arrays overlaps a later array, the key also holds their distance. So equal keys
    mean equal overlaps.

    Parameters
    ----------
    classes : tuple of type
        The class of each argument.
    written : int
        How many arrays at the front are results.

    Returns
    -------
    function
        Takes the arguments and gives the key.
    """

    def python_key(*args: Any) -> Hashable:
        arguments = [describe(arg) for arg in args]
        return arguments_key(args, arguments), distances(arguments, written)

    kinds = [kind for cls in classes if (kind := argument_kinds.array_kind(cls))]
    if len(kinds) < len(classes):
        return python_key
    native = native_function.key_function(kinds, python_key, written=written)
    if native is None:
        return python_key
    if all(isinstance(kind, argument_kinds.Tensor) for kind in kinds):
        return native
    # The key identifies dtypes by their address, so it has to keep them alive.
    return lambda *args: (native(*args), *[arg.dtype for arg in args])


def distances(arguments: Sequence[Description], written: int) -> tuple[int | None, ...]:
    """Return the bytes from each of the first `written` arrays to later arrays; None: no overlap."""
    spans = [span_of(argument, argument.pointer, 0) for argument in arguments]
    return tuple(
        arguments[j].pointer - arguments[i].pointer
        if spans[i].low < spans[j].high and spans[j].low < spans[i].high
        else None
        for i in range(written)
        for j in range(i + 1, len(arguments))
    )


class LaunchPlan(Protocol):
    """Interface of `launch.LaunchPlan` for the fast path."""

    @property
    def function(self) -> int: ...
    @property
    def map_arguments(self) -> Sequence[int]:
        """The argument of each tensor map."""

    def buffer(self, arguments: Sequence[Description]) -> LaunchBuffer: ...
    def retry(self, code: int, buffer: LaunchBuffer) -> None: ...
    def encoded_map(self, number: int, pointer: int) -> ctypes.Array[ctypes.c_char]: ...
    def stream(self) -> int: ...


class FastPath:
    """The launch functions of one launcher, one for each combination of kinds of arguments.

    `driver` is cuLaunchKernelEx. `fallback` launches what no plan fits. fixed_stream: launches do
    not follow the current stream of the arrays' library. `keep` are arguments to keep alive.
    """

    def __init__(
        self,
        driver: Any,
        fallback: Callable[..., None],
        declared: Callable[[Sequence[Any]], Sequence[DType | None]],
        fixed_stream: bool,
        keep: Any = None,
    ) -> None:
        self._driver, self._fallback, self._keep = driver, fallback, keep
        self._declared, self._fixed_stream = declared, fixed_stream
        self._chains: dict[tuple[argument_kinds.Kind, ...], _Chain] = {}

    def add(
        self, plan: LaunchPlan, args: Sequence[Any], arguments: Sequence[Description]
    ) -> Callable[..., None] | None:
        """A function that launches `plan` for arguments that fit it, and others by the fallback.

        None if machine code cannot read arguments like `args`.
        """
        kinds = argument_kinds.kinds_of(args, self._declared(args), alive=self._keep is not None)
        if kinds is None:
            return None
        chain = self._chains.get(kinds)
        if chain is None:
            own_stream = not self._fixed_stream and any(map(argument_kinds.has_stream, kinds))
            chain = _Chain(kinds, own_stream, self._driver, self._fallback, self._keep)
            self._chains[kinds] = chain
        if chain.launch is not None:
            chain.add(plan, args, arguments)
        return chain.launch


class _Chain:
    """One launch function and its plans, the newest first."""

    def __init__(
        self,
        kinds: tuple[argument_kinds.Kind, ...],
        own_stream: bool,
        driver: Any,
        fallback: Callable[..., None],
        keep: Any,
    ) -> None:
        self._kinds = kinds
        self._plans: dict[bytes, _PlanMemory] = {}
        self._key = native_function.key_function(kinds, lambda *args: None, optimise=False)
        self._table = native_function.FunctionTable(fallback, (self._plans, keep))
        self.launch = native_function.launch_function(kinds, own_stream, driver, self._table)

    def add(self, plan: LaunchPlan, args: Sequence[Any], arguments: Sequence[Description]) -> None:
        """Make `plan`, and the tensor maps of these arrays, known to the launch function."""
        key = self._key(*args) if self._key else None
        if key is None:
            return
        memory = self._plans.get(key)
        if memory is None:
            memory = self._plans[key] = _PlanMemory(key, plan, args, arguments)
            self._link()
        for i, kind in enumerate(self._kinds):
            if isinstance(kind, argument_kinds.Array):
                memory.add_maps(i, arguments[i].pointer)

    def _link(self) -> None:
        """Link the plans; the oldest is dropped where there are too many."""
        if len(self._plans) > MAX_PLANS:
            oldest = next(iter(self._plans))
            if not self._plans[oldest].fields.busy:
                del self._plans[oldest]
        following = 0
        for memory in self._plans.values():
            memory.fields.next_plan = following
            following = ctypes.addressof(memory.fields)
        self._table.fields.first_plan = following


class _PlanMemory:
    """One plan as machine code reads it."""

    def __init__(
        self, key: bytes, plan: LaunchPlan, args: Sequence[Any], arguments: Sequence[Description]
    ) -> None:
        self._plan, self._key = plan, key
        self._dtypes = [getattr(arg, "dtype", None) for arg in args]  # identified by address
        self._buffer = buffer = plan.buffer(arguments)
        buffer.stream = plan.stream()
        self._on_error, self._stream = self._retry, plan.stream  # addresses are stored below
        self._memory = _Memory(len(args))
        self._key_words = array("Q", key)
        self.fields = fields = self._memory.plan
        fields.key, fields.key_bytes = self._key_words.buffer_info()[0], len(key)
        fields.stream_at, fields.stream_function = buffer.stream_at, id(self._stream)
        fields.config, fields.function = buffer.config, plan.function
        fields.parameters, fields.extra = buffer.parameters or 0, buffer.extra or 0
        fields.on_error = id(self._on_error)
        self._maps: dict[int, _MapMemory] = {}
        for i, value_at in buffer.value_at.items():
            self._memory.arguments[i].value_at = value_at
        for i in set(plan.map_arguments):
            numbers = [n for n, argument in enumerate(plan.map_arguments) if argument == i]
            self._maps[i] = _MapMemory(numbers, [buffer.map_at[n] for n in numbers])
            self._memory.arguments[i].maps = ctypes.addressof(self._maps[i].fields)

    def add_maps(self, i: int, pointer: int) -> None:
        """Encode the tensor maps of argument `i` at this pointer."""
        if i in self._maps and not self.fields.busy:
            self._maps[i].add(pointer, self._plan)

    def _retry(self, code: int) -> None:
        self._plan.retry(code, self._buffer)
        self.fields.function = self._plan.function  # of the context that is current now


def _Memory(arguments: int) -> Any:
    """Return the ctypes structure of a `Plan` followed by its `Argument`s."""
    fields = [("plan", layout.Plan), ("arguments", layout.Argument * arguments)]
    return type("Memory", (ctypes.Structure,), {"_fields_": fields})()


class _MapMemory:
    """The encoded tensor maps of one argument, by its pointer."""

    def __init__(self, numbers: Sequence[int], places: Sequence[int]) -> None:
        self._numbers = numbers
        self._places = array("Q", places)
        self._entry_words = 1 + len(numbers)
        self._entries = array("Q", bytes(layout.WORD * MAX_POINTERS * self._entry_words))
        self._known: dict[int, Any] = {}  # by pointer, the oldest first: entry and its maps
        self.fields = layout.Maps(count=len(numbers))
        self.fields.places = self._places.buffer_info()[0]
        self.fields.entries = self.fields.entries_end = self._entries.buffer_info()[0]

    def add(self, pointer: int, plan: LaunchPlan) -> None:
        if pointer in self._known:
            return
        maps = [plan.encoded_map(number, pointer) for number in self._numbers]
        entry = len(self._known)
        if entry == MAX_POINTERS:
            entry, _ = self._known.pop(next(iter(self._known)))
            self.fields.pointer = 0  # the maps that are dropped may be in place
        start = entry * self._entry_words
        words = [pointer, *map(ctypes.addressof, maps)]
        self._entries[start : start + len(words)] = array("Q", words)
        self._known[pointer] = entry, maps
        end = len(self._known) * self._entry_words * layout.WORD
        self.fields.entries_end = self.fields.entries + end
