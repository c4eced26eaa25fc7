"""The one place that runs Ray Tune: one trial per session."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from ray import tune
from ray.tune import CheckpointConfig, FailureConfig, PlacementGroupFactory, RunConfig, TuneConfig

from raysweep.search.runner import Runner
from raysweep.sweep.cluster import Place
from raysweep.sweep.driver import Driver, NoTables, Patience
from raysweep.sweep.planner_actor import NAMESPACE
from raysweep.sweep.session import Session


def fit(
    places: Sequence[Place],
    factories: Mapping[str, Callable[[], Runner]],
    *,
    driver: Driver,
    planner_name: str,
    storage: str,
    sessions_per_flavour: int,
    node_wait_seconds: float,
) -> None:
    """Run one trial per session until none has work left.

    Args:
        places: Where each flavour's sessions run.
        factories: Each flavour's runner.
        driver: Receives what happens.
        planner_name: Of the planner actor.
        storage: An empty local folder for Tune's own files; nothing in it is needed afterwards.
        sessions_per_flavour: At most, as far as the flavour has slots.
        node_wait_seconds: How long a flavour without a node may wait for its first one.
    """
    asked = {place.flavour: dict(place.resources) for place in places}
    sessions = [p.flavour for p in places for _ in range(max(1, min(p.slots, sessions_per_flavour)))]
    waiting = {place.flavour: place.missing for place in places if not place.slots}
    deadline = time.monotonic() + node_wait_seconds
    trainable = tune.with_resources(
        tune.with_parameters(Session, planner_name=planner_name, namespace=NAMESPACE, factories=dict(factories)),
        lambda config: PlacementGroupFactory([asked[config["flavour"]]]),
    )
    tune.Tuner(
        trainable,
        param_space={"flavour": tune.grid_search(sessions)},
        tune_config=TuneConfig(
            scheduler=Patience(driver, dict.fromkeys(waiting, deadline), waiting),
            # All sessions may be pending at once, or a busy flavour would hold up an idle one.
            max_concurrent_trials=len(sessions),
            reuse_actors=False,
        ),
        run_config=RunConfig(
            name=planner_name,
            storage_path=storage,
            callbacks=[driver, NoTables()],
            verbose=0,
            # A session that dies is started again; the planner gives a flavour up whose sessions only die.
            failure_config=FailureConfig(max_failures=-1),
            checkpoint_config=CheckpointConfig(checkpoint_at_end=False),
        ),
    ).fit()
