"""Virtual GPUs: a launch in emulation runs on all of them, as a rank of a process group each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from typing import Any

from tensorcore_dsl.errors import ArgumentError
from tensorcore_dsl.interpreter.core.geometry import PerRank
from tensorcore_dsl.interpreter.sanitizer import stream_order
from tensorcore_dsl.interpreter.sanitizer.stream_order import Queued
from tensorcore_dsl.runtime.targets import emulated_arch, target

MAX_DEVICES = 16
_streams = count(-1, -1)  # no handle of a driver
_current: ContextVar[Devices | None] = ContextVar("devices", default=None)


class Devices:
    """The virtual GPUs of `with devices(n)`.

    Attributes
    ----------
    count : int
        How many.
    queue : Queued
        The stream of each of them.

    See Also
    --------
    devices : With an example.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.queue = Queued(next(_streams), False, devices=count)

    def barrier(self) -> None:
        """Order later launches of all ranks after all launches so far, as `torch.distributed.barrier` does.

        Without it, a rank starts its next launch while other ranks may still run the one before.
        """
        stream_order.leave(self.queue)


@contextmanager
def devices(count: int) -> Iterator[Devices]:
    """Emulate several GPUs inside the block: each launch runs on all of them.

    Parameters
    ----------
    count : int
        GPUs, 2 to 16. Each is a rank.

    Yields
    ------
    Devices
        `.barrier()` lets all ranks wait for each other between two launches.

    Raises
    ------
    ArgumentError
        Another number.

    See Also
    --------
    PeerArray : Memory of all ranks.

    Notes
    -----
    An argument of a launch is a list with one array for each rank, a `PeerArray`, or a number. A list
    of numbers gives each rank its own. All ranks run the same grid; their blocks take turns.

    Examples
    --------
    >>> @tc.kernel
    ... def fill(x: tc.Array, number: tc.s32):
    ...     x[tc.threadIdx.x] = number
    >>> x = [np.zeros(32, np.int32) for rank in range(2)]
    >>> with tc.devices(2):
    ...     fill[1, 32](x, [10, 20])
    >>> [int(of_rank[0]) for of_rank in x]
    [10, 20]
    """
    if isinstance(count, bool) or not isinstance(count, int) or not 2 <= count <= MAX_DEVICES:
        raise ArgumentError(f"devices({count!r}): 2 to {MAX_DEVICES} virtual GPUs are possible")
    group = Devices(count)
    token = _current.set(group)
    try:
        with target("cpu", emulated_arch()):
            yield group
    finally:
        _current.reset(token)
        group.barrier()


def current_devices() -> Devices | None:
    """Return the virtual GPUs on which launches run now.

    Returns
    -------
    Devices or None
        None for a single GPU.
    """
    return _current.get()


def each_rank(value: Any, what: str, shared: bool) -> Any:
    """Convert an argument of a launch to a value for each rank; a list has one value for each.

    what: the argument's name in messages. shared: an array in one rank's memory that all ranks see.
    """
    group = _current.get()
    if group is None or isinstance(value, PerRank):
        return value
    if isinstance(value, (list, tuple)):
        if len(value) != group.count:
            raise ArgumentError(
                f"{what} is a list of {len(value)}; under tc.devices({group.count}) a list has one "
                f"value for each of the {group.count} ranks"
            )
        arrays = [id(x) for x in value if getattr(x, "shape", ()) != ()]
        if not shared and len(set(arrays)) < len(arrays):
            raise ArgumentError(
                f"{what} is a list with one array for several ranks; each has memory of its own"
            )
        return PerRank(value)
    if not shared and hasattr(value, "shape") and value.shape != ():
        raise ArgumentError(
            f"{what} is one array; under tc.devices({group.count}) each rank has memory of its own: "
            f"pass a list of {group.count} arrays, or a tc.PeerArray for a parameter of this type"
        )
    return value


def flat(arguments: Sequence[Any]) -> list[Any]:
    """Return the arguments, with the values of all ranks one after the other."""
    return [a for one in arguments for a in (one if isinstance(one, PerRank) else (one,))]


def regrouped(arguments: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """Undo `flat`: `values` grouped by ranks as `arguments` are."""
    remaining = iter(values)
    return [
        PerRank(next(remaining) for _ in a) if isinstance(a, PerRank) else next(remaining) for a in arguments
    ]


def by_rank(names: Sequence[str], arguments: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Yield name and value of each argument, the values of all ranks one after the other."""
    for name, value in zip(names, arguments, strict=True):
        if isinstance(value, PerRank):
            yield from ((f"{name}[{rank}]", one) for rank, one in enumerate(value))
        else:
            yield name, value
