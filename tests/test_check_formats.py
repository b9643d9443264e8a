"""The formats of `tensorcore-dsl check`: JSON by its schema, annotations of GitHub, SARIF."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import jsonschema
import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl.__main__ import main
from tensorcore_dsl.checking import formats
from tensorcore_dsl.checking.findings import CheckResult, Finding
from tensorcore_dsl.errors import Loc

DOCS = Path(__file__).parent.parent / "docs"

SCRIPT = """
import os
import sys
import numpy as np
import tensorcore_dsl as tc

def other_half(tile, out):
    é = 32; out[tc.threadIdx.x] = tile[(tc.threadIdx.x + é) % 64]

@tc.kernel
def hurried(x: tc.Array, out: tc.Array):
    tile = tc.shared(64, tc.s32)
    tile[tc.threadIdx.x] = x[tc.threadIdx.x]
    other_half(tile, out)

@tc.kernel
def alike(out: tc.Array):
    if tc.lane_id() == 0:
        out[tc.blockIdx.y] = 5

@tc.kernel
def produce(x: tc.Array):
    x[tc.threadIdx.x] = 1

@tc.kernel
def consume(x: tc.Array, out: tc.Array):
    out[tc.threadIdx.x] = x[tc.threadIdx.x]

def zeros():
    return np.zeros(64, np.int32)

print("printed")
os.system("echo by a process")
os.write(1, b"written\\n")
if sys.argv[1] == "clean":
    produce[1, 64](zeros())
elif sys.argv[1] != "idle":
    hurried[1, 64](zeros(), zeros())
    alike[(1, 2), 64](zeros())
    x = zeros()
    produce[1, 64](x)
    consume.configured(1, 64, pdl=True)(x, zeros())
    alike[(1, 2), 64](zeros()[:1])
if sys.argv[1] == "fails":
    raise ValueError
"""


def line(text: str) -> int:
    return 1 + SCRIPT.splitlines().index(text)


@pytest.fixture
def script(tmp_path, monkeypatch):
    """A script in a folder whose name needs escapes, seen from the folder above."""
    (tmp_path / "a,b c").mkdir()
    (tmp_path / "a,b c" / "s%.py").write_text(SCRIPT, "utf-8")
    monkeypatch.chdir(tmp_path)
    return "a,b c/s%.py"


def report(script: str, form: str, how: str) -> tuple[int, str]:
    """The status of a check and its report."""
    status = main(["check", "--format", form, "--output", "report", script, how])
    return status, Path("report").read_text("utf-8")


def validator() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json.loads((DOCS / "static" / "check.schema.json").read_text()))


# -- JSON ----------------------------------------------------------------------------------------


@pytest.fixture
def said(script):
    """The report of a script that makes all mistakes and then fails, as JSON."""
    status, text = report(script, "json", "fails")
    assert status == 1
    return json.loads(text)


def test_json_follows_its_schema(said):
    validator().validate(said)
    assert (said["ok"], said["launches"], said["failure"]) == (False, 5, "ValueError")


def test_json_has_both_accesses_of_a_race(said, script):
    race = said["findings"][0]
    assert (race["kind"], race["severity"], race["kernel"]) == ("Race", "error", "hurried")
    assert (race["file"], race["line"]) == (script, 8)
    assert race["column"] == SCRIPT.splitlines()[7].index("tile[") + 1  # behind a character of two bytes
    assert (race["cta"], race["thread"], race["launch"]) == ([0, 0, 0], [0, 0, 0], 1)
    assert race["other"]["line"] == line("    tile[tc.threadIdx.x] = x[tc.threadIdx.x]")
    assert (race["other"]["thread"], race["other"]["column"]) == ([32, 0, 0], 5)


def test_json_has_the_calls_the_bytes_and_the_cure_of_a_race(said):
    race = said["findings"][0]
    assert [call["line"] for call in race["calls"]] == [line("    other_half(tile, out)")]
    assert race["bytes"] == "element [32] of a shared s32 tile of 64 (shared bytes 0x80 to 0x83)"
    assert race["cure"] in race["message"] and "tc.barrier()" in race["cure"]


def test_json_of_what_is_no_race_inside_a_launch(said):
    _, dependent, outside = said["findings"]
    assert (dependent["kernel"], dependent["launch"]) == ("consume", 4)
    assert dependent["other"]["kernel"] == "produce"
    assert dependent["cure"] == "call tc.griddep_wait() before this access"
    assert outside["kind"] == "OutOfBounds" and outside["cta"] == [0, 1, 0] and outside["other"] is None
    (warning,) = said["warnings"]
    assert (warning["kind"], warning["severity"], warning["launch"]) == ("RaceWarning", "warning", 2)


def test_json_of_a_clean_script(script):
    for how, status, launches in (("clean", 0, 1), ("idle", 4, 0)):
        expected = {
            "version": 1, "ok": True, "launches": launches, "failure": "", "findings": [], "warnings": [],
        }  # fmt: skip
        validator().validate(expected)
        assert report(script, "json", how) == (status, json.dumps(expected, indent=2) + "\n")


def test_formats_say_that_nothing_was_launched(script):
    said = "no launch was made, so nothing was checked"
    assert report(script, "github", "clean") == (0, "\n")
    assert report(script, "github", "idle") == (4, f"::error title=No launch::{said}\n")
    _, text = report(script, "sarif", "clean")
    assert json.loads(text)["runs"][0]["invocations"] == [{"executionSuccessful": True}]
    _, text = report(script, "sarif", "idle")
    (invocation,) = json.loads(text)["runs"][0]["invocations"]
    assert not invocation["executionSuccessful"]
    assert [n["message"]["text"] for n in invocation["toolExecutionNotifications"]] == [said]


def test_the_schema_names_every_property():
    schema = json.loads((DOCS / "static" / "check.schema.json").read_text())
    finding = Finding.of(tc.Race("a race", Loc("a.py", 3)), "k")
    place, whole = (set(schema["$defs"][name]["properties"]) for name in ("place", "finding"))
    assert set(finding.as_dict()) == place | whole and set(finding.place.as_dict()) == place
    assert set(CheckResult().as_dict()) == set(schema["properties"])
    wrong = {**CheckResult().as_dict(), "findings": [{**finding.as_dict(), "thread": [1]}]}
    assert list(validator().iter_errors(wrong))


def test_errors_without_two_accesses():
    @tc.kernel
    def untidy(x: tc.Array):
        x[tc.threadIdx.x + 1000] = 1

    finding = untidy.check((1, 2), (2, 2))(np.zeros(4, np.int32)).findings[0]
    assert (finding.place.cta, finding.place.thread) == ([0, 0, 0], [0, 0, 0]) and finding.other is None
    unknown = Finding.of(tc.Deadlock("all wait"), "k")
    validator().validate({**CheckResult().as_dict(), "findings": [unknown.as_dict()]})
    assert unknown.place.as_dict() == {
        "kernel": "k", "file": None, "line": None, "column": None, "who": "", "cta": None, "thread": None,
    }  # fmt: skip


def test_the_other_access_of_a_missing_proxy_fence():
    @tc.kernel
    def unfenced(x: tc.Array):
        tile = tc.shared(64, tc.s32)
        tile[tc.threadIdx.x] = 3
        tc.barrier()
        if tc.threadIdx.x == 0:
            tc.emit("cp.async.bulk.global.shared::cta.bulk_group", x.at(0), tile.at(0), 256)
            tc.emit("cp.async.bulk.commit_group")
            tc.emit("cp.async.bulk.wait_group", 0)

    (finding,) = unfenced.check(1, 64)(np.zeros(64, np.int32)).findings
    assert finding.kind == "EmulationError" and finding.other is not None and finding.line is not None
    assert finding.other.line == finding.line - 3
    assert (
        finding.cure.startswith("tc.fence_proxy_async() (fence.proxy.async) must come between")
        and finding.cure in finding.message
    )


# -- GitHub --------------------------------------------------------------------------------------


def unescaped(text: str, more: dict[str, str]) -> str:
    """Decode a command's text like GitHub's runner."""
    for code, character in {"%0D": "\r", "%0A": "\n", **more, "%25": "%"}.items():
        text = text.replace(code, character)
    return text


def test_annotations_of_github(script):
    status, text = report(script, "github", "fails")
    assert status == 1
    commands = text.splitlines()
    assert [c.split(" ")[0] for c in commands] == ["::error"] * 3 + ["::warning", "::error"]
    properties, message = commands[0].removeprefix("::error ").split("::", 1)
    values = dict(item.split("=", 1) for item in properties.split(","))
    values = {k: unescaped(v, {"%3A": ":", "%2C": ","}) for k, v in values.items()}
    assert values == {"file": script, "line": "8", "col": "35", "title": "Race in kernel hurried"}
    finding = json.loads(report(script, "json", "fails")[1])["findings"][0]
    assert unescaped(message, {}) == finding["message"] and "% 64" in finding["message"]
    assert commands[-1] == "::error title=The script failed::ValueError"


def test_annotations_escape_what_commands_end_with():
    result = CheckResult(
        findings=[Finding.of(tc.Race("a: 5%, b\r\nc", Loc("/x:1,%/a.py", 3)), "k")], launches=1
    )
    assert formats.github(result) == (
        "::error file=/x%3A1%2C%25/a.py,line=3,title=Race in kernel k::a: 5%25, b%0D%0Ac"
    )


# -- SARIF ---------------------------------------------------------------------------------------


def test_sarif_has_the_properties_that_it_requires(script):
    """Properties that SARIF 2.1.0 requires, and what viewers show."""
    _, text = report(script, "sarif", "fails")
    log = json.loads(text)
    assert log["version"] == "2.1.0" and len(log["runs"]) == 1
    run = log["runs"][0]
    rules = run["tool"]["driver"]["rules"]
    said = json.loads(report(script, "json", "fails")[1])
    findings = [*said["findings"], *said["warnings"]]
    assert [rule["id"] for rule in rules] == ["Race", "OutOfBounds", "RaceWarning"]
    assert run["invocations"][0]["executionSuccessful"] is False
    base = run["originalUriBaseIds"]["%SRCROOT%"]["uri"]
    assert unquote(urlparse(base).path) == f"{Path.cwd()}/"
    for result, finding in zip(run["results"], findings, strict=True):
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"] == finding["kind"]
        assert result["level"] == finding["severity"] and finding["message"] in result["message"]["text"]
        (place,) = result["locations"]
        related = [] if finding["other"] is None else [finding["other"]]
        for location, where in zip(
            [place, *result["relatedLocations"]], [finding, *related, *finding["calls"]], strict=True
        ):
            physical = location["physicalLocation"]
            assert unquote(physical["artifactLocation"]["uri"]) == where["file"] == script
            assert " " not in physical["artifactLocation"]["uri"]
            assert physical["artifactLocation"]["uriBaseId"] == "%SRCROOT%"
            assert physical["region"] == {"startLine": where["line"], "startColumn": where["column"]}


def test_sarif_of_other_places():
    errors = [tc.Race("r", Loc("/else where/a.py", 3)), tc.Deadlock("d"), tc.Race("e", Loc("<string>", 1))]
    result = CheckResult(findings=[Finding.of(error, "k") for error in errors])
    outside, nowhere, unnamed = json.loads(formats.sarif(result))["runs"][0]["results"]
    location = outside["locations"][0]["physicalLocation"]
    assert location == {"artifactLocation": {"uri": "file:///else%20where/a.py"}, "region": {"startLine": 3}}
    assert nowhere["locations"] == unnamed["locations"] == []


@pytest.mark.parametrize(
    "error", [*tc.EmulationError.__subclasses__(), tc.RaceWarning, tc.PerformanceWarning]
)
def test_rules_lead_to_sections_of_the_docs(error):
    result = CheckResult(findings=[Finding.of(error("text"), "k")])
    (rule,) = json.loads(formats.sarif(result))["runs"][0]["tool"]["driver"]["rules"]
    assert rule["shortDescription"]["text"].endswith(".")
    page, section = rule["help"]["text"].removesuffix(" of tensorcore-dsl").split("#")
    titles = [t.lstrip("# ") for t in (DOCS.parent / page).read_text().splitlines() if t.startswith("#")]
    assert section in {title.lower().replace(" ", "-") for title in titles}


# -- where reports go ----------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["json", "sarif", "github"])
def test_the_standard_output_has_the_report_alone(script, form):
    """Without what the script, its processes and the text of the report print."""
    command = [sys.executable, "-m", "tensorcore_dsl", "check", "--format", form, script, "finds"]
    environment: dict[str, Any] = {"env": {**os.environ, "PYTHONPATH": str(DOCS.parent)}}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, **environment)
    assert done.returncode == 1, done.stderr
    if form == "github":
        assert all(text.startswith(("::error", "::warning")) for text in done.stdout.splitlines())
    else:
        json.loads(done.stdout)
    for text in ("printed", "by a process", "written", "5 launches checked: 3 findings, 1 warning"):
        assert f"{text}\n" in done.stderr


def test_a_report_in_a_file_leaves_the_standard_output_as_it_is(script, capsys):
    assert report(script, "text", "clean") == (0, "1 launch checked: no findings, no warnings\n")
    out = capsys.readouterr().out
    assert "printed\n" in out and out.endswith("1 launch checked: no findings, no warnings\n")


def test_json_has_an_option_of_its_own(script, capsys):
    assert main(["check", "--json", script, "clean"]) == 0
    assert json.loads(capsys.readouterr().out)["version"] == 1


def test_formats_that_do_not_exist(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["check", "--format", "xml", "a.py"])
    assert ended.value.code == 2 and "sarif" in capsys.readouterr().err
