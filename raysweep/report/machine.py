"""What this machine has of what raysweep needs: libraries, kernels, GPUs."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysweep.report.page import Block, Cell, Heading, Page, Sentence, Tone, facts, table

REQUIRED = (
    "torch",
    "transformers",
    "peft",
    "ray",
    "optuna",
    "pyarrow",
    "numpy",
    "numba",
    "fsspec",
    "rich",
    "click",
    "pyyaml",
)
OPTIONAL = {
    "bitsandbytes": "weights nf4 and int8; 8-bit AdamW",
    "liger-kernel": "loss liger",
    "flash-attn": "attention flash",
    "flash-linear-attention": "hybrid models with linear attention",
    "tokenizers": "counting the tokens of texts",
    "gpuhunt": "live prices of more clouds (prices refresh)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A library, and its version where it is installed."""

    name: str
    version: str | None
    purpose: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU as the driver lists it."""

    name: str
    memory_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What ``examine`` found."""

    python: str
    system: str
    cpus: int
    host_memory_bytes: int | None
    required: tuple[Library, ...]
    optional: tuple[Library, ...]
    gpus: tuple[Gpu, ...]
    torch_cuda: str | None
    """The CUDA version that torch was built for; None for a CPU build or without torch."""
    ray_address: str | None

    @property
    def is_complete(self) -> bool:
        """Whether every library that raysweep needs is there."""
        return all(library.version for library in self.required)


def examine() -> Machine:
    """Look at this machine. No heavy library is imported: versions come from the packages' metadata."""
    torch_version = _version("torch")
    return Machine(
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        host_memory_bytes=_host_memory_bytes(),
        required=tuple(Library(name=n, version=_version(n), purpose="needed") for n in REQUIRED),
        optional=tuple(Library(name=n, version=_version(n), purpose=p) for n, p in OPTIONAL.items()),
        gpus=_gpus(),
        torch_cuda=_torch_cuda() if torch_version else None,
        ray_address=os.environ.get("RAY_ADDRESS"),
    )


def machine_json(machine: Machine) -> dict[str, Any]:
    """Return what was found as plain data."""
    return {
        "python": machine.python,
        "system": machine.system,
        "cpus": machine.cpus,
        "host_memory_bytes": machine.host_memory_bytes,
        "libraries": {library.name: library.version for library in (*machine.required, *machine.optional)},
        "missing_required": [library.name for library in machine.required if not library.version],
        "gpus": [{"name": gpu.name, "memory_bytes": gpu.memory_bytes} for gpu in machine.gpus],
        "torch_cuda": machine.torch_cuda,
        "ray_address": machine.ray_address,
        "executable": sys.executable,
    }


def machine_page(machine: Machine) -> Page:
    """Return what was found, what is missing, and what to type."""
    memory = None if machine.host_memory_bytes is None else f"{machine.host_memory_bytes / 1e9:.1f} GB"
    blocks: list[Block] = [
        facts(
            [
                ("Python", machine.python),
                ("system", machine.system),
                ("CPU cores", machine.cpus),
                ("host memory", memory),
                ("Ray cluster (RAY_ADDRESS)", machine.ray_address or "none: a sweep starts Ray on this machine"),
            ]
        ),
        Heading("Libraries"),
        table(
            ["library", "version", "for"],
            (
                (library.name, _installed(library), library.purpose)
                for library in (*machine.required, *machine.optional)
            ),
        ),
        Heading("GPUs"),
        *_gpu_blocks(machine),
        Heading("What to type"),
        *(Sentence(line) for line in _advice(machine)),
    ]
    return Page("This machine", tuple(blocks))


def _installed(library: Library) -> Cell:
    if library.version:
        return Cell(library.version)
    return Cell("missing", Tone.BAD if library.purpose == "needed" else Tone.NOTE)


def _gpu_blocks(machine: Machine) -> list[Block]:
    if not machine.gpus:
        return [Sentence("None that the NVIDIA driver lists. Forecasts and simulated sweeps need none.")]
    return [
        table(
            ["GPU", ">memory, GB"],
            ((g.name, None if g.memory_bytes is None else f"{g.memory_bytes / 1e9:.1f}") for g in machine.gpus),
        )
    ]


def _advice(machine: Machine) -> list[str]:
    lines: list[str] = []
    if missing := [library.name for library in machine.required if not library.version]:
        lines.append(f"pip install {' '.join(missing)}")
    if machine.gpus and machine.torch_cuda is None:
        lines.append("A GPU is there, but torch is built without CUDA: install a CUDA build of torch to probe on it.")
    if machine.gpus and machine.torch_cuda and (absent := [x.name for x in machine.optional[:1] if not x.version]):
        lines.append(f"pip install {' '.join(absent)}   # for {machine.optional[0].purpose}")
    device = "cuda" if machine.gpus and machine.torch_cuda else "simulated"
    lines.append("raysweep forecast quickstart")
    lines.append(f"raysweep sweep quickstart --device {device} --out my-sweep")
    return lines


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _torch_cuda() -> str | None:
    # torch/version.py holds plain assignments: running it alone takes no second, importing torch does.
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    file = Path(spec.origin).with_name("version.py")
    module = importlib.util.spec_from_file_location("raysweep_torch_version", file)
    if module is None or module.loader is None or not file.is_file():
        return None
    loaded = importlib.util.module_from_spec(module)
    module.loader.exec_module(loaded)
    cuda = getattr(loaded, "cuda", None)
    return cuda if isinstance(cuda, str) else None


def _gpus() -> tuple[Gpu, ...]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    query = [program, "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        result = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(_gpu(line) for line in result.stdout.splitlines() if line.strip())


def _gpu(line: str) -> Gpu:
    name, _, mib = line.rpartition(",")
    number = mib.strip()
    return Gpu(name=name.strip(), memory_bytes=int(number) * 2**20 if number.isdigit() else None)


def _host_memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None
