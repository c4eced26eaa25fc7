"""Programs of a space's steps, traced side by side on all cores."""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING

import click

from raysweep.errors import NotForecastError
from raysweep.setting import StepSetting

if TYPE_CHECKING:
    from raysweep.memory.program import Program


def trace_programs(
    model: str, steps: Iterable[StepSetting], lengths: Sequence[int], *, trust_remote_code: bool, quiet: bool
) -> tuple[dict[StepSetting, Program], dict[StepSetting, str]]:
    """Trace every step; return the programs, and for steps that cannot be traced the reason.

    Args:
        model: as the space names it.
        steps: each traced over the whole range of lengths.
        lengths: tokens of one item.
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
    keys = {step: kept.program_key(config, step, lengths) for step in steps}
    found = {step: kept.load(key) for step, key in keys.items()}
    programs: dict[StepSetting, Program] = {}
    reasons: dict[StepSetting, str] = {}
    wanted = [step for step, program in found.items() if program is None]
    if not wanted:
        return {step: program for step, program in found.items() if program is not None}, reasons
    if not quiet:
        click.echo(f"Tracing {len(wanted)} step{'s' if len(wanted) > 1 else ''} of {model} …", err=True)
    # Traces hold the interpreter, so they run in processes; each step's own thread only waits for its traces.
    context = _context()
    with (
        ProcessPoolExecutor(_cores(), mp_context=context, initializer=_quiet) as processes,
        ThreadPoolExecutor(len(wanted)) as threads,
    ):
        futures = {
            step: threads.submit(model_program, model, config, step, lengths, executor=processes) for step in wanted
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


def _context() -> BaseContext:
    """Processes fork from a server that has imported torch once, where the system can do so."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["raysweep.trace.build"])
    return context


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _quiet() -> None:
    """Keep other libraries' warnings about what a trace does not use off the terminal."""
    for name in ("bitsandbytes", "transformers", "peft"):
        logging.getLogger(name).setLevel(logging.ERROR)
