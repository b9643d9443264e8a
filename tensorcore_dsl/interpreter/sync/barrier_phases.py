"""State of the mbarriers of a chunk, and the compiled loops that change it for many threads.

All loops return 0 or another status, or `code << 32 | thread` for the first thread whose operands
fail a check.
"""

from __future__ import annotations

from typing import Any

from tensorcore_dsl.interpreter.core import shadow
from tensorcore_dsl.interpreter.core.native import compiled, error_at, inlined
from tensorcore_dsl.interpreter.core.shadow import OFFSET
from tensorcore_dsl.isa.context import CLUSTER_SHIFT

BYTES = 8
MIN_ROWS = 16  # initial rows of `state`
MAX_PENDING = (1 << 20) - 1  # arrivals and bytes that a barrier can count

# Columns of `state`. COUNT: arrivals of a phase, 0 for no barrier. PENDING, MISSING: arrivals and
# bytes that the phase still waits for. PHASE: phases completed. SEEN: phases that some thread has
# seen end; CAME: bytes that have come since. MADE: the step that initialised it. LANDED: the phase
# after the last one that counted bytes.
COUNT, PENDING, MISSING, PHASE, SEEN, MADE, CAME, LANDED, COLUMNS = range(9)
BAD_PLACE, BAD_RANK, UNALIGNED, UNINITIALISED, GONE, OVERRUN, UNSEEN, TOO_MUCH = range(1, 9)
NOT_OWN, BAD_PARITY, LOST, LIVE, BAD_COUNT, OCCUPIED, NOT_ANNOUNCED, DROPPED, ENDED = range(9, 18)


@inlined
def _owner(cta: int, rank: int, cluster: int) -> int:
    """The CTA that a rank field of an address names for a thread of `cta`; -1 for none."""
    if rank == 0:
        return cta
    return cta // cluster * cluster + rank - 1 if rank <= cluster else -1


@compiled
def init_all(
    addresses: Any,
    counts: Any,
    active: Any,
    valid: bool,
    step: int,
    index: Any,
    state: Any,
    used: Any,
    states: Any,
) -> int:
    """Initialise the barriers of the active threads, or invalidate them; 0 or an error.

    active: numbers of the threads. index, state, used: arrays of `Mbarriers`, with enough rows. states:
    the shadow of the CTAs.
    """
    ctas, slots = index.shape
    group = addresses.size // ctas
    for i in range(active.size):
        thread = active[i]
        address, count, cta = int(addresses[thread]), int(counts[thread]), thread // group
        if address >> CLUSTER_SHIFT:
            return error_at(NOT_OWN, thread)
        if address % BYTES:
            return error_at(UNALIGNED, thread)
        slot = address // BYTES
        if slot >= slots:
            return error_at(BAD_PLACE, thread)
        live = state[cta, index[cta, slot], COUNT] > 0
        if valid:
            if live:
                return error_at(LIVE, thread)
            if count < 1 or count > MAX_PENDING:
                return error_at(BAD_COUNT, thread)
            for byte in range(address, address + BYTES):
                if states[cta, byte] == shadow.PENDING:
                    return error_at(OCCUPIED, thread)
        elif not live:
            return error_at(UNINITIALISED, thread)
        if index[cta, slot] == 0:
            index[cta, slot] = used[cta]
            used[cta] += 1
        row = index[cta, slot]
        for column in range(COLUMNS):
            state[cta, row, column] = 0
        for byte in range(address, address + BYTES):
            states[cta, byte] = shadow.BARRIER if valid else shadow.NEVER
        if valid:
            state[cta, row, COUNT] = count
            state[cta, row, PENDING] = count
            state[cta, row, MADE] = step
    return 0


@compiled
def arrive_all(
    addresses: Any,
    counts: Any,
    expected: Any,
    active: Any,
    index: Any,
    state: Any,
    cluster: int,
    gone: Any,
    rows: Any,
    drops: bool,
    ends: bool,
) -> int:
    """Count the arrivals and expected bytes of the active threads.

    Return 1 where they may release a thread, 0 where all phases wait for bytes that are now expected,
    or an error.

    active: their numbers. rows: becomes true for the rows of `state` that have arrivals. drops:
    later phases expect fewer arrivals. ends: the arrivals may end a phase.
    """
    ctas, slots = index.shape
    group, releases = addresses.size // ctas, 0
    for i in range(active.size):
        thread = active[i]
        address, count = int(addresses[thread]), int(counts[thread])
        cta = _owner(thread // group, address >> CLUSTER_SHIFT, cluster)
        slot = (address & OFFSET) // BYTES
        if cta < 0:
            return error_at(BAD_RANK, thread)
        if address % BYTES:
            return error_at(UNALIGNED, thread)
        if slot >= slots:
            return error_at(BAD_PLACE, thread)
        if gone[cta]:
            return error_at(GONE, thread)
        row = index[cta, slot]
        if state[cta, row, COUNT] == 0:
            return error_at(UNINITIALISED, thread)
        state[cta, row, MISSING] += int(expected[thread])
        if state[cta, row, MISSING] > MAX_PENDING:
            return error_at(TOO_MUCH, thread)
        if count == 0:
            continue
        if state[cta, row, SEEN] < state[cta, row, PHASE]:
            return error_at(UNSEEN, thread)
        if count > state[cta, row, PENDING]:
            return error_at(OVERRUN, thread)
        if drops:
            if count == state[cta, row, COUNT]:
                return error_at(DROPPED, thread)
            state[cta, row, COUNT] -= count
        rows[row] = True
        state[cta, row, PENDING] -= count
        ended = state[cta, row, PENDING] == 0 and state[cta, row, MISSING] == 0
        if ended and not ends:
            return error_at(ENDED, thread)
        if ended:
            state[cta, row, PHASE] += 1
            state[cta, row, PENDING] = state[cta, row, COUNT]
        if ended or int(expected[thread]) == 0:
            releases = 1
    return releases


@compiled
def complete_all(ctas: Any, addresses: Any, size: int, index: Any, state: Any, phases: Any) -> int:
    """Count `size` bytes for each of some copies, in `phases`; 0 or the error of a copy."""
    for i in range(ctas.size):
        cta, address = ctas[i], addresses[i]
        slot = address // BYTES
        if address % BYTES:
            return error_at(UNALIGNED, i)
        if slot >= index.shape[1]:
            return error_at(BAD_PLACE, i)
        row = index[cta, slot]
        if state[cta, row, COUNT] == 0:
            return error_at(UNINITIALISED, i)
        phases[i] = state[cta, row, PHASE]
        state[cta, row, LANDED] = phases[i] + 1
        state[cta, row, CAME] += size
        if state[cta, row, SEEN] < state[cta, row, PHASE] and state[cta, row, MISSING] <= 0:
            return error_at(NOT_ANNOUNCED, i)
        state[cta, row, MISSING] -= size
        if state[cta, row, MISSING] < -MAX_PENDING:
            return error_at(TOO_MUCH, i)
        if state[cta, row, MISSING] == 0 and state[cta, row, PENDING] == 0:
            state[cta, row, PHASE] += 1
            state[cta, row, PENDING] = state[cta, row, COUNT]
    return 0


@compiled
def ask_all(
    addresses: Any,
    parities: Any,
    active: Any,
    index: Any,
    state: Any,
    go: Any,
    asks_for: Any,
    unusual: bool,
    early: Any,
) -> int:
    """Set `go`; returns 1 when a phase is seen to end for the first time, 0, or an error.

    active: the numbers of the threads that ask. unusual: a thread that asks first for a phase that counts
    bytes asks too `early`, while the copies are in flight.
    """
    ctas, slots = index.shape
    group, news = addresses.size // ctas, 0
    for i in range(active.size):
        thread = active[i]
        address, parity = int(addresses[thread]), int(parities[thread])
        cta, slot = thread // group, (address & OFFSET) // BYTES
        if address >> CLUSTER_SHIFT:
            return error_at(NOT_OWN, thread)
        if address % BYTES:
            return error_at(UNALIGNED, thread)
        if slot >= slots:
            return error_at(BAD_PLACE, thread)
        row = index[cta, slot]
        if state[cta, row, COUNT] == 0:
            return error_at(UNINITIALISED, thread)
        if parity > 1:
            return error_at(BAD_PARITY, thread)
        phase = state[cta, row, PHASE]
        if phase & 1 != parity and unusual and 0 < phase == state[cta, row, LANDED]:
            early[thread] = True
        elif phase & 1 != parity:
            go[thread] = True
            asks_for[thread, 0] = -1
            if state[cta, row, SEEN] < phase:
                state[cta, row, SEEN], state[cta, row, CAME] = phase, 0
                news = 1
        elif asks_for[thread, 0] != slot or (asks_for[thread, 1] ^ phase) & 1:
            asks_for[thread, 0], asks_for[thread, 1] = slot, phase
        elif asks_for[thread, 1] != phase:
            return error_at(LOST, thread)
    for i in range(active.size if unusual else 0):
        thread = active[i]
        if early[thread]:
            cta = thread // group
            state[cta, index[cta, (int(addresses[thread]) & OFFSET) // BYTES], LANDED] = 0
    return news
