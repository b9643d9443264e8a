"""`report.timeline`: the estimated time of an emulated launch: numbers, text, trace, picture."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from html import escape
from math import ceil, prod
from pathlib import Path
from typing import Any

from tensorcore_dsl.environment.eager_dict import EagerDict
from tensorcore_dsl.errors import ArgumentError, EmulationError, public
from tensorcore_dsl.interpreter.core.geometry import Dim3
from tensorcore_dsl.interpreter.timeline import drawing, summary, trace
from tensorcore_dsl.interpreter.timeline.costs import SM_90A, at_power_limit, joules
from tensorcore_dsl.interpreter.timeline.recorder import Recorder
from tensorcore_dsl.interpreter.timeline.recording import Recording
from tensorcore_dsl.interpreter.timeline.replay import Replay

USUAL_REGISTERS = 128  # registers of a thread, if no assembler reports them
PICTURES = (".svg", ".png", ".pdf")


class Timeline(EagerDict):
    """An estimate of how the first CTAs of a launch spend their time on an sm_90a GPU.

    Attributes
    ----------
    kernel : str
        Its name.
    threads : int
        Of a CTA.
    resident, sms : int
        CTAs that an SM holds at a time, and SMs that share the L2 cache and DRAM.
    from_dram : float
        The part of the loaded bytes that DRAM delivers; the rest is in the L2 cache.
    cold : float
        The part of loads that wait for DRAM, also where another CTA has asked for the same bytes
        just before.
    """

    def __init__(
        self,
        recording: Recording,
        kernel: str,
        threads: int,
        registers: Callable[[], int | None],
        **assumed: Any,
    ) -> None:
        self.recording, self.kernel, self.threads = recording, kernel, threads
        self._registers, self._assumed = registers, assumed

    @classmethod
    def of(
        cls, recorder: Recorder, kernel: str, block: Dim3, registers: Callable[[], int | None]
    ) -> Timeline:
        """The timeline of a launch that has run."""
        if recorder.recording is None:
            raise EmulationError("no CTA was recorded for a timeline")
        return cls(recorder.recording, kernel, prod(block), registers)

    @public
    def assuming(
        self,
        *,
        resident: int | None = None,
        sms: int | None = None,
        from_dram: float | None = None,
        cold: float | None = None,
    ) -> Timeline:
        """The estimate of the same run under other assumptions.

        Parameters
        ----------
        resident, sms : int, optional
            CTAs that an SM holds, and SMs that run CTAs.
        from_dram, cold : float, optional
            Parts of loads, 0 to 1.

        Returns
        -------
        Timeline
            What is None is estimated from the launch.

        Raises
        ------
        ArgumentError
            Numbers that are not allowed.
        """
        for name, number in (("resident", resident), ("sms", sms)):
            if number is not None and (not isinstance(number, int) or number < 1):
                raise ArgumentError(f"{name} is {number!r}; a positive number is needed")
        for name, part in (("from_dram", from_dram), ("cold", cold)):
            if part is not None and not 0 <= part <= 1:
                raise ArgumentError(f"{name} is {part!r}; a number from 0 to 1 is needed")
        named = {"resident": resident, "sms": sms, "from_dram": from_dram, "cold": cold}
        assumed = self._assumed | {name: x for name, x in named.items() if x is not None}
        return Timeline(self.recording, self.kernel, self.threads, self._registers, **assumed)

    # -- numbers ---------------------------------------------------------------------------------

    @property
    def cta_cycles(self) -> float:
        """Estimated cycles from the start of the recorded CTAs to the end of the last one."""
        return self.replay.end

    @property
    def cycles(self) -> float:
        """Estimated cycles of the whole launch: its waves of CTAs, and starting it."""
        launch = SM_90A["launch"].value
        if self.recording.cluster > 1:
            launch += SM_90A["cluster_launch"].value
        starts = (self.waves - 1) * SM_90A["cta_start"].value
        return launch + self.waves * self.cta_cycles + starts

    @property
    def seconds(self) -> float:
        """Estimated seconds of the whole launch, at the clock that the power limit allows."""
        return at_power_limit(self.cycles / SM_90A["clock"].value, self.energy)

    @property
    def energy(self) -> float:
        """Estimated joules of the whole launch, besides what an idle chip takes."""
        recording = self.recording
        recorded_shares = recording.grid / recording.ctas
        moved = sum(recording.bytes["global", verb] for verb in ("load", "store"))
        return joules(recording.multiplications() * recorded_shares, moved * recorded_shares)

    @property
    def waves(self) -> int:
        """How often the SMs are filled with CTAs."""
        return ceil(self.recording.grid / (SM_90A["sms"].value * self.resident))

    @cached_property
    def resident(self) -> int:
        """CTAs that an SM holds at a time, by threads, registers and shared memory."""
        assumed = self._assumed.get("resident")
        if assumed is not None:
            return int(assumed)
        limit = {name: figure.value for name, figure in SM_90A.items()}
        registers = self._registers() or USUAL_REGISTERS
        per_warp = ceil(registers / 8) * 8 * 32
        most = min(
            limit["sm_ctas"],
            limit["sm_threads"] // self.threads,
            limit["sm_registers"] // (per_warp * self.recording.warps),
            limit["sm_shared"] // (self.recording.shared_bytes + 1024),
            ceil(self.recording.grid / limit["sms"]),
        )
        return max(1, int(most))

    @property
    def sms(self) -> int:
        """SMs that run CTAs of the launch at the same time."""
        assumed = self._assumed.get("sms")
        busy = min(SM_90A["sms"].value, ceil(self.recording.grid / self.resident))
        return int(busy if assumed is None else assumed)

    @property
    def from_dram(self) -> float:
        """The part of the loaded bytes that comes from DRAM: each byte of the arrays does once."""
        assumed = self._assumed.get("from_dram")
        if assumed is not None:
            return float(assumed)
        loaded = self.recording.bytes["global", "load"] * self.recording.grid
        return min(1.0, self.recording.operands * self.recording.ctas / max(loaded, 1))

    @property
    def cold(self) -> float:
        """The part of loads that wait for DRAM.

        It is 1 if the L2 cache is too small for the arrays, else the share of the first wave.
        """
        assumed = self._assumed.get("cold")
        fits = self.recording.operands < SM_90A["l2_bytes"].value
        return float((1 / self.waves if fits else 1.0) if assumed is None else assumed)

    @cached_property
    def replay(self) -> Replay:
        how = {"from_dram": self.from_dram, "cold": self.cold}
        return Replay(self.recording, SM_90A, resident=self.resident, sms=self.sms, **how)

    @property
    def busy(self) -> dict[str, float]:
        """The part of the time for which each unit of the first SM is in use."""
        units, end = self.replay.sms[0].busy(), max(self.cta_cycles, 1.0)
        return {name: cycles / end for name, cycles in units.items()}

    # -- text, trace, picture ----------------------------------------------------------------------

    def __str__(self) -> str:
        return "\n".join((*self._head(), *summary.roles(self.replay)))

    def _head(self) -> list[str]:
        ctas, grid = ", ".join(self.recording.cta_names), self.recording.grid
        waves = "1 wave" if self.waves == 1 else f"{self.waves} waves"
        busy = sorted(self.busy.items(), key=lambda item: -item[1])
        (first, share), *others = busy
        others_text = ", ".join(f"{name} {part:.0%}" for name, part in others)
        return [
            f"{self.kernel}: an estimate for sm_90a, not a measurement",
            f"CTA {ctas} of {grid}: {self.cta_cycles:,.0f} cycles, {self.resident} resident on an SM",
            f"launch: {self.cycles:,.0f} cycles, {waves}, {self.seconds * 1e6:,.1f} us",
            f"busiest unit: {first} {share:.0%}; {others_text}",
        ]

    def __repr__(self) -> str:
        return f"<Timeline of {self.kernel}: about {self.cycles:,.0f} cycles>"

    def _repr_html_(self) -> str:
        """The text, and a picture of the first CTA."""
        return drawing.svg(self.replay) + f'<pre style="font-size:85%">{escape(str(self))}</pre>'

    @public
    def save(self, path: str | Path) -> None:
        """Write a trace or a picture.

        Parameters
        ----------
        path : str or Path
            Its ending decides: .json is a trace for ui.perfetto.dev; .svg, .png and .pdf are
            pictures.

        Raises
        ------
        ArgumentError
            Another ending.
        TensorCoreError
            matplotlib is not installed.
        """
        target = Path(path)
        if target.suffix == ".json":
            trace.save(self.replay, self.kernel, target)
        elif target.suffix in PICTURES:
            self.plot(path=target)
        else:
            raise ArgumentError(
                f"a timeline is saved as .json, {', '.join(PICTURES)}, not as {target.name!r}"
            )

    @public
    def plot(self, *, cta: int = 0, path: str | Path | None = None) -> Any:
        """Draw one recorded CTA: warps, tensor cores, copies in flight, stages.

        Parameters
        ----------
        cta : int
            Number of a recorded CTA, from 0.
        path : str or Path, optional
            File for the picture.

        Returns
        -------
        matplotlib.figure.Figure
            Notebooks display it.

        Raises
        ------
        ArgumentError
            No such CTA.
        TensorCoreError
            matplotlib is not installed.
        """
        if not 0 <= cta < self.recording.ctas:
            raise ArgumentError(f"CTA is {cta}; {self.recording.ctas} were recorded, from 0")
        title = f"{self.kernel}, CTA {self.recording.cta_names[cta]}: an estimate for sm_90a"
        return drawing.draw(self.replay, cta, title, path)
