"""Assembler diagnostics at source lines, and the search for a whole-program ptxas."""

import re
import stat
import struct
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl.codegen import assemble, ptxas
from tensorcore_dsl.codegen.cubin import Cubin, sections
from tensorcore_dsl.codegen.diagnostics import diagnostics_of
from tensorcore_dsl.errors import AssemblyError
from tensorcore_dsl.kernel import Kernel
from tests.running import line_of

pytestmark = pytest.mark.usefixtures("fresh_ir")

X = np.zeros(2048, np.float32)
NO_SPILLS = "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
LOG = "ptxas info    : Compiling entry function 'k' for 'sm_90a'\n"
USED = "ptxas info    : Used 168 registers\n"


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORCORE_DSL_CACHE", str(tmp_path))
    ptxas._found.cache_clear()
    yield tmp_path
    ptxas._found.cache_clear()


def diagnostics(*messages, spills=NO_SPILLS, text="", lines=None):
    log = "".join(f"{line}\n" for line in messages) + LOG + spills + USED
    made = Cubin("k", "sm_90a", text, b"", log)
    return diagnostics_of(made, ("k.py", 3), lambda: lines or {})


# Messages and their lines.


def test_good_code_has_no_diagnostics():
    assert diagnostics("ptxas info    : 0 bytes gmem") == ()
    harmless = "ptxas info    : (C7519) warpgroup.arrive is injected in around line 2 by compiler"
    assert diagnostics(harmless, text="a\nb\nc") == ()


def test_spills_are_warned_of():
    (diagnostic,) = diagnostics(
        spills="    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads\n"
    )
    assert (diagnostic.filename, diagnostic.line) == ("k.py", 3)
    assert "4 bytes of stores and 12 of loads a thread, with 168 registers" in diagnostic.text


def test_the_named_line():
    said = (
        "ptxas info    : (C7514) Potential Performance Loss: wgmma.mma_async instructions are "
        "serialized due to branches in the function 'k' in line 2"
    )
    (diagnostic,) = diagnostics(said, text="one\ntwo\n", lines={1: ("a.py", 10), 2: ("b.py", 20)})
    assert (diagnostic.filename, diagnostic.line) == ("b.py", 20)
    assert diagnostic.text.startswith("(C7514) Potential Performance Loss: wgmma.mma_async")
    assert "leave accumulators alone" in diagnostic.text


def test_the_first_instruction_of_the_kind_where_no_line_is_named():
    text = "mov\nsetmaxnreg.dec 24\nwgmma.mma_async\n"
    lines = {2: ("a.py", 10), 3: ("b.py", 20)}
    serialised = "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async in line 0"
    ignored = "ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored; unable."
    first, second = diagnostics(serialised, ignored, text=text, lines=lines)
    assert (first.filename, first.line) == ("b.py", 20)
    assert (second.filename, second.line) == ("a.py", 10)
    assert "tc.launch_bounds(threads, 1)" in second.text


REASONS = [  # the assembler's words, of CUDA 13.0, and what the remedy says
    ("C7509", "the presence of Extern calls", "the line calls a routine"),
    ("C7510", "wgmma pipeline crossing function boundary at a function call", "calls a routine"),
    ("C7511", "insufficient register resources for the wgmma pipeline", "fewer accumulators"),
    ("C7512", "insufficient register resources", r"tc.warp_specialize\(..., registers=...\)"),
    ("C7513", "non wgmma instructions defining input registers of a wgmma", "the fragments of A"),
    ("C7514", "non wgmma instructions reading accumulator registers", "leave accumulators alone"),
    ("C7515", "non wgmma instructions defining accumulator registers", "leave accumulators alone"),
    ("C7516", "ill formed pipeline stage", "under the same conditions"),
    ("C7518", "program dependence on compiler-inserted WG.DP in divergent path", "the same way"),
    ("C7520", "program dependence on compiler-inserted WG.AR in divergent path", "the same way"),
]


@pytest.mark.parametrize(("code", "reason", "remedy"), REASONS)
def test_each_reason_has_its_remedy(code, reason, remedy):
    said = f"ptxas info    : ({code}) Potential Performance Loss: wgmma.mma_async instructions are "
    (diagnostic,) = diagnostics(f"{said}serialized due to {reason} in the function 'k'")
    assert re.search(remedy, diagnostic.text)


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        (".reqntid 384\nsetmaxnreg.dec", "the role that spills"),
        (".reqntid 384\n.maxnreg 24", "max_registers is the limit"),
        (".reqntid 384", "blocks of fewer threads"),
        ("", "tc.launch_bounds"),
    ],
)
def test_remedies_of_spills(text, remedy):
    spills = "    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads\n"
    (diagnostic,) = diagnostics(spills=spills, text=text)
    assert remedy in diagnostic.text


def test_a_log_of_unknown_form():
    made = Cubin("k", "sm_90a", "", b"", "all is well")
    (diagnostic,) = diagnostics_of(made, ("k.py", 3), dict)
    assert "whether registers are spilled is not known" in diagnostic.text
    assert diagnostic.text.endswith("the log is:\nall is well")


def test_an_empty_log_says_nothing():
    assert diagnostics_of(Cubin("k", "sm_90a", "", b"", " \n"), ("k.py", 3), dict) == ()


# By the assembler, from Python's lines.


def needs_assembler():
    pytest.importorskip("cuda.core", reason="needs nvJitLink")


def spilling(x: tc.Array):
    values = [x[64 * i] for i in tc.static_range(32)]
    tc.barrier()
    for _ in range(x.shape[0]):
        values = [tc.fma(values[(i + 7) % 32], values[(i + 13) % 32], values[i]) for i in range(32)]
    for i in tc.static_range(32):
        x[64 * i] = values[i]


def serialised(x: tc.Array):
    mma = tc.wgmma.m64n64k16(tc.f16, tc.f16, tc.f32)
    tile = tc.shared((64, 64), tc.f16, swizzle=128)
    acc = mma.d.zeros()
    tc.wgmma_fence()
    acc = tc.wgmma_async(mma, acc, tile, tile)  # the first
    x[tc.threadIdx.x] = acc.elements()[0]
    acc = tc.wgmma_async(mma, acc, tile, tile)
    tc.wgmma_commit()
    tc.wgmma_wait(0)
    x[tc.threadIdx.x + 128] = acc.elements()[0]


def changing_registers(x: tc.Array):
    if tc.warpgroup_id() == 0:
        tc.setmaxnreg(24, grow=False)  # gives back
        x[0] = 1.0
    else:
        tc.setmaxnreg(240, grow=True)
        x[tc.threadIdx.x] = 2.0


def spilling_role(x: tc.Array):
    if tc.warpgroup_id() == 0:
        tc.setmaxnreg(24, grow=False)
        spilling(x)
    else:
        tc.setmaxnreg(240, grow=True)
        x[tc.threadIdx.x] = 2.0


def calling(x: tc.Array):
    mma = tc.wgmma.m64n64k16(tc.f16, tc.f16, tc.f32)
    tile = tc.shared((64, 64), tc.f16, swizzle=128)
    acc = mma.d.zeros()
    tc.wgmma_fence()
    acc = tc.wgmma_async(mma, acc, tile, tile)
    tc.wgmma_commit()
    tc.wgmma_wait(0)
    print(acc.elements()[0])  # a call


def crowded(x: tc.Array):
    mma = tc.wgmma.m64n256k16(tc.f16, tc.f16, tc.f32)
    a = tc.shared((64, 64), tc.f16, swizzle=128)
    b = tc.shared((256, 64), tc.f16, swizzle=128)
    accs = [mma.d.zeros() for _ in range(3)]  # 384 registers
    tc.wgmma_fence()  # here
    accs = [tc.wgmma_async(mma, acc, a, b) for acc in accs]
    tc.wgmma_commit()
    tc.wgmma_wait(0)
    for k in tc.static_range(3):
        x[k] = accs[k].elements()[0]


def warned(function, **options):
    """The warnings of compiling a kernel, from a new object that remembers nothing."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Kernel(function, **options).specialise((X,), {}, "sm_90a").cubin  # noqa: B018
    assert all(w.category is tc.PerformanceWarning for w in caught)
    return caught


CASES = [
    (spilling, {"max_registers": 24}, "def spilling", r"spilling: registers are spilled"),
    (serialised, {}, "# the first", r"serialised: \(C75\d\d\).*serialized.*leave accumulators"),
    (calling, {}, "# a call", r"calling: \(C7509\).*; the line calls a routine"),
]


@pytest.mark.parametrize(("function", "options", "line", "text"), CASES)
def test_warnings_are_at_the_users_line(function, options, line, text):
    needs_assembler()
    for place in ("compiled", "cached"):
        (warning,) = warned(function, **options)
        assert Path(warning.filename).name == Path(__file__).name, place
        assert warning.lineno == line_of(function, line), place
        assert re.search(text, str(warning.message)), place


def test_too_many_accumulators():
    needs_assembler()
    (warning,) = [w for w in warned(crowded, threads=128) if "C7511" in str(w.message)]
    assert warning.lineno == line_of(crowded, "# here")
    assert "give each warpgroup fewer accumulators" in str(warning.message)


def test_nvjitlink_ignores_setmaxnreg(monkeypatch):
    needs_assembler()
    monkeypatch.setenv(ptxas.VARIABLE, "off")
    (warning,) = warned(changing_registers, threads=256, min_blocks=1)
    assert warning.lineno == line_of(changing_registers, "# gives back")
    assert "(C7504)" in str(warning.message) and "tensorcore-dsl[ptxas]" in str(warning.message)


def needs_ptxas():
    if ptxas.find((8, 0)) is None:
        pytest.skip("there is no ptxas")


def test_ptxas_keeps_setmaxnreg():
    needs_ptxas()
    assert not warned(changing_registers, threads=256, min_blocks=1)
    made = Kernel(changing_registers, threads=256, min_blocks=1).specialise((X,), {}, "sm_90a").cubin
    assert register_changes(made.code) == [24, 240]


def register_changes(code):
    """Operands of the USETMAXREG instructions, which nvdisasm prints for words of this form."""
    (text,) = (s.data for s in sections(code) if s.name.startswith(".text."))
    words = (word for word, _ in struct.iter_unpack("<QQ", text))
    return [word >> 32 & 0xFFFF for word in words if word & 0xFFFF == 0x79C8]


def test_a_role_that_spills():
    needs_ptxas()
    (warning,) = warned(spilling_role, threads=256, min_blocks=1)
    assert "give the role that spills more registers" in str(warning.message)


def test_without_known_registers_at_entry_ptxas_ignores_it():
    needs_ptxas()
    (warning,) = warned(changing_registers, threads=256)
    assert "(C7508)" in str(warning.message) and "launch_bounds" in str(warning.message)


# ptxas, where there are several, none, or bad ones.

TEXT = ".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry k() { setmaxnreg.dec.sync.aligned.u32 24; ret; }\n"


def script(folder, name, body):
    path = folder / name
    path.write_text(f"#!{sys.executable}\nimport sys\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_the_variable_names_one(tmp_path, monkeypatch):
    good = script(tmp_path, "mine", "open(sys.argv[-1], 'wb').write(b'made')\nprint('said')")
    monkeypatch.setenv(ptxas.VARIABLE, str(good))
    assert ptxas.find((99, 0)) == good
    cubin = assemble.assemble(TEXT, "sm_90a", "k")
    assert (cubin.code, cubin.log) == (b"made", "said")


def test_one_that_cannot_read_the_version_is_passed_over(tmp_path, monkeypatch):
    old = script(tmp_path, "old", "sys.exit('Unsupported .version')")
    new = script(tmp_path, "new", "open(sys.argv[-1], 'wb').write(b'made')")
    monkeypatch.setattr(ptxas, "installed", lambda name: iter([tmp_path / "none", old, new]))
    assert ptxas.find((8, 0)) == new


def test_ptxas_can_be_switched_off(monkeypatch):
    monkeypatch.setenv(ptxas.VARIABLE, "off")
    assert ptxas.find((8, 0)) is None
    assert assemble.whole_program(TEXT) is None


def test_only_what_needs_a_whole_program_goes_there():
    assert assemble.whole_program(TEXT.replace("setmaxnreg.dec.sync.aligned.u32 24;", "")) is None


def test_errors_quote_lines(tmp_path, monkeypatch):
    needs_ptxas()
    wrong = TEXT.replace("24;", "25;\n nonsense.u32;")
    with pytest.raises(AssemblyError, match=r"ptxas refuses the PTX for sm_90a:(.|\n)*\| nonsense"):
        assemble.assemble(wrong, "sm_90a", "k")
    assert not list(tmp_path.rglob("*.cubin"))


def test_version_of():
    assert ptxas.version_of(TEXT) == (8, 0)
    assert ptxas.version_of("// nothing") == (0, 0)
