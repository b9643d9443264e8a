"""On a terminal: the table of instructions (`show`, `list`), and scripts with checks (`check`)."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence

from tensorcore_dsl import isa
from tensorcore_dsl.checking.script import check_script
from tensorcore_dsl.errors import TensorCoreError
from tensorcore_dsl.interpreter.scheduling.orders import order_of
from tensorcore_dsl.isa.description import describe, search

MANY = 60  # lines that `list` prints without --all


def parser() -> argparse.ArgumentParser:
    whole = argparse.ArgumentParser(
        "python -m tensorcore_dsl", description="The instructions, and scripts with checks."
    )
    commands = whole.add_subparsers(dest="command", required=True, metavar="show | list | check")
    show = commands.add_parser("show", help="describe an instruction")
    show.add_argument("mnemonic", help="PTX text of one or more instructions", nargs="+")
    show.add_argument("--no-layouts", action="store_true", help="omit the layout drawings")
    show.add_argument("--plot", metavar="DIRECTORY", help="also draw the layouts to PNG files")
    find = commands.add_parser("list", help="instructions that match all given criteria")
    find.add_argument("text", nargs="?", help="a part of the mnemonic")
    find.add_argument("--opcode", help="for example mma")
    find.add_argument("--arch", help="runs on this target, for example sm_90a")
    find.add_argument("--dtype", help="an element type of an operand, for example e4m3")
    find.add_argument("--shape", help="for example m16n8k16")
    find.add_argument("--all", action="store_true", help=f"print more than {MANY} lines")
    check = commands.add_parser(
        "check", help="run a script with every launch emulated, with all checks"
    )
    check.add_argument("--first", action="store_true", help="stop at the first finding")
    check.add_argument("--json", metavar="FILE", help="also write the findings; - prints them")
    check.add_argument("--order", metavar="ORDER", help="a seed or a schedule of threads")
    check.add_argument("--arch", help="the architecture to emulate, for example sm_80")
    check.add_argument("script", help="path of a Python script")
    check.add_argument("arguments", nargs=argparse.REMAINDER, help="what the script is given")
    return whole


def show(mnemonics: Sequence[str], layouts: bool, directory: str | None) -> None:
    width = max(80, shutil.get_terminal_size((120, 24)).columns)
    instructions = [isa.instruction(text) for text in mnemonics]
    print("\n\n".join(describe(instr, layouts, width) for instr in instructions))
    if directory is not None:
        from tensorcore_dsl.viz.plot import plot_instruction

        for instr in instructions:
            for path in plot_instruction(instr, directory):
                print(path)


def find(options: argparse.Namespace) -> None:
    asked = (options.opcode, options.arch, options.dtype, options.shape, options.text)
    if not any(asked):
        print_opcodes()
        return
    matches = search(*asked)
    shown = matches if options.all else matches[:MANY]
    width = max((len(f.mnemonic) for f in shown), default=0)
    for instr in shown:
        version = ".".join(map(str, instr.version))
        print(f"{instr.mnemonic:<{width}}  {instr.requires}, PTX {version}")
    if len(matches) > len(shown):
        print(f"... and {len(matches) - len(shown)} more; --all prints them, other options choose")
    print(f"{len(matches)} instruction{'' if len(matches) == 1 else 's'}")


def print_opcodes() -> None:
    counts = {opcode: len(list(isa.instructions(opcode))) for opcode in isa.opcodes()}
    for opcode, count in counts.items():
        print(f"{opcode:<16}{count:>6}")
    total = sum(counts.values())
    print(f"{total} instructions of {len(counts)} opcodes; --opcode lists those of one")


def check(options: argparse.Namespace) -> int:
    given: str | None = options.order
    order = order_of(int(given) if given is not None and given.isdecimal() else given)
    return check_script(
        options.script, options.arguments, json=options.json, first=options.first, order=order,
        arch=options.arch,
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0, or 1 for an error; of `check` 1 for findings, else that of the script."""
    options = parser().parse_args(arguments)
    try:
        if options.command == "check":
            return check(options)
        if options.command == "show":
            show(options.mnemonic, not options.no_layouts, options.plot)
        else:
            find(options)
        sys.stdout.flush()
    except TensorCoreError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader has closed the pipe: `list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    sys.exit(main())
