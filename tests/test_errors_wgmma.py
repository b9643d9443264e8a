"""What users read of wgmma with operands that do not fit, and of waits that leave groups in flight."""

from __future__ import annotations

import inspect
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import EmulationError, LayoutError, OperandError
from tests.refused_kernels import Refusals, check
from tests.running import line_of

refused = Refusals()
HOPPER: dict[str, Any] = {"arch": "sm_90a"}
MMA = "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16"


@pytest.mark.parametrize("case", refused, ids=lambda case: case.name)
def test_wrong_products_are_refused(case):
    check(case)


# -- operands -----------------------------------------------------------------------------------


@tc.kernel
def product(
    rows: tc.Const = (64, 64),
    columns: tc.Const = (64, 64),
    dtype: tc.Const = tc.bf16,
    instr: tc.Const = None,
    options: tc.Const = None,
):
    tc.launch_bounds(128)
    mma = instr or tc.wgmma.m64n64k16(tc.bf16, tc.bf16, tc.f32)
    a, b = tc.shared(rows, dtype, swizzle=128), tc.shared(columns, dtype, swizzle=128)
    _ = tc.wgmma_async(mma, mma.d.zeros(), a, b, **(options or {}))


S8 = tc.wgmma.m64n64k32(tc.s8, tc.s8, tc.s32)
U8 = tc.wgmma.m64n64k32(tc.u8, tc.s8, tc.s32)
REGISTERS = tc.instruction(f"{MMA}.registers")
MN = {"b_major": "mn"}


@pytest.mark.parametrize(
    ("constants", "message"),
    [
        (
            {"rows": (32, 64)},
            f"{MMA}: a has 64 rows; a view with 32, of shape (32, 64) and major 'k', was given",
        ),
        ({"rows": (128, 64)}, "a has 64 rows; a view with 128"),
        (
            {"columns": (128, 64)},
            "b has 64 columns; a view with 128, of shape (128, 64) and major 'k', was given: b lies as (N, K) = (64, K), K "
            'contiguous; b_major="mn" takes (atoms, K, width)',
        ),
        ({"columns": (32, 64)}, "b has 64 columns; a view with 32"),
        (
            {"columns": (2, 64, 64), "options": MN},
            "b has 64 columns; a view with 128, of shape (2, 64, 64) and major 'mn', "
            "was given: b lies as (atoms, K, width), of which atoms x width is N = 64",
        ),
        ({"rows": (2, 64, 64), "options": {"a_major": "mn"}}, "a has 64 rows; a view with 128"),
        ({"rows": (2, 64, 64)}, "a has 64 rows; a view with 128"),
        (
            {"dtype": tc.f16},
            f"{MMA}: b has bf16 elements; a shared f16 tile of 64x64, 128-byte swizzle was given",
        ),
        (
            {"instr": U8, "dtype": tc.s8, "rows": (64, 128), "columns": (64, 128)},
            "a has u8 elements; a shared s8",
        ),
        ({"columns": (64, 128)}, "a has 4 steps of K, b has 8"),
        ({"rows": (64, 128)}, "a has 8 steps of K, b has 4"),
        ({"options": {"a_major": "m"}}, "a_major may be k, mn; 'm' was given"),
        ({"options": {"b_major": "n"}}, "b_major may be k, mn; 'n' was given"),
        (
            {"instr": REGISTERS},
            "takes a list of fragments, one for each step of K, as a, not a shared bf16 tile",
        ),
        (
            {"instr": tc.mma.m16n8k16(tc.bf16, tc.bf16, tc.f32)},
            "wgmma_async issues instructions of tc.wgmma, not mma.",
        ),
        (
            {
                "instr": S8,
                "dtype": tc.s8,
                "rows": (64, 128),
                "columns": (64, 128),
                "options": {"negate_a": True},
            },
            "has no scale_a: operands are K-major and not negated",
        ),
        ({"options": {"metadata": [1]}}, "takes 0 words of metadata for 4 steps of K; 1 was given"),
    ],
)
def test_operands_of_another_extent_or_type(constants, message):
    with pytest.raises(OperandError) as error:
        product.ir(**constants, arch="sm_90a")
    assert message in error.value.message
    assert error.value.loc.line == line_of(product, "wgmma_async")


def rows_of(constants: dict[str, Any], choose: Any = lambda tile, i: tile) -> Any:
    """A kernel that multiplies `choose` of a tile, with a run-time number, by itself."""

    @tc.kernel
    def kernel(i: tc.s32):
        tc.launch_bounds(128)
        mma = tc.wgmma.m64n64k16(tc.bf16, tc.bf16, tc.f32)
        tile = choose(tc.shared(dtype=tc.bf16, **constants), i)
        _ = tc.wgmma_async(mma, mma.d.zeros(), tile, tile)

    return kernel


WIDE = "make it (2, 64, 64) with swizzle=128 and pass tile[index], or (STAGES, 2, 64, 64) and pass tile[stage, index]"


@pytest.mark.parametrize(
    "constants, choose, message",
    [
        ({"shape": (64, 128), "swizzle": 128}, None, f"rows have 256 bytes, the swizzle 128: {WIDE}"),
        ({"shape": (3, 64, 128), "swizzle": 128}, lambda tile, i: tile[i], WIDE),
        ({"shape": (64, 128), "swizzle": 128}, lambda tile, i: tile[:, :64], WIDE),
        ({"shape": (64, 64)}, None, "rows have 128 bytes, the swizzle 0: make it (64, 64) with swizzle=128"),
        ({"shape": (64, 64), "strides": (72, 1)}, None, "make it (64, 64) with swizzle=128"),
        (
            {"shape": (192, 64), "swizzle": 128},
            lambda tile, i: tile[i : i + 64],
            "at whole periods of the swizzle, 1024 bytes: make the tile (STAGES, 64, 64) and pass tile[stage]; "
            "steps of K are made for whole tiles, or by tc.static_range",
        ),
    ],
)
def test_rows_that_are_no_operand_say_which_shape_is(constants, choose, message):
    with pytest.raises(LayoutError) as error:
        rows_of(constants, choose or (lambda tile, i: tile)).ir(tc.s32, arch="sm_90a")
    assert error.value.message.endswith(message)


@tc.kernel
def product_of_stage(x, stage: tc.s32, out, rows: tc.Const):
    tc.launch_bounds(128)
    mma = tc.wgmma.m64n64k16(tc.bf16, tc.bf16, tc.f32)
    tile, t = tc.shared((192, 64), tc.bf16, swizzle=128), tc.threadIdx.x
    for i in range(96):
        tile[2 * i + t // 64, t % 64] = x[2 * i + t // 64, t % 64]
    tc.fence_proxy_async()
    tc.barrier()
    first = stage * rows + 8
    part, acc = tile[first : first + 64], mma.d.zeros()
    tc.wgmma_fence()
    acc = tc.wgmma_async(mma, acc, part, part)
    tc.wgmma_commit()
    tc.wgmma_wait(0)
    tc.store_elements(out, acc)


@pytest.mark.parametrize("stage, rows", [(0, 64), (1, 64), (2, 24), (5, 24)])
def test_slices_at_run_time_that_start_at_whole_swizzle_periods(stage, rows):
    x = np.random.default_rng(0).integers(-4, 5, (192, 64)).astype(ml_dtypes.bfloat16)
    out = np.zeros((64, 64), np.float32)
    product_of_stage.emulator("sm_90a")[1, 128](x, stage, out, rows)
    part = x[stage * rows + 8 :][:64].astype(np.float32)
    assert (out == part @ part.T).all()


@pytest.mark.parametrize(
    "constants",
    [
        {},
        {"rows": (2, 32, 64), "columns": (8, 8, 64)},
        {"columns": (1, 64, 64), "options": MN},
        {"dtype": tc.b16},
        {"rows": (1, 64, 64), "options": {"a_major": "mn"}},
        {"rows": (64, 128), "columns": (64, 128), "instr": S8, "dtype": tc.s8},
    ],
)
def test_operands_that_fit(constants):
    assert "wgmma.mma_async" in product.ir(**constants, arch="sm_90a")


@refused(
    f"{MMA} reads a from shared memory; tc.instruction('{MMA}.registers') takes fragments",
    "tc.wgmma_async(mma, mma.d.zeros(), [mma.d.zeros()] * 4, b)",
    **HOPPER,
)
def fragments_where_a_tile_is_needed():
    mma = tc.wgmma.m64n64k16(tc.bf16, tc.bf16, tc.f32)
    b = tc.shared((64, 64), tc.bf16, swizzle=128)
    tc.wgmma_async(mma, mma.d.zeros(), [mma.d.zeros()] * 4, b)


@refused(
    f"{MMA}.registers: a has 3 steps of K, b has 4",
    "tc.wgmma_async(mma, mma.d.zeros(), [mma.a.zeros()] * 3, b)",
    **HOPPER,
)
def too_few_fragments():
    mma = tc.instruction("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16.registers")
    b = tc.shared((64, 64), tc.bf16, swizzle=128)
    tc.wgmma_async(mma, mma.d.zeros(), [mma.a.zeros()] * 3, b)


@refused(
    f"operand c of {MMA} must be a fragment f32x32:wgmma.D.64x64.f32, not a fragment f32x64:wgmma.D.64x128.f32",
    "tc.wgmma_async(mma, wide.d.zeros(), a, a)",
    **HOPPER,
)
def accumulator_of_another_width():
    wide = tc.wgmma.m64n128k16(tc.bf16, tc.bf16, tc.f32)
    mma = tc.wgmma.m64n64k16(tc.bf16, tc.bf16, tc.f32)
    a = tc.shared((64, 64), tc.bf16, swizzle=128)
    tc.wgmma_async(mma, wide.d.zeros(), a, a)


@refused(
    f"{MMA}: the 2 atoms of a do not follow each other in memory (shape (2, 32, 64), strides (8192, 64, 1), major 'k')",
    "tc.wgmma_async(mma, mma.d.zeros(), a[::2, :32], a[0, :64])",
    **HOPPER,
)
def atoms_apart():
    mma = tc.wgmma.m64n64k16(tc.bf16, tc.bf16, tc.f32)
    a = tc.shared((4, 64, 64), tc.bf16, swizzle=128)
    tc.wgmma_async(mma, mma.d.zeros(), a[::2, :32], a[0, :64])


@refused("0 to 7 groups may be in flight after a wait, not 8", "tc.wgmma_wait(8)", **HOPPER)
def waits_for_too_many():
    tc.wgmma_wait(8)


@refused("0 or more groups may be in flight after a wait, not -1", "tc.cp_async_wait(-1)")
def waits_for_less_than_none():
    tc.cp_async_wait(-1)


@refused("0 or more groups may be in flight after a wait, not -1", "tc.tma_store_wait(-1)", **HOPPER)
def waits_for_fewer_stores_than_none():
    tc.tma_store_wait(-1)


def test_a_transposed_view_for_wgmma():
    @tc.kernel(threads=128)
    def transposed():
        mma = tc.wgmma.m64n64k16(tc.bf16, tc.bf16, tc.f32)
        a, b = tc.shared((64, 64), tc.bf16, swizzle=128), tc.shared((64, 64), tc.bf16, swizzle=128)
        _ = tc.wgmma_async(mma, mma.d.zeros(), a, b.T)

    with pytest.raises(LayoutError) as error:
        transposed.ir(arch="sm_90a")
    assert error.value.message == (
        f"{MMA}: the last axis of b runs along memory; a view of shape (64, 64) with strides "
        "(1, 64) was given: b lies as (N, K) = (64, K), K contiguous; "
        'b_major="mn" takes (atoms, K, width)'
    )


# -- waits ------------------------------------------------------------------------------------


@tc.kernel
def products_in_flight(x, use: tc.Const, waits: tc.Const, commits: tc.Const = True):
    mma = tc.wgmma.m64n64k16(tc.bf16, tc.bf16, tc.f32)
    tile = tc.shared((64, 64), tc.bf16, swizzle=128)
    for i in tc.static_range(32):
        tile[2 * i + tc.threadIdx.x // 64, tc.threadIdx.x % 64] = 1
    tc.fence_proxy_async()
    tc.barrier()
    acc, other = mma.d.zeros(), mma.d.zeros()
    tc.wgmma_fence()
    acc = tc.wgmma_async(mma, acc, tile[:, :16], tile[:, :16])
    tc.wgmma_commit()
    other = tc.wgmma_async(mma, other, tile[:, :16], tile[:, :16])
    if commits:
        tc.wgmma_commit()
    for pending in waits:
        tc.wgmma_wait(pending)
    if use == "first":
        x[0, tc.threadIdx.x] = acc[0]
    elif use == "second":
        x[0, tc.threadIdx.x] = other[0]
    elif use == "shared":
        tc.barrier()
        if tc.threadIdx.x == 0:
            tile[0, 0] = 2
    tc.wgmma_wait(0)


@tc.kernel
def stores_in_flight(x, pending: tc.Const = None, commits: tc.Const = True):
    tile, map = tc.shared((8, 32), tc.f32, align=128), tc.tensor_map(x, (8, 32))
    for i in range(2):
        tile[tc.warp_id(), tc.lane_id()] = i
        tc.fence_proxy_async()
        tc.barrier()
        if tc.threadIdx.x == 0:
            tc.tma_store(map, (0, 0), tile)
            if commits:
                tc.tma_store_commit()
            if pending is not None:
                tc.tma_store_wait(pending)
        tc.barrier()


@tc.kernel
def copies_in_flight(x, pending: tc.Const):
    tile, t = tc.shared((2, 128), tc.f32), tc.lane_id()
    for s in tc.static_range(2):
        tc.cp_async(tile.at(s, 4 * t), x.at(0, 4 * t), 16)
        tc.cp_async_commit()
    tc.cp_async_wait(pending)
    x[1, t] = tile[1, 4 * t]


COMMIT = "tc.wgmma_commit() (wgmma.commit_group)"
WAIT = "`tc.wgmma_wait(pending)` at line {} leaves it in flight; "


@pytest.mark.parametrize(
    "kernel, threads, args, words",
    [
        (products_in_flight, 128, ("first", (2,)), WAIT + "1 is needed"),
        (products_in_flight, 128, ("first", (2,)), "`x[0, tc.threadIdx.x] = acc[0]`: warpgroup 0 of CTA 0"),
        (products_in_flight, 128, ("first", (1,)), ""),
        (
            products_in_flight,
            128,
            ("first", ()),
            "still owns: tc.wgmma_wait() (wgmma.wait_group) must come between",
        ),
        (products_in_flight, 128, ("second", (2, 1)), WAIT + "0 is needed"),
        (products_in_flight, 128, ("shared", (2,)), WAIT + "1 is needed"),
        (
            products_in_flight,
            128,
            ("shared", ()),
            ": wait for its group first: tc.wgmma_wait() (wgmma.wait_group)",
        ),
        (products_in_flight, 128, ("shared", (0,), False), f"never committed: {COMMIT} is missing before"),
        (
            stores_in_flight,
            256,
            (1,),
            "`tc.tma_store_wait(pending)` at line {} leaves it in flight; 0 is needed",
        ),
        (stores_in_flight, 256, (), ": wait for its group first: tc.tma_store_wait(read=True)"),
        (stores_in_flight, 256, (0, False), "never committed: tc.tma_store_commit() "),
        (stores_in_flight, 256, (0,), ""),
        (
            copies_in_flight,
            32,
            (1,),
            "`tc.cp_async_wait(pending)` at line {} leaves it in flight; 0 is needed",
        ),
        (copies_in_flight, 32, (0,), ""),
    ],
)
def test_waits_that_leave_too_much_in_flight(kernel, threads, args, words):
    """A wait for fewer groups than needed is told from none: which one, and what it should be."""
    run = kernel.emulator("sm_90a")[1, threads]
    x = np.zeros((8, 32 if kernel is stores_in_flight else 128), np.float32)
    if not words:
        run(x, *args)
        return
    with pytest.raises(EmulationError) as error:
        run(x, *args)
    code = kernel.function.__code__
    lines = inspect.getsource(kernel.function).splitlines()
    at = [code.co_firstlineno + i for i, line in enumerate(lines) if "wait(pending)" in line]
    assert words.format(*at) in str(error.value)
