"""What a run does: its stages, how items become steps, and everything besides the steps that takes time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from cost.batches import Batches, Packing, arrange
from cost.errors import CostError, nearest
from cost.lengths import LengthCounts, Lost, OverLength
from cost.throughput import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Items that are trained on together, for given epochs or for as many as their share of the loss asks for."""

    name: str
    items: LengthCounts
    epochs: float | None = None
    loss_share: float | None = None
    """This stage's own share of all loss-bearing tokens of the run; its epochs follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Training stands still while something else runs: an evaluation, a checkpoint."""

    name: str
    seconds: float
    every_optimizer_steps: int | None = None
    """None: never within a stage."""
    at_stage_end: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StartUp:
    """What a machine does before the first step. It is billed."""

    image_seconds: float = 0.0
    """From being handed the machine to the program's start: boot, image."""
    model_bytes: int = 0
    """To be downloaded."""
    download_bytes_per_second: float | None = None
    load_seconds: float = 0.0
    """From disk to the device."""

    @property
    def seconds(self) -> float:
        """All of it.

        Raises:
            CostError: There is something to download and no rate.
        """
        download_seconds = 0.0
        if self.model_bytes:
            if not self.download_bytes_per_second or self.download_bytes_per_second <= 0:
                raise CostError(
                    "A model to be downloaded needs download_bytes_per_second (for example 200000000, 200 MB a second)."
                )
            download_seconds = self.model_bytes / self.download_bytes_per_second
        return self.image_seconds + download_seconds + self.load_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """A whole fine-tune."""

    stages: tuple[Stage, ...]
    micro_batch: int = 1
    accumulation: int = 1
    limit_tokens: int | None = None
    over_length: OverLength = OverLength.TRUNCATE
    pad_to_multiple_tokens: int = 1
    sorted_by_length: bool = False
    packing: Packing | None = None
    warm_up_seconds: float = 0.0
    """Compilation and tuning of a process's first steps, beyond those steps' own time."""
    pauses: tuple[Pause, ...] = ()
    start_up: StartUp = StartUp()
    process_per_stage: bool = False
    """Each stage starts a process of its own: start-up, warm-up and new lengths come again."""

    def scaled(self, factors: Mapping[str, float]) -> RunPlan:
        """Return the plan with some stages' data grown, such as ``{"stage2": 3}``.

        Raises:
            CostError: There is no stage of that name.
        """
        names = [stage.name for stage in self.stages]
        for name in factors:
            if name not in names:
                raise CostError(f"Unknown stage {name!r}.{nearest(name, names)} The run has: {', '.join(names)}.")
        return replace(
            self,
            stages=tuple(
                replace(s, items=s.items.scaled(factors[s.name])) if s.name in factors else s for s in self.stages
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWork:
    """What one stage comes to."""

    name: str
    epochs: float
    items: float
    """Items trained on, over all epochs."""
    tokens: float
    """Their own tokens, without padding."""
    loss_tokens: float | None
    loss_share: float | None
    """Share of the run's loss-bearing tokens; None where a stage did not count them."""
    padded_tokens: float
    """Tokens that the device computes, padding and all items of a micro-batch included."""
    work: Work
    pauses: tuple[tuple[str, float], ...]
    """Seconds of each kind of pause."""
    lost: Lost | None
    """What the length limit costs in one epoch; None without a limit."""


@lru_cache(maxsize=64)
def work_of(plan: RunPlan) -> tuple[StageWork, ...]:
    """Return what each stage of a run comes to; a plan that was asked for lately is not worked out again.

    Raises:
        CostError: Stages, epochs or shares contradict each other, or a size is impossible.
    """
    if plan.accumulation < 1:
        raise CostError(f"An optimizer step accumulates 1 micro-step or more, not {plan.accumulation}.")
    cut = [_limited(stage.items, plan) for stage in plan.stages]
    epochs = resolved_epochs(tuple(replace(s, items=items) for s, (items, _) in zip(plan.stages, cut, strict=True)))
    losses = [_times(items.loss_tokens, n) for (items, _), n in zip(cut, epochs, strict=True)]
    known = [x for x in losses if x is not None]
    all_loss = math.fsum(known) if len(known) == len(losses) else None
    seen: set[int] = set()
    result = []
    for stage, (items, lost), n, loss in zip(plan.stages, cut, epochs, losses, strict=True):
        batches = arrange(
            # Packed items lie side by side in sequences of one length: only that one could be padded.
            items if plan.packing else items.padded(plan.pad_to_multiple_tokens),
            micro_batch=plan.micro_batch,
            sorted_by_length=plan.sorted_by_length,
            packing=plan.packing,
        )
        if plan.process_per_stage:
            seen = set()
        work = _work(batches, n, plan.accumulation, seen)
        seen |= set(batches.lengths_tokens)
        result.append(
            StageWork(
                name=stage.name,
                epochs=n,
                items=items.count * n,
                tokens=items.tokens * n,
                loss_tokens=loss,
                loss_share=None if not all_loss or loss is None else loss / all_loss,
                padded_tokens=batches.computed_tokens * n,
                work=work,
                pauses=tuple((p.name, p.seconds * _times_paused(p, work)) for p in plan.pauses),
                lost=lost,
            )
        )
    return tuple(result)


def resolved_epochs(stages: tuple[Stage, ...]) -> tuple[float, ...]:
    """Return each stage's epochs, given or computed from its share of the loss-bearing tokens.

    With shares s of some stages and given epochs of the others, which come to E loss-bearing tokens, the whole run has
    ``E / (1 - sum s)`` of them, and a stage's epochs are its share of that over what one epoch of it holds.

    Raises:
        CostError: A stage gives both or neither, shares leave nothing, or loss-bearing tokens were not counted.
    """
    if not stages:
        raise CostError("A run needs at least one stage.")
    names = [stage.name for stage in stages]
    if len(set(names)) < len(names):
        raise CostError(f"Stages need names of their own; these are {', '.join(names)}.")
    shares = 0.0
    given_loss = 0.0
    for stage in stages:
        if (stage.epochs is None) == (stage.loss_share is None):
            raise CostError(f"Stage {stage.name!r} needs either epochs or loss_share, and not both.")
        if stage.epochs is not None and not (math.isfinite(stage.epochs) and stage.epochs > 0):
            raise CostError(f"Stage {stage.name!r}: epochs must be a positive number, not {stage.epochs}.")
        if stage.loss_share is not None and not 0 < stage.loss_share < 1:
            raise CostError(f"Stage {stage.name!r}: loss_share is a share between 0 and 1, not {stage.loss_share}.")
        shares += stage.loss_share or 0.0
    if shares == 0:
        return tuple(stage.epochs or 0.0 for stage in stages)
    per_epoch = {}
    for stage in stages:
        loss = stage.items.loss_tokens
        if loss is None:
            raise CostError(
                f"Stage {stage.name!r} has no count of loss-bearing tokens, which a loss_share needs: "
                "give loss_tokens for every item, or epochs instead of loss_share."
            )
        if loss == 0:
            raise CostError(
                f"Stage {stage.name!r} has no loss-bearing token, which a loss_share needs: all its loss_tokens are 0, "
                "its conversations have no assistant's turn, or a length limit cuts off what bears loss. Give other "
                "items or a longer limit, or epochs instead of loss_share."
            )
        per_epoch[stage.name] = loss
        given_loss += loss * (stage.epochs or 0.0)
    if shares >= 1 or given_loss == 0:
        raise CostError(
            f"Loss shares of {shares:.0%} in all leave nothing for a stage with epochs: give one stage epochs, "
            "and the others shares that stay below 100 %."
        )
    all_loss = given_loss / (1 - shares)
    return tuple(
        s.epochs if s.epochs is not None else (s.loss_share or 0.0) * all_loss / per_epoch[s.name] for s in stages
    )


def _limited(items: LengthCounts, plan: RunPlan) -> tuple[LengthCounts, Lost | None]:
    if plan.limit_tokens is None:
        return items, None
    return items.limited(plan.limit_tokens, plan.over_length)


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _work(batches: Batches, epochs: float, accumulation: int, seen: set[int]) -> Work:
    fresh = sum(1 for n in batches.lengths_tokens if n not in seen) / len(batches.lengths_tokens)
    whole = math.floor(epochs + 1e-9)  # 3 epochs that came out as 2.9999999999 are 3
    rest = max(epochs - whole, 0.0)
    # Micro-batches of an epoch that do not fill an accumulation still make a step.
    steps = whole * math.ceil(batches.count / accumulation - 1e-9)
    steps += math.ceil(rest * batches.count / accumulation - 1e-9)
    return Work(
        micro_steps=batches.count * epochs,
        tokens=batches.tokens * epochs,
        squared_tokens=batches.squared_tokens * epochs,
        new_lengths=batches.distinct_after(epochs) * fresh,
        optimizer_steps=steps,
    )


def _times_paused(pause: Pause, work: Work) -> int:
    if pause.every_optimizer_steps is not None and pause.every_optimizer_steps < 1:
        raise CostError(
            f"Pause {pause.name!r} comes every 1 optimizer step or more, not {pause.every_optimizer_steps}."
        )
    within = int(work.optimizer_steps // pause.every_optimizer_steps) if pause.every_optimizer_steps else 0
    if not pause.at_stage_end:
        return within
    ends_on_one = bool(pause.every_optimizer_steps) and work.optimizer_steps % (pause.every_optimizer_steps or 1) == 0
    return within + (0 if ends_on_one else 1)
