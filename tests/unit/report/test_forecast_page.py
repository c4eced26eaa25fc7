"""A forecast as people and programs read it."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

from cost.verdict import judge
from raysweep.memory.forecast import Forecast, ForecastRow, Longest
from raysweep.memory.outcome import Moment
from raysweep.memory.program import Category
from raysweep.report.forecast import forecast_json, forecast_page
from raysweep.report.page import Page
from raysweep.report.text import page_text
from raysweep.setting import Checkpointing, Loss, StepSetting

GOLDEN = Path(__file__).parents[2] / "golden" / "report"
FULL = StepSetting(loss=Loss.FULL)
CHUNKED = StepSetting(loss=Loss.CHUNKED, checkpointing=Checkpointing.CPU)
CARDS = {"hf/l40sx1": 47_704_965_120, "hf/h200": 150_109_880_320}


def _row(step: StepSetting, length_tokens: int) -> ForecastRow:
    loss_bytes = length_tokens * (1_800_000 if step.loss is Loss.FULL else 100_000)
    parts = {category.name.lower(): 0 for category in Category}
    parts |= {"weights": 15_230_000_000, "activations": length_tokens * 700_000, "loss": loss_bytes}
    allocated = sum(parts.values())
    reserved = allocated + 400_000_000
    return ForecastRow(
        step=step,
        length_tokens=length_tokens,
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=reserved,
        peak_reserved_range_bytes=(reserved, reserved + 80_000_000) if step.loss is Loss.FULL else None,
        components_bytes=parts,
        host_bytes=length_tokens * 200_000 if step.checkpointing is Checkpointing.CPU else 0,
        moment=Moment(phase="backward", layer=27, op="aten.mm", item=0),
        fit={
            name: judge(
                memory_bytes=memory,
                margin_share=0.08,
                outside_bytes=1_300_000_000,
                peak_reserved_bytes=reserved,
                runs=reserved + 1_300_000_000 <= memory,
                retries=0,
            )
            for name, memory in CARDS.items()
        },
    )


def _forecast() -> Forecast:
    return Forecast(
        model="qwen2.5-7b",
        rows=tuple(_row(step, length) for step in (FULL, CHUNKED) for length in (4096, 16384)),
        longest=tuple(
            Longest(
                step=step,
                flavour=name,
                length_tokens=4096 if step is FULL and name == "hf/l40sx1" else 16384,
                tight_length_tokens=4096 if step is FULL and name == "hf/l40sx1" else 16384,
                limited_by="memory: 16,384 tokens are 15.0 GB short; loss take 29.5 GB"
                if step is FULL and name == "hf/l40sx1"
                else "the end of the grid",
            )
            for step in (FULL, CHUNKED)
            for name in CARDS
        ),
        outside_bytes=dict.fromkeys(CARDS, 1_300_000_000),
        outside_is_allowance={"hf/l40sx1": True, "hf/h200": False},
        notes=("Routing depends on values.",),
        peaks_flavours=("hf/h200",),
    )


def _check(name: str, text: str) -> None:
    file = GOLDEN / name
    if os.environ.get("RAYSWEEP_WRITE_GOLDEN"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


def test_a_forecast_as_text() -> None:
    _check("forecast.txt", page_text(forecast_page(_forecast())))


def test_a_forecast_as_json() -> None:
    _check("forecast.json", json.dumps(forecast_json(_forecast()), indent=1) + "\n")


def test_the_json_has_the_keys_that_programs_rely_on() -> None:
    data = forecast_json(_forecast())
    row, longest = data["rows"][0], data["longest"][0]
    assert {
        "step",
        "length_tokens",
        "peak_allocated_bytes",
        "peak_reserved_bytes",
        "components_bytes",
        "host_bytes",
        "fit",
    } <= set(row)
    assert list(row["components_bytes"]) == [
        "weights",
        "adapter",
        "gradients",
        "optimizer",
        "activations",
        "loss",
        "workspace",
    ]
    assert sum(row["components_bytes"].values()) == row["peak_allocated_bytes"]
    assert row["fit"]["hf/h200"].keys() == {"verdict", "headroom_bytes"}
    assert {"step", "flavour", "length_tokens", "tight_length_tokens"} <= set(longest)


def test_a_range_stands_where_the_reserved_peak_has_one() -> None:
    rows = forecast_json(_forecast())["rows"]
    assert "peak_reserved_range_bytes" in rows[0]
    assert "peak_reserved_range_bytes" not in rows[2]


def test_many_lengths_are_boiled_down_for_people_and_kept_for_programs() -> None:
    many = dataclasses.replace(_forecast(), rows=tuple(_row(CHUNKED, n) for n in range(1024, 65537, 1024)), longest=())
    assert len(forecast_json(many)["rows"]) == 64
    text = page_text(forecast_page(many))
    assert "1,024" in text and "65,536" in text
    assert len(text.splitlines()) < 60


def test_a_forecast_without_flavours_shows_peaks_alone() -> None:
    bare = dataclasses.replace(
        _forecast(),
        rows=tuple(dataclasses.replace(row, fit={}) for row in _forecast().rows),
        longest=(),
        outside_bytes={},
        outside_is_allowance={},
    )
    page: Page = forecast_page(bare)
    assert "Does it fit?" not in page_text(page)
