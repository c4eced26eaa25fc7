"""Greedy generation after a prompt."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from raysweep.step.observer import SILENT, Observer, Phase

if TYPE_CHECKING:
    from collections.abc import Iterator

    from peft import PeftModel
    from transformers import GenerationConfig, PreTrainedModel

    from raysweep.setting import StepSetting


def generate(
    model: PeftModel | PreTrainedModel,
    setting: StepSetting,
    prompt: torch.Tensor,
    new_tokens: int,
    *,
    observer: Observer = SILENT,
) -> torch.Tensor:
    """Return prompt and continuation, exactly ``new_tokens`` more, with a key-value cache and without gradients.

    Args:
        model: with or without an adapter.
        setting: whose ``autocast`` is followed.
        prompt: tokens, of shape (items, length), on the model's device.
        new_tokens: how many tokens follow each item.
        observer: told of the phase.
    """
    from transformers import GenerationConfig

    observer.phase(Phase.GENERATE)
    # No token ends a sequence, so that every run has the length that was asked for.
    plan = GenerationConfig(  # type: ignore[no-untyped-call]  # transformers leaves it untyped
        max_new_tokens=new_tokens, do_sample=False, use_cache=True, eos_token_id=None, pad_token_id=0
    )
    generator: Any = model
    generator.eval()
    autocast = torch.autocast(prompt.device.type, torch.bfloat16) if setting.autocast else nullcontext()
    with _planned(generator, plan), torch.no_grad(), autocast:
        tokens: torch.Tensor = generator.generate(
            input_ids=prompt, attention_mask=torch.ones_like(prompt), generation_config=plan
        )
    return tokens


@contextmanager
def _planned(model: Any, plan: GenerationConfig) -> Iterator[None]:
    """Put the plan in place of the model's own generation config for a block.

    transformers fills what a plan leaves open, such as the tokens that end a sequence, from the model's own.
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    own, base.generation_config = base.generation_config, plan
    try:
        yield
    finally:
        base.generation_config = own
