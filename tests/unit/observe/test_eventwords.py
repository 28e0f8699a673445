"""Events in words."""

from __future__ import annotations

from typing import Any

import pytest

from gridtf.observe import eventwords


@pytest.mark.parametrize(
    ("event", "shown", "news"),
    [
        ({"event": "queued"}, "submitted", False),
        ({"event": "allocated", "hosts": ["n1", "n2"]}, "allocated 2 hosts: n1, n2", True),
        ({"event": "allocated"}, "allocated 0 hosts: ", True),
        ({"event": "ready", "host": "n1"}, "ready: n1", False),
        ({"event": "rendezvous"}, "all hosts have reported their ports", False),
        ({"event": "started", "task": "worker:1", "host": "n2"}, "started: worker:1 on n2", False),
        (
            {"event": "started", "task": "worker:1", "host": "n2", "restarts": 1},
            "started again (restarts: 1): worker:1 on n2",
            True,
        ),
        (
            {"event": "ended", "task": "ps:0", "host": "n2", "state": "COMPLETED", "exit": 0, "signal": None},
            "COMPLETED: ps:0 on n2",
            False,
        ),
        (
            {"event": "ended", "task": "ps:0", "host": "n2", "state": "FAILED", "exit": 3},
            "FAILED, exit code 3: ps:0 on n2",
            True,
        ),
        (
            {"event": "ended", "task": "ps:0", "host": "n2", "state": "FAILED", "exit": 0},
            "FAILED, exit code 0: ps:0 on n2",
            True,
        ),
        (
            {"event": "ended", "task": "ps:0", "host": "n2", "state": "FAILED", "signal": "SIGKILL"},
            "FAILED, SIGKILL: ps:0 on n2",
            True,
        ),
        ({"event": "ended", "task": "ps:0"}, "ended: ps:0", False),
        ({"event": "notice", "text": "a checkpoint was requested"}, "a checkpoint was requested", True),
        ({"event": "stalled", "text": "nothing moves"}, "nothing moves", True),
        ({"event": "stalled"}, "stalled", True),
        (
            {"event": "slow", "task": "worker:2", "text": "worker:2 holds the others up"},
            "worker:2 holds the others up",
            True,
        ),
        ({"event": "in step", "task": "worker:2", "host": "n3"}, "worker:2 on n3 holds the others up no more", True),
        (
            {"event": "exec", "task": "ps:0", "host": "n2", "user": "alice", "text": "ls -l"},
            "exec: ls -l (alice beside ps:0 on n2)",
            False,
        ),
        (
            {"event": "exec ended", "task": "ps:0", "host": "n2", "user": "alice", "text": "ls", "exit": 2},
            "exec ended: ls (alice beside ps:0 on n2, exit code 2)",
            False,
        ),
        (
            {"event": "exec ended", "task": "ps:0", "host": "n2", "user": "root", "text": "bash", "exit": None},
            "exec ended: bash (root beside ps:0 on n2)",
            False,
        ),
        ({"event": "going on"}, "its tasks go on", True),
        ({"event": "stopping", "text": "cancelled"}, "ending the tasks: cancelled", True),
        ({"event": "verdict", "state": "FAILED", "text": "why"}, "attempt 1 FAILED: why", False),
        (
            {"event": "verdict", "state": "NODE_FAIL", "text": "n1 is lost", "next": 2},
            "attempt 1 NODE_FAIL: n1 is lost; attempt 2 follows",
            True,
        ),
        ({"event": "verdict"}, "attempt 1 : ", False),
        ({"event": "of a newer version"}, "of a newer version", False),
        ({"event": "of a newer version", "text": "x"}, "of a newer version: x", False),
    ],
)
def test_events_in_words(event: dict[str, Any], shown: str, news: bool) -> None:
    record = {"time": 1.0, "attempt": 1, **event}
    assert eventwords.words([record]) == shown
    assert eventwords.is_news(record) == news


def test_several_hosts_or_tasks_are_named_together() -> None:
    ready = [{"event": "ready", "host": f"n{number}"} for number in range(4)]
    assert eventwords.words(ready, most=3) == "ready: n0, n1, n2 and 1 more"
    ended = [{"event": "ended", "task": f"worker:{number}", "host": "n1", "state": "STOPPED"} for number in range(2)]
    assert eventwords.words(ended) == "STOPPED: worker:0, worker:1"
