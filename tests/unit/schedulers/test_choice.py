"""Which scheduler a job goes to if its user names none."""

from __future__ import annotations

from pathlib import Path

import pytest

from gridtf import schedulers
from gridtf.errors import SchedulerError
from gridtf.schedulers.slurm import Slurm


def commands(folder: Path, *names: str) -> dict[str, str]:
    """An environment whose PATH has these commands alone."""
    for name in names:
        (folder / name).write_text("#!/bin/sh\nexit 1\n")
        (folder / name).chmod(0o755)
    return {"PATH": str(folder)}


def test_machine_without_scheduler_runs_the_job_itself(tmp_path: Path) -> None:
    assert schedulers.to_submit_to(commands(tmp_path)) == "local"


def test_scheduler_that_is_available_takes_the_job(tmp_path: Path) -> None:
    assert schedulers.to_submit_to({**commands(tmp_path, "qsub"), "SGE_ROOT": "/sge"}) == "sge"


@pytest.mark.parametrize(
    ("names", "said", "cures"),
    [
        (["qsub"], ["qsub is installed, but SGE_ROOT is not set"], ["source default/common/settings.sh in Grid"]),
        (["sbatch"], ["sbatch is installed, but finds no configuration"], ["set SLURM_CONF"]),
        (["qsub", "sbatch"], ["sbatch is installed", "; qsub is installed"], ["set SLURM_CONF", "; source default"]),
    ],
)
def test_machine_with_commands_that_do_not_work_is_not_taken_unasked(
    names: list[str], said: list[str], cures: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Slurm, "is_available", lambda self, environ: False)
    with pytest.raises(SchedulerError) as caught:
        schedulers.to_submit_to(commands(tmp_path, *names))
    assert all(words in caught.value.why for words in said)
    assert all(words in caught.value.hint for words in cures)
    assert "--scheduler local" in caught.value.what
    assert "--scheduler local" not in caught.value.hint


def test_cure_of_a_cell_without_its_settings_is_a_line_to_do(tmp_path: Path) -> None:
    settings = tmp_path / "default/common/settings.sh"
    settings.parent.mkdir(parents=True)
    settings.touch()
    folder = tmp_path / "bin/lx-amd64"
    folder.mkdir(parents=True)
    for environ in (commands(folder, "qsub"), {"PATH": "", "SGE_ROOT": str(tmp_path)}):
        with pytest.raises(SchedulerError) as caught:
            schedulers.to_submit_to(environ)
        assert caught.value.hint == f"source {settings}, or load Grid Engine's module"


@pytest.mark.parametrize(("scheduler", "variable"), [("slurm", "SLURM_JOB_NAME"), ("sge", "JOB_NAME")])
@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("hand", "hand"),
        ("a b/c", "a-b-c"),
        ("13", "run-13"),
        ("job.sh", None),
        ("wrap", None),
        ("STDIN", None),
        ("QRLOGIN", None),
        ("", None),
    ],
)
def test_name_of_a_hand_written_script_s_job(scheduler: str, variable: str, text: str, name: str | None) -> None:
    """What sbatch and qsub call a job without a name, such as its script, is no name."""
    found = schedulers.get(scheduler)
    assert found.injob.given_name({"ENVIRONMENT": "BATCH", variable: text}) == name
    assert found.injob.given_name({variable: text}) is None  # in salloc or qlogin
    assert schedulers.get("local").injob.given_name({"ENVIRONMENT": "BATCH", variable: text}) is None
