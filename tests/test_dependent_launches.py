"""Launches that may run at the same time: programmatic dependent launch, and streams.

Each case makes a few launches, with a mistake or without. The comments `# one` and `# other` mark
the two accesses that a report must name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl.errors import Race
from tensorcore_dsl.interpreter.sanitizer import stream_order

ONE, OTHER = "# one", "# other"
BULK_LOAD = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
BULK_STORE = "cp.async.bulk.global.shared::cta.bulk_group"


@pytest.fixture(autouse=True)
def no_launch_before():
    stream_order.forget()


def zeros(count=64):
    return np.zeros(count, np.int32)


# -- kernels ----------------------------------------------------------------------------------


@tc.kernel
def write(x: tc.Array, start: tc.s32 = 0):
    """Writes before and behind the trigger."""
    i = start + tc.blockIdx.x * 32 + tc.threadIdx.x
    x[i] = i + 1  # one
    tc.griddep_launch_dependents()


@tc.kernel
def write_late(x: tc.Array):
    tc.griddep_launch_dependents()
    x[tc.blockIdx.x * 32 + tc.threadIdx.x] = 7  # one


@tc.kernel
def write_untriggered(x: tc.Array):
    x[tc.blockIdx.x * 32 + tc.threadIdx.x] = 7  # one


@tc.kernel
def read(x: tc.Array, out: tc.Array):
    tc.griddep_launch_dependents()
    i = tc.blockIdx.x * 32 + tc.threadIdx.x
    out[i] = x[i]  # one


@tc.kernel
def use(x: tc.Array, out: tc.Array, wait: tc.Const = True):
    """Reads x; waits for the launch in front first, or never."""
    i = tc.blockIdx.x * 32 + tc.threadIdx.x
    if wait:
        tc.griddep_wait()
    tc.griddep_launch_dependents()
    out[i] = x[i]  # other


@tc.kernel
def use_early(x: tc.Array, out: tc.Array):
    i = tc.blockIdx.x * 32 + tc.threadIdx.x
    early = x[i]  # other
    tc.griddep_wait()
    out[i] = early


@tc.kernel
def overwrite(x: tc.Array, wait: tc.Const = True):
    if wait:
        tc.griddep_wait()
    tc.griddep_launch_dependents()
    x[tc.blockIdx.x * 32 + tc.threadIdx.x] = 5  # other


@tc.kernel
def one_warp_waits(x: tc.Array, out: tc.Array, meet: tc.Const = True):
    if tc.warp_id() == 0:
        tc.griddep_wait()
    if meet:
        tc.barrier()
    out[tc.threadIdx.x] = x[tc.threadIdx.x]  # other


@tc.kernel
def one_lane_waits(x: tc.Array, out: tc.Array, meet: tc.Const = True):
    if tc.lane_id() == 0:
        tc.griddep_wait()
    if meet:
        tc.syncwarp()
    out[tc.threadIdx.x] = x[tc.threadIdx.x]  # other


@tc.kernel
def one_block_waits(x: tc.Array, out: tc.Array, everyone: tc.Const = True):
    if everyone or tc.blockIdx.x == 0:
        tc.griddep_wait()
    i = tc.blockIdx.x * 32 + tc.threadIdx.x
    out[i] = x[i]  # other


@tc.kernel
def block_tells_block(x: tc.Array, flag: tc.Array, out: tc.Array, wait: tc.Const = True):
    """Block 0 waits and signals; block 1 reads behind the signal."""
    if tc.blockIdx.x == 0:
        if wait:
            tc.griddep_wait()
        tc.emit("st.release.gpu.global.b32", flag.at(0), 1)
    else:
        while tc.emit("ld.acquire.gpu.global.b32", flag.at(0)).bits(tc.s32) == 0:
            pass
        out[tc.threadIdx.x] = x[tc.threadIdx.x]  # other


@tc.kernel
def bulk_load(x: tc.Array, out: tc.Array, wait: tc.Const = True):
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
def bulk_store(x: tc.Array, wait: tc.Const = True):
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
def cp_async(x: tc.Array, out: tc.Array, early: tc.Const = False):
    tile = tc.shared(64, x.dtype)
    if not early:
        tc.griddep_wait()
    tc.emit("cp.async.ca.shared.global", tile.at(tc.threadIdx.x), x.at(tc.threadIdx.x), 4)  # other
    tc.emit("cp.async.wait_all")
    tc.griddep_wait()
    out[tc.threadIdx.x] = tile[tc.threadIdx.x]


@tc.kernel
def count(counter: tc.Array):
    tc.griddep_launch_dependents()
    tc.atomic("add", counter.at(0), 1)  # one


@tc.kernel
def count_plainly(counter: tc.Array, wait: tc.Const = False):
    if wait:
        tc.griddep_wait()
    if tc.threadIdx.x == 0 and tc.blockIdx.x == 0:
        counter[0] = 0  # other


# -- cases: with a mistake or without -----------------------------------------------------------


def pdl(kernel, grid=2, block=32, **options):
    return kernel.configured(grid, block, pdl=True, **options)


def missing_wait(bug):
    x = zeros()
    write[2, 32](x)
    pdl(use)(x, zeros(), wait=not bug)


def wait_behind_the_read(bug):
    x = zeros()
    write[2, 32](x)
    pdl(use_early if bug else use)(x, zeros())


def access_behind_the_trigger(bug):
    x = zeros()
    write_late[2, 32](x)
    pdl(use)(x, zeros(), wait=not bug)


def no_trigger(bug):
    x = zeros()
    write_untriggered[2, 32](x)
    pdl(use)(x, zeros(), wait=not bug)


def write_what_is_read(bug):
    x = zeros()
    read[2, 32](x, zeros())
    pdl(overwrite)(x, wait=not bug)


def write_what_is_written(bug):
    x = zeros()
    write[2, 32](x)
    pdl(overwrite)(x, wait=not bug)


def warp_that_does_not_wait(bug):
    x = zeros()
    write[2, 32](x)
    pdl(one_warp_waits, 1, 64)(x, zeros(), meet=not bug)


def lanes_that_do_not_wait(bug):
    x = zeros()
    write[2, 32](x)
    pdl(one_lane_waits, 1)(x, zeros(), meet=not bug)


def block_that_does_not_wait(bug):
    x = zeros()
    write[2, 32](x)
    pdl(one_block_waits)(x, zeros(), everyone=not bug)


def signal_without_a_wait(bug):
    x = zeros()
    write[2, 32](x)
    pdl(block_tells_block)(x, zeros(1), zeros(), wait=not bug)


def bulk_load_before_the_wait(bug):
    x = zeros()
    write[2, 32](x)
    pdl(bulk_load, 1, 64)(x, zeros(), wait=not bug)


def bulk_store_before_the_wait(bug):
    x = zeros()
    read[2, 32](x, zeros())
    pdl(bulk_store, 1, 64)(x, wait=not bug)


def cp_async_before_the_wait(bug):
    x = zeros()
    write[2, 32](x)
    pdl(cp_async, 1, 64)(x, zeros(), early=bug)


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


def atomics(bug):
    """Atomics of two launches do not race with each other."""
    counter = zeros(1)
    count[2, 32](counter)
    if bug:
        pdl(count_plainly)(counter)
    else:
        pdl(count)(counter)


def write_what_is_counted(bug):
    counter = zeros(1)
    count[2, 32](counter)
    pdl(count_plainly)(counter, wait=not bug)


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


CASES = [
    missing_wait, wait_behind_the_read, access_behind_the_trigger, no_trigger, write_what_is_read,
    write_what_is_written, warp_that_does_not_wait, lanes_that_do_not_wait,
    block_that_does_not_wait, signal_without_a_wait, bulk_load_before_the_wait,
    bulk_store_before_the_wait, cp_async_before_the_wait, second_never_waits,
    only_the_second_waits, pool, ring, atomics, write_what_is_counted, ordinary_launch, two_streams, default_stream,
]  # fmt: skip


def marked(comment: str) -> set[int]:
    lines, _ = inspect.getsourcelines(inspect.getmodule(marked))
    return {number for number, line in enumerate(lines, 1) if line.rstrip().endswith(comment)}


@pytest.mark.parametrize("case", CASES)
def test_mistakes_are_reported_at_both_lines(case: Callable[[bool], None]) -> None:
    with pytest.raises(Race) as raised:
        case(True)
    error = raised.value
    assert error.loc is not None and error.first is not None
    assert error.loc.line in marked(OTHER) | (marked(ONE) if case is pool else set())
    ring_of_one_kernel = marked(OTHER) if case is ring else set()
    assert error.first.line in marked(ONE) | ring_of_one_kernel


@pytest.mark.parametrize("case", CASES)
def test_correct_launches_are_not_complained_of(case: Callable[[bool], None]) -> None:
    case(False)
