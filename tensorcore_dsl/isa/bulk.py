"""mbarriers, asynchronous stores, bulk and tensor copies, clusters, setmaxnreg and programmatic dependent launch.

Sections 9.7.13.15 (mbarrier), 9.7.9.12 and 9.7.13.7 (asynchronous stores), 9.7.9.25 (bulk copies), 9.7.13.3 (clusters), 9.7.9.23 (mapa),
9.7.19.5 (setmaxnreg), 9.7.13.13 (griddepcontrol). A tensor map is passed by its generic address;
coordinates count elements, innermost axis first.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorcore_dsl.errors import EmulationError
from tensorcore_dsl.isa import generic, reductions
from tensorcore_dsl.isa.context import CLUSTER_SHIFT, FARTHEST, Context, active_threads
from tensorcore_dsl.isa.effects import BLOCKING, VOLATILE, Effect
from tensorcore_dsl.isa.memory import no_effect
from tensorcore_dsl.isa.spec import Instruction, Row, row

CLUSTER = VOLATILE | Effect.CLUSTER
BAR = "9.7.13.15"
BARRIER = VOLATILE | Effect.TRACKED
WAIT = BLOCKING | Effect.MBARRIER | Effect.TRACKED
COPY = VOLATILE | Effect.BULK
SHARED_COPY = COPY | Effect.ASYNC_PROXY

HOPPER: Any = {"requires": "90", "ptx": "8.0"}

# What the rows do at their addresses (`access.Access`). A load counts bytes at the mbarrier `bar`.
COUNTED, PEER_COUNTED = "; sync bar shared::cta 8", "; sync bar shared::cluster 8"
LOAD = "store dst shared::cluster size mbarrier; load src global size mbarrier" + COUNTED
SHARE = "store dst shared::cluster size mbarrier; load src shared::cta size mbarrier" + PEER_COUNTED
STORE = "store dst global size bulk_group; load src shared::cta size bulk_group"
REDUCE = "update dst global size*{t} relaxed.gpu bulk_group; load src shared::cta size bulk_group"
TENSOR_LOAD = "store dst shared::cluster box mbarrier; load map global box mbarrier" + COUNTED
TENSOR_STORE = "store map global box bulk_group; load src shared::cta box bulk_group"
TENSOR_REDUCE = "update map global box*b32 relaxed.gpu bulk_group; load src shared::cta box bulk_group"
OWN = "sync bar shared::cta 8"
ARRIVE, OBSERVE = OWN + " release.cta", OWN + " acquire.cta"


# -- semantics ---------------------------------------------------------------------------------


def init(ctx: Context, instr: Instruction, bar: Any, count: Any) -> None:
    ctx.mbarriers.init(bar, count)


def invalidate(ctx: Context, instr: Instruction, bar: Any) -> None:
    ctx.mbarriers.init(bar, None)


def arrive(ctx: Context, instr: Instruction, bar: Any, *number: Any) -> None:
    """mbarrier.arrive and arrive_drop; `number`: arrivals, or the bytes that one arrival announces."""
    _check_own(ctx, instr, bar)
    count, expected = (*number, np.uint32(0)) if number else (np.uint32(1), np.uint32(0))
    kind, drops = instr.params["kind"], instr.params["op"] == "arrive_drop"
    if kind == EXPECT:
        count, expected = np.uint32(1), count
    ctx.mbarriers.arrive(bar, count, expected, drops, ends=kind != NO_COMPLETE)


def count_bytes(ctx: Context, instr: Instruction, bar: Any, size: Any) -> None:
    """mbarrier.expect_tx and complete_tx."""
    _check_own(ctx, instr, bar)
    if instr.params["op"] == "complete_tx":
        ctx.mbarriers.complete_tx(bar, size)
    else:
        ctx.mbarriers.arrive(bar, np.uint32(0), size)


def arrive_behind_copies(ctx: Context, instr: Instruction, bar: Any) -> None:
    ctx.async_copies.arrive(bar, counted=bool(instr.params["noinc"]))


def wait(ctx: Context, instr: Instruction, bar: Any, parity: Any) -> Any:
    """mbarrier.try_wait, which may end before the phase does."""
    ready = ctx.mbarriers.done(bar, parity)
    return ready | ctx.mbarriers.early, ready


def test(ctx: Context, instr: Instruction, bar: Any, parity: Any) -> Any:
    return ctx.mbarriers.done(bar, parity)


def _check_own(ctx: Context, instr: Instruction, dst: Any) -> None:
    """EmulationError for an address of another CTA where the row says `shared::cta`."""
    if instr.space == "shared::cta" and dst.max() >> CLUSTER_SHIFT:
        abroad = np.broadcast_to(dst >> np.uint32(CLUSTER_SHIFT) != 0, (ctx.threads,))
        if (abroad & active_threads(ctx)).any():
            raise EmulationError(
                f"{instr.summary} to shared::cta was given the shared memory of another CTA of the "
                f"cluster; the text with shared::cluster goes there ({instr.section})"
            )


def load_tensor(ctx: Context, instr: Instruction, dst: Any, tensor: Any, *operands: Any) -> None:
    _check_own(ctx, instr, dst)
    rank = int(instr.params["rank"])
    coordinates, (bar, *extra) = operands[:rank], operands[rank:]
    offsets = None
    if instr.params["im2col"]:
        offsets, extra = extra[: rank - 2], extra[rank - 2 :]
    mask = extra[0] if instr.params["multicast"] else None
    ctx.bulk.tensor_load(dst, tensor, coordinates, offsets, bar, mask)


def store_tensor(ctx: Context, instr: Instruction, tensor: Any, *operands: Any) -> None:
    rank = int(instr.params["rank"])
    offsets = [0] * (rank - 2) if instr.params["im2col"] else None
    ctx.bulk.tensor_store(tensor, operands[:rank], offsets, operands[rank], instr.params.get("op"))


def load_bulk(ctx: Context, instr: Instruction, dst: Any, src: Any, size: Any, bar: Any, *more: Any) -> None:
    _check_own(ctx, instr, dst)
    mask = more[0] if instr.params["multicast"] else None
    ctx.bulk.load(dst, src, size, bar, mask)


def store_bulk(ctx: Context, instr: Instruction, dst: Any, src: Any, size: Any, *policy: Any) -> None:
    ctx.bulk.store(dst, src, size, instr.params.get("op"), instr.params.get("t"))


def share_bulk(ctx: Context, instr: Instruction, dst: Any, src: Any, size: Any, bar: Any) -> None:
    ctx.bulk.copy_to_cta(dst, src, size, bar)


def commit_bulk(ctx: Context, instr: Instruction) -> None:
    ctx.bulk.commit()


def wait_bulk(ctx: Context, instr: Instruction, pending: int) -> None:
    ctx.bulk.wait(pending, reading=bool(instr.params["read"]))


def store_async(ctx: Context, instr: Instruction, p: Any, value: Any, bar: Any) -> None:
    """st.async: 1, 2 or 4 words."""
    words = np.asarray(value).reshape(int(instr.params["n"]), -1)
    ctx.async_stores.store(p, np.broadcast_to(words, (len(words), ctx.threads)), bar)


def reduce_async(ctx: Context, instr: Instruction, p: Any, value: Any, bar: Any) -> None:
    op, kind = instr.params["op"], instr.params["t"]
    ctx.async_stores.update(ctx, p, value, bar, reductions.update(op, kind))


def clear(ctx: Context, instr: Instruction, p: Any, size: Any, value: int) -> None:
    """st.bulk: zeros, in words of 8 bytes."""
    active = active_threads(ctx)
    sizes = np.broadcast_to(size, active.shape)
    if (sizes[active] % 8).any():
        raise EmulationError(f"{instr.mnemonic} clears a multiple of 8 bytes, not {sizes[active].max()}")
    for offset in range(0, int(sizes.max(where=active, initial=0)), 8):
        lanes: Any = generic.Lanes(ctx, active & (offset < sizes))
        ctx.shared.store(lanes, p + np.uint32(offset), np.zeros((1, ctx.threads), np.uint64))


def map_address(ctx: Context, instr: Instruction, address: Any, rank: Any) -> Any:
    """Addresses of the same offset in the CTAs of these ranks; no access may use the address of a rank that
    does not exist.
    """
    upper = np.minimum(rank, np.uint32(FARTHEST)) + np.uint32(1) << np.uint32(CLUSTER_SHIFT)
    return address & np.uint32((1 << CLUSTER_SHIFT) - 1) | upper


def cluster_arrive(ctx: Context, instr: Instruction) -> None:
    ctx.clusters.arrive()


def cluster_wait(ctx: Context, instr: Instruction) -> Any:
    return ctx.clusters.done()


def depend(ctx: Context, instr: Instruction) -> None:
    """griddepcontrol."""
    if instr.params["what"] == "wait":
        ctx.dependency.wait()
    else:
        ctx.dependency.launch_dependents()


def set_registers(ctx: Context, instr: Instruction, count: int) -> Any:
    return ctx.clusters.set_registers(instr, count, grow=instr.params["way"] == "inc")


# -- rows --------------------------------------------------------------------------------------

# Where tensor loads write: the space, multicast with its mask, and the PTX version.
DESTINATIONS = (
    ("shared::cluster", "", "", "", "8.0"),
    ("shared::cluster", ".multicast::cluster", ", mask:b16", ", {mask}", "8.0"),
    ("shared::cta", "", "", "", "8.6"),
)


# Cache hints: the suffix, the operand and its text.
HINTS = ("", "", ""), (".L2::cache_hint", ", policy:b64", ", {policy}")


def _tensor_rows() -> list[Row]:
    """Tensor copies of rank 1 to 5 in tile mode, and of rank 3 to 5 in im2col mode."""
    rows = []
    for rank in range(1, 6):
        for im2col in (False, True) if rank > 2 else (False,):
            rows += _tensor_loads(rank, im2col)
            rows += _tensor_stores(rank, im2col)
    return rows


def _tensor_fields(rank: int, im2col: bool) -> dict[str, Any]:
    return {**HOPPER, "rank": str(rank), "im2col": "yes" if im2col else "-"}


def _braced(names: list[str]) -> str:
    """Template of a vector operand."""
    return "{{" + ", ".join(f"{{{name}}}" for name in names) + "}}"


def _box(rank: int) -> tuple[str, str]:
    """Coordinates of a box in a signature, and the map with them in a template."""
    names = [f"c{i}" for i in range(rank)]
    return ", ".join(f"{name}:s32" for name in names), f"[{{map}}, {_braced(names)}]"


def _im2col_offsets(rank: int, im2col: bool) -> tuple[str, str]:
    """Offsets of im2col mode in a signature and in a template."""
    names = [f"o{i}" for i in range(rank - 2)] if im2col else []
    return "".join(f", {name}:b16" for name in names), f", {_braced(names)}" if names else ""


def _tensor_loads(rank: int, im2col: bool) -> list[Row]:
    coordinates, box = _box(rank)
    offsets, offsets_text = _im2col_offsets(rank, im2col)
    mode = "im2col" if im2col else "tile"
    fields = _tensor_fields(rank, im2col)
    return [
        row(
            f"cp.async.bulk.tensor.{rank}d.{space}.global.{mode}.mbarrier::complete_tx::bytes{cast}{hint}",
            f"dst:[u32], map:u64, {coordinates}, bar:[u32]{offsets}{mask}{policy}",
            "9.7.9.25.5.2",
            load_tensor,
            effects=COPY,
            template=f"{{dst}}, {box}, {{bar}}{offsets_text}{mask_text}{policy_text}",
            access=TENSOR_LOAD.replace("dst shared::cluster", f"dst {space}"),
            **fields | {"ptx": ptx, "multicast": "yes" if cast else "-"},
        )
        for space, cast, mask, mask_text, ptx in DESTINATIONS
        for hint, policy, policy_text in HINTS
    ]


def _tensor_stores(rank: int, im2col: bool) -> list[Row]:
    """Stores, each followed by the prefetch of the same mode and hint; and the reduction."""
    coordinates, box = _box(rank)
    offsets, offsets_text = _im2col_offsets(rank, im2col)
    load_mode, mode = ("im2col", "im2col_no_offs") if im2col else ("tile", "tile")
    out = f"tensor.{rank}d.global.shared::cta"
    store = f"map:u64, {coordinates}, src:[u32]"
    fields = _tensor_fields(rank, im2col)
    rows = []
    for hint, policy, policy_text in HINTS:
        rows += [
            row(
                f"cp.async.bulk.{out}.{mode}.bulk_group{hint}",
                store + policy,
                "9.7.9.25.5.2",
                store_tensor,
                access=TENSOR_STORE,
                template=f"{box}, {{src}}{policy_text}",
                effects=SHARED_COPY,
                **fields,
            ),
            row(
                f"cp.async.bulk.prefetch.tensor.{rank}d.L2.global.{load_mode}{hint}",
                f"map:u64, {coordinates}{offsets}{policy}",
                "9.7.9.25.5.4",
                no_effect,
                access="hint map global box",
                template=box + offsets_text + policy_text,
                effects=COPY,
                **fields,
            ),
        ]
    reduction = row(
        f"cp.reduce.async.bulk.{out}.{{op}}.{mode}.bulk_group",
        store,
        "9.7.9.25.5.3",
        store_tensor,
        access=TENSOR_REDUCE,
        template=box + ", {src}",
        op="add min max inc dec and or xor",
        effects=SHARED_COPY,
        **fields,
    )
    return [*rows, reduction]


REGISTERS = f"count:#u32({'|'.join(map(str, range(24, 257, 8)))})"

EXPECT, NO_COMPLETE = ".expect_tx", ".noComplete"
# Arrivals: one, several (`.count` is the table's own word), or one that announces bytes; target and
# PTX version where the mbarrier is the CTA's own.
ARRIVALS = (
    ("-", "", "", "", "80", "7.8"),
    ("-", ", count:u32", ", {count}", ".count", "90", "7.8"),
    (EXPECT, ", bytes:u32", ", {bytes}", "", "90", "8.0"),
)
RELAXED = ".relaxed.cta .relaxed.cluster"

# fmt: off
MBARRIERS = [
    row("mbarrier.init.shared::cta.b64",                "bar:[u32], count:u32",                 BAR, init,          effects=BARRIER, access=OWN, requires="80", ptx="7.8"),
    row("mbarrier.inval.shared::cta.b64",               "bar:[u32]",                            BAR, invalidate,    effects=BARRIER, access=OWN, requires="80", ptx="7.8"),
    row("mbarrier.{op}{sem}.{s}.b64",                   "bar:[u32], bytes:u32",                 BAR, count_bytes,   op="expect_tx complete_tx", sem="- .relaxed.cta .relaxed.cluster", s="shared::cta shared::cluster", effects=BARRIER, access="sync bar {s} 8 relaxed.cta{sem}", **HOPPER),
    row("cp.async.mbarrier.arrive{noinc}.shared::cta.b64", "bar:[u32]",                         BAR, arrive_behind_copies, noinc="- .noinc", effects=BARRIER, access=ARRIVE, requires="80", ptx="7.8"),
    *[row("mbarrier.{op}.parity{sem}.shared::cta.b64",  "p:pred = bar:[u32], parity:u32",       BAR, _execute,      op=_op, sem=_sem, effects=_effects, access=OBSERVE + "{sem}", requires=_sm, ptx=_ptx)
      for _op, _execute, _effects, _least in (("try_wait", wait, WAIT, "90"), ("test_wait", test, BARRIER, "80"))
      for _sem, _sm, _ptx in (("-", _least, "7.8"), (".acquire.cta", _least, "8.0"), (".acquire.cluster", "90", "8.0"))],
    *[row("mbarrier.{op}{kind}{sem}.{s}.b64",           "bar:[u32], count:u32",                 BAR, arrive,        kind=NO_COMPLETE, op="arrive arrive_drop", sem=_sem, s="shared::cta", effects=BARRIER, access=ARRIVE, requires="80", ptx=_ptx, template="!mbarrier.{op}{kind}{sem}.{s}.b64 _, {bar}, {count}")
      for _sem, _ptx in (("-", "7.8"), (".release.cta", "8.0"))],
    *[row("mbarrier.{op}{kind}{sem}.{s}.b64" + _tail,   "bar:[u32]" + _number,                  BAR, arrive,        kind=_kind, op="arrive arrive_drop", sem=_sem, s=_space, effects=_effects, access="sync bar {s} 8 " + ("relaxed.cta{sem}" if _sem == RELAXED else "release.cta{sem}"), requires=_sm, ptx=_ptx, template="!mbarrier.{op}{kind}{sem}.{s}.b64 _, {bar}" + _text)
      for _kind, _number, _text, _tail, _least, _first in ARRIVALS for _sem, _space, _effects, _sm, _ptx in (
          ("-", "shared::cta", BARRIER, _least, _first), (".release.cta", "shared::cta", BARRIER, _least, "8.0"),
          (".release.cluster", "shared::cta", BARRIER, "90", "8.0"), ("- .release.cta .release.cluster", "shared::cluster", CLUSTER, "90", "8.0"),
          (RELAXED, "shared::cta", BARRIER, "90", "8.6"), (RELAXED, "shared::cluster", CLUSTER, "90", "8.6"))],
]
BULK = [
    *[row(f"cp.async.bulk.{_space}.global.mbarrier::complete_tx::bytes{_cast}{_hint}",              f"dst:[u32], src:[u64], size:u32, bar:[u32]{_mask}{_policy}", "9.7.9.25.4.1", load_bulk, access=LOAD.replace("dst shared::cluster", f"dst {_space}"), effects=COPY, requires="90", ptx=_ptx, multicast="yes" if _cast else "-")
      for _space, _cast, _mask, _, _ptx in DESTINATIONS for _hint, _policy, _ in HINTS if not (_cast and _hint)],
    *[row("cp.async.bulk.prefetch.L2.global" + _hint,                                               "src:[u64], size:u32" + _policy,                         "9.7.9.25.4.3", no_effect, access="hint src global size", effects=COPY, **HOPPER)
      for _hint, _policy, _ in HINTS],
    row("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes",                   "dst:[u32], src:[u32], size:u32, bar:[u32]",             "9.7.9.25.4.1", share_bulk, access=SHARE, effects=SHARED_COPY, **HOPPER),
    row("cp.async.bulk.global.shared::cta.bulk_group",                                              "dst:[u64], src:[u32], size:u32",                        "9.7.9.25.4.1", store_bulk, access=STORE, effects=SHARED_COPY, **HOPPER),
    row("cp.reduce.async.bulk.global.shared::cta.bulk_group.{op}.{t}",                              "dst:[u64], src:[u32], size:u32",                        "9.7.9.25.4.2", store_bulk, access=REDUCE, effects=SHARED_COPY, **HOPPER, op="add min max", t="u32 s32 u64"),
    row("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.{t}",                               "dst:[u64], src:[u32], size:u32",                        "9.7.9.25.4.2", store_bulk, access=REDUCE, effects=SHARED_COPY, **HOPPER, op="add", t="f32 f64"),
    row("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.noftz.{t}",                         "dst:[u64], src:[u32], size:u32",                        "9.7.9.25.4.2", store_bulk, access=REDUCE, effects=SHARED_COPY, **HOPPER, op="add", t="f16 bf16"),
    row("cp.async.bulk.commit_group",                                                               "",                                                      "9.7.9.25.3.1", commit_bulk, effects=VOLATILE, **HOPPER),
    row("cp.async.bulk.wait_group{read}",                                                           "n:#u32",                                                "9.7.9.25.3.2", wait_bulk,  effects=VOLATILE, **HOPPER, read="- .read"),
    row("prefetch.tensormap",                                                                       "map:u64",                                               "9.7.9.15",     no_effect,  effects=VOLATILE, **HOPPER, template="[{map}]"),
]
ASYNC = "mbarrier; sync bar shared::cluster 8"
STORES = [
    row("st.async{weak}.shared::cluster.mbarrier::complete_tx::bytes{v}.{t}", "p:[u32], b:{t}*{n}, bar:[u32]", "9.7.9.12", store_async, weak="- .weak", v_n="/1 .v2/2 .v4/4", t="b32 b64", where=lambda axes: (axes["n"], axes["t"]) != ("4", "b64"), access="store p shared::cluster {n}*{t} " + ASYNC, effects=BARRIER, requires="90", ptx="8.1"),
    row("red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.{op}.{t}", "p:[u32], b:{t}, bar:[u32]", "9.7.13.7", reduce_async, op_t="add/u32 add/s32 add/u64 min/u32 min/s32 max/u32 max/s32 inc/u32 dec/u32 and/b32 or/b32 xor/b32", access="update p shared::cluster 1*{t} relaxed.cluster " + ASYNC, effects=BARRIER, requires="90", ptx="8.1"),
    row("st.bulk{weak}.shared::cta",           "p:[u32], size:u64, value:#u32(0)",   "9.7.9.13",  clear,          weak="- .weak", access="store p shared::cta size", effects=VOLATILE, requires="100", ptx="8.6"),
]
CLUSTERS = [
    row("barrier.cluster.arrive{sem}{al}",     "",                                   "9.7.13.3",  cluster_arrive, effects=CLUSTER, **HOPPER, sem="- .release .relaxed", al="- .aligned"),
    row("barrier.cluster.wait{sem}{al}",       "",                                   "9.7.13.3",  cluster_wait,   effects=BLOCKING | Effect.CLUSTER, **HOPPER, sem="- .acquire", al="- .aligned"),
    row("mapa.shared::cluster.u32",            "d:u32 = a:u32, cta:u32",             "9.7.9.23",  map_address,    requires="90", ptx="7.8"),
    row("setmaxnreg.{way}.sync.aligned.u32",   REGISTERS,                             "9.7.19.5",  set_registers,  effects=BLOCKING | Effect.TRACKED, requires="90a 100f 110a 120f", ptx="8.0", way="inc dec"),
    row("griddepcontrol.{what}",               "",                                   "9.7.13.13", depend,         effects=VOLATILE, requires="90", ptx="7.8", what="wait launch_dependents"),
]
# fmt: on

ROWS = (*MBARRIERS, *BULK, *STORES, *_tensor_rows(), *CLUSTERS)
