"""From a JobSpec to a submitted job."""

from __future__ import annotations

import json
import os
import shlex
import stat
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import gridtf
from gridtf import resources, schedulers
from gridtf.errors import GridtfError, MaybeSubmittedError, RunDirError, SchedulerError, SpecError, UsageError
from gridtf.jobspec.spec import JobSpec, TaskSpec
from gridtf.login import submission
from gridtf.login.job import Job
from gridtf.run import registry, rundir
from gridtf.run.hosthistory import History
from gridtf.run.rundir import Record, write_record
from gridtf.schedulers.api import JobIdentity, Plan, SubmitResult
from tests.support.scheduler import FakeScheduler

RUNS = JobSpec(command=("python", "train.py"), scheduler="slurm")


def tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


# --- plans


def test_prepare_returns_a_plan_without_side_effects(rough_path: Path) -> None:
    plan = submission.prepare(RUNS.replace(name="n"), {"name": "--name"})
    spec = RUNS.replace(name="n", chdir=str(rough_path))
    assert plan == Plan(
        spec=spec,
        scheduler=schedulers.get("slurm"),
        request=schedulers.get("slurm").login.resolve(spec),
        run_dir=plan.run_dir,
        python=sys.executable,
        bootstrap=resources.bootstrap_script(),
        sources={"name": "--name", "chdir": "the current folder"},
        history=History(),
    )
    assert plan.run_dir.parent == rough_path / "gridtf-runs"
    assert plan.run_dir.name.startswith("n-20")
    assert list(rough_path.iterdir()) == []


@pytest.mark.parametrize(
    ("values", "run_dir"),
    [
        ({"run_dir": "mine"}, "mine"),
        ({"run_dir": "/mine"}, "/mine"),
        ({"run_root": "runs"}, "runs/NAME"),
        ({"chdir": "sub"}, "sub/gridtf-runs/NAME"),
        ({"chdir": "sub", "run_root": "runs"}, "runs/NAME"),
    ],
)
def test_prepare_chooses_the_run_directory(values: dict[str, Any], run_dir: str, rough_path: Path) -> None:
    (rough_path / "sub").mkdir()
    plan = submission.prepare(RUNS.replace(**values))
    name = plan.run_dir.name if "NAME" in run_dir else "NAME"
    assert plan.run_dir == rough_path / run_dir.replace("NAME", name)
    assert plan.spec.chdir == str(rough_path / values.get("chdir", "."))


def test_prepare_takes_a_relative_image_from_the_current_folder(rough_path: Path) -> None:
    (rough_path / "tf.sif").touch()
    assert submission.prepare(RUNS.replace(container="tf.sif")).spec.container == str(rough_path / "tf.sif")
    assert submission.prepare(RUNS.replace(container="docker://i")).spec.container == "docker://i"


def test_prepare_takes_the_available_scheduler(fake: FakeScheduler, rough_path: Path) -> None:
    plan = submission.prepare(JobSpec(command=("x",)))
    assert (plan.scheduler.name, plan.sources["scheduler"]) == ("slurm", "found on this machine")
    assert plan.spec.scheduler is None


@pytest.mark.parametrize(
    ("values", "sources", "what"),
    [
        ({"chdir": "nowhere"}, {"chdir": "job.toml:3"}, "job.toml:3: chdir: there is no folder "),
        ({"template": "nowhere"}, {"template": "--template"}, "--template: there is no file "),
        (
            {"tasks": {"worker": TaskSpec(count=3)}, "nodes": 1, "tasks_per_node": 2},
            {"tasks.worker.count": "job.toml:4"},
            "job.toml:4: tasks.worker.count: 3 training tasks do not",
        ),
        (
            {"tasks_per_node": 4, "gpus_per_node": 2},
            {"tasks_per_node": "job.toml:7"},
            "job.toml:7: tasks_per_node: 4 tasks x 1 GPUs need more than gpus_per_node = 2",
        ),
        ({"command": ()}, {}, "nothing to run"),
    ],
)
def test_prepare_reports_invalid_values_with_their_source(
    values: dict[str, Any], sources: dict[str, str], what: str, rough_path: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        submission.prepare(RUNS.replace(**values), sources)
    assert caught.value.what.startswith(what)
    assert list(rough_path.iterdir()) == []


# --- submission


def test_submit_writes_all_records(fake: FakeScheduler, rough_path: Path) -> None:
    job = submission.submit(RUNS, {"command": "the command line"})
    assert tree(job.run_dir) == {"job.json", "job.sh", "submitted.json", "output"}
    assert (job.id, job.name, job.notes) == ("101", "train", ())
    assert stat.S_IMODE(job.run.script.stat().st_mode) & 0o100
    assert "exec" in job.run.script.read_text()
    described = json.loads(job.run.job.read_text())
    assert described["gridtf"] == gridtf.__version__
    assert JobSpec.from_dict(described["spec"]) == RUNS.replace(chdir=str(rough_path))
    assert described["sources"] == {"command": "the command line", "chdir": "the current folder"}
    submitted = json.loads(job.run.submitted.read_text())
    assert submitted["host"] == os.uname().nodename
    assert submitted.keys() == {"job_id", "scheduler", "name", "user", "host", "time", "command", "cluster"}
    assert submitted["command"] == ["sbatch", "--parsable"]
    assert registry.find("train", os.environ, rough_path).path == job.run_dir


def test_job_that_runs_before_its_scheduler_answers_was_submitted_before(
    fake: FakeScheduler, rough_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A probe would otherwise take the clock of its host to be behind."""
    ran: list[float] = []
    accept = fake.submit

    def submit(plan: Plan) -> SubmitResult:
        ran.append(time.time())
        return accept(plan)

    monkeypatch.setattr(fake, "submit", submit)
    job = submission.submit(RUNS)
    assert json.loads(job.run.submitted.read_text())["time"] <= ran[0]


def test_concurrent_submissions_get_different_run_directories(
    fake: FakeScheduler, rough_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "strftime", lambda *_: "20250101-000000")
    jobs: list[Job] = []
    threads = [threading.Thread(target=lambda: jobs.append(submission.submit(RUNS))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    base = "train-20250101-000000"
    assert {job.run_dir.name for job in jobs} == {base, f"{base}-2", f"{base}-3", f"{base}-4"}
    assert len({job.id for job in jobs}) == 4
    for job in jobs:
        assert f"GRIDTF_RUN_DIR={shlex.quote(str(job.run_dir))}\n" in job.run.script.read_text()


def test_existing_run_directory_is_refused(fake: FakeScheduler, rough_path: Path) -> None:
    spec = RUNS.replace(run_dir="mine")
    first = submission.submit(spec)
    before = tree(rough_path)
    with pytest.raises(UsageError, match="mine already exists"):
        submission.submit(spec)
    assert tree(rough_path) == before
    assert first.run.submitted.exists()


@pytest.mark.parametrize("method", ["submit_command", "resolve"])
def test_scheduler_s_spec_errors_are_reported_with_their_source(
    method: str, fake: FakeScheduler, rough_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(_: object) -> tuple[str, ...]:
        raise SpecError("run_dir", "is wrong")

    monkeypatch.setattr(fake, method, wrong)
    with pytest.raises(UsageError) as caught:
        submission.submit(RUNS, {"run_dir": "job.toml:3"})
    assert caught.value.what == "job.toml:3: run_dir: is wrong"
    assert tree(rough_path) == set()


def test_refused_submission_removes_only_what_it_has_made(fake: FakeScheduler, rough_path: Path) -> None:
    """Another user, who may rename a folder above, exchanges the run directory meanwhile."""
    fake.refuses = "sbatch: error: invalid partition"
    away, thesis = rough_path / "away", rough_path / "thesis"
    thesis.mkdir()
    (thesis / "chapter").touch()

    def exchange(run_dir: Path) -> None:
        run_dir.rename(away)
        thesis.rename(run_dir)

    with pytest.raises(GridtfError, match="invalid partition"):
        submission.submit(RUNS.replace(run_dir="run"), claim=exchange)
    assert (rough_path / "run" / "chapter").exists()
    assert not list(away.iterdir())


@pytest.mark.parametrize("run_root", [None, "runs"])
def test_refused_submission_leaves_no_files(run_root: str | None, fake: FakeScheduler, rough_path: Path) -> None:
    fake.refuses = "sbatch: error: invalid partition"
    if run_root:
        (rough_path / run_root).mkdir()
    before = tree(rough_path)
    with pytest.raises(SchedulerError, match="invalid partition"):
        submission.submit(RUNS.replace(run_root=run_root))
    assert tree(rough_path) == before
    assert list(registry.entries(os.environ)) == []


def test_run_directory_is_kept_when_the_job_may_be_submitted(
    fake: FakeScheduler, rough_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(plan: Plan) -> Record:
        raise MaybeSubmittedError("no answer")

    monkeypatch.setattr(fake, "submit", lost)
    with pytest.raises(MaybeSubmittedError):
        submission.submit(RUNS.replace(run_dir="mine"))
    assert Path("mine/job.sh").exists()


def test_run_directory_is_kept_after_ctrl_c_during_the_submission(
    fake: FakeScheduler, rough_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(plan: Plan) -> Record:
        raise KeyboardInterrupt

    monkeypatch.setattr(fake, "submit", interrupted)
    with pytest.raises(MaybeSubmittedError, match="interrupted while slurm was accepting the job") as caught:
        submission.submit(RUNS.replace(run_dir="mine"))
    assert caught.value.exit_code == 130
    assert str(rough_path / "mine") in caught.value.why
    assert "before you submit it again" in caught.value.hint
    assert Path("mine/job.sh").exists()


def test_ctrl_c_before_the_submission_leaves_no_files(
    fake: FakeScheduler, rough_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(plan: Plan) -> tuple[str, ...]:
        raise KeyboardInterrupt

    monkeypatch.setattr(fake, "check", interrupted)
    with pytest.raises(KeyboardInterrupt):
        submission.submit(RUNS)
    assert tree(rough_path) == set()


def test_records_with_environment_variables_are_private(fake: FakeScheduler, rough_path: Path) -> None:
    before = os.umask(0o022)
    try:
        run = submission.submit(RUNS.replace(env={"TOKEN": "secret"})).run
    finally:
        os.umask(before)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (run.script, run.job)] == [0o700, 0o600]
    assert "secret" not in run.submitted.read_text()


def test_run_root_removed_by_another_submission_is_made_again(
    fake: FakeScheduler, rough_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = ["another"]

    def make_folder(path: Path, **more: bool) -> None:
        rundir.make_folder(path, **more)
        if refused:
            refused.pop()
            path.rmdir()

    monkeypatch.setattr(submission, "make_folder", make_folder)
    assert submission.submit(RUNS).run.submitted.exists()


def test_removed_current_folder_is_reported(fake: FakeScheduler, rough_path: Path) -> None:
    rough_path.rmdir()
    with pytest.raises(RunDirError, match="the current folder no longer exists"):
        submission.submit(RUNS)


def test_scheduler_notes_are_not_written_to_submitted_json(
    fake: FakeScheduler, rough_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake, "submit", lambda plan: SubmitResult(JobIdentity("7"), ("in another way",)))
    job = submission.submit(RUNS)
    assert job.notes == ("in another way",)
    assert "notes" not in json.loads(job.run.submitted.read_text())


def test_failing_template_leaves_no_files(fake: FakeScheduler, rough_path: Path) -> None:
    (rough_path / "own.j2").write_text("{{ nothing_of_the_kind }}")
    with pytest.raises(GridtfError, match=r"own\.j2:1"):
        submission.submit(RUNS.replace(template="own.j2"))
    assert tree(rough_path) == {"own.j2"}
    assert fake.count == 0


def test_job_is_cancelled_when_submitted_json_cannot_be_written(
    fake: FakeScheduler, rough_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, record: Record) -> None:
        if path.name == "submitted.json":
            raise RunDirError("no space left")
        write_record(path, record)

    monkeypatch.setattr(submission, "write_record", full)
    with pytest.raises(RunDirError, match="no space left"):
        submission.submit(RUNS)
    assert fake.cancelled == ["101"]
    assert tree(rough_path) == set()


def test_run_directory_that_cannot_be_made_is_reported(fake: FakeScheduler, rough_path: Path) -> None:
    with pytest.raises(RunDirError, match=r"cannot make .*No such file") as caught:
        submission.submit(RUNS.replace(run_dir="no/such/folder"))
    assert "make the folder above it first" in caught.value.hint
    (rough_path / "file").write_text("")
    with pytest.raises(RunDirError, match="Not a directory"):
        submission.submit(RUNS.replace(run_root="file/runs"))


def test_unwritable_index_is_a_note(fake: FakeScheduler, rough_path: Path) -> None:
    folder = registry.folder(os.environ)
    folder.parent.mkdir(parents=True)
    folder.write_text("in the way")
    job = submission.submit(RUNS)
    assert job.id == "101"
    assert job.notes[0].startswith("cannot write ")
