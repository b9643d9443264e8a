"""The CPU gives the bits of an H200 for random whole products (see tests/fuzz/products.py)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fuzz import product_cases, products

pytestmark = pytest.mark.thorough

RECORDS = json.loads((Path(__file__).parent / "golden" / "products_h200.json").read_text())
SEED, CASES = RECORDS["seed"], RECORDS["cases"]
REPLAYED = 5  # cases of a kind


def small(kind: str) -> list[int]:
    """The first cases of a kind that have a result, and are quickly emulated."""
    indices = []
    for index in map(int, CASES):
        case = product_cases.product(SEED, index)
        quick = case.M * case.N * case.K < 1 << 20
        if case.kind == kind and quick and "hash" in CASES[str(index)]:
            indices.append(index)
    return indices[:REPLAYED]


@pytest.mark.parametrize("kind", product_cases.DTYPES)
def test_products_give_the_recorded_bits(kind):
    """Each by the kernel of its record, which is not always the one that is chosen now."""
    for index in small(kind):
        wanted = CASES[str(index)]
        actual = products.replayed(index, wanted, "cpu", SEED)
        assert actual.get("hash") == wanted["hash"], (product_cases.product(SEED, index), actual)


def test_which_nan_a_sum_of_two_gives():
    """In f64: alpha, -0, times an infinity gives a NaN, which is added to beta times one of C."""
    case = product_cases.product(SEED, 2285)
    assert case.dtype == "f64" and case.alpha == 0 and case.beta
    assert products.replayed(2285, CASES["2285"], "cpu", SEED)["hash"] == CASES["2285"]["hash"]


def test_refusals_are_the_same():
    refused = [index for index, one in CASES.items() if "refused" in one][:20]
    assert len(refused) >= 10
    for index in refused:
        assert "refused" in products.record(int(index), "cpu", SEED)


def test_the_records():
    """Of a GPU, and with results for most cases."""
    assert "--run gpu" in RECORDS["command"] and len(CASES) >= 500
    assert not any("failed" in one for one in CASES.values())
    assert sum("hash" in one for one in CASES.values()) > 0.8 * len(CASES)
