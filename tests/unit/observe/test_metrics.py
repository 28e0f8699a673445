"""gridtf metrics: what parsers of OpenMetrics and of Prometheus read in it."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as prometheus

from gridtf.cli import main
from gridtf.jobspec.spec import JobSpec
from gridtf.login import submission
from gridtf.observe import jobs, metrics
from gridtf.observe.views import JobView
from gridtf.run.rundir import write_record
from gridtf.schedulers.api import JobStatus
from gridtf.states import JobState
from tests.support import recordedruns
from tests.support.closed import close
from tests.support.plans import NONCE
from tests.support.scheduler import FakeScheduler

Captured = pytest.CaptureFixture[str]
NOW = recordedruns.BEGIN + 30 + 120


@pytest.fixture
def view(tmp_path: Path) -> JobView:
    """Two workers with two GPUs each on two hosts, which have trained for two minutes."""
    run = recordedruns.make(tmp_path / "digits", workers=2, ps=1, gpus=2, minutes=2, state=JobState.RUNNING)
    return jobs.job_view(run, jobs.read_submitted(run), JobStatus(JobState.RUNNING), NOW)


def values(text: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Metric -> labels -> value; both parsers have to agree."""
    found, again = (
        {
            family.name: {tuple(sorted(sample.labels.items())): sample.value for sample in family.samples}
            for family in parse(text)
        }
        for parse in (openmetrics, prometheus)
    )
    assert found == again
    return found


def test_metrics_are_what_both_parsers_accept(view: JobView) -> None:
    text = metrics.text([view], {view.run_dir: NOW - 3}, NOW)
    found = values(text)
    job = (("job", "4711"), ("name", "digits"), ("scheduler", "local"))
    assert found["gridtf_job_state"] == {(*job, ("state", "RUNNING")): 1}
    assert found["gridtf_job_tasks"] == {(*job, ("state", "RUNNING")): 3}
    assert found["gridtf_job_running_seconds"] == {job: 120}
    assert found["gridtf_job_heartbeat_age_seconds"] == {job: 3}
    of_task = {labels for metric in found for labels in found[metric] if metric == "gridtf_task_memory_bytes"}
    assert {dict(labels)["task"]: dict(labels)["host"] for labels in of_task} == {
        task.name: task.host for task in view.tasks
    }
    assert len(found["gridtf_task_step"]) == 2  # a ps reports none
    assert all(0 <= use <= 1 for use in found["gridtf_gpu_use_ratio"].values())
    gpus = [dict(labels) for labels in found["gridtf_gpu_power_watts"]]
    assert sorted((labels["host"], labels["gpu"]) for labels in gpus) == [
        ("h0", "0"), ("h0", "1"), ("h1", "0"), ("h1", "1")
    ]  # fmt: skip
    assert {"worker:0", "worker:1", ""} == {labels["task"] for labels in gpus}
    assert {*found} == {*metrics._FAMILIES}
    assert text.endswith("\n# EOF\n")


def test_names_end_with_their_unit_and_no_line_has_a_timestamp(view: JobView) -> None:
    for family in openmetrics(metrics.text([view], {}, NOW)):  # type: ignore[no-untyped-call]
        assert family.name.endswith(f"_{family.unit}" if family.unit else "")
        assert (family.type, {sample.timestamp for sample in family.samples}) == ("gauge", {None})
        assert re.fullmatch("gridtf_[a-z_]+", family.name)
        assert family.documentation.endswith(".")


def test_several_jobs_share_the_heads(view: JobView) -> None:
    other = view.replace(job_id="4712", attempt=None, tasks=(), hosts=(), started=None, state=JobState.PENDING)
    text = metrics.text([view, other], {}, NOW)
    assert text.count("# TYPE gridtf_job_state gauge\n") == 1
    assert len(values(text)["gridtf_job_state"]) == 2


def test_labels_are_escaped(view: JobView) -> None:
    text = metrics.text([view.replace(name='a"b\\n\nc\x1b[2J\udcff{}')], {}, NOW)
    names = {dict(labels)["name"] for labels in values(text)["gridtf_job_state"]}
    assert names == {'a"b\\n\\nc\\x1b[2J\N{REPLACEMENT CHARACTER}{}'}
    assert "\x1b" not in text
    text.encode()


def test_without_jobs_only_the_end_is_printed(fake: FakeScheduler, rough_path: Path, capsys: Captured) -> None:
    assert main(["metrics"]) == 0
    assert capsys.readouterr().out == "# EOF\n"


def test_metrics_of_waiting_and_running_jobs_are_printed_with_one_question(
    fake: FakeScheduler, rough_path: Path, capsys: Captured
) -> None:
    first, second, third = (submission.submit(JobSpec(command=("x",), scheduler="slurm")) for _ in range(3))
    for job in (first, second):
        attempt = job.run.new_attempt()
        write_record(attempt.plan, {"nonce": NONCE, "job": {"id": job.id, "name": job.name}, "tasks": []})
        write_record(attempt.launcher, {"nonce": NONCE, "time": 1.0, "phase": "running"})
    first.run.attempt(1).launcher.write_text('{"nonce": "f00d", "time": "now"')  # cut in the middle
    write_record(second.run.attempt(1).verdict, {"nonce": NONCE, "state": "COMPLETED"})
    third.run.submitted.write_text("[]")
    assert main(["metrics"]) == 0
    found = values(capsys.readouterr().out)
    assert {dict(labels)["job"] for labels in found["gridtf_job_state"]} == {first.id}
    assert "gridtf_job_heartbeat_age_seconds" not in found
    assert len(fake.queried) == 1


def test_file_is_replaced_at_once(
    fake: FakeScheduler, rough_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path("gridtf.prom")
    path.write_text("# TYPE gridtf_job_state gauge\n# EOF\n")
    old = os.open(path, os.O_RDONLY)
    assert main(["metrics", "-o", "gridtf.prom"]) == 0
    assert (path.read_text(), os.read(old, 6)) == ("# EOF\n", b"# TYPE")
    os.close(old)
    assert os.listdir() == ["gridtf.prom"]
    assert capsys.readouterr().out == ""
    Path("train.py").write_text("import gridtf\n")
    assert main(["metrics", "-o", "train.py"]) == 1
    assert "train.py exists, and has no metrics of gridtf" in capsys.readouterr().err
    assert Path("train.py").read_text() == "import gridtf\n"
    close(rough_path / "closed", monkeypatch)
    for wrong, why in (
        ("/dev/null", "is not a regular file"),
        (".", "regular"),
        ("no/x.prom", "No such file"),
        (f"{rough_path}/closed/x.prom", "Permission denied"),
    ):
        assert main(["metrics", "-o", wrong]) == 1
        error = capsys.readouterr().err
        assert why in error
        assert "--run-dir" not in error
        assert "a bug" not in error
