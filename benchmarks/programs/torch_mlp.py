"""Training of a two-layer MLP: `tensorcore_dsl.torch.MLP` compared with torch's own layers.

Both have the same initial weights and data. Accuracy: both are trained for some steps, and compared
with a training of torch in f32: losses, and the weights' distance from those of f32, relative to
how far training has moved them. Time: of whole steps (forward, loss, backward, SGD), in turns.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks.gpu import Monitor, seconds_of
from benchmarks.harness import Report, Timing, add_seconds, attempt
from benchmarks.products.gemm import torch_with_gpu
from benchmarks.tables import Table, duration, number, one_line

CASES = ((8192, 4096, 14336), (4096, 2048, 8192), (1024, 1024, 4096))  # rows, features, hidden
MODES = ("eager", "compiled", "captured")
STEPS, ROUNDS = 20, 15
WARM_UP = 4  # steps
RATE = 256  # features for each unit of the rate of SGD: with 64, the widest case diverges
SAMPLE = 0.04  # seconds
METHOD = {
    "clock": "CUDA events around steps of training",
    "order": "one sample of each model a round, in alternating order",
    "eager": "without torch.compile, host time included",
    "compiled": "forward and loss by torch.compile(fullgraph=True)",
    "captured": "the compiled step, backward and SGD too, as one CUDA graph",
    "ratio": "median time of torch over that of tensorcore_dsl",
    "loss error": "largest difference from the loss of f32 training, relative to it",
    "weight error": "norm of the weights' difference from f32, over the norm of what f32 changed",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    about = f"samples of each model (default: {ROUNDS})"
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="R", help=about)
    add_seconds(parser, 150.0, "measurement")


def run(options: argparse.Namespace) -> Report:
    torch = torch_with_gpu()
    cases = CASES[1:2] if options.quick else CASES
    settings = {"cases": cases, "steps": STEPS, "rounds": options.rounds}
    report = Report("torch-mlp", settings, dict(METHOD), summary={"target": "cuda"})
    begin = time.perf_counter()
    with Monitor() as monitor:
        for case in cases:
            named = dict(zip(("rows", "features", "hidden"), case, strict=True))
            accuracy = attempt(measure_accuracy, torch, case, STEPS)
            report.results.append(named | {"mode": "accuracy"} | accuracy)
            for mode in MODES:
                if time.perf_counter() - begin > options.seconds:
                    about = f"{options.seconds:g} s are over; --seconds allows more"
                    report.results.append(named | {"mode": mode, "left_out": about})
                    continue
                started = time.perf_counter()
                timed = attempt(measure_time, torch, case, mode, options.rounds)
                timed["state"] = monitor.between(started, time.perf_counter())
                report.results.append(named | {"mode": mode} | timed)
                report.save(options.out)
    return report


def models(torch: Any, case: Sequence[int], device: str = "cuda") -> dict[str, Any]:
    """Make the MLP three times, with equal weights: ours, torch's, and torch's in f32."""
    import tensorcore_dsl.torch as tct

    _, features, hidden = case
    torch.manual_seed(0)
    ours = tct.MLP(features, hidden, device=device, dtype=torch.bfloat16)
    built = {"tensorcore_dsl": ours}
    for name, dtype in (("torch", torch.bfloat16), ("f32", torch.float32)):
        options = {"device": device, "dtype": dtype}
        model = torch.nn.Sequential(
            torch.nn.Linear(features, hidden, **options),
            torch.nn.GELU(approximate="tanh"),
            torch.nn.Linear(hidden, features, **options),
        )
        values = ours.state_dict().values()
        model.load_state_dict(dict(zip(model.state_dict(), values, strict=True)))
        built[name] = model
    return built


def training_data(torch: Any, case: Sequence[int], device: str = "cuda") -> tuple[Any, Any]:
    """Inputs, and targets that a fixed linear map makes of them."""
    rows, features, _ = case
    generator = torch.Generator(device).manual_seed(1)
    x = torch.randn(rows, features, device=device, generator=generator)
    w = torch.randn(features, features, device=device, generator=generator) / features**0.5
    return x.bfloat16(), (x.bfloat16().float() @ w).bfloat16()


def loss_of(torch: Any, model: Any) -> Callable[[Any, Any], Any]:
    return lambda x, y: (model(x).float() - y.float()).square().mean()


def stepper(torch: Any, model: Any, loss: Callable[[Any, Any], Any], x: Any, y: Any) -> Any:
    """A function that trains one step and returns the loss, a tensor.

    The loss is a mean over features too, so the rate grows with them.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=x.shape[1] / RATE, foreach=True)

    def step() -> Any:
        optimizer.zero_grad(set_to_none=True)
        value = loss(x, y)
        value.backward()
        optimizer.step()
        return value.detach()

    return step


def measure_accuracy(torch: Any, case: Sequence[int], steps: int, device: str = "cuda") -> dict[str, Any]:
    """Losses and weights after `steps` steps, of the three models."""
    x, y = training_data(torch, case, device)
    losses, moved, first = {}, {}, None
    for name, model in models(torch, case, device).items():
        first = first or [p.detach().float() for p in model.parameters()]
        inputs = (x.float(), y.float()) if name == "f32" else (x, y)
        step = stepper(torch, model, loss_of(torch, model), *inputs)
        losses[name] = [float(step()) for _ in range(steps)]
        if not all(map(math.isfinite, losses[name])):
            raise ValueError(f"the training of {name} diverges: losses {losses[name]}")
        changes = [(p.detach().float() - q).ravel() for p, q in zip(model.parameters(), first)]
        moved[name] = torch.cat(changes)
        del model, step
    result: dict[str, Any] = {"losses": losses}
    for name in ("tensorcore_dsl", "torch"):
        pairs = zip(losses[name], losses["f32"], strict=True)
        result[name] = {
            "loss_error": max(abs(mine - exact) / exact for mine, exact in pairs),
            "weight_error": float((moved[name] - moved["f32"]).norm() / moved["f32"].norm()),
        }
    pairs = zip(losses["tensorcore_dsl"], losses["torch"], strict=True)
    result["between"] = max(abs(mine - theirs) / theirs for mine, theirs in pairs)
    # As good as torch, up to half of its own error: both round at the same places.
    result["correct"] = all(
        result["tensorcore_dsl"][kind] <= 1.5 * result["torch"][kind] + 1e-5
        for kind in ("loss_error", "weight_error")
    )
    return result


def measure_time(torch: Any, case: Sequence[int], mode: str, rounds: int) -> dict[str, Any]:
    """Seconds of a step of ours and of torch's, in turns."""
    x, y = training_data(torch, case)
    built, steps = models(torch, case), {}
    for name in ("tensorcore_dsl", "torch"):
        torch._dynamo.reset()
        loss = loss_of(torch, built[name])
        if mode != "eager":
            loss = torch.compile(loss, fullgraph=True, dynamic=False)
        step = stepper(torch, built[name], loss, x, y)
        steps[name] = captured(torch, step) if mode == "captured" else warm(torch, step)
    count = max(1, round(SAMPLE / seconds_of(torch, steps["torch"])))
    samples: dict[str, list[float]] = {name: [] for name in steps}
    order = list(steps.items())
    for _ in range(rounds):
        for name, step in order:
            seconds = seconds_of(torch, lambda step=step: [step() for _ in range(count)])
            samples[name].append(seconds / count)
        order.reverse()
    timings = {name: Timing(tuple(seconds)) for name, seconds in samples.items()}
    result: dict[str, Any] = {name: timing.json() for name, timing in timings.items()}
    result["ratio"] = timings["torch"].median / timings["tensorcore_dsl"].median
    return result


def warm(torch: Any, step: Callable[[], Any]) -> Callable[[], Any]:
    for _ in range(WARM_UP):
        step()
    torch.cuda.synchronize()
    return step


def captured(torch: Any, step: Callable[[], Any]) -> Callable[[], Any]:
    """The step as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        warm(torch, step)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    replay: Callable[[], Any] = graph.replay
    return replay


def tables(document: dict[str, Any]) -> Iterator[Table]:
    """Accuracy, and times of all modes."""
    accuracy, times = [], []
    for result in document["results"]:
        size = "x".join(str(result[name]) for name in ("rows", "features", "hidden"))
        notes = one_line(result.get("failure") or result.get("left_out") or "")
        if result["mode"] == "accuracy":
            row = {"rows x features x hidden": size}
            for name in ("tensorcore_dsl", "torch"):
                errors = result.get(name, {})
                row[f"{name}: loss error"] = number(errors.get("loss_error"), ".2e")
                row[f"{name}: weight error"] = number(errors.get("weight_error"), ".2e")
            row["losses, ours to torch's"] = number(result.get("between"), ".2e")
            accuracy.append(row | {"notes": notes})
            continue
        ours, torchs = result.get("tensorcore_dsl", {}), result.get("torch", {})
        times.append(
            {
                "rows x features x hidden": size,
                "step": result["mode"],
                "tensorcore_dsl": duration(ours.get("median")),
                "torch": duration(torchs.get("median")),
                "ratio": number(result.get("ratio"), ".3f"),
                "notes": notes,
            }
        )
    yield Table("training, compared with f32", accuracy)
    yield Table("time of a step", times)
