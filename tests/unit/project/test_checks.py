"""How the project checks itself: what ``make test`` and CI run, and that generated pages are fresh."""

import os
import re
import subprocess
import sys
from pathlib import Path

from raysweep.space import parse_space
from raysweep.space.run import RUN_KEYS

ROOT = Path(__file__).parents[3]


def test_make_test_checks_style_types_imports_and_ends_with_pytest() -> None:
    plan = subprocess.run(["make", "--dry-run", "test"], cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S607 - make is looked up as people do
    commands = [line.split(".venv/bin/")[1] for line in plan.stdout.splitlines() if line.startswith(".venv/bin/")]
    checks = ["ruff check .", "ruff format --check .", "mypy", "lint-imports"]
    assert commands[-5:] == [*checks, "pytest -n 2 --dist loadfile"]


def test_ci_runs_make_test() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert script.read_text().rstrip().endswith("make test")


def test_the_reference_is_what_help_says() -> None:
    # In a process of its own: click keeps the help option of a command that a test has called without its group.
    script = ROOT / "docs" / "generate_reference.py"
    checked = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_every_link_between_pages_leads_somewhere() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    links = [
        (page, target.split("#")[0])
        for page in pages
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
        if "://" not in target and not target.startswith("#")
    ]
    assert links
    assert [
        f"{page.relative_to(ROOT)}: {target}" for page, target in links if not (page.parent / target).exists()
    ] == []


def test_the_search_spaces_in_the_reference_are_some() -> None:
    page = (ROOT / "docs" / "reference" / "search-space.md").read_text(encoding="utf-8")
    whole, generating = (parse_space(one, "the reference") for one in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL))
    assert whole.searched == ("checkpointing",)
    assert generating.searched == ("adapter.rank",)
    assert set(_keys_of(page)) >= set(RUN_KEYS)


def _keys_of(page: str) -> list[str]:
    """Return the keys that the first cells of a page's tables name."""
    return [
        key for cell in re.findall(r"^\| (`[^|]+) \|", page, re.MULTILINE) for key in re.findall(r"`([^`]+)`", cell)
    ]
