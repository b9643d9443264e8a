"""What becomes of the sums of a product, the same in all kernels: epilogue(alpha sum + beta C)."""

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.user_functions import apply_epilogue


def finished(sums, addends, coords, alpha, beta, traits):
    """The elements of D before they are rounded to its type; in kernels.

    addends: C's elements at `coords`, where traits.has_c, else unused. alpha times the sum is
    rounded, unless alpha is 1; a fused multiply-add then adds beta C, with one more rounding.
    Sums in f16 are finished in f32. alpha and beta are the second factors, as the assembler makes
    them in any case, since all threads share them: of several NaN of f64 the order of the operands
    decides which one is the result.
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
