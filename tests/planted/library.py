"""Functions that kernels of `more` share, as a user's library would: they are inlined from here."""

from __future__ import annotations

import tensorcore_dsl as tc


def publish(tile, place, value):
    """Store a value for the others of the block."""
    tile[place] = value


def fetch(tile, place):
    return tile[place]


def block_sum(tile, value, threads):
    """The sum of `value` over a block; the threads must have met since `tile` was last used."""
    publish(tile, tc.threadIdx.x, value)
    tc.barrier()
    total = 0
    for i in tc.range(threads):
        total += fetch(tile, i)
    return total


def lock(pointer):
    """Take a lock: 0 is free."""
    while tc.emit("atom.acquire.gpu.global.cas.b32", pointer, 0, 1).bits(tc.s32) != 0:
        tc.emit("nanosleep.u32", 20)


def unlock(pointer):
    tc.emit("st.release.gpu.global.b32", pointer, 0)
