"""Each synchronisation of the library's kernels is needed: without it, or with a weaker one, the
emulator reports an error, or the result differs. What may go is listed, with the reason."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from examples import flash_attention
from tensorcore_dsl import kernels
from tensorcore_dsl.kernels.ampere.config import AmpereConfig
from tensorcore_dsl.kernels.hopper.config import HopperConfig, HopperTraits
from tensorcore_dsl.kernels.hopper.sparse_gemm import sparse_gemm_kernel
from tensorcore_dsl.kernels.hopper.wgmma_gemm import half_gemm
from tensorcore_dsl.runtime.launch_config import LaunchConfig
from tests.sync_mutants import applied, mutants_of, survives
from tests.whole_numbers import BF16, whole

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("on_hopper")]

# Without a trigger the next launch starts later. Consumers learn from the producer that it has
# waited.
OVERLAP = {
    "multiply: tc.griddep_launch_dependents() (griddepcontrol.launch_dependents): deleted",
    "consumers: tc.griddep_wait() (griddepcontrol.wait): deleted",
    "run_warpgroups: tc.griddep_launch_dependents() (griddepcontrol.launch_dependents): deleted",
}
# Consumers that take tiles in turn use these barriers, the others none.
ORDER = {
    "make_barriers: order[consumer].init(1) (mbarrier.init.shared::cta): deleted",
    "make_barriers: order[consumer].init(1) (mbarrier.init.shared::cta): one more arrival",
}
# Nobody reads a block's memory from outside where a cluster is one block.
ALONE = {"run_warpgroups: tc.cluster_sync() (barrier.cluster.wait): deleted"}
# No product is in flight when a tile ends.
NONE_IN_FLIGHT = {
    f"consume: tc.wgmma_wait(0) (wgmma.wait_group.sync): {what}" for what in ("deleted", "one more pending")
}


def f64() -> tuple[Any, Any, tuple[Any, ...], dict[str, Any]]:
    a, b = whole(66, 150, dtype=np.float64), whole(150, 34, dtype=np.float64)
    config, d = AmpereConfig(64, 32, 16, 32, 16, 3), np.full((66, 34), 77.0)
    plan = kernels.plan(a, b, None, d, config=config)
    return plan.kernel, (plan.grid, config.threads), (a, b, d, d, 1.0, 0.0), dict(plan.options)


def bf16(**options: Any) -> tuple[Any, Any, tuple[Any, ...], dict[str, Any]]:
    a, b, d = whole(136, 200), whole(200, 136, order="F"), np.full((136, 136), 77, np.float32)
    config = HopperConfig(BM=64, BN=64, stages=2, **options)
    constants = dict(config=config, traits=HopperTraits())
    return half_gemm, (config.cluster_size, config.threads), (a, b, d, d, 1.0, 0.0), constants


def sparse() -> tuple[Any, Any, tuple[Any, ...], dict[str, Any]]:
    a, b = kernels.compress(whole(136, 264), prune=True), whole(264, 72, order="F")
    config, d = HopperConfig(BM=64, BN=64, stages=2), np.full((136, 72), 5, np.float32)
    constants = dict(format=a.format, config=config, traits=HopperTraits())
    arguments = a.values, a.metadata, b, d, d, 1.0, 0.0
    return sparse_gemm_kernel, (2, config.threads), arguments, constants


def attention() -> tuple[Any, Any, tuple[Any, ...], dict[str, Any]]:
    draw = np.random.default_rng(1)
    q, k, v = (draw.standard_normal((1, 1, n, 64)).astype(np.float16) for n in (100, 200, 200))
    grid = -(-100 // flash_attention.ROWS), 1, 1
    arguments = q, k, v, np.zeros_like(q), 0.125
    threads = 32 * flash_attention.WARPS
    return flash_attention.attention_kernel, (grid, threads), arguments, dict(dim=64, causal=True)


def ampere() -> tuple[Any, Any, tuple[Any, ...], dict[str, Any]]:
    a, b, d = whole(100, 200), whole(200, 72, order="F"), np.zeros((100, 72), BF16)
    config = AmpereConfig(64, 64, 32, 32, 32, 3)
    with tc.target("cpu", "sm_80"):
        plan = kernels.plan(a, b, None, d, config=config)
    return plan.kernel, (plan.grid, config.threads), (a, b, d, d, 1.0, 0.0), dict(plan.options)


@tc.kernel
def touch(a: tc.Array, b: tc.Array, c: tc.Array, d: tc.Array):
    """The launch in front, which has written all that a kernel reads or writes."""
    tc.griddep_launch_dependents()
    for x in (a, b, c, d):
        for i in tc.range(256 * tc.blockIdx.x + tc.threadIdx.x, x.shape[0], 256 * 8):
            x[i] = x[i]


KERNELS: dict[str, tuple[Callable[[], Any], set[str]]] = {
    "f64": (f64, OVERLAP),
    "bf16": (partial(bf16, cluster_n=2), OVERLAP | ORDER),
    "bf16, pingpong": (partial(bf16, pingpong=True), OVERLAP | ALONE),
    "sparse": (sparse, OVERLAP | ORDER | ALONE | NONE_IN_FLIGHT),
    "attention": (attention, set()),
    "ampere": (ampere, set()),
}


def prepared(name: str) -> tuple[Any, Callable[[], np.ndarray]]:
    """The specialisation that a kernel's launch runs, and the launch, which returns the result."""
    kernel, shape, arguments, constants = KERNELS[name][0]()
    emulator = kernel.emulator("sm_80" if name == "ampere" else "sm_90a", checks=True)
    runtime, split = kernel.split(arguments, constants)
    result = next(x for x in reversed(arguments) if isinstance(x, np.ndarray))
    start, config = result.copy(), LaunchConfig.of(*shape, pdl=name not in ("ampere", "attention"))
    arrays = {id(x): x for x in arguments if isinstance(x, np.ndarray)}.values()
    bytes_of = [x.ravel(order="K").view(np.uint8) for x in arrays]

    def run() -> np.ndarray:
        result[:] = start
        touch[8, 256](*(*bytes_of, *bytes_of)[:4])
        emulator.run(config, *arguments, **constants)
        return result.copy()

    return emulator.compiled(runtime, split), run


@pytest.mark.parametrize("name", KERNELS)
def test_every_synchronisation_is_needed(name):
    specialisation, run = prepared(name)
    mutants, wanted = list(mutants_of(specialisation.ir.body)), run()
    assert len(mutants) >= 4
    left = {str(mutant) for mutant in mutants if survives(specialisation, mutant, run, wanted)}
    assert left == KERNELS[name][1] & {str(mutant) for mutant in mutants}


def test_loads_that_a_copy_overtakes():
    """The fence that the f64 kernel once lacked: GPUs were seen to read what TMA brought next."""
    specialisation, run = prepared("f64")
    fence = next(m for m in mutants_of(specialisation.ir.body) if "fence_proxy_async" in m.says)
    with applied(specialisation, fence), pytest.raises(tc.EmulationError) as error:
        run()
    text = str(error.value)
    assert "writes through the async proxy what" in text and "without a proxy fence" in text
    assert "read by an ordinary load at " in text and "operand.smem.at(stage, *index).load()" in text
    assert "f64_operands.py" in text and "in load_by_tma" in text


def test_a_mutant_is_gone_afterwards():
    specialisation, run = prepared("f64")
    wanted, before = run(), str(specialisation.ptx)
    for mutant in mutants_of(specialisation.ir.body):
        with applied(specialisation, mutant):
            pass
    del specialisation.ptx
    assert specialisation.ptx == before and np.array_equal(run(), wanted)
