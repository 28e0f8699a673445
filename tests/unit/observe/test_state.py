"""The state of a job, decided from its run directory and the scheduler's queue."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from gridtf.observe.jobs import job_view
from gridtf.observe.state import Records, decide
from gridtf.observe.views import JobView
from gridtf.run.rundir import Attempt, Record, RunDir, write_record
from gridtf.schedulers.api import JobStatus
from gridtf.states import ENDED, JobState
from gridtf.values import as_dict
from tests.support.states import CANCELLED, COMPLETED, FAILED, NODE_FAIL, PENDING, RUNNING, SAVED, TIMEOUT, UNKNOWN

NOW = 1_800_000_000.0
NONCE = "0123456789abcdef"
RUN = RunDir("/runs/digits-1")
GONE = JobStatus(UNKNOWN, "its process is gone", purged=True)
CAUSE = {"task": "worker:1", "host": "h1", "exit": None, "signal": "SIGKILL", "log": "/l", "tail": ["Killed"]}
SUBMITTED = {"job_id": "4711", "name": "digits", "scheduler": "slurm"}
CANCEL = {"user": "me", "host": "login1", "time": NOW}


def plan(nonce: str = NONCE) -> Record:
    tasks = [("worker", 0, "h0"), ("worker", 1, "h1"), ("ps", 0, "h0")]
    return {
        "nonce": nonce,
        "job": {"id": "4711", "name": "digits", "scheduler": "slurm"},
        "tasks": [{"type": kind, "index": index, "host": host} for kind, index, host in tasks],
        "spec": {"command": ["x"]},
    }


def launcher(age: float = 1.0, phase: str = "running", nonce: str = NONCE) -> Record:
    return {"nonce": nonce, "host": "h0", "pid": 7, "beat": 3, "time": NOW - age, "phase": phase, "detail": "3 tasks"}


def verdict(state: str = COMPLETED, cause: Record | None = None, nonce: str = NONCE) -> Record:
    code = 0 if state == COMPLETED else 1
    why = {"reason": f"so it {state}", "hint": "do this"}
    return {"nonce": nonce, "state": state, **why, "cause": cause, "started": 10.0, "ended": 30.0, "exit_code": code}


def records(**values: Any) -> Records:
    """Records of a job that runs its first attempt, unless values override them."""
    return Records(**{"submitted": SUBMITTED, "attempt": 1, "plan": plan(), "launcher": launcher(), **values})


def view(queue: JobStatus | None, **values: Any) -> JobView:
    return decide(RUN, records(**values), queue, NOW)


NOTHING_YET: dict[str, Any] = {"attempt": None, "plan": None, "launcher": None}


# --- a verdict decides


@pytest.mark.parametrize("state", sorted(ENDED))
@pytest.mark.parametrize("queue", [None, GONE, JobStatus(RUNNING), JobStatus(COMPLETED), JobStatus(FAILED)])
def test_verdict_decides_whatever_the_queue_reports(state: str, queue: JobStatus | None) -> None:
    seen = view(queue, verdict=verdict(state, CAUSE))
    assert (seen.state, seen.reason, seen.hint) == (state, f"so it {state}", "do this")
    assert (seen.started, seen.ended, seen.exit_code) == (10.0, 30.0, 0 if state == COMPLETED else 1)
    assert seen.cause == CAUSE


def test_scheduler_state_replaces_a_verdict_of_unknown_cause() -> None:
    unsure = {**verdict(FAILED), "again": None}
    seen = decide(RUN, records(verdict=unsure), JobStatus(NODE_FAIL, "a node of it is down"), NOW)
    assert (seen.state, seen.reason) == (
        NODE_FAIL,
        "so it FAILED; the scheduler reports NODE_FAIL, a node of it is down",
    )
    assert decide(RUN, records(verdict=unsure), GONE, NOW).reason == "so it FAILED"
    sure = {**verdict(FAILED), "again": False}
    assert decide(RUN, records(verdict=sure), JobStatus(NODE_FAIL), NOW).state == FAILED


def test_task_that_failed_before_the_launcher_was_killed_is_named_first() -> None:
    stop = {"nonce": NONCE, "state": FAILED, "reason": "worker:1 on h1: killed by SIGKILL", "task": "worker:1"}
    seen = decide(RUN, records(stop=stop), JobStatus(FAILED, "by hand"), NOW)
    assert seen.reason == (
        "ended without a verdict: worker:1 on h1: killed by SIGKILL; then the launcher on h0 ended; "
        "the scheduler reports FAILED, by hand"
    )


def test_requeued_job_is_pending_in_spite_of_its_verdict() -> None:
    seen = view(JobStatus(PENDING, "in error (Eqw)"), verdict=verdict(NODE_FAIL))
    assert seen.state == PENDING
    assert seen.reason == "queued again after attempt 1 ended NODE_FAIL; in error (Eqw)"
    assert (seen.started, seen.ended, seen.exit_code, seen.cause) == (None, None, None, None)


# --- no verdict: the queue decides, but never on COMPLETED


def test_time_of_the_submission_is_that_of_gridtf_s_own() -> None:
    own, by_hand = {"time": NOW - 60, "command": ["gridtf", "submit"]}, {"time": NOW - 60, "command": ["gridtf_run"]}
    assert view(JobStatus(RUNNING), submitted=own).submitted == NOW - 60
    assert view(JobStatus(RUNNING), submitted=by_hand).submitted is None
    assert view(JobStatus(RUNNING), submitted=own, joined=True).submitted is None


def test_output_dir_is_the_one_that_the_tasks_have() -> None:
    assert view(None).output_dir == RUN.output
    elsewhere = {"spec": {"chdir": "/home/me", "env": {"OUTPUT_DIR": "/runs/first/output"}}}
    assert view(None, job=elsewhere).output_dir == Path("/runs/first/output")
    relative = {"spec": {"chdir": "/home/me", "env": {"OUTPUT_DIR": "results"}}}
    assert view(None, job=relative).output_dir == Path("/home/me/results")


def test_pending_before_any_attempt() -> None:
    seen = view(JobStatus(PENDING, "Resources"), **NOTHING_YET)
    assert (seen.state, seen.reason, seen.attempt, seen.tasks, seen.exit_code) == (
        PENDING,
        "Resources",
        None,
        (),
        None,
    )
    assert (seen.name, seen.job_id, seen.scheduler, seen.run_dir) == ("digits", "4711", "slurm", RUN.path)


def test_reason_of_a_running_job_is_the_launcher_s_detail() -> None:
    seen = view(JobStatus(RUNNING))
    assert (seen.state, seen.phase, seen.reason) == (RUNNING, "running", "3 tasks")
    assert view(JobStatus(RUNNING), **NOTHING_YET).reason == "the job script is setting up"
    assert view(JobStatus(RUNNING), **{**NOTHING_YET, "attempt": 2}).reason == "attempt 2 begins"


def test_job_whose_host_has_not_confirmed_the_start_is_pending_until_it_has_a_log_or_a_launcher() -> None:
    queue = JobStatus(RUNNING, "not confirmed", starting=True)
    assert (view(queue, **NOTHING_YET).state, view(queue, **NOTHING_YET).reason) == (PENDING, "not confirmed")
    begun = view(queue, **NOTHING_YET, has_log=True)  # the host makes the log when the script begins
    assert (begun.state, begun.reason) == (RUNNING, "the job script is setting up")
    assert (view(queue).state, view(queue).reason) == (RUNNING, "3 tasks")


def test_job_that_ended_well_and_has_no_attempt_any_more_is_not_said_to_have_lacked_a_launcher() -> None:
    seen = view(JobStatus(COMPLETED), **NOTHING_YET, has_log=True)
    assert seen.state == FAILED
    assert seen.reason.startswith(
        "ended without a verdict: the run directory has no attempt, whose folder was removed, "
    )
    failed = view(JobStatus(FAILED), **NOTHING_YET, has_log=True)
    assert failed.reason.startswith("ended without a verdict: the job script ended before the launcher started; ")


def test_launcher_without_heartbeat_is_reported_while_the_job_runs() -> None:
    seen = view(JobStatus(RUNNING), launcher=launcher(age=600))
    assert seen.state == RUNNING
    assert "does not respond" in seen.reason
    assert "h0 about 10 min ago, if the clocks agree" in seen.reason


@pytest.mark.parametrize("queue", [GONE, JobStatus(COMPLETED), JobStatus(COMPLETED, purged=True)])
@pytest.mark.parametrize("values", [{}, {"launcher": launcher(600)}, {"launcher": None}, NOTHING_YET])
def test_job_without_verdict_is_never_completed(queue: JobStatus, values: dict[str, Any]) -> None:
    seen = view(queue, **values)
    assert seen.state == FAILED
    assert seen.reason.startswith("ended without a verdict: ")
    has_launcher = bool(values.get("launcher", True))
    assert ("the launcher on h0 ended" in seen.reason) == has_launcher
    assert ("the job wrote nothing to its run directory" in seen.reason) == (not has_launcher)
    begun = view(queue, **{**values, "has_log": True})
    if not has_launcher:
        assert "can the job's hosts see that folder?" in seen.hint
        lacks = "has no attempt" if begun.attempt is None and queue.state == COMPLETED else "ended before the launcher"
        assert lacks in begun.reason
    assert begun.hint == "see /runs/digits-1/job.log"
    assert not (has_launcher and seen.hint)  # there is no such file
    assert (seen.ended, seen.exit_code) == (None, 1)


@pytest.mark.parametrize("state", [FAILED, TIMEOUT, NODE_FAIL, CANCELLED])
def test_failure_state_of_the_queue_is_taken_over_without_a_verdict(state: JobState) -> None:
    seen = view(JobStatus(state, "NonZeroExitCode"))
    assert seen.state == state
    assert f"the scheduler reports {state}, NonZeroExitCode" in seen.reason


@pytest.mark.parametrize("queue", [GONE, JobStatus(COMPLETED), JobStatus(FAILED), JobStatus(CANCELLED)])
@pytest.mark.parametrize("values", [{}, NOTHING_YET])
def test_cancelled_without_a_verdict(queue: JobStatus, values: dict[str, Any]) -> None:
    seen = view(queue, cancelled=CANCEL, **values)
    assert (seen.state, seen.reason) == (CANCELLED, "cancelled by me on login1")


def test_hosts_killed_before_the_launcher_are_not_the_reason() -> None:
    stop = {
        "nonce": NONCE,
        "state": FAILED,
        "reason": "the process that had started the agent on host n2 was killed",
    }
    assert "on host n2 was killed" in view(GONE, stop=stop).reason
    seen = view(JobStatus(TIMEOUT, "the walltime is over (h_rt=3)"), stop=stop)
    assert seen.state == TIMEOUT
    assert "n2" not in seen.reason
    assert "h_rt=3" in seen.reason


def test_launcher_killed_while_it_ended_its_tasks_keeps_the_stop_reason() -> None:
    stop = {"nonce": NONCE, "state": TIMEOUT, "reason": "the walltime is over"}
    seen = view(JobStatus(FAILED), stop=stop)
    why = "the walltime is over; the launcher on h0 was killed before it had ended all tasks"
    assert (seen.state, seen.reason) == (TIMEOUT, why)
    assert view(GONE, stop={**stop, "state": COMPLETED}).state == FAILED
    assert view(GONE, stop={**stop, "reason": ""}).state == FAILED


def test_queue_reason_of_a_running_job_is_shown() -> None:
    assert view(JobStatus(RUNNING, "suspended")).reason == "suspended; 3 tasks"


def test_launcher_of_a_suspended_job_is_not_expected_to_respond() -> None:
    queue = JobStatus(RUNNING, "suspended: qmod -usj resumes it", suspended=True)
    assert view(queue, launcher=launcher(age=600)).reason == "suspended: qmod -usj resumes it"
    assert view(queue).reason == "suspended: qmod -usj resumes it; 3 tasks"


def test_cancelled_job_is_running_until_it_has_ended() -> None:
    assert view(JobStatus(RUNNING), cancelled=CANCEL).state == RUNNING


def test_job_is_running_while_its_written_verdict_is_not_visible_yet() -> None:
    assert view(GONE, launcher=launcher(phase="ended")).state == RUNNING
    assert view(GONE, launcher=launcher(600, phase="ended")).state == FAILED


# --- the queue was not queried


@pytest.mark.parametrize("queue", [None, JobStatus(UNKNOWN, "it runs on h0; ask there")])
def test_heartbeat_decides_without_an_answer_from_the_queue(queue: JobStatus | None) -> None:
    assert view(queue).state == RUNNING
    assert view(queue, launcher=launcher(age=-30)).state == RUNNING  # clocks differ
    silent = view(queue, launcher=launcher(age=3600))
    assert silent.state == UNKNOWN
    assert "h0 about 60 min ago, if the clocks agree" in silent.reason
    ahead = view(queue, launcher=launcher(age=-3600))
    assert ahead.state == UNKNOWN
    assert "clock of h0 is ahead" in ahead.reason
    assert (queue.reason if queue else "not queried") in silent.reason


def test_heartbeat_age_limit_follows_the_job_s_heartbeat_timeout() -> None:
    slow = {**plan(), "spec": {"heartbeat_timeout": 600.0}}
    assert view(None, plan=slow, launcher=launcher(age=900)).state == RUNNING
    assert view(None, launcher=launcher(age=900)).state == UNKNOWN


def test_state_without_queue_and_launcher() -> None:
    assert view(None, **NOTHING_YET).state == PENDING
    begun = view(None, **{**NOTHING_YET, "has_log": True})
    assert begun.state == UNKNOWN
    assert "job script has started" in begun.reason
    assert view(None, **{**NOTHING_YET, "submitted": None}).state == UNKNOWN


# --- tasks that called gridtf_join


def joined(*ranks: str | dict[str, object], age: float = 1.0, queue: JobStatus | None = None) -> JobView:
    """ranks: the states of worker:0 and worker:1, as far as their port holders have written them."""
    hosts = tuple(
        {
            "nonce": NONCE,
            "time": NOW - age,
            "tasks": {f"worker:{index}": state if isinstance(state, dict) else {"state": state}},
        }
        for index, state in enumerate(ranks)
    )
    two = {**plan(), "tasks": plan()["tasks"][:2]}
    return view(queue, submitted=None, joined=True, launcher=None, plan=two, hosts=hosts)


def test_joined_job_is_running_while_one_task_is() -> None:
    for seen in (joined("RUNNING", "RUNNING"), joined("ENDED", "RUNNING"), joined("RUNNING")):
        assert (seen.state, seen.finished) == (RUNNING, False)


def test_joined_job_is_unknown_when_its_tasks_ended_without_exit_codes() -> None:
    for seen in (joined("ENDED", "ENDED"), joined("ENDED", "RUNNING", age=3601), joined("ENDED", age=3601)):
        assert (seen.state, seen.finished, seen.exit_code) == (UNKNOWN, True, None)
        assert "none of its tasks is running any more; only the program that started them" in seen.reason
    assert joined("ENDED", "ENDED").ended == NOW - 1
    assert task_states(joined("ENDED", "RUNNING", age=3601)) == {"worker:0": "ENDED", "worker:1": UNKNOWN}


WELL = {"state": COMPLETED, "exit": 0, "ended": NOW - 2}
LEFT = {"state": SAVED, "exit": 42, "ended": NOW - 2}


@pytest.mark.parametrize(
    ("ends", "state", "reason"),
    [
        ([WELL, WELL], COMPLETED, "all training tasks have exited with 0"),
        ([WELL, {"state": FAILED, "exit": 7, "ended": NOW - 3}], FAILED, "worker:1: exit code 7"),
        ([WELL, LEFT], SAVED, "worker:1 saved a checkpoint and ended, to be continued"),
        ([LEFT, {"state": FAILED, "exit": 7, "ended": NOW - 3}], FAILED, "worker:1: exit code 7"),
        (
            [
                {"state": FAILED, "signal": "SIGTERM", "ended": NOW - 2},
                {"state": FAILED, "exit": 1, "ended": NOW - 9},
            ],
            FAILED,
            "worker:1: exit code 1",
        ),
        (
            [{"state": FAILED, "signal": "SIGSEGV", "ended": NOW}, "ENDED"],
            FAILED,
            "worker:0: killed by SIGSEGV",
        ),
    ],
)
@pytest.mark.parametrize("queue", [None, JobStatus(RUNNING), JobStatus(FAILED), GONE])
def test_exit_codes_of_joined_tasks_decide_whatever_the_queue_reports(
    ends: list[dict[str, object]], state: str, reason: str, queue: JobStatus | None
) -> None:
    seen = joined(*ends, queue=queue)
    assert (seen.state, seen.reason, seen.finished, seen.ended) == (state, reason, True, NOW - 1)
    assert seen.exit_code == {COMPLETED: 0, SAVED: 42}.get(JobState(state), 1)


@pytest.mark.parametrize("state", [COMPLETED, FAILED, CANCELLED])
@pytest.mark.parametrize("ends", [("ENDED", "ENDED"), (WELL, "ENDED"), ("RUNNING", "ENDED")])
def test_end_of_the_job_decides_for_joined_tasks_without_exit_codes(state: JobState, ends: tuple[str, str]) -> None:
    seen = joined(*ends, queue=JobStatus(state, "why"))
    assert (seen.state, seen.finished, seen.exit_code) == (state, True, int(state != COMPLETED))
    assert seen.reason == "its tasks called gridtf_join; the job that they belong to has ended, why"


def test_joined_job_whose_tasks_ended_is_running_while_the_queue_lists_it() -> None:
    seen = joined("ENDED", "ENDED", queue=JobStatus(RUNNING))
    assert (seen.state, seen.finished) == (RUNNING, False)
    unanswered = joined("ENDED", "ENDED", queue=JobStatus(UNKNOWN, "the controller does not answer"))
    assert (unanswered.state, unanswered.finished) == (UNKNOWN, False)
    for ends, age in ((("ENDED", "ENDED"), 1), (("RUNNING", "ENDED"), 600)):  # a port holder may die with its job
        forgotten = joined(*ends, age=age, queue=GONE)
        assert (forgotten.state, forgotten.finished, forgotten.exit_code) == (UNKNOWN, True, None)
    assert joined("RUNNING", "ENDED", queue=GONE).state == RUNNING


@pytest.mark.parametrize("age", [90, -90, 600])
def test_clock_difference_does_not_end_joined_tasks(age: float) -> None:
    seen = joined("RUNNING", "RUNNING", age=age)
    assert (seen.state, seen.finished) == (UNKNOWN, False)


def test_joined_job_is_unfinished_while_tasks_are_joining() -> None:
    for seen in (joined(), joined("ENDED")):
        assert (seen.state, seen.finished) == (UNKNOWN, False)
        assert "joining" in seen.reason


# --- tasks


def states(**tasks: str) -> tuple[Record, ...]:
    """Host records; worker_1="RUNNING" is worker:1's state."""
    ends = {"COMPLETED": {"exit": 0, "ended": 20.0}, "FAILED": {"exit": 3, "ended": 20.0}}
    known = {
        name.replace("_", ":"): {"state": state, "started": 12.0, **ends.get(state, {})}
        for name, state in tasks.items()
    }
    return ({"nonce": NONCE, "host": "h0", "tasks": known},)


def summary(hosts: tuple[Record, ...], nonce: str = NONCE) -> Record:
    """The record of all hosts, as the launcher writes it."""
    return {"nonce": nonce, "hosts": {host["host"]: host for host in hosts}}


def task_states(seen: JobView) -> dict[str, str]:
    return {task.name: task.state for task in seen.tasks}


def test_tasks_are_in_plan_order_and_pending_until_their_host_reports() -> None:
    seen = view(JobStatus(RUNNING), hosts=states(worker_1="RUNNING"), logs=frozenset({"worker-1.log"}))
    assert list(task_states(seen).items()) == [
        ("worker:0", PENDING),
        ("worker:1", RUNNING),
        ("ps:0", PENDING),
    ]
    assert [task.host for task in seen.tasks] == ["h0", "h1", "h0"]
    assert [task.log for task in seen.tasks] == [None, RUN.attempt(1).task_log("worker", 1), None]
    assert seen.started == 12.0


def test_running_tasks_are_stopped_or_unknown_once_the_job_has_ended() -> None:
    running = states(worker_0="RUNNING", worker_1="RUNNING")
    assert task_states(view(None, verdict=verdict(FAILED, CAUSE), hosts=running)) == {
        "worker:0": "STOPPED",
        "worker:1": FAILED,
        "ps:0": PENDING,
    }
    assert task_states(view(GONE, hosts=running))["worker:0"] == UNKNOWN  # no record of its end


def test_end_of_the_cause_is_shown_when_its_host_did_not_write_it() -> None:
    failed = view(None, verdict=verdict(FAILED, CAUSE), hosts=states(worker_1="RUNNING")).tasks[1]
    assert (failed.state, failed.signal, failed.exit) == (FAILED, "SIGKILL", None)
    written = view(None, verdict=verdict(FAILED, CAUSE), hosts=states(worker_1="FAILED")).tasks[1]
    assert (written.state, written.signal, written.exit) == (FAILED, None, 3)


# --- the reader


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "it's a run")


def attempt(run: RunDir, **written: Record) -> Attempt:
    """A new attempt in which these records are written."""
    run.path.mkdir(exist_ok=True)
    new = run.new_attempt()
    for name, record in written.items():
        write_record(getattr(new, name), record)
    return new


def seen_in(run: RunDir, queue: JobStatus | None = None) -> JobView:
    return job_view(run, SUBMITTED, queue, NOW)


def test_records_of_another_nonce_count_as_absent(run: RunDir) -> None:
    new = attempt(run, plan=plan(), verdict=verdict(nonce="stale"), launcher=launcher(nonce="stale"))
    write_record(new.summary, summary(states(worker_0="COMPLETED"), "stale"))
    seen = seen_in(run, JobStatus(RUNNING))
    assert (seen.state, seen.phase) == (RUNNING, "")
    assert set(task_states(seen).values()) == {PENDING}
    write_record(new.verdict, verdict())
    write_record(new.summary, summary(states(worker_0="COMPLETED")))
    seen = seen_in(run, JobStatus(RUNNING))
    assert (seen.state, task_states(seen)["worker:0"]) == (COMPLETED, COMPLETED)


@pytest.mark.parametrize("text", ["", '{"nonce": "n", "sta', "\0" * 300, "[]"])
def test_record_that_is_no_json_is_named(run: RunDir, text: str) -> None:
    new = attempt(run, plan=plan(), verdict=verdict(), launcher=launcher(600, phase="ended"))
    new.summary.write_text(text)
    seen = seen_in(run, GONE)
    assert (seen.state, seen.damaged) == (COMPLETED, ("attempt-1/state/hosts.json",))
    assert {*task_states(seen).values()} == {UNKNOWN}
    new.verdict.write_text(text)
    seen = seen_in(run, GONE)
    assert seen.damaged == ("attempt-1/state/hosts.json", "attempt-1/verdict.json")
    assert (seen.state, seen.reason, seen.finished) == (UNKNOWN, "attempt-1/verdict.json is damaged", True)
    write_record(new.stop, {"nonce": NONCE, "state": FAILED, "reason": "worker:1 on h1: exit code 3"})
    assert seen_in(run, GONE).reason == "worker:1 on h1: exit code 3; attempt-1/verdict.json is damaged"
    new.plan.write_text(text)
    assert "attempt-1/plan.json" in seen_in(run, GONE).damaged


def test_tasks_of_all_hosts_are_read_from_one_record(run: RunDir) -> None:
    progress = {"step": 40, "values": {"loss": 0.5}, "time": NOW}
    h0 = {"tasks": {"worker:0": {"state": RUNNING, "started": 12.0, "restarts": 2, "progress": progress}}}
    h1 = {"tasks": {"worker:1": {"state": FAILED, "started": 11.0, "exit": 3, "ended": 20.0}}, "over": True}
    new = attempt(run, plan=plan(), launcher=launcher())
    write_record(new.summary, {"nonce": NONCE, "hosts": {"h0": h0, "h1": h1, "h2": {"tasks": {}, "waits": "for GPUs"}}})
    seen = seen_in(run, JobStatus(RUNNING))
    assert task_states(seen) == {"worker:0": RUNNING, "worker:1": FAILED, "ps:0": PENDING}
    assert [task.restarts for task in seen.tasks] == [2, 0, 0]
    assert [task.progress for task in seen.tasks] == [progress, None, None]
    assert [(task.exit, task.ended) for task in seen.tasks] == [(None, None), (3, 20.0), (None, None)]
    assert (seen.state, seen.started) == (RUNNING, 11.0)


def test_what_an_agent_wrote_at_its_end_comes_after_the_record_of_all_hosts(run: RunDir) -> None:
    """It does so only where its launcher was killed; gridtf 0.1.0 had no record of all hosts."""
    begun = attempt(run, plan=plan(), launcher=launcher())
    write_record(begun.state / "@h1.json", {**states(worker_1="FAILED")[0], "host": "h1"})
    assert task_states(seen_in(run, JobStatus(RUNNING))) == {"worker:0": PENDING, "worker:1": FAILED, "ps:0": PENDING}
    write_record(begun.summary, summary(states(worker_0="RUNNING", worker_1="RUNNING")))
    assert task_states(seen_in(run, JobStatus(RUNNING))) == {"worker:0": RUNNING, "worker:1": FAILED, "ps:0": PENDING}


def test_joined_tasks_are_read_from_the_records_of_their_ranks(run: RunDir) -> None:
    new = attempt(run, plan=plan())
    new.ranks.mkdir()
    (run.path / "join-77.0").mkdir()
    for number, name in enumerate(("worker_0", "worker_1", "ps_0")):
        write_record(new.rank_state(f"rank-{number}"), {**states(**{name: RUNNING})[0], "time": NOW})
    write_record(new.rank_state("rank-3"), {**states(worker_0=FAILED)[0], "nonce": "stale"})
    seen = job_view(run, None, None, NOW)
    assert (seen.state, set(task_states(seen).values())) == (RUNNING, {RUNNING})
    write_record(new.rank_error, {"nonce": NONCE, "what": "no", "why": "", "hint": ""})  # of rank 0: no rank's record
    assert job_view(run, None, None, NOW) == seen


def test_number_of_files_that_are_opened_does_not_grow_with_the_hosts(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    open_, listdir = os.open, os.listdir

    def counted(path: Any, *more: Any, **options: Any) -> int:
        opened.append(Path(path).name)
        return open_(path, *more, **options)

    def listed(path: Any = ".") -> list[str]:
        opened.append(f"{Path(path).name}/")
        return listdir(path)

    new = attempt(run, plan=plan(), launcher=launcher())
    counts = []
    for count in (1, 200):
        hosts = {f"h{number}": {"tasks": {f"worker:{number}": {"state": RUNNING}}} for number in range(count)}
        tasks = [{"type": "worker", "index": number, "host": f"h{number}"} for number in range(count)]
        write_record(new.plan, {**plan(), "tasks": tasks})
        write_record(new.summary, {"nonce": NONCE, "hosts": hosts})
        with monkeypatch.context() as patched:
            patched.setattr(os, "open", counted)
            patched.setattr(os, "listdir", listed)
            seen = seen_in(run, JobStatus(RUNNING))
        assert [task.state for task in seen.tasks] == [RUNNING] * count
        counts.append(sorted(opened))
        opened.clear()
    assert "hosts.json" in counts[0]
    assert counts[0] == counts[1]


def test_verdict_without_a_plan_counts(run: RunDir) -> None:
    attempt(run, verdict=verdict(FAILED))
    seen = seen_in(run)
    assert (seen.state, seen.tasks) == (FAILED, ())


def test_latest_attempt_counts(run: RunDir) -> None:
    attempt(run, plan=plan("first"), verdict=verdict(FAILED, nonce="first"))
    attempt(run, plan=plan("second"), launcher=launcher(nonce="second"))
    seen = seen_in(run, JobStatus(RUNNING))
    assert (seen.state, seen.attempt) == (RUNNING, 2)
    assert seen_in(run, GONE).state == FAILED
    assert "without a verdict" in seen_in(run, GONE).reason


def test_end_of_the_job_script_s_log_is_shown_without_a_verdict(run: RunDir) -> None:
    run.path.mkdir()
    run.log.write_text("".join(f"line {number}\n" for number in range(100)) + "module: command not found\n")
    seen = seen_in(run, GONE)
    assert seen.cause is not None
    assert seen.cause["task"] is None
    assert seen.cause["log"] == str(run.log)
    assert (len(seen.cause["tail"]), seen.cause["tail"][-1]) == (20, "module: command not found")
    write_record(run.cancelled, CANCEL)
    assert seen_in(run, GONE).state == CANCELLED


def test_other_users_see_state_and_verdict_without_private_records(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt(run, plan=plan(), verdict=verdict(FAILED))
    write_record(run.job, {"spec": {}})
    monkeypatch.setattr(os, "access", lambda *_: False)
    seen = job_view(run, None, None, NOW)
    assert (seen.state, seen.reason, seen.tasks) == (FAILED, "so it FAILED", ())


def test_empty_or_missing_run_directory_is_no_error(run: RunDir) -> None:
    assert seen_in(run, JobStatus(PENDING)).state == PENDING
    seen = job_view(run, None, None, NOW)
    assert (seen.state, seen.name, seen.job_id) == (UNKNOWN, run.path.name, "")


def test_view_can_be_printed_as_json(run: RunDir) -> None:
    attempt(run, plan=plan(), verdict=verdict(FAILED, CAUSE))
    plain = json.loads(json.dumps(as_dict(seen_in(run)), default=str))
    assert plain["cause"] == CAUSE
    assert plain["tasks"][0]["name"] == "worker:0"
    assert plain["run_dir"] == str(run.path)


def array(queue: JobStatus | None, *states: str | None) -> JobView:
    elements = {str(number): verdict(state) if state else None for number, state in enumerate(states)}
    return decide(RUN, Records(submitted={"job_id": "7"}, elements=elements), queue, 0.0)


def test_array_has_the_cause_of_its_first_failed_element() -> None:
    elements = {"0": verdict(COMPLETED), "1": verdict(FAILED), "2": verdict(FAILED, CAUSE), "3": None}
    records = Records(submitted={"job_id": "7"}, elements=elements)
    assert decide(RUN, records, JobStatus(UNKNOWN, purged=True), 0.0).cause == CAUSE
    assert decide(RUN, records, JobStatus(RUNNING), 0.0).cause is None


def test_only_a_waiting_job_is_expected_to_start() -> None:
    queue = JobStatus(PENDING, "Resources", expected=5.0)
    assert decide(RUN, Records(submitted={"job_id": "7"}), queue, 0.0).expected == 5.0
    assert decide(RUN, Records(submitted={"job_id": "7"}, joined=True), queue, 0.0).expected is None


def test_state_of_a_job_array_sums_up_its_elements() -> None:
    gone = JobStatus(UNKNOWN, purged=True)
    assert array(gone, COMPLETED, COMPLETED).state == COMPLETED
    failed = array(gone, COMPLETED, TIMEOUT, COMPLETED)
    assert failed.state == TIMEOUT
    assert failed.reason == "array of 3: 2 COMPLETED, 1 TIMEOUT; element 1 TIMEOUT: so it TIMEOUT"
    assert failed.hint == f"one element: gridtf status {RUN.elements / '1'}"
    assert array(gone, COMPLETED, SAVED).exit_code == 42
    assert array(gone, SAVED, FAILED, COMPLETED).state == FAILED
    many = array(gone, None, *[FAILED] * 6)
    assert many.reason.count("so it FAILED") == 3
    why = "element 3 FAILED: so it FAILED; also failed: elements 4, 5, 6; without a verdict: element 0"
    assert many.reason.endswith(why)
    lost = array(gone, COMPLETED, None)
    assert (lost.state, lost.reason) == (FAILED, "array of 2: 1 COMPLETED, 1 without a verdict")
    assert lost.hint == f"one element: gridtf status {RUN.elements / '1'}"
    assert array(JobStatus(COMPLETED), COMPLETED, None).state == FAILED
    assert array(JobStatus(RUNNING), COMPLETED, None).state == RUNNING
    assert array(None, COMPLETED, None).state == UNKNOWN


def test_job_to_be_restarted_is_pending_while_its_scheduler_lists_it() -> None:
    """Between the two starts Slurm reports COMPLETING, and RUNNING until the second launcher starts."""
    again = {**verdict(CANCELLED), "again": True}
    assert view(JobStatus(RUNNING, "ending"), verdict=again).state == PENDING
    assert view(JobStatus(RUNNING), verdict=verdict(CANCELLED)).state == CANCELLED
    assert view(GONE, verdict=again).state == CANCELLED


def test_attempt_that_is_followed_in_its_allocation_is_not_the_end_of_the_job() -> None:
    """A listing of the run directory may be older than the verdict, and lack the attempt that follows."""
    followed = {**verdict(FAILED), "next": 2}
    for queue in (None, JobStatus(RUNNING)):
        seen = view(queue, verdict=followed)
        assert (seen.state, seen.reason, seen.finished) == (RUNNING, "attempt 2 follows one that ended FAILED", False)
    assert view(GONE, verdict=followed).state == FAILED


def test_job_that_is_cancelled_while_it_waits_for_its_next_start_is_cancelled() -> None:
    again = {**verdict("SAVED"), "again": True}
    seen = view(JobStatus(CANCELLED, "by alice"), verdict=again)
    assert (seen.state, seen.reason) == (CANCELLED, "so it SAVED; the scheduler reports CANCELLED, by alice")
    assert view(JobStatus(FAILED, "exit code 42"), verdict=again).state == "SAVED"  # the first start's


@pytest.mark.parametrize("state", sorted(ENDED - {COMPLETED}))
def test_failed_job_is_unfinished_while_its_scheduler_lists_it(state: JobState) -> None:
    """Slurm's COMPLETING, and Grid Engine's r after its shepherd was killed, may be followed by another start."""
    seen = view(JobStatus(RUNNING, "ending"), verdict=verdict(state))
    assert (seen.state, seen.in_queue, seen.finished) == (state, True, False)
    for queue in (GONE, None, JobStatus(state), JobStatus(UNKNOWN, "no answer")):
        seen = view(queue, verdict=verdict(state))
        assert (seen.state, seen.in_queue, seen.finished) == (state, False, True)


def test_completed_and_hand_written_jobs_are_finished_while_the_scheduler_lists_them() -> None:
    seen = view(JobStatus(RUNNING), verdict=verdict(COMPLETED))
    assert (seen.in_queue, seen.finished) == (True, True)  # still worth a cancel
    by_hand = {**SUBMITTED, "command": ["gridtf_run"]}
    seen = view(JobStatus(RUNNING), verdict=verdict(FAILED), submitted=by_hand)
    assert (seen.in_queue, seen.finished) == (False, True)
    assert view(JobStatus(PENDING), verdict=verdict(FAILED), submitted=by_hand).state == PENDING


def test_requeued_job_has_no_running_tasks() -> None:
    """After KILL or a power cut, no record says how the tasks of the first attempt ended."""
    hosts = ({"nonce": NONCE, "host": "h0", "tasks": {"worker:0": {"state": RUNNING, "started": 1.0}}},)
    assert view(JobStatus(RUNNING), hosts=hosts).tasks[0].state == RUNNING
    assert view(JobStatus(PENDING), hosts=hosts).tasks[0].state == UNKNOWN
    assert view(JobStatus(PENDING), hosts=hosts, verdict=verdict(FAILED)).tasks[0].state == "STOPPED"


def test_how_the_tasks_of_a_lost_host_ended_is_not_known() -> None:
    lost = ({"nonce": NONCE, "host": "h0", "tasks": {"worker:0": {"state": RUNNING, "started": 1.0}}},)
    assert view(None, hosts=lost, verdict=verdict("NODE_FAIL")).tasks[0].state == UNKNOWN


def test_job_cancelled_while_pending() -> None:
    seen = view(JobStatus(CANCELLED, "while it waited (Resources)"), **NOTHING_YET)
    assert (seen.state, seen.reason) == (CANCELLED, "cancelled before it started, while it waited (Resources)")
    assert seen.hint == ""


@pytest.mark.parametrize(
    ("queue", "reason"),
    [
        (JobStatus(CANCELLED, "deleted with qdel"), "deleted with qdel during the set-up"),
        (JobStatus(CANCELLED, "by alice", by="alice"), "CANCELLED by alice during the set-up"),
        (JobStatus(CANCELLED), "CANCELLED during the set-up"),
        (JobStatus(TIMEOUT, "the walltime is over"), "the walltime is over during the set-up"),
    ],
)
def test_queue_reason_explains_an_end_during_the_set_up(queue: JobStatus, reason: str) -> None:
    seen = view(queue, **NOTHING_YET, has_log=True)
    assert (seen.state, seen.reason, seen.unexplained) == (queue.state, reason, False)
    assert view(GONE, **NOTHING_YET, has_log=True).unexplained


def test_launcher_is_reported_killed_only_when_the_queue_says_so() -> None:
    assert "the launcher on h0 ended; the sch" in view(JobStatus(FAILED, "its script ended with exit code 1")).reason
    assert view(GONE).reason == "ended without a verdict: the launcher on h0 ended"
    why = "killed by SIGKILL: by a user"
    killed = view(JobStatus(FAILED, f"its script was {why}", killed=why)).reason
    assert killed == "ended without a verdict: the launcher on h0 was killed by SIGKILL: by a user"


def test_hint_does_not_refer_to_an_empty_log(run: RunDir) -> None:
    attempt(run, plan=plan(), launcher=launcher())
    for printed, hint in (("", ""), ("cannot list it\n", f"see {run.log}")):
        run.log.write_text(printed)
        seen = seen_in(run, GONE)
        assert (seen.state, seen.hint, seen.cause is not None) == (FAILED, hint, bool(printed))


@pytest.mark.parametrize(
    ("printed", "state", "reason"),
    [
        ("gridtf: TIMEOUT: the walltime is over\n", TIMEOUT, "the walltime is over"),
        ("gridtf: COMPLETED: all have exited with 0\n", FAILED, "COMPLETED: all have exited with 0"),
        ("gridtf: NODE_FAIL: n1 is lost\ngridtf: FAILED: x\ngridtf: it printed nothing: y\n", FAILED, "x"),
    ],
)
def test_end_that_the_launcher_could_only_print_is_that_of_the_log(
    run: RunDir, printed: str, state: JobState, reason: str
) -> None:
    attempt(run, plan=plan(), launcher=launcher())
    run.log.write_text(printed)
    seen = seen_in(run, JobStatus(FAILED))
    assert (seen.state, seen.reason, seen.unexplained) == (state, f"{reason}; its verdict could not be written", False)


def test_end_of_another_job_that_setup_has_shown_is_not_that_of_the_launcher(run: RunDir) -> None:
    attempt(run, plan=plan(), launcher={**launcher(), "began": time.time() + 1.0})
    run.log.write_text("gridtf: TIMEOUT: the walltime is over\n")
    assert seen_in(run, JobStatus(FAILED)).reason.startswith("ended without a verdict: the launcher on h0 ended")


def test_end_that_an_earlier_launcher_has_printed_is_not_that_of_the_latest(run: RunDir) -> None:
    attempt(run, plan=plan(), verdict=verdict(FAILED))
    attempt(run, plan=plan("second"), launcher=launcher(nonce="second"))
    run.log.write_text("gridtf: FAILED: so it FAILED\n")
    assert seen_in(run, JobStatus(FAILED)).reason.startswith("ended without a verdict: the launcher on h0 ended")


def test_missing_heartbeat_is_reported_after_twice_the_heartbeat_timeout() -> None:
    """The local scheduler's jobs run on this host, so there is only one clock."""
    spec = {"heartbeat_timeout": 100.0}
    for scheduler, age in (("slurm", "about 3 min ago, if the clocks agree"), ("local", "about 3 min ago")):
        values = {"plan": {**plan(), "spec": spec}, "submitted": {**SUBMITTED, "scheduler": scheduler}}
        assert view(JobStatus(RUNNING), **values, launcher=launcher(age=199)).reason == "3 tasks"
        seen = view(JobStatus(RUNNING), **values, launcher=launcher(age=201))
        assert seen.reason == f"the launcher does not respond: last heartbeat from h0 {age}"


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        (
            "sh: conda: not found\n\ngridtf: n1: set-up line 2 (--setup) failed with exit code 127: line 44\n",
            "set-up line 2 (--setup) failed with exit code 127 on n1; last output: sh: conda: not found",
        ),
        ("gridtf: n1: set-up line 2 failed with exit code 1\n", "set-up line 2 failed with exit code 1 on n1"),
        ("gridtf: n1: the working folder does not exist\n", "ended without a verdict: the job script ended before"),
    ],
)
def test_failed_set_up_line_is_the_reason(run: RunDir, printed: str, reason: str) -> None:
    run.path.mkdir()
    run.log.write_text(printed)
    seen = job_view(run, SUBMITTED, JobStatus(FAILED, "NonZeroExitCode"), NOW)
    assert seen.reason.startswith(reason)


@pytest.mark.parametrize(
    ("printed", "hint"),
    [
        ("job.sh: line 44: module: command not found", "source /etc/profile.d/modules.sh"),
        ("/run/job.sh: line 4: ml: command not found", "source /etc/profile.d/modules.sh"),
        ("job.sh: line 44: conda: command not found", "source CONDA/etc/profile.d/conda.sh"),
        ("job.sh: line 44: mamba: command not found", "source CONDA/etc/profile.d/mamba.sh"),
        ("CondaError: Run 'conda init' before 'conda activate'", 'eval "$(conda shell.bash hook)"'),
        ("job.sh: line 44: mdule: command not found", ""),
    ],
)
def test_missing_shell_function_of_a_set_up_line_has_a_hint(run: RunDir, printed: str, hint: str) -> None:
    run.path.mkdir()
    run.log.write_text(f"{printed}\n\ngridtf: n1: set-up line 1 (--setup) failed with exit code 127: line 44\n")
    seen = job_view(run, SUBMITTED, JobStatus(FAILED, "NonZeroExitCode"), NOW)
    assert seen.reason.endswith(f"; last output: {printed}")
    if hint:
        assert hint in seen.hint
    else:
        assert seen.hint == f"see {run.log}"
