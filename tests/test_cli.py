"""The table on a terminal: descriptions, search, errors."""

import re
import subprocess
import sys

import pytest

from tensorcore_dsl import isa
from tensorcore_dsl.__main__ import MANY, main
from tensorcore_dsl.isa.description import EFFECTS, constructor, describe, search

MMA = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"


def printed(capsys, *arguments):
    assert main(arguments) == 0
    return capsys.readouterr().out


def refused(capsys, *arguments):
    assert main(arguments) == 1
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
        assert all(EFFECTS[e] in text for e in instr.effects & set(EFFECTS)), instr


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
        capsys,
        "list",
        "--opcode",
        "mma",
        "--dtype",
        "e4m3",
        "--shape",
        "m16n8k16",
        "--arch",
        "sm_89",
    )
    lines = text.splitlines()
    assert lines[-1] == f"{len(lines) - 1} instructions"
    assert all("m16n8k16" in line and "e4m3" in line for line in lines[:-1])
    assert "mma.sync.aligned.m16n8k16.row.col.f32.e4m3.e5m2.f32" in text


def test_architectures_are_told_apart():
    everywhere = search(opcode="mma", dtype="e4m3")
    assert not search(opcode="mma", dtype="e4m3", arch="sm_80")
    ada, rtx = (search(opcode="mma", dtype="e4m3", arch=a) for a in ("sm_89", "sm_120a"))
    assert 0 < len(ada) < len(rtx) <= len(everywhere)


def test_list_is_cut_until_all_are_wanted(capsys):
    short = printed(capsys, "list", "--opcode", "setp").splitlines()
    assert len(short) == MANY + 2 and "--all" in short[-2]
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


def test_a_reader_may_stop_early():
    """`list --all | head -1` ends without a trace."""
    command = [sys.executable, "-m", "tensorcore_dsl", "list", "--all", "--opcode", "wgmma"]
    pipe = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert pipe.stdout.readline()
    pipe.stdout.close()
    assert not pipe.stderr.read()
    pipe.stderr.close()
    assert pipe.wait() == 0
