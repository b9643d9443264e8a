"""What users read of kernels that cannot be, and of arguments that do not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import ArchError, ArgumentError, LaunchError, TensorCoreError, UnsupportedSyntax
from tests.refused_kernels import F32


@tc.kernel
def plain(x: tc.Array, n: tc.s32, size: tc.Const = 4):
    x[n] = size


def says(message: str, call: Callable[[], Any], error: type[TensorCoreError] = ArgumentError) -> None:
    with pytest.raises(error) as raised:
        call()
    assert raised.value.message == message


def test_launch_without_grid():
    says("kernel plain is launched with a grid and a block: plain[grid, block](...)", lambda: plain(1, 2))
    says("plain[grid, block, stream=None, shared_bytes=0] takes 2 to 4 values, 3 was given", lambda: plain[3])
    says(
        "plain.emulate[grid, block, stream=None, shared_bytes=0] takes 2 to 4 values, 3 was given",
        lambda: plain.emulate[3],
    )
    needs = "kernel plain is launched with a grid and a block: plain"
    for emulator in (plain.emulate, plain.emulator("sm_80")):
        says(f"{needs}.emulate[grid, block](...)", lambda run=emulator: run(1, 2))
    says(f"{needs}.explore(3)[grid, block](...)", lambda: plain.explore(3)(1, 2))
    x = np.zeros(4, np.float32)
    for call in (lambda: plain.check(x, 2), lambda: plain[x, 2]):
        says(
            "grid is an array of shape (4,); a launch takes the grid and the block, and the "
            "arguments in a call of its own, as kernel[grid, block](...) and kernel.check(grid, "
            "block)(...) do",
            call,
            LaunchError,
        )


class Stream:
    """Like a stream of cuda.core."""

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, 7


@tc.kernel
def fill(x: tc.Array):
    x[tc.threadIdx.x] = 1


@pytest.mark.parametrize("stream", ["foo", [1], -5, object(), True])
def test_streams_are_checked_on_the_cpu_too(stream):
    tuned = tc.autotune([tc.Config(grid=1, block=4)])(fill)
    with tc.target("cpu"):
        for launch in (
            lambda: fill[1, 4, stream],
            lambda: fill.emulate[1, 4, stream],
            lambda: fill.configured(1, 4, stream=stream),
            lambda: tuned[1, 4, stream],
        ):
            with pytest.raises(ArgumentError, match="a stream cannot be "):
                launch()


@pytest.mark.parametrize("stream", [None, 0, 7, Stream()])
def test_streams_that_a_launch_on_the_cpu_takes(stream):
    with tc.target("cpu"):
        fill[1, 4, stream](x := np.zeros(4, np.float32))
    assert x.tolist() == [1, 1, 1, 1]


def test_options_of_configured():
    says(
        ".configured(grid, block, *, stream=None, shared_bytes=0, cluster=None, cooperative=False, "
        "pdl=False): got an unexpected keyword argument 'foo'",
        lambda: plain.configured(1, 32, foo=1),
    )
    for name in ("cooperative", "pdl"):
        says(
            f"{name} is 'no'; True or False are allowed",
            lambda name=name: plain.configured(1, 32, **{name: "no"}),
            LaunchError,
        )


@tc.kernel
def too_large(x: tc.Array):
    small = tc.shared((128,), tc.f32)
    large = tc.shared((512, 1024), tc.f32)
    x[0] = small[0] + large[0, 0]


@tc.kernel
def generates(x: tc.Array):
    x[0] = 1
    yield x[1]


@pytest.mark.parametrize(
    ("kernel", "line"),
    [(too_large, "    large = tc.shared((512, 1024), tc.f32)"), (generates, "    yield x[1]")],
)
def test_places_of_what_is_refused_as_a_whole(kernel, line):
    with pytest.raises(TensorCoreError) as error:
        kernel.ptx(F32)
    assert f"{line}\n" in str(error.value) and " in " + kernel.__name__ in str(error.value)


def test_emulating_an_instruction_without_its_shared_memory():
    with pytest.raises(
        tc.OutOfBounds, match=r"the CTA has no shared memory; pass shared=, its bytes \(uint8\)"
    ):
        tc.emulate("ldmatrix.sync.aligned.m8n8.x4.shared.b16", np.zeros(32, np.uint32))


@pytest.mark.parametrize("function", [tc.shfl_xor, tc.shfl_up, tc.shfl_down, tc.shfl])
@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_shuffles_with_the_mask_in_front(function, dtype):
    @tc.kernel
    def habit(x: tc.Array):
        x[tc.lane_id()] = function(0xFFFFFFFF, x[tc.lane_id()], 1)

    what = "lane" if function is tc.shfl else "distance"
    with pytest.raises(tc.OperandError) as error:
        habit.emulate[1, 32](np.zeros(32, dtype))
    assert error.value.message.endswith(f": tc.{function.__name__}(value, {what}, mask) takes the mask last")


@pytest.mark.parametrize("threads", [32, 128])
def test_a_race_within_a_warp_names_the_barrier_of_larger_blocks(threads):
    @tc.kernel
    def turned(x: tc.Array):
        tile = tc.shared((128,), tc.f32)
        t = tc.threadIdx.x
        tile[t] = x[t]
        x[t] = tile[tc.blockDim.x - 1 - t] if tc.blockDim.x == 32 else tile[t ^ 1]

    with pytest.raises(tc.Race) as error:
        turned.emulate[1, threads](np.zeros(128, np.float32))
    advice = "tc.syncwarp() between the two would order them"
    assert advice in str(error.value)
    more = f"{advice}, or tc.barrier() where other warps use it too"
    assert (more in str(error.value)) == (threads == 128)


def test_autotune_without_configurations():
    says("autotune takes configs, not kernel fill: @tc.autotune([...])", lambda: tc.autotune(fill))
    says("autotune takes configs, not 3: @tc.autotune([...])", lambda: tc.autotune(3))


def test_autotuned_emulation_takes_the_grid_of_the_configurations():
    tuned = tc.autotune([tc.Config(grid=1, block=4)])(fill)
    tuned.emulate(x := np.zeros(4, np.float32))
    assert x.tolist() == [1, 1, 1, 1]
    assert tuned.explore(2)(x).orders == 2


def test_arguments_that_do_not_fit_the_parameters():
    x, run = np.zeros(4, np.float32), plain.emulate[1, 1]
    names = "x, n, size"
    says(f"plain takes 3 arguments ({names}), 4 were given", lambda: run(x, 1, 2, 3))
    says(f"plain: argument 'n' is missing; the parameters are {names}", lambda: run(x))
    says(f"plain: argument 'm' is unknown; the parameters are {names}", lambda: run(x, 1, m=2))
    says(f"plain: argument 'x' is given twice; the parameters are {names}", lambda: run(x, x=x, n=1))
    says("plain: argument 'x' is a s32 number; the parameter takes an array", lambda: run(3, 1))
    says("plain: argument 'n' is a numpy.ndarray; the parameter takes a s32 number", lambda: run(x, x))
    says("plain: argument 'n' is 1.5; s32 holds integers from -2147483648 to 2147483647", lambda: run(x, 1.5))
    says(
        "plain: argument 'n' is compiled for f32; the parameter is declared as s32",
        lambda: plain.ptx(F32, tc.f32),
    )
    with pytest.raises(
        ArgumentError, match="plain: argument 'x' is a str, which no kernel takes; allowed are NumPy"
    ):
        run("x", 1)
    with pytest.raises(
        ArgumentError, match="plain: argument 'x': arrays of dtype complex64 are not supported"
    ):
        run(x.astype(np.complex64), 1)


def test_kernels_that_cannot_be():
    says(
        "spread has a parameter *xs: name its arguments by spread.with_arguments(...)",
        lambda: tc.kernel(spread)[1, 32](1),
    )
    says("kernel gather: **xs is not possible; name every parameter", lambda: tc.kernel(gather))
    says(
        "kernel noted: the annotation 'nowhere.f32' of 'x' cannot be evaluated: NameError: name 'nowhere' is not defined",
        lambda: tc.kernel(noted),
    )
    says("@kernel decorates functions, not 3", lambda: tc.kernel(3))
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


def gather(**xs):
    pass


def noted(x: nowhere.f32):  # noqa: F821
    pass


NAMES: dict[str, Any] = {}
exec("def hidden(): pass", NAMES)
HIDDEN = NAMES["hidden"]
LAMBDA = lambda: None


def test_targets(monkeypatch):
    def enter(*args: Any) -> None:
        with tc.target(*args):
            pass

    says("unknown target 'tpu'; allowed are cpu, cuda", lambda: enter("tpu"))
    with pytest.raises(ArchError, match="unknown architecture 'sm_79'; known are sm_70"):
        enter("cpu", "sm_79")
    monkeypatch.setenv("TENSORCORE_DSL_TARGET", "tpu")
    says("TENSORCORE_DSL_TARGET is 'tpu'; allowed are cpu, cuda", tc.current_target)


def test_a_gpu_of_the_future(monkeypatch):
    from tensorcore_dsl.runtime import targets

    monkeypatch.setattr(targets.driver, "compute_capability", lambda: 137)
    says("the GPU's compute capability 137 is unknown to this version", targets.device_arch)


@pytest.mark.parametrize(
    "number, name",
    [
        (72, "sm_70"),
        (87, "sm_87"),
        (88, "sm_88"),
        (90, "sm_90a"),
        (92, "sm_90"),
        (103, "sm_103a"),
        (107, "sm_103f"),
        (110, "sm_110a"),
        (121, "sm_121a"),
        (124, "sm_121f"),
    ],
)
def test_a_gpu_is_served_by_its_family(number, name, monkeypatch):
    from tensorcore_dsl.runtime import targets

    monkeypatch.setattr(targets.driver, "compute_capability", lambda: number)
    assert targets.device_arch() is tc.ARCHS[name]


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
