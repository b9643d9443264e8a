"""erf, extremes that propagate NaN, and atomics of floats."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tests import running
from tests.assembler import assembles

pytestmark = pytest.mark.usefixtures("fresh_ir")

N = 32
launch = functools.partial(running.launch, block=N)


@tc.kernel
def error_function(x, y):
    i = tc.blockIdx.x * tc.blockDim.x + tc.threadIdx.x
    y[i] = tc.erf(x[i])


def test_erf_is_within_its_bound():
    """At most 1.25 units of the last place from math.erf; the docstring has the greatest found."""
    rng = np.random.default_rng(0)
    x = np.concatenate([2.0 ** rng.uniform(-149, 4, 1 << 14), rng.uniform(0, 4, 3 << 14)])
    x[::2] *= -1
    special = [0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 1, np.nextafter(np.float32(1), 2), 1.0048361]
    x = np.concatenate([x, np.resize(special, 64)]).astype(np.float32)
    y = np.zeros_like(x)
    error_function.emulate[x.size // 64, 64](x, y)
    exact = np.array([math.erf(value) for value in x.tolist()])
    with np.errstate(invalid="ignore"):
        places = 2.0 ** (np.maximum(np.frexp(exact)[1], -125) - 24)
        assert np.nanmax(np.abs(y - exact) / places) < 1.25
    assert np.array_equal(np.isnan(y), np.isnan(x))
    assert np.array_equal(np.signbit(y), np.signbit(np.where(np.isnan(x), y, x)))


def test_erf_of_narrow_floats_and_of_math():
    @tc.kernel
    def narrow(x, y, z):
        i = tc.threadIdx.x
        y[i] = tc.erf(x[i].to(tc.f16))
        z[i] = math.erf(x[i])

    x, y = np.linspace(-2, 2, N).astype(np.float32), np.zeros(N, np.float16)
    z = np.zeros_like(x)
    launch(narrow, x, y, z)
    exact = [math.erf(value) for value in x.astype(np.float16).tolist()]
    assert np.allclose(y, exact, rtol=2**-10, atol=0)
    assert np.allclose(z, [math.erf(value) for value in x.tolist()], rtol=2**-22, atol=0)


EXTREMES = [
    (arch, name)
    for arch in ("sm_75", "sm_80", "sm_90a")
    for name in ("f32", "f64", "f16", "bf16")
    if arch != "sm_75" or name in ("f32", "f64")  # which has no min and max of 16 bits
]


@pytest.mark.parametrize(("arch", "name"), EXTREMES)
def test_extremes_that_propagate_nan_are_those_of_numpy(arch, name):
    @tc.kernel
    def extremes(x, y, out):
        i = tc.threadIdx.x
        out[0, i] = tc.maximum(x[i], y[i], nan=True)
        out[1, i] = np.minimum(x[i], y[i])
        out[2, i] = tc.maximum(x[i], y[i])
        out[3, i] = np.fmin(x[i], y[i])
        out[4, i] = tc.minimum(x[i], 0.5, nan=True)

    dtype = getattr(tc, name).numpy
    numbers = np.array([np.nan, -np.inf, -1, 0, 2, np.inf], dtype)
    x, y = np.resize(np.repeat(numbers, 6), N + 4), np.resize(numbers, N + 4)
    out = np.zeros((5, N + 4), dtype)
    extremes.emulator(arch)[1, N + 4](x, y, out)
    x, y = x.astype(float), y.astype(float)
    wanted = [np.maximum(x, y), np.minimum(x, y), np.fmax(x, y), np.fmin(x, y), np.minimum(x, 0.5)]
    assert np.array_equal(out.astype(float), wanted, equal_nan=True)


def test_extremes_of_fragments_and_numbers_propagate_nan():
    @tc.kernel
    def extremes(out, half: tc.Const):
        mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f16 if half else tc.f32)
        x = mma.d.zeros()
        x = tc.maximum(x.map(lambda element: element + math.nan), 1.0, nan=True)
        tc.store_elements(out, x)
        assert math.isnan(tc.minimum(1.0, math.nan, nan=True)) and tc.maximum(1, 2, nan=True) == 2

    for half, dtype in ((False, np.float32), (True, np.float16)):
        out = np.zeros((16, 8), dtype)
        extremes.emulate[1, 32](out, half)
        assert np.isnan(out).all()
        if half:
            assert "max.NaN.f16x2" in extremes.ptx(out, half, arch="sm_90a")


@tc.kernel
def atomics(x, out, olds, operation: tc.Const, shared: tc.Const):
    i = tc.blockIdx.x * tc.blockDim.x + tc.threadIdx.x
    if not shared:
        olds[i] = tc.atomic(operation, out.at(i % 3), x[i])
    else:
        tile = tc.shared(4, x.dtype)
        if tc.threadIdx.x < 3:
            tile[tc.threadIdx.x] = out[tc.threadIdx.x]
        tc.barrier()
        tc.reduce(operation, tile.at(i % 3), x[i])
        tc.barrier()
        if tc.threadIdx.x < 3:
            out[tc.threadIdx.x] = tile[tc.threadIdx.x]


FLOAT_ATOMICS = [
    (arch, name, operation)
    for arch in ("sm_75", "sm_80", "sm_90a")
    for name in ("f32", "f64", "f16", "bf16")
    for operation in ("max", "min", "add")
    if (arch, name) != ("sm_75", "bf16")
]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("arch", "name", "operation"), FLOAT_ATOMICS)
def test_atomics_of_floats(arch, name, operation, shared):
    dtype = getattr(tc, name).numpy
    x = (np.random.default_rng(1).integers(-8, 8, 96) / 4).astype(dtype)
    if operation != "add":
        x[5] = np.nan
    start = np.array([0, -1, 3], dtype)
    out, olds = start.copy(), np.zeros(96, dtype)
    blocks = 1 if shared else 3
    atomics.emulator(arch)[blocks, 96 // blocks](x, out, olds, operation, shared)
    with np.errstate(invalid="ignore"):
        function: Any = {"max": np.fmax, "min": np.fmin, "add": np.add}[operation].reduce
        wanted = [function(np.append(start[j], x[j::3]).astype(float)) for j in range(3)]
    assert out.astype(float).tolist() == wanted
    if not shared:
        assert sum(olds[0::3].astype(float) == 0) >= 1  # the first sees what was there


def test_atomics_of_floats_with_nan_and_signed_zeros():
    """They follow tc.maximum and tc.minimum: a NaN gives way to a number, and -0.0 is less than 0.0."""
    for operation, first, value, wanted in [
        ("max", np.nan, 1, 1),
        ("max", 1, np.nan, 1),
        ("min", -np.nan, -1, -1),
        ("max", -0.0, 0.0, 0.0),
        ("max", 0.0, -0.0, 0.0),
        ("min", 0.0, -0.0, -0.0),
        ("min", -0.0, 0.0, -0.0),
        ("max", -np.inf, -3, -3),
        ("min", np.inf, np.nan, np.inf),
    ]:
        x, out = np.full(1, value, np.float32), np.full(3, first, np.float32)
        olds = np.zeros(1, np.float32)
        atomics.emulate[1, 1](x, out, olds, operation, False)
        assert (out[0], np.signbit(out[0])) == (wanted, np.signbit(np.float32(wanted)))
        assert np.array_equal(olds[0], np.float32(first), equal_nan=True)


@pytest.mark.parametrize("arch", ["sm_70", "sm_75"])
def test_atomics_of_bf16_name_what_works_instead(arch):
    @tc.kernel
    def total(x, value: tc.f32, reduces: tc.Const):
        if reduces:
            tc.reduce("max", x.at(0), value)
        else:
            tc.atomic("add", x.at(0), value)

    for dtype in (np.float16, np.float32):
        x = np.zeros(1, dtype)
        total.emulator(arch)[1, 32](x, 0.5, False)
        assert x[0] == 16
    for reduces in (False, True):
        words = f"{arch} has no atomic .* of bf16, .*: use elements of f16 or f32"
        with pytest.raises(tc.ArchError, match=words):
            total.emulator(arch)[1, 32](np.zeros(1, tc.bf16.numpy), 0.5, reduces)


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90a", "sm_120a"])
def test_atomics_of_floats_assemble(arch):
    pytest.importorskip("cuda.core", reason="needs nvJitLink")
    for name in ("f32", "f64", "f16", "bf16"):
        if (arch, name) != ("sm_75", "bf16"):
            x = np.zeros(96, getattr(tc, name).numpy)
            text = atomics.ptx(x, x, x, "max", False, arch=arch)
            assert ".cas.b" in text and assembles(text, arch) == ""
    x = np.zeros(96, tc.bf16.numpy)
    if arch != "sm_75":
        direct = ".cas." not in atomics.ptx(x, x, x, "add", False, arch=arch)
        assert direct == (arch in ("sm_90a", "sm_120a"))
