"""2:4 sparse matrices: what is kept, how it is packed, and their products."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import kernels
from tensorcore_dsl.errors import EmulationError, OperandError
from tensorcore_dsl.kernels.choosing.choice import choose_sparse
from tensorcore_dsl.kernels.hopper.config import SMEM_BYTES, HopperConfig, HopperTraits
from tensorcore_dsl.kernels.hopper.sparse_gemm import sparse_gemm_kernel
from tensorcore_dsl.kernels.hopper.sparse_packing import THREADS, pack, unpack
from tensorcore_dsl.kernels.host import sparse_gemm as sparse_module
from tensorcore_dsl.kernels.host import sparsity
from tensorcore_dsl.kernels.problem.problem_shape import grid_size
from tests.assembler import assert_clean
from tests.whole_numbers import BF16, E4M3, E5M2, exact, whole

pytestmark = pytest.mark.thorough

DTYPES = [np.dtype(np.float16), BF16, E4M3, E5M2, np.dtype(np.int8), np.dtype(np.float32)]


def pruned(a: np.ndarray) -> np.ndarray:
    """The oracle: chunk after chunk in plain Python."""
    size = 2 if a.dtype == np.float32 else 4
    kept = np.zeros_like(a)
    for row in range(a.shape[0]):
        for first in range(0, a.shape[1], size):
            chunk = [abs(float(x)) for x in a[row, first : first + size]]
            best = sorted(range(len(chunk)), key=lambda i: (-chunk[i], i))[: size // 2]
            for i in best:
                kept[row, first + i] = a[row, first + i]
    return kept


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


# -- packing --------------------------------------------------------------------------------------


@pytest.mark.quick
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(64, 64), (3, 50), (130, 300), (1, 1)])
def test_the_largest_are_kept(dtype, shape):
    a = whole(*shape, dtype=dtype)
    assert np.array_equal(kernels.decompress(kernels.compress(a, prune=True)), pruned(a))


def test_of_equals_the_first_are_kept():
    a = np.array([[1, -1, 1, 1, 0, 2, -2, 2]], np.float16)
    actual = kernels.compress(a, prune=True)
    assert actual.values[0, :4].tolist() == [1, -1, 2, -2]
    assert actual.metadata[0, 0, 0] & 0xFF == 0b1001_0100


def test_the_ends_of_ranges():
    bytes_ = np.array([[-128, 127, 1, -127]], np.int8)
    assert kernels.compress(bytes_, prune=True).values[0, :2].tolist() == [-128, 127]
    halves = np.array([[1, np.inf, np.nan, 2, -0.0, -0.0, 0, 1]], np.float16)
    actual = kernels.compress(halves, prune=True).values[0]
    assert actual[0] == np.inf and np.isnan(actual[1]) and actual[3] == 1


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sparse_arrays_come_back(dtype):
    a = pruned(whole(70, 136, dtype=dtype))
    actual = kernels.compress(a)
    assert same_bits(kernels.decompress(actual), a)
    assert actual.values.nbytes <= a.nbytes // 2 + 16 * len(a)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(64, 128), (70, 50)])
def test_kernels_pack_as_numpy_does(dtype, shape):
    a = whole(*shape, dtype=dtype)
    wanted = kernels.compress(a, prune=True)
    values, metadata = np.empty_like(wanted.values), np.empty_like(wanted.metadata)
    excess, unpacked = np.full(1, sparsity.NO_CHUNK, np.int32), np.empty_like(a)
    blocks = metadata.shape[0] * metadata.shape[1]
    pack.emulate[blocks, THREADS](a, values, metadata, excess, format=wanted.format)
    unpack.emulate[blocks, THREADS](values, metadata, unpacked, format=wanted.format)
    assert same_bits(values, wanted.values)
    assert same_bits(metadata, wanted.metadata)
    assert same_bits(unpacked, kernels.decompress(wanted))
    chunk = wanted.format.chunk
    lost = (unpacked != a).any(axis=1)
    first = np.argwhere(unpacked != a)[0] if lost.any() else (0, 0)
    assert excess[0] == first[0] * -(-a.shape[1] // chunk) + first[1] // chunk


def test_torch_packs_with_kernels():
    torch = pytest.importorskip("torch")
    a = whole(70, 72, dtype=np.float16)
    with tc.target("cpu", "sm_90a"):
        actual = kernels.compress(torch.from_numpy(a), prune=True)
        assert np.array_equal(kernels.decompress(actual).numpy(), pruned(a))
        with pytest.raises(tc.ArgumentError, match="a is not 2:4 sparse"):
            kernels.compress(torch.ones((2, 8)).to(torch.bfloat16))
    assert same_bits(actual.metadata.numpy(), kernels.compress(a, prune=True).metadata)


@pytest.mark.quick
def test_refuses_dense_arrays():
    a = np.zeros((8, 20), np.float16)
    a[5, 12:15] = 1
    with pytest.raises(tc.ArgumentError) as error:
        kernels.compress(a)
    assert "a is not 2:4 sparse: of a[5, 12:16] more than 2 differ from zero" in str(error.value)
    assert "prune=True" in str(error.value)
    with pytest.raises(tc.ArgumentError, match=r"1:2 sparse: of a\[0, 2:4\] more than 1 differs"):
        kernels.compress(np.array([[0, 1, 1, 1]], np.float32))


@pytest.mark.quick
def test_refuses_arrays_that_cannot_be_packed():
    with pytest.raises(tc.ArgumentError, match="sparse matrices hold f16, bf16, .*; f64 was given"):
        kernels.compress(np.ones((4, 4)))
    with pytest.raises(tc.ArgumentError, match=r"a has shape \(4,\); a matrix is needed"):
        kernels.compress(np.ones(4, np.float16))


def test_parts_must_fit():
    good = kernels.compress(whole(64, 64), prune=True)
    assert repr(good) == "<a 2:4 sparse 64x64 bf16 matrix>"
    with pytest.raises(tc.ArgumentError, match=r"the values have shape \(64, 32\); .* \(64, 64\)"):
        replace(good, shape=(64, 128))
    with pytest.raises(tc.ArgumentError, match="the metadata have shape"):
        replace(good, metadata=good.metadata[:, :, :64])
    with pytest.raises(tc.ArgumentError, match="the metadata hold u32; they must be s32"):
        replace(good, metadata=good.metadata.view(np.uint32))


# -- products -------------------------------------------------------------------------------------


def product(a: np.ndarray, b: np.ndarray, *more: Any, **options: Any) -> Any:
    with tc.target("cpu", "sm_90a"):
        return kernels.gemm(kernels.compress(a, prune=True), b, *more, **options)


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(64, 32, 128), (200, 143, 336)])
def test_sparse_products_are_exact(dtype, shape):
    M, N, K = shape
    a, b = whole(M, K, dtype=dtype), whole(K, N, dtype=dtype, order="F")
    precision = "tf32" if dtype == np.float32 else None
    out_dtype = tc.s32 if dtype == np.int8 else tc.f32
    actual = product(a, b, out_dtype=out_dtype, precision=precision)
    assert np.array_equal(actual, exact(pruned(a), b))


def test_f32_is_multiplied_as_tf32_only_on_request():
    a, b = whole(64, 32, dtype=np.float32), whole(32, 32, dtype=np.float32, order="F")
    with pytest.raises(tc.ArgumentError, match="sparse f32 is multiplied as tf32 only"):
        product(a, b)


def test_rows_of_b():
    a, b = whole(70, 100), whole(100, 72)
    assert np.array_equal(product(a, b, out_dtype=tc.f32), exact(pruned(a), b))


def test_rows_of_b_in_boxes_wider_than_the_tile():
    a, b = whole(70, 100), whole(100, 96)
    config = HopperConfig(BM=128, BN=80, stages=2)
    assert np.array_equal(product(a, b, out_dtype=tc.f32, config=config), exact(pruned(a), b))


CONFIGS = {
    "narrow": HopperConfig(BM=64, BN=32, stages=2),
    "cluster": HopperConfig(BM=128, BN=64, stages=2, cluster_m=2),
    "not of two blocks": HopperConfig(BM=192, BN=64, stages=2),
    "across": HopperConfig(BM=128, BN=64, stages=2, cluster_n=2),
    "pingpong": HopperConfig(BM=64, BN=64, stages=3, pingpong=True),
}


@pytest.mark.tensorcore_check
@pytest.mark.parametrize("name", CONFIGS)
def test_tiles_of_all_kinds(name):
    """Clusters reach below the last row, where no metadata are, and blocks take several tiles."""
    config = CONFIGS[name]
    a, b = whole(300, 192, dtype=E4M3), whole(192, 144, dtype=E4M3, order="F")
    d, sparse = np.empty((300, 144), np.float32), kernels.compress(a, prune=True)
    grid = min(2 * config.cluster_size, grid_size(config, *d.shape))
    sparse_gemm_kernel.emulator("sm_90a")[grid, config.threads](
        sparse.values,
        sparse.metadata,
        b,
        d,
        d,
        1.0,
        0.0,
        format=sparse.format,
        config=config,
        traits=HopperTraits(),
    )
    assert np.array_equal(d, exact(pruned(a), b))


def test_alpha_beta_c_finish_and_out():
    a, b, c = (
        whole(40, 64, dtype=np.float16),
        whole(64, 48, dtype=np.float16),
        whole(40, 48, dtype=np.float32),
    )
    out = np.empty((40, 48), np.float32)
    actual = product(a, b, c, alpha=2, beta=-1, out=out, epilogue=lambda v, row, col: v + 0.5)
    assert actual is out
    assert np.array_equal(out, 2 * exact(pruned(a), b) - c + 0.5)


def test_decisions_are_kept(monkeypatch):
    """Operands alike, results of their own; another wish is another decision."""
    made = []
    prepare = sparse_module._prepare
    monkeypatch.setattr(sparse_module, "_prepare", lambda *a: made.append(a) or prepare(*a))
    for alpha in (3, 3, 4):
        a, b = whole(40, 72), whole(72, 24, order="F")
        actual = product(a, b, alpha=alpha, out_dtype=tc.f32)
        assert np.array_equal(actual, alpha * exact(pruned(a), b))
    assert len(made) == 2


HALF = np.zeros((64, 64), np.float16)
BAD: list[Any] = [
    (dict(b=np.zeros((64, 64), BF16)), "a holds f16 but b holds bf16"),
    (dict(b=np.zeros((72, 64), np.float16)), "a's columns must be as many as b's rows"),
    (dict(b=np.zeros(64, np.float16)), "b has shape (64,); 2 axes are needed"),
    (dict(c=np.zeros((64, 8), np.float16)), "c has shape (64, 8)"),
    (dict(beta=1), "beta is 1, but there is no C"),
    (dict(accumulate=tc.f16), "sparse products take neither accumulate (f16 was given)"),
    (dict(family="sm80"), "another family than sm90 (sm80)"),
    (dict(out_dtype=tc.s32), "a product of f16 gives f16 or f32, not s32"),
    (dict(config=HopperConfig(BM=64, BN=64, split_k=2)), "the kernel for sparse products takes no split_k=2"),
]


@pytest.mark.quick
@pytest.mark.parametrize(("changes", "message"), BAD, ids=[m for _, m in BAD])
def test_wrong_operands_are_refused(changes, message):
    with pytest.raises(tc.ArgumentError) as error, tc.target("cpu", "sm_90a"):
        kernels.gemm(**{"a": kernels.compress(HALF), "b": HALF, **changes})
    assert message in str(error.value)


def test_metadata_that_mean_nothing():
    good = kernels.compress(HALF)
    bad = replace(good, metadata=np.full_like(good.metadata, 0x55555555))
    with pytest.raises(EmulationError, match="metadata 0b0101 mean nothing"), tc.target("cpu", "sm_90a"):
        kernels.gemm(bad, HALF)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_kernel_neither_spills_nor_serialises(dtype):
    a, b = kernels.compress(np.zeros((512, 512), dtype)), np.zeros((512, 512), dtype, order="F")
    d = np.zeros((512, 512), np.int32 if dtype == np.int8 else np.float32)
    scalars = (1, 0) if dtype == np.int8 else (1.0, 0.0)
    config = choose_sparse(8192, 8192, 8192, a.format)
    assert (config.BM, config.BN) == (128, 256) and config.stages >= 4
    resources = sparse_gemm_kernel.resources(
        a.values,
        a.metadata,
        b,
        d,
        d,
        *scalars,
        arch="sm_90a",
        format=a.format,
        config=config,
        traits=HopperTraits(),
    )
    assert_clean(resources)
    assert resources.spills is False
    assert resources.shared_bytes <= SMEM_BYTES


# -- the language ---------------------------------------------------------------------------------


@tc.kernel
def step(instr: tc.Const = None, words: tc.Const = 0):
    tc.launch_bounds(128)
    a = tc.shared((64, 32), tc.f16, swizzle=64)
    b = tc.shared((64, 64), tc.f16, swizzle=128)
    _ = tc.wgmma_async(instr, instr.d.zeros(), a, b, metadata=[tc.u32(0x44444444)] * words)


def test_words_of_metadata_are_counted():
    sparse = tc.wgmma.sp.m64n64k32(tc.f16, tc.f16, tc.f32)
    with pytest.raises(OperandError, match="takes 1 words of metadata for 2 steps of K; 0 were"):
        step.ir(instr=sparse, arch="sm_90a")
    whole = tc.wgmma.m64n64k16(tc.f16, tc.f16, tc.f32)
    with pytest.raises(OperandError, match="takes 0 words of metadata for 4 steps of K; 1 was"):
        step.ir(instr=whole, words=1, arch="sm_90a")


@tc.kernel
def views(instr: tc.Const, of_a: tc.Const, of_b: tc.Const):
    tc.launch_bounds(128)
    a = tc.shared((64, 64), tc.f16, swizzle=128)
    b = tc.shared((64, 64), tc.f16, swizzle=128)
    meta = [tc.u32(0x44444444)] * (".sp." in instr.mnemonic)
    _ = tc.wgmma_async(instr, instr.d.zeros(), a[:, :of_a], b[:, :of_b], metadata=meta)


@pytest.mark.parametrize(
    ("instr", "of_a", "of_b", "words"),
    [
        (tc.wgmma.m64n64k16, 8, 8, "takes 16 of K at a step, .* b has 8 of K .shape .64, 8"),
        (tc.wgmma.m64n64k16, 24, 16, "views of whole steps; a has 24 of K"),
        (tc.wgmma.m64n64k16, 32, 16, "a has 2 steps of K, b has 1"),
        (tc.wgmma.sp.m64n64k32, 16, 16, "takes 32 of K at a step, .* b has 16 of K"),
        (tc.wgmma.sp.m64n64k32, 32, 32, "a has 2 steps of K, b has 1"),
    ],
)
def test_views_have_whole_steps(instr, of_a, of_b, words):
    """A view that is too short would be no product at all."""
    with pytest.raises(OperandError, match=words):
        views.ir(instr=instr(tc.f16, tc.f16, tc.f32), of_a=of_a, of_b=of_b, arch="sm_90a")


def test_selectors_go_through_a_word():
    sparse = tc.wgmma.sp.m64n64k32(tc.f16, tc.f16, tc.f32)
    text = step.ptx(instr=sparse, words=1, arch="sm_90a")
    products = [line for line in text.splitlines() if "wgmma.mma_async.sp" in line]
    assert len(products) == 2
    tails = [line.split("}, ")[1].split(", ") for line in products]
    assert [tail[3] for tail in tails] == ["0", "1"]
    assert tails[0][2] == tails[1][2]


@tc.kernel
def hurried(out: tc.Array, turns: tc.s32, wait: tc.Const = True):
    """Changes metadata behind a product's back, unless it waits."""
    tc.launch_bounds(128)
    instr = tc.wgmma.sp.m64n64k32(tc.f16, tc.f16, tc.f32)
    a, b = tc.shared((64, 32), tc.f16, swizzle=64), tc.shared((64, 64), tc.f16, swizzle=128)
    t = tc.threadIdx.x
    for i in tc.static_range(16):
        a[t // 2, t % 2 * 16 + i] = tc.f16(1)
    for i in tc.static_range(32):
        b[t // 2, t % 2 * 32 + i] = tc.f16(1)
    tc.fence_proxy_async()
    tc.barrier()
    acc, word = instr.d.zeros(), tc.u32(0x44444444)
    for _ in range(turns):
        tc.wgmma_fence()
        acc = tc.wgmma_async(instr, acc, a, b, metadata=[word])
        tc.wgmma_commit()
        if wait:
            tc.wgmma_wait(0)
        word = word ^ 0x88888888
    tc.wgmma_wait(0)
    out[t] = acc[0]


def test_metadata_belong_to_the_product_until_it_is_over():
    out = np.empty(128, np.float32)
    hurried.emulator("sm_90a")[1, 128](out, 2)
    assert (out == 64).all()
    with pytest.raises(EmulationError, match="uses registers that the wgmma at .* still owns"):
        hurried.emulator("sm_90a")[1, 128](out, 2, wait=False)


# -- drawings ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "instr",
    [
        tc.mma.sp.m16n8k16(tc.f16, tc.f16, tc.f32),
        tc.mma.sp.m16n8k32(tc.bf16, tc.bf16, tc.f32),
        tc.mma.sp.m16n8k32(tc.s8, tc.s8, tc.s32),
        tc.mma.sp.m16n8k64(tc.s8, tc.s8, tc.s32),
    ],
    ids=str,
)
def test_drawn_metadata_are_what_products_read(instr):
    """One nibble of each thread in turn selects other columns: the drawn row of D alone changes."""
    drawn = instr.e.drawing
    bits = instr.a.dtype.bits
    one = {tc.f16: 0x3C003C00, tc.bf16: 0x3F803F80, tc.s8: 0x01010101}[instr.a.dtype]
    nibbles = instr.shape[2] // 4  # of a row
    a = np.full((32, instr.a.registers), one, np.uint32)
    for selector in range(16 // nibbles):
        for thread, slot in np.random.default_rng(bits).integers(0, (32, 8), (6, 2)).tolist():
            row, column = drawn.coords[thread, slot]
            read, nibble = divmod(int(column), nibbles)
            b = np.zeros((32, instr.b.layout.slots), np.uint32)  # the third row of this nibble's four
            b[(instr.b.layout.coords == (4 * nibble + 2, 5)).all(-1)] = one & (1 << bits) - 1
            per = 32 // bits
            words = sum(b[:, i::per] << np.uint32(bits * i) for i in range(per))
            e = np.full(32, 0x44444444, np.uint32)  # columns 0 and 1 of each four
            e[thread] ^= np.uint32(0xA << 4 * slot)  # 2 and 3
            d = tc.emulate(instr, a, words, np.zeros((32, 4), np.uint32), e, selector, arch="sm_90a")
            changed = {tuple(place) for place in instr.d.layout.coords[d != 0].tolist()}
            assert changed == ({(int(row), 5)} if read == selector else set())


@pytest.mark.parametrize(
    "instr",
    [
        tc.wgmma.sp.m64n8k32(tc.f16, tc.f16, tc.f32, source="registers"),
        tc.wgmma.sp.m64n8k64(tc.s8, tc.s8, tc.s32, source="registers"),
    ],
    ids=str,
)
def test_drawn_metadata_are_what_products_of_warpgroups_read(instr):
    """B has one row of ones, the third of this nibble's four: the drawn row of D alone changes."""
    drawn, bits, k = instr.operand("meta").drawing, instr.a.dtype.bits, instr.shape[2]
    word, one = {16: (0x3C003C00, np.float16(1)), 8: (0x01010101, np.int8(1))}[bits]
    a = np.full((128, instr.a.registers), word, np.uint32)
    for selector in instr.operand("selector").values:
        for thread, slot in np.random.default_rng(k).integers(0, (128, 8), (12, 2)).tolist():
            row, column = drawn.coords[thread, slot]
            read, nibble = divmod(int(column), k // 4)
            b = np.zeros((8, k), one.dtype)
            b[5, 4 * nibble + 2] = one
            cores = b.reshape(8, -1, 16 // one.nbytes).swapaxes(0, 1)  # K-major, not swizzled
            shared = np.ascontiguousarray(cores).view(np.uint8).ravel()
            meta = np.full(128, 0x44444444, np.uint32)  # columns 0 and 1 of each four
            meta[thread] ^= np.uint32(0xA << 4 * slot)  # 2 and 3
            signs = (1, 1, 0) if bits == 16 else ()
            c = np.zeros((128, 4), np.uint32)
            operands = (c, a, 128 >> 4 << 16, meta, selector, True, *signs)
            d = tc.emulate(instr, *operands, arch="sm_90a", shared=shared)
            changed = {tuple(place) for place in instr.d.layout.coords[d != 0].tolist()}
            assert changed == ({(int(row), 5)} if read == selector else set())


def test_drawn_scales_are_what_products_read():
    instr = tc.mma.block_scale.m16n8k32(tc.e4m3, tc.e4m3, tc.f32)
    a, b = (np.full((32, o.registers), 0x38383838, np.uint32) for o in (instr.a, instr.b))
    plain = np.full(32, 0x7F7F7F7F, np.uint32)
    for name, sides in (("scale_a", 2), ("scale_b", 4)):
        drawn, axis = instr.operand(name).drawing, 0 if name == "scale_a" else 1
        for thread in range(32):
            for byte in range(4):
                scales = plain.copy()
                scales[thread] += np.uint32(1 << 8 * byte)
                place = drawn.coords[thread, byte]
                own, other = divmod(int(place[1 - axis]), 4)
                assert other == byte and own < sides
                operands = [plain, byte, 0, plain, byte, 0]
                operands[3 * axis : 3 * axis + 3] = [scales, byte, own]
                d = tc.emulate(instr, a, b, np.zeros((32, 4), np.uint32), *operands, arch="sm_120a")
                lines = instr.d.layout.coords[d.view(np.float32) == 64][:, axis]
                assert set(lines.tolist()) == {int(place[axis])}


def test_metadata_and_scales_are_described_and_plotted(tmp_path):
    pytest.importorskip("matplotlib")
    from tensorcore_dsl.isa.description import describe
    from tensorcore_dsl.viz.plot import plot_instruction

    instr = tc.mma.sp.block_scale.m16n8k64(tc.e4m3, tc.e4m3, tc.f32)
    text = describe(instr)
    assert "nibble i of selector f in column 16 f + i" in text
    assert (
        "byte j of thread-id t in column 4 t + j" in text and "byte j of thread-id t in row 4 t + j" in text
    )
    names = {path.name.split(".")[-2] for path in plot_instruction(instr, tmp_path)}
    assert {"e", "scale_a", "scale_b"} <= names
    assert instr.scale_a.plot().axes[0].texts[1].get_text() == "T0:e1"


def test_a_plan_tells_the_order_of_sums():
    a, b = np.ones((128, 256), np.float16), np.ones((256, 64), np.float16)
    with tc.target("cpu", "sm_90a"):
        plan = kernels.plan(kernels.compress(a, prune=True), b, np.ones((128, 64), np.float16), None, beta=2)
    assert plan.kernel.__name__ == "sparse_gemm_kernel" and plan.traits.has_c and plan.grid == 2
    assert kernels.explain_bits(plan).splitlines() == [
        "products:   sparse f16 by f16, 32 of K in an instruction",
        "sums:       16 products and the sum so far, each cut 25 bits below the largest one, are added, and the "
        "result is cut to 24 bits",
        "order of K: upwards",
        "epilogue:   fma(beta, C, sum), then rounded to f16",
    ]
    empty = kernels.compress(np.ones((0, 256), np.float16))
    assert kernels.plan(empty, b, None, None).kernel is None
    no_terms = kernels.compress(np.ones((128, 0), np.float16)), np.ones((0, 64), np.float16)
    with tc.target("cpu", "sm_90a"):
        assert kernels.plan(*no_terms, None, None).kernel is not None  # it adds zeros, as `gemm` does
    with pytest.raises(tc.ArgumentError, match="only dense products have `row_reductions`"):
        kernels.plan(empty, b, None, None, row_reductions=(kernels.RowReduction("sum", None),))
