"""Whether an attempt goes on, has succeeded or has failed. Which task was the cause: test_blame.py."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from gridtf.bootstrap.judge.evidence import Evidence
from gridtf.bootstrap.judge.outcome import Outcome, decide, of_saved, of_success, of_timeout
from gridtf.bootstrap.judge.verdict import Verdict, conclude
from gridtf.bootstrap.plan.placement import PlacedTask
from gridtf.jobspec.spec import JobSpec
from tests.support.plans import task
from tests.support.states import COMPLETED, FAILED, SAVED, TIMEOUT

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


# --- how it has ended

CLUSTER = (task("chief:0"), task("worker:0", rank=1), task("worker:1", rank=2), task("ps:0"), task("evaluator:0"))


def states(**told: str) -> dict[str, dict[str, Any]]:
    return {name.replace("_", ":"): {"state": state} for name, state in told.items()}


def ended(how: Callable[..., Evidence], *about: Any, **more: Any) -> Verdict:
    return conclude(how(*about, **more))


def test_of_success_names_tasks_stopped_after_leader_wait() -> None:
    spec = JobSpec(command=["x"], leader_wait=20.0)
    records = states(chief_0="COMPLETED", worker_0="COMPLETED", worker_1="RUNNING", ps_0="RUNNING")
    found = ended(of_success, CLUSTER, records, "chief", spec)
    assert found.reason == "chief:0 has exited with 0; worker:1 was still running and was stopped"
    hint = "did they train on, or wait for the leader, which has ended? their logs may say; --leader-wait allows more "
    assert (found.state, found.hint) == (COMPLETED, f"{hint}than 20 s")
    chosen = ended(of_success, CLUSTER, records, "chief", JobSpec(command=["x"], success_policy="chief"))
    assert (chosen.reason, chosen.hint) == ("chief:0 has exited with 0", "")  # as the user requested
    workers = states(worker_0="COMPLETED", worker_1="RUNNING", worker_2="RUNNING")
    tasks = [*CLUSTER[1:], task("worker:2", rank=2)]
    reason = "worker:0 has exited with 0; worker:1, worker:2 were still running and were stopped"
    assert ended(of_success, tasks, workers, "chief", spec).reason == reason


def test_restarts_are_reported() -> None:
    records = {**states(chief_0="COMPLETED", worker_0="RUNNING"), "worker:1": {"state": "RUNNING", "restarts": 2}}
    served = [task(f"worker:{index}", served=True) for index in range(2)]
    found = ended(of_success, [CLUSTER[0], *served], records, "all", JobSpec(command=["x"]))
    assert found.reason == "all training tasks have exited with 0; 2 restarts of worker:1 after a failure"


def test_of_success_tells_of_data_workers_without_a_dataset() -> None:
    records = states(chief_0="COMPLETED", worker_0="COMPLETED", worker_1="COMPLETED")
    found = ended(of_success, CLUSTER, records, "all", JobSpec(command=["x"]), distributed=False)
    assert found.reason == "all training tasks have exited with 0; the data workers were given no dataset"
    assert "training.data.distribute(dataset)" in found.hint


def test_of_success_names_a_stopped_evaluator() -> None:
    records = states(chief_0="COMPLETED", worker_0="COMPLETED", worker_1="COMPLETED", evaluator_0="RUNNING")
    found = ended(of_success, CLUSTER, records, "all", JobSpec(command=["x"]))
    assert found.reason == (
        "all training tasks have exited with 0; evaluator:0 was still running 60 s after the training and was stopped"
    )
    assert found.hint == "--evaluator-wait allows an evaluator more time"


def test_of_timeout_names_tasks_that_had_finished() -> None:
    records = states(chief_0="COMPLETED", worker_0="RUNNING", worker_1="COMPLETED", ps_0="RUNNING")
    found = ended(of_timeout, "the walltime is over", CLUSTER, records)
    assert (found.state, found.why) == (TIMEOUT, "chief:0, worker:1 had exited with 0, worker:0 had not")
    assert found.hint == "request more with --time; if the job is done when chief:0 is: --success-policy chief"
    found = ended(of_timeout, "the walltime is over", CLUSTER[1:], states(worker_1="COMPLETED"))
    assert (found.why, found.hint) == ("worker:1 had exited with 0, worker:0 had not", "request more with --time")
    plain = ended(of_timeout, "the walltime is over", CLUSTER, {})
    assert plain == Verdict(TIMEOUT, "the walltime is over", hint="request more with --time")

    unheeded = ended(of_timeout, "the walltime is over", CLUSTER, {}, requested=True)
    assert unheeded.why == "a checkpoint was requested, and chief:0, worker:0, worker:1 did not end"
    assert unheeded.hint.startswith("does the program ask gridtf.checkpoint_requested() after each step")
    found = ended(
        of_timeout, "the walltime is over", CLUSTER, states(chief_0="RUNNING", worker_0="SAVED"), requested=True
    )
    assert found.why == "worker:0 had saved a checkpoint (exit code 42)"


def test_of_timeout_names_the_first_task_that_had_not_ended_after_an_exception() -> None:
    noted = {"type": "ValueError", "message": "bad", "place": "train.py:3", "time": 7.0, "pid": 5}
    later = {**noted, "type": "RuntimeError", "time": 9.0}
    records: dict[str, Any] = {
        **states(chief_0="RUNNING", worker_0="RUNNING", worker_1="RUNNING"),
        "chief:0": {"state": "RUNNING", "pid": 5, "exception": later},
        "worker:0": {"state": "RUNNING", "pid": 5, "exception": noted},
        "worker:1": {"state": "RUNNING", "pid": 6, "exception": {**noted, "time": 1.0}},  # a child's, perhaps caught
    }
    found = ended(of_timeout, "the walltime is over", CLUSTER, records)
    host = next(task.host for task in CLUSTER if task.name == "worker:0")
    assert found.state == TIMEOUT
    assert found.reason == f"the walltime is over; worker:0 on {host} had not ended after ValueError: bad (train.py:3)"
    assert "gridtf stacks" in found.hint


def test_of_saved_asks_to_continue() -> None:
    spec = JobSpec(leader_wait=30.0, name="digits")
    found = ended(of_saved, CLUSTER, states(chief_0="SAVED", worker_0="SAVED", worker_1="COMPLETED"), "all", spec)
    assert (found.state, found.exit_code) == (SAVED, 42)
    assert found.reason == "chief:0, worker:0 saved a checkpoint and ended (exit code 42), to be continued"
    expected = 'to continue with its checkpoints, submit it again with --env OUTPUT_DIR="$(gridtf output digits)"'
    assert found.hint == expected


def test_of_saved_names_those_who_did_not_end_and_fails_without_the_leader() -> None:
    spec = JobSpec(leader_wait=30.0)
    found = ended(of_saved, CLUSTER, states(chief_0="SAVED", worker_0="RUNNING", worker_1="SAVED"), "all", spec)
    assert found.state == SAVED
    assert found.reason.endswith("to be continued; worker:0 was still running 30 s later and was stopped")
    assert ended(of_saved, CLUSTER, states(chief_0="SAVED"), "chief", spec).reason.endswith("to be continued")
    found = ended(of_saved, CLUSTER, states(chief_0="RUNNING", worker_0="SAVED", worker_1="COMPLETED"), "all", spec)
    assert (found.state, found.exit_code) == (FAILED, 1)
    expected = "worker:0 saved a checkpoint and ended (exit code 42), but chief:0 was still running 30 s later"
    assert found.reason == expected
    assert "--leader-wait" in found.hint
