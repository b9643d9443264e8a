"""Source lines in PTX and in machine code."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import dtypes
from tensorcore_dsl.arch import ARCHS
from tensorcore_dsl.codegen import kernel_cache, line_table
from tensorcore_dsl.codegen.line_table import source_lines
from tensorcore_dsl.codegen.ptx import print_kernel
from tensorcore_dsl.errors import Loc
from tensorcore_dsl.ir.nodes import Block, Const, Kernel, Op, Type, Value
from tensorcore_dsl.isa.lookup import instruction
from tests.assembler import assembles
from tests.running import line_of

X = np.zeros(32, np.float32)


def triple(value: Any) -> Any:
    return value * 3.0


def shifted(value: Any) -> Any:
    return triple(value) + 1.0


@tc.kernel
def mapped(x: tc.Array, n: tc.s32):
    i = tc.threadIdx.x
    x[i] = shifted(x[i])
    tc.barrier()
    x[i] = shifted(x[n - 1 - i])


def adding(*locs: Loc | None) -> Kernel:
    """A kernel with an addition from each place."""
    add, value = instruction("add.u32"), Value(0, Type(dtypes.u32))
    one = Const(1, dtypes.u32)
    return Kernel("k", [], Block([Op(add, (value,), (one, one), loc=loc) for loc in locs]))


def directives(kernel: Kernel, arch: str = "sm_80") -> list[str]:
    text = print_kernel(kernel, ARCHS[arch], lineinfo=True)
    assert not assembles(text, arch)
    return [x.strip() for x in text.splitlines() if x.strip().startswith((".loc", ".file"))]


class TestText:
    def test_each_place_is_named_where_it_begins(self):
        places = [Loc("a.py", 3), Loc("a.py", 3, 0, 9), None, Loc("a.py", 4, 2), Loc("b.py", 4)]
        here = os.getcwd()
        assert directives(adding(*places)) == [
            f'.file 1 "{here}/a.py"',
            f'.file 2 "{here}/b.py"',
            ".loc 1 3 1",
            ".loc 1 4 3",
            ".loc 2 4 1",
        ]

    def test_inlined_functions_name_their_calls(self):
        call = Loc("/a.py", 9, 4, function="kernel")
        inner = Loc("/a.py", 5, 2, function="outer", caller=call)
        innermost = Loc("/b.py", 2, 0, function="inner", caller=inner)
        assert directives(adding(innermost, innermost, inner, call))[2:] == [
            ".loc 1 9 5",
            ".loc 1 5 3, function_name $function0, inlined_at 1 9 5",
            ".loc 2 2 1, function_name $function1, inlined_at 1 5 3",
            ".loc 1 5 3, function_name $function0, inlined_at 1 9 5",
            ".loc 1 9 5",
        ]

    def test_a_helper_that_two_lines_call_names_each(self):
        def chain(number: int) -> Loc:
            outer = Loc("/a.py", 5, caller=Loc("/a.py", number), function="outer")
            return Loc("/a.py", 2, caller=outer, function="inner")

        inner = ".loc 1 2 1, function_name $function1, inlined_at 1 5 1"
        outer = ".loc 1 5 1, function_name $function0, inlined_at 1"
        actual = directives(adding(chain(9), chain(10), chain(9)))[1:]
        assert actual == [
            ".loc 1 9 1",
            f"{outer} 9 1",
            inner,
            ".loc 1 10 1",
            f"{outer} 10 1",
            inner,
            f"{outer} 9 1",
            inner,
        ]

    def test_names_of_files(self):
        assert directives(adding(Loc("<stdin>", 1)))[0] == '.file 1 "<stdin>"'
        odd = adding(Loc('/a "b" \u00e9.py', 7))  # no escapes: tools do not find such a file
        assert directives(odd)[0] == '.file 1 "/a _b_ _.py"'
        text = print_kernel(odd, ARCHS["sm_80"], lineinfo=True)
        assert set(source_lines(text, odd).values()) == {('/a "b" \u00e9.py', 7)}

    def test_version_of_inlined_places(self):
        plain, called = Loc("/a.py", 3), Loc("/a.py", 1, caller=Loc("/a.py", 3), function="f")
        for loc, version in ((plain, ".version 7.0"), (called, ".version 7.2")):
            text = print_kernel(adding(loc), ARCHS["sm_80"], lineinfo=True)
            assert text.startswith(version)

    def test_shown_text_has_none_unless_asked(self):
        plain = mapped.ptx(X, 1, arch="sm_90a")
        full = mapped.ptx(X, 1, arch="sm_90a", lineinfo=True)
        assert ".loc" not in plain and ".file" not in plain and ".section" not in plain
        head = full.partition(".section")[0]
        kept = [x for x in head.splitlines() if not x.strip().startswith((".loc", ".file"))]
        assert kept == plain.splitlines()

    def test_back_to_source_lines(self):
        plain = mapped.ptx(X, 1, arch="sm_90a").splitlines()
        full = mapped.ptx(X, 1, arch="sm_90a", lineinfo=True)
        ir = mapped.specialise((X, 1), {}, "sm_90a").ir
        by_full, by_plain = source_lines(full, ir), source_lines(full, ir, counted=False)
        barrier = __file__, line_of(mapped, "tc.barrier()")
        assert by_full[1 + full.splitlines().index("    bar.sync 0;")] == barrier
        assert by_plain[1 + plain.index("    bar.sync 0;")] == barrier
        product = next(i for i, text in enumerate(plain, 1) if "mul.rn.f32" in text)
        assert by_plain[product] == (__file__, line_of(triple, "value * 3.0"))
        assert set(by_plain) <= set(range(1, 1 + len(plain)))


class TestOption:
    def test_default_and_switches(self, monkeypatch):
        monkeypatch.delenv(line_table.VARIABLE, raising=False)
        assert line_table.wanted(None) and not line_table.wanted(False)
        for text, on in (("0", False), ("off", False), ("1", True), ("", True)):
            monkeypatch.setenv(line_table.VARIABLE, text)
            assert line_table.wanted(None) is on and line_table.wanted(True)

    def test_the_cache_tells_files_apart(self, tmp_path, monkeypatch):
        monkeypatch.setenv("TENSORCORE_DSL_CACHE", str(tmp_path / "cache"))
        source = "import tensorcore_dsl as tc\n@tc.kernel\ndef k(x: tc.Array):\n    x[0] = 1\n"

        def name(folder: str, lineinfo: bool) -> str | None:
            path = tmp_path / folder / "k.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(source)
            scope: dict[str, Any] = {"__name__": "k"}
            exec(compile(source, str(path), "exec"), scope)
            kernel = scope["k"]
            types = kernel.types_of([X])
            return kernel_cache.entry_name(kernel, types, {}, ARCHS["sm_90a"], "1", lineinfo)

        assert name("one", False) == name("two", False) is not None
        assert name("one", True) == name("one", True) not in (name("two", True), None)
        assert name("one", True) != name("one", False)


class TestMachineCode:
    @pytest.fixture(autouse=True)
    def assembler(self, monkeypatch):
        pytest.importorskip("cuda.core", reason="needs nvJitLink")
        monkeypatch.setenv("TENSORCORE_DSL_CACHE", "off")

    def cubin(self, lineinfo: bool | None, kernel: Any = mapped) -> bytes:
        fresh = tc.kernel(kernel.function, lineinfo=lineinfo)
        return fresh.cubin(X, 1, arch="sm_90a")

    def test_it_has_lines_by_default(self, monkeypatch):
        path = Path(__file__).name.encode()
        assert b".debug_line" in self.cubin(None) and path in self.cubin(None)
        assert b".debug_line" not in self.cubin(False) and path not in self.cubin(False)
        monkeypatch.setenv(line_table.VARIABLE, "0")
        assert b".debug_line" not in self.cubin(None)
        assert b".debug_line" in self.cubin(True)

    def test_the_instructions_are_the_same(self):
        codes = [_section(self.cubin(option), ".text.mapped") for option in (False, True)]
        assert codes[0] == codes[1] and len(codes[0]) > 100

    def test_whole_programs_have_them_too(self):
        """Kernels with setmaxnreg are assembled by ptxas."""
        from tensorcore_dsl.codegen import ptxas

        if ptxas.find((8, 0)) is None:
            pytest.skip("needs a whole-program ptxas")

        @tc.kernel(threads=128, max_registers=128)
        def fewer(x: tc.Array, n: tc.s32):
            tc.setmaxnreg(64, grow=False)
            x[tc.threadIdx.x] = n

        assert b".debug_line" in fewer.cubin(X, 1, arch="sm_90a")

    def test_lines_of_the_disassembly(self, tmp_path):
        tool = shutil.which("nvdisasm")
        if tool is None:
            pytest.skip("needs nvdisasm")
        path = tmp_path / "k.cubin"
        path.write_bytes(self.cubin(True))
        listing = subprocess.run(
            [tool, "-gi", "-c", str(path)], capture_output=True, text=True, check=True
        ).stdout
        lines = listing.splitlines()
        barrier = next(i for i, text in enumerate(lines) if "BAR.SYNC" in text)
        above = next(x for x in reversed(lines[:barrier]) if "## File" in x)
        assert f'{__file__}", line {line_of(mapped, "tc.barrier()")}' in above
        inlined = re.findall(r'line (\d+) inlined at "[^"]*", line (\d+)', listing)
        pairs = {(int(a), int(b)) for a, b in inlined}
        assert (line_of(triple, "value * 3.0"), line_of(shifted, "triple(value)")) in pairs
        assert (line_of(shifted, "triple(value)"), line_of(mapped, "shifted(x[i])")) in pairs


def _section(elf: bytes, name: str) -> bytes:
    """The contents of a section of a 64-bit ELF file."""
    import struct

    offset, size, count, strings = struct.unpack_from("<Q10xHHH", elf, 40)
    headers = [struct.unpack_from("<IIQQQQ", elf, offset + i * size) for i in range(count)]
    names = headers[strings][4]
    for header in headers:
        start = names + header[0]
        if elf[start : elf.index(b"\0", start)] == name.encode():
            return elf[header[4] : header[4] + header[5]]
    raise AssertionError(f"no section {name}")
