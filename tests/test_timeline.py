"""Estimated timelines of emulated runs: what is recorded, what costs time, and how it is written."""

import json
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl.errors import ArgumentError
from tensorcore_dsl.interpreter.timeline import trace
from tensorcore_dsl.interpreter.timeline.costs import SM_90A, Figure
from tensorcore_dsl.interpreter.timeline.recording import Arrive, BulkLoad, Wait
from tensorcore_dsl.kernels.hopper.config import HopperConfig
from tensorcore_dsl.kernels.host.planning import plan

DEPTH = 16  # tiles of the copy kernels


@tc.kernel
def strided(x: tc.Array, out: tc.Array, stride: tc.Const = 1):
    """Each lane reads a word of shared memory, `stride` words from the next lane's."""
    tile = tc.shared(32 * 33, tc.f32)
    t = tc.threadIdx.x
    for i in tc.range(t, 32 * 33, 32):
        tile[i] = x[i]
    tc.barrier()
    total = 0.0
    for i in tc.range(64):
        total += tile[(t * stride + i) % (32 * 33)]
    out[t] = total


@tc.kernel
def sums(x: tc.Array, out: tc.Array, stages: tc.Const = 2):
    """Sums of DEPTH tiles of 128 numbers, which `cp.async` copies `stages` - 1 tiles ahead."""
    tile = tc.shared((stages, 512), tc.f32)
    t = tc.threadIdx.x
    total = 0.0
    for ahead in tc.static_range(stages - 1):
        tc.cp_async(tile.at(ahead, t * 4), x.at(ahead, t * 4), 16)
        tc.cp_async_commit()
    for i in tc.range(DEPTH):
        if stages == 1:
            tc.barrier()
            tc.cp_async(tile.at(0, t * 4), x.at(i, t * 4), 16)
            tc.cp_async_commit()
            tc.cp_async_wait(0)
        else:
            tc.cp_async_wait(stages - 2)
        tc.barrier()
        if stages > 1:
            last = min(i + (stages - 1), DEPTH - 1)
            tc.cp_async(tile.at((i + (stages - 1)) % stages, t * 4), x.at(last, t * 4), 16)
            tc.cp_async_commit()
        for j in tc.static_range(4):
            total += tile[i % stages, t * 4 + j]
    out[t] = total


@tc.kernel
def handed_over(x: tc.Array, out: tc.Array):
    """Warp 0 writes a tile, and tells warp 1 by an mbarrier."""
    tile, bar = tc.shared(32, tc.f32), tc.mbarriers(1)[0]
    t = tc.threadIdx.x
    if t == 0:
        bar.init(32)
    tc.barrier()
    if tc.warp_id() == 0:
        value = x[t]
        for _ in tc.range(100):
            value = value * 0.5 + 1.0
        tile[t] = value
        bar.arrive()
    else:
        bar.wait(0)
        out[t - 32] = tile[t - 32]


def timeline_of(kernel, grid, threads, *args, blocks=True, **constants):
    report = kernel.emulator("sm_90a", timeline=blocks)[grid, threads](*args, **constants)
    return report, report.timeline


def strided_timeline(stride):
    x, out = np.ones(32 * 33, np.float32), np.zeros(32, np.float32)
    return timeline_of(strided, 1, 32, x, out, stride=stride)


def sums_timeline(stages):
    x, out = np.ones((DEPTH, 512), np.float32), np.zeros(128, np.float32)
    report, timeline = timeline_of(sums, 1, 128, x, out, stages=stages)
    np.testing.assert_array_equal(out, 4 * DEPTH)
    return report, timeline


def gemm_timeline(config, K=512, tiles=1, **named):
    M, N = config.BM * config.cluster_m * tiles, config.BN * config.cluster_n
    dtype = tc.bf16.numpy
    a, b, d = np.ones((M, K), dtype), np.ones((K, N), dtype, "F"), np.zeros((M, N), dtype)
    with tc.target("cpu", "sm_90a"):
        planned = plan(a, b, None, d, family="sm90", config=config)
        grid = config.cluster_size
        run = planned.kernel.emulator("sm_90a", timeline=True, **named)[grid, config.threads]
        report = run(a, b, d, d, 1.0, 0.0, **dict(planned.options))
    assert (d.astype(np.float32) == K).all()
    return report, report.timeline.assuming(resident=1, sms=132, from_dram=0.1, cold=0.1)


@pytest.fixture(scope="module")
def gemm():
    return gemm_timeline(HopperConfig(64, 64, stages=4))


# -- what is recorded ----------------------------------------------------------------------------


@pytest.mark.parametrize("stages", [1, 3])
def test_the_bytes_are_those_of_the_report(stages):
    report, timeline = sums_timeline(stages)
    assert timeline.recording.bytes == report.bytes


def test_the_bytes_of_asynchronous_units_too(gemm):
    report, timeline = gemm
    assert timeline.recording.bytes == report.bytes
    copied = sum(d.bytes for e in timeline.recording.entries for d in e.details if isinstance(d, BulkLoad))
    assert copied == (64 + 64) * 512 * 2


@pytest.mark.parametrize("order", [0, 1, 2])
def test_other_orders_of_warps_end_too(order):
    """Warps that wait for others of their warpgroup have not executed the product yet."""
    _, timeline = gemm_timeline(HopperConfig(128, 64, stages=3), order=order)
    assert all(len(w.steps) == w.position for w in timeline.replay.warps)
    assert timeline.recording.multiplications() == 128 * 64 * 512


def test_only_the_first_blocks_are_recorded():
    x, out = np.ones((8, 32 * 33), np.float32), np.zeros((8, 32), np.float32)

    @tc.kernel
    def copied(x: tc.Array, out: tc.Array):
        out[tc.blockIdx.x, tc.threadIdx.x] = x[tc.blockIdx.x, tc.threadIdx.x]

    report, timeline = timeline_of(copied, 8, 32, x, out, blocks=2)
    assert (timeline.recording.ctas, timeline.recording.grid) == (2, 8)
    assert 4 * timeline.recording.bytes["global", "load"] == report.bytes["global", "load"]
    assert np.array_equal(out, x[:, :32])


def test_each_wait_has_somebody_who_arrives(gemm):
    _, timeline = gemm
    details = [d for e in timeline.recording.entries for d in e.details]
    ended = {d.phase for d in details if isinstance(d, (Arrive, BulkLoad))}
    waits = {d.phase for d in details if isinstance(d, Wait) if d.phase[3] >= 0}
    assert waits and waits <= ended


def test_results_and_counts_do_not_change():
    plain = strided.emulator("sm_90a")[1, 32](
        np.ones(32 * 33, np.float32), np.zeros(32, np.float32), stride=1
    )
    report, _ = strided_timeline(1)
    assert report.instructions == plain.instructions and report.bytes == plain.bytes
    assert plain.timeline is None


# -- what costs time -----------------------------------------------------------------------------


def test_bank_conflicts_cost_time():
    """With a stride of 32 words all lanes use one bank: 32 passes a load instead of one."""
    free, conflicts = (strided_timeline(stride)[1] for stride in (33, 32))
    more = conflicts.replay.sms[0].shared.busy - free.replay.sms[0].shared.busy
    assert more == 64 * 31
    assert conflicts.cta_cycles > free.cta_cycles + 1000


def test_a_pipeline_is_faster_than_its_twin():
    alone, pipelined = (sums_timeline(stages)[1].cta_cycles for stages in (1, 4))
    assert alone > 2 * pipelined


def test_more_stages_hide_more_latency():
    two, four = (gemm_timeline(HopperConfig(64, 64, stages=n))[1] for n in (2, 4))
    assert two.cta_cycles > 1.3 * four.cta_cycles


def test_the_tensor_cores_take_the_time_of_the_products(gemm):
    _, timeline = gemm
    least = 64 * 64 * 512 / SM_90A["wgmma_rate"].value
    assert timeline.replay.sms[0].product_cycles == pytest.approx(least)
    assert timeline.recording.multiplications() == 64 * 64 * 512
    assert timeline.cta_cycles > least


def test_resident_blocks_share_the_units():
    _, alone = strided_timeline(1)
    several = alone.assuming(resident=4)
    assert alone.cta_cycles < several.cta_cycles < 4 * alone.cta_cycles
    assert len(several.replay.warps) == 4


def test_a_cluster_loads_less():
    _, alone = gemm_timeline(HopperConfig(64, 64, stages=4))
    _, pair = gemm_timeline(HopperConfig(64, 64, stages=4, cluster_m=2))
    assert pair.recording.ctas == 2
    per_block = pair.recording.bytes["global", "load"] / 2
    assert per_block == 0.75 * alone.recording.bytes["global", "load"]


def test_waves_of_a_large_grid(gemm):
    _, timeline = gemm
    recording = timeline.recording
    assert timeline.waves == 1
    try:
        recording.grid = 2 * 132 + 1
        assert timeline.waves == 3
        assert timeline.cycles > 3 * timeline.cta_cycles
    finally:
        recording.grid = 1


def test_the_clock_falls_at_the_power_limit(gemm):
    _, timeline = gemm
    assert timeline.seconds == pytest.approx(timeline.cycles / SM_90A["clock"].value)
    assert timeline.energy > 0


# -- text, trace and picture ---------------------------------------------------------------------


def test_the_text_names_the_line_and_who_is_awaited():
    x, out = np.ones(32, np.float32), np.zeros(32, np.float32)
    _, timeline = timeline_of(handed_over, 1, 64, x, out)
    text = str(timeline)
    assert "an estimate for sm_90a, not a measurement" in text
    source = Path(__file__).read_text().splitlines()
    match = re.search(
        r"warp 1: .*\n.*wait at an mbarrier of test_timeline.py:(\d+) for warp 0, "
        r"at test_timeline.py:(\d+)",
        text,
    )
    assert match, text
    assert "bar.init(32)" in source[int(match[1]) - 1]
    assert "bar.wait(0)" in source[int(match[2]) - 1]


def test_waits_refer_to_lines_of_the_source(gemm):
    _, timeline = gemm
    steps = timeline.recording.steps
    waits = [s for w in timeline.replay.warps for s in w.segments if s.state == "wait"]
    lines = {steps[s.at].loc for s in waits}
    assert lines and all(loc.filename.endswith(".py") and loc.line > 0 for loc in lines)


def test_a_warp_does_one_thing_at_a_time(gemm):
    _, timeline = gemm
    for warp in timeline.replay.warps:
        for before, after in pairwise(warp.segments):
            assert before.end <= after.start + 1e-6
        spent = sum(warp.spent.values())
        assert spent == pytest.approx(warp.time)


def test_the_trace_is_what_perfetto_opens(gemm, tmp_path):
    _, timeline = gemm
    path = tmp_path / "gemm.json"
    timeline.save(path)
    document = json.loads(path.read_text())
    assert document["otherData"]["note"].startswith("an estimate")
    events = document["traceEvents"]
    assert {e["ph"] for e in events} == {"M", "X", "b", "e", "C"}
    tracks = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {"warp 0", "warp 4", "tensor cores"} <= tracks
    end = timeline.cta_cycles / SM_90A["clock"].value * 1e6
    for event in events:
        assert isinstance(event["pid"], int)
        if event["ph"] == "X":
            assert event["dur"] >= 0 and 0 <= event["ts"] <= end + 1e-6
    begun, ended = (sorted(e["id"] for e in events if e["ph"] == phase) for phase in ("b", "e"))
    assert begun == ended == list(range(len(timeline.replay.transfers)))


def test_the_stages_fill_up(gemm):
    _, timeline = gemm
    counts = trace.occupancy(timeline.replay)[0]
    assert [at for at, _ in counts] == sorted(at for at, _ in counts)
    assert max(loading for _, (loading, _) in counts) == 4
    assert all(0 <= loading + full <= 4 for _, (loading, full) in counts)
    assert counts[-1][1] == (0, 4)


def test_the_picture(gemm, tmp_path):
    pytest.importorskip("matplotlib")
    _, timeline = gemm
    timeline.save(tmp_path / "gemm.png")
    assert (tmp_path / "gemm.png").read_bytes().startswith(b"\x89PNG")
    above, below = timeline.plot().axes
    labels = [label.get_text() for label in above.get_yticklabels()]
    assert labels[:2] == ["warp 0", "warp 1"] and "tensor cores" in labels
    assert "estimate" in above.get_title() and "estimated cycles" in below.get_xlabel()


@pytest.mark.parametrize("name", ["t.txt", "t"])
def test_other_files_are_refused(gemm, tmp_path, name):
    with pytest.raises(ArgumentError, match="a timeline is saved as .json"):
        gemm[1].save(tmp_path / name)


@pytest.mark.parametrize("given", ["yes", 0, -1, 2.5, None])
def test_what_the_emulator_takes(given):
    with pytest.raises(ArgumentError, match="timeline is"):
        timeline_of(strided, 1, 32, np.ones(32 * 33, np.float32), np.zeros(32, np.float32), blocks=given)


@pytest.mark.parametrize("named", [{"resident": 0}, {"sms": 1.5}, {"from_dram": 2}, {"cold": -0.1}], ids=str)
def test_what_assuming_takes(gemm, named):
    with pytest.raises(ArgumentError, match="is needed"):
        gemm[1].assuming(**named)


# -- the table of costs ----------------------------------------------------------------------------


def test_every_figure_has_a_source():
    assert all(isinstance(f, Figure) and f.unit and f.source for f in SM_90A.values())
    assert all(figure.value > 0 for figure in SM_90A.values())
