"""`gemm` as a JAX function. Gradients and `vmap` use the same kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensorcore_dsl import kernels
from tensorcore_dsl.host import from_numpy, target_arch
from tensorcore_dsl.jax import ffi
from tensorcore_dsl.jax.placement import target_of
from tensorcore_dsl.kernels.host.operands import accumulation, output_dtype


@dataclass(frozen=True)
class JaxGemm:
    """alpha op(A) op(B) + beta C; op transposes if its flag is set. Other fields: see `kernels.gemm`."""

    alpha: float = 1
    beta: float = 0
    out_dtype: str | None = None
    precision: str | None = None
    accumulate: str | None = None
    bits: str = "any"
    a_transposed: bool = False
    b_transposed: bool = False

    def __call__(self, a: Any, b: Any, *c: Any) -> Any:
        """Multiply JAX arrays."""
        result = jax.ShapeDtypeStruct(self.shape(a, b), self.dtype(a))
        key = f"gemm:{self!r}:{[(x.shape, str(x.dtype)) for x in (a, b, *c)]}"
        return ffi.call(key, self._run, result, a, b, *c)

    def shape(self, a: Any, b: Any) -> tuple[int, ...]:
        a, b = self._views(_Shaped(a.shape), _Shaped(b.shape))
        batch = a.shape[:-2] if len(a.shape) >= len(b.shape) else b.shape[:-2]
        return (*batch, a.shape[-2], b.shape[-1])

    def dtype(self, a: Any) -> Any:
        return output_dtype(from_numpy(a.dtype), self.out_dtype).numpy

    def _views(self, a: Any, b: Any) -> tuple[Any, Any]:
        a = a.swapaxes(-1, -2) if self.a_transposed else a
        return a, b.swapaxes(-1, -2) if self.b_transposed else b

    def _run(self, inputs: Sequence[Any], outputs: Sequence[Any], stream: int) -> None:
        a, b, *c = inputs
        a, b = self._views(a, b)
        with target_of(a):
            kernels.gemm(
                a,
                b,
                *c,
                alpha=self.alpha,
                beta=self.beta,
                out=outputs[0],
                accumulate=accumulation(self.accumulate),
                precision=self.precision,
                bits=self.bits,
                stream=stream or None,
            )


class _Shaped:
    """A shape with the method `swapaxes` of arrays."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def swapaxes(self, first: int, second: int) -> _Shaped:
        shape = list(self.shape)
        shape[first], shape[second] = shape[second], shape[first]
        return _Shaped(tuple(shape))


def gemm(
    a: Any,
    b: Any,
    c: Any = None,
    *,
    alpha: float = 1,
    beta: float = 1,
    out_dtype: Any = None,
    precision: str | None = None,
    accumulate: str | None = None,
    bits: str = "any",
) -> Any:
    """alpha A B + beta C by `kernels.gemm`, under `jax.jit`, `grad` and `vmap` too.

    Parameters
    ----------
    a, b : array
        (M, K) and (K, N), or batches of them in a leading axis; one may be a matrix for all.
    c : array, optional
        An array that broadcasts to the result.
    alpha, beta : float
        Python numbers, which are known when the program is traced.
    out_dtype : dtype, optional
        Type of the result. None: the default of `kernels.gemm`.
    precision : {"f32", "tf32"}, optional
        Precision of f32 products.
    accumulate : {"f16", "fast"}, optional
        Accumulation, see `kernels.gemm`.
    bits : {"any", "batch_invariant"}
        Reproducibility, see `kernels.gemm`.

    Returns
    -------
    array
        A JAX array. Its gradients are products by the same kernels; the cotangent is rounded to A's type.

    Raises
    ------
    ArgumentError
        Arguments that do not fit.

    Examples
    --------
    >>> a, b = jnp.ones((32, 64), jnp.bfloat16), jnp.ones((64, 48), jnp.bfloat16)
    >>> float(jax.jit(tensorcore_dsl.jax.gemm)(a, b)[0, 0])
    64.0
    """
    a, b = jnp.asarray(a), jnp.asarray(b)
    name = None if out_dtype is None else jnp.dtype(out_dtype).name
    product = JaxGemm(float(alpha), 0.0, name, precision, accumulate, bits)
    if c is None:
        return _product(_checked(product, a, b), a, b)
    c = jnp.asarray(c)
    product = _checked(replace(product, beta=float(beta)), a, b)
    return _product_with_c(product, a, b, jnp.broadcast_to(c, product.shape(a, b)))


def _checked(product: JaxGemm, a: Any, b: Any) -> JaxGemm:
    """Check the operands at tracing time, like `kernels.gemm` does at run time."""
    operands = np.empty(a.shape, a.dtype), np.empty(b.shape, b.dtype)
    options: Any = {
        "precision": product.precision,
        "bits": product.bits,
        "accumulate": accumulation(product.accumulate),
    }
    kernels.plan(*operands, None, None, **options)
    product.dtype(a)
    return product


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _product(product: JaxGemm, a: Any, b: Any) -> Any:
    return _launched(product)(a, b)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _product_with_c(product: JaxGemm, a: Any, b: Any, c: Any) -> Any:
    return _launched(product)(a, b, c)


def _keep(product: JaxGemm, a: Any, b: Any) -> Any:
    return _product(product, a, b), (a, b)


def _keep_with_c(product: JaxGemm, a: Any, b: Any, c: Any) -> Any:
    return _product_with_c(product, a, b, c), (a, b, c[:0])  # its type


def _gradients(product: JaxGemm, saved: Any, cotangent: Any) -> tuple[Any, Any]:
    """Compute the gradients of A and B in their stored layouts."""
    a, b = saved
    grad = cotangent.astype(a.dtype)
    ta, tb = product.a_transposed, product.b_transposed
    base = replace(product, beta=0.0, out_dtype=None)
    of = lambda x, y, tx, ty: _product(replace(base, a_transposed=tx, b_transposed=ty), x, y)
    grad_a = of(b, grad, tb, True) if ta else of(grad, b, False, not tb)
    grad_b = of(grad, a, True, ta) if tb else of(a, grad, not ta, False)
    return _like(grad_a, a), _like(grad_b, b)


def _gradients_with_c(product: JaxGemm, saved: Any, cotangent: Any) -> tuple[Any, Any, Any]:
    a, b, c = saved
    return *_gradients(product, (a, b), cotangent), (product.beta * cotangent).astype(c.dtype)


def _like(gradient: Any, operand: Any) -> Any:
    """Sum a gradient over the batch if its operand is one matrix for all products."""
    if gradient.ndim > operand.ndim:
        gradient = gradient.astype(jnp.float32).sum(0)
    return gradient.astype(operand.dtype)


_product.defvjp(_keep, _gradients)
_product_with_c.defvjp(_keep_with_c, _gradients_with_c)


def _launched(product: JaxGemm) -> Any:
    """Return the product with a `vmap` rule: a batch of matrices is one launch if kernels accept it."""
    function = jax.custom_batching.custom_vmap(product.__call__)

    @function.def_vmap
    def batched(size: int, mapped: Sequence[bool], *arrays: Any) -> tuple[Any, bool]:
        matrices = all(x.ndim - is_mapped == 2 for x, is_mapped in zip(arrays, mapped, strict=True))
        if matrices and any(mapped[:2]) and target_arch().name == "sm_90a":
            a, b, *c = arrays
            c = [
                x if is_mapped else jnp.broadcast_to(x, (size, *x.shape))
                for x, is_mapped in zip(c, mapped[2:])
            ]
            return product(a, b, *c), True
        fixed = [x if not is_mapped else None for x, is_mapped in zip(arrays, mapped, strict=True)]

        def one(mapped_arrays: Any) -> Any:
            slices = iter(mapped_arrays)
            return _launched(product)(*[next(slices) if x is None else x for x in fixed])

        moving = [x for x, is_mapped in zip(arrays, mapped, strict=True) if is_mapped]
        return jax.lax.map(one, moving), True

    return function
