"""A kernel cannot change what belongs to the code around it, by any path; its own it can."""

from __future__ import annotations

import collections
import heapq
import itertools
import operator
import random
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import CompileError, UnsupportedSyntax
from tests.refused_kernels import F32, Refusals, check


@dataclass
class Settings:
    sizes: list[int] = field(default_factory=lambda: [1, 2])


class Log:
    all: list[Any] = []

    def __init__(self, *values: Any) -> None:
        self.values = list(values)
        Log.all.extend(v for v in values if not isinstance(v, int))

    def note(self, value: Any) -> None:
        self.values.append(value)

    def keep(self, value: Any) -> None:
        self.last = value


NUMBERS = [3, 1, 2]
NESTED = {"inner": [[1], [2]]}
TABLE = {"a": 1}
NAMES = {"x"}
QUEUE = collections.deque([1])
LOG = Log(1)
SETTINGS = Settings()
SPACE = SimpleNamespace(items=[1])
FIGURES = np.arange(4.0)
PLAIN = 3
COUNTER = itertools.count()
GENERATOR = np.random.default_rng(0)


def contents() -> str:
    return repr(
        (NUMBERS, NESTED, TABLE, sorted(NAMES), QUEUE, LOG.values, vars(LOG).keys(), Log.all)
        + (SETTINGS, SPACE, FIGURES, PLAIN, COUNTER)
    )


BEFORE = contents()
refused = Refusals()


@pytest.mark.parametrize("case", refused, ids=lambda case: case.name)
def test_changes_of_surroundings_are_refused(case):
    check(case)
    assert contents() == BEFORE
    check(case)  # it is no accident of the first time


def theirs(name: str, at: str, *args: Any, **options: Any) -> Any:
    message = f"{name!r} belongs to the code around the kernel and cannot be changed by it"
    return refused(f"{message}; copy it first", at, *args, **options)


# -- lists, dicts, sets ------------------------------------------------------------------------


@theirs("NUMBERS", "NUMBERS.append(tc.threadIdx.x)")
def appends():
    NUMBERS.append(tc.threadIdx.x)


@theirs("NUMBERS", "NUMBERS.append(1)")
def appends_a_constant():
    NUMBERS.append(1)


@theirs("NUMBERS", "NUMBERS.sort()")
def sorts():
    NUMBERS.sort()


@theirs("NUMBERS", "NUMBERS.pop()")
def pops():
    NUMBERS.pop()


@theirs("NUMBERS", "NUMBERS.clear()")
def clears():
    NUMBERS.clear()


@theirs("NUMBERS", "NUMBERS.insert(0, tc.lane_id())")
def inserts():
    NUMBERS.insert(0, tc.lane_id())


@theirs("NUMBERS", "NUMBERS.reverse()")
def reverses():
    NUMBERS.reverse()


@theirs("NUMBERS", "list.append(NUMBERS, 1)")
def appends_unbound():
    list.append(NUMBERS, 1)


@theirs("NUMBERS", "heapq.heappush(NUMBERS, 0)")
def pushes():
    heapq.heappush(NUMBERS, 0)


@theirs("NUMBERS", "operator.setitem(NUMBERS, 0, 7)")
def sets_by_a_function():
    operator.setitem(NUMBERS, 0, 7)


@theirs("NUMBERS", "random.Random(1).shuffle(NUMBERS)")
def shuffles():
    random.Random(1).shuffle(NUMBERS)


@theirs("NUMBERS", "alias[0] = 5")
def assigns_through_an_alias():
    alias = NUMBERS
    alias[0] = 5


@theirs("NUMBERS", "alias += [1]")
def extends_an_alias():
    alias = NUMBERS
    alias += [1]


@theirs("NUMBERS", "del alias[0]")
def deletes_through_an_alias():
    alias = NUMBERS
    del alias[0]


@theirs("NUMBERS", "values.append(1)")
def appends_in_a_helper():
    extend(NUMBERS)


def extend(values):
    values.append(1)


@theirs("NUMBERS", "NUMBERS.append(tc.lane_id())")
def appends_under_a_condition():
    if tc.lane_id() < 3:
        NUMBERS.append(tc.lane_id())


@theirs("NUMBERS", "NUMBERS.append(i)")
def appends_in_a_comprehension():
    [NUMBERS.append(i) for i in (1, 2)]  # noqa: B018


@theirs("NESTED", 'NESTED["inner"][1].append(tc.lane_id())')
def appends_to_an_item():
    NESTED["inner"][1].append(tc.lane_id())


@theirs("NESTED", "rows[0][0] = 1.5")
def assigns_an_item_of_an_item():
    rows = NESTED["inner"]
    rows[0][0] = 1.5


@theirs("TABLE", "TABLE.update(b=tc.lane_id())")
def updates():
    TABLE.update(b=tc.lane_id())


@theirs("TABLE", 'TABLE.setdefault("b", 2)')
def sets_a_default():
    TABLE.setdefault("b", 2)


@theirs("TABLE", 'TABLE["b"] = tc.lane_id()')
def assigns_a_key():
    TABLE["b"] = tc.lane_id()


@theirs("TABLE", 'TABLE["a"] += 1')
def increments_a_key():
    TABLE["a"] += 1


@theirs("NAMES", "NAMES.add(1)")
def adds():
    NAMES.add(1)


@theirs("QUEUE", "QUEUE.appendleft(0)")
def appends_to_a_deque():
    QUEUE.appendleft(0)


# -- objects -----------------------------------------------------------------------------------


@theirs("LOG", "self.values.append(value)")
def calls_a_method():
    LOG.note(tc.lane_id())


@theirs("LOG", "LOG.values.append(1)")
def appends_to_an_attribute():
    LOG.values.append(1)


@theirs("LOG", 'setattr(LOG, "last", tc.lane_id())')
def sets_an_attribute():
    setattr(LOG, "last", tc.lane_id())  # noqa: B010


@refused(
    "attributes of a Log cannot be assigned in a kernel: only attributes of dataclasses (without slots) can",
    "self.last = value",
)
def assigns_in_a_method():
    LOG.keep(tc.lane_id())


@theirs("Log.all", "Log(tc.lane_id())")
def constructs():
    Log(tc.lane_id())


@theirs("Log.all", "Log.all.append(1)")
def appends_to_a_class():
    Log.all.append(1)


@theirs("own.all", "own.all.append(1)")
def appends_to_a_class_through_an_object():
    own = Log(1)
    own.all.append(1)


@theirs("SETTINGS", "settings.sizes = [5]")
def assigns_to_a_dataclass():
    settings = SETTINGS
    settings.sizes = [5]


@theirs("SETTINGS", "settings.sizes.append(5)")
def appends_to_a_dataclass():
    settings = SETTINGS
    settings.sizes.append(5)


@theirs("SPACE", "SPACE.items.append(5)")
def appends_to_a_namespace():
    SPACE.items.append(5)


@refused(
    "attributes of a module cannot be assigned in a kernel: only attributes of dataclasses (without slots) can",
    "collections.new = 1",
)
def assigns_to_a_module():
    collections.new = 1


@theirs("FIGURES", "FIGURES.fill(1.0)")
def fills_an_array():
    FIGURES.fill(1.0)


@refused("NumPy arrays are constants in a kernel; use a list or tc.local", "FIGURES[0] = 1")
def assigns_to_an_array():
    FIGURES[0] = 1


@refused("NumPy arrays are constants in a kernel; use a list or tc.local", "figures += 1")
def increments_an_array():
    figures = FIGURES
    figures += 1


@theirs("a default of remembers", "seen.append(value)")
def has_a_default():
    remembers(tc.lane_id())


def remembers(value, seen=[]):  # noqa: B006
    seen.append(value)


@theirs("log", "log.values.append(1)", log=LOG)
def changes_a_const_object(log: tc.Const):
    log.values.append(1)


@refused(
    "'PLAIN' is used before it has a value: increments_a_global assigns it, which makes it a variable of this "
    "function",
    "PLAIN",
    error=CompileError,
)
def increments_a_global():
    PLAIN += 1  # noqa: F821, F823, F841


def closure():
    held, count = [1], 0

    @theirs("held", "held.append(tc.lane_id())")
    def appends_to_a_closure():
        held.append(tc.lane_id())

    @refused(
        "'count' belongs to the code around the kernel and cannot be changed by it",
        "nonlocal count",
        error=UnsupportedSyntax,
    )
    def rebinds_a_closure():
        nonlocal count
        count += 1


closure()


@refused(
    "a set cannot be changed under a run-time condition or in a run-time loop; lists, dicts and dataclasses can",
    "seen.add(1)",
)
def adds_to_a_set_at_run_time():
    seen = {0}
    if tc.lane_id() < 4:
        seen.add(1)


@refused(
    "a deque cannot be changed under a run-time condition or in a run-time loop; lists, dicts and dataclasses can",
    "waiting.append(i)",
    tc.s32,
)
def appends_to_a_deque_at_run_time(n: tc.s32):
    waiting = collections.deque()
    for i in range(n):
        waiting.append(i)


@theirs("COUNTER", "next(COUNTER)", F32)
def advances_a_global(x: tc.Array):
    x[0] = next(COUNTER)


@refused(
    "a list_iterator cannot be changed under a run-time condition or in a run-time loop; lists, dicts and "
    "dataclasses can",
    "next(items)",
    F32,
)
def advances_in_a_loop(x: tc.Array):
    items = iter([1, 2, 3])
    for i in range(x.shape[0]):
        x[i] = next(items)


@refused(
    "random draws a number when the kernel is compiled, not at run time: pass an array of random numbers, or "
    "make the generator in the kernel",
    "random.random()",
    F32,
)
def draws(x: tc.Array):
    x[0] = random.random()


@refused(
    "random draws a number when the kernel is compiled, not at run time: pass an array of random numbers, or "
    "make the generator in the kernel",
    "GENERATOR.random()",
    F32,
)
def draws_from_a_global(x: tc.Array):
    x[0] = GENERATOR.random()


# -- what kernels may do -----------------------------------------------------------------------


@tc.kernel
def owns(out: tc.Array, items: tc.Const = (1, 2), more: tc.Const = None):
    own = [tc.threadIdx.x]
    own.append(2)
    own += list(NUMBERS)
    copied = dict(TABLE)
    copied["b"] = 4
    more.append(5)
    queue = collections.deque(own)
    queue.append(1)
    rows = [list(row) for row in NESTED["inner"]]
    rows[0].append(9)
    if tc.threadIdx.x < 40:
        seen = {1}
        seen.add(2)
        own[1] = len(seen)
    settings = Settings()
    settings.sizes.append(len(NAMES))
    numbers = sorted(NUMBERS)
    numbers.sort(reverse=True)
    out[tc.threadIdx.x] = sum(own) + sum(more) + sum(queue) + len(settings.sizes) + numbers[0]


def test_kernels_change_their_own_containers():
    out, more = np.zeros(32, np.int32), [10]
    owns.emulate[1, 32](out, more=more)
    own = 2 * (np.arange(32) + 2 + 6) + 1
    assert np.array_equal(out, own + 15 + 3 + 3)
    assert more == [10] and contents() == BEFORE
