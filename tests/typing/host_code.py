"""Programs around kernels, as users write them; type checkers find nothing wrong here."""

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import tensorcore_dsl as tc
from tensorcore_dsl import kernels
from tensorcore_dsl.kernels import HopperConfig
from tensorcore_dsl.testing import do_bench

Matrix = npt.NDArray[np.float16]


def stopwatch(launch: Callable[[], None]) -> float:
    start = time.perf_counter()
    launch()
    return time.perf_counter() - start


def worth(configs: list[tc.Config], arguments: Mapping[str, Any]) -> list[tc.Config]:
    return [c for c in configs if c["BLOCK"] <= 2 * arguments["n"]]


@tc.autotune(
    configs=[tc.Config(BLOCK=block, PER_THREAD=n) for block in (128, 256) for n in (1, 4)],
    key=["n"],
    restore_value=["x"],
    timer=stopwatch,
    remember=False,
    warmup=1,
    rep=2,
)
@tc.kernel
def scale(x: tc.Array, factor: tc.f32, n: tc.s32, BLOCK: tc.Const[int], PER_THREAD: tc.Const[int]) -> None:
    first = (tc.blockIdx.x * BLOCK + tc.threadIdx.x) * PER_THREAD
    for k in tc.static_range(PER_THREAD):
        if first + k < n:
            x[first + k] *= factor


def grid(meta: Mapping[str, Any]) -> int:
    return -int(-meta["n"] // (meta["BLOCK"] * meta["PER_THREAD"]))


def threads(meta: Mapping[str, Any]) -> int:
    return int(meta["BLOCK"])


@tc.autotune([tc.Config(ROWS=8, grid=1, block=(32, 1)), tc.Config({"ROWS": 4}, grid=(1,), block=32)])
@tc.kernel(max_registers=64, lineinfo=False)
def doubled(x, ROWS: tc.Const):  # type: ignore[no-untyped-def]
    tile = tc.shared((ROWS, 32), "f32")
    tile[0, tc.threadIdx.x] = 2 * x[tc.threadIdx.x]
    x[tc.threadIdx.x] = tile[0, tc.threadIdx.x]


@tc.kernel
def scale_rows(x: tc.Array, out: tc.Array) -> None:
    lane, row = tc.lane_id(), tc.warp_id()
    value = x[row, lane]
    most = value
    for step in tc.static_range(5):
        most = max(most, tc.shfl_xor(most, 16 >> step))
    result = abs(value) / most
    if result > 1:
        breakpoint()
    tc.breakpoint(result > 100)
    out[row, lane] = result


def clipped(value: tc.f32, row: tc.s32, col: tc.s32, bias: tc.Array, most: float) -> Any:
    return min(max(value + bias[col], 0), most)


def products(a: Matrix, b: Matrix) -> None:
    """Finished products with an epilogue, reductions, and configurations."""
    bias = np.zeros(b.shape[1], np.float32)
    d = kernels.gemm(a, b, out_dtype=tc.f32, alpha=2.0)
    assert d.shape == (a.shape[0], b.shape[1])
    kernels.gemm(a, b, out=d, epilogue=lambda value, row, col: tc.select(value > 0, value, 0.0))
    arguments = {"bias": bias, "most": 6.0}
    d = kernels.gemm(a, b, out_dtype="float32", epilogue=clipped, epilogue_args=arguments)
    assert d.min() >= 0 and d.max() <= 6
    d, (squares, most) = kernels.gemm(
        a,
        b,
        row_reductions=(
            kernels.RowReduction("sum", transform=lambda v: v * v),
            kernels.RowReduction("max", transform=abs),
        ),
    )
    assert squares.shape == most.shape == (len(a),)
    config = HopperConfig(BM=64, BN=64, stages=3)
    kernels.gemm(a, b, config=config)


def benchmark() -> float:
    x = np.arange(1000, dtype=np.float32)
    launch = scale[grid, threads]
    low, high = do_bench(lambda: launch(x, 1.0, 1000), quantiles=(0.1, 0.9), warmup=1, rep=2)
    assert low <= high
    milliseconds = tc.testing.do_bench(lambda: launch(x, 1.0, 1000), warmup=1, rep=2)
    tuning = launch.tune(x, 1.0, 1000)
    assert tuning.best in [trial.config for trial in tuning.trials] and tuning.seconds > 0
    assert isinstance(str(tuning), str) and scale.best_config is not None
    scale.configured(grid, 256, shared_bytes=0)(x, 1.0, n=1000)
    scale.emulate[8, 128](x, 2.0, 1000)
    scale.forget()
    return milliseconds


def debug(x: npt.NDArray[np.float32]) -> tc.TensorCoreError | None:
    """What the debugger and the emulator say."""
    out = np.empty_like(x)
    with tc.debugger.script("p result", "lane 5", "q"):
        try:
            scale_rows.emulate[1, 128](x, out)
        except tc.DebuggerQuit as quit:
            return quit
    report = scale_rows.emulator("sm_80", order=3, trace=("most", "result"))[1, (128,)](x, out)
    print(report.trace)
    for record in report.trace.of("most"):
        print(record.line, record.value[0])
    try:
        scale_rows.emulate[1, 160](x, out)
    except (tc.OutOfBounds, tc.EmulationError) as error:
        print(error.message, error.loc, file=sys.stderr)
        return error
    return None


def compiled(folder: Path) -> None:
    """Text for other tools."""
    vector = tc.ArrayType(tc.f32, 2, (False, True), 16)
    for arch in tc.ARCHS:
        if arch >= "sm_90":
            (folder / f"{arch}.ptx").write_text(scale_rows.ptx(vector, vector, arch=arch))
    print(scale_rows.ir(vector, vector), scale_rows)
    grid, block = (np.ones((4, 32)).size // 128, 1), [32, 4]
    assert scale_rows[grid, 128].kernel is scale_rows and block


def main() -> None:
    """Run them."""
    draw = np.random.default_rng(0)
    products(*(draw.standard_normal((64, 64)).astype(np.float16) for _ in range(2)))
    x = np.linspace(0, 1, 128, dtype=np.float32).reshape(4, 32)
    x[1, 5] = -3
    with tc.target("cpu"):
        assert benchmark() > 0
        assert isinstance(debug(x), tc.DebuggerQuit) and isinstance(debug(abs(x)), tc.OutOfBounds)
        doubled(x[0])


if __name__ == "__main__":
    main()
