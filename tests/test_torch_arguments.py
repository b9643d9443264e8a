"""Describing tensors of PyTorch as arguments of kernels."""

import types

import pytest

from tensorcore_dsl import dtypes
from tensorcore_dsl.errors import ArgumentError
from tensorcore_dsl.runtime.arguments import ArrayType, describe
from tests.arrays import Dlpack

torch = pytest.importorskip("torch")

TORCH_DTYPES = [
    (torch.float16, "f16"), (torch.bfloat16, "bf16"), (torch.float32, "f32"),
    (torch.float64, "f64"), (torch.float8_e4m3fn, "e4m3"), (torch.float8_e5m2, "e5m2"),
    (torch.int8, "s8"), (torch.uint8, "u8"), (torch.int16, "s16"), (torch.int32, "s32"),
    (torch.int64, "s64"), (torch.bool, "pred"), (torch.uint16, "u16"), (torch.uint32, "u32"),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "name"), TORCH_DTYPES, ids=str)
def test_tensors(dtype, name):
    tensor = torch.zeros((4, 64), dtype=dtype)
    description = describe(tensor)
    assert description.type == ArrayType(dtypes.named(name), 2, (False, True), 16, True)
    assert description[1:4] == (tensor.data_ptr(), (4, 64), (64, 1))
    assert description.on_host
    assert describe(tensor.T).type.unit == (True, False)
    assert describe(torch.nn.Parameter(tensor, requires_grad=False)).type == description.type


def test_tensors_on_gpu():
    """By duck typing: no GPU is here, the tensor says that it lies on one."""

    class Tensor:
        device = types.SimpleNamespace(type="cuda", index=3)
        dtype, layout, shape = torch.bfloat16, torch.strided, torch.Size([2, 8])
        is_sparse = False
        is_neg = is_conj = staticmethod(lambda: False)
        data_ptr = staticmethod(lambda: 0x7F0000000100)
        stride = staticmethod(lambda: (8, 1))

    Tensor.__module__ = "torch"
    description = describe(Tensor())
    assert description.type == ArrayType(dtypes.bf16, 2, (False, True), 16, True)
    assert (description.device, description.pointer, description.on_host) == (3, 0x7F0000000100, False)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: torch.zeros(3, dtype=torch.complex64), r"complex64.*pass torch.view_as_real\(x\)"),
        (lambda: torch.zeros(3, dtype=torch.uint8).view(torch.float4_e2m1fn_x2), r"x\.view\(torch\.uint8\)"),
        (lambda: torch.zeros(3, device="meta"), "meta"),
        (lambda: torch.eye(3).to_sparse(), "to_dense"),
        (lambda: torch.zeros(3, dtype=torch.complex64).conj().imag, "resolve_neg"),
    ],
)
def test_refused(make, text):
    with pytest.raises(ArgumentError, match=text) as caught:
        describe(make(), "argument 'a'")
    assert "argument 'a'" in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float16, torch.bool])
def test_dlpack(dtype):
    tensor = torch.zeros((5, 6, 32), dtype=dtype)[1:, :, ::2]
    assert describe(Dlpack(tensor)) == describe(tensor)
