"""Pickling and copying: kernels by name, types and instructions as themselves, in other processes."""

from __future__ import annotations

import copy
import functools
import inspect
import multiprocessing
import os
import pickle
import pydoc
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import isa
from tensorcore_dsl.arch import ARCHS
from tensorcore_dsl.dtypes import ALL
from tensorcore_dsl.isa import namespaces

ROOT = Path(__file__).parents[1]


@tc.kernel
def add(x: tc.Array, y: tc.Array, number: tc.f32, count, twice: tc.Const = False):
    """y = x + number, for `count` elements."""
    i = tc.threadIdx.x
    if i < count:
        y[i] = x[i] + number * (2 if twice else 1)


@tc.kernel(name="another", threads=64)
def named(x: tc.Array):
    x[tc.threadIdx.x] = 1


@tc.autotune([tc.Config(BLOCK=64), tc.Config(BLOCK=32)])
@tc.kernel
def tuned(x: tc.Array, BLOCK: tc.Const):
    x[tc.threadIdx.x] = BLOCK


class Holder:
    @tc.kernel
    def inside(x: tc.Array):  # noqa: N805
        x[tc.threadIdx.x] = 1


def returned(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def made() -> Any:
    @tc.kernel
    def local(x: tc.Array):
        x[0] = 1

    return local


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_kernels_are_themselves(protocol):
    for kernel in (add, named, tuned, Holder.inside):
        assert pickle.loads(pickle.dumps(kernel, protocol)) is kernel
    assert pickle.loads(pickle.dumps(tuned.kernel, protocol)) is tuned.kernel


def test_copies_are_themselves():
    local = made()
    for value in (
        add,
        tuned,
        local,
        tc.f16,
        isa.instruction("add.rn.f32"),
        ARCHS["sm_80"],
        tc.mma,
        tc.mma.sp,
    ):
        assert copy.copy(value) is value and copy.deepcopy(value) is value
        assert copy.deepcopy({"x": [value]})["x"][0] is value


def test_kernels_without_a_place_are_refused():
    with pytest.raises(
        pickle.PicklingError, match=r"kernel local of module .*defined in a function \(made.<locals>"
    ):
        pickle.dumps(made())
    other = tc.kernel(add.function)
    with pytest.raises(pickle.PicklingError, match="test_pickling.add is another object, <kernel add"):
        pickle.dumps(other)
    other.__qualname__ = "gone"
    with pytest.raises(pickle.PicklingError, match="test_pickling.gone is not there"):
        pickle.dumps(other)


@pytest.mark.parametrize("dtype", ALL.values(), ids=str)
def test_types_are_themselves(dtype):
    assert returned(dtype) is dtype and copy.deepcopy(dtype) is dtype


def test_architectures_and_namespaces_are_themselves():
    for arch in ARCHS.values():
        assert returned(arch) is arch
    for space in (tc.mma, tc.mma.sp, tc.mma.sp.block_scale, tc.mma.block_scale, tc.wgmma.sp, tc.wmma):
        assert isinstance(space, namespaces.Namespace) and returned(space) is space


@pytest.mark.parametrize("opcode", isa.opcodes())
def test_instructions_are_themselves(opcode):
    every = list(isa.instructions(opcode))
    for instr in every[:: max(1, len(every) // 100)]:
        assert returned(instr) is instr
        for operand in (*instr.results, *instr.operands):
            again = returned(operand)
            assert again == operand and hash(again) == hash(operand)
            assert again.dtype is operand.dtype and again.layout == operand.layout


def test_what_is_printed_is_pickled():
    instr = isa.instruction("vprintf.f64.s32")
    assert returned(instr) is instr


def test_launches_keep_their_configuration():
    x = np.zeros(32, np.float32)
    returned(add[1, (8, 1)])(x, x, 2.0, 8)
    assert x[:8].tolist() == [2.0] * 8 and not x[8:].any()
    assert returned(add.configured(2, 32, pdl=True)) is add.configured(2, 32, pdl=True)
    with pytest.raises(pickle.PicklingError, match="a launch of add on a stream cannot be pickled"):
        pickle.dumps(add[1, 32, 7])


def test_configurations_and_results_of_tuning():
    config = tc.Config(BLOCK=64, DTYPE=tc.bf16, max_registers=64)
    assert returned(config) == config and returned(config)["DTYPE"] is tc.bf16
    tuning = tc.Tuning("key", (tc.Trial(config, 1.0), tc.Trial(config, failure="LaunchError: no")))
    assert returned(tuning) == tuning and str(returned(tuning)) == str(tuning)


def test_errors_are_pickled_with_their_place():
    with pytest.raises(tc.OutOfBounds) as caught:
        add.emulate[1, 32](np.zeros(4, np.float32), np.zeros(4, np.float32), 1.0, 32)
    again = returned(caught.value)
    assert type(again) is tc.OutOfBounds and str(again) == str(caught.value) and again.loc == caught.value.loc


# -- other processes --------------------------------------------------------------------------


def launched(kernel: Any, x: np.ndarray, *arguments: Any) -> np.ndarray:
    out = np.zeros_like(x)
    with tc.target("cpu"):
        kernel[1, 32](x, out, *arguments)
    return out


def product(instr: Any, dtype: Any) -> Any:
    assert isa.instruction(instr.mnemonic) is instr and ALL[dtype.name] is dtype
    assert instr.a.layout.coords.shape[0] == 32
    return instr, dtype, instr.a


def failing(kernel: Any) -> None:
    with tc.target("cpu"):
        kernel[1, 32](np.zeros(4, np.float32), np.zeros(4, np.float32), 1.0, 32)


def test_processes_that_are_spawned():
    """Kernels, instructions, results and errors pass to a process of its own, and back."""
    x = np.arange(32, dtype=np.float32)
    mma = tc.mma.m16n8k16(tc.bf16, tc.bf16, tc.f32)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        done = pool.submit(launched, add, x, 3.0, 32)
        assert np.array_equal(done.result(120), x + 3)
        instr, dtype, operand = pool.submit(product, mma, tc.bf16).result(120)
        assert instr is mma and dtype is tc.bf16 and operand == mma.a
        with pytest.raises(tc.OutOfBounds, match=r"(?s)axis 0 of 'x'.*test_pickling\.py:\d+ in add"):
            pool.submit(failing, add).result(120)


SCRIPT = """
import multiprocessing
import numpy as np
import tensorcore_dsl as tc

@tc.kernel
def double(x: tc.Array):
    x[tc.threadIdx.x] = 2 * x[tc.threadIdx.x]

def work(kernel, x):
    kernel[1, 8](x)
    return kernel, x

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        kernel, x = pool.apply(work, (double, np.arange(8)))
    print(kernel is double, x.tolist())
"""


def test_kernels_of_scripts(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TENSORCORE_DSL_TARGET": "cpu"}
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout == "True [0, 2, 4, 6, 8, 10, 12, 14]\n", done.stderr


# -- what introspection sees ------------------------------------------------------------------


@pytest.mark.parametrize("kernel", [add, named, Holder.inside, tuned], ids=lambda k: k.__name__)
def test_kernels_look_like_their_functions(kernel):
    function = kernel.__wrapped__
    assert kernel.__module__ == __name__ and kernel.__qualname__ == function.__qualname__
    assert kernel.__doc__ == function.__doc__
    assert inspect.signature(kernel) == inspect.signature(function)
    assert inspect.unwrap(kernel) is function
    assert inspect.getsource(kernel) == inspect.getsource(function)


def test_names_and_help():
    assert (add.__name__, named.__name__, named.__qualname__) == ("add", "another", "named")
    text = pydoc.plain(pydoc.render_doc(add))
    assert "class add(Kernel)" in text and "y = x + number, for `count` elements." in text
    assert f"add{inspect.signature(add.function)}" in text and "configured(self, grid" in text
    text = pydoc.plain(pydoc.render_doc(named))
    assert f"another{inspect.signature(named.function)}" in text and "configured(self, grid" in text


def test_kernels_may_be_wrapped():
    @functools.wraps(add)
    def wrapper(*args: Any) -> None:
        """of its own"""

    assert wrapper.__name__ == "add" and inspect.signature(wrapper) == inspect.signature(add)
