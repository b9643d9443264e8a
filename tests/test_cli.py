"""The program `tensorcore-dsl`: the table on a terminal, the demo, caches, help, errors."""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import isa
from tensorcore_dsl.__main__ import MAX_LISTED, main, parser
from tensorcore_dsl.codegen import kernel_cache
from tensorcore_dsl.codegen.cubin import Cubin
from tensorcore_dsl.environment import disk_cache
from tensorcore_dsl.isa.description import constructor, describe, search
from tensorcore_dsl.isa.effects import MEANINGS, members
from tensorcore_dsl.kernel import installation
from tensorcore_dsl.kernels import demo
from tensorcore_dsl.kernels.choosing import tuning_cache
from tensorcore_dsl.runtime import targets

MMA = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"


def printed(capsys, *arguments):
    assert main(arguments) == 0
    return capsys.readouterr().out


def refused(capsys, *arguments):
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert not out
    return err


def test_a_card_says_everything(capsys):
    text = printed(capsys, "show", MMA)
    for part in (
        f"{MMA} {{d0, d1, d2, d3}}, {{a0, a1, a2, a3}}, {{b0, b1}}, {{c0, c1, c2, c3}};",
        "tc.mma.m16n8k16(tc.bf16, tc.bf16, tc.f32)",
        "sm_80 or later",
        "7.0 or later",
        "section 9.7.14.5.14",
        "all 32 lanes",
        "2 registers of 32 bits in each of 32 threads, mma.B.16x8.bf16",
    ):
        assert part in text
    # Figure of the manual: row 9 of A, column 0 is a2 (register 1, low half) of lane 4.
    assert re.search(r"^ +9  T4:2  T4:3  T5:2", text, re.M)


def test_layouts_can_be_left_out(capsys):
    assert "T0:0" not in printed(capsys, "show", "--no-layouts", MMA)


def test_wide_layouts_are_cut_and_say_so():
    instr = isa.wgmma.m64n256k16("bf16", "bf16", "f32")
    text = describe(instr, width=100)
    assert "rows 0 to 31, columns 0 to" in text
    assert all(len(line) <= 100 for line in text.splitlines() if re.match(r" +\d+ +T", line))


def test_several_instructions_have_several_descriptions(capsys):
    text = printed(capsys, "show", "add.rn.f32", "bar.sync")
    assert "add.rn.f32 d, a, b;" in text and "bar.sync id;" in text


@pytest.mark.thorough
def test_show_plots(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    text = printed(capsys, "show", "--plot", str(tmp_path), MMA)
    files = sorted(tmp_path.iterdir())
    assert [f.name.rsplit(".", 2)[1] for f in files] == ["a", "b", "d"]
    assert all(f.read_bytes().startswith(b"\x89PNG") and str(f) in text for f in files)


@pytest.mark.parametrize("opcode", isa.opcodes())
def test_every_instruction_has_a_description(opcode):
    """Each instruction (of wgmma: a part) can be shown, its effects in words."""
    for instr in list(isa.instructions(opcode))[:: 11 if opcode == "wgmma" else 1]:
        text = describe(instr, layouts=False)
        assert instr.mnemonic in text and "no known target" not in text, instr
        assert all(MEANINGS[effect] in text for effect in members(instr.effects)), instr


def test_constructors_lead_back_to_their_instructions():
    """What `show` prints under "in a kernel" makes that very instruction."""
    import tensorcore_dsl as tc

    every = [f for f in isa.instructions("mma")] + list(isa.instructions("wgmma"))[::37]
    for instr in every:
        text = constructor(instr)
        assert text is not None, instr
        assert eval(text, {"tc": _Offered(tc)}) is instr, text


class _Offered:
    """The package, with namespaces of instructions from the table itself."""

    def __init__(self, package):
        self._package = package

    def __getattr__(self, name):
        return getattr(self._package, name, None) or getattr(isa, name)


def test_list_chooses(capsys):
    text = printed(
        capsys, "list", "--opcode", "mma", "--dtype", "e4m3", "--shape", "m16n8k16", "--arch", "sm_89"
    )
    lines = text.splitlines()
    assert lines[-1] == f"{len(lines) - 1} instructions"
    assert all("m16n8k16" in line and "e4m3" in line for line in lines[:-1])
    assert "mma.sync.aligned.m16n8k16.row.col.f32.e4m3.e5m2.f32" in text


def test_list_takes_other_names_of_types(capsys):
    short = printed(capsys, "list", "--opcode", "mma", "--dtype", "f16")
    assert printed(capsys, "list", "--opcode", "mma", "--dtype", "float16") == short


def test_architectures_are_told_apart():
    everywhere = search(opcode="mma", dtype="e4m3")
    assert not search(opcode="mma", dtype="e4m3", arch="sm_80")
    ada, rtx = (search(opcode="mma", dtype="e4m3", arch=a) for a in ("sm_89", "sm_120a"))
    assert 0 < len(ada) < len(rtx) <= len(everywhere)


def test_list_is_cut_until_all_are_wanted(capsys):
    short = printed(capsys, "list", "--opcode", "setp").splitlines()
    assert len(short) == MAX_LISTED + 2 and "--all" in short[-2]
    every = printed(capsys, "list", "--opcode", "setp", "--all").splitlines()
    assert len(every) == len(list(isa.instructions("setp"))) + 1


def test_list_alone_counts_opcodes(capsys):
    text = printed(capsys, "list")
    assert re.search(rf"^mma +{len(list(isa.instructions('mma')))}$", text, re.M)
    assert f"instructions of {len(isa.opcodes())} opcodes" in text


@pytest.mark.parametrize(
    "arguments, parts",
    [
        (["show", MMA.replace("k16", "k17")], ["m16n8k17 is not allowed", ".m16n8k8, .m16n8k16"]),
        (["show", "mna.sync"], ["no instruction is called 'mna'", "mma"]),
        (["list", "--opcode", "mna"], ["no instruction is called 'mna'", "mma"]),
        (["list", "--opcode", "mma", "--shape", "m3n3k3"], ["m3n3k3", "m8n8k4"]),
        (["list", "--opcode", "add", "--shape", "m16n8k16"], ["m16n8k16", "have none"]),
        (["list", "--dtype", "f17"], ["'f17'", "bf16"]),
        (["list", "--arch", "sm_42"], ["'sm_42'", "sm_90a"]),
    ],
)
def test_errors_name_what_there_is(capsys, arguments, parts):
    text = refused(capsys, *arguments)
    assert text.startswith("error: ")
    for part in parts:
        assert part in text


def test_pictures_that_cannot_be_written(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    (tmp_path / "file").touch()
    assert main(["show", "--no-layouts", "--plot", str(tmp_path / "file"), MMA]) == 2
    text = capsys.readouterr().err
    assert text == f"error: cannot write pictures to '{tmp_path / 'file'}': File exists\n"


def test_check_prints_to_a_terminal_of_few_characters(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        """
import numpy as np
import tensorcore_dsl as tc

@tc.kernel
def reverse(x: tc.Array):
    tile = tc.shared(32, tc.f32)
    tile[tc.lane_id()] = 1
    x[tc.lane_id()] = tile[31 - tc.lane_id()]  # \u00e9

reverse.emulate[1, 32](np.zeros(32, np.float32))
""",
        "utf-8",
    )
    command = [sys.executable, "-m", "tensorcore_dsl", "check", str(script)]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 1 and "UnicodeEncodeError" not in ended.stderr
    assert "# \\xe9" in ended.stdout


def test_a_reader_may_stop_early():
    """`list --all | head -1` ends without a trace."""
    command = [sys.executable, "-m", "tensorcore_dsl", "list", "--all", "--opcode", "wgmma"]
    pipe = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert pipe.stdout.readline()
    pipe.stdout.close()
    assert not pipe.stderr.read()
    pipe.stderr.close()
    assert pipe.wait() == 0


# -- what is installed -----------------------------------------------------------------------------


def test_info_says_what_there_is(capsys, monkeypatch):
    monkeypatch.setenv("TENSORCORE_DSL_CHEKS", "1")
    monkeypatch.setenv("TENSORCORE_DSL_DUMP", "here")
    text = printed(capsys, "info")
    parts = dict(re.findall(r"^(\S.*):\n((?:    .*\n)+)", text, re.M))
    assert list(parts) == ["versions", "GPUs", "kernels run", "assemblers", "cache", "variables", "missing"]
    assert f"tensorcore-dsl {tc.__version__}" in parts["versions"] and "numpy" in parts["versions"]
    assert "TENSORCORE_DSL_DUMP=here\n" in parts["variables"]
    assert "_CHEKS=1  (unknown; did you mean TENSORCORE_DSL_CHECKS?)" in parts["variables"]
    assert parts["kernels run"] == "    on cpu, as sm_90a\n"


def test_info_of_a_machine_without_assemblers(capsys, monkeypatch):
    monkeypatch.setattr(installation.ptxas, "candidates", lambda: ())
    monkeypatch.setattr(installation, "installed", lambda name: iter(()))
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvjitlink", None)
    text = printed(capsys, "info").partition("missing:")[2]
    for what in ("nvJitLink, for machine code", "ptxas, for kernels with setmaxnreg", "nvdisasm, for SASS"):
        assert what in text


def test_info_knows_every_variable():
    """Those that the code reads, and those that the docs name, are the same."""
    root = Path(tc.__file__).parent
    sources = [*root.rglob("*.py"), *(root.parent / "kernels").rglob("*.py")]
    read = {
        name for path in sources for name in re.findall(r'"(TENSORCORE_DSL_\w+)"', path.read_text("utf-8"))
    }
    told = re.findall(
        r"^\| `(TENSORCORE_DSL_\w+)`", (root.parent / "docs/deploying.md").read_text("utf-8"), re.M
    )
    assert read | {targets.TARGET_VARIABLE} == set(installation.VARIABLES) == set(told)


def test_completion_lists_options_and_commands(capsys):
    pytest.importorskip("shtab")
    text = printed(capsys, "completion", "bash")
    assert "--resources" in text and "export" in text


def test_completion_without_shtab(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert "pip install 'tensorcore-dsl[completion]'" in refused(capsys, "completion", "zsh")


# -- kernels of a file -----------------------------------------------------------------------------

KERNEL = """
import tensorcore_dsl as tc
SIZE = 64

@tc.kernel(threads=64)
def scale(x: tc.Array, y: tc.Array, factor: tc.f32, count: tc.Const = 1, *, last: tc.Array | None = None):
    x[tc.threadIdx.x] = y[tc.threadIdx.x, 0] * factor * count
if __name__ == "__main__":
    raise SystemExit("the file is run as a script")
"""


@pytest.fixture
def place(tmp_path):
    (tmp_path / "own.py").write_text(KERNEL)
    return f"{tmp_path / 'own.py'}:scale"


def test_compile_prints_what_is_asked_for(capsys, place):
    text = printed(
        capsys, "compile", place, "f32[1]", "f16[?,?]@4:ro", "f32", "count=SIZE + 1", "--ptx", "--ir"
    )
    assert text.startswith("kernel scale") and ".visible .entry scale" in text and ".target sm_90a" in text
    assert "0f42820000" in text  # 65


def test_compile_takes_types_of_scalars_from_annotations_and_defaults(capsys, tmp_path):
    (tmp_path / "own.py").write_text(
        "import tensorcore_dsl as tc\n@tc.kernel\n"
        "def k(x: tc.Array, a: tc.f64, b: tc.s32 = 2, c=1.5, d: tc.f16 | None = None):\n"
        "    x[0] = a + b + c + (1 if d is None else d)\n"
    )
    for types, expected in (
        (["f32[1]"], "a:f64 b:s32 c:f32"),
        (["f32[1]", "f64", "d=f16"], "a:f64 b:s32 c:f32 d:b16"),
    ):
        text = printed(capsys, "compile", f"{tmp_path / 'own.py'}:k", *types, "--ir")
        head = text.splitlines()[0]
        assert " ".join(f"{a}:{b}" for a, b in re.findall(r"\b([a-d]) = %\d+:(\w+)", head)) == expected


def test_compile_prints_resources(capsys, place):
    pytest.importorskip("cuda.core", reason="needs nvJitLink")
    text = printed(capsys, "compile", place, "f32[1]", "f32[1,?]", "f32", "--arch", "sm_80")
    assert re.search(r"^registers: \d+\nspill_stores: 0$", text, re.M)


def test_compile_prints_machine_code(capsys, place):
    pytest.importorskip("cuda.core", reason="needs nvJitLink")
    arguments = ("compile", place, "f32[1]", "f32[1,?]", "f32", "--sass", "--arch", "sm_90a")
    if not any(path.is_file() for path in installation.installed("nvdisasm")):
        assert main(arguments) == 1 and "there is no nvdisasm" in capsys.readouterr().err
        return
    assert "EXIT" in printed(capsys, *arguments)


def test_export_writes_a_launcher(capsys, place, tmp_path):
    folder = tmp_path / "exported"
    for grid in (["--grid", "cdiv(x.shape[0], 64)", "--grid", "2"], ["--grid", "cdiv(x.shape[0], 64), 2"]):
        options = ["--form", "ptx", *grid, "--name", "own", "--pdl"]
        text = printed(capsys, "export", place, "f32[1]", "f32[1,?]", "f32", "--out", str(folder), *options)
        assert text == f"{folder / 'own.json'}\n"
        assert "(cdiv(x.shape[0], 64), 2, 1)" in (folder / "own.h").read_text()


@pytest.mark.parametrize(
    "types, message",
    [
        (["f17[1]"], "'f17[1]' names no type; types are written as f32 (a number)"),
        (["f16[?,1]@3"], "align is 1, 2, 4, 8, 16 (bytes), not 3"),
        (["f32[1]"], "scale needs types for y: f32 (a number)"),
        (["f32[1]"] * 5, "scale takes 4 types (x, y, factor, last)"),
        (["count=SIZ"], "'count=SIZ': NameError"),
        (["size=2"], "'size=2': the parameters are x, y, factor, last, count"),
    ],
)
def test_types_that_are_refused(capsys, place, types, message):
    assert message in refused(capsys, "compile", place, *types)


@pytest.mark.parametrize(
    "place, message",
    [
        ("own.py", "'own.py' names no kernel; write file.py:kernel"),
        ("nowhere.py:scale", "there is no file 'nowhere.py'"),
        (f"{__file__}:scale", "has no kernel 'scale'"),
    ],
)
def test_kernels_that_are_not_there(capsys, place, message):
    assert message in refused(capsys, "compile", place)


def test_a_kernel_of_another_compiler_has_no_export(capsys, tmp_path):
    pytest.importorskip("numba.cuda")
    (path := tmp_path / "own.py").write_text("from numba import cuda\n@cuda.jit\ndef k(x):\n    x[0] = 1\n")
    for command in (["compile"], ["export", "--out", str(tmp_path)]):
        text = refused(capsys, *command, f"{path}:k")
        assert (
            "is not a kernel of @tc.kernel but of another compiler; tc.ptx takes it, and `tensorcore-dsl check`"
            in text
        )


def test_a_kernel_with_a_mistake_is_a_failure(capsys, tmp_path):
    """Exit status 1, not 2, as its arguments on the command line are right."""
    path = tmp_path / "own.py"
    path.write_text("import tensorcore_dsl as tc\n@tc.kernel\ndef k(x: tc.Array):\n    x[0] = missing\n")
    assert main(["compile", f"{path}:k", "f32[1]"]) == 1
    assert "missing" in capsys.readouterr().err


def test_a_file_that_is_no_python(capsys, tmp_path):
    (path := tmp_path / "own.py").write_text("def (\n")
    assert "own.py' is no Python: invalid syntax" in refused(capsys, "compile", f"{path}:k", "f32")


# -- help ------------------------------------------------------------------------------------------


def commands():
    (actions,) = (a for a in parser()._actions if isinstance(a, argparse._SubParsersAction))
    return actions.choices


def test_the_version_is_printed(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"tensorcore-dsl {tc.__version__}\n"


def test_commands():
    assert set(commands()) == {
        "show", "list", "demo", "bench", "check", "compile", "export", "cache", "museum", "ptx",
        "view", "info", "completion",
    }  # fmt: skip


@pytest.mark.parametrize("name", [None, *commands()])
def test_help_explains_each_option_and_runs_nothing(name, capsys, monkeypatch):
    chosen = parser() if name is None else commands()[name]
    for action in chosen._actions:
        explained = action.help or isinstance(action, argparse._SubParsersAction)
        assert explained, f"{name} {action.option_strings or action.dest}"
    monkeypatch.setattr(demo, "table", lambda results: pytest.fail("--help runs the demo"))
    with pytest.raises(SystemExit) as ended:
        main(["--help"] if name is None else [name, "--help"])
    out = capsys.readouterr().out
    assert ended.value.code == 0 and out.startswith(f"usage: tensorcore-dsl {name or '[-h]'}")
    assert all(option in out for action in chosen._actions for option in action.option_strings)


def test_without_a_command_it_explains_itself(capsys):
    assert main([]) == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: tensorcore-dsl") and all(name in out for name in commands())


def test_the_module_is_the_program():
    for module in ("tensorcore_dsl", "tensorcore_dsl.kernels.demo"):
        done = subprocess.run([sys.executable, "-m", module, "-h"], capture_output=True, text=True)
        assert done.returncode == 0 and done.stdout.startswith("usage: "), done.stderr
        assert "GFLOP/s" not in done.stdout


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["bake"], "invalid choice: 'bake'"),
        (["bench", "--sizes", "4x4"], "'4x4' is not a size; write MxNxK, or N for NxNxN"),
        (["bench", "--sizes", "0"], "'0' is not a size"),
        (["bench", "--sizes", "4xyx4"], "'4xyx4' is not a size"),
        (["bench", "--dtypes", "bf16,f17"], "'f17' is not one of f16, bf16, f32, s8, f64"),
        (["bench", "--orders", "row"], "'row' is not one of row.row, row.col, col.row, col.col"),
        (["demo", "--target", "tpu"], "invalid choice: 'tpu'"),
        (["cache", "--clear", "disk"], "invalid choice: 'disk'"),
    ],
)
def test_wrong_usage_is_refused(arguments, message, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2 and message in capsys.readouterr().err


# -- demo and bench --------------------------------------------------------------------------------


def test_bench_times_what_is_named(capsys):
    out = printed(
        capsys,
        "bench",
        "--arch",
        "sm_80",
        "--sizes",
        "32,20x16x24",
        "--dtypes",
        "f16,s8",
        "--orders",
        "col.row",
    )
    head, *rows = out.splitlines()
    assert head.split()[-2:] == ["error", "verdict"]
    assert [row.split()[:7] for row in rows] == [
        [*dtypes, *size, "col", "row"]
        for dtypes in (("f16", "f16"), ("s8", "s32"))
        for size in (("32", "32", "32"), ("20", "16", "24"))
    ]
    assert all("sm_80 (emulated)" in row and row.endswith(" ok") for row in rows)


def test_bench_that_finds_a_wrong_product_fails(capsys, monkeypatch):
    real = demo.kernels.gemm
    monkeypatch.setattr(demo.kernels, "gemm", lambda *a, **more: 2 * real(*a, **more))
    assert main(["bench", "--target", "cpu", "--sizes", "32"]) == 1
    assert "WRONG" in capsys.readouterr().out


def test_the_demo_runs_where_it_is_told_to(capsys, monkeypatch):
    small = demo.Case(tc.f16, tc.f16, (32, 32, 32), ("row", "row"))
    monkeypatch.setattr(demo, "cases", lambda target: [small])
    out = printed(capsys, "demo", "--target", "cpu", "--arch", "sm_89")
    assert "with the bits of sm_89" in out and "sm_89 (emulated)" in out and " ok" in out
    assert "'sm_42'" in refused(capsys, "demo", "--arch", "sm_42")


# -- caches ----------------------------------------------------------------------------------------


@pytest.fixture
def filled(tmp_path, monkeypatch):
    """A cache with a kernel, a loop and a measurement, beside a file of somebody else."""
    monkeypatch.setenv("TENSORCORE_DSL_CACHE", str(tmp_path / "caches"))
    monkeypatch.delenv("TENSORCORE_DSL_CACHE_LIMIT", raising=False)
    kernel_cache.store("ab" * 32, Cubin("k", "sm_90a", "ptx", bytes(3000), "log"), ())
    disk_cache.store("cd" * 32, bytes(5000), "", tmp_path / "caches" / "loops")
    tuning_cache.STORE.remember("a", {"b": 1})
    (tmp_path / "caches" / "other.json").write_text("{}")
    yield tmp_path / "caches"
    tuning_cache.STORE.forget()


def counts(text):
    return [int(n) for n in re.findall(r"^[a-z ]+ (\d+) files", text, re.M)]


def test_the_cache_is_described(filled, capsys, monkeypatch):
    text = printed(capsys, "cache")
    assert text.splitlines()[0] == str(filled) and counts(text) == [1, 1, 1]
    assert re.search(r"kernels +1 files +3\.\d KiB\n", text) and "limit 1.0 GiB" in text
    monkeypatch.setenv("TENSORCORE_DSL_CACHE_LIMIT", "off")
    assert "no limit" in printed(capsys, "cache")
    monkeypatch.setenv("TENSORCORE_DSL_CACHE_LIMIT", "much")
    assert main(["cache"]) == 2 and "such as 500M or 2G" in capsys.readouterr().err


@pytest.mark.parametrize(
    "chosen, left",
    [
        ([], [0, 0, 0]),
        (["all"], [0, 0, 0]),
        (["kernels"], [0, 1, 1]),
        (["loops"], [1, 0, 1]),
        (["measurements"], [1, 1, 0]),
    ],
)
def test_the_cache_is_cleared(chosen, left, filled, capsys):
    text = printed(capsys, "cache", "--clear", *chosen)
    assert text.startswith("removed ") and counts(text) == left == counts(printed(capsys, "cache"))
    assert (filled / "other.json").exists()


def test_the_command_says_that_the_cache_is_off(monkeypatch, capsys):
    monkeypatch.setenv("TENSORCORE_DSL_CACHE", "off")
    for arguments in (["cache"], ["cache", "--clear"]):
        assert "TENSORCORE_DSL_CACHE is off" in printed(capsys, *arguments)


SMALL = "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32"


def test_an_instruction_by_its_name_in_python(capsys):
    assert main(["show", "--no-layouts", "tc.mma.m16n8k8(tc.bf16, tc.bf16, tc.f32)", SMALL]) == 0
    assert capsys.readouterr().out.count(f"{SMALL}\n") == 2


@pytest.mark.parametrize(
    "command, text, message",
    [
        ("show", "tc.mma.m16n8k16...", "as in tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)"),
        ("show", "tc.mma.m16n8k17", "mma has no shape m16n8k17"),
        (
            "show",
            "tc.f16.shape",
            "'tc.f16.shape' makes no instruction: 'DType' object has no attribute 'shape'",
        ),
        ("show", "tma_load", "; tc.tma_load is a function of the language: see help(tc.tma_load)"),
        ("show", "tc.ldmatrix", "tc.ldmatrix is a function of the language: help(tc.ldmatrix)"),
        ("show", "tc.mma.m16n8k16(tc.bf16", "makes no instruction: '(' was never closed"),
        ("show", "tc.mma.m16n8k16(1/0)", "'tc.mma.m16n8k16(1/0)' makes no instruction: division by zero"),
        ("show", "tc.mma[{}['key']]", "makes no instruction: 'key'"),
        ("show", "wgmma.m64n8k16", "; `tensorcore-dsl list wgmma.m64n8k16` prints 8 with these words"),
        ("show", "wgmmas", "no instruction is called 'wgmmas'; nearest: wgmma"),
        ("list", "wgmmas.m64", "no instruction is called 'wgmmas'; nearest: wgmma"),
    ],
)
def test_what_is_near_an_unknown_instruction(command, text, message, capsys):
    assert main([command, text]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("text", ["mma.m16n8k8", "tc.mma.m16n8k8", "m16n8k8.f32.bf16"])
def test_instructions_by_some_of_their_words(text, capsys):
    assert main(["list", "--all", text]) == 0
    out = capsys.readouterr().out
    assert f"{SMALL} " in out and "m16n8k16" not in out and "add.f32" not in out
