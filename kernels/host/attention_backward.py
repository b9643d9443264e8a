"""`attention_backward(grad, q, k, v, out, lse, ...)`: the gradients of attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.host import check_stream
from tensorcore_dsl.kernels.ampere import attention_backward as ampere
from tensorcore_dsl.kernels.attention_gradients import ADDED, THREADS, TICKETS, add_splits, sum_rows
from tensorcore_dsl.kernels.choosing.attention import choose_backward, choose_family, section_of
from tensorcore_dsl.kernels.hopper import attention_backward as hopper
from tensorcore_dsl.kernels.hopper.attention_dq import SHARES, finish
from tensorcore_dsl.kernels.hopper.attention_key_gradients import key_gradients
from tensorcore_dsl.kernels.hopper.attention_query_gradients import BM as QUERY_ROWS
from tensorcore_dsl.kernels.hopper.attention_query_gradients import query_gradients
from tensorcore_dsl.kernels.hopper.config import WARPGROUP
from tensorcore_dsl.kernels.host.arguments import described, present
from tensorcore_dsl.kernels.host.arrays import empty_like, empty_similar, on_stream
from tensorcore_dsl.kernels.host.attention import (
    check_layout,
    check_lists,
    checked_problem,
    fill_lists,
    with_check,
)
from tensorcore_dsl.kernels.host.launch import PreparedCall, bind, cached_call, launch_nothing
from tensorcore_dsl.kernels.host.workspace import scratch
from tensorcore_dsl.kernels.problem.attention_problem import AttentionProblem
from tensorcore_dsl.kernels.problem.problem_shape import SMS
from tensorcore_dsl.kernels.sizes import cdiv

# Heads of k and v that advance together in the list of tiles, so that concurrent tiles of a head visit
# different blocks. If a head has many tiles, fewer heads: else the sums of dQ leave the cache. With 8
# heads, 32,768 keys take 5 % longer on an H200.
SECTION, LONG_SECTION, MANY_TILES = 8, 4, 128
SHARE_SUMS = 64 * 64  # f32 sums of a share of dQ


def attention_backward(  # noqa: PLR0913
    grad: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    *,
    grad_lse: Any = None,
    causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    cu_seqlens: Any = None,
    family: str | None = None,
    stream: Any = None,
) -> tuple[Any, Any, Any]:
    """Compute the gradients of `attention` by q, k and v.

    Parameters
    ----------
    grad : array
        The gradient of the output: (batch, heads, queries, D of v), of the type of q.
    q, k, v : array
        As for `attention`.
    out, lse : array
        The results of `attention` with return_lse=True.
    grad_lse : array, optional
        The gradient of lse: f32, (batch, heads, queries). None: zeros.
    causal, window, scale, softcap, cu_seqlens
        As for `attention`.
    family : {"sm80", "sm90"}, optional
        As for `attention`.
    stream : stream, optional
        As for `gemm`.

    Returns
    -------
    tuple of three arrays
        dq, dk and dv, of the shapes and the type of q, k and v. Those of torch keep the order of axes
        in memory, too. Rows past the last sequence of cu_seqlens are not written.

    Raises
    ------
    ArgumentError
        Arguments that do not fit.

    Examples
    --------
    >>> q, k, v = (np.eye(3, 64, dtype=np.float16)[None, None] for _ in range(3))
    >>> o, lse = kernels.attention(q, k, v, return_lse=True)
    >>> dq, dk, dv = kernels.attention_backward(np.ones_like(o), q, k, v, o, lse)
    >>> dv[0, 0, :, 0], bool(abs(dq).max() < 1e-3)
    (array([1., 1., 1.], dtype=float16), True)
    """
    options: Any = (causal, window, scale, softcap, family, stream)
    starts = cu_seqlens if isinstance(cu_seqlens, tuple) else (cu_seqlens, cu_seqlens)
    lists = [x for x in starts if x is not None]
    arrays = grad, q, k, v, out, lse
    key = ("attention_backward", len(starts), grad_lse is None, *map(str, (scale, softcap)), *options)
    key_arrays = *arrays, *lists, *(() if grad_lse is None else (grad_lse,))
    call = cached_call((), key_arrays, key, lambda: _prepare(*arrays, grad_lse, starts, *options))
    results = tuple(empty_similar(x, call.dtype) for x in (q, k, v))
    call.launch(*arrays, grad_lse, *results, *lists)
    return results


def _prepare(  # noqa: PLR0913
    grad: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    grad_lse: Any,
    starts: Any,
    causal: Any,
    window: Any,
    scale: Any,
    softcap: Any,
    family: Any,
    stream: Any,
) -> PreparedCall:
    """Check the arguments, choose the kernels and bind their launches."""
    check_stream(stream)
    lists = check_lists(starts, None)
    arrays = {"q": q, "k": k, "v": v}
    problem = checked_problem(arrays, lists, 0, causal, window, scale, softcap, False)
    results = described(grad=grad, out=out, lse=lse, **present(grad_lse=grad_lse))
    for name, x in results.items():
        needed = (problem.shape[:3], tc.f32) if name.endswith("lse") else (problem.shape, problem.dtype)
        if (x.shape, x.type.dtype) != needed:
            raise tc.ArgumentError(
                f"{name} is {x.type.dtype} of shape {x.shape}; q, k and v need {needed[1]} of shape "
                f"{needed[0]}"
            )
    for name, x in {**problem.arrays, "grad": results["grad"], "out": results["out"]}.items():
        check_layout(name, x)
    call = PreparedCall(problem.shape, problem.dtype, launch_nothing)
    if 0 in problem.shape or 0 in problem.arrays["k"].shape:
        return replace(call, launch=_clear(stream))
    run = _bind_sm80 if choose_family(family) == "sm80" else _bind_sm90
    lists_given = [x for x in starts if x is not None]
    launch = run(problem, (grad, q, k, v, out, lse, grad_lse, *lists_given), stream)
    keys = problem.arrays["k"].shape[2]
    return replace(call, launch=with_check(launch, lists, 10, problem.shape[2], keys))


def _clear(stream: Any) -> Callable[..., None]:
    """Bind the launch without queries or keys: gradients of zero."""

    def clear(grad: Any, q: Any, *others: Any) -> None:
        with on_stream(q, stream):
            for x in others[5:8]:
                x[...] = 0

    return clear


@dataclass(frozen=True)
class Workspaces:
    """Shapes of the arrays between the kernels, for blocks of `BM` queries.

    Attributes
    ----------
    shares : int
        Shares of dQ of a block that are summed in global memory; 0: none.
    grid : tuple of int
        CTAs of the kernels that work on blocks: blocks, heads, sequences.
    slots : int
        Blocks of all heads and sequences, see Sequence.slot.
    groups : tuple of shapes
        Shapes of dK and dV of each group of heads, if several groups share keys.
    """

    BM: int
    shares: int
    grid: tuple[int, int, int]
    slots: int
    groups: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def of(
        cls, problem: AttentionProblem, BM: int, shares: int, sequences: int, splits: int = 1
    ) -> Workspaces:
        """Count the blocks. Packed sequences may begin one each."""
        _, heads, queries, _ = problem.shape
        groups: Any = ()
        if splits > 1:
            key_shapes = [problem.arrays[name].shape for name in "kv"]
            groups = tuple((batch, splits * heads, *rest) for batch, heads, *rest in key_shapes)
        if problem.traits.packed:
            blocks = queries // BM + 1
            return cls(BM, shares, (blocks, heads, sequences), (queries // BM + sequences) * heads, groups)
        blocks = cdiv(queries, BM)
        return cls(BM, shares, (blocks, heads, sequences), blocks * heads * sequences, groups)

    def allocate(self, like: Any, stream: Any) -> tuple[Any, ...]:
        """Allocate lse_log2, delta, turns and tickets, then dK and dV of groups and sums of dQ, if any."""
        rows, turns = self.slots * self.BM, self.slots * max(self.shares, 1)
        shapes: list[Any] = [((rows,), tc.f32), ((rows,), tc.f32), ((turns,), tc.s32), ((TICKETS,), tc.s32)]
        shapes += [(shape, tc.f32) for shape in self.groups]
        if self.shares:
            shapes.append(((turns, SHARE_SUMS), tc.f32))
        make = lambda: tuple(empty_like(like, *each) for each in shapes)
        size = 4 * sum(prod(shape) for shape, _ in shapes)
        return scratch(like, stream, ("attention_backward", self), size, make)


def _bind_sm80(problem: AttentionProblem, arrays: Any, stream: Any) -> Callable[..., None]:
    """Bind the three launches: sums of rows; dK and dV; dQ."""
    traits, (scale, cap, left, right) = problem.traits, problem.scalars
    _, kv_heads, keys, _ = problem.arrays["k"].shape
    sequences = arrays[7].shape[0] - 1 if traits.packed else problem.shape[0]
    spaces = Workspaces.of(problem, ampere.ROWS, 0, sequences)

    def by_kernel(grad: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, *others: Any) -> tuple[Any, ...]:
        """The arguments of the three kernels."""
        grad_lse, dq, dk, dv, *lists = others
        *rows, turns, tickets = spaces.allocate(q, stream)
        starts = fill_lists(tuple(lists), tickets)[:2]
        last = *starts, scale, cap, problem.scale, left, right
        before = out, grad, lse, starts[0], *rows, turns, tickets, grad_lse
        return before, (q, k, v, grad, *rows, dk, dv, *last), (q, k, v, grad, *rows, dq, *last)

    # A packed sequence may have all queries, or all keys; CTAs past the end of one have no work.
    key_grid = cdiv(keys, ampere.ROWS), kv_heads, sequences
    launches = (
        (sum_rows, spaces.grid, THREADS, {"BM": ampere.ROWS, "traits": traits}),
        (ampere.key_gradients, key_grid, ampere.THREADS * ampere.column_parts(traits), {"traits": traits}),
        (ampere.query_gradients, spaces.grid, ampere.THREADS, {"traits": traits}),
    )
    return _bind_all(problem, launches, by_kernel, arrays, stream)


def _bind_sm90(problem: AttentionProblem, arrays: Any, stream: Any) -> Callable[..., None]:
    """Bind three launches: sums of rows; dK, dV and, in one pass, the sums of dQ; dQ."""
    traits, (scale, cap, left, right) = problem.traits, problem.scalars
    (batch, heads, queries, _), kv_heads = problem.shape, problem.arrays["k"].shape[1]
    keys = problem.arrays["k"].shape[2]
    sequences = arrays[7].shape[0] - 1 if traits.packed else batch
    config, splits = choose_backward(problem, sequences)
    spaces = Workspaces.of(problem, config.BM, SHARES if config.one_pass else 0, sequences, splits)
    tiles_per_head, groups = cdiv(keys, config.BN), kv_heads * splits
    tiles, query_tiles = tiles_per_head * groups * sequences, cdiv(queries, QUERY_ROWS) * heads * sequences
    section = LONG_SECTION if tiles_per_head >= MANY_TILES else SECTION  # not for packed sequences
    if not config.one_pass:
        section = section_of(traits, keys, heads * batch)
    if traits.packed:  # each sequence may begin a tile
        tiles = (keys // config.BN + sequences) * groups
        query_tiles = (queries // QUERY_ROWS + sequences) * heads

    def by_kernel(grad: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, *others: Any) -> tuple[Any, ...]:
        """The arguments of the three kernels."""
        grad_lse, dq, dk, dv, *lists = others
        lse_log2, delta, turns, tickets, *sums = spaces.allocate(q, stream)
        targets: Any = (dk, dv)
        if splits > 1:
            targets, sums = sums[:2], sums[2:]
        rows = lse_log2, delta
        starts = fill_lists(tuple(lists), tickets)[:2]
        before = out, grad, lse, starts[0], *rows, turns, tickets, grad_lse
        numbers = *starts, scale, cap, problem.scale, left, right
        key_arguments = *targets, *numbers, heads // groups, splits, section
        last = [] if splits == 1 else [(*targets, dk, dv, starts[1], splits)]
        if not config.one_pass:
            main = q, k, v, grad, *rows, tickets
            return before, (*main, *key_arguments), (*main, dq, *numbers, section), *last
        query_arguments = *sums, dq, *starts, keys, problem.scale, left, right
        return before, (q, k, v, grad, *rows, *sums, turns, tickets, *key_arguments), query_arguments, *last

    options = {"config": config, "traits": traits}
    row_options = {"BM": config.BM, "traits": traits, "shares": max(spaces.shares, 1)}
    grid, threads = min(tiles, SMS), hopper.THREADS
    launches: tuple[Any, ...] = (
        (sum_rows, spaces.grid, THREADS, row_options),
        (hopper.attention_backward_kernel, grid, threads, options),
        (finish, spaces.grid, 2 * WARPGROUP, options),
    )
    if not config.one_pass:
        launches = (
            launches[0],
            (key_gradients, grid, threads, options),
            (query_gradients, min(query_tiles, SMS), threads, {"traits": traits}),
        )
    if splits > 1:
        blocks = cdiv(keys * max(traits.depth, traits.width), ADDED)
        launches += ((add_splits, (blocks, kv_heads, batch), THREADS, {"traits": traits}),)
    return _bind_all(problem, launches, by_kernel, arrays, stream)


def _bind_all(
    problem: AttentionProblem, launches: Any, by_kernel: Callable[..., Any], arrays: Any, stream: Any
) -> Callable[..., None]:
    """Bind launches (kernel, grid, threads, constants) that follow each other.

    by_kernel: the arguments of each, of the operands, the gradients and the lists.
    """
    results = [empty_similar(x, problem.dtype) for x in arrays[1:4]]
    arguments = by_kernel(*arrays[:7], *results, *arrays[7:])
    bound = [
        bind(kernel, grid, threads, options, operands, stream=stream)
        for (kernel, grid, threads, options), operands in zip(launches, arguments, strict=True)
    ]

    def launch(*arrays: Any) -> None:
        for run, operands in zip(bound, by_kernel(*arrays), strict=True):
            run(*operands)

    return launch
