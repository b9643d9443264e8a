"""Arguments of a launch bind as those of the Python function: `inspect.Signature` is the oracle."""

from __future__ import annotations

import inspect
import random
from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl.kernel.specialisation import Specialisation
from tests.fake_gpu import CUBIN, FakeGpu


def function_of(text: str) -> Any:
    """A function with the parameters `text`, which only has a signature."""
    names: dict[str, Any] = {"Const": tc.Const}
    exec(compile(f"def drawn({text}): pass", "<drawn>", "exec", dont_inherit=True), names)
    return names["drawn"]


def drawn(rng: random.Random) -> str:
    """Parameters as Python allows them: which are Const, have defaults, or stand behind `*`."""
    count = rng.randint(1, 5)
    behind = rng.choice([count, rng.randrange(count)])
    defaults = rng.randint(0, behind)
    texts = []
    for i in range(count):
        default = rng.random() < 0.5 if i >= behind else i >= defaults
        kind = ": Const" if rng.random() < 0.4 else ""
        texts.append(f"{'abcde'[i]}{kind}{f' = {i}' if default else ''}")
    return ", ".join(texts[:behind] + ["*"] * (behind < count) + texts[behind:])


def with_const_by_name(signature: inspect.Signature) -> inspect.Signature:
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = signature.parameters.values()
    moved = [p.replace(kind=kind) if p.annotation is tc.Const else p for p in parameters]
    return signature.replace(parameters=sorted(moved, key=lambda p: p.kind))


def expected(signature: inspect.Signature, args: Any, named: Any) -> dict[str, Any] | None:
    """What each parameter gets; None where neither reading is possible."""
    for reading in (signature, with_const_by_name(signature)):
        try:
            bound = reading.bind(*args, **named)
        except TypeError:
            continue
        bound.apply_defaults()
        return dict(bound.arguments)
    return None


def split(kernel: Any, args: Any, named: Any) -> dict[str, Any] | None:
    try:
        runtime, constants = kernel.split(args, named)
    except tc.ArgumentError:
        return None
    return {**dict(zip(kernel.runtime_names, runtime, strict=True)), **constants}


def test_any_call_of_any_signature_binds_as_in_python():
    rng = random.Random(39)
    bound = 0
    for _ in range(400):
        text = drawn(rng)
        function = function_of(text)
        kernel, signature = tc.kernel(function), inspect.signature(function)
        for _ in range(10):
            args = [100 + i for i in range(rng.randint(0, 5))]
            named = {n: 200 + i for i, n in enumerate("abcde") if rng.random() < 0.3}
            wanted = expected(signature, args, named)
            assert split(kernel, args, named) == wanted, (text, args, named)
            bound += wanted is not None
    assert bound > 300


@tc.kernel
def added(out: tc.Array, n: tc.Const = 2, b: int = 3):
    out[tc.threadIdx.x] = 10 * n + b


@tc.kernel
def needs_n(out: tc.Array, n: tc.Const, b: int = 3):
    out[tc.threadIdx.x] = 10 * n + b


@pytest.mark.parametrize(
    ("kernel", "args", "named", "value"),
    [
        (added, (), {}, 23),
        (added, (7,), {}, 73),
        (added, (7, 1), {}, 71),
        (added, (7,), {"n": 5}, 57),
        (added, (7,), {"b": 5}, 75),
        (needs_n, (7,), {}, 73),
        (needs_n, (), {"n": 4}, 43),
    ],
)
def test_a_const_parameter_keeps_its_place(kernel, args, named, value):
    out = np.zeros(4, np.int32)
    kernel.emulate[1, 4](out, *args, **named)
    assert out.tolist() == [value] * 4
    with tc.target("cpu"):
        kernel[1, 4](out := np.zeros(4, np.int32), *args, **named)
    assert out.tolist() == [value] * 4
    result = kernel.check(1, 4)(np.zeros(4, np.int32), *args, **named)
    assert result.arguments["out"].tolist() == [value] * 4


def test_launches_on_a_gpu_bind_in_the_same_way(monkeypatch):
    """A launch by position alone goes to the fast path, which knows no Const value."""
    fake = FakeGpu().of_the_machine(monkeypatch)
    monkeypatch.setattr(Specialisation, "cubin", CUBIN)
    monkeypatch.delenv("TENSORCORE_DSL_TARGET", raising=False)

    @tc.kernel
    def store(a: tc.s32, n: tc.Const = 2, b: tc.s32 = 3):
        if a + b == n:
            tc.trap()

    launch = store[1, 32]
    for args in ((5, 7), (5, 7), (5, 7), (5,), (5, 2), (5, 7, 3)):
        launch(*args)
    assert len(fake.loads) == 2  # for n = 7 and n = 2
    assert [np.frombuffer(r.parameters, np.int32).tolist() for r in fake.records] == [[5, 3]] * 6


def test_named_arguments_stand_where_arguments_stands():
    @tc.kernel
    def combined(y, *arrays, scale: tc.Const = 1):
        i = tc.threadIdx.x
        y[i] = scale * sum(array[i] for array in arrays)

    kernel = combined.with_arguments("p", "q")
    y, p, q = (np.full(4, value, np.float32) for value in (0, 1, 2))
    kernel.emulate[1, 4](y, p, q)
    assert (y.tolist(), p.tolist(), q.tolist()) == ([3] * 4, [1] * 4, [2] * 4)
    kernel.emulate[1, 4](y, q=p, p=q, scale=2)
    assert y.tolist() == [6] * 4
    assert repr(kernel) == "<kernel combined(y, p, q, scale: Const = 1)>"
    with pytest.raises(
        tc.ArgumentError, match=r"combined takes 3 positional arguments \(y, p, q\), 4 were given"
    ):
        kernel.emulate[1, 4](y, p, q, 2)


def test_what_a_configuration_chooses_has_no_place():
    @tc.autotune([tc.Config(BM=2, grid=1, block=4)], remember=False)
    @tc.kernel
    def tuned(out: tc.Array, BM: tc.Const, n: tc.Const = 2, b: int = 3):
        out[tc.threadIdx.x] = 100 * BM + 10 * n + b

    for args, named, value in (((), {}, 223), ((7,), {}, 273), ((7,), {"n": 5}, 257)):
        with tc.target("cpu"):
            tuned(out := np.zeros(4, np.int32), *args, **named)
        assert out.tolist() == [value] * 4


def test_a_parameter_called_self():
    @tc.kernel
    def filled(self, n: tc.Const = 2):
        self[tc.threadIdx.x] = n

    tuned = tc.autotune([tc.Config(grid=1, block=4)], remember=False)(filled)
    with tc.target("cpu"):
        for launch in (
            filled[1, 4],
            filled.emulate[1, 4],
            filled.explore(2)[1, 4],
            tuned,
            tuned.emulate[1, 4],
            tuned.check(1, 4, in_place=True),
            filled.check(1, 4, in_place=True),
        ):
            x = np.zeros(4, np.int32)
            actual = launch(self=x)
            assert x.tolist() == [0 if "orders" in str(actual) else 2] * 4
        filled[1, 4].prepare(self=x)(x)
        tuned[1, 4].prepare(self=x)(x)
    for inside in (filled.ir, filled.ptx, tuned.ir, tuned.ptx):
        assert "filled" in inside(self=x, arch="sm_80")
