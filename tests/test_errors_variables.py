"""What users read of variables, and of control flow that leaves functions and loops."""

from __future__ import annotations

import linecache

import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import CompileError
from tests.refused_kernels import INTS, Refusals, check

refused = Refusals()


@pytest.mark.parametrize("case", refused, ids=lambda case: case.name)
def test_wrong_variables_are_refused(case):
    check(case)


# -- variables --------------------------------------------------------------------------------


@refused(
    "'v' cannot be used here: only one path of the run-time condition at line {line-2} assigns it",
    "v",
    INTS,
    tc.s32,
)
def undefined_on_a_path(out, n: tc.s32):
    if n > 0:
        v = 1
    out[0] = v


@refused(
    "'v' cannot be used here: it is assigned only inside the run-time loop at line {line-2}, which may not run",
    "v",
    INTS,
    tc.s32,
)
def undefined_after_a_loop(out, n: tc.s32):
    for i in range(n):
        v = i
    out[0] = v


@refused("'i' cannot be used here: it counts a run-time loop that has ended", "i", INTS, tc.s32)
def counter_after_a_loop(out, n: tc.s32):
    for i in range(n):
        tc.barrier()
    out[0] = i


@refused(
    "'x' cannot be used here: it is a run-time value of type s32 before the run-time loop at line {line-1} and a "
    "run-time value of type f32 after a round; convert it with tc.s32(...), or start with another type",
    "x",
    tc.s32,
)
def changes_type_in_a_loop(x: tc.s32):
    for _ in range(x):
        x = x * 0.5


@refused(
    "'mode' cannot be used here: it is 'a' before the run-time loop at line {line-1} and 'b' after a round; only "
    "numbers, predicates, fragments and pointers can change",
    "mode",
    tc.s32,
)
def changes_a_string_in_a_loop(n: tc.s32):
    mode = "a"
    for _ in range(n):
        print(mode)
        mode = "b"


@refused(
    "'x' cannot be used here: it is 'a' on one path of the run-time condition at line {line-3} and 2 on the other; "
    "only numbers, predicates, fragments, pointers and containers of such can differ",
    "x",
    tc.s32,
)
def differs_by_branch(n: tc.s32):
    x = 2
    if n > 0:
        x = "a"

    print(x)


@refused(
    "values is a list of 1 item on one path of the run-time condition at line {line} and a list of 0 items on the "
    "other: its items cannot come and go at run time",
    "if n > 0:",
    tc.s32,
)
def appends_under_a_condition(n: tc.s32):
    values = []
    if n > 0:
        values.append(n)


@refused(
    "state['log'] is a list of 0 items before the run-time loop at line {line} and a list of 1 item after a round: "
    "its items cannot come and go at run time",
    "for i in range(n):",
    tc.s32,
)
def appends_in_a_loop(n: tc.s32):
    state = {"log": []}
    for i in range(n):
        state["log"].append(i)


@refused(
    "'item' cannot be used here: a path of the run-time loop at line {line-1} deletes it", "item", tc.s32
)
def deletes_in_a_loop(n: tc.s32):
    item = 1
    for i in range(n):
        print(item)
        del item


@refused(
    "'pair[0]' cannot be used here: it is None on one path of the run-time condition at line {line-2} and a "
    "run-time value of type s32 on the other; only numbers, predicates, fragments, pointers and containers of such "
    "can differ",
    "pair[0]",
    tc.s32,
)
def item_of_two_kinds(n: tc.s32):
    pair = [n]
    if n > 0:
        pair[0] = None
    print(pair[0])


@refused(
    "an item of a container cannot be used here: it is None on one path of the run-time condition at line {line-2} "
    "and a run-time value of type s32 on the other; only numbers, predicates, fragments, pointers and containers of "
    "such can differ",
    "sum(pair)",
    tc.s32,
)
def item_of_two_kinds_in_python(n: tc.s32):
    pair = [n]
    if n > 0:
        pair[0] = None
    sum(pair)


@refused(
    "a run-time condition cannot choose between 'a' and 1: only numbers, predicates and fragments are known at run "
    "time",
    '"a" if n > 0 else 1',
    tc.s32,
)
def choice_of_two_kinds(n: tc.s32):
    "a" if n > 0 else 1  # noqa: B018


@refused(
    "this expression has no one type: it is 'a' on one path of the run-time condition at line {line} and a run-time "
    "value of type s32 on the other; only numbers, predicates, fragments, pointers and containers of such can differ",
    '"a" if n > 0 else x[n]',
    INTS,
    tc.s32,
)
def choice_with_a_load(x, n: tc.s32):
    "a" if n > 0 else x[n]  # noqa: B018


# -- control flow of functions ----------------------------------------------------------------


def recursive(n):
    return recursive(n - 1) if n > 0 else 0


@refused(
    "calls nest deeper than 64 here: a recursion must end at compile time",
    "recursive(n - 1)",
    tc.s32,
    error=CompileError,
)
def recurses(n: tc.s32):
    recursive(n)


def returns_from_loop(x, n):
    for i in range(n):
        return x[i]


@refused(
    "the result of returns_from_loop has no one type: it is a run-time value of type s32 where the function returns "
    "and None where it ends",
    "returns_from_loop(x, n)",
    INTS,
    tc.s32,
)
def function_that_may_end(x, n: tc.s32):
    returns_from_loop(x, n)


def two_results(n):
    if n > 0:
        return "a"
    return n


@refused(
    "the result of two_results has no one type: it is 'a' on one path of the run-time condition at line {line-13} and "
    "a run-time value of type s32 on the other; only numbers, predicates, fragments, pointers and containers of such "
    "can differ",
    "two_results(n)",
    tc.s32,
)
def call_of_two_results(n: tc.s32):
    two_results(n)


def takes_two(a, b=1, *, c=2):
    return a + b + c


@refused("takes_two(a, b=1, *, c=2): missing a required argument: 'a'", "takes_two()", error=CompileError)
def misses_an_argument():
    takes_two()


@refused(
    "takes_two(a, b=1, *, c=2): got an unexpected keyword argument 'd'",
    "takes_two(1, d=2)",
    error=CompileError,
)
def unknown_keyword():
    takes_two(1, d=2)


@refused("the keyword argument 'c' is given twice", 'takes_two(1, **{"c": 2}, c=3)', error=CompileError)
def keyword_twice():
    takes_two(1, **{"c": 2}, c=3)


def no_source(n):
    return NATIVE(n)


NATIVE = eval("lambda n: n if n > 0 else 0")


@refused(
    "a run-time value has no truth while the kernel is compiled: `if`, `while`, `and`, `or` and `not` inside the "
    "kernel test it at run time, Python's own code cannot",
    "NATIVE(n)",
    tc.s32,
)
def calls_what_has_no_source(n: tc.s32):
    no_source(n)


def inner(x):
    return x % 2


def outer(x):
    y = x + 1
    return inner(y)


@refused("% needs integers, not f32; use x - y * (x // y)", "x % 2", tc.f32)
def chain_of_calls(x: tc.f32):
    z = x * 2
    outer(z)


def test_the_chain_of_calls_is_shown():
    case = next(c for c in refused if c.name == "chain_of_calls")
    error = check(case)
    chain = [(loc.function, linecache.getline(__file__, loc.line).strip()) for loc in error.loc.chain()]
    assert chain == [("inner", "return x % 2"), ("outer", "return inner(y)"), ("chain_of_calls", "outer(z)")]
    first = error.loc.line
    assert str(error).splitlines()[1:] == [
        f"  at {__file__}:{first} in inner",
        "    return x % 2",
        "           ^^^^^",
        f"  called from {__file__}:{first + 5} in outer",
        "    return inner(y)",
        "           ^^^^^^^^",
        f"  called from {__file__}:{first + 11} in chain_of_calls",
        "    outer(z)",
        "    ^^^^^^^^",
    ]
