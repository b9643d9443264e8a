"""A minute of the fuzzer; `python -m tests.fuzz --seconds 3600 --seed 1` runs it longer."""

from __future__ import annotations

import pytest

from tests.fuzz.cases import FAMILIES, run_case
from tests.fuzz.children import watch


@pytest.mark.parametrize("family", FAMILIES)
def test_odd_input_is_refused_by_errors_of_the_library(family: str) -> None:
    failures, count = watch(family, seed=1, seconds=12, limit=1)
    assert not failures, "\n\n".join(map(str, failures))
    assert count >= 5


class TestTheFuzzer:
    def test_cases_are_reproducible(self) -> None:
        assert run_case("capsules", 3, 5) == run_case("capsules", 3, 5)

    @pytest.mark.parametrize("code, text", [
        ("raise KeyError('x')", "KeyError"),
        ("import os; os._exit(3)", "the process ended with 3"),
        ("import ctypes; ctypes.string_at(1)", "the process ended with -11"),
        ("while True: pass", "it takes too long"),
        ("bytearray(1 << 40)", "MemoryError"),
    ])  # fmt: skip
    def test_finds_planted_failures(self, code: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FUZZ_PLANTED", code)
        failures, _ = watch("planted", seed=0, seconds=2, limit=0.3)
        assert failures and text in str(failures[0])
        assert "--family planted --seed 0 --cases 1" in str(failures[0])
