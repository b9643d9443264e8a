"""`assert` in kernels: in emulation, on the GPU, and when its value is known."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

import tensorcore_dsl as tc
from tests import running
from tests.arrays import ints
from tests.assembler import assembles

pytestmark = pytest.mark.usefixtures("fresh_ir")

N = 32
launch = functools.partial(running.launch, block=N)


@tc.kernel
def asserting(x, n: tc.Const = 4):
    i = tc.blockIdx.x * tc.blockDim.x + tc.threadIdx.x
    assert n % 2 == 0 and x.dtype == tc.s32, "known when compiling"
    assert x[i] < 100, f"more than 100% of {n}"  # a message
    if x[i] < 0:
        if x[i] < -1:
            assert False, "never"  # a branch
        tc.assert_(x[i] != -1)  # no message
    assert x[i] != 99, (n, x.dtype)  # an object
    x[i] += 1


ASSERTIONS = [
    (7, 100, r"more than 100% of 4 \(CTA \(1,0,0\), thread \(3,0,0\)\)", "a message"),
    (2, -5, r"assertion failed: never \(CTA \(0,0,0\), thread \(2,0,0\)\)", "a branch"),
    (3, 99, r"assertion failed: \(4, s32\) \(CTA", "an object"),
    (1, -1, r"assertion failed: the condition does not hold \(CTA", "no message"),
]


def line_with(comment: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(i for i, line in enumerate(lines, 1) if line.endswith(f"# {comment}"))


@pytest.mark.parametrize(("at", "value", "message", "comment"), ASSERTIONS)
def test_assertions_in_emulation(at, value, message, comment):
    x = ints(*range(8))
    asserting.emulate[2, 4](x)
    assert x.tolist() == list(range(1, 9))
    x[at] = value
    with pytest.raises(tc.AssertionFailed, match=message) as error:
        asserting.emulate[2, 4](x)
    assert error.value.loc.line == line_with(comment)


def test_assertions_on_the_gpu():
    """Each prints its file, line, block and thread, and traps; checks=False leaves them out."""
    x = ints(*range(8))
    text = asserting.ptx(x, arch="sm_90a")
    assert text.count("trap;") == text.count("vprintf, (first, second)") == 4
    strings = [
        bytes(map(int, line.split("{")[1].strip("};").split(", ")))
        for line in text.splitlines()
        if ".b8 string" in line
    ]
    line = line_with("a message")
    wanted = f"test_assertions.py:{line}: AssertionFailed: assertion failed: more than 100%% of 4%.0lld"
    assert strings[0].decode().startswith(wanted)
    unchecked = tc.kernel(asserting.function, checks=False)
    assert "vprintf" not in unchecked.ptx(x, arch="sm_90a")
    x[0] = 200
    unchecked.emulate[1, 4](x)
    asserting.emulator(checks=False)[1, 4](x)
    assert x.tolist()[:5] == [202, 3, 4, 5, 4]


def test_assertions_that_are_known_cost_nothing():
    @tc.kernel
    def known(x):
        assert x.dtype.bits == 32, "of 32 bits"
        tc.assert_(len(x.shape) == 1, "a vector")
        x[0] = 1

    assert "vprintf" not in known.ptx(ints(1), arch="sm_90a")


@pytest.mark.parametrize("arch", ["sm_75", "sm_90a", "sm_120a"])
def test_assertions_assemble(arch):
    pytest.importorskip("cuda.core", reason="needs nvJitLink")
    assert assembles(asserting.ptx(ints(1), arch=arch), arch) == ""
