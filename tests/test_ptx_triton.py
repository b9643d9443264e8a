"""Kernels of Triton, run on the CPU through their PTX."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl.__main__ import main
from tensorcore_dsl.ptx import load, triton_kernels
from tests.foreign_corpus import without

pytest.importorskip("triton")
from triton.compiler.errors import CompilationError  # noqa: E402

from tests import triton_corpus as corpus  # noqa: E402
from tests import triton_kernels as kernels  # noqa: E402

RNG = np.random.default_rng(0)
ARCHS = ["sm_80", "sm_90a"]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Triton's reductions let several lanes write the same value, of which emulation warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def test_the_kernel_in_ptx() -> None:
    x = np.zeros((7, 300), np.float32)
    kernel = tc.ptx.from_triton(kernels.softmax, {"BLOCK": 512}, arch="sm_90a", num_warps=8)
    module, threads, shared = kernel.compiled(x, x, 300)
    assert module.name == "softmax" and threads == 256 and shared and ".target sm_90a" in module.module.ptx


def test_boxes_of_tensor_descriptors() -> None:
    a = np.zeros((256, 192), np.float16)
    with pytest.raises(tc.ArgumentError, match="a box of 1 axes for an array of 2"):
        tc.ptx.tensor_map(a, (64,))
    with pytest.raises(tc.ArgumentError, match="a swizzle of 16 bytes; allowed are 0, 32, 64 and 128"):
        tc.ptx.tensor_map(a, (64, 64), 16)


def test_a_descriptor_that_sees_its_array_in_another_shape() -> None:
    """Triton's tutorial of attention makes two axes of four."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    a, b, c = RNG.integers(-4, 5, (3, 2, 64, 128)).astype(np.float16)
    maps = [
        TensorDescriptor(x.view(triton_kernels._Tensor), [128, 128], [128, 1], [64, 64]) for x in (a, b, c)
    ]
    sizes = {"BM": 64, "BN": 64, "BK": 64}
    tc.ptx.from_triton(kernels.described_matmul, sizes, arch="sm_90a")[2, 2](*maps, 128)
    left, right, product = (x.astype(int).reshape(128, 128) for x in (a, b, c))
    assert np.array_equal(product, left @ right)


def test_registers_by_which_scripts_divide() -> None:
    """Triton's tutorial of softmax computes how many CTAs fit on a multiprocessor."""
    x = np.zeros((7, 300), np.float32).view(triton_kernels._Tensor)
    with tc.ptx.triton_on_cpu("sm_80"):
        kernel = kernels.softmax.warmup(x, x, 300, BLOCK=512, num_warps=16, grid=(1,))
        kernel._init_handles()
    assert kernel.n_regs == 65536 // (32 * 16)


def test_addresses_of_tensors() -> None:
    """Triton's tutorial of grouped GEMMs does so. An access beyond a tensor is reported with its bytes."""
    torch = pytest.importorskip("torch")
    x, out = torch.arange(100, dtype=torch.bfloat16), torch.zeros((2, 32), dtype=torch.bfloat16)
    with tc.ptx.triton_on_cpu("sm_90a") as reports:
        for shift, error in ((0, None), (5, tc.OutOfBounds)):
            addresses = torch.tensor([x[64 + shift :].data_ptr(), x[:32].data_ptr()])
            with pytest.raises(error, match="byte 200 of argument 'tensor 0'") if error else nullcontext():
                kernels.through_addresses[(2,)](out, addresses, N=32)
    assert torch.equal(out, torch.stack([x[64:96], x[:32]])) and len(reports) == 1
    assert x.data_ptr() == x.untyped_storage().data_ptr()


def test_heuristics_and_the_first_configuration() -> None:
    x, y = RNG.standard_normal((2, 300)).astype(np.float32)
    out = np.zeros_like(x)
    report = tc.ptx.from_triton(kernels.tuned_add)[lambda meta: (-(-300 // meta["BLOCK"]),)](x, y, out, 300)
    assert np.array_equal(out, x + y) and report.instructions
    assert kernels.tuned_add.best_config.kwargs == {"BLOCK": 64}


SCRIPT = """
import numpy as np
from tests import triton_kernels as kernels
from triton.runtime import driver

class Tensor(np.ndarray):
    data_ptr = property(lambda self: lambda: self.ctypes.data)

x, y = (np.zeros(300, np.int32).view(Tensor) for _ in range(2))
assert driver.active.get_current_target().arch == 80
kernels.beyond[(1,)](x, y, 300, BLOCK=256)
kernels.beyond[(2,)](x, y, 300, BLOCK=256)
"""


def test_a_script_of_triton(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It needs no GPU; one of the two launches stores beyond the end."""
    path = tmp_path / "script.py"
    path.write_text("import triton\n" + SCRIPT)
    assert main(["check", "--arch", "sm_80", str(path)]) == 1
    out = capsys.readouterr().out
    assert "triton_kernels.py" in out and "2 launches checked: 1 finding" in out


def test_an_access_out_of_bounds_is_at_its_line_of_python() -> None:
    x, out = np.zeros(300, np.int32), np.zeros(300, np.int32)
    with pytest.raises(tc.OutOfBounds, match="argument 'out'|argument 'beyond_param_1'") as error:
        tc.ptx.from_triton(kernels.beyond, {"BLOCK": 256})[2](x, out, 300)
    lines = inspect.getsource(kernels).splitlines()
    assert "OUTSIDE" in lines[error.value.loc.line - 1]


def test_explore() -> None:
    """The first order lets the last block be the last; another one does not."""
    out, kernel = np.zeros(1, np.int32), tc.ptx.from_triton(kernels.last_block)
    exploration = kernel.explore(20)[4](out)
    assert [d.argument for d in exploration.differences] == ["out"] and not out.any()
    kernel.emulator(order=exploration.order)[4](out)
    assert out[0] == exploration.differences[0].found != 3
    x = np.arange(300, dtype=np.int32)
    assert tc.ptx.from_triton(kernels.tuned_add).explore(3)[lambda meta: (-(-300 // meta["BLOCK"]),)](
        x, x, x * 0, 300
    )


def test_what_is_refused() -> None:
    with pytest.raises(tc.ArgumentError, match="is not a kernel of Triton; @triton.jit makes one"):
        tc.ptx.from_triton(len)
    with pytest.raises(tc.ArgumentError, match="softmax has no parameter SIZE; there are out, x, n, BLOCK"):
        tc.ptx.from_triton(kernels.softmax, {"SIZE": 1})
    with pytest.raises(
        tc.ArgumentError, match=r"softmax: missing 2 required positional arguments: 'x' and 'n'"
    ):
        tc.ptx.from_triton(kernels.softmax, {"BLOCK": 64})[1](np.zeros(3))
    with pytest.raises(tc.ArgumentError, match="softmax: 'complex64' is not a type or option of Triton"):
        tc.ptx.from_triton(kernels.softmax, {"BLOCK": 64})[1](np.zeros(3, np.complex64), np.zeros(3), 3)


@pytest.mark.quick(lambda name: 0)
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", corpus.CASES)
def test_kernels_are_right(name: str, arch: str) -> None:
    if (name, arch) == ("fp8 e4m3", "sm_80"):
        with pytest.raises(CompilationError, match="fp8e4nv not supported in this architecture"):
            corpus.run(name, arch)
    else:
        corpus.run(name, arch)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "name, arch, nth, line",
    [
        ("matmul f16", "sm_80", 7, "tl.load(left"),
        ("int8 matmul", "sm_80", 0, "tl.load(a + r[:, None]"),
        ("attention", "sm_80", 1, "query = tl.load"),
        ("matmul f16", "sm_90a", 1, "acc = tl.dot(x, y, acc)"),
        ("matmul f16", "sm_90a", 2, "acc = tl.dot(x, y, acc)"),
        ("matmul f16", "sm_90a", 5, "tl.store(c"),
        ("descriptors", "sm_90a", 13, "c.store([m, n]"),
        ("attention", "sm_90a", 3, "tl.maximum(most"),
    ],
)
def test_a_deleted_synchronisation_is_reported_at_the_line(
    name: str, arch: str, nth: int, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changed(text: str) -> tc.ptx.Module:
        match = re.search(r"\.entry (\w+)\(", text)
        assert match
        return load(without(text, match[1], nth))

    monkeypatch.setattr(triton_kernels, "load", changed)
    monkeypatch.setattr(triton_kernels, "_loaded", triton_kernels._loaded.__wrapped__)
    corpus.CASES[name]().kernel.device_caches.clear()
    with pytest.raises(tc.EmulationError) as error:
        corpus.run(name, arch)
    corpus.CASES[name]().kernel.device_caches.clear()
    loc = error.value.loc
    assert loc and line in Path(loc.filename).read_text().splitlines()[loc.line - 1]
