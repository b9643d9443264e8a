"""Draws the pictures of the pages: `make pictures`.

A picture is a PNG of few colours in docs/pictures. Its description is a digest of what it shows, so
that a test finds a picture that is out of date on any machine, whatever its fonts.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image, PngImagePlugin

import tensorcore_dsl as tc
from tensorcore_dsl.kernels import tutorial
from tensorcore_dsl.viz.plot import plot_layout, plot_swizzle

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "pictures"
RESULTS = ROOT / "benchmarks" / "results"
COLORS = 256  # of a picture
DPI = 100
DIGEST = "Description"  # the key of PNG's text
# Instruction -> its fragments that are drawn, for docs/fragment_drawings.md.
FRAGMENTS = {
    "mma_m16n8k16_f16": (tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32), "abd"),
    "mma_m16n8k8_tf32": (tc.mma.m16n8k8(tc.tf32, tc.tf32, tc.f32), "ab"),
    "mma_m16n8k32_s8": (tc.mma.m16n8k32(tc.s8, tc.s8, tc.s32), "ab"),
    "mma_m8n8k4_f64": (tc.mma.m8n8k4(tc.f64, tc.f64, tc.f64), "abd"),
    "mma_sp_m16n8k32_f16": (tc.mma.sp.m16n8k32(tc.f16, tc.f16, tc.f32), "be"),
    "mma_block_scale_m16n8k32_e4m3": (
        tc.mma.block_scale.m16n8k32(tc.e4m3, tc.e4m3, tc.f32),
        ("scale_a", "scale_b"),
    ),
    "wgmma_m64n8k16_f16": (tc.wgmma.m64n8k16(tc.f16, tc.f16, tc.f32), "d"),
}


def fragment(instr: Any, operand: str) -> Figure:
    shown = instr.operand(operand)
    return plot_layout(shown.layout or shown.drawing, rows=64, cols=32)


def timeline() -> Figure:
    """Step 5 of the Hopper tutorial: one producer and two consumer warpgroups, K = 768."""
    step = tutorial.load_step(5)
    a, b = (np.ones((rows, 768), tc.bf16.numpy) for rows in (128, 512))
    d = np.zeros((128, 512), tc.bf16.numpy)
    with tc.target("cpu"):
        report = step.gemm(a, b, d, step.matmul.emulator("sm_90a", timeline=True))
    return report.timeline.plot()


def newest(benchmark: str) -> dict[str, Any]:
    """The last recorded result of a benchmark on an H200."""
    paths = sorted(RESULTS.glob(f"{benchmark}-nvidia-h200-*.json"))
    return json.loads(paths[-1].read_text(encoding="utf-8"))


def ladder() -> Figure:
    """TFLOP/s of the steps of the Hopper tutorial beside cuBLASLt."""
    document = newest("tutorial")
    sizes = sorted({r["size"] for r in document["results"]})
    rates = {(r["name"], r["size"]): r["tflops"] for r in document["results"]}
    names = [n for n in (*tutorial.NAMES, "kernels.gemm") if (n, sizes[0]) in rates]
    figure = Figure((8, 4), layout="constrained")
    axis = figure.subplots()
    height = 0.8 / len(sizes)
    for number, size in enumerate(sizes):
        places = np.arange(len(names)) + (number - (len(sizes) - 1) / 2) * height
        bars = axis.barh(
            places, [rates[n, size] for n in names], height, color=f"C{number}", label=f"M = N = K = {size}"
        )
        axis.bar_label(bars, fmt="%.0f", fontsize=7, padding=2)
        axis.axvline(
            rates["cuBLASLt", size],
            color=f"C{number}",
            linestyle="--",
            linewidth=1,
            label=f"cuBLASLt, {size}",
        )
    axis.set_yticks(range(len(names)), [n.removeprefix("hopper_gemm_") for n in names], fontsize=8)
    axis.invert_yaxis()
    axis.set(xlabel="TFLOP/s, bf16, NVIDIA H200", xlim=(0, 1.1 * max(rates.values())))
    figure.legend(fontsize=7, ncols=4, loc="outside lower center")
    axis.set_title(f"The steps of the Hopper tutorial, {document['date'][:10]}", fontsize=10)
    return figure


def landscape() -> Figure:
    """The map of `python -m benchmarks gemm --suite landscape`, from its recorded result."""
    from benchmarks.harness import Report
    from benchmarks.products.gemm_plot import figure_of

    document = newest("gemm-landscape")
    names = ("benchmark", "options", "method", "machine", "results", "summary")
    return figure_of(Report(**{n: document[n] for n in names}, date=datetime.fromisoformat(document["date"])))


PICTURES: dict[str, Callable[[], Figure]] = {
    **{
        f"{name}_{operand}": lambda instr=instr, operand=operand: fragment(instr, operand)
        for name, (instr, operands) in FRAGMENTS.items()
        for operand in operands
    },
    "swizzle_none": lambda: plot_swizzle(8, 128, 0),
    "swizzle_128": lambda: plot_swizzle(8, 128, 128),
    "timeline": timeline,
    "ladder": ladder,
    "landscape": landscape,
}


def path_of(name: str) -> Path:
    return FOLDER / f"{name}.png"


def digest(figure: Figure) -> str:
    """Digest of the texts and shapes that a figure shows, in its own coordinates."""
    text = json.dumps([list(_contents(axis)) for axis in figure.axes])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _contents(axis: Any) -> Iterator[list[Any]]:
    yield [axis.get_title(), axis.get_xlabel(), axis.get_ylabel()]
    for text in axis.texts:
        yield [text.get_text(), *_rounded(text.get_position())]
    for line in axis.lines:
        yield _rounded(line.get_xydata())
    for patch in (p for p in axis.patches if isinstance(p, Rectangle)):  # cells and bars
        yield _rounded(patch.get_bbox().bounds) + _rounded(patch.get_facecolor())
    for part in axis.collections:
        if isinstance(part, PathCollection):
            yield _rounded(part.get_offsets())
        elif isinstance(part, LineCollection):
            yield _rounded(part.get_segments())
        else:
            yield [_rounded(path.vertices) for path in part.get_paths()]


def _rounded(numbers: Any) -> list[Any]:
    """Four digits: machines differ in the last ones."""
    flat = np.asarray(numbers, dtype=float).ravel()
    return [float(f"{x:.4g}") for x in flat]


def recorded(name: str) -> str:
    """The digest of a picture as it is kept."""
    with Image.open(path_of(name)) as image:
        return str(image.text.get(DIGEST, ""))


def save(name: str, figure: Figure) -> None:
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=DPI, bbox_inches="tight", facecolor="white")
    few = Image.open(buffer).convert("RGB").quantize(COLORS, dither=Image.Dither.NONE)
    about = PngImagePlugin.PngInfo()
    about.add_text(DIGEST, digest(figure))
    few.save(path_of(name), optimize=True, pnginfo=about)


def main() -> int:
    """Draw what is out of date."""
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        figure = draw()
        if not path_of(name).exists() or recorded(name) != digest(figure):
            save(name, figure)
            print(f"drew {path_of(name).relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    sys.exit(main())
