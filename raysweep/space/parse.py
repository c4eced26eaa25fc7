"""From a document to a ``SearchSpace``: form is checked here, names of flavours and modules where they are used."""

from __future__ import annotations

from pathlib import Path

from raysweep.errors import nearest
from raysweep.paths import expanded, is_file
from raysweep.records import Mode
from raysweep.setting import AllocatorSetting, WeightsFrom
from raysweep.space.cursor import Cursor
from raysweep.space.document import read_document
from raysweep.space.model import (
    DEFAULT_MARGIN_SHARE,
    Budget,
    DataPlan,
    FlavourChoice,
    SearchSpace,
    Stage,
)
from raysweep.space.run import RunSetting, read_run
from raysweep.space.steps import read_steps

_KEYS = (
    "model",
    "weights_from",
    "step",
    "lengths",
    "flavours",
    "margin",
    "data",
    "run",
    "budget",
    "mode",
    "prompt_tokens",
    "new_tokens",
    "allocator",
    "seed",
    "trust_remote_code",
)
MAX_LENGTH_TOKENS = 100_000_000
MAX_LENGTHS = 100_000
"""A grid finer than this is a slip of the pen, and would not fit in memory."""
MIN_MEMORY_BYTES = 1_000_000
"""Less is a number of GB or MB written where bytes were meant."""
MAX_MEMORY_BYTES = 10**15
"""No card has more, and a sum of such numbers stays within 64 bits."""
MAX_SPLIT_MB = MAX_MEMORY_BYTES // 2**20


def parse_space(text: str, name: str, *, folder: Path | None = None, path: Path | None = None) -> SearchSpace:
    """Return the search space written in ``text``.

    Args:
        text: YAML.
        name: what errors call the file.
        folder: where relative paths of data and model begin; None leaves them relative to the working directory.
        path: the file, if there is one.

    Raises:
        SpaceError: with file, line, path, the value, what was expected, and the nearest valid name.
    """
    top = Cursor(read_document(text, name), name)
    entries = top.keys(_KEYS, required=("model",))
    mode = entries["mode"].choice(Mode) if "mode" in entries else Mode.TRAIN
    steps, searched = read_steps(entries.get("step"), trains=mode is Mode.TRAIN)
    prompt_tokens, new_tokens = _generation(top, entries, mode)
    return SearchSpace(
        source_text=text,
        path=path,
        model=_model(entries["model"], folder),
        steps=steps,
        searched=searched,
        lengths=read_lengths(entries["lengths"]) if "lengths" in entries else (),
        flavours=_flavours(entries["flavours"]) if "flavours" in entries else (),
        weights_from=entries["weights_from"].choice(WeightsFrom) if "weights_from" in entries else WeightsFrom.RANDOM,
        margin_share=read_margin(entries["margin"]) if "margin" in entries else DEFAULT_MARGIN_SHARE,
        data=_data(entries["data"], folder) if "data" in entries and not entries["data"].is_null else None,
        run=read_run(entries["run"]) if "run" in entries and not entries["run"].is_null else RunSetting(),
        budget=_budget(entries["budget"]) if "budget" in entries and not entries["budget"].is_null else Budget(),
        mode=mode,
        prompt_tokens=prompt_tokens,
        new_tokens=new_tokens,
        allocator=_allocator(entries["allocator"]) if "allocator" in entries else AllocatorSetting(),
        seed=entries["seed"].integer(least=0, most=2**63 - 1) if "seed" in entries else 0,
        trust_remote_code=entries["trust_remote_code"].boolean() if "trust_remote_code" in entries else False,
    )


def _model(at: Cursor, folder: Path | None) -> str:
    return _beside(at.text("a shipped shape, a Hub id, or a folder or file with config.json"), folder, "config.json")


def _tokenizer(parts: dict[str, Cursor], folder: Path | None) -> str | None:
    if "tokenizer" not in parts or parts["tokenizer"].is_null:
        return None
    return _beside(parts["tokenizer"].text("a folder with tokenizer.json, or a Hub id"), folder, "tokenizer.json")


def _beside(name: str, folder: Path | None, file: str) -> str:
    """Return a name; where it is that of a folder with the file, its path."""
    # As for data, a path is relative to the file that names it; a Hub id or a shipped name is no path there.
    if folder is not None and (name.startswith(("./", "../")) or is_file(folder / name / file)):
        return str((folder / name).resolve())
    return name


def read_lengths(at: Cursor) -> tuple[int, ...]:
    """Return the lengths of a list of lengths or of ``{from, to, by}``, ascending and each once."""
    if at.is_list():
        entries = at.items("a list of lengths in tokens")
        return tuple(sorted({e.integer(least=1, most=MAX_LENGTH_TOKENS, unit="tokens") for e in entries}))
    if not at.has("from") and not at.has("to") and not at.has("by"):
        at.refuse("a list of lengths in tokens such as [4096, 8192], or {from: 1024, to: 65536, by: 1024}")
    names = ("from", "to", "by")
    parts = at.keys(names, required=names)
    first, last, by = (parts[n].integer(least=1, most=MAX_LENGTH_TOKENS, unit="tokens") for n in names)
    if last < first:
        parts["to"].refuse(f"a length of {first} or more, where the range begins")
    if (last - first) // by + 1 > MAX_LENGTHS:
        parts["by"].refuse(f"a stride that makes at most {MAX_LENGTHS} lengths")
    return tuple(range(first, last + 1, by))


def _flavours(at: Cursor) -> tuple[FlavourChoice, ...]:
    choices: list[FlavourChoice] = []
    for entry in at.items("a list of flavours such as [hf/a100-large, hf/h200]"):
        choice = _flavour(entry)
        if choice.name in {c.name for c in choices}:
            entry.refuse(f"each flavour once; {choice.name!r} stands in the list already")
        choices.append(choice)
    return tuple(choices)


def _flavour(at: Cursor) -> FlavourChoice:
    if isinstance(at.node.value, str):
        return FlavourChoice(name=_flavour_name(at), where=at.where)
    names = ("name", "gpu_id", "memory_bytes", "outside_allocator_bytes", "price_usd_per_hour")
    parts = at.keys(names, required=("name",))
    given = {key: part for key, part in parts.items() if not part.is_null}
    memory_bytes = outside_bytes = price = None
    if "memory_bytes" in given:
        memory_bytes = given["memory_bytes"].integer(least=MIN_MEMORY_BYTES, most=MAX_MEMORY_BYTES, unit="bytes")
    if "outside_allocator_bytes" in given:
        most = memory_bytes - 1 if memory_bytes else MAX_MEMORY_BYTES
        outside_bytes = given["outside_allocator_bytes"].integer(least=0, most=most, unit="bytes")
    if "price_usd_per_hour" in given:
        price = given["price_usd_per_hour"].number("a price in USD per hour, 0 or more", least=0)
    return FlavourChoice(
        name=_flavour_name(parts["name"]),
        gpu_id=given["gpu_id"].text("a gpu_id of the catalogue such as a100-pcie-40gb") if "gpu_id" in given else None,
        memory_bytes=memory_bytes,
        outside_allocator_bytes=outside_bytes,
        price_usd_per_hour=price,
        where=at.where,
    )


def _flavour_name(at: Cursor) -> str:
    name = at.text("a flavour's name such as hf/h200, or a mapping with name and gpu_id or memory_bytes")
    # A comma separates flavours on the command line; some providers' own names do hold blanks.
    if "," in name or not name.isprintable():
        at.refuse("a flavour's name without commas or control characters")
    return name


def read_margin(at: Cursor) -> float:
    """Return the margin as a share from 0 to under 1."""
    return at.share("a share of the device's memory from 0% to under 100%, such as 8%", zero=True)


def _data(at: Cursor, folder: Path | None) -> DataPlan:
    if at.has("stages"):
        parts = at.keys(("stages", "tokenizer"))
        entries = parts["stages"].items("a list of stages, each {name, items, epochs | loss_share}")
        stages: list[Stage] = []
        for entry in entries:
            stage = _stage(entry, folder)
            if stage.name in {s.name for s in stages}:
                entry.refuse(f"stages of different names; {stage.name!r} stands in the list already")
            stages.append(stage)
        _check_shares(at, stages)
        return DataPlan(stages=tuple(stages), tokenizer=_tokenizer(parts, folder))
    parts = at.keys(("items", "epochs", "stages", "tokenizer"), required=("items",))
    epochs = _epochs(parts["epochs"]) if "epochs" in parts else 1.0
    stage = Stage(name="data", items=_path(parts["items"], folder), epochs=epochs)
    return DataPlan(stages=(stage,), tokenizer=_tokenizer(parts, folder))


def _stage(at: Cursor, folder: Path | None) -> Stage:
    parts = at.keys(("name", "items", "epochs", "loss_share"), required=("name", "items"))
    if ("epochs" in parts) == ("loss_share" in parts):
        at.refuse("either epochs or loss_share for a stage")
    return Stage(
        name=parts["name"].text("a stage's name"),
        items=_path(parts["items"], folder),
        epochs=_epochs(parts["epochs"]) if "epochs" in parts else None,
        loss_share=parts["loss_share"].share("a share of all loss-bearing tokens above 0% and under 100%", zero=False)
        if "loss_share" in parts
        else None,
    )


def _check_shares(at: Cursor, stages: list[Stage]) -> None:
    shares = [s.loss_share for s in stages if s.loss_share is not None]
    if len(shares) == len(stages):
        at.refuse("at least one stage with epochs, from which the others' shares are computed")
    if sum(shares) >= 1:
        at.refuse(f"loss shares of less than 100% together, not {sum(shares):.0%}")


def _epochs(at: Cursor) -> float:
    return at.number("a number of epochs above 0", above=0)


def _path(at: Cursor, folder: Path | None) -> Path:
    path = expanded(at.text("the path of a file of items"))
    return path if folder is None or path.is_absolute() else folder / path


def _budget(at: Cursor) -> Budget:
    parts = at.keys(("usd", "hours"))
    return Budget(
        usd=parts["usd"].number("an amount in USD above 0", above=0) if "usd" in parts else None,
        hours=parts["hours"].number("a number of hours above 0", above=0) if "hours" in parts else None,
    )


def _generation(top: Cursor, entries: dict[str, Cursor], mode: Mode) -> tuple[int | None, int | None]:
    names = ("prompt_tokens", "new_tokens")
    if mode is Mode.TRAIN:
        for name in names:
            if name in entries:
                entries[name].refuse("no such key in mode train", " Write 'mode: generate' for inference probes.")
        return None, None
    parts = top.keys(_KEYS, required=names)
    if "lengths" in entries:
        entries["lengths"].refuse("no lengths in mode generate, where prompt_tokens and new_tokens give them")
    prompt, new = (parts[name].integer(least=1, most=MAX_LENGTH_TOKENS, unit="tokens") for name in names)
    return prompt, new


def _allocator(at: Cursor) -> AllocatorSetting:
    if at.is_null:
        return AllocatorSetting()
    names = ("expandable_segments", "garbage_collection_threshold", "max_split_size_mb")
    parts = {key: part for key, part in at.keys(names).items() if not part.is_null}
    threshold = split = None
    if "garbage_collection_threshold" in parts:
        threshold = parts["garbage_collection_threshold"].number("a share between 0 and 1", above=0, below=1)
    if "max_split_size_mb" in parts:
        # PyTorch refuses 20 and less, the size of its large segments (c10/core/AllocatorConfig.cpp).
        split = parts["max_split_size_mb"].integer(least=21, most=MAX_SPLIT_MB, unit="MiB")
    return AllocatorSetting(
        expandable_segments=parts["expandable_segments"].boolean() if "expandable_segments" in parts else False,
        garbage_collection_threshold=threshold,
        max_split_size_mb=split,
    )


def unknown_space(name: str, shipped: tuple[str, ...]) -> str:
    """Return the message for a space that is neither a file nor shipped."""
    return (
        f"{name}: expected a search space: no such file, and no shipped space of that name. "
        f"Shipped: {', '.join(shipped) or 'none'}.{nearest(name, shipped)}"
    )
