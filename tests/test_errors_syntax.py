"""What users read of Python that kernels lack, and of values that are known too late."""

from __future__ import annotations

import math

import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import CompileError, UnsupportedSyntax
from tests.refused_kernels import Refusals, check

refused = Refusals()


@pytest.mark.parametrize("case", refused, ids=lambda case: case.name)
def test_unsupported_syntax_is_refused(case):
    check(case)


# -- syntax -----------------------------------------------------------------------------------


@refused(
    "`try` is not part of the kernel language: errors of the compilation cannot be caught, and at run time there are "
    "none; use `if`, and tc.trap() to end the kernel",
    "try:",
    error=UnsupportedSyntax,
)
def uses_try():
    try:
        tc.barrier()
    finally:
        pass


@refused(
    "`class` is not part of the kernel language: define the class outside the kernel; dataclasses hold run-time values",
    "class Local:",
    error=UnsupportedSyntax,
)
def defines_a_class():
    class Local:
        pass


@refused(
    "`global` is not part of the kernel language: a kernel cannot change variables around it; return values, or store "
    "to an array",
    "global F32",
    error=UnsupportedSyntax,
)
def uses_global():
    global F32


@refused(
    "`import` is not part of the kernel language: import the module outside the kernel",
    "import math",
    error=UnsupportedSyntax,
)
def imports():
    import math  # noqa: F401


@refused("a function inside a kernel has no decorators", "def inner():", error=UnsupportedSyntax)
def decorates():
    @tc.kernel
    def inner():
        pass


@refused("a kernel returns nothing: store results to an array", "return x", tc.s32, error=UnsupportedSyntax)
def returns_a_value(x: tc.s32):
    return x


@refused(
    "a run-time loop has no else: set a variable before `break`, and test it afterwards",
    "for i in range(n):",
    tc.s32,
    error=UnsupportedSyntax,
)
def loop_with_else(n: tc.s32):
    for i in range(n):
        tc.barrier()
    else:
        tc.barrier()


@refused(
    "a run-time loop has no else: set a variable before `break`, and test it afterwards",
    "while n > tc.lane_id():",
    tc.s32,
    error=UnsupportedSyntax,
)
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


@refused("a run-time value of type s32 has no attribute 'shape'", "n.shape", tc.s32, error=CompileError)
def attribute_of_a_register(n: tc.s32):
    n.shape  # noqa: B018


@refused("tc.threadIdx has components x, y and z, not 'w'", "tc.threadIdx.w", error=CompileError)
def fourth_dimension():
    tc.threadIdx.w  # noqa: B018


@refused(
    "assertion failed: a tile of 3", 'assert size % 2 == 0, f"a tile of {size}"', error=CompileError, size=3
)
def asserts(size: tc.Const):
    assert size % 2 == 0, f"a tile of {size}"


@refused(
    "the message of an assertion is known when compiling, not an f-string of run-time "
    "values; `if` with print and tc.trap() shows values",
    'assert n > 0, f"{n} is not positive"',
    tc.s32,
)
def asserts_with_a_value(n: tc.s32):
    assert n > 0, f"{n} is not positive"


@refused(
    "the message of an assertion is known when compiling, not a run-time value of type pred; `if` with "
    "print and tc.trap() shows values",
    'tc.assert_("n is not positive", n > 0)',
    tc.s32,
)
def asserts_with_swapped_arguments(n: tc.s32):
    tc.assert_("n is not positive", n > 0)


@refused("assertion failed: the condition does not hold", "tc.assert_(1 > 2)", error=CompileError)
def asserts_by_name():
    tc.assert_(1 > 2)


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


@refused("ZeroDivisionError: integer division or modulo by zero", "5 // zero", error=CompileError, zero=0)
def static_division_by_zero(zero: tc.Const):
    tc.barrier(5 // zero)


@refused("2 values for 3 names", "a, b, c = 1, 2", error=CompileError)
def unpacks_too_few():
    a, b, c = 1, 2  # noqa: F841


# -- compile time and run time ----------------------------------------------------------------


@refused(
    "math.gamma computes at compile time, when a run-time value of type f32 has no value yet; of math, kernels have "
    "ceil, copysign, cos, erf, exp, exp2, fabs, floor, hypot, isfinite, isinf, isnan, log, log2, pow, sin, sqrt, tanh, "
    "trunc",
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
    "the condition of a comprehension must be known at compile time", "[i for i in (1, 2) if n > i]", tc.s32
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


@refused("a view of a local f32 array of 2 cannot be assigned: assign its elements", "values[0] = 1", tc.s32)
def assigns_a_row(n: tc.s32):
    values = tc.local((2, 2), tc.f32)
    values[0] = 1


@refused("index 2 leaves a dimension of 2 of a local f32 array of 2", "values[2]")
def outside_local():
    values = tc.local(2, tc.f32)
    values[2]  # noqa: B018


@refused("an f-string of run-time values can only be printed, not made a string", 'str(f"{n}")', tc.s32)
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


@refused("a range over u32 cannot count down: convert its bounds to a signed type", "range(n, 0, -1)", tc.u32)
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
