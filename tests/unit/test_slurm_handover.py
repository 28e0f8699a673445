"""What becomes of sbatch's answers; sbatch is a stand-in here, tests/cluster has the real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from gridtf.errors import MaybeSubmittedError, SchedulerError
from gridtf.schedulers.slurm import handover
from tests.support.rendering import plan

COMMAND = ("sbatch", "job.sh")


@pytest.fixture
def sbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file to write a shell script into, which is sbatch."""
    path = tmp_path / "sbatch"
    path.touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return path


@pytest.mark.parametrize(
    ("printed", "record"), [("4711", {"job_id": "4711"}), ("4711;east", {"job_id": "4711", "cluster": "east"})]
)
def test_the_id_of_the_job(sbatch: Path, printed: str, record: dict[str, str]) -> None:
    sbatch.write_text(f"#!/bin/sh\necho '{printed}'\n")
    assert handover.submit(plan("slurm"), COMMAND) == record


def test_jobs_get_the_locale_of_who_submits_them(sbatch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sbatch.write_text(f'#!/bin/sh\necho "${{LC_ALL-not set}}" >{tmp_path}/locale\necho 1\n')
    monkeypatch.delenv("LC_ALL", raising=False)
    handover.submit(plan("slurm"), COMMAND)
    assert (tmp_path / "locale").read_text() == "not set\n"


@pytest.mark.parametrize(
    ("words", "kind", "message"),
    [
        ("Batch job submission failed: Invalid qos specification", SchedulerError, "refused the job: .*Invalid qos"),
        ("Batch job submission failed: Socket timed out on send/recv operation", MaybeSubmittedError, "may have taken"),
        ("Batch job submission failed: Unable to contact slurm controller (connect failure)", SchedulerError, "answer"),
    ],
)
def test_what_sbatch_complains_of(sbatch: Path, words: str, kind: type[Exception], message: str) -> None:
    sbatch.write_text(f"#!/bin/sh\necho 'sbatch: error: {words}' >&2\nexit 1\n")
    with pytest.raises(SchedulerError, match=message) as caught:
        handover.submit(plan("slurm"), COMMAND)
    assert type(caught.value) is kind


def test_an_sbatch_that_does_not_answer(sbatch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sbatch.write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(handover, "_PATIENCE", 0.2)
    with pytest.raises(MaybeSubmittedError, match=r"has not answered within 0\.2 s") as caught:
        handover.submit(plan("slurm", run_dir="/runs/x"), COMMAND)
    assert "/runs/x" in caught.value.why
    assert "squeue" in caught.value.hint
