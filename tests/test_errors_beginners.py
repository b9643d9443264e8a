"""What beginners write, and those who know CUDA, Triton or NumPy, and what they are told."""

from __future__ import annotations

import math
import re
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numba import cuda

import tensorcore_dsl as tc
from tensorcore_dsl import (
    CompileError,
    OperandError,
    UnknownInstruction,
    UnknownName,
    UnsupportedSyntax,
    kernels,
)
from tensorcore_dsl.dtypes import as_dtype
from tests.refused_kernels import F32, MATRIX, Refusals, check

refused = Refusals()
X = np.zeros(32, np.float32)


@pytest.mark.parametrize("case", refused, ids=lambda case: case.name)
def test_mistakes_are_refused_with_advice(case):
    check(case)


# -- names -------------------------------------------------------------------------------------


def named(name: str, advice: str) -> Any:
    text = f"tensorcore_dsl has no {name!r}{advice}"
    return refused(text, f"tc.{name}", error=UnknownName)


@named("shfl_dwn", "; did you mean tc.shfl_down?")
def misspells():
    tc.shfl_dwn(1.0, 1)


@named("syncthreads", "; did you mean tc.barrier()?")
def synchronises():
    tc.syncthreads()


@named("thread_idx", "; did you mean tc.threadIdx?")
def writes_snakes():
    tc.thread_idx.x  # noqa: B018


@named("qwertz", "")
def invents():
    tc.qwertz()


@refused(
    "name '__syncthreads' is not defined; did you mean tc.barrier()?", "__syncthreads", error=CompileError
)
def writes_cuda():
    __syncthreads()  # noqa: F821


@refused("name 'threadIdx' is not defined; did you mean tc.threadIdx?", "threadIdx", error=CompileError)
def forgets_the_module():
    threadIdx.x  # noqa: B018, F821


@refused(
    "name 'tl' is not defined; kernels are written with tc: import tensorcore_dsl as tc",
    "tl",
    F32,
    error=CompileError,
)
def writes_triton(x):
    tl.load(x)  # noqa: F821


@refused("name 'totl' is not defined; did you mean 'total'?", "totl", error=CompileError)
def misspells_a_variable():
    total = 1
    print(totl, total)  # noqa: F821


@refused("name 'helpr' is not defined; did you mean 'helper'?", "helpr", error=CompileError)
def misspells_a_function():
    helpr(1)  # noqa: F821


def helper(value):
    return value


@refused(
    "a 1-dimensional f32 array has no attribute 'shpe'; did you mean .shape?",
    "x.shpe",
    F32,
    error=CompileError,
)
def misspells_an_attribute(x):
    x.shpe  # noqa: B018


@refused(
    "a 1-dimensional f32 array has no attribute 'length'; did you mean .shape[0]?",
    "x.length",
    F32,
    error=CompileError,
)
def wants_a_length(x):
    x.length  # noqa: B018


@refused(
    "a shared f32 tile of 4x4 has no attribute 'shpe'; did you mean .shape?",
    "tc.shared((4, 4), tc.f32).shpe",
    error=CompileError,
)
def misspells_an_attribute_of_a_tile():
    tc.shared((4, 4), tc.f32).shpe  # noqa: B018


@refused(
    "a run-time value of type f32 has no attribute 'astype'; did you mean .to(dtype)?",
    "x.astype",
    tc.f32,
    error=CompileError,
)
def converts_as_numpy(x):
    x.astype(tc.f16)


@refused(
    "a fragment f32x4:mma.C.16x8.f32 has no attribute 'cordinates'; did you mean .coordinates?",
    "mma.d.zeros().cordinates",
    error=CompileError,
)
def misspells_an_attribute_of_a_fragment():
    mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
    mma.d.zeros().cordinates(0)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("float16", "did you mean tc.f16?"),
        ("int32", "did you mean tc.s32?"),
        ("uint8", "did you mean tc.u8?"),
        ("program_id", "did you mean tc.blockIdx.x?"),
        ("grid", "use tc.blockIdx.x * tc.blockDim.x + tc.threadIdx.x"),
        ("dot", "use tc.mma, for a warp, or tc.wgmma, for a warpgroup"),
        ("atomicAdd", 'use tc.atomic("add", array.at(i), value), or another operation in place of "add"'),
        ("atomic_cas", 'use tc.atomic("add", array.at(i), value), or another operation in place of "add"'),
        ("where", "did you mean tc.select(condition, yes, no)?"),
        ("constexpr", "did you mean tc.Const?"),
        ("__shfl_xor_sync", None),
        ("printf", "did you mean print(...)?"),
        ("sync_warp", "did you mean tc.syncwarp()?"),
        ("warp_idx", "did you mean tc.warp_id()?"),
        ("ldmatirx", "did you mean tc.ldmatrix?"),
        ("Shared", "did you mean tc.shared?"),
    ],
)
def test_names_of_other_languages(name, meant):
    with pytest.raises(AttributeError) as error:
        getattr(tc, name)
    if meant is None:  # Python asks for such names itself
        assert not isinstance(error.value, tc.TensorCoreError)
        return
    assert str(error.value) == f"tensorcore_dsl has no {name!r}; {meant}"


def test_all_advice_names_what_exists():
    from tensorcore_dsl.lang import synonyms

    for name, advice in synonyms._NAMES.items():
        assert name == name.lower().lstrip("_")
        for used in re.findall(r"\btc\.(\w+)", advice):
            assert hasattr(tc, used), (name, used)
    assert not hasattr(tc, "syncthreads") and getattr(tc, "dot", 3) == 3


# -- arguments of functions ----------------------------------------------------------------------


SHARED = "tc.shared(shape, dtype, *, swizzle=0, strides=None, align=None)"


@refused(
    f"{SHARED}: got an unexpected keyword argument 'swizle'; did you mean 'swizzle'?",
    "tc.shared((32, 64), tc.f16, swizle=128)",
    error=CompileError,
)
def misspells_a_keyword():
    tc.shared((32, 64), tc.f16, swizle=128)


@refused(f"{SHARED}: missing a required argument: 'dtype'", "tc.shared(128)", error=CompileError)
def forgets_the_type():
    tc.shared(128)


@refused(
    "tc.shfl(value, lane, mask=4294967295): missing a required argument: 'lane'",
    "tc.shfl(x)",
    tc.f32,
    error=CompileError,
)
def forgets_an_argument(x):
    tc.shfl(x)


@refused(
    "tc.barrier(id=0, threads=None): too many positional arguments", "tc.barrier(1, 2, 3)", error=CompileError
)
def gives_too_many():
    tc.barrier(1, 2, 3)


@refused(
    ".to(dtype, *, rounding=None, relu=False, satfinite=False): missing a required argument: 'dtype'",
    "x.to()",
    tc.f32,
    error=CompileError,
)
def converts_to_nothing(x):
    x.to()


@refused(
    "helper(value): got an unexpected keyword argument 'valu'; did you mean 'value'?",
    "helper(valu=1)",
    error=CompileError,
)
def misspells_a_keyword_of_a_helper():
    helper(valu=1)


@refused(
    "the argument 'number' of bin must be known at compile time, as a tc.Const parameter is; a run-time value of type "
    "s32 was given",
    "bin(n)",
    tc.s32,
)
def asks_for_bits(n):
    bin(n)


@refused(
    "the number of elements to load is known at compile time, not a run-time value of type s32",
    "x.at(0).load(n)",
    F32,
    tc.s32,
)
def loads_many(x, n):
    x.at(0).load(n)


@refused(
    "* of a list of 1 item and a run-time value of type s32 needs a number known at compile time",
    "[0] * n",
    tc.s32,
)
def repeats_a_list(n):
    [0] * n  # noqa: B018


@refused(
    "static_range is unrolled, so its bounds are integers known at compile time, not a run-time value of type s32; "
    "tc.range makes a run-time loop",
    "tc.static_range(n)",
    tc.s32,
)
def unrolls_at_run_time(n):
    for _ in tc.static_range(n):
        tc.barrier()


@refused("3 cannot be called", "three(1)")
def calls_a_number():
    three = 3
    three(1)


@refused("a 1-dimensional f32 array cannot be called", "x(1)", F32)
def calls_an_array(x):
    x(1)


@refused(
    "a kernel cannot launch another one; other(...), without a grid, runs its code in this kernel",
    "other[1, 32]",
    F32,
)
def launches(x):
    other[1, 32](x)


@tc.kernel
def other(x):
    x[0] = 1


# -- types -------------------------------------------------------------------------------------


@refused("an element type is needed, such as tc.f32, np.float32 or 'f32', not [1]", "tc.local(4, [1])")
def makes_a_list_the_type():
    tc.local(4, [1])


@refused("1000000.0 does not fit in f16, whose largest is 65504", "h + 1e6", tc.f16)
def adds_too_much(h: tc.f16):
    h + 1e6  # noqa: B018


@refused("1e+39 does not fit in f32, whose largest is 3.40282e+38", "tc.f32(1e39)")
def overflows():
    tc.f32(1e39)


@refused(
    "mma.m16n8k4 takes the element types of a, b and the accumulator (and of d where it differs), as in "
    "tc.mma.m16n8k4(tc.tf32, tc.tf32, tc.f32); () was given, there are (tf32, tf32, f32), (f64, f64, f64)",
    "tc.mma.m16n8k4()",
    error=UnknownInstruction,
)
def forgets_the_types():
    tc.mma.m16n8k4()


class TorchType:
    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return f"torch.{self.name}"


TorchType.__module__ = "torch"


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (np.float16, tc.f16),
        ("f16", tc.f16),
        ("float16", tc.f16),
        (np.dtype("float32"), tc.f32),
        ("bfloat16", tc.bf16),
        (tc.bf16.numpy, tc.bf16),
        (float, tc.f32),
        (int, tc.s32),
        (bool, tc.pred),
        (np.uint8, tc.u8),
        (np.bool_, tc.pred),
        ("torch.int64", tc.s64),
        (TorchType("float16"), tc.f16),
        (TorchType("bfloat16"), tc.bf16),
        (tc.e4m3, tc.e4m3),
        (TorchType("float8_e4m3fn"), tc.e4m3),
        ("half", tc.f16),
        ("double", tc.f64),
        ("b32", tc.b32),
    ],
)
def test_types_by_other_names(given, meant):
    assert as_dtype(given) is meant


@pytest.mark.parametrize("given", ["f17", 3, None, str, np.complex64, np, "i4", "float", object()])
def test_what_is_no_type(given):
    with pytest.raises(tc.TensorCoreError):
        as_dtype(given)


@tc.kernel
def types(x, n: np.int64, f: f32, h: np.dtype("float16")):  # noqa: F821
    tile, own = tc.shared(32, np.float16), tc.local(2, "float32")
    tile[tc.threadIdx.x] = x[tc.threadIdx.x].to(np.float16)
    mma = tc.mma.m16n8k16(np.float16, "f16", np.float32)
    own[0] = mma.d.zeros()[0] + f
    value: np.float32 = 1
    bits = own[0].bits(np.uint32).bits("f32")
    x[tc.threadIdx.x] = own[0] + tile[tc.threadIdx.x] + n + value + h + bits


def test_types_of_numpy_in_kernels():
    x = np.arange(32, dtype=np.float32)
    types.emulate[1, 32](x, 3, 2.0, 0.5)
    assert np.array_equal(x, np.arange(32) + 2 + 3 + 1 + 0.5 + 2)
    assert "b16" in types.ptx(F32, tc.s64, tc.f32, tc.f16, arch="sm_80")


# -- what exists at compile time alone -----------------------------------------------------------


ONLY = (
    "a {} exists only at compile time, and so must its {}, which is a run-time value of type s32; use tc.local, shared "
    "memory or an array, or choose among items with tc.select"
)


@refused(ONLY.format("dict", "key"), "table[n]", tc.s32)
def looks_up(n):
    table = {1: 2}
    table[n]  # noqa: B018


@refused(ONLY.format("dict", "key"), "table[n] = 3", tc.s32)
def stores_by_a_run_time_key(n):
    table = {1: 2}
    table[n] = 3


@refused(ONLY.format("tuple", "index"), "(1, 2)[n]", tc.s32)
def indexes_a_tuple(n):
    (1, 2)[n]  # noqa: B018


@refused(ONLY.format("list", "index"), "values[n] += 1", tc.s32)
def increments_an_item(n):
    values = [1, 2]
    values[n] += 1


@refused(
    "a ndarray exists only at compile time, and so must its index, which is a run-time value of type s32; pass the "
    "array to the kernel, or copy it to tc.local",
    "X[n]",
    tc.s32,
)
def indexes_an_array_of_numpy(n):
    X[n]  # noqa: B018


@refused(
    "np.sin computes at compile time, when a run-time value of type f32 has no value yet; use tc.sin",
    "np.sin(x)",
    tc.f32,
)
def computes_by_numpy(x):
    np.sin(x)


@refused(
    "np.sum computes at compile time, when a 1-dimensional f32 array has no value yet; kernels compute element by "
    "element, with operators, tc.exp and the like",
    "np.sum(x)",
    F32,
)
def sums_by_numpy(x):
    np.sum(x)


@refused(
    "float32 takes values known at compile time; x.to(tc.f32) converts run-time values",
    "np.float32(n)",
    tc.s32,
)
def converts_by_numpy(n):
    np.float32(n)


@refused(
    "`with` takes context managers of Python, which act at compile time, not a run-time value of type s32",
    "with n:",
    tc.s32,
)
def enters_a_number(n):
    with n:
        tc.barrier()


@refused(
    "`match` asks at compile time, and this compares a run-time value of type s32: use `if` and `elif`, which "
    "ask at run time too",
    "1",
    tc.s32,
    error=OperandError,
)
def matches(n):
    match n:
        case 1:
            tc.barrier()


@refused(
    "`import` is not part of the kernel language: import the names outside the kernel",
    "from math import pi",
    error=UnsupportedSyntax,
)
def imports_names():
    from math import pi  # noqa: F401


# -- arrays ------------------------------------------------------------------------------------


ENDLESS = "the length of a 1-dimensional f32 array is known at run time: use shape[0], and `for i in range(x.shape[0])`"


@refused(ENDLESS, "for value in x:", F32)
def iterates(x):
    for value in x:
        print(value)


@refused(ENDLESS, "a, b = x", F32)
def unpacks(x):
    a, b = x


@refused(ENDLESS, "list(x)", F32)
def lists(x):
    list(x)


@refused(
    "== is not defined for a 1-dimensional f32 array and 0: compare elements; `is` tells whether two are one object",
    "x == 0",
    F32,
)
def compares_arrays(x):
    if x == 0:
        x[0] = 1


@refused(
    "a 2-dimensional f32 array is neither true nor false: test an element, or `is not None`", "if x:", MATRIX
)
def asks_an_array(x):
    if x:
        x[0, 0] = 1


@refused("@ is not defined for a 2-dimensional f32 array and a 2-dimensional f32 array", "x @ x", MATRIX)
def multiplies_arrays(x):
    x @ x  # noqa: B018


@refused("items of a tuple of 2 items cannot be assigned: make a new one", "pair[0] = 3")
def assigns_to_a_tuple():
    pair = (1, 2)
    pair[0] = 3


# -- functions that are not called ---------------------------------------------------------------


@refused("tc.barrier is a function, which this line does not call: tc.barrier()", "tc.barrier")
def forgets_to_call():
    tc.barrier  # noqa: B018


@refused("tc.warp_id is a function: call it, tc.warp_id()", "tc.warp_id == 0")
def compares_a_function():
    if tc.warp_id == 0:
        tc.barrier()


@refused("tc.elect is a function: test tc.elect()", "if tc.elect:", arch="sm_90")
def asks_a_function():
    if tc.elect:
        tc.barrier()


@refused(
    "cuda.syncthreads is of another kernel language; did you mean tc.barrier()?",
    "cuda.syncthreads",
    error=CompileError,
)
def writes_numba():
    cuda.syncthreads()


@refused("a number or a run-time value is needed, not 'a'", 'tc.fma(x, "a", 1)', tc.f32)
def multiplies_text(x):
    tc.fma(x, "a", 1)


@refused("tc.threadIdx has components x, y and z; did you mean tc.threadIdx.x?", "tc.threadIdx + 1")
def adds_to_all_components():
    tc.threadIdx + 1  # noqa: B018


@refused("tc.blockIdx has components x, y and z; did you mean tc.blockIdx.x?", "n * tc.blockIdx", tc.s32)
def multiplies_all_components(n):
    n * tc.blockIdx  # noqa: B018


@refused("tc.threadIdx has components x, y and z; did you mean tc.threadIdx.x?", "tc.threadIdx == 0")
def compares_all_components():
    if tc.threadIdx == 0:
        tc.trap()


@refused("tc.threadIdx has components x, y and z; did you mean tc.threadIdx.x?", "n != tc.threadIdx", tc.s32)
def differs_from_all_components(n):
    if n != tc.threadIdx:
        tc.trap()


@refused(
    "a 1-dimensional f32 array is indexed by integers, not by tc.threadIdx (did you mean tc.threadIdx.x?)",
    "x[tc.threadIdx] = 1",
    F32,
)
def indexes_by_all_components(x):
    x[tc.threadIdx] = 1


@refused("tc.threadIdx (did you mean tc.threadIdx.x?) cannot be called", "tc.threadIdx()")
def calls_a_register():
    tc.threadIdx()


# -- launches ------------------------------------------------------------------------------------


@tc.kernel
def plain(x: tc.Array, n=3):
    x[0] = n


def annotated(x: list):
    pass


def numpy_annotated(x: np.ndarray):
    pass


def generates(x: tc.Array):
    yield x[0]


LAUNCHES: dict[str, tuple[Callable[[], Any], str]] = {
    "an option that is none": (
        lambda: tc.kernel(thread=128)(annotated),
        "got an unexpected keyword argument 'thread'; did you mean 'threads'?",
    ),
    "threads of text": (lambda: tc.kernel(threads="a")(annotated), "takes an integer, not 'a'"),
    "a launch option that is none": (
        lambda: plain.configured(1, 32, shared=3),
        "got an unexpected keyword argument 'shared'; did you mean 'shared_bytes'?",
    ),
    "a keyword of gemm": (
        lambda: kernels.gemm(X, X, epilog=None),
        "got an unexpected keyword argument 'epilog'; did you mean 'epilogue'?",
    ),
    "float grid": (
        lambda: plain[64 / 32, 32],
        "grid is 2.0; it must be one to three integers; // divides integers",
    ),
    "no threads": (lambda: plain[1, 0], "block is (0, 1, 1); each must be from 1 to (1024, 1024, 64)"),
    "fewer blocks than none": (
        lambda: plain[-1, 32],
        "grid is (-1, 1, 1); each must be from 0 to (2147483647, 65535, 65535)",
    ),
    "negative": (lambda: plain[1, -32], "block is (-32, 1, 1); each must be from 1 to (1024, 1024, 64)"),
    "text": (lambda: plain["1", 32], "grid is '1'; it must be one to three integers"),
    "slip": (
        lambda: plain.emulate[1, 32](X, nn=2),
        "plain: argument 'nn' is unknown; the parameters are x, n; did you mean 'n'?",
    ),
    "list": (
        lambda: plain.emulate[1, 32]([1, 2]),
        "and bool, int, float or NumPy scalars; pass np.array(...), or annotate the parameter with tc.Const",
    ),
    "None": (
        lambda: plain.emulate[1, 32](None),
        "argument 'x' is None; x: Array takes None where it has the default None, or the annotation Array | None",
    ),
    "annotation": (
        lambda: tc.kernel(annotated),
        "kernel annotated: 'x' cannot be annotated with list; allowed are tc.Array, tc.PeerArray, tc.Const (a "
        "value known at compile time), element types such as tc.f32 or np.float32, int, float, bool, one of "
        "these | None, or nothing; did you mean tc.Array?",
    ),
    "annotation of NumPy": (
        lambda: tc.kernel(numpy_annotated),
        "annotated with ndarray; allowed are tc.Array",
    ),
    "generator": (lambda: tc.kernel(generates).ptx(F32), "generates is a generator or coroutine; kernels"),
    "outside": (
        lambda: tc.barrier(),
        "tc.barrier can be called only inside a @tc.kernel; outside, tc.emulate(text, ...) runs one instruction",
    ),
    "register outside": (
        lambda: tc.threadIdx.x,
        "instructions, types and registers can be used only inside a",
    ),
    "range outside": (lambda: list(tc.range(3)), "a run-time range can only be looped over with `for`"),
}


@pytest.mark.parametrize("case", LAUNCHES)
def test_launches(case):
    run, message = LAUNCHES[case]
    with pytest.raises(tc.TensorCoreError) as error:
        run()
    assert message in error.value.message
    files = {frame.filename for frame in traceback.extract_tb(error.value.__traceback__)}
    assert files == {__file__}
    if case in ("annotation", "generator"):
        assert f"at {__file__}:" in str(error.value)


# -- what stays allowed --------------------------------------------------------------------------


@tc.kernel
def allowed(x, bias: tc.Const = None):
    total = 0.0
    for value in tc.local(3, tc.f32, fill=2.0):
        total += value
    if bias is None and x is not None:
        total += math.sqrt(total) * 0 + np.exp(total) * 0
    tile = tc.shared((2, 32), tc.f32)
    for row in tile:
        row[tc.threadIdx.x] = 1.0
    first, second = tile
    x[tc.threadIdx.x] = total + first[tc.threadIdx.x] + second[tc.threadIdx.x] + len(range(0, 2))


def test_what_stays_allowed():
    x = np.zeros(32, np.float32)
    allowed.emulate[1, 32](x)
    assert np.array_equal(x, np.full(32, 10, np.float32))
