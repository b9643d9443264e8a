"""Pickle objects of modules, such as kernels, by name."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from pickle import PicklingError
from typing import Any


class Named:
    """An object that stands for a function of a module, with its name, docstring and signature.

    Pickling stores the module and the name, as for functions; unpickling imports the module and
    gives its object, so another process compiles the kernel from its own copy of the source.
    PicklingError if the name does not lead back to the object.
    """

    __module__: str
    __qualname__: str
    __name__: str

    def _stand_for(self, function: Callable[..., Any]) -> None:
        """Copy the attributes that `help` and `inspect.signature` read from the function.

        `help` describes an object's class if the object has the class's docstring. So the object gets a
        class of its own, with the function's docstring and signature.
        """
        functools.update_wrapper(self, function, updated=())  # type: ignore[arg-type]
        kind, sign = type(self), inspect.signature(function)
        attributes = {"__doc__": self.__doc__, "__signature__": sign, "__module__": kind.__module__}
        self.__class__ = type(function.__name__, (kind,), attributes)  # type: ignore[assignment]

    def __reduce_ex__(self, protocol: Any) -> Any:
        kind = type(self).__bases__[0].__name__.lower()
        what = f"{kind} {self.__name__} of module {self.__module__}"
        if "<locals>" in self.__qualname__:
            raise PicklingError(
                f"{what} is defined in a function ({self.__qualname__}): only kernels of a module "
                "can be pickled, since other processes find them by name; move it to the module"
            )
        module: Any = sys.modules.get(self.__module__)
        for part in self.__qualname__.split("."):
            module = getattr(module, part, None)
        if module is self:
            return self.__qualname__
        if getattr(module, "kernel", None) is self:  # under tc.autotune
            return getattr, (module, "kernel")
        raise PicklingError(
            f"{what} cannot be pickled: other processes find it by name, and "
            f"{self.__module__}.{self.__qualname__} is {_described(module)}; give the kernel that "
            "name, or pickle the object that has it"
        )

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self


def _described(value: Any) -> str:
    return "not there" if value is None else f"another object, {value!r}"
