"""Where the CPU's dispatch differs from CUDA's, the trace takes CUDA's way.

Stand-ins for kernels, each with its source. A stand-in allocates, saves and frees what the kernel does; it computes
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional
from torch.nn.utils import clip_grad

from raysweep.errors import NotForecastError
from raysweep.memory.program import Work
from raysweep.setting import Attention, StepSetting, Weights
from raysweep.trace.quantised import bitsandbytes_paths
from raysweep.trace.replaced import replaced

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from raysweep.trace.recorder import Recorder

TRACED_ATTENTION = "raysweep_traced"
"""The name under which the attention's stand-in is registered with transformers."""
_FLASH_ATTN = "flash-attn"
_MATH_PATH = "sdpa: math path"
_WITH_A_BIAS = "sdpa: fused kernel with a bias"


@contextmanager
def cuda_paths(
    recorder: Recorder, setting: StepSetting, config: PretrainedConfig, *, mask_tokens: int, padded: bool = False
) -> Iterator[dict[str, str]]:
    """Within, torch and transformers act as they would on CUDA.

    Dropout keeps what CUDA's keeps, gradients are clipped by ``foreach`` operations, and attention is known to
    transformers as ``TRACED_ATTENTION``, for which it makes the masks that it makes for SDPA. So does bitsandbytes,
    where the step uses it.

    Args:
        recorder: told of work that no operation shows.
        setting: the step.
        config: the model's.
        mask_tokens: a window that is longer than this asks for no mask, one that is not asks for one, whatever the
            length that is run.
        padded: whether some token of a micro-batch is padding, so that attention needs a mask with or without a window.

    Yields:
        The kernels that attention has taken so far.

    Raises:
        NotForecastError: the model has a window that its config does not name.
    """
    from transformers import AttentionInterface, masking_utils
    from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward

    kernels = {"attention": traced_attention(setting, config, padded=padded)[1]}
    named = windows(setting, config)

    def attention(  # noqa: PLR0917  transformers' own signature
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        **others: Any,
    ) -> tuple[torch.Tensor, None]:
        if attention_mask is not None:
            if not padded:
                kernels["masked attention"] = _WITH_A_BIAS
            # transformers gives SDPA a mask and grouped heads never at once (``use_gqa_in_sdpa``).
            groups = query.shape[1] // key.shape[1]
            key, value = repeat_kv(key, groups), repeat_kv(value, groups)
            out = _masked_attention(query, key, value, attention_mask, recorder)
        elif kernels["attention"] == _MATH_PATH:
            # The mask is added to the scores in place (aten/src/ATen/native/transformers/attention.cpp,
            # _scaled_dot_product_attention_math): no other sum is made within.
            with recorder.adding_in_place():
                found: tuple[torch.Tensor, None] = sdpa_attention_forward(
                    module, query, key, value, None, dropout, scaling, **others
                )
            return found
        else:
            out = _FusedAttention.apply(query, key, value, None, recorder)  # type: ignore[no-untyped-call]  # torch's
        return out.transpose(1, 2).contiguous(), None

    def no_mask(*_: Any, **__: Any) -> None:
        return None

    def mask(*args: Any, local_size: int | None = None, **values: Any) -> torch.Tensor | None:
        """Transformers' own, which it leaves out where causality alone says it all: below a window, without padding."""
        if local_size is not None:
            if local_size not in named:
                raise NotForecastError(
                    f"The forecast expects windows of attention that the model's config names ({list(named)}); this "
                    f"model has one of {local_size} tokens. "
                    "Measure it instead: `raysweep sweep SPACE --out FOLDER --device cuda`."
                )
            local_size = 0 if local_size <= mask_tokens else None
        made: torch.Tensor | None = masking_utils.sdpa_mask(*args, local_size=local_size, **values)
        return made

    def not_all(tokens: torch.Tensor) -> bool:
        _ = tokens.sum() == tokens.numel()
        return False

    AttentionInterface.register(TRACED_ATTENTION, attention)
    # flash-attn is told of a window, and needs no mask for it.
    flash = setting.attention is Attention.FLASH
    masking_utils.AttentionMaskInterface.register(TRACED_ATTENTION, no_mask if flash else mask)
    with ExitStack() as stack:
        stack.enter_context(bitsandbytes_paths(recorder, setting))
        stack.enter_context(recorder.standing_in({torch.ops.aten._safe_softmax.default: _safe_softmax}))
        stack.enter_context(replaced(functional, "dropout", _cuda_dropout))
        stack.enter_context(replaced(clip_grad, "_device_has_foreach_support", lambda _: True))
        if hasattr(masking_utils, "find_packed_sequence_indices"):
            # transformers asks the position ids whether several items are packed into one; a step's items are not.
            stack.enter_context(replaced(masking_utils, "find_packed_sequence_indices", no_mask))
        if padded and hasattr(masking_utils, "fast_all"):
            # transformers asks the padding mask whether no token is padded: with a mask, one is.
            stack.enter_context(replaced(masking_utils, "fast_all", not_all))
        yield kernels


def windows(setting: StepSetting, config: PretrainedConfig) -> tuple[int, ...]:
    """Return the lengths, in order, from which on transformers makes a mask for SDPA even where no item is padded.

    They are the spans of tokens that sliding or chunked attention sees. Eager attention has a mask at every length, and
    flash-attn has none.

    Source: transformers/masking_utils.py, _ignore_causal_mask_sdpa.
    """
    if setting.attention is not Attention.SDPA:
        return ()
    text = config.get_text_config()
    spans = (getattr(text, name, None) for name in ("sliding_window", "attention_chunk_size"))
    return tuple(sorted({span for span in spans if isinstance(span, int)}))


def traced_attention(setting: StepSetting, config: PretrainedConfig, *, padded: bool = False) -> tuple[str, str]:
    """Return transformers' name of the attention to trace, and the kernel that it stands for.

    CUDA's SDPA takes a fused kernel (flash or cuDNN) for half precision. For fp32 it takes the math path where heads
    are grouped, as seen on an H200 with torch 2.11; otherwise the memory-efficient kernel, whose memory is that of
    the fused ones. With a mask, heads are never grouped: half precision takes cuDNN's kernel on chips of compute
    capability 9 and 10 and the memory-efficient one on others, fp32 the latter; both are given the mask as a bias.

    Source: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, select_sdp_backend.
    """
    if setting.attention is Attention.EAGER:
        return "eager", "eager"
    if padded:
        return TRACED_ATTENTION, _WITH_A_BIAS
    text = config.get_text_config()
    grouped = getattr(text, "num_key_value_heads", None) not in (None, text.num_attention_heads)
    half = setting.weights is not Weights.FP32 or setting.autocast
    if setting.attention is Attention.SDPA and not half and grouped:
        return TRACED_ATTENTION, _MATH_PATH
    return TRACED_ATTENTION, "sdpa: fused kernel" if setting.attention is Attention.SDPA else _FLASH_ATTN


def _safe_softmax(scores: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A softmax that is zero where all scores of a row are masked: the kernel looks for such rows.

    Source: aten/src/ATen/native/transformers/attention.cpp, _safe_softmax.
    """
    out = torch.softmax(scores, dim, dtype)
    masked = torch.empty_like(scores, dtype=torch.bool)
    kept = masked.all(dim, keepdim=True), torch.empty((), dtype=out.dtype, device=out.device)
    del masked, kept
    return out


def _cuda_dropout(x: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    """Keep a byte an element, as CUDA's dropout does where the CPU's keeps a mask of floats.

    Source: aten/src/ATen/native/cuda/Dropout.cu.
    """
    return torch.native_dropout(x, p, True)[0] if training and p else x


def _masked_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, recorder: Recorder
) -> torch.Tensor:
    """SDPA with a mask: one that is boolean becomes a bias in the query's dtype, which the backward pass needs again.

    Left out: the memory-efficient kernel copies the bias where its rows are not aligned to a few elements.

    Source: aten/src/ATen/native/transformers/attention.cpp, convert_boolean_attn_mask.
    """
    bias = mask
    if mask.dtype is torch.bool:
        bias = torch.where(mask, 0.0, query.new_full((), float("-inf")))
    out: torch.Tensor = _FusedAttention.apply(query, key, value, bias, recorder)  # type: ignore[no-untyped-call]
    return out


class _FusedAttention(torch.autograd.Function):
    """FlashAttention 2 inside torch; with a bias cuDNN's or the memory-efficient kernel, which keep the same and it.

    Source: aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp, mha_fwd and mha_bwd; for the bias
    tools/autograd/derivatives.yaml, _scaled_dot_product_cudnn_attention and _scaled_dot_product_efficient_attention.
    """

    @staticmethod
    def forward(  # noqa: PLR0917  torch passes them by their places
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        bias: torch.Tensor | None,
        recorder: Recorder,
    ) -> torch.Tensor:
        """query: (items, heads, length, width); key and value may have fewer heads.

        bias: (items, 1, length, length), or None where there is no mask.
        """
        items, heads, length, width = query.shape
        out = query.new_empty(items, length, heads, width)
        log_sum_exp = query.new_empty(items, heads, length, dtype=torch.float32)
        seed, offset = query.new_empty(2, dtype=torch.int64), query.new_empty(1, dtype=torch.int64)
        ctx.save_for_backward(query, key, value, out, log_sum_exp, seed, offset, *([] if bias is None else [bias]))
        ctx.recorder = recorder
        # A kernel that is given a bias cannot know that half of it masks everything.
        ctx.halves = 1 if bias is None else 2
        recorder.add_work(Work.ATTENTION_FLOPS, ctx.halves * causal_flops(query, key, products=2))
        return out.transpose(1, 2)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The gradients of query, key and value, and the accumulators that the kernel takes and frees."""
        query, key, value, *_ = ctx.saved_tensors
        items, heads, length, width = query.shape
        grad = grad.transpose(1, 2).contiguous()
        grad_query = torch.empty_like(query.transpose(1, 2))
        grad_key = torch.empty_like(key.transpose(1, 2))
        grad_value = torch.empty_like(value.transpose(1, 2))
        rounded = -(-length // 128) * 128
        softmax_sums = query.new_empty(items, heads, rounded, dtype=torch.float32)
        accumulator = query.new_empty(items, rounded, heads, width, dtype=torch.float32)
        if key.shape[1] != heads:
            expanded = [query.new_empty(items, key.shape[2], heads, width) for _ in range(2)]
            del expanded
        del softmax_sums, accumulator
        ctx.recorder.add_work(Work.ATTENTION_FLOPS, ctx.halves * causal_flops(query, key, products=5))
        return grad_query.transpose(1, 2), grad_key.transpose(1, 2), grad_value.transpose(1, 2), None, None


def causal_flops(query: torch.Tensor, key: torch.Tensor, *, products: int) -> float:
    """FLOPs of ``products`` causal matrix products of (length x width) by (width x length), half of each skipped.

    Two products forward (scores, output) and five backward (scores again, and four gradients), as in FlashAttention 2
    (Dao 2023, section 3.1).
    """
    items, heads, length, width = query.shape
    return products * 2.0 * items * heads * length * key.shape[2] * width / 2
