"""The CPU gives the bits that were captured from a GPU (see tests/capture.py): instructions of
single threads, and whole kernels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tensorcore_dsl import isa
from tests import probes
from tests.capture import record
from tests.gemm_cases import CASES, RECORDS, digest, run_case

GOLDEN = Path(__file__).parent / "golden"
ARCH = "sm_90a"
FILES = sorted((GOLDEN / ARCH).glob("*.json"))
CHUNK = 5


def chunks() -> list[Any]:
    parameters = []
    for path in FILES:
        if path.stem == "gemm_kernels" or path.stem.startswith("approximate"):
            continue
        records = list(json.loads(path.read_text()).items())
        for at in range(0, len(records), CHUNK):
            parameters.append(pytest.param(path.stem, records[at : at + CHUNK], id=f"{path.stem}-{at}"))
    return parameters


def replay(stem: str, mnemonic: str) -> str:
    instr = isa.instruction(mnemonic)
    if stem.startswith("shared_"):
        return record(probes.shared_on_cpu(instr, ARCH))
    return record(probes.on_cpu(instr, probes.inputs(instr), ARCH))


@pytest.mark.quick(lambda stem: stem)
@pytest.mark.parametrize(("stem", "records"), chunks())
def test_instruction_bits(stem, records):
    different = [name for name, wanted in records if replay(stem, name) != wanted]
    assert not different


def test_every_promised_form_was_captured():
    captured = {
        name for path in FILES if path.stem != "gemm_kernels" for name in json.loads(path.read_text())
    }
    wanted = {f.mnemonic for f in (*probes.probed_forms(ARCH), *probes.shared_forms(ARCH))}
    assert wanted - captured == set()


GEMMS = sorted({(case.dtype, case.family) for case in CASES})


def test_every_gemm_has_cases():
    """f64 on Hopper is compared with chains of multiply-adds (test_f64_gemm.py); Ampere has no fp8."""
    dtypes = ("f16", "bf16", "f32", "tf32", "s8", "f64", "e4m3", "e5m2")
    missing = {("f64", "sm90"), ("e4m3", "sm80"), ("e5m2", "sm80")}
    assert {*GEMMS} | missing == {(d, f) for d in dtypes for f in ("sm80", "sm90")}


@pytest.mark.thorough
@pytest.mark.parametrize(("dtype", "family"), GEMMS)
def test_gemm_bits(dtype, family):
    wanted = {name: record["digest"] for name, record in RECORDS.items()}
    cases = [case for case in CASES if case.dtype == dtype and case.family == family]
    assert len(cases) >= (14 if family == "sm80" else 6)
    assert not {case.name for case in cases} - set(wanted), "to be captured (tests/capture.py)"
    different = [c.name for c in cases if digest(run_case(c, "cpu", ARCH)) != wanted[c.name]]
    assert not different
