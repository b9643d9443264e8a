"""Special registers and the addresses of shared memory (chapter 10)."""

from __future__ import annotations

from typing import Any

from tensorcore_dsl.isa.context import Context
from tensorcore_dsl.isa.effects import VOLATILE
from tensorcore_dsl.isa.spec import Instruction, Row, row


def read(ctx: Context, instr: Instruction) -> Any:
    return ctx.special(instr.params["s"])


def _register(section: str, dtype: str, ptx: str, names: str, **more: Any) -> Row:
    """The moves from some special registers."""
    template = f"!mov.{dtype} {{d}}, %{{s}}"
    return row(
        f"mov.{dtype}.%{{s}}", f"d:{dtype} =", section, read, s=names, template=template, ptx=ptx, **more
    )


# fmt: off
ROWS = (
    #         section  type    PTX    names
    _register("10.1",  "u32",  "2.0", "tid.x tid.y tid.z"),
    _register("10.2",  "u32",  "2.0", "ntid.x ntid.y ntid.z"),
    _register("10.3",  "u32",  "1.3", "laneid"),
    _register("10.4",  "u32",  "1.3", "warpid", effects=VOLATILE),
    _register("10.5",  "u32",  "2.0", "nwarpid"),
    _register("10.6",  "u32",  "2.0", "ctaid.x ctaid.y ctaid.z"),
    _register("10.7",  "u32",  "2.0", "nctaid.x nctaid.y nctaid.z"),
    _register("10.8",  "u32",  "1.3", "smid", effects=VOLATILE),
    _register("10.9",  "u32",  "2.0", "nsmid"),
    _register("10.10", "u64",  "3.0", "gridid"),
    _register("10.11", "pred", "7.8", "is_explicit_cluster", requires="90"),
    _register("10.12", "u32",  "7.8", "clusterid.x clusterid.y clusterid.z", requires="90"),
    _register("10.13", "u32",  "7.8", "nclusterid.x nclusterid.y nclusterid.z", requires="90"),
    _register("10.14", "u32",  "7.8", "cluster_ctaid.x cluster_ctaid.y cluster_ctaid.z", requires="90"),
    _register("10.15", "u32",  "7.8", "cluster_nctaid.x cluster_nctaid.y cluster_nctaid.z", requires="90"),
    _register("10.16", "u32",  "7.8", "cluster_ctarank", requires="90"),
    _register("10.17", "u32",  "7.8", "cluster_nctarank", requires="90"),
    _register("10.18", "u32",  "2.0", "lanemask_eq lanemask_le lanemask_lt lanemask_ge lanemask_gt"),
    _register("10.23", "u32",  "5.0", "clock clock_hi", effects=VOLATILE),
    _register("10.24", "u64",  "2.0", "clock64", effects=VOLATILE),
    _register("10.28", "u64",  "3.1", "globaltimer", requires="30", effects=VOLATILE),
    _register("10.28", "u32",  "3.1", "globaltimer_lo globaltimer_hi", requires="30", effects=VOLATILE),
    _register("10.30", "u32",  "4.1", "total_smem_size"),
    _register("10.31", "u32",  "8.1", "aggr_smem_size", requires="90"),
    _register("10.32", "u32",  "4.1", "dynamic_smem_size"),
    # Symbols instead of registers; the printer declares them when a kernel uses them.
    row("shared.base", "d:u32 =", "9.7.9.3", read, s="shared.base", template="!mov.u32 {d}, shared_memory"),
    row("shared.dynamic", "d:u32 =", "9.7.9.3", read, s="shared.dynamic", template="!mov.u32 {d}, dynamic_shared_memory"),
)
# fmt: on
