"""multimem instructions: which there are, by the tables of 9.7.9.14, and what they do on virtual GPUs."""

from __future__ import annotations

import contextlib
import functools
import itertools

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import isa
from tensorcore_dsl.errors import ArgumentError, EmulationError, OperandError, OutOfBounds, Race

BITS = {"f16": 16, "bf16": 16, "f16x2": 32, "bf16x2": 32, "f32": 32, "f64": 64}
PLAIN = {"f16x2", "bf16x2", "f32", "f64"}  # without .vec
VECTORS = {2: PLAIN - {"f64"} | {"f16", "bf16"}, 4: PLAIN - {"f64"} | {"f16", "bf16"}, 8: {"f16", "bf16"}}
WHOLE = {
    "add": {"u32", "s32", "u64"},
    "min": {"u32", "s32", "u64", "s64"},
    "max": {"u32", "s32", "u64", "s64"},
    **dict.fromkeys(("and", "or", "xor"), {"b32", "b64"}),
}


def reductions(floats: tuple[str, ...], precise: bool) -> set[str]:
    """`.op{.acc_prec}{.vec}.type` of sm_90, by the manual's two tables and its rule of sizes."""
    found = {f"{op}.{kind}" for op, kinds in WHOLE.items() for kind in kinds}
    for op, vector, kind in itertools.product(floats, (1, 2, 4, 8), BITS):
        allowed = PLAIN if vector == 1 else VECTORS[vector]
        if kind in allowed and vector * BITS[kind] in (32, 64, 128) and (op == "add" or "16" in kind):
            vec = f".v{vector}" if vector > 1 else ""
            found.add(f"{op}{vec}.{kind}")
            if precise and op == "add" and "16" in kind:
                found.add(f"add.acc::f32{vec}.{kind}")
    return found


@pytest.mark.parametrize(
    "name, orders, floats",
    [
        ("ld_reduce", ["", ".weak", ".acquire.cluster", ".relaxed.sys"], ("add", "min", "max")),
        ("red", ["", ".release.cta", ".relaxed.gpu"], ("add",)),
    ],
)
def test_reductions_are_the_manuals(name, orders, floats):
    for order in orders:
        start = f"multimem.{name}{order}.global."
        found = [i.mnemonic for i in isa.instructions("multimem") if i.mnemonic.startswith(start)]
        assert sorted(m.removeprefix(start) for m in found) == sorted(reductions(floats, name == "ld_reduce"))


WORLD = 4


@tc.kernel(threads=32)
def loads(peers: tc.PeerArray, out: tc.Array, text: tc.Const, words: tc.Const):
    """Each thread loads from `words` words; registers of 16 bits are pairs of bytes of `out`."""
    t = tc.threadIdx.x
    loaded = tc.emit(text, peers.multicast().at(t * words))
    for i in tc.static_range(words):
        out[t * words + i] = loaded[i] if words > 1 else loaded


@tc.kernel(threads=32)
def stores(peers: tc.PeerArray, x: tc.Array, text: tc.Const, rank: tc.Const):
    """Rank `rank` alone stores or reduces, by pairs of words."""
    t = tc.threadIdx.x
    if peers.rank == rank:
        tc.emit(text, peers.multicast().at(t), x[t])


def peers_of(dtype, size=32, low=-50, seed=0):
    low = 0 if np.dtype(dtype).kind == "u" else low
    rng = np.random.default_rng(seed)
    return [rng.integers(low, 50, size).astype(dtype) for _ in range(WORLD)]


COMBINE = {"add": np.add, "min": np.minimum, "max": np.maximum}
COMBINE |= {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
LOADED = [("add", "u32"), ("add", "s32"), ("add", "u64"), ("min", "s32"), ("max", "u64"), ("min", "s64")]
LOADED += [("and", "b32"), ("or", "b64"), ("xor", "b32"), ("add", "f32"), ("add", "f64")]
NUMPY = {"u32": np.uint32, "s32": np.int32, "u64": np.uint64, "s64": np.int64, "b32": np.uint32}
NUMPY |= {"b64": np.uint64, "f32": np.float32, "f64": np.float64}


@pytest.mark.parametrize("op, kind", LOADED)
def test_loads_reduce_the_memory_of_all_ranks(op, kind):
    x = peers_of(NUMPY[kind])
    expected = functools.reduce(COMBINE[op], x)
    out = [np.zeros(32, NUMPY[kind]) for _ in range(WORLD)]
    with tc.devices(WORLD):
        text = f"multimem.ld_reduce.relaxed.sys.global.{op}.{kind}"
        loads[1, 32](tc.PeerArray(x, multicast=True), out, text=text, words=1)
    assert all((of_rank == expected).all() for of_rank in out)


def in_order(x, wide):
    """The sum in the order of ranks, rounded at each step, or in f32 and rounded at the end."""
    kind = np.float32 if wide else np.float16
    total = x[0].astype(kind)
    for of_rank in x[1:]:
        total = (total + of_rank.astype(kind)).astype(kind)
    return total.astype(np.float16)


@pytest.mark.parametrize("precision", ["", ".acc::f32"])
@pytest.mark.parametrize("vector", [2, 4])
def test_sums_round_in_the_order_of_ranks(precision, vector):
    rng = np.random.default_rng(3)
    x = [(rng.standard_normal(32 * vector) * 2.0**rank).astype(np.float16) for rank in range(WORLD)]
    out = [np.zeros(32 * vector, np.float16) for _ in range(WORLD)]
    assert (in_order(x, True) != in_order(x, False)).any() and (
        in_order(x, False) != in_order(x[::-1], False)
    ).any()
    with tc.devices(WORLD):
        text = f"multimem.ld_reduce.global.add{precision}.v{vector}.f16"
        loads[1, 32](tc.PeerArray(x, multicast=True), out, text=text, words=vector)
    for of_rank in out:
        np.testing.assert_array_equal(of_rank, in_order(x, bool(precision)))


def test_pairs_are_two_elements():
    halves = [np.arange(64).astype(np.float16) * (rank + 1) for rank in range(WORLD)]
    x, out = [h.view(np.uint32) for h in halves], [np.zeros(32, np.uint32) for _ in range(WORLD)]
    with tc.devices(WORLD):
        text = "multimem.ld_reduce.global.max.f16x2"
        pairs[1, 32](tc.PeerArray(x, multicast=True), out, text=text)
    np.testing.assert_array_equal(out[2].view(np.float16), halves[3])


@tc.kernel(threads=32)
def pairs(peers: tc.PeerArray, out: tc.Array, text: tc.Const):
    t = tc.threadIdx.x
    out[t] = tc.emit(text, peers.multicast().at(t)).bits(tc.u32)


@pytest.mark.parametrize("op, kind", [(None, "u32"), (None, "f64"), *LOADED])
def test_stores_and_reductions_reach_all_ranks(op, kind):
    dtype = NUMPY[kind]
    before, x = peers_of(dtype), [np.arange(32).astype(dtype) + rank for rank in range(WORLD)]
    expected = [x[2] if op is None else COMBINE[op](of_rank, x[2]) for of_rank in before]
    text = f"multimem.st.global.{kind}" if op is None else f"multimem.red.relaxed.sys.global.{op}.{kind}"
    with tc.devices(WORLD):
        stores[1, 32](tc.PeerArray(before, multicast=True), x, text=text, rank=2)
    np.testing.assert_array_equal(before, expected)


@tc.kernel(threads=32)
def bulk(peers: tc.PeerArray, x: tc.Array, text: tc.Const):
    """Rank 1 copies a tile of 32 words to all ranks, or adds it there."""
    tile, t = tc.shared(32, x.dtype, align=128), tc.threadIdx.x
    tile[t] = x[t]
    tc.fence_proxy_async()
    tc.barrier()
    if (t == 0) & (peers.rank == 1):
        tc.emit(text, peers.multicast().at(0), tile.address, 128)
        tc.tma_store_commit()
        tc.tma_store_wait(0)


@pytest.mark.parametrize("op", ["", ".add.u32", ".min.s32", ".inc.u32"])
def test_bulk_copies_reach_all_ranks(op):
    dtype = np.int32 if "s32" in op else np.uint32
    before, x = peers_of(dtype), peers_of(dtype, seed=1)
    combine = {"": lambda old, new: new, ".add.u32": np.add, ".min.s32": np.minimum}
    combine[".inc.u32"] = lambda old, new: np.where(old >= new, 0, old + 1).astype(dtype)
    expected = [combine[op](of_rank, x[1]) for of_rank in before]
    kind = "cp.reduce.async" if op else "cp.async"
    with tc.devices(WORLD):
        text = f"multimem.{kind}.bulk.global.shared::cta.bulk_group{op}"
        bulk[1, 32](tc.PeerArray(before, multicast=True), x, text=text)
    np.testing.assert_array_equal(before, expected)


@tc.kernel(threads=32)
def meets(peers: tc.PeerArray, pads: tc.PeerArray, out: tc.Array, how: tc.Const, waits: tc.Const = True):
    """Rank 0 writes its own memory; then rank 1 reads, writes or adds at the multimem address."""
    t, rank = tc.threadIdx.x, peers.rank
    everywhere = peers.multicast()
    if rank == 0:
        peers[0][t] = 7
        tc.barrier()
        if t == 0:
            tc.signal(pads[1].at(0))
    if rank == 1:
        if waits:
            if t == 0:
                tc.wait_signal(pads[1].at(0), 1)
            tc.barrier()
        if how == "load":
            out[t] = tc.emit("multimem.ld_reduce.global.add.s32", everywhere.at(t))
        elif how == "store":
            tc.emit("multimem.st.global.s32", everywhere.at(t), 3)
        else:
            tc.emit("multimem.red.relaxed.sys.global.add.s32", everywhere.at(t), 3)


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("how", ["load", "store", "red"])
def test_races_with_the_memory_of_each_rank(how, waits):
    x, pads, out = ([np.zeros(32, np.int32) for _ in range(WORLD)] for _ in range(3))
    with (
        tc.devices(WORLD),
        contextlib.nullcontext() if waits else pytest.raises(Race, match=r"peers\[0\]|out|peers"),
    ):
        peers = tc.PeerArray(x, multicast=True)
        meets.emulator("sm_90a", checks=True)[1, 32](peers, tc.PeerArray(pads), out, how=how, waits=waits)
    if waits:
        assert out[1][0] == 7 if how == "load" else x[0][5] == (3 if how == "store" else 10)


# What is refused


@tc.kernel(threads=32)
def plain(peers: tc.PeerArray, text: tc.Const):
    if text == "ordinary":
        peers.multicast()[tc.threadIdx.x] = 1
    else:
        tc.emit("multimem.st.global.u32", peers[peers.rank].at(0), 7)


@pytest.mark.parametrize(
    "text, error, message",
    [
        ("ordinary", OutOfBounds, r"multimem address, which multimem\.\* instructions alone take"),
        (
            "",
            EmulationError,
            r"no multimem address: peers\.multicast\(\) of a tc.PeerArray makes one \(9.7.9.14\)",
        ),
    ],
)
def test_addresses_of_the_other_kind(text, error, message):
    with tc.devices(WORLD), pytest.raises(error, match=message):
        plain[1, 32](tc.PeerArray(peers_of(np.uint32), multicast=True), text=text)


def test_no_multimem_address():
    with tc.devices(WORLD), pytest.raises(OperandError, match=r"on a GPU with .*handle\.multicast_ptr\)"):
        plain[1, 32](tc.PeerArray(peers_of(np.uint32)), text="ordinary")


def test_multicast_is_true_in_emulation_and_an_address_on_gpus():
    x = peers_of(np.uint32)
    with tc.devices(WORLD), pytest.raises(ArgumentError, match="multicast=4096; under tc.devices it is True"):
        plain[1, 32](tc.PeerArray(x, multicast=4096), text="")
    with pytest.raises(ArgumentError, match="has multicast=True; .* on a GPU the address"):
        plain[1, 32](tc.PeerArray(x, 0, multicast=True), text="")


def test_the_address_of_a_gpu_arrives():
    """The kernel gets what lies between the array of rank 0 and the multimem address."""
    x = peers_of(np.uint32)
    start = x[0].ctypes.data
    named, _, values = plain.with_peers((tc.PeerArray(x, 1, multicast=start + 4096),), {"text": ""})
    assert values["peers.multicast"] == 4096 and values["peers.rank"] == 1
    assert plain.with_peers((tc.PeerArray(x, 1),), {"text": ""})[0] is not named


@pytest.mark.parametrize(
    "text", ["multimem.ld_reduce.relaxed.sys.global.add.u32", "multimem.ld_reduce.acquire.gpu.global.max.u32"]
)
def test_they_are_assembled(text):
    arrays = [tc.ArrayType(tc.u32, 1, (True,), 16)] * WORLD
    out = tc.ArrayType(tc.u32, 1, (True,), 16)
    given = (tc.PeerArray(arrays, 1, multicast=1 << 40), out)
    assert text in loads.ptx(*given, text=text, words=1, arch="sm_90a")
    assert loads.resources(*given, text=text, words=1, arch="sm_90a").registers > 0
