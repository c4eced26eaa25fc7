"""Sixty items are probed, their run is projected, and then it is played."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from gpu_card import need_free
from gpu_models import llama

from cost.evidence import Range

for package in ("ray", "optuna", "numba"):
    pytest.importorskip(package)

from benchmarks.projected_run import RUN_FILE, main  # noqa: E402  not before it is known that numba is there

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

ITEMS = 60
"""Thirty micro-steps of two, all of which a data probe runs."""
LONGEST_TOKENS = 16_384
ROOM = 3.0
"""How many times its own width the range is given. It is meant to hold nine runs in ten, and one play of a run is one
draw: at three times the width, five standard deviations, a run outside shows a mistake and no bad luck."""

SPACE = """
model: {model}
step:
  adapter: {{rank: 16, alpha: 32}}
  micro_batch: 2
  accumulation: 1
  checkpointing: gpu
  loss: chunked
lengths: [{longest}]
flavours: [{{name: lab/this-card, memory_bytes: {memory_bytes}, price_usd_per_hour: 2}}]
data: {{items: items.jsonl, epochs: 1}}
"""


def item_tokens() -> list[int]:
    """Return a log-normal draw, half of it above 4,500 tokens: seconds of steps, so that starting weighs little."""
    draw = random.Random(1)
    return [min(max(round(draw.lognormvariate(8.4, 0.7)), 200), LONGEST_TOKENS) for _ in range(ITEMS)]


def write_run(folder: Path, memory_bytes: int) -> Path:
    """Write the model, its items and the space; return the space's path."""
    llama().save_pretrained(folder / "small")
    lines = "".join(json.dumps({"tokens": tokens}) + "\n" for tokens in item_tokens())
    (folder / "items.jsonl").write_text(lines, encoding="utf-8")
    space = folder / "space.yaml"
    text = SPACE.format(model=folder / "small", longest=LONGEST_TOKENS, memory_bytes=memory_bytes)
    space.write_text(text, encoding="utf-8")
    return space


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A run as it was projected, and as it went."""

    projected_seconds: Range
    micro_steps: int
    ended: str
    run_seconds: float


def play(space: Path, out: Path, *options: str) -> Played:
    """Project the run and play it, as ``benchmarks.projected_run`` does."""
    assert main([str(space), "--out", str(out), *options]) == 0
    found = json.loads((out / space.stem / RUN_FILE).read_text(encoding="utf-8"))
    return Played(
        projected_seconds=Range(**found["projected_before"]["training"]),
        micro_steps=len(found["run"]["micro_step_seconds"]),
        ended=found["run"]["ended"],
        run_seconds=found["run"]["run_seconds"],
    )


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory, ray_folder: Path) -> Played:
    need_free(8_000_000_000)
    folder = tmp_path_factory.mktemp("projected")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(Path(__file__).parents[2])  # the script starts others of its package
        return play(write_run(folder, torch.cuda.get_device_properties(0).total_memory), folder / "out")


def test_every_item_of_the_run_is_trained_on(played: Played) -> None:
    assert (played.ended, played.micro_steps) == ("finished", ITEMS // 2)


def test_the_projected_range_holds_the_true_seconds(played: Played) -> None:
    projected = played.projected_seconds
    low = projected.expected - ROOM * (projected.expected - projected.low)
    high = projected.expected + ROOM * (projected.high - projected.expected)
    assert low <= played.run_seconds <= high, played
