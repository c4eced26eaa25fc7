"""Programs kept on disk between commands: a trace of the same model and step by the same code is never made twice."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from raysweep.errors import ArtifactError
from raysweep.memory.program import Program
from raysweep.paths import cache_folder
from raysweep.versions import package_versions

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from raysweep.setting import StepSetting

_ROOMS = ("setting.py", "memory", "step", "trace")
"""What decides a program, under the package's folder."""


def program_key(config: PretrainedConfig, setting: StepSetting, lengths: Sequence[int], *, padded: bool = False) -> str:
    """Return a digest of all that a program hangs on: config, setting, range of lengths, packages and our own code.

    Args:
        config: the model's.
        setting: the step.
        lengths: as ``model_program``'s.
        padded: likewise.
    """
    parts = [
        config.to_json_string(use_diff=False),
        json.dumps(setting.to_dict(), sort_keys=True),
        f"{min(lengths)}-{max(lengths)}{' padded' if padded and setting.micro_batch > 1 else ''}",
        json.dumps(package_versions(), sort_keys=True),
        _code(),
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def load(key: str) -> Program | None:
    """Return the program kept under a key, or None where there is none, or no longer a whole one."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from raysweep.memory.table import programs_of

    try:
        return programs_of(pq.read_table(_path(key)))[0]
    except (OSError, IndexError, ArtifactError, pa.ArrowException):
        return None


def keep(key: str, program: Program) -> None:
    """Keep a program; in a folder that cannot be written nothing is kept, and the next time is as the first."""
    import pyarrow.parquet as pq

    from raysweep.memory.table import table_of

    path = _path(key)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        os.close(handle)
        try:
            pq.write_table(table_of([program]), name, compression="zstd")
            Path(name).replace(path)
        finally:
            Path(name).unlink(missing_ok=True)


def _path(key: str) -> Path:
    return cache_folder() / "programs" / f"{key}.parquet"


@cache
def _code() -> str:
    package = Path(__file__).parent.parent
    files = [
        file
        for room in _ROOMS
        for file in ([package / room] if room.endswith(".py") else (package / room).glob("*.py"))
    ]
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(file.read_bytes())
    return digest.hexdigest()
