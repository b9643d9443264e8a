"""`print` of fragments, tiles and arrays: contents, once a warp."""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorcore_dsl.interpreter.core.chunk import WARP
from tensorcore_dsl.interpreter.display.contents import Contents, Unreadable, array_text
from tensorcore_dsl.ir import views

_LENGTH = re.compile(r"(%[-+ 0]*\d*(?:\.\d+)?)ll")  # C's length modifier, which Python lacks
_C_CONVERSION = re.compile(r"%([-+ 0#]*(?:\d+|\*)?(?:\.(?:\d+|\*)?)?)(hh|h|ll|l|z|t|j|)([a-zA-Z%])")
_LONG = ("l", "ll", "z", "t", "j")  # arguments of 64 bits
_CONVERSION = re.compile(r"%[-+ 0]*\d*(?:\.\d+)?[a-zA-Z]|%%")


def format_line(text: str, values: Sequence[Any]) -> str:
    """C's printf; "%.0lld" prints no zero, as in C."""
    return _LENGTH.sub(r"\1", text.replace("%.0lld", "%.0s")) % tuple(values)


class Strings:
    """C strings and arguments of `vprintf` of one thread in global memory."""

    def __init__(self, memory: Any, thread: int) -> None:
        self.memory, self.thread = memory, thread

    def bytes(self, address: int, size: int) -> bytes:
        _, real = self.memory.locate(address, size, "load", self.thread)
        return ctypes.string_at(real, size)

    def text(self, address: int) -> str:
        characters = bytearray()
        while (byte := self.bytes(address + len(characters), 1)) != b"\0":
            characters += byte
        return characters.decode(errors="replace")

    def formatted(self, text: int, buffer: int) -> tuple[str, int]:
        """The text that `vprintf` prints, and the number of its arguments."""
        at, count = buffer, 0

        def argument(size: int) -> bytes:
            nonlocal at, count
            at, count = -(-at // size) * size + size, count + 1
            return self.bytes(at - size, size)

        def shown(match: re.Match[str]) -> str:
            flags, length, letter = match.groups()
            if letter == "%":
                return "%"
            while "*" in flags:
                flags = flags.replace("*", str(int.from_bytes(argument(4), "little", signed=True)), 1)
            real = letter in "aAeEfFgG"
            raw = argument(8 if real or letter in "ps" or length in _LONG else 4)
            number = int.from_bytes(raw, "little", signed=letter in "di")
            if letter in "aA":
                return float(np.frombuffer(raw)[0]).hex()
            if letter in "psc":
                value = (
                    hex(number)
                    if letter == "p"
                    else self.text(number)
                    if letter == "s"
                    else chr(number & 255)
                )
                return f"%{flags}s" % value
            return f"%{flags}{letter}" % (np.frombuffer(raw)[0] if real else number)

        return _C_CONVERSION.sub(shown, self.text(text)), count


def print_matrices(ctx: Any, parts: Sequence[Any], values: Sequence[np.ndarray]) -> None:
    """Print once for each warp with active threads, or warpgroup if a fragment is spread over one.

    parts: views, and (format, first operand) of text with scalars; values: the (T,) operands.
    """
    layouts = [
        p.view.layout for p in parts if isinstance(p, views.Printed) and isinstance(p.view, views.Matrix)
    ]
    unit = max([WARP, *(layout.threads for layout in layouts)])
    active = ctx.mask.reshape(-1, unit)
    for first in unit * np.flatnonzero(active.any(axis=1)):
        threads = np.arange(first, first + unit)
        contents = Contents(ctx, lambda i: (_bits(values[i]), None), threads, ctx.mask)
        sys.stdout.write("".join(_part(part, contents, values) for part in parts))


def _bits(values: np.ndarray) -> np.ndarray:
    """Operands are typed; views are read from bits."""
    return values.view(f"u{values.dtype.itemsize}")


def _part(part: Any, contents: Contents, values: Sequence[np.ndarray]) -> str:
    if isinstance(part, views.Printed):
        try:
            value = contents.read(part.view)
        except Unreadable as error:
            return f"<{error}>"
        with np.printoptions(formatter={"all": _formatter(part.spec)} if part.spec else None):
            return array_text(value)
    text, first = part
    conversions = [c for c in _CONVERSION.findall(text) if c != "%%"]
    lanes = contents.threads[contents.here[contents.threads]]
    columns = [np.atleast_1d(values[first + i]) for i in range(len(conversions))]
    shown = [
        _several(c[lanes] if len(c) > 1 else c, conversion)
        for c, conversion in zip(columns, conversions, strict=True)
    ]
    return _CONVERSION.sub(lambda m: "%%" if m[0] == "%%" else "%s", text) % tuple(shown)


def _several(lanes: np.ndarray, conversion: str) -> str:
    """A scalar of a warp: one number if all lanes agree, else one for each."""
    texts = [format_line(conversion, (lane.item(),)) for lane in lanes]
    return texts[0] if len(set(texts)) == 1 else f"[{' '.join(texts)}]"


def _formatter(spec: str) -> Callable[[Any], str]:
    return lambda v: format(v, spec) if isinstance(v, (int, float, np.generic)) else str(v)
