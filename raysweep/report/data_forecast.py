"""The forecast over one's own data: whether the run finishes, where it dies if not, and what would save it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cost.verdict import Fit
from raysweep.report.labels import TONES, fit_cell, gb
from raysweep.report.page import Block, Cell, Heading, Sentence, Tone, table
from raysweep.setting import ALLOCATOR_VARIABLE

if TYPE_CHECKING:
    from raysweep.memory.advice import Advice
    from raysweep.memory.data_run import DataFit
    from raysweep.memory.forecast import DataForecast, Forecast
    from raysweep.setting import StepSetting


def data_blocks(forecast: Forecast, labels: dict[StepSetting, str]) -> list[Block]:
    """Return the part of the page about one's own data; nothing where there are none."""
    if not forecast.data:
        return []
    first = forecast.data[0]
    blocks: list[Block] = [Heading(f"Your data: {first.name}, {first.items:,} items in their order")]
    if first.items_played < first.items:
        part = f"{first.items_played:,} of {first.items:,} items were replayed: the first, and the optimizer steps"
        blocks.append(Sentence(f"{part} with the longest ones.", Tone.WARN))
    rows = [
        (
            flavour,
            labels[one.step],
            *_peak_cells(one),
            fit_cell(Fit(verdict=fit.verdict, headroom_bytes=fit.headroom_bytes)),
            f"{fit.retries:,}",
            _death(fit),
        )
        for flavour in first.fit
        for one in forecast.data
        for fit in (one.fit[flavour],)
    ]
    columns = ["flavour", "step", ">allocated", ">reserved", "verdict", ">retries", "dies at"]
    caption = (
        "Peaks in GB (10^9 bytes) on a Hopper card without end. retries: the allocator frees its cache and tries "
        "again, up to where the run dies if it does."
    )
    if rows:
        blocks.append(table(columns, rows, caption))
    else:
        peaks = [(labels[one.step], *_peak_cells(one)) for one in forecast.data]
        blocks.append(
            table(["step", ">allocated", ">reserved"], peaks, "GB (10^9 bytes) on a Hopper card without end.")
        )
    return blocks + _advice(forecast, labels)


def _peak_cells(one: DataForecast) -> tuple[str | None, str | None]:
    reserved = gb(one.peak_reserved_bytes, digits=2)
    if one.peak_reserved_range_bytes is not None:
        low, high = (gb(size, digits=2) for size in one.peak_reserved_range_bytes)
        reserved = low if low == high else f"{low} to {high}"
    return gb(one.peak_allocated_bytes, digits=2), reserved


def _death(fit: DataFit) -> str | None:
    if fit.fails_at is None:
        return None
    if fit.fails_at_item is None:
        return "loading the model"
    return f"item {fit.fails_at_item:,} of {fit.fails_in} ({fit.fails_at_tokens:,} tokens), {fit.fails_at.phase}"


def _advice(forecast: Forecast, labels: dict[StepSetting, str]) -> list[Block]:
    rows = [
        (
            advice.flavour,
            labels[one.step],
            _change(advice),
            _verdict(advice),
            f"{advice.retries:,}",
            _price(advice),
        )
        for one in forecast.data
        for advice in one.advice
    ]
    if not rows:
        return []
    blocks: list[Block] = [
        Heading("What would help"),
        table(
            ["flavour", "step", "change", "then", ">retries", "at the price of"],
            rows,
            "Each change was itself forecast, over all of these data. Allocator settings go into the variable "
            f"{ALLOCATOR_VARIABLE}; expandable segments are expandable_segments:True there.",
        ),
    ]
    if not all(one.advice_complete for one in forecast.data):
        blocks.append(Sentence("The run is long: not every change was tried.", Tone.WARN))
    return blocks


def _change(advice: Advice) -> str:
    """The change in words that fit a column."""
    text = advice.change.replace(f"{ALLOCATOR_VARIABLE}=", "")
    return text.replace("expandable_segments:True", "expandable segments")


def _verdict(advice: Advice) -> Cell:
    sign = f" {advice.headroom_bytes / 1e9:+,.1f}"
    most = ", frees most" if advice.frees_most else ""
    return Cell(f"{advice.verdict.value}{sign}{most}", TONES[advice.verdict])


def _price(advice: Advice) -> str | None:
    parts = [advice.consequence] if advice.consequence else []
    if advice.lost_token_share is not None and advice.changed_item_share is not None:
        lost, touched = f"{advice.lost_token_share:.1%}", f"{advice.changed_item_share:.1%}"
        parts.append(f"loses {lost} of the tokens, touches {touched} of the items")
    if advice.added_token_share is not None:
        parts.append(f"{advice.added_token_share:.1%} more tokens")
    return "; ".join(parts) or None


def data_json(one: DataForecast) -> dict[str, Any]:
    """Return the forecast of one step over the data as plain data."""
    data: dict[str, Any] = {
        "step": one.step.to_dict(),
        "name": one.name,
        "items": one.items,
        "items_played": one.items_played,
        "peak_allocated_bytes": one.peak_allocated_bytes,
        "peak_reserved_bytes": one.peak_reserved_bytes,
    }
    if one.peak_reserved_range_bytes is not None:
        data["peak_reserved_range_bytes"] = list(one.peak_reserved_range_bytes)
    data["fit"] = {flavour: _fit_json(fit) for flavour, fit in one.fit.items()}
    data["advice"] = [_advice_json(advice) for advice in one.advice]
    data["advice_complete"] = one.advice_complete
    return data


def _fit_json(fit: DataFit) -> dict[str, Any]:
    data: dict[str, Any] = {
        "verdict": fit.verdict.value,
        "headroom_bytes": fit.headroom_bytes,
        "retries": fit.retries,
        "fails_at_item": fit.fails_at_item,
        "fails_at_tokens": fit.fails_at_tokens,
    }
    if fit.fails_at is not None:
        data["fails_in"] = fit.fails_in
        data["fails_at_moment"] = {"phase": fit.fails_at.phase, "layer": fit.fails_at.layer, "op": fit.fails_at.op}
        data["requested_bytes"] = fit.requested_bytes
    return data


def _advice_json(advice: Advice) -> dict[str, Any]:
    data: dict[str, Any] = {
        "flavour": advice.flavour,
        "kind": advice.kind.value,
        "change": advice.change,
        "consequence": advice.consequence,
        "verdict": advice.verdict.value,
        "headroom_bytes": advice.headroom_bytes,
        "retries": advice.retries,
        "peak_reserved_bytes": advice.peak_reserved_bytes,
        "freed_bytes": advice.freed_bytes,
        "helps": advice.helps,
        "frees_most": advice.frees_most,
    }
    optional = {
        "limit_tokens": advice.limit_tokens,
        "lost_token_share": advice.lost_token_share,
        "changed_item_share": advice.changed_item_share,
        "added_token_share": advice.added_token_share,
        "step": advice.step.to_dict() if advice.step else None,
    }
    return data | {key: value for key, value in optional.items() if value is not None}
