"""Assemble PTX to machine code by nvJitLink, or by ptxas for a whole program.

This needs no GPU and no driver. nvJitLink is used through `cuda.core`, which is imported when first
needed; a cached kernel does not need it.
"""

from __future__ import annotations

import re
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from tensorcore_dsl import arch as archs
from tensorcore_dsl.codegen import ptxas
from tensorcore_dsl.codegen.cubin import Cubin, quote
from tensorcore_dsl.environment import disk_cache
from tensorcore_dsl.environment.distributions import versions_of
from tensorcore_dsl.errors import AssemblyError
from tensorcore_dsl.isa import names

# On a machine with a driver, nvJitLink caches its output in ~/.nv/ComputeCache, and has no log for
# cached output. Versions before this one have no option to switch the cache off.
_KNOWS_NO_CACHE = (12, 5)
INSTALL_HINT = "pip install 'tensorcore-dsl[cu13]' brings the assembler (no GPU is needed for it)"
_WHEELS = ("nvidia-nvjitlink", "nvidia-nvjitlink-cu12")
_VERBOSE = "-v"  # ptxas prints registers, spills and stack
_LINES = "-lineinfo"
_FORCE = "-override-directive-values"  # else .maxntid and .maxnreg beat the caller's limit


def assemble(
    ptx: str, arch: str | archs.Arch, name: str, max_registers: int | None = None, lineinfo: bool = False
) -> Cubin:
    """Machine code of the kernel `name` in `ptx` for `arch`, from the cache if it is there.

    lineinfo: keep the source lines of the text.

    AssemblyError quotes the PTX lines that ptxas refuses.
    """
    target = archs.arch(arch)
    options = [_VERBOSE] if max_registers is None else [_VERBOSE, _FORCE]
    options += [_LINES] if lineinfo else []
    program = whole_program(ptx)
    made_by = ptxas.identity(program) if program else toolchain()
    entry = disk_cache.entry_name(ptx, target.name, options, max_registers, made_by)
    code_and_log = disk_cache.load(entry)
    if code_and_log is None:
        if program:
            code_and_log = _run(program, ptx, target, max_registers, options)
        else:
            code_and_log = _link(ptx, target, name, max_registers, options)
        disk_cache.store(entry, *code_and_log)
    return Cubin(name, target.name, ptx, *code_and_log)


def whole_program(ptx: str) -> Path | None:
    """The ptxas that assembles this text; None if nvJitLink does."""
    return ptxas.find(ptxas.version_of(ptx)) if names.SETMAXNREG in ptx else None


def versions() -> str:
    """Names and versions of all that `assemble` may use on this machine."""
    return " ".join([toolchain(), *map(ptxas.identity, ptxas.candidates())])


def _run(
    program: Path, ptx: str, target: archs.Arch, max_registers: int | None, options: list[str]
) -> tuple[bytes, str]:
    """Code and log of ptxas."""
    limit = [] if max_registers is None else [f"-maxrregcount={max_registers}"]
    try:
        code, log = ptxas.assemble(program, ptx, target.name, [*options, *limit])
    except (ptxas.Refusal, OSError) as error:
        raise AssemblyError(_explain(error, ptx, target)) from error
    return code, _tidy(log)


def _link(
    ptx: str, target: archs.Arch, name: str, max_registers: int | None, options: list[str]
) -> tuple[bytes, str]:
    """Code and log of nvJitLink."""
    version = _library_version()  # without nvJitLink, cuda.core turns to the driver
    try:
        core: Any = import_module("cuda.core")
        wanted = core.LinkerOptions(
            name=name,
            arch=target.name,
            max_register_count=max_registers,
            lineinfo=_LINES in options or None,
            ptxas_options=[option for option in options if option != _LINES],
            no_cache=version >= _KNOWS_NO_CACHE or None,
        )
    except (ImportError, AttributeError, TypeError) as error:  # none, or one before 0.5
        raise AssemblyError(f"cuda.core cannot be used ({error}); {INSTALL_HINT}") from error
    try:
        linker = core.Linker(core.ObjectCode.from_ptx(ptx.encode(), name=name), options=wanted)
        try:
            return bytes(linker.link("cubin").code), _tidy(linker.get_info_log())
        finally:
            linker.close()
    except Exception as error:  # nvJitLink, its loader and cuda.core each have their own
        raise AssemblyError(_explain(error, ptx, target)) from error


def _tidy(log: str) -> str:
    """The log without times, so that equal texts give equal cubins."""
    lines = log.replace("\0", "").splitlines()
    return "\n".join(line.rstrip() for line in lines if line.strip() and "Compile time" not in line)


def _explain(error: Exception, ptx: str, target: archs.Arch) -> str:
    """The errors of ptxas, each with its PTX line, or else the linker's message."""
    text = str(error)
    errors = re.findall(r"(?:line (\d+); )?(?:error|fatal) +: (.*)", text)
    complaints = [
        quote(f"line {line}: {message}" if line else message, ptx)
        for line, message in errors
        if "aborted due to errors" not in message
    ]
    if complaints:
        return "\n".join([f"ptxas refuses the PTX for {target}:", *complaints])
    return f"cannot assemble for {target}: {type(error).__name__}: {text[:2000]}"


@lru_cache
def toolchain() -> str:
    """Names and versions of the packages of nvJitLink, without importing them."""
    packages = versions_of((*_WHEELS, "cuda-bindings", "cuda-core"))
    if not any("nvjitlink" in package for package in packages):
        packages += (f"libnvJitLink {_library_version()}",)
    return ", ".join(packages)


@lru_cache
def _library_version() -> tuple[int, int]:
    """The version of nvJitLink, as (13, 0); AssemblyError where it cannot be loaded."""
    try:
        major, minor = import_module("cuda.bindings.nvjitlink").version()
        return int(major), int(minor)
    except Exception as error:  # no bindings, or no library for them
        raise AssemblyError(f"there is no nvJitLink ({error}); {INSTALL_HINT}") from error
