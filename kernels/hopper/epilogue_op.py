"""The function that an epilogue applies to accumulators: epilogue(alpha acc + beta C)."""

from __future__ import annotations

from tensorcore_dsl.kernels.epilogue_arithmetic import finish_sums


def make_epilogue_op(traits, c=None, alpha=1, beta=0):
    """epilogue_op(sums, coords): compute elements of D by `finish_sums`, 8 of them or 4.

    The eight accumulators of a thread are columns c, c + 1, c + 8, c + 9 of rows r and r + 8, the
    four columns c, c + 1.
    """

    def epilogue_op(sums, coords):
        addends = load_c(c, coords, traits) if traits.has_c else ()
        return finish_sums(sums, addends, coords, alpha, beta, traits)

    return epilogue_op


def load_c(c, coords, traits):
    """C's elements at these coordinates, 0 outside of C; in pairs of columns where C allows it."""
    if not traits.c_in_pairs:
        return [c.at(*coord).load(pred=is_inside(c, coord)) for coord in coords]
    if not traits.c_is_row:
        return [x for i in range(0, len(coords), 2) for x in load_pair(c, coords[i])]
    # A broadcast row: both rows of a thread read the same elements.
    pairs = [load_pair(c, (*coords[i][:-2], 0, coords[i][-1])) for i in range(0, len(coords), 4)]
    return [x for pair in pairs for x in (*pair, *pair)]


def load_pair(c, coord):
    """Two neighbouring elements of a row."""
    return c.at(*coord).load(2, pred=is_inside(c, coord)).elements()


def is_inside(c, coord):
    """Tell whether (row, column) is inside the matrix."""
    return (coord[-2] < c.shape[-2]) & (coord[-1] < c.shape[-1])
