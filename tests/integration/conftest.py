from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from raysweep.sweep.quiet import quiet_ray

quiet_ray()
HERE = str(Path(__file__).parent)
sys.path.insert(0, HERE)
# Ray's workers import the fakes too.
os.environ["PYTHONPATH"] = os.pathsep.join([HERE, *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.fixture(scope="session", autouse=True)
def ray_folder() -> Iterator[Path]:
    """A short folder of our own: Ray's sockets lie in it, and their paths have 107 bytes at most."""
    with tempfile.TemporaryDirectory(prefix="rs-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        os.environ["RAY_TMPDIR"] = folder
        yield Path(folder)


@pytest.fixture(scope="module")
def local_ray(ray_folder: Path) -> Iterator[None]:
    """One Ray for a module, with made-up resources for the flavours a, b and c."""
    import ray

    ray.init(
        address="local",
        num_cpus=4,
        resources={"flavour:lab/a": 2, "flavour:lab/b": 1, "flavour:lab/c": 1},
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        object_store_memory=100 * 10**6,
    )
    yield
    ray.shutdown()
