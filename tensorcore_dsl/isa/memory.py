"""Loads, stores, asynchronous copies, atomics and fences (9.7.9.8 to 9.7.9.25, 9.7.13.4 to .6).

An `addr` operand is printed with its brackets. 8-bit words are held in 16-bit registers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tensorcore_dsl.isa import reductions
from tensorcore_dsl.isa.context import Context, Memory
from tensorcore_dsl.isa.effects import VOLATILE, Effect
from tensorcore_dsl.isa.spec import Instruction, Row, row

COPIES = VOLATILE | Effect.LOAD | Effect.STORE  # effects of a wait for copies

# Access texts (`access.Access`) of {n} words of type {t} at address p.
LOAD, STORE = "load p {s} {n}*{t}", "store p {s} {n}*{t}"
GLOBAL_LOAD, GLOBAL_STORE = (text.replace("{s}", "global") for text in (LOAD, STORE))
# Atomics without an order are relaxed, without a scope of the GPU (9.7.13.5).
WORD_UPDATE = "update p {s} 1*{t} relaxed{sem}"
CLUSTER_UPDATE = WORD_UPDATE.replace("{s}", "shared::cluster")
VECTOR_UPDATE = "update p global {n}*{t} relaxed{sem}"
COPY = "store dst shared size async_group; load src global size async_group"
ZERO_FILLED = "store dst shared size async_group; load src global valid async_group"
SKIPPED = f"{COPY} unless=skip"

# Word in memory, its register, and vector lengths (at most 16 bytes).
WORDS = (
    *("/b8/b8/1", "/b16/b16/1", "/b32/b32/1", "/b64/b64/1"),
    *(".v2/b8/b8/2", ".v2/b16/b16/2", ".v2/b32/b32/2", ".v2/b64/b64/2"),
    *(".v4/b8/b8/4", ".v4/b16/b16/4", ".v4/b32/b32/4"),
)
WIDE_WORDS = ".v8/b32/b32/8 .v4/b64/b64/4"
EVICT = ".L1::evict_normal .L1::evict_unchanged .L1::evict_first .L1::evict_last .L1::no_allocate"
EVICT_L2 = ".L2::evict_normal .L2::evict_first .L2::evict_last"


def _space(ctx: Context, instr: Instruction) -> Memory:
    if ".shared::cluster" in instr.mnemonic:
        return ctx.cluster
    return ctx.shared if ".shared" in instr.mnemonic else ctx.globals


def load(ctx: Context, instr: Instruction, address: np.ndarray, *policy: Any) -> np.ndarray:
    """ld: bytes are zero-extended to 16 bits."""
    count, width = int(instr.params["n"]), int(instr.params["t"][1:]) // 8
    words = _space(ctx, instr).load(ctx, address, width, count)
    if width == 1:
        words = words.astype(np.uint16)
    return words if count > 1 else words[0]


def store(ctx: Context, instr: Instruction, address: np.ndarray, value: Any, *policy: Any) -> None:
    """st: an 8-bit store writes the low byte of a 16-bit register."""
    word = np.dtype(f"u{int(instr.params['t'][1:]) // 8}")
    count = int(instr.params["n"])
    values = np.asarray(value).astype(word)
    values = values.reshape(count, -1) if count > 1 else np.atleast_1d(values)[None]
    _space(ctx, instr).store(ctx, address, np.broadcast_to(values, (count, ctx.threads)))


def copy_async(
    ctx: Context, instr: Instruction, target: np.ndarray, source: np.ndarray, size: int, *modifier: Any
) -> None:
    """cp.async, which takes effect at a wait; `modifier` is src-size or ignore-src."""
    valid: Any = size
    if modifier and instr.params.get("kind") == ".ignore":
        valid = np.where(modifier[0], 0, size)
    elif modifier and instr.params.get("kind") == ".zfill":
        valid = modifier[0]
    valid = np.broadcast_to(np.asarray(valid, np.uint32), (ctx.threads,))
    ctx.async_copies.issue(ctx, target, source, size, valid)


def commit_group(ctx: Context, instr: Instruction) -> None:
    ctx.async_copies.commit()


def wait_group(ctx: Context, instr: Instruction, pending: int = 0) -> None:
    """cp.async.wait_group; wait_all commits the open group first."""
    if instr.mnemonic == "cp.async.wait_all":
        ctx.async_copies.commit()
    ctx.async_copies.wait(pending)


def no_effect(ctx: Context, instr: Instruction, *operands: Any) -> None:
    """Cache hints."""


def discard(ctx: Context, instr: Instruction, address: np.ndarray, size: int) -> None:
    """discard: memory becomes undefined. The emulator sets all bits, so that reads are noticed."""
    ctx.globals.store(ctx, address, np.full((16, ctx.threads), -1, np.int64).view(np.uint64))


def fence(ctx: Context, instr: Instruction) -> None:
    """fence, membar: accesses are immediate in emulation, so only the race checks use the fence."""
    ctx.fence(instr)


def policy(ctx: Context, instr: Instruction, *operands: Any) -> np.ndarray:
    """createpolicy: an opaque word, since cache policies are only hints."""
    return np.zeros(ctx.threads, np.uint64)


def atomic(ctx: Context, instr: Instruction, address: np.ndarray, *operands: Any) -> np.ndarray:
    """atom: the old words; threads update in order."""
    kind, vector = instr.params["t"], "n" in instr.params
    width = _ATOMIC_WIDTH.get(kind) or int(kind[1:]) // 8
    update = _update(instr.params["op"], kind, instr)
    if not vector:
        operands = tuple(np.broadcast_to(o, (ctx.threads,)) for o in operands)
        return _space(ctx, instr).atomic(ctx, address, width, update, *operands)
    words = [
        _space(ctx, instr).atomic(ctx, address + np.uint64(i * width), width, update, value)
        for i, value in enumerate(np.asarray(operands[0]))
    ]
    return np.stack(words)


def reduce(ctx: Context, instr: Instruction, address: np.ndarray, *operands: Any) -> None:
    """red: an atomic without a result."""
    atomic(ctx, instr, address, *operands)


_ATOMIC_WIDTH = {"f16": 2, "bf16": 2, "f16x2": 4, "bf16x2": 4, "b16": 2}
Update = Callable[..., np.ndarray]


def _update(op: str, kind: str, instr: Instruction) -> Update:
    """`update(old, *operands)` on arrays of bits."""
    if op in _BIT_UPDATES:
        return _BIT_UPDATES[op]
    if kind[0] in "su":
        return reductions.integer_update(op, kind)
    from tensorcore_dsl.numerics import scalar

    # atom.add.f32 flushes subnormals in global memory alone (9.7.13.5).
    ftz = kind == "f32" and ".global" in instr.mnemonic
    return lambda old, value: scalar.arith(op, kind, old, value, rounding="rn", ftz=ftz)


_BIT_UPDATES: Mapping[str, Update] = {
    **reductions.BIT_UPDATES,
    "exch": lambda old, value: value,
    "cas": lambda old, expected, value: np.asarray(np.where(old == expected, value, old)),
}

SEM = (
    "- .relaxed.cta .relaxed.gpu .relaxed.sys .acquire.cta .acquire.gpu .acquire.sys "
    ".release.cta .release.gpu .release.sys .acq_rel.cta .acq_rel.gpu .acq_rel.sys"
)
RED_SEM = "- .relaxed.cta .relaxed.gpu .relaxed.sys .release.cta .release.gpu .release.sys"
CLUSTER_SCOPE = ".relaxed.cluster .acquire.cluster .release.cluster .acq_rel.cluster"
CLUSTER_RED_SCOPE = ".relaxed.cluster .release.cluster"
CLUSTER_SEM, CLUSTER_RED_SEM = f"{SEM} {CLUSTER_SCOPE}", f"{RED_SEM} {CLUSTER_RED_SCOPE}"
SPACE = "global/u64 shared/u32"
GLOBAL_WORDS = "d:{r}*{n} = p:[u64]"
IN_CLUSTER: Any = {"requires": "90", "ptx": "7.8"}  # shared::cluster: shared memory of another CTA

# fmt: off

def _loads(mnemonic: str, section: str, requires: str, ptx: str, **axes: Any) -> list[Row]:
    """Loads from global memory without and with a prefetch to the second-level cache."""
    least = (("-", requires, ptx), (".L2::64B .L2::128B", "75", "7.4"), (".L2::256B", "80", "7.4"))
    return [
        row(mnemonic, GLOBAL_WORDS, section, load, **axes, l2=l2, v_t_r_n=WORDS, access=GLOBAL_LOAD, requires=target, ptx=version)
        for l2, target, version in least
    ]


def _wide_loads(nc: str, section: str) -> list[Row]:
    """Loads of 32 bytes, and loads with a cache policy."""
    return [
        row(f"ld.global{nc}{{e}}{{f}}{{v}}.{{t}}", GLOBAL_WORDS, section, load, e=f"- {EVICT}", f=f"- {EVICT_L2}", v_t_r_n=WIDE_WORDS, access=GLOBAL_LOAD, requires="100", ptx="8.8"),
        row(f"ld.global{nc}{{e}}.L2::cache_hint{{v}}.{{t}}", f"{GLOBAL_WORDS}, policy:b64", section, load, e=f"- {EVICT}", v_t_r_n=WORDS, access=GLOBAL_LOAD, requires="80", ptx="7.4"),
    ]


def _beyond_global(op: str, operands: str, section: str, execute: Any, text: str, orders: str) -> list[Row]:
    """Loads or stores of shared memory, and strong loads or stores of all spaces."""
    peer, words = text.replace("{s}", "shared::cluster"), operands.replace("{a}", "u32")
    return [
        row(op + ".shared{v}.{t}",                        words,    section, execute, v_t_r_n=WORDS, access=text.replace("{s}", "shared")),
        row(op + ".volatile.{s}{v}.{t}",                  operands, section, execute, s_a=SPACE, v_t_r_n=WORDS, access=text + " volatile.sys", ptx="1.1"),
        row(op + ".{sem}.{scope}.{s}{v}.{t}",             operands, section, execute, sem=orders, scope="cta gpu sys", s_a=SPACE, v_t_r_n=WORDS, access=text + " {sem}.{scope}", requires="70", ptx="6.0"),
        row(op + ".{sem}.cluster.{s}{v}.{t}",             operands, section, execute, sem=orders, s_a=SPACE, v_t_r_n=WORDS, access=text + " {sem}.cluster", requires="90", ptx="7.8"),
        row(op + ".shared::cluster{v}.{t}",               words,    section, execute, v_t_r_n=WORDS, access=peer, **IN_CLUSTER),
        row(op + ".volatile.shared::cluster{v}.{t}",      words,    section, execute, v_t_r_n=WORDS, access=peer + " volatile.sys", **IN_CLUSTER),
        row(op + ".{sem}.{scope}.shared::cluster{v}.{t}", words,    section, execute, sem=orders, scope="cta cluster gpu sys", v_t_r_n=WORDS, access=peer + " {sem}.{scope}", **IN_CLUSTER),
    ]


LOADS = [
    #   mnemonic                                          operands                    section     execute  axes
    *_loads("ld.global{c}{l2}{v}.{t}",    "9.7.9.8", "20", "1.0", c="- .ca .cg .cs .lu .cv"),
    *_loads("ld.global{e}{l2}{v}.{t}",    "9.7.9.8", "70", "7.4", e=EVICT),
    *_wide_loads("", "9.7.9.8"),
    *_loads("ld.global{c}.nc{l2}{v}.{t}", "9.7.9.9", "32", "3.1", c="- .ca .cg .cs"),
    *_loads("ld.global.nc{e}{l2}{v}.{t}", "9.7.9.9", "70", "7.4", e=EVICT),
    *_wide_loads(".nc", "9.7.9.9"),
    *_beyond_global("ld", "d:{r}*{n} = p:[{a}]", "9.7.9.8", load, LOAD, "relaxed acquire"),
]

STORES = [
    row("st.global{c}{v}.{t}",                            "p:[u64], b:{r}*{n}",       "9.7.9.11", store, c="- .wb .cg .cs .wt", v_t_r_n=WORDS, access=GLOBAL_STORE),
    row("st.global{e}{v}.{t}",                            "p:[u64], b:{r}*{n}",       "9.7.9.11", store, e=EVICT, v_t_r_n=WORDS, access=GLOBAL_STORE, requires="70", ptx="7.4"),
    row("st.global{e}{f}{v}.{t}",                         "p:[u64], b:{r}*{n}",       "9.7.9.11", store, e=f"- {EVICT}", f=f"- {EVICT_L2}", v_t_r_n=WIDE_WORDS, access=GLOBAL_STORE, requires="100", ptx="8.8"),
    row("st.global{e}.L2::cache_hint{v}.{t}",             "p:[u64], b:{r}*{n}, policy:b64", "9.7.9.11", store, e=f"- {EVICT}", v_t_r_n=WORDS, access=GLOBAL_STORE, requires="80", ptx="7.4"),
    *_beyond_global("st", "p:[{a}], b:{r}*{n}", "9.7.9.11", store, STORE, "relaxed release"),
]

HINTS = [
    row("prefetch.global.{l}",                            "p:[u64]",                  "9.7.9.15", no_effect, l="L1 L2", access="hint p global 1", ptx="2.0"),
    row("prefetch.global.{l}",                            "p:[u64]",                  "9.7.9.15", no_effect, l="L2::evict_last L2::evict_normal", access="hint p global 1", requires="80", ptx="7.4"),
    row("applypriority.global.L2::evict_normal",          "p:[u64], size:#u32(128)",  "9.7.9.16", no_effect, access="hint p global 128", requires="80", ptx="7.4"),
    row("discard.global.L2",                              "p:[u64], size:#u32(128)",  "9.7.9.17", discard,   access="store p global 16*b64", effects=VOLATILE, requires="80", ptx="7.4"),
    row("createpolicy.fractional.{p}{q}.b64",             "policy:b64 =",             "9.7.9.18", policy, p="L2::evict_last L2::evict_normal L2::evict_first L2::evict_unchanged", q="- .L2::evict_first .L2::evict_unchanged", requires="80", ptx="7.4"),
]

PREFETCH_SIZE = ".L2::64B .L2::128B .L2::256B"
PREFETCH = f"- {PREFETCH_SIZE}"
PREFETCHES = ("-", "7.0"), (PREFETCH_SIZE, "7.4")  # (sizes, first PTX version)
CACHES = ("ca", "(4|8|16)"), ("cg", "(16)")  # (cache, sizes of copies)
CP_ASYNC = "9.7.9.25.3.1"
ASYNC = [
    *[row("cp.async.{cache}.shared.global{l2}", "dst:[u32], src:[u64], size:#u32" + _sizes, CP_ASYNC, copy_async, cache=_cache, l2=_l2, access=COPY, requires="80", ptx=_ptx)
      for _l2, _ptx in PREFETCHES for _cache, _sizes in CACHES],
    *[row("cp.async.{cache}.shared.global{l2}{kind}", "dst:[u32], src:[u64], size:#u32" + _sizes + ", valid:u32", CP_ASYNC, copy_async, cache=_cache, l2=_l2, kind=".zfill", access=ZERO_FILLED, requires="80", ptx=_ptx,
          template="!cp.async.{cache}.shared.global{l2} {dst}, {src}, {size}, {valid}")
      for _cache, _sizes in CACHES for _l2, _ptx in PREFETCHES],
    *[row("cp.async.{cache}.shared.global{l2}{kind}", "dst:[u32], src:[u64], size:#u32" + _sizes + ", skip:pred", CP_ASYNC, copy_async, cache=_cache, l2=PREFETCH, kind=".ignore", access=SKIPPED, requires="80", ptx="7.5",
          template="!cp.async.{cache}.shared.global{l2} {dst}, {src}, {size}, {skip}")
      for _cache, _sizes in CACHES],
    *[row("cp.async.{cache}.shared.global.L2::cache_hint{l2}", "dst:[u32], src:[u64], size:#u32" + _sizes + ", policy:b64", CP_ASYNC, copy_async, cache=_cache, l2=PREFETCH, access=COPY, requires="80", ptx="7.4")
      for _cache, _sizes in CACHES],
    row("cp.async.commit_group",                          "",                         "9.7.9.25.3.2", commit_group, effects=VOLATILE, requires="80", ptx="7.0"),
    row("cp.async.wait_group",                            "n:#u32",                   "9.7.9.25.3.3", wait_group, effects=COPIES, requires="80", ptx="7.0"),
    row("cp.async.wait_all",                              "",                         "9.7.9.25.3.3", wait_group, effects=COPIES, requires="80", ptx="7.0"),
]

# Each line makes `atom` (a result, four orderings) and, but for exch and cas, `red` (no result, two orderings).
ATOMICS = [
    #  operation   types                             suffix     requires ptx
    ("exch",      "b32 b64",                         "",        "60",    "6.0"),
    ("cas",       "b32 b64",                         "",        "60",    "6.0"),
    ("cas",       "b16",                             "",        "70",    "6.3"),
    ("add",       "u32 s32 u64 f32 f64",             "",        "60",    "6.0"),
    ("min",       "u32 s32 u64 s64",                 "",        "32",    "6.0"),
    ("max",       "u32 s32 u64 s64",                 "",        "32",    "6.0"),
    ("inc",       "u32",                             "",        "20",    "6.0"),
    ("dec",       "u32",                             "",        "20",    "6.0"),
    ("and",       "b32 b64",                         "",        "32",    "6.0"),
    ("or",        "b32 b64",                         "",        "32",    "6.0"),
    ("xor",       "b32 b64",                         "",        "32",    "6.0"),
    ("add",       "f16x2",                           ".noftz",  "60",    "6.2"),
    ("add",       "f16",                             ".noftz",  "70",    "6.3"),
    ("add",       "bf16 bf16x2",                     ".noftz",  "90",    "7.8"),
]
VECTOR_ATOMICS = [
    ("add",          "v2/2 v4/4",       "f32",           "",       "8.1"),
    ("add min max",  "v2/2 v4/4 v8/8",  "f16 bf16",      ".noftz", "8.1"),
    ("add min max",  "v2/2 v4/4",       "f16x2 bf16x2",  ".noftz", "8.1"),
]
ATOM, RED = "9.7.13.5", "9.7.13.6"
ATOMIC = []
for _op, _types, _tail, _sm, _ptx in ATOMICS:
    _target = {"requires": _sm, "ptx": _ptx}
    for _where, _address, _sem, _red, _access, _least in (
        ("{s}",             "{a}", SEM,           RED_SEM,           {"s_a": SPACE, "access": WORD_UPDATE}, _target),
        ("{s}",             "{a}", CLUSTER_SCOPE, CLUSTER_RED_SCOPE, {"s_a": SPACE, "access": WORD_UPDATE}, IN_CLUSTER),
        ("shared::cluster", "u32", CLUSTER_SEM,   CLUSTER_RED_SEM,   {"access": CLUSTER_UPDATE},            IN_CLUSTER),
    ):
        _name, _flags = f"{{sem}}.{_where}.{{op}}{_tail}.{{t}}", {"op": _op, "t": _types, **_access, **_least}
        _operands = f"p:[{_address}], b:{{t}}" + (", c:{t}" if _op == "cas" else "")
        ATOMIC.append(row("atom" + _name, "d:{t} = " + _operands, ATOM, atomic, sem=_sem, **_flags))
        if _op not in ("exch", "cas"):
            ATOMIC.append(row("red" + _name, _operands, RED, reduce, sem=_red, **_flags))
for _op, _vec, _types, _tail, _ptx in VECTOR_ATOMICS:
    _flags = {"op": _op, "v_n": _vec, "t": _types, "access": VECTOR_UPDATE, "requires": "90", "ptx": _ptx}
    ATOMIC += [
        row("atom{sem}.global.{op}" + _tail + ".{v}.{t}", "d:{t}*{n} = p:[u64], b:{t}*{n}", ATOM, atomic, sem=CLUSTER_SEM, **_flags),
        row("red{sem}.global.{op}" + _tail + ".{v}.{t}",  "p:[u64], b:{t}*{n}",             RED,  reduce, sem=CLUSTER_RED_SEM, **_flags),
    ]

FENCE = "9.7.13.4"
FENCES = [
    row("membar.{scope}",                     "", FENCE, fence, scope="cta gl sys", effects=VOLATILE, ptx="2.0"),
    row("fence{sem}.{scope}",                 "", FENCE, fence, sem="- .sc .acq_rel", scope="cta gpu sys", effects=VOLATILE, requires="70", ptx="6.0"),
    row("fence{sem}.{scope}",                 "", FENCE, fence, sem="- .sc .acq_rel", scope="cluster", effects=VOLATILE, requires="90", ptx="7.8"),
    row("fence{sem}.{scope}",                 "", FENCE, fence, sem=".acquire .release", scope="cta gpu sys cluster", effects=VOLATILE, requires="90", ptx="8.6"),
    row("fence.proxy.alias",                  "", FENCE, no_effect, effects=VOLATILE, requires="70", ptx="7.5"),
    row("fence.proxy.async{space}",           "", FENCE, fence, space="- .global .shared::cta .shared::cluster", effects=VOLATILE, requires="90", ptx="8.0"),
    row("fence.mbarrier_init.release.cluster", "", FENCE, fence, effects=VOLATILE, requires="90", ptx="8.0"),
]
# fmt: on

ROWS = (*LOADS, *STORES, *HINTS, *ASYNC, *ATOMIC, *FENCES)
