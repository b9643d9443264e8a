"""Autotuned kernels in emulation: `kernel.emulate`, `.check` and `.explore`.

They run the configuration that was measured for these arguments, or else the first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from tensorcore_dsl.errors import public
from tensorcore_dsl.kernel import Kernel
from tensorcore_dsl.tuning.config import TunedKey

# From the kernel of a configuration, a function of the launch's configuration and its arguments.
Run = Callable[[Kernel], Callable[..., Any]]


@dataclass(frozen=True)
class TunedEmulator:
    """`kernel.emulate[grid, block](...)`, or `.explore(n)[grid, block](...)`."""

    tuned: Any
    run: Run

    @public
    def __getitem__(self, key: TunedKey) -> Callable[..., Any]:
        return partial(emulated, self.tuned[key], self.run)

    @public
    def __call__(self, /, *args: Any, **named: Any) -> Any:
        """Run with the grid and the block that the configurations give."""
        return emulated(self.tuned.configured(), self.run, *args, **named)


def emulated(launch: Any, run: Run, /, *args: Any, **named: Any) -> Any:
    """Emulate a launch of an autotuned kernel by `run`."""
    tuned = launch.tuned
    call = tuned._call(args, named)
    config = tuned.chosen(call, launch.options)
    bound_launch, constants = launch.of(config, call)
    return run(tuned.variant(config))(bound_launch.config, **call.runtime_named, **constants)
