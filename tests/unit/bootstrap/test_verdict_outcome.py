"""Whether an attempt goes on, has succeeded or has failed. Which task was the cause: test_blame.py."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from gridtf.bootstrap.judge.verdict import Outcome, decide
from gridtf.bootstrap.plan.placement import PlacedTask
from tests.support.plans import task

CHIEF, WORKER0, WORKER1 = task("chief:0"), task("worker:0", rank=1), task("worker:1", rank=2)
PS, EVALUATOR = task("ps:0"), task("evaluator:0")
ALL = (CHIEF, WORKER0, WORKER1, PS, EVALUATOR)


def reported(**states: str | dict[str, Any]) -> dict[str, dict[str, Any]]:
    """reported(worker_0="RUNNING"): records of tasks as their hosts report them; a dict for more than the state."""
    return {
        name.replace("_", ":"): {"state": state} if isinstance(state, str) else state for name, state in states.items()
    }


def failed(ended: float | None, *, signal: str | None = None, code: int | None = 1) -> dict[str, Any]:
    return {"state": "FAILED", "ended": ended, "signal": signal, "exit": None if signal else code}


DONE = reported(chief_0="COMPLETED", worker_0="COMPLETED", worker_1="COMPLETED")


def test_attempt_goes_on_while_a_training_task_runs() -> None:
    assert not decide(ALL, {}).ended
    assert not decide(ALL, reported(chief_0="PENDING")).ended
    assert not decide(ALL, {**DONE, **reported(worker_1="RUNNING", ps_0="RUNNING")}).ended
    assert not decide(
        ALL, {**DONE, **reported(worker_1="STOPPED")}
    ).ended  # a task that gridtf stopped has not succeeded


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "COMPLETED", "STOPPED", "FAILED"])
def test_success_needs_chief_and_workers_but_no_ps(state: str) -> None:
    outcome = decide(ALL, {**DONE, "ps:0": {"state": state, "ended": 1.0, "exit": 1}})
    assert outcome == Outcome(True)


def test_chosen_first_worker_leads_without_ps() -> None:
    records = reported(worker_0="COMPLETED", worker_1="RUNNING")
    assert decide((WORKER0, WORKER1), records).leader == ""
    assert decide((WORKER0, WORKER1), records, leader="first-worker").leader == "worker:0"


def test_types_of_the_job_s_own_count_by_their_kind() -> None:
    own = {kind: task(f"{kind}:0", rank=1 if kind == "client" else None) for kind in ("service", "member", "client")}
    service, member, client = (placed.replace(kind=kind) for kind, placed in own.items())
    tasks = (WORKER0, client, member.replace(in_cluster=True), service.replace(in_cluster=False))
    running = reported(worker_0="RUNNING", client_0="COMPLETED")
    assert not decide(tasks, {**running, "service:0": failed(1.0)}).ended
    assert decide(tasks, {**running, "member:0": failed(1.0)}).cause == tasks[2]
    assert decide(tasks, {**running, "client:0": failed(1.0)}).cause == client
    assert decide(tasks, {**running, "worker:0": {"state": "COMPLETED"}}) == Outcome(True)


def test_ps_failure_before_the_end_fails_the_job() -> None:
    records = {**DONE, **reported(worker_1="RUNNING"), "ps:0": failed(5.0)}
    assert decide(ALL, records) == Outcome(True, PS)


def test_ps_that_exits_with_0_early_is_named() -> None:
    records = {**DONE, **reported(chief_0="RUNNING", worker_1="RUNNING", ps_0="COMPLETED")}
    assert decide(ALL, records) == Outcome(False, early=("ps:0",), awaited=("chief:0", "worker:1"))


def test_leader_that_finishes_early_is_named() -> None:
    """As in a program of ParameterServerStrategy, whose workers only serve and never end."""
    records = {**DONE, **reported(worker_1="RUNNING", ps_0="RUNNING")}
    assert decide(ALL, records) == Outcome(False, early=("chief:0",), awaited=("worker:1",), leader="chief:0")
    assert decide(ALL, {**records, "worker:1": failed(1.0)}) == Outcome(True, WORKER1)  # while it is waited for
    assert decide(ALL, records, "chief").ended  # when it has been waited for long enough


def test_worker_0_leads_with_ps_and_without_chief() -> None:
    records = reported(worker_0="COMPLETED", worker_1="RUNNING", ps_0="RUNNING")
    led = Outcome(False, early=("worker:0",), awaited=("worker:1",), leader="worker:0")
    assert decide((WORKER0, WORKER1, PS), records) == led
    assert decide((WORKER0, WORKER1, PS), reported(worker_0="RUNNING", worker_1="COMPLETED")).leader == ""
    # workers by themselves may have nothing to do with each other: each of them is waited for as long as it takes
    assert decide((WORKER0, WORKER1), records) == Outcome(False)
    served = task("worker:0", served=True)
    assert decide((task("chief:0"), served, PS), reported(chief_0="RUNNING", worker_0="COMPLETED")).leader == ""


@pytest.mark.parametrize("state", ["FAILED", "COMPLETED"])
def test_evaluator_never_ends_the_job(state: str) -> None:
    records = {**DONE, **reported(worker_1="RUNNING"), "evaluator:0": {**failed(1.0), "state": state}}
    assert not decide(ALL, records).ended
    assert decide(ALL, {**records, **DONE}) == Outcome(True)


def test_evaluator_lingers_after_the_training() -> None:
    assert decide(ALL, {**DONE, **reported(evaluator_0="RUNNING", ps_0="RUNNING")}) == Outcome(
        True, None, ("evaluator:0",)
    )
    assert decide(ALL, {**DONE, **reported(evaluator_0="STOPPED")}).lingering == ()


def test_policy_chief_awaits_only_the_chief() -> None:
    records = reported(chief_0="COMPLETED", worker_0="RUNNING", worker_1="RUNNING", ps_0="RUNNING")
    assert decide(ALL, records, "chief") == Outcome(True)
    assert not decide(ALL, records, "all").ended
    assert not decide(ALL, {**records, **reported(chief_0="RUNNING", worker_0="COMPLETED")}, "chief").ended


def test_policy_chief_ignores_the_failure_of_a_worker_but_not_of_a_ps() -> None:
    records = {**reported(chief_0="RUNNING", worker_0="RUNNING"), "worker:1": failed(3.0)}
    assert not decide(ALL, records, "chief").ended
    assert decide(ALL, records, "all") == Outcome(True, WORKER1)
    assert decide(ALL, {**records, "ps:0": failed(4.0)}, "chief") == Outcome(True, PS)
    assert decide(ALL, {**records, **reported(chief_0="FAILED")}, "chief").cause == CHIEF
    assert decide(ALL, {**records, **reported(chief_0="COMPLETED")}, "chief") == Outcome(True)


def test_policy_chief_without_chief_awaits_worker_0() -> None:
    workers = (WORKER0, WORKER1, PS)
    assert decide(workers, reported(worker_0="COMPLETED", worker_1="RUNNING"), "chief") == Outcome(True)
    assert not decide(workers, reported(worker_0="RUNNING", worker_1="COMPLETED"), "chief").ended


def test_master_leads_like_chief() -> None:
    master = task("master:0")
    assert decide((master, WORKER0), reported(master_0="COMPLETED", worker_0="RUNNING"), "chief") == Outcome(True)
    assert decide((master, WORKER0), {"master:0": failed(1.0)}) == Outcome(True, master)


def test_served_workers_are_not_awaited_but_their_failure_counts() -> None:
    served = task("worker:0", served=True)
    tasks = (CHIEF, served, PS)
    assert decide(tasks, reported(chief_0="COMPLETED", worker_0="RUNNING")) == Outcome(True)
    assert decide(tasks, {**reported(chief_0="RUNNING"), "worker:0": failed(1.0)}) == Outcome(True, served)


# --- tasks that have saved a checkpoint, to be continued (exit code 42)


def test_job_ends_when_all_training_tasks_have_saved_or_finished() -> None:
    saved = reported(chief_0="SAVED", worker_0="SAVED", worker_1="SAVED", ps_0="RUNNING", evaluator_0="RUNNING")
    assert decide(ALL, saved) == Outcome(True, saved=("chief:0", "worker:0", "worker:1"))
    assert decide(ALL, {**saved, **reported(chief_0="COMPLETED", worker_0="COMPLETED")}).saved == ("worker:1",)
    assert decide(ALL, reported(chief_0="SAVED", worker_0="RUNNING"), "chief") == Outcome(True, saved=("chief:0",))


def test_task_that_has_saved_is_no_failure_while_others_still_save() -> None:
    records = reported(chief_0="RUNNING", worker_0="SAVED", worker_1="RUNNING")
    assert decide(ALL, records) == Outcome(False, awaited=("chief:0", "worker:1"), saved=("worker:0",))
    assert decide(ALL, {**records, "worker:1": failed(1.0)}) == Outcome(True, WORKER1)


def test_task_that_does_not_train_has_nothing_to_save() -> None:
    records = {**reported(chief_0="RUNNING"), "ps:0": {"state": "SAVED", "ended": 1.0, "exit": 42}}
    assert decide(ALL, records) == Outcome(True, PS)


def _some_of(tasks: Sequence[PlacedTask]) -> list[tuple[PlacedTask, ...]]:
    return [chosen for count in range(1, 4) for chosen in itertools.combinations(tasks, count)]


@pytest.mark.parametrize("policy", ["all", "chief"])
def test_outcome_is_never_both_success_and_failure(policy: str) -> None:
    states = ("", "RUNNING", "COMPLETED", "FAILED", "STOPPED", "SAVED")
    for tasks in _some_of(ALL):
        if not any(one.trains for one in tasks):
            continue
        for combination in itertools.product(states, repeat=len(tasks)):
            records = {
                one.name: {"state": state, "ended": 1.0} for one, state in zip(tasks, combination, strict=True) if state
            }
            outcome = decide(tasks, records, policy)
            ends = [records.get(one.name, {}).get("state") for one in tasks if one.trains]
            trained = [end in ("COMPLETED", "SAVED") for end in ends]
            assert bool(outcome.saved) <= ("SAVED" in ends)
            assert outcome.ended or not all(trained)
            if outcome.cause is not None:
                assert outcome.ended
                assert records[outcome.cause.name]["state"] in (
                    ("FAILED",) if outcome.cause.trains else ("FAILED", "SAVED")
                )
                assert not all(trained)
            elif outcome.ended:
                assert trained[0] if policy == "chief" else all(trained)
