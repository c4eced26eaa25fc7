"""A tokenizer as transformers loads it: from a folder, from what the Hugging Face Hub left here, or from the Hub."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from raysweep.errors import DataError, nearest
from raysweep.paths import exists, expanded

OTHERWISE = (
    "Name one with --tokenizer, or in a search space as data: {tokenizer: …}: a folder with tokenizer.json, or the "
    "owner/name of a model on the Hugging Face Hub that can be reached; or give token counts instead of texts, one "
    '{"tokens": n} a line.'
)
"""What to do where texts have no tokenizer."""
FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt")
"""Any of these tells a folder with a tokenizer, as transformers saves one, from others."""
_ANSWER_SECONDS = 10
"""The Hub answers within one; transformers itself asks again and again for most of a minute."""


def load_tokenizer(model: str, *, trust_remote_code: bool, counts: str) -> Any:
    """Return the tokenizer of a folder, of the folder that a config file is in, or of a Hub id ``owner/name``.

    Args:
        model: The folder, file or id.
        trust_remote_code: Whether code that comes with the tokenizer may run.
        counts: What is to be counted, for errors.

    Raises:
        DataError: there is none to load.
    """
    path = expanded(model)
    if exists(path):
        source = str(path.parent if path.is_file() else path)
        return _loaded(source, model, trust_remote_code=trust_remote_code, counts=counts)
    if model.count("/") != 1 or model.startswith((".", "/", "~")):
        found = "no such folder as" if "/" in model else "none for"
        raise DataError(
            f"{counts}: expected a tokenizer to count with, found {found} {model!r} here.{_nearest_folder(path)} "
            f"{OTHERWISE}"
        )
    try:
        return _loaded(model, model, trust_remote_code=trust_remote_code, counts=counts, local_files_only=True)
    except DataError:
        _check_reachable(model, counts)
    return _loaded(model, model, trust_remote_code=trust_remote_code, counts=counts)


def _nearest_folder(path: Path) -> str:
    """Return a hint at the folder beside it of nearly that name that holds a tokenizer, or an empty string."""
    with suppress(OSError):
        names = [folder.name for folder in path.parent.iterdir() if any(exists(folder / file) for file in FILES)]
        return nearest(path.name, names)
    return ""


def _loaded(source: str, model: str, *, counts: str, **options: bool) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(source, **options)
    except Exception as error:
        # Whatever lies there is read by libraries that raise what they like, bare Exception among it.
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise DataError(f"{counts}: the tokenizer of {model!r} cannot be loaded ({reason}). {OTHERWISE}") from error


def _check_reachable(model: str, counts: str) -> None:
    """Ask the Hub once whether it is there; what else it says of the model, transformers says better."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        HfApi().model_info(model, timeout=_ANSWER_SECONDS)
    except (HfHubHTTPError, HFValidationError):
        return
    except Exception as error:
        # No answer is told in the words of the library beneath, which may change.
        raise DataError(
            f"{counts}: expected a tokenizer to count with; that of {model!r} is not here, and the Hugging Face Hub "
            f"does not answer ({error}).{_nearest_folder(expanded(model))} {OTHERWISE}"
        ) from error
