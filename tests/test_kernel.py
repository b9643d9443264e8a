"""@kernel: parameters, specialisations, targets, launches, and looking inside."""

from __future__ import annotations

import gc
import inspect
import pickle
import pydoc
import sys
import weakref
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl.frontend.compile import compile_kernel
from tensorcore_dsl.interpreter.core.program import PROGRAMS
from tensorcore_dsl.kernel import constants_key
from tensorcore_dsl.kernels.user_functions import with_epilogue_args
from tensorcore_dsl.runtime import targets
from tests.arrays import Dlpack
from tests.fake_gpu import FakeGpu
from tests.running import ASSEMBLES

X = np.arange(8, dtype=np.float32)


@tc.kernel
def fill(x: tc.Array, value: tc.f32, count: tc.Const = 4):
    """Writes `value` to the first elements."""
    i = tc.threadIdx.x
    if i < count:
        x[i] = value


def fresh() -> np.ndarray:
    return np.zeros(8, np.float32)


# -- arguments --------------------------------------------------------------------------------


def test_const_parameters_may_be_positional_named_or_left_out():
    for args, named, count in (
        ((2.5,), {}, 4),
        ((2.5,), {"count": 3}, 3),
        ((2.5, 6), {}, 6),
        ((), {"value": 2.5, "count": 1}, 1),
    ):
        x = fresh()
        fill.emulate[1, 8](x, *args, **named)
        assert x.tolist() == [2.5] * count + [0.0] * (8 - count)


def test_the_function_behind():
    assert fill.__name__ == "fill" and fill.__doc__ == "Writes `value` to the first elements."
    assert repr(fill) == "<kernel fill(x: Array, value: f32, count: Const = 4)>"


@pytest.mark.parametrize(
    "dtype",
    [tc.s8, tc.u8, tc.s16, tc.u16, tc.s32, tc.u32, tc.s64, tc.u64, tc.f16, tc.bf16, tc.f32, tc.f64],
    ids=str,
)
def test_scalars_of_every_type(dtype):
    def function(out: tc.Array, n):
        out[0] = n

    function.__annotations__["n"] = dtype
    store = tc.kernel(function)
    for value in (3, dtype.numpy.type(5), np.int64(7), 1.5 if dtype.is_float else True):
        out = np.zeros(1, dtype.numpy)
        store.emulate[1, 1](out, value)
        assert out[0] == np.asarray(value).astype(dtype.numpy)


@tc.kernel
def python_types(out: tc.Array, a: int, b: float, c: bool, d, e):
    out[0], out[1], out[2] = a + (1 if c else 0), b, d
    out[3] = e
    assert (a.dtype, b.dtype, c.dtype) == (tc.s32, tc.f32, tc.pred)


@pytest.mark.parametrize("flag", [True, False, np.bool_(True), 1])
def test_annotations_of_python_types_and_none(flag):
    out = np.zeros(4)
    python_types.emulate[1, 1](out, 3, 1.25, flag, np.float64(0.1), 2**40)
    assert out.tolist() == [3 + bool(flag), 1.25, 0.1, 2.0**40]


def make_local() -> Any:
    import tensorcore_dsl as local_name

    @local_name.kernel
    def annotated(out: local_name.Array, n: local_name.Const):
        out[local_name.threadIdx.x] = n

    return annotated


def test_postponed_annotations_see_enclosing_functions():
    out = np.zeros(2, np.int32)
    make_local().emulate[1, 2](out, n=7)
    assert out.tolist() == [7, 7]


# -- specialisations --------------------------------------------------------------------------


@tc.kernel
def typed(out: tc.Array, value: tc.Const):
    out[0] = value / 2 if isinstance(value, float) else 100 if value is True else value


def test_equal_constants_of_different_types_are_told_apart():
    results = []
    for value in (1, 1.0, True, 3, 1):
        out = np.zeros(1, np.float32)
        typed.emulate[1, 1](out, value=value)
        results.append(out[0])
    assert results == [1, 0.5, 100, 3, 1]


@dataclass(frozen=True)
class Size:
    m: Any
    n: Any = 2


@pytest.mark.parametrize(
    "left, right, equal",
    [
        (1, 1, True),
        (1, True, False),
        (0.0, -0.0, False),
        (float("nan"), float("nan"), True),
        ((1, 2), (1, 2), True),
        ((1, 2), (1.0, 2), False),
        ((1, 2), [1, 2], False),
        ({"a": 1}, {"a": 1}, True),
        ({"a": 1}, {"a": 2}, False),
        (Size(1), Size(1), True),
        (Size(1), Size(1.0), False),
        (np.arange(3000), np.arange(3000), True),
        (np.arange(3000), np.arange(3000) + (np.arange(3000) == 1500), False),
        (np.arange(3), np.arange(3.0), False),
        (tc.f32, tc.f32, True),
        (tc.f32, tc.f16, False),
        (None, None, True),
        ({1, 2}, {1, 2}, True),
        (np.float32(1), np.float64(1), False),
    ],
)
def test_keys_of_constants(left, right, equal):
    keys = [constants_key({"x": value}) for value in (left, right)]
    assert (keys[0] == keys[1]) is equal
    assert not equal or hash(keys[0]) == hash(keys[1])


def test_a_specialisation_is_compiled_once(monkeypatch):
    compiled = []

    def counting(*args: Any) -> Any:
        compiled.append(args[1:3])
        return compile_kernel(*args)

    monkeypatch.setattr(sys.modules["tensorcore_dsl.kernel.specialisation"], "compile_kernel", counting)

    @tc.kernel
    def once(x: tc.Array, n: tc.Const = 1):
        x[tc.threadIdx.x] = n

    for shape in (8, 16):  # shapes are known at run time
        once.emulate[1, 8](np.zeros(shape, np.float32))
    assert len(compiled) == 1
    once.emulate[1, 8](np.zeros(8, np.float64))
    once.emulate[1, 8](np.zeros(16, np.float32)[::2])
    once.emulate[1, 8](fresh(), n=2)
    once.emulator("sm_80")[1, 8](fresh())
    assert len(compiled) == 5
    once.ptx(X, arch="sm_80"), once.ir(X, arch="sm_80")  # without checks of indices
    assert len(compiled) == 6
    for _ in range(2):
        once.emulator("sm_80", checks=False)[1, 8](fresh())  # without assertions, too
    assert len(compiled) == 7


def test_kernels_are_garbage_collected_with_their_launches():
    def function(x: tc.Array):
        x[0] = 1

    made = tc.kernel(function)
    made.emulate[1, 1](fresh())
    launch = made[1, 1]
    assert made[1, 1] is launch
    gone = weakref.ref(made)
    del made, launch
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(
    "options, error",
    [
        ({"checks": "yes"}, tc.ArgumentError),
        ({"profile": np.zeros(0)}, tc.ArgumentError),
        ({"trace": 3}, tc.ArgumentError),
        ({"arch": ["sm_90"]}, tc.ArchError),
    ],
)
def test_options_of_emulators_that_cannot_be(options, error):
    with pytest.raises(error):
        double.emulator(**options)[1, 8](X, X.copy())


# -- what stands around a kernel ---------------------------------------------------------------

FACTOR = 3
SIZES = [1, 2]


class Holder:
    factor = 3


@tc.kernel
def reads(x, given: tc.Const = None):
    x[0], x[1], x[2] = FACTOR, SIZES[0], Holder.factor
    if given is not None:
        x[3] = given.n


def result(*given: Any) -> list[float]:
    x = np.zeros(4, np.float32)
    reads.emulate[1, 1](x, *given)
    return x.tolist()


def test_changes_around_a_kernel_compile_it_again(monkeypatch):
    assert result() == [3, 1, 3, 0]
    monkeypatch.setitem(globals(), "FACTOR", 5)
    monkeypatch.setitem(globals(), "SIZES", [7])
    assert result() == [5, 7, 3, 0]
    SIZES[0] = 8
    monkeypatch.setattr(Holder, "factor", 9)
    assert result() == [5, 8, 9, 0]
    compiled = reads._specialisations
    assert result() == [5, 8, 9, 0] and reads._specialisations is compiled


def test_const_objects_are_told_apart_by_their_contents():
    given = SimpleNamespace(n=1)
    assert result(given)[3] == 1
    given.n = 2
    assert result(given)[3] == 2


def test_a_closure_that_changes():
    n = 1

    @tc.kernel
    def closed(x):
        x[0] = n

    x = np.zeros(1, np.float32)
    closed.emulate[1, 1](x)
    n = 2
    closed.emulate[1, 1](x)
    assert x[0] == 2


# -- looking inside ---------------------------------------------------------------------------


@tc.kernel(name="other name", threads=96, max_registers=40, min_blocks=3)
def options(x: tc.Array):
    x[tc.threadIdx.x] = 1


def test_options_reach_the_text():
    text = options.ptx(X, arch="sm_80")
    assert ".visible .entry other_name(" in text
    assert ".reqntid 96" in text and ".maxnreg 40" in text and ".minnctapersm 3" in text
    assert ".target sm_80" in text
    assert "st.global" in options.ir(X, arch="sm_80")


@pytest.mark.skipif(not ASSEMBLES, reason="needs numba-cuda")
def test_resources_count_shared_memory_and_registers():
    @tc.kernel
    def tiles(x: tc.Array):
        tile = tc.shared((100, 32), tc.f32)
        tile[0, tc.threadIdx.x] = 1.0
        tc.barrier()
        x[tc.threadIdx.x] = tile[0, 31 - tc.threadIdx.x]

    resources = tiles.resources(X, arch="sm_90a")
    assert resources.shared_bytes == 12800 and resources.registers > 0 and resources.spill_stores == 0
    assert tiles.cubin(X, arch="sm_90a")[:4] == b"\x7fELF"


def test_types_may_stand_for_arguments():
    matrix = tc.ArrayType(tc.f16, 1, (True,), 16)
    assert fill.ptx(matrix, tc.f32, arch="sm_80") == fill.ptx(np.zeros(8, np.float16), 1.0, arch="sm_80")


# -- targets ----------------------------------------------------------------------------------


@tc.kernel
def which(out: tc.Array):
    out[0] = tc.arch_number()


def arch_of_launch() -> int:
    out = np.zeros(1, np.int32)
    which[1, 1](out)
    return int(out[0])


def test_the_cpu_emulates_what_is_asked_for(monkeypatch):
    monkeypatch.setattr(targets.driver, "cuda_available", lambda: False)
    monkeypatch.delenv("TENSORCORE_DSL_TARGET", raising=False)
    monkeypatch.delenv("TENSORCORE_DSL_ARCH", raising=False)
    assert tc.current_target() == "cpu" and arch_of_launch() == 90
    monkeypatch.setenv("TENSORCORE_DSL_ARCH", "sm_80")
    assert arch_of_launch() == 80
    with tc.target("cpu", "sm_120a"):
        assert arch_of_launch() == 120
    assert arch_of_launch() == 80
    out = np.zeros(1, np.int32)
    which.emulator("sm_86")[1, 1](out)
    assert out[0] == 86


def test_the_environment_and_the_context_choose(monkeypatch):
    monkeypatch.setattr(targets.driver, "cuda_available", lambda: True)
    monkeypatch.delenv("TENSORCORE_DSL_TARGET", raising=False)
    assert tc.current_target() == "cuda"
    monkeypatch.setenv("TENSORCORE_DSL_TARGET", "cpu")
    assert tc.current_target() == "cpu" and not targets.gpu_chosen()
    with tc.target("cuda"):
        assert tc.current_target() == "cuda" and targets.gpu_chosen()
    monkeypatch.setenv("TENSORCORE_DSL_TARGET", "")
    assert tc.current_target() == "cuda"


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.delenv("TENSORCORE_DSL_TARGET", raising=False)
    return FakeGpu().of_the_machine(monkeypatch)


@pytest.mark.skipif(not ASSEMBLES, reason="needs numba-cuda")
def test_launches_on_a_gpu(gpu):
    @tc.kernel
    def store(value: tc.f32, n: tc.s32, count: tc.Const = 4):
        if n < count:
            tc.trap()

    store[3, (32, 2)](1.5, 2)
    store[3, (32, 2)](2.5, 3)
    store[3, (32, 2)](2.5, 3, count=9)
    store[3, (32, 2)](2.5, 3, 9)
    assert [(r.grid, r.block) for r in gpu.records] == [((3, 1, 1), (32, 2, 1))] * 4
    assert len(gpu.loads) == 2, "one kernel a specialisation"
    with tc.target("cpu"), pytest.raises(tc.EmulationError, match="trap"):
        store[1, 32](1.5, 2)
    assert len(gpu.records) == 4
    launch = store[3, (32, 2)].prepare(1.5, 2)
    launch(1.5, 2)
    assert len(gpu.records) == 5
    store.configured(2, 64, cooperative=True)(1.5, 2)
    assert gpu.records[-1].grid == (2, 1, 1) and gpu.records[-1].attributes


def test_configured_launches_are_kept():
    """What a launch prepares must not be prepared for every call."""
    first = double.configured(2, 64, pdl=True)
    assert double.configured(2, 64, pdl=True) is first
    assert double.configured((2, 1), 64, pdl=True) is first
    assert double.configured(2, 64) is not first
    assert double.configured(2, 64, pdl=True, stream=7) is not first
    stream: Any = Unhashable()
    assert double.configured(2, 64, stream=stream) is not double.configured(2, 64, stream=stream)


class Unhashable:
    """A stream that cannot be a key."""

    __hash__ = None  # type: ignore[assignment]

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, 7


# -- arrays -----------------------------------------------------------------------------------


@tc.kernel
def double(x: tc.Array, out: tc.Array):
    i = tc.threadIdx.x
    out[i] = x[i] + x[i]


class DeviceArray:
    """What the emulator needs of Numba's device arrays."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.copies = 0

    @property
    def __cuda_array_interface__(self) -> Any:
        return self.array.__array_interface__ | {"version": 3, "stream": None}

    def copy_to_host(self) -> np.ndarray:
        return self.array.copy()

    def copy_to_device(self, array: np.ndarray) -> None:
        self.copies += 1
        self.array[...] = array


def test_device_arrays_are_copied_and_written_back():
    x, out = DeviceArray(X.copy()), DeviceArray(fresh())
    double.emulate[1, 8](x, out)
    assert np.array_equal(out.array, 2 * X) and out.copies == 1


def test_a_failed_run_writes_nothing_back():
    out = DeviceArray(fresh())
    with pytest.raises(tc.OutOfBounds):
        double.emulate[1, 9](DeviceArray(X.copy()), out)
    assert out.copies == 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "int32"])
def test_torch_tensors_share_their_memory(dtype):
    torch = pytest.importorskip("torch")
    numbers = torch.arange(8).to(torch.float32)
    x, out = numbers.to(getattr(torch, dtype)), torch.zeros(8).to(getattr(torch, dtype))
    if dtype == "float8_e4m3fn":

        @tc.kernel
        def copy(x: tc.Array, out: tc.Array):
            out[tc.threadIdx.x] = x[tc.threadIdx.x]

        copy.emulate[1, 8](x, out)
        assert torch.equal(out.to(torch.float32), numbers)
    else:
        double.emulate[1, 8](x, out)
        assert torch.equal(out.to(torch.float32), 2 * numbers)


def test_arrays_of_dlpack_are_read():
    out = fresh()
    double.emulate[1, 8](Dlpack(X), out)
    assert np.array_equal(out, 2 * X)


def test_bf16_arrays_and_a_report():
    x, out = X.astype(ml_dtypes.bfloat16), np.zeros(8, ml_dtypes.bfloat16)
    report = double.emulator("sm_80", profile=True)[1, 8](x, out)
    assert np.array_equal(out, 2 * x) and report is not None


def test_target_keys(monkeypatch):
    monkeypatch.delenv(targets.TARGET_VARIABLE, raising=False)
    monkeypatch.delenv(targets.ARCH_VARIABLE, raising=False)
    seen = [targets.target_key()]
    assert targets.gpu_chosen()
    with tc.target("cpu"):
        seen.append(targets.target_key())
        assert not targets.gpu_chosen()
    with tc.target("cpu", "sm_80"):
        seen.append(targets.target_key())
    monkeypatch.setenv(targets.ARCH_VARIABLE, "sm_80")
    seen.append(targets.target_key())
    monkeypatch.setenv(targets.TARGET_VARIABLE, "cpu")
    seen.append(targets.target_key())
    assert not targets.gpu_chosen()
    assert len(set(seen)) == len(seen)
    monkeypatch.delenv(targets.TARGET_VARIABLE)
    monkeypatch.delenv(targets.ARCH_VARIABLE)
    assert targets.target_key() == seen[0]


def test_launches_are_prepared_where_there_is_no_gpu():
    @tc.kernel
    def filled(value: tc.Const, x: tc.Array, twice: tc.Const = False):
        x[tc.threadIdx.x] = value * (2 if twice else 1)

    x, y = np.zeros(32, np.float32), np.zeros(32, np.int32)
    with tc.target("cpu"):
        handle = filled[1, 32].prepare(3, x, twice=True)
        assert not x.any()
        handle(x)
        handle(y)
        with pytest.raises(tc.ArgumentError, match=r"prepared for 1 arguments \(x\), 2 were given"):
            handle(x, y)
    assert (x == 6).all() and (y == 6).all()


@tc.kernel
def total(*arguments, times: tc.Const = 1):
    first, *others = arguments
    for x in others:
        first[tc.threadIdx.x] += x[tc.threadIdx.x] * times if hasattr(x, "shape") else x


def test_kernels_of_any_arguments():
    x, y = np.zeros(32, np.float32), np.arange(32, dtype=np.float32)
    with tc.target("cpu"):
        total.with_arguments("x", "y")[1, 32](x, y)
        assert np.array_equal(x, y)
        total.with_arguments("x", "y", "z")[1, 32](x, y=y, z=1.0, times=3)
        assert np.array_equal(x, 4 * y + 1)
    assert "x_shape0" in total.with_arguments("x", "y").ir(x, y, arch="sm_80")


def test_one_kernel_for_each_choice_of_names():
    assert total.with_arguments("x", "y") is total.with_arguments("x", "y")
    assert total.with_arguments("x", "z").runtime_names == ["x", "z"]
    assert total.with_arguments("x", "y").runtime_names == ["x", "y"]
    of_module = with_epilogue_args.with_arguments("x", "d")
    assert pickle.loads(pickle.dumps(of_module)) is of_module


@pytest.mark.parametrize(
    "launch, message",
    [
        (lambda: total[1, 32](X, X), r"total has a parameter \*arguments: name its arguments"),
        (lambda: total.with_arguments("x", "x"), "total cannot have the parameters"),
        (lambda: total.with_arguments("times"), "total cannot have the parameters"),
        (lambda: total.with_arguments("x", "z")[1, 32](X), "argument 'z' is missing"),
    ],
)
def test_names_that_do_not_fit_the_arguments(launch, message):
    with pytest.raises(tc.ArgumentError, match=message), tc.target("cpu"):
        launch()


@tc.kernel
def adds_many(x: tc.Array, n: tc.Const):
    for i in tc.static_range(n):
        x[tc.threadIdx.x] += float(i)


def test_little_of_many_specialisations_is_kept(monkeypatch):
    """Programs and IR of those that were used last; the others are made again."""
    module = sys.modules["tensorcore_dsl.kernel.specialisation"]
    monkeypatch.setattr(module, "MAX_KEPT", 4)
    # Each use drops one at most: those that earlier tests have used would be dropped first.
    monkeypatch.setattr(module, "_kept", weakref.WeakKeyDictionary())

    def result(n: int) -> int:
        x = np.zeros(32, np.float32)
        adds_many.emulate[1, 32](x, n)
        return int(x[7])

    def kept() -> list[int]:
        gc.collect()
        known = adds_many._specialisations.values()
        return [s.constants["n"] for s in known if {"ir", "program"} & {*vars(s)}]

    text = adds_many.ir(np.zeros(32, np.float32), 3)
    assert [result(n) for n in range(12)] == [n * (n - 1) // 2 for n in range(12)]
    assert kept() == [8, 9, 10, 11]
    alive = [p for p in PROGRAMS.values() if p.kernel.name == "adds_many"]
    assert len(alive) == 4
    assert result(8) == 28 and result(3) == 3  # which takes the place of 9
    assert kept() == [3, 8, 10, 11]
    assert adds_many.ir(np.zeros(32, np.float32), 3) == text


@pytest.mark.parametrize("grid", [0, (4, 0), (1, 1, 0)])
def test_launches_without_blocks_do_nothing(grid):
    x = fresh()
    with tc.target("cpu"):
        fill[grid, 32](x, 1)
        fill[grid, 32].prepare(x, 1)(x, 1)
        fill.configured(grid, 32, cluster=1, cooperative=True)(x, 1)
    for options in ({"order": 3}, {"profile": True}, {"timeline": True}, {"trace": "i"}):
        report = fill.emulator("sm_90a", **options)[grid, 32](x, 1)
        assert report.timeline is None and not report.bytes and str(report)
    result = fill.check(grid, 32)(x, 1)
    assert result and not result.arguments["x"].any() and str(result)
    exploration = fill.explore(5)[grid, 32](x, 1)
    assert exploration and str(exploration)
    assert not x.any()
    with tc.target("cpu"), pytest.raises(tc.ArgumentError, match="'value' is missing"):
        fill[grid, 32](x)


def test_launches_say_what_they_launch():
    assert repr(fill[2, 8]) == (
        "<launch of kernel fill(x: Array, value: f32, count: Const = 4): grid=(2, 1, 1), block=(8, 1, 1)>"
    )
    stated = repr(fill.configured(2, 8, stream=7, shared_bytes=64, cluster=2, pdl=True))
    assert stated.endswith("shared_bytes=64, cluster=(2, 1, 1), pdl=True, stream=7>")
    tuned = tc.autotune([tc.Config(block=32)], remember=False)(fill)
    assert repr(tuned.configured(3)).endswith("count: Const = 4), 1 configuration: grid=3>")


def test_help_of_autotuned_kernels():
    text = pydoc.plain(pydoc.render_doc(tc.autotune([tc.Config(grid=1)])(fill)))
    assert "class fill(Autotuned)" in text and "Writes `value` to the first elements." in text
    assert f"fill{inspect.signature(fill.function)}" in text and "forget(self)" in text
