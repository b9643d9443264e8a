"""Builds with checks of indices: which kernels have them, their PTX, caches and launches."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import tensorcore_dsl as tc
from tensorcore_dsl import isa
from tensorcore_dsl.arch import arch as arch_named
from tensorcore_dsl.errors import LaunchError, OutOfBounds, UnknownInstruction
from tensorcore_dsl.ir.text import format_kernel
from tensorcore_dsl.ir.verify import verify
from tensorcore_dsl.kernels.copy_matrix import copy_kernel
from tensorcore_dsl.runtime.launch import Launcher
from tensorcore_dsl.runtime.launch_config import LaunchConfig
from tests.fake_gpu import CUBIN, FakeGpu, OnGpu
from tests.ir_reader import parse_kernel
from tests.running import checked


@tc.kernel(checks=True)
def row(x: tc.Array, i: tc.s32):
    x[i, tc.threadIdx.x] = 1.0


X = np.zeros((8, 4), np.float32)


def test_the_text_of_a_check():
    ir = checked(row, (X, 1)).ir
    text = format_kernel(ir, locations=True)
    line = row.function.__code__.co_firstlineno + 2
    assert f"string \"{__file__}:{line}: OutOfBounds: index %lld leaves axis 0 of 'x'" in text
    assert len(re.findall(r"check\.index\.s32 \d, %\d+, %\d+, 1 #", text)) == 2
    again = parse_kernel(text)
    verify(again, arch_named("sm_90a"))
    assert format_kernel(again, locations=True) == text


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90a", "sm_100a", "sm_120a"])
def test_the_ptx_of_a_check_assembles(arch):
    from tests.assembler import assembles

    pytest.importorskip("cuda.core", reason="needs nvJitLink")

    def many(x: tc.Array, i: tc.u32, j: tc.s64, n: tc.s32):
        x[i, j] = 1.0
        x.at(n, 1).load(2, pred=n > 3)
        x[0:4].at(7, 0).store(1.0, pred=n > 4)

    text = checked(tc.kernel(many), (X, np.uint32(1), np.int64(1), 3), arch).ptx
    assert text.count("call (result), vprintf") == 7 and text.count("trap;") == 7
    assert assembles(text, arch) == ""


def test_checks_on_the_gpu_are_asked_for(monkeypatch):
    plain, never = tc.kernel(row.function), tc.kernel(row.function, checks=False)
    assert "vprintf" in row.ptx(X, 1, arch="sm_90a")
    assert "vprintf" not in plain.ptx(X, 1, arch="sm_90a")
    with pytest.raises(OutOfBounds, match="index 4 leaves"):
        plain.emulate[1, 5](X, 0)
    with pytest.raises(OutOfBounds, match="index 4 leaves"):
        never.emulator(checks=True)[1, 5](X, 0)
    never.emulate[1, 5](X, 0)
    row.emulator(checks=False)[1, 5](X, 0)
    monkeypatch.setenv("TENSORCORE_DSL_CHECKS", "1")
    assert "vprintf" in plain.ptx(X, 1, arch="sm_90a")
    with pytest.raises(OutOfBounds, match="index 4 leaves"):
        never.emulate[1, 5](X, 0)
    for off in ("0", "off", ""):
        monkeypatch.setenv("TENSORCORE_DSL_CHECKS", off)
        assert "vprintf" not in plain.ptx(X, 1, arch="sm_90a")


def test_builds_with_checks_have_their_own_entry_in_the_cache(tmp_path, monkeypatch):
    pytest.importorskip("cuda.core", reason="needs nvJitLink")
    monkeypatch.setenv("TENSORCORE_DSL_CACHE", str(tmp_path))
    kernel = tc.kernel(row.function)
    types = kernel.types_of((X, 1))
    cubins = [kernel.specialised(types, {}, "sm_90a", checks).cubin for checks in (False, True)]
    assert [c.checks for c in cubins] == [False, True] and cubins[0].code != cubins[1].code
    kernel = tc.kernel(row.function)
    again = [kernel.specialised(types, {}, "sm_90a", checks).cubin for checks in (False, True)]
    assert [(c.checks, c.code) for c in again] == [(c.checks, c.code) for c in cubins]


def test_a_launch_with_checks_waits_and_reports():
    gpu = FakeGpu()
    run = Launcher(lambda types: replace(CUBIN, checks=True), LaunchConfig.of(1, 32), gpu)
    x = OnGpu(np.zeros(8, np.float32))
    for _ in range(3):
        run(x)
    assert len(gpu.synchronized) == 3  # none by the fast path, which does not wait
    gpu.failure = 719
    with pytest.raises(LaunchError, match="fake, a build with checks, was stopped: CUDA_ERROR_719"):
        run(x)
    with pytest.raises(LaunchError, match="has printed its line"):
        run(np.zeros(8, np.float32))
    gpu = FakeGpu(failure=719)
    plain = Launcher(lambda types: CUBIN, LaunchConfig.of(1, 32), gpu)
    plain(x)
    assert not gpu.synchronized


def test_names_of_checks():
    with pytest.raises(
        UnknownInstruction, match=r"no instruction 'check.index.f32'; there are check.index.s32"
    ):
        isa.instruction("check.index.f32")


def test_the_same_check_is_made_once():
    @tc.kernel
    def often(x: tc.Array, i):
        x[i] = x[i] + x[i]
        if i > 3:
            x[i] += 1.0
            x.at(i).store(2.0, pred=i > 4)
        for _ in range(i):
            x[i] += 1.0

    assert format_kernel(checked(often, (X[0], 1)).ir).count("check.index") == 1


def test_a_check_under_a_condition_does_not_serve_others():
    @tc.kernel
    def later(x: tc.Array, i):
        if i < 4:
            x[i] = 1.0
        x.at(i).store(1.0, pred=i < 4)
        x[i] = 2.0

    with pytest.raises(OutOfBounds, match="index 4 leaves") as error:
        later.emulate[1, 1](X[0], 4)
    assert error.value.loc.line == later.function.__code__.co_firstlineno + 5


def test_the_librarys_kernels_are_emulated_without_checks():
    assert not copy_kernel.emulate._checks_indices()
    assert copy_kernel.emulator(checks=True)._checks_indices()
    assert tc.kernel(row.function).emulate._checks_indices()


def test_no_warnings_of_the_speed_of_checks(recwarn):
    """The calls serialise wgmma, as the assembler says."""
    pytest.importorskip("cuda.core", reason="needs nvJitLink")

    def multiply(x: tc.Array):
        tc.launch_bounds(128)
        mma = tc.wgmma.m64n64k16(tc.bf16, tc.bf16, tc.f32)
        a = tc.shared((64, 64), tc.bf16, swizzle=128)
        acc = mma.d.zeros()
        for i in range(x.shape[0]):
            tc.wgmma_fence()
            acc = tc.wgmma_async(mma, acc, a, a)
            tc.wgmma_commit()
            x[i] = 1.0
            tc.wgmma_wait(0)
        x[tc.threadIdx.x] = acc[0]

    cubin = checked(tc.kernel(multiply, threads=128), (X[0],)).cubin
    assert cubin.checks and "C7509" in cubin.log
    assert not [w for w in recwarn if issubclass(w.category, tc.PerformanceWarning)]
