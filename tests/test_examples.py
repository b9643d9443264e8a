"""The programs of examples/: results of odd shapes in emulation with all checks, and as users run them."""

import linecache
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import tensorcore_dsl as tc
from examples import flash_attention, fused_norm, histogram, reduction

ROOT = Path(__file__).parent.parent

PROGRAMS = {
    "flash_attention": ["--queries", "70", "--keys", "90", "--dim", "128", "--dtype", "bf16", "--causal"],
    "fused_norm": ["--rows", "3", "--columns", "1500", "--dtype", "bf16"],
    "histogram": ["--size", "5003"],
    "reduction": ["--size", "5003"],
}  # fmt: skip


def test_every_example_is_run():
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == set(PROGRAMS)


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_a_user_runs_it(name):
    done = subprocess.run(
        [sys.executable, f"examples/{name}.py", *PROGRAMS[name]], cwd=ROOT, capture_output=True, text=True,
        timeout=120, env=os.environ | {"TENSORCORE_DSL_TARGET": "cpu", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("ran on the CPU, emulated; largest error ")


# -- attention -------------------------------------------------------------------------------------


def heads(queries, keys, dim=64, dtype=np.float16, batch=1, count=1):
    draw = np.random.default_rng(queries + keys)
    return [draw.standard_normal((batch, count, n, dim)).astype(dtype) for n in (queries, keys, keys)]


def attend(*qkv, **options):
    kernel = flash_attention.attention_kernel.emulator("sm_90a", checks=True)
    return flash_attention.attention(*qkv, kernel=kernel, **options)


@pytest.mark.parametrize(
    "queries, keys, dim, dtype, causal",
    [
        (64, 128, 64, np.float16, False),
        (1, 1, 64, np.float16, True),
        (65, 63, 64, np.float16, False),
        (3, 130, 128, np.float16, True),
        (100, 100, 64, tc.bf16.numpy, True),
        (5, 200, 128, tc.bf16.numpy, False),
    ],
)
def test_attention(queries, keys, dim, dtype, causal):
    """Within the bound that the example derives; races, bounds and uninitialised memory are checked."""
    qkv = heads(queries, keys, dim, dtype)
    exact, bound = flash_attention.reference(*qkv, causal)
    o = attend(*qkv, causal=causal)
    assert o.shape == qkv[0].shape and o.dtype == dtype
    assert (abs(o.astype(np.float64) - exact) <= bound).all()


def test_attention_of_several_heads_is_that_of_each():
    q, k, v = heads(20, 70, batch=2, count=3)
    o = attend(q, k, v)
    for b, h in np.ndindex(2, 3):
        part = slice(b, b + 1), slice(h, h + 1)
        assert np.array_equal(o[part], attend(q[part], k[part], v[part]))


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


def test_attention_shrinks_what_smaller_scores_have_summed():
    """Scores that grow from tile to tile: all weight moves to the last key."""
    q, k, v = heads(2, 150)
    q[:], k[:] = 1, np.arange(150)[:, None] * 8
    assert np.array_equal(attend(q, k, v)[0, 0, 0], v[0, 0, -1])


def test_attention_ignores_huge_values_that_are_masked():
    """Query 0 sees key 0 alone; a weight of zero times a huge value of another key stays out."""
    q, k, v = heads(40, 40)
    v[..., 1:, :] = 60000
    assert np.array_equal(attend(q, k, v, causal=True)[0, 0, 0], v[0, 0, 0])


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
    assert used.spill_stores in (0, None), used  # None: this version of the assembler does not tell
    assert used.shared_bytes == 5 * 64 * dim * 2


# -- norm ------------------------------------------------------------------------------------------


def normed(*arrays, **options):
    return fused_norm.fused_norm(*arrays, kernel=fused_norm.norm_kernel.emulator("sm_90a", checks=True), **options)


def rows_of(rows, columns, dtype=np.float16):
    draw = np.random.default_rng(columns)
    return [draw.standard_normal(shape).astype(dtype) for shape in ((rows, columns), (rows, columns), columns)]


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


def test_histogram_refuses_other_types():
    with pytest.raises(tc.ArgumentError, match="must be of uint8"):
        counted(np.zeros(4, np.int64))


# -- sum -------------------------------------------------------------------------------------------


def summed(x):
    return reduction.array_sum(x, kernel=reduction.sum_kernel.emulator("sm_90a", checks=True))


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


def test_sum_refuses_other_types():
    with pytest.raises(tc.ArgumentError, match="must be of float32"):
        summed(np.zeros(4))


# -- the checks of these tests -----------------------------------------------------------------------


def call_attention(module, kernel):
    module.attention(*heads(64, 200), kernel=kernel)


def call_norm(module, kernel):
    module.fused_norm(*rows_of(1, 600), kernel=kernel)


def call_histogram(module, kernel):
    module.histogram(np.arange(200, dtype=np.uint8), kernel=kernel)


def call_sum(module, kernel):
    module.array_sum(np.ones(200, np.float32), kernel=kernel)


BARRIERS = [
    *(("flash_attention", "attention_kernel", call_attention, i) for i in range(3)),
    ("fused_norm", "norm_kernel", call_norm, 0),
    *(("histogram", "histogram_kernel", call_histogram, i) for i in range(2)),
    ("reduction", "sum_kernel", call_sum, 0),
]


@pytest.mark.parametrize("name, kernel, call, number", BARRIERS)
def test_every_barrier_is_needed_and_missed(name, kernel, call, number):
    """Without it, a launch with all checks reports a race, or memory that nobody wrote."""
    pieces = (ROOT / "examples" / f"{name}.py").read_text().split("tc.barrier()\n")
    assert len(pieces) == 1 + sum(other == name for other, *_ in BARRIERS)
    kept = ["pass\n" if i == number else "tc.barrier()\n" for i in range(len(pieces) - 1)]
    source = "".join(a + b for a, b in zip(pieces, [*kept, ""]))
    module = ModuleType(name)
    module.__file__ = f"{name} without barrier {number}"
    linecache.cache[module.__file__] = (len(source), None, source.splitlines(True), module.__file__)
    exec(compile(source, module.__file__, "exec"), vars(module))
    with pytest.raises((tc.Race, tc.Uninitialised)):
        call(module, getattr(module, kernel).emulator("sm_90a", checks=True))
