"""Output in encodings that lack some characters."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest

from raysweep.cli.encoding import write_what_can_be_encoded
from raysweep.report.page import Page, table
from raysweep.report.text import print_page


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_a_page_has_plainer_characters_where_the_encoding_lacks_its_own(encoding: str) -> None:
    sink = io.BytesIO()
    stream = io.TextIOWrapper(sink, encoding=encoding)
    write_what_can_be_encoded(stream)
    print_page(Page("Größe 你", (table(["flavour", ">USD"], [("lab/a", "1.00")]),)), stream)
    stream.flush()
    lines = sink.getvalue().decode(encoding).splitlines()
    assert lines[0] == ("Gr??e ?" if encoding == "ascii" else "Größe ?")
    assert set(lines[2]) == {"-"}


def test_the_program_writes_ascii_where_that_is_asked_for() -> None:
    words = [sys.executable, "-m", "raysweep.cli", "prices", "list", "--provider", "hf"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "RAYSWEEP_CACHE": "/nonexistent"}
    done = subprocess.run(words, capture_output=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert b"hf/h200" in done.stdout
    assert done.stdout.isascii()
