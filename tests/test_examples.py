"""The programs of examples/: results of odd shapes in emulation with all checks, and as users run them."""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import tensorcore_dsl as tc
from examples import convolution, flash_attention, fused_norm, histogram, hopper_attention, reduction, w4a16
from tests.assembler import assert_clean
from tests.running import execute_text

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parent.parent

PROGRAMS = {
    "convolution": ["--size", "7", "--channels", "72", "--filters", "24", "--dtype", "f16"],
    "flash_attention": ["--queries", "70", "--keys", "90", "--dim", "128", "--dtype", "bf16", "--causal"],
    "fused_norm": ["--rows", "3", "--columns", "1500", "--dtype", "bf16"],
    "histogram": ["--size", "5003"],
    "hopper_attention": ["--queries", "70", "--keys", "150", "--causal"],
    "numba_matmul": ["--m", "128", "--n", "256", "--k", "64"],
    "reduction": ["--size", "5003"],
    "tensor_parallel": ["--emulate", "2", "--rows", "128", "--features", "128", "--hidden", "128"],
    "w4a16": ["--m", "3", "--n", "48", "--k", "384"],
}  # fmt: skip


@pytest.mark.quick
def test_every_example_is_run():
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == set(PROGRAMS)


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_a_user_runs_it(name, tmp_path):
    """With the package, but without this folder, on the path."""
    for package, folder in (("tensorcore_dsl", "tensorcore_dsl"), ("kernels", "kernels")):
        (tmp_path / package).symlink_to(ROOT / folder)
    done = subprocess.run(
        [sys.executable, f"examples/{name}.py", *PROGRAMS[name]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"TENSORCORE_DSL_TARGET": "cpu", "PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    starts = ("ran on the CPU, emulated; largest error ",)
    if name == "numba_matmul":  # not emulated; test_example_numba.py runs its body
        starts = "compiled for sm_90a", "ran on the GPU; largest error "
    assert done.stdout.startswith(starts)


# -- attention -------------------------------------------------------------------------------------


def heads(queries, keys, dim=64, dtype=np.float16, batch=1, count=1):
    draw = np.random.default_rng(queries + keys)
    return [draw.standard_normal((batch, count, n, dim)).astype(dtype) for n in (queries, keys, keys)]


ATTENTION = {"mma.sync": flash_attention, "wgmma": hopper_attention}


def attend(*qkv, module=flash_attention, **options):
    kernel = module.attention_kernel.emulator("sm_90a", checks=True)
    return module.attention(*qkv, kernel=kernel, **options)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "queries, keys, dim, dtype, causal",
    [
        (64, 128, 64, np.float16, False),
        (1, 1, 64, np.float16, True),
        (65, 63, 64, np.float16, False),
        (3, 130, 128, np.float16, True),
        (100, 100, 64, tc.bf16.numpy, True),
        (5, 200, 128, tc.bf16.numpy, False),
        (150, 400, 64, np.float16, True),
    ],
)
@pytest.mark.parametrize("module", ATTENTION.values(), ids=ATTENTION)
def test_attention(module, queries, keys, dim, dtype, causal):
    """Within the bound that the example derives; races, bounds and uninitialised memory are checked."""
    qkv = heads(queries, keys, dim, dtype)
    exact, bound = flash_attention.reference(*qkv, causal)
    o = attend(*qkv, causal=causal, module=module)
    assert o.shape == qkv[0].shape and o.dtype == dtype
    assert (abs(o.astype(np.float64) - exact) <= bound).all()


@pytest.mark.parametrize("module", ATTENTION.values(), ids=ATTENTION)
def test_attention_of_several_heads_is_that_of_each(module):
    q, k, v = heads(20, 70, batch=2, count=3)
    o = attend(q, k, v, module=module)
    for b, h in np.ndindex(2, 3):
        part = slice(b, b + 1), slice(h, h + 1)
        assert np.array_equal(o[part], attend(q[part], k[part], v[part], module=module))


@pytest.mark.parametrize("causal", [False, True])
def test_attention_of_equal_scores_is_the_exact_mean(causal):
    """Queries of zero weigh all visible keys alike: a mean of 2ⁿ small integers is exact."""
    q, k, v = heads(64, 64)
    q[:], v[:] = 0, np.arange(64)[:, None] % 8 * 2
    o = attend(q, k, v, causal=causal)
    counts = np.arange(1, 65)[:, None] if causal else np.full((64, 1), 64)
    exact = (np.cumsum(v[0, 0], 0, np.float64) if causal else v[0, 0].sum(0, np.float64)) / counts
    right = np.log2(counts[:, 0]) % 1 == 0
    assert np.array_equal(o[0, 0][right], exact[right].astype(np.float16))


@pytest.mark.parametrize("module", ATTENTION.values(), ids=ATTENTION)
def test_attention_shrinks_what_smaller_scores_have_summed(module):
    """Scores that grow from tile to tile: all weight moves to the last key."""
    q, k, v = heads(2, 150)
    q[:], k[:] = 1, np.arange(150)[:, None] * 8
    assert np.array_equal(attend(q, k, v, module=module)[0, 0, 0], v[0, 0, -1])


@pytest.mark.parametrize("module", ATTENTION.values(), ids=ATTENTION)
def test_attention_ignores_huge_values_that_are_masked(module):
    """Query 0 sees key 0 alone; a weight of zero times a huge value of another key stays out."""
    q, k, v = heads(40, 40)
    v[..., 1:, :] = 60000
    assert np.array_equal(attend(q, k, v, causal=True, module=module)[0, 0, 0], v[0, 0, 0])


@pytest.mark.quick
@pytest.mark.parametrize(
    "change, message",
    [
        (lambda q, k, v: (q[0], k, v), r"batch, heads, length, D"),
        (lambda q, k, v: (q, k, v[..., :32]), r"of one shape"),
        (lambda q, k, v: (q[..., :32], k[..., :32], v[..., :32]), r"D be 64 or 128"),
        (lambda q, k, v: (q, k, v.astype(np.float32)), r"all float16 or all bfloat16"),
        (lambda q, k, v: (q, k[:, :, :3], v[:, :, :3]), r"every query must see a key"),
        (lambda q, k, v: (q, k[:, :, :0], v[:, :, :0]), r"every query must see a key"),
    ],
)
def test_attention_refuses(change, message):
    with pytest.raises(tc.ArgumentError, match=message):
        attend(*change(*heads(4, 4)), causal=True)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("dim", [64, 128])
def test_attention_assembles_without_spills(dim, arch):
    pytest.importorskip("cuda.core", reason="needs the assembler")
    q, k, v = heads(64, 64, dim)
    used = flash_attention.attention_kernel.resources(q, k, v, q, 1.0, dim=dim, causal=True, arch=arch)
    assert_clean(used)
    assert used.shared_bytes == 5 * 64 * dim * 2


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dim", [64, 128])
def test_attention_on_hopper_assembles_without_spills(dim, causal):
    """And without wgmma that wait for each other."""
    pytest.importorskip("cuda.core", reason="needs the assembler")
    q, k, v = heads(64, 64, dim)
    kernel = hopper_attention.attention_kernel
    used = kernel.resources(q, k, v, q, 1.0, dim=dim, causal=causal, arch="sm_90a")
    assert_clean(used)


# -- norm ------------------------------------------------------------------------------------------


def normed(*arrays, **options):
    return fused_norm.fused_norm(
        *arrays, kernel=fused_norm.norm_kernel.emulator("sm_90a", checks=True), **options
    )


def rows_of(rows, columns, dtype=np.float16):
    draw = np.random.default_rng(columns)
    return [
        draw.standard_normal(shape).astype(dtype) for shape in ((rows, columns), (rows, columns), columns)
    ]


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", [np.float16, tc.bf16.numpy, np.float32])
@pytest.mark.parametrize("rows, columns", [(1, 1), (2, 7), (3, 2056), (2, 514), (1, 3000)])
def test_norm(rows, columns, dtype):
    """The bits of s, and y within the bound that the example derives, for vectors of all widths."""
    arrays = rows_of(rows, columns, dtype)
    exact, s, bound = fused_norm.reference(*arrays)
    y, added = normed(*arrays)
    assert y.dtype == added.dtype == dtype and np.array_equal(added, s)
    assert (abs(y.astype(np.float64) - exact) <= bound).all()


def test_norm_of_powers_of_two_is_exact():
    """A row of ±4 has a root mean square of 4."""
    x = np.full((2, 300), 3, np.float32) * np.where(np.arange(300) % 3, 1, -1).astype(np.float32)
    weight = np.arange(300, dtype=np.float32)
    y, s = normed(x, x / 3, weight, epsilon=0.0)
    assert np.array_equal(s, np.sign(x) * 4) and np.array_equal(y, np.sign(x) * weight)


def test_norm_of_zeros_and_of_no_rows():
    """Epsilon keeps a row of zeros finite."""
    zeros = np.zeros((1, 40), np.float16)
    assert np.array_equal(normed(zeros, zeros, zeros[0] + 1)[0], zeros)
    assert normed(zeros[:0], zeros[:0], zeros[0])[0].shape == (0, 40)


def test_norm_of_arrays_at_odd_addresses_and_with_steps():
    x, residual, weight = rows_of(3, 16)
    shifted = np.empty(3 * 16 + 1, np.float16)[1:].reshape(3, 16)
    shifted[:] = x
    wide = np.repeat(residual, 2, axis=1)[:, ::2]
    for got, want in zip(normed(shifted, wide, weight), normed(x, residual, weight)):
        assert np.array_equal(got, want)


@pytest.mark.quick
@pytest.mark.parametrize(
    "change, message",
    [
        (lambda x, r, w: (x[0], r, w), r"\(rows, columns\)"),
        (lambda x, r, w: (x, r[:1], w), r"\(rows, columns\)"),
        (lambda x, r, w: (x, r, w[:3]), r"weight is \(columns,\)"),
        (lambda x, r, w: (x, r, w.astype(np.float32)), r"of one type"),
        (lambda x, r, w: (x.astype(float), r.astype(float), w.astype(float)), r"of one type"),
    ],
)
def test_norm_refuses(change, message):
    with pytest.raises(tc.ArgumentError, match=message):
        normed(*change(*rows_of(2, 8)))


# -- histogram -------------------------------------------------------------------------------------


def counted(x):
    return histogram.histogram(x, kernel=histogram.histogram_kernel.emulator("sm_90a", checks=True))


@pytest.mark.quick(1)
@pytest.mark.parametrize("size", [1, 15, 16, 17, 4096, 10003])
def test_histogram(size):
    """Several blocks, and sizes around those of vectors and blocks."""
    x = np.random.default_rng(size).integers(0, 256, size).astype(np.uint8)
    counts = counted(x)
    assert counts.dtype == np.uint32 and np.array_equal(counts, np.bincount(x, minlength=256))


def test_histogram_of_equal_elements():
    """Every atomic of all blocks meets one counter."""
    counts = counted(np.full(9000, 255, np.uint8))
    assert counts[255] == 9000 and counts.sum() == 9000


def test_histogram_of_more_elements_than_the_grid_has_threads(monkeypatch):
    monkeypatch.setattr(histogram, "BLOCKS", 2)
    x = np.random.default_rng(0).integers(0, 9, 40001).astype(np.uint8)
    assert np.array_equal(counted(x), np.bincount(x, minlength=256))


def test_histogram_of_matrices_steps_odd_addresses_and_nothing():
    x = np.random.default_rng(0).integers(0, 256, (30, 40)).astype(np.uint8)
    for part in (x, x[:, ::3], x.reshape(-1)[1:], x.T, x[:0]):
        assert np.array_equal(counted(part), np.bincount(part.reshape(-1), minlength=256))


@pytest.mark.quick
def test_histogram_refuses_other_types():
    with pytest.raises(tc.ArgumentError, match="must be of uint8"):
        counted(np.zeros(4, np.int64))


# -- sum -------------------------------------------------------------------------------------------


def summed(x):
    return reduction.array_sum(x, kernel=reduction.sum_kernel.emulator("sm_90a", checks=True))


@pytest.mark.quick(1)
@pytest.mark.parametrize("size", [0, 1, 3, 4, 5, 1024, 1025, 10007])
def test_sum(size):
    """Within the bound that the example derives; whole numbers, whose sums f32 holds, exactly."""
    draw = np.random.default_rng(size)
    x = draw.standard_normal(size).astype(np.float32)
    exact, bound = reduction.reference(x)
    assert abs(float(summed(x)) - exact) <= bound
    whole = draw.integers(-99, 100, size)
    assert summed(whole.astype(np.float32)) == whole.sum()


def test_sum_of_more_elements_than_the_grid_has_threads(monkeypatch):
    """And of one block: any number of blocks gives an exact sum of whole numbers."""
    whole = np.random.default_rng(0).integers(-99, 100, (5, 1003))
    for blocks in (1, 2):
        monkeypatch.setattr(reduction, "BLOCKS", blocks)
        assert summed(whole.astype(np.float32)) == whole.sum()


def test_sum_of_steps_and_odd_addresses():
    whole = np.arange(1, 300)
    for part in (slice(None, None, 3), slice(1, None), slice(None, None, -1)):
        assert summed(whole.astype(np.float32)[part]) == whole[part].sum()


def test_sum_has_the_same_bits_in_every_order_of_threads():
    x = np.random.default_rng(0).standard_normal(3001).astype(np.float32)
    orders = [reduction.sum_kernel.emulator("sm_90a", order=seed) for seed in range(4)]
    assert {reduction.array_sum(x, kernel=kernel).tobytes() for kernel in orders} == {summed(x).tobytes()}


@pytest.mark.quick
def test_sum_refuses_other_types():
    with pytest.raises(tc.ArgumentError, match="must be of float32"):
        summed(np.zeros(4))


# -- int4 weights ----------------------------------------------------------------------------------


def int4(m, n, k, dtype=np.float16):
    draw = np.random.default_rng(m + n + k)
    x = draw.standard_normal((m, k)).astype(dtype)
    q = draw.integers(0, 16, (n, k)).astype(np.uint8)
    return x, q, (draw.random((k // w4a16.GROUP, n)) + 0.5).astype(dtype)


def multiplied(x, q, scales):
    return w4a16.w4a16(x, w4a16.pack(q), scales, kernel=w4a16.w4a16_kernel.emulator("sm_90a", checks=True))


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "m, n, k, dtype",
    [
        (1, 16, 128, np.float16),
        (8, 48, 256, tc.bf16.numpy),
        (9, 32, 1280, np.float16),
        (35, 16, 384, tc.bf16.numpy),
        (2, 6400, 128, np.float16),
    ],
)
def test_int4_weights(m, n, k, dtype):
    """Within the bound that the example derives: more groups than warps and fewer, tiles of all sizes."""
    arrays = int4(m, n, k, dtype)
    exact, bound = w4a16.reference(*arrays)
    d = multiplied(*arrays)
    assert d.shape == (m, n) and d.dtype == dtype
    assert (abs(d.astype(np.float64) - exact) <= bound).all()


@pytest.mark.parametrize("dtype", [np.float16, tc.bf16.numpy])
def test_int4_weights_of_every_place_and_number(dtype):
    """The first 128 rows of the identity give the weights, which are exact."""
    _, q, scales = int4(1, 32, 128, dtype)
    scales[:] = 0.5
    assert set(q.ravel()) == set(range(16))
    d = multiplied(np.eye(128, dtype=dtype), q, scales)
    assert np.array_equal(d.astype(np.float32), (q.T.astype(np.float32) - 8) / 2)


def test_tiles_of_int4_weights_divide_the_rows():
    for m, n in [(1, 16), (8, 8192), (16, 4096), (17, 28672), (64, 112 * 16), (300, 96)]:
        tiles = w4a16.tiles_of(m, n)
        assert n % tiles["rows"] == 0 and tiles["tokens"] == (8 if m <= 8 else 16)
    assert [w4a16.tiles_of(1, n)["rows"] for n in (1024, 4096, 8192)] == [16, 16, 32]


def test_quantised_weights_are_near():
    w = np.random.default_rng(0).standard_normal((4, 256))
    w[1] = 0
    q, scales = w4a16.quantised(w)
    steps = np.repeat(scales, w4a16.GROUP, axis=0).T
    assert q.dtype == np.uint8 and (abs((q.astype(float) - 8) * steps - w) <= steps / 2 + 1e-12).all()


@pytest.mark.quick
@pytest.mark.parametrize(
    "change, message",
    [
        (lambda x, p, s: (x[0], p, s), r"x is \(M, K\)"),
        (lambda x, p, s: (x, p, s[:1]), r"x is \(M, K\)"),
        (lambda x, p, s: (x, p[:1], s), r"what pack gives for q \(32, 256\)"),
        (lambda x, p, s: (x, p[:1], s[:, :20]), r"a multiple of 16 rows"),
        (lambda x, p, s: (x, p, s.astype(np.float32)), r"both float16 or both bfloat16"),
    ],
)
def test_int4_weights_refuse(change, message):
    x, q, scales = int4(2, 32, 256)
    with pytest.raises(tc.ArgumentError, match=message):
        w4a16.w4a16(*change(x, w4a16.pack(q), scales))


@pytest.mark.parametrize(
    "q, message",
    [
        (np.zeros((15, 128), np.uint8), "N a multiple of 16 and K of 128"),
        (np.zeros((16, 64), np.uint8), "N a multiple of 16 and K of 128"),
        (np.full((16, 128), 16, np.uint8), "from 0 to 15"),
        (np.full((16, 128), -1), "from 0 to 15"),
    ],
)
def test_numbers_that_cannot_be_packed(q, message):
    with pytest.raises(tc.ArgumentError, match=message):
        w4a16.pack(q)


@pytest.mark.parametrize("tokens", w4a16.TOKENS)
@pytest.mark.parametrize("rows", w4a16.ROWS)
def test_int4_weights_assemble_without_spills(rows, tokens):
    pytest.importorskip("cuda.core", reason="needs the assembler")
    x, q, scales = int4(tokens, rows, 256)
    arrays = x, w4a16.pack(q), scales, np.zeros((tokens, rows), x.dtype)
    used = w4a16.w4a16_kernel.resources(*arrays, rows=rows, tokens=tokens, arch="sm_90a")
    assert_clean(used)


# -- convolution -----------------------------------------------------------------------------------


def image(size, channels, filters, taps=3, images=1, dtype=np.float16):
    draw = np.random.default_rng(sum(size) + channels)
    shapes = (images, *size, channels), (filters, taps, taps, channels)
    return [draw.standard_normal(shape).astype(dtype) for shape in shapes]


def convolved(*xw, **options):
    kernel = convolution.convolution_kernel.emulator("sm_90a", checks=True)
    return convolution.convolution(*xw, kernel=kernel, **options)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "size, channels, filters, taps, images, options, dtype",
    [
        ((1, 1), 8, 8, 1, 1, {}, np.float16),
        ((9, 13), 24, 40, 3, 2, {"padding": 1}, tc.bf16.numpy),
        ((6, 5), 72, 136, 3, 3, {"padding": 2, "dilation": 2}, np.float16),
        ((4, 30), 64, 256, 2, 1, {}, tc.bf16.numpy),
        ((3, 3), 8, 64, 5, 1, {"padding": 3}, np.float16),
    ],
)
def test_convolution(size, channels, filters, taps, images, options, dtype):
    """Within the bound that the example derives; edges of pixels, channels and filters."""
    xw = image(size, channels, filters, taps, images, dtype)
    exact, bound = convolution.reference(*xw, **options)
    y = convolved(*xw, **options)
    assert y.shape == exact.shape and y.dtype == dtype
    assert (abs(y.astype(np.float64) - exact) <= bound).all()


@pytest.mark.parametrize("filters", convolution.FILTERS)
def test_convolution_with_tiles_of_all_widths(monkeypatch, filters):
    monkeypatch.setattr(convolution, "filters_for", lambda boxes, columns: filters)
    xw = image((9, 17), 72, 264)
    exact, bound = convolution.reference(*xw)
    assert (abs(convolved(*xw).astype(np.float64) - exact) <= bound).all()


def test_width_of_tiles_fills_the_blocks():
    """Wide tiles where there are enough of them, narrow ones for few pixels."""
    assert convolution.filters_for(1024, 512) == 256
    assert convolution.filters_for(49, 512) == 128
    assert convolution.filters_for(1, 512) == convolution.filters_for(5000, 40) == 64


def test_convolution_with_a_middle_tap_is_a_copy():
    """A filter for each channel that is 1 in the middle and 0 elsewhere: the image, exactly."""
    x, w = image((5, 6), 16, 16)
    w[:] = 0
    w[range(16), 1, 1, range(16)] = 1
    assert np.array_equal(convolved(x, w, padding=1), x)


def test_convolution_on_fewer_blocks_than_tiles(monkeypatch):
    """A block takes several tiles: the ring of stages and the staging buffers run on."""
    xw = image((12, 20), 64, 192)
    whole = convolved(*xw, padding=1)
    monkeypatch.setattr(convolution, "BLOCKS", 2)
    assert np.array_equal(convolved(*xw, padding=1), whole)


@pytest.mark.parametrize(
    "shape, box",
    [((1, 56, 56), (1, 8, 8)), ((8, 7, 7), (8, 1, 8)), ((64, 7, 7), (64, 1, 1)), ((2, 1, 100), (1, 1, 64))],
)
def test_boxes_of_pixels(shape, box):
    """The powers of two that cover most: 8 x 8 where it fits, several images of small ones."""
    assert convolution.box_for(*shape) == box


@pytest.mark.quick
@pytest.mark.parametrize(
    "change, options, message",
    [
        (lambda x, w: (x[0], w), {}, r"x is \(N, H, W, C\)"),
        (lambda x, w: (x, w[..., :8]), {}, r"of as many channels"),
        (lambda x, w: (x[..., :4], w[..., :4]), {}, r"multiples of 8"),
        (lambda x, w: (x, w[:5]), {}, r"multiples of 8"),
        (lambda x, w: (x, w), {"stride": 2}, r"the stride is 1"),
        (lambda x, w: (x, w), {"padding": -1}, r"the padding at least 0"),
        (lambda x, w: (x, w), {"dilation": 3}, r"does not fit in x"),
        (lambda x, w: (x, w.astype(np.float32)), {}, r"both float16 or both bfloat16"),
    ],
)
def test_convolution_refuses(change, options, message):
    with pytest.raises(tc.ArgumentError, match=message):
        convolved(*change(*image((5, 5), 16, 8)), **options)


@pytest.mark.parametrize("filters", [64, 128, 256])
def test_convolution_assembles_without_spills(filters):
    pytest.importorskip("cuda.core", reason="needs the assembler")
    x, w = image((8, 8), 64, filters)
    y = np.zeros((1, 8, 8, filters), x.dtype)
    used = convolution.convolution_kernel.resources(x, w, y, 1, 1, filters=filters, arch="sm_90a")
    assert_clean(used)


# -- the checks of these tests -----------------------------------------------------------------------


def call_attention(module, kernel):
    module.attention(*heads(64, 200), kernel=kernel)


def call_norm(module, kernel):
    module.fused_norm(*rows_of(1, 600), kernel=kernel)


def call_histogram(module, kernel):
    module.histogram(np.arange(200, dtype=np.uint8), kernel=kernel)


def call_sum(module, kernel):
    module.array_sum(np.ones(200, np.float32), kernel=kernel)


def call_int4(module, kernel):
    x, q, scales = int4(1, 16, 256)
    module.w4a16(x, module.pack(q), scales, kernel=kernel)


def call_convolution(module, kernel):
    module.BLOCKS, module.FILTERS = 1, (128,)
    module.convolution(*image((12, 20), 64, 192), padding=1, kernel=kernel)


BARRIERS = [
    *(("flash_attention", "attention_kernel", call_attention, i) for i in range(3)),
    ("fused_norm", "norm_kernel", call_norm, 0),
    *(("histogram", "histogram_kernel", call_histogram, i) for i in range(2)),
    ("reduction", "sum_kernel", call_sum, 0),
    ("w4a16", "w4a16_kernel", call_int4, 0),
]


@pytest.mark.parametrize("name, kernel, call, number", BARRIERS)
def test_every_barrier_is_needed_and_missed(name, kernel, call, number):
    """Without it, a launch with all checks reports a race, or memory that nobody wrote."""
    pieces = (ROOT / "examples" / f"{name}.py").read_text().split("tc.barrier()\n")
    assert len(pieces) == 1 + sum(other == name for other, *_ in BARRIERS)
    kept = ["pass\n" if i == number else "tc.barrier()\n" for i in range(len(pieces) - 1)]
    source = "".join(a + b for a, b in zip(pieces, [*kept, ""]))
    module = module_of(source, f"{name} without barrier {number}")
    with pytest.raises((tc.Race, tc.Uninitialised)):
        call(module, getattr(module, kernel).emulator("sm_90a", checks=True))


def module_of(source, file):
    """A module whose kernels are compiled from this text."""
    module = ModuleType(file.split()[0])
    module.__package__ = "examples"
    module.__file__ = file
    execute_text(source, file, vars(module))
    return module


WAITS_OF_ATTENTION = [
    "    tc.barrier()\n",
    "        tc.fence_mbarrier_init()\n",
    "        full_q[0].wait(0)\n",
    "                    empty[stage].wait(phase)\n",
    "            full_k[stage].wait(phase)\n",
    "            full_v[stage].wait(phase)\n",
    "            tc.wgmma_fence()\n",
    "            tc.wgmma_wait(0)\n",
    "            empty_k[stage].arrive(pred=leader)\n",
    "            empty_v[stage].arrive(pred=leader)\n",
]


@pytest.mark.parametrize("text", WAITS_OF_ATTENTION)
def test_every_wait_of_the_hopper_attention_is_needed_and_missed(text):
    source = (ROOT / "examples" / "hopper_attention.py").read_text()
    assert text in source
    without = source.replace(text, " " * (len(text) - len(text.lstrip())) + "pass\n", 1)
    module = module_of(without, f"attention without {text.strip()}")
    with pytest.raises(tc.TensorCoreError):
        module.attention(*heads(64, 600), kernel=module.attention_kernel.emulator("sm_90a", checks=True))


SYNCHRONISATION = [
    "    tc.barrier()\n",
    "        tc.barrier(consumer + 1, 128)  # of this warpgroup; 0 is the block's\n",
    "        tc.fence_proxy_async()\n        tc.barrier(consumer + 1, 128)\n",
    "        tc.fence_proxy_async()\n",
    "        tc.fence_mbarrier_init()\n",
    "                            empty[stage].wait(phase)\n",
    "                full[stage].wait(phase)\n",
    "                tc.wgmma_fence()\n",
    "                tc.wgmma_wait(1)\n",
    "            tc.wgmma_wait(0)\n",
    "            tc.tma_store_wait(1, read=True)\n",
    "        tc.tma_store_wait(0, read=True)\n",
]


@pytest.mark.parametrize("text", SYNCHRONISATION)
def test_every_wait_of_the_convolution_is_needed_and_missed(text):
    """Without it, a launch with all checks on one block, which has several tiles, reports an error."""
    source = (ROOT / "examples" / "convolution.py").read_text()
    assert text in source
    without = source.replace(text, " " * (len(text) - len(text.lstrip())) + "pass\n", 1)
    module = module_of(without, f"convolution without {text.strip()}")
    with pytest.raises(tc.TensorCoreError):
        call_convolution(module, module.convolution_kernel.emulator("sm_90a", checks=True))
