"""`tensorcore-dsl check` and `ptx` with a file of PTX, and the file that describes its launches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl.__main__ import main
from tensorcore_dsl.ptx.launch_file import run_launches
from tests.ptx_cases import STRUCT_IN_MEMORY

REVERSED = """
    ld.param.u64 %rd1, [x];
    mov.u32 %r1, %tid.x;
    mad.wide.u32 %rd1, %r1, 4, %rd1;
    ld.global.u32 %r2, [%rd1];
    mov.u32 %r3, s;
    mad.lo.u32 %r4, %r1, 4, %r3;
    st.shared.u32 [%r4], %r2;
    BARRIER
    sub.u32 %r4, 63, %r1;
    mad.lo.u32 %r4, %r4, 4, %r3;
    ld.shared.u32 %r2, [%r4];
    st.global.u32 [%rd1], %r2;
    ret;
"""


LAUNCH = """
[[launch]]
kernel = "k"
grid = 1
block = [64, 1, 1]
arguments = [{dtype = "f32", shape = [64], fill = "random"}]
"""


def file_of(folder: Path, body: str) -> str:
    path = folder / "k.ptx"
    before = ".shared .align 4 .b8 s[256];"
    path.write_text(
        f".version 8.0\n.target sm_90\n.address_size 64\n{before}\n.entry k(.param .u64 x)\n"
        f"{{ .reg .b32 %r<9>; .reg .b64 %rd<9>; {body} }}\n"
    )
    return str(path)


@pytest.mark.parametrize("barrier, status", [("", 1), ("bar.sync 0;", 0)])
def test_check_of_a_file(barrier, status, tmp_path, capsys):
    ptx, launches = file_of(tmp_path, REVERSED.replace("BARRIER", barrier)), tmp_path / "launch.toml"
    for text in (LAUNCH, LAUNCH.replace('kernel = "k"', "")):  # the file has one kernel
        launches.write_text(text)
        assert main(["check", ptx, "--launch", str(launches)]) == status
        assert ("k.ptx:17" in capsys.readouterr().out) == bool(status)


def test_a_launch_names_its_kernel_if_there_are_two(tmp_path):
    ptx, launches = file_of(tmp_path, "ret;"), tmp_path / "launch.toml"
    with open(ptx, "a") as file:
        file.write(".entry other() { ret; }")
    launches.write_text(LAUNCH.replace('kernel = "k"', ""))
    with pytest.raises(tc.ArgumentError, match="launch 1 lacks kernel$"):
        run_launches(ptx, str(launches))


def test_check_of_a_cooperative_grid(tmp_path):
    words = ("mov.u32 %r1, %envreg1;", "setp.eq.u32 %p1, %r1, 0;", "@%p1 trap;", "ret;")
    ptx, launches = file_of(tmp_path, ".reg .pred %p1; " + " ".join(words)), tmp_path / "launch.toml"
    for more, status in (("", 1), ("cooperative = true\n", 0)):
        launches.write_text(LAUNCH + more)
        assert main(["check", ptx, "--launch", str(launches)]) == status


@pytest.mark.parametrize(
    "text, message",
    [
        ("launch = 3 3", "cannot read"),
        ("", r"a table \[\[launch\]\] for each launch is needed"),
        ("[[launch]]", "launch 1 lacks block, grid"),
        ("launch = 3", r"a table \[\[launch\]\] for each launch is needed"),
        (
            LAUNCH.replace("random", "noise"),
            "launch 1: fill is 'noise'; allowed are a number and zeros, range",
        ),
        (
            LAUNCH.replace("shape", "size"),
            "launch 1: an array has size; the keys are dtype, shape, fill, file",
        ),
        (LAUNCH.replace(", shape = [64]", ""), "launch 1: an array has a file, or dtype and shape"),
        (LAUNCH.replace("[64]", '"64"'), "launch 1: shape is '64'; allowed are sizes of 0 or more"),
        (LAUNCH.replace('"random"', "[1]"), r"launch 1: fill is \[1\]; allowed are a number and zeros"),
        (
            LAUNCH.replace('dtype = "f32"', 'file = "no.npy"'),
            "launch 1: cannot read 'no.npy': .*No such file",
        ),
        (LAUNCH.replace('"f32"', '"f33"'), "f33"),
        (
            LAUNCH + "sharde = 5",
            "launch 1 has sharde; the keys are kernel, grid, block, cluster, shared, coop",
        ),
        (LAUNCH.replace("grid", "gird"), "launch 1 has gird; the keys are kernel, grid"),
        (LAUNCH + 'shared = "5"', "launch 1: shared is '5'; allowed is an integer"),
        (LAUNCH.replace("grid = 1", "grid = 1.5"), "grid is 1.5; allowed is an integer, or a list of them"),
        (
            LAUNCH.replace("[64, 1, 1]", '[64, "1"]'),
            r"block is \[64, '1'\]; allowed is an integer, or a list",
        ),
        (LAUNCH + "cooperative = 1", "launch 1: cooperative is 1; allowed is true or false"),
        (LAUNCH.replace('"k"', "3"), "launch 1: kernel is 3; allowed is a string"),
        ('checks = "foo"' + LAUNCH, "launch.toml: checks stands outside of"),
        (LAUNCH.replace('"k"', '"q"'), "no kernel is called 'q'; there are k"),
    ],
)
def test_launches_that_are_no_launches(text, message, tmp_path):
    ptx, launches = file_of(tmp_path, "ret;"), tmp_path / "launch.toml"
    launches.write_text(text)
    with pytest.raises(tc.ArgumentError, match=message):
        run_launches(ptx, str(launches))


def test_launches_of_structs_and_arrays_with_names(tmp_path):
    path, launches = tmp_path / "x.npy", tmp_path / "launch.toml"
    np.save(path, np.arange(4, dtype=np.uint32))
    ptx = tmp_path / "k.ptx"
    ptx.write_text("""
.version 8.0
.target sm_90
.address_size 64
.entry k(.param .align 8 .b8 s[16], .param .u32 wanted)
{ .reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .pred %p1;
    ld.param.u64 %rd1, [s+8]; ld.param.u32 %r1, [s]; ld.global.u32 %r2, [%rd1+4]; ld.param.u32 %r4, [wanted];
    add.u32 %r3, %r1, %r2; st.global.u32 [%rd1+4], %r3; setp.ne.u32 %p1, %r3, %r4; @%p1 trap; ret; }
""")
    one = f"""
[[launch]]
kernel = "k"
grid = 1
block = 1
arguments = [{{"0" = 5, "8" = {{name = "x", file = "{path}"}}}}, WANTED]
"""
    launches.write_text(one.replace("WANTED", "6") + one.replace("WANTED", "11"))
    run_launches(str(ptx), str(launches))
    launches.write_text(one.replace("WANTED", "7"))
    with pytest.raises(tc.EmulationError, match="trap"):
        run_launches(str(ptx), str(launches))


def test_a_launch_of_a_struct_with_tensor_maps(tmp_path):
    ptx, launches = tmp_path / "k.ptx", tmp_path / "launch.toml"
    ptx.write_text(STRUCT_IN_MEMORY.replace("%r7", "0"))
    (tmp_path / "s.bin").write_bytes(bytes(16) + np.float32(2).tobytes() + bytes(300))
    box = '{dtype = "f32", shape = [4, 8], box = [4, 8]}'
    struct = f'bytes = "{tmp_path}/s.bin", 0 = {{dtype = "s32", shape = 1}}, 64 = {box}, 192 = {box}'
    launches.write_text(f"[[launch]]\ngrid = 1\nblock = 32\narguments = [{{{struct}}}]\n")
    with pytest.warns(tc.RaceWarning):
        run_launches(str(ptx), str(launches))
    launches.write_text(launches.read_text().replace("s.bin", "none.bin"))
    with pytest.raises(tc.ArgumentError, match="launch 1: cannot read"):
        run_launches(str(ptx), str(launches))


def test_the_program_says_what_a_file_holds(tmp_path, capsys):
    file = tmp_path / "two.ptx"
    file.write_text("""
.version 8.0
.target sm_90
.entry a(.param .u64 x) { .reg .b64 %rd<3>; .shared .align 4 .b8 s[64];
    ld.param.u64 %rd1, [x]; add.s64 %rd1, %rd1, 8; add.s64 %rd1, %rd1, 8; st.global.u64 [%rd1], 3; ret; }
.entry b() { brx.idx %r1, targets; }
""")
    assert main(["ptx", str(file)]) == 1
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first == "a: 1 parameters, 3 instructions (add 2, st 1), 64 bytes of shared memory"
    assert second.startswith("b: not read: brx.idx: targets is not a table of labels")
    assert main(["ptx", str(tmp_path / "none.ptx")]) == 2
    assert "cannot read" in capsys.readouterr().err
