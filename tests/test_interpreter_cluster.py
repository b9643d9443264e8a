"""Shared memory of the other CTAs of a cluster: what kernels do with it, and the mistakes."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl.errors import EmulationError, Misaligned, OperandError, OutOfBounds, Race, Uninitialised
from tests import cluster_kernels as cluster
from tests.running import caught, run

RNG = np.random.default_rng(23)


def shown_statement(message: str) -> str:
    """The source line that a message shows."""
    return message.split("cluster_kernels.py:", 1)[1].splitlines()[1].strip()


# -- reading what peers wrote --------------------------------------------------------------------


class TestLoads:
    @pytest.mark.parametrize("peers", [2, 4, 8])
    @pytest.mark.parametrize("swizzle", [0, 128])
    def test_sums_through_peers(self, peers, swizzle):
        source = RNG.integers(-99, 99, (2 * peers, 8, 32)).astype(np.float32)
        out = np.zeros_like(source)
        report = run(cluster.total, 2 * peers, 32, source, out, peers=peers, swizzle=swizzle)
        sums = source.reshape(2, peers, 8, 32).sum(axis=1, keepdims=True)
        assert np.array_equal(out.reshape(2, peers, 8, 32), np.repeat(sums, peers, axis=1))
        assert report.bytes["shared::cluster", "load"] == source.nbytes * peers

    MISTAKES = [
        ("unwritten", Uninitialised, "shared::cluster load of 16 bytes at 0x200 of"),
        ("outside", OutOfBounds, "16 bytes from byte 8192 on leave a remote shared f32 tile of 8x32"),
        ("misaligned", Misaligned, "at 0x4 of CTA 1 by thread 0 of CTA 0, which is not a mul"),
    ]

    @pytest.mark.parametrize("mistake, error, words", MISTAKES, ids=[m[0] for m in MISTAKES])
    def test_mistakes(self, mistake, error, words):
        source, out = (np.zeros((4, 8, 32), np.float32) for _ in range(2))
        message = caught(error, words, cluster.total, 4, 32, source, out, mistake=mistake)
        assert shown_statement(message) == "values = [v + x for v, x in zip(values, place.load(4))]"

    def test_a_peer_that_has_ended(self):
        words = "peer CTA gone: thread 0 of CTA 1 reaches for shared 0x0 of CTA 0"
        message = caught(EmulationError, words, cluster.late, 2, 32, np.zeros(32, np.uint32))
        assert shown_statement(message) == "out[t] = tile.remote(0)[t]"


# -- what an arrival hands on ----------------------------------------------------------------------


@tc.kernel
def relaxed_arrival(out, fence: tc.Const, late: tc.Const = False):
    """The example of the PTX manual: load from the peer, fence, arrive relaxed; the peer stores."""
    tc.launch_bounds(32)
    tc.cluster_size(2)
    tile, t, rank = tc.shared(32, tc.s32), tc.threadIdx.x, tc.cluster_rank()
    tile[t] = t
    tc.cluster_sync()
    value = 0
    if not late:
        value = tile.remote(1 - rank)[31 - t]
    if fence:
        tc.emit(fence)
    if late:
        value = tile.remote(1 - rank)[31 - t]
    tc.emit("barrier.cluster.arrive.relaxed.aligned")
    tc.cluster_wait()
    tile[t] = 5
    out[rank, t] = value
    tc.cluster_sync()


@tc.kernel
def relaxed_arrival_behind_init(out, store: tc.Const, fence: tc.Const):
    """Relaxed arrivals hand on mbarriers that are initialised and fenced, and nothing else."""
    tc.launch_bounds(32)
    tc.cluster_size(2)
    tile, bars = tc.shared(32, tc.s32), tc.mbarriers(2)
    t, rank = tc.threadIdx.x, tc.cluster_rank()
    if store == "before the initialisation":
        tile[t] = t
    if t == 0:
        bars[0].init(32)
    if store == "before the fence":
        tile[t] = t
    if fence == "older":
        tc.fence_mbarrier_init()
        tc.cluster_sync()
        if t == 0:
            bars[1].init(32)
            tc.fence_proxy_async()  # the barrier may be used abroad, once the cluster has met
    else:
        tc.emit(fence)
    if store == "after the fence":
        tile[t] = t
    tc.emit("barrier.cluster.arrive.relaxed.aligned")
    tc.cluster_wait()
    if store:
        out[rank, t] = tile.remote(1 - rank)[31 - t]
    bar = bars[1 if fence == "older" else 0]
    tc.emit("mbarrier.arrive.release.cluster.shared::cluster.b64", bar.remote(1 - rank).address)
    bar.wait(0)
    tc.cluster_sync()


@tc.kernel
def sends(x, out, how: tc.Const, waits: tc.Const = True):
    """CTA 0 sends 32 words to CTA 1, which waits for them and ends. The cluster does not meet again."""
    tc.launch_bounds(32)
    tc.cluster_size(2)
    inbox, map = tc.shared((1, 32), tc.u32, align=128), tc.tensor_map(x, (1, 32))
    bar, t, rank = tc.mbarriers(1)[0], tc.threadIdx.x, tc.cluster_rank()
    if t == 0:
        bar.init(1)
        tc.fence_mbarrier_init()
        if rank == 1:
            bar.arrive_expect_tx(inbox.bytes)
    tc.cluster_sync()
    if rank == 0:
        if how == "store":
            tc.store(inbox.at(0, t).remote(1), x[0, t], barrier=bar.remote(1))
        elif t == 0:
            tc.tma_load(inbox, map, (0, 0), bar, multicast=0b10)
    elif waits:
        bar.wait(0)
        out[t] = inbox[0, t]


@pytest.mark.parametrize("how", ["store", "multicast"])
def test_a_cta_may_end_behind_the_wait_for_what_is_sent_to_it(how):
    x, out = np.arange(32, dtype=np.uint32)[None], np.zeros(32, np.uint32)
    run(sends, 2, 32, x, out, how=how)
    assert np.array_equal(out, x[0])
    with pytest.raises(EmulationError, match="ends while|has ended"):
        run(sends, 2, 32, x, out, how=how, waits=False)


@tc.kernel
def leaves(out, arrives: tc.Const):
    """Rank 0 stores to its peer and exits; threads that have exited are not waited for."""
    tc.launch_bounds(32)
    tc.cluster_size(2)
    tile, t, rank = tc.shared(32, tc.s32), tc.threadIdx.x, tc.cluster_rank()
    tc.cluster_sync()
    if rank == 0:
        tile.remote(1)[t] = t
        if arrives:
            tc.cluster_arrive()
    else:
        tc.cluster_sync()
        out[0, t] = tile[31 - t]


class TestArrivals:
    INIT = "fence.mbarrier_init.release.cluster"

    @pytest.mark.parametrize("scope", ["cluster", "gpu", "sys"])
    @pytest.mark.parametrize("kind", ["", ".sc", ".acq_rel", ".release"])
    def test_a_fence_before_a_relaxed_arrival(self, kind, scope):
        out = np.zeros((2, 32), np.int32)
        run(relaxed_arrival, 2, 32, out, f"fence{kind}.{scope}")
        assert np.array_equal(out, [np.arange(32)[::-1]] * 2)

    @pytest.mark.parametrize("fence", ["", "fence.acquire.cluster", "fence.acq_rel.cta", INIT])
    def test_fences_that_do_not_do(self, fence):
        out = np.zeros((2, 32), np.int32)
        caught(Race, "`tile.t.` is written here", relaxed_arrival, 2, 32, out, fence)

    def test_a_load_behind_the_fence(self):
        out = np.zeros((2, 32), np.int32)
        caught(Race, "written here", relaxed_arrival, 2, 32, out, "fence.acq_rel.cluster", True)

    def test_fenced_initialisations(self):
        out = np.zeros((2, 32), np.int32)
        run(relaxed_arrival_behind_init, 2, 32, out, "", self.INIT)

    STORES = ("before the initialisation", "before the fence", "after the fence")

    @pytest.mark.parametrize("store", STORES)
    def test_stores_beside_fenced_initialisations(self, store):
        out = np.zeros((2, 32), np.int32)
        words = r"`tile.remote\(1 - rank\)\[31 - t\]` is read here .* wrote it at"
        caught(Race, words, relaxed_arrival_behind_init, 2, 32, out, store, self.INIT)

    @pytest.mark.parametrize("fence", ["older", "fence.proxy.async"])
    def test_initialisations_without_a_release(self, fence):
        out = np.zeros((2, 32), np.int32)
        words = r"thread 0 of CTA \d \(warp 0, lane 0\) wrote it at line"
        caught(Race, words, relaxed_arrival_behind_init, 2, 32, out, "", fence)

    def test_an_exit_releases_nothing(self):
        out = np.zeros((1, 32), np.int32)
        run(leaves, 2, 32, out, True)
        assert np.array_equal(out[0], np.arange(32)[::-1])
        words = r"`tile\[31 - t\]` is read here by .* of CTA 1 .* of CTA 0 .* wrote it at"
        caught(Race, words, leaves, 2, 32, out, False)


# -- writing to peers -----------------------------------------------------------------------------


class TestStores:
    def test_a_ring(self):
        out = np.zeros((8, 64), np.uint32)
        run(cluster.push, 8, 64, out)
        ranks = (np.arange(8) - 3) % 4
        assert np.array_equal(out, 100 * ranks[:, None] + np.arange(64) + 3)

    def test_an_mbarrier_orders_too(self):
        out = np.zeros(32, np.uint32)
        run(cluster.hand_over, 2, 32, out)
        assert np.array_equal(out, 2 * (np.arange(32) + 7))

    @pytest.mark.parametrize(
        ("operation", "returns"),
        [*itertools.product(["add", "max", "or"], [True, False]), ("exch", True)],  # red has no exch
    )
    def test_atomics(self, operation, returns):
        out = np.zeros((4, 64, 2), np.uint32)
        run(cluster.count, 4, 64, out, operation=operation, returns=returns)
        numbers = np.arange(1, 257, dtype=np.uint32)
        expected = {"add": numbers.sum(), "max": 256, "or": np.bitwise_or.reduce(numbers)}
        assert (out[..., 1] == out[0, 0, 1]).all()
        assert out[0, 0, 1] == expected.get(operation, out[0, 0, 1])
        if returns and operation == "exch":  # all but the last number came back, and the zero
            previous = {*out[..., 0].ravel().tolist(), int(out[0, 0, 1])}
            assert previous == set(range(257))

    @pytest.mark.parametrize("returns", [True, False])
    @pytest.mark.parametrize("tiny", cluster.TINY)
    def test_sums_keep_subnormals(self, tiny, returns):
        values = np.array([tiny])
        out = np.zeros_like(values)
        run(cluster.add_tiny, 4, 32, values, out, returns=returns)
        assert out[0] and out[0].astype(np.float64) == 5 * tiny.astype(np.float64)


# -- the async proxy -----------------------------------------------------------------------------


class TestAsyncProxy:
    def test_peers_fill_a_tile(self):
        target = np.zeros((4, 64), np.uint32)
        run(cluster.fill_peer, 4, 64, target)
        assert np.array_equal(target, 10 * (np.arange(4) ^ 1)[:, None] + np.arange(64))

    @pytest.mark.parametrize(
        "mistake, words",
        [
            ("no fence", "what thread 0 of CTA 1 .* wrote by an ordinary store at .* without a proxy fence"),
            ("no wait", "store of 4 bytes at 0x0 of CTA 1 .* still read by a bulk store of thread 0"),
        ],
    )
    def test_mistakes_of_stores(self, mistake, words):
        target = np.zeros((2, 64), np.uint32)
        caught(EmulationError, words, cluster.fill_peer, 2, 64, target, mistake=mistake)

    def test_bulk_copies_to_peers(self):
        source = RNG.integers(0, 1 << 30, (8, 64)).astype(np.uint32)
        out = np.zeros_like(source)
        run(cluster.copy, 8, 64, source, out)
        assert np.array_equal(out.reshape(2, 4, 64), np.roll(source.reshape(2, 4, 64), 1, axis=1))

    MISTAKES = [
        ("to itself", EmulationError, "stays in its CTA: another one is needed"),
        ("odd size", Misaligned, "names a size of 0xfa, which is not a multiple of 16"),
    ]

    @pytest.mark.parametrize("mistake, error, words", MISTAKES, ids=[m[0] for m in MISTAKES])
    def test_mistakes_of_copies(self, mistake, error, words):
        source = np.zeros((4, 64), np.uint32)
        caught(error, words, cluster.copy, 4, 64, source, source.copy(), mistake=mistake)


# -- what is refused while a kernel is compiled ----------------------------------------------------


@tc.kernel
def misuse(out, what: tc.Const = ""):
    tc.cluster_size(2)
    mma = tc.mma.m16n8k16(tc.bf16, tc.bf16, tc.f32)
    tile = tc.shared((16, 64), tc.bf16, swizzle=128)
    peer = tile.remote(1)
    if what == "rank":
        tile.remote(2)
    if what == "kind of rank":
        tile.at(0, 0).remote(0.5)
    if what == "twice":
        peer.remote(1)
    if what == "global":
        out.at(0, 0).remote(1)
    if what == "ldmatrix":
        tc.ldmatrix(peer[:, :16], mma.a)
    if what == "stmatrix":
        tc.stmatrix(peer[:, :16], mma.a.zeros())
    if what == "descriptor":
        tc.wgmma_descriptor(peer)
    if what == "tensor copy":
        tc.tma_store(tc.tensor_map(out, (16, 64), swizzle=128), (0, 0), peer)
    if what == "cp.async":
        tc.cp_async(peer.at(0, 0), out.at(0, 0), 16)
    if what == "bulk copy to the own CTA":
        tc.bulk_copy(tile, tile, tc.mbarriers(1)[0].remote(1))
    if what == "bulk copy by the own barrier":
        tc.bulk_copy(peer, tile, tc.mbarriers(1)[0])
    if what == "bulk copy from a peer":
        tc.bulk_copy(peer, peer, tc.mbarriers(1)[0].remote(1))
    if what == "bulk copy of another shape":
        tc.bulk_copy(peer, tile[:8], tc.mbarriers(1)[0].remote(1))
    if what == "bulk copy of columns":
        tc.bulk_copy(peer[:, :32], tile[:, :32], tc.mbarriers(1)[0].remote(1))
    if what == "bulk copy amid a swizzle":
        tc.bulk_copy(peer[1:9], tile[1:9], tc.mbarriers(1)[0].remote(1))
    if what == "difference":
        peer.at(0, 0) - tile.at(0, 0)


REFUSED = [
    ("rank", "CTA 2 of the cluster does not exist: ranks are 0 to 1"),
    ("kind of rank", "the rank of a CTA is an integer, not 0.5"),
    ("twice", "a remote shared bf16 tile of 16x64, 128-byte swizzle is another CTA's already"),
    ("global", "a global pointer to bf16 has no peers"),
    ("ldmatrix", "ldmatrix works on the CTA's own shared memory, not on a remote shared bf16"),
    ("stmatrix", "stmatrix works on the CTA's own shared memory, not on a remote shared bf16"),
    ("descriptor", "wgmma works on the CTA's own shared memory, not on a remote shared bf16"),
    ("tensor copy", "a tensor copy works on the CTA's own shared memory, not on a remote"),
    ("cp.async", "copies from global to shared memory, not from global to shared::cluster"),
    ("bulk copy to the own CTA", "its target is tile.remote.rank., and its barrier is barrier.rem"),
    ("bulk copy by the own barrier", "a bulk copy goes to another CTA"),
    ("bulk copy from a peer", "the source of a bulk copy works on the CTA's own shared memory"),
    ("bulk copy of another shape", "tiles of one kind, .* bf16 tile of 8x64, .* tile of 16x64"),
    ("bulk copy of columns", "tiles of one kind, dense"),
    ("bulk copy amid a swizzle", "from one swizzle's period on"),
    (
        "difference",
        "a shared::cluster pointer to bf16, 128-byte swizzle and a shared pointer to bf16, 128-byte swizzle do not combine",
    ),
]


@pytest.mark.parametrize("what, words", REFUSED, ids=[r[0] for r in REFUSED])
def test_what_is_refused(what, words):
    with pytest.raises(OperandError, match=words):
        misuse.ir(tc.ArrayType(tc.bf16, 2, (False, True), 16), what=what, arch="sm_90a")


@tc.kernel
def read_all(out):
    """Elements and vectors of two swizzled tiles of one peer."""
    tc.cluster_size(2)
    tiles = [tc.shared((16, 32), tc.f32, swizzle=128) for _ in range(2)]
    t = tc.threadIdx.x
    tc.cluster_sync()
    for peer in [tile.remote(1) for tile in tiles]:
        for row in range(16):
            out.at(row, 0).store(peer[row:, 4:].at(0, 0).load(4))
        out[0, t] = peer[t, t]
    tc.cluster_sync()


def test_vectors_and_swizzles_reach_ptx():
    """One mapa serves all that is read from a rank."""
    array = tc.ArrayType(tc.f32, 2, (False, True), 16)
    ptx = read_all.ptx(array, arch="sm_90a")
    assert ptx.count("mapa.shared::cluster.u32") == 1
    assert ptx.count("ld.shared::cluster.v4.b32") == 2 * 16
    assert ptx.count("ld.shared::cluster.b32") == 2
    assert read_all.cubin(array, arch="sm_90a")


# -- addresses tell the CTA -----------------------------------------------------------------------


@tc.kernel
def product_by_hand(b, d, masked: tc.Const = True):
    """D = B's first rows, by an identity A; B is not K-major, so its descriptor has an offset."""
    tc.launch_bounds(128)
    tc.cluster_size(2)
    mma = tc.wgmma.m64n128k16(tc.bf16, tc.bf16, tc.f32)
    left = tc.shared((64, 64), tc.bf16, swizzle=128)
    right = tc.shared((2, 16, 64), tc.bf16, swizzle=128)
    for i in tc.range(tc.threadIdx.x, 64 * 64, 128):
        left[i // 64, i % 64] = tc.select(i // 64 == i % 64, 1.0, 0.0)
    for i in tc.range(tc.threadIdx.x, 2 * 16 * 64, 128):
        right[i // 1024, i // 64 % 16, i % 64] = b[i // 64 % 16, i // 1024 * 64 + i % 64]
    tc.fence_proxy_async()
    tc.barrier()
    start = right.at(0, 0, 0).address >> 4
    low = (start & 0x3FFF if masked else start) + (16 * 128 // 16 << 16)
    place = tc.emit("mov.b64.pack", low.bits(tc.b32), tc.u32(1024 // 16 | 1 << 30))
    acc = mma.d.zeros()
    tc.wgmma_fence()
    acc = mma(acc, tc.wgmma_descriptor(left[:, :16]), place, True, 1, 1, 0, 1)
    tc.wgmma_commit()
    tc.wgmma_wait(0)
    for i in tc.static_range(len(acc)):
        row, col = acc.coordinates(i)
        d[tc.cluster_rank() * 64 + row, col] = acc[i]
    tc.cluster_sync()


def test_a_descriptor_leaves_the_rank_out():
    """On GPUs the rank lies above an address's 24 bits: shifted, in the field of the offset."""
    b = RNG.integers(-4, 5, (16, 128)).astype(ml_dtypes.bfloat16)
    d = np.zeros((128, 128), np.float32)
    run(product_by_hand, 2, 128, b, d)
    wanted = np.vstack([b.astype(np.float32), np.zeros((48, 128), np.float32)])
    assert np.array_equal(d, np.vstack([wanted, wanted]))
    with pytest.raises(EmulationError):
        run(product_by_hand, 2, 128, b, d, masked=False)


# -- atomics of cluster scope in global memory ----------------------------------------------------


def test_atomics_of_cluster_scope_order_a_cluster():
    out = np.zeros(3, np.int32)
    run(cluster.counts_clusters, 6, 32, out, together=False)
    assert out.tolist() == [128] * 3
    with pytest.raises(Race, match="the scope cluster has no other CTAs: it must be gpu"):
        run(cluster.counts_clusters, 6, 32, out, together=True)
    x = np.zeros(2, np.int32)
    flag = np.zeros(2, np.uint32)
    run(cluster.hands_on, 2, 1, x, flag, release="release.cluster", acquire="acquire.cluster")
    assert x.tolist() == [7, 7]


@pytest.mark.parametrize(
    "release, acquire",
    [
        ("relaxed.cluster", "acquire.cluster"),
        ("release.cluster", "relaxed.cluster"),
        ("release.cta", "acquire.cluster"),
    ],
)
def test_atomics_that_order_too_little(release, acquire):
    with pytest.raises(Race):
        run(
            cluster.hands_on,
            2,
            1,
            np.zeros(2, np.int32),
            np.zeros(2, np.uint32),
            release=release,
            acquire=acquire,
        )
