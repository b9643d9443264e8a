"""`tensorcore-dsl view`: what its page holds, its errors, and the server on the loopback."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tensorcore_dsl.__main__ import main
from tensorcore_dsl.arch import arch
from tensorcore_dsl.codegen import nvdisasm
from tensorcore_dsl.interpreter.core.policy import executing
from tensorcore_dsl.interpreter.core.residency import limits
from tensorcore_dsl.kernels import tutorial
from tensorcore_dsl.viewer.observe import compiled, observe
from tensorcore_dsl.viewer.page import page, view

SCRIPT = str(Path(__file__).with_name("viewed_kernels.py"))
LINES = Path(SCRIPT).read_text().splitlines()


def key(text: str) -> str:
    """The key of the first line of the script with this text."""
    return f"{SCRIPT}:{next(number for number, line in enumerate(LINES, 1) if text in line)}"


READ, WRITTEN = key("total += tile"), key("tile[row, tc.threadIdx.x] = x")


@pytest.fixture(scope="module")
def columns():
    return view(*observe(SCRIPT, "columns"))


def lines_of(shown, name, place):
    listing = shown["assembly"][name]
    return [text for text, of in zip(listing["lines"], listing["keys"], strict=True) if of == place]


def test_lines_of_ir_ptx_and_sass_lead_to_the_line_of_python(columns):
    assert len([line for line in lines_of(columns, "PTX", READ) if "ld.shared" in line]) == 32
    assert len([line for line in lines_of(columns, "IR", READ) if "ld.shared" in line]) == 32
    assert any("bar.sync" in line for line in lines_of(columns, "PTX", key("tc.barrier()")))
    assert not any(".loc" in line for line in columns["assembly"]["PTX"]["lines"])


def test_sass_is_that_of_the_assembler(columns):
    pytest.importorskip("cuda.core", reason="needs nvJitLink")
    sass = columns["assembly"]["SASS"]
    assert any("LDS" in line for line in lines_of(columns, "SASS", READ))
    assert any("LDG" in line for line in lines_of(columns, "SASS", WRITTEN))
    registers = dict((name, value) for name, value, _ in columns["numbers"])["registers"]
    assert 0 < max(filter(None, sass["live"])) <= int(registers)


def test_counts_stand_at_their_lines(columns):
    read, written = columns["counts"][READ], columns["counts"][WRITTEN]
    assert read["traffic"] == [["shared", "load", 4096, 1024, 32]]
    assert ["global", "load", 4096, 1024, 128] in written["traffic"]
    products = [line for line in lines_of(columns, "PTX", READ) if not line.lstrip().startswith("mov")]
    assert read["instructions"] == len(products)
    cycles = [sum(counts.get("cycles", {}).values()) for counts in columns["counts"].values()]
    assert sum(cycles) == pytest.approx(columns["timeline"]["cycles"], rel=0.02)


def test_a_call_has_the_time_of_what_it_calls(columns):
    call = columns["counts"][key("        load(tile, x, row)")]
    assert call["inside"] == pytest.approx(sum(columns["counts"][WRITTEN]["cycles"].values()), rel=0.01)
    assert not call.get("cycles")


def test_kernels_of_other_compilers_run_and_are_not_shown(tmp_path):
    script = tmp_path / "foreign.py"
    foreign = (
        "import tensorcore_dsl as tc\n"
        "text = '.version 8.0\\n.target sm_90\\n.address_size 64\\n.visible .entry nothing() { ret; }'\n"
        "tc.ptx.load(text).nothing[1, 32]()\n"
    )
    script.write_text(foreign + Path(SCRIPT).read_text())
    assert [seen.name for seen in observe(str(script), None)] == ["columns", "reverse", "outside"]


def test_source_has_the_kernel_first_and_the_functions_that_it_calls(columns):
    firsts = [(part["file"], part["first"]) for part in columns["sources"]]
    calls = [int(key(text).rpartition(":")[2]) for text in ("def columns", "def load")]
    assert firsts == [("viewed_kernels.py", calls[0] - 1), ("viewed_kernels.py", calls[1])]
    assert re.sub("<.*?>", "", columns["sources"][1]["html"][0]) == LINES[calls[1] - 1]


def test_a_relative_path_names_the_same_lines(columns, monkeypatch):
    """Also where the IR lies on the disk, from a process that named the file otherwise."""
    monkeypatch.chdir(Path(SCRIPT).parent)
    shown = view(*observe("viewed_kernels.py", "columns"))
    assert len(shown["sources"]) == 2 and shown["counts"].keys() == columns["counts"].keys()
    assert [shown["assembly"][name]["keys"] for name in ("IR", "PTX", "SASS")] == [
        columns["assembly"][name]["keys"] for name in ("IR", "PTX", "SASS")
    ]


@pytest.mark.parametrize("call", ["check(1, 64)", "check(1, 64, in_place=True)", "explore(2)[1, 64]"])
def test_launches_that_are_checked_are_seen(call, tmp_path):
    script = tmp_path / "checked.py"
    kernel = "@tc.kernel\ndef step(x: tc.Array):\n    x[tc.threadIdx.x] += 1\n"
    calls = f"x = np.zeros(64, np.float32)\nstep.{call}(x)\nstep[1, 64](x)\nprint(x.sum())\n"
    script.write_text(f"import numpy as np\nimport tensorcore_dsl as tc\n{kernel}{calls}")
    for wanted, number in (("step", 1), (None, 1), ("step", 2)):
        (seen,) = observe(str(script), wanted, number=number)
        assert seen.name == "step" and seen.report is not None and seen.result.ok


def test_findings_stand_at_their_lines():
    with executing(regions=False):  # compiled regions may meet the two accesses in the other order
        (race,) = view(*observe(SCRIPT, "reverse"))["findings"]
    assert (race["kind"], race["key"], race["other"]) == (
        "Race",
        key("= tile[63"),
        key("tile[tc.threadIdx.x] = x"),
    )


def test_a_launch_that_fails_is_shown_with_its_finding():
    shown = view(*observe(SCRIPT, "outside"))
    assert [one["kind"] for one in shown["findings"]] == ["OutOfBounds"]
    assert not shown["complete"] and shown["timeline"] is None and shown["counts"] == {}
    assert lines_of(shown, "PTX", key("tc.threadIdx.x + 1"))


def test_types_are_enough_for_the_texts(tmp_path, capsys):
    shown = view(*compiled(f"{SCRIPT}:columns", ["f32[?,1]", "f32[1]", "f32", "swizzle=128"]))
    assert lines_of(shown, "PTX", READ) and not shown["run"] and shown["counts"] == {}
    assert shown["arguments"][0].startswith("x: ") and shown["arguments"][-1] == "swizzle = 128"
    assert "occupancy" not in [name for name, *_ in shown["numbers"]], "the block is not known"
    target = str(tmp_path / "page.html")
    assert main(["view", "--export", target, "--types", f"{SCRIPT}:columns", "f32[?,1]"]) == 2
    assert "needs types for" in capsys.readouterr().err


def test_without_a_kernel_all_are_shown(capfd):
    assert [seen.name for seen in observe(SCRIPT, None, ["3"], arch="sm_80")] == [
        "columns",
        "reverse",
        "outside",
    ]
    assert capfd.readouterr().out == "rows: 3\n"


def test_the_timeline_has_tensor_cores_and_copies():
    path = tutorial.load_step(5).__file__
    shown = view(*observe(path, "matmul"))
    assert len(shown["timeline"]["tracks"]) == 12 and shown["timeline"]["stages"]
    (product,) = {place for _, _, place in shown["timeline"]["products"]}
    source = Path(path).read_text().splitlines()
    assert "wgmma_async" in source[int(product.rpartition(":")[2]) - 1]
    occupancy = next(text for name, _, text in shown["numbers"] if name == "occupancy")
    assert occupancy.startswith("1 CTA of 384 threads on an SM, 12 of 64 warps")


@pytest.mark.parametrize(
    "threads, shared, registers, least",
    [
        (256, 0, 32, ("threads", 8)),
        (32, 0, 16, ("CTAs", 32)),
        (128, 100 * 1024, 32, ("shared memory", 2)),
        (256, 0, 128, ("registers", 2)),
        (384, 0, 168, ("registers", 1)),  # 5376 of a warp: 3 warps in each of the 4 partitions
    ],
)
def test_occupancy(threads, shared, registers, least):
    """The occupancy calculator of the CUDA toolkit gives these for compute capability 9.0."""
    held = limits(arch("sm_90a"), threads, shared, registers)
    assert min(held.items(), key=lambda item: item[1]) == least


def test_without_nvdisasm_the_page_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(nvdisasm, "installed", lambda name: iter(()))
    sass = view(*observe(SCRIPT, "reverse"))["assembly"]["SASS"]
    assert sass["missing"] and "pip install 'tensorcore-dsl[" in "".join(sass["lines"])


def test_the_page_refers_to_nothing_else(columns):
    text = page(observe(SCRIPT, "reverse"))
    assert not re.search(r'(?:src|href)="(?!data:)|https?://(?!ui\.perfetto)|@import|url\(', text)
    data = re.search(r'id="data">(.*?)</script>', text, re.S)[1]
    assert [one["name"] for one in json.loads(data)] == ["reverse"]


def test_a_page_is_written_to_a_file(tmp_path, capsys):
    target = tmp_path / "page.html"
    assert main(["view", "--export", str(target), f"{SCRIPT}:columns"]) == 0
    assert capsys.readouterr().out.endswith(f"wrote {target}\n") and "columns" in target.read_text()


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        ([f"{SCRIPT}:rows"], "no launch of the kernel 'rows'; it launches columns, outside, reverse"),
        (
            ["--launch", "2", f"{SCRIPT}:columns"],
            "has no launch 2 of columns; it launches columns, outside, reverse: --launch takes 1",
        ),
        (["--launch", "2", SCRIPT], "has no launch 2 of any kernel; it launches columns, outside, reverse"),
        (
            ["kernels.ptx"],
            "'kernels.ptx' is a file of PTX; `view` takes Python. `tensorcore-dsl ptx kernels.ptx`",
        ),
        (["nowhere.py:k"], "cannot read 'nowhere.py'"),
        (["--arch", "sm_1", f"{SCRIPT}:columns"], "unknown architecture 'sm_1'"),
    ],
)
def test_errors_of_the_script_are_shown(arguments, complaint, tmp_path, capsys):
    assert main(["view", "--export", str(tmp_path / "page.html"), *arguments]) == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize("number", ["0", "-3", "x"])
def test_a_number_of_no_launch(number, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["view", f"--launch={number}", SCRIPT])
    assert ended.value.code == 2
    assert f"'{number}' is not a number of a launch; the first one is 1" in capsys.readouterr().err


NUMBA = """
import numpy as np
from numba import cuda

@cuda.jit
def double(x):
    x[cuda.grid(1)] *= 2

double[1, 32](np.ones(32, np.float32))
"""


@pytest.mark.parametrize("kernel", ["", ":double"])
def test_a_script_of_another_compiler(kernel, tmp_path, capsys):
    pytest.importorskip("numba.cuda")
    (script := tmp_path / "script.py").write_text(NUMBA)
    assert main(["view", "--export", str(tmp_path / "page.html"), f"{script}{kernel}"]) == 2
    text = capsys.readouterr().err
    assert "`view` shows kernels of @tc.kernel; of another compiler: double. " in text
    assert f"`tensorcore-dsl check {script}` runs them with all checks, and tc.ptx loads their PTX" in text


def test_a_script_that_fails_before_a_launch(tmp_path, capsys):
    (script := tmp_path / "script.py").write_text("raise KeyError(1)")
    assert main(["view", "--export", str(tmp_path / "page.html"), str(script)]) == 1
    assert "script.py fails before a launch that `view` can show: KeyError" in capsys.readouterr().err


def test_a_target_that_cannot_be_written(capsys):
    assert main(["view", "--export", "/nowhere/page.html", f"{SCRIPT}:reverse"]) == 2
    assert "cannot write '/nowhere/page.html': No such file" in capsys.readouterr().err


@pytest.fixture
def served(tmp_path):
    """(script, port) of a running `tensorcore-dsl view`."""
    script = tmp_path / "script.py"
    script.write_text(Path(SCRIPT).read_text())
    command = [sys.executable, "-m", "tensorcore_dsl", "view", f"{script}:reverse"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield script, int(re.search(r"127\.0\.0\.1:(\d+)/", running.stdout.readline())[1])
    finally:
        running.terminate()
        running.wait()


def get(port, path="/", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


@pytest.mark.thorough
def test_the_server_makes_the_page_again_when_the_script_changes(served):
    script, port = served
    status, text = get(port)
    assert status == 200 and '"kind":"Race"' in text
    _, before = get(port, "/version")
    assert f'!== "{before}") location.reload()' in text
    script.write_text("1 / 0")
    assert get(port, "/version")[1] != before
    assert "ZeroDivisionError" in get(port)[1]


def test_the_server_answers_to_the_names_of_the_loopback_only(served, capsys):
    port = served[1]
    assert get(port, "/version", Host="evil.example")[0] == 403
    assert get(port, "/version", Host=f"localhost:{port}")[0] == 200
    assert get(port, "/other")[0] == 404
    assert main(["view", "--port", str(port), f"{SCRIPT}:reverse"]) == 2
    assert f"cannot serve on port {port}" in capsys.readouterr().err
