"""Special registers and the addresses of shared memory (chapter 10)."""

from __future__ import annotations

from typing import Any

from tensorcore_dsl.isa.context import Context
from tensorcore_dsl.isa.effects import VOLATILE
from tensorcore_dsl.isa.spec import Instruction, row


def read(ctx: Context, instr: Instruction) -> Any:
    return ctx.special(instr.params["s"])


READ = "!mov.u32 {d}, %{s}"
D = "d:u32 ="


# fmt: off
ROWS = (
    #   mnemonic         result   section  execute  register                                                   statement
    row("mov.u32.%{s}",  D,       "10.1",  read, s="tid.x tid.y tid.z",                                        template=READ, ptx="2.0"),
    row("mov.u32.%{s}",  D,       "10.2",  read, s="ntid.x ntid.y ntid.z",                                     template=READ, ptx="2.0"),
    row("mov.u32.%{s}",  D,       "10.3",  read, s="laneid",                                                   template=READ, ptx="1.3"),
    row("mov.u32.%{s}",  D,       "10.4",  read, s="warpid",                                                   template=READ, ptx="1.3", effects=VOLATILE),
    row("mov.u32.%{s}",  D,       "10.5",  read, s="nwarpid",                                                  template=READ, ptx="2.0"),
    row("mov.u32.%{s}",  D,       "10.6",  read, s="ctaid.x ctaid.y ctaid.z",                                  template=READ, ptx="2.0"),
    row("mov.u32.%{s}",  D,       "10.7",  read, s="nctaid.x nctaid.y nctaid.z",                               template=READ, ptx="2.0"),
    row("mov.u32.%{s}",  D,       "10.8",  read, s="smid",                                                     template=READ, ptx="1.3", effects=VOLATILE),
    row("mov.u32.%{s}",  D,       "10.9",  read, s="nsmid",                                                    template=READ, ptx="2.0"),
    row("mov.u64.%{s}",  "d:u64 =", "10.10", read, s="gridid",                                                   template="!mov.u64 {d}, %{s}", ptx="3.0"),
    row("mov.pred.%{s}", "d:pred =", "10.11", read, s="is_explicit_cluster",                                     template="!mov.pred {d}, %{s}", ptx="7.8", requires="90"),
    row("mov.u32.%{s}",  D,       "10.12", read, s="clusterid.x clusterid.y clusterid.z",                      template=READ, ptx="7.8", requires="90"),
    row("mov.u32.%{s}",  D,       "10.13", read, s="nclusterid.x nclusterid.y nclusterid.z",                   template=READ, ptx="7.8", requires="90"),
    row("mov.u32.%{s}",  D,       "10.14", read, s="cluster_ctaid.x cluster_ctaid.y cluster_ctaid.z",          template=READ, ptx="7.8", requires="90"),
    row("mov.u32.%{s}",  D,       "10.15", read, s="cluster_nctaid.x cluster_nctaid.y cluster_nctaid.z",       template=READ, ptx="7.8", requires="90"),
    row("mov.u32.%{s}",  D,       "10.16", read, s="cluster_ctarank",                                          template=READ, ptx="7.8", requires="90"),
    row("mov.u32.%{s}",  D,       "10.17", read, s="cluster_nctarank",                                         template=READ, ptx="7.8", requires="90"),
    row("mov.u32.%{s}",  D,       "10.18", read, s="lanemask_eq lanemask_le lanemask_lt lanemask_ge lanemask_gt", template=READ, ptx="2.0"),
    row("mov.u32.%{s}",  D,       "10.23", read, s="clock clock_hi",                                           template=READ, ptx="5.0", effects=VOLATILE),
    row("mov.u64.%{s}",  "d:u64 =", "10.24", read, s="clock64",                                                  template="!mov.u64 {d}, %{s}", ptx="2.0", effects=VOLATILE),
    row("mov.u64.%{s}",  "d:u64 =", "10.28", read, s="globaltimer",                                              template="!mov.u64 {d}, %{s}", ptx="3.1", requires="30", effects=VOLATILE),
    row("mov.u32.%{s}",  D,       "10.28", read, s="globaltimer_lo globaltimer_hi",                            template=READ, ptx="3.1", requires="30", effects=VOLATILE),
    row("mov.u32.%{s}",  D,       "10.30", read, s="total_smem_size",                                          template=READ, ptx="4.1"),
    row("mov.u32.%{s}",  D,       "10.31", read, s="aggr_smem_size",                                           template=READ, ptx="8.1", requires="90"),
    row("mov.u32.%{s}",  D,       "10.32", read, s="dynamic_smem_size",                                        template=READ, ptx="4.1"),
    # Symbols instead of registers; the printer declares them when a kernel uses them.
    row("shared.base",   D,       "9.7.9.3", read, s="shared.base",                                            template="!mov.u32 {d}, shared_memory"),
    row("shared.dynamic", D,      "9.7.9.3", read, s="shared.dynamic",                                         template="!mov.u32 {d}, dynamic_shared_memory"),
)
# fmt: on
