"""Emulate one instruction on register images, for any architecture, without a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tensorcore_dsl import arch as archs
from tensorcore_dsl import isa
from tensorcore_dsl.environment.processors import cores
from tensorcore_dsl.errors import OperandError, OutOfBounds
from tensorcore_dsl.interpreter.core.geometry import Geometry
from tensorcore_dsl.interpreter.core.program import Program, Step, word
from tensorcore_dsl.interpreter.core.shadow import SharedStorage
from tensorcore_dsl.interpreter.execution.context import ExecutionContext
from tensorcore_dsl.interpreter.memory.global_memory import Arguments
from tensorcore_dsl.ir.constants import const_bits, immediate_complaint
from tensorcore_dsl.ir.nodes import Block, Const, Kernel
from tensorcore_dsl.isa import generic
from tensorcore_dsl.isa.access import GENERIC
from tensorcore_dsl.isa.effects import WARP, Effect
from tensorcore_dsl.isa.spec import Instruction, Operand

MIN_THREADS, MAX_THREADS = 8192, 32768  # threads that run at a time, where the batch has so many


def emulate(
    text: str | Instruction, *operands: Any, arch: str = "sm_90a", shared: np.ndarray | None = None
) -> Any:
    """The result of one instruction on raw bits, as an architecture computes it.

    Parameters
    ----------
    text : str or Instruction
        The mnemonic, or an instruction of the table.
    *operands : array or number
        In the order of the PTX operands, without the destination unless it is read too. Fragments
        and vectors are `(..., threads, registers)` of uint32 (uint64 for 64-bit types), `threads`
        being 32, or 128 for a warpgroup; other registers are `(..., threads)`, or one Python number
        for all threads; descriptors are a uint64 or an array of the batch's shape. Leading axes are
        a batch and broadcast. Immediates, selectors and predicates are Python ints and bools, a
        `{byte-id, thread-id}` pair a tuple.
    arch : str
        The architecture whose rounding is modelled: "sm_80", "sm_90a", ...
    shared : ndarray, optional
        Shared memory, `(..., bytes)` of uint8, address 0 first; also of generic addresses.

    Returns
    -------
    ndarray or tuple
        The result's image in the same convention, a tuple when there are several; of an instruction
        that only stores, the new contents of `shared`. A single register may be given as `(...,
        threads, 1)`; then the result has that axis too, as results of instructions with a matrix
        shape (ldmatrix, movmatrix) always have.

    Raises
    ------
    UnknownInstruction
        No such text in the table.
    OperandError
        Another number of operands, arrays of another shape or type.
    ArchError
        An architecture that lacks the instruction.

    Examples
    --------
    >>> one = np.full(32, 1.0, np.float32).view(np.uint32)
    >>> tc.emulate("add.rn.f32", one, one).view(np.float32)[0]
    np.float32(2.0)
    >>> mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
    >>> halves = [np.full((32, n), 0x3C003C00, np.uint32) for n in (4, 2)]    # pairs of 1.0 in f16
    >>> d = tc.emulate(mma.ptx, *halves, np.zeros((32, 4), np.uint32), arch="sm_80")
    >>> d.view(np.float32)[0]
    array([16., 16., 16., 16.], dtype=float32)
    """
    instr = _instr(text, operands)
    target = archs.arch(arch)
    instr.requires.check(target, instr.mnemonic)
    images = _images(instr, _flat(operands))
    batch = _batch(instr, images, shared)
    memory = _shared(shared, batch)
    threads, total = instr.threads, prod(batch)
    processors = cores()
    step = max(MIN_THREADS // threads, -(-total // processors))
    if not _is_alone(instr):  # Such an instruction takes memory for each thread.
        step = min(step, MAX_THREADS // threads)
    starts = range(0, total, step)
    product = None
    if _is_product(instr):
        result = instr.results[0]
        product = np.empty((total, threads, result.registers), word(result.register_bits))

    def part(at: int) -> tuple[Any, ...]:
        rows = memory[at : at + step]
        operands = [image.columns(batch, at, len(rows)) for image in images]
        into = None if product is None else product[at : at + step]
        return _run(instr, target.name, operands, rows, into)

    workers = min(processors, len(starts))
    try:
        if workers > 1:
            with ThreadPoolExecutor(workers) as pool:
                pieces = list(pool.map(part, starts))
        else:
            pieces = [part(at) for at in starts]
    except OutOfBounds as error:
        if shared is None and error.message.endswith("no shared memory"):
            raise OutOfBounds(f"{error.message}; pass shared=, its bytes (uint8)") from None
        raise
    if product is not None:
        return product.reshape(*batch, *product.shape[1:])
    if not instr.results:
        return memory.reshape(*batch, memory.shape[1]) if Effect.STORE in instr.effects else None
    single = "shape" in instr.params or any(image.single for image in images)
    results = [
        _result(operand, [part[i] for part in pieces], batch, threads, single)
        for i, operand in enumerate(instr.results)
    ]
    return results[0] if len(results) == 1 else tuple(results)


def _instr(text: str | Instruction, operands: Sequence[Any]) -> Instruction:
    """The instruction that `text` names. PTX writes it alike for an operand in shared memory and in
    registers, the table does not; here the operand decides."""
    instr = isa.instruction(text) if isinstance(text, str) else text
    for operand, value in zip(instr.operands, _flat(operands), strict=False):
        image = isinstance(value, np.ndarray) and value.dtype == np.uint32 and value.ndim > 1
        if image and instr.in_registers(operand):
            return isa.instruction(instr.in_registers(operand))
    return instr


def _flat(operands: Sequence[Any]) -> list[Any]:
    """Operands with `{byte-id, thread-id}` pairs taken apart."""
    return [part for o in operands for part in (o if isinstance(o, tuple) else (o,))]


class _Image:
    """One operand: its array, and the shape of its batch (the leading axes)."""

    def __init__(self, instr: Instruction, operand: Operand, value: Any) -> None:
        self.operand, self.threads = operand, instr.threads
        self.group = operand.registers > 1 or operand.is_fragment
        self.immediate = operand.kind == "imm"
        self.viewed = _is_product(instr)  # semantics take registers at any distance
        is_array = isinstance(value, np.ndarray) and not self.immediate
        self.number = None if is_array else self._number(instr, value)
        self.array = np.empty(0) if self.number is not None else self._array(instr, value)
        self.batch: tuple[int, ...] = ()
        self.single = False  # a single register that has an axis of its own
        if self.number is None:
            self._shape(instr)

    def _number(self, instr: Instruction, value: Any) -> Any:
        if isinstance(value, np.generic):
            value = value.item()  # ml_dtypes' numbers stay what they are
        if not isinstance(value, (int, float)):
            wanted = "a number" if self.immediate else "a NumPy array of register bits or a number"
            raise OperandError(
                f"{instr}: operand {self.operand.name} is a {type(value).__name__}; {wanted} is needed"
            )
        if self.group:
            raise OperandError(f"{instr}: operand {self.operand.name} needs {_wanted(instr, self)}")
        if self.immediate:
            complaint = immediate_complaint(value, self.operand)
            if complaint:
                raise OperandError(f"{instr}: operand {self.operand.name}: {complaint}")
            return int(value)
        return word(self.operand.register_bits)(const_bits(Const(value, self.operand.dtype)))

    def _array(self, instr: Instruction, value: np.ndarray) -> np.ndarray:
        wanted = np.dtype(word(self.operand.register_bits))
        if value.dtype == wanted:
            return value
        if value.dtype.kind in "iu" and value.dtype.itemsize == wanted.itemsize:
            return value.view(wanted)
        raise OperandError(
            f"{instr}: operand {self.operand.name} has dtype {value.dtype}; registers are given as "
            f"raw bits, {wanted} here (.view() reinterprets)"
        )

    def _shape(self, instr: Instruction) -> None:
        """Bring the array to (*batch, threads[, registers])."""
        threads, shape = instr.threads, self.array.shape
        tail = (threads, self.operand.registers) if self.group else (threads,)
        descriptor = self.operand.is_descriptor
        if not self.group and shape[-2:] == (threads, 1):
            self.array, shape, self.single = self.array[..., 0], shape[:-1], True
        if descriptor:
            self.array = np.broadcast_to(self.array[..., None], (*shape, threads))
        elif shape[-len(tail) :] != tail:
            raise OperandError(
                f"{instr}: operand {self.operand.name} has shape {shape}; {_wanted(instr, self)} is needed"
            )
        self.batch = self.array.shape[: self.array.ndim - len(tail)]

    def columns(self, batch: tuple[int, ...], at: int, count: int) -> Any:
        """The operand of `execute` for `count` elements of the batch from `at` on."""
        if self.number is not None:
            addresses = np.full(count * self.threads, self.number)
            return addresses if self.operand.kind == "addr" else self.number
        tail = self.array.shape[len(self.batch) :]
        whole = self.array
        if self.batch != batch:
            whole = np.broadcast_to(whole, (*batch, *tail))
        part = whole.reshape(-1, *tail)[at : at + count]
        if not self.group:
            return np.array(part.reshape(-1))
        columns = part.reshape(-1, tail[-1]).T
        return columns if self.viewed else np.ascontiguousarray(columns)


def _wanted(instr: Instruction, image: _Image) -> str:
    shape = f"(..., {instr.threads}"
    return shape + (f", {image.operand.registers})" if image.group else ")")


def _images(instr: Instruction, operands: list[Any]) -> list[_Image]:
    if len(operands) != len(instr.operands):
        names = ", ".join(o.name for o in instr.operands)
        raise OperandError(
            f"{instr} takes {len(instr.operands)} operands ({names}), {len(operands)} were given"
        )
    return [_Image(instr, o, value) for o, value in zip(instr.operands, operands, strict=True)]


def _batch(instr: Instruction, images: list[_Image], shared: np.ndarray | None) -> tuple[int, ...]:
    shapes = {i.operand.name: i.batch for i in images if i.number is None}
    if shared is not None and shared.ndim:
        shapes["shared"] = shared.shape[:-1]
    try:
        return np.broadcast_shapes(*shapes.values())
    except ValueError:
        named = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise OperandError(f"{instr}: the batches do not broadcast: {named}") from None


def _shared(shared: np.ndarray | None, batch: tuple[int, ...]) -> np.ndarray:
    """(batch, bytes), a copy."""
    if shared is None:
        return np.zeros((prod(batch), 0), np.uint8)
    if shared.dtype != np.uint8:
        raise OperandError(f"shared has dtype {shared.dtype}; bytes (uint8) are needed")
    if shared.ndim == 0:
        raise OperandError("shared has no axis; (..., bytes) are needed")
    whole = np.broadcast_to(shared, (*batch, shared.shape[-1]))
    return np.array(whole, order="C").reshape(prod(batch), shared.shape[-1])


def _is_product(instr: Instruction) -> bool:
    """True if it is a matrix product."""
    return {"a", "b", "c", "d"} <= instr.params.keys()


def _is_alone(instr: Instruction) -> bool:
    """True if it is a matrix product of registers, which needs nothing else."""
    return _is_product(instr) and instr.effects == WARP


@dataclass(frozen=True)
class _Registers:
    """The context of an instruction that reads and writes registers alone, in all threads."""

    arch: str
    threads: int

    def whole_warps(self) -> None:
        """All warps are active."""


def _run(
    instr: Instruction, arch: str, operands: list[Any], memory: np.ndarray, product: np.ndarray | None
) -> tuple[Any, ...]:
    """Results for a part of the batch.

    memory: (elements, bytes), written in place. product: (elements, threads, registers), written in
    place by matrix products.
    """
    count, threads = len(memory), instr.threads
    into = {}
    if product is not None:
        into["out"] = product.reshape(count * threads, -1).T
    if _is_alone(instr):
        return (instr.execute(_Registers(arch, count * threads), instr, *operands, **into),)
    geometry = Geometry((count, 1, 1), (threads, 1, 1), 0, count, memory.shape[1], 0, threads)
    storage = SharedStorage(memory, True, written=True)
    program = Program(Kernel("emulate", [], Block()), [Step(lambda machine: None, None, instr)])
    ctx = ExecutionContext(program, geometry, Arguments([]), storage, arch)
    if instr.space == GENERIC:
        operands = [
            generic.of_shared(value) if operand.kind == "addr" else value
            for operand, value in zip(instr.operands, operands, strict=True)
        ]
    with np.errstate(all="ignore"):
        results = instr.execute(ctx, instr, *operands, **into)
        ctx.async_copies.wait(0)
    if Effect.BLOCKING in instr.effects:
        results = results[1:] if isinstance(results, tuple) else None
    results = results if isinstance(results, tuple) else (results,)
    return tuple(r if r is None or r.ndim else np.full(ctx.threads, r) for r in results)


def _result(
    operand: Operand, parts: list[Any], batch: tuple[int, ...], threads: int, single: bool
) -> np.ndarray:
    """(*batch, threads[, registers]) from (registers, T) columns.

    single: does a single register have an axis of its own?
    """
    total, kind = prod(batch), word(operand.register_bits)
    if operand.registers == 1 and not operand.is_fragment:
        image = np.concatenate(parts) if parts else np.empty(0, kind)
        return image.reshape(*batch, threads, *([1] if single else []))
    if len(parts) == 1:
        image = np.ascontiguousarray(parts[0].reshape(operand.registers, -1).T)
        return image.reshape(*batch, threads, operand.registers)
    out = np.empty((total * threads, operand.registers), kind)
    at = 0
    for part in parts:
        part = part.reshape(operand.registers, -1)
        out[at : at + part.shape[1]] = part.T
        at += part.shape[1]
    return out.reshape(*batch, threads, operand.registers)
