"""Target architectures, and the requirements of instructions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from tensorcore_dsl.errors import ArchError, ArgumentError, listing


@dataclass(frozen=True)
class Arch:
    """A PTX `.target`: `sm_80`, `sm_90a`.

    Attributes
    ----------
    number : int
        Compute capability, 90 for sm_90 and sm_90a.
    suffix : str
        "a" with the features of exactly this architecture, "f" with those of its family, else "".
    ptx : tuple of int
        The first PTX version that supports it.
    shared_kib : int
        Maximum shared memory of a block, static and dynamic, in KiB.
    chip : str
        The name of the generation.

    Notes
    -----
    Shared memory: CUDA programming guide, technical specifications per compute capability; CCCL's
    cuda/__device/arch_traits.h, `max_shared_memory_per_block_optin`.

    Examples
    --------
    >>> tc.ARCHS["sm_90a"].number, tc.ARCHS["sm_90a"].shared_kib
    (90, 227)
    """

    number: int
    suffix: str
    ptx: tuple[int, int]
    shared_kib: int
    chip: str

    @property
    def name(self) -> str:
        return f"sm_{self.number}{self.suffix}"

    @property
    def cc(self) -> tuple[int, int] | tuple[int, int, str]:
        """Compute capability in the notation of Numba's linker: (8, 0) or (9, 0, "a")."""
        major, minor = divmod(self.number, 10)
        return (major, minor, self.suffix) if self.suffix else (major, minor)

    def check_shared(self, kernel: str, asked: int) -> None:
        """ArgumentError if `asked` bytes of shared memory per block exceed the maximum."""
        most = self.shared_kib * 1024
        if asked > most:
            raise ArgumentError(
                f"{kernel} takes {asked} bytes of shared memory a block; {self} allows {most} "
                f"({self.shared_kib} KiB)"
            )

    def __reduce__(self) -> Any:
        return arch, (self.name,)  # each exists once, also in other processes

    def __str__(self) -> str:
        return self.name


SM_REGISTERS = 1 << 16  # registers of a multiprocessor, the most that a CTA can own
_FIRST_PTX = {"": (1, 0), "a": (8, 0), "f": (8, 8)}  # with targets of each suffix
ARCHS = {
    f"sm_{number}{suffix}": Arch(number, suffix, max(ptx, _FIRST_PTX[suffix]), shared_kib, chip)
    for number, suffixes, ptx, shared_kib, chip in (
        (70, ("",), (6, 0), 96, "Volta"),
        (75, ("",), (6, 3), 64, "Turing"),
        (80, ("",), (7, 0), 163, "Ampere A100"),
        (86, ("",), (7, 1), 99, "Ampere"),
        (87, ("",), (7, 4), 163, "Orin"),
        (88, ("",), (9, 0), 99, "Ampere"),
        (89, ("",), (7, 8), 99, "Ada"),
        (90, ("", "a"), (7, 8), 227, "Hopper"),
        (100, ("", "f", "a"), (8, 6), 227, "Blackwell"),
        (103, ("", "f", "a"), (8, 8), 227, "Blackwell Ultra"),
        (110, ("", "f", "a"), (9, 0), 227, "Thor"),
        (120, ("", "f", "a"), (8, 7), 99, "RTX Blackwell"),
        (121, ("", "f", "a"), (8, 8), 99, "DGX Spark"),
    )
    for suffix in suffixes
}


def arch(name: str | Arch) -> Arch:
    """The architecture called `name`, for example "sm_90a"."""
    if isinstance(name, Arch):
        return name
    if not isinstance(name, str) or name not in ARCHS:
        raise ArchError(f"unknown architecture {name!r}; known are {listing(ARCHS)}")
    return ARCHS[name]


def of_device(number: int) -> Arch | None:
    """The architecture that serves a GPU of this compute capability, 90 or 123; None if unknown.

    Its own one with all features, or else the last one before it in its family: code for these runs
    on later GPUs of the family, unless the suffix is "a" (11.1.2).
    """
    family = [a for a in ARCHS.values() if a.number // 10 == number // 10 and a.number <= number]
    fitting = [a for a in family if a.suffix != "a" or a.number == number]
    return fitting[-1] if fitting else None


@dataclass(frozen=True)
class Requires:
    """The architectures that have an instruction, in the manual's notation.

    `Requires("80")` is sm_80 or later; `"90a"` is sm_90a only (architecture-specific features do
    not carry over); `"120f"` is the family sm_120f to sm_121a; `"100f 120f"` are alternatives.
    """

    text: str

    def met_by(self, target: Arch) -> bool:
        return any(_meets(part, target) for part in self.text.split())

    def archs(self) -> list[str]:
        """Names of all known architectures that meet the requirement."""
        return [a.name for a in ARCHS.values() if self.met_by(a)]

    def check(self, target: Arch, what: str) -> None:
        if not self.met_by(target):
            raise ArchError(f"{target} has no {what}; it exists on {listing(self.archs())}")

    def __str__(self) -> str:
        return " or ".join(f"sm_{p}" + ("" if p[-1] in "af" else " or later") for p in self.text.split())


@cache
def _meets(part: str, target: Arch) -> bool:
    match = re.fullmatch(r"(\d+)([af-]?)(\d*)", part)
    assert match, part
    number, kind = int(match[1]), match[2]
    if kind == "a":
        return target.number == number and target.suffix == "a"
    if kind == "f":  # family: same major, at least this minor version, with a suffix
        same = target.number // 10 == number // 10
        return same and target.number >= number and target.suffix != ""
    if kind == "-":  # inclusive range of generations
        return number <= target.number <= int(match[3])
    return target.number >= number
