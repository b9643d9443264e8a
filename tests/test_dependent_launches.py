"""Launches that may run at the same time: programmatic dependent launch, and streams.

Each case makes a few launches, with a mistake or without. The comments `# one` and `# other` mark
the two accesses that a report must name.
"""

from __future__ import annotations

import weakref

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import kernels
from tensorcore_dsl.checking.session import checking
from tensorcore_dsl.errors import Race
from tensorcore_dsl.interpreter.sanitizer import stream_order
from tests.arrays import zeros
from tests.running import marked_lines

ONE, OTHER = "# one", "# other"
BULK_LOAD = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
BULK_STORE = "cp.async.bulk.global.shared::cta.bulk_group"


# -- kernels ----------------------------------------------------------------------------------


@tc.kernel
def write(x, start: tc.s32 = 0):
    """Writes before and after the trigger."""
    i = start + tc.blockIdx.x * 32 + tc.threadIdx.x
    x[i] = i + 1  # one
    tc.griddep_launch_dependents()


@tc.kernel
def write_late(x):
    tc.griddep_launch_dependents()
    x[tc.blockIdx.x * 32 + tc.threadIdx.x] = 7  # one


@tc.kernel
def write_untriggered(x):
    x[tc.blockIdx.x * 32 + tc.threadIdx.x] = 7  # one


@tc.kernel
def read(x, out):
    tc.griddep_launch_dependents()
    i = tc.blockIdx.x * 32 + tc.threadIdx.x
    out[i] = x[i]  # one


@tc.kernel
def use(x, out, wait: tc.Const = True):
    """Reads x; waits for the launch in front first, or never."""
    i = tc.blockIdx.x * 32 + tc.threadIdx.x
    if wait:
        tc.griddep_wait()
    tc.griddep_launch_dependents()
    out[i] = x[i]  # other


@tc.kernel
def use_early(x, out):
    i = tc.blockIdx.x * 32 + tc.threadIdx.x
    early = x[i]  # other
    tc.griddep_wait()
    out[i] = early


@tc.kernel
def overwrite(x, wait: tc.Const = True):
    if wait:
        tc.griddep_wait()
    tc.griddep_launch_dependents()
    x[tc.blockIdx.x * 32 + tc.threadIdx.x] = 5  # other


@tc.kernel
def one_warp_waits(x, out, meet: tc.Const = True):
    if tc.warp_id() == 0:
        tc.griddep_wait()
    if meet:
        tc.barrier()
    out[tc.threadIdx.x] = x[tc.threadIdx.x]  # other


@tc.kernel
def one_lane_waits(x, out, meet: tc.Const = True):
    if tc.lane_id() == 0:
        tc.griddep_wait()
    if meet:
        tc.syncwarp()
    out[tc.threadIdx.x] = x[tc.threadIdx.x]  # other


@tc.kernel
def one_block_waits(x, out, everyone: tc.Const = True):
    if everyone or tc.blockIdx.x == 0:
        tc.griddep_wait()
    i = tc.blockIdx.x * 32 + tc.threadIdx.x
    out[i] = x[i]  # other


@tc.kernel
def block_tells_block(x, flag, out, wait: tc.Const = True):
    """CTA 0 waits and signals; CTA 1 reads after the signal."""
    if tc.blockIdx.x == 0:
        if wait:
            tc.griddep_wait()
        tc.emit("st.release.gpu.global.b32", flag.at(0), 1)
    else:
        while tc.emit("ld.acquire.gpu.global.b32", flag.at(0)).bits(tc.s32) == 0:
            pass
        out[tc.threadIdx.x] = x[tc.threadIdx.x]  # other


@tc.kernel
def bulk_load(x, out, wait: tc.Const = True):
    """The thread that issues the copy waits; the others learn it from the mbarrier."""
    tile, bar = tc.shared(64, x.dtype), tc.mbarriers(1)[0]
    if tc.threadIdx.x == 0:
        bar.init(1)
        tc.fence_mbarrier_init()
    tc.barrier()
    if tc.threadIdx.x == 0:
        bar.arrive_expect_tx(256)
        if wait:
            tc.griddep_wait()
        tc.emit(BULK_LOAD, tile.at(0), x.at(0), 256, bar)  # other
    bar.wait(0)
    out[tc.threadIdx.x] = tile[tc.threadIdx.x] + x[tc.threadIdx.x]


@tc.kernel
def bulk_store(x, wait: tc.Const = True):
    tile = tc.shared(64, x.dtype)
    tile[tc.threadIdx.x] = 3
    tc.emit("fence.proxy.async.shared::cta")
    tc.barrier()
    if tc.threadIdx.x == 0:
        if wait:
            tc.griddep_wait()
        tc.emit(BULK_STORE, x.at(0), tile.at(0), 256)  # other
        tc.emit("cp.async.bulk.commit_group")
        tc.emit("cp.async.bulk.wait_group", 0)


@tc.kernel
def cp_async(x, out, early: tc.Const = False):
    tile = tc.shared(64, x.dtype)
    if not early:
        tc.griddep_wait()
    tc.emit("cp.async.ca.shared.global", tile.at(tc.threadIdx.x), x.at(tc.threadIdx.x), 4)  # other
    tc.emit("cp.async.wait_all")
    tc.griddep_wait()
    out[tc.threadIdx.x] = tile[tc.threadIdx.x]


@tc.kernel
def count(counter):
    tc.griddep_launch_dependents()
    tc.atomic("add", counter.at(0), 1)  # one


@tc.kernel
def count_plainly(counter, wait: tc.Const = False):
    if wait:
        tc.griddep_wait()
    if tc.threadIdx.x == 0 and tc.blockIdx.x == 0:
        counter[0] = 0  # other


# -- cases: with a mistake or without -----------------------------------------------------------


def pdl(kernel, grid=2, block=32, **options):
    return kernel.configured(grid, block, pdl=True, **options)


def pair(front, behind, *others):
    """Case of a launch, and of a dependent one after it with the same array."""

    def case(bug):
        x = zeros()
        front[2, 32](x, *others)
        behind(x, bug)

    return case


PAIRS = {
    "a wait is missing": pair(write, lambda x, bug: pdl(use)(x, zeros(), wait=not bug)),
    "wait after the read": pair(write, lambda x, bug: pdl(use_early if bug else use)(x, zeros())),
    "access after the trigger": pair(write_late, lambda x, bug: pdl(use)(x, zeros(), wait=not bug)),
    "no trigger": pair(write_untriggered, lambda x, bug: pdl(use)(x, zeros(), wait=not bug)),
    "write of what is read": pair(read, lambda x, bug: pdl(overwrite)(x, wait=not bug), zeros()),
    "write of what is written": pair(write, lambda x, bug: pdl(overwrite)(x, wait=not bug)),
    "write of what is counted": pair(count, lambda x, bug: pdl(count_plainly)(x, wait=not bug)),
    "a warp does not wait": pair(write, lambda x, bug: pdl(one_warp_waits, 1, 64)(x, zeros(), meet=not bug)),
    "lanes do not wait": pair(write, lambda x, bug: pdl(one_lane_waits, 1)(x, zeros(), meet=not bug)),
    "a block does not wait": pair(write, lambda x, bug: pdl(one_block_waits)(x, zeros(), everyone=not bug)),
    "signal without a wait": pair(
        write, lambda x, bug: pdl(block_tells_block)(x, zeros(1), zeros(), wait=not bug)
    ),
    "bulk load before the wait": pair(write, lambda x, bug: pdl(bulk_load, 1, 64)(x, zeros(), wait=not bug)),
    "bulk store before the wait": pair(read, lambda x, bug: pdl(bulk_store, 1, 64)(x, wait=not bug), zeros()),
    "cp.async before the wait": pair(write, lambda x, bug: pdl(cp_async, 1, 64)(x, zeros(), early=bug)),
    # atomics of two launches do not race with each other
    "atomics": pair(count, lambda x, bug: pdl(count_plainly if bug else count)(x)),
}


def second_never_waits(bug):
    """The third launch waits for the second, which may end before the first."""
    x, y, out = zeros(), zeros(), zeros()
    write[2, 32](x)
    pdl(use)(y, out, wait=not bug)
    pdl(use)(x, zeros())


def only_the_second_waits(bug):
    """The second launch's wait makes memory visible to that launch alone."""
    x = zeros()
    write[2, 32](x)
    pdl(use)(zeros(), zeros())
    pdl(use)(x, zeros(), wait=not bug)


def pool(bug):
    """Memory of the first launch is given to the second one."""
    memory = zeros(128)
    read[2, 32](memory[:64], zeros())
    pdl(overwrite)(memory[32:96] if bug else memory[64:], wait=False)


def ring(bug):
    """Launches in a loop use two buffers in turn; each reads one and writes the other."""
    buffers = zeros(), zeros()
    for step in range(4):
        pdl(use)(buffers[step % 2], buffers[1 - step % 2], wait=not (bug and step == 3))


def ordinary_launch(bug):
    """An ordinary launch ends all that was in front of it."""
    x = zeros()
    write[2, 32](x)
    if not bug:
        overwrite[2, 32](zeros())
    pdl(use)(x, zeros(), wait=False)


def two_streams(bug):
    x = zeros()
    write.configured(2, 32, stream=7)(x)
    use.configured(2, 32, stream=8 if bug else 7)(x, zeros())


def default_stream(bug):
    """The default stream waits for other streams; these do not wait for each other."""
    x = zeros()
    write.configured(2, 32, stream=7)(x)
    if not bug:
        overwrite[2, 32](zeros())
    use.configured(2, 32, stream=8)(x, zeros())


class TorchStream:
    """torch makes such streams, which do not wait for the default stream."""

    __module__ = "torch.cuda.streams"
    cuda_stream = 9


def stream_of_torch(bug):
    x = zeros()
    write[2, 32](x)
    use.configured(2, 32, stream=TorchStream() if bug else 9)(x, zeros())


def event(bug):
    """A stream that waits for an event of the other one."""
    x, moment = zeros(), tc.Event()
    write.configured(2, 32, stream=7)(x)
    moment.record(7)
    if bug:
        write.configured(2, 32, stream=7)(x)
    moment.wait(8)
    use.configured(2, 32, stream=8)(x, zeros())


def event_of_a_third_stream(bug):
    """Events carry on what their streams have waited for."""
    x, first, second = zeros(), tc.Event(), tc.Event()
    write.configured(2, 32, stream=7)(x)
    first.record(7)
    if not bug:
        first.wait(9)
    second.record(9)
    second.wait(8)
    use.configured(2, 32, stream=8)(x, zeros())


def host_waits(bug):
    x, moment = zeros(), tc.Event()
    write.configured(2, 32, stream=7)(x)
    moment.record(7)
    if not bug:
        moment.synchronize()
    use.configured(2, 32, stream=8)(x, zeros())


def event_in_front(bug):
    """A launch after a wait for an event is no dependent launch: it waits for its stream."""
    x, moment = zeros(), tc.Event()
    write[2, 32](x)
    if not bug:
        moment.wait()
    pdl(use)(x, zeros(), wait=False)


CASES = [
    *(pytest.param(case, id=name) for name, case in PAIRS.items()),
    second_never_waits, only_the_second_waits, pool, ring, ordinary_launch, two_streams, default_stream,
    stream_of_torch, event, event_of_a_third_stream, host_waits, event_in_front,
]  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_mistakes_are_reported_at_both_lines(case):
    with pytest.raises(Race) as raised:
        case(True)
    error = raised.value
    assert error.loc is not None and error.first is not None
    assert error.loc.line in marked_lines(__file__, OTHER, *([ONE] if case is pool else []))
    assert error.first.line in marked_lines(__file__, ONE, *([OTHER] if case is ring else []))


@pytest.mark.parametrize("case", CASES)
def test_correct_launches_are_not_complained_of(case):
    case(False)


# -- orders of launches -------------------------------------------------------------------------


@tc.kernel
def last_block_is_late(x):
    """CTA 1 never triggers: it ends."""
    if tc.blockIdx.x == 0:
        tc.griddep_launch_dependents()
    x[tc.blockIdx.x * 32 + tc.threadIdx.x] = 7


@tc.kernel
def poll(x, out):
    """Waits for the launch in front by a word in memory."""
    while tc.emit("ld.acquire.gpu.global.b32", x.at(0)).bits(tc.s32) == 0:
        pass
    out[tc.threadIdx.x] = 1


@tc.kernel
def raise_flag(x):
    tc.griddep_launch_dependents()
    tc.emit("st.release.gpu.global.b32", x.at(0), 1)


@tc.kernel
def leave_bounds_if_early(x, out):
    """Reads an index before the wait."""
    out[tc.threadIdx.x - (x[tc.threadIdx.x] == 0) * 1000] = 1


def results(kernel, *arguments, n=40, checks=False, **options):
    """What is found in launches of `write_late` and of a kernel after it."""

    def launches(x):
        write_late[2, 32](x)
        pdl(kernel, **options)(x, *arguments)

    return tc.explore(launches, n, checks=checks)(zeros())


def test_launches_that_overlap_give_other_results():
    actual = results(use_early, zeros())
    assert not actual and actual.error is None
    assert [d.argument for d in actual.differences] == ["out of use_early"]
    assert str(actual).splitlines()[0].endswith("orders of launches: results differ")
    assert "write_late stops at " in str(actual) and "use_early runs" in str(actual)
    assert results(use, zeros()).orders == 40


def test_a_warp_that_does_not_wait_overtakes_the_one_that_does():
    actual = results(one_warp_waits, zeros(), grid=1, block=64)
    assert actual, "the barrier orders"
    late = tc.explore(
        lambda x, out: (write_late[2, 32](x), pdl(one_warp_waits, 1, 64)(x, out, meet=False)),
        40,
        checks=False,
    )(zeros(), zeros())
    assert [d.argument for d in late.differences] == ["out of one_warp_waits"]


def test_a_block_that_ends_lets_the_next_launch_start():
    exploration = tc.explore(
        lambda x, out: (last_block_is_late[2, 32](x), pdl(use_early)(x, out)), 40, checks=False
    )(zeros(), zeros())
    assert [d.argument for d in exploration.differences] == ["out of use_early"]


def test_a_launch_starts_when_all_blocks_have_let_it():
    """What stands before the trigger has then been done."""

    def launches(x, out):
        write[2, 32](x)
        pdl(use_early)(x, out)

    assert tc.explore(launches, 40, checks=False)(zeros(), zeros())


def test_errors_of_an_overlapping_launch():
    actual = results(leave_bounds_if_early, zeros(), checks=False)
    assert isinstance(actual.error, tc.OutOfBounds) and actual.switches
    assert '"OutOfBounds"' in actual.json()


def test_a_launch_that_polls_is_no_deadlock():
    def launches(x, out):
        raise_flag[1, 32](x)
        pdl(poll, 1)(x, out)

    assert tc.explore(launches, 20, checks=False)(zeros(), zeros())


def test_three_launches_overlap():
    def launches(x, y, out, wait):
        write_late[2, 32](x)
        pdl(use)(y, zeros(), wait=wait)
        pdl(use)(x, out)

    assert tc.explore(launches, 40, checks=False)(zeros(), zeros(), zeros(), True)
    exploration = tc.explore(launches, 40, checks=False)(zeros(), zeros(), zeros(), False)
    assert [d.argument for d in exploration.differences] == ["out of use"]


def test_host_code_between_launches_ends_the_first_one():
    """It runs once, and what it writes waits for the launch in front."""
    runs = []

    def launches(x, out, host):
        write_late[2, 32](x)
        if host:
            x[:] += 1
        runs.append(x[0])
        pdl(use_early)(x, out)

    assert tc.explore(launches, 10, checks=False)(zeros(), zeros(), True)
    assert not tc.explore(launches, 10, checks=False)(zeros(), zeros(), False)
    assert runs == [8, 7]


def test_arguments_are_copied_and_races_found_at_once():
    x = zeros()
    exploration = tc.explore(lambda x: (write[2, 32](x), pdl(overwrite)(x, wait=False)), 5)(x)
    assert isinstance(exploration.error, Race) and exploration.order is None and not x.any()
    assert str(exploration).endswith("it shows in the emulator's own order")


def test_explore_needs_a_number_of_orders():
    with pytest.raises(tc.ArgumentError, match="the number of orders, 1 or more, not 0"):
        tc.explore(print, 0)


# -- what is reported ---------------------------------------------------------------------------


def report(case, bug=True):
    with pytest.raises(Race) as raised:
        case(bug)
    return str(raised.value)


def test_a_report_names_launches_lines_bytes_and_the_cure():
    text = report(PAIRS["a wait is missing"])
    assert "`x[i]` is read here by thread 0 of CTA 0 (warp 0, lane 0) in the launch of use;" in text
    assert "wrote it at line" in text and "in the launch of write in front of it" in text
    assert "element [0] of argument 'x' (global bytes 0 to 3 of it), in argument 'x' of write" in text
    assert "use is launched with pdl=True: it starts when all CTAs of write have called" in text
    assert "call tc.griddep_wait() before this access" in text


def test_a_report_says_who_has_waited():
    text = report(PAIRS["a warp does not wait"])
    assert "warp 0 of CTA 0 has waited at line" in text
    assert "let the threads meet after the wait (tc.barrier())" in text


def test_a_report_of_a_chain_names_the_launch_that_does_not_wait():
    text = report(second_never_waits)
    assert "in the launch of write that lies 2 launches before it" in text
    assert "use lies between the two and never calls tc.griddep_wait()" in text
    text = report(only_the_second_waits)
    assert "use and the launches in front of it are launched with pdl=True" in text


def test_a_report_of_streams_names_them():
    text = report(two_streams)
    assert "in the launch of write in stream 7" in text
    assert "use is launched in stream 8, which does not wait for stream 7" in text
    assert "an event that is recorded after write" in text


def test_memory_that_was_freed_is_not_compared():
    """What is allocated in its place is another array, which something has filled in between."""
    memory = np.zeros(64, np.int32)
    address = memory.__array_interface__["data"][0]
    write[2, 32](memory)
    del memory
    again = [np.zeros(64, np.int32) for _ in range(20)]
    same = [x for x in again if x.__array_interface__["data"][0] == address]
    pdl(use)(same[0] if same else again[0], zeros(), wait=False)


def test_no_launch_keeps_its_arrays_alive():
    x = zeros()
    gone = weakref.ref(x)
    write[2, 32](x)
    del x
    assert gone() is None


def test_old_launches_are_dropped():
    for _ in range(12):
        pdl(use, stream=3)(zeros(), zeros())
    (stream,) = stream_order._streams.values()
    assert len(stream.launches) == stream_order.MAX_LAUNCHES
    stream_order.forget()
    for _ in range(3):
        write[2, 32](zeros())
    (stream,) = stream_order._streams.values()
    assert len(stream.launches) == 1


def test_sessions_check_kernels_of_the_library_too():
    a = np.ones((64, 64), np.float16)
    with checking(collect=True) as session:
        d = kernels.gemm(a, a)
        pdl(read_halves, 1)(d, np.zeros(32, np.float16))
    assert [finding.kind for finding in session.result.findings] == ["Race"]
    assert "read_halves" in session.result.findings[0].message


@tc.kernel
def read_halves(d, out):
    out[tc.threadIdx.x] = d[0, tc.threadIdx.x]


@tc.kernel
def read_one(x, out):
    tc.griddep_launch_dependents()
    out[tc.blockIdx.x * 32 + tc.threadIdx.x] = x[0]


@tc.kernel
def put(x):
    x[tc.threadIdx.x] = 1


@pytest.mark.parametrize(
    "view", [lambda x: x, lambda x: x.view(np.uint8), lambda x: x[::-1]], ids=["same", "bytes", "reversed"]
)
def test_reads_of_several_blocks_and_other_views(view):
    x = zeros(32)
    read_one[4, 32](x, zeros(128))
    with pytest.raises(Race, match="several CTAs, CTA 0 among them, read it at line"):
        pdl(put, 1)(view(x))


def test_neighbours_of_what_was_written_are_free():
    x = np.zeros(65, np.uint8)
    write[2, 32](x)
    pdl(put, 1, 1)(x[64:])


@tc.kernel
def fill_rows(x):
    tc.griddep_launch_dependents()
    for row in range(8):
        x[row, tc.threadIdx.x] = row


@tc.kernel
def tensor_load(x, out, wait: tc.Const = True):
    tile, bar = tc.shared((8, 32), x.dtype, align=128), tc.mbarriers(1)[0]
    boxes = tc.tensor_map(x, (8, 32))
    if tc.threadIdx.x == 0:
        bar.init(1)
        tc.fence_mbarrier_init()
        bar.arrive_expect_tx(tile.bytes)
        if wait:
            tc.griddep_wait()
        tc.tma_load(tile, boxes, (0, 0), bar)
    tc.barrier()
    bar.wait(0)
    out[tc.threadIdx.x] = tile[0, tc.threadIdx.x]


def test_tensor_loads():
    x = np.zeros((8, 32), np.float32)
    for _ in range(2):
        fill_rows[1, 32](x)
        pdl(tensor_load, 1)(x, np.zeros(32, np.float32))
    with pytest.raises(Race, match="is read here by the cp.async.bulk.tensor of warp 0 of CTA 0"):
        pdl(tensor_load, 1)(x, np.zeros(32, np.float32), wait=False)
        fill_rows[1, 32](x)
        pdl(tensor_load, 1)(x, np.zeros(32, np.float32), wait=False)
