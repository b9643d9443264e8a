"""Several GPUs: signals between ranks, memory of peers, and what lasts from launch to launch.

A kernel runs on three ranks. `pads` are counters, `launch` is the number of the launch, from 1 on.
"""

from __future__ import annotations

import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl.errors import AssertionFailed, Deadlock, EmulationError, Race
from tests.planted.harness import Planted, error, race

WORLD, SIZE = 3, 64
planted = Planted(Race, devices=WORLD)


def pulled(draw):
    x = [draw.integers(1, 1000, SIZE).astype(np.int32) for _ in range(WORLD)]
    return {
        "peers": tc.PeerArray([np.zeros(SIZE, np.int32) for _ in x]),
        "pads": tc.PeerArray([np.zeros(1, np.int32) for _ in x]),
        "x": x,
        "out": [np.zeros(SIZE, np.int32) for _ in x],
    }, {"out": x[1:] + x[:1]}


@planted(
    1,
    SIZE,
    pulled,
    {
        "no wait": race("peers[rank]", "out[i] ="),
        "signal of gpu scope": race("tc.signal(pads[to]", "tc.wait_signal"),
        "wait of gpu scope": race("tc.signal(pads[to]", "tc.wait_signal"),
        "signals before it writes": race("peers[rank]", "out[i] ="),
        "no barrier before the signal": race("peers[rank]", "out[i] ="),
        "no barrier behind the wait": race("peers[rank]", "out[i] ="),
        "signals to the wrong neighbour": race("peers[rank]", "out[i] ="),
        "waits for two signals": error("tc.wait_signal"),
        "signal is relaxed": race("peers[rank]", "out[i] ="),
    },
    Race,
    Deadlock,
)
def pull(peers: tc.PeerArray, pads: tc.PeerArray, x, out, mistake: tc.Const = ""):
    """Each rank publishes x, and reads what its right neighbour has published."""
    i, rank, world = tc.threadIdx.x, peers.rank, peers.world
    left, right = (rank + world - 1) % world, (rank + 1) % world
    if mistake == "signals before it writes":
        if i == 0:
            tc.signal(pads[left].at(0))
        tc.barrier()
    peers[rank][i] = x[i]
    if mistake != "no barrier before the signal":
        tc.barrier()
    if (
        i == (32 if mistake == "no barrier before the signal" else 0)
        and mistake != "signals before it writes"
    ):
        if mistake == "signal is relaxed":
            tc.reduce("add", pads[left].at(0), 1, scope="sys")
        else:
            to = right if mistake == "signals to the wrong neighbour" else left
            tc.signal(pads[to].at(0), scope="gpu" if mistake == "signal of gpu scope" else "sys")
    if i == 0 and mistake != "no wait":
        scope = "gpu" if mistake == "wait of gpu scope" else "sys"
        tc.wait_signal(pads[rank].at(0), 2 if mistake == "waits for two signals" else 1, scope=scope)
    if mistake != "no barrier behind the wait":
        tc.barrier()
    out[i] = peers[right][i]


def pushed(draw):
    arguments, _ = pulled(draw)
    x = arguments["x"]
    pads = tc.PeerArray([np.zeros(2, np.int32) for _ in x])
    named = {"inbox": arguments["peers"], "pads": pads, "x": x, "out": arguments["out"]}
    return named, {"out": x[-1:] + x[:-1]}


@planted(
    1,
    SIZE,
    pushed,
    {
        "no wait for the reader": race("inbox[right]", "out[i] ="),
        "acknowledges before it reads": race("inbox[right]", "out[i] ="),
        "waits for the launch before": race("inbox[right]", "out[i] ="),
        "resets the counter": race("tc.signal(pads[right]", "pads[rank][0]"),
    },
    launches=2,
)
def push(inbox: tc.PeerArray, pads: tc.PeerArray, x, out, launch: tc.s32, mistake: tc.Const = ""):
    """Each rank writes into the inbox of its right neighbour, in each of two launches."""
    i, rank, world = tc.threadIdx.x, inbox.rank, inbox.world
    left, right = (rank + world - 1) % world, (rank + 1) % world
    if i == 0 and mistake != "no wait for the reader":
        tc.wait_signal(pads[rank].at(1), launch - 1)
    tc.barrier()
    inbox[right][i] = x[i]
    tc.barrier()
    if i == 0:
        tc.signal(pads[right].at(0))
        tc.wait_signal(
            pads[rank].at(0),
            1 if mistake in ("waits for the launch before", "resets the counter") else launch,
        )
        if mistake == "acknowledges before it reads":
            tc.signal(pads[left].at(1))
    tc.barrier()
    out[i] = inbox[rank][i]
    tc.barrier()
    if i == 0 and mistake != "acknowledges before it reads":
        tc.signal(pads[left].at(1))
        if mistake == "resets the counter":
            pads[rank][0] = 0


def summed(draw):
    arguments, _ = pulled(draw)
    sums = arguments.pop("peers")
    return {"sums": sums, **arguments}, {"out": [np.sum(arguments["x"], axis=0)] * WORLD}


@planted(
    1,
    SIZE,
    summed,
    {
        "loads and stores": race("sums[0][i] +="),
        "atomics of gpu scope": race("tc.reduce"),
        "waits for two of three": race("tc.reduce", "out[i] ="),
    },
)
def sum_of_all(sums: tc.PeerArray, pads: tc.PeerArray, x, out, mistake: tc.Const = ""):
    """All ranks add to the sums of rank 0, which all of them read."""
    i, rank = tc.threadIdx.x, sums.rank
    if mistake == "loads and stores":
        sums[0][i] += x[i]
    else:
        tc.reduce("add", sums[0].at(i), x[i], scope="gpu" if mistake == "atomics of gpu scope" else "sys")
    tc.barrier()
    if i == 0:
        for r in tc.static_range(sums.world):
            tc.signal(pads[r].at(0))
        tc.wait_signal(pads[rank].at(0), 2 if mistake == "waits for two of three" else 3)
    tc.barrier()
    out[i] = sums[0][i]


def alone(draw):
    arguments, _ = pulled(draw)
    del arguments["peers"]
    return arguments, {"out": arguments["x"]}


@planted(1, SIZE, alone, error("tc.wait_signal"), Deadlock)
def wait_first(pads: tc.PeerArray, x, out, mistake: tc.Const = ""):
    """A ring of ranks."""
    i, rank, world = tc.threadIdx.x, pads.rank, pads.world
    if i == 0:
        if not mistake:
            tc.signal(pads[(rank + 1) % world].at(0))
        tc.wait_signal(pads[rank].at(0), 1)
        if mistake:
            tc.signal(pads[(rank + 1) % world].at(0))
    tc.barrier()
    out[i] = x[i]


def neighbours(draw):
    arguments, _ = pulled(draw)
    del arguments["pads"]
    return arguments, {"out": arguments["x"]}


@planted(1, SIZE, neighbours, error("out[i] ="), AssertionFailed)
def last_rank(peers: tc.PeerArray, x, out, mistake: tc.Const = ""):
    """The last rank has no right neighbour."""
    i, rank = tc.threadIdx.x, peers.rank
    right = rank + 1 if mistake else (rank + 1) % peers.world
    out[i] = peers[right][i] + x[i]


def passed(draw):
    arguments, _ = pulled(draw)
    none = np.zeros(SIZE, np.int32)
    return arguments, {"out": [none, none, arguments["x"][0]]}


@planted(
    1,
    SIZE,
    passed,
    {
        "passes it on before it waits": race("peers[0][i] =", "out[i] ="),
        "passes it on in gpu scope": race('else "sys"', "tc.wait_signal(pads[2"),
        "passes it on relaxed": race("peers[0][i] =", "out[i] ="),
        "fence of gpu scope": race("peers[0][i] =", "out[i] ="),
    },
)
def through_a_third(peers: tc.PeerArray, pads: tc.PeerArray, x, out, mistake: tc.Const = ""):
    """Rank 0 publishes, rank 1 passes its signal on to rank 2, which reads."""
    i, rank = tc.threadIdx.x, peers.rank
    if rank == 0:
        peers[0][i] = x[i]
        tc.barrier()
        if i == 0:
            if mistake == "fence of gpu scope":
                tc.emit("fence.acq_rel.gpu")
                tc.emit("red.relaxed.sys.global.add.u32", pads[1].at(0), 1)
            else:
                tc.signal(pads[1].at(0))
    elif rank == 1:
        if i == 0:
            if mistake == "passes it on before it waits":
                tc.signal(pads[2].at(0))
            tc.wait_signal(pads[1].at(0), 1)
            if mistake == "passes it on relaxed":
                tc.reduce("add", pads[2].at(0), 1, scope="sys")
            elif mistake != "passes it on before it waits":
                tc.signal(pads[2].at(0), scope="gpu" if mistake == "passes it on in gpu scope" else "sys")
    else:
        if i == 0:
            tc.wait_signal(pads[2].at(0), 1)
        tc.barrier()
        out[i] = peers[0][i]


def bulk_pushed(draw):
    named, expected = pushed(draw)
    named["inbox"] = tc.PeerArray([np.zeros((1, SIZE), np.int32) for _ in range(WORLD)])
    return named, expected


@planted(
    1,
    SIZE,
    bulk_pushed,
    {
        "no wait for the store": race("tc.tma_store(target", "tc.tma_load"),
        "waits until the store has read": race("tc.tma_store(target", "tc.tma_load"),
        "no proxy fence": error("tc.tma_load"),
        "waits for two signals": error("tc.wait_signal"),
    },
    EmulationError,
)
def bulk_push(inbox: tc.PeerArray, pads: tc.PeerArray, x, out, mistake: tc.Const = ""):
    """TMA writes into the inbox of the right neighbour, and TMA reads it there."""
    i, rank, world = tc.threadIdx.x, inbox.rank, inbox.world
    right = (rank + 1) % world
    tile, bar = tc.shared((1, SIZE), tc.s32, align=128), tc.mbarriers(1)[0]
    landing = tc.shared((1, SIZE), tc.s32, align=128)
    boxes, target = tc.tensor_map(inbox[rank], (1, SIZE)), tc.tensor_map(inbox[right], (1, SIZE))
    tile[0, i] = x[i]
    if i == 0:
        bar.init(1)
        tc.fence_mbarrier_init()
    tc.fence_proxy_async()
    if mistake == "no proxy fence":
        inbox[right][0, i] = x[i]
    tc.barrier()
    if i == 0:
        if mistake != "no proxy fence":
            tc.tma_store(target, (0, 0), tile)
            tc.tma_store_commit()
            if mistake != "no wait for the store":
                tc.tma_store_wait(0, read=mistake == "waits until the store has read")
        tc.signal(pads[right].at(0))
        tc.wait_signal(pads[rank].at(0), 2 if mistake == "waits for two signals" else 1)
        bar.arrive_expect_tx(boxes.bytes)
        tc.tma_load(landing, boxes, (0, 0), bar)
    tc.barrier()
    bar.wait(0)
    out[i] = landing[0, i]


def ringed(draw):
    named, _ = pushed(draw)
    named["peers"] = named.pop("inbox")
    return named, {"out": [np.sum(named["x"], axis=0)] * WORLD}


@planted(1, SIZE, ringed, race("peers[right]", "part = peers"))
def ring(peers: tc.PeerArray, pads: tc.PeerArray, x, out, mistake: tc.Const = ""):
    """A ring all-reduce: a part of x goes around and grows, in one buffer for two steps."""
    i, rank, world = tc.threadIdx.x, peers.rank, peers.world
    left, right = (rank + world - 1) % world, (rank + 1) % world
    total = x[i]
    part = x[i]
    for step in tc.static_range(world - 1):
        if not mistake and step > 0 and i == 0:
            tc.wait_signal(pads[rank].at(1), step)
        tc.barrier()
        peers[right][i] = part
        tc.barrier()
        if i == 0:
            tc.signal(pads[right].at(0))
            tc.wait_signal(pads[rank].at(0), step + 1)
        tc.barrier()
        part = peers[rank][i]
        total += part
        tc.barrier()
        if i == 0:
            tc.signal(pads[left].at(1))
    out[i] = total
