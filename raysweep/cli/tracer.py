"""What a tracing process needs before its first trace; imported by the server that such processes are forked from."""

from __future__ import annotations

import logging
import os

# Libraries' warnings about what a trace does not use stay off the terminal.
for _name in ("bitsandbytes", "transformers", "peft"):
    logging.getLogger(_name).setLevel(logging.ERROR)
# A trace needs no GPU, and must not take a piece of one that a probe is to measure.
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import peft  # noqa: E402, F401  after the two settings above; seconds, once for all processes

import raysweep.trace.build  # noqa: E402, F401  likewise
