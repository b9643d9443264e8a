"""Odd arguments at every public function of the kernels: a TensorCoreError, or success.

Each call starts from one that is right, and replaces some of its arguments by what users pass by
mistake: other types, ranks, shapes, strides, element types, numbers without a value. Launches do
nothing, so thousands of calls take seconds. HOST_FUZZ_SECONDS and HOST_FUZZ_SEED change the run.
"""

from __future__ import annotations

import os
import random
import time
import warnings
from collections.abc import Callable
from dataclasses import fields
from reprlib import repr as brief
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import kernels
from tensorcore_dsl.kernels.host import (
    attention,
    attention_backward,
    plan,
    row_reductions,
    split_k,
    split_operands,
)
from tests.whole_numbers import BF16, E4M3

SECONDS = float(os.environ.get("HOST_FUZZ_SECONDS", "4"))
SEED = int(os.environ.get("HOST_FUZZ_SEED", "1"))
DTYPES: list[Any] = [
    "f2",
    "f4",
    "f8",
    "i1",
    "u1",
    "i2",
    "i4",
    "i8",
    "u4",
    "?",
    "c8",
    "O",
    "U3",
    "M8[s]",
    ">f4",
    BF16,
    E4M3,
    np.dtype(ml_dtypes.float8_e5m2),
    np.dtype(ml_dtypes.int4),
    np.dtype([("x", "f4")]),
    "f16",
]


class Text(str):
    """A subclass of a type that is allowed."""


class Broken:
    """An array by a protocol that fails."""

    shape, dtype, ndim = (64, 64), np.dtype("f4"), 2

    def __dlpack__(self, **_: Any) -> Any:
        raise RuntimeError("this array cannot be exported")

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


class Unequal:
    """Neither hashable, nor comparable, nor of a length."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise ValueError("no one truth")


def odd_array(draw: random.Random) -> Any:
    """An array of any rank, element type and strides."""
    shape = tuple(
        draw.choice([0, 1, 2, 3, 16, 63, 64, 65, 128]) for _ in range(draw.choice([0, 1, 1, 2, 2, 2, 3, 4]))
    )
    x: Any = np.zeros(shape, draw.choice(DTYPES))
    how = draw.randrange(8)
    if how == 0:
        return x.T
    if how == 1 and x.ndim:
        return x[::-1]
    if how == 2:
        return np.broadcast_to(x, (3, *shape))
    if how == 3:
        x.flags.writeable = False
    if how == 4 and x.ndim:
        return x[::2]
    if how == 5:
        return np.ma.masked_array(x)
    if how == 6 and x.size and x.dtype.itemsize > 1 and x.dtype != object:
        raw = np.zeros(x.nbytes + 1, np.int8)
        return raw[1:].view(x.dtype).reshape(shape)
    return np.asfortranarray(x)


def odd_number(draw: random.Random) -> Any:
    return draw.choice(
        [
            0,
            1,
            -1,
            2.5,
            float("nan"),
            float("inf"),
            -float("inf"),
            1e39,
            10**400,
            -(10**400),
            2**31,
            2**63,
            2**64,
            1j,
            True,
            np.float16(1),
            np.int8(-1),
            np.float64("nan"),
            np.bool_(True),
            np.complex64(1),
            np.datetime64("2020"),
            5e-324,
            -0.0,
            np.longdouble(1),
            np.float32(3),
        ]
    )


def odd_thing(draw: random.Random) -> Any:
    return draw.choice(
        [
            None,
            "",
            "fast",
            "any",
            "batch_invariant",
            "sm90",
            "sm80",
            "f32",
            "tf32",
            Text("tf32"),
            b"x",
            (),
            [],
            {},
            [1.0],
            [[1.0]],
            {1: 2},
            {"bias": np.zeros(64, np.float32)},
            {"x": None},
            {"x": [1]},
            {"batch": 3},
            {"value": 1.0},
            {"": 1},
            {1, 2},
            object(),
            Broken(),
            Unequal(),
            tc.f16,
            tc.f32,
            tc.s8,
            tc.bf16,
            np.float16,
            "float32",
            np.dtype("f4"),
            float,
            len,
            int,
            lambda: 0,
            lambda v, r, c: v,
            lambda v, r, c, x: v,
            lambda v, r, c, bias: v + bias[c],
            print,
            range(3),
            slice(None),
            Ellipsis,
            NotImplemented,
            type,
            Exception("x"),
            kernels.RowReduction("sum"),
            (kernels.RowReduction("max"),),
            (kernels.RowReduction("sum"),) * 40,
            (None,),
            kernels.HopperConfig(),
            kernels.HopperConfig(BN=64, stages=2),
            kernels.HopperConfig(split_k=2, BN=64),
            kernels.HopperConfig(swap_ab=True),
            kernels.HopperConfig(pingpong=True),
            kernels.AmpereConfig(),
            kernels.AmpereConfig(split_k=2),
            kernels.AmpereConfig(stages=2),
            kernels.VectorConfig(),
            kernels.HopperConfig,
            kernels.compress(np.zeros((64, 64), np.float16)),
            kernels.compress(np.zeros((16, 128), np.float32)),
        ]
    )


def odd(draw: random.Random, given: dict[str, Any]) -> Any:
    """An odd value: an array, a number, another thing, or another argument of the call."""
    kind = draw.randrange(10)
    if kind < 4:
        return odd_array(draw)
    if kind < 6:
        return odd_number(draw)
    return draw.choice([*given.values()]) if kind == 6 and given else odd_thing(draw)


def array(*shape: int, dtype: Any = BF16, order: Any = "C") -> np.ndarray:
    return np.zeros(shape, dtype, order)


GEMM_OPTIONS = (
    "c",
    "alpha",
    "beta",
    "out",
    "out_dtype",
    "accumulate",
    "epilogue",
    "epilogue_args",
    "row_reductions",
    "row_out",
    "precision",
    "bits",
    "family",
    "config",
    "stream",
)
SHARED_OPTIONS = ("out", "epilogue", "epilogue_args", "bits", "config", "stream")


def gemm_case(draw: random.Random) -> dict[str, Any]:
    """Operands of `gemm`, of a type that it multiplies."""
    dtype = draw.choice([BF16, "f2", "f4", "i1", "f8", E4M3])
    a, b = array(64, 64, dtype=dtype), array(64, 64, dtype=dtype, order="F")
    if draw.randrange(4) == 0 and np.dtype(dtype).itemsize == 2:
        return {"a": kernels.compress(a), "b": b}
    return {
        "a": a,
        "b": b,
        **draw.choice([{}, {"c": array(64, 64, dtype=dtype)}, {"c": array(64, dtype=dtype)}]),
    }


def sparse_case(draw: random.Random) -> dict[str, Any]:
    compressed = kernels.compress(array(64, 64))
    return {"values": compressed.values, "metadata": compressed.metadata, "shape": compressed.shape}


def grouped_case(draw: random.Random) -> dict[str, Any]:
    ends = draw.choice([[0, 8, 64, 64], [64, 8, 0, 1], [-5, 3, 2**31 - 1, 7], [0, 0, 0, 0]])
    return {"a": array(64, 64), "b": array(3, 64, 64), "offsets": np.array(ends, np.int32)}


def k_grouped_case(draw: random.Random) -> dict[str, Any]:
    grouped = grouped_case(draw)
    return {"a": array(64, 64, order="F"), "b": array(64, 64), "offsets": grouped["offsets"]}


def scaled_case(draw: random.Random) -> dict[str, Any]:
    scales = {"a_scales": array(64, 1, dtype="f4"), "b_scales": array(1, 1, dtype="f4")}
    return {"a": array(64, 64, dtype=E4M3), "b": array(64, 64, dtype=E4M3, order="F"), **scales}


def requantised_case(draw: random.Random) -> dict[str, Any]:
    scale = draw.choice([0.5, array(64, dtype="f4")])
    return {"a": array(64, 64, dtype="i1"), "b": array(64, 64, dtype="i1", order="F"), "scale": scale}


def swiglu_case(draw: random.Random) -> dict[str, Any]:
    return {"x": array(64, 64), "w_gate": array(64, 64, order="F"), "w_up": array(64, 64, order="F")}


def attention_case(draw: random.Random) -> dict[str, Any]:
    dtype = draw.choice([BF16, "f2"])
    q, (k, v) = array(2, 4, 32, 64, dtype=dtype), (array(2, 2, 48, 64, dtype=dtype) for _ in "kv")
    return {"q": q, "k": k, "v": v}


def backward_case(draw: random.Random) -> dict[str, Any]:
    dtype = draw.choice([BF16, "f2"])
    q, (k, v) = array(2, 4, 32, 64, dtype=dtype), (array(2, 2, 48, 64, dtype=dtype) for _ in "kv")
    return {"grad": q, "q": q, "k": k, "v": v, "out": q, "lse": array(2, 4, 32, dtype="f4")}


def weights_case(draw: random.Random) -> dict[str, Any]:
    return {"b": array(128, 32, dtype="i1") & 7, "scales": array(1, 32, dtype="f4"), "dtype": tc.s4}


def packed_case(draw: random.Random) -> dict[str, Any]:
    packed = kernels.pack(**weights_case(draw))
    return {f.name: getattr(packed, f.name) for f in fields(packed)}


def multiply_packed(**packed: Any) -> Any:
    return kernels.gemm(array(8, 128), kernels.PackedWeights(**packed))


def plan_case(draw: random.Random) -> dict[str, Any]:
    return {"a": array(64, 64), "b": array(64, 64, order="F"), "c": None, "d": array(64, 64)}


def tune_case(draw: random.Random) -> dict[str, Any]:
    options: dict[str, Any] = {"timer": lambda launch: (launch(), 1.0)[1], "device": "X", "remember": False}
    return {"a": array(64, 64), "b": array(64, 64)} | options | {"candidates": [kernels.AmpereConfig()]}


def fields_of(config: Any) -> Callable[[random.Random], dict[str, Any]]:
    return lambda draw: {f.name: f.default for f in fields(config)}


Case = tuple[Callable[..., Any], Callable[[random.Random], dict[str, Any]], tuple[str, ...]]
ATTENTION_OPTIONS = (
    "causal",
    "window",
    "scale",
    "softcap",
    "cu_seqlens",
    "block_table",
    "out",
    "return_lse",
    "family",
    "stream",
)
FUNCTIONS: dict[str, Case] = {
    "gemm": (kernels.gemm, gemm_case, GEMM_OPTIONS),
    "plan": (kernels.plan, plan_case, tuple({*GEMM_OPTIONS} - {"out", "out_dtype", "row_out", "stream"})),
    "explain_bits": (kernels.explain_bits, lambda draw: {"plan": kernels.plan(**plan_case(draw))}, ()),
    "tune": (kernels.tune, tune_case, ("c", "out", "alpha", "beta", "epilogue", "epilogue_args", "precision", "bits", "device")),
    "grouped_gemm": (kernels.grouped_gemm, grouped_case, SHARED_OPTIONS),
    "k_grouped_gemm": (kernels.k_grouped_gemm, k_grouped_case, ("out", "bits", "config", "stream")),
    "scaled_gemm": (kernels.scaled_gemm, scaled_case, (*SHARED_OPTIONS, "out_dtype")),
    "requantised_gemm": (kernels.requantised_gemm, requantised_case, ("zero", "out", "config", "stream")),
    "attention": (kernels.attention, attention_case, ATTENTION_OPTIONS),
    "plan_attention": (
        kernels.plan_attention,
        attention_case,
        tuple({*ATTENTION_OPTIONS} - {"out", "return_lse", "stream"}),
    ),
    "attention_backward": (
        kernels.attention_backward,
        backward_case,
        ("causal", "window", "scale", "softcap", "cu_seqlens", "family", "stream"),
    ),
    "swiglu": (kernels.swiglu, swiglu_case, SHARED_OPTIONS),
    "compress": (kernels.compress, lambda draw: {"a": array(64, 64)}, ("prune",)),
    "decompress": (kernels.decompress, lambda draw: {"sparse": kernels.compress(array(64, 64))}, ()),
    "SparseMatrix": (lambda **g: kernels.decompress(kernels.SparseMatrix(**g)), sparse_case, ()),
    "pack": (kernels.pack, weights_case, ("zeros",)),
    "PackedWeights": (multiply_packed, packed_case, ()),
    "HopperPackedConfig": (kernels.HopperPackedConfig, fields_of(kernels.HopperPackedConfig), ()),
    "PackedConfig": (kernels.PackedConfig, fields_of(kernels.PackedConfig), ()),
    "RowReduction": (kernels.RowReduction, lambda draw: {"op": "sum"}, ("transform",)),
    "HopperConfig": (kernels.HopperConfig, fields_of(kernels.HopperConfig), ()),
    "AmpereConfig": (kernels.AmpereConfig, fields_of(kernels.AmpereConfig), ()),
    "VectorConfig": (kernels.VectorConfig, fields_of(kernels.VectorConfig), ()),
}  # fmt: skip


def test_every_public_function_is_here():
    # These compile for seconds; tests/test_warm.py and test_export.py have what they refuse.
    compiles = {"warm", "export_gemm"}
    # Operands of several GPUs: test_distributed.py.
    several = {"VirtualGroup", "all_gather_gemm", "gemm_reduce_scatter", "gemm_all_reduce"}
    assert set(FUNCTIONS) | compiles | several == set(kernels.__all__)


MOST = 5000  # draws, until one of them is right, however slow the machine is


@pytest.fixture
def launches(monkeypatch):
    """Launches that do nothing, as these calls are about the host."""
    bound = lambda *arguments, **options: lambda *others: None
    for module in (attention, attention_backward, plan, row_reductions, split_k, split_operands):
        monkeypatch.setattr(module, "bind", bound)
    monkeypatch.setenv("TENSORCORE_DSL_CACHE", "off")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_odd_arguments(name, launches):
    function, right, options = FUNCTIONS[name]
    draw, end = random.Random(f"{name} {SEED}"), time.monotonic() + SECONDS / 4
    with tc.target("cpu", "sm_90a"), warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        refused = count = 0
        while time.monotonic() < end or count < 50 or (refused == count < MOST):
            arguments = right(draw)
            places = [name for name in (*arguments, *options) if name != "timer"]  # its errors pass
            for place in draw.sample(places, min(draw.choice([1, 1, 1, 2, 3]), len(places))):
                arguments[place] = odd(draw, arguments)
            count += 1
            try:
                function(**arguments)
            except tc.TensorCoreError as error:
                assert str(error).strip(), arguments
                refused += 1
            except Exception as error:
                text = ", ".join(f"{n}={brief(x)} {getattr(x, 'dtype', '')}" for n, x in arguments.items())
                raise AssertionError(f"{name}({text}) raises a {type(error).__name__}") from error
    assert 0 < refused < count, "some are refused, and some are right"


@pytest.mark.thorough
def test_views_of_one_buffer_give_what_copies_give():
    """A result that shares memory with what is read is refused, or as right as with copies."""
    draw, rng = random.Random(SEED), np.random.default_rng(SEED)
    accepted = in_place = refused = 0
    for _ in range(150):
        buffer = rng.integers(-4, 5, 3 * 24 * 48).astype(np.float16)

        def view(buffer: np.ndarray = buffer) -> np.ndarray:
            """16 x 16 elements of the buffer, by rows or columns, anywhere."""
            grid = buffer.reshape(-1, 48)
            row, col = draw.randrange(0, 57, 8), draw.randrange(0, 33, 8)
            part = grid[row : row + 16, col : col + 16]
            return part.T if draw.randrange(4) == 0 else part

        a, b, c, out = view(), view(), view(), view()
        if draw.randrange(6) == 0:
            c = out
        copies = a.copy(), b.copy(), c.copy()
        wanted = (copies[0].astype("f4") @ copies[1].astype("f4") + copies[2]).astype(np.float16)
        try:
            with tc.target("cpu", "sm_80"):
                kernels.gemm(a, b, c, out=out)
        except tc.ArgumentError as error:
            assert "shares memory" in str(error)
            refused += 1
            assert any(np.shares_memory(out, x) for x in (a, b, c))
        else:
            assert np.array_equal(out, wanted)
            accepted += 1
            in_place += c is out
    assert min(accepted, refused, in_place) > 3
