"""Odd launches of a right kernel: grids, blocks, options of the emulator, and arguments."""

from __future__ import annotations

import fractions
import random
from typing import Any

import ml_dtypes
import numpy as np

import tensorcore_dsl as tc
from tests.fuzz import corpus

THINGS: tuple[Any, ...] = (
    None, 0, 1, -1, 2, 3.5, 2**31 - 1, 2**31, 2**64, 10**400, "1", b"1", (), (1,), (1, 2, 3), (1, 2, 3, 4), [1],
    {}, {1}, object(), True, float("nan"), float("inf"), 1j, np.int64(2), np.float32(2), np.array(2), np.array([2]),
    np.zeros(0), range(3), lambda: 1, (0, 1), (1, -1), (2, None), ("a",), fractions.Fraction(1, 2), Ellipsis, int,
    np.uint64(2**63), ((1,),), slice(1), iter([1]), tc, tc.f32,
)  # fmt: skip
BASE = np.zeros((64, 64), np.float32)
ARRAYS: tuple[Any, ...] = (
    np.zeros(256, np.float32), np.zeros(256, np.float64), np.zeros(0, np.float32), np.float32(1), np.zeros((), "f4"),
    BASE, BASE.T, BASE[::2], BASE[::-1], BASE[:, 3], np.broadcast_to(np.float32(1), (256,)), BASE[0][::-1],
    np.zeros((2,) * 10, np.float32), np.zeros((1,) * 30, np.float32), np.zeros(256, ">f4"), np.zeros(256, "U1"),
    np.zeros(256, object), np.zeros(256, "M8[s]"), np.zeros(256, [("a", "f4")]), np.zeros(256, np.complex64),
    np.ma.zeros(256, np.float32), np.zeros(1025, np.uint8)[1:].view(np.float32), np.zeros(256, np.longdouble),
    np.zeros(256, ml_dtypes.bfloat16), np.zeros(256, ml_dtypes.float8_e4m3fn), np.zeros(256, ml_dtypes.int4),
    np.matrix(np.zeros((16, 16), np.float32)), np.zeros(256, bool), np.zeros(256, np.float16), np.zeros(256, "V3"),
    np.lib.stride_tricks.as_strided(np.zeros(256, np.float32), (256,), (0,)), memoryview(bytearray(64)), bytearray(64),
    np.recarray((4,), dtype=[("a", "f4")]), [1.0] * 256, np.float64(1), ml_dtypes.bfloat16(1), np.datetime64(0, "s"),
)  # fmt: skip


def case(draw: random.Random) -> None:
    name = draw.choice(list(KERNELS))
    kernel = KERNELS[name]
    given: list[Any] = list(corpus.arguments(draw))
    for place in range(3):
        if draw.random() < 0.15:
            given[place] = draw.choice(THINGS + ARRAYS)
    if draw.random() < 0.03:
        given = given[: draw.randrange(3)] if draw.random() < 0.5 else [*given, 1]
    named = {draw.choice(("n", "z", "x")): draw.choice(THINGS)} if draw.random() < 0.03 else {}
    key: Any = [draw.choice((1, 2, (2, 2), 2**31 - 1)), draw.choice((32, 128, (16, 2, 2), 1024))]
    for place in range(2):
        if draw.random() < 0.15:
            key[place] = draw.choice(THINGS)
    if draw.random() < 0.1:
        key += [draw.choice(THINGS) for _ in range(draw.randrange(4))]
    options: dict[str, Any] = {}
    for option in ("arch", "checks", "profile", "order", "trace"):
        if draw.random() < 0.08:
            options[option] = draw.choice((*THINGS, "sm_90", "sm_80", "total", ["total"]))
    emulator = kernel.emulator(**options) if options else kernel.emulate
    emulator[tuple(key) if draw.random() < 0.97 else draw.choice(THINGS)](*given, **named)


KERNELS = {name: corpus.load(corpus.SOURCES[name]) for name in ("plain", "shared", "product")}
