"""Python's language in kernels: each kernel runs in emulation and must do what Python does."""

from __future__ import annotations

import copy
import functools
import operator
import sys
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pytest

import tensorcore_dsl as tc
from tests import running
from tests.arrays import ints

pytestmark = pytest.mark.usefixtures("fresh_ir")


N = 32


launch = functools.partial(running.launch, block=N)


compare_with_python = functools.partial(running.compare_with_python, block=N)


def zeros(dtype: Any = np.int32, count: Any = N) -> np.ndarray:
    return np.zeros(count, dtype)


def random(high: int, shape: Any, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, high, shape, np.int32)


ORDER = np.arange(N, dtype=np.int32)


RUN = np.array([5, -1, 7, 8, -3, 95, 1], np.float32)


CASES: list[Any] = []


def as_python(*args: Any, **options: Any) -> Any:
    """Add a case of test_python_is_the_same: a kernel with its arguments and constants."""

    def add(kernel: Any) -> Any:
        CASES.append(pytest.param(kernel, args, options, id=f"{kernel.__name__}-{len(CASES)}"))
        return kernel

    return add


# -- branches ---------------------------------------------------------------------------------


@as_python(ORDER - 5, zeros())
@tc.kernel
def classify(x, out):
    i = tc.threadIdx.x
    if x[i] < 0:
        kind = -1
    elif x[i] == 0:
        kind = 0
    else:
        kind = 1
    out[i] = kind


@as_python(ORDER % 12, zeros())
@tc.kernel
def nested_ifs(x, out):
    i = tc.threadIdx.x
    v = x[i]
    result = 100
    if v > 4:
        if v > 8:
            result = 1
        elif v > 6:
            result += v
        else:
            pass
    else:
        if v % 2 == 0:
            result = v * 2
    out[i] = result


@as_python(ORDER, zeros(np.float32))
@tc.kernel
def branch_types(x, out):
    i = tc.threadIdx.x
    if x[i] > 3:
        a, b, c = 1, 2.5, x[i]
    else:
        a, b, c = x[i], 1, 0
    out[i] = a + b + c


@as_python(ORDER, 40 - ORDER, zeros())
@tc.kernel
def conditional_expressions(x, y, out):
    i = tc.threadIdx.x
    big = x[i] if x[i] > y[i] else y[i]
    pair = (x[i], 1) if x[i] > 3 else (0, y[i])
    guarded = x[y[i]] if y[i] < 32 else -1
    out[i] = big * 1000 + pair[0] * 100 + pair[1] + guarded


@as_python(ORDER[:20].copy(), 20, zeros())
@tc.kernel
def short_circuits(x, n: tc.s32, out):
    i = tc.threadIdx.x * 2
    both = i < n and x[i] > 10
    either = i >= n or x[i] > 10
    chain = 0 <= i < n and x[i] != 4
    out[tc.threadIdx.x] = both * 4 + either * 2 + chain


@as_python(ORDER % 5, zeros(count=(3, N)))
@tc.kernel
def values_of_and_or(x, out):
    i = tc.threadIdx.x
    out[0, i] = x[i] or 7
    out[1, i] = x[i] and x[i] + 1
    out[2, i] = (x[i] > 2 and 5) or 9


@as_python(random(10, N), random(10, N, seed=1), 6, zeros(np.bool_, (16, N)))
@tc.kernel
def comparisons(x, y, n: tc.s32, out):
    i = tc.threadIdx.x
    a, b = x[i], y[i]
    tests = [
        a < b,
        a <= b,
        a > b,
        a >= b,
        a == b,
        a != b,
        a < b < 9,
        3 <= a <= b,
        a in (1, 5, b),
        a not in (2, 3),
    ]
    tests += [a in range(3, 8), a in tc.range(n), 4 in (a, b), not a, a is None, not (a < b or a > b)]
    for k, test in enumerate(tests):
        out[k, i] = test


# -- loops ------------------------------------------------------------------------------------


@as_python(RUN, 7, zeros(np.float32, 3))
@as_python(RUN, 3, zeros(np.float32, 3))
@as_python(RUN, 0, zeros(np.float32, 3))
@tc.kernel
def running_sums(x, n: tc.s32, out):
    total, count, product = 0, 0, 1.0
    for k in range(n):
        if x[k] < 0:
            continue
        if x[k] > 90:
            break
        total += x[k]
        count += 1
        product *= 1.5
    out[0], out[1], out[2] = total, count, product


@as_python(9, 2, 3, np.full(100, -99), block=1)
@as_python(5, -4, 2, np.full(100, -99), block=1)
@as_python(3, 3, 1, np.full(100, -99), block=1)
@as_python(0, 7, 5, np.full(100, -99), block=1)
@tc.kernel
def ranges(n: tc.s32, lo: tc.s32, step: tc.s32, out):
    place = 0
    for i in range(lo, n):
        out[place] = i
        place += 1
    for i in range(n, lo, -2):
        out[place] = i
        place += 1
    for i in range(lo, n, step):
        out[place] = i
        place += 1
    for i in range(n, lo, -step):
        out[place] = i
        place += 1
    for i in tc.range(3):
        out[place] = i
        place += 1
    for i in range(lo, lo):
        out[place] = 77
        place += 1


@as_python(10, 2**33, zeros(np.uint64, 1), block=1)
@tc.kernel
def unsigned_and_wide_ranges(n: tc.u32, m: tc.s64, out):
    total = tc.u64(0)
    for i in range(n):
        total += i
    for j in range(m - 3, m):
        total += tc.u64(j)
    out[0] = total


@as_python(0, zeros(count=5), block=1)
@as_python(1, zeros(count=5), block=1)
@as_python(2, zeros(count=5), block=1)
@as_python(10, zeros(count=5), block=1)
@tc.kernel
def swaps(n: tc.s32, out):
    a, b, c = 1, 2, 3
    x, y = 0, 1
    for _ in range(n):
        a, b, c = c, a, b
        x, y = y, x + y
    out[0], out[1], out[2], out[3], out[4] = a, b, c, x, y


@as_python(6, 8, random(20, (6, 8)), zeros(count=2), block=1)
@tc.kernel
def nested_loops(rows: tc.s32, cols: tc.s32, x, out):
    best, where = -1, 0
    for i in range(rows):
        line = 0
        for j in range(cols):
            if x[i, j] % 3 == 0:
                continue
            line += x[i, j]
            if line > 50:
                break
        if line > best:
            best, where = line, i
    out[0], out[1] = best, where


@as_python(ORDER + 1, zeros())
@tc.kernel
def collatz(x, out):
    i = tc.threadIdx.x
    n, steps = x[i], 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    out[i] = steps


@as_python(np.where(ORDER == 20, -7, ORDER), zeros(np.float32, (3, N)))
@tc.kernel
def forever(x, out):
    i = tc.threadIdx.x
    place = i
    while True:
        found = x[place]
        if found < 0:
            reason = 1.0
            break
        place = (place + 1) % 32
        if place == i:
            reason = 2.0
            break
    out[0, i], out[1, i], out[2, i] = found, reason, place


@as_python(ints(3, 4, 5, -9, 100), zeros(count=3), block=1)
@tc.kernel
def walrus_in_while(x, out):
    place, total, v = 0, 0, 0
    while (v := x[place]) > 0:
        total += v
        place += 1
    out[0], out[1], out[2] = total, v, place


@tc.kernel
def halving(out, width: tc.Const = 16):
    value = tc.threadIdx.x
    step, rounds = width, []
    while step > 0:
        value += tc.shfl_down(value, step)
        rounds.append(step)
        step //= 2
    if tc.threadIdx.x == 0:
        out[0] = value
        out[1] = len(rounds)


def test_a_while_known_at_compile_time_is_unrolled():
    out = zeros(np.int32, 2)
    launch(halving, out)
    assert out.tolist() == [sum(range(32)), 5]
    assert "bra" not in halving.ptx(out, arch="sm_80").replace("@", "bra", 0).split("shfl")[1]


@tc.kernel
def long_static_while(x, out):
    i, total = 0, 0
    while i < 500:
        total += x[i]
        i += 1
    out[0] = total
    out[1] = i


def test_a_long_while_known_at_compile_time_is_a_loop():
    x, out = np.arange(500, dtype=np.int32), zeros(count=2)
    compare_with_python(long_static_while, x, out, block=1)
    assert long_static_while.ptx(x, out, arch="sm_80").count("ld.global") == 1


@as_python(random(5, (N, 4)), zeros())
@tc.kernel
def unrolled(x, out):
    i = tc.threadIdx.x
    seen = -1
    for k in tc.static_range(4):
        if x[i, k] == 3:
            seen = k
            break
    total = 0
    for k in tc.static_range(4):
        if x[i, k] % 2:
            continue
        total += x[i, k]
    for k, name in enumerate(("a", "b", "c")):
        if name == "c":
            break
        total += 100 * k
    else:
        total += 1000000
    for k in [1, 2]:
        total += 1000
    else:
        total += 5000
    out[i] = total * 10 + seen


@as_python(ORDER, zeros() + 99)
@tc.kernel
def early_exit(x, out):
    i = tc.threadIdx.x
    if x[i] < 4:
        return
    for k in range(x[i]):
        if k > 6:
            out[i] = -1
            return
    out[i] = x[i]


@as_python(4, zeros(count=3), block=1)
@tc.kernel
def unused_names(n: tc.s32, out):
    for i in range(n):
        name = "first"
        items = [i, i + 1]
        last = items[-1]
        out[0] = last
    for i in range(n):
        name = "second"
        items = [i]
        label = len(name)
        out[1] = items[0] + label
    if n > 3:
        items = [1, 2, 3]
        name = 5
    else:
        items = "none"
    out[2] = n


@as_python(7, zeros(np.float32, 9), block=1)
@tc.kernel
def containers_in_loops(n: tc.s32, out):
    values = [0, 1.0, 7]
    matrix = [[0] * 3 for _ in range(2)]
    table = {"sum": 0, "max": -1}
    pair = (1, 2)
    for k in range(n):
        values = [v + k for v in values]
        for i in tc.static_range(2):
            for j in tc.static_range(3):
                matrix[i][j] += i * k + j
        table["sum"] += k
        table["max"] = max(table["max"], k % 5)
        pair = pair[1], pair[0] + pair[1]
    out[0], out[1], out[2] = values
    out[3], out[4] = matrix[1][2], matrix[0][2]
    out[5], out[6] = table["sum"], table["max"]
    out[7], out[8] = pair


@dataclass
class State:
    count: Any
    items: list[Any]


@dataclass(frozen=True)
class Frozen:
    x: Any = 0
    y: Any = 1.0

    def total(self) -> Any:
        return self.x + self.y

    @property
    def twice(self) -> Any:
        return self.x * 2


class Point(NamedTuple):
    x: Any
    y: Any


FROZEN = Frozen()


@as_python(0, zeros(np.float32, 7), block=1, start=State(0, [1, 2]))
@as_python(2, zeros(np.float32, 7), block=1, start=State(0, [1, 2]))
@as_python(5, zeros(np.float32, 7), block=1, start=State(0, [1, 2]))
@tc.kernel
def records(n: tc.s32, out, start: tc.Const = State(0, [1, 2])):
    state = State(0, [0, 0])
    frozen = FROZEN
    point = Point(1, 2)
    for k in range(n):
        state.count += 1
        state.items[k * 0 + 0 if False else 0] += k
        frozen = replace(frozen, x=frozen.x + k)
        point = Point(point.y, point.x)
        start.items[1] += 1
    if n > 2:
        state.items[1] = 9
        frozen = Frozen(frozen.x, 2.5)
    out[0], out[1], out[2] = state.count, state.items[0], state.items[1]
    out[3], out[4], out[5] = frozen.total(), frozen.twice, point.x
    out[6] = start.items[1]


@as_python(4, zeros(count=2), block=1)
@tc.kernel
def aliases(n: tc.s32, out):
    xs = [1, 2]
    ys = xs
    nested = [xs, xs]
    if n > 0:
        ys[0] = n
    for k in range(n):
        xs[1] += k
    nested[1][1] += 100
    out[0], out[1] = ys[0], ys[1]


# -- functions --------------------------------------------------------------------------------


def clamp(x, low=0, *, high=10):
    if x < low:
        return low
    if x > high:
        return high
    return x


def total(*values, scale=1):
    result = 0
    for v in values:
        result = result + v
    return result * scale


def first_of(values, wanted):
    for place, v in enumerate(values):
        if v == wanted:
            return place
    return -1


def search(x, wanted, n):
    """Returns from run-time and unrolled loops, out of both."""
    steps = 0
    for i in tc.range(n):
        for k in range(2):
            steps += 1
            if x[i, k] < 0:
                continue
            if x[i, k] == wanted:
                return i, k, steps
            if steps > 7:
                break
        while x[i, 2] > steps:
            steps += 1
            if steps == 11:
                return -1, -1, x[i, 2]
    return -2, -2, steps


@as_python(random(20, (5, 3)) - 3, 0, zeros(count=(3, N)))
@as_python(random(20, (5, 3)) - 3, 1, zeros(count=(3, N)))
@as_python(random(20, (5, 3)) - 3, 5, zeros(count=(3, N)))
@tc.kernel
def searches(x, n: tc.s32, out):
    t = tc.threadIdx.x
    out[0, t], out[1, t], out[2, t] = search(x, t, n)


@as_python(random(6, (N, 3)), zeros())
@tc.kernel
def unrolled_else(x, out):
    i = tc.threadIdx.x
    for k in range(3):
        if x[i, k] == 3:
            break
        if x[i, k] == 4:
            continue
        out[i] += 10
    else:
        out[i] += 1


def nested_returns(x, y):
    if x > 0:
        if y > 0:
            return 1
        z = x - y
        if z > 10:
            return z
    elif x == 0:
        return 0
    else:
        if y == 0:
            return -5
    return x * 100


def power(base, exponent):
    return base * power(base, exponent - 1) if exponent else 1


def call(function, *args, **keywords):
    return function(*args, **keywords)


@functools.lru_cache
def cached(n):
    return n * 2


def many(n):
    yield from range(n)


def log2(n):
    result = 0
    while n > 1:
        n //= 2
        result += 1
    return result


OFFSET = 3


@as_python(ORDER - 6, zeros(count=(22, N)))
@tc.kernel
def functions(x, out):
    i = tc.threadIdx.x
    v = x[i]

    def double(y, by=2):
        return y * by + OFFSET

    def bump(amount):
        nonlocal counter
        counter += amount

    counter = 0
    bump(v)
    bump(1)
    add = lambda a, b=v: a + b
    results = [
        clamp(v), clamp(v, 5), clamp(v, high=7), total(v, 1, 2, scale=3), total(*[v, v]),
        nested_returns(v, 4 - v), power(v, 3), call(clamp, v, high=4), double(v), double(v, by=5), add(1), add(1, 2),
        functools.partial(clamp, low=3)(v), functools.reduce(lambda a, b: a * b + 1, [v, 2, 3]), counter,
        sum(many(4)) + cached(5), log2(64), sum(map(lambda t: t + v, range(3))), first_of([3, v + 1, 7], v),
        (lambda t: t * t)(v), operator.add(v, 1), call(**{"function": double, "y": v}),
    ]  # fmt: skip
    for k, r in enumerate(results):
        out[k, i] = r


def adder(n):
    return lambda x: x + n


SHIFT = adder(5)


PAIR = (lambda t: t + 1 if t > 2 else t), (lambda t: t * 10 if t > 3 else t)  # one line


@tc.kernel
def several_lambdas(out):
    i = tc.threadIdx.x
    out[i] = PAIR[0](i) + PAIR[1](i)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="code has no columns")
def test_lambdas_on_one_line_are_told_apart():
    compare_with_python(several_lambdas, zeros())


def make_kernel(factor: int) -> Any:
    table = [factor, factor + 1]

    @tc.kernel
    def scaled(out):
        i = tc.threadIdx.x
        out[i] = SHIFT(i) * factor + table[1] + adder(i)(1)

    return scaled


as_python(zeros())(make_kernel(7))


class Scale:
    def __init__(self, by: int) -> None:
        self.by = by

    def __call__(self, x):
        return x * self.by if x > 3 else x

    def more(self, x):
        if x > 5:
            return self(x) + 1
        return self.by


@as_python(zeros())
@tc.kernel
def objects(out, scale: tc.Const = Scale(3)):
    i = tc.threadIdx.x
    out[i] = scale(i) + scale.more(i)


@pytest.mark.parametrize("kernel, args, options", CASES)
def test_python_is_the_same(kernel, args, options):
    compare_with_python(kernel, *copy.deepcopy(args), **options)


@tc.kernel
def calls_kernel(x, out):
    classify(x, out)


def test_a_kernel_may_call_another():
    x, out = np.arange(N, dtype=np.int32) - 5, zeros()
    launch(calls_kernel, x, out)
    assert np.array_equal(out, np.sign(x))


@as_python(ORDER, zeros())
@tc.kernel
def comprehensions(x, out):
    i = tc.threadIdx.x
    k = 50
    squares = [k * x[i] for k in range(5) if k % 2]
    nested = [a + b for a in range(2) for b in (10, 20)]
    table = {name: n * x[i] for n, name in enumerate("abc")}
    *head, last = squares + [1]
    first, (second, third) = nested[0], nested[1:3]
    flat = sum(v for v in table.values())
    out[i] = (
        sum(squares) + sum(nested) * 1000 + flat + k + last + first + second + third + len(head) + table["c"]
    )


@as_python(zeros(count=4), block=1)
@as_python(zeros(count=4), block=1, mode="max", sizes=(5, 4))
@tc.kernel
def static_control(out, mode: tc.Const = "sum", sizes: tc.Const = (1, 2), flag: tc.Const = True):
    assert len(sizes) == 2, f"two sizes are needed, not {len(sizes)}"
    if mode == "sum":
        result = sum(sizes)
    elif mode == "max":
        result = max(sizes)
    else:
        raise ValueError(f"unknown mode {mode}")
    text = f"{mode}:{result:03d}"
    out[0] = result if flag else undefined_name  # noqa: F821
    out[1] = len(text)
    with Context(out) as inside:
        out[2] = inside


class Context:
    def __init__(self, out: Any) -> None:
        self.out = out

    def __enter__(self) -> int:
        return 11

    def __exit__(self, *_: Any) -> None:
        self.out[3] = 12
