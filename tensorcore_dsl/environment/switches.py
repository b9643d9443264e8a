"""Environment variables that switch something on or off."""

from __future__ import annotations

import os

OFF = ("0", "off", "no", "none", "false")


def is_off(variable: str) -> bool:
    """True if the variable is set and says off."""
    return os.environ.get(variable, "").lower() in OFF


def is_on(variable: str) -> bool:
    """True if the variable has a value that does not say off."""
    return os.environ.get(variable, "").lower() not in ("", *OFF)
