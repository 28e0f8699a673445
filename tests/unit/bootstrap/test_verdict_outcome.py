"""Whether an attempt goes on, has succeeded or has failed, and by whom."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from gridtf.bootstrap.placement import PlacedTask
from gridtf.bootstrap.verdict import Outcome, decide, first_failure
from tests.support.plans import task

CHIEF, WORKER0, WORKER1 = task("chief:0"), task("worker:0", rank=1), task("worker:1", rank=2)
PS, EVALUATOR = task("ps:0"), task("evaluator:0")
ALL = (CHIEF, WORKER0, WORKER1, PS, EVALUATOR)


def said(**states: str | dict[str, Any]) -> dict[str, dict[str, Any]]:
    """said(worker_0="RUNNING"): what the hosts say; a dict for more than the state."""
    return {
        name.replace("_", ":"): {"state": state} if isinstance(state, str) else state for name, state in states.items()
    }


def failed(ended: float | None, *, signal: str | None = None, code: int | None = 1) -> dict[str, Any]:
    return {"state": "FAILED", "ended": ended, "signal": signal, "exit": None if signal else code}


DONE = said(chief_0="COMPLETED", worker_0="COMPLETED", worker_1="COMPLETED")


def test_it_goes_on_while_somebody_trains() -> None:
    assert not decide(ALL, {}).ended
    assert not decide(ALL, said(chief_0="PENDING")).ended
    assert not decide(ALL, {**DONE, **said(worker_1="RUNNING", ps_0="RUNNING")}).ended
    assert not decide(ALL, {**DONE, **said(worker_1="STOPPED")}).ended  # gridtf's own doing is no success


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "COMPLETED", "STOPPED", "FAILED"])
def test_success_is_all_of_chief_and_workers_whatever_the_ps_did(state: str) -> None:
    outcome = decide(ALL, {**DONE, "ps:0": {"state": state, "ended": 1.0, "exit": 1}})
    assert outcome == Outcome(True)


def test_a_ps_that_fails_before_the_end_ends_the_job() -> None:
    records = {**DONE, **said(worker_1="RUNNING"), "ps:0": failed(5.0)}
    assert decide(ALL, records) == Outcome(True, PS)


def test_a_ps_that_exits_with_0_before_the_end_does_not_but_is_named() -> None:
    records = {**DONE, **said(chief_0="RUNNING", worker_1="RUNNING", ps_0="COMPLETED")}
    assert decide(ALL, records) == Outcome(False, early=("ps:0",), awaited=("chief:0", "worker:1"))


def test_a_leader_that_has_finished_before_the_others_is_named() -> None:
    """As a program of ParameterServerStrategy does whose workers only serve: they would do so for ever."""
    records = {**DONE, **said(worker_1="RUNNING", ps_0="RUNNING")}
    assert decide(ALL, records) == Outcome(False, early=("chief:0",), awaited=("worker:1",), leader="chief:0")
    assert decide(ALL, {**records, "worker:1": failed(1.0)}) == Outcome(True, WORKER1)  # while it is waited for
    assert decide(ALL, records, "chief").ended  # when it has been waited for long enough


def test_worker_0_leads_where_there_is_a_ps_but_no_chief() -> None:
    records = said(worker_0="COMPLETED", worker_1="RUNNING", ps_0="RUNNING")
    led = Outcome(False, early=("worker:0",), awaited=("worker:1",), leader="worker:0")
    assert decide((WORKER0, WORKER1, PS), records) == led
    assert decide((WORKER0, WORKER1, PS), said(worker_0="RUNNING", worker_1="COMPLETED")).leader == ""
    # workers by themselves may have nothing to do with each other: each of them is waited for as long as it takes
    assert decide((WORKER0, WORKER1), records) == Outcome(False)
    served = task("worker:0", served=True)
    assert decide((task("chief:0"), served, PS), said(chief_0="RUNNING", worker_0="COMPLETED")).leader == ""


@pytest.mark.parametrize("state", ["FAILED", "COMPLETED"])
def test_an_evaluator_never_ends_the_job(state: str) -> None:
    records = {**DONE, **said(worker_1="RUNNING"), "evaluator:0": {**failed(1.0), "state": state}}
    assert not decide(ALL, records).ended
    assert decide(ALL, {**records, **DONE}) == Outcome(True)


def test_an_evaluator_may_finish_after_the_training() -> None:
    assert decide(ALL, {**DONE, **said(evaluator_0="RUNNING", ps_0="RUNNING")}) == Outcome(True, None, ("evaluator:0",))
    assert decide(ALL, {**DONE, **said(evaluator_0="STOPPED")}).lingering == ()


def test_with_policy_chief_the_others_are_not_awaited() -> None:
    records = said(chief_0="COMPLETED", worker_0="RUNNING", worker_1="RUNNING", ps_0="RUNNING")
    assert decide(ALL, records, "chief") == Outcome(True)
    assert not decide(ALL, records, "all").ended
    assert not decide(ALL, {**records, **said(chief_0="RUNNING", worker_0="COMPLETED")}, "chief").ended


def test_with_policy_chief_a_worker_that_fails_before_it_ends_the_job_and_after_it_does_not() -> None:
    records = {**said(chief_0="RUNNING", worker_0="RUNNING"), "worker:1": failed(3.0)}
    assert decide(ALL, records, "chief") == Outcome(True, WORKER1)
    assert decide(ALL, {**records, **said(chief_0="COMPLETED")}, "chief") == Outcome(True)


def test_without_a_chief_worker_0_is_the_leader() -> None:
    workers = (WORKER0, WORKER1, PS)
    assert decide(workers, said(worker_0="COMPLETED", worker_1="RUNNING"), "chief") == Outcome(True)
    assert not decide(workers, said(worker_0="RUNNING", worker_1="COMPLETED"), "chief").ended


def test_a_master_leads_like_a_chief() -> None:
    master = task("master:0")
    assert decide((master, WORKER0), said(master_0="COMPLETED", worker_0="RUNNING"), "chief") == Outcome(True)
    assert decide((master, WORKER0), {"master:0": failed(1.0)}) == Outcome(True, master)


def test_served_workers_are_not_awaited_but_their_failure_counts() -> None:
    served = task("worker:0", served=True)
    tasks = (CHIEF, served, PS)
    assert decide(tasks, said(chief_0="COMPLETED", worker_0="RUNNING")) == Outcome(True)
    assert decide(tasks, {**said(chief_0="RUNNING"), "worker:0": failed(1.0)}) == Outcome(True, served)


# --- who was first


def test_the_first_failure_by_time_is_the_cause() -> None:
    records = {"chief:0": failed(9.0), "worker:0": failed(7.5), "worker:1": failed(8.0, signal="SIGKILL")}
    for order in itertools.permutations(ALL):
        assert first_failure(order, records) == WORKER0


def test_of_two_at_the_same_moment_the_one_that_a_signal_killed() -> None:
    records = {"chief:0": failed(7.0), "worker:0": failed(7.0), "worker:1": failed(7.0, signal="SIGSEGV")}
    for order in itertools.permutations(ALL):
        assert first_failure(order, records) == WORKER1


def test_only_critical_tasks_that_failed_can_be_the_cause() -> None:
    records = {
        "evaluator:0": failed(1.0, signal="SIGSEGV"),
        "worker:0": {"state": "STOPPED", "ended": 2.0, "signal": "SIGTERM"},
        "worker:1": {"state": "COMPLETED", "ended": 3.0, "exit": 0},
        "ps:0": failed(4.0),
        "worker:7": failed(0.5),  # nobody's
    }
    assert first_failure(ALL, records) == PS
    del records["ps:0"]
    assert first_failure(ALL, records) is None


def test_a_task_that_never_ran_has_no_time_and_comes_first() -> None:
    records = {"worker:0": failed(2.0), "worker:1": failed(None, code=127)}
    assert first_failure(ALL, records) == WORKER1


def _some_of(tasks: Sequence[PlacedTask]) -> list[tuple[PlacedTask, ...]]:
    return [chosen for count in range(1, 4) for chosen in itertools.combinations(tasks, count)]


@pytest.mark.parametrize("policy", ["all", "chief"])
def test_no_combination_of_states_is_both_success_and_failure(policy: str) -> None:
    states = ("", "PENDING", "RUNNING", "COMPLETED", "FAILED", "STOPPED")
    for tasks in _some_of(ALL):
        if not any(one.trains for one in tasks):
            continue
        for combination in itertools.product(states, repeat=len(tasks)):
            records = {
                one.name: {"state": state, "ended": 1.0} for one, state in zip(tasks, combination, strict=True) if state
            }
            outcome = decide(tasks, records, policy)
            trained = [records.get(one.name, {}).get("state") == "COMPLETED" for one in tasks if one.trains]
            assert outcome.ended or not all(trained)
            if outcome.cause is not None:
                assert outcome.ended
                assert records[outcome.cause.name]["state"] == "FAILED"
                assert not all(trained)
            elif outcome.ended:
                assert trained[0] if policy == "chief" else all(trained)
