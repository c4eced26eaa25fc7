"""What is shipped: the wheel that is built holds all that the product needs, and works from anywhere."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = ("cost", "raysweep", "search_spaces")
SPACES = sorted((ROOT / "search_spaces").glob("*.yaml"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("source")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    out = tmp_path_factory.mktemp("wheel")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(out),
        str(source),
    ]
    subprocess.run(pip, check=True)
    return next(out.glob("*.whl"))


def test_every_file_of_the_packages_is_in_the_wheel(wheel: Path) -> None:
    shipped = set(zipfile.ZipFile(wheel).namelist())
    there = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert there <= shipped, f"missing from the wheel: {sorted(there - shipped)}"


def test_the_wheel_holds_nothing_but_the_packages(wheel: Path) -> None:
    roots = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {root for root in roots if not root.endswith(".dist-info")} == set(PACKAGES)


def test_the_wheel_carries_its_licence(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    (name,) = [n for n in names if n.endswith("licenses/LICENSE")]
    assert b"Apache License" in zipfile.ZipFile(wheel).read(name)


def test_shipped_spaces_and_prices_are_found_from_the_wheel(wheel: Path, tmp_path: Path) -> None:
    installed = tmp_path / "installed"
    zipfile.ZipFile(wheel).extractall(installed)
    program = (
        "import raysweep.space, cost.catalogue, sys\n"
        "space = raysweep.space.load_space('quickstart')\n"
        "assert raysweep.space.__file__.startswith(sys.argv[1]), raysweep.space.__file__\n"
        "catalogue = cost.catalogue.Catalogue.load()\n"
        "print(sum(raysweep.space.resolve(f, catalogue).usd_per_hour > 0 for f in space.flavours))\n"
    )
    # PYTHONPATH comes before the checkout that an editable install points to.
    env = {**os.environ, "PYTHONPATH": str(installed)}
    run = subprocess.run(
        [sys.executable, "-c", program, str(installed)],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stdout) == (0, "4\n"), run.stderr


@pytest.mark.parametrize("space", SPACES, ids=lambda p: p.stem)
def test_a_shipped_space_is_headed_by_its_command_its_gpu_time_and_its_dollars(space: Path) -> None:
    text = space.read_text(encoding="utf-8")
    header = text[: text.index("\nmodel:")]
    assert f"raysweep sweep {space.stem} " in header
    assert re.search(r"GPU time: .*USD", header)


@pytest.mark.parametrize("space", SPACES, ids=lambda p: p.stem)
def test_a_shipped_space_names_data_that_ships_with_it(space: Path) -> None:
    from raysweep.data import read_items
    from raysweep.space import load_space

    stages = list(load_space(space.stem).stages())
    assert stages
    assert all(read_items(stage.items).total_tokens > 0 for stage in stages)


def test_the_note_beside_the_token_counts_tells_what_they_hold() -> None:
    folder = ROOT / "search_spaces" / "data"
    tokens = [json.loads(line)["tokens"] for line in (folder / "stdlib-tokens.jsonl").read_text().splitlines()]
    note = (folder / "stdlib-tokens.md").read_text(encoding="utf-8")
    for row, number in (("modules", len(tokens)), ("tokens", sum(tokens)), ("longest", max(tokens))):
        assert f"| {row} | {number:,} |" in note
    assert f"| 32,768 | {sum(n > 32_768 for n in tokens)} |" in note


def test_reading_counts_imports_no_model_library() -> None:
    program = "import sys, raysweep.data; print(sorted({'torch', 'ray', 'transformers', 'pyarrow'} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"
