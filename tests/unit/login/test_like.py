"""What --like takes from a job: memory, CPUs and walltime, and why not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gridtf.cli import main
from gridtf.errors import UsageError
from gridtf.jobspec.config import Configured, Typed, configure
from gridtf.jobspec.spec import JobSpec
from gridtf.login.job import Job
from gridtf.login.like import Like
from gridtf.run.rundir import RunDir
from tests.support import recordedruns
from tests.support.scheduler import FakeScheduler

JOB = JobSpec(command=("python", "x"), tasks={"worker": {"count": 2}})


@pytest.fixture
def run(fake: FakeScheduler, rough_path: Path) -> RunDir:
    """A job of two workers on two hosts: ten minutes, almost 2 GiB and 3.6 cores each."""
    return recordedruns.make(rough_path / "train-2", workers=2, minutes=10.0)


def taken(run: RunDir, spec: JobSpec = JOB) -> tuple[dict[str, object], list[str]]:
    """Key -> value, and what is not taken."""
    like = Like(Job(run))
    layer = like.layer(spec)
    return {".".join(key): value.value for key, value in layer.items()}, like.notes


def test_memory_cpus_and_walltime_are_taken_with_a_margin(run: RunDir) -> None:
    layer = Like(Job(run)).layer(JOB)
    assert {".".join(key): (value.value, value.source) for key, value in layer.items()} == {
        "cpus_per_task": (4, "measured in train-2 (4711): 3.6 cores in 95 % of the samples"),
        "mem_per_task": ("2560M", "measured in train-2 (4711): 2.0 GiB + 25 %"),
        "time": ("00:13:00", "measured in train-2 (4711): 10 min 11 s + 25 %"),
    }


def test_memory_of_a_host_is_taken_where_the_job_has_that(fake: FakeScheduler, rough_path: Path) -> None:
    run = recordedruns.make(rough_path / "one", workers=2, host_count=1, minutes=10.0)
    found, notes = taken(run, JOB.replace(mem="64G"))
    assert (found["mem"], notes) == ("5G", [])
    found, notes = taken(run, JobSpec(command=("x",), mem="64G", tasks={"worker": {"count": 4}}))
    assert found == {"cpus_per_task": 4}
    assert notes == [
        "mem is not taken from one (4711): its tasks or hosts are other ones, and so is the memory of a host",
        "the walltime is not taken from one (4711): its tasks or hosts are other ones",
    ]


def test_type_with_values_of_its_own_gets_those(fake: FakeScheduler, rough_path: Path) -> None:
    run = recordedruns.make(rough_path / "ps", workers=1, ps=1, minutes=10.0)
    ps = {"count": 1, "cpus": 9, "mem": "9G"}
    found, _ = taken(run, JobSpec(command=("x",), tasks={"worker": {"count": 1}, "ps": ps}, mem_per_task="1G"))
    assert {key: value for key, value in found.items() if key != "time"} == {
        "cpus_per_task": 4,
        "tasks.ps.cpus": 4,
        "mem_per_task": "2560M",
        "tasks.ps.mem": "2560M",
    }


def test_time_to_save_is_added(run: RunDir) -> None:
    found, _ = taken(run, JOB.replace(time="2:00:00", checkpoint_before="10m"))
    assert found["time"] == "00:23:00"


@pytest.mark.parametrize(
    ("state", "left"),
    [
        ("OUT_OF_MEMORY", {"memory is not taken", "the walltime is not taken"}),
        ("TIMEOUT", {"the walltime is not taken"}),
        ("FAILED", {"memory and CPUs are not taken", "the walltime is not taken"}),
        ("RUNNING", {"the walltime is not taken"}),
    ],
)
def test_what_a_job_cannot_tell_is_left(state: str, left: set[str], fake: FakeScheduler, rough_path: Path) -> None:
    run = recordedruns.make(
        rough_path / "bad", workers=2, minutes=10.0, state="RUNNING" if state == "RUNNING" else "FAILED"
    )
    if state != "RUNNING":
        verdict = run.attempt(1).verdict
        verdict.write_text(json.dumps({**json.loads(verdict.read_text()), "state": state}))
    found, notes = taken(run)
    assert {note.partition(" from ")[0] for note in notes} == left
    assert ("mem_per_task" in found) == (state in ("TIMEOUT", "RUNNING"))
    assert (found.get("cpus_per_task"), "time" in found) == (None if state == "FAILED" else 4, False)


def test_short_job_and_one_of_several_attempts_are_no_measure(fake: FakeScheduler, rough_path: Path) -> None:
    short = recordedruns.make(rough_path / "short", workers=2, minutes=0.25)
    found, notes = taken(short)
    assert found == {"time": "00:02:00"}
    assert notes == ["memory and CPUs are not taken from short (4711): a task was measured 3 times, at least 5 needed"]
    recordedruns.make(rough_path / "short", workers=2, minutes=10.0, begin=recordedruns.BEGIN + 3600)
    assert "the walltime is not taken from short (4711): it has had 2 attempts" in taken(short)[1]
    for attempt in short.attempts():
        attempt.samples.unlink()
    assert "measured 0 times" in taken(short)[1][0]


def test_job_of_another_user_tells_what_everybody_may_read(run: RunDir) -> None:
    run.job.unlink()
    found, notes = taken(run)
    assert (found["mem_per_task"], len(notes)) == ("2560M", 1)


def configured(run: RunDir, *words: str, **environ: str) -> Configured:
    from gridtf.jobspec.arguments import Parser, add_job_options

    parser = Parser("submit")
    add_job_options(parser)
    given = parser.parse([*words]).given
    return configure(Typed("job.toml", given), environ, Path.cwd(), like=Like(Job(run)).layer)


def test_measured_values_override_the_file_and_nothing_else(run: RunDir, tmp_path: Path) -> None:
    file = 'command = ["x"]\ncpus_per_task = 9\nmem_per_task = "9G"\ntime = "9:00:00"\n[tasks.worker]\ncount = 2\n'
    Path("job.toml").write_text(file)
    site = tmp_path / "site.toml"
    site.write_text('[limits]\nmax_time = "0:10:00"\nrequire = ["time"]\n')
    environ = {"GRIDTF_SITE_CONFIG": "", "GRIDTF_SUBMIT_CPUS_PER_TASK": "3", "HOME": str(tmp_path)}
    made = configured(run, "--mem", "7G", **environ)
    assert (made.spec.mem, made.spec.mem_per_task, made.spec.cpus_per_task) == ("7G", None, 3)
    assert made.spec.time == "00:13:00"
    assert [made.source(key) for key in ("mem", "cpus_per_task")] == ["--mem", "GRIDTF_SUBMIT_CPUS_PER_TASK"]
    with pytest.raises(UsageError) as caught:
        configured(run, **{**environ, "GRIDTF_SITE_CONFIG": str(site)})
    assert caught.value.what.startswith("measured in train-2 (4711): ")
    assert caught.value.what.endswith(": time: 00:13:00 requested, the site allows 00:10:00")
    Path("job.toml").write_text(file.replace('time = "9:00:00"\n', ""))
    site.write_text('[limits]\nrequire = ["time"]\n')
    assert configured(run, **{**environ, "GRIDTF_SITE_CONFIG": str(site)}).spec.time == "00:13:00"


def test_command_takes_them_and_tells_what_it_does_not(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    Path("job.toml").write_text('command = ["true"]\n[tasks.worker]\ncount = 3\n')
    assert main(["render", "--like", str(run.path), "job.toml"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().err.splitlines()]
    assert 'mem_per_task = "2560M" measured in train-2 (4711): 2.0 GiB + 25 %' in lines
    assert "gridtf: the walltime is not taken from train-2 (4711): its tasks or hosts are other ones" in lines
    assert main(["submit", "--json", "--like", str(run.path), "job.toml"]) == 0
    job = Job(json.loads(capsys.readouterr().out)["run_dir"])
    record = json.loads(job.run.job.read_text())
    assert (record["origin"], record["spec"]["cpus_per_task"]) == ({"like": str(run.path)}, 4)
    assert main(["submit", "--like", "nothing", "job.toml"]) == 2
    assert "no job is called nothing" in capsys.readouterr().err
