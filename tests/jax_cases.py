"""A kernel as a function of JAX, and arrays of small whole numbers."""

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed: make test-jax")
import jax.numpy as jnp  # noqa: E402

import tensorcore_dsl as tc  # noqa: E402
import tensorcore_dsl.jax as tcj  # noqa: E402

WHOLE = np.random.default_rng(0)


def whole(*shape, dtype=jnp.bfloat16):
    """Whole numbers, so that all sums are exact."""
    return jnp.asarray(WHOLE.integers(-3, 4, shape).astype(np.float32)).astype(dtype)


@tcj.operator(
    grid=lambda x: (x.shape[0] + 31) // 32,
    block=32,
    outputs={"y": lambda x: x, "total": lambda x: jax.ShapeDtypeStruct((), jnp.float32)},
    vjp=lambda arguments, results, cotangents: (arguments["factor"] * cotangents[0],),
)
@tc.kernel
def scale(x: tc.Array, y: tc.Array, total: tc.Array, factor: tc.f32, n: tc.Const = 1):
    i = tc.blockIdx.x * 32 + tc.threadIdx.x
    if i < x.shape[0]:
        y[i] = x[i] * factor * n
    if i == 0:
        total[()] = factor
