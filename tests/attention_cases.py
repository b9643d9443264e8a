"""Operands of attention, and the results in float64 with a bound of the error."""

from __future__ import annotations

import ast
import math
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np

from tensorcore_dsl.kernels.choosing import attention as choosing
from tensorcore_dsl.kernels.host import attention_backward as host
from tests.running import execute_text

BF16, F16 = ml_dtypes.bfloat16, np.float16
FAMILIES = {"sm80": "sm_80", "sm90": "sm_90a"}
ROUNDOFF = {F16: 2.0**-11, BF16: 2.0**-8}


def operands(
    queries: int,
    keys: int,
    dim: int = 64,
    width: int | None = None,
    heads: int = 1,
    shared_by: int = 1,
    batch: int = 1,
    dtype: Any = BF16,
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    shapes = (
        (batch, heads, queries, dim),
        (batch, heads // shared_by, keys, dim),
        (batch, heads // shared_by, keys, width or dim),
    )
    q, k, v = (draw.standard_normal(shape).astype(dtype) for shape in shapes)
    return q, k, v


LENGTHS = (1, 1), (1, 500), (129, 1), (128, 128), (257, 129)
# What outputs and gradients are compared for: arguments of `operands`, and options.
CASES: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {
    **{
        f"any length{', causal' * causal}": [
            ({"queries": queries, "keys": keys}, {"causal": causal}) for queries, keys in LENGTHS
        ]
        for causal in (False, True)
    },
    "heads that share keys": [
        ({"queries": 70, "keys": 90, "heads": 4, "shared_by": 2, "batch": 2}, {"causal": causal})
        for causal in (False, True)
    ],
    "softcap and scale": [({"queries": 100, "keys": 120}, {"softcap": 3.0, "scale": 0.5, "causal": True})],
    **{
        f"window {window}": [({"queries": 300, "keys": 280}, {"window": window, "causal": c}) for c in causal]
        for window, causal in (
            ((40, None), (False, True)),
            ((None, 20), (False,)),
            ((0, 0), (False,)),
            ((2**40, 2**40), (False,)),
        )
    },
}


def seen(queries: int, keys: int, causal: bool, window: Any) -> np.ndarray:
    """Which key (column) each query sees, one by one."""
    left, right = window or (None, None)
    right = 0 if causal else right
    result = np.zeros((queries, keys), bool)
    for i in range(queries):
        for j in range(keys):
            place = i + keys - queries
            result[i, j] = (left is None or j >= place - left) and (right is None or j <= place + right)
    return result


def exact(
    q: Any,
    k: Any,
    v: Any,
    causal: bool = False,
    window: Any = None,
    scale: float | None = None,
    softcap: float | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Output and logarithms of sums in float64, and a bound of the output's error.

    The bound: P is rounded to 16 bits, and so is the result; scores are sums of D products
    in f32, whose error the exponential turns into a relative one of each element of P.
    """
    u = ROUNDOFF[q.dtype.type]
    q, k, v = (np.float64(x) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    scale = 1 / math.sqrt(q.shape[3]) if scale is None else scale
    scores = scale * (q @ k.swapaxes(2, 3))
    sizes = scale * (abs(q) @ abs(k).swapaxes(2, 3))
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    scores = np.where(seen(q.shape[2], k.shape[2], causal, window), scores, -np.inf)
    best = scores.max(-1, keepdims=True, initial=-1e300)
    p = np.exp(scores - best)
    total = p.sum(-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        lse = (best + np.log(total))[..., 0]
        p = np.where(total > 0, p / total, 0)
    relative = u + 2.0**-20 * (q.shape[3] + (softcap or 1)) * (1 + sizes.max(-1, keepdims=True, initial=0))
    bound = relative * (p @ abs(v)) + u * abs(p @ v) + 2.0**-24
    return p @ v, np.where(total[..., 0] > 0, lse, -np.inf), bound


def starts(lengths: Any) -> np.ndarray:
    return np.cumsum([0, *lengths]).astype(np.int32)


def choose(monkeypatch: Any, one_pass: bool, splits: int = 1) -> None:
    """Choose one or two kernels for gradients of D up to 128, in launches that no cache keeps."""
    most = 128 if one_pass else 0
    choice = lambda problem, sequences: (max(problem.traits.depth, problem.traits.width) <= most, splits)
    monkeypatch.setattr(choosing, "choose_kernels", choice)
    monkeypatch.setattr(host, "cached_call", lambda results, arrays, key, prepare: prepare())


def module_of(source: str, name: str) -> ModuleType:
    """A module whose kernels are compiled from this text."""
    module = ModuleType("attention")
    sys.modules["attention"] = module  # dataclasses look for it
    execute_text(source, name, vars(module))
    return module


def module_without(module: ModuleType, text: str) -> ModuleType:
    """The module without the first statement of `text`, which its code without comments has once."""
    source = ast.unparse(ast.parse(Path(str(module.__file__)).read_text()))
    assert source.count(text) == 1, text
    statement = text.strip().partition("\n")[0]
    return module_of(source.replace(text, text.replace(statement, "pass", 1)), f"without {statement}")
