"""PyTorch operators for the GEMMs: computation, result shapes, and gradients.

Every operator is functional: it writes only its new result. The kernels run on the current stream of
the tensors' device and never synchronise, so CUDA graphs capture them after a first call.

The dispatcher and its two calls of Python take longer than a launch. So calls from here and from
`functions` go past it where it would only find gradients and the kernel (`_goes_straight`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from functools import cache, partial
from math import prod
from typing import Any

import torch
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.autograd.forward_ad import _set_fwd_grad_enabled, unpack_dual
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
from torch.utils.flop_counter import register_flop_formula

import tensorcore_dsl as tc
import tensorcore_dsl.kernels as kernels
from tensorcore_dsl.host import from_numpy
from tensorcore_dsl.kernels.host.operands import accumulation, output_dtype
from tensorcore_dsl.torch.placement import run_where_it_lies

ops: Any = torch.ops.tensorcore_dsl
LIBRARY = torch.library.Library("tensorcore_dsl", "DEF")
below_autograd = torch._C._AutoDispatchBelowAutograd


def below_autocast(device: str) -> Any:
    """Return a context that disables autocast for operators on "cpu" or "cuda"."""
    key = getattr(torch._C.DispatchKey, f"Autocast{device.upper()}")
    return torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(key))


core: Any = torch._C


class _Here(threading.local):
    """State of this thread. straight: gradients are being computed, so products skip the checks."""

    straight = False


_here = _Here()


# Before torch 2.13 the engine of gradients takes away a key that only tensors with named axes have.
NAMED: int = 0
with suppress(RuntimeError):
    NAMED = core.DispatchKeySet(core._dispatch_key_parse("Named")).raw_repr()


def _modes() -> tuple[int, int]:
    """Return the dispatch keys that this thread's modes add, and the keys that they remove."""
    added, taken = core._dispatch_tls_local_include_set(), core._dispatch_tls_local_exclude_set()
    return added.raw_repr(), taken.raw_repr() & ~NAMED


with ThreadPoolExecutor(1) as pool:
    NO_MODES = pool.submit(_modes).result()  # a new thread has none


@cache
def _ordinary_keys(device: str) -> int:
    """Return the dispatch keys of an ordinary tensor on "cpu" or "cuda": no lazy view, no wrapper."""
    keys: int = core._dispatch_keys(torch.empty(0, device=device)).raw_repr()
    return keys


ORDINARY = torch.Tensor, torch.nn.Parameter


def _goes_straight(tensors: Sequence[Any]) -> bool:
    """Return whether the dispatcher would only run autograd and the kernel.

    This holds for ordinary tensors outside of autocast, traces, transforms, modes, profiles and forward
    mode.
    """
    if _modes() != NO_MODES or core._is_torch_function_mode_enabled():
        return False
    if core._autograd._profiler_enabled() or forward_ad._current_level >= 0:
        return False
    for x in tensors:
        if x is None:
            continue
        if type(x) not in ORDINARY:
            return False
        if core._dispatch_keys(x).raw_repr() != _ordinary_keys("cuda" if x.is_cuda else "cpu"):
            return False
    return True


# There is one level at a time: those of torch.func have wrappers of tensors instead.
_unpacked = partial(unpack_dual, level=0)


def has_tangents(values: Sequence[Any]) -> bool:
    """Return whether forward mode, such as `torch.func.jvp`, differentiates by one of the values."""
    if not core._is_fwd_grad_enabled():
        return False
    tensors = [x for x in values if isinstance(x, torch.Tensor)]
    # A graph that torch traces must not record the view that unpacking makes.
    traces = core._len_torch_dispatch_stack() > 0
    with disable_proxy_modes_tracing() if traces else nullcontext():
        return any(_unpacked(x).tangent is not None for x in tensors)


def _records_gradients(tensors: Sequence[Any]) -> bool:
    if torch.is_grad_enabled():
        for x in tensors:
            if x is not None and x.requires_grad:
                return True
    return False


def _flops(a: Any, b: Any, *others: Any, out_shape: Any, **options: Any) -> int:
    """Count the operations of a product of these shapes."""
    return 2 * a[-1] * prod(out_shape)


class _Operator:
    """An operator whose positional arguments are tensors, or None, and the others options.

    `setup_context(ctx, tensors, result)` keeps what `backward(ctx, grad, *saved tensors)` needs, which
    returns a gradient for each tensor; both find `ctx.options`. An operator may return several
    results; then `backward` takes a gradient of each. `jvp(tensors, argument_index, tangent, options)` is
    what the tangent of the tensor at `argument_index` adds to the tangent of the result.
    """

    def __init__(
        self,
        name: str,
        schema: str,
        function: Callable[..., Any],
        fake: Callable[..., Any],
        setup_context: Callable[..., Any],
        backward: Callable[..., Any],
        jvp: Callable[..., Any],
    ) -> None:
        self.function, self.fake = function, fake
        self.setup_context, self.backward, self.jvp = setup_context, backward, jvp
        self.count = schema[: schema.index("*")].count("Tensor")
        self.run = partial(run_where_it_lies, function)
        LIBRARY.define(name + schema)
        self.overloads: Any = getattr(ops, name)
        self.operator = self.overloads.default
        # What `Function.apply` does first is for transforms of torch.func.
        gradients: Any = super(torch.autograd.Function, _gradients(self))
        self.apply_straight = gradients.apply

    def call(self, *tensors: Any, **options: Any) -> Any:
        """Call the operator, past the dispatcher where that changes nothing."""
        if torch.compiler.is_compiling():
            return self.operator(*tensors, **options)
        if _here.straight and not torch.is_grad_enabled():
            return self.function(*tensors, **options)
        if not _goes_straight(tensors):
            return self.operator(*tensors, **options)
        if _records_gradients(tensors):
            return self.apply_straight(*tensors, options, self.run)
        return self.run(*tensors, **options)

    def with_autograd(self, *tensors: Any, **options: Any) -> Any:
        """Compute for the dispatcher, which asks for gradients."""
        if not (_records_gradients(tensors) or has_tangents(tensors)):
            return self.below_autograd(*tensors, **options)
        compute = self.below_autograd
        if core._are_functorch_transforms_active():  # each calls this, the innermost one first
            compute = partial(self.in_modes, torch.is_grad_enabled(), core._is_fwd_grad_enabled())
        with enable_single_level_autograd_function():
            return self.apply_straight(*tensors, options, compute)

    def below_autograd(self, *tensors: Any, **options: Any) -> Any:
        with below_autograd():
            return self.operator(*tensors, **options)

    def in_modes(self, reverse: bool, forward: bool, *tensors: Any, **options: Any) -> Any:
        """Compute for the outer transforms: `apply` has turned off both of their modes."""
        with torch.set_grad_enabled(reverse), _set_fwd_grad_enabled(forward):
            return self.below_autograd(*tensors, **options)

    def cast(self, device: str, *tensors: Any, **options: Any) -> Any:
        """Compute inside of torch.autocast: f32 tensors are cast as those of torch.matmul."""
        dtype = torch.get_autocast_dtype(device)
        is_cast = lambda x: x is not None and x.dtype == torch.float32 and x.device.type == device
        with below_autocast(device):
            return self.operator(*[x.to(dtype) if is_cast(x) else x for x in tensors], **options)


def _gradients(operator: _Operator) -> Any:
    """Make the function whose arguments are the tensors, the options, and what computes the result."""
    count = operator.count

    class Gradients(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> Any:
            *tensors, ctx.options, ctx.compute = arguments
            ctx.missing = (None,) * (count - len(tensors))  # the dispatcher leaves out defaults
            operands = *tensors, *ctx.missing
            if ctx.compute is not operator.run:
                ctx.save_for_forward(*operands)
            result = ctx.compute(*tensors, **ctx.options)
            operator.setup_context(ctx, operands, result)
            return result

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            saved = ctx.saved_tensors  # hooks that unpack them may call operators, with gradients
            straight = ctx.compute is operator.run and not torch.is_grad_enabled()
            if straight and _goes_straight((*grads, *saved)):
                _here.straight = True
                try:
                    gradients = run_where_it_lies(lambda _: operator.backward(ctx, *grads, *saved), saved[0])
                finally:
                    _here.straight = False
            else:
                gradients = operator.backward(ctx, *grads, *saved)
            return *gradients[: count - len(ctx.missing)], None, None

        @staticmethod
        def jvp(ctx: Any, *with_zeros: Any) -> Any:
            with _set_fwd_grad_enabled(True):  # for an outer torch.func.jvp
                duals = [(x, None) if x is None else _unpacked(x) for x in ctx.saved_tensors]
                tensors, tangents = zip(*duals, strict=True)  # None instead of zeros
                directions = [
                    (argument_index, x) for argument_index, x in enumerate(tangents) if x is not None
                ]
                changes = [operator.jvp(tensors, *each, ctx.options) for each in directions]
                total = operator.fake(*tensors, **ctx.options).zero_()
                for change in changes:
                    total = (total + change).to(total.dtype)
            return total

    return Gradients


def _register(
    name: str, *parts: Any, autocast: bool = True, flops: Callable[..., int] = _flops
) -> Callable[..., Any]:
    """Define an operator, and return the function that calls it. parts: see `_Operator`.

    autocast: inside of torch.autocast, f32 tensors are cast. flops(shapes, out_shape): what torch's
    FlopCounterMode counts. `torch.library.custom_op` does the same, at several times the host time of a call.
    """
    operator = _Operator(name, *parts)
    for device in ("CPU", "CUDA"):
        LIBRARY.impl(name, operator.run, device)
        if autocast:
            LIBRARY.impl(name, partial(operator.cast, device.lower()), f"Autocast{device}")
    LIBRARY.impl(name, operator.with_autograd, "Autograd")
    torch.library.register_fake(f"tensorcore_dsl::{name}", operator.fake, lib=LIBRARY)
    register_flop_formula(operator.overloads)(flops)
    return operator.call


def _refuse_fp8_gradients(*tensors: torch.Tensor | None) -> None:
    for x in tensors:
        if x is not None and x.requires_grad and x.dtype.itemsize == 1:
            raise tc.ArgumentError(
                f"a tensor of {x.dtype} requires a gradient, which fp8 cannot hold; scaled_gemm "
                f"without scales takes operands of more bits and quantises them itself"
            )


def _result_dtype(a: torch.Tensor, out_dtype: torch.dtype | None) -> torch.dtype:
    name = str(a.dtype).removeprefix("torch.")
    dtype: torch.dtype = getattr(torch, output_dtype(from_numpy(name), out_dtype).numpy.name)
    return dtype


def _same(name: str, left: Any, right: Any) -> None:
    if left != right:
        raise tc.ArgumentError(f"the shapes do not fit: {name} is {left} and {right}")


def _rank(axes: tuple[int, ...], *operands: Any) -> None:
    for x in operands:
        if x.ndim not in axes:
            allowed = " or ".join(map(str, axes))
            shape = tuple(x.shape)
            raise tc.ArgumentError(f"an operand has shape {shape}; {allowed} axes are needed")


def _keep_all(ctx: Any, tensors: Any, result: Any) -> None:
    ctx.save_for_backward(*tensors)


# -- gemm -------------------------------------------------------------------------------------


def _gemm(
    a: Any, b: Any, c: Any = None, *, beta: float = 1, accumulate: str | None = None, **options: Any
) -> Any:
    beta = 0 if c is None else beta
    return kernels.gemm(a, b, c, beta=beta, accumulate=accumulation(accumulate), **options)


def _gemm_fake(a: Any, b: Any, c: Any = None, *, out_dtype: Any = None, **options: Any) -> Any:
    _rank((2, 3), a, b)
    _same("K", a.shape[-1], b.shape[-2])
    if a.ndim == 3 and b.ndim == 3:
        _same("the batch", a.shape[0], b.shape[0])
    batch = a.shape[:-2] if a.ndim == 3 else b.shape[:-2]
    return a.new_empty((*batch, a.shape[-2], b.shape[-1]), dtype=_result_dtype(a, out_dtype))


def _gemm_context(ctx: Any, tensors: Any, result: Any) -> None:
    a, b, c = tensors
    _refuse_fp8_gradients(a, b, c)
    ctx.save_for_backward(a, b)
    ctx.c = None if c is None else (c.shape, c.dtype)


def _gemm_backward(ctx: Any, grad: Any, a: Any, b: Any) -> Any:
    options = {name: x for name, x in ctx.options.items() if name not in ("beta", "out_dtype")}
    rounded = grad if grad.dtype == a.dtype else grad.to(a.dtype)
    grad_a, grad_b = _product_gradients(rounded, a, b, ctx.needs_input_grad, options)
    grad_c = None
    if ctx.c is not None and ctx.needs_input_grad[2]:
        shape, dtype = ctx.c
        grad_c = _summed(grad, shape, dtype)
        beta = ctx.options.get("beta", 1)
        grad_c = grad_c if beta == 1 else grad_c * beta
    return grad_a, grad_b, grad_c


def _product_gradients(
    grad: Any, a: Any, b: Any, wanted: Sequence[bool], options: dict[str, Any]
) -> tuple[Any, Any]:
    """Compute alpha grad Bᵀ and alpha Aᵀ grad, in the layouts of A and B.

    They are summed over the batch if A, or B, has none: K of the product then runs over the batch.
    """
    grad_a = grad_b = None
    if wanted[0]:
        x, y = grad, b
        if grad.ndim > a.ndim:
            x, y = (t.transpose(0, 1).flatten(1) for t in (grad, b))
        in_columns = a.stride(-1) != 1 and a.stride(-2) == 1
        grad_a = gemm(y, x.mT, **options).mT if in_columns else gemm(x, y.mT, **options)
    if wanted[1]:
        x, y = a, grad
        if grad.ndim > b.ndim:
            x, y = (t.flatten(0, 1) for t in (a, grad))
        in_columns = b.stride(-1) != 1 and b.stride(-2) == 1
        grad_b = gemm(y.mT, x, **options).mT if in_columns else gemm(x.mT, y, **options)
    return grad_a, grad_b


def _product_tangent(operator: Any, tensors: Any, argument_index: int, tangent: Any, options: Any) -> Any:
    """Compute dA B or A dB."""
    return operator(*tensors[:argument_index], tangent, *tensors[argument_index + 1 :], **options)


def _gemm_jvp(tensors: Any, argument_index: int, tangent: Any, options: Any) -> Any:
    if argument_index == 2:
        return tangent * options.get("beta", 1)
    return _product_tangent(gemm, tensors[:2], argument_index, tangent, options)


def _summed(grad: Any, shape: Any, dtype: Any) -> Any:
    """Sum a gradient over the axes that were broadcast from `shape`, in one pass."""
    missing = grad.ndim - len(shape)
    repeated = [missing + i for i, n in enumerate(shape) if n == 1 and grad.shape[missing + i] != 1]
    if repeated:
        axes = [*range(missing), *repeated]
        return grad.sum(axes, keepdim=True, dtype=dtype).reshape(shape)
    return grad.sum(tuple(range(missing)), dtype=dtype) if missing else grad.to(dtype)


gemm = _register(
    "gemm",
    "(Tensor a, Tensor b, Tensor? c=None, *, float alpha=1, float beta=1, "
    "ScalarType? out_dtype=None, str? precision=None, str? accumulate=None, str bits='any') "
    "-> Tensor",
    _gemm,
    _gemm_fake,
    _gemm_context,
    _gemm_backward,
    _gemm_jvp,
)


# -- swiglu -----------------------------------------------------------------------------------


def _swiglu_fake(x: Any, w_gate: Any, w_up: Any, *, bits: str = "any") -> Any:
    _rank((2,), x, w_gate, w_up)
    _same("K", x.shape[1], w_gate.shape[0])
    _same("K", x.shape[1], w_up.shape[0])
    _same("N", w_gate.shape[1], w_up.shape[1])
    return x.new_empty((x.shape[0], w_gate.shape[1]))


def _swiglu_backward(ctx: Any, grad: Any, x: Any, w_gate: Any, w_up: Any) -> Any:
    """With g = x w_gate and u = x w_up: d silu(g) = s (1 + g (1 - s)) dg, s the sigmoid of g."""
    bits = ctx.options.get("bits", "any")
    gate = gemm(x, w_gate, out_dtype=torch.float32, bits=bits)
    up = gemm(x, w_up, out_dtype=torch.float32, bits=bits)
    sigmoid, grad = torch.sigmoid(gate), grad.float()
    grad_up = (grad * gate * sigmoid).to(x.dtype)
    grad_gate = (grad * up * sigmoid * (1 + gate * (1 - sigmoid))).to(x.dtype)
    grad_x = grad_w_gate = grad_w_up = None
    if ctx.needs_input_grad[0]:
        partial = gemm(grad_gate, w_gate.mT, out_dtype=torch.float32, bits=bits)
        grad_x = gemm(grad_up, w_up.mT, partial, bits=bits)
    if ctx.needs_input_grad[1]:
        grad_w_gate = gemm(grad_gate.mT, x, bits=bits).mT  # the weights have K contiguous
    if ctx.needs_input_grad[2]:
        grad_w_up = gemm(grad_up.mT, x, bits=bits).mT
    return grad_x, grad_w_gate, grad_w_up


def _swiglu_jvp(tensors: Any, argument_index: int, tangent: Any, options: Any) -> Any:
    raise tc.ArgumentError(
        "swiglu has no derivative of forward mode; gemm has one: silu(gemm(x, w_gate)) * gemm(x, w_up)"
    )


swiglu = _register(
    "swiglu",
    "(Tensor x, Tensor w_gate, Tensor w_up, *, str bits='any') -> Tensor",
    kernels.swiglu,
    _swiglu_fake,
    _keep_all,
    _swiglu_backward,
    _swiglu_jvp,
    flops=lambda *shapes, **named: 2 * _flops(*shapes, **named),
)


# -- groups of rows, and of K -----------------------------------------------------------------


def _grouped_fake(a: Any, b: Any, offsets: Any, *, bits: str = "any") -> Any:
    _rank((2,), a)
    _rank((3,), b)
    _same("K", a.shape[1], b.shape[1])
    _same("the groups", offsets.shape[0] - 1, b.shape[0])
    return a.new_empty((a.shape[0], b.shape[2]))


def _grouped_backward(ctx: Any, grad: Any, a: Any, b: Any, offsets: Any) -> Any:
    grad, grad_a, grad_b = grad.contiguous(), None, None
    if ctx.needs_input_grad[0]:
        grad_a = grouped_gemm(grad, b.mT, offsets, **ctx.options)
    if ctx.needs_input_grad[1] and b.stride(-1) != 1 and b.stride(-2) == 1:
        grad_b = k_grouped_gemm(grad.mT, a, offsets, **ctx.options).mT
    elif ctx.needs_input_grad[1]:
        grad_b = k_grouped_gemm(a.mT, grad, offsets, **ctx.options)
    return grad_a, grad_b, None


def _k_grouped_fake(a: Any, b: Any, offsets: Any, *, bits: str = "any") -> Any:
    _rank((2,), a, b)
    _same("K", a.shape[1], b.shape[0])
    return a.new_empty((offsets.shape[0] - 1, a.shape[0], b.shape[1]))


def _k_grouped_backward(ctx: Any, grad: Any, a: Any, b: Any, offsets: Any) -> Any:
    """D[g] = A[:, g] B[g]: the columns of A's gradient, and the rows of B's, are of one group."""
    grad, grad_a, grad_b = grad.contiguous(), None, None
    if ctx.needs_input_grad[0]:
        grad_a = grouped_gemm(b, grad.mT, offsets, **ctx.options).mT
    if ctx.needs_input_grad[1]:
        grad_b = grouped_gemm(a.mT, grad, offsets, **ctx.options)
    return grad_a, grad_b, None


GROUPED = "(Tensor a, Tensor b, Tensor offsets, *, str bits='any') -> Tensor"
grouped_gemm: Callable[..., Any] = _register(
    "grouped_gemm",
    GROUPED,
    kernels.grouped_gemm,
    _grouped_fake,
    _keep_all,
    _grouped_backward,
    lambda tensors, *given: _product_tangent(grouped_gemm, tensors, *given),
)
k_grouped_gemm: Callable[..., Any] = _register(
    "k_grouped_gemm",
    GROUPED,
    kernels.k_grouped_gemm,
    _k_grouped_fake,
    _keep_all,
    _k_grouped_backward,
    lambda tensors, *given: _product_tangent(k_grouped_gemm, tensors, *given),
    flops=lambda a, b, *others, **named: _flops(a, b, out_shape=(a[0], b[1])),
)


# -- scaled_gemm ------------------------------------------------------------------------------


def _scaled(a: Any, b: Any, a_scales: Any, b_scales: Any, *sources: Any, **options: Any) -> Any:
    return kernels.scaled_gemm(a, b, a_scales, b_scales, **options)


def _scaled_fake(a: Any, b: Any, *others: Any, out_dtype: Any = None, **options: Any) -> Any:
    _rank((2,), a, b)
    _same("K", a.shape[1], b.shape[0])
    return a.new_empty((a.shape[0], b.shape[1]), dtype=_result_dtype(a, out_dtype))


def _scaled_context(ctx: Any, tensors: Any, result: Any) -> None:
    a, b, a_scales, b_scales, a_source, b_source = tensors
    _refuse_fp8_gradients(a, b)
    if a_scales.requires_grad or b_scales.requires_grad:
        raise tc.ArgumentError("scales that require a gradient; pass scales.detach()")
    ctx.save_for_backward(a_source, b_source)


def _scaled_backward(ctx: Any, grad: Any, a: Any, b: Any) -> Any:
    """Gradients of the unquantised A and B, like those of a product without rounding."""
    grads = _product_gradients(grad.to(a.dtype), a, b, ctx.needs_input_grad[4:], {})
    return None, None, None, None, *grads


def _scaled_jvp(tensors: Any, argument_index: int, tangent: Any, options: Any) -> Any:
    if tensors[4] is None:
        raise tc.ArgumentError(
            "fp8 operands and their scales have no derivative of forward mode; scaled_gemm without "
            "scales takes operands of more bits, which have one"
        )
    if argument_index < 4:  # quantised from the sources, which count
        return 0
    return _product_tangent(gemm, tensors[4:], argument_index - 4, tangent, {})


scaled_gemm = _register(
    "scaled_gemm",
    "(Tensor a, Tensor b, Tensor a_scales, Tensor b_scales, Tensor? a_source=None, "
    "Tensor? b_source=None, *, ScalarType? out_dtype=None, str bits='any') -> Tensor",
    _scaled,
    _scaled_fake,
    _scaled_context,
    _scaled_backward,
    _scaled_jvp,
    autocast=False,
)
