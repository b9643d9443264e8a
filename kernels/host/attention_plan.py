"""`plan_attention(q, k, v, ...)`: the kernels of attention and its gradients, and their order of sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl.host import target_arch, tensor_core_arithmetic
from tensorcore_dsl.kernels.ampere.attention import KEYS, KEYS_OF_WIDE, WIDE
from tensorcore_dsl.kernels.ampere.attention_backward import SIZES
from tensorcore_dsl.kernels.attention_scores import AttentionTraits
from tensorcore_dsl.kernels.choosing.attention import choose_backward, choose_family, choose_forward
from tensorcore_dsl.kernels.hopper.attention import SLAB, AttentionConfig
from tensorcore_dsl.kernels.hopper.attention_blocks import BackwardConfig
from tensorcore_dsl.kernels.hopper.attention_query_gradients import BN as QUERY_KEYS
from tensorcore_dsl.kernels.host.arguments import described
from tensorcore_dsl.kernels.host.attention import check_lists, checked_problem
from tensorcore_dsl.kernels.problem.summation import Summation
from tensorcore_dsl.kernels.sizes import cdiv


@dataclass(frozen=True)
class AttentionPlan:
    """How `attention` and `attention_backward` compute a problem.

    Attributes
    ----------
    family : str
        "sm80" or "sm90".
    dtype : DType
        Element type of the arrays.
    traits : AttentionTraits
        Compile-time properties.
    shared_by : int
        Heads of q that share a head of k and v.
    config : AttentionConfig or None
        Configuration of "sm90"; None for "sm80".
    gradients : BackwardConfig or None
        Configuration of the backward pass of "sm90"; None for "sm80", and with pages.
    splits : int
        Groups of the heads of q that share a head of k and v. Each group has its own sums of dK and dV.
    """

    family: str
    dtype: Any
    traits: AttentionTraits
    shared_by: int
    config: AttentionConfig | None = None
    gradients: BackwardConfig | None = None
    splits: int = 1

    def explained(self) -> str:
        """Tell the order of sums; see `explain_bits`."""
        text = self._forward()
        if not self.traits.page:
            text |= self._backward()
        return "\n".join(f"{name + ':':10}{line}" for name, line in text.items())

    def _forward(self) -> dict[str, str]:
        traits, hopper = self.traits, self.family == "sm90"
        product = tc.wgmma.m64n64k16 if hopper else tc.mma.m16n8k16
        arithmetic = tensor_core_arithmetic(product(self.dtype, self.dtype, tc.f32), target_arch().name)
        name = str(self.dtype)
        size = self.config.BN if self.config else KEYS if self._slabs * SLAB <= WIDE else KEYS_OF_WIDE
        order = "the last tile that a query sees to the first" if hopper else "the first tile to the last"
        cap, numbers = "", "s = scale * log2(e)"
        if traits.softcap:
            cap = ", then 1 - 2 rcp(1 + exp2(c * score))"
            numbers = "s = softcap * log2(e), c = 2 * log2(e) * scale / softcap"
        return {
            "numbers": f"{numbers}, rounded to f32",
            "products": f"{name} by {name}, 16 of the summed axis in an instruction",
            "sums": Summation(name, self.dtype, self.dtype, 16, arithmetic).aspects()["sums"],
            "scores": f"along D, upwards, in tiles of {size} keys{cap}; a key that is not seen has -inf",
            "keys": f"from {order}; tiles begin at multiples of {size} in a sequence; keys are not split",
            "P": "exp2(fma(score, s, -(max * s))) by ex2.approx.ftz; max is the greatest score "
            "of this tile and those before",
            "factor": "exp2((max before - max) * s), of the total and the output so far, in f32",
            "total": "f32, of each of four lanes of a row: fma(total, factor, sum of the tile); lane c sums "
            "columns 8n + 2c and 8n + 2c + 1, upwards; at the end lanes 1 apart, then 2 apart",
            "output": f"P rounded to {name} times v, upwards in a tile, added to factor * output by "
            f"the tensor cores; at the end times rcp.approx(total), rounded to {name}",
        }

    def _backward(self) -> dict[str, str]:
        config, name = self.gradients, str(self.dtype)
        count, added = self.shared_by // self.splits, ""
        heads = f"{count} heads of q in turn, " if count > 1 else ""
        if self.splits > 1:
            added = f"; the f32 sums of {self.splits} groups of heads are added, from the first one on"
        if config is None:
            step = SIZES[self._slabs]
            key_order = f"{heads}queries upwards in tiles of {step}: one sum of the tensor cores"
            query_order = f"keys upwards in tiles of {step}: one sum of the tensor cores"
        else:
            key_order = (
                f"blocks of {config.BM} queries from the last one to the first, {heads}upwards in a block: "
                f"one sum of the tensor cores"
            )
            query_order = (
                f"keys from the last tile of {QUERY_KEYS} to the first, upwards in a tile: one sum of the "
                f"tensor cores"
                if not config.one_pass
                else f"tiles of {config.BN} keys, each summed from zero, upwards, by the tensor cores; the "
                f"sums of the tiles are added in f32, upwards"
            )
        ds = "P * (dP - delta)"
        if self.traits.softcap:
            ds = "P * (dP - delta) * (1 - tanh^2)" if config is None else "P * (1 - tanh^2) * (dP - delta)"
        return {
            "P again": f"exp2(fma(score, s, -(lse * log2(e)))) by ex2.approx.ftz, in products rounded to "
            f"{name}",
            "dS": f"{ds}, from the left in f32, rounded to {name} in products",
            "delta": "f32, of 16 lanes with 8 of 128 columns each: fma(dO, o, sum), upwards; then lanes 8, "
            "4, 2, 1 apart; minus grad_lse",
            "dV, dK": f"{key_order}; dK then times scale{added}; both rounded to {name}",
            "dQ": f"{query_order}; then times scale, rounded to {name}",
        }

    @property
    def _slabs(self) -> int:
        """Slabs of 64 columns of the greater D."""
        return cdiv(max(self.traits.depth, self.traits.width), SLAB)


def plan_attention(
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
    family: str | None = None,
) -> AttentionPlan:
    """Plan `attention` and `attention_backward` without running them.

    Parameters
    ----------
    q, k, v, causal, window, scale, softcap, cu_seqlens, block_table, family
        As for `attention`.

    Returns
    -------
    AttentionPlan
        With `family`, `traits` (compile-time properties), `config` and `gradients`. The last two are
        None for "sm80".

    Raises
    ------
    ArgumentError
        Arguments that do not fit.

    See Also
    --------
    explain_bits : The order of the sums of a plan.

    Examples
    --------
    >>> q = np.zeros((1, 4, 300, 64), np.float16)
    >>> kernels.plan_attention(q, q, q, family="sm80").config is None
    True
    """
    starts = cu_seqlens if isinstance(cu_seqlens, tuple) else (cu_seqlens, cu_seqlens)
    lists = check_lists(starts, block_table)
    page = described(k=k)["k"].shape[2] if block_table is not None else 0
    arrays = {"q": q, "k": k, "v": v}
    problem = checked_problem(arrays, lists, page, causal, window, scale, softcap, False)
    shared_by = problem.shape[1] // max(problem.arrays["k"].shape[1], 1)
    plan = AttentionPlan(choose_family(family), problem.dtype, problem.traits, shared_by)
    if plan.family == "sm80":
        return plan
    sequences = lists["cu_seqlens"].shape[0] - 1 if lists else 1
    traits, config = choose_forward(problem.traits, problem.shape[2], shared_by, sequences)
    count = sequences if lists else problem.shape[0]
    gradients, splits = (None, 1) if page else choose_backward(problem, count)
    return AttentionPlan("sm90", problem.dtype, traits, shared_by, config, gradients, splits)
