"""Properties of instructions that follow from their text, accesses and effects.

Analyses, checks and messages ask these functions, so that no module outside of `isa/` parses a mnemonic.
"""

from __future__ import annotations

from collections.abc import Iterable

from tensorcore_dsl.isa.access import SCOPES, Access
from tensorcore_dsl.isa.effects import Effect
from tensorcore_dsl.isa.spec import Instruction

# -- arithmetic ----------------------------------------------------------------------------------


def is_addition(instr: Instruction) -> bool:
    """True for instructions that add or subtract their operands, or add to the word that they update."""
    return instr.opcode in ("add", "sub") or instr.params.get("op") == "add"


def is_integer_addition(instr: Instruction) -> bool:
    """True for sums of integers."""
    return instr.mnemonic.startswith(("add.s", "add.u"))


def is_approximate(instr: Instruction) -> bool:
    """True if its text says `.approx`, so that the result may deviate from the exact value."""
    return "approx" in instr.mnemonic.split(".")


def is_scaling(instr: Instruction) -> bool:
    """True for integer products, left shifts, negations and conversions between integer types."""
    integers = not any(o.dtype.is_float for o in instr.sides)
    return integers and instr.opcode in ("mul", "mad", "shl", "neg", "cvt")


def is_integer_division(instr: Instruction) -> bool:
    """True for quotients and remainders of integers, whose divisor may not be zero."""
    return instr.opcode in ("div", "rem") and instr.results[0].dtype.is_integer


def is_dense_product(instr: Instruction) -> bool:
    """True for dense matrix products of warps without scales: a, b and c are all their operands."""
    names = [operand.name for operand in instr.operands]
    return instr.opcode in ("mma", "wmma") and names == ["a", "b", "c"]


def may_return_address(instr: Instruction) -> bool:
    """True if the result may point into the array that an operand points into.

    False for products: products in addresses are of indices, which may come from anywhere.
    """
    return instr.opcode in ("add", "sub", "mov", "selp", "mad", "cvta")


# -- memory --------------------------------------------------------------------------------------


def accesses_memory(instr: Instruction) -> bool:
    """True if it reads or writes at its addresses. Prefetches and conversions of addresses do not."""
    return bool(instr.effects & (Effect.LOAD | Effect.STORE | Effect.ASYNC | Effect.MBARRIER))


def writes_global(instr: Instruction) -> bool:
    """True if it writes global memory, at its first operand."""
    return instr.space == "global" and instr.accesses[0].writes


def word_access(instr: Instruction) -> Access | None:
    """The access of each thread to words at an address of its own, performed at once."""
    first = instr.accesses[0] if instr.accesses and Effect.WARP not in instr.effects else None
    if first is None or not first.moves or not isinstance(first.count, int):
        return None
    return None if first.completion else first


def accesses_peer_cta(instr: Instruction) -> bool:
    """True if it loads or stores words in the shared memory of other CTAs of the cluster."""
    return word_access(instr) is not None and instr.space == "shared::cluster"


def is_exchange(instr: Instruction) -> bool:
    """True if it writes its operand to the word that it updates, whatever the word holds."""
    return instr.params.get("op") == "exch"


def is_read_only_load(instr: Instruction) -> bool:
    """True for `ld.global.nc`, which may read only what nobody writes during the launch."""
    return instr.opcode == "ld" and "nc" in instr.mnemonic.split(".")


# -- the memory consistency model (PTX manual, 8) ------------------------------------------------


def is_strong(instr: Instruction) -> bool:
    """True for atomics, and for loads and stores that are not weak."""
    return any(a.order and not a.completion for a in instr.accesses)


def is_relaxed(instr: Instruction) -> bool:
    """True if its text says `.relaxed`, so that it orders no other access."""
    return "relaxed" in instr.mnemonic.split(".")


def is_cta_acquire(instr: Instruction) -> bool:
    """True if its text limits what its threads learn to the CTA."""
    return ".acquire.cta." in instr.mnemonic


def is_cta_release(instr: Instruction) -> bool:
    """True if its text limits what its threads hand on to the CTA."""
    return ".release.cta." in instr.mnemonic


def is_release(instr: Instruction) -> bool:
    """True if it hands on what its threads know."""
    return _has_order(instr, "release")


def is_acquire(instr: Instruction) -> bool:
    """True if its threads learn what others have handed on."""
    return _has_order(instr, "acquire")


def _has_order(instr: Instruction, order: str) -> bool:
    """True for this order and stronger ones. A fence without one of the two is both."""
    words = instr.mnemonic.split(".")
    if is_fence(instr) and {"release", "acquire"}.isdisjoint(words):
        return True
    orders = [a.order for a in instr.accesses] or words[1:]
    return not {order, "acq_rel", "sc"}.isdisjoint(orders)


def scope(instr: Instruction) -> str:
    """The scope of a strong access or a fence: cta, cluster, gpu or sys; "" for weak accesses."""
    if instr.accesses:
        return next((a.scope for a in instr.accesses if a.scope), "")
    return next((word for word in instr.mnemonic.split(".") if word in SCOPES), "gpu")


# -- fences --------------------------------------------------------------------------------------


def is_fence(instr: Instruction) -> bool:
    """True for `fence` and `membar`, which order accesses of the generic proxy."""
    words = instr.mnemonic.split(".")
    return words[0] == "membar" or (words[0] == "fence" and not {"proxy", "mbarrier_init"} & {*words})


def is_sequential_fence(instr: Instruction) -> bool:
    """True for `fence.sc` and `membar`, which all threads see in one order."""
    return is_fence(instr) and (instr.opcode == "membar" or "sc" in instr.mnemonic.split("."))


def is_proxy_fence(instr: Instruction) -> bool:
    """True if it orders accesses of the generic and of the async proxy."""
    return instr.opcode == "fence" and "space" in instr.params


def is_init_fence(instr: Instruction) -> bool:
    """True if it makes initialised mbarriers visible to the async proxy and to the cluster."""
    of_shared = is_proxy_fence(instr) and instr.params["space"] != ".global"
    return "mbarrier_init" in instr.mnemonic.split(".") or of_shared


# -- barriers ------------------------------------------------------------------------------------


def is_memory_barrier(instr: Instruction) -> bool:
    """True for barriers after which threads know each other's accesses to memory.

    Of the instructions of a warp, only `bar.warp.sync` is one. The others hand on values alone.
    """
    return Effect.BARRIER in instr.effects


def is_synchronisation(instr: Instruction) -> bool:
    """True if threads, or lanes of a warp, meet or wait at it."""
    meeting = Effect.BARRIER | Effect.BLOCKING | Effect.CLUSTER | Effect.CONVERGENT
    return uses_mbarrier(instr) or bool(instr.effects & meeting)


def is_aligned(instr: Instruction) -> bool:
    """True for `.aligned`: the threads of a warp that have not exited must execute it together.

    False for instructions of whole warps ("warp") and of masks ("convergent"), which have rules of
    their own.
    """
    words = instr.mnemonic.split(".")
    convergent = bool(instr.effects & (Effect.WARP | Effect.CONVERGENT))
    return ("aligned" in words or words[0] == "bar") and not convergent


def uses_mbarrier(instr: Instruction) -> bool:
    """True if it initialises, arrives at, or waits for an mbarrier."""
    return instr.opcode == "mbarrier" or instr.mnemonic.startswith("cp.async.mbarrier")


def is_mbarrier_arrival(instr: Instruction) -> bool:
    """True if it arrives at an mbarrier."""
    return uses_mbarrier(instr) and ".arrive" in instr.mnemonic


def announces_bytes(instr: Instruction) -> bool:
    """True if it tells an mbarrier how many bytes will arrive."""
    return ".expect_tx" in instr.mnemonic


# -- asynchronous operations ---------------------------------------------------------------------


def is_async_operation(instr: Instruction) -> bool:
    """True for bulk copies, asynchronous stores and wgmma, which run while their threads go on.

    False for `cp.async`, which takes effect at a wait (`is_cp_async`).
    """
    return instr.ordering is not None or any(a.bulk for a in instr.accesses)


def waits_by(instr: Instruction, waits: Iterable[str]) -> bool:
    """True if its text begins with one of `waits`, which are texts as in `MmaOrdering.wait`."""
    return instr.mnemonic.startswith(tuple(waits))


def is_cp_async(instr: Instruction) -> bool:
    """True for `cp.async`, copies of single threads that `cp.async.wait_group` completes."""
    return any(a.completion == "async_group" for a in instr.accesses)


def is_bulk_reduction(instr: Instruction) -> bool:
    """True for bulk copies that reduce into their target."""
    return any(a.verb == "update" and a.completion for a in instr.accesses)


def completes_on_mbarrier(instr: Instruction) -> bool:
    """True if an mbarrier counts the bytes that it moves."""
    return any(a.completion == "mbarrier" for a in instr.accesses)
