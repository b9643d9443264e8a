"""The cost table of the estimates for sm_90a: each figure with its source.

Figures of published microbenchmarks are rounded, and were not measured again. Figures marked as
fitted make estimates agree with measured times of the library's kernels on an H200, for half of the
recorded configurations. The other half checks them.
"""

from __future__ import annotations

from dataclasses import dataclass

LUO = "Luo et al., microbenchmarks of Hopper, arXiv:2402.13499 and arXiv:2501.12084"
VENDOR = "the vendor's datasheet and tuning guide for Hopper"
FITTED = "fitted to H200 times of the library's GEMMs (benchmarks/results/timeline-*.json)"
MODEL = "fitted to H200 times of the library's GEMMs (benchmarks/results/timings.npz)"


@dataclass(frozen=True)
class Figure:
    """A figure of the cost table."""

    value: float
    unit: str
    source: str


SM_90A: dict[str, Figure] = {
    # the device
    "clock": Figure(1.755e9, "cycles/s", "H200, between its highest clock and that under load"),
    "power": Figure(700 - 137, "watts: the limit less idling", "H200, nvidia-smi"),
    "multiply_energy": Figure(1.8e-12, "joules of a multiply-add of 16-bit operands", FITTED),
    "l2_energy": Figure(20e-12, "joules of a byte between the L2 cache and an SM", FITTED),
    "l2_bytes": Figure(50 * 2**20, "bytes of the L2 cache", VENDOR),
    "sms": Figure(132, "SMs", VENDOR),
    "launch": Figure(4000, "cycles of a launch", MODEL),
    "cluster_launch": Figure(800, "cycles more with clusters", MODEL),
    "cta_start": Figure(1500, "cycles from the end of a CTA until the next one runs", FITTED),
    # the CTAs that an SM holds
    "sm_threads": Figure(2048, "threads", VENDOR),
    "sm_ctas": Figure(32, "CTAs", VENDOR),
    "sm_registers": Figure(65536, "registers", VENDOR),
    "sm_shared": Figure(228 * 1024, "bytes, of which each CTA reserves 1024", VENDOR),
    # issue: one instruction of a scheduler in a cycle
    "schedulers": Figure(4, "of an SM", VENDOR),
    "alu_latency": Figure(4, "cycles until a dependent instruction issues", LUO),
    "slow_issue": Figure(2, "cycles: special functions, f64, conversions", VENDOR),
    "slow_latency": Figure(18, "cycles of the same", LUO),
    "jump": Figure(8, "cycles of a warp after a jump", FITTED),
    # shared memory
    "shared_rate": Figure(128, "bytes/cycle and SM", VENDOR),
    "landing_rate": Figure(512, "bytes/cycle of bulk copies, which hardly disturb reads", FITTED),
    "shared_latency": Figure(29, "cycles", LUO),
    "remote_latency": Figure(180, "cycles to another CTA of the cluster", LUO),
    # L2 and DRAM
    "l2_rate": Figure(60, "bytes/cycle and SM when all SMs load", FITTED),
    "l2_latency": Figure(263, "cycles", LUO),
    "loaded_latency": Figure(230, "cycles more of each load when all SMs load", FITTED),
    "dram_rate": Figure(4.1e12 / 1.755e9, "bytes/cycle, all SMs together", MODEL),
    "dram_latency": Figure(479, "cycles", LUO),
    "sector": Figure(32, "bytes of a transaction", VENDOR),
    # asynchronous copies
    "tma_issue": Figure(32, "cycles of the TMA unit for each copy", FITTED),
    "tma_latency": Figure(150, "cycles more than a load of a thread", LUO),
    # barriers
    "barrier_latency": Figure(20, "cycles from the last arrival until warps go on", FITTED),
    "mbarrier_latency": Figure(40, "cycles from the end of a phase until warps go on", FITTED),
    "mbarrier_poll": Figure(20, "cycles of a warp that finds a phase over", FITTED),
    "arrive_latency": Figure(20, "cycles until an arrival counts", FITTED),
    # tensor cores: multiply-adds, counted as if operands had 16 bits
    "wgmma_rate": Figure(2048, "multiply-adds/cycle and SM", VENDOR),
    "wgmma_latency": Figure(32, "cycles from the end of a product until a wait returns", LUO),
    "mma_rate": Figure(240, "multiply-adds/cycle and scheduler, with loads of operands", FITTED),
    "mma_latency": Figure(33, "cycles until a dependent product", LUO),
    "operand_rate": Figure(128, "bytes/cycle of wgmma's operands from shared memory", LUO),
}


def joules(multiplications: float, l2_bytes: float) -> float:
    """Energy of a launch, besides what an idle chip takes."""
    of_products = multiplications * SM_90A["multiply_energy"].value
    return of_products + l2_bytes * SM_90A["l2_energy"].value


def at_power_limit(seconds: float, energy: float) -> float:
    """Seconds of a launch that takes `seconds` and `energy` at the clock of the table.

    Above the power limit the clock falls, and the voltage with it: power falls as the third power
    of the clock.
    """
    excess = energy / seconds / SM_90A["power"].value
    return float(seconds * max(1.0, excess) ** (1 / 3))
