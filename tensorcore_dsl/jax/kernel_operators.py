"""`@operator(...)` above `@tc.kernel`: make a user's kernel a JAX function, also under jit."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, update_wrapper
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl.errors import listing
from tensorcore_dsl.ir.writes import written_arrays
from tensorcore_dsl.jax import ffi
from tensorcore_dsl.jax.placement import target_of
from tensorcore_dsl.kernel.constants import shown
from tensorcore_dsl.kernel.named_call import called, check_names

NUMBERS = (bool, int, float, np.generic)


def operator(
    *,
    grid: Any,
    block: Any,
    outputs: Mapping[str, Callable[..., Any]],
    vjp: Callable[..., Any] | None = None,
    **launch: Any,
) -> Callable[[tc.Kernel], Any]:
    """Decorate a kernel as a JAX function, which also works under `jax.jit`, `grad` and `vmap`.

    `vmap` launches the kernel for each element.
    The function takes the kernel's parameters except the outputs: arrays, Python numbers and Const values.
    Numbers and Const values must be known at tracing time. It returns the outputs. On a GPU the kernel runs
    on XLA's stream, on the CPU in emulation.

    Parameters
    ----------
    grid, block : int, tuple or function
        As `kernel[grid, block]` takes them, or functions that return them of the arguments that they
        name.
    outputs : mapping
        For each array that the kernel writes, in order, a function of the arguments that it names, which
        returns a `jax.ShapeDtypeStruct` or an array like the output: `{"y": lambda x: x}`.
    vjp : function, optional
        vjp(arguments, results, cotangents) returns a gradient, or None, for each array among the
        arguments, which it gets as a dict. results and cotangents are tuples.
    **launch : keywords
        Further options of `Kernel.configured`: shared_bytes, cluster, cooperative, pdl.

    Returns
    -------
    function
        The decorator.

    Raises
    ------
    ArgumentError
        Outputs that are no arrays of the kernel; in a call, a kernel that writes another array, a number
        that is traced, or arguments that do not fit.

    Examples
    --------
    >>> @tensorcore_dsl.jax.operator(grid=1, block=32, outputs={"y": lambda x: x})
    ... @tc.kernel
    ... def double(x: tc.Array, y: tc.Array):
    ...     y[tc.threadIdx.x] = 2 * x[tc.threadIdx.x]
    >>> float(jax.jit(double)(jnp.ones(32)).sum())
    64.0
    """

    def decorate(kernel: tc.Kernel) -> Any:
        if not isinstance(kernel, tc.Kernel):
            raise tc.ArgumentError(f"@operator stands above @tc.kernel, not above {kernel!r}")
        chosen = Operator(kernel, grid, block, dict(outputs), vjp, launch)

        def function(*args: Any, **named: Any) -> Any:
            return chosen(*args, **named)

        update_wrapper(function, kernel.function)
        function.kernel = kernel  # type: ignore[attr-defined]
        return function

    return decorate


@dataclass
class Operator:
    """A kernel with its launch configuration, as a function of arrays of JAX."""

    kernel: tc.Kernel
    grid: Any
    block: Any
    outputs: dict[str, Callable[..., Any]]
    vjp: Callable[..., Any] | None
    launch: dict[str, Any]

    def __post_init__(self) -> None:
        parameters = {p.name: p for p in self.kernel.parameters}
        arrays = [name for name, p in parameters.items() if not (p.const or p.dtype)]
        for name in self.outputs:
            if name not in arrays:
                raise tc.ArgumentError(
                    f"outputs names {name!r}; the arrays of {self.kernel.__name__} are {listing(arrays)}"
                )
        self.inputs = [p for p in self.kernel.parameters if p.name not in self.outputs]
        kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        self.signature = inspect.Signature(
            [inspect.Parameter(p.name, kinds[p.by_name], default=p.default) for p in self.inputs]
        )
        names = [p.name for p in self.inputs]
        for function in self.outputs.values():
            check_names(function, names)
        for function in (self.grid, self.block):
            if callable(function):
                check_names(function, [*names, *self.outputs])

    def __call__(self, /, *args: Any, **named: Any) -> Any:
        values = self._bound(args, named)
        arrays = {name: jnp.asarray(x) for name, x in values.items() if _is_array(x)}
        static = {name: x for name, x in values.items() if name not in arrays}
        for p in self.inputs:
            if p.dtype is not None and p.name in arrays:
                raise tc.ArgumentError(
                    f"{self.kernel.__name__}: {p.name!r} is a number of the kernel, and JAX traces it; "
                    "pass a Python number, or make the parameter an array"
                )
        if self.vjp is None:
            return self._returned(self._call(static, *arrays.values(), names=tuple(arrays)))
        return self._returned(self._differentiable(static, tuple(arrays))(*arrays.values()))

    def _bound(self, args: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        """Bind the arguments to names. Outputs are not parameters of the function."""
        try:
            bound = self.signature.bind(*args, **named)
        except TypeError as error:
            raise tc.ArgumentError(f"{self.kernel.__name__}{self.signature}: {error}") from None
        bound.apply_defaults()
        return bound.arguments

    def _differentiable(self, static: dict[str, Any], names: tuple[str, ...]) -> Callable[..., Any]:
        """Return the call as a function of arrays, with the user's gradients."""
        forward = partial(self._call, static, names=names)
        function = jax.custom_vjp(lambda *arrays: forward(*arrays))

        def backward(saved: Any, cotangents: Any) -> tuple[Any, ...]:
            arrays, results = saved
            assert self.vjp is not None
            gradients = self.vjp(static | dict(zip(names, arrays, strict=True)), results, cotangents)
            gradients = gradients if isinstance(gradients, (tuple, list)) else (gradients,)
            pairs = zip(gradients, arrays, strict=True)
            return tuple([jnp.zeros_like(x) if gradient is None else gradient for gradient, x in pairs])

        def keep(*arrays: Any) -> Any:
            results = forward(*arrays)
            return results, (arrays, results)

        function.defvjp(keep, backward)
        return function

    def _call(self, static: dict[str, Any], /, *arrays: Any, names: tuple[str, ...]) -> tuple[Any, ...]:
        """Launch once and return the outputs."""
        inputs_by_name = static | dict(zip(names, arrays, strict=True))
        made = {name: called(make, inputs_by_name) for name, make in self.outputs.items()}
        results = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in made.items()}
        values = inputs_by_name | results
        sizes = tuple([called(x, values) if callable(x) else x for x in (self.grid, self.block)])
        key = self._key(values, sizes)

        def run(inputs: Sequence[Any], outputs: Sequence[Any], stream: int) -> None:
            at_run = {**static, **dict(zip((*names, *results), (*inputs, *outputs), strict=True))}
            with target_of(inputs[0] if inputs else outputs[0]):
                configured = self.kernel.configured(*sizes, stream=stream or None, **self.launch)
                configured(**at_run)

        return tuple(ffi.call(key, run, tuple(results.values()), *arrays))

    def _key(self, values: dict[str, Any], sizes: Any) -> str:
        """Return a key of all that the launch depends on. Refuse a kernel that writes an input."""
        kernel = self.kernel
        stand_ins = {name: np.empty(x.shape, x.dtype) if _is_array(x) else x for name, x in values.items()}
        built = kernel.specialise((), stand_ins)
        for name, loc in written_arrays(built.ir, kernel.runtime_names).items():
            if name not in self.outputs:
                raise tc.ArgumentError(f"{kernel.__name__} writes {name!r} here, which is not an output", loc)
        static = {name: shown(x) for name, x in values.items() if not _is_array(x)}
        described = repr(
            (built.ptx, sizes, sorted(static.items()), sorted(self.launch.items()), list(values))
        )
        return f"{kernel.__name__}:{hashlib.sha256(described.encode()).hexdigest()}"

    def _returned(self, results: tuple[Any, ...]) -> Any:
        return results[0] if len(results) == 1 else results


def _is_array(x: Any) -> bool:
    return hasattr(x, "shape") and hasattr(x, "dtype") and not isinstance(x, NUMBERS)
