"""What users read when something is wrong: the text, the place, the caret, the chain of calls.

Each case is a kernel that must be refused. `at` is the expression under the caret.
"""

from __future__ import annotations

import linecache
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import (
    ArchError,
    ArgumentError,
    ArrayType,
    CompileError,
    LayoutError,
    OperandError,
    TensorCoreError,
    UnknownInstruction,
    UnsupportedSyntax,
)  # fmt: skip

F32 = ArrayType(tc.f32, 1, (True,), 16)
MATRIX = ArrayType(tc.f32, 2, (False, True), 16)
HALF = ArrayType(tc.f16, 1, (True,), 16)
INTS = ArrayType(tc.s32, 1, (True,), 16)


@dataclass
class Case:
    kernel: Any
    message: str
    at: str
    args: tuple[Any, ...]
    error: type[TensorCoreError]
    arch: str
    constants: dict[str, Any] = field(default_factory=dict)


CASES: list[Case] = []


def refused(
    message: str,
    at: str,
    *args: Any,
    error: type[TensorCoreError] = OperandError,
    arch: str = "sm_80",
    **constants: Any,
) -> Callable[[Any], Any]:
    """The kernel is refused with this message, the caret under `at`."""

    def note(function: Any) -> Any:
        CASES.append(Case(tc.kernel(function), message, at, args, error, arch, constants))
        return function

    return note


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.kernel.__name__)
def test_refused(case: Case):
    check(case)


def check(case: Case) -> TensorCoreError:
    with pytest.raises(case.error) as found:
        case.kernel.ptx(*case.args, arch=case.arch, **case.constants)
    error = found.value
    line_of = lambda match: str(error.loc.line + int(match[1] or 0))  # type: ignore[union-attr]
    message = re.sub(r"{line([-+]\d+)?}", line_of, case.message)
    assert error.message == message
    loc = error.loc
    assert loc is not None and loc.filename == __file__
    line = linecache.getline(__file__, loc.line).rstrip("\n")
    if loc.end_column:
        assert line[loc.column : loc.end_column] == case.at
    else:  # an expression or a statement of several lines
        assert line[loc.column :].startswith(case.at)
    lines = str(error).splitlines()
    assert lines[0] == message.splitlines()[0]
    shown = lines[lines.index(f"    {line.strip()}") + 1]
    start = loc.column - (len(line) - len(line.lstrip())) + 4
    assert shown.index("^") == start and set(shown.strip()) == {"^"}
    return error


# -- syntax -----------------------------------------------------------------------------------


@refused("Try statements are not part of the kernel language", "try:", error=UnsupportedSyntax)
def uses_try():
    try:
        tc.barrier()
    finally:
        pass


@refused(
    "ClassDef statements are not part of the kernel language",
    "class Local:",
    error=UnsupportedSyntax,
)
def defines_a_class():
    class Local:
        pass


@refused(
    "Global statements are not part of the kernel language", "global F32", error=UnsupportedSyntax
)
def uses_global():
    global F32


@refused(
    "Import statements are not part of the kernel language", "import math", error=UnsupportedSyntax
)
def imports():
    import math  # noqa: F401


@refused("a function inside a kernel has no decorators", "def inner():", error=UnsupportedSyntax)
def decorates():
    @tc.kernel
    def inner():
        pass


@refused(
    "a kernel returns nothing: store results to an array",
    "return x",
    tc.s32,
    error=UnsupportedSyntax,
)
def returns_a_value(x: tc.s32):
    return x


@refused("a run-time loop has no else", "for i in range(n):", tc.s32, error=UnsupportedSyntax)
def loop_with_else(n: tc.s32):
    for i in range(n):
        tc.barrier()
    else:
        tc.barrier()


@refused("a run-time loop has no else", "while n > tc.lane_id():", tc.s32, error=UnsupportedSyntax)
def while_with_else(n: tc.s32):
    while n > tc.lane_id():
        n -= 1
    else:
        tc.barrier()


@refused("del takes variables of the kernel, and items", "del other", error=UnsupportedSyntax)
def deletes():
    del other  # noqa: F821


@refused("name 'nowhere' is not defined", "nowhere", error=CompileError)
def undefined_name():
    tc.barrier(nowhere)  # noqa: F821


@refused("type object 'list' has no attribute 'where'", "list.where", error=CompileError)
def undefined_attribute():
    list.where  # noqa: B018


@refused(
    "a run-time value of type s32 has no attribute 'shape'", "n.shape", tc.s32, error=CompileError
)
def attribute_of_a_register(n: tc.s32):
    n.shape  # noqa: B018


@refused("tid has components x, y and z, not 'w'", "tc.threadIdx.w", error=CompileError)
def fourth_dimension():
    tc.threadIdx.w  # noqa: B018


@refused(
    "assertion failed: a tile of 3",
    'assert size % 2 == 0, f"a tile of {size}"',
    error=CompileError,
    size=3,
)
def asserts(size: tc.Const):
    assert size % 2 == 0, f"a tile of {size}"


@refused(
    "assert checks values known at compile time; at run time use `if` with print or tc.trap()",
    "assert n > 0",
    tc.s32,
)
def asserts_at_run_time(n: tc.s32):
    assert n > 0


@refused(
    "ValueError: unknown mode 'fast'",
    'raise ValueError(f"unknown mode {mode!r}")',
    error=CompileError,
    mode="fast",
)
def raises(mode: tc.Const):
    raise ValueError(f"unknown mode {mode!r}")


@refused("ValueError", "raise ValueError", error=CompileError)
def raises_a_class():
    raise ValueError


@refused(
    "raise under a run-time condition: errors are raised while the kernel is compiled; at run time use print or "
    "tc.trap()",
    'raise ValueError("too many")',
    tc.s32,
    error=UnsupportedSyntax,
)
def raises_at_run_time(n: tc.s32):
    if n > 3:
        raise ValueError("too many")


@refused("IndexError: list index out of range", "values[3]", error=CompileError)
def python_error():
    values = [1, 2]
    values[3]  # noqa: B018


@refused(
    "ZeroDivisionError: integer division or modulo by zero", "5 // zero", error=CompileError, zero=0
)
def static_division_by_zero(zero: tc.Const):
    tc.barrier(5 // zero)


@refused("2 values for 3 names", "a, b, c = 1, 2", error=CompileError)
def unpacks_too_few():
    a, b, c = 1, 2  # noqa: F841


# -- compile time and run time ----------------------------------------------------------------


@refused(
    "a compile-time integer is needed here, not a run-time value of type s32", "values[n]", tc.s32
)
def indexes_a_list(n: tc.s32):
    values = [1, 2]
    values[n]  # noqa: B018


@refused(
    "a compile-time number is needed here, not a run-time value of type f32",
    "math.gamma(x)",
    tc.f32,
)
def calls_python(x: tc.f32):
    math.gamma(x)


@refused(
    "a run-time value has no truth while the kernel is compiled: `if`, `while`, `and`, `or` and `not` inside the "
    "kernel test it at run time, Python's own code cannot",
    "sorted([n, 1])",
    tc.s32,
)
def sorts(n: tc.s32):
    sorted([n, 1])


@refused(
    "a run-time range can only be looped over with `for`: a comprehension, an unrolled loop or a function of Python "
    "needs a range known at compile time",
    "[i for i in range(n)]",
    tc.s32,
)
def comprehends_a_run_time_range(n: tc.s32):
    [i for i in range(n)]  # noqa: B018, C416


@refused(
    "the condition of a comprehension must be known at compile time",
    "[i for i in (1, 2) if n > i]",
    tc.s32,
)
def filters_at_run_time(n: tc.s32):
    [i for i in (1, 2) if n > i]  # noqa: B018


@refused("a run-time value of type s32 cannot be iterated over or unpacked", "a, b = n", tc.s32)
def unpacks_a_register(n: tc.s32):
    a, b = n


@refused(
    "the shape of a shared tile is positive integers known at compile time, not a run-time value of type s32",
    "tc.shared(n, tc.f32)",
    tc.s32,
)
def run_time_tile(n: tc.s32):
    tc.shared(n, tc.f32)


@refused(
    "the shape of a local array is positive integers known at compile time, not 0, 2",
    "tc.local((0, 2), tc.f32)",
)
def empty_local():
    tc.local((0, 2), tc.f32)


@refused("a run-time index takes one element of a local array, no view", "values[n]", tc.s32)
def run_time_row(n: tc.s32):
    values = tc.local((2, 2), tc.f32)
    values[n]  # noqa: B018


@refused(
    "a view of a local f32 array of 2 cannot be assigned: assign its elements",
    "values[0] = 1",
    tc.s32,
)
def assigns_a_row(n: tc.s32):
    values = tc.local((2, 2), tc.f32)
    values[0] = 1


@refused("index 2 leaves a dimension of 2 of a local f32 array of 2", "values[2]")
def outside_local():
    values = tc.local(2, tc.f32)
    values[2]  # noqa: B018


@refused(
    "an f-string of run-time values can only be printed, not made a string", 'str(f"{n}")', tc.s32
)
def keeps_an_f_string(n: tc.s32):
    str(f"{n}")


@refused("range takes 1 to 3 bounds, 0 were given", "tc.range()")
def empty_range():
    tc.range()


@refused("the bounds of a range are integers, not 1.5", "tc.range(1.5)")
def fractional_range():
    tc.range(1.5)


@refused("the step of a range must not be zero", "range(n, 3, 0)", tc.s32)
def standing_range(n: tc.s32):
    range(n, 3, 0)


@refused(
    "a range over u32 cannot count down: convert its bounds to a signed type",
    "range(n, 0, -1)",
    tc.u32,
)
def unsigned_down(n: tc.u32):
    range(n, 0, -1)


@refused("`in` a run-time range needs a step of 1", "n in range(n, 9, 2)", tc.s32)
def in_a_stepped_range(n: tc.s32):
    n in range(n, 9, 2)  # noqa: B015


@refused(
    "this loop would be unrolled more than 4096 times; use tc.range for a run-time loop",
    "for _ in range(5000):",
    error=CompileError,
)
def unrolls_too_much():
    for _ in range(5000):
        pass


@refused("len() takes several values, not a run-time value of type s32", "len(n)", tc.s32)
def length_of_a_register(n: tc.s32):
    len(n)


@refused("round(x, digits) is not defined for run-time values; round(x) is", "round(x, 2)", tc.f32)
def rounds_to_digits(x: tc.f32):
    round(x, 2)


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
    "run-time value of type f32 after a round; convert it with s32(...), or start with another type",
    "x", tc.s32,
)  # fmt: skip
def changes_type_in_a_loop(x: tc.s32):
    for _ in range(x):
        x = x * 0.5


@refused(
    "'mode' cannot be used here: it is 'a' before the run-time loop at line {line-1} and 'b' after a round; only "
    "numbers, predicates, fragments and pointers can change",
    "mode", tc.s32,
)  # fmt: skip
def changes_a_string_in_a_loop(n: tc.s32):
    mode = "a"
    for _ in range(n):
        print(mode)
        mode = "b"


@refused(
    "'x' cannot be used here: it is 'a' on one path of the run-time condition at line {line-3} and 2 on the other; "
    "only numbers, predicates, fragments, pointers and containers of such can differ",
    "x", tc.s32,
)  # fmt: skip
def differs_by_branch(n: tc.s32):
    x = 2
    if n > 0:
        x = "a"

    print(x)


@refused(
    "values is a list of 1 item on one path of the run-time condition at line {line} and a list of 0 items on the "
    "other: its items cannot come and go at run time",
    "if n > 0:", tc.s32,
)  # fmt: skip
def appends_under_a_condition(n: tc.s32):
    values = []
    if n > 0:
        values.append(n)


@refused(
    "state['log'] is a list of 0 items before the run-time loop at line {line} and a list of 1 item after a round: "
    "its items cannot come and go at run time",
    "for i in range(n):", tc.s32,
)  # fmt: skip
def appends_in_a_loop(n: tc.s32):
    state = {"log": []}
    for i in range(n):
        state["log"].append(i)


@refused(
    "'item' cannot be used here: a path of the run-time loop at line {line-1} deletes it",
    "item",
    tc.s32,
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
    "pair[0]", tc.s32,
)  # fmt: skip
def item_of_two_kinds(n: tc.s32):
    pair = [n]
    if n > 0:
        pair[0] = None
    print(pair[0])


@refused(
    "an item of a container cannot be used here: it is None on one path of the run-time condition at line {line-2} "
    "and a run-time value of type s32 on the other; only numbers, predicates, fragments, pointers and containers of "
    "such can differ",
    "sum(pair)", tc.s32,
)  # fmt: skip
def item_of_two_kinds_in_python(n: tc.s32):
    pair = [n]
    if n > 0:
        pair[0] = None
    sum(pair)


@refused(
    "a run-time condition cannot choose between 'a' and 1: only numbers, predicates and fragments are known at run "
    "time",
    "\"a\" if n > 0 else 1", tc.s32,
)  # fmt: skip
def choice_of_two_kinds(n: tc.s32):
    "a" if n > 0 else 1  # noqa: B018


@refused(
    "this expression has no one type: it is 'a' on one path of the run-time condition at line {line} and a run-time "
    "value of type s32 on the other; only numbers, predicates, fragments, pointers and containers of such can differ",
    "\"a\" if n > 0 else x[n]", INTS, tc.s32,
)  # fmt: skip
def choice_with_a_load(x, n: tc.s32):
    "a" if n > 0 else x[n]  # noqa: B018


@refused(
    "'TABLE' belongs to the code around the kernel and cannot be changed by it; copy it first",
    "TABLE[0] = 5",
)
def changes_a_global():
    TABLE[0] = 5


@refused(
    "'TABLE' belongs to the code around the kernel and cannot be changed by it; copy it first",
    "TABLE[0] += 5",
)
def increments_a_global():
    TABLE[0] += 5


@refused(
    "NumPy arrays are constants in a kernel; use a list or tc.local",
    "table[0] = 5",
    table=np.arange(3),
)
def changes_numpy(table: tc.Const):
    table[0] = 5


@refused(
    "attributes of an Ordinary cannot be assigned in a kernel: only those of dataclasses (without slots) can",
    "thing.x = 5",
)
def changes_an_object():
    thing = Ordinary()
    thing.x = 5


class Ordinary:
    x = 1


TABLE = [1, 2]


# -- control flow of functions ----------------------------------------------------------------


def recursive(n):
    return recursive(n - 1) if n > 0 else 0


@refused(
    "calls nest deeper than 64 here: a recursion must end at compile time", "recursive(n - 1)", tc.s32,
    error=CompileError,
)  # fmt: skip
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
    "the result of two_results has no one type: it is 'a' on one path of the run-time condition at line {line-12} and "
    "a run-time value of type s32 on the other; only numbers, predicates, fragments, pointers and containers of such "
    "can differ",
    "two_results(n)", tc.s32,
)  # fmt: skip
def call_of_two_results(n: tc.s32):
    two_results(n)


def takes_two(a, b=1, *, c=2):
    return a + b + c


@refused(
    "takes_two(a, b=1, *, c=2): missing a required argument: 'a'", "takes_two()", error=CompileError
)
def misses_an_argument():
    takes_two()


@refused(
    "takes_two(a, b=1, *, c=2): got an unexpected keyword argument 'd'",
    "takes_two(1, d=2)",
    error=CompileError,
)
def unknown_keyword():
    takes_two(1, d=2)


@refused(
    "the keyword argument 'c' is given twice", 'takes_two(1, **{"c": 2}, c=3)', error=CompileError
)
def keyword_twice():
    takes_two(1, **{"c": 2}, c=3)


def no_source(n):
    return NATIVE(n)


NATIVE = eval("lambda n: n if n > 0 else 0")


@refused(
    "a run-time value has no truth while the kernel is compiled: `if`, `while`, `and`, `or` and `not` inside the "
    "kernel test it at run time, Python's own code cannot",
    "NATIVE(n)", tc.s32,
)  # fmt: skip
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
    case = next(c for c in CASES if c.kernel.__name__ == "chain_of_calls")
    error = check(case)
    chain = [
        (loc.function, linecache.getline(__file__, loc.line).strip()) for loc in error.loc.chain()
    ]
    assert chain == [
        ("inner", "return x % 2"), ("outer", "return inner(y)"), ("chain_of_calls", "outer(z)"),
    ]  # fmt: skip
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


# -- operators --------------------------------------------------------------------------------


@refused("+ is not defined for a run-time value of type s32 and 'a'", 'n + "a"', tc.s32)
def adds_a_string(n: tc.s32):
    n + "a"  # noqa: B018


@refused("< is not defined for a run-time value of type s32 and None", "n < None", tc.s32)
def compares_with_none(n: tc.s32):
    n < None  # noqa: B015


@refused("& needs integers, not f32; .bits() reads its bits", "x & 3", tc.f32)
def masks_a_float(x: tc.f32):
    x & 3  # noqa: B018


@refused("<< needs integers, not f32; .bits() reads its bits", "x << 3", tc.f32)
def shifts_a_float(x: tc.f32):
    x << 3  # noqa: B018


@refused("~ needs integers, not f32; .bits() reads its bits", "~x", tc.f32)
def inverts_a_float(x: tc.f32):
    ~x  # noqa: B018


@refused("shift by -1: counts are not negative", "n << -1", tc.s32)
def shifts_back(n: tc.s32):
    n << -1  # noqa: B018


@refused("division by zero", "n // 0", tc.s32)
def divides_by_zero(n: tc.s32):
    n // 0  # noqa: B018


@refused("- needs a number, not a run-time value of type pred", "-(n > 1)", tc.s32)
def negates_a_predicate(n: tc.s32):
    -(n > 1)  # noqa: B018


@refused("1099511627776 does not fit in s32", "n + 2**40", tc.s32)
def adds_too_much(n: tc.s32):
    n + 2**40  # noqa: B018


@refused("36893488147419103232 fits in no register: 64 bits are the most", "tc.shfl(2**65, 0)")
def too_wide_a_number():
    tc.shfl(2**65, 0)


@refused("'a' has no run-time type: numbers and registers have", 'tc.shfl("a", 0)')
def shuffles_a_string():
    tc.shfl("a", 0)


@refused(
    "** of a run-time value takes a compile-time exponent from 1 to 16, 0.5 was given",
    "n**0.5",
    tc.s32,
)
def fractional_power(n: tc.s32):
    n**0.5  # noqa: B018


@refused(
    "e4m3 has no arithmetic; convert it first, for example with .to(f32), or give plain bits a type with .bits(u32)",
    "x[0] + 1", ArrayType(tc.e4m3, 1, (True,), 16),
)  # fmt: skip
def adds_fp8(x):
    x[0] + 1  # noqa: B018


@refused(
    "f16x2 and bf16x2 do not combine: convert one of them",
    "pair.bits(tc.f16x2) + pair.bits(tc.bf16x2)",
    tc.u32,
)
def adds_pairs(pair: tc.u32):
    pair.bits(tc.f16x2) + pair.bits(tc.bf16x2)  # noqa: B018


@refused(
    "f16x2 and f32 do not combine: unpack the pair first", "pair.bits(tc.f16x2) + tc.f32(1)", tc.u32
)
def adds_a_pair(pair: tc.u32):
    pair.bits(tc.f16x2) + tc.f32(1)  # noqa: B018


@refused("/ is not defined for pairs (f16x2): unpack them first", "pair.bits(tc.f16x2) / 2", tc.u32)
def divides_a_pair(pair: tc.u32):
    pair.bits(tc.f16x2) / 2  # noqa: B018


@refused("< is not defined for pairs (f16x2): unpack them first", "pair.bits(tc.f16x2) < 2", tc.u32)
def compares_a_pair(pair: tc.u32):
    pair.bits(tc.f16x2) < 2  # noqa: B015


@refused(
    "f16x2 cannot be converted to f32: unpack the pair first",
    "pair.bits(tc.f16x2).to(tc.f32)",
    tc.u32,
)
def converts_a_pair(pair: tc.u32):
    pair.bits(tc.f16x2).to(tc.f32)


@refused(
    "f32 has 32 bits and f64 has 64; .bits() keeps the size, .to() converts",
    "x.bits(tc.f64)",
    tc.f32,
)
def reads_too_many_bits(x: tc.f32):
    x.bits(tc.f64)


@refused("cannot convert 'a' to f32", 'tc.f32("a")')
def converts_a_string():
    tc.f32("a")


@refused(
    "b32 and f64 differ in size, and plain bits have no value to convert: give them a type first, .bits(type)",
    "x.bits(tc.b32).to(tc.f64)", tc.f32,
)  # fmt: skip
def converts_bits(x: tc.f32):
    x.bits(tc.b32).to(tc.f64)


@refused("1.5 is no s32: convert it explicitly, s32(1.5)", 'tc.emit("add.s32", n, 1.5)', tc.s32)
def fraction_for_an_integer(n: tc.s32):
    tc.emit("add.s32", n, 1.5)


@refused("tanh has no f64 form; convert to f32 first", "tc.tanh(x)", tc.f64)
def wide_tanh(x: tc.f64):
    tc.tanh(x)


@refused("sqrt takes numbers, not 'a'", 'tc.sqrt("a")')
def root_of_a_string():
    tc.sqrt("a")


# -- memory -----------------------------------------------------------------------------------


@refused("a 2-dimensional f32 array takes 2 indices, 1 was given", "x.at(0)", MATRIX)
def too_few_indices(x):
    x.at(0)


@refused("a 1-dimensional f32 array takes 1 index, 2 were given", "x[0, 1]", F32)
def too_many_indices(x):
    x[0, 1]  # noqa: B018


@refused("a 1-dimensional f32 array is indexed by integers, not by 1.5", "x[1.5]", F32)
def fractional_index(x):
    x[1.5]  # noqa: B018


@refused("an index has at most one `...`", "x[..., ...]", MATRIX)
def two_ellipses(x):
    x[..., ...]  # noqa: B018


@refused(
    "slices of arrays and tiles have steps of 1 or more known at compile time, not -1",
    "x[::-1]",
    F32,
)
def backward_slice(x):
    x[::-1]  # noqa: B018


@refused(
    "a 1-dimensional f32 array cannot be stored at once: store elements, or vectors with array.at(...).store(values)",
    "x[0] = 1", MATRIX,
)  # fmt: skip
def stores_a_row(x):
    x[0] = 1


@refused(
    "a shared f32 tile of 4 cannot be stored at once: store elements, or vectors with tile.at(...).store(values)",
    "tile[0] = 1",
)
def stores_a_row_of_a_tile():
    tile = tc.shared((2, 4), tc.f32)
    tile[0] = 1


@refused("index 9 leaves a dimension of 4 of a shared f32 tile of 2x4", "tile[1, 9]")
def outside_a_tile():
    tile = tc.shared((2, 4), tc.f32)
    tile[1, 9]  # noqa: B018


@refused("the slice 2:6 leaves a dimension of 4 of a shared f32 tile of 2x4", "tile[0, 2:6]")
def slice_outside_a_tile():
    tile = tc.shared((2, 4), tc.f32)
    tile[0, 2:6]  # noqa: B018


@refused("the size of a shared view must be known at compile time", "tile[n:]", tc.s32)
def run_time_view(n: tc.s32):
    tile = tc.shared(4, tc.f32)
    tile[n:]  # noqa: B018


@refused("a pointer moves by integers, not by 1.5", "x.at(0) + 1.5", F32)
def fractional_pointer(x):
    x.at(0) + 1.5  # noqa: B018


@refused(
    "a global pointer to f32 and a global pointer to s32 do not combine",
    "x.at(0) - y.at(0)",
    F32,
    INTS,
)
def pointers_of_two_types(x, y):
    x.at(0) - y.at(0)  # noqa: B018


@refused(
    "a load or store moves 1, 2, 4, 8 or 16 elements of 8 bits or more, and at most 16 bytes; 3 f32 were asked for",
    "x.at(0).load(3)", F32,
)  # fmt: skip
def loads_three(x):
    x.at(0).load(3)


@refused(
    "otherwise= of a vector of narrow elements can only be 0",
    "x.at(0).load(4, pred=n > 0, otherwise=1)",
    HALF,
    tc.s32,
)
def narrow_otherwise(x, n: tc.s32):
    x.at(0).load(4, pred=n > 0, otherwise=1)


@refused(
    "swizzle may be 32, 64 or 128 bytes (0 for none), not 48",
    "tc.shared((8, 64), tc.f16, swizzle=48)",
    error=LayoutError,
)
def odd_swizzle():
    tc.shared((8, 64), tc.f16, swizzle=48)


@refused(
    "a 128-byte swizzle needs rows of a multiple of 128 bytes; rows of 32 f16 have 64",
    "tc.shared((8, 32), tc.f16, swizzle=128)", error=LayoutError,
)  # fmt: skip
def misaligned_swizzle():
    tc.shared((8, 32), tc.f16, swizzle=128)


@refused(
    "a tile cannot be aligned to 64 bytes: powers of two are allowed, and a 128-byte swizzle needs a multiple of 1024",
    "tc.shared((8, 64), tc.f16, swizzle=128, align=64)", error=LayoutError,
)  # fmt: skip
def misaligned_tile():
    tc.shared((8, 64), tc.f16, swizzle=128, align=64)


@refused(
    "1 strides were given for 2 dimensions",
    "tc.shared((8, 64), tc.f16, strides=(1,))",
    error=LayoutError,
)
def too_few_strides():
    tc.shared((8, 64), tc.f16, strides=(1,))


@refused(
    "offset 6 of f32 elements is no multiple of 4 bytes",
    "tc.dynamic_shared(4, tc.f32, offset=6)",
    error=LayoutError,
)
def misaligned_offset():
    tc.dynamic_shared(4, tc.f32, offset=6)


@refused(
    "cp.async copies from global to shared memory, not from shared to global",
    "tc.cp_async(x.at(0), tile.at(0), 16)", F32,
)  # fmt: skip
def copies_backward(x):
    tile = tc.shared(4, tc.f32)
    tc.cp_async(x.at(0), tile.at(0), 16)


@refused(
    "operand size of cp.async.ca.shared.global may be 4, 8, 16; 12 was given",
    "tc.cp_async(tile.at(0), x.at(0), 12)", F32,
)  # fmt: skip
def copies_twelve_bytes(x):
    tile = tc.shared(4, tc.f32)
    tc.cp_async(tile.at(0), x.at(0), 12)


# -- instructions -----------------------------------------------------------------------------


@refused(
    "operand b of mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 must be a fragment f16x2:mma.B.16x8.f16, not a "
    "fragment f16x4:mma.A.16x16.f16",
    "fa",
)  # fmt: skip
def fragment_of_another_operand():
    mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
    fa, acc = mma.a.zeros(), mma.d.zeros()
    mma(fa, fa, acc)


@refused(
    "operand a of mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 must be a fragment f16x4:mma.A.16x16.f16, not a "
    "fragment bf16x4:mma.A.16x16.bf16",
    "other.a.zeros()",
)  # fmt: skip
def fragment_of_another_instruction():
    mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
    other = tc.mma.m16n8k16(tc.bf16, tc.bf16, tc.f32)
    mma(other.a.zeros(), mma.b.zeros(), mma.d.zeros())


@refused(
    "operand b of add.rn.f32 must be f32, not a run-time value of type s32", "n", tc.f32, tc.s32
)
def wrong_type(x: tc.f32, n: tc.s32):
    tc.emit("add.rn.f32", x, n)


@refused("operand b of add.rn.f32 must be f32, not 'one'", 'add(x, "one")', tc.f32)
def string_for_a_register(x: tc.f32):
    add = tc.instruction("add.rn.f32")
    add(*[x, "one"])


CASES[-1].at = 'add(*[x, "one"])'


@refused("add.rn.f32 takes 2 operands (a, b), 1 was given", 'tc.emit("add.rn.f32", x)', tc.f32)
def too_few_operands(x: tc.f32):
    tc.emit("add.rn.f32", x)


@refused(
    "add.rn.f32 takes no option 'when'; allowed are pred, otherwise",
    'tc.emit("add.rn.f32", x, x, when=True)',
    tc.f32,
)
def unknown_option(x: tc.f32):
    tc.emit("add.rn.f32", x, x, when=True)


@refused(
    "otherwise= of add.rn.f32 must be f32, not a run-time value of type f64",
    "tc.emit(\"add.rn.f32\", x, x, pred=x > 0, otherwise=y)", tc.f32, tc.f64,
)  # fmt: skip
def wrong_otherwise(x: tc.f32, y: tc.f64):
    tc.emit("add.rn.f32", x, x, pred=x > 0, otherwise=y)


@refused(
    "operand n of cp.async.wait_group must be a compile-time integer, not a run-time value of type s32",
    "tc.cp_async_wait(n)", tc.s32,
)  # fmt: skip
def run_time_immediate(n: tc.s32):
    tc.cp_async_wait(n)


@refused("an address is needed, not 1.5", 'tc.emit("ld.global.b32", 1.5)')
def address_of_a_float():
    tc.emit("ld.global.b32", 1.5)


@refused(
    "a global address (u64) is needed, not a run-time value of type u32",
    'tc.emit("ld.global.b32", tile.address)',
)
def address_of_another_space():
    tile = tc.shared(4, tc.f32)
    tc.emit("ld.global.b32", tile.address)


@refused(
    "sm_75 has no cp.async.commit_group; it exists on sm_80, sm_86, sm_89, sm_90, sm_90a, sm_100, sm_100a, sm_103a, "
    "sm_110a, sm_120, sm_120a, sm_121a",
    "tc.cp_async_commit()", error=ArchError, arch="sm_75",
)  # fmt: skip
def arch_lacks_it():
    tc.cp_async_commit()


@refused(
    "sm_80 has no mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32; it exists on sm_89, sm_90, sm_90a, sm_100, "
    "sm_100a, sm_103a, sm_110a, sm_120, sm_120a, sm_121a",
    "mma(mma.a.zeros(), mma.b.zeros(), mma.d.zeros())", error=ArchError,
)  # fmt: skip
def arch_lacks_fp8():
    mma = tc.mma.m16n8k32(tc.e4m3, tc.e4m3, tc.f32)
    mma(mma.a.zeros(), mma.b.zeros(), mma.d.zeros())


def test_unknown_forms_list_what_there_is():
    @tc.kernel
    def unknown_shape():
        tc.mma.m16n8k17(tc.f16, tc.f16, tc.f32)

    with pytest.raises(UnknownInstruction) as found:
        unknown_shape.ptx(arch="sm_80")
    assert "mma has no shape m16n8k17; it has m8n8k4" in found.value.message
    assert found.value.loc.line == unknown_shape.function.__code__.co_firstlineno + 2


@refused(
    "no form 'add.rn.f33': .f33 is not allowed; in its place: .f32, .f32x2, .f64, .f16, .f16x2, .bf16, .bf16x2",
    "tc.emit(\"add.rn.f33\", 1, 2)", error=UnknownInstruction,
)  # fmt: skip
def unknown_form():
    tc.emit("add.rn.f33", 1, 2)


@refused(
    "operand p is no fragment: only fragments have zeros()",
    'tc.instruction("setp.lt.s32").p.zeros()',
)
def zeros_of_a_register():
    tc.instruction("setp.lt.s32").p.zeros()


@refused(
    "registers are numbered at compile time: index a fragment or vector with a compile-time integer, not a run-time "
    "value of type s32",
    "v[n]", F32, tc.s32,
)  # fmt: skip
def run_time_register(x, n: tc.s32):
    v = x.at(0).load(4)
    v[n]  # noqa: B018


@refused("a vector of 4 f32 has no coordinates; only fragments do", "v.coordinates(0)", F32)
def coordinates_of_a_vector(x):
    v = x.at(0).load(4)
    v.coordinates(0)


@refused("a fragment f32x4:mma.C.16x8.f32 has elements 0 to 3, not 4", "acc.coordinates(4)")
def coordinates_outside():
    acc = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32).d.zeros()
    acc.coordinates(4)


@refused(
    "a vector of 4 f32 and a vector of 2 f32 do not combine",
    "x.at(0).load(4) + x.at(0).load(2)",
    F32,
)
def vectors_of_two_lengths(x):
    x.at(0).load(4) + x.at(0).load(2)  # noqa: B018


@refused("a vector of 4 f32 has no truth value; reduce its elements first", "not v", F32)
def truth_of_a_vector(x):
    v = x.at(0).load(4)
    not v  # noqa: B018


@refused(
    "a run-time condition cannot choose between a vector of 4 f32 and 1",
    "tc.select(n > 0, v, 1)",
    F32,
    tc.s32,
)
def choice_of_vector_and_number(x, n: tc.s32):
    v = x.at(0).load(4)
    tc.select(n > 0, v, 1)


@refused("a vector has elements of one type, not s32, f32", "tc.vector([n, x])", tc.s32, tc.f32)
def mixed_vector(n: tc.s32, x: tc.f32):
    tc.vector([n, x])


@refused("3 is no fragment operand, such as mma.a", "tc.fragment(3, [])")
def fragment_of_nothing():
    tc.fragment(3, [])


@refused("f32*4@mma.C.16x8.f32 has 4 registers, 1 were given", "tc.fragment(mma.d, [x])", tc.f32)
def too_few_registers(x: tc.f32):
    mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
    tc.fragment(mma.d, [x])


@refused(
    "a register of f32*4@mma.C.16x8.f32 holds 32 bits, not a run-time value of type f64",
    "tc.fragment(mma.d, [x, x, x, x])", tc.f64,
)  # fmt: skip
def registers_of_another_size(x: tc.f64):
    mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
    tc.fragment(mma.d, [x, x, x, x])


@refused("a register of f32*4@mma.C.16x8.f32 is needed, not 'a'", 'tc.fragment(mma.d, ["a"] * 4)')
def registers_of_strings():
    mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
    tc.fragment(mma.d, ["a"] * 4)


@refused("a fragment operand, such as mma.a, is needed, not 'a'", 'tc.ldmatrix(tile, "a")')
def loads_no_fragment():
    tile = tc.shared((16, 16), tc.f16)
    tc.ldmatrix(tile, "a")


@refused(
    "a two-dimensional shared tile is needed, not a 2-dimensional f32 array",
    "tc.ldmatrix(x, mma.a)",
    MATRIX,
)
def ldmatrix_of_an_array(x):
    mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
    tc.ldmatrix(x, mma.a)


@refused(
    "a shared f32 tile of 16x16 cannot hold mma.A.16x16.f16, which has f16",
    "tc.ldmatrix(tile, mma.a)",
)
def tile_of_another_type():
    mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
    tile = tc.shared((16, 16), tc.f32)
    tc.ldmatrix(tile, mma.a)


@refused(
    "mma.A.16x16.f16 covers 16x16; a shared f16 tile of 16x24 is no multiple of it",
    "tc.ldmatrix(tile, mma.a)",
)
def tile_of_another_shape():
    mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
    tile = tc.shared((16, 24), tc.f16)
    tc.ldmatrix(tile, mma.a)


@refused(
    "a fragment is needed, not 3; store vectors with pointer.store(...)", "tc.stmatrix(tile, 3)"
)
def stores_no_fragment():
    tile = tc.shared((16, 16), tc.f16)
    tc.stmatrix(tile, 3)


@refused(
    "stmatrix cannot store mma.C.16x8.f32; use tc.store_elements",
    "tc.stmatrix(tile, mma.d.zeros())",
    arch="sm_90",
)
def stores_wide_fragments():
    mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
    tile = tc.shared((16, 8), tc.f32)
    tc.stmatrix(tile, mma.d.zeros())


@refused("a vote may be all, any, uni, ballot; 'most' was given", 'tc.vote("most", True)')
def unknown_vote():
    tc.vote("most", True)


@refused(
    "a reduction may be add, min, max, and, or, xor; 'mul' was given", 'tc.redux("mul", n)', tc.s32
)
def unknown_redux(n: tc.s32):
    tc.redux("mul", n)


@refused(
    "an atomic operation may be add, min, max, and, or, xor, exch, inc, dec, cas; 'mul' was given",
    "tc.atomic(\"mul\", x.at(0), 1)", INTS,
)  # fmt: skip
def unknown_atomic(x):
    tc.atomic("mul", x.at(0), 1)


@refused(
    "a reduction may be add, min, max, and, or, xor, inc, dec; 'cas' was given",
    'tc.reduce("cas", x.at(0), 1)',
    INTS,
)
def unknown_reduction(x):
    tc.reduce("cas", x.at(0), 1)


@refused(
    "tc.atomic takes a pointer, array.at(...), not a run-time value of type s32",
    'tc.atomic("add", x[0], 1)',
    INTS,
)
def atomic_on_a_value(x):
    tc.atomic("add", x[0], 1)


def test_unknown_special_registers_list_what_there_is():
    @tc.kernel
    def unknown_register():
        tc.special("lane")

    with pytest.raises(
        UnknownInstruction,
        match=r"no special register is called 'lane'; there are aggr_smem_size, clock, clock64",
    ):
        unknown_register.ptx(arch="sm_80")


@refused(
    "'s' cannot format a run-time value of type s32: allowed are flags (-, +, 0), a width, a precision and one of d, "
    "x, X, o, u",
    "print(f\"{n:s}\")", tc.s32,
)  # fmt: skip
def formats_wrongly(n: tc.s32):
    print(f"{n:s}")


@refused(
    "a value of type f16x2 cannot be printed; convert it first",
    "print(pair.bits(tc.f16x2))",
    tc.u32,
)
def prints_a_pair(pair: tc.u32):
    print(pair.bits(tc.f16x2))


@refused("elements of type s4 cannot be taken out of a register", "mma.a.zeros()[0]")
def takes_nibbles():
    mma = tc.mma.m16n8k32(tc.s4, tc.s4, tc.s32)
    mma.a.zeros()[0]  # noqa: B018


# -- kernels and their arguments --------------------------------------------------------------


@tc.kernel
def plain(x: tc.Array, n: tc.s32, size: tc.Const = 4):
    x[n] = size


def says(
    message: str, call: Callable[[], Any], error: type[TensorCoreError] = ArgumentError
) -> None:
    with pytest.raises(error) as found:
        call()
    assert found.value.message == message


def test_launch_without_grid():
    says(
        "kernel plain is launched with a grid and a block: plain[grid, block](...)",
        lambda: plain(1, 2),
    )
    says(
        "plain[grid, block, stream=None, shared_bytes=0] takes 2 to 4 values, 3 was given",
        lambda: plain[3],
    )
    says(
        "plain.emulate[grid, block, stream=None, shared_bytes=0] takes 2 to 4 values, 3 was given",
        lambda: plain.emulate[3],
    )


def test_arguments_that_do_not_fit_the_parameters():
    x, run = np.zeros(4, np.float32), plain.emulate[1, 1]
    names = "x, n, size"
    says(f"plain takes 3 arguments ({names}), 4 were given", lambda: run(x, 1, 2, 3))
    says(f"plain: argument 'n' is missing; the parameters are {names}", lambda: run(x))
    says(f"plain: argument 'm' is unknown; the parameters are {names}", lambda: run(x, 1, m=2))
    says(
        f"plain: argument 'x' is given twice; the parameters are {names}", lambda: run(x, x=x, n=1)
    )
    says("plain: argument 'x' is a s32 number; the parameter takes an array", lambda: run(3, 1))
    says(
        "plain: argument 'n' is a numpy.ndarray; the parameter takes a s32 number",
        lambda: run(x, x),
    )
    says(
        "plain: argument 'n' is 1.5; s32 holds integers from -2147483648 to 2147483647",
        lambda: run(x, 1.5),
    )
    says(
        "plain: argument 'n' is compiled for f32; the parameter is declared as s32",
        lambda: plain.ptx(F32, tc.f32),
    )
    with pytest.raises(
        ArgumentError,
        match="plain: argument 'x' is a str, which no kernel takes; allowed are NumPy",
    ):
        run("x", 1)
    with pytest.raises(
        ArgumentError, match="plain: argument 'x': arrays of dtype complex64 are not supported"
    ):
        run(x.astype(np.complex64), 1)


def test_kernels_that_cannot_be():
    says("kernel spread: *xs is not possible; name every parameter", lambda: tc.kernel(spread))
    says(
        "kernel noted: the annotation 'nowhere.f32' of 'x' cannot be evaluated: NameError: name 'nowhere' is not defined",
        lambda: tc.kernel(noted),
    )
    says("@kernel decorates functions, not 3", lambda: tc.kernel(3))
    says(
        "generator is a generator or coroutine; kernels and their helpers are plain functions",
        lambda: tc.kernel(generator).ptx(arch="sm_80"),
        UnsupportedSyntax,
    )
    says(
        "the source of hidden cannot be read: kernels and their helpers must be defined in a file or in a notebook "
        "cell, lambdas of the same parameters on lines of their own",
        lambda: tc.kernel(HIDDEN).ptx(arch="sm_80"),
        UnsupportedSyntax,
    )
    says(
        "a kernel is a function with a name, not a lambda",
        lambda: tc.kernel(LAMBDA).ptx(arch="sm_80"),
        UnsupportedSyntax,
    )


def spread(*xs):
    pass


def noted(x: nowhere.f32):  # noqa: F821
    pass


def generator():
    yield


NAMES: dict[str, Any] = {}
exec("def hidden(): pass", NAMES)
HIDDEN = NAMES["hidden"]
LAMBDA = lambda: None


def test_targets(monkeypatch: Any):
    def enter(*args: Any) -> None:
        with tc.target(*args):
            pass

    says("unknown target 'tpu'; allowed are cpu, cuda", lambda: enter("tpu"))
    with pytest.raises(ArchError, match="unknown architecture 'sm_79'; known are sm_70"):
        enter("cpu", "sm_79")
    monkeypatch.setenv("TENSORCORE_DSL_TARGET", "tpu")
    says("TENSORCORE_DSL_TARGET is 'tpu'; allowed are cpu, cuda", tc.current_target)


def test_a_gpu_of_the_future(monkeypatch: Any):
    from tensorcore_dsl import targets

    monkeypatch.setattr(targets.numba_target, "device_number", lambda: 137)
    says("the GPU's compute capability 137 is unknown to this version", targets.device_arch)


class OnDevice:
    is_cuda = True


OnDevice.__module__ = "torch"


def test_arrays_that_the_cpu_cannot_read():
    from tensorcore_dsl.host import on_host

    def view(arg: Any) -> None:
        with on_host([arg]):
            pass

    says("a CUDA tensor cannot be read by the CPU: pass tensor.cpu()", lambda: view(OnDevice()))
    says("a list cannot be read by the CPU: pass a NumPy array or a CPU tensor", lambda: view([1]))


def test_clusters_have_sizes_that_are_known():
    @tc.kernel
    def sized(x: tc.Array, n):
        tc.cluster_size(n)

    with pytest.raises(tc.OperandError) as error:
        sized.emulate[2, 32](np.zeros(32, np.float32), 2)
    assert "not (a run-time value of type s32); a tc.Const parameter is one" in str(error.value)
    assert "tc.cluster_size(n)" in str(error.value)
