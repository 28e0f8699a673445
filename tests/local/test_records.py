"""What the launcher of a real job keeps: events, what tasks use, when they have printed; with a sampler that fails."""

from __future__ import annotations

import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from gridtf.host import procfs
from gridtf.observe import history
from gridtf.run import jsonlines, recordtypes
from tests.support.fixtures import Launch
from tests.support.jobs import LaunchedJob, gone, until

PROGRAM = """
import pathlib, time
import gridtf
block = bytearray(32 << 20)
step = 0
while not pathlib.Path("enough").exists():
    step += 1
    print("step", step, flush=True)
    gridtf.progress(step, loss=9.0 if step % 40 == 20 else 1 / step)
    time.sleep(0.05)
"""
TWO = {"tasks": {"worker": {"count": 2}}, "tasks_per_node": 2, "sample_interval": 1.0}


def begin(launch: Launch, tmp_path: Path, **values: Any) -> LaunchedJob:
    (tmp_path / "train.py").write_text(PROGRAM)
    job = launch(sys.executable, "train.py", **{**TWO, **values})
    job.running("worker:0", "worker:1")
    return job


def newest(job: LaunchedJob) -> dict[str, Any]:
    """The newest sample of the host, once there is one."""
    host = os.uname().nodename
    found: dict[str, Any] = until(lambda: job.hosts().get(host, {}).get("sample"), "a sample", 60)
    return found


def sampler(job: LaunchedJob) -> int:
    """The process that samples: the child of the agent that is no task and has no session of its own."""
    tasks = job.running("worker:0", "worker:1")
    agent = next(iter(procfs.ancestors(tasks["worker:0"])))
    session = procfs.session(agent)

    def found() -> list[int]:
        others = (pid for pid in procfs.children(agent) if pid not in tasks.values())
        return [pid for pid in others if procfs.session(pid) == session]

    (pid,) = until(lambda: len(pids := found()) == 1 and pids, "the sampler", 60)
    return int(pid)


def length(job: LaunchedJob) -> int:
    """How many bytes worker:0 has printed."""
    return job.attempt.task_log("worker", 0).stat().st_size


def further(job: LaunchedJob, before: int) -> bool:
    return length(job) > before


def test_job_leaves_its_events_samples_and_times_of_its_logs(launch: Launch, tmp_path: Path) -> None:
    job = begin(launch, tmp_path)
    until(lambda: "rate" in newest(job)["tasks"].get("worker:0", {}), "a rate", 60)
    assert set(newest(job)["tasks"]) == {"worker:0", "worker:1"}

    until(lambda: newest(job)["tasks"].get("worker:0", {}).get("step", 0) > 60, "a peak of a value", 60)
    (tmp_path / "enough").touch()
    assert job.verdict()["state"] == "COMPLETED"
    events = list(history.events(job.run).more())
    order = [event["event"] for event in events]
    assert order[:5] == ["queued", "allocated", "ready", "rendezvous", "started"]
    assert order[-4:] == ["ended", "ended", "stopping", "verdict"]
    assert [event["time"] for event in events] == sorted(event["time"] for event in events)
    samples = list(history.samples(job.run).more())
    used = [sample["tasks"]["worker:0"] for sample in samples if "worker:0" in sample["tasks"]][-1]
    assert used["memory"] > 32 << 20
    assert used["written"] > 0
    assert used["step"] > 0
    assert any("rate" in sample["tasks"].get("worker:0", {}) for sample in samples)
    ranges = [sample["tasks"].get("worker:0", {}).get("ranges", {}) for sample in samples]
    assert max(both["loss"][1] for both in ranges if both) == 9.0  # reported for a moment only
    times = jsonlines.read(job.attempt.log_times, recordtypes.LogTimes)
    assert {line["task"] for line in times} == {"worker:0", "worker:1"}
    log = job.attempt.task_log("worker", 0).stat().st_size
    ends = [line["offset"] + sum(line["then"][1::2]) for line in times if line["task"] == "worker:0"]
    assert 0 < ends[-1] <= log


def test_sample_of_a_task_that_has_ended_since_has_its_step(launch: Launch, tmp_path: Path) -> None:
    each_of_its_own = PROGRAM.replace('"enough"', '"enough" + os.environ["GRIDTF_TASK_INDEX"]')
    (tmp_path / "train.py").write_text(f"import os\n{each_of_its_own}")
    job = launch(sys.executable, "train.py", **TWO)
    tasks = job.running("worker:0", "worker:1")
    until(lambda: "step" in newest(job)["tasks"].get("worker:0", {}), "a step", 60)
    agent = next(iter(procfs.ancestors(tasks["worker:0"])))
    os.kill(agent, signal.SIGSTOP)  # so that it hears of samples and of the end at once
    time.sleep(2.5)  # two samples
    (tmp_path / "enough0").touch()
    until(lambda: procfs.state(tasks["worker:0"]) == "Z", "the end of worker:0", 60)
    os.kill(agent, signal.SIGCONT)
    until(lambda: job.tasks()["worker:0"]["state"] == "COMPLETED", "its end in the records", 60)
    (tmp_path / "enough1").touch()
    assert job.verdict()["state"] == "COMPLETED"
    used = [sample["tasks"].get("worker:0", {}) for sample in history.samples(job.run).more()]
    with_step = ["step" in task for task in used if task]
    assert any(with_step)
    assert with_step == sorted(with_step)  # none lacks it once there is one


def test_job_goes_on_when_its_sampler_is_killed_or_stopped(launch: Launch, tmp_path: Path) -> None:
    for number in (signal.SIGKILL, signal.SIGSTOP):
        folder = tmp_path / number.name
        folder.mkdir()
        (folder / "train.py").write_text(PROGRAM)
        job = LaunchedJob(folder, {"command": [sys.executable, "train.py"], **TWO})
        tasks = job.running("worker:0", "worker:1")
        pid = sampler(job)
        os.kill(pid, number)
        until(partial(further, job, length(job)), "output", 60)
        (folder / "enough").touch()
        verdict = job.verdict()
        assert verdict["state"] == "COMPLETED"
        assert "left" not in verdict["reason"]
        gone(pid, *tasks.values())


def test_job_without_samples_has_events_only(launch: Launch, tmp_path: Path) -> None:
    job = begin(launch, tmp_path, sample_interval=0)
    until(partial(further, job, 0), "output", 60)
    (tmp_path / "enough").touch()
    assert job.verdict()["state"] == "COMPLETED"
    assert list(history.events(job.run).more())
    assert not job.attempt.samples.exists()
    assert not job.attempt.log_times.exists()
