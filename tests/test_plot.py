"""Pictures of layouts and swizzles, and the facts they show."""

import builtins
from collections import Counter

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl.errors import LayoutError, TensorCoreError
from tensorcore_dsl.layout import draw
from tensorcore_dsl.viz.plot import (
    chunks,
    draw_swizzle,
    element_letter,
    holders,
    passes,
    plot_layout,
    plot_swizzle,
    swizzled,
)

pytest.importorskip("matplotlib")
A = tc.mma.m16n8k16(tc.bf16, tc.bf16, tc.f32).a


def texts(figure):
    """The texts of the cells, without the names of quads and warps beside them."""
    every = [t.get_text() for t in figure.axes[0].texts]
    return [text for text in every if not text.startswith(("quad", "warp"))]


def groups(figure):
    return [t.get_text() for t in figure.axes[0].texts if t.get_text().startswith(("quad", "warp"))]


def test_every_cell_names_its_holder(tmp_path):
    figure = A.plot(str(tmp_path / "a.png"))
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    shown = texts(figure)
    assert len(shown) == 256 and shown[:3] == ["T0:a0", "T0:a1", "T1:a0"]
    assert shown[16 * 9 + 8] == "T4:a6"


def test_picture_and_text_agree():
    words = [w for line in draw(A.layout).splitlines()[2:] for w in line.split()[1:]]
    assert texts(plot_layout(A.layout)) == [w.replace(":", ":a") for w in words]


def test_elements_have_the_letters_of_the_manual():
    product = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
    wide = tc.wgmma.m64n8k16(tc.f16, tc.f16, tc.f32).d
    letters = [element_letter(o.layout) for o in (product.a, product.b, product.d, wide)]
    assert letters == ["a", "b", "c", "c"]
    assert element_letter(product.d.layout.along("rows")) == "e"


def test_quads_and_warps_are_named_where_they_hold_whole_rows_or_columns():
    product = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
    assert groups(plot_layout(product.a.layout)) == [f"quad {i % 8}" for i in range(16)]
    assert groups(plot_layout(product.b.layout)) == [f"quad {i}" for i in range(8)]
    wide = groups(plot_layout(tc.wgmma.m64n8k16(tc.f16, tc.f16, tc.f32).d.layout))
    assert [g for g in wide if g.startswith("warp")] == ["warp 0", "warp 1", "warp 2", "warp 3"]


def test_lines_part_warps_quads_threads_and_registers():
    def lines(layout):
        """How many lines there are of each width."""
        segments = Counter()
        for part in plot_layout(layout).axes[0].collections:
            segments[part.get_linewidths()[0]] += len(part.get_segments())
        return segments

    wide = lines(tc.wgmma.m64n8k16(tc.f16, tc.f16, tc.f32).d.layout)
    assert wide[2.6] == 3 * 8 and wide[0.9] == 60 * 8  # between warps; between other rows
    of_a = lines(A.layout)
    assert of_a[0.9] == 15 * 16  # every row is another quad's
    assert of_a[1.8] == 16 * 7 and of_a[1.2] == 0  # threads; no thread has two registers in a row


def test_threads_of_one_row_differ_in_colour():
    figure = plot_layout(A.layout)
    colors = [p.get_facecolor() for p in figure.axes[0].patches]
    assert len(set(colors[:8])) == 4 and colors[0] == colors[1] == colors[8]
    assert not set(colors[:8]) & set(colors[16:24])


def test_pictures_are_cut():
    figure = plot_layout(A.layout, rows=2, cols=4)
    assert len(texts(figure)) == 8 and "first 2 rows" in figure.axes[0].get_title()


def test_the_first_holder_is_shown_where_there_are_several():
    quad = tc.instruction("mma.sync.aligned.m8n8k4.row.col.f16.f16.f16.f16").c.layout
    assert quad.copies == 4
    for (row, col), (thread, slot) in zip(
        np.ndindex(quad.rows, quad.cols), holders(quad).reshape(-1, 2), strict=True
    ):
        every = np.argwhere((quad.coords == (row, col)).all(axis=-1))
        assert (thread, slot) == tuple(every[0])


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch):
    real = builtins.__import__

    def blocked(name, *rest, **more):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", blocked)
    with pytest.raises(TensorCoreError, match="pip install matplotlib"):
        A.plot()


@tc.kernel
def places(out: tc.Array, rows: tc.Const, row_bytes: tc.Const, swizzle: tc.Const):
    """Bytes of a swizzled tile, numbered in the tile's order, in the order of memory."""
    tile = tc.shared((rows, row_bytes // 2), tc.u16, swizzle=swizzle)
    plain = tile.with_parts(swizzle=0)
    count = row_bytes // 2
    for i in tc.range(tc.threadIdx.x, rows * count, 32):
        tile.at(i // count, i % count).store(i)
    tc.barrier()
    for j in tc.range(tc.threadIdx.x, rows * count, 32):
        out[j] = plain.at(j // count, j % count).load()


@pytest.mark.parametrize(
    "rows, row_bytes, swizzle", [(8, 128, 128), (16, 64, 64), (8, 32, 32), (4, 256, 128), (4, 64, 0)]
)
def test_tables_of_swizzles_are_what_tiles_do(rows, row_bytes, swizzle):
    out = np.zeros(rows * row_bytes // 2, np.uint16)
    places.emulate[1, 32](out, rows, row_bytes, swizzle)
    first = out[::8].astype(int) * 2  # the tile's offset of each 16 bytes of memory
    expected = np.stack([first // row_bytes, first % row_bytes // 16], axis=-1)
    assert np.array_equal(chunks(rows, row_bytes, swizzle).reshape(-1, 2)[: len(first)], expected)


@pytest.mark.parametrize(
    "rows, row_bytes, swizzle, cost",
    [(8, 128, 0, 8), (8, 128, 128, 1), (8, 64, 0, 4), (8, 64, 64, 1), (8, 32, 32, 1), (8, 256, 128, 2)],
)
def test_passes_over_the_banks(rows, row_bytes, swizzle, cost):
    assert set(passes(rows, row_bytes, swizzle)) == {cost}


def test_swizzles_undo_themselves():
    offsets = np.arange(0, 4096, 16)
    for swizzle in (0, 32, 64, 128):
        assert np.array_equal(swizzled(swizzled(offsets, swizzle), swizzle), offsets)


def test_swizzle_as_text():
    text = draw_swizzle(8, 128, 128)
    assert "no bank conflicts" in text
    assert text.splitlines()[3].split() == [
        "128",
        "r1.c1",
        "r1.c0",
        "r1.c3",
        "r1.c2",
        "r1.c5",
        "r1.c4",
        "r1.c7",
        "r1.c6",
    ]
    assert "8 passes" in draw_swizzle(8, 128, 0)


def test_swizzle_as_picture(tmp_path):
    figure = plot_swizzle(8, 64, 64, tmp_path / "s.png")
    assert (tmp_path / "s.png").exists()
    assert len(texts(figure)) == 32 and "row 2 chunk 1" in texts(figure)


@pytest.mark.parametrize(
    "rows, row_bytes, swizzle, part",
    [
        (8, 128, 48, "0, 32, 64, 128"),
        (8, 96, 64, "multiple of 64"),
        (0, 64, 64, "0 rows"),
        (8, 24, 0, "multiple of 16"),
    ],
)
def test_swizzles_that_cannot_be(rows, row_bytes, swizzle, part):
    with pytest.raises(LayoutError, match=part):
        chunks(rows, row_bytes, swizzle)
