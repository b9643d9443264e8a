"""Tuning: what is tried, what wins, what is remembered and where it is used. The timer is a fake."""

import io
import json
import re
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import kernels
from tensorcore_dsl.environment.json_store import read_again
from tensorcore_dsl.kernels.choosing import choice, tuning_cache
from tensorcore_dsl.kernels.choosing.menu import F64, as_loaded
from tensorcore_dsl.kernels.choosing.ranking import ranking
from tensorcore_dsl.kernels.hopper.config import HopperConfig
from tensorcore_dsl.kernels.host.planning import plan
from tensorcore_dsl.kernels.host.tuning import event_timer, hopper_candidates, tune
from tensorcore_dsl.kernels.problem.problem_shape import ProblemShape
from tensorcore_dsl.runtime import timing, trials
from tensorcore_dsl.runtime.timing import in_a_row
from tensorcore_dsl.runtime.trials import progress
from tests.fake_gpu import FakeGpu, OnGpu
from tests.whole_numbers import BF16

GPU = "NVIDIA H200"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORCORE_DSL_CACHE", str(tmp_path / "cache"))
    read_again()
    yield tmp_path / "cache" / tuning_cache.STORE.filename
    read_again()


@pytest.fixture
def hopper(monkeypatch):
    """Plans are made as for an H200."""
    monkeypatch.setattr(choice, "current_target", lambda: "cuda")
    monkeypatch.setattr(tuning_cache, "device_name", lambda: GPU)


def operands(dtype=BF16, M=512, N=256, K=128):
    return np.zeros((M, K), dtype), np.zeros((K, N), dtype, order="F")


def timer(seconds):
    """Times a launch by its configuration; all that were asked for are in `.asked`."""

    def time(launch):
        config = launch.keywords["config"]
        time.asked.append((launch.keywords["family"], config))
        return seconds(config)

    time.asked = []
    return time


def slow_but(wanted):
    """Seconds that are least for one configuration."""
    return lambda config: 1.0 + sum(vars(config)[name] != value for name, value in wanted.items())


def test_the_fastest_wins_and_plan_takes_it(hopper, cache):
    a, b = operands()
    d = np.zeros((512, 256), BF16)
    rule = plan(a, b, None, d).config
    wanted = {"BN": 32, "cluster_n": 2, "swap_ab": False}
    tuning = tune(a, b, timer=timer(slow_but(wanted)), device=GPU)
    assert {name: vars(tuning.best)[name] for name in wanted} == wanted
    assert tuning.seconds == 1.0 and tuning.best != rule
    assert tuning.key == f"bf16->bf16 512x256x128 row.col on {GPU}"
    assert plan(a, b, None, d).config == tuning.best
    read_again()  # as in a later process
    assert plan(a, b, None, d).config == tuning.best
    assert json.loads(cache.read_text())[tuning.key]["config"]["cluster_n"] == wanted["cluster_n"]
    tuning_cache.forget()
    assert plan(a, b, None, d).config == rule and not cache.exists()


def test_entries_are_for_their_problem_alone(hopper):
    a, b = operands()
    config = HopperConfig(BN=32, stages=5)
    tune(a, b, candidates=[config], timer=timer(lambda c: 1.0), device=GPU)
    d = np.zeros((512, 256), BF16)
    assert plan(a, b, None, d).config == config
    for others in (operands(M=1024), operands(N=512), operands(K=64), operands(np.float16)):
        out = np.zeros((others[0].shape[0], others[1].shape[1]), others[0].dtype)
        assert plan(*others, None, out).config != config
    assert plan(a, np.ascontiguousarray(b), None, d).config != config
    assert plan(a, b, None, np.zeros((512, 256), np.float32)).config != config
    given = HopperConfig(BN=128)
    assert plan(a, b, None, d, config=given).config == given
    assert isinstance(plan(a, b, None, d, family="sm80").config, kernels.AmpereConfig)


def test_operands_that_are_copied_have_entries_of_their_own(hopper):
    """Rows of the copy of A[::2, ::2] are contiguous, those of an A of columns are not."""
    b = np.ones((512, 2), np.float32)
    of_columns = np.ones((1024, 512), np.float32, "F")
    strided = np.ones((2048, 1024), np.float32)[::2, ::2]
    for a in (of_columns, strided):
        seconds = lambda c: 2.0 - isinstance(c, kernels.VectorConfig)
        tuning = tune(a, b, timer=timer(seconds), device=GPU)
        assert plan(a, b, None, None).config == tuning.best
        assert isinstance(tuning.best, kernels.VectorConfig)
    assert "strided" in tuning.key


def test_vectors_are_tried(hopper):
    a, b = np.ones((1, 4096), np.float32), np.ones((4096, 4096), np.float32, "F")
    for dtype, precision in ((np.float32, "f32"), (np.float32, "tf32"), (np.float64, None)):
        x, y = a.astype(dtype), b.astype(dtype)
        clock = timer(lambda c: 2.0 - isinstance(c, kernels.VectorConfig))
        best = tune(x, y, timer=clock, device=GPU, precision=precision).best
        assert (
            isinstance(best, kernels.VectorConfig)
            and plan(x, y, None, None, precision=precision).config == best
        )


def test_another_gpu_has_entries_of_its_own(hopper, monkeypatch):
    a, b = operands()
    config = HopperConfig(BN=32, stages=5)
    tune(a, b, candidates=[config], timer=timer(lambda c: 1.0), device="NVIDIA H100 PCIe")
    assert plan(a, b, None, np.zeros((512, 256), BF16)).config != config


def test_entries_are_not_for_the_cpu():
    a, b = operands(np.float16)
    config = kernels.AmpereConfig(BM=64, BN=64, BK=64, WM=32, WN=32, stages=5)
    tune(a, b, candidates=[config], timer=timer(lambda c: 1.0), device=GPU)
    with tc.target("cpu"):
        assert plan(a, b, None, np.zeros((512, 256), np.float16)).config != config


def test_mma_sync_entries_where_wgmma_cannot_go(hopper):
    a, b = operands(np.float64)
    M, K, N = *a.shape, b.shape[1]
    (_, usual), *_, (_, fastest) = ranking(ProblemShape(M, N, K, 8, out_bytes=8), (F64,))[:8]
    clock = timer(slow_but(vars(fastest)))
    tuning = tune(a, b, timer=clock, device=GPU)
    assert {family for family, _ in clock.asked} == {"sm80"}
    chosen = plan(a, b, None, np.zeros((M, N))).config
    assert chosen == tuning.best == fastest != usual


def test_row_reductions_need_wgmma(hopper):
    a, b = operands()
    d = np.zeros((512, 256), BF16)
    config = kernels.AmpereConfig(BK=64)
    tune(a, b, candidates=[config], timer=timer(lambda c: 1.0), device=GPU)
    assert plan(a, b, None, d).config == config
    assert plan(a, b, None, d, epilogue=lambda v, row, col: v).config == config
    rows = (kernels.RowReduction("sum"),)
    assert isinstance(plan(a, b, None, d, row_reductions=rows).config, HopperConfig)


def test_configurations_that_fail_are_never_the_best():
    def seconds(config):
        if config.cluster_size == 1:
            raise tc.LaunchError("too much shared memory\nand more")
        return 1.0 / config.BN

    a, b = operands()
    tuning = tune(a, b, timer=timer(seconds), device=GPU)
    assert max(t.config.BN for t in tuning.trials if not t.failure) == tuning.best.BN
    failures = [trial for trial in tuning.trials if trial.config.cluster_size == 1]
    assert {trial.failure for trial in failures} == {"LaunchError: too much shared memory"}
    with pytest.raises(tc.ArgumentError, match="no configuration runs: LaunchError: too much"):
        tune(a, b, candidates=[HopperConfig(BM=64)], timer=timer(seconds), device=GPU)
    with pytest.raises(tc.ArgumentError, match="no candidates"):
        tune(a, b, candidates=[], timer=timer(seconds), device=GPU)


def test_finalists_are_measured_in_turn():
    """A first sample may lie; medians of many do not."""
    seen = {}

    def seconds(config):
        seen[config] = seen.get(config, 0) + 1
        lucky = config.group_m == 4 and seen[config] == 1
        return 0.5 if lucky else float(config.group_m)

    candidates = [HopperConfig(group_m=group) for group in (4, 3, 2, 6, 7, 8)]
    clock = timer(seconds)
    tuning = tune(*operands(), candidates=candidates, timer=clock, device=GPU)
    assert tuning.best.group_m == 2
    assert [t.config.group_m for t in tuning.trials] == [2, 3, 4, 6, 7, 8]
    last = [config.group_m for _, config in clock.asked[len(candidates) :]]
    assert last[:4] == last[4:8] and set(last) == {4, 3, 2, 6}


def test_nothing_is_remembered_when_not_wanted(cache):
    tune(*operands(), candidates=[HopperConfig()], timer=timer(lambda c: 1.0), device=GPU, remember=False)
    assert not cache.exists() and not tuning_cache.entries()


def test_without_a_cache_only_this_process_knows(hopper, monkeypatch):
    monkeypatch.setenv("TENSORCORE_DSL_CACHE", "off")
    a, b = operands()
    config = HopperConfig(BN=32, stages=5)
    tune(a, b, candidates=[config], timer=timer(lambda c: 1.0), device=GPU)
    assert plan(a, b, None, np.zeros((512, 256), BF16)).config == config


@pytest.mark.parametrize(
    "text", ["", "[1]", "{", '{"KEY": 3}', '{"KEY": {"class": "HopperConfig", "config": {"BM": 1}}}']
)
def test_a_damaged_or_old_file_is_no_obstacle(hopper, cache, text):
    a, b = operands()
    d = np.zeros((512, 256), BF16)
    rule = plan(a, b, None, d).config
    cache.parent.mkdir(parents=True)
    cache.write_text(text.replace("KEY", f"bf16->bf16 512x256x128 row.col on {GPU}"))
    read_again()
    assert plan(a, b, None, d).config == rule
    tune(a, b, candidates=[HopperConfig()], timer=timer(lambda c: 1.0), device=GPU)
    assert list(json.loads(cache.read_text()))


def test_processes_add_to_each_others_entries(cache):
    tuning_cache.remember("one", HopperConfig(), 1.0)
    entries = json.loads(cache.read_text())
    entries["two"] = entries["one"]
    cache.write_text(json.dumps(entries))
    tuning_cache.remember("three", kernels.AmpereConfig(), 2.0)
    assert set(json.loads(cache.read_text())) == {"one", "two", "three"}
    assert tuning_cache.recall("three") == kernels.AmpereConfig()


def test_batches(hopper):
    a, b = operands()
    out = np.zeros((3, 512, 256), BF16)
    batch = np.stack([a, a, a])
    config = HopperConfig(BN=32, stages=5)
    tuning = tune(batch, b, candidates=[config], timer=timer(lambda c: 1.0), device=GPU)
    assert tuning.key == f"bf16->bf16 512x256x128 row.col batch=3 on {GPU}"
    assert plan(batch, b, None, out).config == config
    assert plan(a, b, None, out[0]).config != config != plan(batch[:2], b, None, out[:2]).config
    assert len(tune(batch, b, timer=timer(lambda c: 1.0), device=GPU, remember=False).trials) > 9


def test_wrong_arguments_are_refused():
    a, b = operands()
    with tc.target("cpu"), pytest.raises(tc.ArgumentError, match="measures on a GPU"):
        tune(a, b)
    with pytest.raises(tc.ArgumentError, match="nothing to tune"):
        tune(np.zeros((0, 4), BF16), np.zeros((4, 4), BF16), timer=timer(lambda c: 1.0))
    with pytest.raises(tc.ArgumentError, match="no f64; nor .* no batches; call gemm for each"):
        tune(np.zeros((2, 64, 64)), np.zeros((64, 64)), timer=timer(lambda c: 1.0), device=GPU)
    with pytest.raises(tc.ArgumentError, match="a's columns must be as many"):
        tune(a, a, timer=timer(lambda c: 1.0))


@pytest.mark.parametrize("b_k_major", [True, False])
@pytest.mark.parametrize("M, N", [(1, 4096), (100, 512), (4096, 4096)])
def test_candidates_fit(M, N, b_k_major):
    shape = ProblemShape(M, N, 4096, b_k_major=b_k_major)
    configs = hopper_candidates(shape)
    assert len(configs) == len(set(configs)) >= 8
    for config in configs:
        assert config.stages >= 2 and as_loaded(config.with_stages(), shape) == config
    assert replace(configs[0], BM=128, BN=256, split_k=1, k_slabs=1, pingpong=False).with_stages().stages == 4


def test_launches_in_a_row():
    """The time is divided by the launches, after some to compile and warm up."""
    now, calls = [0.0], []

    class Clock:
        def event(self):
            return {}

        def record(self, event):
            event["at"] = now[0]

        def seconds(self, start, end):
            return end["at"] - start["at"]

    def launch():
        calls.append(0)
        now[0] += 0.1 if len(calls) == 1 else 0.25e-3

    assert in_a_row(launch, Clock()) == pytest.approx(0.25e-3)
    assert len(calls) == 1 + 1 + 8


def test_operands_are_timed_where_they_are(monkeypatch):
    """By events on the stream and the GPU on which a launch with the operand runs."""
    gpu = FakeGpu(device_names=("first", "second"))
    monkeypatch.setattr(timing.driver, "cuda_driver", lambda: gpu)
    monkeypatch.setattr(timing.array_interop, "stream_of", lambda args, device: lambda: 70 + device)

    class OnSecond(OnGpu):
        device = type("Device", (), {"id": 1})

    event_timer(OnSecond(np.zeros((2, 2), np.float32)))(lambda: None)
    assert gpu.events and all(event.stream == 71 and event.device == 1 for event in gpu.events)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_bar_on_terminals_only(monkeypatch, capsys):
    """It shows what is tried and how far that is, and leaves nothing behind."""
    measured = partial(tune, *operands(), timer=timer(lambda c: c.group_m), device=GPU, remember=False)
    candidates = [HopperConfig(group_m=group) for group in (1, 2)]
    measured(candidates=candidates)
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", shown := Terminal())
    monkeypatch.setattr(trials, "DELAY", 0)
    assert measured(candidates=candidates).best.group_m == 1
    text = shown.getvalue()
    for title in ("tiles", "finalists"):
        assert re.search(rf"{title}.*100%", text), title
    assert text.endswith("\x1b[2K")  # the line is empty again


def test_a_bar_counts_what_is_done(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", shown := Terminal())
    monkeypatch.setattr(trials, "DELAY", 0)
    end = time.monotonic() + 10
    for item in progress(range(4), "tiles"):  # the bar is drawn ten times a second
        while item == 2 and not re.search("tiles.* 50%", shown.getvalue()):
            assert time.monotonic() < end
            time.sleep(0.01)


def test_a_bar_waits_until_it_is_worth_while(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", shown := Terminal())
    assert list(progress(range(4), "tiles")) == [0, 1, 2, 3]
    assert shown.getvalue() == ""
    monkeypatch.setattr(trials, "DELAY", 0.01)
    for _ in progress(range(2), "tiles"):
        time.sleep(0.2)
    assert "tiles" in shown.getvalue()
