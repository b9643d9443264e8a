"""`tensorcore_dsl.torch.attention` compared with torch's function in float64: values, gradients, graphs."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import func  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from torch.nn.functional import scaled_dot_product_attention as of_torch  # noqa: E402
from torch.utils import flop_counter  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import tensorcore_dsl as tc  # noqa: E402
import tensorcore_dsl.torch as tct  # noqa: E402
from tests.torch_cases import BF16, compare, in_f64  # noqa: E402

pytestmark = pytest.mark.usefixtures("on_hopper")
ops = torch.ops.tensorcore_dsl
TOLERANCE = 2.0**-6  # of the greatest element: weights and results are rounded to 16 bits


def drawn(
    *shape: int, device: str = "cpu", dtype: Any = BF16, in_rows: bool = False, grad: bool = True
) -> Any:
    """Random (batch, heads, length, D); in_rows: a view of (batch, length, heads, D)."""
    batch, heads, length, dim = shape
    stored = (batch, length, heads, dim) if in_rows else shape
    x = torch.randn(stored, device=device).to(dtype)
    return (x.transpose(1, 2) if in_rows else x).requires_grad_(grad)


def operands(
    queries: int = 20, keys: int = 24, key_heads: int = 2, width: int = 16, **options: Any
) -> list[Any]:
    shapes = (2, 2, queries, 16), (2, key_heads, keys, 16), (2, key_heads, keys, width)
    return [drawn(*shape, **options) for shape in shapes]


def check(function: Any, reference: Any, tensors: Any) -> None:
    """Compare results and gradients with those of `reference` in float64."""
    exact = in_f64(*tensors)
    actual, wanted = function(*tensors), reference(*exact)
    compare(actual, wanted, TOLERANCE)
    weight = torch.randn_like(actual)
    gradients = torch.autograd.grad(actual, tensors, weight)
    for x, mine, theirs in zip(
        tensors, gradients, torch.autograd.grad(wanted, exact, weight.double()), strict=True
    ):
        assert mine.dtype == x.dtype and mine.stride() == x.stride()
        compare(mine, theirs, TOLERANCE)


def seen(queries: int, keys: int, left: int | None, right: int | None) -> Any:
    """The mask of a window for torch's function."""
    place = torch.arange(queries)[:, None] + keys - queries
    key = torch.arange(keys)
    low, high = place - (keys if left is None else left), place + (keys if right is None else right)
    return (low <= key) & (key <= high)


# -- results and gradients ---------------------------------------------------------------------


@pytest.mark.parametrize("in_rows, dtype", [(False, BF16), (True, torch.float16)])
def test_values_and_gradients(dtype: Any, in_rows: bool, device: Any) -> None:
    tensors = operands(dtype=dtype, in_rows=in_rows, device=device)
    check(tct.attention, of_torch, tensors)
    assert tct.attention(*tensors).stride() == tensors[0].stride()


def test_options(device: Any) -> None:
    check(
        lambda *tensors: tct.attention(*tensors, scale=0.3, causal=True),
        lambda *tensors: of_torch(*tensors, attn_mask=seen(20, 24, None, 0).to(device), scale=0.3),
        operands(device=device),
    )
    mask = seen(20, 24, 5, 2).to(device)
    check(
        lambda *tensors: tct.attention(*tensors, window=(5, 2), softcap=2.0),
        lambda q, k, v: torch.softmax((2 * torch.tanh(q @ k.mT / 8)).masked_fill(~mask, -torch.inf), -1) @ v,
        operands(device=device),
    )


def test_other_width_of_v(device: Any) -> None:
    for in_rows in (False, True):
        check(tct.attention, of_torch, operands(width=40, in_rows=in_rows, device=device))


def test_gradients_through_lse(device: Any) -> None:
    """By the output and by the logarithms, and by the logarithms alone."""
    both = lambda o, lse: o.float().square().mean(-1) + lse
    for part in (both, lambda o, lse: lse):
        check(
            lambda *tensors: part(*tct.attention(*tensors, return_lse=True)),
            lambda q, k, v: part(of_torch(q, k, v), (q @ k.mT / 4).logsumexp(-1)) + 0 * v.sum(),
            operands(device=device),
        )


def test_packed_sequences(device: Any) -> None:
    lengths, at = [7, 0, 13], torch.tensor([0, 7, 7, 20], dtype=torch.int32, device=device)
    tensors = [x[:1].detach().requires_grad_() for x in operands(20, 20, device=device)]

    def reference(*tensors: Any) -> Any:
        parts = [x.split(lengths, dim=2) for x in tensors]
        return torch.cat([of_torch(*each, is_causal=True) for each in zip(*parts, strict=True)], 2)

    for starts in (at, (at, at.clone())):
        check(lambda *inputs: tct.attention(*inputs, causal=True, cu_seqlens=starts), reference, tensors)


def test_only_the_gradient_of_v(device: Any) -> None:
    q, k, v = operands(device=device)
    out = tct.attention(q.detach(), k.detach(), v)
    (grad,) = torch.autograd.grad(out.sum(), v)  # a gradient of strides 0
    weights = torch.softmax(q.double() @ k.double().mT / 4, -1)
    compare(grad, weights.sum(2)[..., None].expand(grad.shape), TOLERANCE)


@pytest.mark.parametrize("queries, keys", [(20, 24), (24, 20), (20, 20)])
def test_the_function_of_torch(queries: int, keys: int, device: Any) -> None:
    """is_causal aligns the first query with the first key."""
    for tensors, options in (
        (operands(queries, keys, device=device), {"is_causal": True}),
        (operands(queries, keys, 1, device=device), {"enable_gqa": True, "scale": 0.3, "is_causal": True}),
        (operands(queries, keys, device=device), {}),
    ):
        check(
            lambda *inputs: tct.scaled_dot_product_attention(*inputs, **options),
            lambda *inputs: of_torch(*inputs, **options),
            tensors,
        )


# -- transforms and graphs ---------------------------------------------------------------------


def starts_of(keys: Any) -> Any:
    return torch.tensor([0, 5, keys.shape[2]], dtype=torch.int32, device=keys.device)


def test_opcheck(device: Any) -> None:
    q, k, v = operands(device=device)
    one = [x[:1].detach().requires_grad_() for x in (q, k, v)]
    out, lse = (x.detach() for x in tct.attention(q, k, v, return_lse=True))
    for operator, tensors, options in (
        (ops.attention, (q, k, v), {"causal": True, "scale": 0.5}),
        (ops.attention, (*one, starts_of(q), starts_of(k)), {"causal": True, "scale": 2.0}),
        (ops.attention, operands(in_rows=True, device=device), {}),
        (ops.attention_backward, (out, *(x.detach() for x in (q, k, v)), out, lse, lse), {}),
    ):
        results = torch.library.opcheck(operator.default, tensors, options)
        assert set(results.values()) == {"SUCCESS"}


@pytest.mark.parametrize("way", ["compiled", "checkpoint", "func", "autocast"])
def test_ways_to_gradients(way: str, device: Any) -> None:
    tensors = operands(in_rows=True, device=device)
    loss = lambda *inputs: tct.attention(*inputs, causal=True).float().square().sum()
    wanted = torch.autograd.grad(loss(*tensors), tensors)
    if way == "func":
        gradients = func.grad(loss, (0, 1, 2))(*tensors)
    elif way == "compiled":
        gradients = torch.autograd.grad(torch.compile(loss, fullgraph=True)(*tensors), tensors)
    elif way == "checkpoint":
        gradients = torch.autograd.grad(checkpoint(loss, *tensors, use_reentrant=False), tensors)
    else:
        wide = [x.detach().float().requires_grad_() for x in tensors]
        with torch.autocast(device, dtype=BF16):
            value = loss(*wide)
        gradients = [x.to(BF16) for x in torch.autograd.grad(value, wide)]
    assert all(map(torch.equal, gradients, wanted))


def test_dynamic_shapes_share_a_graph(device: Any) -> None:
    from torch._dynamo.testing import CompileCounter

    counter = CompileCounter()
    call = torch.compile(
        lambda *inputs: tct.scaled_dot_product_attention(*inputs, is_causal=True),
        backend=counter, fullgraph=True, dynamic=True,
    )  # fmt: skip
    for keys in (20, 24, 28):
        tensors = operands(16, keys, device=device, grad=False)
        compare(call(*tensors), of_torch(*in_f64(*tensors), is_causal=True), TOLERANCE)
    assert counter.frame_count == 1


def test_operations_are_those_of_torch() -> None:
    tensors = operands()
    shapes = [x.shape for x in tensors]
    with FlopCounterMode(display=False) as counter:
        loss = tct.attention(*tensors).sum()
        forward = counter.get_total_flops()
        loss.backward()
    assert forward == flop_counter.sdpa_flop_count(*shapes)
    assert counter.get_total_flops() - forward == flop_counter.sdpa_backward_flop_count(shapes[0], *shapes)


@pytest.mark.gpu
def test_a_cuda_graph(gpu: Any) -> None:
    """Forward and backward in one graph, replayed with other inputs."""
    tensors = operands(200, 300, device="cuda")
    step = lambda: torch.autograd.grad(tct.attention(*tensors, causal=True).float().square().sum(), tensors)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        actual = step()
    with torch.no_grad():
        for x in tensors:
            x.copy_(torch.randn_like(x))
    for _ in range(2):
        graph.replay()
        assert all(map(torch.equal, actual, step()))


# -- training ----------------------------------------------------------------------------------


class Block(torch.nn.Module):  # type: ignore[misc]
    """A transformer block with two heads of 16."""

    def __init__(self, attend: Any) -> None:
        super().__init__()
        self.attend, layers = attend, torch.nn
        self.norms = layers.ModuleList([layers.LayerNorm(32) for _ in range(2)])
        self.qkv, self.project = layers.Linear(32, 96), layers.Linear(32, 32)
        self.up, self.down = layers.Linear(32, 64), layers.Linear(64, 32)

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, 2, 16)).permute(2, 0, 3, 1, 4)
        mixed = self.attend(*(y.to(BF16) for y in (q, k, v)), is_causal=True).to(x.dtype)
        x = x + self.project(mixed.transpose(1, 2).flatten(2))
        return x + self.down(torch.nn.functional.gelu(self.up(self.norms[1](x))))


def test_training_agrees_with_torch(device: Any) -> None:
    """Beside the loss of a block whose attention is torch's in float64, of the same operands."""
    exact = lambda q, k, v, **options: of_torch(q.double(), k.double(), v.double(), **options)
    x, target = (torch.randn(2, 12, 32, device=device) for _ in range(2))
    losses, first = [], Block(None).to(device).state_dict()
    for attend in (tct.scaled_dot_product_attention, exact):
        block = Block(attend).to(device)
        block.load_state_dict(first)
        optimizer = torch.optim.SGD(block.parameters(), lr=0.5)
        losses.append([])
        for _ in range(6):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(block(x), target)
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    assert losses[0][-1] < 0.8 * losses[0][0]
    assert losses[0] == pytest.approx(losses[1], rel=2e-3)


# -- refusals ----------------------------------------------------------------------------------


def test_derivatives_that_are_refused() -> None:
    q, k, v = operands()
    with pytest.raises(tc.ArgumentError, match="attention has no derivative of forward mode"):
        func.jvp(lambda q: tct.attention(q, k, v), (q,), (q,))
    with (
        forward_ad.dual_level(),
        pytest.raises(tc.ArgumentError, match="no derivative of forward mode; .*MATH"),
    ):
        tct.attention(forward_ad.make_dual(q, q), k, v)
    (grad,) = torch.autograd.grad(tct.attention(q, k, v).sum(), q, create_graph=True)
    with pytest.raises(tc.ArgumentError, match="attention has no second derivative"):
        grad.sum().backward()


REFUSED = {
    "mask": (lambda *inputs: tct.scaled_dot_product_attention(*inputs, torch.ones(20, 24)), "attn_mask is given"),
    "dropout": (lambda *inputs: tct.scaled_dot_product_attention(*inputs, dropout_p=0.1), "dropout_p=0.1 is"),
    "axes": (lambda *inputs: tct.scaled_dot_product_attention(*(x[0] for x in inputs)), "4 axes are needed"),
    "heads": (
        lambda q, k, v: tct.scaled_dot_product_attention(q, k[:, :1], v[:, :1]), "pass enable_gqa=True"
    ),
    "f32": (lambda *inputs: tct.attention(*(x.float() for x in inputs)), "f32"),
    "window": (lambda *inputs: tct.attention(*inputs, window=(1, 2, 3)), "window is .*must be"),
    "D": (lambda *inputs: tct.attention(*(x[..., :12] for x in inputs)), "D of q and k is 12"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_arguments_that_are_refused(case: str) -> None:
    call, text = REFUSED[case]
    with pytest.raises(tc.ArgumentError, match=text):
        call(*operands())
