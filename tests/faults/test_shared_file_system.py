"""Agents and launcher that see the run directory through different caching views: rendezvous, status, stop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gridtf.run.rundir import read_record
from tests.faults.laggy import need_bindfs, view
from tests.support.fixtures import Launch
from tests.support.jobs import LaunchedJob

pytestmark = pytest.mark.root


@pytest.fixture
def laggy(launch: Launch, tmp_path: Path) -> Any:
    """Start a job on three hosts, each with a view of its own; the launcher has one too."""
    need_bindfs()
    real, seen = tmp_path / "real", tmp_path / "seen"
    real.mkdir()
    seen.mkdir()
    prefix = view(real, seen)

    def start(script: str, **spec: Any) -> LaunchedJob:
        hosts = [{"name": f"h{number}", "prefix": prefix} for number in (1, 2, 3)]
        return launch("bash", "-c", script, hosts=hosts, folder=real, prefix=prefix, seen_as=seen, **spec)

    return start


def test_job_completes_on_a_lagging_file_system(laggy: Any) -> None:
    job = laggy('echo "$TF_CONFIG"; sleep 1', tasks={"ps": {"count": 1}}, serve=())
    verdict = job.verdict(60)
    assert verdict["state"] == "COMPLETED"
    rendezvous = read_record(job.attempt.rendezvous)
    assert rendezvous is not None
    assert [len(rendezvous["cluster"][kind]) for kind in ("worker", "ps")] == [3, 1]
    for index in range(3):
        config = json.loads(job.attempt.task_log("worker", index).read_text())
        assert config["cluster"] == rendezvous["cluster"]


def test_failure_stops_all_hosts_on_a_lagging_file_system(laggy: Any) -> None:
    job = laggy('[ "$GRIDTF_TASK_INDEX" = 2 ] && { sleep 1; exit 6; }; sleep 1000')
    verdict = job.verdict(60)
    assert verdict["state"] == "FAILED"
    assert (verdict["cause"]["task"], verdict["cause"]["exit"]) == ("worker:2", 6)
    states = {name: task["state"] for name, task in job.tasks().items()}
    assert states == {"worker:0": "STOPPED", "worker:1": "STOPPED", "worker:2": "FAILED"}


def test_second_attempt_ignores_records_of_the_first(laggy: Any) -> None:
    first = laggy('echo "$TF_CONFIG"')
    assert first.verdict(60)["state"] == "COMPLETED"
    second = laggy('echo "$TF_CONFIG"')
    assert second.verdict(60)["state"] == "COMPLETED"
    attempts = second.run.attempts()
    assert [attempt.number for attempt in attempts] == [1, 2]
    clusters = [(read_record(attempt.rendezvous) or {})["cluster"] for attempt in attempts]
    assert clusters[0] != clusters[1]
    log = json.loads(attempts[1].task_log("worker", 1).read_text())
    assert log["cluster"] == clusters[1]
