"""`kernels.attention` of both families, compared with float64; refusals."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import kernels
from tests.attention_cases import BF16, CASES, F16, FAMILIES, exact, operands, starts

pytestmark = pytest.mark.thorough


@pytest.fixture(params=FAMILIES)
def family(request: Any) -> Any:
    with tc.target("cpu", FAMILIES[request.param]):
        yield request.param


def check(arrays: Any, family: str, **options: Any) -> np.ndarray:
    out, lse = kernels.attention(*arrays, return_lse=True, family=family, **options)
    want, want_lse, bound = exact(*arrays, **options)
    assert out.dtype == arrays[0].dtype and lse.dtype == np.float32
    assert (abs(np.float64(out) - want) <= bound).all()
    assert np.array_equal(np.isinf(lse), np.isinf(want_lse))
    finite = np.isfinite(lse)
    assert np.allclose(lse[finite], want_lse[finite], rtol=1e-5, atol=1e-5)
    return out


# -- values --------------------------------------------------------------------------------------


@pytest.mark.quick
@pytest.mark.parametrize("dim, dtype, causal", [(64, F16, False), (128, BF16, True)])
def test_outputs_agree_with_float64(family, dim, dtype, causal):
    check(operands(200, 300, dim, dtype=dtype), family, causal=causal)


@pytest.mark.parametrize("dim, width", [(8, 72), (192, 128), (256, 256)])
def test_other_depths_agree_with_float64(family, dim, width):
    check(operands(70, 150, dim, width), family, causal=True)


@pytest.mark.parametrize("case", CASES)
def test_cases_agree_with_float64(family, case):
    for shapes, options in CASES[case]:
        check(operands(**shapes), family, **options)


@pytest.mark.parametrize(
    "queries, shared_by, options",
    [(1, 8, {}), (5, 4, {"causal": True}), (9, 7, {"window": (40, 3)}), (17, 2, {"softcap": 3.0})],
)
def test_few_queries_of_heads_that_share_keys(queries, shared_by, options, family):
    """Their rows fill a tile together."""
    check(operands(queries, 150, heads=2 * shared_by, shared_by=shared_by, batch=2), family, **options)


def test_queries_that_see_no_key(family):
    """A causal mask hides all keys from the first queries, if there are more queries than keys."""
    out = check(operands(200, 70), family, causal=True)
    assert not out[:, :, :130].any()


def test_no_keys_and_no_queries(family):
    out, lse = kernels.attention(*operands(5, 0), return_lse=True, family=family)
    assert out.shape == (1, 1, 5, 64) and not out.any() and (lse == -np.inf).all()
    assert kernels.attention(*operands(0, 5), family=family).shape == (1, 1, 0, 64)


def test_large_scores_agree_with_float64(family):
    """Scores of +-3,000 leave one element of P in each row: the exponentials of others are zero."""
    q, k, v = operands(64, 100)
    q = (q * 100).astype(BF16)
    check((q, k, v), family)


def test_strided_views_give_the_same_bits(family):
    """Views of (batch, queries, heads, D), of every second key, and an `out` of such a layout."""
    q, k, v = operands(90, 200, heads=3, batch=2)
    views = [np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2) for x in (q, k, v)]
    out = np.zeros((2, 90, 3, 64), BF16).swapaxes(1, 2)
    assert kernels.attention(*views, out=out, family=family) is out
    assert np.array_equal(out, kernels.attention(q, k, v, family=family))
    halves = k[:, :, ::2], v[:, :, ::2]
    check((q, *halves), family)


def test_torch_tensors(family):
    torch = pytest.importorskip("torch")
    arrays = operands(60, 90, heads=2)
    q, k, v = (torch.tensor(np.float32(x)).bfloat16() for x in arrays)
    k = k.transpose(1, 2).contiguous().transpose(1, 2)
    out = kernels.attention(q, k, v, causal=True, family=family)
    assert out.dtype == torch.bfloat16
    expected = kernels.attention(*arrays, causal=True, family=family)
    assert np.array_equal(out.float().numpy(), np.float32(expected))


def test_nan_stays_in_its_rows(family):
    """What lies behind the last key in a tile is zero, not what memory holds."""
    q, k, v = operands(70, 70)
    q[0, 0, 3, 5] = np.nan
    out = kernels.attention(q, k, v, family=family)
    assert np.isnan(np.float64(out[0, 0, 3])).all()
    assert np.isfinite(np.float64(np.delete(out, 3, axis=2))).all()


# -- sequences of different lengths ------------------------------------------------------------

SEQUENCES = [(100, 130), (0, 50), (1, 1), (64, 300), (130, 0), (200, 17)]  # queries, keys


def packed(dtype: Any = BF16, dim: int = 64, heads: int = 2) -> Any:
    """Sequences one by one, their rows together, and the starts of queries and keys."""
    one_by_one = [
        operands(n, m, dim, heads=heads, shared_by=2, seed=i, dtype=dtype)
        for i, (n, m) in enumerate(SEQUENCES)
    ]
    together = [np.concatenate(parts, axis=2) for parts in zip(*one_by_one, strict=True)]
    return one_by_one, together, tuple(starts(x) for x in zip(*SEQUENCES, strict=True))


def in_pages(k: np.ndarray, lengths: Any, page: int, behind: float) -> tuple[np.ndarray, np.ndarray]:
    """Rows of k in pages in a mixed order, and their table. behind: what unused rows hold."""
    first, needed = starts(lengths), [-(-n // page) for n in lengths]
    order = np.random.default_rng(7).permutation(sum(needed) + 3)
    table = np.full((len(needed), max(needed) + 1), -1, np.int32)
    pages = np.full((len(order), k.shape[1], page, k.shape[3]), behind, k.dtype)
    for i, count in enumerate(needed):
        for j in range(count):
            table[i, j], order = order[0], order[1:]
            rows = k[0, :, first[i] + j * page : min(first[i] + (j + 1) * page, first[i + 1])]
            pages[table[i, j], :, : rows.shape[1]] = rows
    return pages, table


def check_packed(one_by_one: Any, out: np.ndarray, lse: np.ndarray, **options: Any) -> None:
    first = starts([n for n, _ in SEQUENCES])
    for i, arrays in enumerate(one_by_one):
        rows = slice(first[i], first[i + 1])
        want, want_lse, bound = exact(*arrays, **options)
        assert (abs(np.float64(out[:, :, rows]) - want) <= bound).all()
        finite = np.isfinite(want_lse)
        assert np.array_equal(np.isfinite(lse[:, :, rows]), finite)
        assert np.allclose(lse[:, :, rows][finite], want_lse[finite], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dim, options", [(64, {"causal": True}), (128, {"window": (60, 10)})])
def test_packed_sequences(family, dim, options):
    one_by_one, arrays, lists = packed(dim=dim)
    out, lse = kernels.attention(*arrays, cu_seqlens=lists, return_lse=True, family=family, **options)
    check_packed(one_by_one, out, lse, **options)


def test_packed_sequences_of_as_many_keys(family):
    """One list serves the queries and the keys."""
    q, k, v = operands(150, 150)
    out = kernels.attention(q, k, v, causal=True, cu_seqlens=starts([90, 60]), family=family)
    for rows in (slice(0, 90), slice(90, 150)):
        alone = [x[:, :, rows] for x in (q, k, v)]
        assert np.array_equal(out[:, :, rows], kernels.attention(*alone, causal=True, family=family))


def test_nan_stays_in_its_sequence(family):
    q, k, v = operands(150, 150)
    k[:, :, 90:], v[:, :, 90:] = np.nan, np.nan
    out = kernels.attention(q, k, v, cu_seqlens=starts([90, 60]), family=family)
    assert np.isfinite(np.float64(out[:, :, :90])).all()
    assert np.isnan(np.float64(out[:, :, 90:])).all()


@pytest.mark.parametrize("page", [16, 192])
def test_keys_may_lie_in_pages(family, page):
    """Unused rows of pages hold NaN, and unused entries of the table no page."""
    one_by_one, (q, k, v), lists = packed()
    lengths = [m for _, m in SEQUENCES]
    (k, table), (v, _) = (in_pages(x, lengths, page, np.nan) for x in (k, v))
    out, lse = kernels.attention(
        q, k, v, causal=True, cu_seqlens=lists, block_table=table, return_lse=True, family=family
    )
    check_packed(one_by_one, out, lse, causal=True)


# -- refusals ---------------------------------------------------------------------------------------

Q, K, V = operands(8, 8, heads=4)
STARTS, TABLE = np.array([0, 3, 8], np.int32), np.zeros((2, 1), np.int32)


@pytest.mark.quick
@pytest.mark.parametrize(
    "arrays, options, message",
    [
        ((Q[0], K, V), {}, r"q has shape \(4, 8, 64\); 4 axes"),
        ((Q, K[:, :, :, :32], V), {}, r"k \(batch, key heads, keys, D\).*\(1, 4, 8, 32\)"),
        ((Q, K, V[:, :, :7]), {}, r"v as k.*\(1, 4, 7, 64\)"),
        ((Q, K[:, :3], V[:, :3]), {}, r"4 heads are not a multiple of 3"),
        ((Q[..., :12], K[..., :12], V), {}, r"D of q and k is 12; it must be a multiple of 8"),
        ((*[x.repeat(5, 3) for x in (Q, K)], V), {}, r"D of q and k is 320"),
        ((Q.astype(F16), K, V), {}, r"all bf16 or all f16, not q f16, k bf16"),
        ((Q.astype(np.float32),) * 3, {}, r"all bf16 or all f16, not q f32"),
        ((Q.swapaxes(2, 3).copy().swapaxes(2, 3), K, V), {}, r"q has strides.*pass a copy"),
        ((Q, K, V), {"scale": -1.0}, r"scale is -1.0; it must be a positive number"),
        ((Q, K, V), {"scale": math.nan}, r"scale is nan"),
        ((Q, K, V), {"softcap": 0}, r"softcap is 0; it must be a positive number"),
        ((Q, K, V), {"window": 3}, r"window is 3; it must be \(left, right\)"),
        ((Q, K, V), {"window": (-1, 0)}, r"window is \(-1, 0\)"),
        ((Q, K, V), {"family": "sm70"}, r"family is 'sm70'; allowed are sm80, sm90"),
        ((Q, K, V), {"out": Q[:, :2]}, r"out has shape"),
        ((Q, K, V), {"out": Q}, r"out shares memory with q"),
        ((Q, K, V), {"cu_seqlens": (STARTS,)}, r"cu_seqlens is an array, or a tuple of two"),
        ((Q, K, V), {"cu_seqlens": [0, 8]}, r"cu_seqlens is \[0, 8\] \(list\); it must be an array"),
        (
            (Q, K, V),
            {"cu_seqlens": STARTS.astype(np.int64)},
            r"cu_seqlens holds s64.*must be s32 \(np.int32\) with one axis",
        ),
        ((Q, K, V), {"cu_seqlens": (STARTS, STARTS[1:])}, r"3 starts of queries and 2 of keys"),
        ((Q[:1].repeat(2, 0), *[x.repeat(2, 0) for x in (K, V)]), {"cu_seqlens": STARTS}, r"batch of 1"),
        ((Q, K, V), {"block_table": STARTS[None]}, r"block_table needs cu_seqlens"),
        ((Q, K, V), {"cu_seqlens": STARTS, "block_table": STARTS[None]}, r"1 rows for 2 sequences"),
        ((Q, K, V), {"cu_seqlens": STARTS, "block_table": TABLE}, r"16, 32 or a multiple of 64 keys"),
    ],
)
def test_wrong_arguments_are_refused(on_hopper, arrays, options, message):
    with pytest.raises(tc.ArgumentError, match=message):
        kernels.attention(*arrays, **options)


ROWS = Q.shape[2]


@pytest.mark.parametrize(
    "starts, message",
    [
        ([0, ROWS + 1], rf"cu_seqlens of q goes from 0 to {ROWS + 1}; it must go from 0 to at most {ROWS}"),
        ([1, ROWS], r"cu_seqlens of q goes from 1"),
        ([0, 3, 2, ROWS], r"cu_seqlens must ascend; cu_seqlens\[1\] is 3 and cu_seqlens\[2\] 2"),
        ((STARTS, [0, 1, K.shape[2] + 1]), r"cu_seqlens of k goes from 0"),
    ],
)
def test_starts_lie_in_the_arrays(on_hopper, starts, message):
    whole = isinstance(starts, list)
    lists = np.array(starts, np.int32) if whole else tuple(np.array(x, np.int32) for x in starts)
    with pytest.raises(tc.ArgumentError, match=message):
        kernels.attention(Q, K, V, cu_seqlens=lists)
    o, lse = kernels.attention(Q, K, V, return_lse=True)
    with pytest.raises(tc.ArgumentError, match=message):
        kernels.attention_backward(o, Q, K, V, o, lse, cu_seqlens=lists)


@pytest.mark.quick
def test_wgmma_needs_hopper():
    with tc.target("cpu", "sm_80"), pytest.raises(tc.ArgumentError, match="sm_90a, not on sm_80"):
        kernels.attention(Q, K, V, family="sm90")
    with tc.target("cpu", "sm_75"), pytest.raises(tc.ArgumentError, match="sm_80 and later"):
        kernels.attention(Q, K, V)
