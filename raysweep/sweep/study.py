"""Optuna's study of a sweep: one trial a probe, told by us, so that its states are ours."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from raysweep.records import ProbeRecord, ProbeState
from raysweep.search.cell import Cell, cell_of
from raysweep.setting import StepSetting
from raysweep.sweep.events import StudyTrial

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import Trial

MOST_TOKENS = 2**31 - 1
"""Upper end of the length's distribution, which Optuna wants named; no step is longer."""


class Study:
    """Wraps an in-memory study whose objective is tokens a second, to be maximised."""

    def __init__(self, *, seed: int, flavours: Iterable[str], steps: Iterable[StepSetting], searched: Iterable[str]):
        """Make the study; its parameters are the flavour, the length and the searched values of the step."""
        import optuna
        from optuna.distributions import CategoricalDistribution

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        # The policy decides; a random sampler costs nothing and is never asked.
        sampler = optuna.samplers.RandomSampler(seed=seed)
        self._study = optuna.create_study(direction="maximize", sampler=sampler)
        self._searched = tuple(searched)
        choices = {name: list(dict.fromkeys(_value(step, name) for step in steps)) for name in self._searched}
        self._distributions: dict[str, BaseDistribution] = {
            "flavour": CategoricalDistribution(sorted(set(flavours))),
            **{name: CategoricalDistribution(values) for name, values in choices.items()},
        }
        self._running: dict[str, Trial] = {}

    def start(self, cell: Cell) -> None:
        """Ask for the trial of a cell; asked again, as a lost probe is, it stays the same trial."""
        if cell.probe_id in self._running:
            return
        distributions = self._distributions | _length_distribution(cell)
        self._study.enqueue_trial(self._params(cell), user_attrs={"probe_id": cell.probe_id})
        self._running[cell.probe_id] = self._study.ask(fixed_distributions=distributions)

    def finish(self, record: ProbeRecord) -> None:
        """Tell a trial how its probe ended: COMPLETE, PRUNED or FAIL, with the reason among its user attributes."""
        from optuna.trial import TrialState

        cell = cell_of(record)
        self.start(cell)
        trial = self._running.pop(cell.probe_id)
        trial.set_user_attr("source", str(record.source))
        if record.reason:
            trial.set_user_attr("reason", record.reason)
        value = record.measurement.tokens_per_second if record.measurement else None
        if record.state is ProbeState.COMPLETED and value is not None:
            self._study.tell(trial, value)
        elif record.state is ProbeState.COMPLETED:
            # Optuna has no complete trial without a value: FAIL says that the objective is missing, the reason why.
            trial.set_user_attr("reason", "no throughput in the measurement")
            self._study.tell(trial, state=TrialState.FAIL)
        else:
            pruned = record.state is ProbeState.PRUNED
            self._study.tell(trial, state=TrialState.PRUNED if pruned else TrialState.FAIL)

    def trials(self) -> tuple[StudyTrial, ...]:
        """Return the study's trials that have ended, as Optuna has them."""
        return tuple(
            StudyTrial(
                probe_id=trial.user_attrs["probe_id"],
                state=trial.state.name,
                reason=trial.user_attrs.get("reason"),
                tokens_per_second=trial.value,
            )
            for trial in self._study.get_trials(deepcopy=False)
            if trial.state.is_finished()
        )

    def _params(self, cell: Cell) -> dict[str, Any]:
        params: dict[str, Any] = {name: _value(cell.step, name) for name in self._searched}
        params["flavour"] = cell.flavour
        if cell.length_tokens is not None:
            params["length_tokens"] = cell.length_tokens
        return params


def _length_distribution(cell: Cell) -> dict[str, BaseDistribution]:
    from optuna.distributions import IntDistribution

    return {"length_tokens": IntDistribution(1, MOST_TOKENS)} if cell.length_tokens is not None else {}


def _value(step: StepSetting, dotted_name: str) -> str | int | float | bool | None:
    """Return one field of a setting as a value that Optuna takes as a choice."""
    value: Any = step.to_dict()
    for name in dotted_name.split("."):
        value = value[name]
    return ",".join(value) if isinstance(value, list) else str(value) if isinstance(value, str) else value
