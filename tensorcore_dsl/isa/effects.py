"""Effects of instructions, besides results computed from operands.

The optimiser, the verifier, the printers and the interpreter read them.
"""

from __future__ import annotations

from enum import Flag, auto


class Effect(Flag):
    """Effects of an instruction; `MEANINGS` says what each member stands for."""

    ASYNC = auto()
    ASYNC_PROXY = auto()
    BARRIER = auto()
    BLOCKING = auto()
    BULK = auto()
    CLUSTER = auto()
    CONVERGENT = auto()
    INPLACE = auto()
    LOAD = auto()
    MBARRIER = auto()
    PRINT = auto()
    STORE = auto()
    TRACKED = auto()
    VOLATILE = auto()
    WARP = auto()
    WGMMA = auto()


# In the words of `tensorcore-dsl show`.
MEANINGS = {
    Effect.ASYNC: "takes effect at a wait",
    Effect.ASYNC_PROXY: "reads shared memory through the async proxy",
    Effect.BARRIER: "orders the memory accesses of the participating threads",
    Effect.BLOCKING: "may wait for other threads",
    Effect.BULK: "is performed by the copy engine (TMA)",
    Effect.CLUSTER: "involves other CTAs of the cluster",
    Effect.CONVERGENT: "all threads of its mask execute it together",
    Effect.INPLACE: "the text names only the result's registers, which also hold the accumulator",
    Effect.LOAD: "reads memory",
    Effect.MBARRIER: "waits for a phase of an mbarrier",
    Effect.PRINT: "prints",
    Effect.STORE: "writes memory",
    Effect.TRACKED: "is followed by the emulator until it is complete",
    Effect.VOLATILE: "is never moved, merged or removed",
    Effect.WARP: "all 32 lanes of a warp execute it together",
    Effect.WGMMA: "orders the asynchronous products of wgmma",
}
PURE = Effect(0)
WARP, VOLATILE = Effect.WARP, Effect.VOLATILE
BLOCKING = Effect.BLOCKING | Effect.VOLATILE  # execute() returns which threads continue

# What passes and printers ask for.
CONVERGENT_EFFECTS = (
    Effect.WARP | Effect.CONVERGENT | Effect.BARRIER | Effect.BLOCKING | Effect.CLUSTER | Effect.WGMMA
)
MEMORY_EFFECTS = (
    Effect.LOAD
    | Effect.STORE
    | Effect.ASYNC
    | Effect.BARRIER
    | Effect.BLOCKING
    | Effect.BULK
    | Effect.CLUSTER
    | Effect.MBARRIER
    | Effect.WGMMA
)


def members(effects: Effect) -> list[Effect]:
    """The single effects, by their names."""
    return [effect for effect in MEANINGS if effect in effects]
