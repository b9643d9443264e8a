"""`tc.Config`: Const values, launch options and assembler limits of one trial."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, SupportsIndex, TypeAlias

from tensorcore_dsl.errors import ArgumentError, listing, public
from tensorcore_dsl.kernel import constants_key
from tensorcore_dsl.runtime.launch_config import Dims

Meta = Mapping[str, Any]
Grid = Dims | Callable[[Any], Dims]
Bytes = SupportsIndex | Callable[[Any], SupportsIndex]

# What `tuned[...]` takes; None where every configuration gives the value.
TunedKey: TypeAlias = (
    tuple[Grid | None, Grid | None]
    | tuple[Grid | None, Grid | None, Any]
    | tuple[Grid | None, Grid | None, Any, Bytes | None]
)

LAUNCH = ("grid", "block", "shared_bytes", "cluster")  # options of the launch
ASSEMBLER = ("max_registers", "min_blocks")  # options of the kernel


class Config:
    """One configuration of an autotuned kernel: `Config(BM=128, BN=64)`.

    Parameters
    ----------
    constants : mapping, optional
        Values of Const parameters, for those that are called like an option.
    grid, block, shared_bytes, cluster : int, tuple or function, optional
        They take the place of the launch's. Grid, block and shared_bytes may be functions of a dict
        of all arguments, as in a launch.
    max_registers, min_blocks : int, optional
        Limits for the assembler, in place of the kernel's.
    **named : value
        Values of the kernel's Const parameters.

    Raises
    ------
    ArgumentError
        A value of an option that is not allowed.

    See Also
    --------
    autotune : Takes several, with an example.
    """

    @public
    def __init__(
        self,
        constants: Mapping[str, Any] | None = None,
        /,
        *,
        grid: Grid | None = None,
        block: Grid | None = None,
        shared_bytes: Bytes | None = None,
        cluster: Dims | None = None,
        max_registers: int | None = None,
        min_blocks: int | None = None,
        **named: Any,
    ) -> None:
        if constants is not None and not isinstance(constants, Mapping):
            raise ArgumentError(
                f"a configuration takes Const values by name or in a dict; {constants!r} was given"
            )
        twice = [name for name in named if name in (constants or {})]
        if twice:
            raise ArgumentError(f"a configuration gives {listing(twice)} twice")
        self.constants: dict[str, Any] = {**(constants or {}), **named}
        options = dict(
            grid=grid,
            block=block,
            shared_bytes=shared_bytes,
            cluster=cluster,
            max_registers=max_registers,
            min_blocks=min_blocks,
        )
        self.options = {name: value for name, value in options.items() if value is not None}

    def __getitem__(self, name: str) -> Any:
        return self.constants[name]

    @property
    def launch_options(self) -> dict[str, Any]:
        """Options of the launch that the configuration sets: grid, block, shared_bytes, cluster."""
        return {name: self.options[name] for name in LAUNCH if name in self.options}

    @property
    def assembler_options(self) -> dict[str, Any]:
        """Options of the assembler that the configuration sets: max_registers, min_blocks."""
        return {name: self.options[name] for name in ASSEMBLER if name in self.options}

    def _key(self) -> Any:
        ordered = dict(sorted(self.constants.items()))
        return constants_key(ordered), constants_key(dict(sorted(self.options.items())))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        settings = {**self.constants, **self.options}
        return f"Config({', '.join(f'{name}={_text(value)}' for name, value in settings.items())})"


def _text(value: Any) -> str:
    return str(getattr(value, "__name__", None) or repr(value))
