"""Reading a data file into token counts."""

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raysweep.data import Items, Origin, read_items
from raysweep.errors import DataError

Write = Callable[[str, object], Path]


def save(path: Path, rows: object) -> Path:
    """Write lines (each JSON, unless already bytes), a Parquet file, or a saved dataset, as the path's ending says."""
    if isinstance(rows, list):
        lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
        path.write_bytes(b"".join(line + b"\n" for line in lines))
    elif path.suffix == ".parquet":
        pq.write_table(rows, path, row_group_size=3)
    else:
        _save_dataset(path, rows)
    return path


@pytest.fixture
def write(tmp_path: Path) -> Write:
    return lambda name, rows: save(tmp_path / name, rows)


def _save_dataset(folder: Path, table: pa.Table, *, files: int = 2) -> None:
    """Lay a table out as ``datasets.Dataset.save_to_disk`` does: Arrow streams, and a state that names them."""
    folder.mkdir(parents=True)
    names = [f"data-{i:05}-of-{files:05}.arrow" for i in range(files)]
    size = -(-table.num_rows // files)
    for i, name in enumerate(names):
        with pa.OSFile(str(folder / name), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table.slice(i * size, size))
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))


def counts(items: Items) -> tuple[list[int], list[int] | None]:
    return items.tokens.tolist(), None if items.loss_tokens is None else items.loss_tokens.tolist()


def test_jsonl_of_token_counts_keeps_the_order(write: Write) -> None:
    items = read_items(write("a.jsonl", [{"tokens": 5, "id": "x"}, {"tokens": 3}, {"tokens": 9}]))
    assert counts(items) == ([5, 3, 9], None)
    assert (items.name, items.origin) == ("a.jsonl", Origin.GIVEN)


def test_loss_bearing_tokens_are_counted_apart(write: Write) -> None:
    items = read_items(write("a.jsonl", [{"tokens": 5, "loss_tokens": 2}, {"tokens": 3, "loss_tokens": 0}]))
    assert counts(items) == ([5, 3], [2, 0])
    assert (items.total_tokens, items.total_loss_tokens) == (8, 2)


def test_where_nothing_tells_them_apart_all_tokens_bear_loss(write: Write) -> None:
    assert read_items(write("a.jsonl", [{"tokens": 5}])).total_loss_tokens == 5


def test_blank_lines_and_a_byte_order_mark_are_not_items(write: Write) -> None:
    path = write("a.jsonl", [b"\xef\xbb\xbf" + b'{"tokens": 5}', b"", b"  ", {"tokens": 6}])
    assert counts(read_items(path)) == ([5, 6], None)


@pytest.mark.parametrize("name", ["a.parquet", "saved"])
def test_tables_of_token_counts(write: Write, name: str) -> None:
    table = pa.table({"tokens": [5, 3, 9, 4], "loss_tokens": [1, 2, 3, 4], "text": ["a", "b", "c", "d"]})
    assert counts(read_items(write(name, table))) == ([5, 3, 9, 4], [1, 2, 3, 4])


@pytest.mark.parametrize("name", ["a.parquet", "saved", "a.jsonl"])
def test_token_ids_are_counted_and_ignored_labels_bear_no_loss(write: Write, name: str) -> None:
    columns = {"input_ids": [[1, 2, 3], [4], [5, 6]], "labels": [[-100, 2, 3], [-100], [5, 6]]}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    data = rows if name.endswith("jsonl") else pa.table(columns)
    assert counts(read_items(write(name, data))) == ([3, 1, 2], [2, 0, 2])


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=20))
def test_every_format_reads_the_same_counts(tokens: list[int]) -> None:
    table = pa.table({"tokens": tokens})
    data = {"a.parquet": table, "saved": table, "a.jsonl": [{"tokens": n} for n in tokens]}
    with TemporaryDirectory() as folder:
        read = [counts(read_items(save(Path(folder) / name, rows))) for name, rows in data.items()]
    assert read == [(tokens, None)] * 3


BAD_LINES: list[tuple[Any, str]] = [
    ({"tokens": 0}, "line 2, tokens: expected a whole number of 1 or more, found 0"),
    ({"tokens": -3}, "line 2, tokens: expected a whole number of 1 or more, found -3"),
    ({"tokens": 2.5}, "line 2, tokens: expected a whole number of 1 or more, found 2.5"),
    ({"tokens": True}, "line 2, tokens: expected a whole number of 1 or more, found True"),
    ({"tokens": "12"}, "line 2, tokens: expected a whole number of 1 or more, found '12'"),
    ({"tokens": None}, "line 2, tokens: expected a whole number of 1 or more, found None"),
    ({"token": 7}, "line 2: expected 'tokens' as in the rows before, found 'token'"),
    ({"tokens": 7, "loss_tokens": 8}, "line 2, loss_tokens: expected at most its 7 tokens, found 8"),
    ({"tokens": 7, "loss_tokens": -1}, "line 2, loss_tokens: expected a whole number of 0 or more, found -1"),
    ({"tokens": 7}, "line 2: expected loss_tokens in all items or in none"),
    (b'{"tokens": 7', "line 2: expected one JSON object a line, found '{\"tokens\": 7'"),
    (b"[7]", r"line 2: expected one JSON object a line, found '\[7\]'"),
    (b'{"tokens": 7, "text": "\xff"}', "line 2: expected UTF-8 text, found byte 0xff"),
]


@pytest.mark.parametrize(("line", "message"), BAD_LINES)
def test_a_bad_line_is_named(write: Write, line: object, message: str) -> None:
    path = write("a.jsonl", [{"tokens": 5, "loss_tokens": 1}, line, {"tokens": 5, "loss_tokens": 1}])
    with pytest.raises(DataError, match=message):
        read_items(path)


def test_columns_that_cannot_be_counted_are_named_with_the_nearest_that_can(write: Write) -> None:
    with pytest.raises(DataError, match=r"found 'token', 'id'\. Did you mean 'tokens'"):
        read_items(write("a.jsonl", [{"token": 5, "id": 1}]))
    with pytest.raises(DataError, match=r"found 'mesages'\. Did you mean 'messages'"):
        read_items(write("a.parquet", pa.table({"mesages": ["x"]})))


def test_half_a_pair_of_columns_is_told_the_other_half(write: Write) -> None:
    with pytest.raises(DataError, match=r"expected 'completion' beside 'prompt', found 'prompt'\.$"):
        read_items(write("a.jsonl", [{"prompt": "x"}]))
    with pytest.raises(DataError, match=r"found 'prompt', 'complition'\. Did you mean 'completion'"):
        read_items(write("b.jsonl", [{"prompt": "x", "complition": "y"}]))


def test_an_empty_file_is_refused(write: Write) -> None:
    for path in (write("a.jsonl", []), write("a.parquet", pa.table({"tokens": pa.array([], pa.int64())}))):
        with pytest.raises(DataError, match="expected at least one item, found none"):
            read_items(path)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([5, None]), "rows 1 to 2, tokens: expected a whole number in every row, found 1 missing"),
        (pa.array([5.0, 6.0]), "rows 1 to 2, tokens: expected a whole number in every row, found type double"),
        (pa.array([5, 0]), "row 2: expected 1 token or more, found 0"),
    ],
)
def test_a_bad_row_of_a_table_is_named(write: Write, column: pa.Array, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_items(write("a.parquet", pa.table({"tokens": column})))


def test_a_cut_parquet_file_is_refused(write: Write) -> None:
    path = write("a.parquet", pa.table({"tokens": [5, 6]}))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"a\.parquet: expected a Parquet file"):
        read_items(path)


def test_a_missing_file_names_its_nearest_neighbour(write: Write, tmp_path: Path) -> None:
    write("tokens.jsonl", [{"tokens": 1}])
    with pytest.raises(DataError, match=r"found nothing there\. Did you mean 'tokens\.jsonl'"):
        read_items(tmp_path / "token.jsonl")


def test_a_name_that_shares_its_ending_alone_is_not_near(write: Write, tmp_path: Path) -> None:
    write("chat.jsonl", [{"tokens": 1}])
    with pytest.raises(DataError, match=r"There: chat\.jsonl\."):
        read_items(tmp_path / "nosuch.jsonl")


def test_a_missing_file_says_where_names_are_looked_up_and_what_is_there(write: Write, tmp_path: Path) -> None:
    write("tokens.jsonl", [{"tokens": 1}])
    with pytest.raises(
        DataError, match=r"There: tokens\.jsonl\. A name in a search space is looked up from the folder"
    ):
        read_items(tmp_path / "held-out.parquet")
    with pytest.raises(DataError, match=r"after --data from the working directory, /"):
        read_items("nowhere.jsonl")


def test_a_misspelt_folder_is_named_itself(write: Write, tmp_path: Path) -> None:
    (tmp_path / "items").mkdir()
    with pytest.raises(DataError, match=r"there is no .*/itms\. Did you mean 'items'"):
        read_items(tmp_path / "itms" / "a.jsonl")


def test_an_unknown_ending_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("tokens\n5\n")
    with pytest.raises(DataError, match=r"expected a file ending in \.jsonl, .* found '.csv'"):
        read_items(tmp_path / "a.csv")


def test_a_folder_of_several_splits_asks_for_one(tmp_path: Path) -> None:
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(DataError, match=r"expected one split of a saved dataset, found 2; name one of .*train, .*test"):
        read_items(tmp_path)


def test_a_folder_that_is_no_saved_dataset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a state.json in it"):
        read_items(tmp_path)


def test_texts_without_a_tokenizer_say_what_to_give(write: Write) -> None:
    with pytest.raises(DataError, match="expected a tokenizer to count text with, found none"):
        read_items(write("a.jsonl", [{"text": "hello"}]))


def test_counts_cannot_be_changed_once_read(write: Write) -> None:
    items = read_items(write("a.jsonl", [{"tokens": 5}]))
    with pytest.raises(ValueError, match="read-only"):
        items.tokens[0] = 6


@pytest.mark.parametrize("tokens", [2_000_000_000, 9_000_000_000_000_000_000, 99_999_999_999_999_999_999])
def test_a_count_that_no_item_has_is_refused(write: Write, tokens: int) -> None:
    with pytest.raises(DataError, match=r"at most 1,000,000,000 tokens"):
        read_items(write("d.jsonl", [{"tokens": 5}, {"tokens": tokens}]))


@pytest.mark.parametrize("line", [b"[" * 100_000, b'{"a":' * 100_000])
def test_a_line_nested_without_end_is_refused_by_its_number(write: Write, line: bytes) -> None:
    with pytest.raises(DataError, match=r"line 2: expected one JSON object a line, found one nested too deep"):
        read_items(write("d.jsonl", [{"tokens": 5}, line]))


def test_a_name_too_long_for_a_path_is_no_file() -> None:
    with pytest.raises(DataError, match="found nothing there"):
        read_items("a" * 5000 + ".jsonl")
