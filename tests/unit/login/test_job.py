"""Submitted jobs: status, waiting, logs, cancelling; the public names of the package."""

from __future__ import annotations

import html
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import gridtf
from gridtf.cli import main
from gridtf.errors import GridtfError, MaybeSubmittedError, NotFoundError, RunDirError, SpecError
from gridtf.jobspec.spec import JobSpec
from gridtf.login import submission
from gridtf.login.job import Job, find
from gridtf.observe import jobs as observe
from gridtf.observe.state import Records, decide
from gridtf.run import registry
from gridtf.run.rundir import RunDir, write_record
from gridtf.schedulers.api import JobStatus
from tests.support import recordedruns
from tests.support.clocks import Clock
from tests.support.python import environment, python
from tests.support.scheduler import FakeScheduler
from tests.support.states import CANCELLED, COMPLETED, FAILED, PENDING, RUNNING, UNKNOWN

RUNS = JobSpec(command=("python", "train.py"), scheduler="slurm")
VIEW = decide(RunDir("/r"), Records(), None, 0.0)


def end(job: Job, state: str, **more: Any) -> None:
    attempt = job.run.new_attempt()
    for path in (attempt.plan, attempt.launcher):
        path.write_text(json.dumps({"nonce": "n", "job": {"id": job.id, "name": job.name}}))
    record = {"nonce": "n", "state": state, "reason": "r", "hint": "", "cause": None, "exit_code": 0, **more}
    attempt.verdict.write_text(json.dumps({"started": 1.0, "ended": 2.0, **record}))


def test_views_query_the_scheduler_once_for_all_jobs(fake: FakeScheduler, rough_path: Path) -> None:
    jobs = [submission.submit(RUNS) for _ in range(3)]
    fake.states = [JobStatus(PENDING, "Resources")]
    views = observe.views([job.run for job in jobs])
    assert fake.queried == [["101", "102", "103"]]
    assert [(view.job_id, view.state, view.scheduler) for view in views] == [
        (number, PENDING, "slurm") for number in ("101", "102", "103")
    ]
    assert all("Resources" in view.reason for view in views)


def test_status_without_an_answer_from_the_scheduler(fake: FakeScheduler, rough_path: Path) -> None:
    job = submission.submit(RUNS)
    fake.refuses = "squeue: error: timed out"
    assert "timed out" in job.status().reason
    end(job, COMPLETED)
    assert job.status().state == COMPLETED


def test_wait_yields_what_the_records_and_the_scheduler_say_until_the_end(
    fake: FakeScheduler, rough_path: Path, clock: Clock
) -> None:
    job = submission.submit(RUNS)
    fake.states = [JobStatus(PENDING, "Resources"), JobStatus(RUNNING)]
    clock.at(15, lambda: end(job, COMPLETED))
    assert [(view.state, view.finished) for view in job.watch()] == [
        (PENDING, False),
        (RUNNING, False),
        (COMPLETED, True),
    ]
    assert clock.now <= 16


def test_wait_continues_while_the_scheduler_lists_a_failed_job(
    fake: FakeScheduler, rough_path: Path, clock: Clock
) -> None:
    """The scheduler restarts the job, which the verdict of the first attempt does not mention."""
    job = submission.submit(RUNS)
    end(job, FAILED, exit_code=1)
    fake.states = [JobStatus(RUNNING, "ending"), JobStatus(PENDING), JobStatus(RUNNING), JobStatus(RUNNING)]
    clock.at(5, lambda: end(job, COMPLETED))
    assert [(view.state, view.finished) for view in job.watch()] == [
        (FAILED, False),
        (PENDING, False),
        (FAILED, False),
        (COMPLETED, True),
    ]


def test_wait_asks_at_most_as_rarely_as_its_caller_wishes(fake: FakeScheduler, rough_path: Path, clock: Clock) -> None:
    job = submission.submit(RUNS)
    assert job.wait(timeout=60, poll=3.0).state == RUNNING
    assert len(fake.queried) == 1 + 60 / 3


def test_wait_for_a_job_without_verdict_includes_its_accounting(
    fake: FakeScheduler, rough_path: Path, clock: Clock
) -> None:
    fake.states = [JobStatus(UNKNOWN, "it no longer knows it", purged=True)]
    for delay, recorded, timeout, state, most in (
        (20.0, 8.0, None, CANCELLED, 12.0),
        (20.0, 99.0, None, FAILED, 21.0),
        (20.0, 99.0, 5.0, FAILED, 5.0),
        (0.0, 99.0, None, FAILED, 0.0),
    ):
        job = submission.submit(RUNS)
        job.run.log.write_text("begun\n")
        fake.accounting_delay, fake.history, fake.queried, begun = delay, {}, [], clock.now
        entry = {job.id: JobStatus(CANCELLED, "deleted with qdel")}
        clock.at(begun + recorded, partial(setattr, fake, "history", entry))
        seen = list(job.watch(timeout))
        assert [(view.state, view.finished) for view in seen] == [(state, True)]
        assert clock.now - begun <= most
        assert len(fake.queried) <= 8
    assert (job.status().unexplained, seen[-1].exit_code) == (True, 1)
    job.run.log.write_text("gridtf: n1: set-up line 2 failed with exit code 1\n")
    fake.accounting_delay, begun = 20.0, clock.now
    assert job.wait().state == FAILED
    assert clock.now == begun  # the script's log explains the end


def test_job_that_is_gone_without_a_trace_was_cancelled_if_accounting_would_know_it(
    fake: FakeScheduler, rough_path: Path, clock: Clock
) -> None:
    fake.states = [JobStatus(UNKNOWN, "it no longer knows it", purged=True)]
    fake.accounting_delay = 20.0
    job = submission.submit(RUNS)
    view = job.wait()
    assert (view.state, view.exit_code, view.unexplained) == (CANCELLED, 1, True)
    assert "if it was not deleted: can the job's hosts see that folder?" in view.hint
    assert clock.now >= 20
    fake.history = {job.id: JobStatus(FAILED, "Grid Engine could not run it on n1")}
    assert "could not run it on n1" in job.status().reason
    assert job.status().state == FAILED
    fake.history, fake.accounting_delay = {}, 0.0  # no accounting
    assert (job.status().state, "wrote nothing" in job.status().reason) == (FAILED, True)


def test_logs_and_output_of_an_array_are_refused(
    fake: FakeScheduler, rough_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    job = submission.submit(RUNS)
    for number in ("10", "3"):
        (job.run.elements / number).mkdir(parents=True)
    with pytest.raises(NotFoundError, match="is an array of 2 jobs"):
        job.logs()
    for words in (["logs"], ["logs", "--task", "worker:0"], ["output"]):
        assert main([*words, job.id]) == 2
        error = capfd.readouterr().err
        assert "is an array of 2 jobs, each with its own logs and output" in error
        assert f"one element: gridtf {words[0]} {job.run.elements / '3'}" in error


def test_cancel_ends_a_job_with_verdict_that_its_scheduler_lists(fake: FakeScheduler, rough_path: Path) -> None:
    for state in (FAILED, COMPLETED):
        job = submission.submit(RUNS)
        end(job, state)
        fake.states = [JobStatus(RUNNING)]
        assert (job.cancel().state, fake.cancelled.pop()) == (state, job.id)


def test_job_methods_refuse_a_path_that_is_no_run_directory(fake: FakeScheduler, rough_path: Path) -> None:
    job = Job("4711")
    assert job.status().state == UNKNOWN
    for method in (job.wait, job.cancel, job.logs):
        with pytest.raises(NotFoundError, match="4711 is not a run directory"):
            method()


def test_wait_raises_when_the_run_directory_is_removed(fake: FakeScheduler, rough_path: Path, clock: Clock) -> None:
    job = submission.submit(RUNS)
    clock.at(3, lambda: shutil.rmtree(job.run_dir))
    with pytest.raises(RunDirError, match="was removed while gridtf waited for its job, 101") as caught:
        job.wait()
    assert caught.value.exit_code == 1  # no wrong usage
    assert clock.now < 5


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ("{}", "submitted.json is damaged: scheduler is missing"),
        ('{"scheduler": ["slurm"], "job_id": "7"}', "submitted.json is damaged: scheduler is ['slurm']"),
        (None, "submitted.json is damaged: it is not a regular file"),
    ],
)
def test_views_with_a_damaged_record_include_the_other_jobs(
    record: str | None, reason: str, fake: FakeScheduler, rough_path: Path
) -> None:
    bad, good = (submission.submit(RUNS) for _ in range(2))
    bad.run.submitted.unlink()
    if record is None:
        bad.run.submitted.mkdir()
    else:
        bad.run.submitted.write_text(record)
    seen = observe.views([bad.run, good.run])
    assert [view.state for view in seen] == [UNKNOWN, RUNNING]
    assert reason in seen[0].reason
    with pytest.raises(RunDirError):
        bad.status()


def test_status_of_a_job_of_an_unknown_scheduler(rough_path: Path) -> None:
    job = Job(rough_path)
    write_record(job.run.job, {})
    write_record(job.run.submitted, {"scheduler": "pbs", "job_id": "7", "name": "n"})
    assert (job.status().state, job.status().job_id) == (PENDING, "7")
    assert "'pbs' is not one of slurm, sge, local" in job.status().reason


def test_wait_with_a_timeout(fake: FakeScheduler, rough_path: Path) -> None:
    job = submission.submit(RUNS)
    assert job.wait(timeout=0.01).state == RUNNING
    assert job.wait(timeout=0).state == RUNNING


def test_cancel_records_who_cancelled(fake: FakeScheduler, rough_path: Path) -> None:
    job = submission.submit(RUNS)
    view = job.cancel()
    assert (view.state, fake.cancelled) == (CANCELLED, ["101"])
    assert json.loads(job.run.cancelled.read_text()).keys() == {"user", "host", "time"}


def test_cancel_leaves_an_ended_job_alone(fake: FakeScheduler, rough_path: Path) -> None:
    job = submission.submit(RUNS)
    end(job, COMPLETED)
    fake.states = [JobStatus(COMPLETED)]
    assert job.cancel().state == COMPLETED
    assert fake.cancelled == []
    assert not job.run.cancelled.exists()


def test_cancel_refuses_a_job_that_gridtf_did_not_submit(fake: FakeScheduler, tmp_path: Path) -> None:
    job = Job(tmp_path)
    attempt = job.run.new_attempt()
    attempt.plan.write_text(json.dumps({"nonce": "n", "job": {"id": "9", "name": "hand"}}))
    assert (job.id, job.name) == ("9", "hand")
    attempt.launcher.write_text(json.dumps({"nonce": "n", "time": time.time()}))
    with pytest.raises(GridtfError, match="was not submitted by gridtf"):
        job.cancel()


def test_events_and_samples_are_plain_values(tmp_path: Path) -> None:
    job = Job(recordedruns.make(tmp_path / "digits", workers=2, minutes=1, state=FAILED))
    events = job.events()
    assert [event["event"] for event in events[:2] + events[-1:]] == ["queued", "allocated", "verdict"]
    assert {event["attempt"] for event in events} == {1}
    samples = job.samples()
    assert {row["task"] for row in samples} == {"worker:0", "worker:1"}
    assert json.loads(json.dumps(samples)) == samples
    for method in (job.events, job.samples):
        shutil.rmtree(job.run_dir, ignore_errors=True)
        with pytest.raises(NotFoundError, match="is not a run directory"):
            method()


def test_follow_yields_lines_until_the_job_has_ended(fake: FakeScheduler, rough_path: Path, clock: Clock) -> None:
    job = submission.submit(RUNS)
    job.run.log.write_bytes(b"begun\n\xff\n")

    def more() -> None:
        with job.run.log.open("a") as log:
            log.write("more\nlast")

    clock.at(5, more)
    clock.at(15, lambda: end(job, COMPLETED))
    assert list(job.follow()) == ["begun", "\N{REPLACEMENT CHARACTER}", "more", "last"]
    assert list(job.follow(tail=1)) == ["last"]
    with pytest.raises(NotFoundError, match="no such task: worker:9"):
        list(job.follow("worker:9"))


def test_report_is_shown_in_a_frame_of_its_own(tmp_path: Path) -> None:
    job = Job(recordedruns.make(tmp_path / "digits", workers=2, minutes=1))
    page = job.report()
    assert page.html.lower().startswith("<!doctype html>")
    shown = page._repr_html_()
    frame = re.fullmatch(r'<iframe sandbox="allow-scripts" style="[^"]*" srcdoc="([^"]*)"></iframe>', shown)
    assert frame is not None
    assert html.unescape(frame[1]) == page.html
    assert len(repr(page)) < 120
    (job.run.elements / "1").mkdir(parents=True)
    with pytest.raises(NotFoundError, match="one element: gridtf report"):
        job.report()


def test_notebook_shows_a_job_as_an_escaped_table(fake: FakeScheduler, rough_path: Path) -> None:
    job = submission.submit(RUNS)
    fake.states = [JobStatus(PENDING, "<script>&\udcff")]
    shown = job._repr_html_()
    assert shown is not None
    assert "<td>PENDING: &lt;script&gt;&amp;\N{REPLACEMENT CHARACTER}</td>" in shown
    assert shown.startswith("<table><tr><th>name</th><td>train</td></tr>")
    job.run.submitted.write_text('{"scheduler": 7}')
    assert job._repr_html_() is None


def test_public_names_of_the_package(fake: FakeScheduler, rough_path: Path) -> None:
    job = gridtf.submit(gridtf.JobSpec(command=("x",)))
    assert isinstance(job, gridtf.Job)
    assert repr(job) == f"Job({str(job.run_dir)!r})"
    assert {"ClusterResolver", "Context"} <= {*dir(gridtf.training)}
    for name in gridtf.__all__:
        assert name in dir(gridtf)
        assert getattr(gridtf, name)
    with pytest.raises(AttributeError, match="module 'gridtf' has no attribute 'sumbit'"):
        gridtf.sumbit  # type: ignore[attr-defined]  # noqa: B018


def test_gridtf_training_is_loaded_on_first_use() -> None:
    code = "import sys, gridtf; assert 'gridtf.training' not in sys.modules; gridtf.training.Context"
    subprocess.run(python(code), env=environment(), timeout=180, check=True)


@pytest.mark.thorough
def test_type_checker_finds_a_misspelt_public_name(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    uses = tmp_path / "uses.py"
    uses.write_text("import gridtf\ngridtf.submit\ngridtf.training\ngridtf.sumbit\n")
    words = ["-m", "mypy", "--config-file=", "--cache-dir=/dev/null", "--follow-imports=skip", gridtf.__file__, uses]
    done = subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, timeout=120)
    assert 'uses.py:4: error: Module has no attribute "sumbit"' in done.stdout
    assert "Found 1 error" in done.stdout


@pytest.mark.parametrize("kind", [GridtfError, *GridtfError.__subclasses__(), SpecError, MaybeSubmittedError])
def test_errors_can_be_pickled(kind: type[GridtfError]) -> None:
    error = kind("nodes", "too many", hint="ask for fewer") if kind is SpecError else kind("too many", why="w")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), vars(again), str(again)) == (kind, vars(error), str(error))


def test_run_directory_with_the_log_of_another_job_is_not_that_job_s(
    fake: FakeScheduler, rough_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scheduler knows jobs that are not in the index, and only where their logs are."""
    place = submission.submit(RUNS).run_dir
    monkeypatch.setattr(fake, "run_dirs", lambda job_id: [place], raising=False)
    monkeypatch.setattr("gridtf.schedulers.available_here", lambda environ: "slurm")
    shutil.rmtree(registry.folder(os.environ))
    assert find("101").run_dir == find("101_3").run_dir == place
    with pytest.raises(NotFoundError, match="job 102 was not started by gridtf"):
        find("102")
