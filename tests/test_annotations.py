"""What annotations of parameters may say, and None in the place of an array or a number."""

# ruff: noqa: UP007, UP037, UP045 (all ways to write a union are tested)

from __future__ import annotations

from typing import Any, Optional, Union

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl.kernel.specialisation import Specialisation
from tensorcore_dsl.runtime.fast_launch.argument_kinds import Same, kinds_of
from tests.fake_gpu import CUBIN, FakeGpu, OnGpu


@tc.kernel
def linear(x: tc.Array, bias: tc.Array = None, scale: tc.f32 | None = None, shift=None):
    i = tc.threadIdx.x
    value = x[i] if scale is None else x[i] * scale
    if bias is not None:
        value += bias[i]
    x[i] = value + (0 if shift is None else shift)


X, BIAS = np.arange(4, dtype=np.float32), np.full(4, 10, np.float32)


@pytest.mark.parametrize(
    ("args", "named", "wanted"),
    [
        ((), {}, X),
        ((BIAS,), {}, X + 10),
        ((None, 2.0), {}, 2 * X),
        ((BIAS, None, 5), {}, X + 15),
        ((), {"shift": 1.5, "scale": 2}, 2 * X + 1.5),
    ],
)
def test_none_is_known_at_compile_time(args, named, wanted):
    linear.emulate[1, 4](x := X.copy(), *args, **named)
    assert np.array_equal(x, wanted)
    with tc.target("cpu"):
        linear[1, 4](x := X.copy(), *args, **named)
        assert np.array_equal(x, wanted)
        linear[1, 4].prepare(x := X.copy(), *args, **named)(x, *linear.split((x, *args), named)[0][1:])
    assert np.array_equal(x, wanted)
    assert np.array_equal(linear.check(1, 4)(X.copy(), *args, **named).arguments["x"], wanted)
    assert not linear.explore(3)[1, 4](X.copy(), *args, **named).error


def test_code_for_none_is_not_there():
    array = tc.ArrayType(tc.f32, 1, (True,), 16)
    ptx = linear.ptx(array, None, None, None, arch="sm_80")
    assert ptx.count(".param .") == 2 and "ld.global" in ptx and "mul.rn" not in ptx
    texts = [linear.ir(array, bias, arch="sm_80") for bias in (None, array)]
    assert ["bias" in text for text in texts] == [False, True]


def test_none_takes_no_place_among_the_parameters(monkeypatch):
    fake = FakeGpu().of_the_machine(monkeypatch)
    monkeypatch.delenv("TENSORCORE_DSL_TARGET", raising=False)
    monkeypatch.setattr(Specialisation, "cubin", CUBIN)

    @tc.kernel
    def stored(a, b: tc.Array = None, c=None, d: int = 4):
        pass

    x, launch = OnGpu(np.zeros(3, np.float32)), stored[1, 32]
    for number in range(4):  # the plain path twice, then machine code
        for args in ((1, None, number), (1, x, None, number), (None, None, None, number)):
            launch(*args)
    words = [np.frombuffer(r.parameters, np.int32).tolist() for r in fake.records]
    for number in range(4):
        first, second, third = words[3 * number : 3 * number + 3]
        assert (first, third) == ([1, number, 4], [number])
        assert len(second) == 6 and second[0] == 1 and second[4:] == [3, number]
    with pytest.raises(tc.ArgumentError, match="argument 'd' is None; d: s32 = 4 takes None where"):
        launch(1, None, None, None)


def test_autotuned_kernels_take_none():
    tuned = tc.autotune([tc.Config(grid=1, block=4)], key=["bias"], remember=False)(linear)
    for bias, wanted in ((None, X), (BIAS, X + 10)):
        with tc.target("cpu"):
            tuned(x := X.copy(), bias)
        assert np.array_equal(x, wanted)
        call = tuned._call((x, bias), {})
        assert tuned.key_of(call, {})[0][1] == (None if bias is None else tuned.key_of(call, {})[0][0])


def test_machine_code_compares_none_by_identity():
    assert kinds_of([None, None], [None, tc.f32]) == (Same(), Same())


@tc.kernel
def quoted(x: "tc.Array", n: "tc.Const[int]" = 2, m: "tc.Const" = 3, f: "f32" = 1.0, g: "int" = 1):  # noqa: F821
    x[tc.threadIdx.x] = n + m + f + g


def test_quoted_annotations_in_a_file_that_postpones_them():
    quoted.emulate[1, 4](x := np.zeros(4, np.float32))
    assert x.tolist() == [7] * 4
    assert repr(quoted).startswith("<kernel quoted(x: Array, n: Const = 2, m: Const = 3, f: f32")


def with_annotation(note: Any, default: Any = None) -> Any:
    def kernel(x: tc.Array, p=default):
        x[tc.threadIdx.x] = 9 if p is None else p if isinstance(p, int) else p[0]

    kernel.__annotations__["p"] = note
    return tc.kernel(kernel)


@pytest.mark.parametrize(
    ("note", "kind"),
    [
        (Optional[tc.Array], "Array"),
        (tc.Array | None, "Array"),
        ("tc.Array | None", "Array"),
        (Optional["tc.Array"], "Array"),
        ("Optional['tc.Array']", "Array"),
        (Union[None, tc.Array], "Array"),
        (Optional[tc.Const], "Const"),
        (tc.Const | None, "Const"),
        ("Optional[tc.Const[int]]", "Const"),
    ],
)
def test_optional_parameters_take_none(note, kind):
    kernel = with_annotation(note)
    assert kernel.parameters[1].kind == kind
    for given, wanted in ((BIAS if kind == "Array" else 10, 10), (None, 9)):
        kernel.emulate[1, 4](x := np.zeros(4, np.float32), given)
        assert x.tolist() == [wanted] * 4


@pytest.mark.parametrize(
    "note", [Optional[tc.f32], tc.f32 | None, Optional[float], "float | None", "tc.f32 | None"]
)
def test_optional_numbers_take_none(note):
    @tc.kernel
    def filled(x: tc.Array, p: note = 3):
        assert p is None or p.dtype == tc.f32
        x[tc.threadIdx.x] = 9 if p is None else p

    for args, wanted in (((), 3), ((4,), 4), ((None,), 9)):
        filled.emulate[1, 4](x := np.zeros(4, np.float32), *args)
        assert x.tolist() == [wanted] * 4


def test_names_that_only_the_annotations_use():
    import tensorcore_dsl as other

    @tc.kernel
    def local(x: other.Array, n: "other.Const" = 2):
        x[0] = n

    local.emulate[1, 1](x := np.zeros(1, np.float32))
    assert x[0] == 2


def test_none_where_it_is_no_value():
    @tc.kernel
    def plain(x: tc.Array, n: tc.s32, y):
        x[0] = n if y is None else y

    plain.emulate[1, 1](x := np.zeros(1, np.float32), 5, None)
    assert x[0] == 5
    for args, text in (
        (
            (None, 5, None),
            "argument 'x' is None; x: Array takes None where it has the default "
            r"None, or the annotation Array \| None",
        ),
        ((x, None, 5), "argument 'n' is None; n: s32 takes None where"),
    ):
        with pytest.raises(tc.ArgumentError, match=f"plain: {text}"):
            plain.emulate[1, 1](*args)
    union = Union[tc.Array, float]
    with pytest.raises(tc.ArgumentError, match=r"one of these \| None, or nothing"):
        with_annotation(union)


def test_methods_say_what_to_write():
    with pytest.raises(tc.ArgumentError) as error:

        class _Model:
            @tc.kernel
            def scaled(self, x: tc.Array):
                x[tc.threadIdx.x] *= self.factor

    assert "kernel scaled: a launch passes no 'self', although the kernel is defined in a class" in str(
        error.value
    )
    assert "test_annotations.py" in str(error.value)

    class Model:
        @tc.kernel
        def scaled(x: tc.Array, factor: tc.f32):
            x[tc.threadIdx.x] *= factor

        @tc.kernel
        def explicit(self: tc.Const, x: tc.Array):
            x[tc.threadIdx.x] *= self

    Model().scaled.emulate[1, 4](x := X.copy(), 2)
    Model.explicit.emulate[1, 4](3, x)
    assert np.array_equal(x, 6 * X)
