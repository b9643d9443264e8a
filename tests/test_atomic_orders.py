"""Orders and scopes of `tc.atomic` and `tc.reduce`: text, what they order, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl.errors import ArchError, OperandError, Race
from tensorcore_dsl.lang.atomics import ORDERS, SCOPES

ARRAY = tc.ArrayType(tc.u32, 1, (True,), 16)


@tc.kernel
def every_order(x: tc.Array, scope: tc.Const):
    for place, order in enumerate(("relaxed", "acquire", "release", "acq_rel")):
        tc.atomic("add", x.at(place), 1, order=order, scope=scope)
    tc.reduce("add", x.at(4), 1, scope=scope)
    tc.reduce("add", x.at(5), 1, order="release", scope=scope)
    tile = tc.shared(4, tc.u32)
    if tc.threadIdx.x == 0:
        tile[0] = 0
    tc.syncwarp()
    tc.atomic("exch", tile.at(0), 1, order="acq_rel", scope=scope)


@tc.kernel
def signal(
    data: tc.Array, flag: tc.Array, out: tc.Array, release: tc.Const, acquire: tc.Const, scope: tc.Const
):
    """CTA 0 writes and releases, CTA 1 acquires and reads."""
    if tc.blockIdx.x == 0:
        if tc.threadIdx.x == 0:
            data[0] = 7
            tc.atomic("exch", flag.at(0), 1, order=release, scope=scope)
    elif tc.threadIdx.x == 0:
        while tc.atomic("or", flag.at(0), 0, order=acquire, scope=scope) == 0:
            pass
        out[0] = data[0]


@tc.kernel
def count(data: tc.Array, done: tc.Array, out: tc.Array, order: tc.Const):
    """Blocks count what they have written; one thread reads all of it."""
    data[tc.blockIdx.x] = 7
    tc.reduce("add", done.at(0), 1, order=order)
    if tc.blockIdx.x == 3:
        while tc.atomic("or", done.at(0), 0, order="acquire") < 4:
            pass
        out[0] = data[0] + data[1] + data[2] + data[3]


@tc.kernel
def by_comparison(x: tc.Array):
    tc.atomic("min", x.at(0), 2.0, order="release", scope="sys")


def run(*constants: Any) -> Any:
    data, flag, out = np.zeros((3, 1), np.int32)
    signal.emulate[2, 32](data, flag, out, *constants)
    return out[0]


@pytest.mark.parametrize("scope", SCOPES)
def test_the_order_stands_in_the_instruction(scope):
    text = every_order.ptx(ARRAY, scope, arch="sm_90a")
    for order in ORDERS:
        plain = scope == "gpu" and order == "relaxed"
        semantics = "" if plain else f".{order}.{scope}"
        assert f"atom{semantics}.global.add.u32" in text
        assert order in ("acquire", "acq_rel") or f"red{semantics}.global.add.u32" in text
    assert f"atom.acq_rel.{scope}.shared.exch.b32" in text
    pytest.importorskip("cuda.core", reason="the assembler")
    assert every_order.resources(ARRAY, scope, arch="sm_90a").registers > 0


def test_counts_are_the_same():
    for scope in SCOPES:
        x = np.zeros(6, np.uint32)
        every_order.emulate[1, 32](x, scope)
        assert x.tolist() == [32] * 6


@pytest.mark.parametrize("scope", ["gpu", "sys"])
def test_a_release_and_an_acquire_order(scope):
    assert run("release", "acquire", scope) == run("acq_rel", "acq_rel", scope) == 7


@pytest.mark.parametrize(
    "constants",
    [("relaxed", "acquire", "gpu"), ("release", "relaxed", "gpu"), ("release", "acquire", "cta"),
     ("release", "acquire", "cluster")],
)  # fmt: skip
def test_weaker_orders_and_scopes_are_races(constants):
    with pytest.raises(Race):
        run(*constants)


def test_reductions_release():
    data, done, out = np.zeros(4, np.int32), np.zeros(1, np.int32), np.zeros(1, np.int32)
    count.emulate[4, 1](data, done, out, "release")
    assert out[0] == 28
    with pytest.raises(Race):
        count.emulate[4, 1](data, np.zeros(1, np.int32), out, "relaxed")


def test_loops_of_compare_and_swap_have_the_order():
    text = by_comparison.ptx(tc.ArrayType(tc.f32, 1, (True,), 16), arch="sm_90a")
    assert "atom.release.sys.global.cas.b32" in text


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda x: tc.atomic("add", x.at(0), 1, order="seq_cst"), "may be relaxed, acquire, release, acq_rel; 'seq_cst'"),
        (lambda x: tc.atomic("add", x.at(0), 1, scope="grid"), "may be cta, cluster, gpu, sys; 'grid' was given"),
        (lambda x: tc.reduce("add", x.at(0), 1, order="acquire"), "may be relaxed, release; 'acquire' was given"),
        (lambda x: tc.reduce("add", x.at(0), 1, scope="block"), "the scope of a reduction may be cta, cluster"),
    ],
)  # fmt: skip
def test_wrong_orders_are_refused(call, words):
    @tc.kernel
    def wrong(x: tc.Array):
        call(x)

    with pytest.raises(OperandError, match=words):
        wrong.ir(ARRAY)


def test_asynchronous_reductions_have_their_own_order():
    @tc.kernel
    def wrong(x: tc.Array):
        tile, bar = tc.shared(4, tc.u32), tc.mbarriers(1)[0]
        tc.reduce("add", tile.remote(1).at(0), 1, barrier=bar.remote(1), scope="cluster")

    with pytest.raises(OperandError, match="with barrier= takes no order= and no scope="):
        wrong.ir(ARRAY)


def test_the_scope_of_a_cluster_needs_clusters():
    with pytest.raises(ArchError):
        every_order.ir(ARRAY, "cluster", arch="sm_80")
