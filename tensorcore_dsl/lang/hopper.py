"""What warp-specialised kernels for Hopper use: mbarriers, tensor copies, wgmma, clusters.

Users say "load this tile when that barrier is ready"; tensor maps, descriptors and byte counts
come from the types of arrays and tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorcore_dsl import dtypes
from tensorcore_dsl.errors import LayoutError, OperandError
from tensorcore_dsl.ir.nodes import Block, Param, TensorMap, Type, While
from tensorcore_dsl.isa.descriptor import FIELDS, pack_descriptor
from tensorcore_dsl.isa.spec import Instruction
from tensorcore_dsl.lang.language import emit, shared, shfl, threadIdx
from tensorcore_dsl.lang.memory import Array, Pointer, Tile
from tensorcore_dsl.lang.pointer import PEERS, own_address, peer_address
from tensorcore_dsl.tracing import emitter
from tensorcore_dsl.values import arithmetic
from tensorcore_dsl.values.values import Group, Scalar, Struct

# -- mbarriers --------------------------------------------------------------------------------


class Barrier(Struct):
    """One mbarrier in shared memory, in this CTA or, after `remote`, in a peer of the cluster."""

    parts = ("address",)

    def __init__(self, address: Scalar, in_cluster: bool = False) -> None:
        self.address, self.in_cluster = address, in_cluster

    def init(self, count: Any) -> None:
        """Phases end after `count` arrivals. One thread does it, then all must synchronise."""
        emit("mbarrier.init.shared::cta.b64", self.address, count)

    def arrive(self, count: Any = None, *, pred: Any = None) -> None:
        """Arrive once, or `count` times."""
        name = "mbarrier.arrive.shared::cta.b64"
        if self.in_cluster:
            name = "mbarrier.arrive.shared::cluster.b64"
        if count is None:
            emit(name, self.address, pred=pred)
        else:
            emit(f"{name}.count", self.address, count, pred=pred)

    def arrive_expect_tx(self, bytes: Any, *, pred: Any = None) -> None:
        """Arrive, and let the phase also wait for `bytes` of asynchronous copies."""
        emit("mbarrier.arrive.expect_tx.shared::cta.b64", self.address, bytes, pred=pred)

    def test(self, parity: Any) -> Scalar:
        """Is the phase of this parity over?"""
        name = "mbarrier.test_wait.parity.shared::cta.b64"
        return emit(name, self.address, _u32(parity))  # type: ignore[no-any-return]

    def wait(self, parity: Any) -> None:
        """Wait until the phase of this parity is over. A fresh barrier is in phase 0: waiting for
        parity 1 returns at once."""
        builder: Any = emitter()
        parity = _u32(parity)
        loop = While(Block(), builder.scalar(True).value, Block())
        builder.append(loop)
        with builder.inside(loop.test):
            over = emit("mbarrier.try_wait.parity.shared::cta.b64", self.address, parity)
            loop.condition = arithmetic.logical_not(builder, over).value

    def remote(self, rank: Any) -> Barrier:
        """The same barrier in CTA `rank` of the cluster."""
        return Barrier(peer_address(self.address, rank), True)


class Barriers(Struct):
    """A row of mbarriers: `barriers[i]`."""

    parts = ("tile",)

    def __init__(self, tile: Tile) -> None:
        self.tile = tile

    def __len__(self) -> int:
        return self.tile.shape[0]

    def __getitem__(self, index: Any) -> Barrier:
        return Barrier(self.tile.at(index).address)


def mbarriers(count: int) -> Barriers:
    """`count` mbarriers in shared memory, not yet initialised."""
    return Barriers(shared(count, dtypes.u64, align=8))


def _u32(value: Any) -> Any:
    builder: Any = emitter()
    if isinstance(value, Scalar):
        return arithmetic.convert(builder, value, dtypes.u32)
    return int(value)


# -- tensor and bulk copies -------------------------------------------------------------------


SHARE = "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"


class TensorMapOf(Struct):
    """A tensor map: how a box of an array is copied to and from a shared tile.

    `axes` are the array's axes, the innermost first; `box` is in the array's own order.
    """

    parts = ("address",)

    def __init__(
        self, address: Scalar, array: Array, axes: tuple[int, ...], box: tuple[int, ...],
        swizzle: int,
    ) -> None:  # fmt: skip
        self.address, self.array, self.axes, self.box = address, array, axes, box
        self.swizzle, self.dtype = swizzle, array.dtype

    @property
    def bytes(self) -> int:
        """What one copy adds to a barrier's count, parts outside the array included."""
        size = self.dtype.itemsize
        for extent in self.box:
            size *= extent
        return size

    def coordinates(self, index: Sequence[Any]) -> list[Any]:
        if len(index) != len(self.axes):
            raise OperandError(f"{len(self.axes)} coordinates are needed, {len(index)} were given")
        return [index[axis] for axis in self.axes]

    def prefetch(self, index: Sequence[Any] | None = None) -> None:
        """Bring the map into the cache, one thread at the start; or the box at `index` into L2."""
        if index is None:
            emit("prefetch.tensormap", self.address)
            return
        where = [_s32(c) for c in self.coordinates(index)]
        name = f"cp.async.bulk.prefetch.tensor.{len(self.axes)}d.L2.global.tile"
        emit(name, self.address, *where)


def tensor_map(array: Array, box: Sequence[int], swizzle: int = 0) -> TensorMapOf:
    """The map that copies `box` (in the array's own order) of a kernel's array argument.

    The launch encodes it. The array's innermost stride must be 1, the other strides and its
    address multiples of 16 bytes; coordinates outside the array read as zero.
    """
    builder: Any = emitter()
    argument = getattr(array, "argument", None)
    if argument is None:
        raise OperandError("a tensor map describes an array argument as it was passed, not a view")
    inner = [d for d, stride in enumerate(array.strides) if not isinstance(stride, Scalar)]
    if not inner or len(box) != array.ndim:
        raise OperandError(
            f"a tensor map needs a contiguous axis and a box of {array.ndim} extents; "
            f"the box is {tuple(box)}"
        )
    first = inner[-1]
    axes = (first, *[d for d in reversed(range(array.ndim)) if d != first])
    if swizzle and box[first] * array.dtype.itemsize > swizzle:
        raise LayoutError(
            f"a box of {box[first]} {array.dtype} is wider than its {swizzle}-byte swizzle"
        )
    wanted = TensorMap(argument, axes, tuple(box[d] for d in axes), swizzle)
    for param in builder.kernel.params:
        if param.tensor_map == wanted:
            return TensorMapOf(Scalar(param.value), array, axes, tuple(box), swizzle)
    value = builder.new_value(Type(dtypes.u64))
    name = f"map{sum(p.tensor_map is not None for p in builder.kernel.params)}"
    builder.kernel.params.append(Param(name, value, wanted))
    return TensorMapOf(Scalar(value), array, axes, tuple(box), swizzle)


def tma_load(
    tile: Tile, source: TensorMapOf, index: Sequence[Any], barrier: Barrier, *,
    multicast: Any = None, policy: Any = None, pred: Any = None,
) -> None:  # fmt: skip
    """Copy the box at `index` into `tile`; `barrier` counts its bytes.

    One thread issues it. multicast: a 16-bit mask of the CTAs of the cluster that receive it.
    """
    _check_tile(tile, source)
    rank = len(source.axes)
    name = f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
    more = []
    if multicast is not None:
        name += ".multicast::cluster"
        more.append(_u16(multicast))
    if policy is not None:
        name += ".L2::cache_hint"
        more.append(policy)
    where = [_s32(c) for c in source.coordinates(index)]
    emit(name, tile.address, source.address, *where, barrier.address, *more, pred=pred)


def tma_store(
    target: TensorMapOf, index: Sequence[Any], tile: Tile, *,
    reduce: str | None = None, pred: Any = None,
) -> None:  # fmt: skip
    """Copy `tile` to the box at `index`, or combine it (reduce="add", "min", ...).

    The writers of the tile must have fenced (`fence_proxy_async`) and synchronised before.
    """
    _check_tile(tile, target)
    rank = len(target.axes)
    name = f"cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group"
    if reduce is not None:
        name = f"cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta.{reduce}.tile.bulk_group"
    where = [_s32(c) for c in target.coordinates(index)]
    emit(name, target.address, *where, tile.address, pred=pred)


def tma_commit() -> None:
    """Close a group of this thread's bulk stores."""
    emit("cp.async.bulk.commit_group")


def tma_wait(pending: int = 0, *, reading: bool = False) -> None:
    """Wait until at most `pending` groups are left; `reading`: until their tiles may be reused."""
    emit(f"cp.async.bulk.wait_group{'.read' if reading else ''}", pending)


def bulk_copy(target: Tile, source: Tile, barrier: Barrier, *, pred: Any = None) -> None:
    """Copy a tile to the same kind of tile in another CTA of the cluster, asynchronously.

    `target` and `barrier` are that CTA's (`tile.remote(rank)`, `barrier.remote(rank)`): it waits
    there for `tile.bytes`. One thread issues it, after the writers of `source` have fenced
    (`fence_proxy_async`) and synchronised.
    """
    start = own_address(source, "the source of a bulk copy")
    if target.space != PEERS or not barrier.in_cluster:
        raise OperandError(
            "a bulk copy goes to another CTA: its target is tile.remote(rank), and its barrier is "
            "barrier.remote(rank)"
        )
    if source.copied_as != target.copied_as or source.bytes % 16:
        raise OperandError(
            f"a bulk copy moves tiles of one kind, dense, from one swizzle's period on, and by "
            f"multiples of 16 bytes; it was given {source.described} and {target.described}"
        )
    emit(SHARE, target.address, start, source.bytes, barrier.address, pred=pred)


def _check_tile(tile: Tile, tensor: TensorMapOf) -> None:
    own_address(tile, "a tensor copy")
    size = 1
    for extent in tile.shape:
        size *= extent
    if size * tile.dtype.itemsize != tensor.bytes or tile.swizzle != tensor.swizzle:
        raise OperandError(
            f"the map copies {tensor.bytes} bytes with swizzle {tensor.swizzle}; the tile has "
            f"{size * tile.dtype.itemsize} bytes and swizzle {tile.swizzle}"
        )


def _s32(value: Any) -> Any:
    builder: Any = emitter()
    if isinstance(value, Scalar):
        return arithmetic.convert(builder, value, dtypes.s32)
    return int(value)


def _u16(value: Any) -> Any:
    builder: Any = emitter()
    if isinstance(value, Scalar):
        return arithmetic.convert(builder, value, dtypes.u16)
    return builder.literal(int(value), dtypes.u16)


def fence_proxy_async() -> None:
    """Generic writes to shared memory become visible to tensor copies and wgmma."""
    emit("fence.proxy.async.shared::cta")


def fence_mbarrier_init() -> None:
    """Initialised mbarriers become visible to the cluster and to asynchronous copies."""
    emit("fence.mbarrier_init.release.cluster")


# -- wgmma ------------------------------------------------------------------------------------

def wgmma_descriptor(tile: Tile, major: str = "k") -> Scalar:
    """The matrix descriptor of a view of shared memory, at a compile-time place of its tile.

    major "k": (rows, K) or (atoms, rows, K), K along memory, lines as wide as the swizzle.
    major "mn" (16-bit types): (atoms, K, width), each atom K lines of `width` rows.
    """
    builder: Any = emitter()
    own_address(tile, "wgmma")
    size = tile.dtype.itemsize
    if major not in ("k", "mn") or tile.strides[-1] != 1 or tile.ndim not in (2, 3):
        raise LayoutError(
            f'a descriptor needs major "k" or "mn" and a view whose last axis runs along memory, '
            f"not major {major!r} and strides {tile.strides}"
        )
    line = tile.strides[-2] * size
    if line != tile.swizzle or not tile.swizzle:
        raise LayoutError(
            f"wgmma reads lines as wide as their swizzle; lines have {line} bytes, the swizzle "
            f"{tile.swizzle}"
        )
    if major == "mn" and (size != 2 or tile.ndim != 3):
        raise LayoutError("MN-major operands have 16-bit elements and views (atoms, K, width)")
    leading = tile.strides[0] * size if major == "mn" else 16
    origin, offset = builder.split_constant(tile.origin)
    # In a cluster, bits above these tell the CTA; the descriptor has other fields there.
    units, mask = arithmetic.apply(builder, "shr", origin, 4), FIELDS["start"].mask
    start = arithmetic.apply(builder, "and", units, mask)
    place = offset + _static(tile.offset)
    bits = pack_descriptor(place, leading, 8 * line, tile.swizzle)
    low = arithmetic.apply(builder, "add", start, bits & 0xFFFFFFFF).bits(dtypes.b32)
    result: Scalar = emit("mov.b64.pack", low, builder.literal(bits >> 32, dtypes.u32))
    return result


def _static(offset: Any) -> int:
    if isinstance(offset, Scalar):
        raise LayoutError("an operand of wgmma starts at a compile-time place inside its tile")
    return int(offset)


def wgmma_async(
    form: Instruction, acc: Group, a: Any, b: Tile, *, accumulate: Any = True,
    a_major: str = "k", b_major: str = "k", negate_a: bool = False, negate_b: bool = False,
    metadata: Sequence[Any] = (),
) -> Group:  # fmt: skip
    """acc + a b (or a b alone where `accumulate` is false) for whole tiles along K.

    a is a shared view, or a list of fragments in registers, one for each step of K; b is a shared
    view (see `descriptor`). Call wgmma_fence before, wgmma_commit and wgmma_wait after.

    A sparse form (tc.wgmma.sp) takes the stored half of A, and 32-bit words of metadata in the
    order of K: each serves as many steps as the form has selectors. Their registers, like those
    of A, are read late: leave them alone until wgmma_wait.
    """
    assert form.shape is not None
    depth = form.shape[2]
    stored = depth // 2 if "sparse" in form.params else depth
    steps = _steps(form, "b", b, b_major, depth)
    places = _metadata(form, steps, metadata)
    of_a = _steps(form, "a", a, a_major, stored) if isinstance(a, Tile) else len(a)
    if of_a != steps:
        raise OperandError(f"{form}: a has {of_a} steps of K, b has {steps}")
    for step in range(steps):
        given = {
            "c": acc,
            "desc_b": wgmma_descriptor(_k_part(b, b_major, step * depth, depth), b_major),
            "scale_d": accumulate if step == 0 else True,
            "scale_a": -1 if negate_a else 1,
            "scale_b": -1 if negate_b else 1,
            "trans_a": int(a_major == "mn"),
            "trans_b": int(b_major == "mn"),
            **places[step],
        }
        if isinstance(a, Tile):
            given["desc_a"] = wgmma_descriptor(_k_part(a, a_major, step * stored, stored), a_major)
        else:
            given["a"] = a[step]
        acc = form(*_operands(form, given))
    return acc


def _steps(form: Instruction, name: str, tile: Tile, major: str, depth: int) -> int:
    """How many steps of `depth` a view has along K."""
    size: int = tile.shape[-1 if major == "k" else -2]
    if size < depth or size % depth:
        raise OperandError(
            f"{form} takes {depth} of K at a step, and views of whole steps; {name} has {size} "
            f"of K (shape {tuple(tile.shape)})"
        )
    return size // depth


def _metadata(form: Instruction, steps: int, words: Sequence[Any]) -> list[dict[str, Any]]:
    """Metadata and selector of each step; nothing for dense forms."""
    choices = next((len(o.values or ()) for o in form.operands if o.name == "selector"), 0)
    wanted = -(-steps // choices) if choices else 0
    if len(words) != wanted:
        raise OperandError(
            f"{form} takes {wanted} words of metadata for {steps} steps of K; {len(words)} "
            f"{'was' if len(words) == 1 else 'were'} given"
        )
    if not choices:
        return [{}] * steps
    bits = [word.bits(dtypes.b32) if isinstance(word, Scalar) else word for word in words]
    return [{"meta": bits[i // choices], "selector": i % choices} for i in range(steps)]


def _operands(form: Instruction, given: dict[str, Any]) -> list[Any]:
    """By name; integer and fp8 forms have neither signs nor transposition."""
    names = [o.name for o in form.operands]
    for name, neutral in (("trans_a", 0), ("trans_b", 0), ("scale_a", 1), ("scale_b", 1)):
        if name not in names and given[name] != neutral:
            raise OperandError(f"{form} has no {name}: operands are K-major and not negated")
    return [given[name] for name in names]


def _k_part(tile: Tile, major: str, k: int, depth: int) -> Tile:
    part: Tile = tile[..., k : k + depth] if major == "k" else tile[:, k : k + depth, :]
    return part


def wgmma_fence() -> None:
    """Order earlier accesses to registers before the following wgmma."""
    emit("wgmma.fence.sync.aligned")


def wgmma_commit() -> None:
    """Close a group of wgmma."""
    emit("wgmma.commit_group.sync.aligned")


def wgmma_wait(pending: int = 0) -> None:
    """Wait until at most `pending` groups of wgmma are in flight."""
    emit("wgmma.wait_group.sync.aligned", pending)


# -- roles and clusters -----------------------------------------------------------------------


def warpgroup_id() -> Scalar:
    """threadIdx.x // 128, in a way that the assembler knows to be the same for a warp."""
    return shfl(threadIdx.x // 128, 0)  # type: ignore[no-any-return]


def elect() -> Scalar:
    """True in one lane of a converged warp."""
    return emit("elect.sync", 0xFFFFFFFF)[1]  # type: ignore[no-any-return]


def setmaxnreg(count: int, *, grow: bool) -> None:
    """setmaxnreg: this warpgroup takes or gives back registers (a multiple of 8, 24 to 256)."""
    if count % 8 or not 24 <= count <= 256:
        raise OperandError(f"setmaxnreg takes a multiple of 8 from 24 to 256, not {count}")
    emit(f"setmaxnreg.{'inc' if grow else 'dec'}.sync.aligned.u32", count)


def cluster_size(*size: int) -> None:
    """Fix the CTAs of a cluster at compile time (`.reqnctapercluster`)."""
    if not 1 <= len(size) <= 3 or not all(isinstance(n, int) for n in size):
        given = ", ".join(n.described if isinstance(n, Scalar) else repr(n) for n in size)
        raise OperandError(
            f"tc.cluster_size takes one to three compile-time integers, not ({given}); a tc.Const "
            f"parameter is one"
        )
    builder: Any = emitter()
    builder.kernel.cluster = tuple([*size, 1, 1][:3])


def cluster_rank() -> Scalar:
    """This CTA's rank in its cluster."""
    value = emit("mov.u32.%cluster_ctarank")
    return Scalar(value.value, dtypes.s32)


def cluster_arrive() -> None:
    """Arrive at the cluster's barrier."""
    emit("barrier.cluster.arrive.release.aligned")


def cluster_wait() -> None:
    """Wait until every thread of the cluster has arrived."""
    emit("barrier.cluster.wait.acquire.aligned")


def cluster_sync() -> None:
    """Wait for every thread of the cluster."""
    cluster_arrive()
    cluster_wait()


def griddep_wait() -> None:
    """griddepcontrol.wait: the kernels before this one in the stream have ended."""
    emit("griddepcontrol.wait")


def griddep_launch_dependents() -> None:
    """griddepcontrol.launch_dependents: the next kernel may start."""
    emit("griddepcontrol.launch_dependents")


__all__ = ["Barrier", "Barriers", "Pointer", "TensorMapOf"]
