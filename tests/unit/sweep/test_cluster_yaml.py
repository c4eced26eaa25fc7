"""``cluster.yaml`` as Ray's own validator sees it, and as the sweep and the catalogue do."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import yaml

from cost.catalogue import Catalogue
from raysweep.space import FlavourChoice, resolve
from raysweep.sweep.cluster import place_of

FILE = Path(__file__).parents[3] / "cluster.yaml"


@pytest.fixture(scope="module")
def config() -> dict:
    return yaml.safe_load(FILE.read_text())


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return Catalogue.load()


def workers(config: dict) -> dict[str, dict]:
    return {name: node for name, node in config["available_node_types"].items() if name != config["head_node_type"]}


def flavour_of(node: dict) -> str:
    (name,) = [resource.removeprefix("flavour:") for resource in node["resources"] if resource.startswith("flavour:")]
    return name


def test_rays_validator_accepts_it(config):
    from ray.autoscaler._private.util import prepare_config, validate_config

    validate_config(prepare_config(copy.deepcopy(config)))


def test_rays_validator_refuses_a_misspelt_key(config):
    from jsonschema.exceptions import ValidationError
    from ray.autoscaler._private.util import prepare_config, validate_config

    with pytest.raises(ValidationError, match="idle_timeout_minuts"):
        validate_config(prepare_config({**copy.deepcopy(config), "idle_timeout_minuts": 2}))


def test_all_its_nodes_may_run_at_once(config):
    assert sum(node["max_workers"] for node in workers(config).values()) == config["max_workers"]


def test_no_stopped_disk_goes_on_costing(config):
    assert config["provider"]["cache_stopped_nodes"] is False


def test_its_prices_are_the_catalogues(config, catalogue):
    for instance_type, usd_per_hour in config["metadata"]["price_usd_per_hour"].items():
        price = catalogue.flavour(f"aws/{instance_type}").price(region=config["provider"]["region"])
        assert price is not None
        assert price.usd_per_hour == usd_per_hour
    assert {node["node_config"]["InstanceType"] for node in workers(config).values()} == set(
        config["metadata"]["price_usd_per_hour"]
    )


def test_every_worker_is_a_place_for_its_flavour(config, catalogue):
    for node in workers(config).values():
        name = flavour_of(node)
        choice = FlavourChoice(name=name, memory_bytes=1) if name.startswith("aws/a100") else FlavourChoice(name=name)
        flavour = resolve(choice, catalogue)
        assert flavour.gpu_count == 1
        gpus = node["resources"][f"flavour:{name}"]
        place = place_of(
            flavour, [{"CPU": 4, "GPU": gpus, **node["resources"]}], gpus_per_session=1.0, cpus_per_session=0.5
        )
        assert place.slots == gpus


def test_its_own_cards_are_those_of_the_device_list(catalogue):
    text = FILE.read_text()
    for gpu_id in ("a100-sxm-40gb", "a100-sxm-80gb"):
        assert f"gpu_id: {gpu_id}, memory_bytes: {catalogue.device(gpu_id).memory_bytes}," in text
