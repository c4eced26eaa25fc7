"""Logs of runs under way: JSONL of micro-steps, and what a Hugging Face Trainer leaves while it runs and after."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from raysweep.decision.read_log import read_log
from raysweep.decision.run_log import RunLog
from raysweep.errors import DataError

START = 1_700_000_000.0
"""When a run's first checkpoint was written, seconds since 1970."""


def loss(step: int, value: float = 2.0, **more: float) -> dict[str, Any]:
    return {"epoch": step / 100, "loss": value, "step": step, **more}


def timed(step: int, seconds: float, *, before_tokens: float = 0, tokens_a_step: float = 100) -> dict[str, Any]:
    """An entry of a Trainer that counts tokens; ``before_tokens`` were seen by earlier processes."""
    tokens = step * tokens_a_step
    return loss(
        step,
        num_input_tokens_seen=tokens,
        train_runtime=seconds,
        train_tokens_per_second=round((tokens - before_tokens) / seconds, 3),
    )


def end(step: int, seconds: float, mean_loss: float = 2.0) -> dict[str, Any]:
    return {"step": step, "train_loss": mean_loss, "train_runtime": seconds, "train_steps_per_second": 1.0}


def state(step: int, history: Sequence[dict[str, Any]] = (), **more: Any) -> dict[str, Any]:
    return {"global_step": step, "max_steps": 100, "num_input_tokens_seen": 0, "log_history": list(history), **more}


def write(file: Path, content: dict[str, Any]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content))
    return file


def checkpoint(folder: Path, step: int, at: float, history: Sequence[dict[str, Any]] = (), **more: Any) -> Path:
    file = write(folder / f"checkpoint-{step}" / "trainer_state.json", state(step, history, **more))
    os.utime(file, (START + at, START + at))
    return file


def parts(log: RunLog) -> list[tuple[float, float, float]]:
    return [(s.first_step, s.last_step, round(s.seconds, 3)) for s in log.stretches]


@pytest.mark.parametrize("counts_tokens", [True, False])
def test_wall_times_that_run_on_from_entry_to_entry_are_not_added_up(tmp_path: Path, counts_tokens: bool) -> None:
    more = {"num_input_tokens_seen": 900} if counts_tokens else {}
    history = [loss(step, train_runtime=3.0 * step, **more) for step in (5, 10, 20)]
    log = read_log(write(tmp_path / "trainer_state.json", state(20, history)))
    assert parts(log) == [(0, 5, 15.0), (5, 10, 15.0), (10, 20, 30.0)]


def test_wall_times_that_fall_are_those_of_a_run_that_was_resumed(tmp_path: Path) -> None:
    history = [loss(step, train_runtime=seconds) for step, seconds in ((5, 15.0), (10, 30.0), (15, 4.0), (20, 19.0))]
    log = read_log(write(tmp_path / "trainer_state.json", state(20, history)))
    assert parts(log) == [(0, 5, 15.0), (5, 10, 15.0), (15, 20, 15.0)]
    assert "Steps 10 to 15 are left out" in log.notes[0]


def test_checkpoints_tell_how_long_the_steps_between_them_took(tmp_path: Path) -> None:
    for step, at in ((10, 0), (20, 50), (40, 150)):
        checkpoint(tmp_path, step, at, [loss(step)])
    log = read_log(tmp_path)
    assert parts(log) == [(10, 20, 50), (20, 40, 100)]
    assert (log.done_steps, log.planned_steps) == (40, 100)
    assert "evaluations and all else between is in it" in log.logged


@pytest.mark.parametrize("given", ["checkpoint-10/trainer_state.json", "checkpoint-20", "trainer_state.json"])
def test_any_file_or_folder_of_the_run_will_do(given: str, tmp_path: Path) -> None:
    for step, at in ((10, 0), (20, 50), (40, 150)):
        checkpoint(tmp_path, step, at)
    write(tmp_path / "trainer_state.json", state(15))  # of an earlier run in the same folder
    log = read_log(tmp_path / given)
    assert (parts(log), log.done_steps) == ([(10, 20, 50), (20, 40, 100)], 40)


def test_checkpoints_are_ordered_by_their_steps_not_their_names(tmp_path: Path) -> None:
    for step, at in ((900, 0), (1000, 5), (1100, 10)):
        checkpoint(tmp_path, step, at)
    assert parts(read_log(tmp_path)) == [(900, 1000, 5), (1000, 1100, 5)]


@pytest.mark.parametrize("count", [0, 1, 2])
def test_fewer_than_three_checkpoints_are_refused_with_what_to_give(count: int, tmp_path: Path) -> None:
    for step in range(1, count + 1):
        checkpoint(tmp_path, step, step)
    with pytest.raises(DataError, match=r"3 checkpoints.*there is (no|1|2) checkpoint.*JSONL"):
        read_log(tmp_path)


def test_copies_without_their_times_are_refused(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        checkpoint(tmp_path, step, 0)
    with pytest.raises(DataError, match=r"checkpoint-20: .*not newer than checkpoint-10.*cp -p"):
        read_log(tmp_path)


def test_checkpoints_of_an_abandoned_attempt_are_refused(tmp_path: Path) -> None:
    for step, at in ((10, 0), (20, 500), (30, 100)):
        checkpoint(tmp_path, step, at)
    with pytest.raises(DataError, match=r"checkpoint-30: .*move older ones of later steps away"):
        read_log(tmp_path)


def test_a_half_written_checkpoint_is_left_out_and_named(tmp_path: Path) -> None:
    for step, at in ((10, 0), (20, 50), (40, 150)):
        checkpoint(tmp_path, step, at)
    half = tmp_path / "checkpoint-50" / "trainer_state.json"
    half.parent.mkdir()
    half.write_text('{"log_history": [')
    log = read_log(tmp_path)
    assert log.done_steps == 40
    assert log.notes == ("checkpoint-50 is left out: its trainer_state.json cannot be read.",)


def test_someones_copy_of_a_checkpoint_is_not_one(tmp_path: Path) -> None:
    for step, at in ((10, 0), (20, 50), (40, 150)):
        checkpoint(tmp_path, step, at)
    shutil.copytree(tmp_path / "checkpoint-20", tmp_path / "checkpoint-20-kept")
    assert len(read_log(tmp_path).stretches) == 2


def test_checkpoints_tell_tokens_where_the_trainer_counts_them(tmp_path: Path) -> None:
    for step, at in ((10, 0), (20, 50), (40, 150)):
        checkpoint(tmp_path, step, at, num_input_tokens_seen=step * 1000)
    assert [s.tokens for s in read_log(tmp_path).stretches] == [10_000, 20_000]


def test_tokens_that_trl_counts_are_taken_at_their_own_step_alone(tmp_path: Path) -> None:
    for step, at in ((10, 0), (20, 50), (30, 100), (35, 125)):
        checkpoint(tmp_path, step, at, [loss(n, num_tokens=n * 1000.0) for n in range(10, step + 1, 10)])
    assert [s.tokens for s in read_log(tmp_path).stretches] == [10_000, 10_000, None]


def test_tokens_that_trl_counts_from_a_resumed_process_are_not_taken(tmp_path: Path) -> None:
    for step, at in ((10, 0), (20, 50), (30, 100)):
        history = [loss(n, num_tokens=n * 1000.0 if n < 20 else (n - 19) * 1000.0) for n in range(10, step + 1, 10)]
        checkpoint(tmp_path, step, at, history)
    assert [s.tokens for s in read_log(tmp_path).stretches] == [None, None]


def test_a_trainer_that_ended_tells_its_whole_time(tmp_path: Path) -> None:
    history = [loss(50), loss(100), end(100, 600)]
    assert parts(read_log(write(tmp_path / "trainer_state.json", state(100, history)))) == [(0, 100, 600)]


def test_a_trainer_that_counts_tokens_tells_time_with_every_entry(tmp_path: Path) -> None:
    history = [timed(10, 50), timed(20, 90), {"eval_loss": 2.0, "eval_runtime": 3.0, "step": 20}, timed(30, 140)]
    log = read_log(write(tmp_path / "trainer_state.json", state(32, history)))
    assert parts(log) == [(0, 10, 50), (10, 20, 40), (20, 30, 50)]
    assert [s.tokens for s in log.stretches] == [1000, 1000, 1000]
    assert log.done_steps == 32


def test_a_resumed_runs_entries_are_told_apart_by_their_process(tmp_path: Path) -> None:
    """The second process went on from step 15, and its first entry has the greater runtime of the two."""
    history = [timed(10, 50), timed(20, 70, before_tokens=1500), timed(30, 120, before_tokens=1500)]
    log = read_log(write(tmp_path / "trainer_state.json", state(30, history)))
    assert parts(log) == [(0, 10, 50), (20, 30, 50)]
    assert log.notes[0].startswith("Steps 10 to 20 are left out: the run was resumed")


def test_the_end_of_a_resumed_run_is_refused_since_it_is_of_its_last_part_alone(tmp_path: Path) -> None:
    # 2.0 a step over 100 steps is 200; the last process saw 40 of them: 80 over 100 steps.
    history = [loss(50), loss(60), loss(100), end(100, 240, mean_loss=0.8)]
    with pytest.raises(DataError, match="it was resumed, and 240 s are of what came after alone"):
        read_log(write(tmp_path / "trainer_state.json", state(100, history)))


def test_the_end_of_a_resumed_run_gives_way_to_its_checkpoints(tmp_path: Path) -> None:
    for step, at in ((40, 0), (70, 150), (100, 300)):
        checkpoint(tmp_path, step, at)
    write(tmp_path / "trainer_state.json", state(100, [loss(50), loss(100), end(100, 240, mean_loss=0.8)]))
    assert parts(read_log(tmp_path)) == [(40, 70, 150), (70, 100, 150)]


def test_several_ends_are_one_stretch_each(tmp_path: Path) -> None:
    history = [loss(40), end(40, 200), loss(100), end(100, 330, mean_loss=1.2)]
    assert parts(read_log(write(tmp_path / "trainer_state.json", state(100, history)))) == [
        (0, 40, 200),
        (40, 100, 330),
    ]


def test_runs_put_together_in_one_log_are_refused(tmp_path: Path) -> None:
    history = [end(40, 200), end(30, 200)]
    with pytest.raises(DataError, match="go back from 40 to 30, as where runs of several stages were put together"):
        read_log(write(tmp_path / "trainer_state.json", state(30, history)))


@pytest.mark.parametrize(
    "row", ['{"tokens": 5, "seconds": 1e12}', '{"tokens": 5, "seconds": 1e-9}', '{"tokens": 1e12, "seconds": 1}']
)
def test_a_micro_step_that_nothing_can_take_is_refused(tmp_path: Path, row: str) -> None:
    (tmp_path / "log.jsonl").write_text(f"{row}\n" * 4)
    with pytest.raises(DataError, match=r"log\.jsonl:1: expected one micro-step of at most 1,000,000,000 tokens"):
        read_log(tmp_path / "log.jsonl")


def test_jsonl_has_one_micro_step_a_line(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    file.write_text("".join(json.dumps({"tokens": n, "seconds": n / 1000}) + "\n\n" for n in (100, 200, 300)))
    assert [(s.tokens, s.seconds) for s in read_log(file).micro_steps] == [(100, 0.1), (200, 0.2), (300, 0.3)]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", "is empty"),
        ('{"tokens": 5}\n', ":1: expected"),
        ('{"tokens": 5, "seconds": 1}\n{"tokens": 0, "seconds": 1}\n', ":2: expected"),
        ('{"tokens": 5, "seconds": "1"}\n', ":1: expected"),
        ('{"tokens": 5, "seconds": 1}\n', "3 micro-steps or more"),
        ("tokens 5", ":1: expected"),
        ('{"tokens": 1' + "0" * 400 + ', "seconds": 1}\n', ":1: expected"),
        ('{"tokens": 5, "seconds": NaN}\n', ":1: expected"),
        ("[" * 100_000, ":1: expected"),
        ('{"log_history": [{"loss": 1}]}', "train_runtime"),
        ('{"log_history": null}', "train_runtime"),
        ('{"log_history": [{"train_runtime": 0, "step": 1}]}', "above 0"),
    ],
)
def test_a_log_without_times_is_refused(text: str, wanted: str, tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text(text)
    with pytest.raises(DataError, match=wanted):
        read_log(file)


def test_a_missing_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="none: expected a Trainer's output folder"):
        read_log(tmp_path / "none")


def test_the_installed_trainer_writes_what_is_read_here(tmp_path: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    config = LlamaConfig(vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
    items = [{"input_ids": torch.arange(n), "labels": torch.arange(n)} for n in [8] * 16]

    def train(counted: str, *, epochs: int = 1, resume: bool = False) -> list[tuple[float, float]]:
        arguments = TrainingArguments(
            output_dir=str(tmp_path / counted),
            include_num_input_tokens_seen=counted,
            num_train_epochs=epochs,
            per_device_train_batch_size=2,
            save_steps=2,
            logging_steps=2,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = Trainer(model=LlamaForCausalLM(config), args=arguments, train_dataset=items)
        trainer.train(resume_from_checkpoint=resume)
        trainer.save_state()
        return [(first, last) for first, last, _ in parts(read_log(tmp_path / counted))]

    assert train("all") == [(0, 2), (2, 4), (4, 6), (6, 8)]
    assert train("no") == [(0, 8)]
    assert train("no", epochs=2, resume=True) == [(n, n + 2) for n in range(2, 16, 2)]
