"""Kernels of Triton for tests/test_ptx_triton.py."""

# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def softmax(out, x, n, BLOCK: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, BLOCK)
    v = tl.load(x + row * n + i, mask=i < n, other=-float("inf"))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(out + row * n + i, e / tl.sum(e, 0), mask=i < n)


@triton.jit
def matmul(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    left, right = a + m[:, None] * K + k[None, :], b + k[:, None] * N + n[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for first in range(0, K, BK):
        x = tl.load(left, mask=(m[:, None] < M) & (k[None, :] + first < K), other=0.0)
        y = tl.load(right, mask=(k[:, None] + first < K) & (n[None, :] < N), other=0.0)
        acc = tl.dot(x, y, acc)
        left += BK
        right += BK * N
    tl.store(c + m[:, None] * N + n[None, :], acc, mask=(m[:, None] < M) & (n[None, :] < N))


@triton.jit
def attention(q, k, v, out, n, scale, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):
    rows, cols = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, D)
    query = tl.load(q + rows[:, None] * D + cols[None, :])
    most, sums = tl.full((BM,), -float("inf"), tl.float32), tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    for first in range(0, n, BN):
        keys = first + tl.arange(0, BN)
        scores = tl.dot(query, tl.load(k + keys[None, :] * D + cols[:, None])) * scale
        new = tl.maximum(most, tl.max(scores, 1))
        p, factor = tl.exp2(scores - new[:, None]), tl.exp2(most - new)
        sums = sums * factor + tl.sum(p, 1)
        acc = tl.dot(p.to(tl.float16), tl.load(v + keys[:, None] * D + cols[None, :]), acc * factor[:, None])
        most = new
    tl.store(out + rows[:, None] * D + cols[None, :], acc / sums[:, None])


@triton.jit
def histogram(x, counts, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0)
    tl.atomic_add(counts + v % 16, 1, mask=i < n)


@triton.jit
def beyond(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n, other=0))  # no mask: OUTSIDE


@triton.jit
def described_matmul(a, b, c, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for first in range(0, K, BK):
        acc = tl.dot(a.load([m, first]), b.load([first, n]), acc)
    c.store([m, n], acc.to(tl.float16))


@triton.autotune(configs=[triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})], key=["n"])
@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def tuned_add(x, y, out, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(out + i, tl.load(x + i) + tl.load(y + i))
    else:
        tl.store(out + i, tl.load(x + i, mask=i < n) + tl.load(y + i, mask=i < n), mask=i < n)


# -- of tests/triton_corpus.py ------------------------------------------------------------------------


@triton.jit
def layernorm(out, x, w, b, n, eps, BLOCK: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, BLOCK)
    v = tl.load(x + row * n + i, mask=i < n, other=0.0).to(tl.float32)
    mean = tl.sum(v, 0) / n
    d = tl.where(i < n, v - mean, 0.0)
    scale = 1 / tl.sqrt(tl.sum(d * d, 0) / n + eps)
    y = d * scale * tl.load(w + i, mask=i < n) + tl.load(b + i, mask=i < n)
    tl.store(out + row * n + i, y.to(tl.float16), mask=i < n)


@triton.jit
def dropout(out, x, p, seed, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.where(tl.rand(seed, i) > p, tl.load(x + i) / (1 - p), 0.0))


@triton.jit
def transpose(out, x, M, N, BLOCK: tl.constexpr):
    r, c = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + r[:, None] * N + c[None, :], mask=(r[:, None] < M) & (c[None, :] < N))
    tl.store(out + c[:, None] * M + r[None, :], v.trans(), mask=(c[:, None] < N) & (r[None, :] < M))


@triton.jit
def prefix_sums(out, x, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.cumsum(tl.load(x + i), 0))


@triton.jit
def sorted_rows(out, x, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(out + i, tl.sort(tl.load(x + i)))


@triton.jit
def extremes(least, most, x, n, BLOCK: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, BLOCK)
    tl.store(least + row, tl.argmin(tl.load(x + row * n + i, mask=i < n, other=float("inf")), 0))
    tl.store(most + row, tl.argmax(tl.load(x + row * n + i, mask=i < n, other=-float("inf")), 0))


@triton.jit
def bins(out, x, N: tl.constexpr, BINS: tl.constexpr):
    tl.store(out + tl.arange(0, BINS), tl.histogram(tl.load(x + tl.arange(0, N)), BINS))


@triton.jit
def column_sums(out, x, M: tl.constexpr, N: tl.constexpr):
    r, c = tl.arange(0, M), tl.arange(0, N)
    tl.store(out + c, tl.sum(tl.load(x + r[:, None] * N + c[None, :]).to(tl.float32), 0))


@triton.jit
def grouped_matmul(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, G: tl.constexpr):
    pid, rows, cols = tl.program_id(0), tl.cdiv(M, BM), tl.cdiv(N, BN)
    group = pid // (G * cols)
    size = min(rows - group * G, G)
    m, n = group * G + (pid % (G * cols)) % size, (pid % (G * cols)) // size
    r, s, k = (m * BM + tl.arange(0, BM)) % M, (n * BN + tl.arange(0, BN)) % N, tl.arange(0, BK)
    left, right = a + r[:, None] * K + k[None, :], b + k[:, None] * N + s[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for i in range(0, tl.cdiv(K, BK)):
        x = tl.load(left, mask=k[None, :] < K - i * BK, other=0.0)
        y = tl.load(right, mask=k[:, None] < K - i * BK, other=0.0)
        acc = tl.dot(x, y, acc)
        left += BK
        right += BK * N
    acc = tl.where(acc >= 0, acc, 0.01 * acc)
    r, s = m * BM + tl.arange(0, BM), n * BN + tl.arange(0, BN)
    tl.store(c + r[:, None] * N + s[None, :], acc.to(tl.float16), mask=(r[:, None] < M) & (s[None, :] < N))


@triton.jit
def split_k(a, b, c, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    r, s = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.program_id(2) * BK + tl.arange(0, BK)
    part = tl.dot(tl.load(a + r[:, None] * K + k[None, :]), tl.load(b + k[:, None] * N + s[None, :]))
    tl.atomic_add(c + r[:, None] * N + s[None, :], part)


@triton.jit
def int8_matmul(a, b, c, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    r, s, k = tl.arange(0, BM), tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.int32)
    for i in range(0, K, BK):
        x, y = tl.load(a + r[:, None] * K + k[None, :] + i), tl.load(b + s[None, :] * K + k[:, None] + i)
        acc = tl.dot(x, y, acc)
    tl.store(c + r[:, None] * N + s[None, :], acc)


@triton.jit
def causal_attention(q, k, v, out, n, scale, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):
    first, head = tl.program_id(0) * BM, tl.program_id(1) * n * D
    rows, cols = first + tl.arange(0, BM), tl.arange(0, D)
    query = tl.load(q + head + rows[:, None] * D + cols[None, :])
    most, sums = tl.full((BM,), -float("inf"), tl.float32), tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    for start in range(0, first + BM, BN):
        keys = start + tl.arange(0, BN)
        scores = tl.dot(query, tl.load(k + head + keys[None, :] * D + cols[:, None])) * scale
        scores = tl.where(rows[:, None] >= keys[None, :], scores, -float("inf"))
        new = tl.maximum(most, tl.max(scores, 1))
        p, factor = tl.exp2(scores - new[:, None]), tl.exp2(most - new)
        sums = sums * factor + tl.sum(p, 1)
        acc = acc * factor[:, None]
        acc = tl.dot(p.to(tl.bfloat16), tl.load(v + head + keys[:, None] * D + cols[None, :]), acc)
        most = new
    tl.store(out + head + rows[:, None] * D + cols[None, :], (acc / sums[:, None]).to(tl.bfloat16))


@triton.jit
def cross_entropy(loss, x, labels, n, BLOCK: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, BLOCK)
    v = tl.load(x + row * n + i, mask=i < n, other=-float("inf"))
    most = tl.max(v, 0)
    total = tl.log(tl.sum(tl.exp(v - most), 0)) + most
    tl.store(loss + row, total - tl.load(x + row * n + tl.load(labels + row)))


@triton.jit
def gelu(out, x, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i)
    tl.store(out + i, 0.5 * v * (1 + tl.erf(v * 0.7071067811865476)))


@triton.jit
def swiglu(out, x, y, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i).to(tl.float32)
    tl.store(out + i, (v * tl.sigmoid(v) * tl.load(y + i)).to(tl.bfloat16))


@triton.jit
def quantise(out, scales, x, n, BLOCK: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, BLOCK)
    v = tl.load(x + row * n + i, mask=i < n, other=0.0)
    scale = tl.max(tl.abs(v), 0) / 127
    tl.store(scales + row, scale)
    tl.store(out + row * n + i, (v / scale + tl.where(v >= 0, 0.5, -0.5)).to(tl.int8), mask=i < n)


@triton.jit
def square_roots(out, x, N: tl.constexpr):
    i = tl.arange(0, N)
    v = tl.load(x + i)
    guess, step = v * 0.5 + 0.5, 0
    while tl.max(tl.abs(guess * guess - v), 0) > 1e-4 and step < 30:
        guess = 0.5 * (guess + v / guess)
        step += 1
    tl.store(out + i, guess)


@triton.jit(noinline=True)
def _cube(x):
    return x * x * x


@triton.jit
def cubes(out, x, N: tl.constexpr):
    i = tl.program_id(0)
    tl.store(out + i, _cube(tl.load(x + i)))


@triton.jit
def popcounts(out, x, N: tl.constexpr):
    i = tl.arange(0, N)
    v = tl.load(x + i)
    found = tl.inline_asm_elementwise("popc.b32 $0, $1;", "=r,r", [v], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(out + i, found + tl.umulhi(v, 0x40000000))


@triton.jit
def tickets(lock, total, N: tl.constexpr):
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    before = tl.load(total, volatile=True)
    tl.debug_barrier()
    tl.store(total, before + N)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


@triton.jit
def gathered(out, x, index, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.gather(tl.load(x + i), tl.load(index + i), 0))


@triton.jit
def fp8_product(a, b, c, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    r, s = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for i in range(0, K, BK):
        k = i + tl.arange(0, BK)
        x, y = tl.load(a + r[:, None] * K + k[None, :]), tl.load(b + s[None, :] * K + k[:, None])
        acc = tl.dot(x, y, acc)
    tl.store(c + r[:, None] * N + s[None, :], acc)


@triton.jit
def through_addresses(out, addresses, N: tl.constexpr):
    """Row i of `out` is the array at address i."""
    i, r = tl.program_id(0), tl.arange(0, N)
    x = tl.load(addresses + i).to(tl.pointer_type(tl.bfloat16))
    tl.store(out + i * N + r, tl.load(x + r))


@triton.jit
def last_block(out):
    tl.atomic_xchg(out, tl.program_id(0))
