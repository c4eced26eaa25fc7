"""The planner as a named actor. It does without Ray Tune, whose import takes longer than all of the planner's work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raysweep.sweep.planner import Planner
from raysweep.sweep.quiet import quiet_ray
from raysweep.sweep.study import Study

NAMESPACE = "raysweep"
"""Ray's namespace in which sessions find their planner by its name."""


class PlannerActor(Planner):
    """The planner in its own process; Optuna's study is made there."""

    def __init__(self, *, steps: Any, searched: Any, **arguments: Any) -> None:
        """Make the study, then the planner."""
        quiet_ray()
        facts = arguments["facts"]
        study = Study(seed=facts.seed, flavours=facts.gpu_counts, steps=steps, searched=searched)
        super().__init__(study=study, **arguments)


def start_planner(name: str, arguments: Mapping[str, Any]) -> Any:
    """Start the planner on the driver's own node, where no preemption takes it away, and return its handle."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    actor = ray.remote(num_cpus=0, max_restarts=0)(PlannerActor)
    return actor.options(name=name, namespace=NAMESPACE, scheduling_strategy=here).remote(**arguments)
