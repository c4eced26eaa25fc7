"""From a model and a step to its program: which lengths to trace, and where the range of lengths is split."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor, Executor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from raysweep.errors import NotForecastError, RaysweepError
from raysweep.memory.program import (
    FEATURES,
    GRAIN_TOKENS,
    MICRO_SEGMENTS,
    Category,
    LabelTable,
    Piece,
    Program,
    Segment,
    SegmentName,
    features,
)
from raysweep.setting import Attention, Loss, StepSetting
from raysweep.trace.compose import MismatchError, SizeMismatchError, compose_segment, fit
from raysweep.trace.cuda import windows
from raysweep.trace.ownership import Ownership, check_repeats, is_alike
from raysweep.trace.tracing import Recording, check_can_trace, trace, traced_model
from raysweep.versions import package_versions

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PretrainedConfig

SHORTEST_TOKENS = 2
"""A next token needs a token before it."""

_CHUNKS_TRACED = 4
"""Two middle chunks, so that what repeats from one to the next can be told from what does not."""


def model_program(
    model: str,
    config: PretrainedConfig,
    setting: StepSetting,
    lengths: Sequence[int],
    *,
    padded: bool = False,
    executor: Executor | None = None,
) -> Program:
    """Trace a step and return its program, valid from the shortest to the longest of ``lengths``.

    Args:
        model: the name to keep in the program.
        config: of a causal language model.
        setting: the step.
        lengths: tokens of one item; a single length takes a single trace.
        padded: trace the micro-steps in which items are padded, too. Where their trace does not succeed, a note of the
            program says so, and padded micro-steps are taken for others.
        executor: where to run the traces, side by side if it has several processes; by default here, one after another.

    Raises:
        NotForecastError: the setting names what the trace does not model, or the model keeps state between steps, or
            does other things at each length.
    """
    check_can_trace(setting, config)
    shortest = max(SHORTEST_TOKENS, min(lengths))
    longest = max(SHORTEST_TOKENS, *lengths)
    tracer = _Tracer(model, config, setting, executor)
    try:
        program = tracer.program(tracer.pieces(shortest, longest))
        return _with_padded(program, tracer, shortest, longest) if padded and setting.micro_batch > 1 else program
    except MismatchError as error:
        raise NotForecastError(
            f"The forecast expects a step that does the same at neighbouring lengths; this model's does not ({error}). "
            "Measure it instead: `raysweep sweep SPACE --out FOLDER --device cuda`."
        ) from error
    except (RaysweepError, BrokenExecutor):
        raise
    except Exception as error:
        # A model's own code may do anything to a tensor without storage, and raise anything.
        reason = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        raise NotForecastError(
            f"The forecast cannot run a step of this model of type {config.model_type!r} without a device ({reason}). "
            "Measure it instead: `raysweep sweep SPACE --out FOLDER --device cuda`."
        ) from error


def _with_padded(program: Program, plain: _Tracer, shortest: int, longest: int) -> Program:
    """Add the padded pieces, or a note where they cannot be had."""
    setting = plain.setting
    if setting.attention is Attention.FLASH:
        return _left_out(program, "flash-attn packs their tokens, so that memory hangs on each item's length", None)
    tracer = _Tracer(plain.name, plain.config, setting, plain.executor, padded=True)
    tracer.table = plain.table
    try:
        pieces = tracer.pieces(shortest, longest)
        _check_same_left([plain.first_recording, tracer.first_recording])
    except (NotForecastError, MismatchError) as error:
        return _left_out(program, str(error), longest)
    except (RaysweepError, BrokenExecutor):
        raise
    except Exception as error:
        # A model's own code may ask a mask for its values, which a trace has not.
        return _left_out(program, f"{type(error).__name__}: {error}".strip().splitlines()[0], longest)
    kernels = program.kernels | {f"padded {name}": kernel for name, kernel in tracer.kernels.items()}
    return replace(program, padded_pieces=tuple(pieces), labels=tracer.table.labels(), kernels=kernels)


def _left_out(program: Program, why: str, longest: int | None) -> Program:
    mask = ""
    if longest is not None:
        gigabytes = program.step.micro_batch * longest**2 / 1e9
        mask = f" Their boolean mask alone takes {gigabytes:.3f} GB at {longest:,} tokens."
    note = f"Micro-batches of items that differ in length are forecast as if none were padded ({why}).{mask}"
    return replace(program, notes=(*program.notes, note))


def _check_same_left(recordings: Sequence[Recording]) -> None:
    """Refuse micro-steps with a mask that leave other gradients than those without: the optimizer's step frees either.

    Raises:
        MismatchError: they do.
    """
    for name in (SegmentName.FIRST_MICRO, SegmentName.MICRO):
        left = []
        for recording in recordings:
            numbers = Ownership(recording).survivors[name]
            categories = [recording.labels[label].category for label in recording.label[numbers]]
            sizes = recording.nbytes[numbers].tolist()
            left.append([(c, n if c is Category.GRADIENTS else 0) for c, n in zip(categories, sizes, strict=True)])
        if any(other != left[0] for other in left[1:]):
            raise MismatchError("micro-steps with a mask leave other tensors behind")


class _Tracer:
    """Traces of one step, each length once for every set of masks that its windows ask for."""

    def __init__(
        self,
        model: str,
        config: PretrainedConfig,
        setting: StepSetting,
        executor: Executor | None,
        *,
        padded: bool = False,
    ) -> None:
        self.name, self.config, self.setting, self.executor = model, config, setting, executor
        self.padded = padded
        self.model: PeftModel | None = None
        """Built once, where the traces run here and a model may be used again."""
        self.all_whole = False
        self.table = LabelTable()
        self.windows = windows(setting, config)
        self.recordings: dict[tuple[int, int], Recording] = {}
        """By the number of windows that ask for a mask, and the length."""

    def pieces(self, shortest: int, longest: int) -> list[Piece]:
        """Cover a range of lengths with as few pieces as windows, loss chunks and the model's own branches allow."""
        reached = [w for w in self.windows if shortest < w <= longest]
        firsts, lasts = [shortest, *reached], [*(w - 1 for w in reached), longest]
        pieces = [piece for ends in zip(firsts, lasts, strict=True) for piece in self._between_windows(*ends)]
        one_each = {masks: recording for (masks, _), recording in self.recordings.items()}
        _check_same_left(list(one_each.values()))
        return pieces

    def _between_windows(self, shortest: int, longest: int) -> list[Piece]:
        """Cover a range in which no window begins to ask for a mask."""
        if self.setting.loss is not Loss.CHUNKED or shortest == longest:
            return self._split(shortest, longest)
        one_chunk = self.setting.loss_chunk_tokens // self.setting.micro_batch + 1
        pieces: list[Piece] = []
        if shortest <= one_chunk:
            pieces += self._split(shortest, min(one_chunk, longest))
        if longest > one_chunk:
            pieces.append(self._piece(max(shortest, one_chunk + 1), longest, self._chunk_counts(), cut=True))
        return pieces

    def _split(self, first: int, last: int, depth: int = 0) -> list[Piece]:
        """Make one piece of a range, or halve it where its traces do not correspond."""
        for between in (1, 2):
            # Two lengths between the ends tell a square term; fused attention has none.
            try:
                return [self._piece(first, last, _spread(first, last, between), cut=False)]
            except SizeMismatchError:
                continue
            except MismatchError:
                break
        if depth >= _DEEPEST_SPLIT:
            raise MismatchError(f"lengths {first} to {last} do not correspond")
        # One target token an item needs no copy where several do: such a length often stands alone.
        middle = first if first == SHORTEST_TOKENS else (first + last) // 2
        return [*self._split(first, middle, depth + 1), *self._split(middle + 1, last, depth + 1)]

    def _chunk_counts(self) -> list[int]:
        """Lengths of two, three and twice of at least four chunks: whatever the range, cuts tell the chunks apart."""
        chunk, items = self.setting.loss_chunk_tokens, self.setting.micro_batch
        # Three grains apart, so that what is rounded to a grain shows.
        most = max(_CHUNKS_TRACED, -(-3 * GRAIN_TOKENS * items // chunk) + 1)
        wanted = ((2, 0.5, 0), (3, 0.6, 1), (most, 0.3, 0), (most, 0.9, 1))
        lengths = []
        for chunks, share, rest in wanted:
            first, last = chunk * (chunks - 1) // items + 2, chunk * chunks // items + 1
            target = first + int(share * (last - first))
            lengths.append(min(range(first, last + 1), key=lambda n: (n % GRAIN_TOKENS != rest, abs(n - target))))
        return lengths

    def _trace(self, lengths: Sequence[int], mask_tokens: int) -> list[Recording]:
        """Return traces of the lengths, all with the masks of one: the first ever whole, others as far as it takes."""
        masks = bisect_right(self.windows, mask_tokens)
        missing = sorted((n for n in lengths if (masks, n) not in self.recordings), reverse=True)
        whole = [self.all_whole or (not self.recordings and place == 0) for place in range(len(missing))]
        if self.executor is None:
            if not self.all_whole:
                self.model = self.model or traced_model(self.config, self.setting, padded=self.padded)
            run = partial(
                trace, self.config, self.setting, padded=self.padded, mask_tokens=mask_tokens, model=self.model
            )
            found = [run(n, whole=w) for n, w in zip(missing, whole, strict=True)]
        else:
            run = partial(trace, self.config, self.setting, padded=self.padded, mask_tokens=mask_tokens)
            futures = [self.executor.submit(run, n, whole=w) for n, w in zip(missing, whole, strict=True)]
            found = [f.result() for f in futures]
        for recording in found:
            check_repeats(recording)
        if not self.recordings and found and not self.all_whole and not is_alike(found[0]):
            # A first micro-step like no other: every length must show its own, of a new model, and what comes after.
            self.all_whole, self.model = True, None
            return self._trace(lengths, mask_tokens)
        self.recordings |= {(masks, n): recording for n, recording in zip(missing, found, strict=True)}
        return [self.recordings[masks, n] for n in lengths]

    def _piece(self, first: int, last: int, lengths: Sequence[int], *, cut: bool) -> Piece:
        # Lengths outside the range may be traced for it: with its masks, not their own.
        recordings = self._trace(lengths, first)
        design = np.array([features(self.setting, n) for n in lengths])
        segments = {
            name: compose_segment(name, recordings, design, self.table, cut=cut)
            for name in MICRO_SEGMENTS
            if name in recordings[0].segments
        }
        blocks = [r.segments[SegmentName.MICRO].host_blocks for r in recordings]
        if any(len(b) != len(blocks[0]) or len(set(b)) > 1 for b in blocks):
            raise MismatchError("checkpoints in host memory differ in number or size")
        size, worst = fit(design, np.array([[b[0] if b else 0.0] for b in blocks]))
        if worst:
            raise SizeMismatchError("a checkpoint's size in host memory is no polynomial of the length")
        return Piece(
            first_tokens=first,
            last_tokens=last,
            segments=segments,
            host_block=size[0],
            host_blocks=len(blocks[0]),
        )

    @property
    def kernels(self) -> dict[str, str]:
        """Which kernels the traces assume."""
        return {name: kernel for r in self.recordings.values() for name, kernel in r.kernels.items()}

    @property
    def first_recording(self) -> Recording:
        """The one that is traced whole."""
        return next(iter(self.recordings.values()))

    def program(self, pieces: Sequence[Piece]) -> Program:
        """Put the pieces together with loading and the optimizer, which are the same at every length."""
        text = self.config.get_text_config()
        recordings = [self.first_recording]
        design = np.eye(1, FEATURES)

        def fixed(name: SegmentName) -> Segment:
            return compose_segment(name, recordings, design, self.table, cut=False)

        setup, first_step, step = (fixed(n) for n in (SegmentName.SETUP, SegmentName.FIRST_STEP, SegmentName.STEP))
        return Program(
            model=self.name,
            step=self.setting,
            max_tokens=getattr(text, "max_position_embeddings", None),
            labels=self.table.labels(),
            setup=setup,
            first_step=first_step,
            step_segment=step,
            pieces=tuple(pieces),
            versions=package_versions(),
            kernels=self.kernels,
        )


_DEEPEST_SPLIT = 12


def _spread(first: int, last: int, between: int) -> list[int]:
    """Return both ends of a range and lengths between them, at which rounding to a grain is least like a line."""
    lengths = {first, last}
    span = last - first
    # Windows that do not meet, so that each gives a length of its own.
    reach = min(GRAIN_TOKENS // 2, max(0, span // (2 * (between + 1)) - 1))
    for i in range(1, between + 1):
        center = first + i * span // (between + 1)
        near = range(max(first + 1, center - reach), min(last - 1, center + reach) + 1)
        if near:
            lengths.add(max(near, key=lambda n: abs(_rounding(n) * span - _line(n, first, last))))
    return sorted(lengths)


def _rounding(length: int) -> int:
    return -length % GRAIN_TOKENS


def _line(n: int, first: int, last: int) -> int:
    """The line through the rounding at both ends, times their distance."""
    return _rounding(first) * (last - n) + _rounding(last) * (n - first)
