"""Context of instructions in a chunk: threads, memories, barriers (`isa.context.Context`)."""

from __future__ import annotations

import sys
from functools import cached_property
from typing import Any, NoReturn

import numpy as np

from tensorcore_dsl.errors import EmulationError
from tensorcore_dsl.interpreter.core.chunk import Chunk
from tensorcore_dsl.interpreter.core.geometry import Geometry, SpecialRegisters
from tensorcore_dsl.interpreter.core.program import Program
from tensorcore_dsl.interpreter.core.shadow import SharedStorage
from tensorcore_dsl.interpreter.core.team import ALONE, Team
from tensorcore_dsl.interpreter.display.printing import Strings, format_line, print_matrices
from tensorcore_dsl.interpreter.memory.async_copies import AsyncCopies
from tensorcore_dsl.interpreter.memory.async_stores import AsyncStores
from tensorcore_dsl.interpreter.memory.bulk_copies import BulkCopies
from tensorcore_dsl.interpreter.memory.global_memory import Arguments, GlobalMemory
from tensorcore_dsl.interpreter.memory.shared_memory import ClusterMemory, SharedMemory
from tensorcore_dsl.interpreter.sanitizer import strong_accesses
from tensorcore_dsl.interpreter.sanitizer.launch_history import LaunchHistory
from tensorcore_dsl.interpreter.sanitizer.races import Races
from tensorcore_dsl.interpreter.sanitizer.sanitizer import Sanitizer
from tensorcore_dsl.interpreter.sync.clusters import Clusters
from tensorcore_dsl.interpreter.sync.grids import Grids
from tensorcore_dsl.interpreter.sync.mbarriers import Mbarriers
from tensorcore_dsl.interpreter.sync.named_barriers import NamedBarriers
from tensorcore_dsl.isa import classify
from tensorcore_dsl.isa.bounds import error_of
from tensorcore_dsl.isa.effects import Effect
from tensorcore_dsl.isa.semantics import UNSET
from tensorcore_dsl.isa.spec import Instruction


class ExecutionContext(Chunk):
    """The threads of a chunk with all parts that the semantics of instructions use."""

    def __init__(
        self,
        program: Program,
        geometry: Geometry,
        arguments: Arguments,
        storage: SharedStorage,
        arch: str,
        profile: bool = False,
        launch: LaunchHistory | None = None,
        team: Team = ALONE,
        ordered: bool = False,
    ) -> None:
        super().__init__(program, geometry, storage.checks, profile)
        self.arch = arch
        self.carry = np.full(self.threads, UNSET, np.uint8)
        self.team = team
        self.cta_team = ALONE if ordered else team  # team for accesses of CTAs to global memory
        self.tiles = program.tiles
        self.special = SpecialRegisters(geometry)
        self.sanitizer = Sanitizer(self, storage, launch is not None)
        self.proxies = self.sanitizer.proxies
        self.async_mma = self.sanitizer.mma
        if launch is not None:
            self.sanitizer.detector = Races(self, storage, launch, arguments.table)
            self.async_mma.detector = self.sanitizer.detector
        self.dependency = Grids(self, self.sanitizer)
        self.clusters = Clusters(self, self.sanitizer)
        self.barriers = NamedBarriers(self, self.sanitizer)
        self.mbarriers = Mbarriers(self, storage, self.sanitizer, self.clusters)
        self.globals = GlobalMemory(self, arguments, self.sanitizer)
        self.shared = SharedMemory(self, storage, self.sanitizer, self.mbarriers, team)
        self.cluster = ClusterMemory(self.shared, self.clusters)
        self.async_copies = AsyncCopies(self, self.shared, self.globals)
        self.async_stores = AsyncStores(self, self.cluster)
        self.bulk = BulkCopies(self, self.shared, self.globals, self.clusters)
        self.maps = self.bulk.maps

    @cached_property
    def addresses(self) -> tuple[np.ndarray, np.ndarray]:
        """Room for the addresses of an access, (T,) uint32 and uint64: too much for a stack."""
        return np.empty(self.threads, np.uint32), np.empty(self.threads, np.uint64)

    def print(self, text: int, values: list[np.ndarray]) -> None:
        """Print one line a thread; `text` is the number of the kernel's format string."""
        kernel = self.program.kernel
        columns = [np.broadcast_to(v, (self.threads,)) for v in values]
        if text in kernel.prints:
            print_matrices(self, kernel.prints[text], columns)
            return
        for thread in np.flatnonzero(self.mask):
            line = format_line(kernel.strings[text], [c[thread].item() for c in columns])
            sys.stdout.write(line)

    def vprintf(self, text: np.ndarray, buffer: np.ndarray) -> np.ndarray:
        """Print what each thread gives to `vprintf`: the addresses of a format and of a buffer."""
        texts, buffers = (np.broadcast_to(address, (self.threads,)) for address in (text, buffer))
        printed = np.zeros(self.threads, np.uint32)
        for thread in np.flatnonzero(self.mask):
            strings = Strings(self.globals, int(thread))
            line, printed[thread] = strings.formatted(int(texts[thread]), int(buffers[thread]))
            sys.stdout.write(line)
        return printed

    def fail_assertion(self, *operands: np.ndarray) -> None:
        """Raise the error of the first thread whose assertion fails, with its text, file and line."""
        for thread in np.flatnonzero(self.mask)[:1]:
            values = [int(np.broadcast_to(o, (self.threads,))[thread]) for o in operands]
            text, file, function = map(Strings(self.globals, int(thread)).text, (*values[:2], values[3]))
            raise EmulationError(
                f"assertion `{text}` failed in {self.describe(int(thread))} ({function}, {file}:{values[2]})"
            )

    def fence(self, instr: Instruction) -> None:
        """A fence of the active threads, which orders their accesses or connects proxies."""
        detector, space = self.sanitizer.detector, instr.params.get("space")
        if detector is not None and classify.is_init_fence(instr):
            detector.fence_init(classify.is_release(instr))
        if space is not None and space != ".global":
            self.proxies.fence()
        if detector is not None and space is not None:
            detector.fence_proxies("" if space == "-" else str(space))
        elif detector is not None and classify.is_fence(instr):
            strong_accesses.fence(detector, instr)

    def refuse_index(self, text: int, outside: np.ndarray, index: Any, extent: Any) -> NoReturn:
        """Raise the error of a check for the first thread of `outside`; it shows the line."""
        thread = int(np.argmax(outside))
        values = [np.broadcast_to(v, (self.threads,))[thread].item() for v in (index, extent)]
        values += [*self.geometry.cta(thread), *self.geometry.thread(thread)]
        line = format_line(self.program.kernel.strings[text], values)
        raise error_of(line)

    def exit(self) -> None:
        """The active threads end, and with them the CTAs that have no threads left."""
        super().exit()
        if not self.program.asynchronous:
            return
        ended = self.gone.reshape(self.geometry.ctas, -1).all(axis=1) & ~self.clusters.gone
        for cta in map(int, np.flatnonzero(ended)):
            self.clusters.gone[cta] = True
            self.clusters.leave(cta)
            self.sanitizer.leave(cta)
            self.bulk.leave(cta)

    def lacking(self, mask: np.ndarray, instr: Instruction | None) -> list[str]:
        """Describe, line by line, the waits of threads that stand at an instruction."""
        if instr is None:
            return []
        if classify.uses_mbarrier(instr):
            return self.mbarriers.lacking(mask)
        if Effect.CLUSTER in instr.effects:
            return self.clusters.lacking(mask)
        return self.clusters.lacking_registers(mask)
