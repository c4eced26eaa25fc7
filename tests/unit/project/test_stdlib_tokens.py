"""Recreating the token counts that ship with the search spaces."""

import base64
import json
import zipfile
from pathlib import Path

import pytest

from search_spaces import stdlib_tokens


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """A wheel with a vocabulary of the 256 bytes and one merge."""
    tokens = [bytes([i]) for i in range(256)] + [b"de"]
    lines = b"\n".join(base64.b64encode(token) + b" %d" % rank for rank, token in enumerate(tokens))
    with zipfile.ZipFile(tmp_path / "made.whl", "w") as archive:
        archive.writestr(stdlib_tokens.VOCABULARY, lines)
    return tmp_path / "made.whl"


def test_tokens_are_counted_with_the_wheels_vocabulary(wheel: Path) -> None:
    count = stdlib_tokens.counter(wheel)
    assert count("def") == 2
    assert count("e\u0301") == 2, "normalised to one character of two bytes"
    assert count("<|endoftext|>") > 1, "words of special tokens are plain text in a module"


def test_test_folders_and_installed_packages_are_left_out(tmp_path: Path) -> None:
    for name in ("b.py", "a.py", "test/c.py", "json/d.py", "json/tests/e.py", "site-packages/f.py", "json/data.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x = 1\n")
    assert [str(p.relative_to(tmp_path)) for p in stdlib_tokens.modules(tmp_path)] == ["a.py", "b.py", "json/d.py"]


def test_counts_and_their_note_are_written(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    library = tmp_path / "library"
    library.mkdir()
    (library / "a.py").write_text("de\n")
    (library / "empty.py").write_text("")
    monkeypatch.setattr(stdlib_tokens.sysconfig, "get_path", lambda _: str(library))
    assert stdlib_tokens.main([str(wheel), "--out", str(tmp_path)]) == 0
    lines = (tmp_path / "stdlib-tokens.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"tokens": 3}], "two, and the one that ends the item"
    assert "| tokens | 3 |" in (tmp_path / "stdlib-tokens.md").read_text()
    assert capsys.readouterr().out == "1 modules, 3 tokens, longest 3\n"
