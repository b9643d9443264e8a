"""Input that is out of every range: each gets an error that says what was given and what may be."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from arrays import new_capsule

import tensorcore_dsl as tc
from tensorcore_dsl.arch import arch
from tensorcore_dsl.errors import (
    ArchError,
    ArgumentError,
    CompileError,
    EmulationError,
    LaunchError,
    OperandError,
    OutOfBounds,
    TensorCoreError,
    VerifyError,
)
from tensorcore_dsl.ir.verify import verify
from tensorcore_dsl.runtime.array_interop import DLTensor, read_array, stream_handle
from tests.ir_reader import parse_kernel
from tests.running import execute_text


class TestEmulate:
    def test_an_address_may_be_a_number(self):
        shared = np.arange(256, dtype=np.uint8)
        loaded = tc.emulate("ld.shared.b32", 16, shared=shared)
        assert set(loaded) == {int.from_bytes(bytes([16, 17, 18, 19]), "little")}
        stored = tc.emulate("st.shared.b32", 8, 7, shared=shared)
        assert stored[8:12].view(np.uint32) == 7
        assert tc.emulate("atom.shared.add.u32", 0, 1, shared=np.zeros(4, np.uint8)).max() == 31
        rows = tc.emulate("ldmatrix.sync.aligned.m8n8.x4.shared.b16", 32, shared=shared)
        assert rows.shape == (32, 4) and (rows[0] == shared[32:36].view(np.uint32)).all()

    @pytest.mark.parametrize("address", [253, 256, 1 << 31, (1 << 32) - 4, (1 << 24) + 0xFFFFFC])
    def test_addresses_outside(self, address):
        with pytest.raises(TensorCoreError):
            tc.emulate("ld.shared.b32", address, shared=np.zeros(256, np.uint8))

    @pytest.mark.parametrize("address", [0, 1 << 40, 3 << 39, 1 << 63, (1 << 64) - 4])
    def test_there_is_no_global_memory_at_any_address(self, address):
        with pytest.raises(OutOfBounds):
            tc.emulate("ld.global.b32", address)

    @pytest.mark.parametrize("rank", [2, 17, 255])
    def test_mbarriers_of_ctas_beyond_the_cluster(self, rank):
        bar = (rank << 24) + 8
        for text, more in (
            ("mbarrier.arrive.release.cluster.shared::cluster.b64", ()),
            ("mbarrier.arrive.expect_tx.shared::cta.b64", (16,)),
        ):
            with pytest.raises(EmulationError, match="CTA|cluster"):
                tc.emulate(text, bar, *more, shared=np.zeros(64, np.uint8))

    def test_empty_batches(self):
        none = np.zeros((0, 32), np.uint32)
        assert tc.emulate("add.u32", none, 1).shape == (0, 32)
        assert tc.emulate("st.shared.b32", none, 1, shared=np.zeros(16, np.uint8)).shape == (0, 16)

    @pytest.mark.parametrize(
        "given", [-1, 2**32, 1.5, float("nan"), float("inf"), pytest.param(10**5000, id="long")]
    )
    def test_immediates(self, given):
        with pytest.raises(OperandError, match=r"operand n: .* was given"):
            tc.emulate("cp.async.wait_group", given)

    def test_numbers_beyond_all_floats(self):
        assert set(tc.emulate("add.rn.f32", 10**400, 0)) == {0x7F800000}


HEAD = "kernel k(a = %0:u64) {\n"


class TestText:
    @pytest.mark.parametrize(
        "line, message",
        [
            ("%1:u32 <- inf", "inf is no u32 constant"),
            ("%1:u32*1000000000000 <- 0", "%1 has 1000000000000 registers; 1 to 4096 are allowed"),
            ("%1:u32*0 <- 0", "%1 has 0 registers"),
            ("cp.async.wait_group -1", "-1 was given; 0 to 4294967295 are allowed"),
            ("cp.async.wait_group 4294967296", "4294967296 was given"),
            ("cp.async.wait_group inf", "where an integer known at compile time is needed"),
        ],
    )
    def test_is_parsed_and_does_not_verify(self, line, message):
        with pytest.raises(TensorCoreError, match=message):
            verify(parse_kernel(f"{HEAD}{line}\n}}"), arch("sm_90a"))

    @pytest.mark.parametrize(
        "words, message",
        [
            ("shared 99999999999 align 16", "99999999999 bytes of shared memory; 0 to 16777216"),
            ("shared 0 align 1208925819614629174706176", "powers of two up to"),
            ("min_blocks 0", "min_blocks is 0; 1 to 65535"),
            ("max_registers 70000", "max_registers is 70000"),
        ],
    )
    def test_sizes_of_kernels(self, words, message):
        with pytest.raises(VerifyError, match=message):
            verify(parse_kernel(f"kernel k() {words} {{\n}}"), arch("sm_90a"))


def chain(links: int) -> Any:
    text = "".join(f"    elif i == {k}:\n        r = tc.u32({k})\n" for k in range(1, links))
    source = (
        "@tc.kernel\ndef kernel(x):\n    i = tc.threadIdx.x\n    r = tc.u32(0)\n"
        f"    if i == 0:\n        r = tc.u32(0)\n{text}    x[i] = r\n"
    )
    return execute_text(source, f"<chain of {links}>", {"tc": tc})["kernel"]


class TestBranches:
    def test_long_chains_run(self):
        out = np.zeros(32, np.uint32)
        chain(150).emulate[1, 32](out)
        assert (out == np.arange(32)).all()

    @pytest.mark.parametrize("links", [400, 600])
    def test_longer_ones_are_refused(self, links):
        with pytest.raises(CompileError, match=r"nest 201 deep; 200 are allowed") as error:
            chain(links).emulate[1, 32](np.zeros(32, np.uint32))
        assert error.value.loc is not None


class Broken:
    """An object with these attributes; those that are exceptions are raised."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__["attributes"] = attributes

    def __getattr__(self, name: str) -> Any:
        attributes = self.__dict__["attributes"]
        if name not in attributes:
            raise AttributeError(name)
        if isinstance(attributes[name], BaseException):
            raise attributes[name]
        return attributes[name]


def answering(answer: Any) -> Any:
    """A method that returns this, or raises it."""

    def method(*_: Any, **__: Any) -> Any:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    return method


def capsule(**changed: Any) -> Any:
    memory, extents = np.zeros(8, np.float32), (ctypes.c_int64 * 1)(8)
    tensor = DLTensor(memory.ctypes.data, 1, 0, 1, 2, 32, 1, extents, None, 0)
    for name, value in changed.items():
        setattr(tensor, name, value)
    KEPT.extend((memory, extents, tensor))
    return new_capsule(ctypes.addressof(tensor), b"dltensor", None)


KEPT: list[Any] = []


class TestArrays:
    def test_a_right_capsule(self):
        raw = read_array(Broken(__dlpack__=answering(capsule()), __dlpack_device__=answering((1, 0))))
        assert raw is not None and raw.shape == (8,)

    @pytest.mark.parametrize(
        "changed", [{"ndim": -1}, {"ndim": 10**6}, {"shape": None}, {"byte_offset": 2**63}]
    )
    def test_wrong_fields(self, changed):
        array = Broken(__dlpack__=answering(capsule(**changed)), __dlpack_device__=answering((1, 0)))
        with pytest.raises(ArgumentError, match="a Broken whose array protocol is broken"):
            read_array(array)

    @pytest.mark.parametrize("device", [None, (), "cpu", (None, 0), KeyError("x")])
    def test_wrong_devices(self, device):
        with pytest.raises(ArgumentError, match="a Broken whose array protocol is broken"):
            read_array(Broken(__dlpack__=answering(capsule()), __dlpack_device__=answering(device)))

    @pytest.mark.parametrize("capsule", [None, 3, "x"])
    def test_no_capsule(self, capsule):
        with pytest.raises(ArgumentError, match="array protocol is broken"):
            read_array(Broken(__dlpack__=answering(capsule), __dlpack_device__=answering((1, 0))))

    def test_interfaces_and_streams(self):
        for interface in (
            3,
            {},
            {"shape": (1,), "typestr": "<f4", "data": 3},
            {"shape": (-1,), "typestr": "<f4", "data": (8, False)},
        ):
            with pytest.raises(ArgumentError, match="array protocol is broken"):
                read_array(Broken(__cuda_array_interface__=interface))
        with pytest.raises(ArgumentError, match="stream protocol is broken"):
            stream_handle(Broken(__cuda_stream__=answering((0,))))


class TestLaunches:
    @pytest.mark.parametrize(
        "options, error",
        [
            ({"checks": "yes"}, ArgumentError),
            ({"profile": np.zeros(0)}, ArgumentError),
            ({"trace": 3}, ArgumentError),
            ({"arch": ["sm_90"]}, ArchError),
        ],
    )
    def test_options(self, options, error):
        with pytest.raises(error):
            chain(2).emulator(**options)[1, 32](np.zeros(32, np.uint32))

    @pytest.mark.parametrize("bytes", ["1", 1.5, np.zeros(0), pytest.param(10**400, id="long"), 2**31])
    def test_shared_memory(self, bytes):
        with pytest.raises(LaunchError, match="bytes"):
            chain(2).emulate[1, 32, None, bytes](np.zeros(32, np.uint32))
