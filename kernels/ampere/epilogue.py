"""Epilogue of the sm_80 GEMM kernels: scale the accumulators, add C, convert, store."""

import tensorcore_dsl as tc
from tensorcore_dsl.kernels.epilogue_arithmetic import Output


def store_tile(acc, m0, n0, mma, output: Output):
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
                store_pair((fragment[e], fragment[e + 1]), row, col, output)


def store_pair(sums, row, col, output: Output):
    """Store the elements (row, col) and (row, col + 1)."""
    c, d, traits, coords = output.c, output.d, output.traits, ((row, col), (row, col + 1))
    if traits.full and traits.vec_d >= 2 * d.dtype.itemsize:
        addends = c.at(row, col).load(2).elements() if traits.has_c else ()
        values = output.finished(sums, addends, coords)
        d.at(row, col).store([v.to(d.dtype) for v in values])
        return
    # A tile that overlaps the edge of D: each element is checked by itself.
    rows, cols = d.shape
    for at, total in zip(coords, sums, strict=True):
        inside = (at[0] < rows) & (at[1] < cols)
        if inside:
            addends = [c[at]] if traits.has_c else ()
            (value,) = output.finished([total], addends, [at])
            d[at] = value.to(d.dtype)
