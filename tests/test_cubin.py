"""Resources of a kernel, by the assembler's log and the cubin file."""

import struct

import pytest

from tensorcore_dsl.codegen.cubin import MAX_THREADS, Cubin, quote, threads_that_fit

LOG = """\
ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized \
due to non wgmma instructions defining accumulator registers of a wgmma in the function 'second' \
around line 2
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'first' for 'sm_90a'
ptxas info    : Function properties for first
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 30 registers, used 0 barriers
ptxas info    : Compiling entry function 'second' for 'sm_90a'
ptxas info    : Function properties for second
ptxas         .     504 bytes stack frame, 980 bytes spill stores, 1032 bytes spill loads
ptxas info    : Used 64 registers, used 1 barriers, 1024 bytes smem
"""
EMPTY_ELF = struct.pack("<40xQ12xHH64x", 64, 1, 0)  # one section, without name or bytes


def made(name="second", log=LOG, ptx="one\ntwo;\nthree"):
    return Cubin(name, "sm_90a", ptx, EMPTY_ELF, log)


def test_resources_of_the_right_kernel():
    second = made().resources
    assert (second.registers, second.spill_stores, second.spill_loads) == (64, 980, 1032)
    assert (second.local_bytes, second.shared_bytes, second.spills) == (504, 1024, True)
    first = made("first").resources
    assert (first.registers, first.shared_bytes, first.spills) == (30, 0, False)


def test_warnings_quote_the_ptx():
    (warning,) = made().resources.warnings
    assert "(C7510) Potential Performance Loss" in warning
    assert warning.endswith("\n    2 | two;")


def test_logs_of_older_assemblers_are_read():
    """nvJitLink 12.4 and ptxas 11 print it so."""
    log = (
        "ptxas info    : Compiling entry function 'k' for 'sm_80'\n"
        "ptxas info    : Function properties for k\n"
        "    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads\n"
        "ptxas info    : Used 33 registers, 512 bytes smem, 364 bytes cmem[0]\n"
    )
    resources = made("k", log).resources
    assert (resources.registers, resources.local_bytes, resources.spill_stores, resources.spill_loads) == (
        33,
        8,
        4,
        12,
    )
    assert resources.shared_bytes == 512


@pytest.mark.parametrize("log", ["", "ptxas info : Used 3 registers", "words"])
def test_what_nothing_tells_is_unknown(log):
    resources = made(log=log).resources
    assert resources.registers == (3 if "Used" in log else None)
    assert (
        resources.spill_stores is resources.spill_loads is resources.spills is resources.local_bytes is None
    )
    assert resources.max_threads == MAX_THREADS and resources.warnings == ()


@pytest.mark.parametrize(
    ("registers", "threads"),
    [(16, 1024), (64, 1024), (65, 896), (128, 512), (168, 384), (255, 256), (0, 1024)],
)
def test_threads_that_fit(registers, threads):
    """65536 registers, given to each warp in units of 256, over four partitions."""
    assert threads_that_fit(registers) == threads


def test_lines_that_a_message_names_are_quoted():
    ptx = "a\n  b;\nc"
    assert quote("line 2: bad", ptx) == "line 2: bad\n    2 | b;"
    assert quote("at line 1 and line 3", ptx).splitlines()[1:] == ["    1 | a", "    3 | c"]
    assert quote("line 9: beyond", ptx) == "line 9: beyond"
    assert quote("no number", ptx) == "no number"
