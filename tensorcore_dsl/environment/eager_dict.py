"""Base of classes with cached properties, which several threads may ask for at once."""

from __future__ import annotations

from typing import Any, TypeVar

Made = TypeVar("Made")


class EagerDict:
    """An object whose `__dict__` exists from the start.

    CPython 3.11 makes the `__dict__` of an object when it is first asked for, as a cached property
    does. That may collect garbage, whose callbacks and finalisers let another thread make it, too.
    Both dictionaries then free the same memory. Versions from 3.12 on do not collect garbage there.
    """

    def __new__(cls: type[Made], *_arguments: Any, **_options: Any) -> Made:
        """Make an object, and its `__dict__`."""
        instance = object.__new__(cls)
        vars(instance)
        return instance
