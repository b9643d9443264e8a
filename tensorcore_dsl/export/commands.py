"""The commands `compile` and `export` of `tensorcore-dsl`, for a kernel in a file."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from tensorcore_dsl.codegen.nvdisasm import disassemble
from tensorcore_dsl.export.from_text import SYNTAX, arguments_of, kernel_in_file
from tensorcore_dsl.export.write import FORMS
from tensorcore_dsl.ir.text import format_kernel

PRINTED = ("ir", "ptx", "sass", "resources")
_OPTIONS = ("arch", "name", "form", "grid", "block", "shared_bytes", "cluster", "cooperative", "pdl")


def add_commands(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the two commands. `command(name, function, text)` makes the parser of one."""
    compiled = command(
        "compile", compile_kernel, "print a kernel's IR, PTX or SASS, or what it takes of a GPU"
    )
    for form in PRINTED:
        compiled.add_argument(f"--{form}", action="store_true", help="print it (default: --resources)")
    exported = command("export", export, "write a kernel as machine code with a launcher in C")
    exported.add_argument("--out", metavar="FOLDER", required=True, help="made if it is not there")
    exported.add_argument("--name", help="of the files and of the functions in C")
    exported.add_argument("--form", choices=FORMS, default="cubin", help="of the code (default: cubin)")
    exported.add_argument("--grid", action="append", metavar="RULE", help="as 'cdiv(x.shape[0], 128), 4'")
    exported.add_argument("--block", type=_sizes, metavar="N,N", help="threads along each axis")
    exported.add_argument("--shared-bytes", type=int, default=0, help="of dynamic shared memory")
    exported.add_argument("--cluster", type=_sizes, metavar="N,N", help="blocks of a cluster")
    for flag in ("cooperative", "pdl"):
        exported.add_argument(f"--{flag}", action="store_true", help="as kernel.configured takes it")
    for subparser in (compiled, exported):
        subparser.epilog = f"Options stand before FILE:KERNEL, or behind the types. {subparser.epilog}"
        subparser.add_argument("--arch", help="the architecture (default: that on which kernels run now)")
        subparser.add_argument("kernel", metavar="FILE:KERNEL", help="a file of Python, and a kernel in it")
        subparser.add_argument(
            "types", nargs="*", metavar="TYPE", help=f"of the arguments: {SYNTAX}; name=value for a Const"
        )


def _sizes(text: str) -> tuple[int, ...]:
    """Sizes along the axes of a block, as "16,8"."""
    return tuple(map(int, text.split(",")))


def _lines(fields: dict[str, Any]) -> str:
    return "".join(f"{name}: {value}\n" for name, value in fields.items())


def compile_kernel(options: argparse.Namespace) -> int:
    kernel, names = kernel_in_file(options.kernel)
    arguments = arguments_of(kernel, options.types, names)
    chosen = kernel.specialise((), arguments, options.arch)
    texts: dict[str, Callable[[], str]] = {
        "ir": lambda: format_kernel(chosen.ir),
        "ptx": lambda: chosen.ptx,
        "sass": lambda: "".join(f"{line.text}\n" for line in disassemble(chosen.cubin, {})),
        "resources": lambda: _lines(vars(kernel.resources(**arguments, arch=options.arch))),
    }
    for form in [form for form in PRINTED if getattr(options, form)] or ["resources"]:
        print(texts[form](), end="")
    return 0


def export(options: argparse.Namespace) -> int:
    kernel, names = kernel_in_file(options.kernel)
    arguments = arguments_of(kernel, options.types, names)
    print(kernel.export(options.out, arguments, **{option: getattr(options, option) for option in _OPTIONS}))
    return 0
