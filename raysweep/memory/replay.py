"""Play a program's events through the allocator: one length in a steady state, or a run's own sequence of lengths."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from raysweep.memory.conditions import Conditions, possible_conditions
from raysweep.memory.outcome import Failure, Moment, Replay
from raysweep.memory.play import Play, Playable, Room
from raysweep.memory.program import FIXED, SEGMENTS, Program, SegmentName, flatten

STEADY_STEPS = 2
"""Optimizer steps after which the peaks of one length repeat: the second one begins with the optimizer's state."""
STEADY_MICRO_STEPS = 2
"""Of an optimizer step; later ones repeat the second one event for event."""
RETRIED_STEPS, RETRIED_MICRO_STEPS = 20, 4
"""The most of each that are played once the allocator has given its cache back: what is free then lies elsewhere than
before, and the same step may find no room in it. Most that die so die in the third step, or in the third micro-step of
the second. No more steps are played once one leaves what the one before it left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """Micro-steps in their order, and how often all of them are seen, an optimizer step at the end of each time."""

    lengths: Sequence[int]
    """Tokens of each micro-step's (padded) items."""
    padded: Sequence[bool] | None = None
    """Of each micro-step, whether an item of it is padded; None where none is."""
    times: int = 1

    def __post_init__(self) -> None:
        """Refuse columns that contradict each other.

        Raises:
            ValueError: not as many entries in ``padded`` as lengths.
        """
        if self.padded is not None and len(self.padded) != len(self.lengths):
            raise ValueError(f"expected padded or not of {len(self.lengths)} micro-steps, found {len(self.padded)}")

    @property
    def micro_steps(self) -> Sequence[tuple[int, bool]]:
        """Length of each micro-step, and whether an item of it is padded."""
        return list(zip(self.lengths, self.padded or [False] * len(self.lengths), strict=True))


_Played = tuple[Playable, int, int]
"""A segment that was played, its micro-step and its pass."""


class Replayer:
    """A program made ready to be played many times: segments are laid out once for each number of loss chunks."""

    def __init__(self, program: Program) -> None:
        """Keep the program; nothing is computed yet."""
        self.program = program
        self._flats: dict[tuple[SegmentName, int, int], Playable] = {}

    def steady(self, length_tokens: int, *, accumulation: int, conditions: Conditions | None = None) -> Replay:
        """Play ``STEADY_STEPS`` optimizer steps of micro-steps that all have one length; more where it retries."""
        micro_steps = min(accumulation, STEADY_MICRO_STEPS)
        lengths = [length_tokens] * (STEADY_STEPS * micro_steps)
        found = self.run(lengths, accumulation=micro_steps, conditions=conditions)
        if not found.runs or not found.retries:
            return found
        micro_steps = min(accumulation, RETRIED_MICRO_STEPS)
        retried = Pass(lengths=[length_tokens] * micro_steps, times=RETRIED_STEPS)
        return self.run_passes([retried], accumulation=micro_steps, conditions=conditions)

    def run(
        self,
        lengths: Sequence[int],
        *,
        accumulation: int,
        conditions: Conditions | None = None,
        padded: Sequence[bool] | None = None,
    ) -> Replay:
        """Play a run: one micro-step for each length, an optimizer step after every ``accumulation`` and at the end.

        Args:
            lengths: tokens of each micro-step's (padded) items.
            accumulation: micro-steps an optimizer step.
            conditions: the allocator's setting and capacity.
            padded: of each micro-step, whether an item of it is padded; by default none is.

        Raises:
            KeyError: the program does not cover some length.
        """
        return self.run_passes([Pass(lengths=lengths, padded=padded)], accumulation=accumulation, conditions=conditions)

    def run_passes(
        self,
        passes: Sequence[Pass],
        *,
        accumulation: int,
        conditions: Conditions | None = None,
        until_retry: bool = False,
    ) -> Replay:
        """Play passes over data one after another in one process.

        What a time of a pass leaves is the same as what the time before left where the sizes of all free blocks are:
        what lives between optimizer steps never moves. Times after such a one repeat it and are only counted.

        Args:
            passes: at least one, each of at least one micro-step.
            accumulation: micro-steps an optimizer step.
            conditions: the allocator's setting and capacity.
            until_retry: stop after the segment in which the allocator first frees its cache and tries again. A replay
                whose ``retries`` are 0 was played to its end.

        Raises:
            KeyError: the program does not cover some length.
        """
        conditions = conditions or Conditions()
        play = Play(
            self._room({one for p in passes for one in p.micro_steps}),
            conditions,
            self._own_workspace_bytes(*passes[0].micro_steps[0]) if conditions.warm_process else (),
        )
        played: list[_Played] = []
        for pass_index, one in enumerate(passes):
            left, retries = play.left(), play.heap.retries
            for time in range(one.times):
                schedule = _schedule(one.micro_steps, accumulation, from_loading=pass_index == time == 0)
                for name, (length, padded), micro_step in schedule:
                    playable = self._playable(name, length, padded=padded)
                    played.append((playable, micro_step, pass_index))
                    event = play.segment(playable, self.program.features(length), len(played) - 1)
                    if event is not None:
                        failure = Failure(
                            moment=self._moment(played[-1], event),
                            requested_bytes=play.heap.failed_request_bytes,
                            loading=name is SegmentName.SETUP,
                        )
                        return play.outcome(peak_moment=self._peak_moment(play, played), failure=failure)
                    if name is SegmentName.SETUP:
                        play.start_counting()
                    if until_retry and play.heap.retries:
                        return play.outcome(peak_moment=self._peak_moment(play, played), failure=None)
                before, left = left, play.left()
                if left == before and not play.ages_matter:
                    play.repeated_retries += (one.times - 1 - time) * (play.heap.retries - retries)
                    break
                retries = play.heap.retries
        return play.outcome(peak_moment=self._peak_moment(play, played), failure=None)

    def reserved_range(
        self, lengths: Sequence[int], *, accumulation: int, conditions: Conditions | None = None
    ) -> tuple[int, int]:
        """Return the least and the greatest reserved peak over what a run cannot know of its own process.

        That is the order in which the device places segments, and whether cuBLAS's workspaces were there before the
        model.
        """
        peaks = [
            self.run(lengths, accumulation=accumulation, conditions=possible).peak_reserved_bytes
            for possible in possible_conditions(conditions or Conditions())
        ]
        return min(peaks), max(peaks)

    def micro_step_events(self, length_tokens: int) -> int:
        """Return how many events a micro-step has: what a replay's time hangs on."""
        return len(self._playable(SegmentName.MICRO, length_tokens).flat.op)

    def _own_workspace_bytes(self, length_tokens: int, padded: bool) -> list[int]:
        first = self._playable(SegmentName.FIRST_MICRO, length_tokens, padded=padded)
        return first.own_workspace_bytes(self.program.features(length_tokens))

    def _playable(self, name: SegmentName, length: int, *, padded: bool = False) -> Playable:
        program = self.program
        segment = program.segment(name, length, padded=padded)
        chunks = program.chunks(length)[0] if segment.is_cut else 1
        key = (name, id(segment), chunks)
        if key not in self._flats:
            self._flats[key] = Playable(flatten(segment, chunks), SEGMENTS.index(name), self._categories)
        return self._flats[key]

    @cached_property
    def _categories(self) -> NDArray[np.int8]:
        return np.array([label.category for label in self.program.labels], np.int8)

    def _room(self, micro_steps: Iterable[tuple[int, bool]]) -> Room:
        names = [*SEGMENTS]
        objects, survivors, kept = 0, 0, 0
        # Within a piece the longest length has the most loss chunks, and so the most objects.
        longest: dict[tuple[int, bool], int] = {}
        for length, padded in micro_steps:
            key = self.program.piece(length, padded=padded).first_tokens, padded
            longest[key] = max(length, longest.get(key, 0))
        for (_, padded), length in longest.items():
            for name in names:
                if name not in FIXED and name not in self.program.piece(length, padded=padded).segments:
                    continue
                flat = self._playable(name, length, padded=padded).flat
                objects = max(objects, flat.objects)
                survivors = max(survivors, flat.survivors)
                kept += flat.survivors
        return Room(objects=objects, survivors=survivors, blocks=2 * (objects + kept) + 4096)

    def _peak_moment(self, play: Play, played: Sequence[_Played]) -> Moment | None:
        place, event = int(play.marks[0]), int(play.marks[1])
        return None if place < 0 else self._moment(played[place], event)

    def _moment(self, played: _Played, event: int) -> Moment:
        playable, micro_step, pass_index = played
        label = self.program.labels[playable.flat.label[event]]
        return Moment(
            phase=label.phase,
            layer=label.layer,
            op=label.op,
            item=micro_step * self.program.step.micro_batch,
            pass_index=pass_index,
        )


def _schedule(
    micro_steps: Sequence[tuple[int, bool]], accumulation: int, *, from_loading: bool
) -> Iterator[tuple[SegmentName, tuple[int, bool], int]]:
    """The segments of a pass in order, each with the micro-step it belongs to, as it is and by its number."""
    if from_loading:
        yield SegmentName.SETUP, micro_steps[0] if micro_steps else (1, False), 0
    for i, micro_step in enumerate(micro_steps):
        first = from_loading and i < accumulation
        if from_loading and i == 0:
            yield SegmentName.FIRST_MICRO, micro_step, i
        elif i % accumulation:
            yield SegmentName.LATER_MICRO, micro_step, i
        else:
            yield SegmentName.MICRO, micro_step, i
        if i % accumulation == accumulation - 1 or i == len(micro_steps) - 1:
            yield (SegmentName.FIRST_STEP if first else SegmentName.STEP), micro_step, i
