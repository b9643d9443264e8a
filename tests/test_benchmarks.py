"""The benchmarks: statistics, the quick paths on the CPU, and those of the GPU with a fake one."""

import dataclasses
import json
import math
import sys
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import benchmarks.__main__ as command
import tensorcore_dsl as tc
from benchmarks import forms, gpu, harness, page, tables
from benchmarks.choices import tuning
from benchmarks.harness import Report, Timing
from benchmarks.host import compile_time
from benchmarks.products import accuracy, gemm, gemm_cases, gemm_plot, gemm_summary, landscape, merge, suites
from benchmarks.products.gemm_cases import DTYPES, Case
from benchmarks.programs import tutorial
from tensorcore_dsl import kernels
from tensorcore_dsl.codegen import assemble
from tensorcore_dsl.kernels.ampere.gemm import f64_gemm

pytestmark = pytest.mark.thorough

# Statistics and files


def test_timing_of_known_numbers():
    timing = Timing((4.0, 1.0, 3.0, 2.0, 5.0))
    assert (timing.median, timing.best) == (3.0, 1.0)
    assert timing.spread == pytest.approx((4 - 2) / 3)
    assert Timing((2.0,)).spread == 0
    assert timing.json()["samples"] == [4.0, 1.0, 3.0, 2.0, 5.0]


def test_the_geometric_mean_of_nothing_is_none():
    assert harness.geometric_mean([1, 4, 16]) == pytest.approx(4)
    assert harness.geometric_mean(iter(())) is None


def test_facts_of_nvidia_smi_are_read():
    line = "NVIDIA H200, 580.65.06, 143771, 700.00, [N/A], 3201, Enabled"
    facts = harness.parse_smi(harness.GPU_FACTS, line)
    assert facts["name"] == "NVIDIA H200" and facts["driver"] == "580.65.06"
    assert (facts["power_limit_w"], facts["clock_sm_max_mhz"]) == (700.0, None)


def test_reports_are_saved_as_json(tmp_path):
    report = Report("gemm", {"a": (1, 2)}, {}, {"gpu": {"name": "NVIDIA H200"}})
    report.results.append({"samples": [1.5, 2e-5, -3.0], "empty": [], "words": ["a b", "c"]})
    path = report.save(tmp_path)
    assert path.name.startswith("gemm-nvidia-h200-2") and path.suffix == ".json"
    text = path.read_text(encoding="utf-8")
    assert "[1.5, 2e-05, -3.0]" in text
    assert json.loads(text)["results"] == report.results
    report.summary["nan"] = math.nan
    with pytest.raises(ValueError, match="not JSON compliant"):
        report.save(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_tables_leave_out_empty_columns(capsys):
    rows = [
        {"name": "[a]", "rate": "12.5", "unused": "-", "notes": "fine"},
        {"name": "b", "rate": "3", "unused": "-", "notes": ""},
    ]
    table = tables.Table("Title", rows)
    table.print()
    out = capsys.readouterr().out
    assert "Title" in out and "[a]" in out and "unused" not in out
    lines = out.splitlines()
    ends = [line.index(cell) + len(cell) for line in lines for cell in ("12.5", " 3") if cell in line]
    assert len(ends) == 2 and ends[0] == ends[1]
    assert list(table.markdown()) == [
        "**Title**\n",
        "| name | rate | notes |",
        "|---|---|---|",
        "| [a] | 12.5 | fine |",
        "| b | 3 | |",
        "",
    ]


# Cases


def test_allowed_error_is_zero_for_integers_and_small_for_floats():
    exact, size = np.ones((1, 1)), np.full((1, 1), 100.0)
    allowed = {dtype: accuracy.allowed_error(Case(dtype, 1, 1, 64), size, exact).item() for dtype in DTYPES}
    assert allowed["s8"] == 0
    assert 0 < allowed["f64"] < 1e-11 < allowed["f16"] < allowed["bf16"] < allowed["tf32"] < 1


# Suites


def test_a_landscape_is_drawn_from_its_seed():
    chosen = landscape.problems(3, 700)
    assert chosen == landscape.problems(3, 700) != landscape.problems(4, 700)
    assert landscape.problems(3, 70, ["bf16"]) == [c for c in chosen if c.dtype == "bf16"][:70]
    assert {c.dtype for c in chosen} == set(gemm_cases.DTYPES)
    assert {c.group for c in chosen} >= {"landscape e4m3", "landscape e4m3 promoted"}
    for case in chosen:
        assert case.operations <= landscape.MAX_OPERATIONS and case.bytes <= landscape.MAX_BYTES
        if case.dtype in ("s8", "e4m3"):
            assert case.layout == "row.col" and not (case.M % 16 or case.N % 16 or case.K % 16)
    free = [c for c in chosen if c.dtype == "bf16"]
    assert {c.layout for c in free} == set(gemm_cases.LAYOUTS)
    assert min(c.M for c in free) <= 8 and max(c.M for c in free) >= 4096
    assert any(c.K % 8 for c in free) and any(c.K % 128 == 0 for c in free)


@pytest.mark.quick
def test_a_landscape_says_how_its_ratios_lie(tmp_path):
    pytest.importorskip("matplotlib")
    chosen = landscape.problems(0, 40, ["bf16"])
    results = [
        {**dataclasses.asdict(case), "operations": case.operations, "ratio": 0.9 + 0.01 * i}
        for i, case in enumerate(chosen)
    ]
    summary = {"target": "cuda", "suite": "landscape"}
    report = Report("gemm-landscape", {}, {}, results=results, summary=summary)
    gemm_summary.conclude(report)
    tables = {table.title: table.rows for table in gemm_summary.tables(report.json())}
    (mean,) = tables["Geometric means"]
    assert (mean["lowest"], mean["lowest tenth below"], mean["below 0.97"]) == ("0.900", "0.939", "18%")
    assert mean["median"] == "1.095"
    assert [row["ratio"] for row in tables["The worst"]] == [f"{0.9 + 0.01 * i:.3f}" for i in range(10)]
    assert "Drawn" in gemm_plot.draw(report, tmp_path / "map.png")


# Timing on a GPU


def test_sets_and_launches():
    assert gpu.sets_beyond_cache(30, 100) == 7
    assert gpu.sets_beyond_cache(10**9, 100) == 1
    assert gpu.launches_of(1e-5, 7) == 28 * 7 + 7 * 1  # 200 launches, in whole turns
    assert gpu.launches_of(1e-5, 300) == 300
    assert gpu.launches_of(5e-3, 3) == 3


class Stub:
    def __init__(self, name, log, seconds):
        self.name, self.log, self.seconds = name, log, iter(seconds)

    def sample(self):
        self.log.append(self.name)
        return next(self.seconds)


def test_launches_are_interleaved_both_ways():
    log = []
    timings = gpu.time_interleaved([Stub("a", log, (1, 2, 3)), Stub("b", log, (4, 5, 6))], 3, warm_up=0)
    assert "".join(log) == "abbaab"
    assert [t.samples for t in timings] == [(1, 2, 3), (4, 5, 6)]


def test_launches_settle_before_their_samples(monkeypatch):
    """Each run of a launch takes one second of a clock of its own."""
    runs = []
    monkeypatch.setattr(tutorial, "time", SimpleNamespace(perf_counter=lambda: len(runs)))
    monkeypatch.setattr(tutorial, "WARM_UP", 2)
    monkeypatch.setattr(tutorial, "SETTLE", 3)
    launches = [Stub(name, runs, range(100)) for name in "abcd"]
    timings = tutorial.time_settled(launches, 6)
    assert timings[1].samples == (3, 7, 11, 15, 19, 23), "three untimed runs, then the sample"
    assert "".join(runs[:2]) == "aa", "the common warm-up"
    groups = ["".join(runs[at : at + 4]) for at in range(2, len(runs), 4)]
    assert all(len(set(group)) == 1 for group in groups), "the untimed runs are of the same launch"
    rounds = ["".join(group[0] for group in groups[at : at + 4]) for at in range(0, 24, 4)]
    assert len(groups) == 24 and all(sorted(order) == list("abcd") for order in rounds)
    assert len(set(rounds)) > 2, "orders are random"


# Failures


def test_a_problem_that_fails_leaves_the_others():
    def broken(case):
        raise ValueError("no")

    result = harness.attempt(broken, Case("bf16", 1, 1, 1))
    assert result["failure"] == "ValueError: no"
    (table,) = tuning.tables({"results": [{**vars(Case("bf16", 1, 1, 1)), **result}]})
    assert table.rows == [{"notes": "ValueError: no"}]


# The page


@pytest.mark.quick
@pytest.mark.parametrize("path", page.TABLES_OF, ids=lambda path: path.stem)
def test_pages_are_current(path):
    """`python -m benchmarks report` brings them up to date."""
    text = path.read_text(encoding="utf-8")
    assert page.updated(text, shown=page.TABLES_OF[path]) == text


def results(directory, when, median, name="gemm-hopper"):
    gpu = {"name": "NVIDIA H200", "driver": "580.1", "power_limit_w": 700.0}
    report = Report(name, {}, {"reference": "cuBLASLt 13.2.4"}, {"gpu": gpu, "commit": "abc+"})
    report.date = when
    report.summary["target"] = "cuda"
    for case in suites.cases("hopper", ("odd", "mma")):
        entry = {**vars(case), "operations": case.operations, "chosen_family": "sm90", "tile": "128x256 s4"}
        for who, seconds in (("ours", median), ("reference", 1e-3)):
            entry[who] = {"median": seconds, "spread": 0.0, "samples": [seconds]}
        report.results.append(gemm_summary.derive(entry))
    del report.results[0]["reference"], report.results[0]["ratio"]
    report.results[0]["correct"] = False
    report.summary["groups"] = gemm_summary.summarise(report.results, "group")
    report.save(directory)


def test_page_shows_the_newest_results_and_keeps_the_rest(tmp_path):
    early, late = (datetime(2026, 1, day, tzinfo=timezone.utc) for day in (1, 2))
    results(tmp_path, late, 2e-3)
    results(tmp_path, early, 4e-3)
    text = f"before\n{page.BEGIN}\nold\n{page.END}\nafter\n"
    made = page.updated(text, tmp_path)
    assert made.startswith("before\n") and made.endswith(f"{page.END}\nafter\n") and "old" not in made
    assert page.updated(made, tmp_path) == made
    assert "### gemm-hopper on NVIDIA H200" in made
    assert "2026-01-02, driver 580.1, 700 W, cuBLASLt 13.2.4, commit abc+" in made
    assert "| mma.sync bf16 | 1 | 68.7 | 137 | 0.500 | - | 0.500 | 0 of 1 | |" in made
    assert "| 3.00 | 0.500 | 0 of 2 | 1 wrong |" in made
    assert "Triton" not in made, "empty columns are left out"
    assert "| 4095 x 4097 x 4099 | row.col | sm90 | 128x256 s4 | 68.8 | - | - | WRONG RESULT |" in made
    assert not [line for line in made.splitlines() if line != line.rstrip()]


def test_page_without_markers_is_refused(tmp_path):
    with pytest.raises(ValueError, match="needs one <!-- results: begin -->"):
        page.updated("no markers", tmp_path)
    assert page.EMPTY in page.updated(f"{page.BEGIN}{page.END}", tmp_path)


# The command


def run(tmp_path, *arguments):
    status = command.main([*arguments, "--out", str(tmp_path)])
    return status, [json.loads(path.read_text()) for path in sorted(tmp_path.glob("*.json"))]


def test_gemm_on_the_cpu(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    arguments = ("--target", "cpu", "--arch", "sm_80", "--sizes", "32,17x9x33", "--repeats", "2")
    status, (report,) = run(tmp_path, "gemm", *arguments, "--dtypes", "f16,s8")
    assert status == 0
    out = capsys.readouterr().out
    assert "sm_80" in out and "GFLOP/s" in out and "cuBLAS time" not in out
    assert (report["schema"], report["benchmark"]) == (2, "gemm-emulated")
    assert set(report) >= {"date", "options", "machine", "method", "summary", "results"}
    assert [r["dtype"] for r in report["results"]] == ["f16", "f16", "s8", "s8"]
    for result in report["results"]:
        ours = result["ours"]
        assert result["correct"] and len(ours["samples"]) == 2 and "reference" not in result
        assert ours["flops"] == pytest.approx(result["operations"] / ours["median"])
    rates = [r["ours"]["flops"] for r in report["results"][:2]]
    assert report["summary"]["dtypes"]["f16"]["flops"] == pytest.approx(math.sqrt(rates[0] * rates[1]))
    (plot,) = tmp_path.glob("*.png")
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_a_suite_is_not_emulated_by_the_way(tmp_path, capsys):
    """Its products would take hours; small ones are emulated when they are asked for."""
    arguments = ("gemm", "--suite", "hopper", "--target", "cpu", "--out", str(tmp_path))
    assert command.main(arguments) == 1
    told = capsys.readouterr().err
    assert "the suite hopper is for a GPU: its 96 GEMMs are 9.9e+13 operations" in told
    asked = told[told.index("(") + 1 : told.index(")")].split()
    assert not list(tmp_path.iterdir())
    small = ("--dtypes", "bf16", "--repeats", "1", "--no-plot")
    status, (report,) = run(tmp_path, "gemm", *asked, "--target", "cpu", *small)
    assert status == 0
    assert [(r["group"], r["M"], r["correct"]) for r in report["results"]] == [("square bf16", 256, True)]


def test_an_error_is_a_result(tmp_path, capsys, monkeypatch):
    def broken(case, repeats, seed):
        if case.dtype == "bf16":
            raise ValueError("out of\nluck")
        return on_cpu(case, repeats, seed)

    on_cpu = gemm.on_cpu
    monkeypatch.setattr(gemm, "on_cpu", broken)
    arguments = ("--target", "cpu", "--sizes", "16", "--repeats", "1", "--no-plot")
    status, (report,) = run(tmp_path, "gemm", *arguments, "--dtypes", "bf16,s8")
    assert status == 1
    assert report["results"][0]["failure"] == "ValueError: out of\nluck"
    assert report["results"][1]["correct"]
    assert report["summary"]["dtypes"]["bf16"]["failed"] == 1
    assert "out of luck" in capsys.readouterr().out


@pytest.mark.parametrize("dtype, error", [("s8", 1), ("bf16", 0.1)])
def test_a_wrong_product_fails_the_run(tmp_path, monkeypatch, capsys, dtype, error):
    def wrong(a, b, out, family, precision):
        out[...] = a.astype(np.float64) @ b.astype(np.float64)
        out[3, 5] += error

    monkeypatch.setattr(kernels, "gemm", wrong)
    arguments = ("--target", "cpu", "--sizes", "16", "--repeats", "1", "--no-plot", "--dtypes", dtype)
    status, (report,) = run(tmp_path, "gemm", *arguments)
    assert status == 1 and report["results"][0]["correct"] is False
    assert "WRONG RESULT" in capsys.readouterr().out


def test_cases_are_left_out_in_time(tmp_path):
    arguments = ("--target", "cpu", "--sizes", "16", "--no-plot", "--dtypes", "s8")
    status, (report,) = run(tmp_path, "gemm", *arguments, "--seconds", "1e-9")
    assert status == 0 and "--seconds" in report["results"][0]["left_out"]
    assert report["summary"]["dtypes"]["s8"]["left out"] == 1


@pytest.mark.parametrize("text", ["m16n8k64", "m64n8k", "m8n8k4"])
def test_every_form_is_measured(tmp_path, capsys, monkeypatch, text):
    """Every form is measured, with operands that mean something."""
    monkeypatch.setattr(forms, "WORK", 1)
    status, (report,) = run(tmp_path, "forms", "--repeats", "1", "--only", text)
    chosen = [x for x in forms.forms(()) if text in x[0].mnemonic]
    assert status == 0 and not [r for r in report["results"] if "failure" in r]
    assert [r["instruction"] for r in report["results"]] == [i.mnemonic for i, _ in chosen]
    slowest = min(report["results"], key=lambda result: result["flops"])
    assert "The slowest" in (printed := capsys.readouterr().out) and slowest["group"] in printed


def test_wgmma_operands_lie_where_the_descriptors_say():
    """The product of what is put into shared memory, as read by the instruction."""
    instr = tc.instruction("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16")
    rng = np.random.default_rng(0)
    shared = forms.shared(instr, rng)
    arguments = [forms.operand(instr, o, 1, rng) for o in instr.operands]
    arguments[0] = np.zeros_like(arguments[0])
    d = tc.emulate(instr, *arguments, arch="sm_90a", shared=shared)
    bf16 = tc.bf16.numpy
    a, b = (
        shared[start : start + rows * 32]
        .view(bf16)
        .reshape(rows // 8, 2, 8, 8)
        .transpose(0, 2, 1, 3)
        .reshape(rows, 16)
        .astype(np.float64)
        for start, rows in ((0, 64), (64 * 32, 256))
    )
    expected = np.sort((a @ b.T).ravel())
    np.testing.assert_allclose(np.sort(d.view(np.float32).ravel()), expected, atol=1e-3)


def test_the_benchmark_of_compilation_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(compile_time, "PORTABLE", {"f64": DTYPES["f64"]})
    monkeypatch.setenv("TENSORCORE_DSL_CACHE", str(tmp_path / "cubins"))
    monkeypatch.setattr(f64_gemm, "_specialisations", {})  # as if no test had compiled it before
    links = []
    plain = assemble._link
    monkeypatch.setattr(assemble, "_link", lambda *a: (links.append(a), plain(*a))[1])
    status, (report,) = run(tmp_path, "compile", "--repeats", "1", "--arch", "sm_80")
    (result,) = report["results"]
    assert status == 0 and "failure" not in result
    assert result["kernel"] == "f64_gemm" and result["ptx_lines"] > 100
    wanted = {"ir", "ptx", "program", "lookup"}
    if "no_cubin" not in result:
        wanted |= {"cubin", "cached"}
        assert len(links) == 5, "twice for each specialisation, cached or not, and for resources"
        assert result["registers"] > 0
    assert wanted <= set(result)


def test_the_benchmark_of_launches_runs_without_a_gpu(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("benchmarks.host.launch.BATCH", 3)
    monkeypatch.setattr("benchmarks.host.launch.driver.cuda_available", lambda: False)
    status, (report,) = run(tmp_path, "launch", "--rounds", "2")
    assert status == 0 and "NO GPU HERE" in capsys.readouterr().out
    assert all(0 < r["launch"]["median"] < 1 for r in report["results"])


def test_all_is_the_default_and_goes_on_after_an_error(tmp_path, monkeypatch, capsys):
    ran = []

    def run_one(module):
        def run(options):
            ran.append((module, options.quick))
            if module.endswith("launch"):
                raise RuntimeError("no driver")
            return Report("x", {}, {}, {})

        return run

    for module, _ in command.BENCHMARKS.values():
        __import__(module)
        monkeypatch.setattr(sys.modules[module], "run", run_one(module))
        monkeypatch.setattr(sys.modules[module], "tables", lambda document: ())
    monkeypatch.chdir(tmp_path)
    assert command.main(["--quick"]) == 1
    assert ran == [(module, True) for module, _ in command.BENCHMARKS.values()]
    assert "launch: RuntimeError: no driver" in capsys.readouterr().err


def test_results_go_to_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recorded = sorted(harness.RECORDED.iterdir())
    arguments = ["--target", "cpu", "--sizes", "16", "--dtypes", "s8", "--repeats", "1"]
    assert command.main(["gemm", *arguments, "--no-plot"]) == 0
    assert [path.name.startswith("gemm-emulated-") for path in tmp_path.iterdir()] == [True]
    assert sorted(harness.RECORDED.iterdir()) == recorded
    assert command.parser().parse_args(["gemm"]).out == Path()
    assert command.parser().parse_args(["gemm", "--record"]).out == harness.RECORDED


# Parts of a suite


def part(day, group, median, left_out=False, **machine):
    gpu = {"name": "NVIDIA H200", "driver": "580.1", "power_limit_w": 700.0}
    about = {"gpu": gpu, "versions": {"torch": "2"}, **machine}
    options = {"groups": [group], "dtypes": ["bf16"]}
    report = Report("gemm-hopper", options, {"reference": "cuBLASLt 13"}, about)
    report.date = datetime(2026, 1, day, tzinfo=timezone.utc)
    report.summary |= {"target": "cuda", "suite": "hopper", "tuned": 0}
    report.summary["ceilings"] = {"flops": {"bf16": day * 1e14}, "failures": {}, "bytes": 4e12}
    for case in suites.cases("hopper", (group,)):
        entry = {**vars(case), "operations": case.operations}
        if left_out:
            entry["left_out"] = "no time"
        else:
            for who, seconds in (("ours", median), ("reference", 1.0)):
                entry[who] = {"median": seconds, "spread": 0.0, "samples": [seconds]}
            entry["baselines"] = {"torch": {"median": 3.0}, "Triton": {"failure": "no"}}
        report.results.append(gemm_summary.derive(entry))
    return report


def test_parts_become_one_report(tmp_path, capsys):
    parts = [part(1, "odd", 4.0), part(2, "grouped", 2.0), part(3, "odd", 0.5)]
    parts += [part(4, "grouped", 0, left_out=True), part(5, "batched", 0, left_out=True)]
    paths = [str(each.save(tmp_path / "parts")) for each in parts]
    status, (report,) = run(tmp_path, "merge", *paths[::-1], "--no-plot")
    assert status == 0 and report["date"].startswith("2026-01-05")
    assert report["options"]["dtypes"] == ["bf16"] and report["options"]["count"] == 5
    assert [r["group"] for r in report["results"]] == ["odd bf16"] * 3 + ["batched bf16", "grouped bf16"]
    groups = report["summary"]["groups"]
    assert groups["odd bf16"]["ratio"] == pytest.approx(2), "the later of two"
    assert groups["odd bf16"]["baselines"] == {"torch": pytest.approx(6), "Triton": None}
    assert groups["grouped bf16"]["ratio"] == pytest.approx(0.5), "left out replaces nothing"
    assert groups["batched bf16"]["left out"] == 1
    assert report["summary"]["ceilings"]["flops"] == {"bf16": 5e14}
    assert [each["groups"] for each in report["summary"]["parts"]][0] == ["odd"]
    assert report["results"][0]["share"] > 0
    text = page.updated(f"{page.BEGIN}\n{page.END}", tmp_path)
    assert "| grouped bf16 | 1 |" in text and "| 1 left out |" in text
    assert "| bf16, `wgmma` on operands in shared memory | 500 TFLOP/s |" in text
    assert "64 times 512 x 512 x 512" in text


def of_examples(day, **medians):
    gpu = {"name": "NVIDIA H200", "driver": "580.1", "power_limit_w": 700.0}
    about = {"gpu": gpu, "versions": {"torch": "2"}, "commit": f"c{day}"}
    report = Report("examples", {"only": list(medians)}, {}, about, summary={"target": "cuda"})
    report.date = datetime(2026, 1, day, tzinfo=timezone.utc)
    for name, median in medians.items():
        timing = {"timing": {"median": median}, "rate": 1 / median, "unit": "B/s", "others": {}}
        report.results += [{"example": name, "problem": "small", "correct": True}]
        report.results += [{"example": name, "problem": "large"} | timing]
    return report


def test_parts_of_the_examples_become_one_report(tmp_path, capsys):
    parts = [of_examples(2, histogram=3.0), of_examples(1, histogram=9.0, reduction=4.0, fused_norm=5.0)]
    paths = [str(each.save(tmp_path / "parts")) for each in parts]
    status, (report,) = run(tmp_path, "merge", *paths, "--no-plot")
    assert status == 0 and report["date"].startswith("2026-01-02")
    large = [r for r in report["results"] if r["problem"] == "large"]
    assert [(r["example"], r["timing"]["median"]) for r in large] == [
        ("fused_norm", 5.0),
        ("histogram", 3.0),
        ("reduction", 4.0),
    ]
    assert "commits c1, c2" in page.updated(f"{page.BEGIN}\n{page.END}", tmp_path)


def test_parts_of_different_machines_do_not_mix():
    one, other = part(1, "odd", 1.0).json(), part(2, "odd", 1.0, versions={"torch": "3"}).json()
    with pytest.raises(ValueError, match="different machines; versions"):
        merge.merged([one, other])
    with pytest.raises(ValueError, match="launch and of gemm-hopper"):
        merge.merged([one, {**one, "benchmark": "launch", "date": "2025"}])
