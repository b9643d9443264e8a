"""The example under @cuda.jit: its machine code, and its body on threads of Python, with late memory.

Each function of tensorcore_dsl.numba has a stand-in that does as little as the hardware promises: a
copy destroys what was there at once, and brings its data only when the thread has waited for it, has
fenced, and the block has met; products read shared memory when they are waited for.
"""

import re
import threading
from types import FunctionType, SimpleNamespace

import numpy as np
import pytest

import tensorcore_dsl as tc

cuda = pytest.importorskip("numba.cuda", reason="needs numba-cuda")
example = pytest.importorskip("examples.numba_matmul", reason="needs numba-cuda")

from tensorcore_dsl.codegen import assemble  # noqa: E402
from tests.assembler import assert_clean  # noqa: E402

GROUP = 128  # threads of a warpgroup
LAYOUT = example.product.d.layout
PLACES = LAYOUT.coords  # thread, slot -> row, column


class Block:
    """A block of threads of Python that runs the body of a kernel."""

    def __init__(self, threads, place):
        self.own = threading.local()
        self.threads, self.place = threads, SimpleNamespace(x=place[0], y=place[1])
        self.arrays, self.published, self.failures = [], [], []
        self.lock = threading.Lock()
        self.meeting = threading.Barrier(threads, action=self.publish)
        groups = range(threads // GROUP)
        self.products = [threading.Barrier(GROUP, action=lambda g=g: self.multiply(g)) for g in groups]
        self.asked, self.sums = [[] for _ in groups], [None for _ in groups]

    def run(self, body, *arguments):
        kernel = FunctionType(body.__code__, body.__globals__ | self.names())

        def thread(number):
            self.own.number, self.own.taken = number, 0
            self.own.copies, self.own.groups, self.own.arrived = [], [], []
            self.own.asked = []
            try:
                kernel(*arguments)
            except Exception as error:
                self.failures.append(error)
                for barrier in (self.meeting, *self.products):
                    barrier.abort()

        running = [threading.Thread(target=thread, args=(n,)) for n in range(self.threads)]
        [t.start() for t in running]
        [t.join() for t in running]
        if self.failures:
            raise self.failures[0]

    def names(self):
        block = self

        class Index:
            @property
            def x(self):
                return block.own.number

        shared = SimpleNamespace(array=self.array)
        names = (
            "cp_async",
            "cp_async_commit",
            "cp_async_wait",
            "fence_proxy_async",
            "product",
            "store_c",
            "wgmma_commit",
            "wgmma_fence",
            "wgmma_wait",
        )
        return {name: getattr(self, name) for name in names} | {
            "cuda": SimpleNamespace(
                threadIdx=Index(), blockIdx=self.place, shared=shared, syncthreads=self.meeting.wait
            ),
            "ZERO": np.zeros(LAYOUT.slots, np.float32),
            "wgmma_descriptor": lambda *parts: parts,
        }

    def array(self, shape, dtype, align):
        """Return one array for all threads, in the order of the calls."""
        with self.lock:
            if self.own.taken == len(self.arrays):
                self.arrays.append(np.full(shape, np.nan, dtype))
            self.own.taken += 1
            return self.arrays[self.own.taken - 1]

    def cp_async(self, target, at, source, place, size):
        last = slice(place[-1], place[-1] + size // source.itemsize)
        values = source[(*place[:-1], last)].copy()
        assert values.nbytes == size and source[place[:-1]][place[-1] :].ctypes.data % size == 0
        part = target[at[:-1]][at[-1] : at[-1] + len(values)]
        part[:] = np.nan
        self.own.copies.append((part, values))

    def cp_async_commit(self):
        self.own.groups.append(self.own.copies)
        self.own.copies = []

    def cp_async_wait(self, pending):
        while len(self.own.groups) > pending:
            self.own.arrived += self.own.groups.pop(0)

    def fence_proxy_async(self):
        with self.lock:
            self.published += self.own.arrived
        self.own.arrived = []

    def publish(self):
        """When all threads meet, they see what each of them has fenced."""
        for part, values in self.published:
            part[:] = values
        self.published = []

    def product(self, acc, a, b, accumulate):
        assert accumulate and a[1:] == b[1:] == (example.ALONG_K, example.ALONG_ROWS)
        self.own.asked.append((a, b))
        return acc

    def wgmma_fence(self, acc):
        return acc

    def wgmma_commit(self):
        if self.own.number % GROUP == 0:
            self.asked[self.own.number // GROUP] += self.own.asked
        self.own.asked = []

    def wgmma_wait(self, pending, acc):
        assert pending == 0
        group = self.own.number // GROUP
        self.products[group].wait()
        rows, cols = PLACES[self.own.number % GROUP].T
        return acc + self.sums[group][rows, cols].astype(np.float32)

    def multiply(self, group):
        """All products that this warpgroup has committed, when it waits for them."""
        self.sums[group] = np.zeros((LAYOUT.rows, LAYOUT.cols))
        for (a, *_), (b, *_) in self.asked[group]:
            self.sums[group] += matrix(a, LAYOUT.rows) @ matrix(b, LAYOUT.cols).T
        self.asked[group] = []

    def store_c(self, c, row, col, thread, acc):
        for value, (i, j) in zip(acc, PLACES[thread]):
            c[row + i, col + j] = value


def matrix(place, rows):
    """Rows of 16 elements that a descriptor without a swizzle names: core matrices of 8 rows."""
    array, index = place
    i, k = np.indices((rows, 16))
    start = np.ravel_multi_index(index, array.shape) * array.itemsize
    offset = i // 8 * example.ALONG_ROWS + k // 8 * example.ALONG_K + i % 8 * 16 + k % 8 * 2
    return array.reshape(-1)[(start + offset) // array.itemsize].astype(np.float64)


def multiplied(a, b, body=example.matmul.py_func):
    c = np.zeros((len(a), len(b)), np.float16)
    for place in np.ndindex(len(a) // example.TILE, len(b) // example.TILE):
        Block(example.THREADS, place).run(body, a, b, c)
    return c


def operands(m, n, k):
    draw = np.random.default_rng(m + n + k)
    return [draw.standard_normal((rows, k)).astype(np.float16) for rows in (m, n)]


@pytest.mark.parametrize("m, n, k", [(128, 128, 32), (128, 256, 160), (256, 128, 64)])
def test_product(m, n, k):
    """Within the bound that the example derives, for fewer steps than stages and more."""
    a, b = operands(m, n, k)
    exact, bound = example.reference(a, b)
    assert (abs(multiplied(a, b).astype(np.float64) - exact) <= bound).all()


@pytest.mark.parametrize(
    "name", ["cp_async_wait", "fence_proxy_async", "wgmma_wait", "wgmma_commit", "cp_async_commit"]
)
def test_synchronisation_that_the_kernel_needs_is_missed(monkeypatch, name):
    """Without it the result is wrong: the stand-ins promise no more than the hardware."""
    monkeypatch.setattr(Block, name, lambda self, *arguments: arguments[-1] if arguments else None)
    a, b = operands(128, 128, 96)
    exact, bound = example.reference(a, b)
    assert not (abs(multiplied(a, b).astype(np.float64) - exact) <= bound).all()


def test_machine_code():
    """Without spills or serialised products; two blocks fit on a multiprocessor."""
    pytest.importorskip("cuda.core", reason="needs the assembler")
    text, _ = cuda.compile_ptx(
        example.matmul.py_func, example.ARGUMENTS, cc=(9, 0, "a"), launch_bounds=example.BOUNDS
    )
    text = text.rstrip("\0")
    resources = assemble.assemble(text, "sm_90a", re.search(r"\.entry (\w+)", text)[1]).resources
    assert_clean(resources)
    assert resources.registers <= 128
    assert text.count("wgmma.mma_async") == example.DEPTH // 16
    assert example.matmul.targetoptions["launch_bounds"] == example.BOUNDS


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda a, b: (a[0], b), r"a is \(M, K\) and b \(N, K\)"),
        (lambda a, b: (a, b[:, :32]), r"a is \(M, K\) and b \(N, K\)"),
        (lambda a, b: (a[:100], b), r"multiples of 128 and K of 32"),
        (lambda a, b: (a[:, :40], b[:, :40]), r"multiples of 128 and K of 32"),
        (lambda a, b: (a[:0], b), r"multiples of 128"),
        (lambda a, b: (a, b.astype(np.float32)), r"must be float16"),
    ],
)
def test_refuses(change, message):
    with pytest.raises(tc.ArgumentError, match=message):
        example.product_of(*change(*operands(128, 128, 64)))
