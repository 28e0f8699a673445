"""gridtf.submit: configuration files below a JobSpec, and errors in the words of Python."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import gridtf
from gridtf import schedulers
from gridtf.errors import NotFoundError, UsageError
from gridtf.login.api import in_python
from tests.support import recordedruns
from tests.support.configuration import user_file
from tests.support.scheduler import FakeScheduler


def test_submit_takes_values_of_the_user_file(fake: FakeScheduler, rough_path: Path) -> None:
    user = user_file('run_root = "runs"\nname = "theirs"\nnods = 2\n')
    job = gridtf.submit(gridtf.JobSpec(command=["x"]))
    assert (job.run_dir.parent, job.name) == (user.parent / "runs", "theirs")
    assert job.notes == (f"{user}:3: nods: unknown key, left out; did you mean nodes?",)
    assert gridtf.submit(gridtf.JobSpec(command=["x"], name="mine")).name == "mine"


def test_submit_leaves_the_files_out_on_request(fake: FakeScheduler, rough_path: Path) -> None:
    user_file('name = "theirs"\nnods = 2\n')
    job = gridtf.submit(gridtf.JobSpec(command=["x"]), layers=False)
    assert (job.name, job.notes) == ("x", ())


@pytest.mark.parametrize("command", [["python", "train.py"], ("python", "train.py")])
def test_submit_and_render_take_a_command(command: Any, fake: FakeScheduler, rough_path: Path) -> None:
    (rough_path / "train.py").touch()
    user_file('name = "theirs"\n')
    assert gridtf.submit(command).name == "theirs"
    assert gridtf.submit(command, layers=False).name == "train"
    assert "--job-name=theirs" in gridtf.render(command)
    assert "--job-name=train" in gridtf.render(command, layers=False)


@pytest.mark.parametrize(
    ("given", "what"),
    [("python train.py", "a str"), ({"command": ["x"]}, "a dict"), ([], "a list"), (None, "a NoneType")],
)
def test_submit_of_anything_else_says_what_to_write(given: Any, what: str) -> None:
    with pytest.raises(UsageError) as caught:
        gridtf.submit(given)
    assert caught.value.what == f"gridtf.submit takes a JobSpec or a list of words, not {what}"
    assert caught.value.hint == 'write gridtf.submit(["python", "train.py"]), or gridtf.submit(gridtf.JobSpec(…))'
    with pytest.raises(UsageError, match=r"gridtf\.render takes a JobSpec"):
        gridtf.render(given)


def test_rendered_script_is_the_one_that_is_submitted(fake: FakeScheduler, rough_path: Path) -> None:
    spec = gridtf.JobSpec(command=["x"], scheduler="slurm", run_dir=str(rough_path / "run"))
    text = gridtf.render(spec)
    assert not (rough_path / "run").exists()
    assert gridtf.submit(spec).run.script.read_text() == text


def test_job_file_is_loaded_as_on_the_command_line(
    fake: FakeScheduler, rough_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = user_file('setup = ["module load tf"]\nrestarts = 2\ntime = "1h"\nnods = 2\n')
    monkeypatch.setenv("GRIDTF_SUBMIT_NODES", "3")
    folder = rough_path / "project"
    folder.mkdir()
    (folder / "gridtf.toml").write_text('command = ["x"]\nsetup = ["cd data"]\nrestarts = 0\n[tasks.ps]\ncount = 1\n')
    spec = gridtf.load(folder / "gridtf.toml")
    assert (spec.setup, spec.restarts, spec.time, spec.nodes) == (("module load tf", "cd data"), 0, "1h", 3)
    assert (spec.count("ps"), spec.chdir) == (1, str(folder))
    for made in (spec, spec.replace(name="other")):  # no layer is added a second time
        job = gridtf.submit(made)
        stored = json.loads(job.run.job.read_text())["spec"]
        assert (stored["setup"], "restarts" in stored) == (["module load tf", "cd data"], False)
        assert job.notes == (f"{user}:4: nods: unknown key, left out; did you mean nodes?",)
    alone = gridtf.load(folder / "gridtf.toml", layers=False)
    assert (alone.setup, alone.time, alone.nodes) == (("cd data",), None, None)
    monkeypatch.chdir(folder)
    assert gridtf.load() == spec
    (folder / "gridtf.toml").write_text("nods = 1\n")
    with pytest.raises(UsageError, match=r"gridtf\.toml:1: nods: unknown key"):
        gridtf.load()
    with pytest.raises(NotFoundError, match=r"no such file: other\.toml"):
        gridtf.load("other.toml")


def test_template_of_another_user_in_a_loaded_job_file_is_refused(
    rough_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (rough_path / "site.sh.j2").write_text("{% extends 'job.sh.j2' %}")
    (rough_path / "gridtf.toml").write_text('command = ["true"]\nscheduler = "local"\ntemplate = "site.sh.j2"\n')
    spec = gridtf.load()
    assert gridtf.render(spec).startswith("#!")
    real = os.fstat

    def others(descriptor: int) -> os.stat_result:
        values = list(real(descriptor))
        values[4] = 4711  # st_uid
        return os.stat_result(values)

    monkeypatch.setattr(os, "fstat", others)
    with pytest.raises(UsageError, match="belongs to user 4711"):
        gridtf.render(spec)


def test_jobs_are_listed_without_asking_a_scheduler(fake: FakeScheduler, rough_path: Path) -> None:
    assert gridtf.jobs() == []
    first, second = (gridtf.submit(["x"]) for _ in range(2))
    assert [job.id for job in gridtf.jobs()] == [second.id, first.id]
    assert fake.queried == []


def test_jobs_are_chosen_by_name_time_state_and_array(fake: FakeScheduler, rough_path: Path) -> None:
    first, second = (gridtf.submit(gridtf.JobSpec(command=["x"], name=name)) for name in ("digits-1", "letters"))
    submitted = json.loads(second.run.submitted.read_text())["time"]

    def ids(**choice: Any) -> list[str]:
        return [job.id for job in gridtf.jobs(**choice)]

    assert ids(name="digits-*") == [first.id]
    assert ids(since=submitted) == [second.id]
    assert fake.queried == []
    assert ids(states=["RUNNING"], name="l*") == [second.id]
    assert ids(states=["FAILED"]) == []
    for number in (10, 2):
        (first.run.path / "array").mkdir(exist_ok=True)
        recordedruns.make(first.run.path / "array" / str(number))
    assert [job.run_dir.name for job in gridtf.jobs(sweep="digits-1")] == ["2", "10"]
    assert [job.run_dir.name for job in gridtf.jobs(sweep="digits-1", states=["FAILED"])] == []
    with pytest.raises(UsageError, match="name and since, or sweep"):
        gridtf.jobs(sweep="digits-1", name="x")
    with pytest.raises(NotFoundError, match="no job is called gone"):
        gridtf.jobs(sweep="gone")


def test_jobs_are_a_table(fake: FakeScheduler, rough_path: Path) -> None:
    specs = [gridtf.JobSpec(command=["x"], name="a", params={"lr": 0.1}), gridtf.JobSpec(command=["x"], name="b")]
    for spec in specs:
        gridtf.submit(spec)
    jobs = gridtf.jobs()
    second, first = jobs.table()
    assert len(fake.queried) == 1  # for both
    assert type(first["state"]) is str
    assert (first["name"], first["state"], first["params.lr"]) == ("a", "RUNNING", 0.1)
    assert (first["started"], first["seconds"], first["cpu_seconds"], first["step"], first["tasks"]) == (None,) * 4 + (
        0,
    )
    assert "params.lr" not in second
    assert json.loads(json.dumps([second, first])) == [second, first]
    assert gridtf.jobs(name="none").table() == []


@pytest.mark.parametrize(
    ("values", "what", "hint"),
    [
        ({}, "nothing to run", "write JobSpec(command=["),
        ({"command": ["-v"]}, "JobSpec: command: the first item, the program to run, begins with a dash", "program"),
        ({"entry": "no_such:main"}, "JobSpec: entry: there is no module no_such", "working folder (chdir) or be"),
        (
            {"command": ["x"], "scheduler": "sge", "slots": 4},
            "JobSpec: slots: slots need a parallel",
            "name it with pe",
        ),
        ({"command": ["x"], "chdir": "nowhere"}, "JobSpec: chdir: there is no folder ", ""),
    ],
)
def test_errors_speak_of_keywords_and_not_of_flags(
    values: dict[str, Any], what: str, hint: str, rough_path: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        gridtf.submit(gridtf.JobSpec(**{"scheduler": "local", **values}))
    assert caught.value.what.startswith(what)
    assert hint in caught.value.hint
    assert "--" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("leave --nodes out", "leave nodes out"),
        ("choose it with --run-dir or --run-root", "choose it with run_dir or run_root"),
        ("use `--gpus-per-node 4`", "use `gpus_per_node 4`"),
        ("--native=--qos=long, --native='-l gpu=1'", 'native=["--qos=long"], native=["-l gpu=1"]'),
        ("add a chief: --chief", 'add a chief: tasks={"chief": TaskSpec(count=1)}'),
        ("fewer with --workers", 'fewer with tasks={"worker": TaskSpec(count=…)}'),
        ("see `sbatch --test-only` and --array=0-15%4", "see `sbatch --test-only` and --array=0-15%4"),
    ],
)
def test_flags_in_messages_become_keywords(text: str, expected: str) -> None:
    assert in_python(text, schedulers.job_options()) == expected
