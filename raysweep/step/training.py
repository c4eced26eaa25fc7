"""One training step: micro-steps that add gradients, then the optimizer's step."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import torch

from raysweep.errors import SpaceError
from raysweep.setting import Attention, Loss, Optimizer, StepSetting, Weights
from raysweep.step import checkpointing
from raysweep.step.adapter import base_of, head_of
from raysweep.step.loss import FusedKernel, check_plain_head, chunked_loss, full_loss, fused_loss, liger_kernel
from raysweep.step.observer import SILENT, Observer, Phase
from raysweep.step.optimizer import make_optimizer

if TYPE_CHECKING:
    from collections.abc import Callable

    from peft import PeftModel

    OptimizerFactory = Callable[[Optimizer, list[torch.nn.Parameter]], torch.optim.Optimizer]


class TrainingStep:
    """A model in training, with its optimizer; ``close`` leaves the model as it was."""

    def __init__(
        self,
        model: PeftModel,
        setting: StepSetting,
        *,
        observer: Observer = SILENT,
        host_store: checkpointing.HostStore | None = None,
        fused_kernel: FusedKernel | None = None,
        make_optimizer: OptimizerFactory = make_optimizer,
    ) -> None:
        """Set the model up for training.

        Args:
            model: as ``raysweep.step.model.build`` returns it for these weights, this adapter and this attention.
            setting: the step.
            observer: told of phases and loss chunks.
            host_store: where ``checkpointing: cpu`` keeps the layers' inputs; pinned host memory by default.
            fused_kernel: what ``loss: liger`` calls; Liger's by default.
            make_optimizer: makes the optimizer; the real ones by default.

        Raises:
            SpaceError: the setting and the model do not go together.
            MissingKernelError: a package that the setting needs is not installed.
        """
        base = base_of(model)
        if setting.attention is Attention.FLASH and setting.weights is Weights.FP32 and not setting.autocast:
            raise SpaceError("step.attention: 'flash' has no fp32 kernel; expected weights: bf16, or autocast: true.")
        if setting.loss is not Loss.FULL:
            check_plain_head(base.config, setting.loss.value)
        if setting.loss is Loss.LIGER:
            if type(head_of(base)) is not torch.nn.Linear:
                raise SpaceError(
                    "step.loss: 'liger' fuses the output head, which this adapter changes; "
                    "expected 'full' or 'chunked', or other step.adapter.targets."
                )
            if head_of(base).bias is not None:
                raise SpaceError("step.loss: 'liger' leaves out this output head's bias; expected 'full' or 'chunked'.")
            fused_kernel = fused_kernel or liger_kernel()
        self.model = model
        self.setting = setting
        self.observer = observer
        self.trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._fused_kernel = fused_kernel
        self.optimizer = make_optimizer(setting.optimizer, self.trained)
        checkpointing.enable(base, setting.checkpointing, host_store)
        model.train()

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
        torch.autograd.backward(share)
        return loss.detach()

    def optimizer_step(self) -> None:
        """Clip the gradients where the setting asks for it, step, and drop the gradients."""
        self.observer.phase(Phase.OPTIMIZER)
        if self.setting.max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.trained, self.setting.max_grad_norm, foreach=True)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def reset(self) -> None:
        """Drop gradients and optimizer states: the next step is a first one again, from the parameters as they are."""
        self.optimizer.zero_grad(set_to_none=True)
        self.optimizer.state.clear()

    def close(self) -> None:
        """Drop gradients and optimizer states, and take the checkpointing off the model."""
        self.reset()
        checkpointing.disable(base_of(self.model))

    def _autocast(self, device_type: str) -> AbstractContextManager[object]:
        return torch.autocast(device_type, torch.bfloat16) if self.setting.autocast else nullcontext()

    def _loss(self, input_ids: torch.Tensor, labels: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
        if self.setting.loss is Loss.FULL:
            upcast = self.setting.autocast
            return full_loss(self.model, input_ids, labels, attention_mask, self.observer, upcast_logits=upcast)
        if self._fused_kernel is not None:
            kernel = self._fused_kernel
            return fused_loss(self.model, input_ids, labels, attention_mask, self.observer, kernel=kernel)
        chunk_tokens = self.setting.loss_chunk_tokens
        return chunked_loss(self.model, input_ids, labels, attention_mask, self.observer, chunk_tokens=chunk_tokens)
