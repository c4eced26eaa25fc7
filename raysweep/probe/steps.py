"""What a probe runs: steps of one length, the data's own lengths, or generation, each timed as it goes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from raysweep.probe.batches import make_batch, micro_batches
from raysweep.probe.fault import NotFiniteError
from raysweep.step.adapter import base_of
from raysweep.step.generation import generate
from raysweep.step.observer import Phase

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

    from raysweep.probe.device import Device
    from raysweep.probe.meter import Meter
    from raysweep.probe.timing import Timing
    from raysweep.setting import StepSetting
    from raysweep.step.training import TrainingStep

SHORTEST_ITEM_TOKENS = 2
"""One token has no next one to predict, and its mean loss would be no number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How many steps a probe runs."""

    warm_up_steps: int = 2
    """Optimizer steps before the measured ones: the first makes the optimizer's states, both load and tune kernels."""
    measured_steps: int = 3
    """At least so many."""
    measured_seconds: float = 1.0
    """And more of them until they took so long together."""
    most_steps: int = 20
    """But no more than so many."""
    generations: int = 2
    """Measured generations, after one to warm up."""

    def enough(self, step_seconds: list[float]) -> bool:
        """Return whether the measured steps suffice."""
        steps = len(step_seconds)
        return steps >= self.most_steps or (steps >= self.measured_steps and sum(step_seconds) >= self.measured_seconds)


class Place:
    """An observer that remembers where the probe is."""

    def __init__(self) -> None:
        """Begin with the loading."""
        self.current = Phase.LOAD
        self.item: int | None = None
        """Index from 0 of a data probe's item, the first of its micro-batch."""

    def phase(self, name: Phase) -> None:
        """Remember the phase."""
        self.current = name

    def loss_chunk(self, index: int, count: int) -> None:
        """Chunks are part of their phase."""


def fixed_length(step: TrainingStep, device: Device, timing: Timing, *, length_tokens: int, pace: Pace) -> None:
    """Run optimizer steps over items of one length: warm-up ones, then measured ones.

    Raises:
        NotFiniteError: a step's loss is not a number.
    """
    setting = step.setting
    lengths = (max(length_tokens, SHORTEST_ITEM_TOKENS),) * setting.micro_batch
    for _ in range(pace.warm_up_steps):
        timing.first_step_seconds.append(_optimizer_step(step, device, (lengths,) * setting.accumulation))
    while not pace.enough(timing.step_seconds):
        timing.step_seconds.append(_optimizer_step(step, device, (lengths,) * setting.accumulation))
        timing.step_tokens.append(sum(lengths) * setting.accumulation)


def data_lengths(
    step: TrainingStep,
    device: Device,
    timing: Timing,
    *,
    item_tokens: tuple[int, ...],
    place: Place,
    meter: Meter,
    pace: Pace,
) -> None:
    """Run the data's own lengths in their order, each item once; a last incomplete accumulation still steps.

    Libraries are warmed up with the first micro-batch. Then gradients, optimizer states and caches go, and the peaks
    start anew, so that memory is that of a run from its beginning.

    Raises:
        NotFiniteError: a step's loss is not a number.
    """
    accumulation = step.setting.accumulation
    lengths = tuple(max(tokens, SHORTEST_ITEM_TOKENS) for tokens in item_tokens)
    batches = micro_batches(lengths, step.setting.micro_batch)
    place.item = 0
    for _ in range(pace.warm_up_steps):
        timing.first_step_seconds.append(_optimizer_step(step, device, batches[:1]))
    step.reset()
    device.release_caches()
    meter.restart()
    done_items = 0
    for start in range(0, len(batches), accumulation):
        part = batches[start : start + accumulation]
        timing.step_seconds.append(_optimizer_step(step, device, part, timing=timing, place=place, item=done_items))
        timing.step_tokens.append(sum(map(sum, part)))
        done_items += sum(map(len, part))


def generation(
    model: PeftModel | PreTrainedModel,
    setting: StepSetting,
    device: Device,
    timing: Timing,
    *,
    prompt_tokens: int,
    new_tokens: int,
    place: Place,
    pace: Pace,
) -> None:
    """Generate once to warm up, then measured times; a generation is a step, and its new tokens are its tokens."""
    vocabulary = model.config.get_text_config().vocab_size
    for index in range(1 + pace.generations):
        start = time.perf_counter()
        prompt = make_batch((prompt_tokens,) * setting.micro_batch, vocabulary=vocabulary, device=device.torch_device)
        generate(model, setting, prompt.input_ids, new_tokens, observer=place)
        device.synchronize()
        seconds = time.perf_counter() - start
        if index == 0:
            timing.first_step_seconds.append(seconds)
        else:
            timing.step_seconds.append(seconds)
            timing.step_tokens.append(new_tokens * setting.micro_batch)


def _optimizer_step(
    step: TrainingStep,
    device: Device,
    batches: tuple[tuple[int, ...], ...],
    *,
    timing: Timing | None = None,
    place: Place | None = None,
    item: int = 0,
) -> float:
    """Run one optimizer step over micro-batches of these lengths and return its seconds, the device waited for.

    With a ``timing`` and a ``place`` each micro-step is timed by itself, and the item in hand is noted.
    """
    start = time.perf_counter()
    total: torch.Tensor | None = None
    for lengths in batches:
        micro_start = time.perf_counter()
        if place is not None:
            place.item = item
        loss = _micro_step(step, device, lengths)
        total = loss if total is None else total + loss
        item += len(lengths)
        if timing is not None:
            device.synchronize()
            timing.micro_step_seconds.append(time.perf_counter() - micro_start)
    step.optimizer_step()
    device.synchronize()
    seconds = time.perf_counter() - start
    if total is None or not bool(total.isfinite()):
        raise NotFiniteError("the loss is not a finite number")
    return seconds


def _micro_step(step: TrainingStep, device: Device, lengths: tuple[int, ...]) -> torch.Tensor:
    vocabulary = base_of(step.model).config.get_text_config().vocab_size
    batch = make_batch(lengths, vocabulary=vocabulary, device=device.torch_device)
    return step.micro_step(batch.input_ids, batch.labels, batch.attention_mask)
