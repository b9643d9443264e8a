"""Generic addresses: matrices from shared and from global memory through one instruction."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import isa
from tensorcore_dsl.errors import EmulationError, OutOfBounds

LOAD_A = "wmma.load.a.sync.aligned.row.m16n16k16"
LOAD_B = "wmma.load.b.sync.aligned.col.m16n16k16"
STORE = "wmma.store.d.sync.aligned.row.m16n16k16"
MMA = "wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32"


def filled(x: Any, tile: Any) -> None:
    for i in tc.range(tc.threadIdx.x, 256, 32):
        tile[i // 16, i % 16] = x[i // 16, i % 16]
    tc.syncwarp()


@tc.kernel
def product(x: tc.Array, y: tc.Array, d: tc.Array):
    """A from shared memory and B from global memory, D to shared memory, all by generic addresses."""
    tile, out = tc.shared((16, 16), tc.f16), tc.shared((16, 16), tc.f32)
    filled(x, tile)
    a = tc.emit(f"{LOAD_A}.f16", tile, 16)
    b = tc.emit(f"{LOAD_B}.f16", y.address, 16)
    c = isa.instruction(MMA).c.zeros()
    tc.emit(f"{STORE}.f32", out, tc.emit(MMA, a, b, c), 16)
    tc.syncwarp()
    tc.emit(f"{STORE}.f32", d.address, tc.emit(f"{LOAD_A.replace('load.a', 'load.c')}.f32", out, 16), 16)


def inputs() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    return tuple(rng.integers(-4, 5, (16, 16)).astype(np.float16) for _ in range(2))  # type: ignore[return-value]


def test_wmma_reads_and_writes_both_memories():
    x, y = inputs()
    d = np.zeros((16, 16), np.float32)
    product.emulator(arch="sm_90a")[1, 32](x, y, d)
    np.testing.assert_array_equal(d, x.astype(np.float32) @ y.T.astype(np.float32))


@tc.kernel
def chosen(x: tc.Array, y: tc.Array, out: tc.Array, registers: tc.Const):
    """Warp 0 loads from shared memory, warp 1 from global memory, by one instruction."""
    tile = tc.shared((16, 16), tc.f16)
    if tc.threadIdx.x < 32:
        filled(x, tile)
    shared = tc.emit("cvta.shared.u64", tile.address.to(tc.u64))
    address = tc.select(tc.threadIdx.x < 32, shared, y.address)
    a = tc.emit(f"{LOAD_A}.f16", address, 16)
    for i in range(registers):
        out[tc.threadIdx.x, i] = a.registers[i].bits(tc.u32)


def test_warps_of_one_step_address_different_memories():
    x, y = inputs()
    registers = isa.instruction(f"{LOAD_A}.f16").results[0].registers
    out = np.zeros((64, registers), np.uint32)
    chosen.emulator(arch="sm_90a")[1, 64](x, y, out, registers=registers)
    for warp, array in enumerate((x, y)):
        layout = isa.instruction(f"{LOAD_A}.f16").results[0].layout
        want = array[layout.coords[..., 0], layout.coords[..., 1]]
        np.testing.assert_array_equal(out[32 * warp :][:32].view(np.float16), want)


@tc.kernel
def transposed(x: tc.Array, out: tc.Array):
    tile, other = tc.shared((16, 16), tc.f16), tc.shared((16, 16), tc.f16)
    filled(x, tile)
    row = tc.threadIdx.x % 16
    a = tc.emit("ldmatrix.sync.aligned.m8n8.x2.trans.b16", tile[row, 0:8])
    generic = tc.emit("cvta.shared.u64", other[row, 8:16].address.to(tc.u64))
    tc.emit("stmatrix.sync.aligned.m8n8.x2.b16", generic, a)
    tc.syncwarp()
    back = tc.emit("cvta.to.shared.u64", generic).to(tc.u32)
    b = tc.emit("ldmatrix.sync.aligned.m8n8.x2.shared.b16", back)
    for i in range(2):
        out[i, tc.threadIdx.x] = b.registers[i]


def test_ldmatrix_and_stmatrix_take_generic_addresses():
    x, _ = inputs()
    out = np.zeros((2, 32), np.uint32)
    transposed.emulator(arch="sm_90a")[1, 32](x, out)
    got = out.view(np.float16).reshape(2, 8, 8)
    np.testing.assert_array_equal(got, x[:, :8].reshape(2, 8, 8).transpose(0, 2, 1))


@tc.kernel
def four_matrices(x: tc.Array, out: tc.Array, trans: tc.Const):
    """All four at once, which compiled loops load where the address is one of shared memory."""
    tile = tc.shared((16, 16), tc.f16)
    filled(x, tile)
    row, column = tc.threadIdx.x % 16, tc.threadIdx.x // 16 * 8
    a = tc.emit(f"ldmatrix.sync.aligned.m8n8.x4{trans}.b16", tile.at(row, column))
    for i in range(4):
        out[i, tc.threadIdx.x] = a.registers[i]


@pytest.mark.parametrize("trans", ["", ".trans"])
def test_ldmatrix_takes_four_matrices_by_generic_addresses(trans):
    x, _ = inputs()
    out = np.zeros((4, 32), np.uint32)
    four_matrices.emulator(arch="sm_90a")[1, 32](x, out, trans)
    got = out.view(np.float16).reshape(2, 2, 8, 8)
    parts = x.reshape(2, 8, 2, 8).transpose(2, 0, 1, 3)
    np.testing.assert_array_equal(got, parts.swapaxes(2, 3) if trans else parts)


@tc.kernel
def from_global(x: tc.Array):
    tc.emit("ldmatrix.sync.aligned.m8n8.x1.b16", x.address)


@tc.kernel
def past_the_tile(out: tc.Array, offset: tc.Const):
    tile = tc.shared((8, 8), tc.f16)
    if tc.threadIdx.x < 8:
        for i in range(8):
            tile[tc.threadIdx.x, i] = 1.0
    tc.syncwarp()
    address = tc.emit("cvta.shared.u64", tile.address.to(tc.u64))
    a = tc.emit("ldmatrix.sync.aligned.m8n8.x1.b16", address + offset)
    out[tc.threadIdx.x] = a


def test_mistakes_are_told():
    with pytest.raises(
        EmulationError,
        match="lane 0 gives the generic address 0x.*, which is not in shared memory; ldmatrix needs",
    ):
        from_global.emulator(arch="sm_90a")[1, 32](inputs()[0])
    past_the_tile.emulator(arch="sm_90a")[1, 32](np.zeros(32, np.uint32), offset=0)
    with pytest.raises(OutOfBounds):
        past_the_tile.emulator(arch="sm_90a")[1, 32](np.zeros(32, np.uint32), offset=4096)


@tc.kernel
def of_a_peer(form: tc.Const):
    tc.cluster_size(2)
    tile = tc.shared((16, 16), tc.f16)
    row = 0 if form == "wmma" else tc.threadIdx.x % 8
    there = tile.at(row, 0).remote(1 - tc.cluster_rank())
    if form == "store":
        tc.emit("stmatrix.sync.aligned.m8n8.x1.b16", there, tc.u32(0))
    elif form == "load":
        generic = tc.emit("cvta.shared.u64", there.address.to(tc.u64))
        tc.emit("ldmatrix.sync.aligned.m8n8.x1.b16", generic)
    else:
        tc.emit(LOAD_A + ".f16", there, 16)
    tc.cluster_sync()


@pytest.mark.parametrize("form", ["load", "store", "wmma"])
def test_addresses_of_another_cta_are_refused(form):
    words = (
        "which is in the shared memory of another CTA; .* needs an address of .*the CTA's own shared memory"
    )
    with pytest.raises(EmulationError, match=words):
        of_a_peer.emulator(arch="sm_90a")[2, 32](form)


@pytest.mark.parametrize(
    "kernel, arguments",
    [
        (product, (np.zeros((16, 16), np.float16),) * 2 + (np.zeros((16, 16), np.float32),)),
        (transposed, (np.zeros((16, 16), np.float16), np.zeros((2, 32), np.uint32))),
    ],
)
def test_kernels_assemble(kernel, arguments):
    pytest.importorskip("cuda.core", reason="needs nvJitLink")
    assert kernel.cubin(*arguments, arch="sm_90a")


def test_tc_emulate_reads_shared_memory_by_both_kinds_of_addresses():
    memory = np.arange(512, dtype=np.uint16).view(np.uint8)
    rows = np.arange(32, dtype=np.uint32) * 16
    want = tc.emulate("ldmatrix.sync.aligned.m8n8.x4.shared.b16", rows, shared=memory)
    wide = rows.astype(np.uint64)
    generic = tc.emulate("cvta.shared.u64", wide)
    for address in (wide, generic):
        got = tc.emulate("ldmatrix.sync.aligned.m8n8.x4.b16", address, shared=memory)
        np.testing.assert_array_equal(got, want)
    assert (tc.emulate("cvta.to.shared.u64", generic) == wide).all()
    assert (tc.emulate("cvta.global.u64", generic) == generic).all()
