"""Warp specialisation: each warpgroup of a block runs one of several functions."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from tensorcore_dsl.arch import SM_REGISTERS
from tensorcore_dsl.errors import OperandError
from tensorcore_dsl.ir.nodes import Kernel
from tensorcore_dsl.isa import names
from tensorcore_dsl.lang.emit import emit
from tensorcore_dsl.lang.special_registers import warpgroup_id
from tensorcore_dsl.values.builder import builder
from tensorcore_dsl.values.operands import describe

WARPGROUP = 128
MAX_THREADS = 1024  # of a block
MIN_REGISTERS, MAX_REGISTERS, REGISTER_STEP = 24, 256, 8  # of a thread, for setmaxnreg


@dataclass(frozen=True)
class Role:
    """`count` warpgroups, from number `first` on, that call `function`.

    registers: for each of their threads; 0 keeps those of the launch.
    """

    count: int
    function: Callable[..., Any]
    first: int
    registers: int = 0


def warp_specialize(*roles: tuple[int, Callable[..., Any]], registers: Sequence[int] | None = None) -> None:
    """Divide the warpgroups of the block among roles: `warp_specialize((1, load), (2, compute))`.

    All warpgroups continue after the call.

    Parameters
    ----------
    *roles : tuple of (int, function)
        A number of warpgroups, and the function that only these call. If it has a parameter, it
        receives the warpgroup's index within the role. The roles fill the block; they fix its size
        unless `launch_bounds` has done so.
    registers : sequence of int, optional
        For each role, the registers of each of its threads (`setmaxnreg`): multiples of 8 from 24
        to 256, in total no more than the block is launched with.

    Raises
    ------
    OperandError
        Roles of another form, roles that do not fill the block, roles within a role, registers that
        the block does not have.

    Examples
    --------
    >>> @tc.kernel
    ... def roles(out: tc.Array):
    ...     def first():
    ...         out[tc.threadIdx.x] = -1
    ...     def others(index):
    ...         out[tc.threadIdx.x] = index
    ...     tc.warp_specialize((1, first), (2, others))
    >>> out = np.zeros(384, np.int32)
    >>> roles[1, 384](out)
    >>> out[[0, 128, 256]]
    array([-1,  0,  1], dtype=int32)
    """
    build = builder()
    if build.in_role:
        raise OperandError("tc.warp_specialize divides the whole block: a role cannot be divided again")
    specialised = _roles(roles, registers)
    _fill_block(build.kernel, specialised)
    if registers is not None:
        _check_registers(build.kernel, specialised)
    build.in_role = True
    try:
        _dispatch(specialised, warpgroup_id())
    finally:
        build.in_role = False


def _dispatch(roles: list[Role], number: Any) -> None:
    """Branch to the role of this warpgroup by its number."""
    role, *others = roles
    if not others:
        _run_role(role, number)
        return
    here = number == role.first if role.count == 1 else number < role.first + role.count
    builder().branch(here, lambda: _run_role(role, number), lambda: _dispatch(others, number))


def _run_role(role: Role, number: Any) -> None:
    """Set the registers of a role and call its function."""
    start = _registers_at_launch(builder().kernel)
    if role.registers and role.registers != start:
        setmaxnreg(role.registers, grow=role.registers > start)
    within = 0 if role.count == 1 else number - role.first
    arguments = [within] if _takes_index(role.function) else []
    builder().call(role.function, arguments, {})


def _takes_index(function: Any) -> bool:
    """True if the function has a parameter without a value, for the index of the warpgroup."""
    defaults: list[Any] = []
    keywords: dict[str, Any] = {}
    while isinstance(function, functools.partial):
        defaults, keywords = [*function.args, *defaults], {**function.keywords, **keywords}
        function = function.func
    try:
        signature = getattr(function, "signature", None) or inspect.signature(function)
        signature.bind(*defaults, **keywords)
    except (TypeError, ValueError):
        return True
    return False


def setmaxnreg(count: int, *, grow: bool) -> None:
    """Set the registers of each thread of this warpgroup.

    Parameters
    ----------
    count : int
        A multiple of 8 from 24 to 256, known at compile time.
    grow : bool
        Whether the warpgroup takes registers from the CTA's pool (and waits for them), or returns
        some.

    Raises
    ------
    OperandError
        Another count.
    ArchError
        A target without it: sm_90a has it, sm_90 does not.

    See Also
    --------
    warp_specialize : Its `registers=` calls this where it is needed.

    Notes
    -----
    `setmaxnreg`, section 9.7.19.5 of the PTX manual.
    """
    if count % REGISTER_STEP or not MIN_REGISTERS <= count <= MAX_REGISTERS:
        raise OperandError(
            f"{names.SETMAXNREG} takes a multiple of {REGISTER_STEP} from {MIN_REGISTERS} to "
            f"{MAX_REGISTERS}, not {count}"
        )
    emit(names.setmaxnreg(grow), count)


# -- checks ------------------------------------------------------------------------------------


def _roles(roles: Sequence[Any], registers: Sequence[int] | None) -> list[Role]:
    """The roles, each with the number of its first warpgroup."""
    if not roles:
        raise OperandError("tc.warp_specialize takes roles: (1, produce), (2, consume); none were given")
    for number, role in enumerate(roles):
        _check_role(number, role)
    if registers is None:
        registers = [0] * len(roles)
    elif not isinstance(registers, (list, tuple)) or len(registers) != len(roles):
        raise OperandError(
            f"registers has a number for each of the {len(roles)} roles; {describe(registers)} was given"
        )
    firsts = accumulate([count for count, _ in roles], initial=0)
    return [
        Role(count, function, first, each)
        for (count, function), first, each in zip(roles, firsts, registers, strict=False)
    ]


def _check_role(number: int, role: Any) -> None:
    if not isinstance(role, (list, tuple)) or len(role) != 2 or not callable(role[1]):
        raise OperandError(
            f"a role is a number of warpgroups and a function, such as (1, produce); role {number} "
            f"is {describe(role)}"
        )
    count = role[0]
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise OperandError(
            f"a role has one warpgroup or more, a number known at compile time; role {number} has "
            f"{describe(count)}"
        )


def _fill_block(kernel: Kernel, roles: list[Role]) -> None:
    """OperandError unless the roles have as many warpgroups as the block; may fix its size."""
    groups = roles[-1].first + roles[-1].count
    threads = WARPGROUP * groups
    counts = " + ".join(str(role.count) for role in roles)
    if threads > MAX_THREADS:
        raise OperandError(
            f"the roles have {counts} warpgroups, {threads} threads; a block has at most {MAX_THREADS}"
        )
    if kernel.threads is None:
        kernel.threads = threads
    if kernel.threads != threads:
        raise OperandError(
            f"the roles have {counts} warpgroups, {threads} threads; the block has "
            f"{kernel.threads} (tc.launch_bounds, or threads= of the kernel)"
        )


def _check_registers(kernel: Kernel, roles: list[Role]) -> None:
    """OperandError unless setmaxnreg takes the numbers, and the block has as many registers."""
    for number, role in enumerate(roles):
        count = role.registers
        known = isinstance(count, int) and not isinstance(count, bool)
        if not known or count % REGISTER_STEP or not MIN_REGISTERS <= count <= MAX_REGISTERS:
            raise OperandError(
                f"a thread has a multiple of {REGISTER_STEP} registers from {MIN_REGISTERS} to "
                f"{MAX_REGISTERS}; role {number} is given {describe(count)}"
            )
    if kernel.max_registers is None and kernel.min_blocks is None:
        kernel.min_blocks = 1  # the assembler ignores setmaxnreg unless it knows the registers
    groups, start = roles[-1].first + roles[-1].count, _registers_at_launch(kernel)
    wanted = sum(role.count * role.registers for role in roles)
    if wanted > groups * start:
        terms = " + ".join(f"{role.count} * {role.registers}" for role in roles)
        raise OperandError(
            f"the roles take {terms} = {wanted} registers a thread of each warpgroup; the block is "
            f"launched with {groups} * {start} = {groups * start}"
        )


def _registers_at_launch(kernel: Kernel) -> int:
    """Registers of each thread before setmaxnreg: its share of the SM."""
    if kernel.max_registers is not None:
        return kernel.max_registers
    share = SM_REGISTERS // ((kernel.threads or WARPGROUP) * (kernel.min_blocks or 1))
    return min(share // REGISTER_STEP * REGISTER_STEP, MAX_REGISTERS)
