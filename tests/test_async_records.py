"""The emulator gives what was recorded on a GPU (tests/capture_async.py)."""

from __future__ import annotations

import numpy as np
import pytest

from tests import capture_async

CASES = {case.name: case for case in capture_async.cases()}
RECORDS = dict(np.load(capture_async.GOLDEN))


def test_names_are_different():
    assert len(CASES) == len([*capture_async.cases()])


@pytest.mark.parametrize("name", CASES)
def test_emulation_gives_the_recorded_results(name):
    actual = CASES[name].run(capture_async.on_cpu)
    assert actual.any()
    assert np.array_equal(actual, RECORDS[name])
