"""Every refusal says where, what came, what was expected and the nearest valid name."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raysweep.errors import SpaceError
from raysweep.space import load_space, parse_space

MALFORMED = {
    "a misspelt key": ("model: m\nlenghts: [1]", "s:2: lenghts", "Did you mean 'lengths'"),
    "a misspelt step key": ("model: m\nstep:\n  checkpoint: gpu", "s:3: step.checkpoint", "'checkpointing'"),
    "a misspelt adapter key": ("model: m\nstep:\n  adapter: {rnak: 4}", "s:3: step.adapter.rnak", "'rank'"),
    "a misspelt value": ("model: m\nstep: {loss: chunkd}", "s:2: step.loss", "Did you mean 'chunked'"),
    "weights by their bits": ("model: m\nstep: {weights: 4bit}", "s:2: step.weights", "Did you mean 'nf4'"),
    "weights by 8 bits": ("model: m\nstep: {weights: fp8}", "s:2: step.weights", "Did you mean 'int8'"),
    "weights from elsewhere": ("model: m\nweights_from: pretraind", "s:2: weights_from", "Did you mean 'pretrained'"),
    "no model": ("lengths: [1]", "s:1", "'model', which is missing"),
    "a length of 0": ("model: m\nlengths: [0]", "s:2: lengths[0]", "0 came"),
    "a negative length": ("model: m\nlengths: [-4]", "lengths[0]", "-4 came"),
    "a fractional length": ("model: m\nlengths: [1.5]", "lengths[0]", "1.5 came"),
    "a boolean length": ("model: m\nlengths: [true]", "lengths[0]", "true came"),
    "no length": ("model: m\nlengths: []", "lengths", "an empty list came"),
    "a range that ends before it begins": ("model: m\nlengths: {from: 9, to: 3, by: 1}", "lengths.to", "9 or more"),
    "a range without a stride": ("model: m\nlengths: {from: 1, to: 3}", "lengths", "'by', which is missing"),
    "a range without end": ("model: m\nlengths: {from: 1, to: 99999999, by: 1}", "lengths.by", "100000 lengths"),
    "a margin of 120 %": ("model: m\nmargin: 120%", "s:2: margin", "'120%' came"),
    "a margin of 100 %": ("model: m\nmargin: 100%", "margin", "under 100%"),
    "a margin without its sign": ("model: m\nmargin: 8", "margin", "Write 8%"),
    "a negative margin": ("model: m\nmargin: -1%", "margin", "'-1%' came"),
    "a rank beyond 64 bits": ("model: m\nstep: {adapter: {rank: 99999999999999999999}}", "adapter.rank", "from 1 to"),
    "a batch beyond 64 bits": ("model: m\nstep: {micro_batch: 99999999999999999999}", "micro_batch", "from 1 to"),
    "endless accumulation": ("model: m\nstep: {accumulation: 99999999999999999999}", "accumulation", "from 1 to"),
    "countless copies": ("model: m\nstep: {adapter: {resident_copies: 99999999999}}", "resident_copies", "0 to 1000"),
    "a split beyond 64 bits": ("model: m\nallocator: {max_split_size_mb: 99999999999999}", "max_split", "from 21 to"),
    "memory beyond any card": ("model: m\nflavours: [{name: a, memory_bytes: 9999999999999999}]", "memory_bytes", "to"),
    "rank 0": ("model: m\nstep: {adapter: {rank: 0}}", "s:2: step.adapter.rank", "Write 'mode: generate'"),
    "rank 0 among others": ("model: m\nstep: {adapter: {rank: {search: [8, 0]}}}", "rank.search[1]", "1 to 1000000"),
    "a rank of false": ("model: m\nstep: {adapter: {rank: false}}", "step.adapter.rank", "false came"),
    "a negative rank": ("model: m\nstep: {adapter: {rank: -1}}", "step.adapter.rank", "1 to 1000000"),
    "a negative rank to generate with": (
        "model: m\nmode: generate\nprompt_tokens: 1\nnew_tokens: 1\nstep: {adapter: {rank: -1}}",
        "step.adapter.rank",
        "0 to 1000000",
    ),
    "a dropout of 1": ("model: m\nstep: {adapter: {dropout: 1}}", "step.adapter.dropout", "below 1"),
    "a word for a number": ("model: m\nstep: {micro_batch: two}", "step.micro_batch", "'two' came"),
    "a boolean for a number": ("model: m\nstep: {micro_batch: true}", "step.micro_batch", "true came"),
    "a word for a boolean": ("model: m\nstep: {autocast: yes}", "step.autocast", "true or false"),
    "an empty search": ("model: m\nstep: {loss: {search: []}}", "step.loss.search", "an empty list came"),
    "a search of one value without a list": ("model: m\nstep: {loss: {search: full}}", "step.loss.search", "'full'"),
    "a value searched twice": ("model: m\nstep: {loss: {search: [full, full]}}", "loss.search[1]", "once"),
    "a list for one value": ("model: m\nstep: {loss: [full, chunked]}", "step.loss", "{search: [a, b]}"),
    "all-linear among names": ("model: m\nstep: {adapter: {targets: [all-linear, q]}}", "adapter.targets", "alone"),
    "a norm of 0": ("model: m\nstep: {max_grad_norm: 0}", "step.max_grad_norm", "above 0"),
    "an infinite number": ("model: m\nstep: {adapter: {alpha: .inf}}", "step.adapter.alpha", "'.inf' came"),
    "a number beyond all sums": (
        "model: m\nrun: {price_per_gpu_hour: 1.0e+300}",
        "run.price_per_gpu_hour",
        "0 or more, at most 1,000,000,000,000",
    ),
    "epochs beyond all sums": ("model: m\ndata: {items: a, epochs: 1.0e+300}", "data.epochs", "at most 1,000,"),
    "no flavour": ("model: m\nflavours: []", "flavours", "an empty list came"),
    "a flavour twice": ("model: m\nflavours: [hf/h200, hf/h200]", "flavours[1]", "once"),
    "a negative price": (
        "model: m\nflavours: [{name: a, memory_bytes: 9000000, price_usd_per_hour: -1}]",
        "flavours[0].price_usd_per_hour",
        "0 or more",
    ),
    "memory in GB": ("model: m\nflavours: [{name: a, memory_bytes: 40}]", "flavours[0].memory_bytes", "of bytes"),
    "more outside than there is": (
        "model: m\nflavours: [{name: a, memory_bytes: 9000000, outside_allocator_bytes: 9000000}]",
        "flavours[0].outside_allocator_bytes",
        "8999999",
    ),
    "negative money": ("model: m\nbudget: {usd: -5}", "budget.usd", "above 0"),
    "epochs of 0": ("model: m\ndata: {items: a, epochs: 0}", "data.epochs", "above 0"),
    "data without items": ("model: m\ndata: {epochs: 1}", "data", "'items', which is missing"),
    "a stage of both": (
        "model: m\ndata: {stages: [{name: a, items: a, epochs: 1, loss_share: 4%}]}",
        "data.stages[0]",
        "either epochs or loss_share",
    ),
    "shares alone": ("model: m\ndata: {stages: [{name: a, items: a, loss_share: 4%}]}", "data", "at least one stage"),
    "tokens to generate when training": ("model: m\nnew_tokens: 4", "new_tokens", "mode: generate"),
    "generation without tokens": ("model: m\nmode: generate", "s:1", "'prompt_tokens', which is missing"),
    "a threshold of 2": ("model: m\nallocator: {garbage_collection_threshold: 2}", "allocator.garbage", "between 0"),
    "a negative seed": ("model: m\nseed: -1", "seed", "-1 came"),
    "a download without a rate": ("model: m\nrun: {start_up: {model_bytes: 9}}", "run.start_up", "download_bytes"),
    "a pause without seconds": ("model: m\nrun: {evaluation: {}}", "run.evaluation", "'seconds', which is missing"),
    "a padding of 0": ("model: m\nrun: {pad_to_multiple: 0}", "run.pad_to_multiple", "from 1 to"),
    "an alias": ("model: &a m\nstep: *a", "s:1", "anchor '&a' is not accepted"),
    "a tag": ("model: !!python/object:os.system m", "s:1", "tag"),
    "a key twice": ("model: m\nmodel: n", "s:2", "stands twice"),
    "two documents": ("model: m\n---\nmodel: n", "s:2", "one document"),
    "an empty file": ("", "s", "empty"),
    "a list": ("- model", "s:1", "a mapping with the keys"),
    "a merge key": ("model: m\n<<: {seed: 1}", "s:2", "unknown key '<<'"),
    "broken YAML": ("model: [", "s:1", "expected YAML"),
    "a control character": ("model: \x01", "s", "expected YAML"),
    "endless nesting": ("model: m\nstep: " + "[" * 300 + "]" * 300, "s:2", "levels of nesting"),
    "too many settings": (
        "model: m\nstep: {micro_batch: {search: " + str(list(range(1, 200))) + "}, accumulation: {search: "
        + str(list(range(1, 200))) + "}}",
        "step",
        "39601",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", MALFORMED)
def test_refuses(case: str) -> None:
    text, place, expected = MALFORMED[case]
    with pytest.raises(SpaceError) as caught:
        parse_space(text, "s")
    message = str(caught.value)
    assert message.startswith("s")
    assert place in message
    assert expected in message


def test_an_unknown_bare_name_names_the_shipped_ones(tmp_path: Path) -> None:
    with pytest.raises(SpaceError, match=r"no such file, and no shipped space of that name"):
        load_space("quikstart")
    with pytest.raises(SpaceError, match="it is a folder"):
        load_space(tmp_path)


def test_a_name_too_long_for_a_path_is_no_space() -> None:
    with pytest.raises(SpaceError, match="no such file"):
        load_space("a" * 5000)


def test_a_model_or_data_path_that_cannot_be_is_read_as_written(tmp_path: Path) -> None:
    space = parse_space(f"model: {'m' * 5000}\ndata: {{items: ~nosuchuser/a.jsonl}}", "s", folder=tmp_path)
    assert space.model == "m" * 5000
    assert [stage.items for stage in space.stages()] == [tmp_path / "~nosuchuser" / "a.jsonl"]


def test_bytes_that_are_not_text_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_bytes(b"model: \xff\xfe")
    with pytest.raises(SpaceError, match="UTF-8"):
        load_space(file)


@settings(deadline=None)
@given(text=st.text(alphabet=st.sampled_from("model: step{}[],\n-'\"&*!|>%@#0123456789.\t"), max_size=60))
def test_no_text_makes_anything_but_a_space_or_a_space_error(text: str) -> None:
    try:
        parse_space(text, "s")
    except SpaceError as error:
        assert str(error)
