"""From a model and a step to its program: which lengths to trace, and where the range of lengths is split."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

import numpy as np

from raysweep.memory.program import (
    FEATURES,
    MICRO_SEGMENTS,
    LabelTable,
    Piece,
    Program,
    Segment,
    SegmentName,
)
from raysweep.setting import Loss, StepSetting
from raysweep.trace.compose import MismatchError, compose_segment, fit
from raysweep.trace.ownership import check_repeats
from raysweep.trace.tracing import Recording, check_can_trace, trace

if TYPE_CHECKING:
    from transformers import PretrainedConfig

SHORTEST_TOKENS = 2
"""A next token needs a token before it."""

GRAIN_TOKENS = 128
"""Traced lengths are multiples of it where they can be: fused attention rounds a buffer up to 128 tokens."""

_VERSIONS = ("torch", "transformers", "peft")
_CHUNKS_TRACED = 4
"""Two middle chunks, so that what repeats from one to the next can be told from what does not."""


def installed_versions() -> dict[str, str]:
    """Return the versions of the packages that decide what a step allocates."""
    found = {}
    for name in _VERSIONS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def model_program(
    model: str,
    config: PretrainedConfig,
    setting: StepSetting,
    lengths: Sequence[int],
    *,
    executor: Executor | None = None,
) -> Program:
    """Trace a step and return its program, valid from the shortest to the longest of ``lengths``.

    Args:
        model: the name to keep in the program.
        config: of a causal language model.
        setting: the step.
        lengths: tokens of one item; a single length takes a single trace.
        executor: where to run the traces, side by side if it has several processes; by default here, one after another.

    Raises:
        NotForecastError: the setting names what the trace does not model, or the model keeps state between steps.
    """
    check_can_trace(setting, config)
    shortest = max(SHORTEST_TOKENS, min(lengths))
    longest = max(SHORTEST_TOKENS, *lengths)
    tracer = _Tracer(model, config, setting, executor)
    pieces = tracer.pieces(shortest, longest)
    return tracer.program(pieces)


class _Tracer:
    """Traces of one step, each length once."""

    def __init__(self, model: str, config: PretrainedConfig, setting: StepSetting, executor: Executor | None) -> None:
        self.model, self.config, self.setting, self.executor = model, config, setting, executor
        self.table = LabelTable()
        self.recordings: dict[int, Recording] = {}

    def pieces(self, shortest: int, longest: int) -> list[Piece]:
        """Cover a range of lengths with as few pieces as its loss chunks and the model's own branches allow."""
        if self.setting.loss is not Loss.CHUNKED or shortest == longest:
            return self._split(shortest, longest, self._spread, cut=False)
        one_chunk = self.setting.loss_chunk_tokens // self.setting.micro_batch + 1
        pieces: list[Piece] = []
        if shortest <= one_chunk:
            pieces += self._split(shortest, min(one_chunk, longest), self._spread, cut=False)
        if longest > one_chunk:
            pieces += self._split(max(shortest, one_chunk + 1), longest, self._chunk_counts, cut=True)
        return pieces

    def _split(
        self, first: int, last: int, choose: Callable[[int, int], list[int]], *, cut: bool, depth: int = 0
    ) -> list[Piece]:
        """Make one piece of a range, or halve it where its traces do not correspond."""
        lengths = choose(first, last)
        self._trace(lengths)
        try:
            return [self._piece(first, last, lengths, cut=cut)]
        except MismatchError:
            # Where a loss is cut at its chunks, the lengths traced do not hang on the range.
            if cut or first == last or depth >= _DEEPEST_SPLIT:
                raise
            middle = (first + last) // 2
            return [
                *self._split(first, middle, choose, cut=cut, depth=depth + 1),
                *self._split(middle + 1, last, choose, cut=cut, depth=depth + 1),
            ]

    def _spread(self, first: int, last: int) -> list[int]:
        """Both ends and a length between, which checks that sizes are affine (or fixes the square term)."""
        low, high = _grain_up(first, last), _grain_down(last, first)
        middle = _grain_up((low + high) // 2, high)
        return sorted({first if last - first < GRAIN_TOKENS else low, middle, high} | ({last} if low > high else set()))

    def _chunk_counts(self, first: int, last: int) -> list[int]:
        """Lengths of two, three and four chunks (the last two of them four), wherever the range itself lies."""
        chunk, items = self.setting.loss_chunk_tokens, self.setting.micro_batch

        def length(chunks: int, share: float) -> int:
            tokens = chunk * (chunks - 1) + max(1, int(chunk * share))
            return _grain_down(tokens // items + 1, (chunk * (chunks - 1)) // items + 2)

        return [length(2, 0.5), length(3, 0.6), length(_CHUNKS_TRACED, 0.3), length(_CHUNKS_TRACED, 0.9)]

    def _trace(self, lengths: Sequence[int]) -> None:
        missing = [n for n in lengths if n not in self.recordings]
        later = self.setting.accumulation > 1
        if self.executor is None:
            found = [trace(self.config, self.setting, n, later_micro=later) for n in missing]
        else:
            futures = [self.executor.submit(trace, self.config, self.setting, n, later_micro=later) for n in missing]
            found = [f.result() for f in futures]
        for recording in found:
            check_repeats(recording)
        self.recordings |= dict(zip(missing, found, strict=True))

    def _piece(self, first: int, last: int, lengths: Sequence[int], *, cut: bool) -> Piece:
        recordings = [self.recordings[n] for n in lengths]
        features = np.array([self._features(n) for n in lengths])
        segments = {
            name: compose_segment(name, recordings, features, self.table, cut=cut)
            for name in MICRO_SEGMENTS
            if name in recordings[0].segments
        }
        blocks = [r.segments[SegmentName.MICRO].host_blocks for r in recordings]
        if any(len(b) != len(blocks[0]) or len(set(b)) > 1 for b in blocks):
            raise MismatchError("checkpoints in host memory differ in number or size")
        size, _ = fit(features, np.array([[b[0] if b else 0.0] for b in blocks]))
        return Piece(
            first_tokens=first,
            last_tokens=last,
            segments=segments,
            host_block=size[0],
            host_blocks=len(blocks[0]),
        )

    def _features(self, length: int) -> list[float]:
        tokens = self.setting.micro_batch * (length - 1)
        partial = tokens - (max(1, -(-tokens // self.setting.loss_chunk_tokens)) - 1) * self.setting.loss_chunk_tokens
        return [1.0, length, partial if self.setting.loss is Loss.CHUNKED else 0, float(length) ** 2]

    def program(self, pieces: Sequence[Piece]) -> Program:
        """Put the pieces together with loading and the optimizer, which are the same at every length."""
        text = self.config.get_text_config()
        recordings = [next(iter(self.recordings.values()))]
        features = np.array([[1.0, 0, 0, 0]])

        def fixed(name: SegmentName) -> Segment:
            return compose_segment(name, recordings, features, self.table, cut=False)

        setup, first_step, step = (fixed(n) for n in (SegmentName.SETUP, SegmentName.FIRST_STEP, SegmentName.STEP))
        return Program(
            model=self.model,
            step=self.setting,
            max_tokens=getattr(text, "max_position_embeddings", None),
            labels=self.table.labels(),
            setup=setup,
            first_step=first_step,
            step_segment=step,
            pieces=tuple(pieces),
            versions=installed_versions(),
            kernels=recordings[0].kernels,
        )


_DEEPEST_SPLIT = 12


def _grain_up(n: int, limit: int) -> int:
    """Return the next multiple of the grain, or n itself where that passes the limit."""
    up = -(-n // GRAIN_TOKENS) * GRAIN_TOKENS
    return up if up <= limit else n


def _grain_down(n: int, limit: int) -> int:
    down = n // GRAIN_TOKENS * GRAIN_TOKENS
    return down if down >= limit else n


__all__ = ["FEATURES", "GRAIN_TOKENS", "SHORTEST_TOKENS", "installed_versions", "model_program"]
