"""When a checkpoint is requested, and whether a job that has saved one is started again."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gridtf.bootstrap.judge.progress import Progress
from gridtf.bootstrap.judge.verdict import Verdict
from gridtf.bootstrap.judge.walltime import Chain, goes_on, until_next_look
from gridtf.bootstrap.launcher import endofjob
from gridtf.bootstrap.launcher.endofjob import EndOfJob
from gridtf.bootstrap.plan.launchedjob import LaunchedJob
from gridtf.bootstrap.system import System
from gridtf.bootstrap.wire.helper import Helper
from gridtf.errors import SchedulerError
from gridtf.jobspec.request import Request
from gridtf.jobspec.spec import JobSpec
from gridtf.run.rundir import BY_HAND, Record, RunDir, write_record, write_text
from gridtf.schedulers.local import LocalScheduler
from gridtf.schedulers.local.injob import LocalInJob
from gridtf.states import AGAIN_CODE, ENDED, JobState, exit_code
from tests.support.plans import job, resolved
from tests.support.system import FakeSystem

ENDS = {"time": "1h", "checkpoint_before": "5m"}
BEGIN = 5000.0  # of FakeSystem's clock


class Site(LocalInJob):
    """Says when the job ends, and that it can be started again."""

    def __init__(self, end: float | None) -> None:
        super().__init__(LocalScheduler())
        vars(self.scheduler)["injob"] = self  # the half that it shows
        self.end = end
        self.asked: list[float] = []
        self.silent = False
        self.system = FakeSystem()

    def end_of_job(self, environ: Mapping[str, str], request: Request, started: float) -> float | None:
        self.asked.append(self.system.time())
        if self.silent:
            raise SchedulerError("no answer")
        return super(LocalInJob, self).end_of_job(environ, request, started) if self.end is None else self.end

    def why_not_again(self, environ: Mapping[str, str]) -> str:
        return ""


def saved_at(site: Site, spec: JobSpec, limit: float = 10_000) -> float | None:
    """Seconds after which the checkpoint is requested, asked twice a second; None: not within the limit."""
    clock = site.system
    ends = EndOfJob(spec, resolved(spec), site.scheduler, clock)
    while clock.time() < BEGIN + limit:
        if ends.save_now():
            assert not ends.save_now()
            return clock.time() - BEGIN
        clock.sleep(0.5)
    return None


def test_checkpoint_is_requested_that_long_before_the_end() -> None:
    site = Site(BEGIN + 7200)  # what the scheduler says counts, not the request
    assert saved_at(site, job(**ENDS)) == 6900
    assert len(site.asked) < 12  # also where it is long until then


@pytest.mark.parametrize(("given", "end", "asked"), [(False, 300, 1), (True, 3600, 0)])
def test_scheduler_is_asked_once_at_most_where_no_checkpoint_is_to_be_saved_before_the_end(
    given: bool, end: float, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(BEGIN + 300)  # a site's plugin may have given the job less than it requested
    monkeypatch.setattr(site, "end_is_given", lambda environ: given)
    ends = EndOfJob(job(time="1h"), resolved(job(time="1h")), site.scheduler, site.system)
    assert [ends.save_now() for _ in range(3)] == [False] * 3
    assert (ends.end, len(site.asked)) == (BEGIN + end, asked)
    assert saved_at(site, job(time="1h"), 100) is None


@pytest.mark.timeout(120)
def test_launcher_goes_on_while_the_scheduler_does_not_answer_and_leaves_no_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The question is a process of its own here, as in a job."""
    monkeypatch.setattr(endofjob, "Helper", partial(Helper, wakes=False))
    os.mkfifo(tmp_path / "answer")
    site, system = Site(BEGIN), System({})
    others = set(system.children())  # such as those that tests on clusters in this process have
    monkeypatch.setattr(site, "end_of_job", lambda *_: len((tmp_path / "answer").read_text()) + BEGIN)

    def ends() -> EndOfJob:
        return EndOfJob(job(**ENDS), resolved(job(**ENDS)), site.scheduler, system)

    first = ends()
    assert [first.save_now() for _ in range(3)] == [False] * 3
    (asking,) = set(system.children()) - others
    (tmp_path / "answer").write_text("now")
    while not first.save_now():
        time.sleep(0.01)
    assert first.end == BEGIN + 3
    assert asking not in system.children()  # not even as a zombie
    second = ends()
    assert not second.save_now()
    (asking,) = set(system.children()) - others
    second.close()
    assert os.waitpid(asking, 0)[1] == signal.SIGKILL


def test_end_is_the_start_and_the_walltime_where_the_scheduler_knows_no_better() -> None:
    site = Site(None)
    site.system.sleep(100)  # the script's set-up lines
    assert saved_at(site, job(**ENDS)) == 3300


def test_limit_that_an_administrator_extends_defers_the_request() -> None:
    site = Site(BEGIN + 3600)
    site.system.at(3200, lambda: setattr(site, "end", BEGIN + 5400))
    assert saved_at(site, job(**ENDS)) == 5100


def test_limit_that_an_administrator_shortens_brings_the_request_forward() -> None:
    site = Site(BEGIN + 36000)
    site.system.at(100, lambda: setattr(site, "end", BEGIN + 20000))
    found = saved_at(site, job(**ENDS), 40_000)
    assert found == 19700


def test_scheduler_that_moves_no_end_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Grid Engine's qalter changes what qstat shows of a running job, and nothing else."""
    monkeypatch.setattr(Site, "end_moves", False)
    site = Site(BEGIN + 3600)
    site.system.at(100, lambda: setattr(site, "end", BEGIN + 36000))
    assert saved_at(site, job(**ENDS)) == 3300
    assert len(site.asked) == 1


def test_scheduler_that_does_not_answer_does_not_prevent_the_request() -> None:
    site = Site(BEGIN + 3600)
    site.system.at(100, lambda: setattr(site, "silent", True))
    assert saved_at(site, job(**ENDS)) == 3300
    assert "no answer" in site.system.logged


def test_end_that_nobody_knows_is_told_once() -> None:
    site = Site(None)
    spec = job(checkpoint_before="5m")
    assert saved_at(site, spec) is None
    (told,) = site.system.logged
    assert told.startswith("it is not known when the job will be ended")


def test_less_time_than_that_is_left() -> None:
    assert saved_at(Site(BEGIN + 60), job(**ENDS)) == 0


@pytest.mark.parametrize(("left", "wait"), [(0.5, 0.5), (60, 60), (61, 60), (600, 300), (86400, 43200)])
def test_until_next_look(left: float, wait: float) -> None:
    assert until_next_look(left) == wait


# --- whether to go on


def test_attempts_with_progress_go_on() -> None:
    chain = Chain()
    for step in (10, 20, 30):
        chain = chain.after(Progress(step=step))
        assert (chain.idle, chain.why_over(9)) == (0, "")


@pytest.mark.parametrize(
    ("progress", "why"),
    [
        (Progress(step=10), "2 attempts in a row made no progress, none came beyond step 10"),
        (Progress(checkpoint=5), "2 attempts in a row made no progress, the newest checkpoint is still step-5"),
        (
            Progress(),
            "2 attempts in a row made no progress, by new files in OUTPUT_DIR and",
        ),
    ],
)
def test_two_attempts_without_progress_end_the_chain(progress: Progress, why: str) -> None:
    chain = Chain() if progress == Progress() else Chain().after(progress)
    chain = chain.after(progress)
    assert (chain.idle, chain.why_over(9)) == (1, "")
    assert chain.after(progress).why_over(9).startswith(why)


def test_progress_after_an_attempt_without_begins_anew() -> None:
    chain = Chain().after(Progress(step=10)).after(Progress(step=10)).after(Progress(step=11)).after(Progress(step=9))
    assert (chain.idle, chain.progress) == (1, Progress(step=11))


def test_job_is_continued_as_often_as_it_may_be() -> None:
    assert Chain(links=1).why_over(2) == ""
    assert Chain(links=2).why_over(2) == "it has been started again 2 times, as often as it may be (--continue)"


class Saved:
    """Attempts of a job that end SAVED, one after the other."""

    def __init__(self, folder: Path, **values: Any) -> None:
        self.run = RunDir(folder / "run")
        self.run.path.mkdir()
        write_text(self.run.script, "gridtf_run\n")
        write_record(self.run.submitted, {"scheduler": "local", "job_id": "4711", "command": ["bash", "job.sh"]})
        self.spec = job(**ENDS, **values)

    def attempt(self, step: int) -> Verdict:
        attempt = self.run.new_attempt()
        records: dict[str, Record] = {"worker:0": {"progress": {"step": step, "values": {}, "time": 1.0}}}
        end = Verdict(JobState.SAVED, "worker:0 saved", hint="old")
        scheduler = Site(None).scheduler
        launched = LaunchedJob(self.run, self.spec, resolved(self.spec), scheduler, "4711", FakeSystem())
        decided = goes_on(end, attempt, launched, records)
        write_record(attempt.verdict, decided.record("n", 0.0, 1.0))
        return decided


def test_links_are_counted_from_attempt_to_attempt(tmp_path: Path) -> None:
    saved = Saved(tmp_path, continuations=2)
    first, second = saved.attempt(10), saved.attempt(20)
    write_record(saved.run.new_attempt().verdict, {"nonce": "n", "state": "NODE_FAIL", "again": True})  # no link
    last = saved.attempt(30)
    assert [end.again for end in (first, second, last)] == [True, True, False]
    assert second.summary == "worker:0 saved; the local scheduler starts it again (2 of 2)"
    assert second.hint == "if that does not happen: gridtf resume 4711"
    assert last.summary.startswith("worker:0 saved; it is not started again: it has been started again 2 times")
    assert last.hint == "to continue with its checkpoints: gridtf resume 4711"


def test_attempts_without_progress_are_counted_from_attempt_to_attempt(tmp_path: Path) -> None:
    saved = Saved(tmp_path, continuations=9)
    assert [saved.attempt(10).again for _ in range(3)] == [True, True, False]


def test_job_that_was_cancelled_while_it_saved_does_not_go_on(tmp_path: Path) -> None:
    saved = Saved(tmp_path, continuations=9)
    write_record(saved.run.cancelled, {"user": "alice", "host": "login", "time": 1.0})
    end = saved.attempt(10)
    assert (end.again, end.summary) == (False, "worker:0 saved; it is not started again: it was cancelled by alice")


def test_job_without_continuations_is_told_how_to_resume(tmp_path: Path) -> None:
    end = Saved(tmp_path).attempt(1)
    assert (end.again, end.reason, end.chain) == (False, "worker:0 saved", None)
    assert end.hint == "to continue with its checkpoints: gridtf resume 4711"


def test_job_that_ends_before_submitted_json_is_written_is_told_how_to_resume(tmp_path: Path) -> None:
    saved = Saved(tmp_path)
    saved.run.submitted.unlink()
    assert saved.attempt(1).hint == "to continue with its checkpoints: gridtf resume 4711"


@pytest.mark.parametrize("rendered", [True, False], ids=["rendered by gridtf", "by hand"])
def test_job_that_gridtf_did_not_submit_is_not_told_of_resume(tmp_path: Path, *, rendered: bool) -> None:
    saved = Saved(tmp_path)
    if not rendered:
        saved.run.script.unlink()
    write_record(saved.run.submitted, {"scheduler": "local", "job_id": "4711", "command": [BY_HAND]})
    assert saved.attempt(1).hint == "old"


def test_element_of_an_array_is_not_told_of_resume(tmp_path: Path) -> None:
    saved = Saved(tmp_path)
    saved.run.script.unlink()  # it is in the run directory of the array, as submitted.json is
    saved.run.submitted.unlink()
    assert saved.attempt(1).hint == "old"


def test_no_verdict_has_an_exit_code_that_means_something_to_grid_engine() -> None:
    assert not {exit_code(state) for state in ENDED} & {AGAIN_CODE, 100}
