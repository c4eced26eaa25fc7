from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# The scripts are run from the repository's root and are no part of the installed package.
sys.path.insert(0, str(Path(__file__).parents[3]))


@pytest.fixture(autouse=True)
def _the_step_as_it_was() -> Iterator[None]:
    """A script that measures in spite of invalid numerics changes the step for its own process; here others follow."""
    from raysweep.step.training import TrainingStep

    original = TrainingStep.micro_step
    yield
    TrainingStep.micro_step = original  # type: ignore[method-assign]  # what the script put there
