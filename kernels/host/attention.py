"""`attention(q, k, v, ...)`: softmax(scale q kᵀ) v by the kernel of the current GPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl.host import Description, check_stream
from tensorcore_dsl.kernels.ampere import attention as ampere
from tensorcore_dsl.kernels.attention_scores import AttentionTraits
from tensorcore_dsl.kernels.choosing.attention import PAGE_UNIT, choose_family, choose_forward, section_of
from tensorcore_dsl.kernels.hopper.attention import attention_kernel
from tensorcore_dsl.kernels.host.arguments import check_ascends, described, f32_number, on_host, present
from tensorcore_dsl.kernels.host.arrays import empty_like, on_stream
from tensorcore_dsl.kernels.host.launch import PreparedCall, bind, cached_call, launch_nothing
from tensorcore_dsl.kernels.host.operands import check_half_precision, check_rank, result_array_of_type
from tensorcore_dsl.kernels.host.overlap import check_written
from tensorcore_dsl.kernels.host.workspace import cached_workspace
from tensorcore_dsl.kernels.problem.attention_problem import AttentionProblem
from tensorcore_dsl.kernels.problem.problem_shape import SMS
from tensorcore_dsl.kernels.sizes import cdiv

MAX_DEPTH = 256  # Accumulators of 64 x D take D / 2 registers of a thread.
MAX_WINDOW = 2**30  # keys on one side. Sums with positions stay within 32 bits.
LOG2_E = math.log2(math.e)


def attention(  # noqa: PLR0913
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    cu_seqlens: Any = None,
    block_table: Any = None,
    out: Any = None,
    return_lse: bool = False,
    family: str | None = None,
    stream: Any = None,
) -> Any:
    """Compute softmax(scale q kᵀ) v for each head, without the matrix of scores in memory.

    Parameters
    ----------
    q : array
        (batch, heads, queries, D), f16 or bf16, of NumPy, Numba, torch, CuPy or another library
        with DLPack. D is a multiple of 8 up to 256 and contiguous; the array and its rows start at
        multiples of 16 bytes. An array (batch, queries, heads, D) is passed as a view with two axes
        exchanged.
    k, v : array
        (batch, key heads, keys, D), of the type of q; D of v may differ. `heads` is a multiple of
        `key heads`: neighbouring heads of q share a head of k and v.
    causal : bool
        Query i sees key j where j <= i + keys - queries, so that the last query sees all keys.
    window : tuple of two int or None, optional
        How many keys a query sees on the left and on the right of its own place, which is key
        i + keys - queries. None: all.
    scale : float, optional
        A positive number. None: 1 / sqrt(D).
    softcap : float, optional
        A positive number c: scores s become c tanh(s / c).
    cu_seqlens : array or tuple of two arrays, optional
        Sequences of different lengths, one after the other in a batch of 1: sequence i has the
        rows cu_seqlens[i] to cu_seqlens[i + 1] - 1. s32, where kernels run, ascending from 0. Rows past
        the last sequence are not written. A tuple has one array for the queries and one for the keys.
    block_table : array, optional
        Keys and values in pages, with cu_seqlens: k and v are (pages, key heads, page size, D),
        and block_table[i, j] is the number of page j of sequence i. s32; entries past the last
        page of a sequence are not used. The page size is 16, 32 or a multiple of 64.
    out : array, optional
        (batch, heads, queries, D of v), of the type of q; it shares no memory with the operands.
        None: a new array.
    return_lse : bool
        Return the logarithm of the sum of exponentials of each row's scores, too: f32 of shape
        (batch, heads, queries).
    family : {"sm80", "sm90"}, optional
        Kernels with mma.sync, or with wgmma. None: wgmma on sm_90a, if there is a ptxas that
        reallocates registers; mma.sync elsewhere.
    stream : stream, optional
        As for `gemm`.

    Returns
    -------
    array
        `out`, or (out, lse). A query that sees no key has zeros, and -inf in lse.

    Raises
    ------
    ArgumentError
        Arguments that do not fit.

    Examples
    --------
    >>> q = np.zeros((1, 4, 3, 64), np.float16)
    >>> k = np.zeros((1, 2, 5, 64), np.float16)
    >>> v = np.ones_like(k)
    >>> o, lse = kernels.attention(q, k, v, causal=True, return_lse=True)
    >>> o.shape, float(o[0, 0, 0, 0]), np.exp(lse[0, 0]).round(2)
    ((1, 4, 3, 64), 1.0, array([3., 4., 5.], dtype=float32))
    """
    options: Any = (causal, window, scale, softcap, return_lse, family, stream)
    starts = cu_seqlens if isinstance(cu_seqlens, tuple) else (cu_seqlens, cu_seqlens)
    lists = [x for x in (*starts, block_table) if x is not None]
    results = () if out is None else (out,)
    key = ("attention", len(starts), block_table is None, *map(str, (scale, softcap)), *options)
    prepare = lambda: _prepare(q, k, v, out, starts, block_table, *options)
    call = cached_call(results, (q, k, v, *lists), key, prepare)
    out = call.result(q, out)
    lse = None if call.allocate_rows is None else call.allocate_rows(q)
    call.launch(q, k, v, out, lse, *lists)
    return out if lse is None else (out, lse)


def checked_problem(
    arrays: dict[str, Any],
    lists: dict[str, Description],
    page: int,
    causal: Any,
    window: Any,
    scale: Any,
    softcap: Any,
    return_lse: Any,
) -> AttentionProblem:
    """Check q, k, v and the options.

    lists: descriptions of the starts of sequences and of the table of pages; page: keys of a page.
    """
    descriptions = described(**arrays)
    dtype = check_half_precision(**descriptions)
    shape = _result_shape(descriptions, lists, page)
    left, right = _window(causal, window)
    depth, width = descriptions["q"].shape[3], shape[3]
    scale = 1 / math.sqrt(depth) if scale is None else _positive("scale", scale)
    factors = (scale * LOG2_E, 1.0)
    if softcap is not None:
        softcap = _positive("softcap", softcap)
        factors = (softcap * LOG2_E, 2 * LOG2_E * scale / softcap)
    bounds, has_bounds = (left or 0, right or 0), (left is not None, right is not None)
    traits = AttentionTraits(
        depth, width, *has_bounds, softcap is not None, bool(return_lse), bool(lists), page
    )
    return AttentionProblem(descriptions, dtype, shape, traits, scale, (*factors, *bounds))


def _prepare(  # noqa: PLR0913
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    starts: Any,
    table: Any,
    causal: Any,
    window: Any,
    scale: Any,
    softcap: Any,
    return_lse: Any,
    family: Any,
    stream: Any,
) -> PreparedCall:
    """Check the arguments, choose the kernel and bind its launch."""
    check_stream(stream)
    lists = check_lists(starts, table)
    page = described(k=k)["k"].shape[2] if table is not None else 0
    arrays = {"q": q, "k": k, "v": v}
    problem = checked_problem(arrays, lists, page, causal, window, scale, softcap, return_lse)
    shape, traits, descriptions = problem.shape, problem.traits, problem.arrays
    o, in_o = result_array_of_type(q, out, shape, problem.dtype)
    check_written({**descriptions, **lists}, out=out)
    for name, x in {**descriptions, "out": in_o}.items():
        check_layout(name, x)
    allocate = (lambda like: empty_like(like, shape[:3], tc.f32)) if return_lse else None
    call = PreparedCall(shape, problem.dtype, launch_nothing, (), allocate)
    if 0 in shape:
        return call
    if 0 in descriptions["k"].shape:
        return replace(call, launch=_fill(stream))
    run = _bind_sm80 if choose_family(family) == "sm80" else _bind_sm90
    lse = None if allocate is None else allocate(q)
    bound = q, k, v, o, lse, *(x for x in (*starts, table) if x is not None)
    launch = run(traits, bound, problem.scalars, descriptions, stream)
    keys = page * lists["block_table"].shape[1] if page else descriptions["k"].shape[2]
    return replace(call, launch=with_check(launch, lists, 5, shape[2], keys))


def _bind_sm80(
    traits: AttentionTraits, arrays: Any, scalars: Any, descriptions: dict[str, Description], stream: Any
) -> Callable[..., None]:
    batch, heads, queries, _ = descriptions["q"].shape
    sequences = arrays[5].shape[0] - 1 if traits.packed else batch
    # A packed sequence may have all queries; CTAs past the end of a sequence have no work.
    grid, options = (cdiv(queries, ampere.ROWS), heads, sequences), {"traits": traits}

    def arguments(q: Any, k: Any, v: Any, o: Any, lse: Any, *lists: Any) -> Any:
        return (q, k, v, o, o if lse is None else lse, *fill_lists(lists, o), *scalars)

    launch = bind(ampere.attention_kernel, grid, ampere.THREADS, options, arguments(*arrays), stream=stream)
    return lambda *arrays: launch(*arguments(*arrays))


def _bind_sm90(
    traits: AttentionTraits, arrays: Any, scalars: Any, descriptions: dict[str, Description], stream: Any
) -> Callable[..., None]:
    batch, heads, queries, _ = descriptions["q"].shape
    sequences = arrays[5].shape[0] - 1 if traits.packed else 1
    traits, config = choose_forward(traits, queries, heads // descriptions["k"].shape[1], sequences)
    lines = heads if traits.pack == 1 else descriptions["k"].shape[1]
    section = section_of(traits, descriptions["k"].shape[2], batch * lines)
    rows = config.BM // traits.pack
    tiles = cdiv(queries, rows)
    if traits.packed:  # each sequence may begin a tile
        tiles = queries // rows + sequences
    options = {"config": config, "traits": traits}

    def arguments(q: Any, k: Any, v: Any, o: Any, lse: Any, *lists: Any) -> Any:
        tickets = _tickets(q, stream)
        lists = tickets, *fill_lists(lists, tickets)
        return (q, k, v, o, o if lse is None else lse, *lists, *scalars, section)

    launch = bind(
        attention_kernel,
        min(tiles * lines * batch, SMS),
        config.threads,
        options,
        arguments(*arrays),
        stream=stream,
        pdl=True,
    )
    return lambda *arrays: launch(*arguments(*arrays))


def fill_lists(lists: tuple[Any, ...], stand_in: Any) -> tuple[Any, ...]:
    """The two lists of starts and the table; dummy arrays for kernels that do not read them."""
    return *lists, *(stand_in,) * (3 - len(lists))


def check_lists(starts: Any, table: Any) -> dict[str, Description]:
    """Describe and check the starts of queries and keys, and the table, if given."""
    if len(starts) != 2 or (starts[0] is None) != (starts[1] is None):
        raise tc.ArgumentError("cu_seqlens is an array, or a tuple of two: for the queries, and for the keys")
    if table is not None and starts[0] is None:
        raise tc.ArgumentError("block_table needs cu_seqlens, which tells how many keys there are")
    lists = described(**present(cu_seqlens=starts[0], keys=starts[1], block_table=table))
    for name, x in lists.items():
        axes = 2 if name == "block_table" else 1
        least = 1 if name == "block_table" else 2
        if len(x.shape) != axes or x.type.dtype != tc.s32 or min(x.shape) < least:
            raise tc.ArgumentError(
                f"{'cu_seqlens' if name == 'keys' else name} holds {x.type.dtype} of shape {x.shape}; it "
                f"must be s32 (np.int32) with {'two axes' if axes == 2 else 'one axis'} and {least} or more "
                "elements"
            )
    if lists and lists["cu_seqlens"].shape != lists["keys"].shape:
        raise tc.ArgumentError(
            f"cu_seqlens has {lists['cu_seqlens'].shape[0]} starts of queries and "
            f"{lists['keys'].shape[0]} of keys; they belong to the same sequences"
        )
    if table is not None and lists["block_table"].shape[0] != lists["keys"].shape[0] - 1:
        raise tc.ArgumentError(
            f"block_table has {lists['block_table'].shape[0]} rows for {lists['keys'].shape[0] - 1} sequences"
        )
    return lists


def with_check(
    launch: Callable[..., None], lists: dict[str, Description], at: int, queries: int, keys: int
) -> Callable[..., None]:
    """Wrap `launch` with a check of starts in host memory: arguments `at` and `at` + 1.

    queries: rows of q. keys: rows of k, or those of all pages of a sequence. Starts on a GPU are not
    checked, since the check would wait for the GPU.
    """
    if not lists or not all(x.on_host for x in lists.values()):
        return launch
    paged = "block_table" in lists

    def checked(*arrays: Any) -> None:
        query_starts, key_starts = (on_host(x) for x in arrays[at : at + 2])
        _check_starts("q", query_starts, queries)
        if not paged:
            _check_starts("k", key_starts, keys)
        elif (most := int(np.diff(key_starts).max())) > keys:
            raise tc.ArgumentError(
                f"cu_seqlens has a sequence of {most} keys; its row of block_table has pages of {keys} in all"
            )
        launch(*arrays)

    return checked


def _check_starts(name: str, starts: np.ndarray, rows: int) -> None:
    """Refuse starts that do not ascend from 0 to at most `rows`."""
    if starts[0] != 0 or starts[-1] > rows:
        raise tc.ArgumentError(
            f"cu_seqlens of {name} goes from {starts[0]} to {starts[-1]}; it must go from 0 to at most "
            f"{rows}, the rows of {name}"
        )
    check_ascends("cu_seqlens", starts)


def _result_shape(
    descriptions: dict[str, Description], lists: dict[str, Description], page: int
) -> tuple[int, int, int, int]:
    """Shape of the result (batch, heads, queries, D of v); refuses shapes that do not fit."""
    q, k, v = (check_rank(name, x, 4) for name, x in descriptions.items())
    if (q[0] != k[0] and not page) or q[3] != k[3] or k[:3] != v[:3]:
        raise tc.ArgumentError(
            f"q is (batch, heads, queries, D), k (batch, key heads, keys, D) and v as k, with a D "
            f"of its own; they are {q}, {k} and {v}"
        )
    if lists and q[0] != 1:
        raise tc.ArgumentError(f"cu_seqlens divides a batch of 1; q has shape {q}")
    if page and (page % 16 or (page % PAGE_UNIT and PAGE_UNIT % page)):
        raise tc.ArgumentError(
            f"pages have 16, 32 or a multiple of {PAGE_UNIT} keys; k has shape {k}, pages of {page}"
        )
    if q[1] % max(k[1], 1) or (q[1] and not k[1]):
        raise tc.ArgumentError(
            f"heads of q share heads of k and v: {q[1]} heads are not a multiple of {k[1]} key heads"
        )
    for name, depth in (("q and k", q[3]), ("v", v[3])):
        if depth % 8 or not 8 <= depth <= MAX_DEPTH:
            raise tc.ArgumentError(
                f"D of {name} is {depth}; it must be a multiple of 8 up to {MAX_DEPTH}: pad with zeros"
            )
    return q[0], q[1], q[2], v[3]


def check_layout(name: str, x: Description) -> None:
    """Refuse layouts that TMA and accesses of 16 bytes cannot read."""
    if 0 in x.shape or (x.type.unit[-1] and x.type.align >= 16 and min(x.strides) >= 0):
        return
    raise tc.ArgumentError(
        f"{name} has strides {x.strides} and an alignment of {x.type.align} bytes; D has stride 1, "
        f"and the array and its rows start at multiples of 16 bytes (8 elements): pass a copy"
    )


def _window(causal: Any, window: Any) -> tuple[int | None, int | None]:
    """Numbers of keys that a query sees on the left and on the right of its place; None: all."""
    sides = (None, None) if window is None else window
    known = isinstance(sides, tuple) and len(sides) == 2
    if not known or not all(
        side is None or (isinstance(side, int) and not isinstance(side, bool) and side >= 0) for side in sides
    ):
        raise tc.ArgumentError(
            f"window is {window!r}; it must be (left, right), each a number of keys, or None for all"
        )
    left, right = (None if side is None or side >= MAX_WINDOW else side for side in sides)
    return left, 0 if causal else right


def _positive(name: str, number: Any) -> float:
    value = f32_number(name, number, what="the scores")
    if not 0 < value < math.inf:
        raise tc.ArgumentError(f"{name} is {number}; it must be a positive number")
    return value


def _tickets(like: Any, stream: Any) -> Any:
    """Zero in global memory that the launches on a stream share; each launch leaves it zero."""

    def allocate() -> Any:
        tickets = empty_like(like, (1,), tc.s32)
        tickets[:] = 0
        return tickets

    return cached_workspace(like, stream, ("attention",), allocate)


def _fill(stream: Any) -> Callable[..., None]:
    """Bind the launch without keys: the arrays' library fills the results."""

    def fill(q: Any, k: Any, v: Any, out: Any, lse: Any, *lists: Any) -> None:
        with on_stream(q, stream):
            out[...] = 0
            if lse is not None:
                lse[...] = -math.inf

    return fill
