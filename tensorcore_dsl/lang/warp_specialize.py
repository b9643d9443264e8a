"""Warp specialisation: the warpgroups of a block divided among functions of the kernel."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from tensorcore_dsl.errors import OperandError
from tensorcore_dsl.ir.nodes import Kernel
from tensorcore_dsl.lang.hopper import setmaxnreg, warpgroup_id
from tensorcore_dsl.values.operands import describe
from tensorcore_dsl.values.values import builder

WARPGROUP = 128
MOST_THREADS = 1024
REGISTERS = 1 << 16  # of a multiprocessor
LEAST_REGISTERS, MOST_REGISTERS, STEP = 24, 256, 8  # that setmaxnreg takes


@dataclass(frozen=True)
class Role:
    """`count` warpgroups from number `first` on, which call `function`.

    registers: what a thread of it has then; 0: what it was launched with.
    """

    count: int
    function: Callable[..., Any]
    first: int
    registers: int = 0


def warp_specialize(
    *roles: tuple[int, Callable[..., Any]], registers: Sequence[int] | None = None
) -> None:
    """Divide the warpgroups of the block: `warp_specialize((1, bring), (2, multiply))`.

    A role is a number of warpgroups and a function, which those warpgroups alone call; one that
    wants an argument gets their number within the role. Together the roles fill the block: the one
    that `launch_bounds` has fixed, or they fix it. Afterwards all go on together.

    registers: what each thread of a role has, a number for each role (setmaxnreg): multiples of 8
    from 24 to 256, all together no more than the block is launched with.
    """
    build = builder()
    if build.divided:
        raise OperandError("tc.warp_specialize divides the whole block: a role cannot be divided again")
    divided = _roles(roles, registers)
    _fill_block(build.kernel, divided)
    if registers is not None:
        _check_registers(build.kernel, divided)
    build.divided = True
    try:
        _divide(divided, warpgroup_id())
    finally:
        build.divided = False


def _divide(roles: list[Role], number: Any) -> None:
    """Branches that tell the roles apart by the warpgroup's number."""
    role, *others = roles
    if not others:
        _play(role, number)
        return
    here = number == role.first if role.count == 1 else number < role.first + role.count
    builder().branch(here, lambda: _play(role, number), lambda: _divide(others, number))


def _play(role: Role, number: Any) -> None:
    """What the warpgroups of a role do."""
    start = _registers_at_launch(builder().kernel)
    if role.registers and role.registers != start:
        setmaxnreg(role.registers, grow=role.registers > start)
    within = 0 if role.count == 1 else number - role.first
    arguments = [within] if _wants_argument(role.function) else []
    builder().call(role.function, arguments, {})


def _wants_argument(function: Any) -> bool:
    """Has the function a parameter that has no value yet?"""
    given: list[Any] = []
    keywords: dict[str, Any] = {}
    while isinstance(function, functools.partial):
        given, keywords = [*function.args, *given], {**function.keywords, **keywords}
        function = function.func
    try:
        signature = getattr(function, "signature", None) or inspect.signature(function)
        signature.bind(*given, **keywords)
    except (TypeError, ValueError):
        return True
    return False


# -- checks ------------------------------------------------------------------------------------


def _roles(given: Sequence[Any], registers: Sequence[int] | None) -> list[Role]:
    """The roles, each with the number of its first warpgroup."""
    if not given:
        raise OperandError("tc.warp_specialize takes roles: (1, bring), (2, multiply); none were given")
    for place, role in enumerate(given):
        _check_role(place, role)
    if registers is None:
        registers = [0] * len(given)
    elif not isinstance(registers, (list, tuple)) or len(registers) != len(given):
        raise OperandError(
            f"registers has a number for each of the {len(given)} roles; {describe(registers)} "
            "was given"
        )
    firsts = accumulate([count for count, _ in given], initial=0)
    return [
        Role(count, function, first, each)
        for (count, function), first, each in zip(given, firsts, registers, strict=False)
    ]


def _check_role(place: int, role: Any) -> None:
    if not isinstance(role, (list, tuple)) or len(role) != 2 or not callable(role[1]):
        raise OperandError(
            f"a role is a number of warpgroups and a function, such as (1, bring); role {place} "
            f"is {describe(role)}"
        )
    count = role[0]
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise OperandError(
            f"a role has one warpgroup or more, a number known at compile time; role {place} has "
            f"{describe(count)}"
        )


def _fill_block(kernel: Kernel, roles: list[Role]) -> None:
    """The roles' warpgroups are those of the block."""
    groups = roles[-1].first + roles[-1].count
    threads = WARPGROUP * groups
    counts = " + ".join(str(role.count) for role in roles)
    if threads > MOST_THREADS:
        raise OperandError(
            f"the roles have {counts} warpgroups, {threads} threads; a block has at most "
            f"{MOST_THREADS}"
        )
    if kernel.threads is None:
        kernel.threads = threads
    if kernel.threads != threads:
        raise OperandError(
            f"the roles have {counts} warpgroups, {threads} threads; the block has "
            f"{kernel.threads} (tc.launch_bounds, or threads= of the kernel)"
        )


def _check_registers(kernel: Kernel, roles: list[Role]) -> None:
    """setmaxnreg takes the numbers, and the block is launched with as many registers."""
    for place, role in enumerate(roles):
        count = role.registers
        known = isinstance(count, int) and not isinstance(count, bool)
        if not known or count % STEP or not LEAST_REGISTERS <= count <= MOST_REGISTERS:
            raise OperandError(
                f"a thread has a multiple of {STEP} registers from {LEAST_REGISTERS} to "
                f"{MOST_REGISTERS}; role {place} is given {describe(count)}"
            )
    if kernel.max_registers is None and kernel.min_blocks is None:
        kernel.min_blocks = 1  # setmaxnreg works where the assembler knows what a launch has
    groups, start = roles[-1].first + roles[-1].count, _registers_at_launch(kernel)
    wanted = sum(role.count * role.registers for role in roles)
    if wanted > groups * start:
        terms = " + ".join(f"{role.count} * {role.registers}" for role in roles)
        raise OperandError(
            f"the roles take {terms} = {wanted} registers a thread of each warpgroup; the block is "
            f"launched with {groups} * {start} = {groups * start}"
        )


def _registers_at_launch(kernel: Kernel) -> int:
    """What each thread has before setmaxnreg: its share of a multiprocessor."""
    if kernel.max_registers is not None:
        return kernel.max_registers
    share = REGISTERS // ((kernel.threads or WARPGROUP) * (kernel.min_blocks or 1))
    return min(share // STEP * STEP, MOST_REGISTERS)
