"""The problem that a call of `attention`, or of its gradients, states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tensorcore_dsl.host import Description
from tensorcore_dsl.kernels.attention_scores import AttentionTraits


@dataclass(frozen=True)
class AttentionProblem:
    """Checked arguments of attention, or of its gradients.

    Attributes
    ----------
    arrays : dict
        q, k and v by name.
    shape : tuple of int
        Shape of the result: (batch, heads, queries, D of v).
    traits : AttentionTraits
        Compile-time constants.
    scale : float
        Factor of the scores.
    scalars : tuple
        Arguments of the kernels: scale and cap, see Softmax; left and right, see KeyRange.
    """

    arrays: dict[str, Description]
    dtype: Any
    shape: tuple[int, int, int, int]
    traits: AttentionTraits
    scale: float
    scalars: tuple[Any, ...]
