"""What reports of races advise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tests.running import line_of


def cure(kernel, *arguments, grid=1) -> str:
    with pytest.raises(tc.errors.Race) as error:
        kernel.emulator("sm_90a")[grid, 64](*arguments)
    return error.value.cure


@tc.kernel
def lanes_alone(out: tc.Array, arrives: tc.Const, waits: tc.Const, meets: tc.Const = ()):
    """Warp 1 writes and arrives, warp 0 waits and reads: by lane 0 alone, or by all lanes."""
    tile, bar, i = tc.shared(64, tc.s32), tc.mbarriers(1)[0], tc.threadIdx.x
    if i == 0:
        bar.init(1 if arrives == "one" else 32)
    tc.barrier()
    if i >= 32:
        tile[i] = i
        if "before" in meets:
            tc.syncwarp()
        if arrives == "all" or i == 32:
            bar.arrive()
    else:
        if waits == "all" or i == 0:
            bar.wait(0)
        if "after" in meets:
            tc.syncwarp()
        out[i] = tile[i + 32]


ARRIVAL = "before `bar.arrive()` at line {} (mbarrier.arrive), which hands on what lane 0 did"
WAIT = "after `bar.wait(0)` at line {} (mbarrier.try_wait), where lane 0 alone has waited"


@pytest.mark.parametrize(
    "arrives, waits, places, meets",
    [
        ("one", "all", [ARRIVAL], ("before",)),
        ("all", "one", [WAIT], ("after",)),
        ("one", "one", [ARRIVAL, WAIT], ("before", "after")),
    ],
)
def test_lanes_that_have_not_synchronised(arrives, waits, places, meets):
    out = np.zeros(32, np.int32)
    calls = {ARRIVAL: "bar.arrive()", WAIT: "bar.wait(0)"}
    advice = ", and ".join(place.format(line_of(lanes_alone, calls[place])) for place in places)
    assert cure(lanes_alone, out, arrives, waits) == f"tc.syncwarp() would order the two: {advice}"
    lanes_alone.emulator("sm_90a")[1, 64](out, arrives, waits, meets)  # the advice holds
    assert (out == np.arange(32, 64)).all()


@tc.kernel
def stores(x: tc.Array, how: tc.Const):
    boxes, tile, i = tc.tensor_map(x, (8, 32)), tc.shared((8, 32), tc.f32, align=128), tc.threadIdx.x
    for row in tc.static_range(4):
        tile[2 * row + i // 32, i % 32] = 1
    tc.fence_proxy_async()
    tc.barrier()
    if how == "one thread" and i == 0:
        for row in tc.static_range(2):
            tc.tma_store(boxes, (4 * row, 0), tile)
            tc.tma_store_commit()
        tc.tma_store_wait()
    if how == "read only":
        for warp in tc.static_range(2):
            if i == 32 * warp:
                tc.tma_store(boxes, (4 * warp, 0), tile)
                tc.tma_store_commit()
                tc.tma_store_wait(read=True)
            tc.barrier()
    if how in ("lanes", "lanes that wait", "lanes that meet") and i < 2:
        if i == 0:
            tc.tma_store(boxes, (0, 0), tile)
            tc.tma_store_commit()
            if how != "lanes":
                tc.tma_store_wait()
        if how == "lanes that meet":
            tc.syncwarp(3)
        if i == 1:
            tc.tma_store(boxes, (0, 0), tile)
            tc.tma_store_commit()
            tc.tma_store_wait()
    if how == "at once" and i < 2:
        tc.tma_store(boxes, (4 * i, 0), tile)
        tc.tma_store_commit()
        tc.tma_store_wait()
    if how == "blocks" and i == 0:
        tc.tma_store(boxes, (0, 0), tile)
        tc.tma_store_commit()
        tc.tma_store_wait()


@tc.kernel
def loads(x: tc.Array, out: tc.Array, waits: tc.Const, meets: tc.Const = False):
    """Each warp reads a box that thread 0 loads."""
    boxes, tile, bar = tc.tensor_map(x, (8, 32)), tc.shared((8, 32), tc.f32, align=128), tc.mbarriers(1)[0]
    i = tc.threadIdx.x
    if i == 0:
        bar.init(1)
        tc.fence_mbarrier_init()
    tc.barrier()
    if i == 0:
        bar.arrive_expect_tx(boxes.bytes)
        tc.tma_load(tile, boxes, (0, 0), bar)
    if waits == "lane" and i % 32 == 5 or waits == "warp" and i < 32:
        bar.wait(0)
    if meets:
        tc.syncwarp()
    out[i] = tile[i // 32, i % 32]


@pytest.mark.parametrize(
    "waits, end", [("lane", ", as lane 5 did, or call tc.syncwarp() behind that wait"), ("warp", "")]
)
def test_a_box_for_which_not_all_threads_wait(waits, end):
    x, out = np.ones((8, 32), np.float32), np.zeros(64, np.float32)
    wait = "first wait for the phase of the mbarrier that counts the copy's bytes"
    assert cure(loads, x, out, waits) == wait + end
    if waits == "lane":
        loads.emulator("sm_90a")[1, 64](x, out, waits, True)  # the advice holds
        assert out.all()


MEETING_LANES = (
    "; after that wait, lanes of a warp run independently: tc.syncwarp() between the two would order "
    "them, or tc.barrier() where other warps use it too"
)


@pytest.mark.parametrize(
    "how, grid, advice",
    [
        ("one thread", 1, ""),
        (
            "read only",
            1,
            ", without read=True; after that wait, tc.barrier() between the two would order them; "
            "or let each store write a box of its own",
        ),
        (
            "blocks",
            2,
            "; after that wait, CTAs run in any order: only a release and an acquire of gpu scope, or another "
            "launch, would order the two; or let each store write a box of its own",
        ),
        ("lanes", 1, MEETING_LANES),
        ("lanes that wait", 1, MEETING_LANES),
    ],
)
def test_bulk_stores_to_the_same_bytes(how, grid, advice):
    wait = "first the thread that issued it must wait for its group: tc.tma_store_wait() (cp.async.bulk.wait_group)"
    assert cure(stores, np.zeros((16, 32), np.float32), how, grid=grid) == wait + advice


def test_bulk_stores_of_lanes_that_meet():
    stores.emulator("sm_90a")[1, 64](np.zeros((16, 32), np.float32), "lanes that meet")


def test_bulk_stores_of_lanes_at_once():
    advice = "let one lane of the warp store, or let each store write a box of its own"
    assert cure(stores, np.zeros((16, 32), np.float32), "at once") == advice


@tc.kernel
def numbers(out: tc.Array, of_lanes: tc.Const = False):
    """All lanes store the number of their warp, or of themselves."""
    out[0] = 32 * tc.blockIdx.x + (tc.threadIdx.x if of_lanes else tc.warp_id())


@pytest.mark.parametrize("grid, block", [(1, 64), (2, 32)])
def test_lanes_store_the_same_and_warps_do_not(grid, block):
    with pytest.raises(tc.errors.Race, match="nothing orders the two accesses") as error:
        numbers.emulator("sm_90a")[grid, block](np.zeros(1, np.int32))
    assert "at once" not in str(error.value)


def test_lanes_store_different_values():
    with pytest.raises(
        tc.errors.Race, match="by lanes 0-31 of warp 0 of CTA 0 at once, with different values"
    ):
        numbers.emulator("sm_90a")[1, 64](np.zeros(1, np.int32), True)


@tc.kernel
def between_ranks(
    boxes: tc.PeerArray, pads: tc.PeerArray, out: tc.Array, meets: tc.Const, mistake: tc.Const = ""
):
    """Each of two ranks reads what the other one writes."""
    i, rank = tc.threadIdx.x, boxes.rank
    other = 1 - rank
    theirs, mine = pads[rank if mistake == "self" else other], pads[other if mistake == "theirs" else rank]
    goal = 0 if mistake == "too low" else 1
    boxes[rank][i] = i
    if "before" in meets:
        tc.barrier()
    if i == 0:
        tc.signal(theirs.at(0))
        tc.wait_signal(mine.at(0), goal)
    if "after" in meets:
        tc.barrier()
    out[i] = boxes[other][i]


SIGNALLED = "before `{}` at line {} (red.release), which hands on what thread 0 of CTA 0 of rank 1 did"
WAITED = "after `{}` at line {} (ld.acquire), where thread 0 of CTA 0 of rank 0 has waited"


def of_ranks() -> list[Any]:
    boxes, pads, out = ([np.zeros(64, np.int32) for _ in range(2)] for _ in range(3))
    return [tc.PeerArray(boxes), tc.PeerArray(pads), out]


def cure_of_ranks(*arguments: Any) -> str:
    with tc.devices(2):
        between_ranks[1, 64](*of_ranks(), ("before", "after"))  # the advice holds
        return cure(between_ranks, *of_ranks(), *arguments)


@pytest.mark.parametrize(
    "meets, places", [(("after",), [SIGNALLED]), (("before",), [WAITED]), ((), [SIGNALLED, WAITED])]
)
def test_threads_that_have_not_met_around_a_signal(meets, places):
    calls = {SIGNALLED: "tc.signal(theirs.at(0))", WAITED: "tc.wait_signal(mine.at(0), goal)"}
    advice = ", and ".join(
        place.format(calls[place], line_of(between_ranks, calls[place])) for place in places
    )
    assert cure_of_ranks(meets) == f"tc.barrier() would order the two: {advice}"


@pytest.mark.parametrize(("mistake", "pad"), [("self", 1), ("theirs", 0), ("too low", 0)])
def test_a_signal_that_no_wait_counts(mistake, pad):
    assert cure_of_ranks(("before", "after"), mistake) == (
        f"a signal to element [0] of argument 'pads[{pad}]' comes behind that access: first wait for it "
        "(tc.wait_signal), with a value that counts it"
    )


@tc.kernel
def between_blocks(x: tc.Array, flag: tc.Array, out: tc.Array, meets: tc.Const, scope: tc.Const = "gpu"):
    """CTA 1 of one GPU reads what CTA 0 writes."""
    i = tc.threadIdx.x
    if tc.blockIdx.x == 0:
        x[i] = i
        if "before" in meets:
            tc.barrier()
        if i == 0:
            tc.signal(flag.at(0), scope=scope)
    else:
        if "wait" in meets and i == 0:
            tc.wait_signal(flag.at(0), 1, scope=scope)
        if "after" in meets:
            tc.barrier()
        out[i] = x[63 - i]


def cure_of_blocks(*arguments: Any) -> str:
    arrays = [np.zeros(size, np.int32) for size in (64, 1, 64)]
    between_blocks.emulator("sm_90a")[2, 64](*arrays, ("before", "wait", "after"))  # the advice holds
    arrays[1][:] = 0
    return cure(between_blocks, *arrays, *arguments, grid=2)


def test_threads_of_blocks_that_have_not_met_around_a_signal():
    calls = ("tc.signal(flag.at(0), scope=scope)", "tc.wait_signal(flag.at(0), 1, scope=scope)")
    signal, wait = (f"`{call}` at line {line_of(between_blocks, call)}" for call in calls)
    assert cure_of_blocks(("wait", "after")) == (
        f"tc.barrier() would order the two: before {signal} (red.release), which hands on what thread 0 of "
        "CTA 0 did"
    )
    assert cure_of_blocks(("before", "wait")) == (
        f"tc.barrier() would order the two: after {wait} (ld.acquire), where thread 0 of CTA 1 has waited"
    )


def test_a_signal_that_no_block_awaits():
    assert cure_of_blocks(("before",)).startswith(
        "a signal to element [0] of argument 'flag' comes behind that access: first wait for it"
    )


def test_a_scope_without_other_blocks():
    assert cure_of_blocks(("before", "wait", "after"), "cta") == (
        "both are atomic or volatile, but the scope cta has no other CTAs: it must be gpu"
    )


@tc.kernel
def repeated_store(x: tc.Array, waits: tc.Const):
    """Each lane of warp 0 stores the same box; warp 1 then writes there."""
    boxes, tile, i = tc.tensor_map(x, (1, 32)), tc.shared((1, 32), tc.f32, align=128), tc.threadIdx.x
    if i < 32:
        tile[0, i] = 1
    tc.fence_proxy_async()
    tc.barrier()
    if i < 32:
        tc.tma_store(boxes, (0, 0), tile)
        tc.tma_store_commit()
        tc.tma_store_wait(read=True)
        if waits == "all lanes" or i == 0:
            tc.tma_store_wait()
    tc.barrier()
    if i >= 32:
        x[0, i - 32] = 2


def test_a_store_after_bulk_stores_that_lanes_repeat():
    """The repeated store is a warning only, and a later race with it is still found."""
    x = np.zeros((1, 32), np.float32)
    launch = repeated_store.emulator("sm_90a")[1, 64]
    with pytest.warns(tc.RaceWarning, match="both write the same value"):
        launch(x, "all lanes")
    assert (x == 2).all()
    with pytest.warns(tc.RaceWarning), pytest.raises(tc.errors.Race, match="nothing orders") as error:
        launch(x, "one lane")
    assert "tc.tma_store_wait() (cp.async.bulk.wait_group), without read=True" in error.value.cure


@tc.kernel
def store_of_a_warp(x: tc.Array, waits: tc.Const):
    """Warp 1 fills a tile, which each lane of warp 0 stores."""
    boxes, tile, i = tc.tensor_map(x, (1, 32)), tc.shared((1, 32), tc.f32, align=128), tc.threadIdx.x
    full = tc.mbarriers(1)
    if i == 0:
        full[0].init(32)
    tc.barrier()
    if i >= 32:
        tile[0, i - 32] = 1
        tc.fence_proxy_async()
        full[0].arrive()
    else:
        if waits == "all lanes" or i == 0:
            full[0].wait(0)
        tc.syncwarp() if waits == "lane 0, then all meet" else None
        tc.tma_store(boxes, (0, 0), tile)
        tc.tma_store_commit()
        tc.tma_store_wait()


def test_lanes_that_repeat_a_store_must_have_waited_for_its_source():
    x = np.zeros((1, 32), np.float32)
    launch = store_of_a_warp.emulator("sm_90a")[1, 64]
    for waits in ("all lanes", "lane 0, then all meet"):
        with pytest.warns(tc.RaceWarning, match="both write the same value"):
            launch(x, waits)
    with pytest.raises(tc.errors.Race, match="tile|shared") as error:
        launch(x, "lane 0")
    assert "write the same value" not in str(error.value)


@tc.kernel
def sizes_of_strong_accesses(words: tc.Array):
    if tc.threadIdx.x == 0:
        tc.emit("st.relaxed.gpu.global.b64", words.at(0), tc.u64(1))
    if tc.threadIdx.x == 32:
        tc.emit("st.relaxed.gpu.global.b32", words.at(1), tc.u32(2))


def test_strong_accesses_of_other_sizes():
    with pytest.raises(tc.errors.Race) as error:
        sizes_of_strong_accesses.emulator()[1, 64](np.zeros(2, np.uint32))
    assert error.value.cure == "both are atomic or volatile, but their sizes do not fit"
