"""Planted bugs, each beside a correct twin: what the emulator's checks must find, and must not.

A module for each class of bugs; `harness` describes a case and runs it.
"""

CLASSES = (
    "shared_races",
    "warp_races",
    "global_races",
    "chains",
    "cp_async",
    "divergence",
    "memory",
    "bounds_matrices",
    "bounds_pointers",
    "arithmetic",
    "wrapped_products",
    "mbarrier_tma",
    "wgmma",
    "clusters",
    "mutants_of_tutorial",
    "deadlocks",
    "devices",
    "everyday_code",
)
