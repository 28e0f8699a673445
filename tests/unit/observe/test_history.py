"""Events and samples of all attempts, as one chain."""

from __future__ import annotations

import os
from pathlib import Path

from gridtf.observe import history, jobs
from gridtf.observe.views import HostView
from gridtf.run import jsonlines
from gridtf.run.rundir import write_record
from tests.support import recordedruns


def test_events_and_samples_of_a_run(tmp_path: Path) -> None:
    run = recordedruns.make(tmp_path / "digits", workers=3, host_count=2, minutes=1)
    events = [(event["attempt"], event["event"]) for event in history.events(run).more()]
    assert events[:3] == [(1, "queued"), (1, "allocated"), (1, "ready")]
    assert events[-1] == (1, "verdict")
    samples = list(history.samples(run).more())
    assert len(samples) == 2 * 12
    assert {name for sample in samples for name in sample["tasks"]} == {"worker:0", "worker:1", "worker:2"}


def test_chain_goes_on_with_the_next_attempt(tmp_path: Path) -> None:
    run = recordedruns.make(tmp_path / "digits", minutes=1)
    chain = history.events(run)
    before = len(list(chain.more()))
    assert before
    following = run.new_attempt()
    write_record(following.plan, {"nonce": "other"})
    following.events.write_text(jsonlines.head("other") + jsonlines.line({"time": 1.0, "event": "queued"}))
    assert [(event["attempt"], event["event"]) for event in chain.more()] == [(2, "queued")]
    assert list(chain.more()) == []


def test_view_has_gpus_and_newest_samples(tmp_path: Path) -> None:
    run = recordedruns.make(tmp_path / "digits", workers=2, ps=1, host_count=1, gpus=2, minutes=1)
    view = jobs.job_view(run, jobs.read_submitted(run), None, os.times().elapsed)
    tasks = {task.name: task for task in view.tasks}
    assert tasks["worker:1"].gpus == ("1",)
    assert tasks["ps:0"].gpus == ()
    sample = tasks["worker:0"].sample
    assert sample is not None
    assert sample["step"] == 11 * 50
    (host,) = view.hosts
    assert isinstance(host, HostView)
    assert (host.name, set(host.tasks)) == ("h0", set(tasks))
    assert host.sample is not None
    assert host.sample["cpus"] == 64
    assert "tasks" not in host.sample
