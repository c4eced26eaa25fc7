"""Trace one step at one length: the events of every segment of a run."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from raysweep.errors import NotForecastError
from raysweep.memory.program import Category, Label, SegmentName
from raysweep.setting import Checkpointing, Loss, StepSetting, Weights
from raysweep.step.adapter import base_of
from raysweep.step.model import build
from raysweep.step.observer import Phase
from raysweep.step.packages import MissingKernelError
from raysweep.step.training import TrainingStep
from raysweep.trace.cuda import cuda_paths, traced_attention
from raysweep.trace.operations import DEVICE
from raysweep.trace.quantised import is_nf4, quantise, require_bitsandbytes
from raysweep.trace.recorder import Recorded, Recorder

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PretrainedConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One trace: the segments' events at one length."""

    length_tokens: int
    segments: dict[SegmentName, Recorded]
    nbytes: NDArray[np.int64]
    """Of every object, by its number."""
    label: NDArray[np.int32]
    """Every object's label: its place in ``labels``."""
    labels: tuple[Label, ...]
    kernels: dict[str, str]


def check_can_trace(setting: StepSetting, config: PretrainedConfig) -> None:
    """Refuse by name what the trace does not model.

    Raises:
        NotForecastError: names the part of the setting, and offers the probe; or names the package whose Python the
            trace would run, and which is not installed.
    """
    unknown: list[str] = []
    if setting.weights is Weights.INT8:
        unknown.append(f"weights: {setting.weights.value}")
    if setting.loss is Loss.LIGER:
        unknown.append("loss: liger")
    if setting.autocast:
        unknown.append("autocast: true")
    layer_types = set(getattr(config.get_text_config(), "layer_types", None) or ())
    if "linear_attention" in layer_types:
        unknown.append("linear-attention layers")
    # Which expert a token goes to hangs on the weights and the text: no shape says how many tokens each one gets.
    text = config.get_text_config()
    if any((getattr(text, name, None) or 1) > 1 for name in ("num_local_experts", "num_experts", "n_routed_experts")):
        unknown.append("mixture-of-experts layers")
    if unknown:
        raise NotForecastError(
            f"The forecast does not model {', '.join(unknown)} yet. "
            "Measure it instead: `raysweep sweep SPACE --out FOLDER --device cuda`."
        )
    try:
        require_bitsandbytes(setting)
    except MissingKernelError as error:
        raise NotForecastError(f"The forecast runs the step's own code without a device: {error}") from error


def traced_model(config: PretrainedConfig, setting: StepSetting, *, padded: bool = False) -> PeftModel:
    """Return a model to trace, of shapes alone, with CUDA's attention; padded: that of micro-batches with a mask.

    Raises:
        NotForecastError: the setting names what the trace does not model.
    """
    check_can_trace(setting, config)
    attention, _ = traced_attention(setting, config, padded=padded)
    model = build(config, setting, device="meta")
    base = base_of(model)
    # A composite model's text part has a config of its own.
    for part in {id(c): c for c in (base.config, base.config.get_text_config())}.values():
        part._attn_implementation = attention
    return model


def trace(
    config: PretrainedConfig,
    setting: StepSetting,
    length_tokens: int,
    *,
    whole: bool = True,
    padded: bool = False,
    mask_tokens: int | None = None,
    model: PeftModel | None = None,
) -> Recording:
    """Run the micro-steps of two optimizer steps on tensors without storage and return their events.

    A micro-step that adds to gradients is among them where the setting accumulates.

    Args:
        config: of a causal language model.
        setting: the step.
        length_tokens: tokens of each item, with its padding.
        whole: whether to trace the optimizer's steps too, which are the same at every length, and the micro-step after
            them; else that one is taken to do what the first one did.
        padded: whether some item of each micro-batch is padded, so that the model is given a mask.
        mask_tokens: attention has the masks that its windows ask for at this length; by default at the traced one.
        model: what ``traced_model`` returns for the same arguments, to be used again; by default it is built.

    Raises:
        NotForecastError: the setting names what the trace does not model.
    """
    model = model or traced_model(config, setting, padded=padded)
    recorder = Recorder()
    mask_tokens = length_tokens if mask_tokens is None else mask_tokens
    paths = cuda_paths(recorder, setting, config, mask_tokens=mask_tokens, padded=padded)
    # A collection in the middle of a step would move frees; the step itself frees by reference counts, as on a device.
    with _no_gc(), paths as kernels, recorder:
        _load(model, setting, recorder)
        recorder.end(SegmentName.SETUP)
        with _layers_known(model, recorder):
            _run(model, setting, length_tokens, recorder, whole=whole, padded=padded)
    return Recording(
        length_tokens=length_tokens,
        segments=recorder.segments,
        nbytes=np.array(recorder.nbytes, np.int64),
        label=np.array(recorder.label_of, np.int32),
        labels=recorder.labels.labels(),
        kernels=kernels,
    )


@contextmanager
def _no_gc() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _load(model: PeftModel, setting: StepSetting, recorder: Recorder) -> None:
    """Put every parameter and buffer in place, in the order in which loading and adapting do.

    The base model comes first; weights in nf4 are quantised layer by layer. peft then makes the adapter in the weights'
    dtype (in fp32 where those are packed) and casts it afterwards, one parameter at a time.
    """
    adapter = {id(p) for p in model.parameters() if p.requires_grad}
    copies = {id(b) for b in getattr(model, "resident_copies", torch.nn.Module()).buffers()}
    present: dict[int, torch.Tensor] = {}
    for module in model.modules():
        if setting.weights is Weights.NF4 and is_nf4(module):
            quantise(module)
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            if tensor is not None:
                present[id(tensor)] = tensor
                if id(tensor) not in adapter | copies:
                    recorder.see(tensor, "load")
    recorder.category = Category.ADAPTER
    trained = [t for key, t in present.items() if key in adapter]
    made_dtype = torch.bfloat16 if setting.weights is Weights.BF16 else torch.float32
    if any(t.dtype is not made_dtype for t in trained):
        made = [torch.empty(t.shape, dtype=made_dtype, device=DEVICE) for t in trained]
        for tensor in trained:
            recorder.see(tensor, "cast")
            del made[0]
    else:
        for tensor in trained:
            recorder.see(tensor, "load")
    for key, tensor in present.items():
        if key in copies:
            recorder.see(tensor, "copy")
    recorder.empty_cache()


@contextmanager
def _layers_known(model: PeftModel, recorder: Recorder) -> Iterator[None]:
    """Tell the recorder which decoder layer runs."""
    lists = [m for m in model.modules() if isinstance(m, torch.nn.ModuleList)]
    layers = max(lists, key=len, default=torch.nn.ModuleList())

    def entering(number: int) -> Any:
        def hook(*_: Any) -> None:
            recorder.enter_layer(number)

        return hook

    hooks = [layer.register_forward_pre_hook(entering(i)) for i, layer in enumerate(layers)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class _CountingHostStore:
    """Layer inputs in host memory: no device memory is held between the copy out and the copy back."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def store(self, tensor: torch.Tensor) -> tuple[torch.Size, torch.dtype]:
        self._recorder.current.host_blocks.append(tensor.numel() * tensor.element_size())
        return tensor.shape, tensor.dtype

    def load(self, handle: tuple[torch.Size, torch.dtype]) -> torch.Tensor:
        return torch.empty(handle[0], dtype=handle[1], device=DEVICE)


def _run(model: PeftModel, setting: StepSetting, length: int, recorder: Recorder, *, whole: bool, padded: bool) -> None:
    host = _CountingHostStore(recorder) if setting.checkpointing is Checkpointing.CPU else None
    training = TrainingStep(model, setting, observer=recorder, host_store=host)

    def micro_step() -> None:
        # The tokens are the micro-step's own: they come before the step says that its forward pass begins.
        recorder.phase(Phase.FORWARD)
        ids = torch.zeros((setting.micro_batch, length), dtype=torch.int64, device=DEVICE)
        if padded:
            # Padding has no label: the labels are no longer the tokens themselves.
            training.micro_step(ids, torch.zeros_like(ids), torch.zeros_like(ids))
        else:
            training.micro_step(ids, ids)

    def gradients_known() -> None:
        for parameter in training.trained:
            if parameter.grad is not None:
                recorder.retag(parameter.grad, Category.GRADIENTS)

    micro_step()
    gradients_known()
    recorder.end(SegmentName.FIRST_MICRO)
    if setting.accumulation > 1:
        micro_step()
        recorder.end(SegmentName.LATER_MICRO)
    if whole:
        training.optimizer_step()
        recorder.end(SegmentName.FIRST_STEP)
        micro_step()
        gradients_known()
        recorder.end(SegmentName.MICRO)
        training.optimizer_step()
        recorder.end(SegmentName.STEP)
    training.close()
    recorder.drop()
    if not whole:
        recorder.repeat(SegmentName.FIRST_MICRO, SegmentName.MICRO)
