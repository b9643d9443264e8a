"""Run CUDA C++ kernels in emulation: NVRTC compiles them to PTX without a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from tensorcore_dsl.errors import ArgumentError, public
from tensorcore_dsl.ptx.module import Module, load


@public
def from_cuda(
    source: str | Path,
    arch: str = "sm_90a",
    *,
    include: Sequence[str | Path] = (),
    options: Sequence[str] = (),
) -> Module:
    """Compile CUDA C++ to PTX and load its kernels for the CPU.

    NVRTC (`pip install cuda-bindings nvidia-cuda-nvrtc`) compiles the source. The headers of CUDA and
    CCCL come from the packages nvidia-cuda-runtime and nvidia-cuda-cccl.

    Parameters
    ----------
    source : str or Path
        The text of CUDA C++, or the path of a file with it. Kernels that are `extern "C"` keep their names.
    arch : str
        The architecture to compile for and to emulate.
    include : sequence of str or Path
        Further directories with headers.
    options : sequence of str
        Further options of NVRTC, such as `-use_fast_math` and `-std=c++20`.

    Returns
    -------
    Module
        The kernels by name. Errors, races and reports name the lines of the CUDA source.

    Raises
    ------
    ArgumentError
        CUDA C++ that NVRTC refuses, with its messages.

    Examples
    --------
    >>> SOURCE = '''extern "C" __global__ void twice(float *x) { x[threadIdx.x] *= 2; }
    ... '''
    >>> x = np.ones(32, np.float32)                                                # doctest: +SKIP
    >>> report = tc.ptx.from_cuda(SOURCE).twice[1, 32](x)                          # doctest: +SKIP
    """
    path = Path(source) if isinstance(source, Path) or "\n" not in source else None
    text = path.read_text(encoding="utf-8") if path else str(source)
    return load(ptx_of(text, str(path or "<cuda>"), arch, include, ["-lineinfo", *options]))


def ptx_of(text: str, name: str, arch: str, include: Sequence[str | Path], options: Sequence[str]) -> str:
    """Compile CUDA C++ to PTX; ArgumentError with NVRTC's messages if it refuses the text."""
    nvrtc: Any = import_module("cuda.bindings.nvrtc")  # cuda.core compiles only where there is a driver
    header_directory = import_module("cuda.pathfinder").find_nvidia_header_directory
    folders = [*include, *filter(None, map(header_directory, ("cudart", "cccl")))]
    flags = [f"-arch={arch}", *(f"-I{folder}" for folder in folders), *options]
    _, program = nvrtc.nvrtcCreateProgram(text.encode(), name.encode(), 0, [], [])
    (failed,) = nvrtc.nvrtcCompileProgram(program, len(flags), [flag.encode() for flag in flags])
    kind = "ProgramLog" if failed else "PTX"
    _, size = getattr(nvrtc, f"nvrtcGet{kind}Size")(program)
    output = b" " * size
    getattr(nvrtc, f"nvrtcGet{kind}")(program, output)
    nvrtc.nvrtcDestroyProgram(program)
    result: str = output.rstrip(b"\0").decode(errors="replace") + "\n"
    if failed:
        raise ArgumentError(f"NVRTC refuses {name}:\n{result}")
    return result
