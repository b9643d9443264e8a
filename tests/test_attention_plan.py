"""`explain_bits` of attention: the text follows the launch, and NumPy that follows the text has its bits."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import kernels
from tensorcore_dsl.kernels.problem.recording import recorded
from tests.attention_cases import FAMILIES, choose, operands, starts


@tc.kernel(threads=32)
def logarithm(total: tc.Array, best: tc.f32, out: tc.Array) -> Any:
    if tc.threadIdx.x == 0:
        out[0] = tc.fma(best, 1.0, tc.log2(total[0])) * math.log(2)


def explained(*arrays: Any, **options: Any) -> dict[str, str]:
    lines = kernels.explain_bits(kernels.plan_attention(*arrays, **options)).splitlines()
    return {name: text.strip() for name, text in (line.split(":", 1) for line in lines)}


@pytest.mark.parametrize("family", FAMILIES)
def test_numpy_in_the_order_of_the_text_has_the_bits_of_the_total(family: str) -> None:
    """Scores are whole numbers and the scale is ln 2, so P holds exact powers of two.

    A lane that has added the greatest element of P loses the small sums of all tiles after it.
    """
    count = 4096
    q, k, v = operands(1, count, 8)
    q[...], q[..., 0] = 0, 1
    scores = np.random.default_rng(0).integers(-32, -29, count)
    scores[-1] = 0
    k[0, 0, :, 0] = scores
    with tc.target("cpu", FAMILIES[family]):
        text = explained(q, k, v, scale=math.log(2))
        _, lse = kernels.attention(q, k, v, scale=math.log(2), return_lse=True)
        size = int(re.search(r"in tiles of (\d+) keys", text["scores"])[1])  # type: ignore[index]
        begins = list(range(0, count, size))
        assert text["keys"].startswith("from the last" if family == "sm90" else "from the first")
        if family == "sm90":
            begins.reverse()
        expected, backwards = (total_of(scores, size, order) for order in (begins, begins[::-1]))
        results = np.zeros((2, 1), np.float32)
        for total, result in zip((expected, backwards), results, strict=True):
            logarithm[1, 32](np.array([total]), float(scores.max()), result)
    assert results[0] != results[1], "the order of tiles shows in the bits"
    assert lse[0, 0, 0] == results[0]


def total_of(scores: np.ndarray, size: int, begins: list[int]) -> np.float32:
    """The total of a row, as the text says."""
    best, totals = -math.inf, [np.float32(0)] * 4
    for begin in begins:
        tile = scores[begin : begin + size]
        grown = max(best, tile.max())
        factor = np.float64(0 if best == -math.inf else 2.0 ** (best - grown))
        for lane in range(4):
            sums = np.float32(0)
            for column in range(len(tile)):
                if column % 8 // 2 == lane:
                    sums += np.float32(2.0 ** (tile[column] - grown))
            totals[lane] = np.float32(totals[lane] * factor + sums)
        best = grown
    pairs = [totals[lane] + totals[lane ^ 1] for lane in range(4)]
    return np.float32(pairs[0] + pairs[2])


@pytest.mark.parametrize("dim, splits", [(64, 1), (128, 2), (256, 1)])
def test_the_text_has_the_tiles_of_the_launch(dim: int, splits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    choose(monkeypatch, one_pass=True, splits=splits)
    q, k, v = operands(20, 40, dim, heads=4, shared_by=2)
    text = explained(q, k, v, causal=True)
    with recorded() as bound:
        out, lse = kernels.attention(q, k, v, causal=True, return_lse=True)
        kernels.attention_backward(q, q, k, v, out, lse, causal=True)
    configs = [one.constants["config"] for one in bound if "config" in one.constants]
    assert f"in tiles of {configs[0].BN} keys" in text["scores"]
    of_queries = f"tiles of {configs[1].BN} keys, each summed" if configs[1].one_pass else "last tile of 64"
    assert of_queries in text["dQ"] and configs[1].one_pass == (dim <= 128)
    heads = "2 heads of q in turn, " if splits == 1 else ""
    order = f"blocks of {configs[1].BM} queries from the last one to the first, {heads}upwards in a block"
    assert order in text["dV, dK"] and ("f32 sums of 2 groups" in text["dV, dK"]) == (splits == 2)


@pytest.mark.parametrize("shape", [(0, 2, 5, 64), (1, 0, 5, 64), (1, 2, 0, 64), (1, 0, 5, 256)])
def test_empty_problems_have_a_plan(shape: tuple[int, ...]) -> None:
    x = np.zeros(shape, np.float16)
    with tc.target("cpu", "sm_90a"):
        assert "dQ" in explained(x, x, x, causal=True)


def test_softcap_adds_its_steps_to_the_text() -> None:
    q, k, v = operands(64, 64)
    plain, capped = explained(q, k, v), explained(q, k, v, softcap=3.0)
    assert "dS" in plain and "tanh" not in str(plain)
    assert plain["numbers"] == "s = scale * log2(e), rounded to f32"
    assert "tanh^2" in capped["dS"] and "c = 2 * log2(e) * scale / softcap" in capped["numbers"]


def test_pages_have_no_gradients_in_the_text() -> None:
    q, (_, k, v) = operands(64, 64)[0], operands(64, 16, seed=1)
    lists, table = (starts([64]), starts([16])), np.zeros((1, 1), np.int32)
    assert "dQ" not in explained(q, k, v, cu_seqlens=lists, block_table=table)


def test_kernels_of_sm_80_have_their_own_sums_in_the_text() -> None:
    with tc.target("cpu", "sm_80"):
        text = explained(*operands(64, 64))
    assert text["sums"].startswith("8 products") and "one sum of the tensor cores" in text["dQ"]


def test_a_depth_that_no_kernel_takes_is_refused() -> None:
    with pytest.raises(tc.ArgumentError, match="multiple of 8"):
        kernels.plan_attention(*operands(8, 8, 60))
