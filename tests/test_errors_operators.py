"""What users read of operators that do not fit their operands, and of arrays and tiles."""

from __future__ import annotations

import math

import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import ArrayType, LayoutError
from tests.refused_kernels import F32, HALF, INTS, MATRIX, Refusals, check

refused = Refusals()


@pytest.mark.parametrize("case", refused, ids=lambda case: case.name)
def test_wrong_operators_are_refused(case):
    check(case)


# -- operators --------------------------------------------------------------------------------


@refused("+ is not defined for a run-time value of type s32 and 'a'", 'n + "a"', tc.s32)
def adds_a_string(n: tc.s32):
    n + "a"  # noqa: B018


@refused("< is not defined for a run-time value of type s32 and None", "n < None", tc.s32)
def compares_with_none(n: tc.s32):
    n < None  # noqa: B015


@refused("& needs integers, not f32; .bits(tc.u32) reads its bits", "x & 3", tc.f32)
def masks_a_float(x: tc.f32):
    x & 3  # noqa: B018


@refused("<< needs integers, not f32; .bits(tc.u32) reads its bits", "x << 3", tc.f32)
def shifts_a_float(x: tc.f32):
    x << 3  # noqa: B018


@refused("~ needs integers, not f32; .bits(tc.u32) reads its bits", "~x", tc.f32)
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


@refused("** of a run-time value takes a compile-time exponent from 1 to 16, 0.5 was given", "n**0.5", tc.s32)
def fractional_power(n: tc.s32):
    n**0.5  # noqa: B018


@refused(
    "math.pow takes a whole exponent from 1 to 16 that is known at compile time, not 0.5; of x > 0, "
    "tc.exp2(y * tc.log2(x)) approximates any power",
    "math.pow(n, 0.5)",
    tc.s32,
)
def root_by_math(n: tc.s32):
    math.pow(n, 0.5)


@refused("math.hypot takes numbers, not None", "math.hypot(n, None)", tc.s32)
def distance_of_nothing(n: tc.s32):
    math.hypot(n, None)


@refused(
    "e4m3 has no arithmetic; convert it first, for example with .to(tc.f32), or give plain bits a type with .bits(tc.u32)",
    "x[0] + 1",
    ArrayType(tc.e4m3, 1, (True,), 16),
)
def adds_fp8(x):
    x[0] + 1  # noqa: B018


@refused(
    "f16x2 and bf16x2 do not combine: convert one of them",
    "pair.bits(tc.f16x2) + pair.bits(tc.bf16x2)",
    tc.u32,
)
def adds_pairs(pair: tc.u32):
    pair.bits(tc.f16x2) + pair.bits(tc.bf16x2)  # noqa: B018


@refused("f16x2 and f32 do not combine: unpack the pair first", "pair.bits(tc.f16x2) + tc.f32(1)", tc.u32)
def adds_a_pair(pair: tc.u32):
    pair.bits(tc.f16x2) + tc.f32(1)  # noqa: B018


@refused("/ is not defined for pairs (f16x2): unpack them first", "pair.bits(tc.f16x2) / 2", tc.u32)
def divides_a_pair(pair: tc.u32):
    pair.bits(tc.f16x2) / 2  # noqa: B018


@refused("< is not defined for pairs (f16x2): unpack them first", "pair.bits(tc.f16x2) < 2", tc.u32)
def compares_a_pair(pair: tc.u32):
    pair.bits(tc.f16x2) < 2  # noqa: B015


@refused("f16x2 cannot be converted to f32: unpack the pair first", "pair.bits(tc.f16x2).to(tc.f32)", tc.u32)
def converts_a_pair(pair: tc.u32):
    pair.bits(tc.f16x2).to(tc.f32)


@refused("f32 has 32 bits and f64 has 64; .bits() keeps the size, .to() converts", "x.bits(tc.f64)", tc.f32)
def reads_too_many_bits(x: tc.f32):
    x.bits(tc.f64)


@refused("cannot convert 'a' to f32", 'tc.f32("a")')
def converts_a_string():
    tc.f32("a")


@refused(
    "b32 and f64 differ in size, and plain bits have no value to convert: give them a type first, .bits(type)",
    "x.bits(tc.b32).to(tc.f64)",
    tc.f32,
)
def converts_bits(x: tc.f32):
    x.bits(tc.b32).to(tc.f64)


@refused("1.5 is no s32: convert it explicitly, s32(1.5)", 'tc.emit("add.s32", n, 1.5)', tc.s32)
def fraction_for_an_integer(n: tc.s32):
    tc.emit("add.s32", n, 1.5)


@refused("exp has no f64 form; convert x.to(tc.f32) first", "math.exp(x)", tc.f64)
def exponential_of_doubles(x: tc.f64):
    math.exp(x)


@refused("log has no f64 form; convert x.to(tc.f32) first", "tc.log(x)", tc.f64)
def logarithm_of_doubles(x: tc.f64):
    tc.log(x)


@refused("tanh has no f64 form; convert x.to(tc.f32) first", "tc.tanh(x)", tc.f64)
def wide_tanh(x: tc.f64):
    tc.tanh(x)


@refused("sqrt takes numbers and fragments, not 'a'", 'tc.sqrt("a")')
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


@refused("slices of arrays and tiles have steps of 1 or more known at compile time, not -1", "x[::-1]", F32)
def backward_slice(x):
    x[::-1]  # noqa: B018


@refused(
    "a 1-dimensional f32 array cannot be stored at once: store elements, or vectors with array.at(...).store(values)",
    "x[0] = 1",
    MATRIX,
)
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


@refused("a global pointer to f32 and a global pointer to s32 do not combine", "x.at(0) - y.at(0)", F32, INTS)
def pointers_of_two_types(x, y):
    x.at(0) - y.at(0)  # noqa: B018


@refused(
    "a load or store moves 1, 2, 4, 8 or 16 elements of 8 bits or more, and at most 16 bytes; 3 f32 were asked for",
    "x.at(0).load(3)",
    F32,
)
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
    "tc.shared((8, 32), tc.f16, swizzle=128)",
    error=LayoutError,
)
def misaligned_swizzle():
    tc.shared((8, 32), tc.f16, swizzle=128)


@refused(
    "a tile cannot be aligned to align=64 bytes: powers of two are allowed, and a 128-byte swizzle needs a multiple of 1024",
    "tc.shared((8, 64), tc.f16, swizzle=128, align=64)",
    error=LayoutError,
)
def misaligned_tile():
    tc.shared((8, 64), tc.f16, swizzle=128, align=64)


@refused(
    "a tile cannot be aligned to align=24 bytes: powers of two are allowed",
    "tc.shared(64, tc.f16, align=24)",
    error=LayoutError,
)
def tile_of_an_odd_alignment():
    tc.shared(64, tc.f16, align=24)


@refused(
    "1 strides were given for 2 dimensions", "tc.shared((8, 64), tc.f16, strides=(1,))", error=LayoutError
)
def too_few_strides():
    tc.shared((8, 64), tc.f16, strides=(1,))


@refused(
    "offset 6 of f32 elements is not a multiple of 4 bytes",
    "tc.dynamic_shared(4, tc.f32, offset=6)",
    error=LayoutError,
)
def misaligned_offset():
    tc.dynamic_shared(4, tc.f32, offset=6)


@refused(
    "cp.async copies from global to shared memory, not from shared to global",
    "tc.cp_async(x.at(0), tile.at(0), 16)",
    F32,
)
def copies_backward(x):
    tile = tc.shared(4, tc.f32)
    tc.cp_async(x.at(0), tile.at(0), 16)


@refused(
    "operand size of cp.async.ca.shared.global may be 4, 8, 16; 12 was given",
    "tc.cp_async(tile.at(0), x.at(0), 12)",
    F32,
)
def copies_twelve_bytes(x):
    tile = tc.shared(4, tc.f32)
    tc.cp_async(tile.at(0), x.at(0), 12)


# -- what would give a wrong result without a word ------------------------------------------------


@refused(
    "the keys of a dict and the items of a set are known at compile time, to compare them; a run-time value "
    "of type f32 is not",
    "{x[0]: 1}",
    F32,
)
def key_of_dict(x: tc.Array):
    x[0] = {x[0]: 1}.get(1, 0)


@refused(
    "the keys of a dict and the items of a set are known at compile time, to compare them; a run-time value "
    "of type f32 is not",
    "{x[0], x[0]}",
    F32,
)
def item_of_set(x: tc.Array):
    x[0] = len({x[0], x[0]})


@refused(
    "a run-time value of type pred and True are never one object: compare values with ==",
    "(x[0] > 0) is True",
    F32,
)
def identity(x: tc.Array):
    x[0] = (x[0] > 0) is True


@refused(
    "< of a value of type s32 and 2147483648, which s32 does not hold: convert the value to a type that does, "
    "such as s64",
    "tc.s32(x[0]) < 2**31",
    F32,
)
def beyond_s32(x: tc.Array):
    x[0] = tc.s32(x[0]) < 2**31


@refused(
    "max of a value of type u32 and -1, which u32 does not hold: convert the value to a type that does, "
    "such as s64",
    "max(tc.u32(x[0]), -1)",
    F32,
)
def negative_for_u32(x: tc.Array):
    x[0] = max(tc.u32(x[0]), -1)


@refused(
    "// of a value of type u32 and -2, which u32 does not hold: convert the value to a type that does, "
    "such as s64",
    "tc.u32(x[0]) // -2",
    F32,
)
def negative_divisor(x: tc.Array):
    x[0] = tc.u32(x[0]) // -2


@refused("1000000.0 does not fit in e4m3, whose largest is 448", "tc.e4m3(1e6)", F32)
def beyond_e4m3(x: tc.Array):
    x[0] = tc.e4m3(1e6).to(tc.f32)


@refused("a shuffle moves values by 0 to 31 lanes, not by 32", "tc.shfl_xor(x[0], 32)", F32)
def beyond_the_warp(x: tc.Array):
    x[0] = tc.shfl_xor(x[0], 32)
