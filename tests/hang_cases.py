"""What kernels that hang share: strong loads and stores, and the text of the error."""

from __future__ import annotations

from typing import Any

import pytest

import tensorcore_dsl as tc

ORDERS = [None, 0, 1, 2]


def strong(pointer: Any) -> Any:
    """A load that sees what other threads have written."""
    return tc.emit("ld.relaxed.gpu.global.b32", pointer.address).bits(tc.s32)


def publish(pointer: Any, value: Any) -> None:
    tc.atomic("exch", pointer, value)


def message(kernel: Any, grid: Any, block: int, *args: Any, **options: Any) -> str:
    with pytest.raises(tc.Deadlock) as error:
        kernel.emulator("sm_90a", **options)[grid, block](*args)
    return str(error.value)
