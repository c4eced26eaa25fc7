"""Where a flavour's sessions can run, what a session's death means, and the small parts of a sweep."""

from __future__ import annotations

import threading
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost.domain import Device, Flavour
from raysweep.sweep.cluster import flavour_resource, place_of
from raysweep.sweep.events import union_seconds
from raysweep.sweep.host_oom import MESSAGE_PREFIX, death_reason
from raysweep.sweep.watchdog import Watchdog

H200 = Flavour(name="hf/h200", provider="hf", device=Device(gpu_id="h200", name="H200", ray_accelerator_type="H200"))
ASK = {"gpus_per_session": 1.0, "cpus_per_session": 1.0}


def test_a_node_that_carries_the_flavour_is_asked_for_by_its_name():
    place = place_of(H200, [{"CPU": 8, "GPU": 2, "flavour:hf/h200": 2}], **ASK)
    assert place.resources == {"CPU": 1.0, "GPU": 1.0, "flavour:hf/h200": 1.0}
    assert place.slots == 2


def test_a_flavours_resource_is_in_letters_that_ray_takes():
    assert flavour_resource("runpod/B300 (secure)") == "flavour:runpod/B300 (secure)"
    assert flavour_resource("lab/ü 'x'") == "flavour:lab/%C3%BC %27x%27"
    place = place_of(Flavour(name="lab/ü", provider="lab"), [{"CPU": 1, "GPU": 1, "flavour:lab/%C3%BC": 1}], **ASK)
    assert place.slots == 1


def test_a_cluster_that_only_knows_accelerator_types_is_accepted():
    place = place_of(H200, [{"CPU": 8, "GPU": 1, "accelerator_type:H200": 1}], **ASK)
    assert place.resources == {"CPU": 1.0, "GPU": 1.0, "accelerator_type:H200": 0.001}
    assert place.slots == 1


def test_a_flavour_without_a_node_says_what_is_there_and_what_to_type():
    place = place_of(H200, [{"CPU": 8, "GPU": 1, "accelerator_type:A100": 1}], **ASK)
    assert place.slots == 0
    assert not place.may_come
    assert "accelerator_type:A100" in place.missing
    assert """--resources '{"flavour:hf/h200": 1}'""" in place.missing


def test_a_node_with_the_flavour_but_no_gpu_is_no_place():
    place = place_of(H200, [{"CPU": 8, "flavour:hf/h200": 1}], **ASK)
    assert place.slots == 0
    assert "not enough of the rest" in place.missing


def test_a_simulated_flavour_needs_no_gpu():
    place = place_of(H200, [{"CPU": 2, "flavour:hf/h200": 1}], gpus_per_session=0, cpus_per_session=0.5)
    assert place.resources == {"CPU": 0.5, "flavour:hf/h200": 1.0}
    assert place.slots == 1


@pytest.mark.parametrize("name", ["flavour:hf/h200", "accelerator_type:H200"])
def test_a_node_that_the_autoscaler_can_start_is_waited_for(name):
    place = place_of(H200, [{"CPU": 2}], startable=frozenset({name}), **ASK)
    assert place.may_come
    assert name in place.resources


def test_a_death_by_the_memory_monitor_is_told_from_others():
    assert death_reason(f"\n{MESSAGE_PREFIX}Task was killed")[0] == "host_oom"
    assert death_reason("The actor died unexpectedly.\n\tclass_name: Session")[:] == (
        "lost",
        "The actor died unexpectedly.",
    )
    assert death_reason("") == ("lost", "its process ended")


def test_an_exception_at_the_start_of_a_session_is_told_by_its_own_line():
    text = (
        "The actor died because of an error raised in its creation task, \x1b[36mray::x\x1b[39m\n  File y\nOSError: no"
    )
    assert death_reason(text) == ("lost", "OSError: no")


@given(spans=st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e3)), max_size=20))
def test_time_that_probes_share_counts_once(spans):
    union = union_seconds(spans)
    assert union <= sum(seconds for _, seconds in spans) + 1e-3
    assert union >= max((seconds for _, seconds in spans), default=0.0) - 1e-3


def test_spans_side_by_side_add_up_and_overlaps_do_not():
    now = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    assert union_seconds([(now, 2.0), (now + 1, 2.0), (now + 10, 1.0)]) == pytest.approx(4.0)


def test_a_watchdog_lets_a_probe_end_in_time():
    ended = []
    with Watchdog(60.0, extend=lambda: 0.0, expire=lambda: None, end_process=lambda: ended.append(1)):
        pass
    assert not ended


def test_a_watchdog_asks_for_more_time_and_ends_the_process_when_there_is_none():
    left = [0.01, 0.01, 0.0]
    said: list[str] = []
    ended = threading.Event()
    dog = Watchdog(0.01, extend=lambda: left.pop(0), expire=lambda: said.append("expired"), end_process=ended.set)
    with dog:
        assert ended.wait(10)
    assert said == ["expired"]
    assert left == []


def test_without_a_limit_nothing_is_watched():
    before = threading.active_count()
    with Watchdog(float("inf"), extend=lambda: 0.0, expire=lambda: None):
        assert threading.active_count() == before
