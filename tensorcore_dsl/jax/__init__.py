"""Kernels as JAX functions, which work under `jit`, `grad` and `vmap`."""

try:
    import jax as _jax
except ImportError as error:
    raise ImportError(
        "tensorcore_dsl.jax needs JAX 0.5 or later: pip install 'tensorcore-dsl[jax]'"
    ) from error

from tensorcore_dsl.errors import publish as _publish
from tensorcore_dsl.jax.gemm import gemm
from tensorcore_dsl.jax.kernel_operators import operator

__all__ = ["gemm", "operator"]

_publish(globals())
