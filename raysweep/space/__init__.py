"""The search space: YAML in, ``SearchSpace`` out, with errors that say where and what to write instead."""

from raysweep.space.flavours import resolve
from raysweep.space.load import load_space, shipped_spaces
from raysweep.space.model import Budget, DataPlan, FlavourChoice, SearchSpace, Stage
from raysweep.space.parse import parse_space
from raysweep.space.run import RunSetting

__all__ = [
    "Budget",
    "DataPlan",
    "FlavourChoice",
    "RunSetting",
    "SearchSpace",
    "Stage",
    "load_space",
    "parse_space",
    "resolve",
    "shipped_spaces",
]
