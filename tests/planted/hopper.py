"""What the classes of Hopper's bugs share: one kernel with many numbered bugs, as cases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorcore_dsl.errors import EmulationError, RaceWarning
from tests.planted.harness import Arguments, Case

# Most of these bugs break a rule and race at the same time; which one is reported is a matter of
# the order of threads. The lines decide.
ANY = (EmulationError, RaceWarning)  # and what derives from them


def numbered(
    names: Sequence[str], kernel: Any, grid: Any, block: Any, make: Callable[[np.random.Generator], Arguments]
) -> list[Case]:
    """A case for each bug of a kernel: bug=1 is the first of `names`."""
    return [
        Case(f"{kernel.__name__}: {name}", kernel, grid, block, make, ANY, bug)
        for bug, name in enumerate(names, 1)
    ]
