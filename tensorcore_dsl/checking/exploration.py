"""Result of `kernel.explore`: an order of threads with an error, or with other results."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tensorcore_dsl.checking.findings import CheckResult, Finding
from tensorcore_dsl.checking.narration import base_text
from tensorcore_dsl.checking.session import current_session
from tensorcore_dsl.errors import EmulationError


@dataclass(frozen=True)
class Difference:
    """An argument that an order leaves with other bits than the first order did.

    Attributes
    ----------
    argument : str
        Its name.
    count, size : int
        Elements that differ, and all.
    index : tuple of int
        Of the first of them.
    expected, found : scalar
        Its value after the first order and after this one.

    See Also
    --------
    Exploration : Holds them, with an example.
    """

    argument: str
    count: int
    size: int
    index: tuple[int, ...]
    expected: Any
    found: Any

    def __str__(self) -> str:
        index = ", ".join(map(str, self.index))
        return (
            f"argument {self.argument!r}: {self.count} of {self.size} elements differ, the first "
            f"is [{index}]: {self.found} instead of {self.expected}"
        )


@dataclass
class Exploration:
    """Result of `kernel.explore`; true if every order gave the same bits and no error.

    Attributes
    ----------
    kernel : str
        Its name.
    orders : int
        How many ran before it stopped.
    order : int, str or None
        The one that shows the mistake, as `kernel.emulator(order=...)` takes it; None if there is
        none, or if the emulator's own order shows it.
    error : EmulationError or None
        What that order raises.
    differences : list of Difference
        Arguments with other bits.
    switches : list of str
        Who stops where, and who overtakes, one text for each.
    launches : bool
        Whether `tc.explore` has run launches at the same time; `kernel` is then its function, and
        `order` the number of the order.

    Examples
    --------
    >>> @tc.kernel
    ... def last_one(x: tc.Array):
    ...     tc.atomic("exch", x.at(0), tc.blockIdx.x)
    >>> found = last_one.explore(20)[4, 1](np.zeros(1, np.int32))
    >>> bool(found), [difference.argument for difference in found.differences]
    (False, ['x'])
    """

    kernel: str
    orders: int = 0
    order: int | str | None = None
    error: EmulationError | None = None
    differences: list[Difference] = field(default_factory=list)
    switches: list[str] = field(default_factory=list)
    launches: bool = False

    @property
    def ok(self) -> bool:
        """True if every order gave equal bits and no error."""
        return self.error is None and not self.differences

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        tried = f"{self.orders} order{'s' * (self.orders != 1)} of {self.kernel}"
        if self.ok:
            return f"{tried}: the same bits in all, no error"
        lines = [f"{tried}: an error" if self.error is not None else f"{tried}: results differ"]
        if self.error is not None:
            lines.append(f"{type(self.error).__name__}: {self.error}")
        lines += map(str, self.differences)
        if self.order is None:
            lines.append("it shows in the emulator's own order")
            return "\n".join(lines)
        if self.launches:
            lines.append("launches overlap:")
        else:
            lines.append(f"replayed by {self.kernel}.emulator(order={self.order!r}):")
            lines.append(f"  {base_text(self.order)}")
        lines += (f"  {text}" for text in self.switches)
        return "\n".join(lines)

    __repr__ = __str__  # shown by a failed assertion

    def noted(self, launches: int = 1) -> Exploration:
        """Count the launches of this exploration in the current session of checks; returns it."""
        session = current_session()
        if session is not None:
            error = self.error or (None if self.ok else EmulationError(str(self)))
            findings = []
            if error is not None:
                kernel = error.loc.chain()[-1].function if error.loc is not None else ""
                findings = [Finding.of(error, kernel or self.kernel)]
            session.note(CheckResult(findings, launches=launches))
        return self

    def json(self) -> str:
        """{"ok", "orders", "order", "error", "differences", "switches"}, indented."""
        error = None if self.error is None else Finding.of(self.error, self.kernel).as_dict()
        differences = [
            {**vars(d), "expected": str(d.expected), "found": str(d.found)} for d in self.differences
        ]
        return json.dumps(
            {
                "ok": self.ok,
                "orders": self.orders,
                "order": self.order,
                "error": error,
                "differences": differences,
                "switches": self.switches,
            },
            indent=2,
        )


def difference(name: str, expected: Any, actual: Any) -> Difference | None:
    """Compare the bits of two arrays of one shape and type; None if all are equal."""
    unequal = np.zeros(expected.shape, np.bool_)
    for byte in range(expected.itemsize):
        unequal |= _byte(expected, byte) != _byte(actual, byte)
    if not unequal.any():
        return None
    index = tuple(map(int, np.unravel_index(int(np.argmax(unequal)), expected.shape)))
    count = int(np.count_nonzero(unequal))
    return Difference(name, count, expected.size, index, expected[index], actual[index])


def _byte(array: Any, byte: int) -> np.ndarray:
    """Byte `byte` of every element, in the array's shape."""
    whole = np.ascontiguousarray(array).reshape(-1)
    return whole.view(np.uint8)[byte :: array.itemsize].reshape(array.shape)
