"""Machine code of a program's regions: compiled at the first run of one, and kept on disk.

The key of an entry is the micro-operations of the regions. An entry is valid until a source file of
the package from which code is made changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tensorcore_dsl.environment import disk_cache
from tensorcore_dsl.environment.compiled_sources import FunctionKey
from tensorcore_dsl.environment.processors import without_collections
from tensorcore_dsl.interpreter.core import policy
from tensorcore_dsl.interpreter.core.program import Program
from tensorcore_dsl.interpreter.regions import emit, layout, memory
from tensorcore_dsl.interpreter.regions.plan import Region
from tensorcore_dsl.lowering import forms, machine
from tensorcore_dsl.numerics import lanes

# Nanoseconds of a step, and of each of its threads. Measured on an EPYC.
STEP_COST, THREAD_COST = 10_000, 3
# Code of at most so many micro-operations is compiled at level PLAIN, which takes PLAIN_COST times as long.
# Loops of arithmetic then take two thirds of the time, and other code 0.85 to 1 times as long.
PLAIN_MICRO_OPS, PLAIN_COST = 128, 3
_PACKAGE = Path(__file__).parents[2]
# Files from which code is made: regions, the semantics that they contain, and their compiler.
_FOLDERS = "interpreter/regions", "lowering", "numerics", "isa"
_SOURCES = [file for folder in _FOLDERS for file in (_PACKAGE / folder).glob("*.py")]
_KEY = FunctionKey(lanes.vector, *map(str, sorted(_SOURCES)))


@cache
def helper(number: int) -> int:
    """The address of a function of `memory`, by the word of a frame for it."""
    function: Any = {
        layout.GLOBAL: memory.global_access,
        layout.SHARED: memory.shared_access,
        layout.MATRIX: memory.matrix_access,
        layout.ASYNC: memory.async_copy,
        layout.MERGE: memory.merge,
    }[number]
    return int(function.address())


def _directory() -> Path | None:
    return forms.directory() if policy.current.regions_on_disk else None


class RegionCode:
    """The functions of some regions of a program."""

    def __init__(self, program: Program, regions: Sequence[Region]) -> None:
        self.regions = tuple(regions)
        self.constants, self.fixed = program.numbers, program.fixed
        self.layouts = [layout.FrameLayout(region, self.constants, self.fixed) for region in self.regions]
        self._numbers = {region: i for i, region in enumerate(self.regions)}
        self._name = ""
        micro_ops = sum(region.micro_op_count for region in self.regions)
        self._level = machine.PLAIN if micro_ops <= PLAIN_MICRO_OPS else machine.FAST
        self._work = micro_ops * (PLAIN_COST if self._level == machine.PLAIN else 1)
        self._spent, self._asked = 0.0, False
        self._addresses: dict[Region, int] = {}

    def layout(self, region: Region) -> layout.FrameLayout:
        return self.layouts[self._numbers[region]]

    def is_ready(self, micro_ops: int, threads: int) -> bool:
        """True if the code exists, or if compiling it now pays.

        Each call counts as an execution of `micro_ops` by single steps.
        """
        if self._name:
            return True
        with forms.COMPILING:
            if not self._name and not self._asked:
                self._asked = True
                self._name = self._loaded(self._key()) or ""
            self._spent += micro_ops * (STEP_COST + threads * THREAD_COST)
            if not self._name and self._spent >= policy.current.compile_cost * self._work:
                self._name = self._compiled()
        return bool(self._name)

    def address(self, region: Region) -> int:
        """Address of the machine code of a region; compile it if necessary."""
        address = self._addresses.get(region)
        if address is None:
            with forms.COMPILING:
                self._name = self._name or self._loaded(self._key()) or self._compiled()
                address = machine.address_of(f"{self._name}.{self._numbers[region]}")
                self._addresses[region] = address
        return address

    def _key(self) -> str:
        """The name of the code, a digest of all that it depends on."""
        described = [
            (
                region.start,
                region.end,
                region.exits,
                sorted(region.kept),
                sorted(region.passed),
                sorted(region.loaded),
                [*region.reads_at_entry],
                [(b.start, b.end, b.jump, b.whole, b.micro_ops) for b in region.blocks],
            )
            for region in self.regions
        ]
        used = {
            slot[0]: self.constants[slot[0]]
            for region in self.regions
            for block in region.blocks
            for _, micro_op in block.micro_ops
            for slot in micro_op.slots
            if slot[0] in self.constants
        }
        return disk_cache.entry_name(
            "regions", described, sorted(used.items()), sorted(self.fixed), machine.processor()
        )

    def _loaded(self, name: str) -> str | None:
        """Load the code from disk; return its name, or None if it is not there."""
        directory = _directory()
        entry = disk_cache.load(name, directory) if directory else None
        if entry is None or entry[1] != _KEY.sources():
            return None
        try:
            machine.load(entry[0])
        except RuntimeError:  # no object file
            return None
        return name

    def _compiled(self) -> str:
        """Compile the code, store and load it; return its name."""
        name, directory = self._key(), _directory()
        with forms.compiling("regions"):
            code = machine.object_code(self._module(name), self._level)
        if directory:
            disk_cache.store(name, code, _KEY.sources(), directory)
        machine.load(code)
        return name

    @without_collections()
    def _module(self, name: str) -> str:
        module = emit.Module()
        for number, frame_layout in enumerate(self.layouts):
            module.add(f"{name}.{number}", frame_layout)
        return str(module)
