"""Random whole products: their cases are reproducible, and every way to emulate them gives the same bits."""

from __future__ import annotations

import json
from itertools import islice

import pytest

from tensorcore_dsl.interpreter import launch
from tests.fuzz import planted, product_cases, products, ways


class TestProducts:
    def test_cases_are_reproducible(self):
        """Other cases before them change nothing."""
        records = [products.record(index, "cpu", seed=1) for index in (8, 9, 8, 9)]
        assert records[:2] == records[2:] and all("hash" in one for one in records)

    def test_cases_do_not_depend_on_the_version_of_numpy(self):
        draw = product_cases.Draw(7, 3)
        assert [draw.below(1000) for _ in range(5)] == [670, 161, 542, 633, 639]
        values = product_cases.values(draw, (4,), "f32", "wide")
        assert values.tobytes().hex() == "9ae41b3b6f5f77409db497bda647523c"

    @pytest.mark.thorough
    def test_every_kind_has_a_result(self):
        """No kind of case is refused always."""
        seen: dict[str, int] = {}
        for index in range(3000):
            case = product_cases.product(1, index)
            if case.M * case.N * case.K < 1 << 17 and case.kind not in seen:
                one = products.record(index, "cpu", seed=1)
                assert "failed" not in one, one
                if "hash" in one:
                    seen[case.kind] = index
        assert {*seen} == {*product_cases.DTYPES}

    def test_workers_that_die_are_replaced(self):
        actual = products.Workers(2, planted.work, hang=8).run(range(8), limit=100)
        assert {i for i, one in actual.items() if one == {"hash": i}} == {0, 1, 2, 4, 6, 7}
        assert actual[3] == {"failed": "the process ended with 5"}
        assert actual[5] == {"failed": "the process ended with -9"}

    def test_a_limit_ends_the_run(self):
        actual = products.Workers(1, planted.work).run(range(5, 8), limit=0.1)
        assert actual == {}

    def test_differences_are_reported(self, tmp_path, capsys):
        one = {0: {"hash": "1", "choice": "k"}, 1: {"hash": "2", "choice": "k"}, 2: {"refused": "no"}}
        two = {0: {"hash": "1", "choice": "k"}, 1: {"hash": "3", "choice": "l"}, 2: {"refused": "no"}}
        read = []
        for name, records in (("one", one), ("two", two)):
            products.write(tmp_path / name, 1, records)
            read.append(json.loads((tmp_path / name).read_text()))
        assert products.compare(*read) == 1 and products.compare(read[0], read[0]) == 0
        text = capsys.readouterr().out
        assert f"DIFFERENT 1: {product_cases.product(1, 1)}" in text
        assert "3 cases: 1 results differ, 1 choices" in text


class TestWays:
    @pytest.mark.thorough
    @pytest.mark.parametrize("index", [0, 1, 4, 36])
    def test_all_give_the_same_bits(self, index):
        assert not ways.differences(7, index, list(ways.WAYS))

    def test_a_planted_difference_is_found(self, monkeypatch):
        """Only the first chunk of a launch is run."""
        run = launch._run_chunks
        monkeypatch.setattr(
            launch, "_run_chunks", lambda chunk, jobs, *more: run(chunk, islice(jobs, 1), *more)
        )
        assert any("chunks: other bits" in line for line in ways.differences(7, 1, ["alone", "chunks"]))
