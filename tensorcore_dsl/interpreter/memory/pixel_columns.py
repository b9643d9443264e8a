"""Columns of pixels that tensor copies in im2col mode move (PTX manual 5.5.4).

A column is staged in a buffer of its own, as a box of channels and pixels. A load gathers pixels of
the array there before they go to shared memory. A store scatters them from there into the array.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tensorcore_dsl.errors import OutOfBounds
from tensorcore_dsl.interpreter.memory.global_memory import TensorMapArgument
from tensorcore_dsl.interpreter.memory.tensor_box import BOX, EXTENT, RANK, START, STRIDE, TensorBox
from tensorcore_dsl.ir.nodes import Im2col


@dataclass(frozen=True, kw_only=True)
class PixelColumn(TensorBox):
    """The pixels of one copy. `real` and `plan` describe the stage in shared memory.

    Attributes
    ----------
    array : array
        Words, with the axes outermost first.
    start : tuple
        The coordinates of the copy.
    inside_array, inside_stage : tuple
        The indices of the words that lie in the array, in it and in the stage.
    """

    im2col: Im2col
    array: np.ndarray
    start: tuple[int, ...] = ()
    stage: Any = None
    inside_array: tuple[Any, ...] = ()
    inside_stage: tuple[Any, ...] = ()

    @classmethod
    def along(cls, argument: TensorMapArgument, im2col: Im2col) -> PixelColumn:
        """The column of a tensor map, at no coordinates yet."""
        box = TensorBox.of(argument)
        plan = np.ones((4, RANK), np.int64)
        plan[EXTENT, :2] = plan[BOX, :2] = argument.box
        plan[STRIDE, :2] = box.element, box.element * argument.box[0]
        plan[START] = 0
        words = argument.array.transpose(argument.axes[::-1]).view(f"u{box.element}")
        return cls(**vars(box) | {"plan": plan}, im2col=im2col, array=words)

    def at(self, coordinates: tuple[int, ...], offsets: Sequence[int] = ()) -> PixelColumn:
        """The column of the filter base at `coordinates`, moved by `offsets`."""
        (first, *base, image), (channels, pixels) = coordinates, self.plan[BOX, :2].tolist()
        lower, steps, shape = self.im2col.lower, self.im2col.steps, self.array.shape
        ends = [n + upper for n, upper in zip(shape[-2:0:-1], self.im2col.upper, strict=True)]
        if not all(low <= at < end for low, at, end in zip(lower, base, ends, strict=True)):
            raise OutOfBounds(
                f"a tensor copy of {self.name} has its filter base at {tuple(base)}; the pixel box reaches "
                f"from {lower} to before {tuple(ends)} (innermost axis first; PTX manual, 5.5.4.1)"
            )
        indices = np.empty((pixels, len(coordinates) - 1), np.int64)
        for pixel in range(pixels):
            indices[pixel] = image, *[at + by for at, by in zip(base[::-1], offsets[::-1], strict=True)]
            for axis, step in enumerate(steps):
                base[axis] += step
                if base[axis] < ends[axis]:
                    break
                base[axis] = lower[axis]
            else:
                image += 1
        rows = np.flatnonzero(((indices >= 0) & (indices < shape[:-1])).all(axis=1))
        low = min(max(first, 0), shape[-1])
        high = max(min(first + channels, shape[-1]), low)
        there = (*indices[rows].T, slice(low, high))
        here = rows, slice(low - first, high - first)
        stage = np.full((pixels, channels), self.fill & 256**self.element - 1, self.array.dtype)
        stage[here] = self.array[there]
        return replace(
            self,
            real=stage.ctypes.data,
            start=coordinates,
            stage=stage,
            inside_array=there,
            inside_stage=here,
        )

    def write_back(self) -> None:
        self.array[self.inside_array] = self.stage[self.inside_stage]

    @property
    def inside(self) -> int:
        return int(self.stage[self.inside_stage].nbytes)

    def rows_inside(self, starts: np.ndarray) -> np.ndarray:
        *outer, channels = self.inside_array
        real = self.array.__array_interface__["data"][0] + channels.start * self.element
        rows = real + np.array(outer).T @ np.array(self.array.strides[:-1])
        return np.stack((rows, rows + (channels.stop - channels.start) * self.element), axis=-1)[None]

    def outside(self, start: Sequence[int]) -> str:
        channels, pixels = self.plan[BOX, :2].tolist()
        return (
            f"{pixels} pixels of {channels} channels from coordinates {tuple(start)} on lie outside of the "
            f"array of {self.array.shape[::-1]} (innermost axis first)"
        )
