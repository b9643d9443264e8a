"""`python -m benchmarks [gemm | launch | emulate | compile | all | tune | merge | report]`"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from benchmarks.harness import RECORDED

# Subcommand -> its module, and its description.
BENCHMARKS = {
    "gemm": ("benchmarks.products.gemm", "GEMMs against cuBLAS on a GPU, else in emulation"),
    "launch": ("benchmarks.host.launch", "host time of a launch"),
    "compile": ("benchmarks.host.compile_time", "from Python to PTX, from PTX to machine code, cached"),
}
# Subcommands that `all` leaves out.
TOOLS = {
    "examples": ("benchmarks.programs.examples", "the programs of examples/ against PyTorch, on a GPU"),
    "packed": ("benchmarks.programs.packed", "gemm with packed weights against bf16 and int4, on a GPU"),
    "first-call": ("benchmarks.host.first_call", "first runs in emulation, each in a new process"),
    "merge": ("benchmarks.products.merge", "one report from the result files of the parts of a suite"),
    "tune": ("benchmarks.choices.tuning", "find and remember gemm's fastest configuration for problems"),
    "attention": ("benchmarks.programs.attention", "attention and its gradients against cuDNN, on a GPU"),
    "forms": ("benchmarks.forms", "every matrix instruction on the CPU, the slowest ones first"),
    "emulation": ("benchmarks.emulation", "whole emulated kernels on one core and on more"),
    "learn": ("benchmarks.choices.learn", "the trees and the menu of gemm's choice, from timings"),
    "regret": ("benchmarks.choices.regret", "the choice of configuration against all plausible ones"),
    "attention-tutorial": (
        "benchmarks.programs.attention_tutorial",
        "the steps of the attention tutorial against cuDNN, on a GPU",
    ),
    "tutorial": ("benchmarks.programs.tutorial", "the steps of the Hopper tutorial against cuBLAS, on a GPU"),
    "torch-mlp": ("benchmarks.programs.torch_mlp", "an MLP in PyTorch, on a GPU"),
    "distributed": ("benchmarks.products.distributed", "products on several GPUs against NCCL and cuBLAS"),
    "report": ("benchmarks.page", "tables of docs/ from the newest recorded results"),
}
EPILOG = """\
examples:
  python -m benchmarks                                   everything, in less than 4 minutes
  python -m benchmarks gemm --quick                      a first impression
  python -m benchmarks gemm --dtypes bf16,tf32 --sizes 4096,1000x2000x504 --layouts row.col
  python -m benchmarks gemm --suite hopper               groups of GEMMs, on an H100 or H200
  python -m benchmarks gemm --suite hopper --groups square,model --budget 400
  python -m benchmarks merge part1.json part2.json       one report of a suite measured in parts
  python -m benchmarks gemm --target cpu --arch sm_80    the emulator, also where there is a GPU
  python -m benchmarks tune --sizes 4096 --dtype bf16    measure tiles; gemm remembers the best
  python -m benchmarks report                            update docs/performance.md, docs/measurements.md
  python -m benchmarks compile --help                    the options of one benchmark

Each run writes a JSON file, with all samples and the state of the machine, to the working
directory; --record puts it into benchmarks/results/, where `report` reads it.
"""


def parser() -> argparse.ArgumentParser:
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--quick", action="store_true", help="fewer cases, within a minute")
    shared.add_argument(
        "--out", type=Path, default=Path(), metavar="DIR", help="folder of the result files (default: .)"
    )
    shared.add_argument(
        "--record",
        dest="out",
        action="store_const",
        const=RECORDED,
        help="write the result files to benchmarks/results",
    )
    shared.add_argument("--no-plot", dest="plot", action="store_false", help="draw no plot")
    top = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="How fast is tensorcore_dsl on this machine?",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(dest="command", metavar="benchmark")
    for name, (module, about) in {**BENCHMARKS, **TOOLS}.items():
        command = commands.add_parser(name, parents=[shared], help=about, description=about)
        import_module(module).add_arguments(command)
    commands.add_parser("all", parents=[shared], help="all of these, one after the other (default)")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] not in (*BENCHMARKS, *TOOLS, "all", "-h", "--help"):
        words = ["all", *words]
    options = parser().parse_args(words)
    if options.command != "all":
        return _run(options)
    shared = words[1:]
    return max(_run(parser().parse_args([name, *shared])) for name in BENCHMARKS)


def _run(options: argparse.Namespace) -> int:
    """Measure, print the tables and write the files; 1 after an error or a wrong result."""
    name, about = {**BENCHMARKS, **TOOLS}[options.command]
    print(f"== {options.command}: {about}\n", flush=True)
    try:
        module = import_module(name)
        report = module.run(options)
        if report is None:
            return 0
        for table in module.tables(report.json()):
            table.print()
        print(f"Written to {report.save(options.out)}")
        if options.plot and report.benchmark.startswith("gemm"):
            from benchmarks.products.gemm_plot import draw

            print(draw(report, report.path(options.out, "png")))
    except Exception as error:
        print(f"{options.command}: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    print(flush=True)
    return int(any("failure" in r or r.get("correct") is False for r in report.results))


if __name__ == "__main__":
    sys.exit(main())
