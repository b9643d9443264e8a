"""Machine code of one kernel, and its resources from the assembler's log and the cubin file."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from tensorcore_dsl.environment.eager_dict import EagerDict
from tensorcore_dsl.ir.nodes import TensorMap

REGISTERS_PER_PARTITION = 16384  # a multiprocessor has four partitions of 16384 registers
REGISTER_UNIT = 256  # registers are handed to a warp in units of 256
MAX_THREADS = 1024  # threads of a CTA, on every architecture


@dataclass(frozen=True)
class Resources:
    """Resources of one kernel. Bytes are per thread for spills and local memory, else per block.

    None is unknown: neither the log nor the machine code tells it. `spill_stores` and `spill_loads`
    count the bytes of all spill instructions, as ptxas does; only its log has them. `max_threads`
    is the largest block that the registers and `.maxntid` allow. `warnings` are ptxas' diagnostics
    (C75xx: serialised wgmma), each with the PTX line that it names.
    """

    registers: int | None
    spill_stores: int | None
    spill_loads: int | None
    local_bytes: int | None
    shared_bytes: int | None
    constant_bytes: int
    max_threads: int
    warnings: tuple[str, ...] = ()

    @property
    def spills(self) -> bool | None:
        """Whether registers are spilled to memory; None if unknown."""
        if self.spill_stores is None or self.spill_loads is None:
            return None
        return bool(self.spill_stores or self.spill_loads)


@dataclass(frozen=True)
class Cubin(EagerDict):
    """A kernel's machine code (`code`, an ELF image) and the assembler's `log`.

    Attributes
    ----------
    block_shared : int
        Bytes of `extern` shared memory of the kernel's own tiles; a launch adds them to the dynamic shared
        memory of its caller.
    threads, cluster
        Threads of a block and blocks of a cluster, where the code fixes them.
    tensor_maps : tuple
        The kernel's last parameters, which a launch encodes from its arrays.
    checks : bool
        It prints a line and traps where an index is outside.
    """

    name: str
    arch: str
    ptx: str
    code: bytes
    log: str
    block_shared: int = 0
    threads: int | None = None
    cluster: tuple[int, int, int] | None = None
    tensor_maps: tuple[TensorMap, ...] = ()
    checks: bool = False

    @cached_property
    def resources(self) -> Resources:
        """Registers, spills and memory of the kernel: by the log, else by the machine code."""
        log = _log_of(self.log, self.name)
        stack, stores, loads = _numbers(
            r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log
        )
        (registers,) = _numbers(r"Used (\d+) registers", log)
        (shared,) = _numbers(r"Used .*?(\d+) bytes smem", log)
        if registers is None:
            registers = self._property(_REGISTER_COUNT)
        elif shared is None:
            shared = 0  # the log mentions resources in use only
        if stack is None:
            stack = self._property(_FRAME_SIZE)
            if stack == 0:  # spilled registers lie in the frame
                stores = loads = 0
        fitting = MAX_THREADS if registers is None else threads_that_fit(registers)
        return Resources(
            registers=registers,
            spill_stores=stores,
            spill_loads=loads,
            local_bytes=stack,
            shared_bytes=shared,
            constant_bytes=self._constant_bytes(),
            max_threads=min(self._declared_threads(), fitting),
            warnings=tuple(quote(line, self.ptx) for line in _diagnostics(self.log)),
        )

    def parameter_offsets(self) -> dict[int, tuple[int, int]]:
        """Offset and size in bytes of each kernel parameter, by its position."""
        offsets = {}
        for attribute, value in self._attributes():
            if attribute == _KPARAM_INFO:
                _, ordinal, offset, packed = struct.unpack("<IHHI", value)
                offsets[ordinal] = (offset, packed >> 18)
        return dict(sorted(offsets.items()))

    def _constant_bytes(self) -> int:
        pattern = re.compile(rf"\.nv\.constant\d+(\.{re.escape(self.name)})?")
        return sum(len(s.data) for s in sections(self.code) if pattern.fullmatch(s.name))

    def _declared_threads(self) -> int:
        for attribute, value in self._attributes():
            if attribute in (_MAX_THREADS, _REQNTID):
                x, y, z = struct.unpack("<III", value)
                return int(x * y * z)
        return MAX_THREADS

    def _property(self, attribute: int) -> int | None:
        """A number that `.nv.info` gives of each function, by the function's symbol."""
        text = self._section(f".text.{self.name}")
        if text is None:
            return None
        symbol = text.info & _SYMBOL
        pairs = (
            struct.unpack("<II", value)
            for number, value in _attributes_of(self._section(".nv.info"))
            if number == attribute and len(value) == 8
        )
        return next((int(value) for function, value in pairs if function == symbol), None)

    def _attributes(self) -> Iterator[tuple[int, bytes]]:
        return _attributes_of(self._section(f".nv.info.{self.name}"))

    def _section(self, name: str) -> Section | None:
        return next((s for s in sections(self.code) if s.name == name), None)


def threads_that_fit(registers: int) -> int:
    """The largest block of threads with `registers` each; its warps use four partitions."""
    per_warp = -(-max(registers, 1) * 32 // REGISTER_UNIT) * REGISTER_UNIT
    return min(MAX_THREADS, REGISTERS_PER_PARTITION // per_warp * 4 * 32)


# Numbers in the cubin file.
_MAX_THREADS, _REQNTID, _KPARAM_INFO = 0x05, 0x10, 0x17
_FRAME_SIZE, _REGISTER_COUNT = 0x11, 0x2F
_SIZED_VALUE = 4
_NOBITS = 8
_SYMBOL = 0xFFFFFF  # the bits of a text section's `info` that number the function's symbol


class Section(NamedTuple):
    """A section of an ELF image. info: its meaning depends on the kind of the section."""

    name: str
    data: bytes
    info: int


def _attributes_of(section: Section | None) -> Iterator[tuple[int, bytes]]:
    """The attributes with a sized value of an `.nv.info` section, which begin with 4 bytes.

    These are a format, the attribute's number, and the size of the value in 16 bits.
    """
    content, at = section.data if section else b"", 0
    while at + 4 <= len(content):
        kind, attribute, size = struct.unpack_from("<BBH", content, at)
        at += 4
        if kind == _SIZED_VALUE:
            yield attribute, content[at : at + size]
            at += size


def sections(code: bytes) -> Iterator[Section]:
    """The sections of a 64-bit ELF image; those without bytes are zeros."""
    if not code.startswith(b"\x7fELF"):
        return
    (table,) = struct.unpack_from("<Q", code, 0x28)
    count, names_index = struct.unpack_from("<HH", code, 0x3C)
    headers = [struct.unpack_from("<IIQQQQII", code, table + 64 * i) for i in range(count)]
    names = headers[names_index][4]
    for name, kind, _, _, offset, size, _, info in headers:
        start = names + name
        text = code[start : code.index(0, start)].decode()
        content = bytes(size) if kind == _NOBITS else code[offset : offset + size]
        yield Section(text, content, info)


def _log_of(log: str, kernel: str) -> str:
    """The part of ptxas' log about `kernel`; each function of the text has one."""
    sections_of_log = re.split(r"(?=^ptxas info +: Compiling entry function )", log, flags=re.MULTILINE)
    mine = [part for part in sections_of_log if f"entry function '{kernel}'" in part]
    return mine[0] if mine else log


def _numbers(pattern: str, log: str) -> tuple[int | None, ...]:
    """The numbers of a pattern's groups; None for each where the log lacks it."""
    match = re.search(pattern, log)
    if match is None:
        return (None,) * re.compile(pattern).groups
    return tuple(int(group) for group in match.groups())


def _diagnostics(log: str) -> Iterator[str]:
    for line in log.splitlines():
        if re.search(r"\(C\d+\)|\bwarning\b", line):
            yield re.sub(r"^ptxas\s+(info\s*: |application ptx input, )?", "", line).strip()


def quote(message: str, ptx: str) -> str:
    """`message` followed by the PTX lines that it names as `line N`."""
    lines = ptx.splitlines()
    quoted = [message]
    for number in dict.fromkeys(int(n) for n in re.findall(r"\bline (\d+)", message)):
        if 1 <= number <= len(lines):
            quoted.append(f"    {number} | {lines[number - 1].strip()}")
    return "\n".join(quoted)
