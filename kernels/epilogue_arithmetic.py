"""Epilogue arithmetic that all kernels share: epilogue(alpha sum + beta C)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.user_functions import apply_epilogue


def finish_sums(sums, addends, coords, alpha, beta, traits):
    """Compute elements of D before they are rounded to its type; in kernels.

    addends: C's elements at `coords` if traits.has_c, else unused. alpha times the sum is rounded,
    unless alpha is 1; a fused multiply-add then adds beta C, with one more rounding. Sums in f16 are
    finished in f32. alpha and beta are the second factors, because the assembler puts values that
    all threads share second. The order decides which of several f64 NaN is the result.
    """
    values = [x.to(tc.f32) if x.dtype == tc.f16 else x for x in sums]
    if traits.scaled:
        values = [x * alpha for x in values]
    if traits.has_c:
        pairs = zip(values, addends, strict=True)
        values = [tc.fma(addend.to(x.dtype), beta, x) for x, addend in pairs]
    if traits.epilogue is None:
        return values
    pairs = zip(values, coords, strict=True)
    return [apply_epilogue(traits.epilogue, x, coord) for x, coord in pairs]


@dataclass
class Output:
    """D, and the arguments of the epilogue: C, alpha, beta and the traits."""

    c: Any
    d: Any
    alpha: Any
    beta: Any
    traits: Any

    def finished(self, sums, addends, coords):
        """Compute elements of D at `coords`, see `finish_sums`."""
        return finish_sums(sums, addends, coords, self.alpha, self.beta, self.traits)
