"""gridtf.submit: configuration files below a JobSpec, and errors in the words of Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import gridtf
from gridtf import schedulers
from gridtf.errors import UsageError
from gridtf.login.api import in_python
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
    job = gridtf.submit(gridtf.JobSpec(command=["x"]), config_files=False)
    assert (job.name, job.notes) == ("x", ())


@pytest.mark.parametrize(
    ("given", "what", "command"),
    [
        (["python", "train.py"], "not a list", '["python", "train.py"]'),
        (("python", "it's.py"), "not a tuple", '["python", "it\'s.py"]'),
        ("python train.py", "not a str", '["python", "train.py"]'),
        ({"command": ["x"]}, "not a dict", '["python", "train.py"]'),
    ],
)
def test_submit_of_anything_else_says_what_to_write(given: Any, what: str, command: str) -> None:
    with pytest.raises(UsageError) as caught:
        gridtf.submit(given)
    assert caught.value.what == f"gridtf.submit takes a JobSpec, {what}"
    assert caught.value.hint == f"write gridtf.submit(gridtf.JobSpec(command={command}))"


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
