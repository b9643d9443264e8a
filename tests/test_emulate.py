"""Single instructions on register images: conventions, batches, errors, exact products."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tensorcore_dsl import isa
from tensorcore_dsl.errors import (
    ArchError,
    Divergence,
    EmulationError,
    OperandError,
    OutOfBounds,
    TensorCoreError,
    UnknownInstruction,
)
from tensorcore_dsl.interpreter import emulate
from tensorcore_dsl.layout import Layout

F16 = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
F64 = "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64"
LDMATRIX = "ldmatrix.sync.aligned.m8n8.x4.shared.b16"
STMATRIX = "stmatrix.sync.aligned.m8n8.x4.shared.b16"


def image(layout: Layout, matrix: np.ndarray) -> np.ndarray:
    """(..., threads, registers) of a (..., rows, cols) matrix."""
    row, col = layout.coords[..., 0], layout.coords[..., 1]
    elements = np.ascontiguousarray(matrix[..., row, col])
    return elements.view(np.uint64 if matrix.itemsize == 8 else np.uint32)


def matrix(layout: Layout, registers: np.ndarray, dtype: Any) -> np.ndarray:
    """The inverse of `image`."""
    out = np.zeros((*registers.shape[:-2], layout.rows, layout.cols), dtype)
    out[..., layout.coords[..., 0], layout.coords[..., 1]] = registers.view(dtype)
    return out


def operands(name: str, a: Any, b: Any, c: Any) -> list[np.ndarray]:
    instr = isa.instruction(name)
    layouts = [instr.operand(x).layout for x in "abc"]
    return [image(x, m) for x, m in zip(layouts, (a, b, c), strict=True) if x is not None]


def integers(seed: int, *shape: int) -> np.ndarray:
    """Small integers: sums of their products are exact in every type."""
    return np.random.default_rng(seed).integers(-8, 9, shape)


class TestProducts:
    @pytest.mark.parametrize("batch", [(), (3,), (2, 300)])
    def test_f16_products_agree_with_numpy(self, batch):
        a, b, c = (integers(1, *batch, 16, 16), integers(2, *batch, 16, 8), integers(3, *batch, 16, 8))
        registers = operands(F16, a.astype(np.float16), b.astype(np.float16), c.astype(np.float32))
        result = emulate(F16, *registers)
        assert result.shape == (*batch, 32, 4) and result.dtype == np.uint32
        layout = isa.instruction(F16).d.layout
        assert layout is not None
        assert np.array_equal(matrix(layout, result, np.float32), a @ b + c)

    def test_f64_has_wide_registers(self):
        a, b, c = (integers(i, 8, *s).astype(np.float64) for i, s in enumerate([(8, 4), (4, 8), (8, 8)]))
        result = emulate(F64, *operands(F64, a, b, c), arch="sm_80")
        layout = isa.instruction(F64).d.layout
        assert layout is not None and result.dtype == np.uint64
        assert np.array_equal(matrix(layout, result, np.float64), a @ b + c)

    def test_batches_broadcast(self):
        a, b, c = integers(4, 5, 1, 16, 16), integers(5, 7, 16, 8), integers(6, 16, 8)
        registers = operands(F16, a.astype(np.float16), b.astype(np.float16), c.astype(np.float32))
        result = emulate(F16, *registers)
        layout = isa.instruction(F16).d.layout
        assert layout is not None and result.shape == (5, 7, 32, 4)
        assert np.array_equal(matrix(layout, result, np.float32), a @ b + c)

    def test_operands_are_left_alone(self):
        registers = operands(
            F16,
            *(
                np.ones(s, t)
                for s, t in (((16, 16), np.float16), ((16, 8), np.float16), ((16, 8), np.float32))
            ),
        )
        before = [g.copy() for g in registers]
        for g in registers:
            g.flags.writeable = False
        emulate(F16, *registers)
        assert all(np.array_equal(g, b) for g, b in zip(registers, before, strict=True))

    def test_the_first_of_copies_counts(self):
        """wmma's m8n32k16 holds A four times. As on an H200, only the first copy is read."""
        name = "wmma.mma.sync.aligned.row.col.m8n32k16.f32.f32"
        a, b, c = operands(
            name,
            integers(1, 8, 16).astype(np.float16),
            integers(2, 16, 32).astype(np.float16),
            integers(3, 8, 32).astype(np.float32),
        )
        want = emulate(name, a, b, c)
        a[:, 2:] ^= 0x55555555
        assert np.array_equal(emulate(name, a, b, c), want)
        a[:, 1] ^= 0x55555555
        assert not np.array_equal(emulate(name, a, b, c), want)


class TestWarpgroups:
    NAME = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16"

    def stored(self, operand: np.ndarray) -> np.ndarray:
        """(..., rows, 16) f16 as core matrices of 8 rows x 16 bytes, K-major, without swizzle."""
        *batch, rows, _ = operand.shape
        cores = operand.reshape(*batch, rows // 8, 8, 2, 8)
        return np.ascontiguousarray(cores.swapaxes(-3, -2)).view(np.uint8).reshape(*batch, -1)

    def descriptor(self, start: int) -> int:
        return start >> 4 | 128 >> 4 << 16 | 256 >> 4 << 32

    @pytest.mark.parametrize("source", ["memory", "registers"])
    def test_product(self, source):
        a, b, c = integers(8, 3, 64, 16), integers(9, 3, 16, 8), integers(10, 3, 64, 8)
        half = [a.astype(np.float16), np.ascontiguousarray(b.swapaxes(1, 2)).astype(np.float16)]
        shared = np.concatenate([self.stored(x) for x in half], axis=1)
        d, in_registers = isa.instruction(self.NAME).d.layout, f"{self.NAME}.registers"
        layout = isa.instruction(in_registers).operand("a").layout
        assert d is not None and layout is not None
        registers = image(layout, half[0])
        first: Any = self.descriptor(0) if source == "memory" else registers
        trans = (0, 0) if source == "memory" else (0,)
        operands = (image(d, c.astype(np.float32)), first, self.descriptor(2048))
        result = emulate(self.NAME, *operands, True, 1, -1, *trans, shared=shared)
        assert np.array_equal(matrix(d, result, np.float32), c - a @ b)
        result = emulate(self.NAME, *operands, False, 1, 1, *trans, shared=shared)
        assert np.array_equal(matrix(d, result, np.float32), a @ b)

    def test_descriptors_of_a_batch(self):
        """Three tiles of A in one memory."""
        a, b = integers(11, 3, 64, 16), integers(12, 16, 8)
        half = [x.astype(np.float16) for x in (a.reshape(192, 16), np.ascontiguousarray(b.T))]
        shared = np.concatenate([self.stored(x) for x in half])
        starts = np.array([self.descriptor(2048 * i) for i in range(3)], np.uint64)
        d = isa.instruction(self.NAME).d.layout
        assert d is not None
        zeros = np.zeros((128, 4), np.uint32)
        result = emulate(self.NAME, zeros, starts, self.descriptor(3 * 2048), 1, 1, 1, 0, 0, shared=shared)
        assert np.array_equal(matrix(d, result, np.float32), a @ b)

    def test_a_descriptor_outside(self):
        zeros, descriptor = np.zeros((128, 4), np.uint32), self.descriptor(0)
        with pytest.raises(OutOfBounds, match="bytes 0 to 0x3ff"):
            emulate(self.NAME, zeros, descriptor, descriptor, 1, 1, 1, 0, 0, shared=np.zeros(1024, np.uint8))


class TestMatrices:
    def test_ldmatrix_and_stmatrix_are_inverse(self):
        """Rows at scattered addresses of a batch of shared memories."""
        rng = np.random.default_rng(7)
        shared = rng.integers(0, 256, (6, 2048)).astype(np.uint8)
        rows = np.stack([rng.permutation(128)[:32] for _ in range(6)]).astype(np.uint32) * 16
        registers = emulate(LDMATRIX, rows, shared=shared)
        assert registers.shape == (6, 32, 4)
        for cta in range(6):
            for lane in range(32):
                for register in range(4):
                    address = rows[cta, 8 * register + lane // 4] + 4 * (lane % 4)
                    word = shared[cta, address : address + 4].view(np.uint32)[0]
                    assert registers[cta, lane, register] == word
        image = emulate(STMATRIX, rows, registers, shared=np.zeros_like(shared))
        held = np.zeros((6, 2048), bool)
        for cta in range(6):
            held[cta, (rows[cta][:, None] + np.arange(16)).ravel()] = True
        assert np.array_equal(image, np.where(held, shared, 0))

    def test_each_warp_of_a_batch_has_its_stride(self):
        """wmma.load of column 0 of A."""
        instr = isa.instruction("wmma.load.a.sync.aligned.row.m16n16k16.shared.f16")
        memory = np.arange(1024, dtype=np.uint16).view(np.uint8)
        strides = np.repeat(np.array([[16], [24], [32]], np.uint32), 32, axis=1)
        registers = emulate(instr, np.zeros((3, 32), np.uint32), strides, shared=memory)
        first_elements = registers.view(np.uint16)[:, ::4, 0]  # lanes 4g hold element (g, 0)
        assert np.array_equal(first_elements, np.arange(8) * strides[:, :1])

    def test_one_memory_serves_a_batch(self):
        shared = np.arange(1024, dtype=np.uint16).view(np.uint8)
        rows = np.arange(32, dtype=np.uint32) * 16 + np.array([[0], [512], [1024]], np.uint32)
        registers = emulate(LDMATRIX, rows, shared=shared)
        assert registers.shape == (3, 32, 4)
        assert (registers[1] - registers[0] == 256 * 0x10001).all()

    def test_an_address_outside(self):
        rows = np.arange(32, dtype=np.uint32) * 16
        with pytest.raises(OutOfBounds, match="bytes 0 to 0x1ef"):
            emulate(LDMATRIX, rows, shared=np.zeros(496, np.uint8))

    @pytest.mark.parametrize(("trans", "count"), [("", 1), ("", 2), (".trans", 1), (".trans", 4)])
    def test_ldmatrix_has_an_axis_of_registers(self, trans, count):
        """Also where it is one register; lane 4r + q holds elements 2q, 2q + 1 of row r."""
        elements = integers(16, 3, count, 8, 8).astype(np.uint16)
        shared = elements.reshape(3, -1).view(np.uint8)
        rows = np.arange(32, dtype=np.uint32) % (8 * count) * 16
        result = emulate(f"ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16", rows, shared=shared)
        assert result.shape == (3, 32, count)
        wanted = elements.swapaxes(2, 3) if trans else elements
        words = np.ascontiguousarray(wanted).view(np.uint32).reshape(3, count, 32)
        assert np.array_equal(result, words.swapaxes(1, 2))

    @pytest.mark.parametrize("tail", [(), (1,)])
    def test_movmatrix_has_an_axis_of_registers(self, tail):
        elements = integers(17, 2, 8, 8).astype(np.uint16)
        registers = elements.view(np.uint32).reshape(2, 32, *tail)
        result = emulate("movmatrix.sync.aligned.m8n8.trans.b16", registers)
        assert result.shape == (2, 32, 1)
        assert np.array_equal(result.view(np.uint16).reshape(2, 8, 8), elements.swapaxes(1, 2))


class TestScalars:
    def test_lanes_and_numbers(self):
        a = np.arange(64, dtype=np.uint32).reshape(2, 32)
        assert np.array_equal(emulate("add.u32", a, 5), a + 5)
        assert np.array_equal(emulate("add.u32", a[..., None], 5), (a + 5)[..., None])
        assert emulate("add.u32", 2, 3).tolist() == [5] * 32

    def test_a_register_may_have_an_axis(self):
        """The result has it exactly when an operand has it."""
        a = integers(18, 5, 32).astype(np.int32)
        assert emulate("add.s32", a, 3).shape == (5, 32)
        result = emulate("add.s32", a[..., None], a)
        assert result.shape == (5, 32, 1)
        assert np.array_equal(result.view(np.int32)[..., 0], 2 * a)

    def test_floats_as_bits(self):
        a = np.linspace(0, 1, 32, dtype=np.float32)
        result = emulate("add.rn.f32", a.view(np.uint32), 1.5)
        assert np.array_equal(result.view(np.float32), a + np.float32(1.5))

    def test_several_results_come_as_a_tuple(self):
        value = np.arange(32, dtype=np.uint32)
        moved, inside = emulate("shfl.sync.up.b32.pred", value, 1, 0, 0xFFFFFFFF)
        assert moved.tolist() == [0, *range(31)]
        assert inside.tolist() == [False] + [True] * 31


class TestMistakes:
    @pytest.mark.parametrize(
        ("operands", "message"),
        [
            ((), r"takes 3 operands \(a, b, c\), 0 were given"),
            ((np.zeros((32, 4), np.float32),) * 3, "dtype float32; registers are given as raw bits"),
            ((np.zeros((32, 2), np.uint32),) * 3, r"a has shape \(32, 2\); \(..., 32, 4\)"),
            ((np.zeros((4,), np.uint32),) * 3, r"a has shape \(4,\)"),
            ((1, 2, 3), r"a needs \(..., 32, 4\)"),
            ((["x"], 2, 3), "a is a list; a NumPy array of register bits or a number is needed"),
        ],
    )
    def test_wrong_operands_are_refused(self, operands, message):
        with pytest.raises(OperandError, match=message):
            emulate(F16, *operands)

    @pytest.mark.parametrize(
        "text, name",
        [
            ("setmaxnreg.inc.sync.aligned.u32", "count"),
            ("cp.async.wait_group", "n"),
            ("wgmma.wait_group.sync.aligned", "n"),
        ],
    )
    def test_arrays_for_what_is_known_at_compile_time(self, text, name):
        with pytest.raises(OperandError, match=f"operand {name} is a ndarray; a number is needed"):
            emulate(text, np.full(32, 40, np.uint32))

    def test_batches_that_do_not_broadcast(self):
        def zeros(*shape: int) -> np.ndarray:
            return np.zeros(shape, np.uint32)

        with pytest.raises(OperandError, match=r"a \(2,\), b \(3,\), c \(\)"):
            emulate(F16, zeros(2, 32, 4), zeros(3, 32, 2), zeros(32, 4))

    def test_instructions_that_a_target_lacks_are_refused(self):
        registers = operands(
            F16,
            *(
                np.ones(s, t)
                for s, t in (((16, 16), np.float16), ((16, 8), np.float16), ((16, 8), np.float32))
            ),
        )
        with pytest.raises(ArchError, match=f"sm_75 has no {F16}; it exists on sm_80, sm_86"):
            emulate(F16, *registers, arch="sm_75")
        with pytest.raises(ArchError, match="unknown architecture 'sm_81'"):
            emulate(F16, *registers, arch="sm_81")

    def test_unknown_instructions_are_refused(self):
        with pytest.raises(UnknownInstruction):
            emulate("mma.sync.aligned.m16n8k17.row.col.f32.f16.f16.f32")

    def test_immediates_that_are_not_allowed_are_refused(self):
        with pytest.raises(OperandError, match="operand size: 5 was given; allowed are 4, 8, 16"):
            emulate("cp.async.ca.shared.global", 0, 0, 5)

    def test_shared_is_bytes(self):
        with pytest.raises(OperandError, match="shared has dtype uint32"):
            emulate(LDMATRIX, np.zeros(32, np.uint32), shared=np.zeros(512, np.uint32))

    def test_shared_has_an_axis_of_bytes(self):
        with pytest.raises(OperandError, match="shared has no axis"):
            emulate(LDMATRIX, np.zeros(32, np.uint32), shared=np.array(3, np.uint8))

    def test_there_is_no_global_memory(self):
        with pytest.raises(OutOfBounds, match="belongs to no argument"):
            emulate("ld.global.b32", np.zeros(32, np.uint64))

    def test_a_lane_that_names_nobody(self):
        with pytest.raises(Divergence, match="not in its own mask"):
            emulate("shfl.sync.idx.b32", 1, 0, 31, 0xFFFF)


class TestNumbers:
    def test_an_address_may_be_a_number(self):
        shared = np.arange(256, dtype=np.uint8)
        loaded = emulate("ld.shared.b32", 16, shared=shared)
        assert set(loaded) == {int.from_bytes(bytes([16, 17, 18, 19]), "little")}
        stored = emulate("st.shared.b32", 8, 7, shared=shared)
        assert stored[8:12].view(np.uint32) == 7
        assert emulate("atom.shared.add.u32", 0, 1, shared=np.zeros(4, np.uint8)).max() == 31
        rows = emulate("ldmatrix.sync.aligned.m8n8.x4.shared.b16", 32, shared=shared)
        assert rows.shape == (32, 4) and (rows[0] == shared[32:36].view(np.uint32)).all()

    @pytest.mark.parametrize("address", [253, 256, 1 << 31, (1 << 32) - 4, (1 << 24) + 0xFFFFFC])
    def test_addresses_outside(self, address):
        with pytest.raises(TensorCoreError):
            emulate("ld.shared.b32", address, shared=np.zeros(256, np.uint8))

    @pytest.mark.parametrize("address", [0, 1 << 40, 3 << 39, 1 << 63, (1 << 64) - 4])
    def test_there_is_no_global_memory_at_any_address(self, address):
        with pytest.raises(OutOfBounds):
            emulate("ld.global.b32", address)

    @pytest.mark.parametrize("rank", [2, 17, 255])
    def test_mbarriers_of_ctas_beyond_the_cluster(self, rank):
        bar = (rank << 24) + 8
        for text, more in (
            ("mbarrier.arrive.release.cluster.shared::cluster.b64", ()),
            ("mbarrier.arrive.expect_tx.shared::cta.b64", (16,)),
        ):
            with pytest.raises(EmulationError, match="CTA|cluster"):
                emulate(text, bar, *more, shared=np.zeros(64, np.uint8))

    def test_empty_batches(self):
        none = np.zeros((0, 32), np.uint32)
        assert emulate("add.u32", none, 1).shape == (0, 32)
        assert emulate("st.shared.b32", none, 1, shared=np.zeros(16, np.uint8)).shape == (0, 16)

    @pytest.mark.parametrize(
        "given", [-1, 2**32, 1.5, float("nan"), float("inf"), pytest.param(10**5000, id="long")]
    )
    def test_immediates_out_of_range(self, given):
        with pytest.raises(OperandError, match=r"operand n: .* was given"):
            emulate("cp.async.wait_group", given)

    def test_numbers_beyond_all_floats(self):
        assert set(emulate("add.rn.f32", 10**400, 0)) == {0x7F800000}
