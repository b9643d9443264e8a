"""Loads, stores and atomics of words, the same for the memories of all state spaces."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np

from tensorcore_dsl.interpreter.core.chunk import Chunk
from tensorcore_dsl.isa.context import Context


class WordMemory(ABC):
    """Memory of a chunk; a sub-class moves the words of one state space."""

    space: ClassVar[str]

    def __init__(self, chunk: Chunk) -> None:
        self.chunk = chunk

    @abstractmethod
    def load_words(
        self, mask: np.ndarray, addresses: np.ndarray, width: int, count: int
    ) -> np.ndarray:
        """(count, T) words of `width` bytes for the threads of `mask`."""

    @abstractmethod
    def store_words(self, mask: np.ndarray, addresses: np.ndarray, values: np.ndarray) -> None:
        """Store (count, T) words of the threads of `mask`."""

    def location(self, addresses: np.ndarray) -> np.ndarray:
        """(T,) numbers that are equal where addresses of two threads name the same byte."""
        return addresses

    def active(self, ctx: Context) -> np.ndarray:
        """The active threads of a context, which may be fewer than those of the chunk."""
        return self.chunk.all_threads if ctx.active is None else ctx.active

    def load(self, ctx: Context, addresses: np.ndarray, width: int, count: int) -> np.ndarray:
        """(count, T) words of `width` bytes."""
        return self.load_words(self.active(ctx), addresses, width, count)

    def store(self, ctx: Context, addresses: np.ndarray, values: np.ndarray) -> None:
        """Store (count, T) words."""
        self.store_words(self.active(ctx), addresses, values)

    def atomic(
        self, ctx: Context, addresses: np.ndarray, width: int, update: Any, *operands: Any
    ) -> np.ndarray:
        """In thread order: old = word; word = update(old, *operands). Returns (T,) old words.

        Works in rounds in which no address occurs twice.
        """
        result = np.zeros(addresses.size, f"u{width}")
        active = np.flatnonzero(self.active(ctx))
        for threads in _rounds(self.location(addresses)[active], active):
            mask = np.zeros(addresses.size, np.bool_)
            mask[threads] = True
            old = self.load_words(mask, addresses, width, 1)[0]
            inputs = [o[threads] if np.ndim(o) else o for o in operands]
            new = old.copy()
            new[threads] = update(old[threads], *inputs)
            if not np.array_equal(new[threads], old[threads]):
                self.store_words(mask, addresses, new[None])
            result[threads] = old[threads]
        return result


def _rounds(keys: np.ndarray, threads: np.ndarray) -> list[np.ndarray]:
    """Threads in groups without a repeated key: the n-th group has each key's n-th thread."""
    order = np.argsort(keys, kind="stable")
    ranked = keys[order]
    first = np.concatenate(([True], ranked[1:] != ranked[:-1])) if len(ranked) else np.ones(0, bool)
    start = np.maximum.accumulate(np.where(first, np.arange(len(ranked)), 0))
    rank = np.empty(len(ranked), np.int64)
    rank[order] = np.arange(len(ranked)) - start
    if not rank.any():
        return [threads] if len(threads) else []
    by_rank = np.argsort(rank, kind="stable")
    return np.split(threads[by_rank], np.cumsum(np.bincount(rank))[:-1])
