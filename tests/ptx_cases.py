"""PTX kernels from a few statements, and the sources of those in CUDA C++."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tensorcore_dsl import ptx

SOURCE = Path(__file__).parent / "cuda_kernels.cu"


def module(
    body: str, params: str = ".param .u64 x", before: str = "", registers: str = "", directives: str = ""
) -> ptx.Module:
    """A kernel `k` with some registers."""
    return ptx.load(f"""
.version 8.0
.target sm_90
.address_size 64
{before}
.visible .entry k({params}) {directives}
{{
    .reg .pred %p<4>;
    .reg .b16 %h<4>;
    .reg .b32 %r<9>;
    .reg .f32 %f<4>;
    .reg .b64 %rd<9>;
    {registers}
{body}
}}
""")


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


STRUCT_IN_MEMORY = """
.version 8.0
.target sm_90
.address_size 64
.entry k(.param .align 64 .b8 s[320])
{ .reg .b64 %rd<9>; .reg .b32 %r<9>; .reg .f32 %f<3>; .reg .pred %p<3>;
    .shared .align 128 .b8 tile[128]; .shared .align 8 .b8 bar[8];
    mov.b64 %rd1, s; cvta.param.u64 %rd2, %rd1; add.s64 %rd3, %rd2, 64; add.s64 %rd4, %rd2, 192;
    mov.u32 %r1, %tid.x; setp.ne.u32 %p1, %r1, 0; @%p1 bra LOADED;
    mbarrier.init.shared.b64 [bar], 1; fence.mbarrier_init.release.cluster;
    mbarrier.arrive.expect_tx.shared.b64 _, [bar], 128;
    cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [tile], [%rd3, {0, 0}], [bar];
LOADED: bar.sync 0;
WAIT: mbarrier.try_wait.parity.shared.b64 %p2, [bar], 0; @!%p2 bra WAIT;
    mov.u32 %r2, tile; mad.lo.u32 %r2, %r1, 4, %r2; ld.shared.f32 %f1, [%r2];
    ld.param.f32 %f2, [s+16]; mul.f32 %f1, %f1, %f2; st.shared.f32 [%r2], %f1;
    ld.param.u64 %rd5, [s]; ld.param.u32 %r3, [s+8]; @%p1 bra STORE; st.global.u32 [%rd5], %r3;
STORE: fence.proxy.async.shared::cta; bar.sync 0;
    cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd4, {0, %r7}], [tile];
    cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; ret; }
"""
