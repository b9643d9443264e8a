"""Number of CTAs that a device holds at a time. Later CTAs start when earlier ones have ended."""

from __future__ import annotations

from tensorcore_dsl.arch import Arch

# By compute capability: multiprocessors of the largest chip that is sold, and what one of them
# holds: threads, CTAs, KiB of shared memory (CUDA programming guide, technical specifications per
# compute capability; NVIDIA's data sheets).
_DEVICES = {
    70: (80, 2048, 32, 96), 75: (72, 1024, 16, 64), 80: (108, 2048, 32, 164),
    86: (84, 1536, 16, 100), 87: (16, 1536, 16, 164), 88: (84, 1536, 16, 100),
    89: (142, 1536, 24, 100), 90: (132, 2048, 32, 228),
    100: (148, 2048, 32, 228), 103: (160, 2048, 32, 228), 110: (20, 1536, 24, 228),
    120: (188, 1536, 24, 100), 121: (48, 1536, 24, 100),
}  # fmt: skip
_RESERVED = 1024  # bytes of shared memory that the system takes of each CTA, from sm_80 on
_REGISTERS = 65536  # registers of a multiprocessor, in four partitions
_REGISTER_UNIT = 256  # registers that a warp gets at once


def multiprocessors(arch: Arch) -> int:
    """Multiprocessors of a device."""
    return _DEVICES[arch.number][0]


def resident(arch: Arch, threads: int, shared: int) -> int:
    """CTAs of `threads` threads and `shared` bytes of shared memory that a device holds.

    At most: the registers of a kernel may allow fewer.
    """
    return multiprocessors(arch) * max(min(limits(arch, threads, shared).values()), 1)


def limits(arch: Arch, threads: int, shared: int, registers: int | None = None) -> dict[str, int]:
    """CTAs that one multiprocessor holds, by the resource that limits them. registers: of a thread."""
    _, most_threads, most_ctas, shared_kib = _DEVICES[arch.number]
    warps = -(-threads // 32)
    reserved = _RESERVED if arch.number >= 80 else 0
    limits = {"threads": most_threads // (warps * 32), "CTAs": most_ctas}
    limits["shared memory"] = shared_kib * 1024 // max(shared + reserved, 1)
    if registers:
        of_warp = -(-registers * 32 // _REGISTER_UNIT) * _REGISTER_UNIT
        limits["registers"] = _REGISTERS // 4 // of_warp * 4 // warps
    return limits


def warps_of(arch: Arch) -> int:
    """Warps that one multiprocessor holds."""
    return _DEVICES[arch.number][1] // 32
