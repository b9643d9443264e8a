"""Asynchronous copies of single threads (cp.async, PTX manual 9.7.9.25.3) and their groups."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tensorcore_dsl.interpreter.core.chunk import Chunk
from tensorcore_dsl.interpreter.memory.access_loops import GLOBAL_SIDE, copy_check, copy_finish
from tensorcore_dsl.interpreter.memory.global_memory import GlobalMemory
from tensorcore_dsl.interpreter.memory.shared_memory import SharedMemory
from tensorcore_dsl.interpreter.sanitizer.happens_before import Access
from tensorcore_dsl.isa.context import Context


@dataclass
class _Copy:
    """A copy of the threads of `mask`; `group` counts the groups each had committed before."""

    mask: np.ndarray
    group: np.ndarray
    target: np.ndarray
    source: np.ndarray
    size: int
    valid: np.ndarray


class AsyncCopies:
    """Copies in flight; `groups` counts the groups that each thread has committed."""

    def __init__(self, chunk: Chunk, shared: SharedMemory, memory: GlobalMemory) -> None:
        self.chunk = chunk
        self.shared = shared
        self.globals = memory
        self.groups = np.zeros(chunk.threads, np.int64)
        self.queue: list[_Copy] = []

    def issue(
        self, ctx: Context, target: np.ndarray, source: np.ndarray, size: int, valid: np.ndarray
    ) -> None:
        """Copy `size` bytes to shared `target`: `valid` ones from global `source`, then zeros."""
        storage, table = self.shared.storage, self.globals.table
        valid = np.ascontiguousarray(np.broadcast_to(valid, target.shape), dtype=np.uint32)
        mask = self.shared.active(ctx)
        self.chunk.account("global", "load", source, mask, size)
        self.chunk.account("shared", "store", target, mask, size)
        wrong = copy_check(
            target, source, valid, mask, table, storage.data, storage.shadow, size, storage.checks,
            self.shared.sanitizer.proxies.readers,
        )  # fmt: skip
        if wrong >> 32 > GLOBAL_SIDE:
            self.globals.refuse(wrong - (GLOBAL_SIDE << 32), source, size, "asynchronous copy")
        if wrong:
            self.shared.refuse(wrong, target, size, "asynchronous copy")
        self.queue.append(_Copy(mask, self.groups, target, source, size, valid))

    def commit(self) -> None:
        """Close the group of each active thread."""
        self.groups = self.groups + self.chunk.mask

    def wait(self, pending: int) -> None:
        """Finish all but the last `pending` groups of each active thread."""
        due_groups = self.groups - pending
        left = []
        for copy in self.queue:
            due = copy.mask & self.chunk.mask & (copy.group < due_groups)
            if due.any():
                self._finish(copy, due)
                copy.mask = copy.mask & ~due
                if not copy.mask.any():
                    continue
            left.append(copy)
        self.queue = left

    def _finish(self, copy: _Copy, due: np.ndarray) -> None:
        storage, sanitizer = self.shared.storage, self.shared.sanitizer
        self.chunk.writes += 1
        copy_finish(
            copy.target, copy.source, copy.valid, due, self.globals.table, storage.data,
            storage.shadow, copy.size, storage.checks, sanitizer.proxies.stamps,
            sanitizer.proxies.epochs,
        )  # fmt: skip
        if sanitizer.races is not None:
            access = Access.own(self.chunk, copy.target, due, copy.size, "store")
            sanitizer.races.store(access, ordered=False)
