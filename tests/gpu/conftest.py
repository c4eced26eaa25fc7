from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig

from raysweep.probe.device_runner import DeviceRunner
from raysweep.probe.steps import Pace

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
sys.path.insert(0, str(HERE))
sys.path.insert(1, str(ROOT))  # the benchmarks, which are no part of the installed package

from gpu_models import llama  # noqa: E402  the folder is on the path only now

QUICK = Pace(measured_seconds=0)


@pytest.fixture(autouse=True, scope="session")
def needs_cuda() -> None:
    """Before every other fixture, also those of a module."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


@pytest.fixture
def small() -> LlamaConfig:
    return llama()


@pytest.fixture
def runner(small: LlamaConfig) -> Iterator[DeviceRunner]:
    runner = DeviceRunner(small, pace=QUICK)
    yield runner
    runner.close()


@pytest.fixture(scope="session")
def ray_folder() -> Iterator[Path]:
    """A short folder of our own: Ray's sockets lie in it, and their paths have 107 bytes at most."""
    pytest.importorskip("ray")
    with (
        tempfile.TemporaryDirectory(prefix="rs-", dir="/tmp", ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("RAY_TMPDIR", folder)
        # Sessions import the helpers too.
        for path in (ROOT, HERE):
            patch.setenv("PYTHONPATH", str(path), prepend=os.pathsep)
        yield Path(folder)
