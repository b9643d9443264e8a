"""`@operator(...)` above `@tc.kernel`: make a user's kernel a PyTorch operator."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from warnings import catch_warnings, simplefilter

import torch
from torch._library.autograd import make_autograd_impl

import tensorcore_dsl as tc
from tensorcore_dsl.errors import listing
from tensorcore_dsl.ir.writes import written_arrays
from tensorcore_dsl.kernel.constants import constants_key
from tensorcore_dsl.kernel.named_call import called, check_names
from tensorcore_dsl.kernel.parameters import Parameter
from tensorcore_dsl.torch.operators import has_tangents
from tensorcore_dsl.torch.placement import run_where_it_lies

CONSTANTS = {bool: "bool", int: "int", float: "float", str: "str"}  # types of Const in a schema


def operator(
    name: str,
    *,
    grid: Any,
    block: Any,
    outputs: Mapping[str, Callable[..., Any]] | None = None,
    mutates: Sequence[str] = (),
    **launch: Any,
) -> Callable[[tc.Kernel], Any]:
    """Decorate a kernel as the PyTorch operator `name`, such as "mylib::scale".

    grid, block: as `kernel[grid, block]` takes them, or functions that return them. outputs: for
    each array that the operator returns, in order, a function that makes it, uninitialised or
    not: `{"y": lambda x: torch.empty_like(x)}`. torch calls it on tensors without memory too, to
    know shapes and types. mutates: the arrays among the arguments that the kernel writes. launch:
    further options of `Kernel.configured`: shared_bytes, cluster, cooperative, pdl.

    The operator takes the kernel's parameters that are no outputs, by the same names: tensors for
    tc.Array, numbers for element types, and Const parameters with a default that is a bool, an
    int, a float or a str; others keep their default. The functions name those arguments that they
    need; grid and block may name outputs too. It returns the outputs: a tensor, a tuple of several,
    or None.

    What it returns is torch's CustomOpDef (`register_autograd`, `register_vmap`, ...); its
    attribute `kernel` is the kernel. Raises ArgumentError for parameters whose type is not
    declared, for unknown names, and in the call if the kernel writes an array that is neither an
    output nor in `mutates`: torch would not know, and reorder or drop the write.
    """

    def decorate(kernel: tc.Kernel) -> Any:
        if not isinstance(kernel, tc.Kernel):
            raise tc.ArgumentError(f"@operator stands above @tc.kernel, not above {kernel!r}")
        operator_of_kernel = KernelOperator(kernel, grid, block, dict(outputs or {}), tuple(mutates), launch)
        registered: Any = torch.library.custom_op(
            name,
            operator_of_kernel,
            mutates_args=operator_of_kernel.mutates,
            schema=operator_of_kernel.schema(),
        )
        registered.register_fake(operator_of_kernel.fake)
        reverse = make_autograd_impl(registered._opoverload, registered)
        autograd = partial(_without_forward_mode, name, reverse)
        with catch_warnings():  # torch warns that its own function is replaced
            simplefilter("ignore")
            registered._lib.impl(name, autograd, "Autograd", with_keyset=True, allow_override=True)
        registered.kernel = kernel
        return registered

    return decorate


def _without_forward_mode(name: str, reverse: Callable[..., Any], keys: Any, *args: Any, **named: Any) -> Any:
    """Refuse forward mode where torch may record gradients and would lose the tangent."""
    if has_tangents((*args, *named.values())):
        raise tc.ArgumentError(
            f"{name} has no derivative of forward mode; call it in the forward of a "
            f"torch.autograd.Function with a jvp"
        )
    return reverse(keys, *args, **named)


@dataclass
class KernelOperator:
    """A kernel with its launch configuration, as a function of the operator's arguments."""

    kernel: tc.Kernel
    grid: Any
    block: Any
    outputs: dict[str, Callable[..., Any]]
    mutates: tuple[str, ...]
    launch: dict[str, Any]
    checked: set[Any] = field(default_factory=set)
    configured: dict[Any, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.__name__ = self.kernel.__name__
        arrays = [p.name for p in self.kernel.parameters if p.array]
        for name in (*self.outputs, *self.mutates):
            if name not in arrays:
                role = "outputs" if name in self.outputs else "mutates"
                raise tc.ArgumentError(
                    f"{role} names {name!r}; the parameters of {self.__name__} that are annotated "
                    f"with tc.Array are {listing(arrays)}"
                )
            if name in self.outputs and name in self.mutates:
                raise tc.ArgumentError(f"{name!r} is either an output or mutated, not both")
        self.parameters = [p for p in self.kernel.parameters if self._is_argument(p)]
        names = [p.name for p in self.parameters]
        if not any(p.array and not p.optional for p in self.parameters):
            raise tc.ArgumentError(
                f"{self.__name__} takes no tensor that is not an output and cannot be None; torch "
                f"finds the device of an operator by its tensors"
            )
        for function in self.outputs.values():
            check_names(function, names)
        for function in (self.grid, self.block):
            if callable(function):
                check_names(function, [*names, *self.outputs])

    def _is_argument(self, p: Parameter) -> bool:
        """Return whether callers pass `p`: it is neither an output nor a Const that keeps its default."""
        if p.const and p.default is inspect.Parameter.empty:
            raise tc.ArgumentError(
                f"{self.__name__}: Const parameter {p.name!r} has no default, by which torch would "
                f"know its type"
            )
        if not (p.const or p.array or p.dtype):
            raise tc.ArgumentError(
                f"{self.__name__}: parameter {p.name!r} has no annotation, by which torch would "
                f"know its type; allowed are tc.Array, element types such as tc.f32, and tc.Const"
            )
        return p.name not in self.outputs and not (p.const and type(p.default) not in CONSTANTS)

    def schema(self) -> str:
        """The operator's signature in torch's schema language."""
        arguments = []
        for i, p in enumerate(self.parameters):
            kind = f"Tensor(a{i}!)" if p.name in self.mutates else "Tensor"
            if p.const:
                kind = CONSTANTS[type(p.default)]
            elif p.dtype is not None:
                kind = "bool" if p.dtype.kind == "p" else "float" if p.dtype.is_float else "SymInt"
            kind += "?" * (p.optional and not p.const)
            default = "" if p.default is inspect.Parameter.empty else f"={p.default!r}"
            arguments.append(f"{kind} {p.name}{default}")
        tensors = ", ".join(["Tensor"] * len(self.outputs))
        results = tensors if len(self.outputs) == 1 else f"({tensors})"
        return f"({', '.join(arguments)}) -> {results}"

    def __call__(self, /, *args: Any, **named: Any) -> Any:
        arguments = self._given(args, named)
        first = next(arguments[p.name] for p in self.parameters if p.array and not p.optional)
        return run_where_it_lies(lambda _: self._run(arguments), first)

    def _run(self, arguments: dict[str, Any]) -> Any:
        results = self._results(arguments)
        constants = [p for p in self.kernel.parameters if p.const]
        values = {**{p.name: p.default for p in constants}, **arguments, **results}
        self._check_writes(values)
        sizes = tuple([called(x, values) if callable(x) else x for x in (self.grid, self.block)])
        configured = self.configured.get(sizes)
        if configured is None:
            configured = self.configured[sizes] = self.kernel.configured(*sizes, **self.launch)
        configured(
            *[values[p.name] for p in self.kernel.runtime_parameters if not p.by_name],
            **{p.name: values[p.name] for p in self.kernel.parameters if p.const or p.by_name},
        )
        return _returned(results)

    def fake(self, /, *args: Any, **named: Any) -> Any:
        """Return the outputs for tensors without memory; no kernel runs."""
        return _returned(self._results(self._given(args, named)))

    def _given(self, args: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        defaults = {p.name: p.default for p in self.parameters}
        positional = dict(zip(defaults, args, strict=False))
        return {**defaults, **positional, **named}

    def _results(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return {name: called(make, arguments) for name, make in self.outputs.items()}

    def _check_writes(self, values: dict[str, Any]) -> None:
        """Refuse writes that torch does not know of; once for each combination of types."""
        runtime = [values[name] for name in self.kernel.runtime_names]
        constants = {p.name: values[p.name] for p in self.kernel.parameters if p.const}
        types = tuple([getattr(x, "dtype", type(x)) for x in runtime])
        axes = tuple([getattr(x, "ndim", None) for x in runtime])
        key = (types, axes, constants_key(constants))
        if key in self.checked:
            return
        built = self.kernel.specialised(self.kernel.types_of(runtime), constants, None)
        for name, loc in written_arrays(built.ir, self.kernel.runtime_names).items():
            if name not in self.outputs and name not in self.mutates:
                raise tc.ArgumentError(
                    f"{self.__name__} writes {name!r} here, which is neither an output of the "
                    f"operator nor in `mutates`",
                    loc,
                )
        self.checked.add(key)


def _returned(results: dict[str, Any]) -> Any:
    values = tuple(results.values())
    return values[0] if len(values) == 1 else values or None
