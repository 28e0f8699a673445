"""Phases of attempts, and when each task ran."""

from __future__ import annotations

from gridtf.report import timeline
from gridtf.report.timeline import AttemptData, Phase
from gridtf.run.rundir import Record

EVENTS: list[Record] = [
    {"time": 0.0, "event": "queued"},
    {"time": 20.0, "event": "allocated", "hosts": ["n1", "n2"]},
    {"time": 25.0, "event": "ready", "host": "n1"},
    {"time": 27.0, "event": "ready", "host": "n2"},
    {"time": 29.0, "event": "rendezvous"},
    {"time": 30.0, "event": "started", "task": "worker:0", "host": "n1"},
    {"time": 30.0, "event": "started", "task": "worker:1", "host": "n2"},
    {"time": 60.0, "event": "ended", "task": "worker:1", "host": "n2", "state": "FAILED", "exit": 3, "signal": None},
    {"time": 62.0, "event": "started", "task": "worker:1", "host": "n2", "restarts": 1},
    {"time": 90.0, "event": "stopping", "text": "why"},
    {
        "time": 91.0,
        "event": "ended",
        "task": "worker:0",
        "host": "n1",
        "state": "STOPPED",
        "exit": None,
        "signal": "TERM",
    },
]
VERDICT = {"state": "FAILED", "reason": "why", "ended": 92.0}


def test_phases_follow_the_events() -> None:
    (attempt,) = timeline.attempts([AttemptData(1, events=EVENTS, verdict=VERDICT)], 0.0, 500.0)
    assert attempt.phases == (
        Phase("queue", 0, 20),
        Phase("start", 20, 25),
        Phase("rendezvous", 25, 30),
        Phase("training", 30, 90),
        Phase("stop", 90, 92),
    )
    assert (attempt.state, attempt.reason, attempt.hosts, attempt.allocated) == ("FAILED", "why", ("n1", "n2"), 20)


def test_task_that_was_started_again_has_two_stretches() -> None:
    (attempt,) = timeline.attempts([AttemptData(1, events=EVENTS, verdict=VERDICT)], 0.0, 500.0)
    first, second = attempt.tasks["worker:1"]
    assert (first.begin, first.end, first.state, first.exit) == (30, 60, "FAILED", 3)
    assert (second.begin, second.end, second.state, second.host) == (62, 92, "STOPPED", "n2")
    assert [event for _, event, _ in attempt.marks] == ["started", "stopping"]


def test_first_cause_that_gridtf_has_ended_is_marked_as_what_has_failed() -> None:
    """worker:0 raised first and was slow to end; worker:1, its victim, had ended before."""
    victim: Record = {"time": 88.0, "event": "ended", "task": "worker:1", "state": "FAILED", "exit": 1, "signal": None}
    verdict = {**VERDICT, "cause": {"task": "worker:0", "host": "n1", "exit": None, "signal": "TERM"}}
    (attempt,) = timeline.attempts([AttemptData(1, events=[*EVENTS, victim], verdict=verdict)], 0.0, 500.0)
    (culprit,) = attempt.tasks["worker:0"]
    assert (culprit.state, culprit.cause) == ("FAILED", True)
    assert [(one.state, one.cause) for one in attempt.tasks["worker:1"]] == [("FAILED", False), ("FAILED", False)]
    (row,) = timeline.rows([attempt], 1)
    assert row.stretches[0].cause


def test_first_cause_that_has_exited_with_0_is_marked_too() -> None:
    ended: Record = {
        "time": 80.0,
        "event": "ended",
        "task": "worker:1",
        "state": "COMPLETED",
        "exit": 0,
        "signal": None,
    }
    verdict = {**VERDICT, "cause": {"task": "worker:1"}}
    (attempt,) = timeline.attempts([AttemptData(1, events=[*EVENTS, ended], verdict=verdict)], 0.0, 500.0)
    assert [(one.state, one.cause) for one in attempt.tasks["worker:1"]] == [("FAILED", False), ("COMPLETED", True)]
    assert [one.cause for one in attempt.tasks["worker:0"]] == [False]


def test_running_job_lasts_until_now() -> None:
    (attempt,) = timeline.attempts([AttemptData(1, events=EVENTS[:7])], 0.0, 75.0)
    assert (attempt.state, attempt.end) == ("RUNNING", 75)
    assert attempt.tasks["worker:0"][0].state == "RUNNING"
    assert attempt.phases[-1] == Phase("training", 30, 75)


def test_next_attempt_waits_from_the_end_of_the_one_before() -> None:
    later = [{**event, "time": event["time"] + 1000} for event in EVENTS[1:7]]
    first, second = timeline.attempts(
        [AttemptData(1, events=EVENTS, verdict=VERDICT), AttemptData(2, events=later)], 0.0, 1100.0
    )
    assert second.begin == first.end == 92
    assert second.phases[0] == Phase("queue", 92, 1020)


def test_attempt_in_the_same_allocation_waits_for_nothing() -> None:
    later = [{**event, "time": event["time"] + 100} for event in EVENTS[1:7]]
    verdict = {**VERDICT, "next": 2}
    _, second = timeline.attempts(
        [AttemptData(1, events=EVENTS, verdict=verdict), AttemptData(2, events=later)], 0.0, 200.0
    )
    assert second.phases[0] == Phase("start", 92, 125)
    assert second.allocated == second.begin == 92


def test_attempt_whose_launcher_was_killed_ends_before_the_next() -> None:
    later = [{**event, "time": event["time"] + 1000} for event in EVENTS[1:7]]
    first, _ = timeline.attempts([AttemptData(1, events=EVENTS[:7]), AttemptData(2, events=later)], 0.0, 1100.0)
    assert (first.state, first.end) == ("UNKNOWN", 1020)
    assert first.tasks["worker:0"][0].state == "STOPPED"


def test_older_job_without_events() -> None:
    tasks = {
        "worker:1": {"state": "FAILED", "started": 12.0, "ended": 20.0, "exit": 1},
        "worker:10": {"state": "PENDING"},
    }
    told = AttemptData(
        1, launcher={"began": 5.0}, hosts={"n1": {"tasks": tasks}}, verdict={"state": "FAILED", "ended": 21.0}
    )
    (attempt,) = timeline.attempts([told], 0.0, 100.0)
    assert attempt.phases == (Phase("queue", 0, 5), Phase("start", 5, 12), Phase("training", 12, 21))
    assert attempt.tasks["worker:1"][0].exit == 1
    assert "worker:10" not in attempt.tasks


def test_attempt_of_which_nothing_is_known() -> None:
    (attempt,) = timeline.attempts([AttemptData(1)], None, 100.0)
    assert (attempt.begin, attempt.end, attempt.phases, attempt.tasks) == (100, 100, (), {})


def test_clocks_that_differ_make_no_negative_phase() -> None:
    odd = [EVENTS[0], {"time": -50.0, "event": "allocated", "hosts": ["n1"]}, EVENTS[5]]
    (attempt,) = timeline.attempts([AttemptData(1, events=odd)], 0.0, 10.0)
    assert all(phase.end > phase.begin for phase in attempt.phases)


def many(count: int) -> AttemptData:
    events: list[Record] = [
        {"time": 1.0, "event": "started", "task": f"worker:{number}", "host": "n"} for number in range(count)
    ]
    events.append({"time": 5.0, "event": "ended", "task": "worker:9", "state": "FAILED", "exit": 1})
    return AttemptData(1, events=events)


def test_many_tasks_share_rows() -> None:
    made = timeline.attempts([many(256)], 0.0, 10.0)
    rows = timeline.rows(made, 64)
    assert len(rows) == 64
    assert (rows[0].label, rows[-1].label) == ("worker:0-3", "worker:252-255")
    assert [row.label for row in rows if row.stretches[0].state == "FAILED"] == ["worker:8-11"]
    assert len(timeline.rows(timeline.attempts([many(64)], 0.0, 10.0), 64)) == 64


def test_names_are_sorted_by_their_numbers() -> None:
    assert sorted(["worker:10", "worker:9", "ps:0", "n2, GPU 1"], key=timeline.natural) == [
        "n2, GPU 1",
        "ps:0",
        "worker:9",
        "worker:10",
    ]


def test_who_was_slow_is_added_up_over_all_attempts() -> None:
    two = {"task": "worker:1", "host": "n2", "what": "input"}
    slow: list[Record] = [
        {"time": 40.0, "event": "slow", "task": "worker:0", "host": "n1", "what": "CPU", "text": "why"},
        {"time": 46.0, "event": "slow", **two, "text": "why"},
        {"time": 66.0, "event": "in step", **two},
        {"time": 80.0, "event": "slow", **two, "text": "why"},
    ]
    told = [AttemptData(1, events=[*EVENTS, *slow], verdict=VERDICT), AttemptData(2, events=EVENTS[5:])]
    made = timeline.attempts(told, 0.0, 152.0)
    first, second = timeline.slow(told, made)
    assert first[:4] == ("worker:1", "n2", "input", 32.0)  # until the end of the attempt
    assert second[:4] == ("worker:0", "n1", "CPU", 6.0)
    assert 0 < second[4] < first[4] < 1
    assert timeline.slow(told[1:], made[1:]) == []
