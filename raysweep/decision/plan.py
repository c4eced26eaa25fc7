"""The run as ``cost`` counts it: from the items of each stage and the space's run setting to a plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from cost.batches import Packing
from cost.lengths import LengthCounts
from cost.money import Terms
from cost.plan import RunPlan, Stage
from raysweep.data.batching import pad_to_multiple
from raysweep.data.items import Counts, Items
from raysweep.data.limit import limit_items
from raysweep.errors import SpaceError, nearest
from raysweep.setting import StepSetting
from raysweep.space import SearchSpace

MILLION_TOKENS = 1_000_000


def length_counts(items: Items) -> LengthCounts:
    """Return the histogram of the items' lengths, with their loss-bearing tokens where they are told apart."""
    lengths, place, counts = np.unique(items.tokens, return_inverse=True, return_counts=True)
    losses = None
    if items.loss_tokens is not None:
        losses = tuple(np.bincount(place, weights=items.loss_tokens, minlength=len(lengths)).tolist())
    return LengthCounts(
        lengths_tokens=tuple(lengths.tolist()), items=tuple(counts.tolist()), loss_tokens_by_length=losses
    )


def check_stage_names(names: Iterable[str], space: SearchSpace) -> None:
    """Refuse data of stages that a space of several stages does not have: it says the epochs or the share of each.

    Raises:
        SpaceError: a name is of no stage.
    """
    planned = [stage.name for stage in space.stages()]
    if len(planned) < 2:
        return
    for name in names:
        if name not in planned:
            raise SpaceError(
                f"--data: expected STAGE=FILE for {', '.join(planned)}, each of which has its own epochs or share of "
                f"the loss; data of {name!r} came.{nearest(name, planned)} Write --data {planned[0]}=FILE; a run of "
                "other stages is a search space of its own."
            )


def trained_tokens(items: Items, space: SearchSpace) -> Counts:
    """Return the lengths of items, in their order, as the run trains on them under the space's longest length.

    Raises:
        DataError: no item is left.
    """
    limited = limit_items(items, max(space.lengths), space.run.over_length)
    return pad_to_multiple(limited.tokens, space.run.pad_to_multiple_tokens)


def stages_of(items: Mapping[str, LengthCounts], space: SearchSpace) -> tuple[Stage, ...]:
    """Return the run's stages: the space's epochs and shares with the items' counts; one epoch where it names none.

    Raises:
        SpaceError: the space names a stage whose items are not there, or several stages and none of an item's name.
    """
    check_stage_names(items, space)
    planned = {stage.name: stage for stage in space.stages()}
    if len(planned) == 1 and not set(items) & set(planned):
        # Other data than the space's own were given: each file is a stage of the only stage's epochs.
        (stage,) = planned.values()
        return tuple(Stage(name=name, items=counts, epochs=stage.epochs or 1.0) for name, counts in items.items())
    missing = [name for name in planned if name not in items]
    if missing:
        raise SpaceError(
            f"data: expected items for every stage of the run; {', '.join(items)} came alone. Give those of "
            f"{missing[0]!r} with --data {missing[0]}=FILE."
        )
    return tuple(
        Stage(name=name, items=counts, epochs=planned[name].epochs, loss_share=planned[name].loss_share)
        if name in planned
        else Stage(name=name, items=counts, epochs=1.0)
        for name, counts in items.items()
    )


def run_plan(
    stages: tuple[Stage, ...],
    space: SearchSpace,
    step: StepSetting,
    limit_tokens: int | None,
    *,
    measured_warm_up_seconds: float = 0.0,
) -> RunPlan:
    """Return the whole run under one length limit.

    Args:
        stages: its data.
        space: what else of the run is known.
        step: of the run.
        limit_tokens: of an item; None for none.
        measured_warm_up_seconds: what first steps took beyond steady ones, where the space does not say it.
    """
    run = space.run
    packing = None
    if run.packing is not None and limit_tokens is not None:
        packing = Packing(
            sequence_tokens=limit_tokens, method=run.packing, attends_across_items=run.packing_attends_across_items
        )
    return RunPlan(
        stages=stages,
        micro_batch=step.micro_batch,
        accumulation=step.accumulation,
        limit_tokens=limit_tokens,
        over_length=run.over_length,
        pad_to_multiple_tokens=run.pad_to_multiple_tokens,
        sorted_by_length=run.sorted_by_length,
        packing=packing,
        warm_up_seconds=measured_warm_up_seconds if run.warm_up_seconds is None else run.warm_up_seconds,
        pauses=run.pauses,
        start_up=run.start_up,
        process_per_stage=run.process_per_stage,
    )


def million_tokens(step: StepSetting, length_tokens: int) -> RunPlan:
    """Return a plan of a million tokens in items of one length, for spaces that name no data."""
    items = max(1, round(MILLION_TOKENS / length_tokens))
    return RunPlan(
        stages=(Stage(name="a million tokens", items=LengthCounts.of_counts({length_tokens: items}), epochs=1.0),),
        micro_batch=step.micro_batch,
        accumulation=step.accumulation,
    )


def terms_of(space: SearchSpace, price_usd_per_hour: float | None, gpu_count: int) -> Terms:
    """Return on what terms a flavour is paid; a cluster's price of one GPU and hour replaces the flavour's."""
    run = space.run
    price = price_usd_per_hour if run.price_per_gpu_hour is None else run.price_per_gpu_hour * gpu_count
    return Terms(price_per_hour=price, currency=run.currency, billing=run.billing, spot=run.spot, storage=run.storage)
