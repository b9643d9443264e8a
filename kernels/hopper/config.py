"""Configuration of the Hopper GEMMs (tile, stages, cluster, schedule), and traits of a problem."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.ampere.config import AmpereConfig
from tensorcore_dsl.kernels.config_fields import check_fields
from tensorcore_dsl.kernels.hopper.row_reduction import RowReductions
from tensorcore_dsl.kernels.user_functions import EpilogueCall

SWIZZLE_BYTES = 128  # bytes of a row of a shared tile, and its swizzle
SMEM_BYTES = tc.ARCHS["sm_90a"].shared_kib * 1024  # shared memory of a CTA
SMEM_RESERVED = 1024  # bytes of a CTA for mbarriers, for the alignment of swizzled tiles, and for the driver
MAX_STAGES = 12  # default limit of `with_stages`
WARPGROUP = 128  # threads
MAX_BM = 448  # a producer and seven consumers have the 1024 threads of a CTA
MAX_CLUSTER = 16  # CTAs of a cluster
# Registers per thread of the producer and of two consumers: 24 + 2 * 240 = 3 * 168, the equal share
# of 65536 registers that each of 384 threads gets at launch.
PRODUCER_CONSUMER_REGISTERS = (24, 240)
MAX_EQUAL_SHARE_ACCUMULATORS = 128  # an equal share, 168, also holds addresses and loop state
FRAGMENT_REGISTERS = 16  # registers of a thread for fragments of 64 rows and one slab of 32-bit A
# Consumers -> registers for accumulators and fragments, with equal shares of all warpgroups.
FRAGMENT_ROOM = {1: 192, 2: 136, 3: 88}
# Most accumulators of a thread with which the epilogue of split-K fits an equal share of registers.
MAX_SPLIT_K_ACCUMULATORS = 64
TRANSPOSER_CONSUMER_REGISTERS = (72, 216)  # The producer's warps transpose tiles: 72 + 2 * 216 = 3 * 168.
# Promotion: columns whose products and accumulators fit 240 registers together, and columns that wider tiles
# multiply at a time.
MAX_SINGLE_PASS, MAX_PROMOTED_COLUMNS = 208, 128
SPLIT_REGISTERS = 64  # registers of a thread for f32 operands as parts, 64 rows and 32 of K of two k_tiles


@dataclass(frozen=True)
class HopperConfig:
    """How a Hopper GEMM divides its work. All fields are compile-time constants of the kernel.

    Attributes
    ----------
    BM, BN : int
        Rows and columns of a CTA's tile of D. BM: a multiple of 64. BN: a multiple of 8 in 16..256;
        for s8, 24 or a multiple of 16.
    stages : int
        Stages of the shared-memory pipeline.
    k_slabs : int
        Depth of a stage along K (a k_tile), in slabs of 128 bytes.
    cluster_m, cluster_n : int
        Rows and columns of CTAs in a cluster. CTAs of a column share tiles of B by multicast, CTAs
        of a row tiles of A.
    group_m : int
        Rasterisation: at least so many rows of tiles advance through the columns together, so that
        they share operands in the L2 cache.
    mma_in_flight : int
        Groups of wgmma that a consumer leaves pending, 0 or 1.
    pingpong : bool
        False, the cooperative schedule: the consumer warpgroups share each tile, 64 rows each.
        True, ping-pong: each consumer takes whole tiles, and the epilogue of one overlaps the
        mainloop of the other.
    split_k : int
        Parts of K. The CTAs of a cluster sum one part of K each and add up their sums. With
        multicast, cluster_m * cluster_n CTAs with different tiles sum one part.
    swap_ab : bool
        Swap AB: the kernel computes the transpose of D. A tile has BM columns and BN rows of D, so
        that a D with few rows fills the tiles. The bits are the same.

    Examples
    --------
    >>> config = kernels.HopperConfig(BM=128, BN=256, stages=4)
    >>> config.consumers, config.threads, config.max_stages
    (2, 384, 4)
    """

    BM: int = 128
    BN: int = 256
    stages: int = 4
    k_slabs: int = 1
    cluster_m: int = 1
    cluster_n: int = 1
    group_m: int = 8
    mma_in_flight: int = 1
    pingpong: bool = False
    split_k: int = 1
    swap_ab: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        positive = "cluster_m", "cluster_n", "split_k", "k_slabs", "group_m"
        if self.stages < 0 or min(getattr(self, name) for name in positive) < 1:
            raise tc.ArgumentError(
                f"{', '.join(positive[:-1])} and {positive[-1]} are 1 or more, stages 0 or more: {self}"
            )
        if self.cluster_size > MAX_CLUSTER:
            raise tc.ArgumentError(
                f"cluster_m * cluster_n * split_k, the CTAs of a cluster, is at most {MAX_CLUSTER}: {self}"
            )
        if not 64 <= self.BM <= MAX_BM or self.BM % 64 or not 16 <= self.BN <= 256:
            raise tc.ArgumentError(f"BM is 64, 128, ..., {MAX_BM}, and BN 16 to 256: {self}")
        # A sparse A has half the bytes.
        if (self.BM + self.BN) * SWIZZLE_BYTES * self.k_slabs > 2 * SMEM_BYTES:
            raise tc.ArgumentError(
                f"a stage, (BM + BN) * k_slabs * {SWIZZLE_BYTES} bytes, exceeds shared memory: {self}"
            )
        if self.BN % 8:
            raise tc.ArgumentError(f"BN is a multiple of 8: {self}")
        if self.mma_in_flight not in (0, 1):
            raise tc.ArgumentError(f"mma_in_flight is 0 or 1: {self}")
        if self.stages and self.stages <= self.mma_in_flight:
            raise tc.ArgumentError(f"the pipeline needs more stages than mma_in_flight: {self}")
        if self.pingpong and self.split_k > 1:
            raise tc.ArgumentError(f"the ping-pong schedule has no split-K: {self}")

    @property
    def consumers(self) -> int:
        """Consumer warpgroups of a CTA."""
        return 2 if self.pingpong else self.BM // 64

    @property
    def rows_per_consumer(self) -> int:
        """Rows of a tile that one consumer multiplies."""
        return self.BM if self.pingpong else 64

    @property
    def cluster_size(self) -> int:
        """CTAs of a cluster."""
        return self.cluster_m * self.cluster_n * self.split_k

    @property
    def stored_columns(self) -> int:
        """Columns of a tile that a CTA stores.

        Split-K splits BN into equal parts whose width is a multiple of 16, or of 8 if BN is no
        multiple of 16.
        """
        unit = 8 if self.BN % 16 else 16
        return self.BN // max(n for n in range(1, self.split_k + 1) if self.BN % (unit * n) == 0)

    @property
    def multicast_ctas(self) -> int:
        """CTAs of a cluster that sum the same part of K."""
        return self.cluster_m * self.cluster_n

    @property
    def multicast_peers(self) -> int:
        """CTAs that share a tile of A or B with this CTA by multicast, itself included."""
        return self.cluster_m + self.cluster_n - 1

    @property
    def splits_in_memory(self) -> bool:
        """Whether f32 products read operands that another kernel has split in two: slabs of both parts.

        Else the consumers split f32 operands in fragments.
        """
        return self.k_slabs == 2

    @property
    def threads(self) -> int:
        """Threads of a CTA: one producer warpgroup, and the consumers."""
        return WARPGROUP * (1 + self.consumers)

    @property
    def accumulator_registers(self) -> int:
        """Registers of a consumer's thread that hold f32 accumulators."""
        return self.rows_per_consumer // 64 * self.BN // 2

    @property
    def registers(self) -> tuple[int, ...]:
        """Registers per thread of producer and consumer; () where an equal share is enough."""
        return self.shares_if(self.accumulator_registers > MAX_EQUAL_SHARE_ACCUMULATORS)

    def shares_if(
        self, uneven: bool, shares: tuple[int, ...] = PRODUCER_CONSUMER_REGISTERS
    ) -> tuple[int, ...]:
        """`shares`, the registers per thread of producer and consumer, if two consumers need them; else ().

        Only two consumers leave registers to divide: one gets enough by an equal share, and a third
        one takes the producer's.
        """
        return shares if uneven and self.consumers == 2 else ()

    def registers_for(self, traits: HopperTraits, itemsize: int, out_bytes: int) -> tuple[int, ...]:
        """Registers per thread of producer and consumer, also for the epilogue and fragments of A.

        itemsize, out_bytes: bytes of an element of A, and of D.
        """
        limited = traits.needs_registers and self.exceeds_share_with_epilogue
        in_fragments = traits.in_fragments(self, itemsize)
        if not limited and not self.exceeds_share(in_fragments, out_bytes, traits.store_by_threads):
            return self.registers
        transposes = traits.transposes(self, itemsize)
        return TRANSPOSER_CONSUMER_REGISTERS if transposes else PRODUCER_CONSUMER_REGISTERS

    def exceeds_share(self, in_fragments: bool, out_bytes: int, store_by_threads: bool) -> bool:
        """Whether the mainloop and a plain epilogue need more registers than an equal share.

        Fragments of the left operand need registers. So do sums of split-K that are stored in 32
        bits, or by threads.
        """
        needed = self.accumulator_registers
        if in_fragments:
            needed += FRAGMENT_REGISTERS * self.k_slabs * self.rows_per_consumer // 64
        crowded = needed > FRAGMENT_ROOM[2]
        if self.split_k > 1 and (out_bytes == 4 or store_by_threads):
            crowded |= self.accumulator_registers > MAX_SPLIT_K_ACCUMULATORS
        return self.consumers == 2 and crowded

    @property
    def exceeds_share_with_epilogue(self) -> bool:
        """Whether an epilogue that needs registers needs more than an equal share, 168 (measured)."""
        return self.consumers == 2 and self.accumulator_registers > 80

    def epilogue_bytes(self, buffers: int = 2) -> int:
        """Shared memory of the epilogue: staging buffers of each consumer, and split-K partials.

        Partials that fit into the stages of one operand lie there.
        """
        separate = self.split_k > 1 and self.partials_over(self.stages) is None
        return self._staging_bytes(buffers) + self._partial_bytes * separate

    def staging_buffers(self, columns: int) -> int:
        """Staging buffers of a consumer: two, which take turns, or one if two would cost a stage.

        columns: columns of a stage, see `stages_of`.
        """
        return 2 if self.stages <= self.stages_of(columns, buffers=2) else 1

    def _staging_bytes(self, buffers: int) -> int:
        return self.consumers * buffers * 64 * SWIZZLE_BYTES

    @property
    def _partial_bytes(self) -> int:
        return self.BM * self.BN * 4

    def partials_over(self, stages: int) -> int | None:
        """The operand, 0 or 1, whose `stages` have room for a CTA's partials, or None."""
        for operand, lines in ((1, self.BN), (0, self.BM)):
            if self._partial_bytes <= stages * self.k_slabs * lines * SWIZZLE_BYTES:
                return operand
        return None

    @property
    def max_stages(self) -> int:
        """Stages that fit into shared memory with an epilogue of one staging buffer."""
        return self.stages_of(self.BN)

    def stages_of(self, columns: int, buffers: int = 1) -> int:
        """Stages of `columns` columns that fit into shared memory with the staging buffers."""
        free = SMEM_BYTES - self._staging_bytes(buffers) - SMEM_RESERVED
        bytes_per_stage = (self.BM + columns) * SWIZZLE_BYTES * self.k_slabs
        if self.split_k > 1 and self.partials_over(free // bytes_per_stage) is None:
            free -= self._partial_bytes
        return free // bytes_per_stage

    def loaded_columns(self, k_major: bool, itemsize: int) -> int:
        """Columns of a stage: BN, rounded up to whole TMA boxes for 16-bit MN-major operands."""
        width = SWIZZLE_BYTES // itemsize
        return self.BN if k_major or itemsize != 2 else -(-self.BN // width) * width

    def with_stages(self, most: int = MAX_STAGES) -> HopperConfig:
        """A copy of the configuration with as many stages as fit, at most `most`."""
        return replace(self, stages=min(most, self.max_stages))


@dataclass(frozen=True)
class HopperTraits:
    """Properties of the operands and the epilogue that a kernel is compiled for.

    Attributes
    ----------
    a_k_major, b_k_major : bool
        K is the contiguous axis of A, of B.
    store_by_threads : bool
        TMA cannot write D: its rows are not 16-byte aligned.
    scaled, has_c : bool
        The epilogue computes alpha * acc, and adds beta * C.
    c_in_pairs, c_is_row : bool
        C is read two columns at a time; C is one row, broadcast.
    acc_dtype : DType or None
        Element type of the accumulators. None: f32, or s32 for integers.
    epilogue : function or None
        epilogue(value, row, col), a function of the kernel language, applied to each element before
        it is converted to D's type. An EpilogueCall if it takes more arguments.
    row_reductions : RowReductions or None
        Reductions over the rows of the result.
    """

    a_k_major: bool = True
    b_k_major: bool = True
    store_by_threads: bool = False
    scaled: bool = False
    has_c: bool = False
    c_in_pairs: bool = False
    c_is_row: bool = False
    acc_dtype: Any = None
    epilogue: Callable[..., Any] | EpilogueCall | None = None
    row_reductions: RowReductions | None = None

    def staging_buffers(self, config: HopperConfig, itemsize: int) -> int:
        """Staging buffers of a consumer, see `HopperConfig.staging_buffers`."""
        k_major = self.a_k_major if config.swap_ab else self.b_k_major
        return config.staging_buffers(config.loaded_columns(k_major, itemsize))

    def in_fragments(self, config: HopperConfig, itemsize: int) -> bool:
        """Whether consumers read fragments of the left operand of wgmma: 32 bits, MN-major."""
        return itemsize == 4 and not (self.b_k_major if config.swap_ab else self.a_k_major)

    def transposes(self, config: HopperConfig, itemsize: int) -> bool:
        """Whether warps transpose tiles of the right operand of wgmma: 32 bits, MN-major."""
        return itemsize == 4 and not (self.a_k_major if config.swap_ab else self.b_k_major)

    @property
    def needs_registers(self) -> bool:
        """Whether the epilogue needs registers: a C read by elements, arguments, reductions."""
        reads_c = self.has_c and not self.c_in_pairs
        takes_more = isinstance(self.epilogue, EpilogueCall) and bool(self.epilogue.names)
        return self.row_reductions is not None or reads_c or takes_more


def promoted_columns(config: HopperConfig) -> int:
    """Columns of promoted fp8 multiplied at a time, so that products and accumulators fit the registers.

    It is BN or an equal part of it, a multiple of 8.
    """
    if config.BN <= MAX_SINGLE_PASS:
        return config.BN
    return max(width for width in range(8, MAX_PROMOTED_COLUMNS + 1, 8) if config.BN % width == 0)


def promotion_registers(config: HopperConfig, width: int, extra_producers: int = 0) -> tuple[int, ...]:
    """Registers per thread of producer and consumer of promoted fp8; () if an equal share is enough.

    Addresses and loop state take about 20 registers of the equal share of 168. A producer that
    also loads scales needs 56: 56 + 2 * 224 = 3 * 168.
    """
    accumulators, products = config.BN // 2, width // 2
    shares = (56, 224) if extra_producers else PRODUCER_CONSUMER_REGISTERS
    return config.shares_if(accumulators + products > 148, shares)


def fragments_registers(config: HopperConfig) -> tuple[int, ...]:
    """Registers per thread of producer and consumer of f32 operands; () if an equal share is enough."""
    uneven = FRAGMENT_ROOM[2] < config.BN + SPLIT_REGISTERS
    return config.shares_if(uneven, TRANSPOSER_CONSUMER_REGISTERS)


def resident_ctas(config: AmpereConfig) -> int:
    """CTAs of the f64 kernel that an SM runs at a time, by registers and shared memory.

    A thread has two registers for each of its accumulators, and others for fragments. Large tiles
    take the whole share of a thread of 8 warps.
    """
    accumulators = config.WM * config.WN // 16
    warps = 8 if accumulators > 64 else 16 if accumulators > 32 else 20
    stages = config.stages * (config.BM + config.BN) * config.BK * 8
    return max(1, min(warps * 32 // config.threads, SMEM_BYTES // (stages + SMEM_RESERVED)))
