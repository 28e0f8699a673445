"""Submitting a job once more, with changes."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from gridtf.cli import main
from gridtf.errors import GridtfError, NotFoundError, RunDirError
from gridtf.jobspec.config import Typed
from gridtf.jobspec.spec import JobSpec
from gridtf.login import rerun
from gridtf.login.job import Job, find
from gridtf.login.resume import resume
from gridtf.run import registry
from gridtf.run.rundir import BY_HAND, RunDir, write_record
from gridtf.schedulers.api import JobStatus
from tests.support.scheduler import FakeScheduler
from tests.support.states import COMPLETED, PENDING, UNKNOWN

Captured = pytest.CaptureFixture[str]
FILE = """
command = ["python", "train.py", "{params}"]
name = "train"
time = "1:00:00"
mem = "4G"
setup = ["module load cuda"]
[params]
lr = 0.01
layers = 4
[env]
A = "1"
"""


@pytest.fixture
def first(fake: FakeScheduler, rough_path: Path, capsys: Captured) -> Job:
    """A job that runs, submitted from a job file that has changed since then."""
    Path("train.py").touch()
    Path("job.toml").write_text(FILE)
    assert main(["submit", "job.toml", "--quiet", "--nodes", "2"]) == 0
    Path("job.toml").write_text('command = ["other"]\n')
    capsys.readouterr()
    job = find("train")
    record = json.loads(job.run.job.read_text())
    record["spec"]["after"] = [str(rough_path / "earlier")]
    job.run.job.write_text(json.dumps(record))
    return job


def again(capsys: Captured, *words: str) -> Job:
    """Run a job again by the command."""
    assert main(["rerun", "--json", *words]) == 0
    return Job(json.loads(capsys.readouterr().out)["run_dir"])


def refused(capsys: Captured, *words: str) -> str:
    assert main(["rerun", *words]) != 0
    return capsys.readouterr().err


def spec_of(job: Job) -> JobSpec:
    return JobSpec.from_dict(json.loads(job.run.job.read_text())["spec"])


def edit(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_rerun_has_the_specification_with_the_changes(
    first: Job, capsys: Captured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GRIDTF_SUBMIT_NODES", "7")  # changes nothing
    site = tmp_path / "site.toml"
    site.write_text('setup = ["new"]\naccount = "new"\n')
    monkeypatch.setenv("GRIDTF_SITE_CONFIG", str(site))
    changes = ("--set", "layers=5", "--env", "B=2", "--mem-per-task", "2G", "--setup", "more", "--", "--fast")
    second = again(capsys, "train", *changes)
    old, new = spec_of(first), spec_of(second)
    assert new == old.replace(
        params={"lr": 0.01, "layers": 5},
        env={"A": "1", "B": "2"},
        command=(*old.command, "--fast"),
        setup=("module load cuda", "more"),
        mem=None,
        mem_per_task="2G",
        after=(),
        run_root=str(first.run_dir.parent),
        scheduler="slurm",
    )
    assert second.run_dir.parent == first.run_dir.parent
    assert (second.run_dir, second.output_dir) != (first.run_dir, first.output_dir)
    record = json.loads(second.run.job.read_text())
    assert record["origin"] == {"rerun_of": str(first.run_dir)}
    own = {key: source for key, source in record["sources"].items() if key in ("nodes", "params.lr", "params.layers")}
    assert own == {"nodes": "from train (101)", "params.lr": "from train (101)", "params.layers": "--set"}
    assert record["sources"]["command"] == "from train (101) and the command line"


def test_whole_command_replaces_that_of_the_job(first: Job, capsys: Captured) -> None:
    assert spec_of(again(capsys, "101", "--after", "101", "--", "python", "train.py")).command == ("python", "train.py")


def test_rerun_can_be_looked_at_before(first: Job, capsys: Captured) -> None:
    assert main(["rerun", "train", "--dry-run", "--set", "lr=0.1"]) == 0
    told = capsys.readouterr()
    lines = [" ".join(line.split()) for line in told.err.splitlines()]
    assert "params.lr = 0.1 --set" in lines
    assert "params.layers = 4 from train (101)" in lines
    assert "params" in told.out
    assert [entry.job_id for entry in registry.entries(os.environ)] == ["101"]


@pytest.mark.parametrize("state", [COMPLETED, "FAILED", "SAVED", PENDING])
def test_rerun_of_a_job_in_any_state(state: str, first: Job, fake: FakeScheduler, capsys: Captured) -> None:
    if state == PENDING:
        fake.states = [JobStatus(PENDING)]
    else:
        ended(first, fake, state)
    assert again(capsys, "train").id == "102"


def ended(job: Job, fake: FakeScheduler, state: str = "SAVED") -> None:
    attempt = job.run.new_attempt()
    attempt.plan.write_text(json.dumps({"nonce": "n"}))
    record = {"nonce": "n", "state": state, "reason": "r", "hint": "", "cause": None, "again": False}
    attempt.verdict.write_text(json.dumps({"started": 1.0, "ended": 2.0, "exit_code": 42, **record}))
    fake.states = [JobStatus(UNKNOWN, purged=True)]


def test_rerun_of_a_resumed_job_begins_anew(first: Job, fake: FakeScheduler, capsys: Captured) -> None:
    ended(first, fake)
    second = resume(first)
    assert spec_of(second).env["OUTPUT_DIR"] == str(first.run.output)
    third = again(capsys, second.id)
    assert (third.output_dir, spec_of(third).env) == (third.run.output, {"A": "1"})


def test_output_dir_of_the_user_s_own_is_not_shared(fake: FakeScheduler, rough_path: Path, capsys: Captured) -> None:
    assert main(["submit", "--name", "own", "--env", "OUTPUT_DIR=results", "--", "true"]) == 0
    error = refused(capsys, "own")
    assert "own has its results in results, where this job would write as well" in error
    assert "choose another folder: --env OUTPUT_DIR=DIR" in error
    assert again(capsys, "own", "--env", "OUTPUT_DIR=more").output_dir == rough_path / "more"
    assert main(["submit", "--name", "each", "--env", "OUTPUT_DIR=of-{job_id}", "--", "true"]) == 0
    capsys.readouterr()
    assert spec_of(again(capsys, "each")).env == {"OUTPUT_DIR": "of-{job_id}"}
    words = ("--env", "OUTPUT_DIR=of-{params.lr}", "--set", "lr=0.1", "--set", "n=1")
    assert main(["submit", "--name", "by-lr", *words, "--", "true"]) == 0
    assert "by-lr has its results in of-0.1, where this job would write as well" in refused(
        capsys, "by-lr", "--set", "n=2"
    )
    assert spec_of(again(capsys, "by-lr", "--set", "lr=0.2")).params["lr"] == 0.2


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--set", "layer=5"), "--set: there is no parameter 'layer'"),
        (("--set", "layers=x"), "--set: 'x' is not a whole number"),
        (("--time", "9:00:00"), "--time: 09:00:00 requested, the site allows 02:00:00"),
        (("--nodes", "x"), "--nodes: 'x'"),
        (("--profile", "big"), "--profile: there is no profile 'big'; did you mean"),
        (("--failed",), "is no sweep"),
        (("--code", "then"), "'then' is not known, only now"),
        (("--",), "there is no command after --"),
        (("gridtf.toml",), "unexpected argument 'gridtf.toml'"),
    ],
)
def test_wrong_changes_are_refused(
    words: tuple[str, ...],
    error: str,
    first: Job,
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    site = tmp_path / "site.toml"
    site.write_text('[limits]\nmax_time = "2:00:00"\n[profiles.bigger]\nnodes = 3\n')
    monkeypatch.setenv("GRIDTF_SITE_CONFIG", str(site))
    assert error.partition(";")[0] in refused(capsys, "train", *words)
    assert [path.name for path in first.run_dir.parent.iterdir()] == [first.run_dir.name]
    assert spec_of(again(capsys, "train", "--profile", "bigger")).nodes == 3


def test_job_over_the_limit_of_now_is_refused(
    first: Job, capsys: Captured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    site = tmp_path / "site.toml"
    site.write_text('[limits]\nmax_time = "0:30:00"\n')
    monkeypatch.setenv("GRIDTF_SITE_CONFIG", str(site))
    assert "from train (101): time: 01:00:00 requested, the site allows 00:30:00" in refused(capsys, "train")


def test_jobs_that_cannot_be_run_again(first: Job, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    record = json.loads(first.run.job.read_text())
    edit(first.run.job, spec={**record["spec"], "shape": 1}, gridtf="9.9")
    error = refused(capsys, "train")
    assert f"{first.run.job}: shape: unknown key" in error
    assert "gridtf 9.9 has written it, and this is " in error
    edit(first.run.job, spec=record["spec"])
    submitted = json.loads(first.run.submitted.read_text())
    edit(first.run.submitted, command=[BY_HAND])
    assert "was not submitted by gridtf: gridtf cannot run it again" in refused(capsys, "train")
    first.run.submitted.write_text(json.dumps(submitted))
    monkeypatch.setattr("gridtf.login.resume.is_ours", lambda path: False)
    monkeypatch.setattr("gridtf.login.resume.owner", lambda path: "bob")
    with pytest.raises(RunDirError, match="belongs to user bob") as caught:
        rerun.again(Job(first.run_dir), Typed())
    assert caught.value.hint == "only bob can rerun it"
    monkeypatch.undo()


def test_job_that_was_cleaned_is_told_of(first: Job, capsys: Captured) -> None:
    shutil.rmtree(first.run_dir)
    assert "the newest run called train (job 101) is gone" in refused(capsys, "train")


def test_array_and_its_elements(first: Job, capsys: Captured) -> None:
    element = RunDir(first.run.elements / "3")
    element.path.mkdir(parents=True)
    with pytest.raises(NotFoundError, match="is an array of 1 jobs"):
        rerun.again(first, Typed())
    write_record(element.job, {"spec": {"command": ["x"]}})
    write_record(element.submitted, {"scheduler": "slurm", "job_id": "101_3", "name": "train_3"})
    with pytest.raises(GridtfError, match="is an element of a job array: gridtf cannot run it again"):
        rerun.again(Job(element), Typed())
    rows = [{"lr": 1.0}, {"lr": 2.0}, {"lr": 3.0, "layers": 9}]
    write_record(first.run.sweep, {"rows": rows, "at_once": 1, "pack": 1, "numbers": []})
    single = again(capsys, str(element.path), "--set", "lr=2")
    assert spec_of(single).params == {"lr": 2.0, "layers": 9}
    assert (single.run_dir.parent, single.id) == (first.run_dir.parent, "102")
    assert (single.name, find(first.name).id) == (f"{first.name}-3", first.id), "the name stays the sweep's"
    assert json.loads(single.run.job.read_text())["origin"] == {"rerun_of": str(element.path)}


def test_snapshot_of_the_job_runs_again_unless_its_code_is_to_be_the_present_one(first: Job, tmp_path: Path) -> None:
    record = json.loads(first.run.job.read_text())
    snapshot = tmp_path / "snapshot"
    edit(first.run.job, spec={**record["spec"], "snapshot": True}, origin={"snapshot": str(snapshot)})
    with pytest.raises(GridtfError, match="the snapshot that train has run is gone") as caught:
        rerun.again(first, Typed())
    assert caught.value.hint.startswith("--code now")
    snapshot.mkdir()
    made = rerun.again(first, Typed())
    assert made.origin == {"rerun_of": str(first.run_dir), "snapshot": str(snapshot)}
    assert made.spec.snapshot
    made = rerun.again(first, Typed(), code_now=True)
    assert (made.origin, made.spec.snapshot) == ({"rerun_of": str(first.run_dir)}, True)


def test_another_commit_is_told_of(first: Job, capsys: Captured) -> None:
    second = again(capsys, "train")
    made = rerun.again(first, Typed())
    assert rerun.code_notes(made, second) == []
    write_record(first.run_dir / "code.json", {"commit": "a" * 40})
    write_record(second.run_dir / "code.json", {"commit": "b" * 40})
    assert rerun.code_notes(made, second) == [
        "it runs the code as it is now, commit bbbbbbbbbb; that of the other job was aaaaaaaaaa"
    ]
    assert rerun.code_notes(made.replace(origin={**made.origin, "snapshot": "/s"}), second) == []
