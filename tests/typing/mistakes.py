"""Mistakes that type checkers find: `# error:` names the rules of mypy and of pyright.

The file is never run. Every other line is right.
"""

import numpy as np

import tensorcore_dsl as tc
from tensorcore_dsl import kernels


@tc.kernel
def members(x: tc.Array, n: tc.s32, eps: tc.f32, steps: tc.Const[int] = 4) -> None:
    tile = tc.shared((16, 16), tc.f16)
    mma = tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32)
    acc = mma.d.zeros()
    x[0] = x.shape[0]
    x[0] = x.shpe[0]  # error: attr-defined, reportAttributeAccessIssue
    tile.at(0, 0).load()
    tile.at(0, 0).laod()  # error: attr-defined, reportAttributeAccessIssue
    tc.ldmatrix(tile, mma.e)  # error: attr-defined, reportAttributeAccessIssue
    mma.a.zeroes()  # error: attr-defined, reportAttributeAccessIssue
    acc.maps(lambda value: value)  # error: attr-defined, reportAttributeAccessIssue
    eps.too(tc.f16)  # error: attr-defined, reportAttributeAccessIssue
    tc.lane_id().bit(tc.u32)  # error: attr-defined, reportAttributeAccessIssue
    tc.threadIdx.w  # error: attr-defined, reportAttributeAccessIssue
    tc.f16.itemsze  # error: attr-defined, reportAttributeAccessIssue
    tc.mbarriers(2)[0].await_(0)  # error: attr-defined, reportAttributeAccessIssue
    steps.missing  # error: attr-defined, reportAttributeAccessIssue


@tc.kernel(threads=128, min_blocks=2)
def instructions(x: tc.Array) -> None:
    tc.mma.m16n8k17(tc.f16, tc.f16, tc.f32)  # error: attr-defined, reportAttributeAccessIssue
    tc.wgmma.m64n12k16(tc.f16, tc.f16, tc.f32)  # error: attr-defined, reportAttributeAccessIssue
    tc.mma.sparse  # error: attr-defined, reportAttributeAccessIssue
    tc.mma.m16n8k16(tc.f16, tc.f16)  # error: call-arg, reportCallIssue
    tc.mma.m16n8k16(tc.f16, tc.f16, tc.f32, relu=True)  # error: call-arg, reportCallIssue
    mma = tc.mma.m16n8k8(tc.tf32, tc.tf32, tc.f32)
    mma(x[0], x[1])  # error: call-arg, reportCallIssue


@tc.kernel
def functions(x: tc.Array) -> None:
    tc.ldmatrx(x, x)  # error: attr-defined, reportAttributeAccessIssue
    tc.f31(0)  # error: attr-defined, reportAttributeAccessIssue
    tile = tc.shared((16, 16), tc.f16, swizle=128)  # error: call-arg, reportCallIssue
    tc.ldmatrix(tile)  # error: call-arg, reportCallIssue
    tc.cp_async(tile.at(0, 0), x.at(0), 16, valide=3)  # error: call-arg, reportCallIssue
    tc.shared((16, 16), 32)  # error: arg-type, reportArgumentType
    tc.mbarriers("2")  # error: arg-type, reportArgumentType
    tc.store_elements(tile, 4)  # error: arg-type, reportArgumentType
    tc.exp2(x[0], x[1])  # error: call-arg, reportCallIssue
    tc.shfl_xor(x[0], 1, msk=3)  # error: call-arg, reportCallIssue
    tc.tma_wait(0)  # error: attr-defined, reportAttributeAccessIssue


@tc.kernel(thread=128)  # error: call-overload, untyped-decorator, reportCallIssue
def options(x: tc.Array) -> None:
    x[0] = 0


@tc.kernel
def nested(x: tc.Array, y: tc.Array) -> None:
    instructions(x)
    functions(y[0, :])
    tc.exp(x)  # error: arg-type, reportArgumentType
    tc.maximum(x, 0)  # error: arg-type, reportArgumentType
    tc.barrier("all")  # error: arg-type, reportArgumentType
    tc.mbarriers(2)[0].wait(0.5)  # error: arg-type, reportArgumentType
    tc.row_sum(x)  # error: arg-type, reportArgumentType
    tc.load(x.at(0), chache=".cg")  # error: call-arg, reportCallIssue
    tc.lane_id().to(tc.f32, roundng="rz")  # error: call-arg, reportCallIssue
    for i in tc.range(x.shape):  # error: arg-type, reportArgumentType
        x[i] = 0


@tc.kernel  # error: arg-type, reportArgumentType
def returns(x: tc.Array) -> tc.f32:
    return tc.f32(0)


@tc.autotune([tc.Config(BLOCK=32)], keys=["x"])  # error: call-arg, reportCallIssue
@tc.kernel
def tuned(x: tc.Array, BLOCK: tc.Const[int]) -> None:
    return tc.lane_id()  # error: return-value, reportReturnType


numbers = np.zeros(32, np.float32)
functions(numbers)  # error: arg-type, reportArgumentType
functions[1](numbers)  # error: index, reportArgumentType
functions[1.5, 32](numbers)  # error: index, reportArgumentType
functions[1, "32"](numbers)  # error: index, reportArgumentType
functions[(1, 2.0), 32](numbers)  # error: index, reportArgumentType
functions[1, 32, None, 0, 0](numbers)  # error: index, reportArgumentType
functions.emulate[1](numbers)  # error: index, reportArgumentType
functions.emulate(numbers)  # error: operator, reportCallIssue
functions.ptx(numbers, arch=90)  # error: arg-type, reportArgumentType
functions.emulate_[1, 32](None)  # error: attr-defined, reportAttributeAccessIssue
functions.emulator("sm_80", profiles=True)  # error: call-arg, reportCallIssue
functions.configured(1, 32, clusters=2)  # error: call-arg, reportCallIssue
kernels.gem(None, None)  # error: attr-defined, reportAttributeAccessIssue
