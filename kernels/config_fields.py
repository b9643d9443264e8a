"""Checks of the fields of configurations: whole numbers, and True or False."""

from __future__ import annotations

from dataclasses import fields
from reprlib import repr as brief
from typing import Any

import numpy as np

import tensorcore_dsl as tc


def check_fields(config: Any) -> None:
    """Refuse a configuration with a field whose value is of another class than its default."""
    for field in fields(config):
        value, wants_flag = getattr(config, field.name), isinstance(field.default, bool)
        is_flag = isinstance(value, (bool, np.bool_))
        if wants_flag is not is_flag or not (is_flag or isinstance(value, (int, np.integer))):
            kind = "True or False" if wants_flag else "a whole number"
            raise tc.ArgumentError(
                f"{field.name} of {type(config).__name__} is {brief(value)} "
                f"({type(value).__name__}); it must be {kind}"
            )
