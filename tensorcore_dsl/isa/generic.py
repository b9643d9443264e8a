"""Generic addresses (6.4.1.1): `cvta`, and the window of shared memory in the emulator.

A generic address of 64 bits lies in the window of shared memory, or is an address of global memory.
The emulator's arrays have addresses from 2**40 on, so the window lies below them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorcore_dsl.errors import EmulationError
from tensorcore_dsl.isa.context import CLUSTER_SHIFT, Context, active_threads
from tensorcore_dsl.isa.spec import Instruction, row

WINDOW = np.uint64(1 << 32)  # the generic address of byte 0 of the CTA's shared memory


class Lanes:
    """A context in which only some threads are active."""

    def __init__(self, ctx: Context, threads: np.ndarray) -> None:
        self._ctx = ctx
        self.active = threads.ravel()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)


def convert(ctx: Context, instr: Instruction, a: Any) -> np.ndarray:
    """cvta: global addresses are generic addresses."""
    if instr.params["s"] == "global":
        return np.asarray(a)
    return np.asarray(a - WINDOW if instr.params["to"] else a + WINDOW)


def in_shared(address: np.ndarray, bits: int = CLUSTER_SHIFT) -> np.ndarray:
    """Return (T,) bool: whether the generic address lies in the window of shared memory.

    bits: 32 for the window of all CTAs of the cluster.
    """
    return np.asarray((address - WINDOW) >> np.uint64(bits) == 0)


def memories(ctx: Context, instr: Instruction, address: np.ndarray) -> list[tuple[Any, Any, Any]]:
    """Split the addresses of wmma by memory: (memory, context with its threads, addresses) of each."""
    address = np.broadcast_to(address, (ctx.threads,))
    if instr.params["space"]:
        return [(ctx.shared if instr.params["space"] == "shared" else ctx.globals, ctx, address)]
    active = active_threads(ctx)
    shared = in_shared(address)
    peers = active & ~shared & in_shared(address, 32)
    _refuse(instr, peers, address, "global memory or of the CTA's own shared memory")
    by_memory: list[tuple[Any, Any, Any]] = [(ctx.globals, Lanes(ctx, active & ~shared), address)]
    if (active & shared).any():
        by_memory.append((ctx.shared, Lanes(ctx, active & shared), shared_address(address)))
    return by_memory if (active & ~shared).any() else by_memory[-1:]


def shared_address(address: np.ndarray) -> np.ndarray:
    """Generic addresses in the window, as addresses of shared memory."""
    return np.asarray(address - WINDOW).astype(np.uint32)


def of_shared(address: np.ndarray) -> np.ndarray:
    """Convert addresses of shared memory to generic addresses; generic addresses stay."""
    address = np.asarray(address).astype(np.uint64)
    return np.asarray(np.where(address < WINDOW, address + WINDOW, address))


def shared_only(instr: Instruction, address: Any, used: np.ndarray) -> Any:
    """Shared addresses of ldmatrix or stmatrix; EmulationError for another generic address.

    used: (T,) bool.
    """
    if instr.params["s"]:
        return address
    address = np.broadcast_to(address, used.shape)
    _refuse(instr, used & ~in_shared(address), address, "the CTA's own shared memory")
    return shared_address(address)


def _refuse(instr: Instruction, wrong: np.ndarray, address: np.ndarray, allowed: str) -> None:
    """EmulationError for the first of the `wrong` threads (T,): its address is not `allowed`."""
    for thread in np.flatnonzero(wrong):
        peer = in_shared(address[thread], 32)
        where = "in the shared memory of another CTA" if peer else "not in shared memory"
        copied = ". tc.bulk_copy copies a tile to another CTA" if peer else ""
        raise EmulationError(
            f"{instr.mnemonic}: lane {thread % 32} gives the generic address "
            f"{int(address[thread]):#x}, which is {where}; {instr.opcode} needs an address of "
            f"{allowed} ({instr.section}){copied}"
        )


ROWS = (
    row(
        "cvta{to}.{s}.u64", "d:u64 = a:u64", "9.7.9.20", convert, to="- .to", s="global shared",
        ptx="2.0",
    ),
    row(
        "cvta{to}.{s}.u64", "d:u64 = a:u64", "9.7.9.20", convert, to="- .to", s="shared::cluster",
        requires="90", ptx="7.8",
    ),
)  # fmt: skip
