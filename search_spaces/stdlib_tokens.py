"""Recreates ``search_spaces/data/stdlib-tokens.jsonl``: the tokens of each module of Python's standard library.

    pip install tiktoken
    pip download --no-deps dashscope
    python -m search_spaces.stdlib_tokens dashscope-*.whl

The vocabulary is Qwen's own, from the dashscope package (Apache-2.0), whose wheel is read and never installed. Beside
the counts a note is written that says what they were made from.
"""

from __future__ import annotations

import argparse
import base64
import datetime
import importlib.metadata
import json
import platform
import sys
import sysconfig
import tokenize
import unicodedata
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

Count = Callable[[str], int]

DATA = Path(__file__).parent / "data"
VOCABULARY = "dashscope/resources/qwen.tiktoken"
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Qwen's tokenizer cuts text before merging: ``PAT_STR`` of ``dashscope/tokenizers/qwen_tokenizer.py`` 2.0.2."""
END_OF_TEXT_TOKENS = 1
"""A training item ends with an end-of-sequence token."""
_SKIPPED = {"test", "tests", "idle_test", "site-packages", "__pycache__"}


def modules(library: Path) -> Iterator[Path]:
    """Yield the standard library's modules, sorted by their path, without its test folders."""
    for path in sorted(library.rglob("*.py")):
        if not _SKIPPED.intersection(path.relative_to(library).parts[:-1]):
            yield path


def counter(wheel: Path) -> Count:
    """Return what counts a text's tokens with the vocabulary in a dashscope wheel."""
    import tiktoken

    lines = zipfile.ZipFile(wheel).read(VOCABULARY).splitlines()
    ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines if line)}
    encoding = tiktoken.Encoding("qwen", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={})
    return lambda text: len(encoding.encode_ordinary(unicodedata.normalize("NFC", text)))


def main(arguments: list[str] | None = None) -> int:
    """Count, write both files, and say what was written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path, help="dashscope's wheel, as pip download leaves it")
    parser.add_argument("--out", type=Path, default=DATA, help="folder to write to (default: the package's own)")
    options = parser.parse_args(arguments)
    count = counter(options.wheel)
    library = Path(sysconfig.get_path("stdlib"))
    tokens = []
    for path in modules(library):
        with tokenize.open(path) as module:  # a module's coding line tells how to read it
            text = module.read()
        if text.strip():
            tokens.append(count(text) + END_OF_TEXT_TOKENS)
    lines = "".join(f"{json.dumps({'tokens': n})}\n" for n in tokens)
    (options.out / "stdlib-tokens.jsonl").write_text(lines, encoding="utf-8")
    (options.out / "stdlib-tokens.md").write_text(_provenance(options.wheel, tokens), encoding="utf-8")
    sys.stdout.write(f"{len(tokens)} modules, {sum(tokens)} tokens, longest {max(tokens)}\n")
    return 0


def _provenance(wheel: Path, tokens: list[int]) -> str:
    over = "\n".join(f"| {limit:,} | {sum(n > limit for n in tokens)} |" for limit in (4096, 8192, 16384, 32768))
    return f"""# stdlib-tokens.jsonl

Tokens of each module of Python's standard library, one `{{"tokens": n}}` a module, in the order of their paths.
Folders of tests and modules without text are left out. Each count holds one end-of-sequence token.

| | |
|---|---|
| Python | {platform.python_implementation()} {platform.python_version()} |
| vocabulary | `{VOCABULARY}` of `{wheel.name}` (Apache-2.0), text normalised to NFC |
| tiktoken | {importlib.metadata.version("tiktoken")} |
| date | {datetime.datetime.now(datetime.UTC).date().isoformat()} |
| command | `python -m search_spaces.stdlib_tokens {wheel.name}` |
| modules | {len(tokens):,} |
| tokens | {sum(tokens):,} |
| longest | {max(tokens):,} |

| longer than | modules |
|---|---|
{over}
"""


if __name__ == "__main__":
    sys.exit(main())
