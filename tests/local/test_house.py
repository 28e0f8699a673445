"""What a launch loads, opens, forks and says: that is what it costs where the files lie on a busy server."""

from __future__ import annotations

import pytest
from house import ROOT, Launch, loaded

# Who: modules of gridtf, other files, forks, at most. The last two change with how long a busy machine takes.
MOST = {"launcher": (122, 20, 40), "agent": (26, 20, 0)}  # the agent is a child of the launcher
SAID = {
    "launcher": {"challenge": 1, "welcome": 1, "launcher": 1, "plan": 1, "rendezvous": 1, "stop": 1},
    "agent": {"hello": 1, "host": 1},
}
SIGNS = {"alive", "state", "sample"}  # as many as the job takes time


@pytest.fixture(scope="module")
def launch() -> Launch:
    return Launch(ROOT)


@pytest.mark.parametrize("who", ["launcher", "agent"])
def test_launch_loads_opens_and_forks_no_more_than_it_did(launch: Launch, who: str) -> None:
    modules, files, forks = MOST[who]
    assert launch.modules[who] <= modules, "what has no part in a plain job is loaded by those jobs that want it"
    assert launch.files[who] <= files
    assert launch.forks[who] <= forks


@pytest.mark.parametrize("who", ["launcher", "agent"])
def test_launch_says_each_thing_once(launch: Launch, who: str) -> None:
    assert {kind: count for kind, count in launch.said[who].items() if kind not in SIGNS} == SAID[who]


@pytest.mark.parametrize(("who", "most"), [("agent", 60), ("launcher", 69)])
def test_process_begins_with_no_more_modules_than_it_did(who: str, most: int) -> None:
    assert loaded(ROOT, who) <= most
