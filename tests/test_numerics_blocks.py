"""Products in blocks of D against the fallback in NumPy, and where one hands over to the other."""

from __future__ import annotations

import dataclasses
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorcore_dsl import isa
from tensorcore_dsl.environment.compiled_sources import FunctionKey
from tensorcore_dsl.isa import fragments as layouts
from tensorcore_dsl.numerics import block_code, block_sums, blocks, plans, products, vectors
from tensorcore_dsl.numerics.architectures import model
from tensorcore_dsl.numerics.products import fragments, in_place, matmul
from tests import numerics_cases as table
from tests.exact_scalar import expected

mma, near = table.mma, table.near
F64 = mma((16, 8, 8), "f64", "f64")
IDS = [*table.IDS, (F64, "sm_80")] + [
    (dataclasses.replace(F64, rounding=rounding), "sm_90a") for rounding in ("rn", "rz", "rm", "rp")
]
IN_BLOCKS = [(p, arch) for p, arch in IDS if plans.prepare(p, model(p, arch), None, 0).blocks]
NAMES = {"ids": lambda v: str(v).replace(" ", "-")}
POWERS = (-30, 30), (-520, -420), (480, 520), (-1000, 1000)  # of two, in operands of binary64


@contextmanager
def left_over():
    """A list that receives (operations, warps) bool of each call: what blocks cannot compute."""
    usual, found = products._in_blocks, []
    products._in_blocks = lambda *given: found.append(usual(*given)) or found[-1]
    try:
        yield found
    finally:
        products._in_blocks = usual


def agree(p, arch, a, b, c, **more):
    """(batch,) bool: which products blocks could not compute. All must agree with the fallback."""
    with left_over() as found:
        got = matmul(p, arch, a, b, c, **more)
    with plans.without_blocks():
        want = matmul(p, arch, a, b, c, **more)
    mismatches = np.argwhere(got != want)
    assert not len(mismatches), (
        f"{len(mismatches)} of {want.size}; first {mismatches[0]}: "
        f"{got[tuple(mismatches[0])]:x}, not {want[tuple(mismatches[0])]:x}"
    )
    return found[0][0]


# -- all products --------------------------------------------------------------------------------


def test_which_products_are_computed_in_blocks():
    """All but m8n8k4 of f16 on GPUs without a unit for it, and binary64 in directed roundings."""
    others = [(p, arch) for p, arch in IDS if (p, arch) not in IN_BLOCKS]
    assert {(model(p, arch).engine, p.rounding == "rn") for p, arch in others} == {
        ("scalar", True),
        ("double", False),
    }
    assert {model(p, arch).engine for p, arch in IN_BLOCKS} == {"fused", "grouped", "double"}


def cancelling(rng, p, batch):
    """Products of which every second one cancels the one before it, but for a few low bits."""
    a = near(rng, p.a, (batch, p.m, p.stored), -2, 2)
    b = near(rng, p.b, (batch, p.k, p.n), -2, 2)
    a[:, :, 1::2], b[:, 1::2] = a[:, :, ::2], b[:, ::2]
    sign = 1 << (31 if p.b == "tf32" else table.BITS[p.b] - 1)
    b[:, 1::2] ^= b.dtype.type(sign)
    b[:, 1::4] ^= b.dtype.type(1 << 13 if p.b == "tf32" else 1)
    return a, b


def spread(rng, p, batch):
    """Exponents from one end of the format to the other."""
    return (near(rng, p.a, (batch, p.m, p.stored), -200, 200), near(rng, p.b, (batch, p.k, p.n), -200, 200))


@pytest.mark.parametrize(("p", "arch"), IN_BLOCKS, **NAMES)
def test_blocks_agree_with_the_fallback(p, arch):
    for regime in table.REGIMES:
        rng = np.random.default_rng(len(regime))
        a, b, c, more = table.operands(p, regime, rng, 6)
        if p.a == "f64":
            scale = 2.0 ** rng.integers(-600, 600, (3, 6, 1, 1))
            a, b, c = (
                (rng.standard_normal(x.shape) * s).view(np.uint64)
                for x, s in zip((a, b, c), scale, strict=True)
            )
        agree(p, arch, a, b, c, **more)
    if p.a in table.FLOATS:
        for draw in (cancelling, spread):
            a, b = draw(rng, p, 6)
            for low, high in ((-4, 4), (-140, -90), (60, 127)):
                agree(p, arch, a, b, near(rng, p.c, c.shape, low, high), **more)


@pytest.mark.parametrize(("p", "arch"), IN_BLOCKS, **NAMES)
def test_usual_numbers_need_no_fallback(p, arch):
    rng = np.random.default_rng(3)
    a, b, c, more = table.operands(p, "near", rng, 4)
    if p.a == "f64":
        a, b, c = (rng.standard_normal(x.shape).view(np.uint64) for x in (a, b, c))
    assert not agree(p, arch, a, b, c, **more).any()


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(IN_BLOCKS), st.integers(0, 1 << 32), st.data())
def test_any_bits(case, seed, data):
    """Elements with any bits outside and inside a random mask, which makes special values rare."""
    p, arch = case
    rng = np.random.default_rng(seed)
    operands = []
    for name, shape in (("a", (p.m, p.stored)), ("b", (p.k, p.n)), ("c", (p.m, p.n))):
        bits = table.BITS[getattr(p, name)]
        mask, fixed = (data.draw(st.integers(0, (1 << bits) - 1)) for _ in range(2))
        x = table.raw(rng, getattr(p, name), (3, *shape))
        operands.append(x & x.dtype.type(mask) | x.dtype.type(fixed & ~mask & (1 << bits) - 1))
    agree(p, arch, *operands, **table.operands(p, "near", rng, 3)[3])


GROUPED = [(p, arch) for p, arch in IN_BLOCKS if model(p, arch).engine == "grouped"]


@pytest.mark.parametrize(("p", "arch"), GROUPED, **NAMES)
@pytest.mark.parametrize("low", [0, 0x30, 110])
def test_scales_of_groups(p, arch, low):
    """Sums that cancel, groups of zeros, and scales that are far from each other, 0 or NaN."""
    rng = np.random.default_rng(low)
    a, b, c, more = table.operands(p, "near", rng, 30)
    high = {0: 256, 0x30: 0x40, 110: 127}[low]
    for name in ("scale_a", "scale_b"):
        more[name] = rng.integers(low, high, more[name].shape).astype(np.uint8)
    a[:10, :, 1::2], b[:10, 1::2] = a[:10, :, ::2], b[:10, ::2] ^ 8
    a[10:20] *= rng.random(a[10:20].shape) < 0.05
    c = near(rng, p.c, c.shape, -40, 40)
    left = agree(p, arch, a, b, c, **more)
    assert low == 0 or not left.any()


# -- the ends of the range -----------------------------------------------------------------------


def bf16(exponent):
    """2.0**exponent; 0 for None."""
    return 0 if exponent is None else (exponent + 127) << 7


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(
    ("of_a", "of_b", "of_c", "fits"),
    [
        (0, block_sums.MIN_EXPONENT, None, True),
        (0, block_sums.MIN_EXPONENT - 1, None, False),
        (60, block_sums.MAX_EXPONENT - 60, None, True),
        (61, block_sums.MAX_EXPONENT - 60, None, False),
        (None, None, block_sums.MIN_EXPONENT, True),
        (None, None, block_sums.MIN_EXPONENT - 1, False),
        (None, None, block_sums.MAX_EXPONENT, True),
        (None, None, block_sums.MAX_EXPONENT + 1, False),
        (-80, -46, block_sums.MIN_EXPONENT, True),
        (-80, -80, None, False),
        (-126, -126, 0, True),
        (100, 100, 0, False),
        (None, 127, None, True),
        (None, None, None, True),
    ],
)
def test_the_largest_exponent_decides(arch, of_a, of_b, of_c, fits):
    p = mma((16, 8, 16), "bf16", "f32")
    rng = np.random.default_rng(5)
    for k in (1, 16):  # one product, and many
        a, b = np.zeros((2, 16, 16), np.uint16), np.zeros((2, 16, 8), np.uint16)
        c = np.zeros((2, 16, 8), np.uint32)
        tails = rng.integers(0, 128, (3, 2, 16, 16)).astype(np.uint16)
        a[1, :, :k] = bf16(of_a) | (tails[0, 1, :, :k] if of_a is not None else 0)
        b[1, :k] = bf16(of_b) | (tails[1, 1, :k, :8] if of_b is not None else 0)
        c[1] = bf16(of_c) << 16
        if of_c is not None:
            c[1] |= tails[2, 1, :, :8]
        left = agree(p, arch, a, b, c)
        if arch == "sm_90a":  # where sums of one step are not the accumulators of another
            assert left.tolist() == [False, not fits]


@pytest.mark.parametrize(
    ("p", "arch"), [x for x in IN_BLOCKS if {x[0].a, x[0].b} <= table.FLOATS.keys()], **NAMES
)
def test_the_largest_sums_are_computed_in_blocks_where_they_fit(p, arch):
    """All products are as large as their exponents allow, of one sign."""
    a, b, c, more = table.operands(p, "near", np.random.default_rng(6), 1)
    for x, name in ((a, p.a), (b, p.b), (c, p.c)):
        width, fraction = table.FLOATS[name]
        x[:] = ((1 << width - 1) << fraction) - 1 << (13 if name == "tf32" else 0)
    way = model(p, arch)
    factors = [2 - 2.0 ** -table.FLOATS[name][1] for name in (p.a, p.b)]
    largest = way.length * factors[0] * factors[1] * 2.0**way.fraction
    assert agree(p, arch, a, b, c, **more).all() == (largest > 2**31 - (2 << way.fraction))


@pytest.mark.parametrize("special", ["infinity", "NaN"])
@pytest.mark.parametrize("operand", range(3))
@pytest.mark.parametrize(
    ("a", "d"),
    [("f16", "f32"), ("f16", "f16"), ("bf16", "f32"), ("tf32", "f32"), ("e4m3", "f32"), ("e5m2", "f16")],
)
def test_one_special_element_hands_over_its_product_alone(a, d, operand, special):
    k = {"tf32": 8, "e4m3": 32, "e5m2": 32}.get(a, 16)
    p = mma((16, 8, k), a, d)
    given = list(table.operands(p, "near", np.random.default_rng(7), 5)[:3])
    name = (p.a, p.b, p.c)[operand]
    width, fraction = table.FLOATS[name]
    code = ((1 << width) - 1 << fraction) + (special == "NaN")
    if name == "e4m3":
        code = 0x7F
    given[operand][2, 3, 5] = code << (13 if name == "tf32" else 0)
    for other in (given[1 - operand], given[operand]) if operand < 2 else (given[0],):
        assert agree(p, "sm_90a", *given).tolist() == [False, False, True, False, False]
        if other is not given[operand]:
            other[:] = 0  # infinity times zero


def test_an_accumulator_that_overflows_between_steps():
    p = mma((16, 8, 16), "bf16", "f32")  # two steps on sm_80
    a, b = np.zeros((1, 16, 16), np.uint16), np.zeros((1, 16, 8), np.uint16)
    a[0, :, :8], b[0, :8] = bf16(60), bf16(60)
    a[0, :, 8:], b[0, 8:] = bf16(0), bf16(0)
    c = np.full((1, 16, 8), 0x7F7FFFFF, np.uint32)
    assert agree(p, "sm_80", a, b, c).tolist() == [True]


@pytest.mark.parametrize("rounding", ["rn", "rz", "rm", "rp"])
def test_chains_of_binary64(rounding):
    """Exact sums, zeros of both signs, cancellation, and numbers close to the ends of the range."""
    p = dataclasses.replace(F64, rounding=rounding)
    rng = np.random.default_rng(8)

    def drawn(shape, low=0, high=1):
        return rng.standard_normal(shape) * 2.0 ** rng.integers(low, high, shape)

    shapes = (40, p.m, p.k), (40, p.k, p.n), (40, p.m, p.n)
    a, b, c = (drawn(shape) for shape in shapes)
    a[:, :, 1::2], b[:, 1::2] = a[:, :, ::2], -b[:, ::2]
    for terms in (
        [np.round(4 * drawn(shape)) / 4 for shape in shapes],
        [rng.choice([0.0, -0.0], shape) for shape in shapes],
        *([drawn(shape, *powers) for shape in shapes] for powers in POWERS),
        (a, b, 0 * c),
    ):
        a, b, c = (x.view(np.uint64) for x in terms)
        if rounding == "rn":
            assert not agree(p, "sm_90a", a, b, c).any()
        for i, d in enumerate(matmul(p, "sm_90a", a, b, c)[:, -1, -1]):
            total = int(c[i, -1, -1])
            for x, y in zip(a[i, -1], b[i, :, -1], strict=True):
                total = expected("fma", "f64", [int(x), int(y), total], rounding, False)
            assert int(d) == total


@pytest.mark.parametrize("sparse", [False, True])
def test_scales_that_leave_the_range_are_handed_over(sparse):
    """Sums of exponents from DOWN to UP, NaN, and results and accumulators that are not normal."""
    p = table.scaled(64 if sparse else 32, "e4m3", "e5m2", "mxf8f6f4", 1, "ue8m0", sparse=sparse)
    arch, rng = "sm_120a", np.random.default_rng(10)
    low, high = block_sums.DOWN, block_sums.UP
    for of_a, of_b, size, fits in (
        (127 + low, 127, 0, True),
        (127 + low, 126, 0, False),
        (127 + high, 127, 0, True),
        (127 + high, 128, 0, False),
        (255, 90, 0, False),
        (90, 255, 0, False),
        (150, 150, -120, False),
        (100, 127, 119, False),
    ):
        a, b, c, more = table.operands(p, "near", rng, 3)
        c[1] = near(rng, "f32", c[1].shape, size, size + 1)
        more["scale_a"][:], more["scale_b"][:] = 127, 127
        more["scale_a"][1, 3], more["scale_b"][1, 0, 2] = of_a, of_b
        assert agree(p, arch, a, b, c, **more).tolist() == [False, not fits, False]


def test_selections_that_leave_their_step_are_handed_over():
    """No metadata say so, but the numerics take any selection."""
    p, arch = next(x for x in IN_BLOCKS if x[0].sparse and x[0].k > 2 * model(*x).length)
    a, b, c, more = table.operands(p, "near", np.random.default_rng(9), 4)
    selection = more["selection"]
    selection[1, 3] = (selection[1, 3] + p.k // 2) % p.k  # other steps
    selection[2, 5, 1] = selection[2, 5, 0]  # a column of two elements
    assert agree(p, arch, a, b, c, **more).tolist() == [False, True, True, False]


def f16(number):
    return int(np.float16(number).view(np.uint16))


@pytest.mark.parametrize(("c", "overflows"), [(15.875, False), (16, True)])
def test_sums_that_round_to_infinity_stay_infinite(c, overflows):
    """The second step adds -1024 to what the first one rounds: 65520 becomes infinite."""
    p = mma((16, 8, 16), "f16", "f16")  # two steps on sm_80
    a, b = np.zeros((1, 16, 16), np.uint16), np.zeros((1, 16, 8), np.uint16)
    a[0, :, [0, 8]], b[0, [0, 8]] = f16(1024), f16(1)
    a[0, :, 1], b[0, 1] = f16(63.96875), f16(1008)
    a[0, :, 8] = f16(-1024)
    low = 65520 - 1024 - 63.96875 * 1008
    c = np.full((1, 16, 8), f16(low - 16 + c), np.uint16)
    assert agree(p, "sm_80", a, b, c).tolist() == [overflows]


def test_f16_accumulators_are_aligned_to_a_floor():
    """2**-25 + 2**-47 would round up to 2**-24, were the smaller term not cut off."""
    p = mma((16, 8, 16), "f16", "f16")
    a, b = np.zeros((1, 16, 16), np.uint16), np.zeros((1, 16, 8), np.uint16)
    a[0, :, :2] = f16(2.0**-12), f16(2.0**-24)
    b[0, :2] = np.array([f16(2.0**-13), f16(2.0**-23)])[:, None]
    c = np.zeros((1, 16, 8), np.uint16)
    assert not agree(p, "sm_90a", a, b, c).any()
    assert not matmul(p, "sm_90a", a, b, c).any()


# -- registers -----------------------------------------------------------------------------------

FORMS = (
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
    "mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16",
    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
    "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32",
    "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e5m2.f32",
    "mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32",
    "mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64",
    "wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32",
)


def images(p, maps, warps, seed, regime="near"):
    rng = np.random.default_rng(seed)
    result = []
    for name, lies in zip("abc", (maps.a, maps.b, maps.c), strict=True):
        kind = getattr(p, name)
        shape = (warps, *lies.reshape(-1, 2).max(axis=0) + 1)
        matrices = table.REGIMES[regime](rng, kind, shape)
        if (kind, regime) == ("f64", "near"):
            matrices = rng.standard_normal(shape).view(np.uint64)
        bits = max(table.storage(p, kind)[0], 0)
        word = np.uint64 if kind == "f64" else np.uint32
        result.append(table.packed(lies, matrices, bits, 0, word))
    return result


@pytest.mark.parametrize("text", FORMS)
@pytest.mark.parametrize("regime", ["near", "special"])
def test_registers_of_a_thread_may_be_neighbours(text, regime):
    p, maps = layouts.prepared(isa.instruction(text))
    given = images(p, maps, 7, 1, regime)
    want = fragments(p, "sm_90a", maps, *given)
    turned = fragments(p, "sm_90a", maps, *(np.ascontiguousarray(x.T).T for x in given))
    assert (turned == want).all() and turned.T.flags.c_contiguous
    mixed = fragments(p, "sm_90a", maps, given[0], *(np.ascontiguousarray(x.T).T for x in given[1:]))
    assert (mixed == want).all()
    with plans.without_blocks():
        assert (fragments(p, "sm_90a", maps, *given) == want).all()


@pytest.mark.parametrize("text", FORMS)
def test_many_products_share_operands_and_hand_over_some(text):
    p, maps = layouts.prepared(isa.instruction(text))
    some = [images(p, maps, 5, seed, "raw" if seed == 2 else "near") for seed in range(3)]
    if p.a == "f64":
        some[2][0][0, 0] = 0x7FF0000000000001
    operands = [(some[i][0], some[j][1], some[j][2]) for i in range(3) for j in range(3)]
    active = np.array([True, False, True, True, False])
    lanes = np.repeat(active, 32)
    got = [np.zeros_like(c) for _, _, c in operands]
    uses = [(*given, d) for given, d in zip(operands, got, strict=True)]
    with left_over() as found:
        in_place(p, "sm_90a", maps, uses).run(active)
    assert not found[0][:, ~active].any() and not found[0][0].any()
    assert found[0].any() == (p.a in table.FLOATS or p.a == "f64")
    with plans.without_blocks():
        want = [fragments(p, "sm_90a", maps, *x, active=active) for x in operands]
    assert all((x[:, lanes] == y[:, lanes]).all() for x, y in zip(got, want, strict=True))


def test_operands_at_one_address_are_decoded_once():
    """Also where each operation has a view of its own."""
    p, maps = layouts.prepared(isa.instruction(FORMS[0]))
    (a, b, c), (_, other, _) = (images(p, maps, 2, seed, "near") for seed in range(2))
    uses = in_place(p, "sm_90a", maps, [(a[:], x[:], c, c.copy()) for x in (b, other, b)])
    assert (len(uses.first), len(uses.second)) == (1, 2)


@pytest.mark.parametrize("text", FORMS)
def test_results_may_replace_the_accumulators(text):
    """Also those of products that blocks cannot compute, which are found out at their end."""
    p, maps = layouts.prepared(isa.instruction(text))
    a, b, c = images(p, maps, 6, 4, "near")
    special = images(p, maps, 6, 5, "special")
    half = np.repeat(np.arange(6) % 2 == 0, 32)
    a, b, c = (np.where(half, x, y) for x, y in zip((a, b, c), special, strict=True))
    want = fragments(p, "sm_90a", maps, a, b, c)
    want = fragments(p, "sm_90a", maps, a, b, want)
    uses = in_place(p, "sm_90a", maps, [(a, b, c, c)])
    uses.run(None)
    uses.run(None)
    assert (c == want).all()


def kinds_of(p, maps):
    """By operand: how the words of all sets of blocks lie in memory."""
    plan = plans.prepare(p, model(p, "sm_90a"), maps, 256).blocks
    found = zip("abcd", plan.kept[8:12], strict=True)
    return {name: set(kinds.ravel().tolist()) - {block_code.AGAIN} for name, kinds in found}


@pytest.mark.parametrize("text", FORMS)
def test_words_of_registers_lie_in_runs(text):
    p, maps = layouts.prepared(isa.instruction(text))
    assert kinds_of(p, maps) == dict.fromkeys("abcd", {block_code.RUN})


def test_words_in_shared_memory_are_read_in_fours():
    """Lines along K, and B with the columns as neighbours."""
    p, maps = layouts.prepared(isa.instruction("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16"))
    for packed, of_b in (("ab", block_code.ROWS), ("a", block_code.ACROSS)):
        actual = kinds_of(p, dataclasses.replace(maps, packed=frozenset(packed)))
        assert actual == {"a": {block_code.ROWS}, "b": {of_b}, "c": {block_code.RUN}, "d": {block_code.RUN}}


@pytest.mark.parametrize(
    "text",
    [
        "wmma.mma.sync.aligned.row.col.m8n32k16.f32.f32",
        "wmma.mma.sync.aligned.row.col.m8n32k16.s32.s8.s8.s32",
    ],
)
def test_products_of_8_rows_and_many_columns_are_computed_transposed(text):
    p, maps = layouts.prepared(isa.instruction(text))
    plan = plans.prepare(p, model(p, "sm_90a"), maps, 256).blocks
    assert plan.swapped and kinds_of(p, maps)["d"] == {block_code.RUN}


def test_compiled_code_depends_on_the_classes_that_emit_it():
    keys = [FunctionKey(loop.py_func) for both in blocks.LOOPS for loop in both]
    assert len({key.name() for key in keys}) == len(keys)
    for module in (block_code, block_sums, vectors):
        assert all(module.__file__ in key._reached[0] for key in keys)
