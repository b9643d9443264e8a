"""Launches that overlap and signal to each other in global memory, and tensor maps that one makes.

A release of gpu scope synchronises with an acquire of another grid (PTX manual, 8.5 and 8.9.4). Each
case makes launches, with a mistake or without. The comments `# one` and `# other` mark the two
accesses that a report must name.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl.errors import EmulationError, Race
from tensorcore_dsl.interpreter.sanitizer import stream_order
from tests import map_kernels
from tests.arrays import zeros
from tests.running import marked_lines

ONE, OTHER = "# one", "# other"
BULK_LOAD = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
BULK_STORE = "cp.async.bulk.global.shared::cta.bulk_group"
TENSOR_LOAD = map_kernels.LOAD.format(2)
PROXY_FENCE = "fence.proxy.async.global"


def pdl(kernel: Any, grid: int = 2, block: int = 64) -> Any:
    return kernel.configured(grid, block, pdl=True)


# -- kernels -------------------------------------------------------------------------------------


@tc.kernel
def produce(x, flag, how: tc.Const = "st.release.gpu", fence: tc.Const = "", late: tc.Const = False):
    """Each block writes its part of x, and then its flag."""
    tc.griddep_launch_dependents()
    i = tc.blockIdx.x * 64 + tc.threadIdx.x
    x[i] = 7  # one
    if fence:
        tc.emit(fence)
    tc.barrier()
    if tc.threadIdx.x == 0:
        if how == "fence":
            tc.emit("fence.acq_rel.gpu")
            tc.emit("st.relaxed.gpu.global.b32", flag.at(tc.blockIdx.x), 1)
        else:
            tc.emit(f"{how}.global.b32", flag.at(tc.blockIdx.x), 1)  # one
    if late:
        x[i] = 8  # one


@tc.kernel
def consume(x, flag, out, how: tc.Const = "ld.acquire.gpu", other: tc.Const = 0, meet: tc.Const = True):
    """Each block polls a flag, and reads a part of x."""
    block = (tc.blockIdx.x + other) % 2
    if tc.threadIdx.x == 0:
        load = "ld.relaxed.gpu" if how == "fence" else how
        while tc.emit(f"{load}.global.b32", flag.at(tc.blockIdx.x)).bits(tc.s32) == 0:
            pass
        if how == "fence":
            tc.emit("fence.acq_rel.gpu")
    if meet:
        tc.barrier()
    out[tc.blockIdx.x * 64 + tc.threadIdx.x] = x[block * 64 + tc.threadIdx.x]  # other


@tc.kernel
def read_and_count(x, count, out, how: tc.Const = "red.release.gpu"):
    """All blocks read all of x; the last thread of each counts."""
    tc.griddep_launch_dependents()
    out[tc.blockIdx.x * 64 + tc.threadIdx.x] = x[tc.threadIdx.x]  # one
    tc.barrier()
    if tc.threadIdx.x == 0:
        tc.emit(f"{how}.global.add.u32", count.at(0), 1)


@tc.kernel
def overwrite_counted(x, count, blocks: tc.Const = 3):
    if tc.threadIdx.x == 0:
        while tc.emit("ld.acquire.gpu.global.b32", count.at(0)).bits(tc.s32) < blocks:
            pass
    tc.barrier()
    x[tc.threadIdx.x] = 5  # other


@tc.kernel
def read_and_signal(x, flag, out):
    """All blocks read all of x; each sets a flag of its own, without atomics."""
    tc.griddep_launch_dependents()
    out[tc.blockIdx.x * 64 + tc.threadIdx.x] = x[tc.threadIdx.x]  # one
    tc.barrier()
    if tc.threadIdx.x == 0:
        tc.emit("st.release.gpu.global.b32", flag.at(tc.blockIdx.x), 1)


@tc.kernel
def overwrite_signalled(flag, x, blocks: tc.Const = 3):
    if tc.threadIdx.x < blocks:
        while tc.emit("ld.acquire.gpu.global.b32", flag.at(tc.threadIdx.x)).bits(tc.s32) == 0:
            pass
    tc.barrier()
    x[tc.threadIdx.x] = 5  # other


@tc.kernel
def one_block_polls(x, flag, again, out, how: tc.Const = "st.release.gpu"):
    """CTA 0 polls the flag and tells CTA 1."""
    if tc.threadIdx.x == 0:
        if tc.blockIdx.x == 0:
            while tc.emit("ld.acquire.gpu.global.b32", flag.at(0)).bits(tc.s32) == 0:
                pass
            tc.emit(f"{how}.global.b32", again.at(0), 1)
        else:
            while tc.emit("ld.acquire.gpu.global.b32", again.at(0)).bits(tc.s32) == 0:
                pass
    tc.barrier()
    if tc.blockIdx.x == 1:
        out[tc.threadIdx.x] = x[tc.threadIdx.x]  # other


@tc.kernel
def pass_on(flag, again, how: tc.Const = "ld.acquire.gpu"):
    """A launch between two others acquires one flag and releases another one."""
    tc.griddep_launch_dependents()
    if tc.threadIdx.x == 0:
        while tc.emit(f"{how}.global.b32", flag.at(tc.blockIdx.x)).bits(tc.s32) == 0:
            pass
        tc.emit("st.release.gpu.global.b32", again.at(tc.blockIdx.x), 1)


@tc.kernel
def bulk_consume(x, flag, out, fence: tc.Const = ""):
    """A bulk copy of what a flag guards."""
    tile, bar = tc.shared(64, x.dtype), tc.mbarriers(1)[0]
    if tc.threadIdx.x == 0:
        bar.init(1)
        tc.fence_mbarrier_init()
    tc.barrier()
    if tc.threadIdx.x == 0:
        while tc.emit("ld.acquire.gpu.global.b32", flag.at(tc.blockIdx.x)).bits(tc.s32) == 0:
            pass
        if fence:
            tc.emit(fence)
        bar.arrive_expect_tx(256)
        tc.emit(BULK_LOAD, tile.at(0), x.at(tc.blockIdx.x * 64), 256, bar)  # other
    bar.wait(0)
    out[tc.blockIdx.x * 64 + tc.threadIdx.x] = tile[tc.threadIdx.x]


@tc.kernel
def bulk_produce(x, flag, wait: tc.Const = True):
    """A bulk copy writes what the flag guards."""
    tc.griddep_launch_dependents()
    tile = tc.shared(64, x.dtype)
    tile[tc.threadIdx.x] = 3
    tc.emit("fence.proxy.async.shared::cta")
    tc.barrier()
    if tc.threadIdx.x == 0:
        tc.emit(BULK_STORE, x.at(tc.blockIdx.x * 64), tile.at(0), 256)  # one
        tc.emit("cp.async.bulk.commit_group")
        if wait:
            tc.emit("cp.async.bulk.wait_group", 0)
        tc.emit("st.release.gpu.global.b32", flag.at(tc.blockIdx.x), 1)
        tc.emit("cp.async.bulk.wait_group", 0)


# -- cases: with a mistake or without -------------------------------------------------------------


def signalled(*, first: Any = (), second: Any = (), consumer: Any = consume) -> Any:
    x, flag, out = zeros(128), zeros(2), zeros(128)
    produce[2, 64](x, flag, **dict(first))
    pdl(consumer)(x, flag, out, **dict(second))
    return out


def told(wrong: Any, right: Any) -> Any:
    return lambda bug: signalled(**(wrong if bug else right))


SIGNALS = {
    "without a release": told({"first": {"how": "st.relaxed.gpu"}}, {}),
    # the scope includes no thread of the other grid; the flag itself is then a race
    "release of a CTA": told({"first": {"how": "st.release.cta"}}, {"first": {"how": "st.release.sys"}}),
    "without an acquire": told({"second": {"how": "ld.relaxed.gpu"}}, {"second": {"how": "ld.acquire.sys"}}),
    "fence of one side": told(
        {"first": {"how": "fence"}, "second": {"how": "ld.relaxed.gpu"}},
        {"first": {"how": "fence"}, "second": {"how": "fence"}},
    ),
    "flag of another block": told({"second": {"other": 1}}, {}),
    "access behind the release": told({"first": {"late": True}}, {}),
    "threads that do not meet the poller": told({"second": {"meet": False}}, {}),
}


def count_that_does_not_release(bug):
    """Reads of several blocks before a write."""
    x, count = zeros(64), zeros(1)
    read_and_count[3, 64](x, count, zeros(192), how="red.relaxed.gpu" if bug else "red.release.gpu")
    pdl(overwrite_counted, 1)(x, count)


def one_of_several_readers_is_not_awaited(bug):
    x, flag = zeros(64), zeros(3)
    read_and_signal[3, 64](x, flag, zeros(192))
    pdl(overwrite_signalled, 1)(flag, x, blocks=3 - bug)


def block_tells_block(bug):
    x, flag = zeros(128), zeros(2)
    produce[2, 64](x, flag)
    how = "st.relaxed.gpu" if bug else "st.release.gpu"
    pdl(one_block_polls)(x, flag, zeros(1), zeros(128), how=how)


def launch_tells_launch(bug):
    x, flag, again = zeros(128), zeros(2), zeros(2)
    produce[2, 64](x, flag)
    pdl(pass_on)(flag, again, how="ld.relaxed.gpu" if bug else "ld.acquire.gpu")
    pdl(consume)(x, again, zeros(128))


def other_views_of_the_flag(bug):
    """The flag lies elsewhere in the arguments of both launches."""
    x, flags = zeros(128), zeros(8)
    produce[2, 64](x, flags[4:])
    pdl(consume)(x, flags[4:] if not bug else flags[:4] + 1, zeros(128))


def bulk_load_behind_the_wrong_flag(bug):
    x, flag = zeros(128), zeros(2)
    produce[2, 64](x, flag, fence=PROXY_FENCE)
    pdl(bulk_consume)(x, flag if not bug else flag + 1, zeros(128))


def bulk_store_before_its_wait(bug):
    x, flag = zeros(128), zeros(2)
    bulk_produce[2, 64](x, flag, wait=not bug)
    pdl(consume)(x, flag, zeros(128))


def streams(bug):
    x, flag = zeros(128), zeros(2)
    produce.configured(2, 64, stream=7)(x, flag, how="st.relaxed.gpu" if bug else "st.release.gpu")
    consume.configured(2, 64, stream=8)(x, flag, zeros(128))


CASES = [
    *(pytest.param(case, id=name) for name, case in SIGNALS.items()),
    count_that_does_not_release, one_of_several_readers_is_not_awaited, block_tells_block,
    launch_tells_launch, other_views_of_the_flag, bulk_load_behind_the_wrong_flag,
    bulk_store_before_its_wait, streams,
]  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_mistakes_are_reported_at_both_lines(case):
    with pytest.raises(Race) as raised:
        case(True)
    error = raised.value
    assert error.loc is not None and error.first is not None
    polls_the_flag = case is SIGNALS["release of a CTA"]
    assert error.loc.line in marked_lines(__file__, OTHER) or polls_the_flag
    assert error.first.line in marked_lines(__file__, ONE)


@pytest.mark.parametrize("case", CASES)
def test_correct_launches_are_not_complained_of(case):
    case(False)


def test_a_launch_that_is_ordered_has_the_data():
    assert (signalled() == 7).all()


def test_bulk_copies_need_a_fence_of_proxies_on_either_side():
    for producer, consumer in (("", PROXY_FENCE), (PROXY_FENCE, ""), ("fence.proxy.async", "")):
        signalled(first={"fence": producer}, second={"fence": consumer}, consumer=bulk_consume)
    with pytest.raises(
        EmulationError, match="through the async proxy what .* without a proxy fence"
    ) as raised:
        signalled(consumer=bulk_consume)
    error = raised.value
    assert not isinstance(error, Race) and error.other_kernel == "produce"
    assert error.loc is not None and error.loc.line in marked_lines(__file__, OTHER)
    assert error.first is not None and error.first.line in marked_lines(__file__, ONE)


def test_flags_in_memory_that_was_freed_order_nothing():
    """An array in the place of the flag's is another array."""
    x, flag = zeros(128), zeros(2)
    address = flag.ctypes.data
    produce[2, 64](x, flag)
    del flag
    again = [np.ones(2, np.int32) for _ in range(50)]
    same = [array for array in again if array.ctypes.data == address]
    with pytest.raises(Race):
        pdl(consume)(x, same[0] if same else again[0], zeros(128))


def test_a_long_chain_of_signals_keeps_what_may_still_overlap():
    x, flags = zeros(128), [zeros(2) for _ in range(14)]
    produce[2, 64](x, flags[0])
    for before, behind in zip(flags, flags[1:], strict=False):
        pdl(pass_on)(before, behind)
    (stream,) = stream_order._streams.values()
    footprint = stream.launches[-1].footprint
    assert footprint is not None
    for message in footprint.messages.values():
        assert len({key >> 32 for key in message.vectors}) <= stream_order.MAX_LAUNCHES + 1


# -- tensor maps ----------------------------------------------------------------------------------


@tc.kernel
def make_map(maps, x, flag, trigger: tc.Const = True):
    if trigger:
        tc.griddep_launch_dependents()
    if tc.threadIdx.x == 0:
        place = maps.at(0, 0, 0).address
        map_kernels.describe(place, "global", x, (8, 32), 0, 7, 0)
        tc.emit("fence.proxy.tensormap::generic.release.gpu")
        tc.emit("st.release.gpu.global.b32", flag.at(0), 1)


@tc.kernel
def copy_by_map(flag, maps, out, x, how: tc.Const = "wait"):
    """how: wait, or acquire the flag, or neither; in the order of its words. x: the array of the map."""
    tile, bar = tc.shared((8, 32), tc.f32, align=128), tc.mbarriers(1)[0]
    tc.griddep_launch_dependents()
    if tc.threadIdx.x == 0:
        bar.init(1)
        tc.fence_mbarrier_init()
        bar.arrive_expect_tx(tile.bytes)
        place = maps.at(0, 0, 0).address
        for step in how.split():
            if step == "wait":
                tc.griddep_wait()
            if step == "poll":
                while tc.emit("ld.acquire.gpu.global.b32", flag.at(0)).bits(tc.s32) == 0:
                    pass
            if step == "fence":
                tc.emit("fence.proxy.tensormap::generic.acquire.gpu", place, 128)
        tc.emit(TENSOR_LOAD, tile.at(0, 0).address, place, 0, 0, bar.address)
    tc.barrier()
    bar.wait(0)
    out[tc.threadIdx.x] = tile[0, tc.threadIdx.x]


def by_map(how: str, **constants: Any) -> Any:
    x, maps, flag = np.ones((16, 32), np.float32), map_kernels.room_for_maps(1), zeros(1)
    out = np.zeros(32, np.float32)
    make_map[1, 32](maps, x, flag, **constants)
    pdl(copy_by_map, 1, 32)(flag, maps, out, x, how=how)
    return out


@pytest.mark.parametrize("how", ["wait fence", "poll fence"])
def test_copies_by_a_map_that_the_launch_in_front_has_made(how):
    assert (by_map(how) == 1).all()


@pytest.mark.parametrize("how", ["fence", "fence wait", "fence poll"])
@pytest.mark.parametrize("trigger", [False, True])
def test_maps_are_acquired_behind_the_wait(how, trigger):
    """What is acquired before the launch in front has ended may be what was there before."""
    with pytest.raises(
        Race, match="is read here by thread 0 of CTA 0 .* in the launch of copy_by_map"
    ) as raised:
        by_map(how, trigger=trigger)
    assert "call tc.griddep_wait() before this access" in raised.value.cure


@pytest.mark.parametrize("how, error", [("", Race), ("wait", EmulationError), ("poll", EmulationError)])
def test_copies_by_a_map_need_its_fence(how, error):
    with pytest.raises(error) as raised:
        by_map(how)
    assert type(raised.value) is error
    assert error is Race or "whose bytes its CTA has not acquired" in str(raised.value)


def test_a_map_is_not_changed_under_copies_of_the_launch_in_front():
    x, maps, flag, out = np.ones((16, 32), np.float32), map_kernels.room_for_maps(1), zeros(1), zeros(32)
    make_map[1, 32](maps, x, flag)
    copy_by_map[1, 32](flag, maps, out.view(np.float32), x, how="fence")
    with pytest.raises(Race, match="read it at .* in the launch of copy_by_map in front of it"):
        pdl(make_map, 1, 32)(maps, x, flag)


def test_the_array_of_a_map_must_be_an_argument():
    x, maps, flag = np.ones((16, 32), np.float32), map_kernels.room_for_maps(1), zeros(1)
    make_map[1, 32](maps, x, flag)
    with pytest.raises(EmulationError, match="its array is not an argument of this launch; pass the array"):
        copy_by_map[1, 32](flag, maps, np.zeros(32, np.float32), x.copy(), how="fence")
