"""Training data as token counts: reading it, limiting its length, and what batching makes of it."""

from raysweep.data.batching import bucket_by_length, micro_batches, pad_to_multiple, sort_by_length
from raysweep.data.items import Counts, Items, Origin
from raysweep.data.limit import limit_items
from raysweep.data.read import Progress, read_items
from raysweep.data.tokenizer import LossOn, TokenCounter

__all__ = [
    "Counts",
    "Items",
    "LossOn",
    "Origin",
    "Progress",
    "TokenCounter",
    "bucket_by_length",
    "limit_items",
    "micro_batches",
    "pad_to_multiple",
    "read_items",
    "sort_by_length",
]
