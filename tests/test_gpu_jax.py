"""Kernels and `gemm` in programs of JAX on a GPU; skipped without one."""

import numpy as np
import pytest

from tensorcore_dsl.runtime import driver

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not driver.cuda_available(), reason="no GPU")]
jax = pytest.importorskip("jax")
if jax.default_backend() != "gpu":
    pytest.skip("JAX has no GPU", allow_module_level=True)
import jax.numpy as jnp  # noqa: E402

import tensorcore_dsl.jax as tcj  # noqa: E402
from tensorcore_dsl import kernels  # noqa: E402
from tests.jax_cases import scale, whole  # noqa: E402


def test_a_kernel():
    x = jnp.arange(100.0)
    for _ in range(3):
        y, total = jax.jit(lambda x: scale(x * 2, 3.0, n=2))(x)
        assert (y == 12 * x).all() and total == 3
    gradient = jax.jit(jax.grad(lambda x: (scale(x, 3.0)[0] ** 2).sum()))(x)
    assert (gradient == 18 * x).all()


@pytest.mark.parametrize("shape", [(256, 512, 384), (16, 4096, 512), (30, 33, 50)])
def test_products(shape):
    """The last one needs copies of its operands."""
    M, K, N = shape
    a, b = whole(M, K), whole(K, N)
    exact = a.astype(jnp.float32) @ b.astype(jnp.float32)
    actual = jax.jit(lambda a, b: tcj.gemm(a, b, out_dtype=jnp.float32))(a, b)
    assert (actual == jnp.asarray(np.asarray(a, np.float32) @ np.asarray(b, np.float32))).all(), exact


def test_gradients_and_vmap():
    a, b = whole(3, 64, 128), whole(128, 96)
    loss = lambda product: lambda a, b: product(a, b).astype(jnp.float32).sum()
    ours = jax.jit(jax.vmap(jax.grad(loss(tcj.gemm), (0, 1)), (0, None)))(a, b)
    theirs = jax.vmap(jax.grad(loss(jnp.matmul), (0, 1)), (0, None))(a, b)
    assert all((x == y).all() for x, y in zip(ours, theirs, strict=True))


def test_the_bits_of_gemm():
    torch = pytest.importorskip("torch")
    a, b = (jax.random.normal(jax.random.key(i), (512, 512), jnp.bfloat16) for i in range(2))
    actual = jax.jit(tcj.gemm)(a, b)
    x, y = (torch.from_numpy(np.asarray(z).view(np.int16)).view(torch.bfloat16).cuda() for z in (a, b))
    expected = kernels.gemm(x, y).view(torch.int16).cpu().numpy()
    assert np.array_equal(np.asarray(actual).view(np.int16), expected)
