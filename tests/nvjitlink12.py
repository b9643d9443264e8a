"""nvJitLink 12, the last one that assembles for sm_70, where one is installed.

`pip install nvidia-nvjitlink-cu12` puts it beside that of CUDA 13; a toolkit of CUDA 12 has it too.
"""

from __future__ import annotations

import ctypes
import glob
import os
import sys
from functools import cache

PTX = 2  # nvJitLinkInputType
NAME = "libnvJitLink.so.12"
PLACES = (
    *(os.path.join(p, "nvidia", "nvjitlink", "lib") for p in sys.path if p),
    *sorted(glob.glob("/usr/local/cuda-12*/lib64"), reverse=True),
    *os.environ.get("LD_LIBRARY_PATH", "").split(":"),
)


@cache
def library() -> ctypes.CDLL | None:
    """The library; None where none is installed."""
    for place in PLACES:
        path = os.path.join(place, NAME)
        if os.path.exists(path):
            return ctypes.CDLL(path)
    return None


def function(name: str) -> ctypes._CFuncPtr:
    """The function of the newest interface that the library has."""
    loaded = library()
    assert loaded is not None
    for minor in range(9, -1, -1):
        try:
            return loaded[f"__nvJitLink{name}_12_{minor}"]
        except AttributeError:
            continue
    raise AttributeError(name)


def assembles(text: str, arch: str) -> str:
    """What the assembler says against `text`; empty when it takes it."""
    handle, option = ctypes.c_void_p(), f"-arch={arch}".encode()
    options = (ctypes.c_char_p * 1)(option)
    if function("Create")(ctypes.byref(handle), 1, options):
        return f"nvJitLink 12 refuses {option.decode()}"
    data = text.encode()
    added = function("AddData")(handle, PTX, data, ctypes.c_size_t(len(data)), b"k")
    failed = added or function("Complete")(handle)
    said = _log(handle) or f"error {failed}" if failed else ""
    function("Destroy")(ctypes.byref(handle))
    return said


def _log(handle: ctypes.c_void_p) -> str:
    size = ctypes.c_size_t()
    function("GetErrorLogSize")(handle, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value + 1)
    function("GetErrorLog")(handle, text)
    return text.value.decode()
