"""Random whole products, each derived from a seed and a number by bits of PCG64 alone.

NumPy promises the same bits in every version, which it does not of `Generator`'s methods. So a
machine without a GPU has the operands of one that has recorded the results.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any

import ml_dtypes
import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl import kernels
from tensorcore_dsl.kernels import AmpereConfig, HopperConfig, VectorConfig
from tensorcore_dsl.kernels.host.launch import _cached as cached_launches
from tensorcore_dsl.kernels.host.plan import Plan

NUMPY = {
    "f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16), "f32": np.dtype(np.float32),
    "tf32": np.dtype(np.float32), "f64": np.dtype(np.float64), "s8": np.dtype(np.int8),
    "u8": np.dtype(np.uint8), "s32": np.dtype(np.int32), "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
}  # fmt: skip
OUTPUTS = {
    "f16": ("f16", "f32"),
    "bf16": ("bf16", "f32"),
    "tf32": ("f32",),
    "f32": ("f32",),
    "f64": ("f64",),
    "s8": ("s32",),
    "e4m3": ("bf16", "f16", "f32"),
    "e5m2": ("bf16", "f16", "f32"),
}
FP8 = ("e4m3", "e5m2")
KINDS = (
    "gemm",
    "gemm",
    "gemm",
    "gemm",
    "gemm",
    "gemm",
    "gemm",
    "gemm",
    "epilogue",
    "rows",
    "batch",
    "sparse",
    "scaled",
    "requantised",
    "grouped",
    "swiglu",
)
DTYPES = {
    "gemm": ("f16", "f16", "bf16", "bf16", "bf16", "tf32", "f32", "f32", "s8", "f64", *FP8),
    "epilogue": ("f16", "bf16", "tf32", "f32", "s8", "f64", *FP8),
    "rows": ("f16", "bf16", "tf32", "f32", "s8", *FP8),
    "batch": ("f16", "bf16", "bf16", "f32", "tf32", "s8", *FP8),
    "sparse": ("f16", "bf16", "tf32", "s8", *FP8),
    "scaled": FP8,
    "requantised": ("s8",),
    "grouped": ("f16", "bf16"),
    "swiglu": ("f16", "bf16"),
}
STYLES = ("plain", "plain", "wide", "wide", "whole", "zeros", "odd", "odd", "tiny", "huge")
CONFIGS = (
    HopperConfig(BN=64, stages=3, split_k=2), HopperConfig(BM=64, BN=128, stages=3, split_k=4),
    HopperConfig(BM=64, BN=64, stages=3, swap_ab=True), HopperConfig(BN=128, stages=3, pingpong=True),
    HopperConfig(BN=64, stages=3, cluster_m=2), HopperConfig(BN=64, stages=3, k_slabs=2),
    AmpereConfig(BM=64, BN=64, WM=32, WN=32, split_k=3), AmpereConfig(BM=64, BN=32, WM=32, WN=16),
)  # fmt: skip


class Draw:
    """Choices from the bits of PCG64."""

    def __init__(self, *key: int) -> None:
        self._bits = np.random.PCG64(np.random.SeedSequence(key))

    def words(self, count: int) -> Any:
        return self._bits.random_raw(max(count, 1))[:count]

    def below(self, end: int) -> int:
        return int(self._bits.random_raw()) % end

    def choice(self, options: Sequence[Any]) -> Any:
        return options[self.below(len(options))]

    def chance(self, percent: int) -> bool:
        return self.below(100) < percent

    def log_uniform(self, most: int) -> int:
        """1 to `most`, by powers of two; the larger of two draws, as the smallest sizes are alike."""
        low = 1 << max(self.below(most.bit_length()), self.below(most.bit_length()))
        return min(low + self.below(low), most)


@dataclass(frozen=True)
class Product:
    """The parameters of a case.

    a, b, c, out: how an operand lies: "n" row-major or "t" column-major, "+4" elements between its
    rows, "@1" elements behind an address that is a multiple of 256, "/2" every second element, "/r"
    the rows from the last one on; c also has its element type, and "row", "column" or "one" if it
    is broadcast. out is "" for a new array, "c" for C itself.
    style: of the values. extra: groups, batched operands, the epilogue or the scale, by kind.
    """

    kind: str
    dtype: str
    out_dtype: str
    M: int
    N: int
    K: int
    a: str
    b: str
    style: str
    c: str = ""
    out: str = ""
    alpha: float = 1
    beta: float = 0
    accumulate: str = ""
    family: str = ""
    config: Any = None
    extra: Any = ""

    def __str__(self) -> str:
        values = ((f.name, getattr(self, f.name), f.default) for f in fields(self))
        return " ".join(f"{name}={value}" for name, value, default in values if value != default)


def product(seed: int, index: int) -> Product:
    """The parameters of a case."""
    draw = Draw(seed, index)
    kind = draw.choice(KINDS)
    dtype = draw.choice(DTYPES[kind])
    M, N, K = _size(draw, kind)
    wgmma = dtype in FP8 or kind not in ("gemm", "epilogue")  # other kernels do not run it
    unit = 1 if draw.chance(4) else 16 if wgmma else draw.choice((1, 8, 16, 16))
    N, K = -(-N // unit) * unit, -(-K // unit) * unit
    k_major = wgmma and (dtype in (*FP8, "s8", "tf32") or kind == "swiglu")
    layouts = "nt" if draw.chance(95 if k_major else 30) else draw.choice(("nn", "nt", "tn", "tt"))
    aligned = unit > 1 and not draw.chance(4 if wgmma else 20)
    columns = "n" if wgmma and not draw.chance(5) else "nnt"  # orders of the result
    options: dict[str, Any] = {
        "a": _place(draw, layouts[0], aligned),
        "b": _place(draw, layouts[1], aligned),
        "style": draw.choice(STYLES),
        "out_dtype": draw.choice(OUTPUTS[dtype]),
    }
    if kind == "requantised":
        options["out_dtype"] = "s8"
    if kind in ("grouped", "swiglu"):
        options["out_dtype"] = dtype
    if draw.chance(30):
        options["out"] = _place(draw, draw.choice(columns), aligned)
    if kind in ("gemm", "epilogue", "rows", "batch", "sparse"):
        options |= _scaling(draw, dtype, options["out_dtype"], aligned)
    if kind in ("gemm", "epilogue", "batch", "rows"):
        options |= _options(draw, dtype, kind)
    options["extra"] = _extra(draw, kind, dtype, M)
    return Product(kind, dtype, M=M, N=N, K=K, **options)


def _size(draw: Draw, kind: str) -> tuple[int, int, int]:
    """Mostly small; some large, deep or skinny."""
    shape = draw.below(100)
    if shape < 4:
        return 256 + draw.below(769), 128 + draw.below(385), 128 + draw.below(385)
    if shape < 9 and kind == "gemm":  # deep
        return draw.log_uniform(96), draw.log_uniform(96), 1024 << draw.below(5)
    if shape < 13:  # skinny
        return draw.log_uniform(24), draw.log_uniform(2048), draw.log_uniform(1024)
    most = 255 if shape < 75 else 400
    return draw.log_uniform(most), draw.log_uniform(most), draw.log_uniform(most)


def _place(draw: Draw, order: str, aligned: bool) -> str:
    gap = draw.choice((0, 0, 16)) if aligned else draw.choice((0, 0, 1, 4, 8))
    shift = draw.choice((0, 0, 16)) if aligned else draw.choice((0, 0, 1, 2, 8))
    return order + (f"+{gap}" if gap else "") + (f"@{shift}" if shift else "")


def _scaling(draw: Draw, dtype: str, out_dtype: str, aligned: bool) -> dict[str, Any]:
    """alpha, beta and C."""
    whole = dtype == "s8"
    numbers = (0, -1, 2, 3, -7) if whole else (0, -1, 0.5, 2, 1 / 3, -1.7, 1e-3, 1e4, -0.0)
    options: dict[str, Any] = {"alpha": 1 if draw.chance(50) else draw.choice(numbers)}
    if draw.chance(50):
        beta = draw.choice((0, 1, 1, *numbers))
        shape = draw.choice(("", "", "", "row", "column", "one"))
        kind = draw.choice((out_dtype, out_dtype, out_dtype, "u8" if whole else "f32"))
        options |= {"beta": beta, "c": f"{kind} {_place(draw, draw.choice('nnt'), aligned)} {shape}"}
        if kind == out_dtype and not shape and draw.chance(20):
            options["out"] = "c"
    return options


def _options(draw: Draw, dtype: str, kind: str) -> dict[str, Any]:
    """Accumulators, family and configuration, where they are not left to the dispatch."""
    options: dict[str, Any] = {}
    if dtype in FP8 and draw.chance(50):
        options["accumulate"] = "fast"
    if dtype == "f16" and draw.chance(15):
        options["accumulate"] = "f16"
    if kind == "gemm" and dtype not in FP8 and draw.chance(10):
        options["family"] = draw.choice(("sm80", "sm80", "sm80", "sm90"))
    elif kind == "gemm" and dtype != "f64" and draw.chance(10):
        options["config"] = draw.choice(CONFIGS)
    return options


def _extra(draw: Draw, kind: str, dtype: str, M: int) -> Any:
    if kind == "grouped":
        ends = sorted(draw.below(M + 1) for _ in range(draw.below(6)))
        return (0, *ends, M)
    if kind == "batch":
        return (1 + draw.below(3), draw.choice(("ab", "ab", "a", "b")))
    if kind == "epilogue":
        return draw.choice(("relu", "bias") if dtype in ("s8", "f64") else tuple(EPILOGUES))
    if kind == "rows":
        return draw.choice((("sum",), ("max", "squares"), ("min", "sum")))
    return draw.choice(("", "columns")) if kind == "requantised" else ""


# -- values ------------------------------------------------------------------------------------

ODD = {
    "f16": (65504, 6.1e-5, 6e-8, 1e-6), "bf16": (3.3e38, 1.2e-38, 1e-40, 9.2e-41),
    "f32": (3.4e38, 1.2e-38, 1e-40, 1.4e-45), "f64": (1.7e308, 2.3e-308, 1e-310, 5e-324),
    "e4m3": (448, 0.015625, 0.001953125, 0.01), "e5m2": (57344, 6.1e-5, 1.5e-5, 3e-5),
}  # fmt: skip
EXPONENTS = {"f16": 14, "bf16": 126, "f32": 126, "f64": 1022, "e4m3": 6, "e5m2": 14}


def values(draw: Draw, shape: tuple[int, ...], dtype: str, style: str) -> Any:
    """Numbers of an element type: exact in f64, then rounded to nearest once."""
    count = int(np.prod(shape))
    words = draw.words(count)
    if dtype in ("s8", "u8", "s32"):
        numbers = (words >> np.uint64(32)).astype(np.int64)
        if style in ("wide", "odd", "huge"):
            numbers = np.array([-128, 127, 0, -1, 1, -127], np.int64)[numbers % 6]
        if style in ("zeros", "whole"):
            numbers = numbers % 7 - 3
        return numbers.astype(np.int8).astype(NUMPY[dtype]).reshape(shape)
    dtype = "f32" if dtype == "tf32" else dtype
    mantissa = (words >> np.uint64(12)).astype(np.int64) - (1 << 51)
    numbers = np.ldexp(mantissa.astype(np.float64), -51)  # -1 to 1
    other = (words & np.uint64(4095)).astype(np.int64)
    reach = EXPONENTS[dtype]
    if style == "wide":
        numbers = np.ldexp(numbers, (other % 25 - 12).astype(np.int32))
    elif style == "whole":
        numbers = np.trunc(8 * numbers)
    elif style == "zeros":
        numbers = np.where(other % 8 == 0, numbers, np.where(other % 2 == 0, 0.0, -0.0))
    elif style == "tiny":
        numbers = np.ldexp(numbers, (-(reach // 2) - other % (reach // 2 + 4)).astype(np.int32))
    elif style == "huge":
        numbers = np.ldexp(numbers, (reach // 2 + other % (reach // 2 + 2)).astype(np.int32))
    elif style == "odd":  # few, so that most results are no NaN
        odd = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, *ODD[dtype], -ODD[dtype][0]])
        few = draw.words(1 + draw.below(6))
        if count:
            numbers[(few % np.uint64(count)).astype(np.int64)] = odd[(few >> np.uint64(40)) % np.uint64(10)]
    with np.errstate(over="ignore"):
        return numbers.astype(NUMPY[dtype]).reshape(shape)


FILL = 0xA5  # of memory that a product has to write, or must not touch


def laid_out(shape: tuple[int, ...], dtype: Any, place: str) -> tuple[Any, Any]:
    """An array that lies as `place` says, and the memory around it."""
    place, _, steps = place.partition("/")
    order, _, rest = place.partition("+") if "+" in place else (place[0], "", place[1:])
    gap, _, shift = rest.partition("@")
    *batch, rows, cols = shape
    lines, width = (rows, cols) if order == "n" else (cols, rows)
    every = 2 if steps == "2" else 1
    pitch = width * every + int(gap or 0)
    size = (int(np.prod(batch)) * lines * pitch + int(shift or 0)) * dtype.itemsize
    raw = np.full(size + 256, FILL, np.uint8)
    start = -raw.ctypes.data % 256
    memory = raw[start : start + size].view(dtype)
    view = memory[int(shift or 0) :].reshape(*batch, lines, pitch)[..., : width * every : every]
    view = view[..., ::-1, :] if steps == "r" else view
    return (view if order == "n" else view.swapaxes(-1, -2)), memory


def placed(draw: Draw, shape: tuple[int, ...], dtype: str, style: str, place: str) -> Any:
    view, _ = laid_out(shape, NUMPY[dtype], place)
    view[...] = values(draw, shape, dtype, style)
    return view


# -- runs --------------------------------------------------------------------------------------


def relu(value, row, col):
    return max(value, 0)


def bias(value, row, col, bias):
    return value + bias[col].to(value.dtype)


def silu(value, row, col):
    return value * tc.rcp(tc.exp(-value) + 1)


def places(value, row, col):
    return tc.tanh(value) * tc.select(row > col, 2.0, -1.0)


def square(value):
    return value * value


EPILOGUES: dict[str, Callable[..., Any]] = {"relu": relu, "bias": bias, "silu": silu, "places": places}
REDUCTIONS = {
    **{op: kernels.RowReduction(op) for op in ("sum", "max", "min")},
    "squares": kernels.RowReduction("sum", transform=square),
}


def run(case: Product, seed: int, index: int, **more: Any) -> tuple[list[Any], str]:
    """The results of a case on the current target, and the kernels that were chosen.

    more: options of the call beside those of the case.
    """
    draw = Draw(seed, index, 1)
    memory: list[Any] = []
    call, args, options = _call(draw, case, memory)
    cached_launches.clear()  # known calls choose nothing
    with Choices() as chosen:
        returned = call(*args, **{**options, **more})
    results = [*returned] if isinstance(returned, tuple) else [returned]
    return [*memory, *results[1 if memory else 0 :]], " | ".join(chosen.texts)


def _call(draw: Draw, case: Product, memory: list[Any]) -> Any:
    """A function of the library and its arguments; `memory` receives that of `out`."""
    kind, dtype, style = case.kind, case.dtype, case.style
    M, N, K = case.M, case.N, case.K
    batches, which = case.extra if kind == "batch" else (1, "")
    groups = len(case.extra) - 1 if kind == "grouped" else 2
    several = {"grouped": (groups,), "swiglu": (groups,)}.get(kind, (batches,) * ("b" in which))
    a = placed(draw, (*(batches,) * ("a" in which), M, K), dtype, style, case.a)
    b = placed(draw, (*several, K, N), dtype, style, case.b)
    shape = (*(batches,) * bool(which), M, N)
    options: dict[str, Any] = {}
    c = None
    if case.c:
        c_dtype, place, extent = case.c.split(" ")
        of_c = {"row": (N,), "column": (M, 1), "one": (1, 1)}.get(extent, shape)
        c, of_out = laid_out(of_c if len(of_c) > 1 else (1, *of_c), NUMPY[c_dtype], place)
        c[...] = values(draw, c.shape, c_dtype, style)
        c = c if len(of_c) > 1 else c[0]
    if case.out == "c":
        options["out"] = c
        memory.append(of_out)
    elif case.out:
        options["out"], of_out = laid_out(shape, NUMPY[case.out_dtype], case.out)
        memory.append(of_out)
    if kind not in ("requantised", "grouped", "swiglu"):
        options["out_dtype"] = NUMPY[case.out_dtype]
    if kind == "grouped":
        return kernels.grouped_gemm, (a, b, np.array(case.extra, np.int32)), options
    if kind == "swiglu":
        return kernels.swiglu, (a, *b), options
    if kind == "scaled":
        scales = [_scales(draw, M, -(-K // 128)), _scales(draw, -(-K // 128), -(-N // 128))]
        return kernels.scaled_gemm, (a, b, *scales), options
    if kind == "requantised":
        scale = _scales(draw, N) if case.extra else 1 / 300
        return kernels.requantised_gemm, (a, b, scale), {**options, "zero": 3}
    if kind == "sparse":
        a = kernels.compress(a, prune=True)
    options |= {"alpha": case.alpha, "beta": case.beta}
    options["precision"] = "tf32" if dtype == "tf32" else None
    if kind == "epilogue":
        options["epilogue"] = EPILOGUES[case.extra]
        if case.extra == "bias":
            wanted = "s32" if dtype == "s8" else "f32"
            options["epilogue_args"] = {"bias": values(draw, (N,), wanted, "plain")}
    if kind == "rows":
        options["row_reductions"] = tuple(REDUCTIONS[name] for name in case.extra)
    accumulate = {"": None, "f16": tc.f16, "fast": "fast"}[case.accumulate]
    if kind != "sparse":
        options |= {"family": case.family or None, "accumulate": accumulate}
    return kernels.gemm, (a, b, c), {**options, "config": case.config}


def _scales(draw: Draw, *shape: int) -> Any:
    return np.abs(values(draw, shape, "f32", "wide")) * np.float32(2**-8)


class Choices:
    """Inside, `texts` receives the kernel, configuration and traits of every plan."""

    def __enter__(self) -> Choices:
        self.texts: list[str] = []
        self._bind = bind = Plan.bind
        plans: list[Plan] = []

        def noting(plan: Plan, *args: Any, **options: Any) -> Any:
            if not plans:  # a plan may bind a part of itself
                plans.append(plan)
                self.texts.append(_text(plan))
            return bind(plan, *args, **options)

        Plan.bind = noting  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: Any) -> None:
        Plan.bind = self._bind  # type: ignore[method-assign]


def configurations(choice: str) -> list[Any]:
    """The configurations that the text of a choice may be of: one, or one of each family."""
    words = [word.partition("=") for word in choice.split() if "=" in word]
    options = {name: ast.literal_eval(value) for name, _, value in words if name in _OF_CONFIGS}
    configs = []
    for kind in _CLASSES:
        if options.keys() <= {field.name for field in fields(kind)}:
            with suppress(tc.ArgumentError):
                configs.append(kind(**options))
    return configs


_CLASSES = HopperConfig, AmpereConfig, VectorConfig
_OF_CONFIGS = {field.name for kind in _CLASSES for field in fields(kind)}


def _text(plan: Plan) -> str:
    """Kernel, grid, and the fields that are not the default's."""
    changed = [
        f"{field.name}={getattr(value, '__name__', None) or value}"
        for part in (plan.config, plan.traits)
        for field in fields(part)
        if (value := getattr(part, field.name)) != field.default
        and field.name not in ("epilogue", "row_reductions")
    ]
    return f"{plan.kernel.__name__} x{plan.grid} {' '.join(changed)}"


def digests(results: Sequence[Any]) -> tuple[str, str]:
    """Hashes of the results: with one pattern for all NaN, and of the bits; "" where they agree.

    The manual leaves open which NaN instructions on f16, bf16 and f32 return (PTX manual 9.7.3,
    9.7.4), and defines the payloads of f64, which are therefore kept.
    """
    exact, any_nan = hashlib.sha256(), hashlib.sha256()
    for x in results:
        flat = np.ascontiguousarray(x).reshape(-1)
        exact.update(flat.view(np.uint8).tobytes())
        if flat.dtype != np.float64 and flat.dtype.kind not in "iu":
            nan = np.isnan(flat.astype(np.float32))
            flat = flat.view(f"u{flat.itemsize}").copy()
            flat[nan] = (1 << 8 * flat.itemsize - 1) - 1
        any_nan.update(flat.view(np.uint8).tobytes())
    one, other = any_nan.hexdigest()[:16], exact.hexdigest()[:16]
    return one, "" if one == other else other
