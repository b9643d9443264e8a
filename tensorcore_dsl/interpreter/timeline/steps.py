"""Cost of a step by itself, without the memory and the barriers that it uses."""

from __future__ import annotations

from dataclasses import dataclass

from tensorcore_dsl.interpreter.core.program import Step
from tensorcore_dsl.interpreter.timeline.costs import Figure
from tensorcore_dsl.interpreter.timeline.recording import multiplications
from tensorcore_dsl.isa import classify, convert, names
from tensorcore_dsl.isa.effects import Effect
from tensorcore_dsl.isa.spec import Instruction

IDLE, COPY, ISSUE, JUMP, MMA, PRODUCT = range(6)
WARPGROUP_WARPS = 4


@dataclass(frozen=True)
class StepCost:
    """The static costs of a step.

    Attributes
    ----------
    kind : int
        NOTHING, COPY (of registers, which the assembler removes), ISSUE, JUMP, MMA (a product of a warp) or
        PRODUCT (an asynchronous one of a warpgroup).
    slots : float
        Cycles of the scheduler.
    latency : float
        Cycles until its results can be read.
    tensor : float
        Cycles of the tensor core that a product takes.
    asynchronous : bool
        It starts copies of single threads.
    bulk : bool
        It starts a bulk copy.
    """

    kind: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    slots: float = 1
    latency: float = 0
    tensor: float = 0
    asynchronous: bool = False
    bulk: bool = False


def step_costs(steps: list[Step], costs: dict[str, Figure]) -> list[StepCost]:
    """The costs of all steps of a program."""
    return [_cost(step, costs) for step in steps]


def _cost(step: Step, costs: dict[str, Figure]) -> StepCost:
    instr, alu = step.instr, costs["alu_latency"].value
    guard = () if step.guard is None else (step.guard[0],)
    reads = step.reads + guard
    if step.check or (instr is not None and instr.opcode == names.CHECK_OPCODE):
        return StepCost(IDLE, (), ())
    if instr is None:
        if step.copies or (step.writes and not step.reads):
            return StepCost(COPY, step.copies, step.writes, 0)
        if step.reads:
            return StepCost(ISSUE, reads, step.writes, 1, alu)
        return StepCost(JUMP, (), ())
    if instr.ordering is not None:
        sources = tuple(p for p in reads if p not in step.writes)
        return StepCost(PRODUCT, sources, (), 1, 0, product_cycles(instr, costs))
    if multiplications(instr):
        tensor = multiplications(instr) / costs["mma_rate"].value
        latency = max(costs["mma_latency"].value, tensor)
        return StepCost(MMA, reads, step.writes, 1, latency, tensor)
    bits = max((o.register_bits for o in (*instr.operands, *instr.results)), default=32)
    if _moves(instr) or not instr.results:
        latency, slots = alu, 1.0
    elif classify.is_approximate(instr) or instr.section == convert.CVT or _is_double(instr):
        latency, slots = costs["slow_latency"].value, costs["slow_issue"].value
    else:
        slots = 2.0 if bits == 64 else 1.0
        latency = alu * slots
    return StepCost(
        ISSUE,
        reads,
        step.writes,
        slots,
        latency,
        0,
        classify.is_cp_async(instr),
        Effect.BULK in instr.effects,
    )


def _moves(instr: Instruction) -> bool:
    return bool(instr.effects & (Effect.LOAD | Effect.STORE | Effect.ASYNC | Effect.BULK))


def _is_double(instr: Instruction) -> bool:
    return any(o.dtype.is_float and o.dtype.bits == 64 for o in instr.results)


def product_cycles(instr: Instruction, costs: dict[str, Figure]) -> float:
    """Cycles of an asynchronous product of a warpgroup, alone on its SM."""
    dense = 0.5 if instr.params.get("sparse") else 1.0
    return dense * multiplications(instr) / costs["wgmma_rate"].value
