"""Data that a machine passes to the code of a region, and functions that the code calls."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from itertools import takewhile
from operator import itemgetter
from typing import Any, NoReturn

import numpy as np

from tensorcore_dsl.errors import TensorCoreError
from tensorcore_dsl.interpreter.core.chunk import WARP
from tensorcore_dsl.interpreter.core.geometry import SpecialRegisters
from tensorcore_dsl.interpreter.core.registers import RegisterFile
from tensorcore_dsl.interpreter.regions import layout as layouts
from tensorcore_dsl.interpreter.regions.code import RegionCode, helper
from tensorcore_dsl.interpreter.regions.memory import address_of
from tensorcore_dsl.interpreter.regions.plan import Region
from tensorcore_dsl.isa.fragments import RegisterProducts
from tensorcore_dsl.isa.lanes import references
from tensorcore_dsl.lowering.forms import Part

NEVER = 1 << 62  # the position of no mistake
_SHOW = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 9)
_FINISH = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)
# (address of a frame, low, high) -> whether a thread has failed. It runs without the interpreter's lock.
_SIGNATURE = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


class Witness:
    """Passes the accesses that the code of regions cannot judge to the race detector.

    Attributes
    ----------
    function
        Address of the function that the code calls.
    told : list
        Findings: the position of each, and a function that raises or warns.
    """

    def __init__(self, ctx: Any) -> None:
        self.told: list[tuple[int, Callable[[], None]]] = []
        self._steps = ctx.program.steps
        # It holds neither this object nor the context: nobody would find such cycles.
        self._kept = _SHOW(partial(_show, weakref.ref(ctx), self.told))
        self.function = ctypes.cast(self._kept, ctypes.c_void_p).value or 0

    def tell(self, end: int) -> None:
        """Raise or warn of the findings in front of a position, in the order of the steps."""
        told = sorted(self.told, key=itemgetter(0))
        self.told.clear()
        for at, tell in takewhile(lambda told: told[0] < end, told):
            try:
                tell()
            except TensorCoreError as error:
                error.loc = error.loc or self._steps[at].loc
                raise


def _show(
    to: Any,
    told: list[tuple[int, Callable[[], None]]],
    step: int,
    is_global: int,
    verb: int,
    addresses: int,
    lanes: int,
    words: int,
    width: int,
    count: int,
    first: int,
) -> None:
    """Note an access of the lanes of a warp to `count` words of `width` bytes; `words`: of a store.

    to: a reference to the context; told: what is found.
    """
    ctx = to()
    memory: Any = ctx.globals if is_global else ctx.shared
    mask, here = np.zeros(ctx.threads, np.bool_), slice(first, first + WARP)
    mask[here] = [lanes >> lane & 1 for lane in range(WARP)]
    each_address = np.zeros(ctx.threads, np.uint64 if is_global else np.uint32)
    each_address[here] = _array(addresses, each_address.dtype, WARP)
    values = None
    if verb:
        values = np.zeros((count, ctx.threads), f"u{width}")
        values[:, here] = _array(words, values.dtype, count * WARP).reshape(count, WARP)
    ctx.at_step = step
    try:
        tell_race = memory.note("store" if verb else "load", each_address, mask, width * count, values)
    except BaseException as error:
        tell_race = partial(_raised, error)
    if tell_race is not None:
        told.append((step, tell_race))


class ProductFallback:
    """Finishes the products of warps that code of regions cannot compute.

    Attributes
    ----------
    function
        What that code calls, with a position and a warp.
    uses : dict
        By position, the products and which of them are left, (uses, warps) bool.
    errors : list
        What these calls raised.
    """

    def __init__(self, warps: int) -> None:
        self.uses: dict[int, tuple[RegisterProducts, np.ndarray]] = {}
        self.errors: list[BaseException] = []
        self._every = np.ones(warps, np.bool_)
        self._kept = _FINISH(partial(_finish, self.uses, self.errors))
        self.function = ctypes.cast(self._kept, ctypes.c_void_p).value or 0

    def bound(self, at: int, products: RegisterProducts, number: int) -> Part:
        """The function of the products at a position, for one of the threads of the team."""
        if at not in self.uses:
            left = np.zeros((len(products.uses), len(self._every)), np.bool_)
            self.uses[at] = products, left
        return products.bound(self._every, self.uses[at][1], number)  # type: ignore[no-any-return]


def _finish(
    uses: dict[int, tuple[RegisterProducts, np.ndarray]], errors: list[BaseException], at: int, warp: int
) -> None:
    products, left = uses[at]
    own = np.zeros_like(left)
    own[:, warp] = left[:, warp]
    left[:, warp] = False
    try:
        products.finish(own)
    except BaseException as error:  # nothing can be raised in the code that calls this
        errors.append(error)


def _raised(error: BaseException) -> NoReturn:
    raise error


def _array(address: int, dtype: Any, count: int) -> np.ndarray:
    kind = ctypes.c_uint8 * (count * np.dtype(dtype).itemsize)
    return np.frombuffer(kind.from_address(address), dtype)


class RegionFrame:
    """Data that a machine passes to the code of a region.

    Attributes
    ----------
    words : array
        Arguments of the code; `layout` gives their meaning.
    mistake : array
        Position, error code and lanes of the first access that failed a check.
    counters : array
        Warps, lanes and jumps of each block, and lanes at each exit (`layout.FrameLayout`).
    leaving : array
        (exits, threads) bool: threads that leave at each exit.
    """

    def __init__(
        self,
        registers: RegisterFile,
        special: SpecialRegisters,
        memory: np.ndarray,
        rest: ProductFallback,
        code: RegionCode,
        region: Region,
        parts: Mapping[int, Part],
    ) -> None:
        layout, threads = code.layout(region), registers.chunk.threads
        self.layout = layout
        self.call = _SIGNATURE(code.address(region))
        self.words = np.zeros(layouts.FIRST + len(layout.words), np.int64)
        self.mistake = np.zeros(layouts.NOTED, np.int64)
        self.counters = np.zeros(layout.counters, np.int64)
        self.leaving = np.zeros((len(layout.stops), threads), np.bool_)
        rows = (address_of(self.leaving) + np.arange(len(layout.stops)) * threads).astype(np.int64)
        tables = {register: special.table(register) for register, _ in layout.inputs}
        self.held = memory, rows, tables, rest, parts  # The code has only their addresses.
        for number, value in (
            (layouts.MEMORY, address_of(memory)),
            (layouts.COUNTERS, address_of(self.counters)),
            (layouts.LEAVING, address_of(rows)),
            (layouts.MISTAKE, address_of(self.mistake)),
            (layouts.WARPS, special.geometry.group // WARP),
            (layouts.FINISH, rest.function),
            *((n, helper(n)) for n in {layouts.MERGE, *map(layouts.helper, region.accesses)}),
        ):
            self.words[number] = value
        for word, number in layout.references:
            self.words[number] = references(word[1])[word[2]]
        for register, number in layout.inputs:
            table = tables[register]
            by_cta = table.ndim and len(table) > 1
            self.words[number : number + 2] = address_of(table), table.strides[0] if by_cta else 0
        for at, number in layout.products:
            self.words[number : number + 2] = parts[at].function, address_of(parts[at].words)
        for slot, number in layout.fixed:
            self.words[number] = registers.fixed[slot[0]]
        vregs, steps, numbers = layout.registers
        self.words[numbers] = registers.addresses[vregs] + steps * threads
        kept, sizes = layout.kept
        self.kept = np.zeros(1 + 34 * len(kept), np.int64)  # space for a copy of each
        self.kept[0] = len(kept)
        self.kept[1 : 1 + 2 * len(kept) : 2] = self.words[kept]
        self.kept[2 : 2 + 2 * len(kept) : 2] = sizes
        self.words[layouts.KEPT] = address_of(self.kept)
        self.mistake[layouts.POSITION] = NEVER
        self.address = address_of(self.words)
