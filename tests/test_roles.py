"""`tc.warp_specialize`: the warpgroups of a block divided among functions."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl.errors import CompileError, LaunchError, OperandError
from tensorcore_dsl.runtime.arguments import ArrayType
from tests.hopper_kernels import by_roles
from tests.running import run

LINE = ArrayType(tc.s32, 1, (True,), 16)

# -- who does what --------------------------------------------------------------------------------


@tc.kernel
def three_roles(out: tc.Array):
    """Two, one and three warpgroups say which role they have, and their number within it."""
    t = tc.threadIdx.x

    def pair(number):
        out[t] = 100 + number

    def single(number):
        assert number == 0  # known when the kernel is compiled
        out[t] = 200

    tc.warp_specialize((2, pair), (1, single), (3, lambda number: store(out, t, 300 + number)))
    out[t] += 1000


def store(out, place, value):
    out[place] = value


@tc.kernel
def without_numbers(out: tc.Array):
    """A number goes to who wants one: functions, methods and what `partial` leaves open."""
    t = tc.threadIdx.x

    def plain():
        out[t] = 1

    def with_default(number=7):
        out[t] = number

    tc.warp_specialize(
        (2, plain), (2, with_default), (2, partial(store, out, t)), (2, partial(store, out, t, 9))
    )


@tc.kernel
def changes(out: tc.Array):
    """What roles assign of the function around them is there for all that follows."""
    x, t = tc.s32(5), tc.threadIdx.x

    def first():
        nonlocal x
        x += 1

    def second(number):
        nonlocal x
        if number == 1:
            return
        x = -x

    tc.warp_specialize((1, first), (2, second))
    out[t] = x


@tc.kernel
def in_a_loop(out: tc.Array, rounds: tc.s32):
    t = tc.threadIdx.x
    out[t] = 0

    def add(step):
        out[t] += step

    for _ in range(rounds):
        tc.warp_specialize((1, lambda: add(1)), (1, lambda: add(10)))


class TestRoles:
    def numbers(self, kernel: Any, groups: int, *more: Any) -> list[int]:
        """What each warpgroup writes; all of its threads agree."""
        out = np.zeros(128 * groups, np.int32)
        run(kernel, 1, 128 * groups, out, *more)
        lines = out.reshape(groups, 128)
        assert (lines == lines[:, :1]).all()
        return lines[:, 0].tolist()

    def test_each_warpgroup_has_one(self):
        assert self.numbers(three_roles, 6) == [1100, 1101, 1200, 1300, 1301, 1302]

    def test_numbers_go_to_who_wants_one(self):
        assert self.numbers(without_numbers, 8) == [1, 1, 7, 7, 0, 1, 9, 9]

    def test_changes_of_variables_join(self):
        assert self.numbers(changes, 3) == [6, -5, 5]

    def test_in_a_loop(self):
        assert self.numbers(in_a_loop, 2, 3) == [3, 30]

    def test_roles_fix_the_block(self):
        assert ".reqntid 768" in three_roles.ptx(LINE, arch="sm_80")
        assert "threads 768" in three_roles.ir(LINE, arch="sm_80")

    def test_branches_are_uniform_in_a_warp(self):
        """The warpgroup's number comes by a shuffle, which the assembler knows to be uniform."""
        ptx = without_numbers.ptx(LINE, arch="sm_80")
        assert ptx.count("shfl.sync.idx") == 1
        assert ptx.count("bra") >= 3


# -- registers -------------------------------------------------------------------------------------


class TestRegisters:
    def test_a_pipeline(self):
        x = np.random.default_rng(3).integers(-99, 99, (7, 128)).astype(np.int32)
        out = np.zeros((2, 128), np.int32)
        run(by_roles, 1, 384, x, out)
        assert np.array_equal(out, x.sum(axis=0) * np.array([[1], [2]]))

    def ptx(self, **constants: Any) -> str:
        lines = ArrayType(tc.s32, 2, (False, True), 16)
        return str(by_roles.ptx(lines, lines, arch="sm_90a", **constants))

    @pytest.mark.parametrize(
        "constants, expected",
        [
            (dict(), [("dec", 40), ("inc", 232)]),
            (dict(consumers=3, registers=(32, 160)), [("dec", 32), ("inc", 160)]),
            (dict(consumers=1, registers=(24, 240)), [("dec", 24), ("dec", 240)]),  # from 256
            (dict(registers=(168, 168)), []),
        ],
    )
    def test_setmaxnreg(self, constants, expected):
        matches = re.findall(r"setmaxnreg\.(\w+)\.sync\.aligned\.u32 (\d+)", self.ptx(**constants))
        assert [(way, int(count)) for way, count in matches] == expected

    def test_the_assembler_gives_what_the_language_counts_on(self):
        lines = ArrayType(tc.s32, 2, (False, True), 16)
        resources = by_roles.resources(lines, lines, arch="sm_90a")
        assert resources.registers == 168
        assert not resources.warnings

    def test_a_bound_on_registers_counts(self):
        bounded = tc.kernel(by_roles.function, max_registers=128)
        lines = ArrayType(tc.s32, 2, (False, True), 16)
        with pytest.raises(OperandError, match=r"launched with 3 \* 128 = 384"):
            bounded.ir(lines, lines, arch="sm_90a")


# -- mistakes --------------------------------------------------------------------------------------


def nothing() -> None:
    pass


def of_two(first: Any, second: Any) -> None:
    pass


@tc.kernel
def mistaken(out: tc.Array, mistake: tc.Const = ""):
    t = tc.threadIdx.x
    if mistake == "block":
        tc.launch_bounds(256)
    if mistake == "none":
        tc.warp_specialize()
    if mistake == "no pair":
        tc.warp_specialize((1, nothing), 5)
    if mistake == "turned round":
        tc.warp_specialize((nothing, 1))
    if mistake == "no warpgroups":
        tc.warp_specialize((1, nothing), (0, nothing))
    if mistake == "run time":
        tc.warp_specialize((t, nothing))
    if mistake == "block":
        tc.warp_specialize((1, nothing), (2, nothing))
    if mistake == "too many":
        tc.warp_specialize((1, nothing), (8, nothing))
    if mistake == "within":
        tc.warp_specialize((1, lambda: tc.warp_specialize((1, nothing))), (1, nothing))
    if mistake == "arguments":
        tc.warp_specialize((1, nothing), (1, of_two))
    if mistake == "one number":
        tc.warp_specialize((1, nothing), (1, nothing), registers=(40,))
    if mistake == "a number":
        tc.warp_specialize((1, nothing), (1, nothing), registers=40)
    if mistake == "odd":
        tc.warp_specialize((1, nothing), (2, nothing), registers=(40, 230))
    if mistake == "few":
        tc.warp_specialize((1, nothing), (2, nothing), registers=(16, 232))
    if mistake == "half":
        tc.warp_specialize((1, nothing), (2, nothing), registers=(40, 232.0))
    if mistake == "sum":
        tc.warp_specialize((1, nothing), (2, nothing), registers=(40, 240))


MISTAKES = [
    ("none", "takes roles: .1, produce., .2, consume.; none were given"),
    ("no pair", r"a role is a number of warpgroups and a function, such as .*; role 1 is 5"),
    ("turned round", "role 0 is a tuple of 2 items"),
    ("no warpgroups", "one warpgroup or more, a number known at compile time; role 1 has 0"),
    ("run time", "role 0 has a run-time value of type"),
    ("block", r"1 \+ 2 warpgroups, 384 threads; the block has 256 .tc.launch_bounds"),
    ("too many", r"1 \+ 8 warpgroups, 1152 threads; a block has at most 1024"),
    ("within", "divides the whole block: a role cannot be divided again"),
    ("one number", "a number for each of the 2 roles; a tuple of 1 item was given"),
    ("a number", "a number for each of the 2 roles; 40 was given"),
    ("odd", "a multiple of 8 registers from 24 to 256; role 1 is given 230"),
    ("few", "a multiple of 8 registers from 24 to 256; role 0 is given 16"),
    ("half", "role 1 is given 232.0"),
    ("sum", r"1 \* 40 \+ 2 \* 240 = 520 registers .* launched with 3 \* 168 = 504"),
]


@pytest.mark.parametrize("mistake, words", MISTAKES, ids=[m[0] for m in MISTAKES])
def test_mistakes_with_roles_are_refused(mistake, words):
    with pytest.raises(OperandError, match=words) as error:
        mistaken.ir(LINE, mistake=mistake, arch="sm_90a")
    assert "tc.warp_specialize(" in str(error.value)  # the line that is shown


def test_a_role_of_other_arguments():
    with pytest.raises(CompileError, match="of_two.*missing a required argument: 'second'"):
        mistaken.ir(LINE, mistake="arguments", arch="sm_90a")


def test_a_target_without_setmaxnreg():
    lines = ArrayType(tc.s32, 2, (False, True), 16)
    with pytest.raises(tc.ArchError, match="setmaxnreg"):
        by_roles.ir(lines, lines, arch="sm_90")


def test_a_block_of_another_size():
    with pytest.raises(LaunchError, match="compiled for .768, 1, 1."):
        run(three_roles, 1, 256, np.zeros(256, np.int32))
