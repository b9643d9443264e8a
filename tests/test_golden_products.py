"""The CPU gives the bits of an H200 for random whole products (see tests/fuzz/products.py)."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.fuzz import product_cases, products

RECORDS = json.loads((Path(__file__).parent / "golden" / "products_h200.json").read_text())
SEED, CASES = RECORDS["seed"], RECORDS["cases"]
REPLAYED, LEAST = 5, 3  # cases of a kind, and how many are still run by the kernel of the record


def small(kind: str) -> list[int]:
    """The first cases of a kind that have a result, and are quickly emulated."""
    found = []
    for index in map(int, CASES):
        given = product_cases.product(SEED, index)
        quick = given.M * given.N * given.K < 1 << 20
        if given.kind == kind and quick and "hash" in CASES[str(index)]:
            found.append(index)
    return found[:REPLAYED]


# Fields of kernels.HopperConfig that have no part in bits, and the number of blocks.
NO_PART = re.compile(
    r" (x\d+|(BM|BN|stages|k_slabs|cluster_m|cluster_n|group_m|mma_in_flight|pingpong|valid_m)=\w+)"
)
DIVIDED = ("split_k=", "streamk_units=", "WM=", "_with_rows", "f32_gemm")  # of which tiles are part


def sums(choice: str) -> str:
    """What of a choice decides about bits."""
    return choice if any(word in choice for word in DIVIDED) else NO_PART.sub("", choice)


@pytest.mark.parametrize("kind", product_cases.DTYPES)
def test_products(kind: str) -> None:
    """Kernels that sum in another order may give other bits; most sum as those of the record."""
    compared = 0
    for index in small(kind):
        wanted, found = CASES[str(index)], products.record(index, "cpu", SEED)
        assert "hash" in found, found
        if sums(found["choice"]) == sums(wanted["choice"]):
            compared += 1
            assert found["hash"] == wanted["hash"], product_cases.product(SEED, index)
    assert compared >= LEAST, "choices have changed: record the products again"


def test_refusals_are_the_same() -> None:
    refused = [index for index, one in CASES.items() if "refused" in one][:20]
    assert len(refused) >= 10
    for index in refused:
        assert "refused" in products.record(int(index), "cpu", SEED)


def test_the_records() -> None:
    """Of a GPU, and with results for most cases."""
    assert "--run gpu" in RECORDS["command"] and len(CASES) >= 500
    assert not any("failed" in one for one in CASES.values())
    assert sum("hash" in one for one in CASES.values()) > 0.8 * len(CASES)
