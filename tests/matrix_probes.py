"""One matrix instruction on 4,096 warps: kernels that run it, and the same by the emulator.

A probe's cases come in CHUNKS chunks of 8,192 threads, each made, run and recorded alone. Chunks
differ in the immediates of the instruction (the probe's variants) and, of wgmma, in swizzle,
strides, base offset and start of the matrices in shared memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl import dtypes, isa
from tensorcore_dsl.isa.spec import Instruction, Operand
from tensorcore_dsl.tracing import emitter
from tensorcore_dsl.values.operands import type_of
from tests import matrix_inputs as make
from tests.matrix_records import CHUNKS
from tests.probes import as_operand, as_words

THREADS = 8192  # of a chunk: 256 warps, 64 warpgroups
WARPGROUP = 128
VARIANTS = 4  # most combinations of immediates of one probe
MEMORY_OPCODES = ("ldmatrix", "stmatrix", "wmma")  # with an address, a MemoryProbe
METADATA = ("e", "meta")
Launch = Any


def words_of(operand: Operand) -> int:
    return operand.registers * (2 if operand.register_bits == 64 else 1)


def variants_of(instr: Instruction) -> list[tuple[int, ...]]:
    """Combinations of immediates: all, or VARIANTS of them, others for other shapes."""
    every = list(itertools.product(*(o.values or (0,) for o in instr.operands if o.kind == "imm")))
    if len(every) <= VARIANTS:
        return every
    first = make.seed_of(instr.mnemonic)
    step = len(every) // VARIANTS + 1  # coprime to a power of two, or nearly
    return [every[(first + i * step) % len(every)] for i in range(VARIANTS)]


# -- registers in, registers out ------------------------------------------------------------------


@tc.kernel
def registers_kernel(data: tc.Array, out: tc.Array, instr: tc.Const, variants: tc.Const):
    """Run `instr` on (threads, words) of operands; each chunk has its immediates."""
    tc.launch_bounds(128)
    thread = tc.blockIdx.x * 128 + tc.threadIdx.x
    chunk = tc.blockIdx.x // (THREADS // 128)
    at, given = 0, {}
    for operand in instr.operands:
        if operand.kind != "imm":
            count = words_of(operand)
            given[operand.name] = as_operand(operand, [data[thread, at + i] for i in range(count)])
            at += count
    for which, immediates in enumerate(variants):
        if len(variants) == 1 or chunk % len(variants) == which:
            store(out[thread], instr(*arguments(instr, given, immediates)))


def arguments(instr, given, immediates):
    """Operands in their order."""
    numbers = list(immediates)
    return [numbers.pop(0) if o.kind == "imm" else given[o.name] for o in instr.operands]


def store(out, results):
    """All registers of the results as words."""
    place = 0
    for result in results if isinstance(results, tuple) else (results,):
        for word in as_words(result):
            out[place] = word
            place += 1


@dataclass
class RegisterProbe:
    """A product, or movmatrix: a function of registers and immediates."""

    instr: Instruction

    @cached_property
    def variants(self) -> list[tuple[int, ...]]:
        return variants_of(self.instr)

    @property
    def kernel(self) -> Any:
        return registers_kernel

    def inputs(self, first: int, count: int) -> list[np.ndarray]:
        """(threads, registers) of each register operand, for chunks from `first` on."""
        return [
            registers(self.instr, o, first * THREADS, count * THREADS, 32)
            for o in self.instr.operands
            if o.kind != "imm"
        ]

    def arrays(self, first: int, count: int) -> tuple[np.ndarray, ...]:
        """The kernel's arguments; the last is the output."""
        data = np.hstack([i.view(np.uint32) for i in self.inputs(first, count)])
        size = sum(words_of(r) for r in self.instr.results)
        return data, np.zeros((count * THREADS, size), np.uint32)

    def constants(self) -> dict[str, Any]:
        return {"instr": self.instr, "variants": tuple(self.variants)}

    def launch_shape(self, count: int) -> tuple[int, int]:
        return count * THREADS // 128, 128

    def results(self, arrays: tuple[np.ndarray, ...], count: int) -> list[np.ndarray]:
        return np.split(arrays[-1], count)

    def on_cpu(self, chunk: int, arch: str) -> np.ndarray:
        """(threads, words) of one chunk from `tc.emulate`."""
        immediates = list(self.variants[chunk % len(self.variants)])
        images = self.inputs(chunk, 1)
        operands = [
            immediates.pop(0) if o.kind == "imm" else warps(o, images.pop(0), 32) for o in self.instr.operands
        ]
        return as_rows(self.instr, tc.emulate(self.instr, *operands, arch=arch))


def registers(instr: Instruction, operand: Operand, first: int, threads: int, unit: int) -> np.ndarray:
    """(threads, registers) images; warps (or warpgroups) of `unit` threads share a regime."""
    seed = make.seed_of(instr.mnemonic, operand.name)
    if operand.name in METADATA:
        legal = make.TF32_MASKS if instr.params["a"] == "tf32" else make.MASKS
        return make.metadata(seed, legal, first, threads)
    role = {"b": make.B, "c": make.C}.get(operand.name, make.A)
    layout = operand.layout
    storage = 64 if operand.register_bits == 64 else 32
    if layout is not None and storage == 32:
        storage = 32 // layout.per_register
    kind = make.Kind.of(operand.dtype, storage)
    return make.words(kind, seed, role, first, threads, unit, operand.registers)


def warps(operand: Operand, image: np.ndarray, unit: int) -> np.ndarray:
    image = image.reshape(-1, unit, image.shape[-1])
    return image if operand.is_fragment or operand.registers > 1 else image[..., 0]


def as_rows(instr: Instruction, results: Any) -> np.ndarray:
    """(threads, words) of what `tc.emulate` returns."""
    results = results if isinstance(results, tuple) else (results,)
    rows = []
    for result, operand in zip(results, instr.results, strict=True):
        wide = np.uint64 if operand.register_bits == 64 else np.uint32
        image = np.ascontiguousarray(result.reshape(-1, operand.registers), dtype=wide)
        rows.append(image.view(np.uint32))
    return np.hstack(rows)


# -- wgmma ----------------------------------------------------------------------------------------


@tc.kernel
def warpgroup_kernel(
    data: tc.Array,
    images: tc.Array,
    places: tc.Array,
    out: tc.Array,
    instr: tc.Const,
    variants: tc.Const,
    sizes: tc.Const,
):
    """One warpgroup a block. Shared memory holds the 16-byte chunks of A's and B's image over and
    over: `sizes` are (chunks of the image, bytes of shared memory) of A and of B.

    places (warpgroups, 3): descriptors relative to the start of each part, and scale-d.
    """
    tc.launch_bounds(WARPGROUP)
    group, t = tc.blockIdx.x, tc.threadIdx.x
    thread = group * WARPGROUP + t
    tile = tc.shared(sum(size for _, size in sizes) // 4, tc.u32, align=1024)
    word, byte, starts = 0, 0, []
    for chunks, size in sizes:
        if size:
            for i in tc.range(t, size // 4, WARPGROUP):
                tile[byte // 4 + i] = images[group, word + i % (4 * chunks)]
        starts.append(tile.at(byte // 4).address)
        word, byte = word + 4 * chunks, byte + size
    tc.fence_proxy_async()
    tc.barrier()
    chunk = group // (THREADS // WARPGROUP)
    for which, immediates in enumerate(variants):
        if len(variants) == 1 or chunk // (CHUNKS // VARIANTS) % len(variants) == which:
            run(instr, immediates, data[thread], places[group], starts, out[thread])


def run(instr, immediates, data, places, starts, out):
    """A product from its operands, loaded before its fence, to its stored result."""
    at, given = 0, {}
    for operand in instr.operands:
        if operand.name in ("desc_a", "desc_b"):
            which = int(operand.name == "desc_b")
            low, high = tc.emit("mov.b64.unpack", places[which])
            low = low.bits(tc.u32) + tc.u32(starts[which]) // 16
            given[operand.name] = tc.emit("mov.b64.pack", low.bits(tc.b32), high)
        elif operand.name == "scale_d":
            given[operand.name] = places[2] != 0
        elif operand.kind != "imm":
            count = words_of(operand)
            words = as_operand(operand, [data[at + i] for i in range(count)])
            given[operand.name] = packed(operand, words) if operand.is_fragment else words
            at += count
    tc.wgmma_fence()
    result = instr(*arguments(instr, given, immediates))
    tc.wgmma_commit()
    tc.wgmma_wait(0)
    store(out, result)


def packed(operand, words):
    """One group of registers, made before the fence."""
    return emitter().pack(words, type_of(operand), operand)


SWIZZLES = (0, 32, 64, 128)
CODES = {0: 0, 128: 1, 64: 2, 32: 3}


@dataclass
class Matrix:
    """How A or B lies in shared memory: `rows` of M or N, `depth` bytes of K if K-major."""

    rows: int
    depth: int
    element: int  # bits
    transposed: bool

    def steps(self, swizzle: int) -> tuple[int, int, int]:
        """Bytes of an atom of 8 lines; how many there are along the rows, and along K."""
        atom = 8 * (swizzle or 16)
        if self.transposed:
            width = self.rows * self.element // 8
            return atom, -(-width // (swizzle or 16)), self.depth // self.element
        return atom, self.rows // 8, 1 if swizzle else self.depth // 16

    def size(self) -> int:
        """Bytes that the matrix takes at most, wherever it starts."""
        most = 0
        for swizzle in SWIZZLES:
            atom, along_rows, along_k = self.steps(swizzle)
            twice = 2 if swizzle and not self.transposed and self.rows <= 64 else 1
            most = max(most, atom * along_rows * along_k * twice)
        return most + 1024

    def descriptor(self, swizzle: int, draw: int, offset: bool) -> int:
        """One that `draw`, a random number, picks; `offset`: with a base offset other than 0."""
        turn, part, phase = draw & 1, draw >> 1 & 3, 1 + (draw >> 3) % 7
        atom, groups, depths = self.steps(swizzle)
        rows, k = (atom, atom * groups) if turn else (atom * depths, atom)
        start, base = 0 if swizzle else 16 * part, 0
        if swizzle and not self.transposed:
            rows, k = (2 * atom if turn and self.rows <= 64 else atom), 16
            if swizzle > self.depth:
                start = 32 * (part % ((swizzle - self.depth) // 32 + 1))
        if offset and swizzle:
            start += 128 * phase
            base = phase if 128 * phase % (8 * swizzle) else 0
        leading, stride = (rows, k) if self.transposed and swizzle else (k, rows)
        fields = start >> 4, (leading >> 4) << 16, (stride >> 4) << 32
        return sum(fields) | base << 49 | CODES[swizzle] << 62


@dataclass
class WarpgroupProbe(RegisterProbe):
    """wgmma.mma_async, from its descriptors to its end. Chunk i has swizzle i % 4 and variant
    i // 4; the last four chunks have base offsets."""

    @property
    def kernel(self) -> Any:
        return warpgroup_kernel

    @property
    def parts(self) -> list[tuple[str, int, int]]:
        """(name, rows, bytes of K) of the matrices in shared memory."""
        _, n, _ = self.instr.shape
        sparse = bool(self.instr.params.get("sparse"))
        tiles = [("a", 64, 32)] if self.of_descriptor else []
        return [*tiles, ("b", n, 64 if sparse else 32)]

    @property
    def of_descriptor(self) -> bool:
        return any(o.name == "desc_a" for o in self.instr.operands)

    def variant(self, chunk: int) -> dict[str, int]:
        names = [o.name for o in self.instr.operands if o.kind == "imm"]
        chosen = self.variants[chunk // (CHUNKS // VARIANTS) % len(self.variants)]
        return dict(zip(names, chosen, strict=True))

    @cached_property
    def sizes(self) -> tuple[tuple[int, int], ...]:
        """((chunks of the image, bytes of shared memory) of A, of B)."""
        pairs = []
        for name, rows, depth in self.parts:
            chunks = rows * depth // 16 + 1  # odd: lines of a power of two fall on all chunks
            bits = dtypes.named(self.instr.params[name]).bits
            turned = {self.variant(c).get(f"trans_{name}") == 1 for c in range(CHUNKS)}
            size = max(Matrix(rows, depth, bits, t).size() for t in turned)
            pairs.append((chunks, -(-size // 1024) * 1024))
        return tuple(pairs if len(pairs) == 2 else [(0, 0), *pairs])

    def memory(self, first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Images (warpgroups, words) and places (warpgroups, 3) of chunks from `first` on."""
        per = THREADS // WARPGROUP
        groups, at = count * per, first * per
        images, places = [], np.zeros((groups, 3), np.uint64)
        draws = make.numbers(make.seed_of(self.instr.mnemonic, "places"), at, groups)
        for (name, rows, depth), (chunks, _) in zip(self.parts, self.sizes[-len(self.parts) :], strict=True):
            dtype = dtypes.named(self.instr.params[name])
            kind = make.Kind.of(dtype, dtype.storage_bits)
            seed = make.seed_of(self.instr.mnemonic, name)
            role = make.B if name == "b" else make.A
            images.append(make.words(kind, seed, role, at, groups, 1, 4 * chunks))
            shift = 8 if name == "b" else 32
            for group in range(groups):
                chunk = (at + group) // per
                matrix = Matrix(rows, depth, dtype.bits, self.variant(chunk).get(f"trans_{name}") == 1)
                places[group, name == "b"] = matrix.descriptor(
                    SWIZZLES[chunk % 4], int(draws[group]) >> shift & 0xFFFFFF, chunk >= 12
                )
        places[:, 2] = draws >> np.uint64(61) != 0
        return np.hstack(images), places

    def inputs(self, first: int, count: int) -> list[np.ndarray]:
        return [
            registers(self.instr, o, first * THREADS, count * THREADS, WARPGROUP)
            for o in self.instr.operands
            if o.kind == "reg" and not o.name.startswith(("desc_", "scale_"))
        ]

    def arrays(self, first: int, count: int) -> tuple[np.ndarray, ...]:
        data, out = super().arrays(first, count)
        return data, *self.memory(first, count), out

    def constants(self) -> dict[str, Any]:
        return {**super().constants(), "sizes": self.sizes}

    def on_cpu(self, chunk: int, arch: str) -> np.ndarray:
        instr = self.instr
        images, places = self.memory(chunk, 1)
        shared, at, word = [], [], 0
        for chunks, size in self.sizes:
            which = np.arange(size // 16) % max(chunks, 1)
            part = images[:, word : word + 4 * chunks].reshape(len(images), -1, 4)
            shared.append(part[:, which].reshape(len(images), size // 4) if chunks else images[:, :0])
            at.append(sum(s.shape[1] for s in shared[:-1]) * 4)
            word += 4 * chunks
        operands, registers_, numbers = [], self.inputs(chunk, 1), self.variant(chunk)
        for operand in instr.operands:
            if operand.name in numbers:
                operands.append(numbers[operand.name])
            elif operand.name in ("desc_a", "desc_b"):
                which = int(operand.name == "desc_b")
                operands.append(places[:, which] + np.uint64(at[which] >> 4))
            elif operand.name == "scale_d":
                operands.append(np.repeat(places[:, 2:] != 0, WARPGROUP, axis=1))
            else:
                operands.append(warps(operand, registers_.pop(0), WARPGROUP))
        memory = np.ascontiguousarray(np.hstack(shared)).view(np.uint8)
        return as_rows(instr, tc.emulate(instr, *operands, arch=arch, shared=memory))


# -- moves between memory and registers -----------------------------------------------------------


@tc.kernel
def memory_kernel(
    image: tc.Array,
    places: tc.Array,
    values: tc.Array,
    out: tc.Array,
    dump: tc.Array,
    instr: tc.Const,
    words: tc.Const,
):
    """One warp a block: fill memory of `words` words, run `instr` at each lane's place, dump it.

    places (warps, 33): a byte offset for each lane, and a stride."""
    tc.launch_bounds(32)
    lane, warp = tc.threadIdx.x, tc.blockIdx.x
    thread = warp * 32 + lane
    shared = ".global" not in instr.mnemonic
    if shared:
        tile = tc.shared(words, tc.u32, align=128)
        for i in tc.static_range(words // 32):
            tile[lane + 32 * i] = image[warp, lane + 32 * i]
        start = tile.at(0).address
        place = start + places[warp, lane]
    else:
        for i in tc.static_range(words // 32):
            dump[warp, lane + 32 * i] = image[warp, lane + 32 * i]
        start = dump.at(warp, 0).address
        place = start + tc.u64(places[warp, lane])
    tc.barrier()
    operands = [place]
    for operand in instr.operands[1:]:
        if operand.name == "stride":
            operands.append(places[warp, 32])
        else:
            count = words_of(operand)
            operands.append(as_operand(operand, [values[thread, i] for i in range(count)]))
    result = instr(*operands)
    if instr.results:
        store(out[thread], result)
    tc.barrier()
    if shared:
        for i in tc.static_range(words // 32):
            dump[warp, lane + 32 * i] = tile[lane + 32 * i]


@dataclass
class MemoryProbe:
    """wmma.load, wmma.store, ldmatrix, stmatrix: registers and the whole memory are compared."""

    instr: Instruction

    @property
    def kernel(self) -> Any:
        return memory_kernel

    @property
    def is_wmma(self) -> bool:
        return self.instr.opcode == "wmma"

    @cached_property
    def geometry(self) -> tuple[int, int, int]:
        """Of wmma, in bytes: of a line, between lines at least, lines."""
        layout = (self.instr.results or self.instr.operands[1:])[0].layout
        rows, cols = layout.rows, layout.cols
        lines, line = (rows, cols) if self.instr.params["order"] == "row" else (cols, rows)
        size = line * layout.dtype.storage_bits // 8
        return size, -(-size // 16) * 16, lines

    @cached_property
    def words(self) -> int:
        if not self.is_wmma:
            return 1024
        _, apart, lines = self.geometry
        return -(-((apart + 48) * lines + 96) // 128) * 32

    def constants(self) -> dict[str, Any]:
        return {"instr": self.instr, "words": self.words}

    def launch_shape(self, count: int) -> tuple[int, int]:
        return count * THREADS // 32, 32

    def arrays(self, first: int, count: int) -> tuple[np.ndarray, ...]:
        instr, number = self.instr, count * THREADS // 32
        at = first * THREADS // 32
        kind = make.Kind("bits", 32, 32)
        image = make.words(kind, make.seed_of(instr.mnemonic, "image"), make.A, at, number, 1, self.words)
        values = [
            registers(instr, o, first * THREADS, count * THREADS, 32)
            for o in instr.operands[1:]
            if o.name != "stride"
        ]
        words = np.hstack([v.view(np.uint32) for v in values]) if values else np.zeros((1, 1), np.uint32)
        size = sum(words_of(r) for r in instr.results)
        out = np.zeros((count * THREADS, max(size, 1)), np.uint32)
        return image, self._places(at, number), words, out, np.zeros_like(image)

    def _places(self, at: int, number: int) -> np.ndarray:
        draws = make.numbers(make.seed_of(self.instr.mnemonic, "places"), at * 33, number * 33)
        draws = draws.reshape(number, 33)
        offsets = np.zeros((number, 33), np.uint32)
        if self.is_wmma:
            bits = (self.instr.results or self.instr.operands[1:])[0].layout.dtype.storage_bits
            offsets[:, :32] = (draws[:, :1] % np.uint64(3) * np.uint64(32)).astype(np.uint32)
            apart = np.uint64(self.geometry[1]) + np.uint64(16) * (draws[:, 32] % np.uint64(4))
            offsets[:, 32] = apart * np.uint64(8) // np.uint64(bits)
        else:  # distinct rows of 16 bytes
            keys = make.numbers(make.seed_of(self.instr.mnemonic, "rows"), at * 256, number * 256)
            offsets[:, :32] = 16 * np.argsort(keys.reshape(number, 256), axis=1)[:, :32]
        return offsets

    def results(self, arrays: tuple[np.ndarray, ...], count: int) -> list[np.ndarray]:
        """The registers of each chunk, then its memory, as one row of words."""
        parts = (np.split(x, count) for x in arrays[-2:])
        return [np.concatenate([a.reshape(-1), b.reshape(-1)]) for a, b in zip(*parts, strict=True)]

    def on_cpu(self, chunk: int, arch: str) -> np.ndarray:
        """Run a chunk in the emulated kernel, which runs the row's own meaning."""
        arrays = self.arrays(chunk, 1)
        # rows of a store may overlap at its stride, which is a race: its bits are those of an order
        overlaps = not self.instr.results and any(o.name == "stride" for o in self.instr.operands)
        launch = memory_kernel.emulator(arch, checks=False if overlaps else None)
        launch[self.launch_shape(1)](*arrays, **self.constants())
        return self.results(arrays, 1)[0]


# -- all of them ----------------------------------------------------------------------------------

Probe = RegisterProbe | MemoryProbe


def probe_of(instr: Instruction) -> Probe | None:
    """How a matrix instruction is probed; None for all others."""
    if instr.operands and instr.operands[0].kind == "addr" and instr.opcode in MEMORY_OPCODES:
        return MemoryProbe(instr)
    if instr.opcode == "wgmma":
        return WarpgroupProbe(instr) if instr.results else None
    return RegisterProbe(instr) if instr.opcode in ("mma", "wmma", "movmatrix") else None


def probes_of(arch: str, only: str = "") -> Iterator[Probe]:
    """A probe of every matrix instruction of an architecture."""
    for instr in isa.instructions():
        if only in instr.mnemonic and instr.requires.met_by(tc.ARCHS[arch]):
            probe = probe_of(instr)
            if probe is not None:
                yield probe
