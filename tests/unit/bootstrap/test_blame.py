"""Which task is the first cause, where most messages tell of another one's end; texts are TensorFlow 2.21's."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from gridtf.bootstrap.judge import verdict
from gridtf.bootstrap.judge.blame import EXITED, FAILED, LOST, SILENT, Cause, accused, find, is_consequence, raised
from gridtf.bootstrap.judge.outcome import first_cause
from gridtf.bootstrap.judge.verdict import of_other
from gridtf.bootstrap.plan.placement import PlacedTask
from gridtf.run.rundir import Attempt, RunDir
from tests.support.plans import task

CHIEF, PS, EVALUATOR = task("chief:0"), task("ps:0"), task("evaluator:0")
W0, W1, W2 = (task(f"worker:{number}", f"n{number + 1}", rank=number) for number in range(3))
WORKERS = (W0, W1, W2)
ALL = (CHIEF, W0, W1, PS, EVALUATOR)


def failed(ended: float | None, *, signal: str | None = None, code: int = 1, **more: Any) -> dict[str, Any]:
    return {"state": "FAILED", "ended": ended, "signal": signal, "exit": None if signal else code, "pid": 7, **more}


def noted(time: float, message: str = "bad label 11", pid: int = 7, kind: str = "ValueError") -> dict[str, Any]:
    return {"type": kind, "message": message, "place": "train.py:41", "time": time, "pid": pid}


def closed(*others: int) -> str:
    """What a worker says whose connection to another one was closed."""
    remote = "".join(
        f"\nAdditional GRPC error information from remote target /job:worker/replica:0/task:{number} while calling"
        for number in others
    )
    return f"Collective ops is aborted by: Socket closed{remote}"


LEADER_GONE = (
    "Failed to send RPC to coordination service. Either the leader task was preempted/died/restarted unexpectedly or "
    "this task is experiencing network issues. /job:worker/replica:0/task:0"
)
SILENT_TASKS = (
    "The following tasks are unhealthy (stopped sending heartbeats):\n"
    "/job:worker/replica:0/task:2\nThe tasks have crashed."
)


# --- failures of their own: the earliest


def test_cause_is_the_earliest_failure() -> None:
    records = {"chief:0": failed(9.0), "worker:0": failed(7.5), "worker:1": failed(8.0, signal="SIGKILL")}
    for order in itertools.permutations((CHIEF, W0, W1)):
        assert find(ALL, order, records, {}) == Cause(W0, FAILED)


def test_cause_of_two_at_the_same_time_is_the_killed_task() -> None:
    records = {"chief:0": failed(7.0), "worker:0": failed(7.0), "worker:1": failed(7.0, signal="SIGSEGV")}
    for order in itertools.permutations((CHIEF, W0, W1)):
        assert find(ALL, order, records, {}) == Cause(W1, FAILED)


def test_cause_is_a_task_that_never_started() -> None:
    records = {"worker:0": failed(2.0), "worker:1": failed(None, code=127)}
    assert find(ALL, (W0, W1), records, {}) == Cause(W1, FAILED)


def test_time_of_an_exception_counts_not_that_of_the_end() -> None:
    records = {"worker:0": failed(3.0), "worker:1": failed(9.0, exception=noted(2.5))}
    assert find(WORKERS, (W0, W1), records, {}) == Cause(W1, FAILED)


def test_nothing_has_failed() -> None:
    assert find(WORKERS, (), {}, {}) is None


# --- consequences


@pytest.mark.parametrize(
    "culprit", [failed(9.0, exception=noted(2.0)), failed(9.0, code=3), failed(9.0, signal="SIGBUS")]
)
def test_victims_that_end_before_the_culprit_are_not_the_cause(culprit: dict[str, Any]) -> None:
    records = {"worker:0": failed(3.0), "worker:1": failed(4.0), "worker:2": culprit}
    texts = {"worker:0": closed(2), "worker:1": LEADER_GONE, "worker:2": "bad label 11"}
    for order in itertools.permutations(WORKERS):
        assert find(WORKERS, order, records, texts) == Cause(W2, FAILED)


def test_member_that_exits_early_is_the_cause_although_others_accuse_its_victims() -> None:
    records = {"worker:0": failed(3.0), "worker:1": failed(2.9), "worker:2": {"state": "COMPLETED", "exit": 0}}
    texts = {"worker:0": closed(2), "worker:1": LEADER_GONE}
    assert find(WORKERS, (W0, W1), records, texts) == Cause(W2, EXITED, W0)


def test_leader_that_runs_is_not_accused_of_what_a_member_did_that_has_exited() -> None:
    records: dict[str, Any] = {"worker:0": {"state": "STOPPED"}, "worker:1": failed(2.9)}
    texts = {"worker:1": LEADER_GONE}
    assert find(WORKERS, (W1,), records, texts) == Cause(W0, SILENT, W1)
    records["worker:2"] = {"state": "COMPLETED", "exit": 0, "ended": 2.0}
    assert find(WORKERS, (W1,), records, texts) == Cause(W2, EXITED, W1)


def test_member_that_does_not_respond_is_the_cause() -> None:
    for state in ("RUNNING", "STOPPED"):
        records = {"worker:0": failed(3.0), "worker:1": failed(2.9), "worker:2": {"state": state}}
        texts = {"worker:0": SILENT_TASKS, "worker:1": SILENT_TASKS}
        assert find(WORKERS, (W0, W1), records, texts) == Cause(W2, SILENT, W1)


def test_member_on_a_lost_host_is_the_cause() -> None:
    records = {"worker:0": failed(3.0), "worker:1": failed(3.1), "worker:2": {"state": "RUNNING"}}
    texts = {"worker:0": closed(2), "worker:1": LEADER_GONE}
    assert find(WORKERS, (W0, W1), records, texts, ["n3"]) == Cause(W2, LOST, W0)


def test_killed_task_is_the_cause_whatever_its_log_says() -> None:
    records = {"worker:0": failed(3.0), "worker:1": failed(5.0, signal="SIGKILL")}
    assert find(WORKERS, (W0, W1), records, {"worker:0": closed(2), "worker:1": closed(0)}) == Cause(W1, FAILED)


def test_victim_that_was_killed_in_the_tear_down_is_still_a_victim(attempt: Attempt) -> None:
    stopped = {"state": "STOPPED", "ended": 6.0, "signal": "SIGKILL", "pid": 7, "exception": noted(2.9, closed(2))}
    records: dict[str, Any] = {"worker:0": stopped, "worker:1": {"state": "STOPPED"}}
    records["worker:2"] = failed(3.0, signal="SIGKILL")
    assert first_cause(WORKERS, records, attempt, 5.0) == Cause(W2, FAILED)


def test_task_that_aborts_itself_because_of_another_is_a_victim() -> None:
    records = {"worker:0": failed(3.0, signal="SIGABRT"), "worker:1": failed(5.0)}
    assert find(WORKERS, (W0, W1), records, {"worker:0": closed(1), "worker:1": "no data"}) == Cause(W1, FAILED)


def test_earliest_victim_is_the_cause_where_nobody_else_can_be() -> None:
    records = {"worker:0": failed(3.0), "worker:1": failed(4.0)}
    for first, second in itertools.product((closed(), closed(0), closed(1), closed(7)), repeat=2):
        found = find(WORKERS[:2], (W0, W1), records, {"worker:0": first, "worker:1": second})
        assert found == Cause(W0, FAILED)


def test_consequences_are_told_from_a_program_s_own_errors() -> None:
    for text in (
        closed(),
        LEADER_GONE,
        SILENT_TASKS,
        "recvmsg:Connection reset by peer",
        "failed to connect to all addresses",
    ):
        assert is_consequence(text)
    for text in ("", "bad label 11", "[Errno 111] Connection refused", "OOM when allocating tensor"):
        assert not is_consequence(text)


def test_tasks_named_in_a_message() -> None:
    assert accused(
        "from /job:worker/replica:0/task:2 and /job:ps/task:0, /job:worker/replica:0/task:2/device:CPU:0"
    ) == [
        "worker:2",
        "ps:0",
    ]
    assert accused("job:worker task:1") == []


def test_exception_of_another_process_counts_only_with_its_exit_code() -> None:
    own, other = noted(1.0), noted(1.0, pid=8)
    assert raised(failed(2.0, exception=own, code=7)) == own
    assert raised(failed(2.0, exception=other)) == other  # as a shell passes it on
    assert raised(failed(2.0, exception=other, code=7)) is None
    assert raised(failed(2.0, exception=other, signal="SIGKILL")) is None
    assert raised(failed(2.0)) is None


# --- from the records and logs of an attempt


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    return RunDir(tmp_path).new_attempt()


def log(attempt: Attempt, one: PlacedTask, text: str) -> None:
    attempt.task_log(one.type, one.index).write_text(text)


def test_cause_is_a_critical_task(attempt: Attempt) -> None:
    records = {
        "evaluator:0": failed(1.0, signal="SIGSEGV"),
        "worker:0": {"state": "STOPPED", "ended": 2.0, "signal": "SIGTERM"},
        "worker:1": {"state": "COMPLETED", "ended": 3.0, "exit": 0},
        "ps:0": failed(4.0),
        "worker:7": failed(0.5),  # not a task of the job
    }
    assert first_cause(ALL, records, attempt) == Cause(PS, FAILED)
    del records["ps:0"]
    assert first_cause(ALL, records, attempt) is None


def test_program_that_had_failed_when_it_was_stopped_has_failed(attempt: Attempt) -> None:
    log(attempt, W0, f"Traceback (most recent call last):\nUnavailableError: {closed(2)}\n")
    for raised_at, expected in ((2.0, Cause(W2, FAILED)), (5.5, Cause(W2, SILENT, W0))):
        stopped = {"state": "STOPPED", "ended": 6.0, "signal": "SIGKILL", "pid": 7, "exception": noted(raised_at)}
        records = {"worker:0": failed(3.0), "worker:1": {"state": "STOPPED"}, "worker:2": stopped}
        assert first_cause(WORKERS, records, attempt, 5.0) == expected


def test_logs_of_thousands_of_victims_are_not_read(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    many = [task(f"worker:{number}", rank=number) for number in range(3000)]
    records = {one.name: failed(10.0 + one.index) for one in many}
    read: list[Path] = []

    def lines(path: Path, **_: object) -> list[str]:
        read.append(path)
        return [closed(7)]

    monkeypatch.setattr(verdict, "last_lines", lines)
    records["worker:2999"] = failed(9000.0, exception=noted(9.0))
    assert first_cause(many, records, attempt) == Cause(many[2999], FAILED)
    assert len(read) < 100


def test_exception_counts_more_than_what_else_is_in_the_log(attempt: Attempt) -> None:
    log(attempt, W0, "retry: Socket closed\nretry: Socket closed\n")
    log(attempt, W1, "Socket closed\nTraceback (most recent call last):\nKeyError: 'x'\n")
    records = {"worker:0": failed(3.0, exception=noted(2.9)), "worker:1": failed(2.8)}
    assert first_cause(WORKERS, records, attempt) == Cause(W1, FAILED)
    del records["worker:1"]
    assert first_cause(WORKERS, records, attempt) == Cause(W0, FAILED)


def test_rank_that_mpirun_has_left_alone_is_no_cause() -> None:
    records = {"worker:0": failed(3.0, code=195, abandoned=True), "worker:1": failed(4.0, code=3)}
    texts = {"worker:0": "", "worker:1": ""}
    assert find(WORKERS, (W0, W1), records, texts) == Cause(W1, FAILED)
    assert find(WORKERS, (W0,), records, texts) == Cause(W0, FAILED)


@pytest.mark.parametrize(
    ("how", "state", "reason", "hint"),
    [
        (EXITED, "FAILED", "worker:2 on n3 exited with 0 while others trained", "the same number of steps"),
        (SILENT, "FAILED", "worker:2 on n3 did not respond any more", "was it stopped"),
        (LOST, "NODE_FAIL", "lost contact with host n3, where worker:2 ran", "has the host crashed"),
    ],
)
def test_verdict_on_a_task_that_others_blame(attempt: Attempt, how: str, state: str, reason: str, hint: str) -> None:
    log(attempt, W2, "epoch 1\n")
    records = {"worker:0": failed(3.0, exception=noted(2.9, closed(2), kind="UnavailableError"))}
    found = of_other(Cause(W2, how, W0), records, attempt, "a version")
    assert (found.state, found.reason) == (state, reason)
    assert hint in found.hint
    said = "worker:0 on n1: UnavailableError: Collective ops is aborted by: Socket closed (train.py:41)"
    assert found.why == f"a version; {said}"
    assert found.cause is not None
    assert (found.cause["task"], found.cause["tail"]) == ("worker:2", ["epoch 1"])
