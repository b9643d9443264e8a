"""Operators of PyTorch inside of what torch does to functions: checkpoints, saved-tensor hooks.

Operands are small whole numbers, so that a derivative has one value, by whatever way it is found.
"""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")

from test_torch import BF16, F32, OFFSETS, forget_graphs, weights, whole  # noqa: E402, F401
from torch.utils.checkpoint import checkpoint  # noqa: E402

import tensorcore_dsl.torch as tct  # noqa: E402
from tensorcore_dsl.torch import operators  # noqa: E402


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def module(kind: Any, *sizes: int) -> Any:
    """The module, with whole numbers as parameters."""
    made = kind(*sizes, dtype=BF16)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(whole(*parameter.shape))
    return made


def calls() -> dict[str, Any]:
    """By name: functions that make a call, and its tensors."""
    return {
        "gemm": lambda: (tct.gemm, (whole(24, 40), weights(16, 40), whole(16))),
        "Linear": lambda: (module(tct.Linear, 40, 16), (whole(3, 8, 40),)),
        "MLP": lambda: (module(tct.MLP, 16, 24), (whole(24, 16),)),
        "swiglu": lambda: (tct.swiglu, (whole(24, 40), weights(16, 40), weights(16, 40))),
        "grouped_gemm": lambda: (tct.grouped_gemm, (whole(72, 40), whole(4, 40, 16), OFFSETS)),
        "k_grouped_gemm": lambda: (tct.k_grouped_gemm, (whole(72, 40).t(), whole(72, 16), OFFSETS)),
        "scaled_gemm": lambda: (tct.scaled_gemm, (whole(24, 208), weights(16, 208))),
    }  # fmt: skip


def drawn(call: str) -> tuple[Any, list[Any], list[Any]]:
    """The function of a call, its tensors, and of what there are gradients."""
    function, tensors = calls()[call]()
    tensors = [x.detach().requires_grad_(x.requires_grad) for x in tensors]  # leaves
    parameters = list(function.parameters()) if isinstance(function, torch.nn.Module) else []
    return function, tensors, [x for x in (*tensors, *parameters) if x.requires_grad]


def gradients(found: Any, leaves: list[Any]) -> list[Any]:
    """Those of the sum of squares, by backward()."""
    for leaf in leaves:
        leaf.grad = None
    found.float().square().sum().backward()
    return [leaf.grad for leaf in leaves]


def equal(found: Any, wanted: Any) -> bool:
    return len(found) == len(wanted) and all(map(torch.equal, found, wanted))


# -- checkpoints and saved tensors -------------------------------------------------------------


@pytest.mark.parametrize("call, reentrant, threads", [
    *((call, False, True) for call in calls()),
    ("MLP", True, True), ("MLP", False, False), ("MLP", True, False),
])  # fmt: skip
def test_checkpoints(call: str, reentrant: bool, threads: bool) -> None:
    """The backward pass computes the forward pass again; `threads`: in a thread of the engine."""
    function, tensors, leaves = drawn(call)
    wanted = function(*tensors)
    exact = gradients(wanted, leaves)
    with torch.autograd.set_multithreading_enabled(threads):
        found = checkpoint(function, *tensors, use_reentrant=reentrant)
        assert torch.equal(found, wanted) and equal(gradients(found, leaves), exact)


def test_checkpoints_of_layers_in_a_row() -> None:
    """Each layer's backward pass computes the layers below it again."""
    layers = [module(tct.MLP, 16, 24) for _ in range(3)]
    x = whole(8, 16)

    def through(x: Any, keep: Any) -> Any:
        for layer in layers:
            x = keep(layer, x) / 64
        return x

    parameters = [p for layer in layers for p in layer.parameters()]
    wanted = torch.autograd.grad(through(x, lambda layer, x: layer(x)).sum(), parameters)
    again = lambda layer, x: checkpoint(layer, x, use_reentrant=False)
    found = torch.autograd.grad(through(x, again).sum(), parameters)
    assert equal(found, wanted)


def test_hooks_of_saved_tensors_may_compute() -> None:
    """A hook that unpacks with a product which records gradients; operators are as outside."""
    a, b, one = whole(24, 40), whole(40, 16), torch.eye(40, dtype=BF16).requires_grad_()
    straight = []

    def unpack(x: Any) -> Any:
        straight.append(operators._here.straight)
        with torch.enable_grad():
            product = tct.gemm(one, one)
        assert product.requires_grad
        return x

    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, unpack):
        found = tct.gemm(a, b)
    wanted = torch.autograd.grad((a @ b).sum(), (a, b))
    assert equal(torch.autograd.grad(found.sum(), (a, b)), wanted)
    assert straight == [False, False]


def test_hooks_may_return_lazy_views() -> None:
    """Negated views hold other values than their memory."""
    a, b = whole(24, 40, dtype=F32), whole(40, 16, dtype=F32)
    with torch.autograd.graph.saved_tensors_hooks(torch.neg, torch._neg_view):
        found = tct.gemm(a, b)
    wanted = torch.autograd.grad((a @ b).sum(), (a, b))
    assert equal(torch.autograd.grad(found.sum(), (a, b)), wanted)


def test_tensors_saved_elsewhere() -> None:
    layer, (x,), leaves = drawn("Linear")
    with torch.autograd.graph.save_on_cpu():
        found = layer(x)
    assert equal(gradients(found, leaves), gradients(layer(x), leaves))


def test_calls_that_record_gradients_are_never_cut_short() -> None:
    """Whatever calls an operator while a thread computes gradients."""
    operators._here.straight = True
    try:
        assert tct.gemm(whole(24, 40), whole(40, 16)).requires_grad
    finally:
        operators._here.straight = False
