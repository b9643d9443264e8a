"""Products and layers of two ranks on the CPU, which each rank emulates: eager, compiled, gradients."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest

import tensorcore_dsl as tc

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")

import torch.distributed as dist  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from tests.torch_ranks import WORLD, on_ranks  # noqa: E402

ROWS, FEATURES, HIDDEN = 64, 32, 48  # rows of a rank; features of the whole layers
NAMES = "all_gather_gemm", "gemm_reduce_scatter", "gemm_all_reduce"
ops = torch.ops.tensorcore_dsl


def whole(*shape: int) -> Any:
    """Small whole numbers, whose products are exact in f32."""
    return torch.randint(-2, 3, shape).to(torch.bfloat16)


def operands(name: str, rank: int, rows: int = ROWS) -> Any:
    """Return the rank's x and weight, which require gradients. Every rank draws the operands of all ranks."""
    rows = rows if name == "all_gather_gemm" else WORLD * rows
    return of_rank(whole(WORLD * rows, FEATURES), rank), of_rank(whole(WORLD * HIDDEN, FEATURES), rank)


def of_rank(x: Any, rank: int, axis: int = 0) -> Any:
    return x.chunk(WORLD, axis)[rank].clone().requires_grad_()


def layers(bias: bool) -> Any:
    """Two layers, and the weights and biases of the whole layers."""
    from tensorcore_dsl.torch.distributed import ColumnParallelLinear, RowParallelLinear

    options: dict[str, Any] = {"bias": bias, "dtype": torch.bfloat16}
    up = ColumnParallelLinear(FEATURES, HIDDEN, **options)
    down = RowParallelLinear(HIDDEN, FEATURES, **options)
    weights = [whole(HIDDEN, FEATURES), whole(FEATURES, HIDDEN), whole(HIDDEN), whole(FEATURES)]
    rank = dist.get_rank()
    with torch.no_grad():
        up.weight.copy_(of_rank(weights[0], rank))
        down.weight.copy_(of_rank(weights[1], rank, 1))
        if bias:
            up.bias.copy_(of_rank(weights[2], rank))
            down.bias.copy_(weights[3])
    return torch.nn.Sequential(up, torch.nn.ReLU(), down), weights


def results(model: Any, x: Any, goal: Any) -> list[Any]:
    """The result and all gradients."""
    y = model(x)
    return [y, *torch.autograd.grad((y * goal).sum(), [x, *model.parameters()])]


def _layers(rank: int) -> None:
    for bias in (False, True):
        torch.manual_seed(0)
        model, weights = layers(bias)
        x, goal = whole(WORLD * ROWS, FEATURES), whole(WORLD * ROWS, FEATURES)
        mine, my_goal = of_rank(x, rank), of_rank(goal, rank).detach()
        eager = results(model, mine, my_goal)

        up, down, *biases = [w.double().requires_grad_() for w in weights[: 4 if bias else 2]]
        of_all = x.double().requires_grad_()
        inner = of_all @ up.t() + (biases[0] if bias else 0)
        inner = inner + (inner.bfloat16().double() - inner).detach()  # the layer rounds its result
        y = torch.relu(inner) @ down.t() + (biases[1] if bias else 0)
        parameters = [up, biases[0], down, biases[1]] if bias else [up, down]
        grads = torch.autograd.grad((y * goal.double()).sum(), [of_all, *parameters])
        axes = [0, 0, 0, 0, 1, None] if bias else [0, 0, 0, 1]
        for result, expected, axis in zip(eager, [y, *grads], axes, strict=True):
            part = expected if axis is None else expected.chunk(WORLD, axis)[rank]
            assert (result.double() - part).abs().max() <= 0.02 * part.abs().max()

        for dynamic in (False, True):
            torch.compiler.reset()
            compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=dynamic)
            for _ in range(2):
                assert all(map(torch.equal, results(compiled, mine, my_goal), eager))
            with torch.no_grad():
                assert torch.equal(compiled(mine), eager[0])


def test_layers_compiled_as_one_graph_have_the_bits_of_eager_calls() -> None:
    on_ranks(_layers, "gloo")


def _functions(rank: int) -> None:
    """The group by each of its names: two calls of one shape are one graph, and keep their results."""
    import tensorcore_dsl.torch.distributed as tcd

    subgroup = dist.new_group([*range(WORLD)])
    groups = dict(
        zip(NAMES, [(None, dist.group.WORLD, subgroup), (subgroup.group_name,), (None,)], strict=True)
    )
    for name in NAMES:
        product = getattr(tcd, name)
        torch.manual_seed(0)
        x, weight = operands(name, rank)
        factor = 1 + rank
        for group in groups[name]:

            def call(x: Any, weight: Any, product: Any = product, group: Any = group) -> Any:
                return product(x, weight, group), product(2 * x, weight, group)

            torch.compiler.reset()
            compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
            bits = []
            for function in (call, compiled):
                y, twice = function(x, weight)
                assert torch.equal(2 * y, twice), name
                bits.append([y, *torch.autograd.grad(factor * y.float().sum(), (x, weight))])
            assert all(map(torch.equal, *bits)), name
            with torch.no_grad():
                assert torch.equal(compiled(x, weight)[0], bits[0][0]), name


def test_functions_compiled_as_one_graph() -> None:
    on_ranks(_functions, "gloo")


def _rows(rank: int) -> None:
    """Rows of a rank that are not a multiple of 64; results and gradients are exact."""
    import tensorcore_dsl.torch.distributed as tcd

    for name, rows in zip(NAMES, (40, 72, 33), strict=True):
        torch.manual_seed(0)
        x, weight = operands(name, rank, rows)
        if name == "gemm_all_reduce":
            x = x[1:]  # not even a multiple of the ranks
        y = getattr(tcd, name)(x, weight)
        if name == "all_gather_gemm":
            expected = gathered(x) @ weight.t()
        else:
            expected = (x @ weight.t()).detach()
            dist.all_reduce(expected)
            expected = of_rank(expected, rank) if name == "gemm_reduce_scatter" else expected
        assert torch.equal(y, expected), name
        ones = torch.ones_like(y)
        grads = torch.autograd.grad(y, (x, weight), ones)
        if name == "all_gather_gemm":
            dist.all_reduce(total := (ones @ weight).detach())
            wanted = of_rank(total, rank), ones.t() @ gathered(x)
        else:
            of_all = gathered(ones) if name == "gemm_reduce_scatter" else WORLD * ones
            wanted = of_all @ weight, of_all.t() @ x
        assert all(map(torch.equal, grads, wanted)), name
        getattr(tcd, name)(x, weight).add_(1)  # no view of a larger result
    with pytest.raises(tc.ArgumentError, match="x has 81 rows; the 2 ranks need equal parts"):
        tcd.gemm_reduce_scatter(torch.ones(81, 32).half(), torch.ones(16, 32).half())


def gathered(x: Any) -> Any:
    rows = [torch.empty_like(x) for _ in range(WORLD)]
    dist.all_gather(rows, x.detach().contiguous())
    return torch.cat(rows)


def test_any_number_of_rows() -> None:
    on_ranks(_rows, "gloo")


def _gradients_of_all_reduce(rank: int) -> None:
    import tensorcore_dsl.torch.distributed as tcd

    torch.manual_seed(0)
    x, weight = operands("gemm_all_reduce", rank)
    y = tcd.gemm_all_reduce(x, weight)
    product = (x.float() @ weight.float().t()).detach()
    dist.all_reduce(product)
    assert torch.equal(y, product.bfloat16())
    grads = torch.autograd.grad(y, (x, weight), torch.full_like(y, 1 + rank))
    total = torch.full_like(y, 3)  # the sum over the ranks
    assert torch.equal(grads[0], total @ weight) and torch.equal(grads[1], total.t() @ x)


def test_gradients_of_all_reduce() -> None:
    on_ranks(_gradients_of_all_reduce, "gloo")


def _operators(rank: int) -> None:
    """torch's own checks, derivatives of forward mode, counted operations, and messages."""
    import tensorcore_dsl.torch.distributed as tcd

    group = dist.group.WORLD.group_name
    torch.manual_seed(0)
    for name in NAMES:
        x, weight = operands(name, rank)
        operator = getattr(ops, name)
        calls = [(x, weight)]
        if name == "gemm_reduce_scatter":
            calls.append((x, weight, whole(HIDDEN).requires_grad_()))
        for args in calls:
            checked = torch.library.opcheck(operator.default, args, {"group": group})
            assert set(checked.values()) == {"SUCCESS"}, checked
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            product = operator(x, weight, group=group)
        rows = WORLD * ROWS
        assert counter.get_total_flops() == 2 * rows * FEATURES * HIDDEN
        _, tangent = torch.func.jvp(lambda x, o=operator, w=weight: o(x, w, group=group), (x,), (2 * x,))
        assert torch.equal(tangent, 2 * product)
        with pytest.raises(tc.ArgumentError, match="no process group .* has the name 'unknown'"):
            getattr(tcd, name)(x, weight, "unknown")
        with (
            patch.object(torch.cuda, "is_current_stream_capturing", lambda: True),
            pytest.raises(tc.ArgumentError, match="call once before the capture"),
        ):
            tcd.group_of().shared((8, 8), tc.bf16)
        with pytest.raises(tc.ArgumentError, match=r"an operand has shape \(2, 3, 32\); 2 axes are needed"):
            operator(whole(2, 3, FEATURES), weight, group=group)
        with FakeTensorMode(), pytest.raises(tc.ArgumentError, match="the shapes do not fit: K is 8 and 9"):
            operator(torch.empty(4, 8), torch.empty(4, 9), group=group)
    for sums in (False, True):
        torch.manual_seed(0)
        x, kept = whole(4, 3).requires_grad_(), {"group": group, "sums": sums}
        checked = torch.library.opcheck(ops.across_ranks.default, (x,), kept)
        assert set(checked.values()) == {"SUCCESS"}, checked
        weight = whole(4 if sums else 4 * WORLD, 3)
        (grad,) = torch.autograd.grad(ops.across_ranks(x, **kept), x, weight)
        assert torch.equal(grad, 2 * (weight if sums else weight.chunk(WORLD)[rank]))


def test_operators() -> None:
    on_ranks(_operators, "gloo")


def test_no_process_group() -> None:
    import tensorcore_dsl.torch.distributed as tcd

    with pytest.raises(tc.ArgumentError, match="call torch.distributed.init_process_group first"):
        tcd.all_gather_gemm(whole(64, 32), whole(16, 32))


def test_a_group_of_a_destroyed_groups_name_has_memory_of_its_own() -> None:
    import tensorcore_dsl.torch.distributed as tcd

    for _ in range(2):
        dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
        try:
            assert tcd.group_of().group is dist.group.WORLD
            assert tcd.group_of() is tcd.group_of(dist.group.WORLD.group_name)
        finally:
            dist.destroy_process_group()
