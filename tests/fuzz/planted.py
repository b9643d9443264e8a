"""Failures for the tests of the fuzzer itself: code from the environment."""

from __future__ import annotations

import os
import random


def case(draw: random.Random) -> None:
    exec(os.environ["FUZZ_PLANTED"])
