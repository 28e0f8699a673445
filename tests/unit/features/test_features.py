"""What becomes of a feature whose hook raises something, and of the processes of features."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gridtf import features
from gridtf.bootstrap.agent.api import Prepared
from gridtf.bootstrap.agent.exits import Stopped
from gridtf.errors import GridtfError
from gridtf.features import Features, Processes


class Feature(features.Feature):
    """One whose hook does what the test wants."""

    def __init__(self, name: str, hook: Callable[[], str], *, vital: bool = False) -> None:
        self._name, self.hook = name, hook
        vars(self)["vital"] = vital

    @property
    def name(self) -> str:
        return self._name


def raising(error: Exception) -> Callable[[], str]:
    def hook() -> str:
        raise error

    return hook


class Job:
    """The features first, middle and last, of which the second one raises something."""

    def __init__(self, error: Exception, *, vital: bool = False) -> None:
        self.logged: list[str] = []
        self.features = Features[Feature](self.logged.append, Stopped)
        middle = Feature("middle", raising(error), vital=vital)
        self.features.add([Feature("first", lambda: "1"), middle, Feature("last", lambda: "3")])

    def call(self, *, also_off: bool = False) -> list[str]:
        return [*self.features.each(lambda one: one.hook(), also_off=also_off)]


def test_bug_of_a_feature_switches_it_off_and_is_told_with_its_place() -> None:
    job = Job(ValueError("boom"))
    assert [job.call(), job.call(), job.features.off] == [["1", "3"], ["1", "3"], ["middle"]]
    (told,) = job.logged
    assert told.startswith("gridtf's middle has failed:\nTraceback")
    assert told.endswith("ValueError: boom")
    assert job.features.failures() == "gridtf's middle failed, and was switched off"
    job.features.ending = True
    assert job.call(also_off=True) == ["1", "3"]  # it has something to end
    assert (len(job.logged), job.features.off) == (1, ["middle"])


def test_bug_of_a_feature_that_the_job_must_have_ends_it() -> None:
    job = Job(ValueError("boom"), vital=True)
    with pytest.raises(GridtfError, match="gridtf's middle has failed: ValueError: boom"):
        job.call()


@pytest.mark.parametrize(
    ("error", "vital"),
    [(GridtfError("no"), False), (GridtfError("no"), True), (Stopped(15), False), (OSError(28, "full"), True)],
)
def test_what_a_feature_says_or_what_a_signal_does_ends_the_attempt_until_it_is_being_ended(
    error: Exception, vital: bool
) -> None:
    job = Job(error, vital=vital)
    with pytest.raises(type(error)):
        job.call()
    assert (job.features.off, job.features.failures(), job.logged) == ([], "", [])
    job.features.ending = True
    assert job.call() == ["1", "3"]


def test_hook_of_one_feature_is_called_unless_it_is_off() -> None:
    job = Job(ValueError("boom"))
    first, middle, _ = job.features
    assert job.features.call(first, first.hook) == ("1",)
    assert job.features.call(middle, middle.hook) == ()
    middle.hook = lambda: "2"
    assert job.features.call(middle, middle.hook) == ()
    assert job.features.call(middle, middle.hook, also_off=True) == ("2",)


def test_processes_are_those_that_run_and_outlive_the_tasks_or_do_not() -> None:
    class Helper:
        def __init__(self, pid: int | None) -> None:
            self.pid = pid

    processes = Processes()
    helpers: Any = [(Helper(1), True), (Helper(2), False), (Helper(None), True), (Helper(4), False)]
    for helper, outlives in helpers:
        assert processes.own(helper, outlives=outlives) is helper
    assert [sorted(processes.pids(outlive=outlive)) for outlive in (True, False)] == [[1], [2, 4]]


def test_what_is_prepared_is_set_in_an_environment_and_what_is_gone_is_removed() -> None:
    environ = {"KEPT": "1", "CHANGED": "1", "GONE": "1"}
    Prepared({"CHANGED": "2", "GONE": None, "NEVER": None, "NEW": ""}).set_in(environ)
    assert environ == {"KEPT": "1", "CHANGED": "2", "NEW": ""}
