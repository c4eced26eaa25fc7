"""From findings to a decision: what to rent, why not the others, what another choice would change."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from cost.candidate import Candidate, Reason
from cost.catalogue import Catalogue
from cost.choose import Decision as Choice
from cost.choose import RunBudget, choose
from cost.domain import Flavour, Origin
from cost.frontier import BreakEven, TradeOff, break_even, frontier, trade_off
from cost.money import Terms
from cost.plan import RunPlan, Stage
from cost.project import PaddingOption, padding_options
from cost.units import percent
from cost.verdict import Verdict
from raysweep.data.items import Items
from raysweep.data.limit_cost import limit_costs
from raysweep.decision.cells import Grid, lengths_to_decide
from raysweep.decision.findings import Findings
from raysweep.decision.generation import GENERATIONS
from raysweep.decision.memory import Forecaster
from raysweep.decision.model import Cell, Decision, LongestFit, RunSummary
from raysweep.decision.plan import MILLION_TOKENS, length_counts, stages_of, terms_of
from raysweep.decision.roofline import lengths_to_time
from raysweep.errors import ArtifactError, InputError, nearest
from raysweep.memory.native_bf16 import bf16_notes
from raysweep.records import Mode, Source
from raysweep.setting import StepSetting
from raysweep.space import resolve
from raysweep.space.labels import step_labels


def decide(
    findings: Findings,
    catalogue: Catalogue,
    *,
    margin_share: float | None = None,
    lengths: Sequence[int] | None = None,
    items: Mapping[str, Items] | None = None,
    at_least_tokens: int | None = None,
    budget: RunBudget | None = None,
    scale: Mapping[str, float] | None = None,
    flavour: str | None = None,
) -> Decision:
    """Return what to rent for the run.

    Args:
        findings: What the sweeps found.
        catalogue: Prices and devices; a price that the space gives wins.
        margin_share: Instead of the space's.
        lengths: Instead of the space's and the probed ones.
        items: Data by stage, instead of the data that the artifact keeps.
        at_least_tokens: The shortest length limit that will do; by default the longest that any flavour fits.
        budget: Of the run.
        scale: Growth of the data by stage: 3 is three times its items.
        flavour: The only one to decide about; by default all of the space and of the probes.

    Raises:
        ArtifactError: Nothing was probed, or there is no length to decide about.
        InputError: A stage to grow, or the flavour, is unknown.
        CostError: The plan contradicts itself.
    """
    grid = _grid(findings, _flavours(findings, catalogue, flavour), lengths, items, scale or {})
    margin = findings.space.margin_share if margin_share is None else margin_share
    cells = grid.cells(margin)
    candidates = [cell.candidate for cell in cells]
    choice = choose(candidates, at_least_tokens=at_least_tokens, budget=budget, currency=findings.space.run.currency)
    chosen = next((cell for cell in cells if cell.candidate is choice.chosen), None)
    plan = (
        grid.plan(chosen.flavour, chosen.step, chosen.candidate.length_tokens) if chosen and chosen.projection else None
    )
    terms = terms_of(findings.space, chosen.flavour.usd_per_hour, chosen.flavour.gpu_count) if chosen else None
    return Decision(
        model=findings.space.model,
        uris=findings.uris,
        margin_share=margin,
        run=_run_summary(findings, items or findings.items, scale or {}),
        cells=cells,
        choice=choice,
        frontier=frontier(choice),
        longest=_longest(cells),
        trade_offs=_trade_offs(grid, choice, margin, at_least_tokens, budget),
        break_even=_break_even(choice),
        padding=_padding(grid, chosen, plan, terms),
        plan=plan,
        terms=terms,
        price_per_gpu_hour=findings.space.run.price_per_gpu_hour,
        notes=_notes(grid, cells),
        limits=limit_costs(
            {stage.name: stage.items for stage in grid.stages}, grid.lengths, findings.space.run.over_length
        ),
    )


def _grid(
    findings: Findings,
    flavours: tuple[Flavour, ...],
    lengths: Sequence[int] | None,
    items: Mapping[str, Items] | None,
    scale: Mapping[str, float],
) -> Grid:
    wanted = lengths_to_decide(findings, lengths)
    if not wanted:
        raise ArtifactError(
            f"{findings.uris[0]}: expected training probes or lengths to decide about; there are none. "
            "Name lengths with --lengths 4096,8192."
        )
    if not findings.records and not findings.programs:
        raise ArtifactError(f"{findings.uris[0]}: expected probes; the sweep kept none. Go on with it: --resume")
    steps = tuple(dict.fromkeys([*findings.space.steps, *(r.step for r in findings.records)]))
    stages = _stages(findings, items, scale)
    return Grid(
        findings=findings,
        flavours=flavours,
        labels=step_labels(steps),
        lengths=wanted,
        stages=stages,
        forecaster=Forecaster(findings.programs, findings.space.allocator),
        timed_lengths=lengths_to_time(stages, wanted),
    )


def _flavours(findings: Findings, catalogue: Catalogue, only: str | None) -> tuple[Flavour, ...]:
    """Return the space's flavours, and those that were probed besides: a sweep may have been told to emulate them."""
    found = {choice.name: resolve(choice, catalogue) for choice in findings.space.flavours}
    for record in findings.records:
        if record.flavour not in found:
            memory_bytes = record.memory_cap_bytes or record.device_memory_bytes
            own = Flavour(name=record.flavour, provider=record.flavour.split("/")[0], memory_bytes=memory_bytes)
            found[record.flavour] = catalogue.flavours_by_name.get(record.flavour, own)
    if only is None:
        return tuple(found.values())
    if only not in found:
        raise InputError(
            f"--flavour: expected one of the artifact's flavours ({', '.join(found)}); {only!r} came."
            f"{nearest(only, found)}"
        )
    return (found[only],)


def _stages(findings: Findings, items: Mapping[str, Items] | None, scale: Mapping[str, float]) -> tuple[Stage, ...]:
    given = items or findings.items
    if not given:
        if scale:
            raise InputError("--scale: expected data to grow; the artifact keeps none. Give them with --data FILE.")
        return ()
    stages = stages_of({name: length_counts(part) for name, part in given.items()}, findings.space)
    names = [stage.name for stage in stages]
    for name in scale:
        if name not in names:
            raise InputError(
                f"--scale: expected a stage of the run ({', '.join(names)}); {name!r} came.{nearest(name, names)}"
            )
    return tuple(
        dataclasses.replace(stage, items=stage.items.scaled(scale[stage.name])) if stage.name in scale else stage
        for stage in stages
    )


def _run_summary(findings: Findings, items: Mapping[str, Items], scale: Mapping[str, float]) -> RunSummary:
    space = findings.space
    if space.mode is Mode.GENERATE:
        prompt, new = space.prompt_tokens or 0, space.new_tokens or 0
        return RunSummary(
            name=f"{GENERATIONS:,} generations of {new:,} tokens after a prompt of {prompt:,}",
            is_sample=True,
            items=GENERATIONS,
            tokens=GENERATIONS * (prompt + new),
            longest_tokens=prompt + new,
            generates=True,
        )
    if not items:
        return RunSummary(
            name="a million tokens in items of the limit's length (no data are named)",
            is_sample=True,
            items=0,
            tokens=MILLION_TOKENS,
            longest_tokens=0,
        )
    return RunSummary(
        name=", ".join(f"{n} x {scale[n]:g}" if n in scale else n for n in items),
        is_sample=False,
        items=round(sum(len(part) * scale.get(n, 1.0) for n, part in items.items())),
        tokens=round(sum(part.total_tokens * scale.get(n, 1.0) for n, part in items.items())),
        longest_tokens=max(part.longest_tokens for part in items.values()),
    )


def _longest(cells: Sequence[Cell]) -> tuple[LongestFit, ...]:
    groups: dict[tuple[str, StepSetting], list[Cell]] = {}
    for cell in cells:
        # A flavour of several GPUs was not probed, since a step uses one: there is nothing to say of its memory.
        if cell.flavour.gpu_count == 1:
            groups.setdefault((cell.flavour.name, cell.step), []).append(cell)
    return tuple(
        LongestFit(
            flavour=flavour,
            step=step,
            length_tokens=_unbroken(group, (Verdict.FITS,)),
            tight_length_tokens=_unbroken(group, (Verdict.FITS, Verdict.TIGHT)),
        )
        for (flavour, step), group in groups.items()
    )


def _unbroken(group: Sequence[Cell], wanted: tuple[Verdict, ...]) -> int | None:
    longest: int | None = None
    for cell in sorted(group, key=lambda cell: cell.candidate.length_tokens):
        if cell.memory is None:
            continue
        if cell.memory.fit.verdict not in wanted:
            break
        longest = cell.candidate.length_tokens
    return longest


def _trade_offs(
    grid: Grid, base: Choice, margin: float, at_least_tokens: int | None, budget: RunBudget | None
) -> tuple[TradeOff, ...]:
    found: list[TradeOff] = []
    currency = base.currency

    def again(candidates: Sequence[Candidate], tokens: int | None) -> Choice:
        return choose(candidates, at_least_tokens=tokens, budget=budget, currency=currency)

    for share in (margin / 2, margin * 2):
        if 0 < share < 1:
            candidates = [cell.candidate for cell in grid.cells(share)]
            found.append(trade_off(f"a margin of {percent(share)}", base, again(candidates, at_least_tokens)))
    candidates = [cell.candidate for cell in grid.cells(margin)]
    for length in grid.lengths:
        if base.chosen is not None and length != base.chosen.length_tokens:
            # Shorter lengths stay among them: one that does not fit bars the limit.
            limited = [candidate for candidate in candidates if candidate.length_tokens <= length]
            found.append(trade_off(f"items of up to {length:,} tokens", base, again(limited, length)))
    for label in grid.labels.values() if len(grid.labels) > 1 else ():
        if base.chosen is not None and label != base.chosen.step:
            own = [candidate for candidate in candidates if candidate.step == label]
            found.append(trade_off(f"only {label}", base, again(own, base.at_least_tokens)))
    return tuple(found)


def _notes(grid: Grid, cells: Sequence[Cell]) -> tuple[str, ...]:
    """Return what to mind: limits that leave no run, and flavours of which anything was not measured on the card."""
    emulated = {record.flavour for record in grid.findings.records if record.memory_cap_bytes is not None}
    guessed = {
        cell.flavour.name: cell.flavour
        for cell in cells
        if cell.memory
        and cell.flavour.gpu_count == 1
        and (cell.memory.source is not Source.MEASURED or cell.flavour.name in emulated)
    }
    return (
        *grid.findings.notes,
        *_unknown_memory(grid, cells),
        *_empty_runs(grid),
        *_currency(grid),
        *_spot_prices(grid),
        *_padded_limits(grid),
        *bf16_notes(guessed.values(), grid.labels),
    )


def _unknown_memory(grid: Grid, cells: Sequence[Cell]) -> tuple[str, ...]:
    """Say at which lengths nothing tells whether a step fits: they are left out, and bar no longer one."""
    if grid.findings.space.mode is Mode.GENERATE:
        return ()
    single = [cell for cell in cells if cell.flavour.gpu_count == 1]
    told = {(cell.flavour.name, cell.step) for cell in single if cell.memory}
    wholly: list[int] = []
    partly: list[int] = []
    for length in grid.lengths:
        here = [cell for cell in single if cell.candidate.length_tokens == length]
        unknown = [cell for cell in here if cell.memory is None]
        if here and len(unknown) == len(here):
            wholly.append(length)
        elif any((cell.flavour.name, cell.step) in told for cell in unknown):
            # A flavour and step of which nothing at all is known lost for that, and is listed with it.
            partly.append(length)
    swept = grid.findings.space.lengths
    reach = f"; the sweep's lengths are {_listed(swept)}" if swept and not {*wholly, *partly} <= set(swept) else ""
    return tuple(
        f"Left out: {_listed(lengths)} tokens{where}. Neither a probe nor the forecast says whether they fit{reach}. "
        "To know, probe them too; else leave them out with --lengths."
        for lengths, where in ((wholly, ""), (partly, " with some steps or on some flavours"))
        if lengths
    )


def _listed(lengths: Sequence[int], most: int = 6) -> str:
    """Return lengths by name, or both ends of many."""
    if len(lengths) > most:
        return f"{lengths[0]:,} to {lengths[-1]:,}"
    return ", ".join(f"{length:,}" for length in lengths)


def _empty_runs(grid: Grid) -> tuple[str, ...]:
    """Say up to which length a limit leaves too little of a stage: such limits are the shortest ones."""
    longest = {empty: length for length in grid.lengths if (empty := grid.empty_run(length))}
    over = grid.findings.space.run.over_length
    return tuple(
        f"With a limit of {length:,} tokens or less no run is projected: every item of {empty.stage} {empty.loses} "
        f"(run.over_length: {over.value})."
        for empty, length in longest.items()
    )


def _currency(grid: Grid) -> tuple[str, ...]:
    """Say that prices of a list in USD are shown under another currency's label."""
    run = grid.findings.space.run
    if run.currency == "USD" or not _counts_listed_prices(grid):
        return ()
    return (
        f"Prices of the catalogue are in USD; run.currency labels them {run.currency} and converts nothing. "
        f"Give run.price_per_gpu_hour, or your own prices, in {run.currency}.",
    )


def _spot_prices(grid: Grid) -> tuple[str, ...]:
    """Say that an interruptible machine is counted at an on-demand price."""
    if grid.findings.space.run.spot is None or not _counts_listed_prices(grid):
        return ()
    return (
        "The run is on interruptible machines (run.spot), and its money is counted at on-demand prices: give "
        "run.price_per_gpu_hour, or your own prices, for what they cost.",
    )


def _counts_listed_prices(grid: Grid) -> bool:
    """Whether money is counted with prices that are not the user's own."""
    if grid.findings.space.run.price_per_gpu_hour is not None:
        return False
    prices = [price for flavour in grid.flavours if (price := flavour.price())]
    return any(price.origin is not Origin.USER for price in prices)


def _padded_limits(grid: Grid) -> tuple[str, ...]:
    """Say of which limits padding makes longer steps than those that memory is judged at."""
    multiple = grid.findings.space.run.pad_to_multiple_tokens
    if not grid.stages or grid.findings.space.run.packing is not None:
        return ()
    reach = max(stage.items.longest_tokens for stage in grid.stages)
    padded = {limit: -(-min(limit, reach) // multiple) * multiple for limit in grid.lengths}
    beyond = [limit for limit in grid.lengths if padded[limit] > limit]
    if not beyond:
        return ()
    return (
        f"run.pad_to_multiple pads items of up to {beyond[-1]:,} tokens to {padded[beyond[-1]]:,}, and memory is "
        f"judged at {beyond[-1]:,}: name lengths that are multiples of {multiple:,}.",
    )


def _break_even(choice: Choice) -> tuple[tuple[str, BreakEven], ...]:
    chosen = choice.chosen
    if chosen is None or not chosen.price_per_hour:
        return ()
    rivals = (rejection.candidate for rejection in choice.lost if rejection.reason is Reason.DEARER)
    return tuple((rival.flavour, break_even(chosen, rival)) for rival in rivals if rival.price_per_hour)


def _padding(grid: Grid, chosen: Cell | None, plan: RunPlan | None, terms: Terms | None) -> tuple[PaddingOption, ...]:
    if chosen is None or plan is None or chosen.time_model is None or not grid.stages or plan.packing:
        return ()
    return padding_options(plan, chosen.time_model, terms)
