"""One instruction of single threads, a load or a store on many register images: inputs that find
mistakes, and kernels that run it. Instructions of matrices have `matrix_probes`.

The inputs of a form depend on its mnemonic alone, so that results captured on a GPU can be
replayed on any machine.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl import isa
from tensorcore_dsl.dtypes import DType
from tensorcore_dsl.isa.effects import Effect
from tensorcore_dsl.isa.spec import Instruction, Operand
from tests.matrix_inputs import FLOATS

FULL_MASK = 0xFFFFFFFF
REGIMES = 8
THREADS = 8192


def elements(name: str, bits: int, shape: tuple[int, ...], regime: np.ndarray, rng: Any) -> Any:
    """Random elements as uint64 bits; `regime` broadcasts against `shape`."""
    raw = rng.integers(0, 2**64, shape, np.uint64) >> np.uint64(64 - bits)
    if name not in FLOATS:
        corners = np.array([0, 1, 2**bits - 1, 2 ** (bits - 1), 2 ** (bits - 1) - 1], np.uint64)
        corner = corners[rng.integers(0, len(corners), shape)]
        return np.where((regime % 3 == 1) & (rng.random(shape) < 0.3), corner, raw)
    exp_bits, man_bits, bias = FLOATS[name]
    top = 2**exp_bits - 1

    def built(low: int, high: int, mantissa: Any = None) -> Any:
        e = np.clip(rng.integers(bias + low, bias + high + 1, shape), 0, top).astype(np.uint64)
        m = raw & np.uint64(2**man_bits - 1) if mantissa is None else mantissa
        sign = (raw >> np.uint64(bits - 1)) if bits > exp_bits + man_bits else np.zeros_like(raw)
        return sign << np.uint64(bits - 1) | e << np.uint64(man_bits) | m

    coarse = (raw & np.uint64(3)) << np.uint64(max(man_bits - 2, 0))
    pool = built(-2, 2)
    flat = pool.reshape(-1)
    pool = flat[rng.integers(0, min(6, flat.size), shape)] ^ ((raw & np.uint64(1)) << np.uint64(bits - 1))
    special = np.array(
        [
            0,
            1,
            1 << (bits - 1),
            top << man_bits,
            (top << man_bits) | 1,
            (top << man_bits) - 1,
            (1 << (bits - 1)) | (top << man_bits),
            (1 << bits) - 1,
            2**man_bits - 1,
            2**man_bits,
        ],
        np.uint64,
    ) & np.uint64(2**bits - 1)
    some = special[rng.integers(0, len(special), shape)]
    mixed = np.where(rng.random(shape) < 0.06, some, built(-3, 3))
    choices = [
        raw,
        built(-3, 3),
        built(0, 1, coarse),
        built(-bias // 3, bias // 3),
        built(-bias, -bias + 2),
        mixed,
        built(bias // 2 - 1, bias // 2 + 1),
        pool,
    ]
    return np.select([regime % REGIMES == i for i in range(REGIMES)], choices)


def element_type(operand: Operand) -> tuple[str, int]:
    """Name and bits of the elements in one register of the operand."""
    dtype: DType = operand.dtype
    name = {"f16x2": "f16", "bf16x2": "bf16"}.get(dtype.name, dtype.name)
    return name, dtype.bits // dtype.lanes


def registers(operand: Operand, instr: Instruction, threads: int, rng: Any) -> np.ndarray:
    """(threads, registers) images as uint32 or uint64."""
    width = max(operand.register_bits, 16)
    if operand.name == "mask" and instr.opcode != "fns":
        return np.full((threads, 1), FULL_MASK, np.uint32)
    if instr.opcode == "fns" and operand.name != "mask":  # other numbers mean nothing to it
        low, high = (0, 32) if operand.name == "base" else (-33, 34)
        return rng.integers(low, high, (threads, 1)).astype(np.int32).view(np.uint32)
    name, bits = element_type(operand)
    regime = np.arange(threads)[:, None, None]
    per = 1 if width < 32 else max(width // bits, 1)
    numbers = elements(name, bits, (threads, operand.registers, per), regime, rng)
    shifts = (np.arange(per) * bits).astype(np.uint64)
    word = np.bitwise_or.reduce(numbers << shifts, axis=-1)
    if operand.register_bits == 1:
        word &= np.uint64(1)
    return word.astype(np.uint64 if width == 64 else np.uint32)


def inputs(instr: Instruction) -> list[Any]:
    """One entry an operand: an image, or the number of an immediate."""
    rng = np.random.default_rng(zlib.crc32(instr.mnemonic.encode()))
    images: list[Any] = []
    for operand in instr.operands:
        if operand.kind == "imm":
            allowed = operand.values or (rng.integers(0, 32),)
            images.append(int(allowed[rng.integers(0, len(allowed))]))
        else:
            images.append(registers(operand, instr, THREADS, rng))
    return images


def planes(images: list[Any]) -> np.ndarray:
    """All register operands as (words, threads) of uint32."""
    words = []
    for image in images:
        if isinstance(image, np.ndarray):
            words.append(image.view(np.uint32).reshape(len(image), -1).T)
    return np.concatenate(words)


def result_words(instr: Instruction) -> int:
    return sum(r.registers * (2 if r.register_bits == 64 else 1) for r in instr.results)


@tc.kernel
def probe(data: tc.Array, out: tc.Array, instrs: tc.Const):
    """Run each (form, immediates) on its planes of `data` (words, threads)."""
    thread = tc.blockIdx.x * tc.blockDim.x + tc.threadIdx.x
    word, place = 0, 0
    for instr, immediates in instrs:
        operands, numbers = [], list(immediates)
        for operand in instr.operands:
            if operand.kind == "imm":
                operands.append(numbers.pop(0))
                continue
            count = operand.registers * (2 if operand.register_bits == 64 else 1)
            words = [data[word + i, thread] for i in range(count)]
            word += count
            operands.append(as_operand(operand, words))
        results = instr(*operands)
        results = results if isinstance(results, tuple) else (results,)
        for result in results:
            for value in as_words(result):
                out[place, thread] = value
                place += 1


def as_operand(operand, words):
    """32-bit words as the registers of an operand."""
    bits = operand.register_bits
    if bits == 64:
        pairs = zip(words[0::2], words[1::2], strict=True)
        values = [tc.emit("mov.b64.pack", low, high) for low, high in pairs]
    elif bits == 16:
        values = [tc.emit("mov.b32.unpack", w)[0] for w in words]
    elif bits == 1:
        values = [(w & 1) != 0 for w in words]
    elif operand.layout is not None and operand.dtype.storage_bits == 32:
        values = [w.bits(operand.dtype) for w in words]
    else:
        values = words
    if operand.layout is None and operand.registers == 1:
        return values[0] if bits == 1 else values[0].bits(operand.dtype)
    return values


def as_words(result):
    """The registers of a result as 32-bit words."""
    found = []
    for value in result.registers if hasattr(result, "registers") else [result]:
        bits = value.dtype.register_bits
        if bits == 64:
            found.extend(tc.emit("mov.b64.unpack", value))
        elif bits == 16:
            zero = tc.emit("mov.b32.unpack", tc.u32(0))[0]
            found.append(tc.emit("mov.b32.pack", value, zero))
        elif bits == 1:
            found.append(tc.select(value, tc.u32(1), tc.u32(0)))
        else:
            found.append(value.bits(tc.u32))
    return found


def on_cpu(instr: Instruction, images: list[Any], arch: str) -> np.ndarray:
    """(words, threads) of results from `tc.emulate`."""
    operands = []
    for operand, image in zip(instr.operands, images, strict=True):
        if not isinstance(image, np.ndarray):
            operands.append(image)
            continue
        bits = operand.register_bits
        image = image.astype({1: np.bool_, 16: np.uint16}.get(bits, image.dtype))
        image = image.reshape(-1, 32, image.shape[-1])
        operands.append(image if operand.registers > 1 else image[..., 0])
    results = tc.emulate(instr, *operands, arch=arch)
    results = results if isinstance(results, tuple) else (results,)
    words = []
    for result, operand in zip(results, instr.results, strict=True):
        count = operand.registers
        wide = np.uint64 if operand.register_bits == 64 else np.uint32
        image = np.ascontiguousarray(result.reshape(-1, count).astype(wide))
        words.append(image.view(np.uint32).reshape(len(image), -1).T)
    return np.concatenate(words)


APPROXIMATE = (
    "ex2",
    "lg2",
    "rcp.approx",
    "rsqrt",
    "sqrt.approx",
    "sin",
    "cos",
    "tanh",
    "div.approx",
    "div.full",
)
MATRIX = ("mma", "wmma", "wgmma", "movmatrix")
NOT_A_FUNCTION = (
    "mov.u32.%",
    "mov.u64.%",
    "mov.pred.%",
    "shared.",
    "activemask",
    "elect",
    "bar",
    "vprintf",
    "mapa",
    "cvta",
)


def probed(instr: Instruction, arch: str) -> bool:
    """Tell whether the form is a function of its registers whose bits are promised on `arch`."""
    text = instr.mnemonic
    if not instr.requires.met_by(tc.ARCHS[arch]) or not instr.results or not instr.operands:
        return False
    if any(o.kind == "addr" for o in instr.operands) or instr.opcode in MATRIX:
        return False
    if instr.effects & (Effect.LOAD | Effect.STORE | Effect.BLOCKING):
        return False
    if instr.section == "9.7.2":  # they read and write a carry, too: test_carries.py
        return False
    return not text.startswith(NOT_A_FUNCTION) and not text.startswith(APPROXIMATE)


def probed_forms(arch: str) -> list[Instruction]:
    return [instr for instr in isa.instructions() if probed(instr, arch)]


def batches(instrs: list[Instruction], size: int = 32) -> list[list[Instruction]]:
    """Forms that share a kernel: not too many."""
    return [instrs[at : at + size] for at in range(0, len(instrs), size)]


def on_kernel(instrs: list[Instruction], launch: Any) -> list[np.ndarray]:
    """(words, threads) of each form's results, computed by the probe kernel.

    `launch(data, out, forms)` runs it."""
    images = [inputs(instr) for instr in instrs]
    data = np.ascontiguousarray(np.concatenate([planes(i) for i in images]))
    out = np.zeros((sum(result_words(f) for f in instrs), THREADS), np.uint32)
    numbers = tuple(tuple(x for x in i if not isinstance(x, np.ndarray)) for i in images)
    launch(data, out, tuple(zip(instrs, numbers, strict=True)))
    ends = np.cumsum([result_words(f) for f in instrs])
    return np.split(out, ends[:-1])


# -- shared memory ------------------------------------------------------------------------------

IMAGE = 4096  # bytes of shared memory of a warp


@tc.kernel
def shared_probe(
    data: tc.Array, addresses: tc.Array, values: tc.Array, out: tc.Array, dump: tc.Array, instr: tc.Const
):
    """One warp a block: fill shared memory, run `instr` at each lane's address, dump it."""
    tc.launch_bounds(32)
    lane, warp = tc.threadIdx.x, tc.blockIdx.x
    thread = warp * 32 + lane
    tile = tc.shared(IMAGE // 4, tc.u32)
    for i in tc.range(IMAGE // 128):
        tile[lane + 32 * i] = data[warp, lane + 32 * i]
    tc.barrier()
    operands, word = [tile.at(0).address + addresses[warp, lane]], 0
    for operand in instr.operands[1:]:
        count = operand.registers * (2 if operand.register_bits == 64 else 1)
        words = [values[word + i, thread] for i in range(count)]
        word += count
        operands.append(as_operand(operand, words))
    result = instr(*operands)
    if instr.results:
        for place, value in enumerate(as_words(result)):
            out[place, thread] = value
    tc.barrier()
    for i in tc.range(IMAGE // 128):
        dump[warp, lane + 32 * i] = tile[lane + 32 * i]


def shared_forms(arch: str) -> list[Instruction]:
    """Loads and stores of shared memory whose lanes do not depend on each other's order."""
    forms = []
    for instr in isa.instructions():
        if instr.opcode not in ("ld", "st", "atom"):
            continue
        first = instr.operands[0]
        if ".shared" not in instr.mnemonic or first.kind != "addr" or first.dtype.bits != 32:
            continue
        if instr.requires.met_by(tc.ARCHS[arch]) and "cluster" not in instr.mnemonic:
            forms.append(instr)
    return forms


def shared_inputs(instr: Instruction, warps: int) -> tuple[np.ndarray, np.ndarray, list[Any]]:
    """Memory images, one address a lane (distinct multiples of 16), register operands."""
    rng = np.random.default_rng(zlib.crc32(instr.mnemonic.encode()))
    data = rng.integers(0, 2**32, (warps, IMAGE // 4), np.uint32)
    if "f" in instr.mnemonic.rsplit(".", 1)[-1]:  # floats near each other
        data = data & np.uint32(0x03FF03FF) | np.uint32(0x3C003C00)
    slots = np.argsort(rng.random((warps, IMAGE // 16)), axis=1)[:, :32]
    values = [registers(o, instr, warps * 32, rng) for o in instr.operands[1:]]
    return data, (slots * 16).astype(np.uint32), values


def shared_on_kernel(instr: Instruction, launch: Any, warps: int = 64) -> np.ndarray:
    """Result words and the final memory, as one row of words."""
    data, addresses, values = shared_inputs(instr, warps)
    planes_ = planes(values) if values else np.zeros((1, warps * 32), np.uint32)
    out = np.zeros((max(result_words(instr), 1), warps * 32), np.uint32)
    dump = np.zeros_like(data)
    launch(data, addresses, np.ascontiguousarray(planes_), out, dump, instr, warps)
    return np.concatenate([out.reshape(-1), dump.reshape(-1)])


def shared_on_cpu(instr: Instruction, arch: str, warps: int = 64) -> np.ndarray:
    """Run the probe in the emulated kernel, which runs the row's own meaning."""

    def launch(data: Any, addresses: Any, values: Any, out: Any, dump: Any, instr: Any, n: int) -> None:
        shared_probe.emulator(arch)[n, 32](data, addresses, values, out, dump, instr=instr)

    return shared_on_kernel(instr, launch, warps)
