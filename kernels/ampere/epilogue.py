"""Epilogue of the sm_80 GEMM kernels: scale the accumulators, add C, convert, store."""

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.ampere.config import AmpereTraits
from tensorcore_dsl.kernels.user_functions import apply_epilogue


def store_tile(acc, m0, n0, c, d, alpha, beta, mma, traits: AmpereTraits):
    """D = alpha acc + beta C for a warp's tile, which begins at row m0 and column n0 of D.

    Elements 2i and 2i + 1 of an accumulator fragment are neighbours in a row of D (PTX manual,
    layouts of mma.m16n8k16 and alike), so they are stored as one vector where alignment allows.
    """
    rows, cols, _ = mma.shape
    for i, fragments in enumerate(acc):
        for j, fragment in enumerate(fragments):
            for e in tc.static_range(0, len(fragment), 2):
                row, col = fragment.coordinates(e)
                row, col = m0 + i * rows + row, n0 + j * cols + col
                store_pair((fragment[e], fragment[e + 1]), row, col, c, d, alpha, beta, traits)


def store_pair(values, row, col, c, d, alpha, beta, traits: AmpereTraits):
    """Store the elements (row, col) and (row, col + 1)."""
    if traits.scaled:
        values = [alpha * v for v in values]
    if traits.full and traits.vec_d >= 2 * d.dtype.itemsize:
        if traits.has_c:
            old = c.at(row, col).load(2)
            values = [tc.fma(beta, old[e].to(v.dtype), v) for e, v in enumerate(values)]
        if traits.epilogue is not None:
            places = (row, col), (row, col + 1)
            values = [epilogue_op(v, at, traits) for v, at in zip(values, places, strict=True)]
        d.at(row, col).store([v.to(d.dtype) for v in values])
        return
    # A tile that overlaps the edge of D: each element is checked by itself.
    rows, cols = d.shape
    for e, value in enumerate(values):
        inside = (row < rows) & (col + e < cols)
        if inside:
            if traits.has_c:
                value = tc.fma(beta, c[row, col + e].to(value.dtype), value)
            if traits.epilogue is not None:
                value = epilogue_op(value, (row, col + e), traits)
            d[row, col + e] = value.to(d.dtype)


def epilogue_op(value, place, traits: AmpereTraits):
    """The user's epilogue of an element; accumulators in f16 are passed as f32."""
    value = value.to(tc.f32) if value.dtype == tc.f16 else value
    return apply_epilogue(traits.epilogue, value, place)
