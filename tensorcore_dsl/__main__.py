"""The program `tensorcore-dsl`, which is also `python -m tensorcore_dsl`."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any

import tensorcore_dsl as tc
from tensorcore_dsl import isa, ptx
from tensorcore_dsl.checking.formats import FORMATS
from tensorcore_dsl.checking.script import USAGE, check_script, run, source_of
from tensorcore_dsl.environment import cache_contents as caches
from tensorcore_dsl.environment.cache_directory import VARIABLE, cache_directory
from tensorcore_dsl.errors import (
    ArchError,
    ArgumentError,
    LaunchError,
    TensorCoreError,
    UnknownInstruction,
    UnknownName,
)
from tensorcore_dsl.export import commands as of_kernels
from tensorcore_dsl.interpreter.core.policy import executing
from tensorcore_dsl.interpreter.scheduling.orders import order_of
from tensorcore_dsl.isa.description import describe, search
from tensorcore_dsl.kernel import installation
from tensorcore_dsl.kernels import bench, demo, museum
from tensorcore_dsl.ptx.launch_file import run_launches
from tensorcore_dsl.viewer.observe import compiled, observe
from tensorcore_dsl.viewer.page import page
from tensorcore_dsl.viewer.server import Pages, serve

PROGRAM = "tensorcore-dsl"
MAX_LISTED = 60  # lines that `list` prints without --all
CONTENTS = {
    caches.KERNELS: "compiled kernels",
    caches.LOOPS: "compiled loops of the emulator",
    caches.MEASUREMENTS: "measurements of tuning",
}

ON_CPU = {  # what a script imports, and what runs its kernels in emulation
    r"^\s*(import|from) triton\b": ptx.triton_on_cpu,
    r"^\s*(import|from) numba\b.*\bcuda\b": ptx.numba_on_cpu,
}

STATUSES = (
    "Exit status: 0 if all is well, 1 for a finding or a failure, 2 for wrong usage: options, files, types, "
    "names that do not exist."
)
WRONG_USAGE = ArgumentError, ArchError, LaunchError, UnknownInstruction, UnknownName

Command = Callable[[argparse.Namespace], int]  # the exit status


def parser() -> argparse.ArgumentParser:
    whole = argparse.ArgumentParser(
        PROGRAM,
        description="Tensor-core kernels in Python, on GPUs and bit for bit on the CPU.",
        epilog=f"`{PROGRAM} COMMAND --help` explains the options of a command. {STATUSES}",
    )
    whole.add_argument(
        "--version",
        action="version",
        version=f"{PROGRAM} {tc.__version__}",
        help="print the version and exit",
    )
    commands = whole.add_subparsers(dest="command", metavar="COMMAND")
    whole.set_defaults(run=lambda options: print(whole.format_help()))  # without a command

    def command(name: str, run: Command, about: str) -> argparse.ArgumentParser:
        subparser = commands.add_parser(
            name, help=about, description=f"{about[0].upper()}{about[1:]}.", epilog=STATUSES
        )
        subparser.set_defaults(run=run)
        return subparser

    about = command("show", show, "describe instructions: text, operands, layouts, targets")
    about.add_argument(
        "mnemonic", help="PTX text of one or more instructions, or Python as tc.mma.m16n8k8(...)", nargs="+"
    )
    about.add_argument("--no-layouts", action="store_true", help="omit the layout drawings")
    about.add_argument("--plot", metavar="DIRECTORY", help="also draw the layouts to PNG files")
    listed = command("list", find, "instructions that match all given criteria; else the opcodes")
    listed.add_argument(
        "text", nargs="?", help="a part of the mnemonic, or some of its parts with dots between"
    )
    listed.add_argument("--opcode", help="for example mma")
    listed.add_argument("--arch", help="runs on this target, for example sm_90a")
    listed.add_argument("--dtype", help="an element type of an operand, for example e4m3")
    listed.add_argument("--shape", help="for example m16n8k16")
    listed.add_argument("--all", action="store_true", help=f"print more than {MAX_LISTED} lines")
    shown = command("demo", on_target(demo.run_all), "multiply matrices and compare with NumPy")
    timed = command("bench", on_target(bench.run), "time matrix products, and compare with NumPy")
    bench.add_arguments(timed)
    for subparser in (shown, timed):
        subparser.add_argument(
            "--target", choices=("cpu", "cuda"), help="where kernels run (default: the GPU, if there is one)"
        )
        subparser.add_argument("--arch", help="the architecture that the CPU emulates, as sm_80")
    checked = command("check", check, "run a script with every launch emulated, with all checks")
    add_check_arguments(checked)
    viewed = command("view", view, "show a kernel's Python next to its PTX and SASS, with an emulated run")
    add_view_arguments(viewed)
    of_kernels.add_commands(command)
    visited = command("museum", visit, "public bugs of asynchronous kernels: list them, or run them")
    visited.add_argument("name", nargs="?", help="run this one: its broken form, and its fixed form")
    visited.add_argument("--all", action="store_true", help="run all of them")
    held = command("ptx", read_ptx, "say what a file of PTX holds, and whether its kernels can be emulated")
    held.add_argument("file", help="a file of PTX, of any compiler")
    command("info", info, "say what is installed, which GPUs there are, what is set, and what is missing")
    completed = command("completion", complete, "print a script that completes commands in a shell")
    completed.add_argument("shell", choices=("bash", "zsh", "tcsh"), help="the shell")
    cache = command("cache", show_cache, "say where the caches are and how large, or clear them")
    cache.add_argument(
        "--clear",
        nargs="?",
        const="all",
        choices=("all", *caches.KINDS),
        help="remove what was compiled and measured, or one of the three (default: all)",
    )
    return whole


def noting_options(subparser: argparse.ArgumentParser) -> Callable[..., None]:
    """Make an `add_argument` that notes the options of a command whose script has options, too."""
    noted: list[str] = []
    subparser.set_defaults(of_command=noted)

    def add(*names: str, **settings: Any) -> None:
        noted.extend(subparser.add_argument(*names, **settings).option_strings)

    return add


def add_check_arguments(checked: argparse.ArgumentParser) -> None:
    add = noting_options(checked)
    add("--first", action="store_true", help="stop at the first finding")
    add("--format", choices=FORMATS, default="text", help="of the report (default: text)")
    add("--json", action="store_const", dest="format", const="json", help="as --format json")
    add("--output", metavar="FILE", help="write the report to a file")
    add("--order", metavar="ORDER", help="a seed or a schedule of threads")
    add("--arch", help="the architecture to emulate, for example sm_80")
    add("--launch", metavar="FILE", help="of TOML: the launches of kernels in a file of PTX")
    checked.epilog = f"{STATUSES} 3 if the script fails by itself without a finding, 4 if it makes no launch."
    add("script", help="path of a Python script, or of a file of PTX")
    add("arguments", nargs=argparse.REMAINDER, help="what the script is given, or types")


def add_view_arguments(viewed: argparse.ArgumentParser) -> None:
    add = noting_options(viewed)
    add("--export", metavar="FILE", help="write the page to a file instead of serving it")
    add("--port", type=int, default=0, help="of the page (default: any that is free)")
    add("--arch", help="the architecture, for example sm_80 (default: sm_90a)")
    add("--launch", type=launch_number, default=1, metavar="N", help="the kernel's N-th launch (default: 1)")
    add("--types", action="store_true", help="compile for types, as `compile`; run nothing")
    add("target", metavar="FILE[:KERNEL]", help="a script, and a kernel that it launches")
    add("arguments", nargs=argparse.REMAINDER, help="what the script is given")


def warn_of_misplaced(options: argparse.Namespace) -> None:
    """Say that options after a script go to the script."""
    for name in [argument.partition("=")[0] for argument in options.arguments]:
        if name in options.of_command:
            text = f"{name} goes to the script; options of {options.command} stand before it"
            print(f"{PROGRAM}: {text}", file=sys.stderr)


def launch_number(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of a launch; the first one is 1")
    return int(text)


def show(options: argparse.Namespace) -> int:
    width = max(80, shutil.get_terminal_size((120, 24)).columns)
    instructions = [instruction_of(text) for text in options.mnemonic]
    print("\n\n".join(describe(instr, not options.no_layouts, width) for instr in instructions))
    if options.plot is not None:
        from tensorcore_dsl.viz.plot import plot_instruction

        try:
            for instr in instructions:
                for path in plot_instruction(instr, options.plot):
                    print(path)
        except OSError as error:
            why = error.strerror or error
            raise ArgumentError(f"cannot write pictures to {options.plot!r}: {why}") from None
    return 0


def instruction_of(text: str) -> isa.Instruction:
    """The instruction of a text of PTX, or of an expression of Python such as `tc.mma.m16n8k8(...)`."""
    text = text.rstrip(".")
    try:
        if not text.startswith("tc."):
            return isa.instruction(text)
        instr = eval(text, {"tc": tc})
        if not isinstance(instr, (isa.Instruction, FunctionType)):
            instr = instr()  # tells the types that a shape takes
    except UnknownInstruction as error:
        count = len(search(text=text))
        if count:
            error.message += f"; `{PROGRAM} list {text}` prints {count} with these words"
        if isinstance(getattr(tc, text, None), FunctionType):
            error.message += f"; tc.{text} is a function of the language: see help(tc.{text})"
        raise
    except TensorCoreError:
        raise
    except Exception as error:  # of the user's expression
        raise ArgumentError(f"{text!r} makes no instruction: {error}") from None
    if not isinstance(instr, isa.Instruction):
        raise ArgumentError(f"{text} is a function of the language: help({text}) names its instructions")
    return instr


def find(options: argparse.Namespace) -> int:
    asked = (options.opcode, options.arch, options.dtype, options.shape, options.text)
    if not any(asked):
        print_opcodes()
        return 0
    matches = search(*asked)
    if not matches and options.text:
        instruction_of(options.text)  # raises, with what is near
    shown = matches if options.all else matches[:MAX_LISTED]
    width = max((len(f.mnemonic) for f in shown), default=0)
    for instr in shown:
        version = ".".join(map(str, instr.version))
        print(f"{instr.mnemonic:<{width}}  {instr.requires}, PTX {version}")
    if len(matches) > len(shown):
        print(f"... and {len(matches) - len(shown)} more; --all prints them, other options choose")
    print(f"{len(matches)} instruction{'' if len(matches) == 1 else 's'}")
    return 0


def print_opcodes() -> None:
    counts = {opcode: len(list(isa.instructions(opcode))) for opcode in isa.opcodes()}
    for opcode, count in counts.items():
        print(f"{opcode:<16}{count:>6}")
    total = sum(counts.values())
    print(f"{total} instructions of {len(counts)} opcodes; --opcode lists those of one")


def on_target(run: Command) -> Command:
    """The command, run with its options --target and --arch."""

    def chosen(options: argparse.Namespace) -> int:
        target, arch = options.target, options.arch
        if target is None and arch is not None:
            target = "cpu"
        with nullcontext() if target is None else tc.target(target, arch=arch):
            return run(options)

    return chosen


def check(options: argparse.Namespace) -> int:
    requested: str | None = options.order
    order = order_of(int(requested) if requested is not None and requested.isdecimal() else requested)
    if options.script.endswith(".ptx") and options.arguments[:1] == ["--launch"]:
        options.launch = "".join(options.arguments[1:])
    if options.launch is not None and options.script.endswith(".py"):
        raise ArgumentError(f"--launch is for files of PTX; {options.script!r} launches its kernels itself")
    if options.launch is not None:
        body = partial(ptx_launches, options.script, options.launch, options.arch)
    elif options.script.endswith(".ptx"):
        raise ArgumentError("the launches of a file of PTX are needed: --launch FILE, in TOML")
    else:
        warn_of_misplaced(options)
        source_of(options.script)  # or its error
        body = partial(run_script, options.script, options.arguments, options.arch)
    return check_script(
        options.script,
        options.arguments,
        body=body,
        form=options.format,
        output=options.output,
        first=options.first,
        order=order,
        arch=options.arch,
    )


def ptx_launches(script: str, launches: str, arch: str | None) -> str:
    run_launches(script, launches, arch)
    return ""


def run_script(script: str, arguments: Sequence[str], arch: str | None) -> str:
    """Run a script as `python script.py arguments` does; kernels of Triton and Numba need no GPU."""
    with compilers_on_cpu(script, arch):
        return run(source_of(script), script, arguments)


@contextmanager
def compilers_on_cpu(script: str, arch: str | None) -> Iterator[None]:
    """Inside, kernels of the compilers that a script imports are emulated."""
    text = Path(script).read_text(encoding="utf-8", errors="replace")
    with ExitStack() as stack:
        for pattern, on_cpu in ON_CPU.items():
            if re.search(pattern, text, re.MULTILINE):
                stack.enter_context(on_cpu(arch or "sm_90a"))
        yield


def view(options: argparse.Namespace) -> int:
    script, _, kernel = options.target.rpartition(":")
    if not script or not kernel.isidentifier():  # no kernel: the colon of a drive, or none
        script, kernel = options.target, ""
    if script.endswith(".ptx"):
        raise ArgumentError(
            f"{script!r} is a file of PTX; `view` takes Python. `{PROGRAM} ptx {script}` describes its "
            f"kernels, and `{PROGRAM} check --launch FILE {script}` runs them with all checks"
        )
    warn_of_misplaced(options)
    source_of(script)  # or its error, before anything is served
    if options.export is None:
        chosen = [f"--launch={options.launch}", *(["--types"] if options.types else [])]
        chosen += [f"--arch={options.arch}"] if options.arch else []
        serve(Pages([*chosen, options.target, *options.arguments], script), options.port)
        return 0
    if options.types:
        seen = compiled(options.target, options.arguments, options.arch)
    else:
        with compilers_on_cpu(script, options.arch):
            seen = observe(script, kernel or None, options.arguments, options.launch, options.arch)
    text = page(seen)
    try:
        Path(options.export).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ArgumentError(f"cannot write {options.export!r}: {error.strerror or error}") from None
    print(f"wrote {options.export}")
    return 0


def visit(options: argparse.Namespace) -> int:
    """The exit status: 1 if a broken form is not reported, or a fixed form is."""
    if options.name is None and not options.all:
        museum.print_list()
        return 0
    chosen = museum.exhibits() if options.all else [museum.exhibit(options.name)]
    # Where compiled regions are on disk, warps run in another order, and a report may name other accesses of
    # the same race. Single steps print the same in each process.
    with executing(regions=False):
        return int(not all([museum.tell(each) for each in chosen]))


def read_ptx(options: argparse.Namespace) -> int:
    """The exit status: 1 if a kernel of the file is not read."""
    try:
        module = ptx.load(Path(options.file))
    except OSError as error:
        raise ArgumentError(f"cannot read {options.file!r}: {error.strerror or error}") from None
    said = list(module.overview())
    print("\n".join(line for line, _ in said))
    return int(not all(fine for _, fine in said))


def info(options: argparse.Namespace) -> int:
    for title, lines in installation.report():
        print(f"{title}:", *lines, sep="\n    ")
    return 0


def complete(options: argparse.Namespace) -> int:
    try:
        shtab = import_module("shtab")
    except ImportError:
        raise ArgumentError("completion needs shtab: pip install 'tensorcore-dsl[completion]'") from None
    print(shtab.complete(parser(), shell=options.shell))
    return 0


def show_cache(options: argparse.Namespace) -> int:
    root = cache_directory()
    if root is None:
        print(f"there is no cache: {VARIABLE} is off or names a directory that others may write")
        return 0
    files = list(caches.files(root))
    if options.clear is not None:
        wanted = caches.KINDS if options.clear == "all" else (options.clear,)
        caches.remove(file for file in files if file.kind in wanted)
        left = list(caches.files(root))
        print(f"removed {_size(sum(f.size for f in files) - sum(f.size for f in left))}")
        files = left
    print(root)
    for kind, words in CONTENTS.items():
        sizes = [file.size for file in files if file.kind == kind]
        print(f"{words:<32}{len(sizes):>8} files{_size(sum(sizes)):>12}")
    most = caches.limit()
    limit = "no limit" if most is None else f"limit {_size(most)}"
    print(f"{limit} for what is compiled ({caches.VARIABLE}); what was used longest ago goes first")
    return 0


def _size(number: int) -> str:
    """A number of bytes for people."""
    size, unit = float(number), "bytes"
    for larger in ("KiB", "MiB", "GiB"):
        if size >= 1024:
            size, unit = size / 1024, larger
    return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: see STATUSES, and `checking.script` for `check`."""
    options = parser().parse_args(arguments)
    try:
        status: int = options.run(options) or 0
        sys.stdout.flush()
    except TensorCoreError as error:
        print(f"error: {error}", file=sys.stderr)
        usage = isinstance(error, WRONG_USAGE) and error.loc is None  # else it lies in a kernel
        return USAGE if usage else 1
    except BrokenPipeError:  # the reader has closed the pipe: `list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status


if __name__ == "__main__":
    sys.exit(main())
