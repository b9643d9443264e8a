"""The wgmma attention kernel: orders of warps, waits that are needed, what the assembler says."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import kernels
from tensorcore_dsl.host import has_program_assembler
from tensorcore_dsl.kernels.attention_scores import AttentionTraits
from tensorcore_dsl.kernels.hopper import attention as hopper
from tensorcore_dsl.kernels.hopper.attention import AttentionConfig
from tensorcore_dsl.kernels.problem.recording import recorded
from tests.assembler import assert_clean
from tests.attention_cases import choose, exact, module_without, operands, starts

pytestmark = pytest.mark.thorough


def launch_hopper(
    arrays: Any,
    causal: bool = False,
    config: AttentionConfig = AttentionConfig(),
    blocks: int = 1,
    kernel: Any = hopper.attention_kernel,
    **options: Any,
) -> np.ndarray:
    """The output of an emulated launch of a few blocks, so that each computes several tiles."""
    q, k, v = arrays
    out, tickets = np.full((*q.shape[:3], v.shape[3]), 7, q.dtype), np.zeros(1, np.int32)
    traits = AttentionTraits(q.shape[3], v.shape[3], right=causal)
    scale = math.log2(math.e) / math.sqrt(q.shape[3])
    kernel.emulator("sm_90a", **options)[blocks, config.threads](
        q,
        k,
        v,
        out,
        out,
        tickets,
        tickets,
        tickets,
        tickets[None],
        scale,
        1.0,
        0,
        0,
        2,
        config=config,
        traits=traits,
    )
    assert tickets[0] == 0, "the next launch begins with a list of no tiles"
    return out


CONFIGS = {
    "two consumers": AttentionConfig(),
    "three consumers": AttentionConfig(96, 3, waits_late=False),
    "one buffer of queries": AttentionConfig(80, q_stages=1),
    "three stages": AttentionConfig(64, stages=3),
}


@pytest.mark.parametrize("name, order", [("two consumers", None), *((name, 0) for name in CONFIGS)])
def test_orders_of_warps(name, order):
    """With all checks; several tiles for a block, and tiles of different lengths."""
    arrays = operands(200, 180, heads=2)
    options: Any = {} if order is None else {"order": order}
    out = launch_hopper(arrays, True, CONFIGS[name], checks=True, **options)
    want, _, bound = exact(*arrays, causal=True)
    assert (abs(np.float64(out) - want) <= bound).all()


def test_blocks_share_the_tiles():
    """Whichever block draws a tile computes the same bits."""
    arrays = operands(200, 180, heads=2)
    outs = [launch_hopper(arrays, True, blocks=blocks) for blocks in (1, 2, 4)]
    assert np.array_equal(outs[0], outs[1]) and np.array_equal(outs[0], outs[2])


SYNCHRONISATION = [
    "    tc.barrier()\n",
    "        tc.fence_mbarrier_init()\n",
    "        cta.queries.empty[stage].wait(query_state.phase)\n",
    "    stages.empty[stage].wait(key_state.phase)\n",
    "        queries.full[query_state.stage].wait(query_state.phase)\n",
    "    keys.full[stage].wait(phase)\n",
    "        keys.full[next_stage].wait(key_state.phase)\n",
    "        values.full[stage].wait(phase)\n",
    "    values.full[stage].wait(key_state.phase)\n    out =",
    "    tc.wgmma_fence()\n    out =",
    "tc.wgmma_wait(1)\n",
    "        tc.wgmma_wait(0)\n",
    "    tc.wgmma_wait(0)\n    keys.empty",
    "    tc.wgmma_wait(0)\n    values.empty",
    "    keys.empty[stage].arrive(pred=leader)\n",
    "        values.empty[stage].arrive(pred=leader)\n",
    "    tc.syncwarp()\n",
    "        tc.fence_proxy_async()\n        queries.empty",
]


@pytest.mark.parametrize("text", SYNCHRONISATION)
def test_every_synchronisation_is_needed_and_missed(text):
    """Without its first line, a launch with all checks reports an error."""
    module = module_without(hopper, text)
    with pytest.raises(tc.TensorCoreError):
        for order in (None, 0, 1):
            options: Any = {} if order is None else {"order": order}
            launch_hopper(
                operands(300, 300, heads=2),
                kernel=module.attention_kernel,
                checks=True,
                config=AttentionConfig(64),
                **options,
            )


# D, options and lists that take the most registers, and the plain cases.
ASSEMBLED = {
    "sm_80": [(64, {}, ""), (128, {"causal": True}, "packed"), (256, {"softcap": 9.0}, "pages")],
    "sm_90a": [
        (64, {}, ""), (64, {"window": (9, 9)}, "packed"), (128, {"causal": True}, ""),
        (128, {"softcap": 9.0, "window": (9, 9)}, "pages"), (256, {"causal": True}, "packed"),
        (256, {"softcap": 9.0, "window": (9, 9)}, ""),
    ],
}  # fmt: skip


def check_resources(bound: Any, target: str) -> None:
    for one in bound:
        used = one.kernel.specialised(one.types, one.constants, target).cubin.resources
        assert_clean(used)


@pytest.mark.parametrize(
    "target, case", [(target, case) for target, cases in ASSEMBLED.items() for case in cases]
)
def test_assembled_without_spills(target, case):
    """And without wgmma that wait for each other, and with registers that change hands."""
    pytest.importorskip("cuda.core", reason="needs the assembler")
    if target == "sm_90a" and not has_program_assembler():
        pytest.skip("needs a whole-program ptxas")
    dim, options, lists = case
    options = dict(options, cu_seqlens=starts([1000, 1048])) if lists else options
    if lists == "pages":
        options["block_table"] = np.zeros((2, 66), np.int32)
    q, k, v = operands(2048, 16 if lists == "pages" else 2048, dim, heads=2)
    with tc.target("cpu", target), recorded() as bound:
        kernels.attention(q, k, v, return_lse=True, **options)
    assert len(bound) == 1
    check_resources(bound, target)


@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize(
    "target, options, one_pass",
    [
        ("sm_80", {}, True),
        ("sm_80", {"softcap": 9.0, "window": (9, 9)}, True),
        ("sm_90a", {}, True),
        ("sm_90a", {"causal": True}, True),
        ("sm_90a", {"causal": True}, False),
        ("sm_90a", {"softcap": 9.0, "window": (9, 9)}, None),
    ],
)
def test_gradients_assembled_without_spills(dim, target, options, one_pass, monkeypatch):
    pytest.importorskip("cuda.core", reason="needs the assembler")
    if target == "sm_90a" and not has_program_assembler():
        pytest.skip("needs a whole-program ptxas")
    x, lse = operands(2048, 1, dim, heads=2)[0], np.zeros((1, 2, 2048), np.float32)
    lists = starts([1000, 1048]) if options else None
    if one_pass is not None:
        choose(monkeypatch, one_pass)
    with tc.target("cpu", target), recorded() as bound:
        kernels.attention_backward(x, x, x, x, x, lse, cu_seqlens=lists, **options)
    assert len(bound) == 3
    check_resources(bound, target)
