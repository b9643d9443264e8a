"""Base of the kernels of other compilers: checks, orders of threads, and exploration of orders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from operator import index
from typing import Any, NoReturn, TypeVar

from tensorcore_dsl.checking.copies import arrays_in, holds_tensors, with_arrays
from tensorcore_dsl.checking.exploration import Exploration
from tensorcore_dsl.checking.explorer import Explorer, Search
from tensorcore_dsl.checking.session import Session, current_session, launching_in
from tensorcore_dsl.checking.variations import check_count
from tensorcore_dsl.errors import ArgumentError, public
from tensorcore_dsl.interpreter import Report
from tensorcore_dsl.interpreter.scheduling.orders import Order, order_of
from tensorcore_dsl.runtime.host_arrays import on_host
from tensorcore_dsl.runtime.launch_config import configuration, refuse_call

AnyKernel = TypeVar("AnyKernel", bound="ForeignKernel")


class ForeignKernel:
    """A frozen dataclass with `checks` and `order`; `kernel[grid, block](*arguments)` runs it on the CPU."""

    _run: Callable[..., Report]  # takes a configuration and the arguments

    @property
    def _title(self) -> str:
        """The kernel's name in its source."""
        raise NotImplementedError

    @property
    def _names(self) -> list[str]:
        """Names of the arguments."""
        raise NotImplementedError

    def _configuration(self, name: str, key: Any) -> Any:
        """The grid and the block in the brackets of a launch. name: of the launch, in messages."""
        return configuration(name, key)[0]

    def _at(self: AnyKernel, order: Order | None) -> AnyKernel:
        """Return the kernel with another order of threads."""
        return replace(self, order=order)  # type: ignore[type-var]

    @public
    def emulator(self: AnyKernel, *, checks: bool = True, order: Order | str | None = None) -> AnyKernel:
        """Return the kernel with other checks, or with another order of threads.

        Parameters
        ----------
        checks : bool
            Whether to check for races and all other errors. False checks only bounds.
        order : int or str, optional
            A seed, or a schedule as `explore` prints it.

        Returns
        -------
        kernel
            The kernel to launch.
        """
        return replace(self, checks=checks, order=order_of(order))  # type: ignore[type-var]

    @public
    def explore(self, n: int = 100) -> Explorer:
        """`kernel.explore(n)[grid, block](*arguments)` emulates n orders of threads.

        The brackets take what a launch takes there. It runs on copies of the arrays, compares their bits
        with those of the first order, and stops at the first error or difference.

        Parameters
        ----------
        n : int
            How many orders, 1 or more.

        Returns
        -------
        Explorer
            Its launches return an Exploration.

        Raises
        ------
        ArgumentError
            Another number of orders.
        """
        check_count(n)
        return Explorer(self._title, index(n), self._explore, self._configuration)

    def _explore(self, n: int, config: Any, /, *args: Any) -> Exploration:
        for name, x in zip_longest(self._names, args, fillvalue=""):
            if holds_tensors(x):
                raise ArgumentError(
                    f"{name}: explore cannot copy the tensor inside of a {type(x).__name__}; put a NumPy "
                    "array there, such as tensor.numpy(), or make the descriptor in the kernel"
                )
        with on_host([x if hasattr(x, "data_ptr") else None for x in args]) as tensors:
            arguments = [x if tensor is None else tensor for x, tensor in zip(args, tensors, strict=True)]
            pairs = zip_longest(self._names, arguments, fillvalue="")
            arrays = [pair for of, x in pairs for pair in arrays_in(of, x)]

            def launch(copies: Sequence[Any], order: Order | None) -> None:
                by_id = {id(x): copy for (_, x), copy in zip(arrays, copies, strict=True)}
                # The orders' findings belong to the exploration, not to a session that checks a script.
                inner = launching_in(Session(collect=False), None) if current_session() else nullcontext()
                with inner:
                    self._at(order)._run(config, *(with_arrays(x, by_id) for x in arguments))

            names = [of for of, _ in arrays]
            return Search(self._title, names, launch, [x for _, x in arrays]).explore(n).noted()

    @public
    def __getitem__(self, key: Any) -> Callable[..., Report]:
        return partial(self._run, self._configuration(self._title, key))  # no frame between user and launch

    @public
    def __call__(self, *arguments: Any) -> NoReturn:
        refuse_call(self._title, self._title)
