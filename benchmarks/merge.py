"""Puts the result files of pieces of a suite together, as if one run had measured all of it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks import suites
from benchmarks.gemm_cases import Case
from benchmarks.gemm_tables import finish
from benchmarks.harness import Report

SAME = ("gpu", "versions")  # of the machine, in all pieces


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "pieces", type=Path, nargs="+", metavar="FILE",
        help="result files of `gemm --suite`; a case of several files is taken from the last",
    )  # fmt: skip


def run(options: argparse.Namespace) -> Report:
    report = merged([json.loads(path.read_text(encoding="utf-8")) for path in options.pieces])
    finish(report, options)
    return report


def merged(documents: Sequence[dict[str, Any]]) -> Report:
    """One report of pieces of the same suite on the same machine, dated as the last of them."""
    pieces = sorted(documents, key=lambda document: str(document["date"]))
    last = pieces[-1]
    for piece in pieces:
        refuse_strangers(piece, last)
    report = Report(
        last["benchmark"], {**last["options"], "groups": []}, last["method"], last["machine"],
        in_order(last["summary"].get("suite"), newest_of_each(pieces)),
        {key: last["summary"].get(key) for key in ("target", "suite", "tuned")},
        datetime.fromisoformat(last["date"]),
    )  # fmt: skip
    report.summary["pieces"] = [
        {"date": piece["date"], "groups": piece["options"].get("groups"),
         "commit": piece["machine"].get("commit"),
         "state": [piece["machine"].get(key) for key in ("gpu_before", "gpu_after")]}
        for piece in pieces
    ]  # fmt: skip
    report.summary["ceilings"] = highest(piece["summary"].get("ceilings", {}) for piece in pieces)
    return report


def refuse_strangers(piece: dict[str, Any], last: dict[str, Any]) -> None:
    if piece["benchmark"] != last["benchmark"]:
        raise ValueError(f"pieces of {piece['benchmark']} and of {last['benchmark']} do not mix")
    for key in SAME:
        here, there = piece["machine"].get(key), last["machine"].get(key)
        if here != there:
            raise ValueError(f"pieces of different machines do not mix; {key}: {here} and {there}")


def newest_of_each(pieces: Sequence[dict[str, Any]]) -> dict[Case, dict[str, Any]]:
    """The last result of each case; one that was left out replaces none."""
    found: dict[Case, dict[str, Any]] = {}
    for piece in pieces:
        for result in piece["results"]:
            case = Case.of(result)
            if "left_out" not in result or case not in found:
                found[case] = result
    return found


def in_order(suite: str | None, found: dict[Case, dict[str, Any]]) -> list[dict[str, Any]]:
    """As the suite has them; what it does not know comes last."""
    known = suites.SUITES.get(suite or "", [])
    listed = [case for case in known if case in found]
    return [found[case] for case in [*listed, *(case for case in found if case not in known)]]


def highest(ceilings: Any) -> dict[str, Any]:
    """The highest of each that a piece has seen."""
    best: dict[str, Any] = {"flops": {}, "failures": {}}
    for found in ceilings:
        for dtype, flops in found.get("flops", {}).items():
            best["flops"][dtype] = max(flops, best["flops"].get(dtype, 0.0))
        best["failures"] |= found.get("failures", {})
        if "bytes" in found:
            best["bytes"] = max(found["bytes"], best.get("bytes", 0.0))
    return best
