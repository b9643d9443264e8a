"""`kernels.attention_backward` of both families compared with float64, orders of CTAs, refusals."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import kernels
from tensorcore_dsl.kernels.ampere import attention_backward as ampere
from tensorcore_dsl.kernels.hopper import attention_key_gradients, attention_query_gradients
from tensorcore_dsl.kernels.host import attention_backward as host
from tests.attention_cases import (
    BF16,
    CASES,
    F16,
    FAMILIES,
    ROUNDOFF,
    choose,
    module_without,
    operands,
    seen,
    starts,
)

pytestmark = pytest.mark.thorough

CANCELLED = 2.0**-18  # what is left of dP - delta, two sums of 64 or 128 products in f32, if both are equal


@pytest.fixture(params=FAMILIES)
def family(request: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """sm90: one kernel computes the gradients up to D 128, however few tiles there are."""
    choose(monkeypatch, one_pass=True)
    with tc.target("cpu", FAMILIES[request.param]):
        yield request.param


def exact(
    grad: Any,
    q: Any,
    k: Any,
    v: Any,
    causal: bool = False,
    window: Any = None,
    scale: float | None = None,
    softcap: float | None = None,
    grad_lse: Any = 0.0,
) -> list[np.ndarray]:
    """Gradients in float64."""
    grad, q, k, v = (np.float64(x) for x in (grad, q, k, v))
    shared_by = q.shape[1] // k.shape[1]
    k, v = (np.repeat(x, shared_by, axis=1) for x in (k, v))
    scale = 1 / math.sqrt(q.shape[3]) if scale is None else scale
    scores, tanh_derivative = scale * (q @ k.swapaxes(2, 3)), 1.0
    if softcap:
        bent = np.tanh(scores / softcap)
        scores, tanh_derivative = softcap * bent, 1 - bent**2
    scores = np.where(seen(q.shape[2], k.shape[2], causal, window), scores, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True, initial=-1e300))
    total = p.sum(-1, keepdims=True)
    p = p / np.where(total > 0, total, 1)
    dp = grad @ v.swapaxes(2, 3)
    delta = (grad * (p @ v)).sum(-1, keepdims=True)
    ds = scale * tanh_derivative * p * (dp - delta + np.float64(grad_lse)[..., None])
    dk, dv = ds.swapaxes(2, 3) @ q, p.swapaxes(2, 3) @ grad
    by_key_head = [x.reshape(x.shape[0], -1, shared_by, *x.shape[2:]).sum(2) for x in (dk, dv)]
    return [ds @ k, *by_key_head]


def gradients(
    arrays: Any, family: str, grad_lse: Any = None, **options: Any
) -> tuple[Any, tuple[np.ndarray, ...]]:
    q = arrays[0]
    out, lse = kernels.attention(*arrays, return_lse=True, family=family, **options)
    grad = np.random.default_rng(9).standard_normal(out.shape).astype(q.dtype)
    return grad, kernels.attention_backward(
        grad, *arrays, out, lse, grad_lse=grad_lse, family=family, **options
    )


def check(arrays: Any, family: str, **options: Any) -> None:
    """Errors are those of P, dS, out and results rounded to 16 bits."""
    grad, results = gradients(arrays, family, **options)
    for x, of_x, want in zip(arrays, results, exact(grad, *arrays, **options), strict=True):
        assert of_x.shape == x.shape and of_x.dtype == x.dtype
        error = abs(np.float64(of_x) - want)
        size, unit = math.sqrt((want**2).mean()), ROUNDOFF[x.dtype.type]
        assert math.sqrt((error**2).mean()) <= 1.2 * unit * size + CANCELLED
        assert error.max() <= 16 * (unit * (size + abs(want).max()) + CANCELLED)


@pytest.mark.quick
@pytest.mark.parametrize("dim, dtype, causal", [(64, F16, False), (128, BF16, True)])
def test_gradients_agree_with_float64(family, dim, dtype, causal):
    check(operands(200, 150, dim, dtype=dtype), family, causal=causal)


@pytest.mark.parametrize("dim, width", [(8, 72), (192, 128)])
def test_gradients_of_other_depths_agree_with_float64(family, dim, width):
    check(operands(70, 100, dim, width), family, causal=True)


@pytest.mark.parametrize("dim, options", [(64, {"causal": True}), (96, {}), (128, {"softcap": 3.0})])
def test_two_kernels_agree_with_float64(dim, options, monkeypatch):
    choose(monkeypatch, one_pass=False)
    with tc.target("cpu", "sm_90a"):
        check(operands(200, 260, dim, heads=2, shared_by=2), "sm90", **options)


@pytest.mark.parametrize("one_pass", [True, False])
@pytest.mark.parametrize("dim, width", [(64, 64), (96, 128)])
def test_groups_of_heads(dim, width, one_pass, monkeypatch):
    """Four heads share keys, in two groups."""
    choose(monkeypatch, one_pass, splits=2)
    with tc.target("cpu", "sm_90a"):
        check(operands(200, 150, dim, width, heads=8, shared_by=4), "sm90", causal=True)


# Batch, heads, heads of k and v, length, D, causal -> how many kernels were faster on an H200, and with
# how many groups of heads.
MEASURED = {
    (2, 16, 16, 8192, 128, False): (1, 1), (2, 32, 32, 8192, 64, True): (1, 1),
    (4, 8, 1, 2728, 128, True): (1, 4), (1, 8, 1, 9000, 64, True): (1, 8), (11, 8, 2, 1659, 64, False): (1, 4),
    (21, 8, 1, 1126, 128, False): (1, 2), (16, 32, 8, 1024, 128, False): (1, 1),
    (2, 32, 8, 1024, 128, True): (2, 1), (1, 32, 8, 4096, 128, True): (1, 1), (1, 32, 8, 1024, 64, True): (2, 2),
    (1, 16, 16, 2048, 128, False): (1, 1), (2, 16, 4, 3000, 256, False): (2, 1),
}  # fmt: skip


@pytest.mark.parametrize("problem, chosen", MEASURED.items())
def test_choice_of_kernels(problem, chosen):
    batch, heads, kv_heads, length, dim, causal = problem
    q, k = (np.broadcast_to(np.float16(0), (batch, n, length, dim)) for n in (heads, kv_heads))
    with tc.target("cpu", "sm_90a"):
        plan = kernels.plan_attention(q, k, k, causal=causal)
    assert (2 - plan.gradients.one_pass, plan.splits) == chosen


@pytest.mark.parametrize("case", CASES)
def test_cases_agree_with_float64(family, case):
    for shapes, options in CASES[case]:
        check(operands(**shapes), family, **options)


def test_gradients_through_lse(family):
    """Also where a row sees no key, whose logarithm is -inf."""
    grad_lse = np.random.default_rng(3).standard_normal((1, 2, 150)).astype(np.float32)
    check(operands(150, 100, heads=2), family, causal=True, softcap=2.0, grad_lse=grad_lse)


@pytest.mark.parametrize(
    "family, dim, splits",
    [("sm80", 64, 1), ("sm80", 256, 1), ("sm90", 64, 1), ("sm90", 64, 2), ("sm90", 256, 2)],
    indirect=["family"],
)
def test_packed_sequences(family, dim, splits, monkeypatch):
    """Each sequence has the bits that it has alone; NaN of a neighbour does not reach it."""
    choose(monkeypatch, one_pass=True, splits=splits)
    lists = starts([70, 0, 70, 33]), starts([40, 10, 70, 90])
    arrays = operands(lists[0][-1], lists[1][-1], dim, heads=2, shared_by=splits)
    rows = [[slice(at[i], at[i + 1]) for at in (lists[0], lists[1], lists[1])] for i in range(4)]
    for x, of_x in zip(arrays, rows[2], strict=True):
        x[:, :, of_x] = np.nan
    grad, results = gradients(arrays, family, causal=True, cu_seqlens=lists)
    for number in (0, 3):
        alone = [x[:, :, of_x].copy() for x, of_x in zip(arrays, rows[number], strict=True)]
        out, lse = kernels.attention(*alone, causal=True, return_lse=True, family=family)
        of_out = grad[:, :, rows[number][0]].copy()
        want = kernels.attention_backward(of_out, *alone, out, lse, causal=True, family=family)
        for packed, of_x, one in zip(results, rows[number], want, strict=True):
            assert np.array_equal(packed[:, :, of_x].view(np.uint16), one.view(np.uint16))


def test_without_queries_or_keys(family):
    _, (dq, dk, dv) = gradients(operands(5, 0), family)
    assert not dq.any() and dk.shape[2] == 0
    _, (dq, dk, dv) = gradients(operands(0, 5), family)
    assert not dk.any() and not dv.any()


def check_all(monkeypatch: pytest.MonkeyPatch, family: str, **options: Any) -> None:
    """Launch uncached, with all checks, and with few CTAs, so that each computes several tiles."""

    def emulated(kernel: Any, grid: Any, threads: int, constants: Any, *others: Any, **given: Any) -> Any:
        blocks = min(grid, 2) if isinstance(grid, int) else grid
        run = kernel.emulator(FAMILIES[family], checks=True, **options)[blocks, threads]
        return lambda *arrays: run(*arrays, **constants)

    monkeypatch.setattr(host, "bind", emulated)


@pytest.mark.parametrize("dim, orders", [(64, (None, 0, 1)), (128, (0,)), (256, (1,))])
def test_orders_of_warps(family, dim, orders, monkeypatch):
    """Each order gives equal bits. On sm_90a a CTA computes several tiles of two heads, on sm_80 one tile."""
    arrays = operands(130, 150, dim, heads=2 if family == "sm90" else 1)
    _, want = gradients(arrays, family, causal=True)
    for order in orders:
        check_all(monkeypatch, family, **({} if order is None else {"order": order}))
        _, results = gradients(arrays, family, causal=True)
        assert all(x.tobytes() == y.tobytes() for x, y in zip(results, want, strict=True))


SYNCHRONISATION = [
    "tc.cp_async_wait(1)\n",
    "tc.barrier()\n            scores",
    "tc.barrier()\n        tc.cp_async_wait(0)",
    "tc.cp_async_wait(0)\n",
    "tc.barrier()\n        return",
    "tc.barrier()\n        tc.copy_tile",
]


@pytest.mark.parametrize("text", SYNCHRONISATION)
def test_every_synchronisation_is_needed_and_missed(text, monkeypatch):
    """Without it, a launch of the mma.sync kernels with all checks reports an error."""
    monkeypatch.setattr(host, "ampere", module_without(ampere, text))
    choose(monkeypatch, one_pass=True)
    check_all(monkeypatch, "sm80")
    with tc.target("cpu", "sm_80"), pytest.raises((tc.Race, tc.Uninitialised)):
        gradients(operands(200, 400), "sm80", window=(100, 0))  # which hides the first tile of keys


SPLIT = [
    ("key", "cta.full_p[state.stage].wait(state.phase)"),
    ("key", "clean[stage].wait(state.phase)"),
    ("key", "tc.barrier(EXCHANGE_BARRIER, CONSUMERS * WARPGROUP)"),
    ("query", "tc.barrier(CLEAR_BARRIER, CONSUMERS * WARPGROUP)"),
    ("query", "tc.syncwarp()"),
    ("query", "tc.fence_proxy_async()"),
]


@pytest.mark.parametrize("side, text", SPLIT)
def test_every_synchronisation_above_128_is_needed_and_missed(side, text, monkeypatch):
    """Both packed sequences end inside a block."""
    modules = {"key": attention_key_gradients, "query": attention_query_gradients}
    module = module_without(modules[side], text)
    monkeypatch.setattr(host, f"{side}_gradients", getattr(module, f"{side}_gradients"))
    choose(monkeypatch, one_pass=True)
    check_all(monkeypatch, "sm90")
    lists = starts([70, 33]), starts([140, 90])
    with tc.target("cpu", "sm_90a"), pytest.raises((tc.Race, tc.EmulationError)):
        gradients(operands(103, 230, 136, heads=2), "sm90", causal=True, cu_seqlens=lists)


def test_wrong_arguments_are_refused(family):
    q, k, v = operands(4, 4)
    out, lse = kernels.attention(q, k, v, return_lse=True)
    with pytest.raises(
        tc.ArgumentError, match=r"lse is f32 of shape \(1, 1, 3\); q, k and v need f32 of shape"
    ):
        kernels.attention_backward(out, q, k, v, out, lse[:, :, :3])
    with pytest.raises(tc.ArgumentError, match="grad_lse is bf16 of shape"):
        kernels.attention_backward(out, q, k, v, out, lse, grad_lse=lse.astype(BF16))
    with pytest.raises(tc.ArgumentError, match="grad is f16 of shape"):
        kernels.attention_backward(out.astype(F16), q, k, v, out, lse)
