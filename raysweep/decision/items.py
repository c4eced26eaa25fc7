"""The token counts of a run's data as the artifact keeps them: ``items.parquet``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from raysweep.data.items import Items
from raysweep.errors import ArtifactError

if TYPE_CHECKING:
    import pyarrow as pa


def items_table(items: Mapping[str, Items]) -> pa.Table:
    """Return one row an item, in the run's order: stage, tokens, and loss-bearing tokens where they are told apart."""
    import pyarrow as pa

    tables = [
        pa.table(
            {
                "stage": pa.array([stage] * len(part), pa.string()).dictionary_encode(),
                "tokens": pa.array(part.tokens, pa.int64()),
                "loss_tokens": pa.nulls(len(part), pa.int64())
                if part.loss_tokens is None
                else pa.array(part.loss_tokens, pa.int64()),
            }
        )
        for stage, part in items.items()
    ]
    return pa.concat_tables(tables).unify_dictionaries()


def read_items_table(table: pa.Table, name: str) -> dict[str, Items]:
    """Return the items of each stage.

    Raises:
        ArtifactError: the table has other columns, or no items.
    """
    if not {"stage", "tokens", "loss_tokens"} <= set(table.column_names) or not len(table):
        raise ArtifactError(f"{name}: expected the columns stage, tokens and loss_tokens; the file is another one.")
    import pyarrow as pa

    stages = table["stage"].cast(pa.string()).combine_chunks().dictionary_encode()
    codes = np.asarray(stages.indices)
    tokens, given = np.asarray(table["tokens"]), table["loss_tokens"]
    told = np.asarray(given.is_valid())
    losses = np.asarray(given.fill_null(0))
    found: dict[str, Items] = {}
    for code, stage in enumerate(stages.dictionary.to_pylist()):
        mine = codes == code
        loss = losses[mine] if told[mine].all() else None
        found[stage] = Items.of(tokens[mine], name=stage, loss_tokens=loss)
    return found
