"""`tc.autotune` and `tc.testing.do_bench`: what is measured, what wins, what is remembered."""

from __future__ import annotations

import inspect
import json
import math
import struct
import warnings
from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl.environment.json_store import read_again
from tensorcore_dsl.runtime.trials import FINALISTS, ROUNDS
from tensorcore_dsl.tuning import memory
from tests.fake_gpu import FakeGpu, OnGpu
from tests.running import ASSEMBLES

needs_assembler = pytest.mark.skipif(not ASSEMBLES, reason="needs numba-cuda")
CONFIGS = [tc.Config(BLOCK=block) for block in (32, 64, 128)]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORCORE_DSL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("TENSORCORE_DSL_TARGET", raising=False)
    read_again()
    yield tmp_path / "cache" / memory.STORE.filename
    read_again()


@tc.kernel
def scale(x: tc.Array, y: tc.Array, n, BLOCK: tc.Const, factor: tc.Const = 2):
    """y = factor x"""
    i = tc.blockIdx.x * BLOCK + tc.threadIdx.x
    if i < n:
        y[i] = factor * x[i]


def grid(meta: dict[str, Any]) -> int:
    return -(-meta["n"] // meta["BLOCK"])


def block(meta: dict[str, Any]) -> int:
    return meta["BLOCK"]


def tuned(configs: Any = CONFIGS, kernel: Any = None, **options: Any) -> Any:
    """A kernel of its own for each test: launches belong to one driver."""
    return tc.autotune(configs, **{"key": ["n"], **options})(kernel or tc.kernel(scale.function))


def arrays(n: int = 1000, dtype: Any = np.float32) -> tuple[Any, Any]:
    return np.arange(n).astype(dtype), np.zeros(n, dtype)


# -- on the CPU --------------------------------------------------------------------------------


def test_the_cpu_takes_the_first_configuration():
    asked = []
    kernel = tuned()
    x, y = arrays()

    def seen(meta: dict[str, Any]) -> int:
        asked.append(meta)
        return grid(meta)

    with tc.target("cpu"):
        assert kernel.best_config is None
        kernel[seen, block](x, y, 1000)
        assert np.array_equal(y, 2 * x)
        assert kernel.best_config == tc.Config(BLOCK=32) and not kernel.cache
        kernel[seen, block](x, y, n=1000, factor=3)
        assert np.array_equal(y, 3 * x)
    assert asked[0]["x"] is x and {n: asked[0][n] for n in ("n", "BLOCK", "factor")} == {
        "n": 1000,
        "BLOCK": 32,
        "factor": 2,
    }


def test_pruning_comes_before():
    def large(configs: list[Any], arguments: dict[str, Any]) -> list[Any]:
        assert arguments["n"] == 1000 and arguments["factor"] == 2
        return [config for config in configs if config["BLOCK"] > 32]

    x, y = arrays()
    kernel = tuned(prune=large)
    with tc.target("cpu"):
        kernel[grid, block](x, y, 1000)
        assert kernel.best_config == tc.Config(BLOCK=64) and np.array_equal(y, 2 * x)
        with pytest.raises(tc.ArgumentError, match="prune left none of the configurations"):
            tuned(prune=lambda configs, arguments: [])[grid, block](x, y, 1000)
        with pytest.raises(tc.ArgumentError, match=r"prune returned Config\(BLOCK=7\), which is not among"):
            tuned(prune=lambda configs, arguments: [tc.Config(BLOCK=7)])[grid, block](x, y, 1000)


def test_emulation_runs_the_kernel():
    kernel = tuned()
    x, y = arrays()
    assert kernel.emulate[grid, block](x, y, 1000) is not None and np.array_equal(y, 2 * x)
    kernel.emulator("sm_80", profile=True)[grid, block](x, y, 1000, factor=5)
    assert np.array_equal(y, 5 * x)


def test_check_and_explore_run_the_kernel_on_copies():
    kernel = tuned()
    x, y = arrays()
    result = kernel.check(grid, block)(x, y, 1000, factor=7)
    assert result and np.array_equal(result.arguments["y"], 7 * x) and not y.any()
    assert kernel.explore(4)[grid, block](x, y, 1000)
    with pytest.raises(tc.ArgumentError, match="is not a seed"):
        kernel.check(grid, block, order=-1)(x, y, 1000)


def test_a_prepared_launch_runs_the_kernel():
    x, y = arrays()
    with tc.target("cpu"):
        tuned()[grid, block].prepare(x, y, 1000)(x, y, 1000)
    assert np.array_equal(y, 2 * x)


def test_text_is_that_of_the_first_configuration():
    kernel = tuned()
    x, y = arrays()
    assert kernel.ptx(x, y, 1000, arch="sm_80") == scale.ptx(x, y, 1000, BLOCK=32, arch="sm_80")
    types = tc.ArrayType(tc.f32, 1, (True,), 16)
    assert kernel.ir(types, types, tc.s32, arch="sm_80") == scale.ir(x, y, 1000, BLOCK=32, arch="sm_80")


@needs_assembler
def test_machine_code_and_resources():
    x, y = arrays()
    kernel = tuned([tc.Config(BLOCK=32, max_registers=24), tc.Config(BLOCK=64)])
    assert ".maxnreg 24" in kernel.ptx(x, y, 1000, arch="sm_80")
    assert kernel.cubin(x, y, 1000, arch="sm_80")[:4] == b"\x7fELF"
    assert kernel.resources(x, y, 1000, arch="sm_80").registers <= 24
    assert kernel.variant(kernel.configs[0]) is kernel.variant(kernel.configs[0])
    assert kernel.variant(kernel.configs[1]) is kernel.kernel and scale.max_registers is None


def test_configurations_may_bring_grid_and_block():
    kernel = tuned([tc.Config({"BLOCK": 64}, grid=grid, block=64)])
    x, y = arrays()
    with tc.target("cpu"):
        kernel(x, y, 1000)
        assert np.array_equal(y, 2 * x)
        y[:] = 0
        kernel[None, None](x, y, 1000)
        assert np.array_equal(y, 2 * x)
        y[:] = 0
        kernel.configured(grid=1, block=1024)(x, y, 1000)  # the configuration's are taken
        assert np.array_equal(y, 2 * x)


def test_a_kernel_may_be_called_by_kernels():
    kernel = tuned()

    @tc.kernel
    def outer(x: tc.Array, y: tc.Array, n):
        kernel(x, y, n, 32, 7)

    x, y = arrays(20)
    outer.emulate[1, 32](x, y, 20)
    assert np.array_equal(y, 7 * x)


# -- a timer of one's own ----------------------------------------------------------------------


class Stopwatch:
    """A timer that returns seconds by configuration, which the launch's grid tells."""

    def __init__(self, seconds: Any) -> None:
        self.seconds, self.asked = seconds, []

    def __call__(self, launch: Any) -> float:
        launch()
        made = launch.func
        self.asked.append(made.config.block[0])
        return self.seconds(made.config.block[0])


def test_a_timer_measures_on_the_cpu_too():
    clock = Stopwatch(lambda block: 1e-3 * abs(block - 60))
    kernel = tuned(timer=clock)
    x, y = arrays()
    with tc.target("cpu"):
        kernel[grid, block](x, y, 1000)
        assert kernel.best_config == tc.Config(BLOCK=64) and np.array_equal(y, 2 * x)
        assert clock.asked == [32, 64, 128, *[64, 32, 128] * ROUNDS]
        kernel[grid, block](x, y, 1000)
        assert len(clock.asked) == 3 + 3 * ROUNDS, "it is measured once"
        (found,) = kernel.cache.values()
        assert [t.config["BLOCK"] for t in found.trials] == [64, 32, 128] and found.seconds == 4e-3
        assert found.key == "scale(n=1000) on the CPU as sm_90a"
        assert "   4000.00 us  Config(BLOCK=64)" in str(found)


@pytest.mark.parametrize(
    "second, again",
    [
        (dict(), False),
        (dict(n=999), True),
        (dict(factor=3), True),
        (dict(dtype=np.float64), True),
        (dict(m=2000), False),
        (dict(key=["x"], m=2000), True),
        (dict(key=["x"]), False),
        (dict(key=["factor", "n"], factor=2.0), True),
        (dict(block=32), True),
    ],
)
def test_what_is_measured_again(second, again):
    second = dict(second)
    clock = Stopwatch(lambda block: float(block))
    kernel = tuned([tc.Config(BLOCK=32)], timer=clock, key=second.pop("key", ["n"]))
    with tc.target("cpu"):
        kernel[grid, block](*arrays(), 1000)
        x, y = arrays(second.pop("m", 1000), second.pop("dtype", np.float32))
        launch = kernel[grid, second.pop("block", block)]
        launch(x, y, **{"n": 1000, **second})
    assert len(clock.asked) == 1 + again


def test_grids_are_often_written_as_lambdas():
    clock = Stopwatch(float)
    kernel = tuned(timer=clock)
    x, y = arrays()
    with tc.target("cpu"):
        for _ in range(3):
            kernel[lambda meta: grid(meta), lambda meta: meta["BLOCK"]](x, y, 1000)
        assert len(clock.asked) == 3 + 3 * ROUNDS and len(kernel.cache) == 1


def test_text_is_of_what_was_chosen():
    kernel = tuned(timer=Stopwatch(lambda block: 1 / block))
    x, y = arrays()
    with tc.target("cpu"):
        kernel[grid, block](x, y, 1000)
        assert kernel.best_config == tc.Config(BLOCK=128)
        assert kernel.ptx(x, y, 1000) == scale.ptx(x, y, 1000, BLOCK=128)
        assert kernel.ptx(x, y, 10) == scale.ptx(x, y, 10, BLOCK=32)


def test_arrays_are_as_before_when_a_kernel_reads_what_it_writes():
    @tc.autotune(
        CONFIGS,
        restore_value=["x"],
        reset_to_zero=["total"],
        timer=lambda launch: [launch() for _ in "123"] and 1.0,
    )
    @tc.kernel
    def accumulate(x: tc.Array, total: tc.Array, BLOCK: tc.Const):
        if tc.threadIdx.x == 0:
            x[0] += 1
            total[0] += 1

    x, total = np.full(4, 5.0, np.float32), np.zeros(8, np.float32)[::2]
    total.base[1] = 9
    with tc.target("cpu"):
        accumulate[1, 32](x, total)
    assert x.tolist() == [6, 5, 5, 5] and total.tolist() == [1, 0, 0, 0] and total.base[1] == 9


def test_launches_can_be_tuned_alone():
    kernel = tuned(timer=lambda launch: launch() or 1.0, restore_value=["y"])
    x, y = arrays()
    with tc.target("cpu"):
        tuning = kernel[grid, block].tune(x, y, 1000)
        assert tuning is kernel[grid, block].tune(x, y, 1000) and not y.any()
        assert isinstance(tuning, tc.Tuning) and kernel.best_config == tuning.best
    with tc.target("cpu"), pytest.raises(tc.ArgumentError, match="tuning measures on a GPU"):
        tuned()[grid, block].tune(*arrays(), 1000)


# -- what fails --------------------------------------------------------------------------------


@tc.kernel
def choosy(x: tc.Array, SIZE: tc.Const):
    assert SIZE != 3, "three is not possible"
    tile = tc.shared(SIZE, tc.f32)
    tile[0] = 1.0
    x[0] = tile[0]


def test_configurations_that_fail_are_left_out():
    kernel = tc.autotune(
        [tc.Config(SIZE=10**6), tc.Config(SIZE=3), tc.Config(SIZE=64), tc.Config(SIZE=64, block=2000)],
        timer=lambda launch: launch() or 1.0,
    )(choosy)
    x = np.zeros(1, np.float32)
    with tc.target("cpu"):
        kernel[1, 1](x)
        tuning = kernel[1, 1].tune(x)
    assert x[0] == 1 and tuning.best == tc.Config(SIZE=64)
    failures = {t.config: t.failure for t in tuning.trials if t.failure}
    assert "4000000 bytes of shared memory" in failures[tc.Config(SIZE=10**6)]
    assert "three is not possible" in failures[tc.Config(SIZE=3)]
    assert "block is (2000, 1, 1)" in failures[tc.Config(SIZE=64, block=2000)]
    assert "failed  Config(SIZE=3): " in str(tuning)


@pytest.mark.parametrize("option", ["restore_value", "reset_to_zero"])
def test_numbers_are_not_restored(option):
    kernel = tuned(timer=lambda launch: 1.0, **{option: ["n"]})
    with (
        tc.target("cpu"),
        pytest.raises(tc.ArgumentError, match=f"{option} names 'n', which is not an array but 1000"),
    ):
        kernel[grid, block](*arrays(), 1000)


def test_if_nothing_runs_the_reasons_are_told():
    kernel = tc.autotune([tc.Config(SIZE=10**6), tc.Config(SIZE=3)], timer=lambda launch: launch() or 1.0)(
        choosy
    )
    with tc.target("cpu"), pytest.raises(tc.ArgumentError) as caught:
        kernel[1, 1](np.zeros(1, np.float32))
    text = str(caught.value)
    assert text.startswith(
        "choosy: no configuration runs:\n  Config(SIZE=1000000): ArgumentError: choosy takes"
    )
    assert "three is not possible" in text
    assert isinstance(caught.value.__cause__, tc.TensorCoreError)


def test_wrong_arguments_are_no_failures_of_configurations():
    kernel = tuned(timer=lambda launch: 1 / 0)
    with tc.target("cpu"):
        for args, named, message in (
            ((1,), {}, "argument 'y' is missing"),
            (("x", "y", 3), {}, "argument 'x' is a str"),
            ((*arrays(), 1000), {"BLOCK": 3}, "'BLOCK' is chosen by the configurations; scale.kernel takes"),
            (
                (*arrays(), 1000),
                {"bogus": 3},
                "argument 'bogus' is unknown; the parameters are x, y, n, factor",
            ),
        ):
            with pytest.raises(tc.ArgumentError, match=message):
                kernel[grid, block](*args, **named)


@pytest.mark.parametrize(
    "configs, options, message",
    [
        ([], {}, "at least one configuration"),
        ([{"BLOCK": 3}], {}, r"a configuration is a tc.Config, not \{'BLOCK': 3\}"),
        (
            [tc.Config(BLOK=3)],
            {},
            "give Const parameters, and 'BLOK' is none; the kernel's are BLOCK, factor",
        ),
        ([tc.Config(n=3)], {}, "'n' is none"),
        ([tc.Config(BLOCK=3), tc.Config(factor=3)], {}, r"Config\(BLOCK=3\) lacks factor, which other"),
        (CONFIGS, {"key": ["N"]}, "key names 'N', which is not among x, y, n, factor"),
        (CONFIGS, {"key": ["BLOCK"]}, "key names 'BLOCK'"),
        (CONFIGS, {"key": "n"}, "lists of names"),
        (CONFIGS, {"restore_value": ["z"]}, "restore_value names 'z', which is not among x, y, n"),
        (CONFIGS, {"reset_to_zero": ["factor"]}, "reset_to_zero names 'factor'"),
    ],
)
def test_what_cannot_be_tuned(configs, options, message):
    with pytest.raises(tc.ArgumentError, match=message):
        tuned(configs, **options)


def test_other_refusals():
    with pytest.raises(tc.ArgumentError, match="it stands above @tc.kernel"):
        tc.autotune(CONFIGS)(lambda x: x)
    with pytest.raises(tc.ArgumentError, match="gives BLOCK twice"):
        tc.Config({"BLOCK": 1}, BLOCK=2)
    with pytest.raises(tc.ArgumentError, match="by name or in a dict; 3 was given"):
        tc.Config(3)  # type: ignore[arg-type]
    with pytest.raises(tc.ArgumentError, match=r"Config\(BLOCK=32\) gives no grid either"):
        tuned()(*arrays(), 1000)
    with pytest.raises(tc.ArgumentError, match="takes 2 to 4 values, 3 was given"):
        tuned()[3]
    with pytest.raises(tc.LaunchError, match="block is"):
        tuned()[1, 5000]
    with (
        tc.target("cpu"),
        pytest.raises(tc.LaunchError, match="grid is 'all'; it must be one to three integers"),
    ):
        tuned()[lambda meta: "all", 32](*arrays(), 1000)


def test_configurations_compare_by_what_they_say():
    def same(meta: Any) -> int:
        return 1

    assert tc.Config(A=1, B=2) == tc.Config({"B": 2}, A=1) and hash(tc.Config(A=[1])) == hash(
        tc.Config(A=[1])
    )
    assert tc.Config(A=1) != tc.Config(A=1.0) and tc.Config(A=1) != tc.Config(A=1, block=32)
    assert repr(tc.Config(A=tc.f16, grid=same)) == "Config(A=f16, grid=same)"
    assert len(tuned([tc.Config(BLOCK=1), tc.Config(BLOCK=1)]).configs) == 1


# -- on disk -----------------------------------------------------------------------------------


def test_results_are_remembered(cache):
    x, y = arrays()

    def run(key: Any = ("n",), n: int = 1000, configs: Any = CONFIGS, **options: Any) -> list[int]:
        read_again()  # as in another process
        clock = Stopwatch(lambda block: 1.0 / block)
        kernel = tuned(configs, timer=clock, key=key, **options)
        with tc.target("cpu"):
            kernel[grid, block](x, y, n)
        assert kernel.best_config == configs[-1]
        return clock.asked

    assert len(run()) == 3 * (1 + ROUNDS) and cache.exists()
    assert run() == []
    assert run(n=999) != [] and run(n=999) == []
    assert run(configs=CONFIGS[:2]) != [] and run() == []
    assert run(remember=False) != []
    (entry, *_) = json.loads(cache.read_text()).values()
    assert entry["kernel"] == f"{__name__}.scale" and entry["device"] == "the CPU as sm_90a"
    tuned().forget()
    assert json.loads(cache.read_text()) == {} and run() != []
    damaged = json.loads(cache.read_text())
    for entry in damaged.values():
        entry["trials"][0]["config"] = 17
    cache.write_text(json.dumps(damaged))
    assert run() != []


def test_another_body_is_measured_again():
    def with_body(factor: int) -> Any:
        @tc.kernel
        def body(x: tc.Array, BLOCK: tc.Const):
            x[tc.threadIdx.x] = factor

        return body

    asked: list[int] = []
    for factor in (1, 2, 1):
        read_again()
        timer = lambda launch: asked.append(factor) or 1.0
        with tc.target("cpu"):
            tuned([tc.Config(BLOCK=32)], with_body(factor), timer=timer, key=[])[1, 32](
                np.zeros(32, np.float32)
            )
    assert asked == [1, 2]


def test_without_a_cache_results_last_as_long_as_the_process(monkeypatch, cache):
    monkeypatch.setenv("TENSORCORE_DSL_CACHE", "off")
    clock = Stopwatch(float)
    kernel = tuned(timer=clock)
    with tc.target("cpu"):
        kernel[grid, block](*arrays(), 1000)
        count = len(clock.asked)
        kernel[grid, block](*arrays(), 1000)
    assert len(clock.asked) == count and not cache.exists()


# -- on a GPU (a stand-in) ---------------------------------------------------------------------


@pytest.fixture
def gpu(monkeypatch):
    return FakeGpu(duration=lambda record: 1e-3).of_the_machine(monkeypatch)


def on_gpu(n: int = 1000) -> tuple[Any, Any]:
    return tuple(OnGpu(array) for array in arrays(n))


@needs_assembler
def test_the_gpu_measures(gpu, cache):
    gpu.duration = lambda record: 1e-3 * abs(record.block[0] - 60)
    kernel = tuned(warmup=5, rep=20)
    x, y = on_gpu()
    launch = kernel[grid, block]
    launch(x, y, 1000)
    assert kernel.best_config == tc.Config(BLOCK=64)
    assert gpu.records[-1].grid == (16, 1, 1) and gpu.records[-1].block == (64, 1, 1)
    (found,) = kernel.cache.values()
    assert found.key == "scale(n=1000) on FAKE GPU"
    assert [round(t.seconds * 1e3) for t in found.trials] == [4, 28, 68]
    tried = {record.block[0] for record in gpu.records}
    assert tried == {32, 64, 128}
    count = len(gpu.records)
    launch(x, y, 1000)
    assert len(gpu.records) == count + 1
    read_again()
    again = tuned(warmup=5, rep=20)
    again[grid, block](x, y, 1000)
    assert again.best_config == tc.Config(BLOCK=64) and len(gpu.records) == count + 2
    handle = again[grid, block].prepare(x, y, 1000)
    handle(x, y, 1000)
    assert gpu.records[-1].block == (64, 1, 1)
    gpu.device_names = ("ANOTHER GPU",)
    read_again()
    tuned(warmup=5, rep=20)[grid, block](x, y, 1000)
    assert len(gpu.records) > count + 4


@needs_assembler
def test_what_the_driver_refuses_is_left_out(gpu):
    def most(record: Any) -> float:
        if record.block[0] == 128:
            raise AssertionError("never launched")
        return 1e-3

    gpu.duration, gpu.max_threads = most, 64
    kernel = tuned(warmup=1, rep=1)
    kernel[grid, block](*on_gpu(), 1000)
    (found,) = kernel.cache.values()
    assert len(found.trials) == 3 and "a block of 128 threads is too large" in found.trials[-1].failure


@needs_assembler
def test_a_gpu_that_fails_ends_the_tuning(gpu, monkeypatch):
    class Lost(Exception):
        pass

    def lost(start: Any, end: Any) -> float:
        raise Lost("[700] CUDA_ERROR_ILLEGAL_ADDRESS")

    monkeypatch.setattr(gpu, "seconds_between", lost, raising=False)
    with pytest.raises(tc.LaunchError, match=r"with \{'factor': 2, 'BLOCK': 32\}: \[700\]"):
        tuned()[grid, block](*on_gpu(), 1000)


def strided() -> Any:
    base = np.arange(16, dtype=np.float32)
    return base, base[15::-2]


@needs_assembler
@pytest.mark.parametrize("contiguous", [True, False])
def test_arrays_of_a_gpu_are_restored(gpu, contiguous):
    """Before each launch, and after the last that is measured."""
    base, view = strided()
    x = np.arange(8, dtype=np.float32) if contiguous else view
    total = np.zeros(8, np.float32) if contiguous else strided()[1]
    total_base = total if contiguous else total.base
    before, seen = x.copy(), []

    def body(parameters: bytes) -> None:
        assert np.array_equal(x, before)
        seen.append(float(total.sum()))
        x[...] += 1
        total[...] += 1

    gpu.kernel = body

    @tc.autotune(CONFIGS, restore_value=["x"], reset_to_zero=["total"], warmup=1, rep=3)
    @tc.kernel
    def accumulate(x: tc.Array, total: tc.Array, BLOCK: tc.Const):
        x[tc.threadIdx.x] += total[0]

    others = total_base.copy()
    accumulate[1, 32](OnGpu(x), OnGpu(total))
    assert len(seen) > 20 and set(seen) == {0.0}
    assert np.array_equal(x, before + 1) and (total == 1).all()
    if not contiguous:
        assert np.array_equal(base[0::2], np.arange(0, 16, 2)) and np.array_equal(
            total_base[0::2], others[0::2]
        )


@needs_assembler
def test_numpy_arrays_are_copied_once_for_all_launches(gpu):
    x, y = arrays()

    def body(parameters: bytes) -> None:
        assert struct.unpack_from("Q", parameters)[0] != x.ctypes.data

    gpu.kernel = body
    kernel = tuned(warmup=1, rep=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kernel[grid, block](x, y, 1000)
    launches = len(gpu.records)
    assert launches > 30 and len(gpu.allocations) < launches / 2


@needs_assembler
def test_captured_launches_are_not_measured(gpu):
    gpu.captured = (7,)
    kernel = tuned(warmup=0, rep=1)
    with pytest.raises(
        tc.ArgumentError, match="scale is tuned at its first launch, and a CUDA graph captures this"
    ):
        kernel[grid, block, 7](*on_gpu(), 1000)
    assert not gpu.records and not kernel.cache
    kernel[grid, block](*on_gpu(), 1000)
    count = len(gpu.records)
    kernel[grid, block, 7](*on_gpu(), 1000)
    assert len(gpu.records) == count + 1 and gpu.records[-1].stream == 7


@needs_assembler
def test_finalists_are_few(gpu):
    kernel = tuned([tc.Config(BLOCK=32 * i) for i in range(1, 9)], warmup=0, rep=1)
    kernel[grid, block](*on_gpu(), 1000)
    counts = [sum(r.block[0] == 32 * i for r in gpu.records) for i in range(1, 9)]
    assert sum(count > min(counts) for count in counts) == FINALISTS


# -- do_bench ----------------------------------------------------------------------------------


def test_launches_are_timed_one_by_one(gpu):
    durations = iter([9, 1, 1, 1, *[3, 1, 2] * 40])
    calls: list[str] = []

    def work() -> None:
        calls.append("work")
        gpu.now += next(durations) * 1e-3

    def before() -> None:
        calls.append("setup")
        gpu.now += 1.0  # is not timed

    assert tc.testing.do_bench(work, warmup=0, rep=30, setup=before) == pytest.approx(2)
    assert calls == ["setup", "work"] * (4 + 30)
    assert all(event.stream == 0 for event in gpu.events)
    assert len(gpu.allocations) == 1 and not gpu.allocations[0][255:-255].any(), "the L2 cache is flushed"


@pytest.mark.parametrize(
    "options, wanted",
    [
        ({}, 3),
        ({"return_mode": "min"}, 1),
        ({"return_mode": "max"}, 10),
        ({"return_mode": "mean"}, 4.2),
        ({"return_mode": "all"}, [10, 1, 3, 5, 2]),
        ({"quantiles": (0.5, 0, 1)}, [3, 1, 10]),
    ],
)
def test_what_do_bench_returns(gpu, options, wanted):
    durations = iter([2, 2, 2, 2, 2, 10, 1, 3, 5, 2])

    def work() -> None:
        gpu.now += next(durations) * 1e-3

    timing = tc.testing.do_bench(work, warmup=1, rep=10, cold=False, stream=7, **options)
    assert timing == pytest.approx(wanted)
    assert {event.stream for event in gpu.events} == {7} and not gpu.allocations


def test_do_bench_on_the_cpu():
    calls = []
    with tc.target("cpu"):
        time = tc.testing.do_bench(lambda: calls.append(sum(range(1000))), warmup=1, rep=5)
    assert 0 < time < 100 and len(calls) > 5 and math.isfinite(time)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"warmup": -1}, "warmup is -1; a number of at least 0"),
        ({"rep": "long"}, "rep is 'long'"),
        ({"return_mode": "mode"}, "return_mode is 'mode'; it may be median, mean, min, max, all"),
        ({"quantiles": (2,)}, "a quantile is 2; a number from 0 to 1"),
        ({"setup": 3}, "setup is 3"),
        ({"stream": "x"}, "a stream cannot be a str"),
    ],
)
def test_do_bench_refuses(gpu, options, message):
    with pytest.raises(tc.ArgumentError, match=message):
        tc.testing.do_bench(lambda: None, **options)
    with pytest.raises(tc.ArgumentError, match="function is 3"):
        tc.testing.do_bench(3)  # type: ignore[arg-type]


def test_signatures_are_the_users():
    assert list(inspect.signature(tuned()).parameters) == ["x", "y", "n", "BLOCK", "factor"]
    assert tuned().__doc__ == "y = factor x" and repr(tuned()).startswith("<autotuned scale(")


def test_launches_without_blocks_are_not_measured(cache):
    measured: list[Any] = []
    kernel = tuned(timer=lambda launch: measured.append(launch()) or 1.0)
    x, y = arrays()
    with tc.target("cpu"):
        kernel[grid, block](x, y, 0)
        kernel[grid, block].prepare(x, y, 0)(x, y, 0)
        assert not measured and not kernel.cache and not y.any()
        kernel[grid, block](x, y, 1000)
    assert measured and np.array_equal(y, 2 * x)
