"""Launch configuration: grid, block, cluster, shared memory and launch attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn, SupportsIndex, TypeAlias

import numpy as np

from tensorcore_dsl.errors import ArgumentError, LaunchError
from tensorcore_dsl.runtime.array_interop import stream_handle

Dim = tuple[int, int, int]
Dims: TypeAlias = SupportsIndex | Sequence[SupportsIndex]

# Key of `kernel[...]`: grid, block, stream, bytes of dynamic shared memory.
LaunchKey: TypeAlias = (
    tuple[Dims, Dims] | tuple[Dims, Dims, Any] | tuple[Dims, Dims, Any, SupportsIndex | None]
)


@dataclass(frozen=True)
class LaunchConfig:
    """Configuration of a launch.

    Attributes
    ----------
    grid, block : tuple of int
        Blocks of the grid, threads of a block.
    shared_bytes : int
        Bytes of dynamic shared memory.
    cluster : tuple of int or None
        Blocks of a cluster.
    cooperative : bool
        All blocks are resident, so they may wait for each other.
    pdl : bool
        Programmatic dependent launch: the kernel may start before the previous one of the stream
        has ended. `griddepcontrol.wait` waits for that end.
    cluster_in_code : bool
        The kernel's code fixes the cluster size (`.reqnctapercluster`), so the launch has no
        cluster attribute.
    """

    grid: Dim
    block: Dim
    shared_bytes: int = 0
    cluster: Dim | None = None
    cooperative: bool = False
    pdl: bool = False
    cluster_in_code: bool = False

    @classmethod
    def of(
        cls,
        grid: Dims,
        block: Dims,
        shared_bytes: SupportsIndex = 0,
        cluster: Dims | None = None,
        cooperative: bool = False,
        pdl: bool = False,
    ) -> LaunchConfig:
        """Check and make a configuration; ints and short tuples are padded with ones."""
        config = cls(
            _dims("grid", grid, (2**31 - 1, 65535, 65535), least=0),
            _dims("block", block, (1024, 1024, 64)), _bytes(shared_bytes),
            None if cluster is None else _dims("cluster", cluster, (16, 16, 16)),
            _flag("cooperative", cooperative), _flag("pdl", pdl),
        )  # fmt: skip
        config._check()
        return config

    def of_kernel(
        self, block_shared: int = 0, threads: int | None = None, cluster: Dim | None = None
    ) -> LaunchConfig:
        """Add a kernel's own shared memory (in bytes), and its fixed block and cluster sizes."""
        if threads not in (None, self.block[0]) or (threads and self.block[1:] != (1, 1)):
            raise LaunchError(
                f"block {self.block} was asked for; the kernel is compiled for {(threads, 1, 1)}"
            )
        config = replace(self, shared_bytes=self.shared_bytes + block_shared)
        if cluster is None:
            return config
        if self.cluster not in (None, cluster):
            raise LaunchError(f"cluster {self.cluster} was asked for; the kernel is compiled for {cluster}")
        config = replace(config, cluster=cluster, cluster_in_code=True)
        config._check()
        return config

    @property
    def is_empty(self) -> bool:
        """True if the grid has no CTAs, so that a launch does nothing."""
        return 0 in self.grid

    @property
    def threads(self) -> int:
        x, y, z = self.block
        return x * y * z

    def _check(self) -> None:
        if self.threads > 1024:
            raise LaunchError(f"block {self.block} has {self.threads} threads; 1024 are allowed")
        if not 0 <= self.shared_bytes < 2**31:
            few = "less than none" if self.shared_bytes < 0 else "32 bits with a sign are allowed"
            size = self.shared_bytes if abs(self.shared_bytes) < 2**64 else "too many"
            raise LaunchError(f"{size} bytes of dynamic shared memory: {few}")
        if self.cluster is None:
            return
        if any(g % c for g, c in zip(self.grid, self.cluster, strict=True)):
            fixed = ", which the kernel is compiled for" if self.cluster_in_code else ""
            raise LaunchError(f"grid {self.grid} is not a multiple of cluster {self.cluster}{fixed}")
        x, y, z = self.cluster
        if x * y * z > 16:
            raise LaunchError(
                f"cluster {self.cluster} has {x * y * z} blocks; 16 are allowed at most, 8 portably"
            )


def _bytes(value: SupportsIndex) -> int:
    try:
        return value.__index__()
    except (TypeError, AttributeError):
        raise LaunchError(f"shared_bytes is {value!r}; an integer is needed") from None


def _flag(what: str, value: Any) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise LaunchError(f"{what} is {value!r}; True or False are allowed")
    return bool(value)


def _dims(what: str, value: Dims, most: Dim, least: int = 1) -> Dim:
    if callable(value):
        raise LaunchError(
            f"{what} is a function; kernels under tc.autotune take functions of the arguments, "
            "this one takes one to three integers"
        )
    if shape := getattr(value, "shape", ()):
        raise LaunchError(
            f"{what} is an array of shape {tuple(shape)}; a launch takes the grid and the block, "
            "and the arguments in a call of its own, as kernel[grid, block](...) and "
            "kernel.check(grid, block)(...) do"
        )
    dims = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    try:
        if not 1 <= len(dims) <= 3 or any(isinstance(d, bool) for d in dims):
            raise TypeError
        x, y, z = (d.__index__() for d in (*dims, 1, 1)[:3])
    except (TypeError, AttributeError):
        hint = "; // divides integers" if any(isinstance(d, float) for d in dims) else ""
        raise LaunchError(f"{what} is {value!r}; it must be one to three integers{hint}") from None
    if not all(least <= d <= m for d, m in zip((x, y, z), most, strict=True)):
        raise LaunchError(f"{what} is {(x, y, z)}; each must be from {least} to {most}")
    return (x, y, z)


def configuration(name: str, key: Any) -> tuple[LaunchConfig, Any]:
    """Check the key of `kernel[key]`: the configuration and the stream."""
    if not isinstance(key, tuple) or not 2 <= len(key) <= 4:
        raise ArgumentError(
            f"{name}[grid, block, stream=None, shared_bytes=0] takes 2 to 4 values, {key!r} was given"
        )
    grid, block, *more = key
    shared_bytes = more[1] if len(more) == 2 else 0
    shared_bytes = 0 if shared_bytes is None else shared_bytes
    return configured(grid, block, stream=more[0] if more else None, shared_bytes=shared_bytes)


def configured(
    grid: Dims,
    block: Dims,
    *,
    stream: Any = None,
    shared_bytes: SupportsIndex = 0,
    cluster: Dims | None = None,
    cooperative: bool = False,
    pdl: bool = False,
) -> tuple[LaunchConfig, Any]:
    """Check the arguments of `kernel.configured(...)`: the configuration and the stream."""
    check_stream(stream)
    return LaunchConfig.of(grid, block, shared_bytes, cluster, cooperative, pdl), stream


def check_stream(stream: Any) -> None:
    """Refuse an object that is no stream, on every target.

    Parameters
    ----------
    stream : stream, optional
        As for `stream_handle`. None: the current stream.

    Raises
    ------
    ArgumentError
        Something else.
    """
    if stream is not None:
        stream_handle(stream)


def launch_text(kernel: Any, options: Mapping[str, Any], stream: Any) -> str:
    """Show a kernel with the non-default options of a launch, for `repr`."""
    all_options = {**options, "stream": stream}
    text = ", ".join(f"{name}={value!r}" for name, value in all_options.items() if value)
    return f"<launch of {repr(kernel)[1:-1]}: {text}>"


def refuse_call(name: str, subscripted: str) -> NoReturn:
    """Raise the error of a launch without grid and block, which `subscripted` takes."""
    raise ArgumentError(f"kernel {name} is launched with a grid and a block: {subscripted}[grid, block](...)")
