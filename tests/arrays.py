"""Arrays of other libraries, as they are exported by DLPack."""

from __future__ import annotations

import ctypes
from typing import Any

new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
new_capsule.restype = ctypes.py_object


class Dlpack:
    """What offers DLPack alone, as the library of `array` exports it; on another device, where one is named."""

    def __init__(self, array: Any, device: tuple[int, int] | None = None) -> None:
        self.array, self.device = array, device

    def __dlpack_device__(self) -> Any:
        return self.device or self.array.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)
