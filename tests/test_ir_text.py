"""The IR's text: what is printed parses to the same kernel."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorcore_dsl as tc
from tensorcore_dsl.dtypes import b32, f32, f64, pred, s32, u32, u64
from tensorcore_dsl.errors import Loc
from tensorcore_dsl.ir.nodes import (
    Address,
    Assign,
    Block,
    Const,
    For,
    If,
    Jump,
    Kernel,
    Node,
    Op,
    Param,
    Part,
    TensorMap,
    Type,
    Value,
    While,
)
from tensorcore_dsl.ir.text import format_kernel
from tensorcore_dsl.isa import instruction
from tests.ir_reader import parse_kernel

FORMS = [
    instruction(m)
    for m in (
        "add.s32",
        "fma.rn.f32",
        "setp.lt.u32",
        "selp.f32",
        "ld.global.v4.b32",
        "st.global.b64",
        "shared.base",
        "mov.u32.%tid.x",
        "cp.async.cg.shared.global",
        "bar.sync",
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
        "elect.sync",
        "cp.async.wait_all",
    )
]
TYPES = [
    Type(s32),
    Type(f32),
    Type(pred),
    Type(u64),
    Type(b32, 4),
    Type(f32, 4, "mma.C.16x8.f32"),
    Type(f64, 1, "mma.A.8x4.f64"),
    Type(u32, 2),
]

# --- random kernels: any values anywhere, right or wrong ------------------------------------

names = st.from_regex(r"[A-Za-z_][A-Za-z_0-9.]{0,8}", fullmatch=True)
strings = st.text(max_size=12)
base_locs = st.builds(Loc, strings, st.integers(1, 9999), st.integers(0, 99), st.integers(0, 99), strings)
locs = st.none() | st.recursive(
    base_locs, lambda inner: st.builds(Loc, strings, st.integers(1, 99), caller=inner), max_leaves=3
)
numbers = st.one_of(
    st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.sampled_from([0, 1, 0.0, -0.0])
)
consts = st.builds(Const, numbers, st.sampled_from([s32, u32, f32, f64, pred, u64]))


@st.composite
def kernels(draw: Any) -> Kernel:
    pool = [Value(i * 3, draw(st.sampled_from(TYPES))) for i in range(8)]
    values = st.sampled_from(pool)
    parts = st.builds(Part, values, st.integers(0, 3))
    scalars = values | consts
    addresses = st.builds(Address, scalars, st.integers(-(2**31), 2**31 - 1) | st.just(0))
    ops = st.builds(
        Op,
        st.sampled_from(FORMS),
        st.lists(values, max_size=2).map(tuple),
        st.lists(values | consts | parts | addresses, max_size=4).map(tuple),
        st.none() | values,
        st.just(False),
        locs,
    ).map(
        lambda op: (
            op
            if op.guard is None
            else Op(  # only a guard can be negated
                op.instr, op.results, op.operands, op.guard, len(op.results) == 1, op.loc
            )
        )
    )
    copies = st.builds(
        Assign, values, st.lists(values | consts | parts, min_size=1, max_size=4).map(tuple), locs
    )
    jumps = st.builds(Jump, st.sampled_from(["break", "continue", "return"]), locs)

    def nested(inner: Any) -> Any:
        blocks = st.builds(Block, st.lists(inner, max_size=3))
        return st.one_of(
            st.builds(For, values, scalars, scalars, scalars, blocks, locs),
            st.builds(While, blocks, scalars, blocks, locs),
            st.builds(If, values, blocks, blocks, locs),
        )

    nodes = st.recursive(ops | copies | jumps, nested, max_leaves=12)
    counts = st.none() | st.integers(0, 10000)
    few = st.lists(st.integers(0, 300), min_size=1, max_size=5).map(tuple)
    maps = st.builds(TensorMap, st.integers(0, 9), few, few, st.sampled_from([0, 128]))
    params = draw(st.lists(st.builds(Param, names, values, st.none() | maps), max_size=4))
    clusters = st.none() | st.tuples(*[st.integers(1, 16)] * 3)
    return Kernel(
        draw(names),
        params,
        Block(draw(st.lists(nodes, max_size=6))),
        draw(st.sampled_from([0, 7, 65536])),
        draw(st.sampled_from([16, 128])),
        draw(st.sampled_from([0, 16, 256, 1024])),
        draw(counts),
        draw(counts),
        draw(counts),
        draw(clusters),
        draw(st.lists(strings, max_size=2)),
    )


def structure(item: Any, locations: bool) -> Any:
    """A kernel as nested tuples, values by number and type."""
    if isinstance(item, Value):
        return ("value", item.id, item.type)
    if isinstance(item, Const):
        number = item.value
        exact = number.hex() if isinstance(number, float) and math.isfinite(number) else str(number)
        return ("const", type(number).__name__, exact, item.dtype)
    if isinstance(item, (list, tuple)):
        return tuple(structure(i, locations) for i in item)
    if isinstance(item, (Part, Address, Param, Kernel, Block, *Node.__args__)):  # type: ignore[attr-defined]
        fields = {k: v for k, v in vars(item).items() if locations or k != "loc"}
        return (type(item).__name__, *((k, structure(v, locations)) for k, v in fields.items()))
    return item


@settings(max_examples=30, deadline=None)
@given(kernels(), st.booleans())
def test_text_parses_to_the_same_kernel(kernel, locations):
    text = format_kernel(kernel, locations)
    parsed = parse_kernel(text)
    assert format_kernel(parsed, locations) == text
    assert structure(parsed, locations) == structure(kernel, locations)
    assert structure(parse_kernel(text.replace("\n", "\n\n  // a comment\n")), locations) == structure(
        kernel, locations
    )


# --- what it looks like ---------------------------------------------------------------------


@tc.kernel
def counted(x: tc.Array):
    total = x[0]
    for i in tc.range(3):
        total += i
    x[0] = total


@pytest.mark.parametrize("locations", [False, True])
def test_debug_builds_are_printed_with_marks_as_comments(locations):
    chosen = counted.specialise([tc.ArrayType(tc.f32, 1, (True,), 4)], {}, "sm_80")
    text = format_kernel(chosen.debug_ir, locations)
    shown = [line.split() for line in text.splitlines() if line.lstrip().startswith("//")]
    kinds = [words[1] for words in shown]
    assert {"line", "assigned", "end", "keep"} == set(kinds)
    assert ["//", "assigned", "total"] in [words[:3] for words in shown]
    assert format_kernel(parse_kernel(text)) == format_kernel(chosen.ir)


SHOWN = """\
kernel show(p = %0:u64, n = %1:s32) shared 1024 align 128 dynamic threads 64 max_registers 96 {
  string "x = %d\\n"
  %2:f32*4@mma.C.16x8.f32 <- 0.0
  for %3:s32 = 0 to %1 step 1 {
    %4:pred = setp.lt.s32 %3, 7
    if %4 {
      @!%4 st.global.b32 [%0-16], %2.3
    } else {
      st.global.b32 [%0], 1.5:f32
      continue
    }
  }
  while {
    %5:pred = setp.eq.s32 %1, 0
  } do %5 {
    break
  }
}
"""


def test_the_text_that_people_read():
    assert format_kernel(parse_kernel(SHOWN)) == SHOWN


MAPPED = """\
kernel mapped(a = %0:u64, a_map = %1:u64 map 0 axes 1 0 box 64 128 swizzle 128, b_map = %2:u64 \
map 3 axes 0 box 256 nan) cluster 2 1 1 {
  return
}
"""


def test_tensor_maps_and_clusters():
    kernel = parse_kernel(MAPPED)
    assert [p.tensor_map for p in kernel.params] == [
        None,
        TensorMap(0, (1, 0), (64, 128), 128),
        TensorMap(3, (0,), (256,), nan_fill=True),
    ]
    assert kernel.cluster == (2, 1, 1)
    assert format_kernel(kernel) == MAPPED


def test_a_layout_ends_where_an_offset_begins():
    text = "kernel k(a = %0:f32*4@mma.C.16x8.f32) {\n  add.s32 [%1:u64@mma.C.16x8.f32-16]\n}\n"
    assert format_kernel(parse_kernel(text)) == text


def test_locations_are_a_table_below():
    caller = Loc("a.py", 3, 4, 9, "kernel")
    loc = Loc("b.py", 7, 0, 5, "helper", caller)
    value = Value(0, Type(u32))
    op = Op(instruction("mov.u32.%tid.x"), (value,), (), loc=loc)
    text = format_kernel(Kernel("k", [], Block([op, op, Jump("return", caller)])), locations=True)
    assert text.splitlines() == [
        "kernel k() {",
        "  %0:u32 = mov.u32.%tid.x #1",
        "  %0 = mov.u32.%tid.x #1",
        "  return #0",
        "}",
        'loc 0 "a.py":3:4-9 "kernel"',
        'loc 1 "b.py":7:0-5 "helper" from 0',
    ]
    parsed = parse_kernel(text)
    assert [node.loc for node in parsed.body] == [loc, loc, caller]
