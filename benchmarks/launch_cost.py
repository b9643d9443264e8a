"""What a launch costs the host: runs the cases of `benchmarks.launch`, writes a result file."""

from __future__ import annotations

import argparse

from benchmarks import launch
from benchmarks.console import table
from benchmarks.harness import Report, Timing
from tensorcore_dsl.runtime import driver

NO_GPU = (
    "NO GPU HERE: a native function that does nothing stands for the driver; the figures are the "
    "part that Python spends.\n"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rounds",
        type=int,
        default=None,
        metavar="N",
        help=f"samples of {launch.BATCH} launches each (default: 60, 20 with --quick)",
    )


def run(options: argparse.Namespace) -> Report:
    on_gpu = driver.cuda_available()
    rounds = options.rounds or (20 if options.quick else 60)
    if not on_gpu:
        print(NO_GPU)
    report = Report("launch", {"rounds": rounds}, {
        "clock": "time.perf_counter around a batch of launches, the wait after it left out",
        "launches_in_a_batch": launch.BATCH,
        "driver": "the GPU's" if on_gpu else "none: a native function that does nothing",
    })  # fmt: skip
    with launch.gpu_cases() if on_gpu else launch.host_cases() as (cases, wait):
        measured = launch.measure(cases, wait, rounds)
    for name, samples in measured.items():
        timing = Timing(tuple(us / 1e6 for us in samples))
        report.results.append({"case": name, "launch": timing.json()})
    report.results.sort(key=lambda found: found["launch"]["median"])
    rows = [
        [found["case"], *(f"{found['launch'][name] * 1e6:.2f}" for name in ("median", "best")),
         f"{found['launch']['spread']:.1%}", ""]
        for found in report.results
    ]  # fmt: skip
    table("Microseconds a launch", ["case", "median", "best", "+-", ""], rows)
    print(f"Written to {report.save(options.out)}")
    return report
