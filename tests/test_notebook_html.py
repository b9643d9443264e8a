"""What objects show in notebooks: well-formed HTML with what their texts say."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import kernels

MMA = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)


@tc.kernel
def reverse(x: tc.Array, y: tc.Array):
    tile = tc.shared(64, x.dtype)
    tile[tc.threadIdx.x] = x[tc.threadIdx.x]
    tc.barrier()
    y[tc.threadIdx.x] = tile[63 - tc.threadIdx.x]


@tc.kernel
def racing(x: tc.Array, y: tc.Array):
    tile = tc.shared(64, x.dtype)
    tile[tc.threadIdx.x] = x[tc.threadIdx.x]
    y[tc.threadIdx.x] = tile[63 - tc.threadIdx.x]


def arrays():
    return np.ones(64, np.float32), np.zeros(64, np.float32)


def report():
    return reverse.emulator("sm_90a", profile=True, timeline=True)[1, 64](*arrays())


def planned():
    a, b, d = (np.zeros((128, 128), tc.bf16.numpy) for _ in range(3))
    with tc.target("cpu", arch="sm_90a"):
        return kernels.plan(a, b, None, d)


class Page(HTMLParser):
    """The text of HTML; a tag that is not closed, or closed twice, fails."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.text = [], [], ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


SHOWN = {
    "layout": (lambda: MMA.a.layout, ["mma.A.16x16.f16: 16x16 f16", "T4:2"]),
    "operand": (lambda: MMA.b, ["mma.B.16x8.f16", "T0:0"]),
    "instruction": (lambda: MMA, [MMA.mnemonic, "sm_80 or later", "f16x4:mma.A.16x16.f16"]),
    "kernel": (lambda: reverse, ["<kernel reverse(x: Array, y: Array)>", "tile[63 - tc.threadIdx.x]"]),
    "report": (report, ["shared load", "256", "bar.sync", "an estimate for sm_90a"]),
    "timeline": (lambda: report().timeline, ["warp 0", "warp 1", "an estimate for sm_90a", "wait at barriers"]),
    "check": (lambda: racing.check(1, 64)(*arrays()), ["1 finding", "nothing orders the two accesses"]),
    "plan": (planned, ["plan: ", "grid", "BM", "stages"]),
}  # fmt: skip


@pytest.mark.parametrize("name", SHOWN)
def test_objects_show_themselves(name):
    make, texts = SHOWN[name]
    page = Page(make()._repr_html_())
    for text in texts:
        assert text in page.text


def test_a_layout_has_a_cell_for_each_element():
    assert Page(MMA.a.layout._repr_html_()).tags.count("td") == 16 * 16
    wide = tc.wgmma.m64n256k16(tc.bf16, tc.bf16, tc.f32).d.layout
    page = Page(wide._repr_html_())
    assert page.tags.count("td") == 64 * 32 and "the first 64 rows and 32 columns" in page.text


def test_a_timeline_draws_each_span():
    timeline = report().timeline
    spans = sum(len(warp.segments) for warp in timeline.replay.warps) + len(timeline.replay.transfers)
    paths = re.findall(r' d="([^"]*)"', timeline._repr_html_())
    assert sum(path.count("M") for path in paths) == spans


def test_a_kernel_without_source_shows_its_signature():
    scope = {"tc": tc}
    exec("def unknown(x: tc.Array):\n    x[0] = 1\n", scope)
    assert "unknown(x: Array)" in Page(tc.kernel(scope["unknown"])._repr_html_()).text


def test_texts_are_escaped():
    finding = racing.check(1, 64)(*arrays())
    finding.findings[0].error.message = "<script>"
    assert "<script>" not in finding._repr_html_() and "&lt;script&gt;" in finding._repr_html_()
