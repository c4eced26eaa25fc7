"""Counting the tokens of texts and conversations."""

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raysweep.data import LossOn, Origin, read_items
from raysweep.errors import DataError

TALK = [
    {"role": "user", "content": "the quick brown fox"},
    {"role": "assistant", "content": "jumps over"},
    {"role": "user", "content": "the lazy dog?"},
    {"role": "assistant", "content": "a dog sleeps on the lazy dog"},
]


def written(folder: Path, *rows: object) -> Path:
    path = folder / "data.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@cache
def _backend(folder: str) -> Any:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
    tokenizer.no_truncation()
    return tokenizer


def n(folder: str, text: str) -> int:
    return len(_backend(folder).encode(text, add_special_tokens=False).ids)


def test_a_text_is_counted_whole_with_the_token_that_ends_it(tmp_path: Path, plain_tokenizer: str) -> None:
    texts = ["the quick brown fox " * 50, "dog", "ends by itself<|im_end|>"]
    items = read_items(written(tmp_path, *({"text": t} for t in texts)), tokenizer=plain_tokenizer)
    expected = [n(plain_tokenizer, t) + (not t.endswith("<|im_end|>")) for t in texts]
    assert items.tokens.tolist() == expected
    assert items.loss_tokens is None
    assert items.origin is Origin.COUNTED


def test_a_completion_bears_loss_and_its_prompt_does_not(tmp_path: Path, plain_tokenizer: str) -> None:
    path = written(tmp_path, {"prompt": "the quick", "completion": " brown fox"})
    items = read_items(path, tokenizer=plain_tokenizer)
    assert items.total_tokens == n(plain_tokenizer, "the quick brown fox<|im_end|>")
    assert items.total_loss_tokens == n(plain_tokenizer, " brown fox<|im_end|>")


def test_the_assistant_bears_loss_with_the_token_that_ends_its_turn(tmp_path: Path, chat_tokenizer: str) -> None:
    items = read_items(written(tmp_path, {"messages": TALK}), tokenizer=chat_tokenizer)
    whole = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in TALK)
    assert items.total_tokens == n(chat_tokenizer, whole)
    answers = sum(n(chat_tokenizer, m["content"] + "<|im_end|>") for m in TALK if m["role"] == "assistant")
    assert items.total_loss_tokens == answers


def test_a_template_that_rewrites_earlier_answers_is_counted_by_what_they_say(
    tmp_path: Path, forgetful_tokenizer: str
) -> None:
    items = read_items(written(tmp_path, {"messages": TALK}), tokenizer=forgetful_tokenizer)
    spoken = [n(forgetful_tokenizer, m["content"] + "<|im_end|>") for m in TALK if m["role"] == "assistant"]
    thought = n(forgetful_tokenizer, "<think>\n\n</think>\n\n" + TALK[-1]["content"] + "<|im_end|>")
    assert items.total_loss_tokens == spoken[0] + thought


def test_loss_on_all_counts_every_token(tmp_path: Path, chat_tokenizer: str) -> None:
    items = read_items(written(tmp_path, {"messages": TALK}), tokenizer=chat_tokenizer, loss_on=LossOn.ALL)
    assert items.total_loss_tokens == items.total_tokens


def test_a_conversational_prompt_and_completion_go_through_the_template(tmp_path: Path, chat_tokenizer: str) -> None:
    apart = written(tmp_path, {"prompt": TALK[:3], "completion": TALK[3:]})
    items = read_items(apart, tokenizer=chat_tokenizer)
    whole = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in TALK)
    assert items.total_tokens == n(chat_tokenizer, whole)
    assert items.total_loss_tokens == n(chat_tokenizer, TALK[-1]["content"] + "<|im_end|>")


def test_conversations_in_parquet_count_as_in_jsonl(tmp_path: Path, chat_tokenizer: str) -> None:
    pq.write_table(pa.table({"messages": [TALK, TALK[:2]]}), tmp_path / "data.parquet")
    table = read_items(tmp_path / "data.parquet", tokenizer=chat_tokenizer)
    lines = read_items(written(tmp_path, {"messages": TALK}, {"messages": TALK[:2]}), tokenizer=chat_tokenizer)
    assert table.tokens.tolist() == lines.tokens.tolist()
    assert table.loss_tokens is not None
    assert lines.loss_tokens is not None
    assert table.loss_tokens.tolist() == lines.loss_tokens.tolist()


def test_progress_ends_at_the_size_of_the_file(tmp_path: Path, plain_tokenizer: str) -> None:
    path = written(tmp_path, *({"text": f"dog {i}"} for i in range(1100)))
    seen: list[tuple[int, int]] = []
    read_items(path, tokenizer=plain_tokenizer, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (path.stat().st_size, path.stat().st_size)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


@pytest.mark.parametrize("name", ["data.parquet", "saved"])
def test_progress_moves_within_a_table(tmp_path: Path, plain_tokenizer: str, name: str) -> None:
    table = pa.table({"text": [f"dog {i}" for i in range(1500)]})
    path = tmp_path / name
    if name == "saved":
        path.mkdir()
        with pa.OSFile(str(path / "data.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table)
        (path / "state.json").write_text('{"_data_files": [{"filename": "data.arrow"}]}')
    else:
        pq.write_table(table, path)
    shares: list[float] = []
    read_items(path, tokenizer=plain_tokenizer, progress=lambda done, total: shares.append(done / total))
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0, 1)
    assert 0.3 < shares[1] < 0.4


def test_long_texts_come_in_small_batches(tmp_path: Path) -> None:
    counter = Counted()
    read_items(written(tmp_path, *[{"text": "x" * 3_000_000}] * 6), tokenizer=counter)
    assert counter.batches == 3


class Counted:
    """A counter of words that tells how often it was asked."""

    def __init__(self, fingerprint: str = "words") -> None:
        self.fingerprint = fingerprint
        self.batches = 0

    def count(self, batch: Any, kind: object, loss_on: object) -> list[tuple[int, int]]:
        self.batches += 1
        return [(len(row["text"].split()), 1) for row in batch.rows]


def test_the_same_content_is_counted_once(tmp_path: Path) -> None:
    counter = Counted()
    path = written(tmp_path, {"text": "a b c"})
    first = read_items(path, tokenizer=counter)
    moved = path.rename(tmp_path / "moved.jsonl")
    second = read_items(moved, tokenizer=counter)
    assert counter.batches == 1
    assert (second.tokens.tolist(), second.total_loss_tokens) == (first.tokens.tolist(), first.total_loss_tokens)


def test_other_content_another_tokenizer_or_no_cache_counts_anew(tmp_path: Path) -> None:
    counter, other = Counted(), Counted("other words")
    path = written(tmp_path, {"text": "a b c"})
    read_items(path, tokenizer=counter)
    read_items(path, tokenizer=other)
    assert other.batches == 1
    assert read_items(written(tmp_path, {"text": "a b"}), tokenizer=counter).tokens.tolist() == [2]
    read_items(path, tokenizer=counter, use_cache=False)
    assert counter.batches == 3


def test_a_damaged_cache_is_counted_anew(tmp_path: Path, own_cache: Path) -> None:
    counter = Counted()
    path = written(tmp_path, {"text": "a b c"})
    read_items(path, tokenizer=counter)
    for kept in own_cache.rglob("*.npz"):
        kept.write_bytes(kept.read_bytes()[:40])
    assert read_items(path, tokenizer=counter).tokens.tolist() == [3]
    assert counter.batches == 2


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": 5}, "line 2, text: expected text, found 5"),
        ({"txt": "x"}, "line 2, text: expected text, found None"),
    ],
)
def test_a_row_without_text_is_named(tmp_path: Path, plain_tokenizer: str, row: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_items(written(tmp_path, {"text": "fine"}, row), tokenizer=plain_tokenizer)


@pytest.mark.parametrize("messages", [[], "hello", [{"content": "no role"}], None])
def test_a_malformed_conversation_is_named(tmp_path: Path, chat_tokenizer: str, messages: object) -> None:
    path = written(tmp_path, {"messages": TALK}, {"messages": messages})
    with pytest.raises(DataError, match=r'line 2, messages: expected a list of \{"role"'):
        read_items(path, tokenizer=chat_tokenizer)


def test_conversations_need_a_chat_template(tmp_path: Path, plain_tokenizer: str) -> None:
    wanted = (
        r"expected a tokenizer with a chat template to count 'messages'.* chat_template\.jinja, or chat_template in"
    )
    with pytest.raises(DataError, match=wanted):
        read_items(written(tmp_path, {"messages": TALK}), tokenizer=plain_tokenizer)


def test_a_chat_template_may_stand_in_a_file_of_its_own(
    tmp_path: Path, plain_tokenizer: str, chat_tokenizer: str
) -> None:
    folder = shutil.copytree(plain_tokenizer, tmp_path / "own")
    config = json.loads(Path(chat_tokenizer, "tokenizer_config.json").read_text())
    (folder / "chat_template.jinja").write_text(config["chat_template"])
    path = written(tmp_path, {"messages": TALK})
    counts = [read_items(path, tokenizer=name, use_cache=False) for name in (str(folder), chat_tokenizer)]
    assert counts[0].tokens.tolist() == counts[1].tokens.tolist()


@pytest.mark.parametrize("name", ["./toknizer", "{folder}/toknizer", "toknizer"])
def test_a_misspelt_folder_names_the_nearest_one_that_holds_a_tokenizer(
    tmp_path: Path, plain_tokenizer: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(plain_tokenizer, tmp_path / "tokenizer")
    (tmp_path / "toknizers").mkdir()  # nearer, and holds none
    monkeypatch.chdir(tmp_path)
    found = "no such folder as" if "/" in name else "none for"
    with pytest.raises(DataError, match=rf"found {found} '.*toknizer' here\. Did you mean 'tokenizer'\?"):
        read_items(written(tmp_path, {"text": "dog"}), tokenizer=name.format(folder=tmp_path))


@pytest.mark.parametrize("name", ["qwen2.5-7b", "{folder}"])
def test_a_tokenizer_that_is_not_there_says_what_else_to_give(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"data\.jsonl: .* tokenizer .* or give token counts instead of texts"):
        read_items(written(tmp_path, {"text": "dog"}), tokenizer=name.format(folder=tmp_path / "empty"))


def test_a_config_file_stands_for_its_folder(tmp_path: Path, plain_tokenizer: str) -> None:
    path = written(tmp_path, {"text": "dog"})
    beside = read_items(path, tokenizer=f"{plain_tokenizer}/tokenizer_config.json", use_cache=False)
    assert beside.tokens.tolist() == read_items(path, tokenizer=plain_tokenizer, use_cache=False).tokens.tolist()
