"""A tokenizer as transformers loads it: from a folder, from what the Hugging Face Hub left here, or from the Hub."""

from __future__ import annotations

from typing import Any

from raysweep.errors import DataError
from raysweep.paths import exists, expanded

OTHERWISE = (
    "Name one with --tokenizer, or in a search space as data: {tokenizer: …}: a folder with tokenizer.json, or the "
    "owner/name of a model on the Hugging Face Hub that can be reached; or give token counts instead of texts, one "
    '{"tokens": n} a line.'
)
"""What to do where texts have no tokenizer."""
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
        raise DataError(f"{counts}: expected a tokenizer to count with, found none for {model!r} here. {OTHERWISE}")
    try:
        return _loaded(model, model, trust_remote_code=trust_remote_code, counts=counts, local_files_only=True)
    except DataError:
        _check_reachable(model, counts)
    return _loaded(model, model, trust_remote_code=trust_remote_code, counts=counts)


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
            f"does not answer ({error}). {OTHERWISE}"
        ) from error
