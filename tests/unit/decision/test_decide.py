"""From artifacts to a decision, without torch or Ray."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from records_for_tests import measurement, out_of_memory, record

from cost.candidate import Reason
from cost.catalogue import Catalogue
from cost.choose import RunBudget
from raysweep.data.items import Items
from raysweep.decision.decide import decide
from raysweep.decision.findings import Findings, gather
from raysweep.decision.items import items_table, read_items_table
from raysweep.decision.model import Decision
from raysweep.errors import ArtifactError, InputError, SpaceError
from raysweep.memory.table import table_of
from raysweep.records import Mode, ProbeRecord, Source
from raysweep.report.decision import decision_json, decision_page
from raysweep.report.generation import generation_page
from raysweep.report.projection import projection_page
from raysweep.report.text import page_text
from raysweep.report.words import no_choice
from raysweep.setting import StepSetting
from raysweep.space import parse_space
from raysweep.store import Artifact, SweepStatus

SPACE = """
model: qwen2.5-7b
step: {accumulation: 2, checkpointing: {search: [gpu, cpu]}}
lengths: [4096, 8192]
flavours: [hf/l40sx1, hf/a100-large, hf/h200, hf/h200x2]
data: {items: tokens.jsonl, epochs: 2}
"""
GPU, CPU = parse_space(SPACE, "s").steps
CATALOGUE = Catalogue.load()
ITEMS = {"data": Items.of([1000, 2000, 4000, 8000] * 50, name="data")}


def _probe(flavour: str, step: StepSetting, length_tokens: int, seconds: float, **changes: Any) -> ProbeRecord:
    """A simulated probe of 20 GB whose optimizer step takes ``seconds``."""
    device = CATALOGUE.flavour(flavour)
    seen = measurement(
        peak_reserved_bytes=20 * 10**9,
        outside_allocator_bytes=None,
        step_seconds=(seconds,),
        tokens_per_second=2 * length_tokens / seconds,
    )
    values = {
        "probe_id": f"{flavour}-{step.checkpointing}-{length_tokens}",
        "flavour": flavour,
        "step": step,
        "length_tokens": length_tokens,
        "source": Source.SIMULATED,
        "measurement": seen,
        "device_name": device.device.torch_device_name if device.device else "",
        "device_memory_bytes": device.total_memory_bytes,
        **changes,
    }
    return record(**values)


def _records() -> list[ProbeRecord]:
    """The L40S dies at 8,192 tokens; steps of 4,096 tokens take 8 s on the A100, 4.8 s on the H200."""
    found: list[ProbeRecord] = []
    for step, slower in ((GPU, 1.0), (CPU, 1.1)):
        found.append(_probe("hf/l40sx1", step, 4096, 16 * slower))
        dead = _probe("hf/l40sx1", step, 8192, 1)
        names = ("probe_id", "flavour", "step", "length_tokens", "source", "device_name", "device_memory_bytes")
        found.append(out_of_memory(**{name: getattr(dead, name) for name in names}))
        for flavour, seconds in (("hf/a100-large", 8.0), ("hf/h200", 4.8)):
            found += [_probe(flavour, step, n, seconds * slower * n / 4096) for n in (4096, 8192)]
    return found


def _artifact(folder: Path, records: list[ProbeRecord], text: str = SPACE) -> Artifact:
    artifact = Artifact.create(folder, text)
    for one in records:
        artifact.append(one)
    if "data:" in text:
        artifact.write_items(items_table(ITEMS))
    return artifact


@pytest.fixture
def findings(tmp_path: Path) -> Findings:
    return gather([_artifact(tmp_path / "a", _records())])


def _decide(findings: Findings, **options: Any) -> Decision:
    return decide(findings, CATALOGUE, **options)


def test_the_cheapest_flavour_of_the_longest_length_is_chosen(findings: Findings) -> None:
    decision = _decide(findings)
    assert decision.chosen is not None
    assert decision.chosen.flavour.name == "hf/a100-large"
    assert decision.chosen.candidate.length_tokens == 8192
    assert decision.chosen.step == GPU


def test_every_other_flavour_is_told_why_it_lost(findings: Findings) -> None:
    reasons = {lost.candidate.flavour: lost.reason for lost in _decide(findings).choice.lost}
    assert reasons["hf/h200"] is Reason.DEARER
    assert reasons["hf/l40sx1"] in (Reason.SHORTER, Reason.DOES_NOT_FIT)
    assert reasons["hf/h200x2"] is Reason.MULTI_GPU


def test_every_cell_but_the_chosen_one_has_a_rejection(findings: Findings) -> None:
    decision = _decide(findings)
    assert len(decision.choice.rejections) == len(decision.cells) - 1
    assert all(rejection.detail for rejection in decision.choice.rejections)


def test_the_longest_length_is_that_below_which_everything_fits(findings: Findings) -> None:
    longest = {(fit.flavour, fit.step): fit.length_tokens for fit in _decide(findings).longest}
    assert longest["hf/l40sx1", GPU] == 4096
    assert longest["hf/h200", GPU] == 8192
    assert ("hf/h200x2", GPU) not in longest


def test_the_run_costs_its_seconds_times_its_price(findings: Findings) -> None:
    chosen = _decide(findings).chosen
    assert chosen is not None and chosen.projection is not None and chosen.projection.cost is not None
    tokens = 2 * sum(ITEMS["data"].tokens)
    # 8 s for two micro-steps of 4,096 tokens, and no length that the process had not seen before counted in.
    hours = tokens * 8 / 8192 / 3600 + chosen.projection.new_length_seconds / 3600
    assert chosen.projection.hours.expected == pytest.approx(hours, rel=1e-6)
    assert chosen.projection.cost.expected == pytest.approx(hours * 2.5, rel=1e-3)


def test_simulated_times_give_a_wide_range(findings: Findings) -> None:
    chosen = _decide(findings).chosen
    assert chosen is not None and chosen.projection is not None
    assert chosen.projection.hours.high > 1.5 * chosen.projection.hours.expected
    assert chosen.candidate.time_evidence == "simulated"


def test_measured_probes_replace_simulated_ones(tmp_path: Path) -> None:
    slow = [_probe("hf/a100-large", GPU, n, 40.0 * n / 4096, source=Source.MEASURED) for n in (4096, 8192)]
    findings = gather([_artifact(tmp_path / "a", _records()), _artifact(tmp_path / "b", slow)])
    decision = _decide(findings)
    cell = next(c for c in decision.cells if c.flavour.name == "hf/a100-large" and c.step == GPU)
    assert cell.memory is not None and cell.memory.source is Source.MEASURED
    assert cell.candidate.time_evidence == "measured"
    assert decision.chosen is not None and decision.chosen.step == CPU


def test_a_larger_margin_rejects_what_a_smaller_one_takes(findings: Findings) -> None:
    assert _decide(findings, margin_share=0.0).chosen is not None
    nothing = _decide(findings, margin_share=0.95)
    assert nothing.chosen is None
    assert {r.reason for r in nothing.choice.rejections} <= {Reason.TIGHT, Reason.DOES_NOT_FIT, Reason.MULTI_GPU}


@settings(deadline=None, max_examples=15)
@given(margins=st.tuples(st.floats(0, 0.9), st.floats(0, 0.9)))
def test_longest_lengths_never_grow_with_the_margin(tmp_path_factory: Any, margins: tuple[float, float]) -> None:
    findings = gather([_artifact(tmp_path_factory.mktemp("m") / "a", _records())])
    small, large = (_decide(findings, margin_share=m).longest for m in sorted(margins))
    for a, b in zip(small, large, strict=True):
        assert (b.length_tokens or 0) <= (a.length_tokens or 0)


def test_a_probe_that_freed_its_cache_is_tight_by_its_retries_and_not_by_what_that_left(tmp_path: Path) -> None:
    retried = [
        replace(r, measurement=measurement(allocation_retries=3))
        if (r.flavour, r.length_tokens) == ("hf/a100-large", 8192)
        else r
        for r in _records()
    ]
    decision = _decide(gather([_artifact(tmp_path / "a", retried)]))
    assert "tight, 3 retries" in page_text(decision_page(decision))
    assert "tight +" not in page_text(decision_page(decision))
    rejected = decision_json(decision)["rejected"]
    tight = [row["headroom_bytes"] for row in rejected if row["verdict"] == "tight"]
    assert tight and min(tight) > 0


def test_a_shorter_length_may_be_asked_for(findings: Findings) -> None:
    decision = _decide(findings, at_least_tokens=4096)
    assert decision.choice.at_least_tokens == 4096
    assert decision.chosen is not None


def test_a_budget_of_the_run_is_kept_by_the_upper_end(findings: Findings) -> None:
    assert _decide(findings, budget=RunBudget(cost=1e-6)).chosen is None


def test_twice_the_data_take_twice_the_steps(findings: Findings) -> None:
    once, twice = (_decide(findings, scale=s).chosen for s in ({}, {"data": 2.0}))
    assert once is not None and twice is not None
    assert once.projection is not None and twice.projection is not None
    assert twice.projection.tokens == pytest.approx(2 * once.projection.tokens)


def test_growing_an_unknown_stage_names_the_known_ones(findings: Findings) -> None:
    with pytest.raises(InputError, match=r"stage of the run \(data\).*Did you mean 'data'"):
        _decide(findings, scale={"dat": 2.0})


def test_other_data_may_be_given(findings: Findings) -> None:
    decision = _decide(findings, items={"mine": Items.of([500] * 10, name="mine")})
    assert decision.chosen is not None and decision.chosen.projection is not None
    assert decision.chosen.projection.tokens == 2 * 5000


def test_without_data_a_million_tokens_stand_for_the_run(tmp_path: Path) -> None:
    findings = gather([_artifact(tmp_path / "a", _records(), SPACE.replace("data:", "#"))])
    decision = _decide(findings)
    assert decision.run.is_sample
    assert decision.chosen is not None and decision.chosen.projection is not None
    assert decision.chosen.projection.tokens == pytest.approx(1e6, rel=0.01)


def test_trade_offs_name_other_margins_lengths_and_steps(findings: Findings) -> None:
    labels = [trade.label for trade in _decide(findings).trade_offs]
    assert labels == ["a margin of 4%", "a margin of 16%", "items of up to 4,096 tokens", "only checkpointing cpu"]


def test_a_limit_that_another_choice_names_is_the_one_that_its_row_is_of(findings: Findings) -> None:
    """Dropped to 4,096 tokens the run costs other than the chosen 8,192, which fit 4,096 too."""
    (row,) = [trade for trade in _decide(findings).trade_offs if trade.label == "items of up to 4,096 tokens"]
    assert row.chosen is not None and row.chosen.length_tokens == 4096
    assert row.cost_change


def test_a_limit_asked_for_that_is_chosen_is_no_other_choice(findings: Findings) -> None:
    decision = _decide(findings, at_least_tokens=4096)
    assert decision.chosen is not None
    chosen = f"items of up to {decision.chosen.candidate.length_tokens:,} tokens"
    assert chosen not in [trade.label for trade in decision.trade_offs]


def test_a_length_that_nobody_probed_is_left_out_by_name_and_costs_the_others_nothing(findings: Findings) -> None:
    decision = _decide(findings, lengths=(512, 8192))
    assert decision.chosen is not None and decision.chosen.candidate.length_tokens == 8192
    assert decision.notes == (
        "Left out: 512 tokens. Neither a probe nor the forecast says whether they fit; the sweep's lengths are 4,096, "
        "8,192. To know, probe them too; else leave them out with --lengths.",
    )
    longest = {(one.flavour, one.step): one.length_tokens for one in decision.longest}
    assert longest["hf/h200", GPU] == 8192


def test_where_no_length_is_known_the_headline_does_not_say_that_nothing_fits(findings: Findings) -> None:
    decision = _decide(findings, lengths=(9999,))
    assert no_choice(decision) == "Nothing is chosen: whether anything fits is not known."
    assert decision.notes[0].startswith("Left out: 9,999 tokens.")


def test_what_fits_on_several_gpus_alone_is_not_said_to_lack_a_time(tmp_path: Path) -> None:
    text = SPACE.replace("[hf/l40sx1, hf/a100-large, hf/h200, hf/h200x2]", "[hf/h200x2]")
    decision = _decide(gather([_artifact(tmp_path / "a", [_probe("hf/h200x2", GPU, 4096, 1.0)], text)]))
    assert no_choice(decision).startswith("Nothing is chosen of what fits: needs a multi-GPU step.")


def test_artifacts_of_two_models_do_not_merge(tmp_path: Path) -> None:
    one = _artifact(tmp_path / "a", _records())
    other = Artifact.create(tmp_path / "b", SPACE.replace("qwen2.5-7b", "qwen3-8b"))
    with pytest.raises(ArtifactError, match="same model"):
        gather([one, other])


def test_artifacts_of_several_machines_merge(tmp_path: Path) -> None:
    by_flavour: dict[str, list[ProbeRecord]] = {}
    for one in _records():
        by_flavour.setdefault(one.flavour, []).append(one)
    parts = [_artifact(tmp_path / str(i), records) for i, records in enumerate(by_flavour.values())]
    whole = _decide(gather([_artifact(tmp_path / "all", _records())]))
    merged = _decide(gather(parts))
    assert merged.chosen is not None and whole.chosen is not None
    assert merged.chosen.candidate == whole.chosen.candidate


def test_artifacts_of_two_currencies_do_not_merge(tmp_path: Path) -> None:
    one = _artifact(tmp_path / "a", _records())
    other = _artifact(tmp_path / "b", _records(), SPACE + "run: {currency: EUR}\n")
    with pytest.raises(ArtifactError, match=r"run.currency of .*USD; EUR came"):
        gather([one, other])


def test_merged_artifacts_say_in_what_their_runs_differ_and_whose_is_taken(tmp_path: Path) -> None:
    one = _artifact(tmp_path / "a", _records())
    text = SPACE.replace("accumulation: 2", "accumulation: 2, micro_batch: 2") + "margin: 5%\nrun: {packing: wrapped}\n"
    other = Artifact.create(tmp_path / "b", text)
    other.write_items(items_table({"chat": Items.of([100, 200], name="chat")}))
    data, run, steps, whose = gather([one, other]).notes
    assert data == f"The run's data are those of {one.uri} (data); {other.uri} has other data."
    assert run == f"{other.uri} differs from {one.uri} in margin, run.packing: what {one.uri} says is taken."
    assert steps.startswith(f"{other.uri} holds other steps than {one.uri} (micro_batch): ")
    assert whose == "Another artifact's run is taken where that artifact is named first."
    assert gather([other, one]).notes[0].startswith(f"The run's data are those of {other.uri} (chat)")


def test_merged_artifacts_of_one_space_and_one_run_have_nothing_to_say(tmp_path: Path) -> None:
    assert gather([_artifact(tmp_path / name, _records()) for name in ("a", "b")]).notes == ()


def test_a_sweep_that_did_not_finish_says_what_is_missing_and_how_to_go_on(tmp_path: Path) -> None:
    artifact = _artifact(tmp_path / "a", _records()[:5])
    artifact.write_programs(table_of([]))
    command = "raysweep sweep mine.yaml --out a --resume"
    artifact.write_sweep_status(SweepStatus(resume=command, probes_at_most=12))
    (note,) = gather([artifact]).notes
    assert "has not finished: up to 7 of its 12 probes are missing" in note
    assert note.endswith(f"Go on with: {command}")
    artifact.write_sweep_status(SweepStatus(resume=command, probes_at_most=12, probes_left=0))
    assert gather([artifact]).notes == ()


def test_a_sweep_without_its_programs_says_that_no_forecast_stands_in(tmp_path: Path) -> None:
    artifact = _artifact(tmp_path / "a", _records())
    artifact.write_sweep_status(
        SweepStatus(resume="raysweep sweep s --out a --resume", probes_at_most=12, probes_left=0)
    )
    (note,) = gather([artifact]).notes
    assert "programs.parquet is missing" in note
    assert note.endswith("Make it again with: raysweep sweep s --out a --resume")


def test_the_same_artifact_twice_counts_once(tmp_path: Path) -> None:
    artifact = _artifact(tmp_path / "a", _records())
    assert len(gather([artifact, artifact]).records) == len(_records())


def test_an_artifact_without_probes_says_so(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="expected probes"):
        _decide(gather([Artifact.create(tmp_path / "a", SPACE)]))


def test_items_read_back_by_stage_in_order() -> None:
    items = {
        "first": Items.of([5, 3, 9], loss_tokens=[1, 3, 0], name="first"),
        "second": Items.of([7], name="second"),
    }
    back = read_items_table(items_table(items), "items.parquet")
    assert list(back) == ["first", "second"]
    assert back["first"].tokens.tolist() == [5, 3, 9]
    assert back["first"].loss_tokens is not None and back["first"].loss_tokens.tolist() == [1, 3, 0]
    assert back["second"].loss_tokens is None


def test_deciding_imports_neither_torch_nor_ray(tmp_path: Path) -> None:
    _artifact(tmp_path / "a", _records())
    code = (
        "import sys\n"
        "from cost.catalogue import Catalogue\n"
        "from raysweep.decision.decide import decide\n"
        "from raysweep.decision.findings import gather\n"
        "from raysweep.report.whole import whole_page\n"
        "from raysweep.store import Artifact\n"
        f"findings = gather([Artifact.open({str(tmp_path / 'a')!r})])\n"
        "whole_page(findings, decide(findings, Catalogue.load()))\n"
        "print(sorted({'torch', 'ray', 'transformers', 'peft', 'optuna'} & set(sys.modules)))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_a_flavour_that_was_emulated_besides_the_spaces_own_is_decided_about(tmp_path: Path) -> None:
    extra = _probe("hf/a10g-small", GPU, 4096, 9.0, memory_cap_bytes=23_826_792_448, source=Source.MEASURED)
    decision = _decide(gather([_artifact(tmp_path / "a", [*_records(), extra])]))
    assert "hf/a10g-small" in {cell.flavour.name for cell in decision.cells}


DROPPING = SPACE.replace("lengths: [4096", "lengths: [512, 4096") + "run: {over_length: drop}\n"
"""At 512 tokens every item is longer than the limit, and dropped."""


def test_a_limit_that_drops_every_item_has_no_projection_and_says_why(tmp_path: Path) -> None:
    records = [_probe("hf/a100-large", GPU, n, 8.0 * n / 4096) for n in (512, 4096)]
    decision = _decide(gather([_artifact(tmp_path / "a", records, DROPPING)]), lengths=(512, 4096))
    assert decision.chosen is not None and decision.chosen.candidate.length_tokens == 4096
    short = [cell for cell in decision.cells if cell.candidate.length_tokens == 512]
    assert {cell.projection for cell in short} == {None}
    assert {cell.candidate.no_time for cell in short} == {"every item of data is longer and would be dropped"}
    assert decision.notes == (
        "With a limit of 512 tokens or less no run is projected: every item of data is longer and would be dropped "
        "(run.over_length: drop).",
    )


def test_the_reason_why_such_a_limit_was_not_chosen_is_that_it_leaves_no_item(tmp_path: Path) -> None:
    records = [_probe("hf/a100-large", GPU, n, 8.0) for n in (512, 4096)]
    decision = _decide(gather([_artifact(tmp_path / "a", records, DROPPING)]), lengths=(512,))
    assert decision.chosen is None
    details = {lost.detail for lost in decision.choice.rejections if lost.reason is Reason.NO_TIME}
    assert details == {"every item of data is longer and would be dropped"}


def test_limits_that_leave_some_items_of_every_stage_are_projected(tmp_path: Path) -> None:
    decision = _decide(gather([_artifact(tmp_path / "a", _records(), DROPPING)]), lengths=(1000, 4096))
    assert all(cell.projection for cell in decision.cells if cell.time_model)


SHARES = (
    SPACE.replace("lengths: [4096", "lengths: [512, 4096").split("data:")[0]
    + "data: {stages: [{name: a, items: a.jsonl, loss_share: 40%}, {name: b, items: b.jsonl, epochs: 3}]}\n"
)
"""Of b's items only the last tokens bear loss, so that a limit of 512 cuts all of it off."""


def _shares_decision(folder: Path, **options: Any) -> Decision:
    records = [_probe("hf/a100-large", GPU, n, 8.0 * n / 4096) for n in (512, 4096)]
    artifact = Artifact.create(folder, SHARES)
    for one in records:
        artifact.append(one)
    artifact.write_items(items_table({"a": Items.of([400] * 90, [380] * 90), "b": Items.of([4000] * 9, [1000] * 9)}))
    return _decide(gather([artifact]), **options)


def test_a_limit_that_cuts_off_a_stages_loss_costs_the_longer_limits_nothing(tmp_path: Path) -> None:
    decision = _shares_decision(tmp_path / "a", lengths=(512, 4096))
    assert decision.chosen is not None and decision.chosen.candidate.length_tokens == 4096
    assert decision.notes == (
        "With a limit of 512 tokens or less no run is projected: every item of b would lose all its loss-bearing "
        "tokens, which loss_share needs (run.over_length: truncate).",
    )


def test_where_every_limit_cuts_off_a_stages_loss_the_answer_says_so(tmp_path: Path) -> None:
    decision = _shares_decision(tmp_path / "a", lengths=(512,))
    assert decision.chosen is None
    assert no_choice(decision) == (
        "Where anything fits, no run is projected: every item of b would lose all its loss-bearing tokens, which "
        "loss_share needs."
    )


def test_a_flavour_too_slow_for_its_interruptions_leaves_the_faster_ones_to_choose_from(tmp_path: Path) -> None:
    # The H200's run takes 1.3 hours and the A100's 4.4: with two interruptions an hour it would hardly end.
    records = [_probe("hf/a100-large", GPU, 4096, 80.0), _probe("hf/h200", GPU, 4096, 24.0)]
    text = SPACE.replace("{search: [gpu, cpu]}", "gpu") + "run: {spot: {interruptions_per_hour: 2}}\n"
    decision = _decide(gather([_artifact(tmp_path / "a", records, text)]), lengths=(4096,))
    assert decision.chosen is not None and decision.chosen.flavour.name == "hf/h200"
    (a100,) = [cell.candidate for cell in decision.cells if cell.flavour.name == "hf/a100-large"]
    assert a100.no_time is not None and a100.no_time.startswith("At 2 interruptions an hour, ")


def test_a_stage_whose_data_are_not_among_those_given_is_asked_for_by_name(tmp_path: Path) -> None:
    with pytest.raises(SpaceError, match=r"a came alone\. Give those of 'b' with --data b=FILE"):
        _shares_decision(tmp_path / "a", items={"a": Items.of([400] * 9)})


def test_one_flavour_alone_can_be_decided_about(findings: Findings) -> None:
    decision = _decide(findings, flavour="hf/h200")
    assert {cell.flavour.name for cell in decision.cells} == {"hf/h200"}


def test_a_flavour_that_the_artifact_has_not_names_the_nearest(findings: Findings) -> None:
    with pytest.raises(InputError, match=r"--flavour: expected one of .*'hf/h20' came\. Did you mean 'hf/h200'\?"):
        _decide(findings, flavour="hf/h20")


def test_prices_in_dollars_under_another_currencys_label_are_pointed_out(tmp_path: Path) -> None:
    decision = _decide(gather([_artifact(tmp_path / "a", _records(), SPACE + "run: {currency: EUR}\n")]))
    assert any(note.startswith("Prices of the catalogue are in USD") for note in decision.notes)
    own = SPACE + "run: {currency: EUR, price_per_gpu_hour: 2}\n"
    assert _decide(gather([_artifact(tmp_path / "b", _records(), own)])).notes == ()


def test_interruptible_machines_at_on_demand_prices_are_pointed_out(tmp_path: Path) -> None:
    text = SPACE + "run: {spot: {interruptions_per_hour: 0.1}"
    (note,) = _decide(gather([_artifact(tmp_path / "a", _records(), text + "}\n")])).notes
    assert "counted at on-demand prices: give run.price_per_gpu_hour" in note
    own = text + ", price_per_gpu_hour: 2}\n"
    assert _decide(gather([_artifact(tmp_path / "b", _records(), own)])).notes == ()


def test_limits_that_padding_goes_beyond_are_pointed_out(tmp_path: Path) -> None:
    decision = _decide(gather([_artifact(tmp_path / "a", _records(), SPACE + "run: {pad_to_multiple: 3000}\n")]))
    assert decision.notes == (
        "run.pad_to_multiple pads items of up to 8,192 tokens to 9,000, and memory is judged at 8,192: name lengths "
        "that are multiples of 3,000.",
    )


GENERATE = """
model: qwen2.5-7b
mode: generate
prompt_tokens: 1024
new_tokens: 256
flavours: [hf/a100-large, hf/h200]
"""


def _generation(flavour: str, seconds: tuple[float, ...]) -> ProbeRecord:
    device = CATALOGUE.flavour(flavour)
    return record(
        probe_id=flavour,
        flavour=flavour,
        step=StepSetting(),
        mode=Mode.GENERATE,
        length_tokens=None,
        prompt_tokens=1024,
        new_tokens=256,
        measurement=measurement(step_seconds=seconds, tokens_per_second=256 / seconds[0]),
        device_memory_bytes=device.total_memory_bytes,
    )


def test_generations_are_priced_by_the_thousand(tmp_path: Path) -> None:
    records = [_generation("hf/a100-large", (9.0, 10.0, 11.0)), _generation("hf/h200", (7.0, 7.2, 7.4))]
    decision = _decide(gather([_artifact(tmp_path / "a", records, GENERATE)]))
    assert decision.chosen is not None
    assert decision.chosen.flavour.name == "hf/a100-large"
    cost = decision.chosen.candidate.cost
    assert cost is not None
    assert (cost.low, cost.expected, cost.high) == pytest.approx((2.5 * 2.5, 10 / 3.6 * 2.5, 11 / 3.6 * 2.5))
    assert decision.choice.lost[0].reason is Reason.DEARER


def test_generations_on_a_cluster_are_priced_by_its_own_price(tmp_path: Path) -> None:
    text = GENERATE + "run: {currency: EUR, price_per_gpu_hour: 3.6}\n"
    decision = _decide(gather([_artifact(tmp_path / "a", [_generation("hf/h200", (7.0,))], text)]))
    assert decision.chosen is not None and decision.chosen.candidate.cost is not None
    assert decision.chosen.candidate.cost.expected == pytest.approx(7.0)
    for page in (decision_page(decision), generation_page(decision, slurm_margin_share=0.2)):
        assert "3.60 EUR per GPU-hour, run.price_per_gpu_hour" in page_text(page)


def test_a_clusters_own_price_is_shown_where_its_flavour_has_one_too(tmp_path: Path) -> None:
    own = "{name: hf/h200, price_usd_per_hour: 0.8}"
    text = SPACE.replace("hf/h200,", f"{own},") + "run: {price_per_gpu_hour: 0.8, currency: EUR}\n"
    decision = _decide(gather([_artifact(tmp_path / "a", [_probe("hf/h200", GPU, 4096, 4.8)], text)]))
    for page in (decision_page(decision), projection_page(decision, slurm_margin_share=0.2)):
        assert "0.80 EUR per GPU-hour, run.price_per_gpu_hour" in page_text(page)
        assert "0.80 USD" not in page_text(page)


def test_the_page_of_a_choice_for_generations_speaks_of_generations(tmp_path: Path) -> None:
    decision = _decide(gather([_artifact(tmp_path / "a", [_generation("hf/h200", (7.0,))], GENERATE)]))
    text = page_text(decision_page(decision))
    assert "Where to run generations of qwen2.5-7b" in text and "fine-tune" not in text and "items of" not in text


T4_SPACE = "model: qwen2.5-7b\nstep: {accumulation: 2}\nlengths: [4096]\nflavours: [hf/t4-small, hf/h200]"


def _t4_notes(folder: Path, **changes: Any) -> tuple[str, ...]:
    step = parse_space(T4_SPACE, "s").steps[0]
    return _decide(gather([_artifact(folder, [_probe("hf/t4-small", step, 4096, 9.0, **changes)], T4_SPACE)])).notes


def test_a_card_without_native_bf16_is_warned_of_until_it_was_measured(tmp_path: Path) -> None:
    (note,) = _t4_notes(tmp_path / "simulated")
    assert note.startswith("hf/t4-small: T4 has no native bf16")
    assert _t4_notes(tmp_path / "measured", source=Source.MEASURED) == ()


def test_another_card_that_stood_for_it_did_not_measure_its_bf16(tmp_path: Path) -> None:
    emulated = {"source": Source.MEASURED, "memory_cap_bytes": 15_835_594_752, "device_name": "NVIDIA H200"}
    assert len(_t4_notes(tmp_path / "emulated", **emulated)) == 1
