"""Assembling PTX without a GPU: every architecture, errors, resources, the cache."""

import os
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl.arch import ARCHS as TARGETS
from tensorcore_dsl.codegen import assemble as assembling
from tensorcore_dsl.codegen import cubin
from tensorcore_dsl.codegen.assemble import assemble
from tensorcore_dsl.errors import ArchError, AssemblyError
from tensorcore_dsl.runtime.arguments import Packer, describe

pytest.importorskip("cuda.core", reason="needs nvJitLink")


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORCORE_DSL_CACHE", str(tmp_path))
    return tmp_path


def kernel(
    body="", *, arch="sm_80", version="7.0", name="k", params=".param .u64 p", directives="", registers=""
):
    return f"""\
.version {version}
.target {arch}
.address_size 64
.visible .entry {name}({params})
{directives}
{{
 .reg .b64 %rd<4>; .reg .b32 %r<4>; .reg .pred %q; {registers}
 {body}
 ret;
}}
"""


def fused(count, directives=""):
    """A loop over `count` live accumulators."""
    lines = [" ld.param.u64 %rd1, [p]; ld.param.u32 %r1, [n]; mov.u32 %r2, 0;"]
    lines += [f" ld.global.f32 %f{i}, [%rd1+{4 * i}];" for i in range(count)]
    lines += ["again:"]
    lines += [f" fma.rn.f32 %f{i}, %f{(i + 7) % count}, %f{(i + 13) % count}, %f{i};" for i in range(count)]
    lines += [" add.u32 %r2, %r2, 1; setp.lt.u32 %q, %r2, %r1; @%q bra again;"]
    lines += [f" st.global.f32 [%rd1+{4 * i}], %f{i};" for i in range(count)]
    return kernel(
        "\n".join(lines),
        params=".param .u64 p, .param .u32 n",
        directives=directives,
        registers=f".reg .f32 %f<{count}>; .shared .align 16 .b8 tile[1024]; ",
    )


def known(arch):
    """nvJitLink 13 has no Volta; the targets of PTX 9.0 are new in it."""
    nvjitlink = pytest.importorskip("cuda.bindings.nvjitlink", reason="needs nvJitLink")
    return arch.number >= 75 and (arch.ptx < (9, 0) or nvjitlink.version()[0] >= 13)


ARCHS = [(a.name, f"{a.ptx[0]}.{a.ptx[1]}") for a in TARGETS.values() if known(a)]


@pytest.mark.parametrize(("arch", "version"), ARCHS)
def test_kernels_assemble_for_all_architectures(arch, version):
    store = " ld.param.u64 %rd1, [p]; mov.u32 %r1, 42; st.global.u32 [%rd1], %r1;"
    made = assemble(kernel(store, arch=arch, version=version), arch, "k")
    assert made.code.startswith(b"\x7fELF")
    assert made.arch == arch
    assert 1 < made.resources.registers < 32
    assert not made.resources.spills
    assert made.resources.max_threads == 1024
    assert made.parameter_offsets() == {0: (0, 8)}


def test_matrix_instruction_needs_the_suffix():
    text = kernel("wgmma.fence.sync.aligned;", arch="sm_90a", version="8.0")
    assert assemble(text, "sm_90a", "k").code
    with pytest.raises(AssemblyError, match="sm_90a.* cannot be compiled for architecture 'sm_90'"):
        assemble(text, "sm_90", "k")


# Resources


def test_a_kernel_without_spills_reports_none():
    resources = assemble(fused(100), "sm_80", "k").resources
    assert resources.registers > 100
    assert (resources.spill_stores, resources.spill_loads, resources.local_bytes) == (0, 0, 0)


@pytest.mark.parametrize(
    ("directives", "limit"), [(".maxnreg 64", None), ("", 64), (".maxntid 128", 64), (".maxnreg 128", 64)]
)
def test_spills_are_reported(directives, limit):
    """Two hundred live numbers in 64 registers; the caller's limit beats the text's."""
    resources = assemble(fused(200, directives), "sm_80", "k", limit).resources
    assert resources.registers == 64
    assert resources.spills
    assert resources.spill_stores > 400 and resources.spill_loads > 400 and resources.local_bytes > 400
    assert resources.shared_bytes == 1024
    assert resources.constant_bytes >= 12


@pytest.mark.parametrize(
    ("directives", "threads"),
    [
        ("", 1024),
        (".maxntid 96", 96),
        (".maxntid 8, 4, 2", 64),
        (".reqntid 128", 128),
        (".reqntid 32, 2", 64),
    ],
)
def test_resources_have_the_declared_threads(directives, threads):
    assert assemble(kernel(directives=directives), "sm_90", "k").resources.max_threads == threads


def test_registers_limit_threads():
    resources = assemble(fused(150), "sm_80", "k").resources
    assert resources.max_threads == cubin.threads_that_fit(resources.registers) < 512


def test_one_kernel_of_several():
    text = fused(200, ".maxnreg 64") + kernel(name="other").split("\n", 3)[3]
    assert assemble(text, "sm_80", "k").resources.spills
    assert not assemble(text, "sm_80", "other").resources.spills
    assert assemble(text, "sm_80", "other").parameter_offsets() == {0: (0, 8)}


def test_serialised_wgmma_is_a_warning():
    instr = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16"
    mma = f"{instr} {{%f0,%f1,%f2,%f3}}, %rd2, %rd2, 1, 1, 1, 0, 0;"
    body = f"""
 ld.param.u64 %rd1, [p]; ld.param.u64 %rd2, [d];
 mov.f32 %f0, 0f00000000; mov.f32 %f1, %f0; mov.f32 %f2, %f0; mov.f32 %f3, %f0;
 wgmma.fence.sync.aligned;
 {mma}
 add.f32 %f0, %f0, %f1;
 {mma}
 wgmma.commit_group.sync.aligned;
 wgmma.wait_group.sync.aligned 0;
 st.global.v4.f32 [%rd1], {{%f0,%f1,%f2,%f3}};"""
    params = ".param .u64 p, .param .u64 d"
    text = kernel(body, arch="sm_90a", version="8.0", params=params, registers=".reg .f32 %f<4>;")
    warning, *_ = assemble(text, "sm_90a", "k").resources.warnings  # nvJitLink 12 has two
    assert "C75" in warning
    assert "| add.f32 %f0, %f0, %f1;" in warning or "| wgmma" in warning


# The packer's layout is the assembler's.


def test_parameter_offsets_agree():
    arrays = [
        np.zeros((4, 16), np.float16),
        np.zeros((2, 3, 4)).T,
        np.zeros((), np.int8),
        np.zeros((9, 2))[:, ::2],
    ]
    values = [True, arrays[0], 1.5, arrays[1], np.int8(1), arrays[2], np.float16(2), arrays[3], 2**40, 7]
    packer = Packer([describe(value).type for value in values])
    params = ", ".join(f".param .{p.ptx} a{p.argument}{p.suffix}" for p in packer.parameters)
    made = assemble(kernel(params=params), "sm_90", "k")
    offsets = [offset for offset, _ in made.parameter_offsets().values()]
    assert offsets == [p.offset for p in packer.parameters]
    last, size = list(made.parameter_offsets().values())[-1]
    assert packer.size == last + size


# Errors


def test_errors_quote_lines():
    text = kernel(" addd.u32 %r1, %r1, 1;\n mov.u32 %r2, %nothing;")
    with pytest.raises(AssemblyError) as caught:
        assemble(text, "sm_80", "k")
    message = str(caught.value)
    assert message.startswith("ptxas refuses the PTX for sm_80:")
    first = text.splitlines().index("  addd.u32 %r1, %r1, 1;") + 1
    assert (
        f"line {first}: Not a name of any known instruction: 'addd'\n"
        f"    {first} | addd.u32 %r1, %r1, 1;" in message
    )
    assert f"    {first + 1} | mov.u32 %r2, %nothing;" in message
    assert "aborted" not in message


@pytest.mark.parametrize(
    ("text", "arch", "message"),
    [
        (kernel(version="99.9"), "sm_80", r"Unsupported .version 99.9[^\n]*\n    1 \| .version 99.9"),
        ("no PTX", "sm_80", "cannot assemble for sm_80"),
        (kernel(arch="sm_90"), "sm_80", "sm_90"),
    ],
)
def test_errors_of_the_assembler_have_its_words(text, arch, message):
    with pytest.raises(AssemblyError, match=message):
        assemble(text, arch, "k")


def test_unknown_architecture():
    with pytest.raises(ArchError, match="sm_42"):
        assemble(kernel(), "sm_42", "k")


def test_failures_are_not_cached(directory):
    for _ in range(2):
        with pytest.raises(AssemblyError):
            assemble("no PTX", "sm_80", "k")
    assert not list(directory.rglob("*.cubin"))


# The cache


def test_cache_is_used(directory, monkeypatch):
    first = assemble(kernel(), "sm_80", "k")
    monkeypatch.setattr(assembling, "_link", None)  # a second link would fail
    assert assemble(kernel(), "sm_80", "k") == first
    assert len(list(directory.rglob("*.cubin"))) == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda p: p.setattr(assembling, "toolchain", lambda: "other"),
        lambda p: {"ptx": kernel() + "// other\n"},
        lambda p: {"arch": "sm_86"},
        lambda p: {"max_registers": 40},
    ],
)
def test_cache_key_holds_everything(change, directory, monkeypatch):
    call = {"ptx": kernel(), "arch": "sm_80", "name": "k"}
    assemble(**call)
    assemble(**{**call, **(change(monkeypatch) or {})})
    assert len(list(directory.rglob("*.cubin"))) == 2


def test_damaged_entry_is_assembled_again(directory):
    first = assemble(kernel(), "sm_80", "k")
    (path,) = directory.rglob("*.cubin")
    good = path.read_bytes()
    path.write_bytes(good[:-5] + b"xxxxx")
    assert assemble(kernel(), "sm_80", "k") == first
    assert path.read_bytes() == good


def test_cached_kernel_needs_no_numba_cuda(directory):
    assemble(kernel(), "sm_80", "k")
    code = (
        "import sys; from tensorcore_dsl.codegen.assemble import assemble;"
        "made = assemble(sys.argv[1], 'sm_80', 'k'); assert made.resources.registers;"
        "sys.exit(any(m.startswith(('numba.cuda.', 'cuda.')) for m in sys.modules))"
    )
    root = Path(__file__).resolve().parent.parent
    assert subprocess.run([sys.executable, "-c", code, kernel()], cwd=root).returncode == 0


# Without an assembler


def missing(name):
    raise ImportError(f"No module named {name!r}")


def test_without_nvjitlink_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(assembling, "import_module", missing)
    assembling._library_version.cache_clear()
    with pytest.raises(AssemblyError, match=r"there is no nvJitLink .*tensorcore-dsl\[cu13\]"):
        assemble(kernel(), "sm_80", "k")


def test_without_cuda_core_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(assembling, "_library_version", lambda: (13, 0))
    monkeypatch.setattr(assembling, "import_module", missing)
    with pytest.raises(AssemblyError, match=r"cuda.core cannot be used .*tensorcore-dsl\[cu13\]"):
        assemble(kernel(), "sm_80", "k")


def test_the_assembler_needs_no_numba_cuda():
    """Nor a driver, which Numba's simulator replaces."""
    code = (
        "import sys; from tensorcore_dsl.codegen.assemble import assemble;"
        "made = assemble(sys.argv[1], 'sm_80', 'k'); assert made.resources.registers;"
        "sys.exit(any(m.startswith('numba.cuda') for m in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, kernel()],
        cwd=Path(__file__).resolve().parent.parent,
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


# A log that says nothing, as nvJitLink gives for a text that is in the driver's cache.


def test_a_text_is_logged_each_time(monkeypatch):
    """On a machine with a driver, its cache knows the text from the first time."""
    monkeypatch.setenv("TENSORCORE_DSL_CACHE", "off")
    first, second = (assemble(fused(100), "sm_80", "k") for _ in range(2))
    assert first == second and "Used" in first.log


@pytest.mark.parametrize("version, wanted", [((12, 3), None), ((12, 5), True), ((13, 0), True)])
def test_the_drivers_cache_is_not_used_where_that_can_be_said(version, wanted, monkeypatch):
    import cuda.core

    class Core:
        ObjectCode, Linker = cuda.core.ObjectCode, cuda.core.Linker

        @staticmethod
        def LinkerOptions(**options):
            found.append(options)
            return cuda.core.LinkerOptions(**options)

    found = []
    monkeypatch.setattr(assembling, "_library_version", lambda: version)
    monkeypatch.setattr(assembling, "import_module", {"cuda.core": Core}.get)
    assert assemble(kernel(), "sm_80", "k", 40, lineinfo=True).resources.registers
    (options,) = found
    assert options["no_cache"] is wanted and options["max_register_count"] == 40
    assert options["lineinfo"] and options["ptxas_options"] == ["-v", "-override-directive-values"]


@pytest.fixture
def silent(monkeypatch):
    monkeypatch.setattr(assembling, "_tidy", lambda log: "")


@pytest.mark.parametrize(("arch", "version"), ARCHS)
@pytest.mark.parametrize("limit", [None, 64])
def test_the_machine_code_tells_what_the_log_does(arch, version, limit):
    """Registers, the frame and the largest block are the same; of spills the frame may be silent."""
    text = fused(200).replace(".target sm_80", f".target {arch}").replace("7.0", version, 1)
    made = assemble(text, arch, "k", limit)
    told, read = made.resources, replace(made, log="").resources
    assert (read.registers, read.local_bytes) == (told.registers, told.local_bytes)
    assert (read.max_threads, read.constant_bytes) == (told.max_threads, told.constant_bytes)
    assert told.spills == bool(told.local_bytes) and told.shared_bytes == 1024
    assert read.shared_bytes is None
    if told.spills:
        assert read.spills is read.spill_stores is read.spill_loads is None
    else:
        assert read.spills is False


def test_one_kernel_of_several_without_a_log(silent):
    text = fused(200, ".maxnreg 64") + kernel(name="other").split("\n", 3)[3]
    assert assemble(text, "sm_80", "k").resources.registers == 64
    assert assemble(text, "sm_80", "other").resources.registers < 64


def test_a_kernel_without_a_log_has_no_diagnostics(silent):
    """An unknown number of registers is no reason to refuse a kernel, or to warn."""

    @tc.kernel
    def double(x: tc.Array):
        x[tc.threadIdx.x] *= 2

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        used = double.resources(np.zeros(32, np.float32), arch="sm_90a")
    assert used.registers and used.spills is False
