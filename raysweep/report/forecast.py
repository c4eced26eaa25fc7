"""A forecast as JSON and as a page: components, verdicts, longest lengths."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raysweep.report.data_forecast import data_blocks, data_json
from raysweep.report.labels import FIT_CAPTION, fit_cell, gb, sampled
from raysweep.report.limits import limit_blocks, limits_json
from raysweep.report.page import Block, Cell, Heading, Page, Sentence, Tone, table
from raysweep.space.labels import step_labels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raysweep.data.limit_cost import LimitCost
    from raysweep.memory.forecast import Forecast, ForecastRow, Longest
    from raysweep.memory.one_change import WhatFrees
    from raysweep.setting import StepSetting


def forecast_json(forecast: Forecast, limits: Sequence[LimitCost] = ()) -> dict[str, Any]:
    """Return the whole forecast, and what length limits cost of the data, as plain data; absent is what was not asked.

    Args:
        forecast: Of memory.
        limits: Of the data, where there are any.
    """
    data: dict[str, Any] = {
        "model": forecast.model,
        "source": "forecast",
        "peaks_flavours": list(forecast.peaks_flavours),
        "rows": [_row_json(row) for row in forecast.rows],
        "outside_allocator": {
            flavour: {"bytes": size, "is_allowance": forecast.outside_is_allowance[flavour]}
            for flavour, size in forecast.outside_bytes.items()
        },
    }
    if forecast.rejected:
        data["rejected"] = {
            flavour: {"reason": rejected.reason, "usd_per_hour": rejected.usd_per_hour}
            for flavour, rejected in forecast.rejected.items()
        }
    if forecast.refused:
        data["not_forecast"] = [{"step": step.to_dict(), "reason": why} for step, why in forecast.refused.items()]
    data["notes"] = list(forecast.notes)
    if forecast.frees is not None:
        data["what_frees_most"] = _frees_json(forecast.frees)
    if forecast.longest:
        data["longest"] = [_longest_json(longest) for longest in forecast.longest]
    if forecast.data:
        data["data"] = [data_json(one) for one in forecast.data]
    if limits:
        data["limits"] = limits_json(limits)
    return data


def forecast_page(forecast: Forecast, limits: Sequence[LimitCost] = ()) -> Page:
    """Return the same for people, several hundred lengths boiled down to a few columns."""
    labels = step_labels([*(row.step for row in forecast.rows), *forecast.refused])
    blocks: list[Block] = [Sentence("Forecast: every number here is computed, none is measured.", Tone.NOTE)]
    if forecast.rows:
        blocks += _peaks(forecast, labels)
        blocks += _frees(forecast, labels)
        blocks += _verdicts(forecast, labels)
    blocks += data_blocks(forecast, labels)
    blocks += limit_blocks(limits)
    blocks += _outside(forecast)
    blocks += _left_out(forecast, labels)
    blocks += [Sentence(note, Tone.WARN) for note in forecast.notes]
    return Page(f"Memory of a training step of {forecast.model}", tuple(blocks))


def _peaks(forecast: Forecast, labels: dict[StepSetting, str]) -> list[Block]:
    lengths = sampled([row.length_tokens for row in forecast.rows])
    shown = [row for row in forecast.rows if row.length_tokens in lengths]
    peaks = [
        (
            labels[row.step],
            row.length_tokens,
            gb(row.peak_allocated_bytes, digits=2),
            _reserved(row),
            gb(row.host_bytes, digits=2),
            _moment(row),
        )
        for row in shown
    ]
    names = tuple(forecast.rows[0].components_bytes)
    parts = [(labels[row.step], row.length_tokens, *(gb(row.components_bytes[n]) for n in names)) for row in shown]
    return [
        Heading("Peaks"),
        table(
            ["step", ">length", ">allocated", ">reserved", ">host", "the allocated peak comes in"],
            peaks,
            f"GB (10^9 bytes), {_of_which_chips(forecast)} host: pinned host memory. A range where the peak hangs on "
            "the addresses a device gives.",
        ),
        Heading("What the allocated peak consists of"),
        table(["step", ">length", *(f">{name}" for name in names)], parts, "GB (10^9 bytes); adds up to the peak."),
    ]


def _of_which_chips(forecast: Forecast) -> str:
    """Say whose peaks the rows hold: cuBLAS's workspaces are not of one size on all chips."""
    if not forecast.peaks_flavours:
        return "on a Hopper card, since no flavour is named."
    others = [flavour for flavour in forecast.outside_bytes if flavour not in forecast.peaks_flavours]
    apart = f"; on {', '.join(others)} cuBLAS's workspaces are of another size" if others else ""
    return f"on {', '.join(forecast.peaks_flavours)}{apart}."


def _frees(forecast: Forecast, labels: dict[StepSetting, str]) -> list[Block]:
    frees = forecast.frees
    if frees is None:
        return []
    largest = Sentence(
        f"The largest peak, {gb(frees.peak_reserved_bytes)} GB reserved, is that of {labels[frees.step]} at "
        f"{frees.length_tokens:,} tokens; mostly {frees.dominant}: {gb(frees.dominant_bytes)} GB."
    )
    rows = [(change.what, gb(change.peak_reserved_bytes), _signed_gb(change.freed_bytes)) for change in frees.changes]
    if not rows:
        return [Heading("What would free most"), largest]
    caption = "GB (10^9 bytes). One thing changed at a time, each forecast; the step is otherwise the same."
    return [Heading("What would free most"), largest, table(["changed", ">reserved", ">frees"], rows, caption)]


def _signed_gb(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:+.1f}"


def _frees_json(frees: WhatFrees) -> dict[str, Any]:
    return {
        "step": frees.step.to_dict(),
        "length_tokens": frees.length_tokens,
        "peak_reserved_bytes": frees.peak_reserved_bytes,
        "dominant_component": frees.dominant,
        "dominant_bytes": frees.dominant_bytes,
        "changes": [
            {
                "changed": change.what,
                "step": change.step.to_dict(),
                "peak_reserved_bytes": change.peak_reserved_bytes,
                "freed_bytes": change.freed_bytes,
            }
            for change in frees.changes
        ],
    }


def _moment(row: ForecastRow) -> str:
    if row.moment is None:
        return "loading"
    layer = "" if row.moment.layer is None else f", layer {row.moment.layer}"
    return f"{row.moment.phase}{layer} ({row.moment.op})"


def _verdicts(forecast: Forecast, labels: dict[StepSetting, str]) -> list[Block]:
    flavours = tuple(forecast.rows[0].fit)
    if not flavours:
        return []
    shown = {row.step: labels[row.step] for row in forecast.rows}
    lengths = sampled([row.length_tokens for row in forecast.rows], most=5)
    by_cell = {(row.step, row.length_tokens): row for row in forecast.rows}
    rows: list[tuple[Cell | str, ...]] = [
        (flavour, label, *(fit_cell(by_cell[step, length].fit[flavour]) for length in lengths))
        for flavour in flavours
        for step, label in shown.items()
    ]
    columns = ["flavour", "step", *(f"{length:,} tokens" for length in lengths)]
    blocks: list[Block] = [Heading("Does it fit?"), table(columns, rows, FIT_CAPTION)]
    if forecast.longest:
        longest = {(item.flavour, item.step): item for item in forecast.longest}
        longest_rows = [
            (flavour, label, *_longest_cells(longest[flavour, step]))
            for flavour in flavours
            for step, label in shown.items()
        ]
        columns = ["flavour", "step", ">that fits", ">that runs", "limited by"]
        caption = "Such that it and every shorter length looked at fit, or run at all."
        blocks += [Heading("The longest length"), table(columns, longest_rows, caption)]
    return blocks


def _longest_cells(longest: Longest) -> tuple[Cell, Cell, str]:
    fits, runs = longest.length_tokens, longest.tight_length_tokens
    return (
        Cell("none", Tone.BAD) if fits is None else Cell(f"{fits:,}", Tone.GOOD),
        Cell("none", Tone.BAD) if runs is None else Cell(f"{runs:,}"),
        longest.limited_by,
    )


def _outside(forecast: Forecast) -> list[Block]:
    allowances: dict[int, list[str]] = {}
    for flavour, size in forecast.outside_bytes.items():
        if forecast.outside_is_allowance[flavour]:
            allowances.setdefault(size, []).append(flavour)
    return [
        Sentence(
            f"Outside the allocator {size / 1e9:.1f} GB are allowed for on {', '.join(flavours)}: "
            "an allowance, until a probe has measured it.",
            Tone.NOTE,
        )
        for size, flavours in allowances.items()
    ]


def _left_out(forecast: Forecast, labels: dict[StepSetting, str]) -> list[Block]:
    blocks: list[Block] = []
    for flavour, rejected in forecast.rejected.items():
        price = "price unknown" if rejected.usd_per_hour is None else f"{rejected.usd_per_hour:.2f} USD an hour"
        blocks.append(Sentence(f"Not forecast: {flavour} ({price}): {rejected.reason}.", Tone.WARN))
    blocks += [
        Sentence(f"Not forecast: step {labels[step]}: {reason}", Tone.WARN) for step, reason in forecast.refused.items()
    ]
    return blocks


def _row_json(row: ForecastRow) -> dict[str, Any]:
    data: dict[str, Any] = {
        "step": row.step.to_dict(),
        "length_tokens": row.length_tokens,
        "peak_allocated_bytes": row.peak_allocated_bytes,
        "peak_reserved_bytes": row.peak_reserved_bytes,
    }
    if row.peak_reserved_range_bytes is not None:
        data["peak_reserved_range_bytes"] = list(row.peak_reserved_range_bytes)
    data["components_bytes"] = {str(name): size for name, size in row.components_bytes.items()}
    data["host_bytes"] = row.host_bytes
    if row.moment is not None:
        data["peak_moment"] = {"phase": str(row.moment.phase), "layer": row.moment.layer, "op": row.moment.op}
    data["fit"] = {
        flavour: {"verdict": fit.verdict.value, "headroom_bytes": fit.headroom_bytes}
        for flavour, fit in row.fit.items()
    }
    return data


def _longest_json(longest: Longest) -> dict[str, Any]:
    return {
        "step": longest.step.to_dict(),
        "flavour": longest.flavour,
        "length_tokens": longest.length_tokens,
        "tight_length_tokens": longest.tight_length_tokens,
        "limited_by": longest.limited_by,
    }


def _reserved(row: ForecastRow) -> str | None:
    if row.peak_reserved_range_bytes is None:
        return gb(row.peak_reserved_bytes, digits=2)
    low, high = (gb(size, digits=2) for size in row.peak_reserved_range_bytes)
    return high if low == high else f"{low} to {high}"
