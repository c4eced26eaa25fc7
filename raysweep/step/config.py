"""The model's config, from a shipped shape, a folder, a file or the Hugging Face Hub."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from logging import ERROR
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysweep.errors import MachineError, RaysweepError, SpaceError, nearest
from raysweep.paths import exists, expanded, is_folder
from raysweep.step.config_check import check_config, check_spelling, check_written, explained

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_SHAPES = Path(__file__).parent / "shapes"


def shape_names() -> tuple[str, ...]:
    """Return the names of the shapes that ship with the package."""
    return tuple(sorted(path.parent.name for path in _SHAPES.glob("*/config.json")))


def load_config(model: str, *, trust_remote_code: bool = False) -> PretrainedConfig:
    """Return the transformers config that ``model`` names.

    Args:
        model: a shipped shape's name, a folder with ``config.json``, such a file itself, or a Hub id ``owner/name``.
        trust_remote_code: whether code that comes with the model may run.

    Raises:
        SpaceError: nothing of that name, or it is not the config of a causal language model.
        MachineError: the Hub could not be reached.
    """
    path = expanded(model)
    if model in shape_names():
        return _checked(_read(_SHAPES / model, model, trust_remote_code=False), model, trust_remote_code=False)
    if is_folder(path) and not (path / "config.json").is_file():
        raise SpaceError(f"model: the folder {model!r} has no config.json; name a folder or a file that has one.")
    if exists(path):
        config = _read(path, model, trust_remote_code=trust_remote_code)
        return _checked(config, model, trust_remote_code=trust_remote_code)
    if model.count("/") != 1 or model.startswith((".", "/", "~")):
        known = ", ".join(shape_names())
        raise SpaceError(
            f"model: {model!r} is no shipped shape, folder or file.{nearest(model, shape_names())} "
            f"Shipped: {known}. A model of the Hugging Face Hub is written owner/name."
        )
    config = _read(model, model, trust_remote_code=trust_remote_code)
    return _checked(config, model, trust_remote_code=trust_remote_code)


def _read(source: Path | str, model: str, *, trust_remote_code: bool) -> PretrainedConfig:
    from huggingface_hub.errors import StrictDataclassError
    from transformers import CONFIG_MAPPING, AutoConfig

    place = f"model: {model!r}"
    data: dict[str, Any] = {}
    try:
        if isinstance(source, Path):
            file = source if source.is_file() else source / "config.json"
            place, data = str(file), _json(file, model)
            if not data.get("auto_map"):
                check_written(data, place)
                if data["model_type"] in CONFIG_MAPPING:
                    check_spelling(data, CONFIG_MAPPING[data["model_type"]], place)
        with _silent_transformers():
            config: PretrainedConfig = AutoConfig.from_pretrained(source, trust_remote_code=trust_remote_code)
    except StrictDataclassError as error:
        raise explained(error, place) from error
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise _explained(error, model, local=isinstance(source, Path)) from error
    if not getattr(config, "auto_map", None):
        check_config(config, place)
    return config


@contextmanager
def _silent_transformers() -> Iterator[None]:
    """Keep off stderr what transformers says of a config: what keeps a model from working is refused by us."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity(ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _json(file: Path, model: str) -> dict[str, Any]:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise SpaceError(f"model: {model!r}: {file} is not JSON: {error}.") from error
    if not isinstance(data, dict) or "model_type" not in data:
        raise SpaceError(
            f"model: {model!r}: {file} has no model_type; expected a config.json as transformers writes it."
        )
    return data


def _explained(error: Exception, model: str, *, local: bool) -> RaysweepError:
    """Say in our words why transformers did not give a config."""
    from huggingface_hub import errors as hub

    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in causes:
        causes.append(cause)
        cause = cause.__cause__ or cause.__context__
    # A file that is missing from the local cache is a failed download, though its class says "not found".
    offline = any(isinstance(c, (hub.LocalEntryNotFoundError, hub.OfflineModeIsEnabled)) for c in causes)
    if not offline and any(isinstance(c, hub.GatedRepoError) for c in causes):
        return SpaceError(
            f"model: {model!r} is gated on the Hugging Face Hub: accept its terms there, then `hf auth login`."
        )
    if not offline and any(isinstance(c, (hub.RepositoryNotFoundError, hub.EntryNotFoundError)) for c in causes):
        return SpaceError(
            f"model: the Hugging Face Hub has no config at {model!r}.{nearest(Path(model).name, shape_names())} "
            "A private model needs `hf auth login`."
        )
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if "trust_remote_code" in str(error):
        return SpaceError(f"model: {model!r} comes with its own code: read it, then set trust_remote_code: true.")
    if any(isinstance(c, hub.HFValidationError) for c in causes):
        return SpaceError(f"model: {model!r} is no id of the Hugging Face Hub, which is written owner/name: {text}")
    if isinstance(error, OSError) and not local:
        return MachineError(
            f"model: the Hugging Face Hub did not answer for {model!r} ({text}). "
            "Check the network, or give a folder with the model's config.json."
        )
    return SpaceError(f"model: transformers cannot read the config of {model!r}: {text}")


def _checked(config: PretrainedConfig, model: str, *, trust_remote_code: bool) -> PretrainedConfig:
    from transformers import AutoModelForCausalLM

    auto_map = getattr(config, "auto_map", None) or {}
    if trust_remote_code and "AutoModelForCausalLM" in auto_map:
        return config
    if type(config) not in AutoModelForCausalLM._model_mapping:
        raise SpaceError(
            f"model: {model!r} is of type {config.model_type!r}, for which transformers has no causal language model."
        )
    return config
