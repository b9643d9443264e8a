"""Products against an independent exact model, public hardware results, and directed vectors."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from tensorcore_dsl.numerics.products import matmul
from tests import exact_products as exact
from tests.numerics_cases import IDS, REGIMES, operands


def check(p, arch, regime, batch=1, seed=0):
    rng = np.random.default_rng([zlib.crc32(f"{p}{arch}{regime}".encode()), seed])
    a, b, c, more = operands(p, regime, rng, batch)
    got = matmul(p, arch, a, b, c, **more)
    rows = rng.permutation(p.m)[:2]  # the exact model is slow
    cut = {k: v if k == "scale_b" else v[:, rows] for k, v in more.items()}
    want = exact.matmul(p, arch, a[:, rows], b, c[:, rows], **cut)
    mismatches = np.argwhere(got[:, rows] != want)
    assert not len(mismatches), (
        f"{len(mismatches)} of {want.size}; first {mismatches[0]}: "
        f"{got[:, rows][tuple(mismatches[0])]:x}, not {want[tuple(mismatches[0])]:x}"
    )


@pytest.mark.parametrize(("p", "arch"), IDS, ids=lambda v: str(v).replace(" ", "-"))
def test_every_rule_agrees_with_the_exact_model(p, arch):
    for regime in REGIMES:
        check(p, arch, regime)
