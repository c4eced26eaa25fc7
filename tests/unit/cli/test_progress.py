"""What a sweep tells while it runs."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from raysweep.cli.progress import SweepProgress
from raysweep.records import Measurement, ProbeRecord, ProbeState, Source
from raysweep.setting import Checkpointing, Loss, StepSetting
from raysweep.space.labels import step_labels
from raysweep.sweep.events import ProbeEnded

STEPS = (StepSetting(checkpointing=Checkpointing.GPU, loss=Loss.CHUNKED), StepSetting())
RECORD = ProbeRecord(
    probe_id="p",
    sweep_id="s",
    session_id="t",
    source=Source.SIMULATED,
    model="m",
    step=STEPS[0],
    flavour="hf/rtx-pro-6000",
    length_tokens=32_768,
    state=ProbeState.COMPLETED,
    measurement=Measurement(
        peak_allocated_bytes=44 * 10**9, peak_reserved_bytes=45 * 10**9, step_seconds=(1.0,), tokens_per_second=2143.0
    ),
    device_name="NVIDIA RTX PRO 6000",
    device_memory_bytes=100 * 10**9,
    started_at=datetime(2026, 9, 1, tzinfo=UTC),
    probe_seconds=1.0,
)


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_a_probes_line_keeps_to_the_width_and_loses_no_word(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    with SweepProgress(step_labels(STEPS), quiet=False) as progress:
        progress.tell(ProbeEnded(record=RECORD, probes_done=25, probes_left_at_most=39))
    lines = [line for line in capsys.readouterr().err.splitlines() if line.strip()]
    assert max(map(len, lines)) <= columns
    assert " ".join(" ".join(lines).split()).endswith("45.0 GB reserved, 2,143 tokens/s (simulated)")
    assert len(lines) == 1 or columns < 200
