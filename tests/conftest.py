"""What every test runs under: traces in the test's own process, and a cache that is nobody's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True, scope="session")
def _own_environment(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ["RAYSWEEP_JOBS"] = "1"
    cache: Path = tmp_path_factory.mktemp("raysweep-cache")
    os.environ["RAYSWEEP_CACHE"] = str(cache)
