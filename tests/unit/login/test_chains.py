"""Looking up the jobs that a job starts after, and submitting the steps of a job file."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gridtf.cli import main
from gridtf.errors import SchedulerError, UsageError
from gridtf.jobspec.spec import JobSpec
from gridtf.login import api, chains, submission
from gridtf.login.job import Job, find
from gridtf.login.resume import resume
from gridtf.run import following, recordtypes, registry
from gridtf.run.rundir import RunDir, read_record
from gridtf.schedulers.api import JobStatus, Plan
from gridtf.states import JobState
from tests.support.scheduler import FakeScheduler

Captured = pytest.CaptureFixture[str]
RUNS = JobSpec(command=("python", "train.py"), scheduler="slurm", name="train")


def end(job: Job, state: str, fake: FakeScheduler | None = None, **more: Any) -> Job:
    """Let a job end: its launcher has written a verdict."""
    record = {"nonce": "n", "state": state, "reason": "r", "again": False, "started": 1.0, "ended": 2.0, **more}
    attempt = job.run.new_attempt()
    attempt.plan.write_text(json.dumps({"nonce": "n"}))
    attempt.verdict.write_text(json.dumps({**record, "exit_code": 0, "hint": "", "cause": None}))
    if fake is not None:
        fake.states = [JobStatus(JobState.UNKNOWN, purged=True)]
    return job


def only(fake: FakeScheduler, job_id: str, state: JobState) -> None:
    """Let the queue have one job."""
    purged = JobStatus(JobState.UNKNOWN, purged=True)
    fake.query = lambda jobs: {  # type: ignore[method-assign]
        job.job_id: JobStatus(state) if job.job_id == job_id else purged for job in jobs
    }


def plan(**conditions: Any) -> Plan:
    return submission.prepare(RUNS.replace(name="next", **conditions))


def refused(**conditions: Any) -> UsageError:
    with pytest.raises(UsageError) as caught:
        plan(**conditions)
    return caught.value


def test_conditions_are_run_directories_and_ids(fake: FakeScheduler, rough_path: Path) -> None:
    one, two = submission.submit(RUNS), submission.submit(RUNS.replace(name="other"))
    made = plan(after=("train", one.id, str(one.run_dir)), after_any=("other",))
    assert made.spec.after == (str(one.run_dir),)
    assert made.spec.after_any == (str(two.run_dir),)
    assert made.waits_for == ("101", "102")
    job = submission.submit(RUNS.replace(name="next", after=("train",)))
    words = {str(one.run_dir): "train (101)"}
    assert json.loads(job.run.job.read_text())["origin"] == {"waits_for": words}
    fake.states = [JobStatus(JobState.PENDING, "it waits for another job (Dependency)", waits=True)]
    view = job.status()
    assert (view.state, view.reason, view.waits_for) == ("PENDING", "after train (101)", words)
    fake.states = [JobStatus(JobState.PENDING, "Resources")]
    assert job.status().reason == "Resources"


def test_job_that_has_ended_as_it_must_is_not_waited_for(fake: FakeScheduler, rough_path: Path) -> None:
    job = end(submission.submit(RUNS), "COMPLETED", fake)
    assert plan(after=("train",), after_any=("train",)).waits_for == ()
    what = refused(after_failed=("train",))
    assert "job train (101) is COMPLETED, so it has not failed, and will not" in what.what
    end(job, "FAILED")
    assert plan(after_failed=("train",)).waits_for == ()
    what = refused(after=("train",))
    assert "job train (101) is FAILED, so it has not completed, and will not" in what.what
    assert what.hint == "gridtf resume 101 goes on with it; --after-any takes it as it is"
    job.run.sweep.write_text("{}")
    assert refused(after=("train",)).hint.startswith("gridtf rerun --failed 101 runs again what failed: start after")


@pytest.mark.parametrize(
    ("word", "says", "hint"),
    [
        ("trian", "no job is called trian", "did you mean train?"),
        ("4711", "no job is called 4711", "for a job without gridtf write --native=--dependency=afternotok:4711"),
        ("./data", "data is not a run directory", "`gridtf list` shows where the runs are"),
    ],
)
def test_job_that_is_not_known(fake: FakeScheduler, rough_path: Path, word: str, says: str, hint: str) -> None:
    submission.submit(RUNS)
    (rough_path / "data").mkdir()
    error = refused(after_failed=(word,))
    assert says in error.what
    assert error.hint == hint


def test_job_of_another_user(fake: FakeScheduler, rough_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = submission.submit(RUNS)
    monkeypatch.setattr(chains, "is_ours", lambda path: False)
    monkeypatch.setattr(chains, "owner", lambda path: "bob")
    error = refused(after_any=(str(job.run_dir),))
    assert f"job {job.run_dir} belongs to user bob" in error.what
    assert error.hint == "its own scheduler can wait for its end: --native=--dependency=afterany:101"


def test_job_of_another_scheduler(fake: FakeScheduler, rough_path: Path) -> None:
    job = submission.submit(RUNS)
    record = json.loads(job.run.submitted.read_text())
    job.run.submitted.write_text(json.dumps({**record, "scheduler": "sge"}))
    assert "is a job of sge, and this one is for slurm here" in refused(after=(str(job.run_dir),)).what


def test_local_job_of_another_host(rough_path: Path, fake: FakeScheduler) -> None:
    job = submission.submit(RUNS)
    record = json.loads(job.run.submitted.read_text())
    job.run.submitted.write_text(json.dumps({**record, "scheduler": "local", "host": "elsewhere"}))
    fake.name = "local"  # type: ignore[misc]
    assert "is a job of local on host elsewhere" in refused(after=(str(job.run_dir),)).what


def test_scheduler_s_own_option_beside_it(fake: FakeScheduler, rough_path: Path, monkeypatch: Any) -> None:
    submission.submit(RUNS)
    monkeypatch.setattr(FakeScheduler, "parse_native", lambda self, native: {"dependency": "singleton"})
    assert "dependency would replace what gridtf writes there" in refused(after=("train",), native=("-d x",)).what


def test_job_that_was_resumed_stands_for_the_other(fake: FakeScheduler, rough_path: Path) -> None:
    first = end(submission.submit(RUNS), "SAVED", fake)
    assert "is SAVED, so it has not completed" in refused(after=("101",)).what
    second = end(resume(first), "SAVED", fake)
    third = resume(second)
    fake.states = [JobStatus(JobState.RUNNING)]
    for job in (first, second, third):
        assert following.continued(job.run).path == third.run_dir
        assert plan(after=(job.id,)).waits_for == (third.id,)
    end(third, "COMPLETED", fake)
    assert plan(after=("101",)).waits_for == ()


def test_results_in_one_folder_do_not_make_one_training(fake: FakeScheduler, rough_path: Path) -> None:
    spec = RUNS.replace(env={"OUTPUT_DIR": "results"})
    (rough_path / "results").mkdir()
    resume(end(submission.submit(spec), "SAVED", fake))
    later = submission.submit(spec.replace(name="later"))
    assert following.continued(later.run).path == later.run_dir
    (rough_path / "results" / ".gridtf-resumed-7").write_text("no link")
    (rough_path / "results" / ".gridtf-resumed-8").symlink_to("run:/nowhere")
    assert following.continued(later.run).path == later.run_dir


def test_resumed_job_waits_only_if_it_has_not_begun(fake: FakeScheduler, rough_path: Path) -> None:
    first = submission.submit(RUNS)
    ended_early = submission.submit(RUNS.replace(name="early", after=("train",)))
    had_begun = end(submission.submit(RUNS.replace(name="late", after=("train",))), "FAILED")
    attempt = ended_early.run.new_attempt()
    verdict = {"nonce": "n", "state": "CANCELLED", "started": 1.0, "ended": 2.0, "exit_code": 1, "again": False}
    attempt.verdict.write_text(json.dumps(verdict))
    end(first, "FAILED", fake)
    assert "after" not in json.loads(resume(had_begun).run.job.read_text())["spec"]
    with pytest.raises(UsageError, match="is FAILED, so it has not completed"):
        resume(ended_early)
    second = resume(first)
    only(fake, second.id, JobState.RUNNING)
    assert json.loads(resume(ended_early).run.job.read_text())["spec"]["after"] == [str(second.run_dir)]


def test_clean_keeps_what_others_start_after(fake: FakeScheduler, rough_path: Path, capsys: Captured) -> None:
    first = end(submission.submit(RUNS), "COMPLETED", fake)
    submission.submit(RUNS.replace(name="next", after=("train",)))
    only(fake, "102", JobState.PENDING)
    assert main(["clean", "101", "--yes"]) == 1
    assert "train (101) is kept: job 102 starts after it" in capsys.readouterr().err
    assert main(["clean", "101", "--yes", "--keep-output"]) == 1
    assert first.run_dir.exists()


# --- steps

FILE = """
name = "digits"
scheduler = "slurm"
time = "10m"
command = ["python", "main.py"]
[env]
A = "1"
[steps.train]
nodes = 2
[steps.evaluate]
args = ["--model", "{steps.train.output_dir}/model"]
time = "2m"
[steps.export]
after_any = ["train", "evaluate"]
after = ["other"]
env.MODEL = "{steps.train.output_dir}"
params = {model = "{steps.train.output_dir}/model", lr = 0.1}
setup = ["ls {steps.evaluate.output_dir}"]
"""


@pytest.fixture
def file(rough_path: Path, fake: FakeScheduler) -> Callable[[str], None]:
    def write(text: str = FILE) -> None:
        (rough_path / "gridtf.toml").write_text(text)

    submission.submit(RUNS.replace(name="other"))
    return write


def test_steps_are_submitted_in_their_order(file: Callable[[], None], capsys: Captured) -> None:
    file()
    assert main(["submit", "--env", "B=2", "--after-any", "other", "--json"]) == 0
    jobs = json.loads(capsys.readouterr().out)
    assert [job["name"] for job in jobs] == ["digits-train", "digits-evaluate", "digits-export"]
    runs = [RunDir(job["run_dir"]) for job in jobs]
    records = [json.loads(run.job.read_text()) for run in runs]
    train, evaluate, export = (JobSpec.from_dict(record["spec"]) for record in records)
    other = next(str(run) for run in Path(runs[0].path.parent).iterdir() if run.name.startswith("other"))
    trained, evaluated = (str(run.path) for run in runs[:2])
    assert (train.nodes, train.time, evaluate.nodes, evaluate.time) == (2, "10m", None, "2m")
    assert (train.after, train.after_any) == ((), (other,))
    assert (evaluate.after, evaluate.after_any) == ((trained,), (other,))
    assert (export.after, export.after_any) == ((other,), (other, trained, evaluated))
    assert evaluate.command == ("python", "main.py", "--model", f"{runs[0].output}/model")
    assert export.params == {"model": f"{runs[0].output}/model", "lr": 0.1}
    assert export.setup == (f"ls {shlex.quote(str(runs[1].output))}",)
    assert export.env == {"A": "1", "B": "2", "MODEL": str(runs[0].output)}
    assert [record["origin"].get("chain") for record in records] == [None, trained, trained]
    assert [record["origin"]["step"] for record in records] == ["train", "evaluate", "export"]
    assert main(["status", "digits-evaluate"]) == 0
    shown = capsys.readouterr().out
    assert "after          digits-train (102) RUNNING" in shown
    assert "steps          train (102) RUNNING\n               evaluate (103) RUNNING" in shown


def test_steps_share_the_snapshot_of_the_first(
    file: Callable[[], None], capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    file()
    assert main(["submit", "--quiet", "--snapshot"]) == 0
    assert capsys.readouterr().out == "102\n103\n104\n"
    records = [read_record(run.job, recordtypes.Job) for run in registry.runs(os.environ)]
    assert (
        len({record["origin"]["snapshot"] for record in records if record and "step" in record.get("origin", {})}) == 1
    )


def test_steps_that_go_on_need_those_before_them(
    file: Callable[[str], None], fake: FakeScheduler, capsys: Captured
) -> None:
    """The last one reads the results of the first, and starts after the second."""
    file(FILE.replace('after_any = ["train", "evaluate"]', 'after_any = ["evaluate"]'))
    assert main(["submit", "--quiet"]) == 0
    first, second, last = map(find, ("digits-train", "digits-evaluate", "digits-export"))
    end(first, "COMPLETED", fake)
    end(second, "COMPLETED", fake)
    again = resume(end(last, "FAILED", fake))
    assert json.loads(again.run.job.read_text())["origin"]["chain"] == str(first.run_dir)
    only(fake, again.id, JobState.RUNNING)
    assert main(["clean", "digits-train", "--yes"]) == 1
    assert f"job {again.id} is a step of the same file, and has not ended" in capsys.readouterr().err
    end(again, "COMPLETED", fake)
    assert main(["clean", "digits-train", "--yes"]) == 0


@pytest.mark.parametrize("words", [["render"], ["submit", "--dry-run"]])
def test_render_shows_each_step(words: list[str], file: Callable[[], None], capsys: Captured, rough_path: Path) -> None:
    file()
    assert main(words) == 0
    captured = capsys.readouterr()
    assert captured.out.count("#!/bin/bash") == 3
    assert [line.split()[1] for line in captured.err.splitlines() if line.startswith("name ")] == [
        "digits-train",
        "digits-evaluate",
        "digits-export",
    ]
    assert len(os.listdir(rough_path / "gridtf-runs")) == 1
    waits = [" ".join(line.split()) for line in captured.err.splitlines() if line.lstrip().startswith("after")]
    runs = [json.dumps(line[15:]) for line in captured.err.splitlines() if line.startswith("run directory")]
    assert waits == [
        f"after = [{runs[0]}] [steps.evaluate]",
        f"after = [{json.dumps(str(find('other').run_dir))}] [steps.export]",
        f"after_any = [{runs[0]}, {runs[1]}] [steps.export]",
    ]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ('[steps.last]\nsetup = ["{steps.trian.output_dir}"]', "setup: there is no {steps.trian.output_dir}"),
        ('[steps.last]\nafter = ["later"]\n[steps.later]', "step later does not come before step last"),
        ('[steps.last]\nafter = ["last"]', "step last does not come before step last"),
        ('[steps.last]\nafter = ["nothing"]', "no job is called nothing"),
        ('[steps.last]\nenv.M = "{steps.trian.output_dir}"', "there is no {steps.trian.output_dir} before this step"),
        ('[steps.last]\nenv.M = "{steps.train.run_dir}"', "there is no {steps.train.run_dir} before this step"),
        ("[steps.last]\nnodes = 0", "nodes: "),
        ('[steps."a b"]', "a b"),
        ("[steps.last]\nunknown = 2", "unknown key"),
    ],
)
def test_wrong_step_is_refused_before_one_is_submitted(
    file: Callable[[str], None], capsys: Captured, fake: FakeScheduler, more: str, says: str
) -> None:
    file(FILE + more)
    assert main(["submit"]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert fake.count == 1


def test_nothing_is_left_after_a_refusal(
    file: Callable[[], None], capsys: Captured, fake: FakeScheduler, rough_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file()
    submit = FakeScheduler.submit

    def refuses(self: FakeScheduler, made: Plan) -> Any:
        if self.count == 3:
            raise SchedulerError("Slurm has refused the job: no")
        return submit(self, made)

    monkeypatch.setattr(FakeScheduler, "submit", refuses)
    assert main(["submit"]) == 1
    assert "Slurm has refused the job: no" in capsys.readouterr().err
    assert fake.cancelled == ["103"]  # the fake cancels all others with it
    assert [name.split("-")[0] for name in os.listdir(rough_path / "gridtf-runs")] == ["other"]


def test_what_could_not_be_removed_is_named(
    file: Callable[[], None], capsys: Captured, fake: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    file()
    submit = FakeScheduler.submit

    def refuses(self: FakeScheduler, made: Plan) -> Any:
        if self.count == 2:
            self.refuses = "no"
        return submit(self, made)

    monkeypatch.setattr(FakeScheduler, "submit", refuses)
    assert main(["submit"]) == 1
    assert "job digits-train (102) is left: no" in capsys.readouterr().err


def test_file_with_steps_is_no_single_job(file: Callable[[], None], capsys: Captured) -> None:
    file()
    assert main(["run", "gridtf.toml"]) == 2
    assert "gridtf.toml has [steps], and this runs one job" in capsys.readouterr().err
    with pytest.raises(UsageError, match=r"has \[steps\]"):
        api.load()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--dependency", "afterok:1:2,afterany:3"), {"after": ("1", "2"), "after_any": ("3",)}),
        (("--dependency=afternotok:1",), {"after_failed": ("1",)}),
        (("-hold_jid", "1,2"), {"after_any": ("1", "2")}),
    ],
)
def test_words_of_schedulers(words: tuple[str, ...], expected: dict[str, Any], rough_path: Path) -> None:
    from gridtf.jobspec.config import from_arguments

    spec = from_arguments([*words, "--", "true"], {"GRIDTF_SITE_CONFIG": "", "HOME": str(rough_path)}, rough_path).spec
    assert {key: value for key in following.CONDITIONS if (value := getattr(spec, key))} == expected


def test_words_of_slurm_that_gridtf_does_not_know(rough_path: Path, capsys: Captured) -> None:
    assert main(["submit", "--dependency", "singleton", "--", "true"]) == 2
    assert "for Slurm alone write --native=--dependency=singleton" in capsys.readouterr().err
