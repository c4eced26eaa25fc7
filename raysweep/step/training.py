"""One training step: micro-steps that add gradients, then the optimizer's step."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import torch

from raysweep.setting import Loss, StepSetting
from raysweep.step import checkpointing
from raysweep.step.loss import check_plain_head, chunked_loss, full_loss
from raysweep.step.observer import SILENT, Observer, Phase
from raysweep.step.optimizer import make_optimizer

if TYPE_CHECKING:
    from peft import PeftModel


class TrainingStep:
    """A model in training, with its optimizer; ``close`` leaves the model as it was."""

    def __init__(
        self,
        model: PeftModel,
        setting: StepSetting,
        *,
        observer: Observer = SILENT,
        host_store: checkpointing.HostStore | None = None,
    ) -> None:
        """Set the model up for training.

        Args:
            model: as ``raysweep.step.model.build`` returns it, for a setting with the same weights, adapter and attention.
            setting: the step.
            observer: told of phases and loss chunks.
            host_store: where ``checkpointing: cpu`` keeps the layers' inputs; pinned host memory by default.

        Raises:
            SpaceError: the setting and the model do not go together.
        """
        if setting.loss is not Loss.FULL:
            check_plain_head(model.get_base_model().config, setting.loss.value)
        self.model = model
        self.setting = setting
        self.observer = observer
        self.trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        checkpointing.enable(model.get_base_model(), setting.checkpointing, host_store)
        model.train()
        self.optimizer = make_optimizer(setting.optimizer, self.trained)

    def micro_step(
        self, input_ids: torch.Tensor, labels: torch.Tensor, attention_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Run forward and backward over one micro-batch; the gradients gain its share of the accumulation.

        Args:
            input_ids: tokens, of shape (items, length), on the model's device.
            labels: of the same shape; -100 where a token does not count.
            attention_mask: of the same shape, or None where no item is padded.

        Returns:
            The micro-batch's mean loss, detached. Nothing else is left alive on the device but gradients.
        """
        self.observer.phase(Phase.FORWARD)
        # As Hugging Face's Trainer does it: forward and loss under autocast, the backward outside.
        with self._autocast(input_ids.device.type):
            loss = self._loss(input_ids, labels, attention_mask)
        self.observer.phase(Phase.BACKWARD)
        share = loss / self.setting.accumulation if self.setting.accumulation > 1 else loss
        share.backward()
        return loss.detach()

    def optimizer_step(self) -> None:
        """Clip the gradients where the setting asks for it, step, and drop the gradients."""
        self.observer.phase(Phase.OPTIMIZER)
        if self.setting.max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.trained, self.setting.max_grad_norm, foreach=True)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def close(self) -> None:
        """Drop gradients and optimizer states, and take the checkpointing off the model."""
        self.optimizer.zero_grad(set_to_none=True)
        self.optimizer.state.clear()
        checkpointing.disable(self.model.get_base_model())

    def _autocast(self, device_type: str) -> AbstractContextManager[object]:
        return torch.autocast(device_type, torch.bfloat16) if self.setting.autocast else nullcontext()

    def _loss(self, input_ids: torch.Tensor, labels: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
        if self.setting.loss is Loss.FULL:
            upcast = self.setting.autocast
            return full_loss(self.model, input_ids, labels, attention_mask, self.observer, upcast_logits=upcast)
        chunk_tokens = self.setting.loss_chunk_tokens
        return chunked_loss(self.model, input_ids, labels, attention_mask, self.observer, chunk_tokens=chunk_tokens)
