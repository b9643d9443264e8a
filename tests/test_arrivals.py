"""Arrivals at mbarriers that order nothing (`.relaxed`), or must not end a phase (`.noComplete`)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import isa
from tensorcore_dsl.errors import ArchError, EmulationError, Race
from tensorcore_dsl.isa import classify

ARRAY = tc.ArrayType(tc.s32, 1, (True,), 16)


@tc.kernel
def hand_on(out: tc.Array, arrival: tc.Const, fence: tc.Const = ""):
    """Warp 0 writes and arrives; warp 1 waits and reads."""
    tile, bar = tc.shared(32, tc.s32), tc.mbarriers(1)[0]
    if tc.threadIdx.x == 0:
        bar.init(32)
    tc.barrier()
    if tc.warp_id() == 0:
        tile[tc.lane_id()] = 5  # one
        if fence:
            tc.emit(fence)
        tc.emit(f"mbarrier.arrive{arrival}.shared::cta.b64", bar)
    else:
        bar.wait(0)
        out[tc.lane_id()] = tile[tc.lane_id()]  # other


@tc.kernel
def across(
    data: tc.Array, out: tc.Array, fence: tc.Const, arrival: tc.Const = ".relaxed.cluster", sem: tc.Const = ""
):
    """CTA 1 of a cluster writes to global memory and arrives at the mbarrier of CTA 0."""
    tc.cluster_size(2)
    bar, rank = tc.mbarriers(1)[0], tc.cluster_rank()
    if tc.threadIdx.x == 0:
        bar.init(1)
        tc.fence_mbarrier_init()
    tc.cluster_sync()
    if tc.threadIdx.x == 0:
        if rank == 1:
            data[0] = 5
            if fence:
                tc.emit(fence)
            tc.emit(f"mbarrier.arrive{arrival}.shared::cluster.b64", bar.remote(0))
        else:
            while not tc.emit(f"mbarrier.try_wait.parity{sem}.shared::cta.b64", bar, 0):
                pass
            out[0] = data[0]
    tc.cluster_sync()


@tc.kernel
def count(out: tc.Array, first: tc.Const, second: tc.Const, drop: tc.Const = ""):
    """Lanes 0 and 1 arrive one after the other, by 3 and 5 of 8 arrivals."""
    bar = tc.mbarriers(1)[0]
    if tc.threadIdx.x == 0:
        bar.init(8)
    tc.barrier()
    if tc.threadIdx.x == 0:
        tc.emit(f"mbarrier.arrive{drop}{first}.shared::cta.b64" + ("" if first else ".count"), bar, 3)
    tc.barrier()
    if tc.threadIdx.x == 1:
        tc.emit(f"mbarrier.arrive{second}.shared::cta.b64" + ("" if second else ".count"), bar, 5)
    bar.wait(0)
    if drop:
        if tc.threadIdx.x == 2:
            bar.arrive(5)
        bar.wait(1)
    out[tc.threadIdx.x] = 1


def run(kernel, *constants, block=64):
    out = np.zeros(32, np.int32)
    kernel.emulator("sm_90a")[1, block](out, *constants)
    return out


@pytest.mark.parametrize("sem, acquires", [("", True), (".acquire.cluster", True), (".acquire.cta", False)])
@pytest.mark.parametrize(
    "arrival, releases", [("", True), (".release.cluster", True), (".release.cta", False)]
)
def test_arrival_and_wait_must_reach_each_other(arrival, releases, sem, acquires):
    """Those of cta scope do not; those without a scope count as of cluster scope."""
    data, out = np.zeros((2, 1), np.int32)
    launch = across.emulator("sm_90a")[2, 32]
    if releases and acquires:
        launch(data, out, "", arrival, sem)
        assert out[0] == 5
    else:
        with pytest.raises(Race, match="or an mbarrier, by an arrival and a wait of cluster scope"):
            launch(data, out, "", arrival, sem)


# -- relaxed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", ["cta", "cluster"])
def test_a_relaxed_arrival_hands_nothing_on(scope):
    assert (run(hand_on, f".release.{scope}") == 5).all()
    with pytest.raises(Race) as raised:
        run(hand_on, f".relaxed.{scope}")
    lines = Path(__file__).read_text().splitlines()
    assert raised.value.loc is not None and raised.value.first is not None
    assert lines[raised.value.loc.line - 1].endswith("# other")
    assert lines[raised.value.first.line - 1].endswith("# one")


@pytest.mark.parametrize("fence", ["fence.acq_rel.cta", "fence.release.cluster", "fence.sc.gpu"])
def test_a_fence_makes_a_release_of_a_relaxed_arrival(fence):
    assert (run(hand_on, ".relaxed.cta", fence) == 5).all()


@pytest.mark.parametrize(
    "fence, orders", [("fence.acq_rel.cluster", True), ("fence.acq_rel.cta", False), ("", False)]
)
def test_a_fence_must_reach_the_cta_that_waits(fence, orders):
    data, out = np.zeros((2, 1), np.int32)
    launch = across.emulator("sm_90a")[2, 32]
    if orders:
        launch(data, out, fence)
        assert out[0] == 5
    else:
        with pytest.raises(Race):
            launch(data, out, fence)


# -- noComplete ------------------------------------------------------------------------------------


def test_arrivals_that_leave_the_phase_open():
    assert run(count, ".noComplete", "", block=32).all()
    assert run(count, ".noComplete.release.cta", "", block=32).all()
    assert run(count, ".noComplete", "", "_drop", block=32).all()


@pytest.mark.parametrize("first", ["", ".noComplete"])
def test_an_arrival_that_must_not_end_the_phase(first):
    words = "thread 1 of CTA 0 ends phase 0, with 5 of 8 arrivals, by an arrival that must not complete it"
    with pytest.raises(EmulationError, match=words):
        run(count, first, ".noComplete", block=32)


# -- targets ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("drop", ["", "_drop"])
@pytest.mark.parametrize(
    "modifiers, requires, version",
    [
        (".relaxed.cta.shared::cta.b64", "sm_90", (8, 6)),
        (".relaxed.cluster.shared::cta.b64.count", "sm_90", (8, 6)),
        (".expect_tx.relaxed.cta.shared::cluster.b64", "sm_90", (8, 6)),
        (".noComplete.shared::cta.b64", "sm_80", (7, 8)),
        (".noComplete.release.cta.shared::cta.b64", "sm_80", (8, 0)),
    ],
)
def test_arrivals_require_their_target_and_version(modifiers, requires, version, drop):
    """PTX manual, 9.7.13.15.13 and .14."""
    instr = isa.instruction(f"mbarrier.arrive{drop}{modifiers}")
    assert requires in str(instr.requires) and instr.version == version


@pytest.mark.parametrize("wait", ["try_wait", "test_wait"])
def test_waits_have_the_scope_that_they_name(wait):
    for sem, scope in ("", "cta"), (".acquire.cta", "cta"), (".acquire.cluster", "cluster"):
        instr = isa.instruction(f"mbarrier.{wait}.parity{sem}.shared::cta.b64")
        assert (classify.scope(instr), classify.is_acquire(instr)) == (scope, True)


def test_sm_80_counts_without_an_end():
    """There a count needs `.noComplete`."""
    with pytest.raises(ArchError):
        count.ptx(ARRAY, "", "", arch="sm_80")

    @tc.kernel
    def counted(x: tc.Array):
        bar = tc.mbarriers(1)[0]
        bar.init(2)
        tc.emit("mbarrier.arrive.noComplete.shared::cta.b64", bar, 1)
        x[0] = 1

    assert "mbarrier.arrive.noComplete.shared::cta.b64 _, [" in counted.ptx(ARRAY, arch="sm_80")


@pytest.mark.parametrize("arch, sm", [("sm_80", 80), ("sm_90a", 90)])
def test_the_assembler_takes_every_one(arch, sm):
    pytest.importorskip("cuda.core", reason="the assembler")
    names = [
        instr.mnemonic
        for instr in isa.instructions("mbarrier")
        if {"relaxed", "noComplete"} & {*instr.mnemonic.split(".")}
        and {"arrive", "arrive_drop"} & {*instr.mnemonic.split(".")}
        and (sm == 90 or "sm_80" in str(instr.requires))
    ]
    assert len(names) == (28 if sm == 90 else 4)

    @tc.kernel
    def all_of_them(x: tc.Array):
        bar = tc.mbarriers(1)[0]
        bar.init(100)
        for name in names:
            counted = name.endswith(".count") or "noComplete" in name or "expect_tx" in name
            place = bar.remote(0) if "shared::cluster" in name else bar
            tc.emit(name, place, *[1] * counted)
        x[0] = 1

    assert all_of_them.resources(ARRAY, arch=arch).registers > 0
