"""Runs that are held against their projections: what the measured data probes say of them, without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.projected_run import projected, run_of
from raysweep.decision.findings import gather
from raysweep.setting import StepSetting
from raysweep.space import load_space
from raysweep.store import Artifact

ROOT = Path(__file__).parents[3]
PROBES = ROOT / "artifacts" / "reference" / "data-probes"
SPACES = sorted((ROOT / "benchmarks" / "projected").glob("*.yaml"))


@pytest.mark.parametrize("path", SPACES, ids=lambda path: path.stem)
def test_every_space_has_one_flavour_one_step_and_one_limit(path: Path) -> None:
    space = load_space(str(path))
    assert (len(space.flavours), len(space.steps), len(space.lengths)) == (1, 1, 1)


@pytest.mark.parametrize("name", ["qwen-7b", "llama-1b", "mistral-7b-nf4"])
def test_a_sweep_projects_its_run_with_a_range_and_says_what_it_cost(name: str) -> None:
    found = projected(gather([Artifact.open(PROBES / name)]))
    assert found.training.low < found.training.expected < found.training.high
    assert found.probe_count == 2
    assert 0 < found.probes < 0.12 * found.training.expected
    assert 0 < found.new_lengths < found.training.expected


def test_two_machines_of_a_kind_lie_in_each_others_range() -> None:
    one, other = (projected(gather([Artifact.open(PROBES / n)])) for n in ("qwen-7b", "qwen-7b-another-machine"))
    assert one.training.low < other.training.expected < one.training.high
    assert other.training.low < one.training.expected < other.training.high


def test_a_run_plays_every_item_once_as_the_space_cuts_and_pads_it() -> None:
    run = run_of(gather([Artifact.open(PROBES / "mistral-7b-nf4")]))
    assert len(run["lengths"]) == 500
    assert max(run["lengths"]) == 6144
    assert all(tokens % 128 == 0 for tokens in run["lengths"])
    assert StepSetting.from_dict(run["step"]).weights == "nf4"
