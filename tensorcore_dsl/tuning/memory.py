"""Measurements of autotuned kernels, on disk for later processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorcore_dsl.codegen import assemble
from tensorcore_dsl.codegen.cache_key import Unhashable, cache_key
from tensorcore_dsl.environment.json_store import JsonStore
from tensorcore_dsl.errors import AssemblyError
from tensorcore_dsl.kernel import Kernel
from tensorcore_dsl.runtime import driver
from tensorcore_dsl.runtime.targets import current_target, target_arch
from tensorcore_dsl.runtime.trials import Trial, Tuning
from tensorcore_dsl.tuning.config import Config

STORE = JsonStore("autotune.json")


def entry_name(kernel: Kernel, configs: Sequence[Config], key: Any) -> str | None:
    """The name of an entry: a hash of all that the choice depends on.

    None if the cache is off, or the kernel depends on values without a cache key.
    """
    if STORE.location() is None:
        return None
    machine: tuple[Any, ...] = ("cpu",)
    try:
        if current_target() == "cuda":
            machine = (device(), driver.cuda_driver().version(), assemble.versions())
        return cache_key("autotune", kernel, kernel.parameters, list(configs), key, machine)
    except (Unhashable, AssemblyError):
        return None


def device() -> str:
    """Name of the device of launches, for people."""
    if current_target() == "cpu":
        return f"the CPU as {target_arch()}"
    return driver.cuda_driver().device_name()


def remember(name: str, tuning: Tuning, kernel: str, configs: Sequence[Config]) -> None:
    """Store a tuning of a kernel. Configurations are numbers; the text is for people."""
    STORE.remember(
        name,
        {
            "kernel": kernel,
            "device": device(),
            "tuned": tuning.key,
            "trials": [
                {
                    "config": configs.index(trial.config),
                    "text": str(trial.config),
                    "failure": trial.failure,
                    "seconds": None if trial.failure else trial.seconds,
                }
                for trial in tuning.trials
            ],
        },
    )


def recall(name: str, configs: Sequence[Config], title: str) -> Tuning | None:
    """The tuning of an entry; None if there is none, or it is damaged."""
    try:
        trials = [
            Trial(configs[t["config"]], failure=t["failure"])
            if t["failure"]
            else Trial(configs[t["config"]], float(t["seconds"]))
            for t in STORE.entries()[name]["trials"]
        ]
        return Tuning(title, tuple(trials)) if trials and not trials[0].failure else None
    except (TypeError, KeyError, IndexError, ValueError):
        return None


def forget(kernel: str) -> None:
    """Remove the entries of a kernel."""
    STORE.forget(*(name for name, e in STORE.entries().items() if e.get("kernel") == kernel))
