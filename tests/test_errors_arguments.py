"""What users read of kernels that cannot be, and of arguments that do not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from refused_kernels import F32

import tensorcore_dsl as tc
from tensorcore_dsl import ArchError, ArgumentError, TensorCoreError, UnsupportedSyntax


@tc.kernel
def plain(x: tc.Array, n: tc.s32, size: tc.Const = 4):
    x[n] = size


def says(
    message: str, call: Callable[[], Any], error: type[TensorCoreError] = ArgumentError
) -> None:
    with pytest.raises(error) as found:
        call()
    assert found.value.message == message


def test_launch_without_grid():
    says(
        "kernel plain is launched with a grid and a block: plain[grid, block](...)",
        lambda: plain(1, 2),
    )
    says(
        "plain[grid, block, stream=None, shared_bytes=0] takes 2 to 4 values, 3 was given",
        lambda: plain[3],
    )
    says(
        "plain.emulate[grid, block, stream=None, shared_bytes=0] takes 2 to 4 values, 3 was given",
        lambda: plain.emulate[3],
    )


def test_arguments_that_do_not_fit_the_parameters():
    x, run = np.zeros(4, np.float32), plain.emulate[1, 1]
    names = "x, n, size"
    says(f"plain takes 3 arguments ({names}), 4 were given", lambda: run(x, 1, 2, 3))
    says(f"plain: argument 'n' is missing; the parameters are {names}", lambda: run(x))
    says(f"plain: argument 'm' is unknown; the parameters are {names}", lambda: run(x, 1, m=2))
    says(
        f"plain: argument 'x' is given twice; the parameters are {names}", lambda: run(x, x=x, n=1)
    )
    says("plain: argument 'x' is a s32 number; the parameter takes an array", lambda: run(3, 1))
    says(
        "plain: argument 'n' is a numpy.ndarray; the parameter takes a s32 number",
        lambda: run(x, x),
    )
    says(
        "plain: argument 'n' is 1.5; s32 holds integers from -2147483648 to 2147483647",
        lambda: run(x, 1.5),
    )
    says(
        "plain: argument 'n' is compiled for f32; the parameter is declared as s32",
        lambda: plain.ptx(F32, tc.f32),
    )
    with pytest.raises(
        ArgumentError,
        match="plain: argument 'x' is a str, which no kernel takes; allowed are NumPy",
    ):
        run("x", 1)
    with pytest.raises(
        ArgumentError, match="plain: argument 'x': arrays of dtype complex64 are not supported"
    ):
        run(x.astype(np.complex64), 1)


def test_kernels_that_cannot_be():
    says("kernel spread: *xs is not possible; name every parameter", lambda: tc.kernel(spread))
    says(
        "kernel noted: the annotation 'nowhere.f32' of 'x' cannot be evaluated: NameError: name 'nowhere' is not defined",
        lambda: tc.kernel(noted),
    )
    says("@kernel decorates functions, not 3", lambda: tc.kernel(3))
    says(
        "generator is a generator or coroutine; kernels and their helpers are plain functions",
        lambda: tc.kernel(generator).ptx(arch="sm_80"),
        UnsupportedSyntax,
    )
    says(
        "the source of hidden cannot be read: it was made from a string; give the string a name of its own, "
        "`linecache.cache[name] = (len(text), None, text.splitlines(True), name)`, and run "
        "`exec(compile(text, name, 'exec'))`",
        lambda: tc.kernel(HIDDEN).ptx(arch="sm_80"),
        UnsupportedSyntax,
    )
    says(
        "a kernel is a function with a name, not a lambda",
        lambda: tc.kernel(LAMBDA).ptx(arch="sm_80"),
        UnsupportedSyntax,
    )


def spread(*xs):
    pass


def noted(x: nowhere.f32):  # noqa: F821
    pass


def generator():
    yield


NAMES: dict[str, Any] = {}
exec("def hidden(): pass", NAMES)
HIDDEN = NAMES["hidden"]
LAMBDA = lambda: None


def test_targets(monkeypatch: Any):
    def enter(*args: Any) -> None:
        with tc.target(*args):
            pass

    says("unknown target 'tpu'; allowed are cpu, cuda", lambda: enter("tpu"))
    with pytest.raises(ArchError, match="unknown architecture 'sm_79'; known are sm_70"):
        enter("cpu", "sm_79")
    monkeypatch.setenv("TENSORCORE_DSL_TARGET", "tpu")
    says("TENSORCORE_DSL_TARGET is 'tpu'; allowed are cpu, cuda", tc.current_target)


def test_a_gpu_of_the_future(monkeypatch: Any):
    from tensorcore_dsl.runtime import targets

    monkeypatch.setattr(targets.driver, "compute_capability", lambda: 137)
    says("the GPU's compute capability 137 is unknown to this version", targets.device_arch)


class OnDevice:
    is_cuda = True


OnDevice.__module__ = "torch"


def test_arrays_that_the_cpu_cannot_read():
    from tensorcore_dsl.runtime.host_arrays import on_host

    def view(arg: Any) -> None:
        with on_host([arg]):
            pass

    says("a CUDA tensor cannot be read by the CPU: pass tensor.cpu()", lambda: view(OnDevice()))
    says("a list cannot be read by the CPU: pass a NumPy array or a CPU tensor", lambda: view([1]))


def test_clusters_have_sizes_that_are_known():
    @tc.kernel
    def sized(x: tc.Array, n):
        tc.cluster_size(n)

    with pytest.raises(tc.OperandError) as error:
        sized.emulate[2, 32](np.zeros(32, np.float32), 2)
    assert "not (a run-time value of type s32); a tc.Const parameter is one" in str(error.value)
    assert "tc.cluster_size(n)" in str(error.value)
