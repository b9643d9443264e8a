"""`warm(...)`: compile the kernels of future products into the cache on disk.

Products of many sizes share few kernels, since sizes are run-time arguments. `warm` plans typical
sizes, and child processes compile the kernels of these plans.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from reprlib import repr as brief
from typing import Any, Literal

import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl.host import cache_directory, cores, current_target, target_arch
from tensorcore_dsl.kernels.host.arguments import element_type
from tensorcore_dsl.kernels.host.gemm import gemm
from tensorcore_dsl.kernels.host.operands import OUTPUTS
from tensorcore_dsl.kernels.problem.recording import Bound, recorded

ROWS = tuple(1 << i for i in range(14))
# N and K: squares, and the layers of models of 7 to 70 billion parameters.
COLUMNS = (
    (1024, 1024),
    (2048, 2048),
    (4096, 4096),
    (8192, 8192),
    (6144, 4096),
    (14336, 4096),
    (4096, 14336),
    (28672, 8192),
    (8192, 28672),
    (5120, 5120),
    (7168, 2048),
    (2112, 7168),
)
SIZES = tuple((M, *columns) for M, columns in product(ROWS, COLUMNS))
LAYOUTS = ("row.col", "row.row", "col.row", "col.col")  # layouts of A and B
WORK = "from tensorcore_dsl.kernels.host.warming import work; work()"


@dataclass(frozen=True)
class Warmed:
    """Result of `warm`. kernels: number of distinct kernels; failures: messages of failed ones."""

    kernels: int
    failures: tuple[str, ...] = ()


def warm(
    dtypes: Iterable[Any] = (tc.bf16, tc.f16),
    device: str | None = None,
    *,
    sizes: Iterable[tuple[int, int, int]] = SIZES,
    layouts: Iterable[str] = LAYOUTS[:1],
    accumulate: Any = None,
    processes: int | None = None,
) -> Warmed:
    """Compile the kernels that `gemm` will need for products of these types and sizes.

    The kernels go into the cache on disk (TENSORCORE_DSL_CACHE), where later processes find them. An
    image or a wheel may ship the cache, for the same versions of this package and its assembler.

    Parameters
    ----------
    dtypes : iterable of DType
        Element types of A and B; tc.tf32 stands for f32 with precision="tf32".
    device : str, optional
        The architecture, such as "sm_90a", where there is no GPU of it. Default: the current GPU's.
    sizes : iterable of (int, int, int)
        M, N, K of products. Default: rows from 1 to 8192, and the layers of known models.
    layouts : iterable of str
        Layouts of A and B: "row.col" (both K-major), "row.row", "col.row" or "col.col".
    accumulate : DType or "fast", optional
        As in `gemm`.
    processes : int, optional
        Number of processes that compile. Default: one for each core.

    Returns
    -------
    Warmed
        The number of kernels, and the messages of failed compilations.

    Raises
    ------
    ArgumentError
        There is no cache, or neither a GPU nor `device` determines the target.

    Examples
    --------
    On a machine that builds an image::

        kernels.warm([tc.bf16], device="sm_90a", sizes=[(4096, 4096, 4096)])
    """
    if cache_directory() is None:
        raise tc.ArgumentError("the cache on disk is off (TENSORCORE_DSL_CACHE), so nothing stays")
    if device is None and current_target() != "cuda":
        raise tc.ArgumentError('there is no GPU here: name one, as in device="sm_90a"')
    arch = target_arch().name if device is None else device
    if arch not in tc.ARCHS:
        known = ", ".join(tc.ARCHS)
        raise tc.ArgumentError(f"device is {brief(device)}; architectures are {known}")
    if processes is not None and (not isinstance(processes, int) or processes < 1):
        raise tc.ArgumentError(f"processes is {brief(processes)}; it must be 1 or more")
    wanted = kernels_of(_products(dtypes, sizes, layouts, accumulate), arch)
    count = min(processes or cores(), max(len(wanted), 1))
    parts = [wanted[i::count] for i in range(count)]
    with ThreadPoolExecutor(count) as pool:
        failures = [text for messages in pool.map(_in_a_process, parts) for text in messages]
    return Warmed(len(wanted), tuple(failures))


def kernels_of(products: Iterable[tuple[Any, ...]], arch: str) -> list[Bound]:
    """List the distinct kernels that products launch on an architecture.

    products: A and B, whose elements are not read, and options of `gemm`.
    """
    distinct: dict[Any, Bound] = {}
    with tc.target("cpu", arch):
        for a, b, options in products:
            with recorded() as launches:
                gemm(a, b, **options)
            distinct |= {bound.key: bound for bound in launches}
    return list(distinct.values())


def _products(dtypes: Any, sizes: Any, layouts: Any, accumulate: Any) -> Iterable[tuple[Any, ...]]:
    """Make operands of all combinations; they take address space only."""
    types = [element_type(dtype) for dtype in dtypes]
    for dtype in types:
        if dtype not in (*OUTPUTS, tc.tf32):
            known = ", ".join(map(str, (*OUTPUTS, tc.tf32)))
            raise tc.ArgumentError(f"dtypes has {dtype}; gemm multiplies {known}")
    for layout in layouts:
        if layout not in LAYOUTS:
            raise tc.ArgumentError(f"layouts has {layout!r}; allowed are {', '.join(LAYOUTS)}")
    for dtype, layout, (M, N, K) in product(types, tuple(layouts), tuple(sizes)):
        element = (tc.f32 if dtype == tc.tf32 else dtype).numpy
        orders: list[Literal["C", "F"]] = ["C" if order == "row" else "F" for order in layout.split(".")]
        a, b = np.empty((M, K), element, orders[0]), np.empty((K, N), element, orders[1])
        precision = "tf32" if dtype == tc.tf32 else None
        yield a, b, {"precision": precision, "accumulate": accumulate}


def _in_a_process(kernels: Sequence[Bound]) -> list[str]:
    """Compile in a new process of this Python; returns the messages of failures."""
    if not kernels:
        return []
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-c", WORK],
        input=pickle.dumps(list(kernels)),
        capture_output=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    if done.returncode:
        return [done.stderr.decode(errors="replace").strip().rpartition("\n")[2]]
    failures: list[str] = pickle.loads(done.stdout)
    return failures


def work() -> None:
    """Compile the kernels that standard input names; write failures to standard output."""
    failures = []
    for bound in pickle.load(sys.stdin.buffer):
        try:
            bound.compile()
        except tc.TensorCoreError as error:
            failures.append(f"{bound.kernel.__name__}: {error}")
    sys.stdout.buffer.write(pickle.dumps(failures))
