"""The cells that ``reference_cells.py`` measures: models, steps, lengths and caps, in the order of their worth."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from raysweep.records import Mode
from raysweep.setting import (
    AdapterDtype,
    AdapterSetting,
    Attention,
    Checkpointing,
    Loss,
    Optimizer,
    StepSetting,
    Weights,
)

SHAPES = "benchmarks/shapes"
"""Public models' shapes beside those that raysweep ships, named relative to the repository's root."""

SEVEN = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Every projection of a dense decoder layer."""

TEN = (*SEVEN, "in_proj_qkv", "in_proj_z", "out_proj")
"""The hybrid 27B's: those of its linear-attention layers too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """The card that a group's probes are for."""

    flavour: str
    gpu_id: str | None = None
    memory_bytes: int | None = None
    """Set where the device is capped to stand for another card."""
    outside_allocator_bytes: int | None = None
    """What lives outside the allocator on that other card."""
    compute_capability: str | None = None
    """Of that other card: cuBLAS's workspaces are made as large as there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One probe to run."""

    group: str
    model: str
    step: StepSetting
    length_tokens: int | None = None
    prompt_tokens: int | None = None
    new_tokens: int | None = None
    expected_seconds: float = 10.0
    """Loading not counted; a cell is not begun with less time left."""

    @property
    def mode(self) -> Mode:
        """Training, or generation after a prompt."""
        return Mode.TRAIN if self.prompt_tokens is None else Mode.GENERATE

    @property
    def probe_id(self) -> str:
        """The same for the same cell in every run, so that what was measured is not measured again."""
        tokens = (self.length_tokens, self.prompt_tokens, self.new_tokens)
        text = json.dumps([self.group, self.model, self.step.to_dict(), tokens], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def label(self) -> str:
        """One line for the log."""
        s = self.step
        model, adapter = Path(self.model).name, f"rank {s.adapter.rank}"
        if self.mode is Mode.GENERATE:
            return f"{model} {s.weights} {adapter}, generate {self.prompt_tokens} + {self.new_tokens}"
        extra = (" autocast" if s.autocast else "") + (" clipped" if s.max_grad_norm else "")
        return (
            f"{model} {s.weights} {adapter} {s.checkpointing} {s.loss} {s.attention} {s.optimizer}{extra}, "
            f"{s.micro_batch} x {s.accumulation} items of {self.length_tokens}"
        )


THIS_CARD = Card(flavour="lab/this-card")

A100 = Card(
    flavour="lab/a100-pcie-40gb",
    gpu_id="a100-pcie-40gb",
    memory_bytes=42_430_000_000,
    outside_allocator_bytes=550_000_000,
    compute_capability="8.0",
)
"""An A100-PCIE-40GB: 42.43 GB as it reports itself, 0.55 GB outside the allocator, as the probe on it noted."""

CARDS = {"a100-table": A100, "families": THIS_CARD, "hybrid-27b": THIS_CARD}
GROUPS = tuple(CARDS)


def cells_of(group: str) -> tuple[Cell, ...]:
    """Return a group's cells, those that need the same loaded model next to each other.

    Raises:
        ValueError: there is no such group.
    """
    makers = {"a100-table": _a100_table, "families": _families, "hybrid-27b": _hybrid_27b}
    if group not in makers:
        raise ValueError(f"{group!r} is no group; expected one of {', '.join(GROUPS)}")
    cells = makers[group]()
    # A cell that stood twice would be measured once, and missed.
    assert len({cell.probe_id for cell in cells}) == len(cells)  # noqa: S101  a slip in this file, not input
    return cells


def _a100_table() -> tuple[Cell, ...]:
    """Training and generation of Qwen2.5-7B, as another group probed them on an A100 of 40 GB."""

    def train(rank: int, length_tokens: int) -> Cell:
        # One more fp32 copy of the adapter is resident there; dropout as in the comparable rows on an H200.
        adapter = AdapterSetting(rank=rank, alpha=2 * rank, dropout=0.05, targets=SEVEN, resident_copies=1)
        step = StepSetting(adapter=adapter, checkpointing=Checkpointing.NONE, loss=Loss.FULL)
        return Cell(group="a100-table", model="qwen2.5-7b", step=step, length_tokens=length_tokens)

    def generate(rank: int) -> Cell:
        adapter = AdapterSetting(rank=rank, alpha=2 * rank, targets=SEVEN)
        step = StepSetting(weights=Weights.FP32, adapter=adapter, checkpointing=Checkpointing.NONE)
        return Cell(
            group="a100-table",
            model="qwen2.5-7b",
            step=step,
            prompt_tokens=2047,
            new_tokens=256,
            expected_seconds=40.0,
        )

    training = [train(rank, length) for rank in (32, 256) for length in (512, 1024, 2048)]
    return (*training, generate(0), generate(256))


def _hybrid_27b() -> tuple[Cell, ...]:
    """The hybrid 27B at the lengths of a hand estimate; first steps tune Triton kernels for a minute or two."""

    def cell(length_tokens: int, checkpointing: Checkpointing, loss: Loss, expected_seconds: float) -> Cell:
        step = StepSetting(
            adapter=AdapterSetting(rank=16, alpha=32, targets=TEN),
            checkpointing=checkpointing,
            loss=loss,
            optimizer=Optimizer.ADAMW_8BIT,
        )
        return Cell(
            group="hybrid-27b",
            model="qwen3.5-27b",
            step=step,
            length_tokens=length_tokens,
            expected_seconds=expected_seconds,
        )

    return (
        cell(16_000, Checkpointing.GPU, Loss.CHUNKED, 150.0),
        cell(16_000, Checkpointing.CPU, Loss.CHUNKED, 60.0),
        cell(32_000, Checkpointing.GPU, Loss.CHUNKED, 90.0),
        cell(32_000, Checkpointing.CPU, Loss.CHUNKED, 70.0),
        cell(16_000, Checkpointing.GPU, Loss.FULL, 60.0),
    )


BASE = StepSetting(adapter=AdapterSetting(rank=16, alpha=32))


def _family(model: str, *steps: tuple[int, dict[str, Any]]) -> list[Cell]:
    """Return cells of one model, each a length and what its step has instead of the base's."""
    return [
        Cell(group="families", model=model, step=replace(BASE, **changes), length_tokens=length)
        for length, changes in steps
    ]


def _families() -> tuple[Cell, ...]:
    """Cells that the forecast covers, over families, sizes, batches, checkpointing, losses; then some it does not."""
    none, gpu, cpu = Checkpointing.NONE, Checkpointing.GPU, Checkpointing.CPU
    full, chunked = Loss.FULL, Loss.CHUNKED
    llama = _family(
        "llama-3.2-1b",
        (1024, {"checkpointing": none, "loss": full}),
        (4096, {"checkpointing": gpu, "loss": full}),
        (8192, {"checkpointing": gpu, "loss": chunked}),
        (8192, {"checkpointing": cpu, "loss": chunked}),
        (512, {"checkpointing": none, "loss": full, "micro_batch": 8}),
        (1024, {"checkpointing": gpu, "loss": full, "micro_batch": 4, "accumulation": 4}),
        (5000, {"checkpointing": gpu, "loss": chunked, "micro_batch": 2}),
        (2048, {"checkpointing": cpu, "loss": full, "micro_batch": 2}),
        (1000, {"checkpointing": none, "loss": chunked, "micro_batch": 3, "accumulation": 4}),
        (777, {"checkpointing": gpu, "loss": chunked, "micro_batch": 8, "max_grad_norm": 1.0}),
        (1024, {"checkpointing": none, "loss": full, "attention": Attention.EAGER}),
        (1024, {"checkpointing": gpu, "loss": chunked, "attention": Attention.EAGER, "micro_batch": 2}),
        (1024, {"checkpointing": gpu, "loss": full, "weights": Weights.FP32}),
        (512, {"checkpointing": none, "loss": chunked, "weights": Weights.FP32, "micro_batch": 2}),
        (2048, {"checkpointing": cpu, "loss": chunked, "weights": Weights.FP32}),
        (
            1024,
            {
                "checkpointing": gpu,
                "loss": full,
                "micro_batch": 2,
                "adapter": AdapterSetting(
                    rank=64, alpha=64, dropout=0.1, targets=("q_proj", "v_proj"), dtype=AdapterDtype.BF16
                ),
            },
        ),
    )
    qwen2 = _family(
        "qwen2.5-7b",
        (1024, {"checkpointing": none, "loss": full}),
        (4096, {"checkpointing": gpu, "loss": full}),
        (8192, {"checkpointing": gpu, "loss": chunked}),
        (8192, {"checkpointing": cpu, "loss": chunked}),
        (2048, {"checkpointing": gpu, "loss": chunked, "micro_batch": 4, "accumulation": 4}),
        (700, {"checkpointing": none, "loss": chunked, "micro_batch": 2}),
        (512, {"checkpointing": cpu, "loss": full, "micro_batch": 8}),
    )
    phi = _family(
        f"{SHAPES}/phi-3-mini",
        (1024, {"checkpointing": none, "loss": full}),
        (2048, {"checkpointing": gpu, "loss": chunked, "micro_batch": 4}),
        (4096, {"checkpointing": cpu, "loss": full}),
    )
    qwen3 = _family(
        "qwen3-8b",
        (2048, {"checkpointing": gpu, "loss": full}),
        (4096, {"checkpointing": gpu, "loss": chunked, "micro_batch": 2}),
        (6000, {"checkpointing": cpu, "loss": chunked}),
        (1024, {"checkpointing": none, "loss": full}),
        (600, {"checkpointing": gpu, "loss": chunked, "micro_batch": 8, "max_grad_norm": 1.0}),
    )
    gemma = _family(
        f"{SHAPES}/gemma-2b",
        (2048, {"checkpointing": gpu, "loss": full}),
        (1024, {"checkpointing": none, "loss": chunked, "micro_batch": 2}),
        (512, {"checkpointing": cpu, "loss": chunked, "micro_batch": 8, "accumulation": 4}),
    )
    mistral = _family(
        f"{SHAPES}/mistral-7b",
        (2048, {"checkpointing": gpu, "loss": full, "micro_batch": 2}),
        (8192, {"checkpointing": gpu, "loss": chunked}),
        (1024, {"checkpointing": none, "loss": full}),
    )
    return (*llama, *qwen2, *phi, *qwen3, *gemma, *mistral, *_with_libraries())


def _with_libraries() -> list[Cell]:
    """A cell or two of each kind of step that runs bitsandbytes or Liger, or under autocast.

    Paged last: that memory is never given back.
    """
    gpu = Checkpointing.GPU
    nf4 = {"weights": Weights.NF4, "checkpointing": gpu}
    return [
        *_family(
            "llama-3.2-1b",
            (4096, {"checkpointing": gpu, "loss": Loss.CHUNKED, "optimizer": Optimizer.ADAMW_8BIT}),
            (8192, {"checkpointing": gpu, "loss": Loss.LIGER}),
            (2048, {"checkpointing": gpu, "loss": Loss.FULL, "autocast": True}),
            (2048, {**nf4, "loss": Loss.CHUNKED}),
            (4096, {**nf4, "loss": Loss.FULL}),
            (2048, {"weights": Weights.INT8, "checkpointing": gpu, "loss": Loss.CHUNKED}),
            (4096, {**nf4, "loss": Loss.CHUNKED, "optimizer": Optimizer.PAGED_ADAMW_8BIT}),
        ),
        *_family("qwen2.5-7b", (4096, {**nf4, "loss": Loss.FULL, "optimizer": Optimizer.ADAMW_8BIT})),
    ]
