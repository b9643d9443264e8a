"""Barriers of a CTA and of the lanes of a warp."""

from __future__ import annotations

from typing import SupportsIndex

from tensorcore_dsl.isa import names
from tensorcore_dsl.lang.emit import emit
from tensorcore_dsl.lang.warp import ALL_LANES


def barrier(id: SupportsIndex = 0, threads: SupportsIndex | None = None) -> None:
    """bar.sync: wait for all threads of the CTA, or for `threads` of them, at barrier `id`."""
    if threads is None:
        emit(names.BAR_SYNC, id)
    else:
        emit(names.BAR_SYNC_COUNT, id, threads)


def barrier_arrive(id: SupportsIndex, threads: SupportsIndex) -> None:
    """bar.arrive: arrive at barrier `id` of `threads` threads without waiting."""
    emit(names.BAR_ARRIVE, id, threads)


def syncwarp(mask: SupportsIndex = ALL_LANES) -> None:
    """Wait for the lanes of `mask` in this warp."""
    emit(names.WARP_SYNC, mask)
