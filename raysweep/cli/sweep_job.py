"""A sweep made ready: what is probed on what, its plan, its programs, its artifact, its run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from raysweep.cli.devices import Devices, check_weights, device_factory, emulated_flavours, probed_here
from raysweep.cli.options import read_catalogue, read_flavours, read_stages
from raysweep.errors import ArtifactError, NotForecastError, SpaceError
from raysweep.records import Mode

if TYPE_CHECKING:
    from collections.abc import Callable

    from cost.domain import Flavour
    from raysweep.data import Items
    from raysweep.memory.program import Program
    from raysweep.report.sweep import SweepPlan
    from raysweep.search.policy import Policy
    from raysweep.setting import StepSetting
    from raysweep.space import SearchSpace
    from raysweep.store import Artifact, SweepStatus
    from raysweep.sweep import SweepOptions, SweepSummary
    from raysweep.sweep.run import RunnerFactory


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepJob:
    """Everything that is known before the first probe."""

    space: SearchSpace
    devices: Devices
    flavours: tuple[Flavour, ...]
    rejected: dict[str, str]
    """Flavours of the space that are not probed, and why."""
    items: dict[str, Items]
    policy: Policy
    strategy: str
    out: str
    prices_text: str | None
    """Of the user's own price list; None where none was given."""
    notes: tuple[str, ...] = ()
    """What to mind, in whole sentences."""

    def plan(self) -> SweepPlan:
        """Return the plan and its price."""
        from raysweep.report.sweep import SweepPlan
        from raysweep.sweep.run import NEEDS_MULTI_GPU

        several = {flavour.name: NEEDS_MULTI_GPU for flavour in self.flavours if flavour.gpu_count > 1}
        return SweepPlan(
            space_name=self.space.name,
            model=self.space.model,
            weights_from=self.space.weights_from,
            source=self.devices.source,
            strategy=self.strategy,
            probes_at_most=self._remaining(),
            flavours=self.flavours,
            charged=self.devices.charges(self.flavours),
            budget_usd=self.space.budget.usd,
            budget_hours=self.space.budget.hours,
            out=self.out,
            rejected={**self.rejected, **several},
            notes=self.notes,
        )

    def _remaining(self) -> dict[str, int]:
        """Return how many probes are left at most, by flavour: none of one with several GPUs."""
        return {f.name: 0 if f.gpu_count > 1 else self.policy.remaining(f.name) for f in self.flavours}

    def programs(self, kept: Artifact | None, *, quiet: bool) -> dict[StepSetting, Program]:
        """Trace the steps: simulated probes play them, and every artifact keeps them for later questions.

        Args:
            kept: the artifact of a sweep that goes on; its programs are taken as they are.
            quiet: no word on stderr about what takes so long.

        Raises:
            NotForecastError: a step to simulate cannot be traced.
        """
        from raysweep.cli.programs import trace_programs
        from raysweep.data.batching import differ_in_length

        space = self.space
        if kept is not None and (table := kept.programs_table()) is not None:
            from raysweep.memory.table import programs_of

            return {program.step: program for program in programs_of(table)}
        if space.mode is Mode.GENERATE:
            return {}
        programs, reasons = trace_programs(
            space.model,
            space.steps,
            space.lengths,
            padded=differ_in_length(items.tokens for items in self.items.values()),
            trust_remote_code=space.trust_remote_code,
            quiet=quiet,
        )
        if reasons and self.devices.is_simulated:
            raise NotForecastError(next(iter(reasons.values())))
        return programs

    def create(self) -> Artifact:
        """Make the artifact, with the space as given.

        Raises:
            ArtifactError: its folder is not new.
        """
        from raysweep.store import Artifact

        return Artifact.create(self.out, self.space.source_text)

    def complete(self, artifact: Artifact, programs: dict[StepSetting, Program], *, resume_command: str) -> SweepStatus:
        """Keep in the artifact what a decision needs besides probes, as far as it is not there yet; return the status.

        Args:
            artifact: New, or that of a sweep that goes on.
            programs: Of the steps.
            resume_command: What to type where the sweep does not come to its end.

        Raises:
            ArtifactError: the artifact cannot be written.
        """
        from raysweep.decision.items import items_table
        from raysweep.memory.table import table_of
        from raysweep.store import ITEMS, PROGRAMS, SweepStatus

        status = SweepStatus(resume=resume_command, probes_at_most=sum(self._remaining().values()))
        artifact.write_sweep_status(status)
        if not artifact.has(PROGRAMS):
            artifact.write_programs(table_of(programs.values()))
        if self.items and not artifact.has(ITEMS):
            artifact.write_items(items_table(self.items))
        if self.prices_text is not None:
            artifact.write_prices(self.prices_text)
        return status

    def settle(self, artifact: Artifact, status: SweepStatus) -> None:
        """Keep in the artifact how many probes the sweep left, whatever ended it."""
        artifact.write_sweep_status(replace(status, probes_left=sum(self._remaining().values())))

    def run(
        self, artifact: Artifact, programs: dict[StepSetting, Program], *, resume: bool, quiet: bool
    ) -> SweepSummary:
        """Run the sweep, telling its progress on stderr."""
        from raysweep.cli.progress import SweepProgress
        from raysweep.space.labels import step_labels
        from raysweep.sweep import run_sweep

        with SweepProgress(step_labels(self.space.steps), quiet=quiet) as progress:
            return run_sweep(
                self.space,
                artifact,
                flavours=self.flavours,
                runners=self._factories(programs),
                policy=self.policy,
                options=self._options(),
                on_event=progress.tell,
                resume=resume,
            )

    def _factories(self, programs: dict[StepSetting, Program]) -> Callable[[Flavour], RunnerFactory]:
        if self.devices.is_simulated:
            from raysweep.sweep.simulated import simulated_factory

            return lambda flavour: simulated_factory(self.space, flavour, tuple(programs.values()))
        return lambda flavour: device_factory(self.space, flavour, emulated=self.devices.emulated)

    def _options(self) -> SweepOptions:
        from raysweep.sweep import SweepOptions

        if self.devices.is_simulated:
            return SweepOptions.simulated(address=self.devices.address)
        charges = self.devices.charges(self.flavours)
        return SweepOptions(address=self.devices.address, charges_usd_per_hour=charges)


def prepare(
    space: SearchSpace,
    devices: Devices,
    *,
    strategy: str,
    emulate: str | None,
    prices_csv: Path | None,
    out: str,
) -> SweepJob:
    """Look everything up that a sweep needs; nothing is written and nothing costs.

    Raises:
        SpaceError: a flavour or the model is unknown, none of the flavours can be probed here, or the model's real
            weights are asked for and it has none.
        MachineError: the Hugging Face Hub did not say whether it has the weights.
        InputError: the strategy or a flavour to emulate is unknown.
        DataError: a file of items cannot be read.
        CostError: a flavour's memory is not known, or the stages of the run contradict their data.
        NotForecastError: generation is to be simulated.
    """
    from raysweep.cli.programs import quantisation_notes
    from raysweep.search.strategy import make_policy

    if space.mode is Mode.GENERATE and devices.is_simulated:
        raise NotForecastError(
            "mode generate is not forecast, so it cannot be simulated. Measure it on a machine with a GPU: "
            "raysweep sweep SPACE --out FOLDER --device cuda."
        )
    flavours, rejected = _flavours(space, devices, emulate, prices_csv)
    check_weights(space, devices)
    items = read_stages(space)
    _check_stages(space, items)
    notes = quantisation_notes(space) if space.mode is Mode.TRAIN else ()
    names = [flavour.name for flavour in flavours]
    return SweepJob(
        space=space,
        devices=devices,
        flavours=flavours,
        rejected=rejected,
        items=items,
        policy=make_policy(strategy, space, names, _sample(space, items, devices)),
        strategy=strategy,
        out=out,
        notes=notes,
        prices_text=None if prices_csv is None else prices_csv.read_text(encoding="utf-8-sig"),
    )


def _check_stages(space: SearchSpace, items: dict[str, Items]) -> None:
    """Refuse stages that contradict their data before a sweep is paid for: no run could be projected after it.

    Raises:
        CostError: a share of the loss is asked for where loss-bearing tokens were not counted.
    """
    from cost.plan import resolved_epochs
    from raysweep.decision.plan import length_counts, stages_of

    if items:
        resolved_epochs(stages_of({name: length_counts(one) for name, one in items.items()}, space))


def open_resumed(out: str, space: SearchSpace) -> Artifact:
    """Open the artifact of an earlier sweep of this very space.

    Raises:
        ArtifactError: it is another space's, or none.
    """
    from raysweep.store import Artifact

    artifact = Artifact.open(out)
    if artifact.space_text() != space.source_text:
        raise ArtifactError(
            f"{out}: expected the artifact of a sweep of {space.name} as it is now; its space.yaml differs. "
            f"Resume with the space it was made from ({out}/space.yaml), or name another folder."
        )
    return artifact


def _flavours(
    space: SearchSpace, devices: Devices, emulate: str | None, prices_csv: Path | None
) -> tuple[tuple[Flavour, ...], dict[str, str]]:
    """Return the flavours to probe, and why the space's other ones are not."""
    catalogue = read_catalogue(prices_csv)
    named = read_flavours(space, catalogue)
    if emulate is not None:
        return emulated_flavours(emulate, named, catalogue), {}
    if not named:
        raise SpaceError(f"{space.name}: expected the flavours to sweep over. Add, for example: flavours: [hf/h200]")
    if devices.local_gpu is not None:
        return probed_here(named, devices.local_gpu)
    if devices.is_simulated:
        for flavour in named:
            _ = flavour.total_memory_bytes  # a card of unknown memory cannot be simulated: its own error says so
    return named, {}


def _sample(space: SearchSpace, items: dict[str, Items], devices: Devices) -> tuple[int, ...]:
    """Return the first stage's items as the run trains on them under the longest length: what it would meet first.

    Packed runs have one length alone, which is probed anyway.
    """
    from raysweep.decision.plan import trained_tokens
    from raysweep.search.cell import SAMPLE_MICRO_STEPS

    if not items or devices.is_simulated or not space.lengths or space.run.packing is not None:
        return ()
    most = SAMPLE_MICRO_STEPS * max(step.micro_batch for step in space.steps)
    return tuple(trained_tokens(next(iter(items.values())), space)[:most].tolist())
