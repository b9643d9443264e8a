"""mbarriers (PTX manual 9.7.13.15): arrivals and bytes that phases wait for, compiled.

A barrier is named by its CTA and its slot, the address divided by 8. A phase is over when no
arrival is pending and as many bytes came as were expected. Arriving for the next phase before
anyone saw the last one end is a mistake (9.7.13.15.4): it means that too many arrive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numba import types

from tensorcore_dsl.errors import Deadlock, EmulationError, Misaligned, OutOfBounds
from tensorcore_dsl.interpreter import gather
from tensorcore_dsl.interpreter.gather import compiled, inlined, mistake
from tensorcore_dsl.isa.context import CLUSTER_SHIFT

if TYPE_CHECKING:
    from tensorcore_dsl.interpreter.machine import Machine

BYTES = 8
ROWS = 16  # of state, at first
MOST = (1 << 20) - 1  # arrivals and bytes that a barrier can count
OFFSET = (1 << CLUSTER_SHIFT) - 1  # of a shared address: what lies within its CTA

# Columns of `state`; COUNT 0: no barrier. MADE, WARP: when it was initialised, and by which warp.
# OPEN: how many times a thread of another CTA must have passed the cluster's barrier to know of
# it; REMOTE: the phase behind that of the last arrival from another CTA; AFTER: how many times the
# own threads must have passed the cluster's barrier to know of this arrival.
COUNT, PENDING, MISSING, PHASE, SEEN, MADE, WARP, OPEN, REMOTE, AFTER, COLUMNS = range(11)
BAD_PLACE, BAD_RANK, UNALIGNED, UNINITIALISED, GONE, OVERRUN, UNSEEN, TOO_MUCH = range(1, 9)
NOT_OWN, BAD_PARITY, LOST, NOT_MET, NOT_OPEN = range(9, 14)


class Mbarriers:
    """The mbarriers of a chunk of CTAs.

    state: (CTAs, rows, columns); index: (CTAs, slots), the row of each slot. Row 0 is no barrier.
    """

    def __init__(self, machine: Machine) -> None:
        shared = machine.shared.data
        self.machine = machine
        self.cluster = machine.geometry.cluster_ctas
        self.index = np.zeros((len(shared), shared.shape[1] // BYTES), np.int16)
        self.state = np.zeros((len(shared), ROWS, COLUMNS), np.int64)
        self.used = np.ones(len(shared), np.int64)  # rows of each CTA
        self.made_at: dict[tuple[int, int], int] = {}  # step that initialised (CTA, slot)
        self.asks_for = np.full((machine.threads, 2), -1, np.int64)  # slot, phase not yet over

    def init(self, bar: Any, count: Any) -> None:
        """Make barriers, or with `count` None take them away."""
        machine = self.machine
        for thread in np.flatnonzero(machine.mask):
            cta, slot = self._own(int(thread), scalar(bar, thread))
            live = self.at(cta, slot)[COUNT] > 0
            if count is None:
                if not live:
                    self._refuse(UNINITIALISED, int(thread), bar)
                self.made_at.pop((cta, slot), None)
            else:
                self._check_init(cta, slot, live, scalar(count, thread))
                self.made_at[cta, slot] = machine.at_step
            arrivals = 0 if count is None else scalar(count, thread)
            state = self._row(cta, slot)
            state[:] = 0
            state[[COUNT, PENDING]] = arrivals
            machine.clock += 1
            state[[MADE, WARP]] = machine.clock, thread // 32
            state[OPEN] = machine.clusters.arrivals[thread] + 1
            at = slot * BYTES
            mark = gather.BARRIER if arrivals else gather.NEVER
            machine.shared.shadow[cta, at : at + BYTES] = mark

    def at(self, cta: int, slot: int) -> np.ndarray:
        """The columns of a barrier."""
        return np.asarray(self.state[cta, self.index[cta, slot]])

    def _row(self, cta: int, slot: int) -> np.ndarray:
        """The same, with a row of its own."""
        if self.index[cta, slot] == 0:
            if self.used[cta] == self.state.shape[1]:
                self.state = np.concatenate((self.state, np.zeros_like(self.state)), axis=1)
            self.index[cta, slot] = self.used[cta]
            self.used[cta] += 1
        return self.at(cta, slot)

    def _own(self, thread: int, address: int) -> tuple[int, int]:
        """CTA and slot of a barrier in the thread's own CTA."""
        if address >> CLUSTER_SHIFT:
            self._refuse(NOT_OWN, thread, np.full(thread + 1, address))
        if address % BYTES:
            self._refuse(UNALIGNED, thread, np.full(thread + 1, address))
        if address // BYTES >= self.index.shape[1]:
            self._refuse(BAD_PLACE, thread, np.full(thread + 1, address))
        return thread // self.machine.group, address // BYTES

    def _check_init(self, cta: int, slot: int, live: bool, count: int) -> None:
        machine, at = self.machine, slot * BYTES
        if live:
            raise EmulationError(
                f"mbarrier at shared {at:#x} is initialised a second time "
                f"(first {self._made(cta, slot)}); its phase is "
                f"{self.at(cta, slot)[PHASE]}: mbarrier.inval comes first"
            )
        if not 1 <= count <= MOST:
            raise EmulationError(
                f"mbarrier at shared {at:#x} is to expect {count} arrivals; 1 to {MOST} are allowed"
            )
        if (machine.shared.shadow[cta, at : at + BYTES] == gather.PENDING).any():
            raise EmulationError(
                f"mbarrier at shared {at:#x} is initialised where a copy is in flight: "
                + machine.bulk.owner(cta, at)
            )

    def arrive(self, bar: Any, count: Any, expected: Any) -> None:
        """Wait for `expected` bytes more in this phase, then arrive `count` times."""
        machine, clusters = self.machine, self.machine.clusters
        machine.writes += 1
        wrong = _arrive(
            words(bar, machine), words(count, machine), words(expected, machine), machine.mask,
            self.index, self.state, self.cluster, clusters.gone, machine.met, clusters.arrivals,
            clusters.waits,
        )  # fmt: skip
        if wrong:
            self._refuse(wrong >> 32, wrong & 0xFFFFFFFF, bar, count)
        if machine.proxies.reads:  # whoever is released too early is to run at once
            machine.step_aside()

    def done(self, bar: Any, parity: Any) -> np.ndarray:
        """(T,) bool: is the phase of this parity over?"""
        machine = self.machine
        machine.reads += 1
        go = np.zeros(machine.threads, np.bool_)
        found = _done(
            words(bar, machine), words(parity, machine), machine.mask, self.index, self.state, go,
            self.asks_for, machine.met,
        )  # fmt: skip
        if found > 1:
            self._refuse(found >> 32, found & 0xFFFFFFFF, bar, parity)
        if found:
            machine.bulk.settle()
        machine.meet(go)
        if machine.traces is not None:
            machine.traces.learn(go & self._met_from_outside(bar), machine.clock)
        return go

    def _met_from_outside(self, bar: Any) -> np.ndarray:
        """(T,) bool: have other CTAs arrived at the active threads' barriers?"""
        machine = self.machine
        threads = np.flatnonzero(machine.mask)
        slots = words(bar, machine)[threads] // BYTES
        ctas = threads // machine.group
        found = np.zeros(machine.threads, np.bool_)
        found[threads] = self.state[ctas, self.index[ctas, slots], REMOTE] > 0
        return found

    def leave(self, cta: int) -> None:
        """A CTA ends: it must know of all arrivals of other CTAs at its barriers."""
        machine = self.machine
        threads = slice(cta * machine.group, (cta + 1) * machine.group)
        met = int(machine.clusters.waits[threads].max())
        state = self.state[cta]
        loose = (state[:, REMOTE] > state[:, SEEN]) & (state[:, AFTER] > met)
        if loose.any():
            row = int(np.argmax(loose))
            slot = int(np.argmax(self.index[cta] == row))
            raise EmulationError(
                f"block {machine.block_name(cta)} may end before another CTA of its cluster arrives"
                f" in phase {state[row, REMOTE] - 1} at the {self.name(cta, slot)}: let the "
                "cluster meet (barrier.cluster) before a CTA ends"
            )

    def complete(self, cta: int, address: int, size: int, thread: int) -> tuple[int, int]:
        """`size` bytes have come; the slot, and the phase that counts them."""
        if address % BYTES:
            self._refuse(UNALIGNED, thread, np.full(thread + 1, address))
        slot = address // BYTES
        if slot >= self.index.shape[1]:
            self._refuse(BAD_PLACE, thread, np.full(thread + 1, address))
        state = self.at(cta, slot)
        if state[COUNT] == 0:
            self._refuse(UNINITIALISED, thread, np.full(thread + 1, address))
        wrong = _unknown(
            state, thread, thread // self.machine.group != cta, self.machine.met,
            self.machine.clusters.waits,
        )  # fmt: skip
        if wrong:
            self._refuse(int(wrong), thread, np.full(thread + 1, address), cta=cta)
        phase = int(state[PHASE])
        state[MISSING] -= size
        if state[MISSING] < -MOST:
            self._refuse(TOO_MUCH, thread, np.full(thread + 1, address))
        if state[MISSING] == 0 and state[PENDING] == 0:
            state[PHASE] += 1
            state[PENDING] = state[COUNT]
        return slot, phase

    # --- messages ---------------------------------------------------------------------------

    def _made(self, cta: int, slot: int) -> str:
        at = self.made_at.get((cta, slot))
        return "" if at is None else f"at {self.machine.program.steps[at].loc}"

    def name(self, cta: int, slot: int) -> str:
        made = self._made(cta, slot)
        return f"mbarrier at shared {slot * BYTES:#x}" + (f" (initialised {made})" if made else "")

    def waits(self, mask: np.ndarray) -> list[str]:
        """What threads that wait for phases wait for, a line each."""
        machine = self.machine
        threads = np.flatnonzero(mask & (self.asks_for[:, 0] >= 0))
        ctas = threads // machine.group
        wanted = {(int(c), int(self.asks_for[t, 0])) for c, t in zip(ctas, threads, strict=True)}
        lines = [self._wait(cta, slot) for cta, slot in sorted(wanted)[:8]]
        return lines + [f"... and {len(wanted) - 8} more"] * (len(wanted) > 8)

    def _wait(self, cta: int, slot: int) -> str:
        count, pending, missing, phase = (int(n) for n in self.at(cta, slot)[:SEEN])
        block = self.machine.block_name(cta)
        text = f"block {block} waits for phase {phase} (parity {phase & 1}) of the " + self.name(
            cta, slot
        )
        lacks = [f"{pending} of {count} arrivals are missing"] if pending else []
        if missing > 0:
            lacks.append(f"{missing} bytes are missing")
        if missing < 0:
            lacks.append(f"{-missing} bytes more have come than were expected")
        if pending == count and not missing and phase:
            lacks.append(f"phase {phase - 1} (parity {phase - 1 & 1}) is over: was it meant?")
        return text + ": " + ", ".join(lacks)

    def _refuse(
        self, code: int, thread: int, bar: Any, count: Any = 0, cta: int | None = None
    ) -> NoReturn:
        machine = self.machine
        address, given = scalar(bar, thread), scalar(count, thread)
        who, at, rank = machine.describe(thread), address & OFFSET, address >> CLUSTER_SHIFT
        if cta is None:
            cta = machine.clusters.cta(thread // machine.group, rank)
        slot = at // BYTES
        if code == BAD_RANK:
            machine.clusters.refuse_rank(rank - 1, who)
        if code == GONE:
            machine.clusters.refuse_gone(cta, f"the mbarrier at shared {at:#x}", who)
        if code == BAD_PLACE:
            raise OutOfBounds(
                f"mbarrier at shared {at:#x} ({who}): the CTA has "
                f"{machine.shared.data.shape[1]} bytes of shared memory"
            )
        if code == UNALIGNED:
            raise Misaligned(f"mbarrier at shared {at:#x} ({who}): no multiple of {BYTES}")
        count_, pending, missing, phase = (int(n) for n in self.at(cta, slot)[:SEEN])
        name = self.name(cta, slot)
        if code == LOST:
            raise Deadlock(
                f"{name}: {who} waits for phase {self.asks_for[thread, 1]}, which came to its end "
                f"together with the one behind it: phases pass faster than the waiter sees them"
            )
        raise EmulationError({
            UNINITIALISED: f"no mbarrier lives at shared {at:#x} ({who}): it needs mbarrier.init",
            OVERRUN: f"{name}: {who} arrives {given} times when {pending} of {count_} arrivals "
            f"and {missing} bytes are pending in phase {phase}",
            UNSEEN: f"{name}: {who} arrives for phase {phase} before any thread has seen phase "
            f"{phase - 1} end: more arrive than the {count_} that a phase expects, or nobody waits",
            TOO_MUCH: f"{name}: {who} brings its count of bytes to {missing} in phase {phase}; at "
            f"most {MOST} can be counted",
            NOT_OWN: f"mbarrier at shared {at:#x} of CTA {rank - 1} of the cluster ({who}): only "
            "arrivals and bytes reach the barriers of other CTAs",
            NOT_MET: f"{name}: {who} uses it without having met (a barrier) the thread that "
            "initialised it",
            NOT_OPEN: f"{name} of block {machine.block_name(cta)}: {who} uses it before the "
            "cluster has met (barrier.cluster) after it was initialised",
            BAD_PARITY: f"{name}: {who} waits for parity {given}; parities are 0 and 1, the phase "
            "modulo 2",
        }[code])  # fmt: skip


def scalar(value: Any, thread: Any) -> int:
    """A thread's element of an operand, which may be a constant."""
    return int(value[thread]) if np.ndim(value) else int(value)


def words(values: Any, machine: Machine) -> np.ndarray:
    """(T,) uint32."""
    return np.ascontiguousarray(np.broadcast_to(values, (machine.threads,)), dtype=np.uint32)


@inlined
def _owner(cta: int, rank: int, cluster: int) -> int:
    """The CTA that a rank field of an address names for a thread of `cta`; -1: none."""
    if rank == 0:
        return cta
    return cta // cluster * cluster + rank - 1 if rank <= cluster else -1


@inlined
def _unknown(bar: Any, thread: int, remote: bool, met: Any, waits: Any) -> int:
    """What is wrong when a thread uses a barrier that it cannot know to be initialised."""
    if remote:
        return NOT_OPEN if waits[thread] < bar[OPEN] else 0
    return NOT_MET if thread // 32 != bar[WARP] and met[thread] < bar[MADE] else 0


@compiled
def _arrive(
    addresses: Any, counts: Any, expected: Any, active: Any, index: Any, state: Any, cluster: int,
    gone: Any, met: Any, arrivals: Any, waits: Any,
) -> int:  # fmt: skip
    ctas, slots = index.shape
    group = active.size // ctas
    for thread in range(active.size):
        if not active[thread]:
            continue
        address, count = types.int64(addresses[thread]), types.int64(counts[thread])
        cta = _owner(thread // group, address >> CLUSTER_SHIFT, cluster)
        slot = (address & OFFSET) // BYTES
        if cta < 0:
            return mistake(BAD_RANK, thread)
        if address % BYTES:
            return mistake(UNALIGNED, thread)
        if slot >= slots:
            return mistake(BAD_PLACE, thread)
        if gone[cta]:
            return mistake(GONE, thread)
        row = index[cta, slot]
        if state[cta, row, COUNT] == 0:
            return mistake(UNINITIALISED, thread)
        remote = cta != thread // group
        unknown = _unknown(state[cta, row], thread, remote, met, waits)
        if unknown:
            return mistake(unknown, thread)
        state[cta, row, MISSING] += types.int64(expected[thread])
        if state[cta, row, MISSING] > MOST:
            return mistake(TOO_MUCH, thread)
        if count == 0:
            continue
        if state[cta, row, SEEN] < state[cta, row, PHASE]:
            return mistake(UNSEEN, thread)
        if count > state[cta, row, PENDING]:
            return mistake(OVERRUN, thread)
        if remote:
            state[cta, row, REMOTE] = state[cta, row, PHASE] + 1
            state[cta, row, AFTER] = max(state[cta, row, AFTER], arrivals[thread] + 1)
        state[cta, row, PENDING] -= count
        if state[cta, row, PENDING] == 0 and state[cta, row, MISSING] == 0:
            state[cta, row, PHASE] += 1
            state[cta, row, PENDING] = state[cta, row, COUNT]
    return 0


@compiled
def _done(
    addresses: Any,
    parities: Any,
    active: Any,
    index: Any,
    state: Any,
    go: Any,
    asks_for: Any,
    met: Any,
) -> int:
    """Sets `go`; 1 when a phase was seen to end for the first time."""
    ctas, slots = index.shape
    group, news = active.size // ctas, 0
    for thread in range(active.size):
        if not active[thread]:
            continue
        address, parity = types.int64(addresses[thread]), types.int64(parities[thread])
        cta, slot = thread // group, (address & OFFSET) // BYTES
        if address >> CLUSTER_SHIFT:
            return mistake(NOT_OWN, thread)
        if address % BYTES:
            return mistake(UNALIGNED, thread)
        if slot >= slots:
            return mistake(BAD_PLACE, thread)
        row = index[cta, slot]
        if state[cta, row, COUNT] == 0:
            return mistake(UNINITIALISED, thread)
        if parity > 1:
            return mistake(BAD_PARITY, thread)
        unknown = _unknown(state[cta, row], thread, False, met, met)
        if unknown:
            return mistake(unknown, thread)
        phase = state[cta, row, PHASE]
        if phase & 1 != parity:
            go[thread] = True
            asks_for[thread, 0] = -1
            if state[cta, row, SEEN] < phase:
                state[cta, row, SEEN] = phase
                news = 1
        elif asks_for[thread, 0] != slot or (asks_for[thread, 1] ^ phase) & 1:
            asks_for[thread, 0], asks_for[thread, 1] = slot, phase
        elif asks_for[thread, 1] != phase:
            return mistake(LOST, thread)
    return news
