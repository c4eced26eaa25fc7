"""The whole grid: every cell once, ordered so that a model is loaded as seldom as can be."""

from __future__ import annotations

from collections.abc import Iterable

from raysweep.records import ProbeRecord
from raysweep.search.cell import Cell, cell_of
from raysweep.search.policy import Done, Wait
from raysweep.search.runner import ProbeRequest, load_key


class Grid:
    """Buys every cell, per flavour in the order given, but all cells of one loaded model before the next model's."""

    def __init__(self, cells: Iterable[Cell]) -> None:
        """Hold the cells of all flavours; a cell given twice counts once."""
        self._open: dict[str, dict[str, Cell]] = {}
        for cell in cells:
            self._open.setdefault(cell.flavour, {})[cell.probe_id] = cell
        self._in_flight: dict[str, Cell] = {}

    def ask(self, flavour: str, loaded_key: str | None) -> ProbeRequest | Wait | Done:
        """Return the next cell, one of the loaded model where there is one. A grid never has to wait."""
        pending = [cell for cell in self._open.get(flavour, {}).values() if cell.probe_id not in self._in_flight]
        if not pending:
            return Done("every probe of the grid has been asked for")
        groups: dict[str, list[Cell]] = {}
        for cell in pending:
            groups.setdefault(load_key(cell.step), []).append(cell)
        key = loaded_key if loaded_key in groups else self._least_busy(flavour, list(groups))
        cell = groups[key][0]
        self._in_flight[cell.probe_id] = cell
        return cell.request()

    def _least_busy(self, flavour: str, keys: list[str]) -> str:
        """Return the first of the models that the fewest sessions work on, so that several sessions share the loads."""
        busy = [load_key(cell.step) for cell in self._in_flight.values() if cell.flavour == flavour]
        return min(keys, key=busy.count)

    def tell(self, record: ProbeRecord) -> None:
        """Strike the record's cell off, however it ended."""
        probe_id = cell_of(record).probe_id
        self._in_flight.pop(probe_id, None)
        self._open.get(record.flavour, {}).pop(probe_id, None)

    def remaining(self, flavour: str) -> int:
        """Return how many cells of the flavour have no record yet."""
        return len(self._open.get(flavour, {}))
