"""Plans laid out for the machine code of `native`: a chain of them for each kind of arguments."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from tensorcore_dsl.dtypes import DType, s32
from tensorcore_dsl.runtime import native
from tensorcore_dsl.runtime import native_layout as layout
from tensorcore_dsl.runtime.argument_readers import is_numba_array, is_torch_tensor, reader
from tensorcore_dsl.runtime.arguments import integer_range, parameter_code
from tensorcore_dsl.runtime.launch_config import Slot
from tensorcore_dsl.runtime.native import Table
from tensorcore_dsl.runtime.native_layout import (
    Facts,
    Integer,
    Kind,
    NumbaArray,
    Real,
    Same,
    Tensor,
)

MOST_PLANS = 32  # of one chain; beyond, the oldest goes
MOST_POINTERS = 512  # whose tensor maps one argument of a plan knows; beyond, the oldest goes


def kinds_of(
    args: Sequence[Any], declared: Sequence[DType | None], kept: bool = False
) -> tuple[Kind, ...] | None:
    """How machine code reads these arguments; None if Python has to read one of them.

    `kept`: they live as long as the plan, so that objects which never change are told by who
    they are.
    """
    kinds = [_kind(arg, dtype, kept) for arg, dtype in zip(args, declared, strict=True)]
    return None if None in kinds else tuple(kinds)  # type: ignore[arg-type]


def _kind(arg: Any, declared: DType | None, kept: bool) -> Kind | None:
    cls: Any = type(arg)
    if cls is float:
        name = "f32" if declared is None else declared.name
        return {"f32": Real("f"), "f64": Real("d")}.get(name)
    if cls is int:
        return _integer(arg, declared or s32)
    if cls is bool or (kept and (isinstance(arg, np.generic) or is_numba_array(cls))):
        return Same()
    if declared is None and is_numba_array(cls):
        return NumbaArray(cls, len(arg.shape))
    if declared is None and is_torch_tensor(cls):
        exchange = layout.exchange_of(cls)
        return exchange and Tensor(cls, arg.ndim, exchange)
    return None


def _integer(value: int, dtype: DType) -> Integer | None:
    if not dtype.is_integer:
        return None
    low, high = integer_range(dtype)
    return Integer(parameter_code(dtype), low, high) if low <= value <= high else None


@lru_cache(maxsize=256)
def key_function(classes: tuple[type, ...]) -> Callable[..., Hashable]:
    """A function of arrays of these classes; what it returns can be a key of dictionaries.

    It is equal for arrays of equal types, shapes, strides, devices and alignments.
    """
    read = reader(classes, (None,) * len(classes))

    def by_python(*arrays: Any) -> Hashable:
        return read(*arrays)[0]

    if not all(map(is_torch_tensor, classes)):
        return by_python
    return native.key_function(classes, by_python) or by_python


class NativePlan(Protocol):
    """What a chain needs of `launch.Plan`."""

    def slot(self) -> Slot: ...
    @property
    def function(self) -> int: ...
    def retry(self, code: int, slot: Slot) -> None: ...
    def images(self, argument: int, pointer: int) -> tuple[bytes, ...]: ...
    def stream(self) -> int: ...


class Chain:
    """Plans for arguments of the same kinds, the newest first; `launch` launches by them.

    Where machine code cannot be had, `launch` is None. `otherwise` takes arguments that fit no
    plan here. ask_stream: streams are the current ones of the first tensor's library.
    """

    def __init__(
        self,
        kinds: tuple[Kind, ...],
        driver: Any,
        otherwise: Callable[..., None],
        ask_stream: bool,
        kept: Any = None,
    ) -> None:
        self._kinds = kinds
        self._ask_stream = ask_stream and any(isinstance(kind, Tensor) for kind in kinds)
        self._plans: dict[Hashable, _Laid] = {}
        self._table = Table(2 * layout.WORD)
        self._table.keep = (self, otherwise, kept)
        self._words = _words(self._table)
        self._words[layout.OTHERWISE] = id(otherwise)
        self.launch = native.function(kinds, driver, self._table)

    def add(self, key: Hashable, plan: NativePlan, args: Sequence[Any]) -> None:
        """Let `launch` know `plan` and the pointers of `args`, which fit it."""
        laid = self._plans.get(key)
        if laid is None:
            facts = _facts(self._kinds, args)
            if facts is None:
                return
            laid = self._plans[key] = _Laid(self._kinds, plan, args, facts, self._ask_stream)
            self._link()
        for i, (kind, arg) in enumerate(zip(self._kinds, args, strict=True)):
            if isinstance(kind, (NumbaArray, Tensor)):
                laid.know(i, pointer_of(kind, arg))

    def _link(self) -> None:
        """Write where each plan finds the next; the oldest goes when there are too many."""
        if len(self._plans) > MOST_PLANS:
            oldest = next(iter(self._plans))
            if not self._plans[oldest].busy:
                del self._plans[oldest]
        following = 0
        for laid in self._plans.values():
            laid.words[layout.NEXT] = following
            following = laid.address
        self._words[layout.FIRST] = following


def _facts(kinds: Sequence[Kind], args: Sequence[Any]) -> list[Facts | None] | None:
    """What machine code sees of each tensor; None if it does not see one of them."""
    found = [layout.facts_of(kind, arg) for kind, arg in zip(kinds, args, strict=True)]
    arrays = [isinstance(kind, (NumbaArray, Tensor)) for kind in kinds]
    seen = all(facts or not array for facts, array in zip(found, arrays, strict=True))
    return found if seen else None


def pointer_of(kind: Kind, arg: Any) -> int:
    return int(arg.data_ptr() if isinstance(kind, Tensor) else arg.device_ctypes_pointer.value or 0)


class _Laid:
    """One plan in words."""

    def __init__(
        self,
        kinds: tuple[Kind, ...],
        plan: NativePlan,
        args: Sequence[Any],
        facts: Sequence[Facts | None],
        ask_stream: bool,
    ) -> None:
        self._kinds, self._plan = kinds, plan
        self._dtypes = [getattr(arg, "dtype", None) for arg in args]  # told by where they lie
        self._slot = slot = plan.slot()
        self.words = array("Q", bytes(layout.WORD * layout.argument_at(kinds, len(kinds))))
        self.address = self.words.buffer_info()[0]
        self._failed = self._on_failure  # one object, whose address is written below
        self.words[layout.STREAM_PLACE] = slot.stream_at
        self.words[layout.ASK_STREAM] = ask_stream
        self.words[layout.CONFIG] = slot.config
        self.words[layout.FUNCTION] = plan.function
        self.words[layout.PARAMETERS] = slot.parameters or 0
        self.words[layout.EXTRA] = slot.extra or 0
        self.words[layout.FAILED] = id(self._failed)
        if not ask_stream:
            slot.stream[0] = plan.stream()
        self._images: dict[int, _ImageWords] = {}
        for i, fact in enumerate(facts):
            self._lay(i, args[i], fact)

    @property
    def busy(self) -> bool:
        return bool(self.words[layout.BUSY])

    def know(self, i: int, pointer: int) -> None:
        """Have the maps of argument `i` for this pointer at hand."""
        images = self._images.get(i)
        if images is not None and pointer not in images and not self.busy:
            images.add(pointer, self._plan.images(i, pointer))

    def _lay(self, i: int, arg: Any, facts: Facts | None) -> None:
        at = layout.argument_at(self._kinds, i)
        self.words[at + layout.PLACE] = self._slot.value_at[i]
        if isinstance(self._kinds[i], Same):
            self.words[at + layout.IDENTITY] = id(arg)
        if facts is None:
            return
        self.words[at + layout.DEVICE] = facts.device
        self.words[at + layout.DTYPE] = facts.dtype
        self.words[at + layout.ALIGN] = facts.pointer & layout.ALIGN_MASK
        numbers = array("Q", array("q", [*facts.shape, *facts.strides]).tobytes())
        start = at + layout.ARGUMENT_WORDS
        self.words[start : start + len(numbers)] = numbers
        if places := self._slot.maps_at.get(i):
            self._images[i] = images = _ImageWords(places)
            self.words[at + layout.IMAGES] = images.address

    def _on_failure(self, code: int) -> None:
        self._plan.retry(code, self._slot)
        self.words[layout.FUNCTION] = self._plan.function  # of the context that is current now


class _ImageWords:
    """The tensor maps made of one argument, by its pointer; `places` hold their addresses."""

    def __init__(self, places: Sequence[int]) -> None:
        self._size = 1 + len(places)
        self._first = layout.IMAGES_WORDS + 1 + len(places)
        self._words = array("Q", bytes(layout.WORD * (self._first + MOST_POINTERS * self._size)))
        self.address = self._words.buffer_info()[0]
        self._words[layout.IMAGES_WORDS] = len(places)
        self._words[layout.IMAGES_WORDS + 1 : self._first] = array("Q", places)
        self._known: dict[int, Any] = {}  # by pointer, the oldest first: entry and memory

    def __contains__(self, pointer: int) -> bool:
        return pointer in self._known

    def add(self, pointer: int, images: Sequence[bytes]) -> None:
        entry = len(self._known)
        if entry == MOST_POINTERS:
            entry, _ = self._known.pop(next(iter(self._known)))
            self._words[layout.LAST] = 0  # its maps may be in place
        kept = [ctypes.create_string_buffer(image, len(image)) for image in images]
        start = self._first + entry * self._size
        addresses = [ctypes.addressof(image) for image in kept]
        self._words[start : start + self._size] = array("Q", [pointer, *addresses])
        self._known[pointer] = entry, kept
        self._words[layout.COUNT] = len(self._known)


def _words(table: Table) -> Any:
    return memoryview(table).cast("Q")
