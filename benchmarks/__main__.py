"""`python -m benchmarks [gemm | launch | emulate | compile | all | tune | merge | report]`"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from benchmarks.harness import RESULTS

# Subcommand -> its module, and what it measures.
SUBCOMMANDS = {
    "gemm": ("benchmarks.gemm", "products of matrices, beside cuBLAS on a GPU, else in emulation"),
    "launch": ("benchmarks.launch_cost", "what a launch costs the host"),
    "emulate": ("benchmarks.emulate", "single instructions on the CPU"),
    "compile": ("benchmarks.compile_time", "from Python to PTX, from PTX to machine code, cached"),
}
# Those that measure nothing by themselves, or not without being asked to.
TOOLS = {
    "merge": ("benchmarks.merge", "one report from the result files of pieces of a suite"),
    "tune": ("benchmarks.tuning", "the fastest configuration of gemm for given problems, kept"),
    "tutorial": ("benchmarks.tutorial", "the steps of the Hopper tutorial beside cuBLAS, on a GPU"),
    "report": ("benchmarks.page", "docs/performance.md from the newest result files"),
}
EPILOG = """\
examples:
  python -m benchmarks                                   everything, in less than 4 minutes
  python -m benchmarks gemm --quick                      a first impression
  python -m benchmarks gemm --dtypes bf16,tf32 --sizes 4096,1000x2000x504 --layouts row.col
  python -m benchmarks gemm --suite hopper               products in groups, on an H100 or H200
  python -m benchmarks gemm --suite hopper --groups square,model --budget 400
  python -m benchmarks merge piece1.json piece2.json     one report of a suite run in pieces
  python -m benchmarks gemm --target cpu --arch sm_80    the emulator, also where there is a GPU
  python -m benchmarks tune --sizes 4096 --dtype bf16    measure tiles; gemm remembers the best
  python -m benchmarks report                            bring docs/performance.md up to date
  python -m benchmarks compile --help                    the options of one benchmark

Each run writes a JSON file, with all samples and the state of the machine, to benchmarks/results/.
"""


def parser() -> argparse.ArgumentParser:
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--quick", action="store_true", help="less of everything, within a minute")
    shared.add_argument(
        "--out",
        type=Path,
        default=RESULTS,
        metavar="DIR",
        help="where files are written (default: benchmarks/results)",
    )
    shared.add_argument("--no-plot", dest="plot", action="store_false", help="draw nothing")
    top = argparse.ArgumentParser(
        prog="python -m benchmarks", description="How fast is tensorcore_dsl on this machine?",
        epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    commands = top.add_subparsers(dest="command", metavar="benchmark")
    for name, (module, about) in {**SUBCOMMANDS, **TOOLS}.items():
        command = commands.add_parser(name, parents=[shared], help=about, description=about)
        import_module(module).add_arguments(command)
    commands.add_parser("all", parents=[shared], help="all of these, one after the other (default)")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] not in (*SUBCOMMANDS, *TOOLS, "all", "-h", "--help"):
        given = ["all", *given]
    options = parser().parse_args(given)
    if options.command != "all":
        return _run(options)
    shared = given[1:]
    return max(_run(parser().parse_args([name, *shared])) for name in SUBCOMMANDS)


def _run(options: argparse.Namespace) -> int:
    """0, or 1 when something went wrong: on stderr, or in the table."""
    module, about = {**SUBCOMMANDS, **TOOLS}[options.command]
    print(f"== {options.command}: {about}\n", flush=True)
    try:
        report = import_module(module).run(options)
    except Exception as error:
        print(f"{options.command}: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    print(flush=True)
    if report is None:
        return 0
    return int(any("failure" in r or r.get("correct") is False for r in report.results))


if __name__ == "__main__":
    sys.exit(main())
