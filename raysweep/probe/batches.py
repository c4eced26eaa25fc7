"""Micro-batches of random tokens: neither memory nor time depends on which tokens they are."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from raysweep.step.loss import IGNORED_LABEL


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One micro-batch on its device; all tensors of shape (items, longest item)."""

    input_ids: torch.Tensor
    labels: torch.Tensor
    attention_mask: torch.Tensor | None
    """None where no item is padded."""


def make_batch(lengths_tokens: tuple[int, ...], *, vocabulary: int, device: torch.device) -> Batch:
    """Return items of these lengths, padded at their ends to the longest; padding is masked and has no label.

    Args:
        lengths_tokens: one entry an item, each at least 1.
        vocabulary: tokens are drawn below it.
        device: where the tensors are made.
    """
    shape = (len(lengths_tokens), max(lengths_tokens))
    tokens = torch.randint(0, vocabulary, shape, device=device)
    if min(lengths_tokens) == shape[1]:
        return Batch(input_ids=tokens, labels=tokens, attention_mask=None)
    lengths = torch.tensor(lengths_tokens, device=device)[:, None]
    real = torch.arange(shape[1], device=device)[None, :] < lengths
    return Batch(input_ids=tokens, labels=tokens.masked_fill(~real, IGNORED_LABEL), attention_mask=real.long())


def micro_batches(item_tokens: tuple[int, ...], micro_batch: int) -> tuple[tuple[int, ...], ...]:
    """Cut the data's items, in their order, into micro-batches; the last may be smaller."""
    return tuple(item_tokens[start : start + micro_batch] for start in range(0, len(item_tokens), micro_batch))
