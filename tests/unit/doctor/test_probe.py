"""The job of a probe: its specification, and the finding for each way in which it does not complete."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gridtf.doctor import measure, probe
from gridtf.errors import MaybeSubmittedError, RunDirError, UsageError
from gridtf.findings import Finding, Level
from gridtf.login import submission
from gridtf.login.job import Job
from gridtf.run import registry
from gridtf.run.rundir import RunDir
from gridtf.schedulers.api import JobStatus, Plan, SubmitResult
from gridtf.states import JobState
from tests.support.configuration import user_file, write
from tests.support.scheduler import FakeScheduler


def probed(*words: str, said: list[str] | None = None, patience: float = 0) -> Finding:
    """The only finding of a probe."""
    say = (lambda line: None) if said is None else said.append
    (found,) = probe.probe(probe.configured(["--scheduler", "slurm", *words]), patience=patience, say=say).findings
    assert found.level == Level.FAILURE
    assert "\n" not in found.message + found.hint
    return found


# --- its specification


def test_job_of_a_probe_is_one_task_a_host_with_the_site_s_values(rough_path: Path) -> None:
    user_file(
        'partition = "gpu"\naccount = "a1"\nsetup = ["module load tf"]\ntime = "8:00:00"\nserve = ["ps"]\n'
        'success_policy = "chief"\nnative = ["--qos=short"]\nsnapshot = true\n[env]\nA = "b"\n[tasks.ps]\ncount = 3\n'
    )
    spec = probe.job_spec(3, probe.configured(["--scheduler", "slurm", "--exclude", "n7"]))
    assert (spec.nodes, spec.tasks_per_node, spec.tasks, spec.serve, spec.success_policy) == (3, 1, {}, (), "all")
    assert not spec.snapshot
    assert (spec.partition, spec.account, spec.setup, spec.native) == (
        "gpu",
        "a1",
        ("module load tf",),
        ("--qos=short",),
    )
    assert (spec.env, spec.exclude, spec.gpus_per_task, spec.walltime) == ({"A": "b"}, ("n7",), 0, 180)
    assert spec.command == (sys.executable, "-I", "-S", measure.__file__, "python")


@pytest.mark.parametrize(("words", "nodes"), [("", 2), ("--nodes 4", 4), ("-N 2-3", 3)])
def test_number_of_hosts_is_that_of_an_option(words: str, nodes: int, rough_path: Path) -> None:
    user_file("nodes = 16\n")
    assert probe.nodes_of(probe.configured(["--scheduler", "slurm", *words.split()])) == nodes


def test_walltime_and_gpus_of_a_probe_are_those_of_its_options(rough_path: Path) -> None:
    words = ["--scheduler", "slurm", "--time", "10", "--gpus-per-node", "4", "--python", "/env/bin/python"]
    words += ["--gpus-per-task", "1"]  # which is of a job's tasks
    spec = probe.job_spec(2, probe.configured(words))
    assert (spec.walltime, spec.gpus_per_node, spec.gpus_per_task) == (600, 4, None)
    assert spec.command[-1] == "/env/bin/python"


def test_probe_of_the_local_scheduler_has_its_tasks_on_this_machine(rough_path: Path) -> None:
    spec = probe.job_spec(2, probe.configured(["--scheduler", "local"]))
    assert (spec.nodes, spec.tasks_per_node, spec.tasks["worker"].count) == (None, 2, 2)


def test_wrong_option_of_a_probe_is_refused_before_anything_is_done(rough_path: Path) -> None:
    with pytest.raises(UsageError, match="--time: 'soon'"):
        probe.configured(["--scheduler", "slurm", "--time", "soon"])


def test_probe_that_measures_its_end_outlives_every_signal(rough_path: Path) -> None:
    spec = probe.job_spec(2, probe.configured(["--scheduler", "slurm"]), end=True)
    assert (spec.command[-1], spec.kill_grace, spec.walltime) == ("end", measure.END_LIMIT, 360)
    local = probe.job_spec(2, probe.configured(["--scheduler", "local"]), end=True)
    assert (local.command[-1], local.kill_grace, local.walltime) == ("python", 5, 180)


def test_probe_looks_for_the_programs_of_containers_and_runs_in_none(rough_path: Path) -> None:
    spec = probe.job_spec(2, probe.configured(["--scheduler", "slurm", "--container", "docker://i"]))
    assert (spec.contained, spec.command[-2:]) == (False, ("program=apptainer", "program=singularity"))


# --- a job that does not complete


def test_refused_probe_is_a_finding(fake: FakeScheduler, rough_path: Path) -> None:
    fake.refuses = "sbatch: invalid account"
    finding = probed()
    assert (finding.check, finding.message) == ("probe.submission", "sbatch: invalid account")
    assert not list(rough_path.iterdir())


def test_probe_beyond_the_site_s_limits_is_a_finding(
    fake: FakeScheduler, rough_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = write(rough_path / "site.toml", "[limits]\nmax_nodes = 1\n")
    monkeypatch.setenv("GRIDTF_SITE_CONFIG", str(site))
    finding = probed()
    what = f"the job: nodes: 2 requested, the site allows 1; {site}:2: max_nodes = 1"
    assert (finding.check, finding.message) == ("probe.submission", what)
    assert [path.name for path in rough_path.iterdir()] == ["site.toml"]


def test_submission_with_an_unknown_outcome_is_a_finding_that_names_the_run_directory(
    fake: FakeScheduler, rough_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def submit(plan: Plan) -> SubmitResult:
        raise MaybeSubmittedError("Slurm may have taken the job", why=f"kept: {plan.run_dir}", hint="look in the queue")

    monkeypatch.setattr(fake, "submit", submit)
    finding = probed()
    (run,) = (rough_path / "gridtf-runs").iterdir()
    assert (finding.check, finding.hint) == ("probe.submission", "look in the queue")
    assert finding.message == f"Slurm may have taken the job; kept: {run}"


def test_probe_that_does_not_start_is_cancelled(fake: FakeScheduler, rough_path: Path) -> None:
    fake.states = [JobStatus(JobState.PENDING, "Resources")]
    said: list[str] = []
    finding = probed(said=said)
    assert (finding.check, finding.message) == (
        "probe.start",
        "job 101 has not started within 0 s: Resources; it was cancelled",
    )
    assert finding.hint
    assert fake.cancelled == ["101"]
    assert said[-1] == f"the run directory of the probe is kept: {next((rough_path / 'gridtf-runs').iterdir())}"


def test_probe_that_does_not_end_is_cancelled(
    fake: FakeScheduler, rough_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "_RUNS", 0.0)
    finding = probed()
    assert finding.check == "probe.job"
    assert finding.message == "job 101 has not ended within 0 s: the job script is setting up; it was cancelled"
    assert fake.cancelled == ["101"]


def test_failed_probe_is_a_finding_with_its_reason_and_last_output(fake: FakeScheduler, rough_path: Path) -> None:
    def fails(line: str) -> None:
        run = rough_path / "gridtf-runs"
        if line.startswith("submitted") and run.exists():
            (next(run.iterdir()) / "job.log").write_text("module: command not found\n\n")
            fake.states = [JobStatus(JobState.FAILED, "exit code 1")]

    (finding,) = probe.probe(probe.configured(["--scheduler", "slurm"]), patience=5, say=fails).findings
    assert finding.check == "probe.job"
    assert finding.message.startswith("job 101 ended FAILED: ended without a verdict")
    assert finding.message.endswith("last output: module: command not found")
    assert finding.hint.endswith("job.log")


def test_probe_whose_records_cannot_be_read_is_a_finding(
    fake: FakeScheduler, rough_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(runs: Sequence[RunDir], *_: object, **__: object) -> None:
        raise RunDirError(f"cannot read {runs[0].path}")

    monkeypatch.setattr("gridtf.observe.jobs._look", look)
    said: list[str] = []
    finding = probed(said=said)
    assert finding.check == "probe.job"
    assert finding.message.startswith("cannot read ")
    assert any("cancel it yourself: gridtf cancel " in line for line in said)


def test_ctrl_c_cancels_the_probe(fake: FakeScheduler, rough_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> Iterator[None]:
        raise KeyboardInterrupt

    watch = Job.watch
    calls: list[int] = []

    def once(*arguments: object, **more: object) -> object:
        calls.append(1)
        return interrupted() if len(calls) == 1 else watch(*arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Job, "watch", once)
    with pytest.raises(KeyboardInterrupt):
        probed()
    assert fake.cancelled == ["101"]


def test_forgotten_run_is_no_longer_in_the_index(fake: FakeScheduler, rough_path: Path) -> None:
    fake.states = [JobStatus(JobState.PENDING)]
    probed()
    probed()
    first, second = registry.runs(os.environ)
    registry.forget(first.path, os.environ)
    assert [run.path for run in registry.runs(os.environ)] == [second.path]


def test_run_directory_in_which_something_is_still_written_is_removed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, remove, tries = tmp_path / "run", submission.remove, iter((False, False, True))
    run_dir.mkdir()
    monkeypatch.setattr(submission, "remove", lambda path: next(tries) and remove(path))
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    ended: Any = SimpleNamespace(run_dir=run_dir, id="7", status=lambda: SimpleNamespace(in_queue=False))
    probe.remove(ended)
    assert not run_dir.exists()
    monkeypatch.setattr(probe, "_RELEASE", 0.0)
    run_dir.mkdir()
    monkeypatch.setattr(submission, "remove", lambda path: None)
    with pytest.raises(RunDirError, match="processes of job 7 still write there"):
        probe.remove(ended)
