"""Target of kernels: the GPU or the CPU, and the architecture that the CPU emulates."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

from tensorcore_dsl.arch import Arch, of_device
from tensorcore_dsl.arch import arch as arch_named
from tensorcore_dsl.errors import ArgumentError, listing
from tensorcore_dsl.runtime import driver

DEFAULT_ARCH = "sm_90a"
TARGETS = ("cpu", "cuda")
TARGET_VARIABLE, ARCH_VARIABLE = "TENSORCORE_DSL_TARGET", "TENSORCORE_DSL_ARCH"

_emulating = False  # inside `emulating`
_target: ContextVar[tuple[str | None, str | None]] = ContextVar("target", default=(None, None))


def target(name: str, arch: str | None = None) -> AbstractContextManager[None]:
    """Run kernels on the GPU or the CPU inside the block.

    Parameters
    ----------
    name : {"cpu", "cuda"}
        Where kernels run.
    arch : str, optional
        What the CPU emulates, such as "sm_80"; None: the environment's TENSORCORE_DSL_ARCH, or
        sm_90a.

    Returns
    -------
    context manager
        Holds for this thread (for this context of asyncio).

    Raises
    ------
    ArgumentError
        Another name.
    ArchError
        An unknown architecture; the error lists those that are known.

    Examples
    --------
    >>> with tc.target("cpu", arch="sm_80"):
    ...     tc.current_target()
    'cpu'
    """
    if name not in TARGETS:
        raise ArgumentError(f"unknown target {name!r}; allowed are {listing(TARGETS)}")
    if arch is not None:
        arch_named(arch)
    return _inside("cpu" if _emulating else name, arch)


@contextmanager
def emulating(arch: str | None = None) -> Iterator[None]:
    """Inside, all launches of all threads run on the CPU, whatever `target` they ask for."""
    global _emulating
    if arch is not None:
        arch_named(arch)
    before, variable = _emulating, os.environ.get(TARGET_VARIABLE)
    _emulating, os.environ[TARGET_VARIABLE] = True, "cpu"
    try:
        with _inside("cpu", arch or _target.get()[1]):
            yield
    finally:
        _emulating = before
        del os.environ[TARGET_VARIABLE]
        if variable is not None:
            os.environ[TARGET_VARIABLE] = variable


@contextmanager
def _inside(name: str, arch: str | None) -> Iterator[None]:
    token = _target.set((name, arch))
    try:
        yield
    finally:
        _target.reset(token)


def current_target() -> str:
    """The current target of launches: the GPU or the CPU.

    `with target(...)` decides, else TENSORCORE_DSL_TARGET, else whether there is a GPU.

    Returns
    -------
    str
        "cuda" or "cpu".

    Raises
    ------
    ArgumentError
        TENSORCORE_DSL_TARGET is something else.

    See Also
    --------
    target : With an example.
    """
    chosen = _target.get()[0] or os.environ.get(TARGET_VARIABLE) or None
    if chosen is None:
        return "cuda" if driver.cuda_available() else "cpu"
    if chosen not in TARGETS:
        raise ArgumentError(f"{TARGET_VARIABLE} is {chosen!r}; allowed are {listing(TARGETS)}")
    return chosen


def emulated_arch() -> str:
    """The architecture that the CPU emulates.

    Returns
    -------
    str
        That of `with target`, of TENSORCORE_DSL_ARCH, or "sm_90a".
    """
    return _target.get()[1] or os.environ.get(ARCH_VARIABLE) or DEFAULT_ARCH


def device_arch() -> Arch:
    """The architecture of the current GPU, with its architecture-specific features.

    Returns
    -------
    Arch
        `sm_90a` on an H200.

    Raises
    ------
    LaunchError
        There is no GPU.
    ArgumentError
        A compute capability of a family that this version does not know.
    """
    number = driver.compute_capability()
    arch = of_device(number)
    if arch is None:
        raise ArgumentError(f"the GPU's compute capability {number} is unknown to this version")
    return arch


def target_arch() -> Arch:
    """The architecture on which kernels run now: the GPU's, or the one that the CPU emulates.

    Returns
    -------
    Arch
        See `current_target`.

    Raises
    ------
    ArchError
        TENSORCORE_DSL_ARCH names none.
    """
    return device_arch() if current_target() == "cuda" else arch_named(emulated_arch())


# os.environ encodes names and decodes values, which takes longer than the rest of a launch before
# the driver. The dictionary that it wraps is read instead, where there is one.
_variables: Any = getattr(os.environ, "_data", os.environ)
_wrapped = _variables is not os.environ
_target_name, _arch_name = (
    os.environ.encodekey(name) if _wrapped else name  # type: ignore[attr-defined]
    for name in (TARGET_VARIABLE, ARCH_VARIABLE)
)
_ON_GPU = (None, "", b"", "cuda", b"cuda")


def gpu_chosen() -> bool:
    """True if kernels run on the GPU, if there is one. The driver is not asked again."""
    return (_target.get()[0] or _variables.get(_target_name)) in _ON_GPU


def target_key() -> tuple[Any, ...]:
    """The settings that `current_target` and `emulated_arch` depend on.

    Returns
    -------
    tuple
        Hashable; a cache key for results that depend on the target.
    """
    return _target.get(), _variables.get(_target_name), _variables.get(_arch_name)
