"""What the table of architectures says, and what a kernel meets that asks for more."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl.arch import ARCHS


@tc.kernel
def tiled(x: tc.Array, kib: tc.Const = 1):
    tile = tc.shared(kib * 1024, tc.u8)
    tile[tc.threadIdx.x] = 1
    x[tc.threadIdx.x] = tile[tc.threadIdx.x]


@tc.kernel
def sized_at_launch(x: tc.Array):
    tile = tc.dynamic_shared(32, tc.u8)
    tile[tc.threadIdx.x] = 1
    x[tc.threadIdx.x] = tile[tc.threadIdx.x]


def zeros() -> np.ndarray:
    return np.zeros(32, np.uint8)


def told(name: str, asked: int, arch: str) -> str:
    """What a kernel called `name` hears, as a pattern."""
    most = ARCHS[arch].shared_kib
    place = r"\n  at .*:\d+ in tiled\n    tile = tc\.shared" if name == "tiled" else "$"
    return (
        rf"^{name} takes {asked} bytes of shared memory a block; {arch} allows {most * 1024} "
        rf"\({most} KiB\){place}"
    )


@pytest.mark.parametrize("arch", ARCHS)
def test_a_block_has_the_shared_memory_of_its_architecture(arch):
    most = ARCHS[arch].shared_kib
    tiled.emulator(arch)[1, 32](x := zeros(), kib=most)
    assert x.all()
    sized_at_launch.emulator(arch)[1, 32, None, most * 1024](x := zeros())
    assert x.all()
    with pytest.raises(tc.ArgumentError, match=told("tiled", (most + 1) * 1024, arch)):
        tiled.emulator(arch)[1, 32](zeros(), kib=most + 1)
    with pytest.raises(tc.ArgumentError, match=told("sized_at_launch", most * 1024 + 16, arch)):
        sized_at_launch.emulator(arch)[1, 32, None, most * 1024 + 16](zeros())


@pytest.mark.parametrize("look", ["ir", "ptx", "cubin", "resources"])
def test_the_compiler_says_what_the_emulator_says(look):
    """So a launch on a GPU, which compiles first, says it too."""
    with pytest.raises(tc.ArgumentError, match=told("tiled", 164 * 1024, "sm_80")):
        getattr(tiled, look)(zeros(), kib=164, arch="sm_80")


def traits() -> dict[str, int]:
    """KiB of shared memory of a block by architecture, as CCCL's header states them: those of a
    multiprocessor, less what CUDA keeps of each block from sm_80 on."""
    package = pytest.importorskip("nvidia.cu13", reason="needs the headers of CUDA 13")
    header = Path(next(iter(package.__path__))) / "include/cccl/cuda/__device/arch_traits.h"
    if not header.exists():
        pytest.skip("needs the headers of CCCL")
    sizes: dict[str, int] = {}
    for part in header.read_text().split("template <>")[1:]:
        name = re.search(r"arch_traits<arch_id::(sm_\w+)>\(\) noexcept", part)
        size = re.search(r"max_shared_memory_per_multiprocessor = (\d+) \* 1024;", part)
        base = re.search(r"= ::cuda::arch_traits<arch_id::(sm_\w+)>\(\);", part)
        if name and size:
            sizes[name[1]] = int(size[1]) - (int(re.findall(r"\d+", name[1])[0]) >= 80)
        elif name and base:
            sizes[name[1]] = sizes[base[1]]
    return sizes


def test_nvidia_states_the_same_limits():
    stated: dict[str, Any] = traits()
    assert {name: arch.shared_kib for name, arch in ARCHS.items()} == {
        name: stated.get(name.rstrip("f")) for name in ARCHS
    }
