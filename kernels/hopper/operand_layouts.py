"""Operand tiles of either layout: K-major (pipeline.py), and MN-major in 16 bits.

TMA loads an MN-major tile in blocks of 128 bytes of rows or columns, `depth` deep along K. wgmma
reads 16-bit blocks as they are. It may read a part of the last block only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd
from typing import Any, ClassVar

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.hopper.cluster import multicast_of
from tensorcore_dsl.kernels.hopper.config import SWIZZLE_BYTES, HopperConfig, HopperTraits
from tensorcore_dsl.kernels.hopper.pipeline import (
    SWIZZLE_ROWS,
    OperandTiles,
    in_array_order,
    in_row_blocks,
    largest_divisor,
    make_k_major_tiles,
)


def make_tiles(array, axis: int, k_major: bool, side: int, rows: int, depth: int, config):
    """Make tiles of an array. axis: the axis that is not K. side: 0 for the left operand of wgmma."""
    if k_major:
        return make_k_major_tiles(array, side, rows, depth, config, axis)
    width = SWIZZLE_BYTES // array.dtype.itemsize
    boxes = -(-rows // width)
    shape = config.stages * config.k_slabs, boxes, depth, width
    smem = tc.shared(shape, array.dtype, swizzle=SWIZZLE_BYTES)
    return make_mn_major_tiles(MNMajorTiles, array, axis, side, smem, smem, boxes, config)


def make_operands(a, b, config: HopperConfig, traits: HopperTraits, make=make_tiles):
    """Tiles of the left and of the right operand of wgmma: A and B, or B and A with swap AB."""
    operands = (a, 0, traits.a_k_major), (b, 1, traits.b_k_major)
    left, right = operands[::-1] if config.swap_ab else operands
    depth = SWIZZLE_BYTES // a.dtype.itemsize
    return make(*left, 0, config.BM, depth, config), make(*right, 1, config.BN, depth, config)


@dataclass
class MNMajorTiles(OperandTiles):
    """MN-major tiles of A or B, in blocks of 128 bytes of rows or columns.

    Attributes
    ----------
    landing : tile
        (slab, block, k, row or column), as TMA fills the tiles.
    k_boxes : int
        Boxes of a block along K.
    """

    landing: Any = field(kw_only=True)
    k_boxes: int = field(kw_only=True)

    major: ClassVar[str] = "mn"

    @property
    def row_blocks(self):
        """View of the tiles in blocks of 128 bytes of rows: the 64 rows of a wgmma."""
        return in_row_blocks(self.smem, 1)

    def load(self, slab, batch, origin, k, full):
        """Load this CTA's boxes of a slab, see `OperandTiles.load`."""
        batch = batch[: len(self.map.box) - 2]
        rows, depth = in_array_order(self.axis, *self.map.box[len(batch) :])
        ctas, shares = self.multicast.ctas, self.boxes * self.k_boxes
        boxes_per_cta = -(-shares // ctas)
        for i in tc.static_range(boxes_per_cta):
            number = self.multicast.index * boxes_per_cta + i
            pred = None if shares % ctas == 0 else number < shares
            box, part = number, 0
            if self.k_boxes > 1:
                box, part = number // self.k_boxes, number % self.k_boxes
            target = self.landing[slab, box]
            if self.k_boxes > 1:
                target = target[part * depth : part * depth + depth]
            first = origin + box * rows
            first = tc.select(first < self.extent, first, 0)
            index = (*batch, *in_array_order(self.axis, first, k + part * depth))
            target = target if self.axis else target.T  # (row, k) or (k, column)
            tc.tma_load(target, self.map, index, full, multicast=self.multicast.mask, pred=pred)


def make_mn_major_tiles(kind, array, axis: int, side: int, smem, landing, boxes: int, config):
    """Make tiles of class `kind` that TMA fills as `landing`: (slab, block, k, row or column).

    If the blocks do not divide among the CTAs that share a tile, these CTAs share blocks along K.
    """
    multicast, (depth, width) = multicast_of(side, config), landing.shape[2:]
    k_boxes = largest_divisor(depth // SWIZZLE_ROWS, multicast.ctas // gcd(boxes, multicast.ctas))
    box = (1,) * (array.ndim - 2) + in_array_order(axis, width, depth // k_boxes)
    map = tc.tensor_map(array, box, swizzle=SWIZZLE_BYTES)
    size = array.shape[-2:][axis]
    return kind(map, smem, boxes, multicast, axis, size, landing=landing, k_boxes=k_boxes)
