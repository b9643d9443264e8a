"""Tensor maps in global memory that kernels make by tensormap.replace (PTX manual 9.7.9.28).

A tensor copy reads its map through a proxy of its own. The map must have the bytes that the CTA has
last acquired by a fence of this proxy. No thread may acquire a map that was changed after its release.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from tensorcore_dsl.errors import EmulationError
from tensorcore_dsl.interpreter.core.chunk import Chunk
from tensorcore_dsl.interpreter.memory.global_memory import MAP_BASE, MAP_SHIFT, GlobalMemory
from tensorcore_dsl.interpreter.memory.pixel_columns import PixelColumn
from tensorcore_dsl.interpreter.memory.tensor_box import BOX, EXTENT, NAN_FILL, RANK, STRIDE, TensorBox
from tensorcore_dsl.interpreter.sanitizer.races import Conflict, Operations
from tensorcore_dsl.interpreter.sanitizer.vector_clocks import ORDER
from tensorcore_dsl.isa import advice
from tensorcore_dsl.isa.context import Context
from tensorcore_dsl.isa.tensormap import ADDRESS, OBJECT, VIRTUAL

# Element types by the number of the manual's table 33; later ones have no bytes of their own.
TYPES = ("u8", "u16", "u32", "s32", "u64", "s64", "f16", "f32", "f32", "f64", "bf16", "f32", "f32")
BYTES = (1, 2, 4, 4, 8, 8, 2, 4, 4, 8, 2, 4, 4)
SWIZZLES = (0, 16, 48, 112)  # address bits that each swizzle mode changes


class MapObjects:
    """The tensor maps of a launch, and the chunk's knowledge of maps in global memory.

    Attributes
    ----------
    boxes
        The boxes of maps that are parameters.
    changed : dict
        The thread that has changed a map since it was released.
    known : dict
        By CTA, too, the bytes that its threads have acquired.
    """

    def __init__(self, chunk: Chunk, memory: GlobalMemory) -> None:
        self.chunk, self.memory = chunk, memory
        self.boxes = [
            TensorBox.of(m) if m.im2col is None else PixelColumn.along(m, m.im2col)
            for m in memory.arguments.maps
        ]
        self.changed: dict[int, int] = {}
        self.known: dict[tuple[int, int], bytes] = {}

    def _each(self, ctx: Context, addresses: Any) -> list[tuple[int, int]]:
        """The active threads, and the address of each."""
        active = self.memory.active(ctx)
        each_address = np.broadcast_to(addresses, active.shape)
        return [(thread, int(each_address[thread])) for thread in np.flatnonzero(active).tolist()]

    def replaced(self, ctx: Context, addresses: Any) -> None:
        self.changed |= {address: thread for thread, address in self._each(ctx, addresses)}

    def released(self, ctx: Context, addresses: Any = None) -> None:
        """The active threads release maps. None: all maps that they have changed."""
        active = self._each(ctx, 0 if addresses is None else addresses)
        gone = (
            {address for _, address in active}
            if addresses is not None
            else {address for address, thread in self.changed.items() if (thread, 0) in active}
        )
        self.changed = {k: thread for k, thread in self.changed.items() if k not in gone}

    def acquired(self, ctx: Context, addresses: Any) -> None:
        for thread, address in self._each(ctx, addresses):
            if address in self.changed:
                by = self.chunk.describe(self.changed[address])
                raise EmulationError(
                    f"{self.chunk.describe(thread)} acquires the tensor map at {address:#x}, "
                    f"which {by} has changed and not released: {advice.TENSORMAP_RELEASE} by that "
                    "thread comes first (PTX manual, 9.7.13.4)"
                )
            self.known[thread // self.chunk.group, address] = self._read(thread, address)

    def _read(self, thread: int, address: int) -> bytes:
        """The bytes of a map, of whose last change in an earlier launch its thread must know."""
        _, real = self.memory.locate(address, OBJECT.itemsize, "tensor map", thread)
        detector, threads = self.memory.sanitizer.detector, np.arange(self.chunk.threads)
        if detector is not None and not detector.early.over:
            addresses, at = np.full(threads.shape, address, np.uint64), self.chunk.at_step
            early = detector.early.words(False, addresses, threads == thread, OBJECT.itemsize, at)
            if early is not None:
                early.tell()
        return ctypes.string_at(real, OBJECT.itemsize)

    def box(self, thread: int, address: int, rank: int, verb: str) -> TensorBox:
        """The box of a map at an address, for a copy of `rank` coordinates; at none of them yet."""
        index, offset = (address >> MAP_SHIFT) - MAP_BASE, address & ((1 << MAP_SHIFT) - 1)
        if 0 <= index < len(self.boxes) and not offset:
            return self.boxes[index]
        if index >= 0:
            raise EmulationError(
                f"{address:#x} is not an address of a tensor map of this launch "
                f"({self.chunk.describe(thread)})"
            )
        data, who = self._read(thread, address), self.chunk.describe(thread)
        fields, known = np.frombuffer(data, OBJECT)[0], self.known.get((thread // self.chunk.group, address))
        if self.memory.read_only(address):  # a struct by value
            if int(fields[ADDRESS]) < VIRTUAL and known != data:
                where = self.memory.arguments.describe(address)
                raise EmulationError(
                    f"a tensor copy of {who} uses {where}, where no tensor map is: "
                    "pass a tc.ptx.tensor_map at this offset of the struct"
                )
        elif known != data:
            raise EmulationError(
                f"a tensor copy of {who} uses the tensor map at {address:#x}, whose bytes its "
                f"CTA has not acquired: {advice.TENSORMAP_ACQUIRE} of this address comes behind "
                "the last change (PTX manual, 9.7.13.4)"
            )
        axes, kind = int(fields["rank"]) + 1, int(fields["elemtype"])
        problems = {
            f"it has {axes} axes, {rank} coordinates were given": axes != rank,
            "the emulator has element types 0 to 12, swizzle modes 0 to 3, no interleaving, NaN fill of "
            "floats alone and steps of one element": kind >= len(TYPES)
            or fields["swizzle_mode"] >= len(SWIZZLES) or fields["swizzle_atomicity"]
            or fields["interleave_layout"] or (fields["fill_mode"] and "f" not in TYPES[kind])
            or (fields["element_stride"][:axes] != 1).any(),
            "its extents are 0": axes <= RANK and not fields["global_dim"][:axes].all(),
        }  # fmt: skip
        for complaint, holds in problems.items():
            if holds:
                raise EmulationError(f"the tensor map at {address:#x} ({who}): {complaint}")
        plan = np.ones((4, RANK), np.int64)
        plan[EXTENT, :axes] = fields["global_dim"][:axes]
        plan[BOX, :axes] += fields["box_dim"][:axes]
        plan[STRIDE, 0] = BYTES[kind]
        plan[STRIDE, 1:axes] = 16 * fields["global_stride"][: axes - 1].astype(int)
        reach = int((plan[EXTENT] - 1) @ plan[STRIDE]) + BYTES[kind]
        address_of_array = int(fields[ADDRESS])
        virtual = address_of_array - VIRTUAL
        start = virtual if virtual >= 0 else self.memory.arguments.virtual(address_of_array)
        if start is None:
            raise EmulationError(
                f"the tensor map at {address:#x} ({who}): its array is not an argument of this launch; pass "
                "the array, which the emulator needs to see, to the kernel that copies"
            )
        name, real = self.memory.locate(start, reach, f"tensor {verb}", thread)
        mask = SWIZZLES[int(fields["swizzle_mode"])]
        _, map_at = self.memory.locate(address, OBJECT.itemsize, "tensor map", thread)
        fill = NAN_FILL if fields["fill_mode"] else 0
        return TensorBox(name, real, plan, BYTES[kind], mask, True, TYPES[kind], map_at, fill)

    def read(self, box: TensorBox, operations: Operations) -> Conflict | None:
        """Show the detector of races that copies read their map until they are over (9.7.9.25).

        The fences of the map's proxy are checked where it is acquired.
        """
        detector = self.memory.sanitizer.detector
        if detector is None or not box.map_at:
            return None
        bounds = np.tile([box.map_at, box.map_at + OBJECT.itemsize], (len(operations.threads), 1, 1))
        return detector.global_spans("load", operations, bounds, vector=ORDER)
