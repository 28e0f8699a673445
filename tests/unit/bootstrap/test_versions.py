"""What follows from the versions of TensorFlow that tasks have: ports that are let go, and a warning."""

from __future__ import annotations

import pytest

from gridtf.bootstrap.plan.versions import differing, releases_port
from tests.support.plans import task


@pytest.mark.parametrize(
    ("ports", "version", "released"),
    [
        ("auto", "1.15.5", True),
        ("auto", "2.2.0rc1", True),
        ("auto", "2.3.0", False),
        ("auto", "2.21.0", False),
        ("auto", "", False),
        ("auto", None, False),
        ("release", None, True),
        ("release", "2.21.0", True),
        ("hold", "1.15.5", False),
    ],
)
def test_a_port_is_released_for_versions_before_2_3(ports: str, version: str | None, released: bool) -> None:
    assert releases_port(ports, version) is released


TASKS = [task("worker:0", "n1"), task("worker:1", "n2", rank=1), task("evaluator:0", "n2")]


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ({"worker:0": "2.21.0"}, {"worker:1": "2.20.0"}, "2.21.0 on n1; 2.20.0 on n2"),
        ({"worker:0": "2.21.0"}, {"worker:1": ""}, "2.21.0 on n1; none on n2"),
        ({"worker:0": "2.21.0"}, {"worker:1": "2.21.0", "evaluator:0": "2.20.0"}, ""),
        ({"worker:0": "2.21.0"}, {}, ""),
        ({"worker:0": ""}, {"worker:1": ""}, ""),
        ({}, {}, ""),
    ],
)
def test_hosts_with_different_versions_are_named(first: dict[str, str], second: dict[str, str], said: str) -> None:
    found = differing(TASKS, {"n1": {"tensorflow": first}, "n2": {"tensorflow": second}})
    assert found == (f"hosts have different versions of TensorFlow: {said}" if said else "")


def test_nothing_is_said_of_hosts_that_did_not_publish_versions() -> None:
    assert differing(TASKS, {"n1": {}, "n2": {}}) == ""
