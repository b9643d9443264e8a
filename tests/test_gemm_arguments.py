"""Arguments of the host functions: what is refused, what is accepted, epilogues with arguments."""

from __future__ import annotations

import inspect
import random
import re
import sys
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import tensorcore_dsl as tc
from tensorcore_dsl import kernels
from tensorcore_dsl.checking.session import checking
from tensorcore_dsl.host import describe
from tensorcore_dsl.kernels import AmpereConfig, HopperConfig, RowReduction
from tensorcore_dsl.kernels.host import overlap
from tests.arrays import Dlpack
from tests.whole_numbers import BF16, E4M3, exact, whole

pytestmark = pytest.mark.usefixtures("on_hopper")

H, S, B = (np.ones((64, 64), dtype) for dtype in (np.float16, np.int8, BF16))
F, F_SCALES, W_SCALES = np.ones((64, 128), E4M3), np.ones((64, 1), np.float32), np.ones((1, 1), np.float32)
WIDE = np.zeros((128, 128), np.float16)
EXPERTS, OFFSETS = np.ones((2, 64, 64), BF16), np.array([0, 10, 64], np.int32)
SUM = (RowReduction("sum"),)
BIAS = np.ones(64, np.float32)
gemm, grouped, swiglu = kernels.gemm, kernels.grouped_gemm, kernels.swiglu
scaled, requantised = kernels.scaled_gemm, kernels.requantised_gemm
SPARSE = kernels.compress(np.zeros((64, 64), BF16))


def on_gpu(array: np.ndarray) -> Any:
    return SimpleNamespace(__cuda_array_interface__={**array.__array_interface__, "version": 3})


def read_only(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.flags.writeable = False
    return array


def three(value: Any, row: Any, col: Any, bias: Any) -> Any:
    return value + bias[col]


# Refused calls: function, arguments, named arguments, what the message says.

X = np.zeros((64, 64), np.float32)
REFUSED: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], str]] = {
    # arrays
    "None": (gemm, (None, H), {}, "a is None (NoneType); it must be an array of NumPy"),
    "b is None": (gemm, (H, None), {}, "b is None (NoneType); it must be an array"),
    "list": (gemm, ([[1.0]], H), {}, "a is [[1.0]] (list); it must be an array of NumPy, Numba, torch or "
             "CuPy, or another one with __cuda_array_interface__ or __dlpack__; np.asarray(x, dtype) makes one"),
    "no axes": (gemm, (np.array(1, np.float16), H), {}, "a has shape (); a matrix is needed"),
    "vector": (gemm, (H, H[0]), {}, "b has shape (64,); a matrix is needed, or a batch of them in a leading "
               "axis; a vector is a matrix as b[None] or b[:, None]"),
    "four axes": (gemm, (H[None, None], H), {}, "a has shape (1, 1, 64, 64)"),
    "objects": (gemm, (H.astype(object), H), {}, "a: NumPy arrays of dtype object"),
    "complex": (gemm, (H.astype(complex), H), {}, "a: arrays of dtype complex128 are not supported"),
    "truth values": (gemm, (H > 0, H > 0), {}, "a has elements of type pred; gemm multiplies f16"),
    "byte order": (gemm, (H.astype(">f2"), H), {}, "convert it to this machine's byte order"),
    "mixed types": (gemm, (H, B), {}, "a holds f16 but b holds bf16; convert one"),
    "masked a": (gemm, (np.ma.array(H), H), {}, "a: a masked array, and kernels know no masks; pass x.filled("),
    "on a GPU": (gemm, (on_gpu(H), H), {}, "SimpleNamespace on a GPU, and the target is the CPU"),
    "DLPack refuses": (gemm, (Dlpack(H, (2, 0)), H), {}, "a: its __dlpack__ method refuses"),
    "sizes": (gemm, (H, H[:32]), {}, "a is 64x64 and b is 32x64: a's columns must be as many as b's rows"),
    "batches": (gemm, (H[None].repeat(2, 0), H[None].repeat(3, 0)), {}, "the batches differ"),
    # C
    "c: shape": (gemm, (H, H, H[:32]), {}, "c has shape (32, 64); the product has (64, 64), and c has the same, "
                 "or one that broadcasts to it as in NumPy, such as (64,) or (64, 1)"),
    "c: batch": (gemm, (H, H, H[None]), {}, "c has shape (1, 64, 64)"),
    "c: truth values": (gemm, (H, H, H > 0), {}, "c holds pred; gemm adds f16, bf16"),
    "c: packed": (gemm, (H, H, np.ones((64, 64), ml_dtypes.int4)), {}, "c: int4 elements have a byte each in NumPy"),
    "c: fractions to s32": (gemm, (S, S, H), {}, "c holds f16; gemm adds s32, s16, s8"),
    "c: wide to s32": (gemm, (S, S, S.astype(np.int64)), {}, "c holds s64"),
    "c: a list": (gemm, (H, H, [1.0] * 64), {}, "c is [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, ...] (list)"),
    # numbers
    "beta without C": (gemm, (H, H), {"beta": 2.0}, "beta is 2.0, but there is no C"),
    "alpha: an array": (gemm, (H, H), {"alpha": np.ones(2)}, "alpha is array([1., 1.]) (numpy.ndarray); it must be a number"),
    "alpha: complex": (gemm, (H, H), {"alpha": 1j}, "alpha is 1j (complex)"),
    "beta: out of range": (gemm, (H, H, H), {"beta": 1e39}, "beta is 1e+39, beyond the range of f32"),
    "s8 alpha: NaN": (gemm, (S, S), {"alpha": np.nan}, "alpha is nan; products of s8 take integer alpha"),
    "s8 alpha: a half": (gemm, (S, S), {"alpha": 0.5}, "alpha is 0.5; products of s8"),
    "s8 alpha: out of range": (gemm, (S, S), {"alpha": 2**40}, "of 32 bits"),
    # the result
    "out: list": (gemm, (H, H), {"out": [1]}, "out is [1] (list)"),
    "out: shape": (gemm, (H, H), {"out": WIDE[:64, :32]}, "out has shape (64, 32); the product has (64, 64)"),
    "out: type": (gemm, (H, H), {"out": H.astype(float)}, "out holds f64; a product of f16 gives f16 or f32"),
    "out: another out_dtype": (gemm, (H, H), {"out": H.copy(), "out_dtype": tc.f32}, "out holds f16, but out_dtype is f32"),
    "out: read-only": (gemm, (H, H), {"out": read_only(H)}, "out is read-only"),
    "out: stride 0": (gemm, (H, H), {"out": as_strided(H[0].copy(), (64, 64), (0, 2))},
                      "out has shape (64, 64) and strides (0, 1): several of its elements lie at one address"),
    "out is a": (gemm, (WIDE[:64, :64], H), {"out": WIDE[:64, :64]},
                 "out shares memory with a, which is read while out is written: pass another array, or a copy of a; "
                 "only c may be out itself"),
    "out is b": (gemm, (H, WIDE[:64, :64]), {"out": WIDE[:64, :64]}, "out shares memory with b"),
    "out in part a": (gemm, (WIDE[:64, :64], H), {"out": WIDE[63:127, 63:127]}, "out shares memory with a"),
    "out is c.T": (gemm, (H, H, WIDE[:64, :64]), {"out": WIDE[:64, :64].T}, "out shares memory with c"),
    "out is a row of c": (gemm, (H, H, X[0].view(np.float16)[:64]), {"out": X.view(np.float16)[:, :64]},
                          "out shares memory with c"),
    "out_dtype: name": (gemm, (H, H), {"out_dtype": "foo"}, "a product of f16 gives f16 or f32, not 'foo'"),
    "out_dtype: list": (gemm, (H, H), {"out_dtype": [1]}, "not [1]"),
    "row_out is out": (gemm, (H, H), {"row_reductions": SUM, "out": X, "row_out": X[:1]},
                       "row_out shares memory with out, which is written too"),
    "row_out: stride 0": (gemm, (H, H), {"row_reductions": SUM, "row_out": as_strided(X, (1, 64), (0, 0))},
                          "row_out has shape (1, 64) and strides (0, 0)"),
    "row_out: type": (gemm, (H, H), {"row_reductions": SUM, "row_out": np.zeros((1, 64))}, "row_out holds f64"),
    "row_reductions: None": (gemm, (H, H), {"row_reductions": None}, "row_reductions is None"),
    # choices
    "accumulate: f64": (gemm, (H, H), {"accumulate": tc.f64}, "accumulate is f64; allowed are tc.f32, tc.f16"),
    "accumulate: f32 of s8": (gemm, (S, S), {"accumulate": tc.f32}, "products of s8 are summed in s32, not in f32"),
    "accumulate: f32 of f64": (gemm, (H.astype(float),) * 2, {"accumulate": tc.f32}, "summed in f64, not in f32"),
    "accumulate: f16 of bf16": (gemm, (B, B), {"accumulate": tc.f16}, "only f16 products can be summed in f16"),
    "family: number": (gemm, (H, H), {"family": 90}, "family is 90; allowed are sm80, sm90"),
    "family: name": (gemm, (H, H), {"family": "sm100"}, "family is 'sm100'; allowed are sm80, sm90"),
    "family: f64": (gemm, (H.astype(float),) * 2, {"family": "sm90"}, "they have no f64"),
    "config: dictionary": (gemm, (H, H), {"config": {"BM": 64}}, "config is {'BM': 64}; it must be a kernels.AmpereConfig or VectorConfig for sm80"),
    "config: another family": (gemm, (H, H), {"config": AmpereConfig(), "family": "sm90"}, "and sm90 was asked for"),
    "config: class": (gemm, (H, H), {"config": HopperConfig}, "must be a kernels.AmpereConfig"),
    "stream: text": (gemm, (H, H), {"stream": "x"}, "a stream cannot be a str"),
    # epilogues
    "epilogue: number": (gemm, (H, H), {"epilogue": 3}, "epilogue is 3; a function epilogue(value, row, col)"),
    "epilogue: parameters": (gemm, (H, H), {"epilogue": lambda value, row: value}, "too many positional arguments"),
    "epilogue_args alone": (gemm, (H, H), {"epilogue_args": {"bias": BIAS}}, "epilogue_args has bias, but there is no epilogue"),
    "epilogue_args: missing": (gemm, (H, H), {"epilogue": three}, "missing a required argument: 'bias'"),
    "epilogue_args: unknown": (gemm, (H, H), {"epilogue": three, "epilogue_args": {"bias": BIAS, "scale": 1}},
                               "a function epilogue(value, row, col, bias, scale) of the kernel language is needed: "
                               "got an unexpected keyword argument 'scale'"),
    "epilogue_args: list": (gemm, (H, H), {"epilogue": three, "epilogue_args": [BIAS]}, "must be a dictionary of names"),
    "epilogue_args: value": (gemm, (H, H), {"epilogue": three, "epilogue_args": {"bias": [1, 2]}},
                             "epilogue_args['bias'] is [1, 2] (list); it must be an array or a number"),
    "epilogue_args: range": (gemm, (H, H), {"epilogue": three, "epilogue_args": {"bias": 1e39}}, "epilogue_args['bias'] is 1e+39"),
    "epilogue_args: masked": (gemm, (H, H), {"epilogue": three, "epilogue_args": {"bias": np.ma.array(BIAS)}}, "masked array"),
    "epilogue_args in out": (gemm, (H, H), {"epilogue": three, "epilogue_args": {"bias": X[0]}, "out": X},
                             "out shares memory with epilogue_args['bias']"),
    # sparse
    "sparse b": (gemm, (H, SPARSE), {}, "b is a SparseMatrix; only a may be one"),
    "sparse: c": (gemm, (SPARSE, B, B[0, :3]), {}, "c has shape (3,)"),
    "sparse: alpha": (gemm, (SPARSE, B), {"alpha": "x"}, "alpha is 'x' (str)"),
    "sparse: stream": (gemm, (SPARSE, B), {"stream": "x"}, "a stream cannot be a str"),
    "sparse: batch": (gemm, (SPARSE, B[None]), {}, "b has shape (1, 64, 64)"),
    "sparse: config": (gemm, (SPARSE, B), {"config": AmpereConfig()}, "must be a kernels.HopperConfig"),
    "sparse: out": (gemm, (SPARSE, WIDE.view(BF16)[:64, :64]), {"out": WIDE.view(BF16)[:64, :64]}, "out shares memory with b"),
    "compress: sparse": (kernels.compress, (SPARSE,), {}, "must be an array"),
    "compress: prune": (kernels.compress, (B,), {"prune": "x"}, "prune is 'x'; it must be True or False"),
    # grouped
    "grouped: offsets": (grouped, (B, EXPERTS, [0, 10, 64]), {}, "offsets is [0, 10, 64] (list)"),
    "grouped: wide offsets": (grouped, (B, EXPERTS, OFFSETS.astype(np.int64)), {}, "offsets are s64 of shape (3,)"),
    "grouped: DLPack offsets": (grouped, (B, EXPERTS, Dlpack(np.array([0, 99, 64], np.int32))), {},
                                "offsets must ascend; offsets[1] is 99"),
    "grouped: out": (grouped, (B, EXPERTS, OFFSETS), {"out": B}, "out shares memory with a"),
    "grouped: out's type": (grouped, (B, EXPERTS, OFFSETS), {"out": X}, "out holds f32; the product gives bf16"),
    "grouped: config": (grouped, (B, EXPERTS, OFFSETS), {"config": "x"}, "config is x; it must be a kernels.HopperConfig"),
    "grouped: types": (grouped, (B, EXPERTS.astype(np.float16), OFFSETS), {}, "operands are all bf16 or all f16"),
    "grouped: a matrix": (grouped, (B, B, OFFSETS), {}, "b has shape (64, 64); 3 axes are needed"),
    # gated
    "swiglu: None": (swiglu, (B, None, B.T), {}, "w_gate is None"),
    "swiglu: out": (swiglu, (B, B.T, B.T), {"out": B}, "out shares memory with x"),
    "swiglu: epilogue": (swiglu, (B, B.T, B.T), {"epilogue": 1}, "epilogue is 1"),
    "swiglu: config": (swiglu, (B, B.T, B.T), {"config": AmpereConfig()}, "must be a kernels.HopperConfig"),
    # scaled
    "scaled: number": (scaled, (F, F.T, F_SCALES, 1.0), {}, "b_scales is 1.0 (float)"),
    "scaled: batch": (scaled, (F, F.T[None], F_SCALES, W_SCALES), {}, "b has shape (1, 128, 64); 2 axes are needed"),
    "scaled: out_dtype": (scaled, (F, F.T, F_SCALES, W_SCALES), {"out": X, "out_dtype": tc.bf16}, "out holds f32, but out_dtype is bf16"),
    "scaled: out": (scaled, (F, F.T, X[:, :1], W_SCALES), {"out": X}, "out shares memory with a_scales"),
    **{
        f"scaled: {field}": (scaled, (F, F.T, F_SCALES, W_SCALES), {"config": HopperConfig(BN=64, stages=3, **{field: value})},
                             f"takes no {field}={value}")
        for field, value in {"pingpong": True, "split_k": 2, "k_slabs": 2, "swap_ab": True}.items()
    },
    # requantised
    "requantised: NaN": (requantised, (S, S.T, np.nan), {}, "scale is nan; it must be a finite number"),
    "requantised: range": (requantised, (S, S.T, 10**400), {}, "must be a number, or an f32 array"),
    "requantised: zero": (requantised, (S, S.T, 0.5), {"zero": np.zeros(2)}, "zero is array([0., 0.])"),
    "requantised: batch": (requantised, (S[None], S.T, 0.5), {}, "a has shape (1, 64, 64); 2 axes are needed"),
    "requantised: out": (requantised, (S, S.T, 0.5), {"out": S}, "out shares memory with a"),
    "requantised: swap AB": (requantised, (S, S.T, 0.5), {"config": HopperConfig(swap_ab=True)}, "takes no swap_ab=True"),
    # plan
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_arguments_are_refused(name):
    function, operands, named, message = REFUSED[name]
    for _ in range(2):  # errors are not cached
        with pytest.raises(tc.ArgumentError) as caught:
            function(*operands, **named)
        assert message in str(caught.value)


def test_equal_numbers_are_not_the_same_call():
    """What is refused stays refused after a call with an equal number, and zeros keep their sign."""
    sparse = kernels.compress(H, prune=True)
    for a in (H, sparse):
        for alpha in (1, 1.0, np.float32(1)):
            assert kernels.gemm(a, H, alpha=alpha)[0, 0] == kernels.gemm(a, H)[0, 0]
        for alpha in (True, np.bool_(True), np.complex64(1), 1 + 0j):
            with pytest.raises(tc.ArgumentError, match="alpha is .*must be a number"):
                kernels.gemm(a, H, alpha=alpha)
        signs = [np.signbit(kernels.gemm(a, H, alpha=zero)) for zero in (0.0, -0.0, 0, 0.0)]
        assert np.array_equal(signs[0], ~signs[1]) and np.array_equal(signs[0], signs[2])
        assert np.array_equal(signs[0], signs[3])


@pytest.mark.parametrize(
    "options",
    [
        {"out_dtype": np.float32},
        {"out_dtype": np.dtype("f4")},
        {"out_dtype": "float32"},
        {"out_dtype": "f32"},
        {"out_dtype": np.float16},
        {"accumulate": np.float16},
        {"alpha": np.float32(1)},
        {"alpha": ml_dtypes.bfloat16(1)},
        {"stream": 0},
        {"out": np.zeros((64, 64), np.float32), "out_dtype": np.float32},
        {"out": np.zeros((128, 128), np.float16)[::2, ::2]},
        {"out": np.zeros((64, 64), np.float16).T},
        {"out": np.zeros((64, 64), np.float16)[::-1]},
    ],
    ids=str,
)
def test_right_arguments_are_accepted(options):
    a, b = whole(64, 64, dtype=np.float16), whole(64, 64, dtype=np.float16)
    assert np.array_equal(gemm(a, b, **options), exact(a, b))


def test_arrays_that_offer_dlpack_alone():
    a, b, c = (whole(64, 64, dtype=np.float16) for _ in range(3))
    out = np.zeros((64, 64), np.float16)
    d = gemm(Dlpack(a), Dlpack(b), Dlpack(c), out=Dlpack(out))
    assert isinstance(d, Dlpack)
    assert np.array_equal(out, exact(a, b) + c)
    assert np.array_equal(gemm(Dlpack(a), b), exact(a, b))


def test_empty_products_of_arrays_that_do_not_compute():
    a, b = H[:, :0], H[:0]
    for named in ({"out": Dlpack(H.copy())}, {"c": Dlpack(H)}):
        with pytest.raises(tc.ArgumentError, match="K is 0, so no kernel runs, and (out|c) is a Dlpack"):
            gemm(a, b, **named)
    assert gemm(H[:0], H, out=Dlpack(H[:0].copy())) is not None
    with pytest.raises(tc.ArgumentError, match="c is a Dlpack, which has no views"):
        gemm(H, H, Dlpack(H[0]))


def test_every_parameter_is_documented():
    documentation = gemm.__doc__ or ""
    for name in inspect.signature(gemm).parameters:
        assert re.search(rf"\b{name}\b", documentation), name
    assert "ArgumentError" in documentation


# Overlap.


def test_overlap_is_decided_exactly():
    draw, memory, outcomes = random.Random(0), np.zeros(400, np.float16), set()
    for _ in range(1500):
        x, y = (view_of(memory, draw) for _ in range(2))
        at_x, at_y = addresses(x), addresses(y)
        images = [overlap._memory(describe(view)) for view in (x, y)]
        assert overlap.share_memory(*images) == bool(at_x & at_y)
        assert overlap.overlaps_itself(images[0]) == (len(at_x) < x.size)
        outcomes.add((bool(at_x & at_y), len(at_x) < x.size))
    assert len(outcomes) == 4


def view_of(memory: np.ndarray, draw: random.Random) -> np.ndarray:
    axes = draw.randint(1, 3)
    shape = [draw.randint(1, 5) for _ in range(axes)]
    strides = [2 * draw.randint(-12, 12) for _ in range(axes)]
    return as_strided(memory[draw.randint(150, 250) :], shape, strides)


def addresses(x: np.ndarray) -> set[int]:
    return {x[place + (...,)].__array_interface__["data"][0] for place in np.ndindex(x.shape)}


def test_large_views_are_compared_quickly():
    memory = np.zeros(1, np.float16)
    wide = as_strided(memory, (64, 8191, 4095), (6 * 8193 * 8191, 6 * 8193, 6))
    address = wide.__array_interface__["data"][0] + 2
    described = describe(wide)
    assert not overlap.share_memory(*map(overlap._memory, (described, described._replace(value=address))))
    assert not overlap.overlaps_itself(overlap._memory(described))


def test_views_that_interleave_do_not_overlap():
    memory = np.zeros((64, 128), np.float16)
    memory[:, ::2] = a = whole(64, 64, dtype=np.float16)
    assert np.array_equal(gemm(memory[:, ::2], H, out=memory[:, 1::2]), exact(a, H))
    assert np.array_equal(memory[:, ::2], a)
    blocks = np.zeros((128, 128), np.float16)
    blocks[:64, :64] = a
    assert np.array_equal(gemm(blocks[:64, :64], H, out=blocks[64:, 64:]), exact(a, H))


def test_known_calls_notice_overlap():
    a, b, c = (whole(64, 64, dtype=np.float16) for _ in range(3))
    apart = np.zeros((64, 64), np.float16)
    for _ in range(2):
        gemm(a, b, c, out=apart)
        for name, operand in (("a", a), ("b", b)):
            with pytest.raises(tc.ArgumentError, match=f"shares memory with {name}"):
                gemm(a, b, c, out=operand)
    expected = exact(a, b) + c
    assert np.array_equal(gemm(a, b, c, out=c), expected)
    assert np.array_equal(c, expected)


IN_PLACE: dict[str, dict[str, Any]] = {
    "sm80": {"family": "sm80"},
    "sm90": {"config": HopperConfig(BN=64, stages=3)},
    "ping-pong": {"config": HopperConfig(BN=64, stages=3, pingpong=True)},
    "split-K": {"config": HopperConfig(BM=64, BN=64, stages=3, split_k=2)},
    "rows": {"config": HopperConfig(BN=64, stages=3), "row_reductions": SUM},
    "sm80 split-K": {"config": AmpereConfig(BM=64, BN=64, WM=32, WN=32, split_k=3)},
}


@pytest.mark.quick(1)
@pytest.mark.parametrize("columns", [72, 77])
@pytest.mark.parametrize("how", IN_PLACE)
def test_c_in_place(how, columns):
    a, b = whole(100, 256), whole(256, columns, order="F")
    c = whole(100, columns, dtype=np.float32)
    expected = 2 * exact(a, b) - 3 * c
    with checking(collect=False):  # loads of C are ordered before the stores of D
        gemm(a, b, c, out=c, alpha=2, beta=-3, **IN_PLACE[how])
    assert np.array_equal(c, expected)


def test_c_in_place_of_batches_and_sparse_products():
    a, b, c = whole(2, 64, 64), whole(64, 40), whole(2, 64, 40, dtype=np.float32)
    expected = exact(a, b) + c
    with checking(collect=False):
        assert np.array_equal(gemm(a, b, c, out=c), expected)
    sparse, c = kernels.compress(whole(64, 64), prune=True), whole(64, 40, dtype=np.float32)
    expected = exact(kernels.decompress(sparse), b) + c
    with checking(collect=False):
        assert np.array_equal(gemm(sparse, b, c, out=c), expected)


# C that is broadcast.


@pytest.mark.parametrize("family", ["sm80", "sm90"])
@pytest.mark.parametrize("shape", [(72,), (1, 72), (100, 1), (1, 1), (1,), ()])
def test_c_is_broadcast(shape, family):
    a, b, c = whole(100, 64), whole(64, 72), whole(*shape, dtype=np.float32)
    for _ in range(2):
        d = gemm(a, b, c, beta=3, family=family, out_dtype=tc.f32)
        assert np.array_equal(d, exact(a, b) + 3 * c)


@pytest.mark.quick(1)
@pytest.mark.parametrize("shape", [(40,), (64, 40), (64, 1), (3, 1, 40), (3, 64, 1), (1, 64, 40)])
def test_c_is_broadcast_to_batches(shape):
    a, b, c = whole(3, 64, 64), whole(64, 40), whole(*shape)
    assert np.array_equal(gemm(a, b, c, out_dtype=tc.f32), exact(a, b) + c.astype(float))


def test_c_is_broadcast_elsewhere():
    sparse, b, c = kernels.compress(whole(64, 64), prune=True), whole(64, 40), whole(40)
    expected = exact(kernels.decompress(sparse), b) + c.astype(float)
    assert np.array_equal(gemm(sparse, b, c, out_dtype=tc.f32), expected)
    nothing = gemm(whole(64, 0), whole(0, 40), c)
    assert np.array_equal(nothing, np.broadcast_to(c, (64, 40)))
    a = whole(128, 128)[::2, ::2]
    assert np.array_equal(gemm(a, b, c, out_dtype=tc.f32), exact(a, b) + c.astype(float))


# Epilogues with arguments.


def affine(value: Any, row: Any, col: Any, bias: Any, residual: Any, scale: Any) -> Any:
    return value * scale + bias[col] + residual[row, col]


def case(dtype: Any, family: str | None = None, shape: Any = (100, 72, 64), **options: Any) -> Any:
    return np.dtype(dtype), family, shape, options


SMALL = HopperConfig(BN=64, stages=3)
EPILOGUES = {
    "sm80 bf16": case(BF16, "sm80", (100, 77, 64)),
    "sm80 whole tiles": case(BF16, "sm80", (64, 64, 64)),
    "sm80 f16 in f16": case(np.float16, "sm80", accumulate=tc.f16),
    "sm80 tf32": case(np.float32, "sm80", precision="tf32"),
    "sm80 f32": case(np.float32, "sm80", (100, 77, 64)),
    "sm80 f32, split-K": case(
        np.float32, shape=(100, 77, 200), config=AmpereConfig(BM=64, BN=64, WM=32, WN=32, split_k=3)
    ),
    "sm80 bf16, split-K": case(
        BF16, shape=(64, 72, 200), config=AmpereConfig(BM=64, BN=64, WM=32, WN=32, split_k=2)
    ),
    "sm80 s8": case(np.int8, "sm80"),
    "sm80 f64": case(np.float64, "sm80"),
    "sm90 bf16": case(BF16, config=SMALL, shape=(100, 77, 64)),
    "sm90 f16 in f16": case(np.float16, config=SMALL, accumulate=tc.f16),
    "sm90 tf32": case(np.float32, config=SMALL, precision="tf32"),
    "sm90 f32": case(np.float32, "sm90"),
    "sm90 s8": case(np.int8, config=SMALL),
    "sm90 e4m3": case(E4M3, config=SMALL),
    "split-K": case(BF16, shape=(100, 72, 512), config=HopperConfig(BM=64, BN=64, stages=3, split_k=2)),
    "ping-pong": case(BF16, config=HopperConfig(BN=64, stages=3, pingpong=True)),
    "rows": case(BF16, config=SMALL, row_reductions=SUM),
}  # fmt: skip


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", EPILOGUES)
def test_epilogue_args(name):
    dtype, family, (M, N, K), options = EPILOGUES[name]
    kind = {"int8": np.int32, "float64": np.float64}.get(dtype.name, np.float32)
    a, b = whole(M, K, dtype=dtype), whole(K, N, dtype=dtype, order="F")
    bias, residual = whole(N, dtype=kind), whole(M, N, dtype=kind)
    for scale in (2, 3):
        scale = scale if kind == np.int32 else kind(scale) if kind == np.float64 else float(scale)
        named = {"bias": bias, "residual": residual, "scale": scale}
        d = gemm(a, b, epilogue=affine, epilogue_args=named, family=family, **options)
        expected = exact(a, b) * scale + bias + residual
        if "row_reductions" in options:
            d, rows = d
            assert np.array_equal(rows[0], expected.sum(1))
        assert np.array_equal(d, expected.astype(d.dtype))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_epilogues_of_mma_kernels(arch):
    a, b, c = whole(70, 64, dtype=np.float16), whole(64, 50, dtype=np.float16), whole(70, 50)
    chess = lambda value, row, col: tc.select((row + col) % 2 == 0, value, 0.0)
    with tc.target("cpu", arch):
        d = gemm(a, b, c, alpha=2, epilogue=chess, family="sm80", out_dtype=tc.f32)
    kept = np.indices(d.shape).sum(0) % 2 == 0
    assert np.array_equal(d, np.where(kept, 2 * exact(a, b) + c.astype(float), 0))


def test_epilogues_know_the_matrix_of_a_batch():
    a, b, bias = whole(3, 64, 64), whole(64, 40), whole(3, 40, dtype=np.float32)
    of_matrix = lambda value, row, col, batch, bias: value + bias[batch, col]
    d = gemm(a, b, epilogue=of_matrix, epilogue_args={"bias": bias}, out_dtype=tc.f32)
    assert np.array_equal(d, exact(a, b) + bias[:, None])
    number = lambda value, row, col, batch: value + batch
    assert np.array_equal(
        gemm(a, b, epilogue=number, out_dtype=tc.f32), exact(a, b) + np.ogrid[:3, :1, :1][0]
    )
    single = gemm(a[0], b, epilogue=number, out_dtype=tc.f32)
    assert np.array_equal(single, exact(a[0], b))


def test_epilogue_args_of_the_other_products():
    bias = whole(40, dtype=np.float32)
    named: Any = {"epilogue": three, "epilogue_args": {"bias": bias}}
    sparse, b = kernels.compress(whole(64, 128), prune=True), whole(128, 40)
    d = gemm(sparse, b, out_dtype=tc.f32, **named)
    assert np.array_equal(d, exact(kernels.decompress(sparse), b) + bias)
    offsets, a, experts = np.array([0, 5, 5, 70, 100], np.int32), whole(100, 64), whole(4, 64, 40)
    groups = [exact(a[i:j], experts[g]) for g, (i, j) in enumerate(zip(offsets, offsets[1:]))]  # noqa: B905
    d = grouped(a, experts, offsets, **named)
    assert np.array_equal(d, (np.concatenate(groups) + bias).astype(BF16))
    x, gate, up = whole(100, 64), whole(40, 64), whole(40, 64)
    double = lambda value, row, col, factor: value * factor[row]
    d = swiglu(x, gate.T, up.T, epilogue=double, epilogue_args={"factor": np.full(100, 2, BF16)})
    assert np.array_equal(d, swiglu(x, gate.T, up.T) * BF16.type(2))
    a, b = whole(64, 256, dtype=E4M3), whole(256, 40, dtype=E4M3, order="F")
    ones = np.ones((64, 2), np.float32), np.ones((2, 1), np.float32)
    d = scaled(a, b, *ones, out_dtype=tc.f32, **named)
    assert np.array_equal(d, exact(a, b) + bias)


def test_names_of_epilogue_args_may_be_those_of_the_kernel():
    a, b, bias = whole(64, 64), whole(64, 40), whole(40, dtype=np.float32)
    names = lambda value, row, col, d, config, traits, alpha: value + d[col] + config + traits + alpha
    named = {"d": bias, "config": 1, "traits": 2.0, "alpha": np.float16(3)}
    for family in ("sm80", "sm90"):
        d = gemm(a, b, epilogue=names, epilogue_args=named, family=family, out_dtype=tc.f32)
        assert np.array_equal(d, exact(a, b) + bias + 6)


def test_epilogues_may_return_numbers_and_integers():
    a, b = whole(64, 64), whole(64, 40)
    for family in ("sm80", "sm90"):
        assert (gemm(a, b, epilogue=lambda value, row, col: 1, family=family) == 1).all()
        d = gemm(a, b, epilogue=lambda value, row, col: row, family=family)
        assert np.array_equal(d, np.broadcast_to(np.arange(64)[:, None], (64, 40)))


def nothing(value: Any, row: Any, col: Any) -> Any:
    value + 1


def test_errors_of_epilogues_are_at_their_lines():
    def some(value, row, col):
        if value > 0:
            return value

    bias = {"bias": BIAS}
    cases: list[Any] = [
        (nothing, {}, tc.CompileError, "the epilogue nothing returns None"),
        (some, {}, tc.CompileError, "no one type"),
        (lambda value, row, col: value > 0, {}, tc.CompileError, "returns a Scalar of pred"),
        (lambda value, row, col: (value, row), {}, tc.CompileError, "returns a tuple"),
        (lambda value, row, col, bias: bias, bias, tc.CompileError, "of f32; it must be a number"),
        (lambda value, row, col, bias: value + bias[row, col], bias, tc.OperandError, "takes 1 index"),
        (lambda value, row, col, bias: value + bias[col + 1], bias, tc.OutOfBounds, "argument 'bias'"),
    ]  # fmt: skip
    for family in ("sm80", "sm90"):
        for epilogue, named, error, message in cases:
            place = epilogue.__code__.co_firstlineno
            with pytest.raises(error) as caught:
                gemm(B, B, epilogue=epilogue, epilogue_args=named, family=family)
            assert message in str(caught.value)
            assert (caught.value.loc.filename, caught.value.loc.line) == (__file__, place), message


# Gradients.


class Tensor:
    """Imitates a tensor of torch on the host that requires a gradient."""

    requires_grad = True
    device = SimpleNamespace(type="cpu", index=None)
    layout, is_sparse, is_cuda, dtype = "torch.strided", False, False, "torch.float16"
    is_neg = is_conj = staticmethod(lambda: False)

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.shape = array, array.shape

    def __dlpack__(self) -> Any:
        raise BufferError("tensors that require grad")

    def data_ptr(self) -> int:
        return self.array.ctypes.data

    def stride(self) -> tuple[int, ...]:
        return tuple(s // self.array.itemsize for s in self.array.strides)


Tensor.__module__ = "torch"
WEIGHT = Tensor(H.copy())
LOST = [
    partial(gemm, WEIGHT, H), partial(gemm, H, WEIGHT), partial(gemm, H, H, WEIGHT),
    partial(gemm, H, H, out=WEIGHT), partial(gemm, SPARSE, WEIGHT), partial(kernels.compress, WEIGHT),
    partial(gemm, H, H, epilogue=three, epilogue_args={"bias": WEIGHT}),
    partial(gemm, H, H, row_reductions=SUM, row_out=WEIGHT),
    partial(grouped, WEIGHT, EXPERTS, OFFSETS), partial(swiglu, WEIGHT, B.T, B.T),
    partial(scaled, F, F.T, WEIGHT, W_SCALES), partial(requantised, S, S.T, WEIGHT),
    partial(kernels.plan, WEIGHT, H, None, H),
]  # fmt: skip


@pytest.mark.parametrize("call", LOST)
def test_gradients_are_not_lost(call, monkeypatch):
    recording = SimpleNamespace(is_grad_enabled=lambda: True)
    monkeypatch.setitem(sys.modules, "torch", recording)
    with pytest.raises(tc.ArgumentError, match=r"requires grad.*no derivative.*x\.detach\(\).*no_grad"):
        call()
    recording.is_grad_enabled = lambda: False
    assert describe(WEIGHT, "x").shape == (64, 64)


def test_gradients_of_torch():
    torch = pytest.importorskip("torch")
    a, weight = torch.ones(64, 64, dtype=torch.bfloat16), torch.nn.Parameter(torch.ones(64, 64).bfloat16())
    for _ in range(3):
        with torch.no_grad():
            d = gemm(a, weight)
        assert (d == 64).all()
        assert (gemm(a, weight.detach(), out_dtype=torch.float32) == 64).all()
        with pytest.raises(tc.ArgumentError, match=r"b: a torch tensor that requires grad.*x\.detach\(\)"):
            gemm(a, weight)
        with pytest.raises(tc.ArgumentError, match=r"out: a torch tensor that requires grad"):
            gemm(a, a, out=weight)

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return gemm(x, w)

        @staticmethod
        def backward(ctx, grad):
            x, w = ctx.saved_tensors
            return gemm(grad, w.t()), gemm(x.t(), grad)

    Product.apply(a, weight).sum().backward()
    assert (weight.grad == 64).all()


def test_overlap_of_torch_tensors():
    torch = pytest.importorskip("torch")
    a, out = torch.ones(64, 64).half(), torch.zeros(64, 128).half()
    for _ in range(3):
        assert (gemm(a, a, out=out[:, :64]) == 64).all()
        with pytest.raises(tc.ArgumentError, match="shares memory with a"):
            gemm(out[:, :64], a, out=out[:, 32:96])
        assert (gemm(a, a, a[0], out=out[:, 64:]) == 65).all()
    with pytest.raises(tc.ArgumentError, match="several of its elements lie at one address"):
        gemm(a, a, out=torch.zeros(64).half().expand(64, 64))
    biased = gemm(a, a, epilogue=three, epilogue_args={"bias": torch.ones(64)})
    assert (biased == 65).all()


def test_overlap_reads_no_element():
    """The arrays may lie on a GPU: the host must not touch their addresses."""
    out = np.zeros((64, 48), np.float32)
    beyond = describe(out, "out")._replace(value=1 << 12)
    behind = describe(out.T, "a")._replace(value=1 << 20)
    overlap.check_apart({"out": beyond}, {"a": behind})


@pytest.mark.parametrize(
    "config, dtype",
    [(AmpereConfig(48, 64, 64, 16, 32, 2), np.float16), (AmpereConfig(16, 16, 512, 16, 16, 2), np.float16)],
    ids=str,
)
def test_tiles_that_threads_cannot_share(config, dtype):
    """They are refused where the kernel is chosen, not where it is compiled."""
    a, b = whole(64, 64, dtype=dtype), whole(64, 64, dtype=dtype)
    with pytest.raises(tc.ArgumentError, match="threads cannot share .* choose other tile sizes"):
        gemm(a, b, config=config)
    with pytest.raises(tc.ArgumentError, match="choose other tile sizes: AmpereConfig"):
        kernels.plan(a, b, None, a.copy(), config=config)
