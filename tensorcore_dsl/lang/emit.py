"""Emit any instruction of the table by its PTX text."""

from __future__ import annotations

from typing import Any

from tensorcore_dsl.values.builder import builder


def emit(mnemonic: str, *operands: Any, **options: Any) -> Any:
    """Emit the instruction with this PTX text, for example "add.rn.f32"; returns its results.

    Options: `pred=` guards it, `otherwise=` is the result where the guard fails.
    """
    return builder().named(mnemonic, *operands, **options)
