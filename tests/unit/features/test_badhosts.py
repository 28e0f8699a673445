"""Which ends of an attempt say something about a host."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from gridtf.bootstrap.judge.verdict import Verdict
from gridtf.bootstrap.launcher.api import LauncherView
from gridtf.bootstrap.system import System
from gridtf.errors import HostLostError
from gridtf.features import badhosts
from gridtf.features.stalls.launcher import Dump
from gridtf.host import network
from gridtf.run import hosthistory
from gridtf.states import JobState

LOST = HostLostError("no heartbeat from host n2 for 30 s", host="n2")
DISK = "the job waited for a disk or a file system of this host"
NODE_FAIL = Verdict(JobState.NODE_FAIL, LOST.what, lost="n2")


def noted(end: Verdict, **about: Any) -> list[tuple[str, str, str]]:
    """(host, kind, job) of what is remembered of the end of an attempt on three hosts, of which n2 is silent."""
    known = {"n2": {"address": "n2.example", "ports": {"worker:1": 4711}}}
    hosts = SimpleNamespace(
        reports=SimpleNamespace(published=about.get("published", known)),
        hosts=about.get("hosts", ["n1", "n2", "n3"]),
        left=lambda: about.get("left", {"n2": 9.0}),
        alone=lambda here: about.get("alone", False),
    )
    login = SimpleNamespace(cluster=lambda environ: about.get("cluster", "slurm:alpha"))
    injob = SimpleNamespace(host_fault={"n2": about.get("fault", "")}.__getitem__)
    scheduler = SimpleNamespace(login=login, injob=injob)
    job: Any = SimpleNamespace(system=System(os.environ), job_id="7_3", here="n1", scheduler=scheduler)
    view: Any = LauncherView(job, None, hosts, None)  # type: ignore[arg-type]
    badhosts.InLauncher(view, None).concluded(end)
    found = hosthistory.read(os.environ, job.system.time()).suspects
    return [(each.host, each.findings[0].kind, each.findings[0].job) for each in found]


@pytest.fixture(autouse=True)
def no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts that are asked do not answer."""
    monkeypatch.setattr(network, "answers", lambda address, port, limit: False)


def test_lost_host_is_remembered() -> None:
    assert noted(NODE_FAIL) == [("n2", "lost", "7")]
    (suspect,) = hosthistory.read(os.environ, System(os.environ).time()).suspects
    assert suspect.reason == "lost: no heartbeat from host n2 for 30 s; it does not answer"


SPARE = {"n2": {"address": "n2.example", "ports": {}}}


@pytest.mark.parametrize("known", [{}, {"published": {}}, {"published": SPARE}])
def test_host_that_answers_is_remembered_where_the_scheduler_says_that_it_is_bad(
    known: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one that answers, only the agent was stopped or killed; without a port nobody knows whether it answers."""
    monkeypatch.setattr(network, "answers", lambda *asked: asked == ("n2.example", 4711, badhosts._ANSWER))
    assert noted(NODE_FAIL, **known) == []
    assert noted(NODE_FAIL, fault="Slurm says down*", **known) == [("n2", "lost", "7")]
    (suspect,) = hosthistory.read(os.environ, System(os.environ).time()).suspects
    assert suspect.reason == "lost: no heartbeat from host n2 for 30 s; Slurm says down*"


def test_host_that_others_have_missed_is_remembered() -> None:
    cause: dict[str, Any] = {"task": "worker:1", "host": "n2", "exit": None, "signal": None, "log": "", "tail": []}
    assert noted(NODE_FAIL.replace(lost="", cause=cause)) == [("n2", "lost", "7")]


@pytest.mark.parametrize(
    ("state", "about"),
    [
        (JobState.CANCELLED, {}),
        (JobState.TIMEOUT, {}),
        (JobState.FAILED, {}),
        (JobState.OUT_OF_MEMORY, {}),
        (JobState.NODE_FAIL, {"left": {}}),  # it has ended its tasks: it was cut off for a while
        (JobState.NODE_FAIL, {"alone": True}),  # the launcher's host may be the one that is cut off
        (JobState.NODE_FAIL, {"cluster": ""}),  # the local scheduler's
    ],
)
def test_other_ends_say_nothing_about_a_host(state: str, about: dict[str, Any]) -> None:
    cause: dict[str, Any] = {"task": "worker:1", "host": "n2", "exit": 1, "signal": None, "log": "", "tail": []}
    assert noted(Verdict(state, "x", cause=cause, lost="n2" * (state == JobState.NODE_FAIL)), **about) == []


def test_only_other_host_of_two_is_remembered() -> None:
    assert noted(NODE_FAIL, alone=True, hosts=["n1", "n2"]) == [("n2", "lost", "7")]


def test_host_whose_disk_stalls_the_job_is_remembered_also_when_the_job_is_cancelled_for_it() -> None:
    assert noted(Verdict(JobState.CANCELLED, "cancelled by ann", suspects=[("n3", DISK)])) == [("n3", "stalled", "7")]
    (suspect,) = hosthistory.read(os.environ, System(os.environ).time()).suspects
    assert suspect.reason == f"stalled: {DISK}", "why it has ended is not"


def test_home_that_hangs_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    aside = LauncherView.aside
    monkeypatch.setattr(LauncherView, "aside", lambda view, work, limit=0.2: aside(view, work, min(limit, 0.2)))
    monkeypatch.setattr(hosthistory, "note", lambda environ, found: __import__("time").sleep(30))
    assert noted(NODE_FAIL) == []


def test_what_was_read_in_time_is_returned_and_nothing_of_what_was_not() -> None:
    view = LauncherView(SimpleNamespace(system=System(os.environ)), None, None, None)  # type: ignore[arg-type]
    assert view.aside(lambda: "n1\nn2" * 100_000) == "n1\nn2" * 100_000
    assert view.aside(lambda: None) == ""
    assert view.aside(lambda: __import__("time").sleep(30), 0.2) == ""


@pytest.mark.parametrize(
    ("states", "host"),
    [("SDS", "n2"), ("DDS", ""), ("SSS", ""), ("STS", ""), ("DDD", ""), ("D", "")],
)
def test_stall_whose_cause_is_the_disk_of_one_host_of_several(states: str, host: str) -> None:
    tasks = {
        f"worker:{number}": {"host": f"n{number + 1}", "processes": [{"state": state}, {"state": "S"}]}
        for number, state in enumerate(states)
    }
    assert Dump(tasks, (), 0.0).waits_for_disk() == host
