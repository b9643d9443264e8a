"""A run of tests writes its result, and the page takes it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tensorcore_dsl.runtime import driver
from tests import suite_record

ROOT = Path(__file__).parent.parent


def test_a_run_is_recorded(tmp_path):
    row = tmp_path / "row.md"
    row.write_text("of a run before")  # a path of its own on the command line would be taken for a test
    options = [f"--record={row}", "-p", "no:cacheprovider"]
    command = [
        sys.executable,
        "-m",
        "pytest",
        *options,
        "tests/test_arch.py",
        "-k",
        "shared_memory or limits",
    ]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=300)
    _, machine, versions, run, result, _ = row.read_text().split("|")
    assert ("H200" in machine or "x" in machine) if driver.cuda_available() else "no GPU" in machine
    assert re.match(r" Python 3\.\d+\.\d+, .*NumPy \d", versions)
    assert re.fullmatch(
        r" \d{4}-\d\d-\d\d, `python -m pytest -p no:cacheprovider tests/test_arch.py -k 'shared_memory or limits'` ",
        run,
    )
    assert re.fullmatch(r" \d+ tests in \d+ s: \d+ (passed|skipped).* ", result)


def test_the_page_has_one_row_of_a_machine(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"Before\n\n{suite_record.HEADER}| A | 1 | 2 | 3 |\n\nAfter\n")
    for line in ("| B | 4 | 5 | 6 |\n", "| A | 7 | 8 | 9 |\n"):
        suite_record.put(line, page)
    rows = "| A | 7 | 8 | 9 |\n| B | 4 | 5 | 6 |\n"
    assert page.read_text() == f"Before\n\n{suite_record.HEADER}{rows}\nAfter\n"
    page.write_text("no table")
    with pytest.raises(SystemExit, match="has no table that begins with | machine"):
        suite_record.put("| A |\n", page)


def test_fidelity_has_the_table():
    assert suite_record.PAGE.read_text().count(suite_record.HEADER) == 1
