"""Programs of a space's steps, traced side by side on all cores."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING

import click

from raysweep.errors import InputError, NotForecastError
from raysweep.setting import StepSetting

if TYPE_CHECKING:
    from raysweep.memory.program import Program
    from raysweep.space import SearchSpace

JOBS_VARIABLE = "RAYSWEEP_JOBS"
"""Environment variable that says how many traces run side by side."""


def trace_programs(
    model: str,
    steps: Iterable[StepSetting],
    lengths: Sequence[int],
    *,
    padded: bool = False,
    trust_remote_code: bool,
    quiet: bool,
) -> tuple[dict[StepSetting, Program], dict[StepSetting, str]]:
    """Trace every step; return the programs, and for steps that cannot be traced the reason.

    Args:
        model: as the space names it.
        steps: each traced over the whole range of lengths.
        lengths: tokens of one item.
        padded: whether items differ in length, so that those of one micro-batch are padded.
        trust_remote_code: whether code that comes with the model may run.
        quiet: no word on stderr about what takes so long.

    Raises:
        SpaceError: there is no such model, or a step does not go with it.
        MachineError: the model's config cannot be fetched.
    """
    from raysweep.step.config import load_config
    from raysweep.trace import kept
    from raysweep.trace.build import model_program

    config = load_config(model, trust_remote_code=trust_remote_code)
    keys = {step: kept.program_key(config, step, lengths, padded=padded) for step in steps}
    found = {step: kept.load(key) for step, key in keys.items()}
    programs: dict[StepSetting, Program] = {}
    reasons: dict[StepSetting, str] = {}
    wanted = [step for step, program in found.items() if program is None]
    if not wanted:
        return {step: program for step, program in found.items() if program is not None}, reasons
    if not quiet:
        click.echo(f"Tracing {len(wanted)} step{'s' if len(wanted) > 1 else ''} of {model} …", err=True)
    jobs = _jobs()
    with ExitStack() as stack:
        processes = None
        if jobs > 1:
            # Traces hold the interpreter, so they run in processes; each step's own thread only waits for its traces.
            processes = stack.enter_context(ProcessPoolExecutor(jobs, mp_context=_context()))
        threads = stack.enter_context(ThreadPoolExecutor(len(wanted) if processes else 1))
        futures = {
            step: threads.submit(model_program, model, config, step, lengths, padded=padded, executor=processes)
            for step in wanted
        }
        for step, program in found.items():
            try:
                programs[step] = program or futures[step].result()
            except NotForecastError as error:
                reasons[step] = str(error)
    for step in wanted:
        if step in programs:
            kept.keep(keys[step], programs[step])
    return programs, reasons


def quantisation_notes(space: SearchSpace) -> tuple[str, ...]:
    """Return what to say where the model's config tells how to quantise its weights: ``step.weights`` decides.

    Raises:
        SpaceError: there is no such model.
        MachineError: the model's config cannot be fetched.
    """
    from raysweep.step import config_check
    from raysweep.step.config import load_config

    config = load_config(space.model, trust_remote_code=space.trust_remote_code)
    return config_check.quantisation_notes(config, tuple(dict.fromkeys(step.weights.value for step in space.steps)))


def _context() -> BaseContext:
    """Processes fork from a server that has imported torch and peft once, where the system can do so."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["raysweep.cli.tracer"])
    return context


def _jobs() -> int:
    """Return how many traces run side by side: ``RAYSWEEP_JOBS``, else one a core; with 1 they run in this process.

    Raises:
        InputError: the variable is no whole number from 1 up.
    """
    named = os.environ.get(JOBS_VARIABLE)
    if named is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not named.isdecimal() or int(named) < 1:
        raise InputError(f"{JOBS_VARIABLE}: expected how many traces run side by side, 1 or more; {named!r} came.")
    return int(named)
