"""Operators of PyTorch inside of checkpoints, hooks of saved tensors, and transforms of torch.func.

Operands are small whole numbers, so that a derivative has one value, by whatever way it is found.
"""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import func  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import tensorcore_dsl as tc  # noqa: E402
import tensorcore_dsl.torch as tct  # noqa: E402
from tensorcore_dsl.torch import operators  # noqa: E402
from tests.torch_cases import BF16, F32, OFFSETS, by_groups, weights, whole  # noqa: E402


@pytest.fixture(autouse=True)
def seeded():
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
    }


def drawn(call: str) -> tuple[Any, list[Any], list[Any]]:
    """The function of a call, its tensors, and of what there are gradients."""
    function, tensors = calls()[call]()
    tensors = [x.detach().requires_grad_(x.requires_grad) for x in tensors]  # leaves
    parameters = list(function.parameters()) if isinstance(function, torch.nn.Module) else []
    return function, tensors, [x for x in (*tensors, *parameters) if x.requires_grad]


def gradients(result: Any, leaves: list[Any]) -> list[Any]:
    """Those of the sum of squares, by backward()."""
    for leaf in leaves:
        leaf.grad = None
    result.float().square().sum().backward()
    return [leaf.grad for leaf in leaves]


def equal(actual: Any, wanted: Any) -> bool:
    return len(actual) == len(wanted) and all(map(torch.equal, actual, wanted))


# -- checkpoints and saved tensors -------------------------------------------------------------


@pytest.mark.parametrize(
    "call, reentrant, threads",
    [
        *((call, False, True) for call in calls()),
        ("MLP", True, True),
        ("MLP", False, False),
        ("MLP", True, False),
    ],
)
def test_checkpoints(call, reentrant, threads):
    """The backward pass computes the forward pass again; `threads`: in a thread of the engine."""
    function, tensors, leaves = drawn(call)
    wanted = function(*tensors)
    exact = gradients(wanted, leaves)
    with torch.autograd.set_multithreading_enabled(threads):
        actual = checkpoint(function, *tensors, use_reentrant=reentrant)
        assert torch.equal(actual, wanted) and equal(gradients(actual, leaves), exact)


def test_checkpoints_of_layers_in_a_row():
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
    actual = torch.autograd.grad(through(x, again).sum(), parameters)
    assert equal(actual, wanted)


def test_hooks_of_saved_tensors_may_compute():
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
        actual = tct.gemm(a, b)
    wanted = torch.autograd.grad((a @ b).sum(), (a, b))
    assert equal(torch.autograd.grad(actual.sum(), (a, b)), wanted)
    assert straight == [False, False]


def test_hooks_may_return_lazy_views():
    """Negated views hold other values than their memory."""
    a, b = whole(24, 40, dtype=F32), whole(40, 16, dtype=F32)
    with torch.autograd.graph.saved_tensors_hooks(torch.neg, torch._neg_view):
        actual = tct.gemm(a, b)
    wanted = torch.autograd.grad((a @ b).sum(), (a, b))
    assert equal(torch.autograd.grad(actual.sum(), (a, b)), wanted)


def test_tensors_saved_elsewhere():
    layer, (x,), leaves = drawn("Linear")
    with torch.autograd.graph.save_on_cpu():
        actual = layer(x)
    assert equal(gradients(actual, leaves), gradients(layer(x), leaves))


def test_calls_that_record_gradients_are_never_cut_short():
    """Whatever calls an operator while a thread computes gradients."""
    operators._here.straight = True
    try:
        assert tct.gemm(whole(24, 40), whole(40, 16)).requires_grad
    finally:
        operators._here.straight = False


# -- transforms of torch.func, and forward mode ------------------------------------------------


def square(product: Any) -> Any:
    return lambda a, b: product(a, b).square().sum()


def moved(function: Any) -> Any:
    """The tangent of a function of two tensors, by its first one, which moves by its own value."""
    return lambda a, b: func.jvp(lambda x: function(x, b), (a,), (a,))[1]


TRANSFORMS = {
    "grad": lambda f: func.grad(square(f), argnums=(0, 1)),
    "grad of grad": lambda f: func.grad(lambda a, b: func.grad(square(f))(a, b).square().sum()),
    "vjp": lambda f: lambda a, b: func.vjp(f, a, b)[1](f(a, b)),
    "jacrev": lambda f: func.jacrev(f, argnums=(0, 1)),
    "jacfwd": lambda f: func.jacfwd(f, argnums=(0, 1)),
    "hessian": lambda f: func.hessian(square(f)),
    "jvp": lambda f: lambda a, b: func.jvp(f, (a, b), (b.t(), a.t())),
    "jvp of jvp": lambda f: moved(moved(square(f))),
    "jvp of grad": lambda f: moved(func.grad(square(f))),
    "grad of jvp": lambda f: func.grad(lambda a, b: moved(f)(a, b).square().sum(), argnums=(0, 1)),
    "linearize": lambda f: lambda a, b: func.linearize(f, a, b)[1](b.t(), a.t()),
    "vmap": lambda f: lambda a, b: func.vmap(f, (None, 0))(a, torch.stack([b, b + 1])),
    "vmap of grad": lambda f: func.vmap(lambda row, b: func.grad(square(f))(row[None], b), (0, None)),
    "vmap of jvp": lambda f: (
        lambda a, b: func.vmap(lambda v: func.jvp(f, (a, b), (v, b))[1])(torch.stack([a, a + 1]))
    ),
    "without gradients inside": lambda f: func.grad(
        lambda a, b: square(f)(a, b) + torch.no_grad()(square(f))(a, b)
    ),
    "compiled": lambda f: torch.compile(moved(f), backend="aot_eager"),
}


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms(transform, direct):
    """Of functions, as of torch's product. `direct`: the operator as torch.ops has it."""
    a, b = (whole(*shape, dtype=torch.float64, grad=False) for shape in ((3, 4), (4, 3)))
    made = TRANSFORMS[transform]
    product = torch.ops.tensorcore_dsl.gemm if direct else tct.gemm
    actual, wanted = tree_leaves(made(product)(a, b)), tree_leaves(made(torch.matmul)(a, b))
    assert equal(actual, wanted) and any(x.any() for x in wanted)


def test_gradients_around_a_transform():
    """Tensors that torch differentiates outside of the transform."""
    a, b = whole(3, 4, dtype=torch.float64), whole(4, 3, dtype=torch.float64)
    of = lambda f: torch.autograd.grad(func.grad(square(f))(a, b).square().sum(), (a, b))
    assert equal(of(tct.gemm), of(torch.matmul))


def test_gradients_of_each_sample():
    layer = module(tct.Linear, 40, 16)
    parameters = {name: p.detach() for name, p in layer.named_parameters()}
    x = whole(5, 40, grad=False)
    loss = lambda p, row: func.functional_call(layer, p, (row,)).float().square().sum()
    actual = func.vmap(func.grad(loss), (None, 0))(parameters, x)
    for i in range(5):
        wanted = func.grad(loss)(parameters, x[i])
        assert all(torch.equal(actual[name][i], wanted[name]) for name in wanted)


def check_tangents(function: Any, reference: Any, tensors: Any, count: int) -> None:
    """By each of the first `count` tensors, and by all of them, as of `reference` in f64."""
    for moving in (*((i,) for i in range(count)), range(count)):
        tangents = [whole(*x.shape, dtype=x.dtype, grad=False) for x in tensors]
        exact, wide = [], []
        for i, (x, tangent) in enumerate(zip(tensors, tangents)):
            exact.append(tangent.double() if i in moving else torch.zeros(x.shape).double())
            wide.append(x.detach().double() if x.dtype.is_floating_point else x)
        wanted = func.jvp(
            lambda *inputs: reference(*inputs, *wide[count:]), tuple(wide[:count]), tuple(exact[:count])
        )[1]
        with forward_ad.dual_level():
            duals = [
                forward_ad.make_dual(x.detach(), tangents[i]) if i in moving else x
                for i, x in enumerate(tensors)
            ]
            actual = forward_ad.unpack_dual(function(*duals))
        assert actual.tangent.dtype == actual.primal.dtype
        assert torch.equal(actual.tangent, wanted.to(actual.primal.dtype))


def by_parts_of_k(a: Any, b: Any, offsets: Any) -> Any:
    ends = offsets.tolist()
    return torch.stack([a[:, i:j] @ b[i:j] for i, j in zip(ends, ends[1:])])


def test_tangents_of_gemm():
    tensors = whole(24, 40, grad=False), weights(16, 40, grad=False), whole(16, dtype=F32, grad=False)
    check_tangents(
        lambda a, b, c: tct.gemm(a, b, c, alpha=2, beta=3, out_dtype=F32),
        lambda a, b, c: 2 * a @ b + 3 * c,
        tensors,
        3,
    )


@pytest.mark.filterwarnings("ignore::tensorcore_dsl.PerformanceWarning")
def test_tangents_of_groups():
    offsets = torch.tensor([0, 8, 8, 24], dtype=torch.int32)
    tensors = whole(24, 40, grad=False), whole(3, 40, 16, grad=False), offsets
    check_tangents(tct.grouped_gemm, by_groups, tensors, 2)
    tensors = whole(24, 40, grad=False).t(), whole(24, 16, grad=False), offsets
    check_tangents(tct.k_grouped_gemm, by_parts_of_k, tensors, 2)


def test_tangents_of_scaled_gemm():
    """Those of the product without rounding."""
    tensors = whole(24, 208, grad=False), weights(16, 208, grad=False)
    check_tangents(tct.scaled_gemm, torch.matmul, tensors, 2)


def test_torchs_check_of_both_modes():
    a, b = whole(1, 3, dtype=torch.float64), whole(3, 2, dtype=torch.float64)
    both = dict(check_forward_ad=True, check_batched_forward_grad=True, check_batched_grad=True)
    assert torch.autograd.gradcheck(tct.gemm, (a, b), **both)


def test_a_level_without_tangents_changes_nothing():
    a, b = whole(24, 40), whole(40, 16)
    wanted = torch.autograd.grad(tct.gemm(a, b).sum(), (a, b))
    with forward_ad.dual_level():
        actual = tct.gemm(a, b)
        assert forward_ad.unpack_dual(actual).tangent is None
        assert equal(torch.autograd.grad(actual.sum(), (a, b)), wanted)


@tct.operator(
    "tensorcore_dsl_tests::triple",
    grid=lambda x: x.shape[0],
    block=1,
    outputs={"y": lambda x: torch.empty_like(x)},
)
@tc.kernel
def triple(x: tc.Array, y: tc.Array):
    y[tc.blockIdx.x] = x[tc.blockIdx.x] * 3


class Triple(torch.autograd.Function):
    """The operator with a derivative of forward mode, as a user adds it."""

    @staticmethod
    def forward(x: Any) -> Any:
        return triple(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def jvp(ctx: Any, tangent: Any) -> Any:
        return triple(tangent)


def test_tangents_are_refused_where_they_would_be_lost():
    x, w = torch.ones(8), weights(8, 8, grad=False)
    a, b = (whole(n, 128, grad=False).to(torch.float8_e4m3fn) for n in (8, 16))
    for function, text in (
        (lambda x: tct.swiglu(x.bfloat16().view(1, 8), w, w), "swiglu has no .*gemm has one"),
        (
            lambda x: tct.scaled_gemm(a, b.t(), x[:, None], torch.ones(1, 1)),
            "scales have no derivative of forward mode",
        ),
        (triple, "tensorcore_dsl_tests::triple has no .*torch.autograd.Function with a jvp"),
    ):
        with pytest.raises(tc.ArgumentError, match=text):
            func.jvp(function, (x,), (x,))
        with forward_ad.dual_level(), pytest.raises(tc.ArgumentError, match=text):
            function(forward_ad.make_dual(x, x))
        function(x)


def test_a_users_derivative_of_forward_mode():
    x = torch.arange(4.0)
    assert equal(func.jvp(Triple.apply, (x,), (x + 1,)), (3 * x, 3 * x + 3))
    with forward_ad.dual_level():
        actual = forward_ad.unpack_dual(Triple.apply(forward_ad.make_dual(x, x + 1)))
    assert equal(actual, (3 * x, 3 * x + 3))


# -- counts of operations ----------------------------------------------------------------------


def counted(function: Any, tensors: Any) -> tuple[int, int]:
    """Those of a call, and of its gradients."""
    with FlopCounterMode(display=False) as counter:
        result = function(*tensors)
        forward = counter.get_total_flops()
        result.sum().backward()
        return forward, counter.get_total_flops() - forward


@pytest.mark.parametrize("shapes", [((24, 40), (40, 16)), ((24, 40), (3, 40, 16)), ((3, 24, 40), (40, 16))])
def test_operations_of_gemm_are_those_of_torch(shapes):
    tensors = [whole(*shape) for shape in shapes]
    assert counted(tct.gemm, tensors) == counted(torch.matmul, tensors)


def test_operations_of_other_products():
    """Two of each product of the forward pass, one for each operand; swiglu computes two again."""
    offsets = torch.tensor([0, 8, 24], dtype=torch.int32)
    one = 2 * 24 * 40 * 16
    weight = weights(16, 40)
    for function, tensors, wanted in (
        (tct.grouped_gemm, (whole(24, 40), whole(2, 40, 16), offsets), (one, 2 * one)),
        (tct.k_grouped_gemm, (whole(24, 40).t(), whole(24, 16), offsets), (one, 2 * one)),
        (tct.swiglu, (whole(24, 40), weight, weight), (2 * one, 6 * one)),
        (tct.scaled_gemm, (whole(24, 40), weight), (one, 2 * one)),
    ):
        assert counted(function, tensors) == wanted


@tc.kernel
def double(y: Any, x: Any) -> None:
    i = tc.threadIdx.x
    y[i] = 2 * x[i]


def test_kernels_refuse_tensors_with_tangents():
    """A result without a tangent would count as constant."""
    x, ones = torch.arange(32.0), torch.ones(32)
    a, y = whole(16, 16).detach(), torch.empty(32)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, ones)
        for given in ((y, dual), (dual, x)):
            with pytest.raises(tc.ArgumentError, match=r"'[xy]'.*has a tangent.*x\.detach\(\)"):
                double[1, 32](*given)
        with torch.no_grad(), pytest.raises(tc.ArgumentError, match="b: .* has a tangent"):
            tc.kernels.gemm(a, forward_ad.make_dual(a, a))
        double[1, 32](y, dual.detach())
        assert torch.equal(y, 2 * x)
        assert torch.equal(tc.kernels.gemm(a, a), a @ a)

        class Double(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                y = torch.empty_like(x)
                double[1, 32](y, x)
                return y

            @staticmethod
            def jvp(ctx: Any, tangent: Any) -> Any:
                y = torch.empty_like(tangent)
                double[1, 32](y, tangent)
                return y

        assert torch.equal(forward_ad.unpack_dual(Double.apply(dual)).tangent, 2 * ones)
    with pytest.raises(tc.ArgumentError, match="'x'.*has a tangent"):
        func.jvp(lambda x: double[1, 32](y, x), (x,), (ones,))
