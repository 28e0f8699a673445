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
    ("names", "said"),
    [
        (["qsub"], ["qsub is installed, but SGE_ROOT is not set"]),
        (["sbatch"], ["sbatch is installed, but finds no configuration"]),
        (["qsub", "sbatch"], ["sbatch is installed", "; qsub is installed"]),
    ],
)
def test_machine_with_commands_that_do_not_work_is_not_taken_unasked(
    names: list[str], said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Slurm, "is_available", lambda self, environ: False)
    with pytest.raises(SchedulerError) as caught:
        schedulers.to_submit_to(commands(tmp_path, *names))
    assert all(words in caught.value.why for words in said)
    assert "--scheduler local" in caught.value.hint
