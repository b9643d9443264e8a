"""A warning of loops whose unrolling takes long."""

from __future__ import annotations

import warnings

import pytest

import tensorcore_dsl as tc

pytestmark = pytest.mark.usefixtures("fresh_ir")

ARRAY = tc.ArrayType(tc.f32, 1, (True,), 16)


@tc.kernel
def in_python(x: tc.Array, n: tc.Const):
    for i in range(n):
        if i < 0:
            x[0] = 1


@tc.kernel
def stated(x: tc.Array, n: tc.Const):
    for i in tc.static_range(n):
        if i < 0:
            x[0] = 1


@tc.kernel
def nested(x: tc.Array, n: tc.Const):
    for i in range(n):
        for k in tc.range(2):
            for j in range(n):
                if i + j < 0:
                    x[k] = 1


@tc.kernel
def nested_as_stated(x: tc.Array, n: tc.Const):
    for i in tc.static_range(n):
        for j in range(n):
            if i + j < 0:
                x[0] = 1


@tc.kernel
def at_run_time(x: tc.Array, n: tc.Const):
    for i in tc.range(n):
        x[0] = i


@pytest.mark.parametrize(
    "kernel, n",
    [(in_python, 1000), (stated, 4000), (at_run_time, 4000), (nested, 32), (nested_as_stated, 40)],
)
def test_loops_without_a_warning(kernel, n, monkeypatch):
    monkeypatch.setenv("TENSORCORE_DSL_CACHE", "off")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kernel.ir(ARRAY, n=n, arch="sm_80")


def test_a_long_loop_is_about_to_be_unrolled(monkeypatch):
    monkeypatch.setenv("TENSORCORE_DSL_CACHE", "off")
    with pytest.warns(tc.PerformanceWarning) as caught:
        in_python.ir(ARRAY, n=4000, arch="sm_80")
    (warning,) = caught
    assert str(warning.message) == (
        "this loop over range(n) is unrolled when the kernel is compiled: 4000 copies of its body "
        "take seconds or minutes. tc.range(...) makes a loop that the kernel runs; "
        "tc.static_range(...) unrolls without this warning"
    )
    first = in_python.function.__code__.co_firstlineno
    assert (warning.filename, warning.lineno) == (__file__, first + 2)


def test_nested_loops_count_together(monkeypatch):
    monkeypatch.setenv("TENSORCORE_DSL_CACHE", "off")
    with pytest.warns(tc.PerformanceWarning, match="range.n. is unrolled .* 1600 copies") as caught:
        nested.ir(ARRAY, n=40, arch="sm_80")
    (warning,) = caught
    assert warning.lineno == nested.function.__code__.co_firstlineno + 4
