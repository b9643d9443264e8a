"""`wgmma` in flight: what its operands in shared memory and in registers must not suffer.

A product is carried out when it is issued. Until the group that holds it is waited for, the
warpgroup must not touch its accumulators, nor write A's registers, and nobody may overwrite the
matrices in shared memory (9.7.15.7). Nor may it write the registers of metadata, of which the
manual does not speak: an H200 reads them as late as those of A.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from tensorcore_dsl.errors import EmulationError, OutOfBounds, Uninitialised
from tensorcore_dsl.interpreter import gather
from tensorcore_dsl.interpreter.gather import compiled, mistake, peek64, poke64, shadow_says
from tensorcore_dsl.interpreter.memory import NOT_MET
from tensorcore_dsl.interpreter.proxies import CHUNK, PRODUCT, Read, unfenced
from tensorcore_dsl.interpreter.steps import Run
from tensorcore_dsl.interpreter.traces import Access
from tensorcore_dsl.ir.nodes import Address, Assign, Kernel, Op, Part, Source, Value, walk

if TYPE_CHECKING:
    from tensorcore_dsl.interpreter.machine import Machine

THREADS = 128
MMA = "wgmma.mma_async"
INPUTS = ("a", "meta")  # operands that a product reads from registers while it is in flight


@dataclass
class Product:
    """One wgmma.mma_async: the warpgroups that issued it and have not waited for it, the groups
    that each had committed before, and where its accumulators and A's registers are."""

    step: int
    groups: np.ndarray
    committed: np.ndarray
    accumulators: int
    inputs: tuple[int, ...]
    shape: str


class Products:
    """The products in flight of a chunk of CTAs; `commits` counts each warpgroup's groups.

    touched: warpgroups that used a register since their last wgmma.fence, by place.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        count = machine.threads // THREADS
        self.commits = np.zeros(count, np.int64)
        self.fenced = np.zeros(count, np.bool_)  # warpgroups that fenced at all
        self.queue: list[Product] = []
        self.touched: dict[int, np.ndarray] = {}

    def groups(self) -> np.ndarray:
        """(warpgroups,) bool: those of which some thread is active."""
        return np.asarray(self.machine.mask.reshape(-1, THREADS).any(axis=1))

    # --- what rows ask ----------------------------------------------------------------------

    def fence(self) -> None:
        groups = self.groups()
        self.fenced |= groups
        for place in list(self.touched):
            self.touched[place] = self.touched[place] & ~groups
            if not self.touched[place].any():
                del self.touched[place]

    def commit(self) -> None:
        self.commits += self.groups()

    def wait(self, pending: int) -> None:
        groups, due = self.groups(), self.commits - pending
        left = []
        for product in self.queue:
            product.groups &= ~(groups & (product.committed < due))
            if product.groups.any():
                left.append(product)
        self.queue = left
        self.machine.proxies.finish(PRODUCT, groups, due)

    def fetch(self, addresses: np.ndarray, whole: np.ndarray) -> np.ndarray:
        """(warpgroups, chunks, 16) bytes of shared memory at (warpgroups, chunks) addresses."""
        machine = self.machine
        out = np.zeros((*addresses.shape, CHUNK), np.uint8)
        shared, proxies = machine.shared, machine.proxies
        wrong = fetch(
            addresses, whole, shared.data, shared.shadow, shared.checks, proxies.stamps,
            proxies.epochs, proxies.landed, machine.met, machine.geometry.cluster_ctas, out,
        )  # fmt: skip
        if wrong:
            self._refuse(wrong >> 32, wrong & 0xFFFFFFFF, addresses)
        if machine.traces is not None:
            machine.traces.load(_access(machine, addresses, np.flatnonzero(whole)))
        machine.tally.bytes["shared", "load"] += int(whole.sum()) * addresses.shape[1] * CHUNK
        if proxies.tracked:
            owners = np.flatnonzero(whole)
            ctas, chunks = owners * THREADS // machine.group, addresses[owners] // CHUNK
            proxies.add(Read(PRODUCT, machine.at_step, owners, self.commits[owners], ctas, chunks))
        return out

    # --- registers --------------------------------------------------------------------------

    def issue(self, watch: Watch, at: int) -> None:
        """Check what a product needs of its registers before it runs, and enter it."""
        groups = self.groups()
        unfenced = groups & ~self.fenced
        for place in (watch.accumulators, watch.a):
            if place is not None and place in self.touched:
                unfenced = unfenced | groups & self.touched[place]
        if unfenced.any():
            raise EmulationError(
                f"{watch.name}: {self.machine.warpgroup_name(int(np.argmax(unfenced)))} "
                "used its accumulators or A's registers and did not fence: wgmma.fence comes first"
            )
        for product in self.queue:
            same = product.accumulators == watch.accumulators and product.shape != watch.shape
            if (same or product.accumulators in watch.inputs) and (product.groups & groups).any():
                self._refuse_access(product, watch.name, groups)
        self.queue.append(
            Product(at, groups, self.commits.copy(), watch.accumulators, watch.inputs, watch.shape)
        )

    def access(self, watch: Watch) -> None:
        """An ordinary step uses registers that products use too."""
        groups = self.groups()
        for product in self.queue:
            hurt = product.accumulators in watch.reads + watch.writes
            hurt = hurt or not set(product.inputs).isdisjoint(watch.writes)
            if hurt and (product.groups & groups).any():
                self._refuse_access(product, watch.name, groups)
        for place in watch.reads + watch.writes:
            self.touched[place] = self.touched.get(place, np.zeros_like(groups)) | groups

    def _refuse_access(self, product: Product, what: str, groups: np.ndarray) -> NoReturn:
        group = int(np.argmax(product.groups & groups))
        where = self.machine.program.steps[product.step].loc
        open_ = product.committed[group] == self.commits[group]
        advice = "wgmma.commit_group and wgmma.wait_group" if open_ else "wgmma.wait_group"
        raise EmulationError(
            f"{what}: {self.machine.warpgroup_name(group)} uses registers that the wgmma at "
            f"{where} still owns: {advice} must come between"
        )

    # --- messages ---------------------------------------------------------------------------

    def _refuse(self, code: int, index: int, addresses: np.ndarray) -> NoReturn:
        machine = self.machine
        group, chunk = divmod(index, addresses.shape[1])
        cta, address = group * THREADS // machine.group, int(addresses[group, chunk])
        what = f"a wgmma of {machine.warpgroup_name(group)} reads shared {address:#x}"
        if code == gather.OUTSIDE:
            last = machine.shared.data.shape[1] - 1
            raise OutOfBounds(f"out of bounds: {what}: the CTA has bytes 0 to {last:#x}")
        if code == gather.NOT_MET:
            raise Uninitialised(f"{what}: {NOT_MET}")
        if code == gather.UNFENCED:
            writer = machine.describe(machine.proxies.writer(machine, cta, address))
            raise EmulationError(
                f"{what}, which {writer} wrote by an ordinary store and did not fence: the writer "
                "needs fence.proxy.async before it synchronises"
            )
        state = machine.shared.shadow[cta, address : address + CHUNK]
        place = address + int(np.argmax(state != gather.WRITTEN))
        if code == gather.UNWRITTEN:
            raise Uninitialised(f"uninitialised: {what}: nothing has written byte {place:#x}")
        raise Uninitialised(f"{what}: " + machine.shared.held(machine, cta, place))


@dataclass
class Watch:
    """A step that uses registers of products: a product itself, or an ordinary step.

    reads, writes: places of an ordinary step that are accumulators or inputs of some product.
    inputs: where a product's A and metadata are, as far as they are in registers.
    """

    name: str
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    accumulators: int = -1
    a: int | None = None
    inputs: tuple[int, ...] = ()
    shape: str = ""

    @classmethod
    def op(
        cls, op: Op, reads: tuple[int, ...], writes: list[int], watched: set[Value]
    ) -> Watch | None:
        """The watch of an instruction, which reads and writes these places."""
        form = op.form
        if form.mnemonic.startswith(MMA):
            named = dict(zip((o.name for o in form.operands), reads, strict=True))
            shape = f"{form.params['shape']}.{form.params['d']}"
            inputs = tuple(named[name] for name in INPUTS if name in named)
            return cls(form.mnemonic, (), (), named["c"], named.get("a"), inputs, shape)
        read = [p for p, s in zip(reads, op.operands, strict=True) if _base(s) in watched]
        written = [p for p, v in zip(writes, op.results, strict=True) if v in watched]
        return cls(form.mnemonic, tuple(read), tuple(written)) if read or written else None

    @classmethod
    def copy(cls, node: Assign, place: Callable[[Value], int], watched: set[Value]) -> Watch | None:
        """The watch of a copy."""
        bases = {_base(s) for s in node.sources} & watched
        written = [place(node.target)] if node.target in watched else []
        read = [place(v) for v in bases if isinstance(v, Value)]
        if not read and not written:
            return None
        return cls("a copy of registers", tuple(read), tuple(written))

    def run(self, run: Run, at: int) -> Run:
        """The step with its checks."""

        def issued(machine: Machine) -> int | None:
            if machine.proxies.tracked:
                machine.products.issue(self, at)
            return run(machine)

        def accessed(machine: Machine) -> int | None:
            if machine.proxies.tracked:
                machine.products.access(self)
            return run(machine)

        return issued if self.accumulators >= 0 else accessed


def watched(kernel: Kernel) -> set[Any]:
    """The values that are accumulators of products, or their inputs in registers."""
    found: set[Any] = set()
    for node in walk(kernel.body):
        if isinstance(node, Op) and node.form.mnemonic.startswith(MMA):
            for source, operand in zip(node.operands, node.form.operands, strict=True):
                if operand.name in ("c", *INPUTS):
                    found.add(_base(source))
            found |= set(node.results)
    return found


def _access(machine: Machine, addresses: np.ndarray, owners: np.ndarray) -> Access:
    """What the warpgroups `owners` read, each in the name of its first thread."""
    threads = np.repeat(owners * THREADS, addresses.shape[1])
    starts = addresses[owners].ravel().astype(int)
    return Access(threads, threads // machine.group, starts, CHUNK, "load")


def _base(source: Source) -> Any:
    return source.base if isinstance(source, (Address, Part)) else source


@compiled
def fetch(
    addresses: Any, whole: Any, data: Any, shadow: Any, checked: bool, stamps: Any, epochs: Any,
    landed: Any, met: Any, cluster: int, out: Any,
) -> int:  # fmt: skip
    """Chunks of shared memory for the warpgroups that are `whole`; `epochs` may be empty."""
    groups, count = addresses.shape
    ctas, limit = data.shape
    per, threads = groups // ctas, epochs.size // ctas
    for group in range(groups):
        if not whole[group]:
            continue
        cta, known = group // per, met[group * THREADS : (group + 1) * THREADS].max()
        for i in range(count):
            at = addresses[group, i]
            if at + CHUNK > limit:
                return mistake(gather.OUTSIDE, group * count + i)
            if checked:
                state = shadow_says(shadow.ctypes.data + cta * limit + at, CHUNK)
                if state:
                    return mistake(state, group * count + i)
            if landed.shape[1] and landed[cta, at // CHUNK] > known:
                return mistake(gather.NOT_MET, group * count + i)
            first = cta // cluster * cluster * threads
            if threads and unfenced(stamps[cta], epochs, first, at):
                return mistake(gather.UNFENCED, group * count + i)
            source = data.ctypes.data + cta * limit + at
            to = out.ctypes.data + (group * count + i) * CHUNK
            poke64(to, peek64(source))
            poke64(to + 8, peek64(source + 8))
    return 0
