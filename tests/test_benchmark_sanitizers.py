"""The runs with compute-sanitizer: processes that fail, reports, tables; a fake tool."""

import sys
import time

import pytest

from benchmarks.answered import sanitizers
from benchmarks.answered.sanitizers_case import GRAIN, aligned, planted, prepare
from benchmarks.answered.sanitizers_process import Batch, Runner, Sanitizer, blocks, reports_of

pytestmark = pytest.mark.thorough

# Behaves as the tool and its child together; the name of a run says what happens to it.
FAKE = f"""#!{sys.executable}
import json, os, sys, time
arguments = sys.argv[1:]
if arguments == ["--help"]:
    sys.exit(print("  --print-limit arg"))
if arguments == ["--version"]:
    sys.exit(print("Version 1"))
log = open(arguments[arguments.index("--log-file") + 1], "w", buffering=1)
log.write("========= COMPUTE-SANITIZER\\n")
runs, out = arguments[-3:-1]
out = open(out, "a", buffering=1)
say = lambda **line: out.write(json.dumps(line) + "\\n")
say(process=os.getpid())
runs = json.load(open(runs))
if runs[0]["name"] == "never ready":
    sys.exit("no device")
say(ready=True)
for run in runs:
    name = run["id"]
    say(prepare=name)
    say(start=name)
    if run["name"] == "hangs":
        time.sleep(60)
    if run["name"] == "dies":
        os._exit(3)
    if run["name"] == "races":
        log.write(f"========= Error: Race reported between Write access at {{name}}+0x10\\n")
        log.write(f"=========     and Read access at {{name}}+0x20 [32 hazards]\\n=========\\n")
    if run["name"] == "fails":
        log.write("========= Warp Illegal Address\\n========= ERROR SUMMARY: 1 error\\n")
    say(end=name, result="failed" if run["name"] == "fails" else "right")
    if run["name"] == "fails":
        break
"""


@pytest.fixture
def fake(tmp_path):
    path = tmp_path / "compute-sanitizer"
    path.write_text(FAKE)
    path.chmod(0o755)
    return Sanitizer(str(path))


def runs(*names):
    return [{"id": f"san_{i}_bug", "class": "x", "name": name, "twin": False} for i, name in enumerate(names)]


def test_each_run_of_a_batch_gets_its_own_result(fake, tmp_path):
    runner = Runner(tmp_path, fake, "cuda", time.monotonic() + 60)
    names = ("fine", "races", "hangs", "dies", "races", "fails", "fine")
    runner.run(Batch("racecheck", runs(*names), timeout=0.5))
    found = [runner.records[f"san_{i}_bug", "racecheck"] for i in range(len(names))]
    states = ["right", "right", "hung", "died", "right", "failed", "right"]
    assert [f["result"] for f in found] == states
    assert [f["reports"] for f in found] == [0, 1, 0, 0, 1, 1, 0]
    assert found[5]["report"] == "Warp Illegal Address"  # of the run that failed with it
    assert not runner.unnamed


def test_processes_that_do_not_start_and_the_end_of_the_time(fake, tmp_path):
    runner = Runner(tmp_path, fake, "cuda", time.monotonic() + 60)
    runner.run(Batch("memcheck", runs("never ready", "fine")))
    found = [runner.records[f"san_{i}_bug", "memcheck"] for i in range(2)]
    assert [f["result"] for f in found] == ["not started", "not started"]
    assert found[0]["text"] == "no device"
    runner = Runner(tmp_path, fake, "cuda", time.monotonic() + 2)
    runner.run(Batch("memcheck", runs("fine", "hangs", "fine"), timeout=30))
    assert list(runner.records) == [("san_0_bug", "memcheck")]  # the others had no time


def test_options_that_the_tool_does_not_know_are_left_out(fake, tmp_path):
    command = fake.command("initcheck", tmp_path / "log")
    assert command[1:] == [
        "--tool",
        "initcheck",
        "--print-limit",
        "20000",
        "--log-file",
        str(tmp_path / "log"),
    ]


def test_reports_are_told_apart_by_kernels(tmp_path):
    log = tmp_path / "log"
    log.write_text(
        "========= COMPUTE-SANITIZER\n"
        "========= Invalid __global__ write of size 4 bytes\n"
        "=========     at san_3_bug+0x70 in memory.py:12\n"
        "=========     by thread (31,0,0) in block (0,0,0)\n"
        "========= \n"
        "========= Something else\n"
        "========= Target application returned an error\n"
        "========= ERROR SUMMARY: 2 errors\n"
        "printed by the program\n"
    )
    named, others = reports_of(log)
    assert list(named) == ["san_3_bug"] and others == ["Something else"]
    assert named["san_3_bug"][0].splitlines()[1] == "at san_3_bug+0x70 in memory.py:12"
    assert reports_of(tmp_path / "missing") == ({}, [])
    assert blocks([]) == []


def test_a_case_is_compiled_under_the_name_of_its_run():
    case = next(c for c in planted().cases("memory") if c.name == "off_by_one: behind the end")
    run = {"id": "san_7_twin", "class": "memory", "name": "off_by_one", "twin": True}
    found = prepare(run, case, "cpu")()
    assert found["result"] == "right"
    kernel = case.kernel.variant(__name__=run["id"])
    arguments, _ = case.make(sanitizers.np.random.default_rng(0))
    assert ".entry san_7_twin(" in kernel.ptx(**arguments, mistake="", arch=case.arch)
    copies = aligned(arguments)
    assert all(copy.ctypes.data % GRAIN == 0 for copy in copies.values())
    assert all((copies[name] == arguments[name]).all() for name in arguments)


def test_all_kernels_come_before_the_second_bug_of_any():
    waves = sanitizers.chosen(0, False)
    names = [run for wave in waves for run in wave if not run["twin"]]
    harness = planted()
    for kind in set(run["class"] for run in names):
        cases = {c.name: c for c in harness.cases(kind)}
        order = [cases[r["name"]].kernel.function.__name__ for r in names if r["class"] == kind]
        assert len(order) == len(cases)
        assert len(set(order[: len(set(order))])) == len(set(order))
    twins = [run for wave in waves for run in wave if run["twin"]]
    assert sum(len(run["bugs"]) for run in twins) == len(names) > len(twins)
    ids = [run["id"] for wave in waves for run in wave]
    assert len(set(ids)) == len(ids)


def test_the_table_counts_reports():
    runs = lambda **reports: {tool: {"reports": number} for tool, number in reports.items()}
    results = [
        {"class": "memory", "twin": False, "runs": runs(memcheck=3, racecheck=0)},
        {"class": "memory", "twin": True, "runs": runs(racecheck=1)},
        {"class": "chains", "twin": False, "runs": {}},
    ]
    (table,) = sanitizers.tables({"results": results})
    memory, chains = table.rows
    assert (memory["memcheck, bugs"], memory["racecheck, bugs"], memory["racecheck, twins"]) == (
        "1",
        "0",
        "1",
    )
    assert chains["memcheck, bugs"] == "0"


def test_measure_needs_the_tool(monkeypatch, tmp_path):
    monkeypatch.setattr(sanitizers, "available", lambda: None)
    with pytest.raises(ValueError, match="compute-sanitizer is not found"):
        sanitizers.run(None)
