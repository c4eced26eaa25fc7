"""Cross entropy of the next token: over all logits at once, in chunks, or fused. A label of -100 does not count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from raysweep.errors import SpaceError
from raysweep.step.adapter import base_of, head_of
from raysweep.step.observer import Observer, Phase
from raysweep.step.packages import require

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PretrainedConfig, PreTrainedModel

IGNORED_LABEL = -100
"""``torch.nn.functional.cross_entropy``'s default ``ignore_index``, which transformers uses too."""

LOGIT_TRANSFORMS = {
    "final_logit_softcapping": None,
    "output_logit_soft_cap": None,
    "logit_scale": 1.0,
    "logits_scaling": 1.0,
    "lm_head_multiplier": 1.0,
}
"""Config fields by which a model changes its logits after the output head (Gemma, xLSTM, Cohere, Granite, Falcon H1),
with the value at which it does not."""


class FusedKernel(Protocol):
    """The output head and the mean cross entropy in one."""

    def __call__(self, weight: torch.Tensor, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the loss of ``hidden``, of shape (tokens, width), under a head of shape (vocabulary, width)."""


def full_loss(
    model: PeftModel,
    input_ids: torch.Tensor,
    labels: torch.Tensor,
    attention_mask: torch.Tensor | None,
    observer: Observer,
    *,
    upcast_logits: bool = False,
) -> torch.Tensor:
    """Return the mean loss as transformers computes it, with all logits in memory.

    Args:
        model: the adapted model.
        input_ids: tokens, of shape (items, length).
        labels: of the same shape; shifted by the model.
        attention_mask: of the same shape, or None where no item is padded.
        observer: told where the output head begins.
        upcast_logits: copy the returned logits to fp32, as accelerate's ``convert_outputs_to_fp32`` does.
    """
    head = head_of(base_of(model))
    hook = head.register_forward_pre_hook(lambda *_: observer.phase(Phase.LOSS))
    try:
        output = model(input_ids=input_ids, labels=labels, attention_mask=attention_mask)
    finally:
        hook.remove()
    if upcast_logits:
        output.logits = output.logits.float()
    loss: torch.Tensor = output.loss
    return loss


def chunked_loss(
    model: PeftModel,
    input_ids: torch.Tensor,
    labels: torch.Tensor,
    attention_mask: torch.Tensor | None,
    observer: Observer,
    *,
    chunk_tokens: int,
) -> torch.Tensor:
    """Return the same mean loss, with the logits of ``chunk_tokens`` tokens in memory at a time.

    Each chunk runs under a checkpoint, so that the backward pass makes its logits again. Arguments as ``full_loss``'s.
    """
    base = base_of(model)
    hidden, targets = shifted(base, input_ids, labels, attention_mask)
    head = head_of(base)
    counted = (targets != IGNORED_LABEL).sum()
    observer.phase(Phase.LOSS)
    starts = range(0, hidden.shape[0], chunk_tokens)

    def piece(states: torch.Tensor, wanted: torch.Tensor, index: int) -> torch.Tensor:
        observer.loss_chunk(index, len(starts))
        return functional.cross_entropy(head(states).float(), wanted, reduction="sum", ignore_index=IGNORED_LABEL)

    # A sum that starts from a zero makes the first chunk's operations those of every other.
    total = hidden.new_zeros((), dtype=torch.float32)
    for index, start in enumerate(starts):
        part = slice(start, start + chunk_tokens)
        total = total + checkpoint(piece, hidden[part], targets[part], index, use_reentrant=False)
    return total / counted


def fused_loss(
    model: PeftModel,
    input_ids: torch.Tensor,
    labels: torch.Tensor,
    attention_mask: torch.Tensor | None,
    observer: Observer,
    *,
    kernel: FusedKernel,
) -> torch.Tensor:
    """Return the same mean loss from a kernel that joins the output head and the cross entropy. Arguments as above."""
    base = base_of(model)
    hidden, targets = shifted(base, input_ids, labels, attention_mask)
    observer.phase(Phase.LOSS)
    return kernel(head_of(base).weight, hidden, targets)


def liger_kernel() -> FusedKernel:
    """Return Liger's fused linear cross entropy, as its own patches of transformers' models call it.

    Raises:
        MissingKernelError: Liger or Triton is not installed.
    """
    for package in ("triton", "liger_kernel"):
        require(package, "step.loss: 'liger'")
    liger = require("liger_kernel.transformers.fused_linear_cross_entropy", "step.loss: 'liger'")
    kernel: FusedKernel = liger.LigerFusedLinearCrossEntropyLoss(ignore_index=IGNORED_LABEL, reduction="mean")
    return kernel


def shifted(
    base: PreTrainedModel, input_ids: torch.Tensor, labels: torch.Tensor, attention_mask: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the last hidden states, of shape (items x (length - 1), width), and the tokens that each is to predict."""
    backbone = getattr(base, base.base_model_prefix)
    hidden = backbone(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
    hidden = hidden[:, :-1].reshape(-1, hidden.shape[-1])
    return hidden, labels[:, 1:].reshape(-1)


def check_plain_head(config: PretrainedConfig, loss: str) -> None:
    """Refuse a model whose logits are more than its output head applied to its last hidden states.

    Raises:
        SpaceError: names the config's field.
    """
    text = config.get_text_config()
    for name, neutral in LOGIT_TRANSFORMS.items():
        value = getattr(text, name, neutral)
        if value is not None and value != neutral:
            raise SpaceError(
                f"step.loss: {loss!r} leaves out what this model does to its logits ({name}: {value}); "
                "expected 'full' for it."
            )
