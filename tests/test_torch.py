"""Operators of PyTorch: checks by torch's own `opcheck`, gradients, graphs, users' kernels.

Operands are small whole numbers, so that sums are exact in any order; results are those of torch in
f64. Without PyTorch nothing here runs, which the summary of the run says (conftest.py).
"""

from __future__ import annotations

import gc
import itertools
import re
import subprocess
import sys
import weakref
from typing import Any

import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import kernels
from tensorcore_dsl.checking.session import checking
from tensorcore_dsl.interpreter.sanitizer import stream_order

torch: Any = pytest.importorskip("torch")

import tensorcore_dsl.torch as tct  # noqa: E402
from tensorcore_dsl.torch import operators  # noqa: E402
from tests.torch_cases import BF16, F32, FP8, OFFSETS, by_groups, compare, in_f64, weights, whole  # noqa: E402

ops = torch.ops.tensorcore_dsl


def check_gradients(function: Any, reference: Any, tensors: Any, tolerance: float = 0.0) -> None:
    """`function` gives the result and the gradients of `reference`, which computes in f64."""
    leaves = [x.detach().clone(memory_format=torch.preserve_format) for x in tensors]
    leaves = [x.requires_grad_(t.requires_grad) for x, t in zip(leaves, tensors)]
    actual, exact_leaves = function(*leaves), in_f64(*tensors)
    exact = reference(*exact_leaves)
    compare(actual, exact, tolerance)
    weight = torch.randint(-1, 2, actual.shape, device=actual.device)
    (actual * weight).sum().backward()
    (exact * weight).sum().backward()
    for leaf, wanted in zip(leaves, exact_leaves, strict=True):
        if leaf.requires_grad:
            assert leaf.grad.dtype == leaf.dtype and leaf.grad.stride() == leaf.stride()
            compare(leaf.grad, wanted.grad, tolerance)


CALLS = {
    "gemm": lambda on: (ops.gemm, (whole(24, 40, **on), whole(40, 16, **on)), {}),
    "gemm with c": lambda on: (
        ops.gemm, (whole(24, 40, **on), weights(16, 40, **on), whole(16, dtype=F32, **on)),
        dict(alpha=2.0, beta=0.5, out_dtype=F32),
    ),
    "gemm f32": lambda on: (
        ops.gemm, (whole(24, 40, dtype=F32, **on), whole(40, 16, dtype=F32, **on)), {}
    ),
    "gemm s8": lambda on: (
        ops.gemm,
        (whole(32, 64, dtype=torch.int8, grad=False, **on),
         whole(16, 64, dtype=torch.int8, grad=False, **on).t()),
        {},
    ),
    "batch and matrix": lambda on: (ops.gemm, (whole(3, 24, 40, **on), whole(40, 16, **on)), {}),
    "matrix and batch": lambda on: (ops.gemm, (whole(24, 40, **on), whole(3, 40, 16, **on)), {}),
    "batches": lambda on: (ops.gemm, (whole(3, 24, 40, **on), whole(3, 40, 16, **on)), {}),
    "swiglu": lambda on: (
        ops.swiglu, (whole(24, 40, **on), weights(16, 40, **on), weights(16, 40, **on)), {}
    ),
    "grouped": lambda on: (
        ops.grouped_gemm, (whole(72, 40, **on), whole(4, 40, 16, **on), OFFSETS.to(**on)), {}
    ),
    "grouped weights": lambda on: (
        ops.grouped_gemm, (whole(72, 40, **on), whole(4, 16, 40, **on).mT, OFFSETS.to(**on)), {}
    ),
    "k_grouped": lambda on: (
        ops.k_grouped_gemm, (whole(72, 40, **on).t(), whole(72, 16, **on), OFFSETS.to(**on)), {}
    ),
}  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
def test_opcheck(call, device):
    """Schema, registration of gradients, fake tensors, and the graphs of torch.compile."""
    operator, args, options = CALLS[call](dict(device=device))
    results = torch.library.opcheck(operator.default, args, options)
    assert set(results.values()) == {"SUCCESS"}


def fp8_call(device: str) -> tuple[Any, ...]:
    a, b = (whole(n, 208, grad=False, device=device).to(FP8) for n in (24, 144))
    scales = torch.rand(24, 2, device=device), torch.rand(2, 2, device=device)
    return (a, b.t(), *scales)


def test_opcheck_of_scaled_gemm(device):
    """Without test_schema, which compares inputs by a product that torch has not for fp8."""
    tests = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    sources = whole(24, 208, device=device), weights(144, 208, device=device)
    for args in (fp8_call(device), (*fp8_call(device), *sources)):
        results = torch.library.opcheck(ops.scaled_gemm.default, args, test_utils=tests)
        assert set(results.values()) == {"SUCCESS"}


def packed_weights(device: str) -> tuple[Any, Any]:
    """Packed weights (256, 48) with zero points, and the same in f64."""
    q = torch.randint(0, 16, (48, 256), dtype=torch.uint8, device=device)
    scales = 2.0 ** torch.randint(-2, 1, (4, 48), device=device)
    zeros = torch.randint(0, 16, (4, 48), dtype=torch.uint8, device=device)
    packed = kernels.pack(q.t(), scales.to(BF16), zeros, dtype=tc.u4)
    by_group = [x.double().repeat_interleave(64, 0) for x in (zeros, scales)]
    return packed, (q.t().double() - by_group[0]) * by_group[1]


def test_gemm_with_packed_weights(device):
    with tc.target("cpu" if device == "cpu" else "cuda"):
        packed, exact = packed_weights(device)
    a, bias = whole(3, 256, device=device), whole(48, device=device)
    args = a, packed.words, packed.scales, packed.zeros, bias
    results = torch.library.opcheck(ops.packed_gemm.default, args, {"dtype": "u4"})
    assert set(results.values()) == {"SUCCESS"}
    check_gradients(
        lambda a, c: tct.gemm(a, packed, c, alpha=0.5, beta=2),
        lambda a, c: 0.5 * (a @ exact) + 2 * c,
        (a, bias),
        tolerance=2.0**-7,
    )
    compiled = torch.compile(lambda x: tct.gemm(x + 1, packed), fullgraph=True)
    assert torch.equal(compiled(a), tct.gemm(a + 1, packed))
    with pytest.raises(tc.ArgumentError, match="have no precision, accumulate and bits"):
        tct.gemm(a, packed, accumulate="f16")
    with pytest.raises(tc.ArgumentError, match="no derivative of forward mode"):
        torch.func.jvp(lambda x: tct.gemm(x, packed), (a,), (a,))
    scales = packed.scales.clone().requires_grad_()
    with pytest.raises(tc.ArgumentError, match="scales and zero points have no gradients"):
        ops.packed_gemm(a, packed.words, scales, packed.zeros, dtype="u4")


# -- results and gradients ---------------------------------------------------------------------


@pytest.mark.parametrize("left", ["rows", "columns"])
@pytest.mark.parametrize("right", ["rows", "columns"])
@pytest.mark.parametrize("dtype", [BF16, torch.float16, F32, torch.float64])
def test_gradients_of_gemm(dtype, left, right, device):
    a = whole(40, 72, dtype=dtype, device=device)
    a = whole(72, 40, dtype=dtype, device=device).t() if left == "columns" else a
    b = whole(72, 24, dtype=dtype, device=device)
    b = weights(24, 72, dtype=dtype, device=device) if right == "columns" else b
    check_gradients(tct.gemm, torch.matmul, (a, b))


@pytest.mark.parametrize("shape", [(24,), (40, 1), (1, 24), (40, 24), ()])
def test_gradient_of_c(shape, device):
    tensors = (
        whole(40, 72, device=device),
        weights(24, 72, device=device),
        whole(*shape, dtype=F32, device=device),
    )
    check_gradients(
        lambda a, b, c: tct.gemm(a, b, c, alpha=2, beta=3, out_dtype=F32),
        lambda a, b, c: 2 * a @ b + 3 * c,
        tensors,
    )


@pytest.mark.parametrize(
    "shapes", [((3, 40, 72), (72, 24)), ((40, 72), (3, 72, 24)), ((3, 40, 72), (3, 72, 24))]
)
def test_gradients_of_batches(shapes, device):
    check_gradients(tct.gemm, torch.matmul, [whole(*shape, device=device) for shape in shapes])


def test_gradients_of_odd_sizes(device):
    check_gradients(tct.gemm, torch.matmul, (whole(7, 13, device=device), whole(13, 5, device=device)))


def test_only_the_gradients_that_are_wanted(device):
    a, b = whole(40, 72, device=device, grad=False), weights(24, 72, device=device)
    check_gradients(tct.gemm, torch.matmul, (a, b))
    check_gradients(lambda b, a: tct.gemm(b.t(), a.t()), lambda b, a: b.t() @ a.t(), (b, a))


def test_second_derivatives(device):
    tensors = [whole(*shape, dtype=torch.float64, device=device) for shape in ((2, 3), (3, 2))]
    assert torch.autograd.gradgradcheck(lambda a, b: tct.gemm(a, b), tensors, fast_mode=True)


@pytest.mark.parametrize("transposed", [False, True])
def test_gradients_of_grouped_gemm(transposed, device):
    b = whole(4, 24, 40, device=device).mT if transposed else whole(4, 40, 24, device=device)
    offsets = OFFSETS.to(device)
    check_gradients(
        lambda a, b: tct.grouped_gemm(a, b, offsets),
        lambda a, b: by_groups(a, b, offsets),
        (whole(72, 40, device=device), b),
    )


def test_gradients_of_k_grouped_gemm(device):
    offsets = OFFSETS.to(device)
    ends = offsets.tolist()
    check_gradients(
        lambda a, b: tct.k_grouped_gemm(a, b, offsets),
        lambda a, b: torch.stack([a[:, i:j] @ b[i:j] for i, j in zip(ends, ends[1:])]),
        (whole(72, 40, device=device).t(), whole(72, 24, device=device)),
    )


@pytest.mark.filterwarnings("ignore::tensorcore_dsl.PerformanceWarning")
@pytest.mark.parametrize("K, N", [(40, 12), (13, 16), (13, 15), (1, 3)])
def test_gradients_of_groups_of_odd_sizes(K, N, device):
    offsets, ends = OFFSETS.to(device), OFFSETS.tolist()
    a, b = whole(72, K, device=device), whole(4, K, N, device=device)
    for b in (b, b.detach().mT.contiguous().mT.requires_grad_()):
        check_gradients(
            lambda a, b: tct.grouped_gemm(a, b, offsets), lambda a, b: by_groups(a, b, offsets), (a, b)
        )
    b = whole(72, N, device=device)
    for x, y in ((a.t(), b), (a.detach().t().contiguous().requires_grad_(), b)):
        check_gradients(
            lambda a, b: tct.k_grouped_gemm(a, b, offsets),
            lambda a, b: torch.stack([a[:, i:j] @ b[i:j] for i, j in zip(ends, ends[1:])]),
            (x, y),
        )


def test_gradients_of_swiglu(device):
    """Rounding: the result, and dy silu(g) and dy u silu'(g) of f32 products, once to bf16."""
    x = torch.randn(40, 72, device=device).to(BF16).requires_grad_()
    gate, up = (torch.randn(24, 72, device=device).to(BF16).requires_grad_().t() for _ in range(2))
    reference = lambda x, g, u: torch.nn.functional.silu(x @ g) * (x @ u)
    check_gradients(tct.swiglu, reference, (x, gate, up), tolerance=2**-7)


def test_scaled_gemm(device):
    a, b, a_scales, b_scales = fp8_call(device)
    wide = lambda s, n, axis: s.double().repeat_interleave(128, axis)[(slice(None),) * axis + (slice(n),)]
    scaled_a = a.double() * wide(a_scales, 208, 1)
    scaled_b = b.double() * wide(wide(b_scales, 208, 0), 144, 1)
    actual = tct.scaled_gemm(a, b, a_scales, b_scales, out_dtype=F32)
    compare(actual, scaled_a @ scaled_b, 1e-5)


def test_scaled_gemm_of_what_it_quantises_itself(device):
    """e4m3 has 4 significant bits; gradients are those of the product without rounding."""
    a, b = (torch.randn(n, 208, device=device).to(BF16).requires_grad_() for n in (24, 144))
    actual = tct.scaled_gemm(a, b.t())
    compare(actual, a.double() @ b.t().double(), 2**-4)
    grad = whole(24, 144, device=device, grad=False)
    actual.backward(grad)
    compare(a.grad, grad.double() @ b.double(), 2**-8)
    compare(b.grad, grad.t().double() @ a.double(), 2**-8)


@pytest.mark.parametrize("rows", [1, 128])
def test_quantize(rows, device):
    x = torch.randn(300, 260, device=device) * torch.logspace(-3, 3, 260, device=device)
    q, scales = tct.quantize(x, rows)
    assert q.dtype == FP8 and scales.shape == (-(-300 // rows), 3) and q.is_contiguous()
    back = q.float() * scales.repeat_interleave(rows, 0)[:300].repeat_interleave(128, 1)[:, :260]
    unit = scales.repeat_interleave(rows, 0)[:300].repeat_interleave(128, 1)[:, :260]
    # Half a unit of 4 significant bits, and of the subnormals below 2^-6.
    assert ((back - x).abs() <= (x.abs() * 2**-4).maximum(unit * 2**-10) * 1.001).all()
    assert not tct.quantize(torch.zeros(3, 5, device=device))[0].float().any()


REFUSED = {
    "K differs": (lambda: tct.gemm(whole(8, 16), whole(24, 8)), "columns must be as many as b's rows"),
    "fp8 with gradient": (
        lambda: tct.gemm(whole(16, 32).detach().to(FP8).requires_grad_(), whole(16, 32, grad=False).to(FP8).t()),
        "requires a gradient, which fp8 cannot hold",
    ),
    "one operand has scales": (
        lambda: tct.scaled_gemm(whole(8, 128), weights(8, 128), torch.ones(8, 1)), "only a_scales are given"
    ),
    "scales with gradient": (
        lambda: tct.scaled_gemm(*fp8_call("cpu")[:2], *(x.requires_grad_() for x in fp8_call("cpu")[2:])),
        "pass scales.detach()",
    ),
    "two types": (lambda: tct.scaled_gemm(whole(8, 128), weights(8, 128, dtype=F32)), "convert one"),
    "no matrix": (lambda: tct.quantize(torch.ones(3)), "a float matrix is needed"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case):
    call, text = REFUSED[case]
    with pytest.raises(tc.ArgumentError, match=text):
        call()


# -- graphs and modules ------------------------------------------------------------------------


def mlp(device: str, dtype: Any = F32, features: int = 32, hidden: int = 64) -> Any:
    return tct.MLP(features, hidden, device=device, dtype=dtype)


def of_torch(model: Any) -> Any:
    """Make this model of torch's own layers, with a copy of the parameters."""
    layer = model.up
    up = torch.nn.Linear(
        layer.in_features, layer.out_features, device=layer.weight.device, dtype=layer.weight.dtype
    )
    down = torch.nn.Linear(
        layer.out_features, layer.in_features, device=layer.weight.device, dtype=layer.weight.dtype
    )
    same = torch.nn.Sequential(up, torch.nn.GELU(approximate="tanh"), down)
    same.load_state_dict(dict(zip(same.state_dict(), model.state_dict().values(), strict=True)))
    return same


def train(model: Any, x: Any, target: Any, steps: int, call: Any = None) -> list[float]:
    """Losses of steps of SGD."""
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.5), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss((model if call is None else call)(x), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("compiled", [False, True])
def test_training_agrees_with_torch(compiled, device):
    """f32 products of 1e-6: after four steps, losses within 1e-5 and weights within 1e-5."""
    model = mlp(device)
    reference = of_torch(model)
    x, target = (torch.randn(2, 12, 32, device=device) for _ in range(2))
    call = torch.compile(model, fullgraph=True) if compiled else model
    actual, wanted = train(model, x, target, 4, call), train(reference, x, target, 4)
    assert wanted[-1] < wanted[0]
    assert actual == pytest.approx(wanted, rel=1e-5)
    for mine, exact in zip(model.parameters(), reference.parameters(), strict=True):
        assert (mine - exact).abs().max() < 1e-5


def test_state_dicts_are_those_of_torch():
    ours, theirs = tct.Linear(8, 16), torch.nn.Linear(8, 16)
    theirs.load_state_dict(ours.state_dict())
    ours.load_state_dict(theirs.state_dict())
    assert repr(ours) == repr(theirs)


def ones(*shape: int, dtype: Any = BF16) -> Any:
    return torch.ones(shape, dtype=dtype, requires_grad=True)


@pytest.mark.parametrize("shape", [(16,), (3, 16), (2, 3, 16), (0, 16), (2, 0, 16), (0, 0, 16)])
def test_inputs_of_linear(shape):
    ours, theirs = tct.Linear(16, 8), torch.nn.Linear(16, 8)
    with torch.no_grad():
        for parameter in (*ours.parameters(), *theirs.parameters()):
            parameter.fill_(1)
    check_gradients(lambda x: ours(x), lambda x: theirs.double()(x), [ones(*shape, dtype=F32)])
    for mine, exact in zip(ours.parameters(), theirs.parameters(), strict=True):
        compare(mine.grad, exact.grad)


@pytest.mark.parametrize("shape", [(), (8,), (4, 15), (4, 2, 8)])
def test_inputs_that_linear_refuses(shape):
    """Also those with as many elements as rows of in_features have."""
    text = rf"x has shape {re.escape(str(shape))}; the last axis .* has in_features, 16"
    with pytest.raises(tc.ArgumentError, match=text):
        tct.Linear(16, 8)(ones(*shape))


SIZES = [sizes for sizes in itertools.product((0, 8), (0, 16), (0, 24)) if 0 in sizes]


@pytest.mark.parametrize("M, K, N", SIZES)
def test_empty_products(M, K, N):
    """Zeros or nothing, and so are the gradients: by every operator."""
    check_gradients(tct.gemm, torch.matmul, (ones(M, K), ones(K, N)))
    check_gradients(tct.gemm, torch.matmul, (ones(2, M, K), ones(K, N)))
    check_gradients(tct.gemm, torch.matmul, (ones(M, K), ones(2, K, N)))
    check_gradients(
        lambda a, b, c: tct.gemm(a, b, c, out_dtype=F32),
        lambda a, b, c: a @ b + c,
        (ones(M, K), ones(K, N), ones(N, dtype=F32)),
    )
    silu = torch.nn.functional.silu
    gated = ones(M, K), ones(N, K).t(), ones(N, K).t()
    check_gradients(tct.swiglu, lambda x, gate, up: silu(x @ gate) * (x @ up), gated)
    check_gradients(tct.scaled_gemm, torch.matmul, (ones(M, K), ones(N, K).t()))
    of_rows, of_k = (torch.tensor([0, 0, n], dtype=torch.int32) for n in (M, K))
    check_gradients(
        lambda a, b: tct.grouped_gemm(a, b, of_rows),
        lambda a, b: by_groups(a, b, of_rows),
        (ones(M, K), ones(2, K, N)),
    )
    check_gradients(
        lambda a, b: tct.k_grouped_gemm(a, b, of_k),
        lambda a, b: torch.stack([0 * (a @ b), a @ b]),
        (ones(K, M).t(), ones(K, N)),
    )


def test_no_groups():
    offsets = torch.zeros(1, dtype=torch.int32)
    for function, tensors, shape in (
        (tct.grouped_gemm, (ones(0, 16), ones(0, 16, 8)), (0, 8)),
        (tct.k_grouped_gemm, (ones(0, 16).t(), ones(0, 8)), (0, 16, 8)),
    ):
        actual = function(*tensors, offsets)
        assert actual.shape == shape
        actual.sum().backward()


@pytest.mark.parametrize("of_a", [True, False])
@pytest.mark.parametrize("of_b", [True, False])
def test_empty_batches(of_a, of_b):
    a, b = ones(*[0] * of_a, 8, 16), ones(*[0] * of_b, 16, 24)
    check_gradients(tct.gemm, torch.matmul, (a, b))


def test_graphs_of_all_operators_have_no_break(device):
    offsets = OFFSETS.to(device)

    def function(x: Any, w: Any, experts: Any) -> Any:
        y = tct.swiglu(x, w.t(), w.t())
        y = tct.grouped_gemm(y, experts, offsets) + tct.gemm(y, experts[0])
        return tct.scaled_gemm(y, w.t())

    tensors = whole(72, 128, device=device), whole(64, 128, device=device), whole(4, 64, 128, device=device)
    wanted = function(*tensors)
    actual = torch.compile(function, fullgraph=True)(*tensors)
    compare(actual, wanted.double(), 2**-5)
    for mine, exact in zip(*(torch.autograd.grad(y.sum(), tensors) for y in (actual, wanted)), strict=True):
        compare(mine, exact.double(), 2**-5)


def test_dynamic_shapes_share_a_graph(device):
    from torch._dynamo.testing import CompileCounter

    counter = CompileCounter()
    weight = weights(16, 40, device=device, grad=False)
    call = torch.compile(lambda x: tct.gemm(x, weight), backend=counter, fullgraph=True, dynamic=True)
    for rows in (8, 24, 56):
        x = whole(rows, 40, device=device, grad=False)
        assert torch.equal(call(x), x @ weight)
    assert counter.frame_count == 1


@pytest.mark.parametrize("compiled", [False, True])
def test_autocast(compiled, device):
    """Equal to torch.nn.Linear: 16-bit products of f32 parameters, whose gradients are f32."""
    layer, x = tct.Linear(16, 8, device=device), whole(4, 16, dtype=F32, device=device)
    with torch.no_grad():
        layer.weight.copy_(whole(8, 16, device=device))
        layer.bias.zero_()
    call = torch.compile(layer, fullgraph=True, backend="aot_eager") if compiled else layer
    with torch.autocast(device, dtype=torch.float16):
        y = call(x)
    assert y.dtype == torch.float16
    compare(y, x.double() @ layer.weight.double().t())
    y.sum().backward()
    assert layer.weight.grad.dtype == x.grad.dtype == F32
    compare(x.grad, layer.weight.double().sum(0).expand(4, 16))


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda: tct.gemm(whole(8, 16), whole(24, 8)), "the shapes do not fit: K is 16 and 24"),
        (lambda: tct.gemm(whole(16), whole(16, 8)), "an operand has shape .16,.; 2 or 3 axes are needed"),
        (lambda: tct.swiglu(whole(8, 16), weights(8, 16), weights(9, 16)), "N is 8 and 9"),
        (lambda: tct.grouped_gemm(whole(8, 16), whole(2, 16, 8), OFFSETS), "the groups is 4 and 2"),
    ],
)
def test_shapes_that_a_graph_refuses(call, text):
    """Where shapes are known, without memory: as torch.compile asks for them."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True), pytest.raises(tc.ArgumentError, match=text):
        call()


def test_other_targets_change_nothing():
    """The tensor's device decides, as in torch."""
    with tc.target("cuda"):
        assert torch.equal(
            tct.gemm(whole(8, 16), whole(16, 8)).sign().abs().max(), torch.tensor(1, dtype=BF16)
        )
        assert tc.current_target() == "cuda"


# -- past the dispatcher -----------------------------------------------------------------------


def test_ordinary_calls_go_past_the_dispatcher(device, monkeypatch):
    """Forward, backward, modules: the operator's own registrations are not called."""

    def dispatched() -> Any:
        raise AssertionError("the dispatcher was asked")

    monkeypatch.setattr(operators, "below_autograd", dispatched)
    a, w = whole(24, 40, device=device), torch.nn.Parameter(whole(16, 40, device=device))
    check_gradients(lambda a, w: tct.gemm(a, w.t()), lambda a, w: a @ w.t(), (a, w))
    with torch.no_grad():
        tct.gemm(a, w.t())
    with pytest.raises(AssertionError, match="the dispatcher was asked"):
        ops.gemm(a, w.t())
    failed = pytest.raises(AssertionError, match="the dispatcher was asked")
    with failed, torch.autocast(device, torch.bfloat16):
        tct.gemm(a, w.t())


def test_an_error_in_the_gradients_leaves_the_thread_as_it_was(monkeypatch):
    a, b = whole(24, 40), whole(40, 16)
    actual = tct.gemm(a, b)
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(operators, "_product_gradients", lambda *given, **options: 1 / 0)
        actual.sum().backward()
    assert not operators._here.straight


MODES = {
    torch.utils._python_dispatch.TorchDispatchMode: "__torch_dispatch__",
    torch.overrides.TorchFunctionMode: "__torch_function__",
}


def noting(mode: Any) -> Any:
    """A mode of torch in which `names` lists what is called."""
    names: list[str] = []

    def note(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        names.append(str(func))
        return func(*args, **kwargs or {})

    return type("Noting", (mode,), {MODES[mode]: note, "names": names})()


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.__name__)
def test_modes_see_the_operators(mode):
    a, b = whole(24, 40), whole(40, 16)
    with noting(mode) as seen:
        tct.gemm(a, b)
    assert any("tensorcore_dsl.gemm" in name for name in seen.names)


def test_modes_see_the_operators_of_gradients():
    a, b = whole(24, 40), whole(40, 16)
    actual = tct.gemm(a, b).sum()
    with noting(torch.utils._python_dispatch.TorchDispatchMode) as seen:
        actual.backward()
    assert sum("tensorcore_dsl.gemm" in name for name in seen.names) == 2


def test_profiles_name_the_operators():
    from torch.profiler import ProfilerActivity, profile

    a, b = whole(24, 40), whole(40, 16)
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        tct.gemm(a, b)
    assert any(event.key == "tensorcore_dsl::gemm" for event in profiled.key_averages())


class Subclass(torch.Tensor):
    asked: list[str] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.asked.append(str(func))
        return super().__torch_function__(func, types, args, kwargs or {})


def test_subclasses_are_asked():
    a, b = whole(24, 40, grad=False), whole(40, 16, grad=False)
    Subclass.asked.clear()
    actual = tct.gemm(a.as_subclass(Subclass), b)
    assert any("tensorcore_dsl.gemm" in name for name in Subclass.asked)
    assert type(actual) is Subclass and torch.equal(actual, a @ b)


def test_lazy_views_are_resolved():
    """Negated views hold other values than their memory."""
    x, b = whole(24, 40, dtype=F32, grad=False), whole(40, 16, dtype=F32, grad=False)
    lazy = torch._neg_view(x)
    assert lazy.is_neg() and torch.equal(tct.gemm(lazy, b), -x @ b)


def test_fake_tensors_stay_fake():
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode() as mode:
        a, b = torch.empty(24, 40, dtype=BF16), torch.empty(40, 16, dtype=BF16)
    actual = tct.gemm(a, b)
    assert actual.fake_mode is mode and actual.shape == (24, 16)


def test_inference_mode():
    a, b = whole(24, 40), whole(40, 16)
    with torch.inference_mode():
        actual = tct.gemm(a, b)
    assert actual.is_inference() and torch.equal(actual, (a @ b).detach())


# -- users' kernels ----------------------------------------------------------------------------


@tct.operator(
    "tensorcore_dsl_tests::scale",
    grid=lambda x: -(-x.shape[0] // 64),
    block=64,
    outputs={"y": lambda x: torch.empty_like(x)},
)
@tc.kernel
def scale(x: tc.Array, y: tc.Array, factor: tc.f32 = 2.0):
    i = tc.blockIdx.x * 64 + tc.threadIdx.x
    if i < x.shape[0]:
        y[i] = x[i] * factor


@tct.operator(
    "tensorcore_dsl_tests::add_",
    grid=lambda x, BLOCK: -(-x.shape[0] // BLOCK),
    block=lambda BLOCK: BLOCK,
    mutates=["x"],
)
@tc.kernel
def add_(x: tc.Array, n: tc.s32, really: tc.pred, BLOCK: tc.Const = 32):
    i = tc.blockIdx.x * BLOCK + tc.threadIdx.x
    if (i < x.shape[0]) & really:
        x[i] = x[i] + n


@tct.operator(
    "tensorcore_dsl_tests::sum_and_difference",
    grid=1,
    block=lambda s: s.shape[0],
    outputs={"s": lambda x: torch.empty_like(x), "d": lambda x: x.new_empty(x.shape)},
)
@tc.kernel
def sum_and_difference(x: tc.Array, s: tc.Array, y: tc.Array, d: tc.Array):
    i = tc.threadIdx.x
    s[i], d[i] = x[i] + y[i], x[i] - y[i]


def test_a_kernel_is_an_operator(device):
    x = torch.arange(100.0, device=device)
    assert torch.equal(scale(x), 2 * x) and torch.equal(scale(x, factor=3.0), 3 * x)
    assert set(torch.library.opcheck(scale, (x, 2.5)).values()) == {"SUCCESS"}
    assert isinstance(scale.kernel, tc.Kernel)
    actual = torch.compile(lambda x: scale(x + 1, 3.0) * 2, fullgraph=True)(x)
    assert torch.equal(actual, 6 * (x + 1))


def test_empty_tensors_of_users_kernels():
    """Grids of 0, for which nothing is launched; gradients and graphs as of other tensors."""
    x = torch.zeros(0)
    assert scale(x).shape == (0,) and add_(x, 3, True) is None
    assert torch.compile(lambda x: scale(x) + 1, fullgraph=True, backend="aot_eager")(x).shape == (0,)
    assert set(torch.library.opcheck(scale, (x, 2.5)).values()) == {"SUCCESS"}


def test_shapes_that_a_users_kernel_cannot_take():
    with pytest.raises(tc.OperandError, match=r"is not defined for a 1-dimensional f32 array") as error:
        scale(torch.zeros(3, 4))
    assert "y[i] = x[i] * factor" in str(error.value)


def test_an_operator_that_mutates(device):
    x = torch.zeros(100, device=device)
    assert add_(x, 3, True) is None and (x == 3).all()
    add_(x, 3, False)
    assert (x == 3).all()
    assert set(torch.library.opcheck(add_, (x, 2, True), {"BLOCK": 64}).values()) == {"SUCCESS"}

    def function(x: Any) -> Any:
        y = x + 1
        before = y * 1
        add_(y, 5, True, BLOCK=64)
        return before, y

    before, after = torch.compile(function, fullgraph=True)(torch.zeros(100, device=device))
    assert (before == 1).all() and (after == 6).all()


def test_a_const_that_keeps_its_default_takes_no_argument(device):
    @tct.operator("tensorcore_dsl_tests::shifted", grid=1, block=4, mutates=["x"])
    @tc.kernel
    def shifted(x: tc.Array, by: tc.Const = (1, 2), start: tc.f32 = 3.0, *, times: tc.f32 = 1.0):
        x[tc.threadIdx.x] = (start + by[0] + by[1]) * times

    x = torch.zeros(4, device=device)
    for args, value in (((), 6), ((5.0,), 8), ((5.0, 2.0), 16)):
        shifted(x, *args)
        assert x.tolist() == [value] * 4


def test_arguments_that_may_be_none(device):
    @tct.operator(
        "tensorcore_dsl_tests::biased", grid=1, block=4, outputs={"y": lambda x: torch.empty_like(x)}
    )
    @tc.kernel
    def biased(x: tc.Array, y: tc.Array, bias: tc.Array = None, scale: tc.f32 = None):
        i = tc.threadIdx.x
        y[i] = (x[i] if scale is None else scale * x[i]) + (0 if bias is None else bias[i])

    x, bias = (torch.full((4,), value, device=device) for value in (1.0, 2.0))
    for args, value in (((), 1), ((bias,), 3), ((None, 5.0), 5), ((bias, 5.0), 7)):
        assert biased(x, *args).tolist() == [value] * 4
        assert set(torch.library.opcheck(biased, (x, *args)).values()) == {"SUCCESS"}


def test_several_outputs(device):
    x, y = (whole(16, dtype=F32, grad=False, device=device) for _ in range(2))
    s, d = sum_and_difference(x, y)
    assert torch.equal(s, x + y) and torch.equal(d, x - y)
    assert set(torch.library.opcheck(sum_and_difference, (x, y)).values()) == {"SUCCESS"}


def test_a_gradient_of_a_users_kernel():
    @tct.operator(
        "tensorcore_dsl_tests::halve",
        grid=lambda x: x.shape[0],
        block=1,
        outputs={"y": lambda x: torch.empty_like(x)},
    )
    @tc.kernel
    def halve(x: tc.Array, y: tc.Array):
        y[tc.blockIdx.x] = x[tc.blockIdx.x] / 2

    halve.register_autograd(lambda ctx, grad: halve(grad))
    x = torch.randn(5, requires_grad=True)
    halve(x).sum().backward()
    assert (x.grad == 0.5).all()


def test_writes_that_torch_does_not_know_are_refused():
    @tct.operator("tensorcore_dsl_tests::sly", grid=1, block=32, outputs={"y": lambda x: torch.empty_like(x)})
    @tc.kernel
    def sly(x: tc.Array, y: tc.Array):
        y[tc.threadIdx.x] = x[tc.threadIdx.x]
        tc.reduce("add", x.at(0), 1.0)

    x = torch.zeros(32)
    with pytest.raises(tc.ArgumentError, match="writes 'x' here, which is neither an output") as error:
        sly(x)
    assert 'tc.reduce("add", x.at(0), 1.0)' in str(error.value) and not x.any()


def untyped(x: tc.Array, n):
    pass


def without_default(x: tc.Array, N: tc.Const):
    pass


def fine(x: tc.Array, y: tc.Array):
    pass


@pytest.mark.parametrize(
    "function, options, text",
    [
        (untyped, {}, "'n' has no annotation"),
        (without_default, {}, "'N' has no default"),
        (fine, {"outputs": {"z": None}}, "outputs names 'z'; .* x, y"),
        (fine, {"mutates": ["w"]}, "mutates names 'w'"),
        (fine, {"mutates": ["y"], "outputs": {"y": lambda x: x}}, "is either an output or mutated"),
        (fine, {"outputs": {"y": lambda q: q}}, "takes 'q'; the arguments are x"),
        (fine, {"outputs": {"x": lambda y: y, "y": lambda x: x}}, "takes no tensor"),
    ],
)
def test_declarations_that_are_refused(function, options, text):
    with pytest.raises(tc.ArgumentError, match=text):
        tct.operator("tensorcore_dsl_tests::refused", grid=1, block=1, **options)(tc.kernel(function))
    with pytest.raises(tc.ArgumentError, match=r"stands above @tc\.kernel"):
        tct.operator("tensorcore_dsl_tests::refused", grid=1, block=1)(function)


# -- without PyTorch -----------------------------------------------------------------------------


def test_without_torch_the_error_says_what_to_install():
    code = "import sys; sys.modules['torch'] = None\nimport tensorcore_dsl.torch"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "pip install 'tensorcore-dsl[torch]'" in done.stderr


# -- streams, devices and graphs of a GPU --------------------------------------------------------


@pytest.mark.gpu
def test_operators_follow_the_current_stream(gpu):
    """The product is of what its stream writes before it, late."""
    a, b, later = (whole(256, 256, device="cuda", grad=False) for _ in range(3))
    wanted = later @ b
    tct.gemm(a, b)  # compiles
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        a.copy_(later)
        actual = tct.gemm(a, b)
    stream.synchronize()
    assert torch.equal(actual, wanted)


@pytest.mark.gpu
def test_threads_without_a_context(gpu):
    import threading

    a, b = whole(64, 64, device="cuda", grad=False), whole(64, 64, device="cuda", grad=False)
    wanted, products = a @ b, []
    thread = threading.Thread(target=lambda: products.append(tct.gemm(a, b)))
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert torch.equal(products[0], wanted)


@pytest.mark.gpu
def test_cuda_graphs_capture_training(gpu):
    """Forward and backward in one graph, replayed with other inputs."""
    model = tct.MLP(256, 512, device="cuda", dtype=BF16)
    x = torch.randn(128, 256, device="cuda", dtype=BF16, requires_grad=True)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            model(x).float().square().mean().backward()
    torch.cuda.current_stream().wait_stream(side)
    model.zero_grad(set_to_none=True)
    x.grad = None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(x).float().square().mean().backward()
    with torch.no_grad():
        x.copy_(torch.randn_like(x))
    graph.replay()
    gradients = [p.grad.clone() for p in (x, *model.parameters())]
    wanted = torch.autograd.grad(model(x).float().square().mean(), (x, *model.parameters()))
    assert all(map(torch.equal, gradients, wanted))


@pytest.mark.gpu
def test_cuda_graphs_of_torch_compile(gpu):
    model = mlp("cuda")
    reference = of_torch(model)
    x, target = (torch.randn(64, 32, device="cuda") for _ in range(2))
    call = torch.compile(model, fullgraph=True, mode="reduce-overhead")
    actual, wanted = train(model, x, target, 6, call), train(reference, x, target, 6)
    assert actual == pytest.approx(wanted, rel=1e-5)


@pytest.mark.gpu
def test_a_users_kernel_in_a_cuda_graph(gpu):
    x = torch.arange(100.0, device="cuda")
    scale(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = scale(x, 3.0)
    x.fill_(2)
    graph.replay()
    assert (y == 6).all()


def test_launches_of_operators_overlap_safely():
    """Forward and backward in a session of checks: all launches are dependent ones."""
    stream_order.forget()
    with checking(arch="sm_90a") as session:
        for call in ("gemm", "swiglu", "grouped", "k_grouped"):
            operator, args, options = CALLS[call](dict(device="cpu"))
            hidden = operator(*args, **options)
            operator(*args, **options).float().sum().backward()
            ops.gemm(hidden.detach().reshape(-1, 16), whole(16, 24)).sum().backward()
    assert session.result.launches > 12 and session.result.ok, str(session.result)
    (stream,) = stream_order._streams.values()
    assert all(launch.queue.pdl and launch.footprint for launch in stream.launches)


def test_checks_do_not_keep_tensors_alive():
    """A tensor's memory is free once the tensor is, and is compared as long as it lives."""

    @tc.kernel
    def fill(x: tc.Array):
        x[tc.threadIdx.x] = 1

    stream_order.forget()
    x = torch.zeros(32)
    storage = weakref.ref(x.untyped_storage())
    fill[1, 32](x)
    with pytest.raises(tc.Race, match="in the launch of fill in front of it"):
        fill.configured(1, 32, pdl=True)(x[:])
    del x
    gc.collect()  # the error's traceback
    assert storage() is None
