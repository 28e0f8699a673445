"""Submitting with a stand-in for sbatch; tests/cluster has the real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from gridtf.errors import MaybeSubmittedError, SchedulerError
from gridtf.schedulers.api import JobIdentity
from gridtf.schedulers.batch import NoAnswerError
from gridtf.schedulers.slurm import scheduler, submit
from tests.support.rendering import plan


def queue(folder: Path, *rows: str, code: int = 0) -> None:
    """Install an squeue that prints these rows."""
    path = folder / "squeue"
    path.write_text("#!/bin/sh\n" + "".join(f"echo '{row}'\n" for row in rows) + f"exit {code}\n")
    path.chmod(0o755)


@pytest.fixture
def sbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the stand-in for sbatch, on the PATH: each test writes a shell script into it."""
    path = tmp_path / "sbatch"
    path.touch(mode=0o755)
    queue(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return path


def test_cancel_separates_the_job_id_from_scancel_options(tmp_path: Path, sbatch: Path) -> None:
    scancel = tmp_path / "scancel"
    scancel.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/called\n')
    scancel.chmod(0o755)
    scheduler.cancel(JobIdentity("4711_3", {"cluster": "east"}), force=True)
    called = (tmp_path / "called").read_text().split()
    assert called[-2:] == ["--", "4711_3"]
    assert "--clusters=east" in called


# Output of sites and their wrappers around sbatch's own; the banner is from TACC's documentation.
BANNER = """
-----------------------------------------------------------------
           Welcome to the Frontera Supercomputer
-----------------------------------------------------------------
No reservation for this job
--> Verifying valid submit host (login1)...OK
--> Checking available allocation (ASC26009)...OK
"""


@pytest.mark.parametrize(
    ("printed", "record"),
    [
        ("4711", {"job_id": "4711"}),
        ("4711;east", {"job_id": "4711", "cluster": "east"}),
        (f"{BANNER}718911", {"job_id": "718911"}),
        (f"{BANNER}718911;cluster\n\n", {"job_id": "718911", "cluster": "cluster"}),
        ("Submitted batch job 24", {"job_id": "24"}),
        (f"{BANNER}Submitted batch job 24 on cluster east", {"job_id": "24", "cluster": "east"}),
        ("Submitted batch job 24\nYou have 3 jobs in the queue.", {"job_id": "24"}),
    ],
)
def test_submit_finds_the_job_id_in_the_output(sbatch: Path, printed: str, record: dict[str, str]) -> None:
    sbatch.write_text(f"#!/bin/sh\necho '{printed}'\n")
    assert scheduler.submit(plan("slurm")).job.to_record() == record


def test_submit_keeps_the_user_s_locale(sbatch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sbatch.write_text(f'#!/bin/sh\necho "${{LC_ALL-not set}}" >{tmp_path}/locale\necho 1\n')
    monkeypatch.delenv("LC_ALL", raising=False)
    scheduler.submit(plan("slurm"))
    assert (tmp_path / "locale").read_text() == "not set\n"


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        ("Batch job submission failed: Invalid qos specification", SchedulerError, "refused the job: .*Invalid qos"),
        ("Batch job submission failed: Socket timed out on send/recv operation", MaybeSubmittedError, "may have taken"),
        (
            "Batch job submission failed: Unable to contact slurm controller (receive failure)",
            MaybeSubmittedError,
            "may have taken",
        ),
        ("Batch job submission failed: Unable to contact slurm controller (connect failure)", NoAnswerError, "answer"),
    ],
)
def test_submit_errors_of_sbatch(sbatch: Path, error: str, kind: type[Exception], message: str) -> None:
    sbatch.write_text(f"#!/bin/sh\necho 'sbatch: error: {error}' >&2\nexit 1\n")
    with pytest.raises(SchedulerError, match=message) as caught:
        scheduler.submit(plan("slurm"))
    assert type(caught.value) is kind


def test_submit_that_times_out_may_have_succeeded(sbatch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sbatch.write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(type(scheduler), "submit_patience", 0.2)
    with pytest.raises(MaybeSubmittedError, match=r"has not answered within 0\.2 s") as caught:
        scheduler.submit(plan("slurm", run_dir="/runs/x"))
    assert "/runs/x" in caught.value.why
    assert "squeue" in caught.value.hint


@pytest.mark.parametrize("answer", ["echo 4711; echo Good luck", "exit 0", "echo '²'", "echo 24; exit 3", "kill -9 $$"])
def test_submit_without_a_job_id_finds_the_job_by_its_log(sbatch: Path, answer: str) -> None:
    lost = "echo 'sbatch: error: Socket timed out on send/recv operation' >&2"
    sbatch.write_text(f"#!/bin/sh\n{lost}\n{answer}\n")
    queue(
        sbatch.parent,
        "Welcome",
        "7   /runs/w/job.log ",
        "9  /runs/x/job.log",
        "8  /runs/x/array/%a/job.log ",
        "x /runs/x/job.log",
    )
    assert scheduler.submit(plan("slurm", run_dir="/runs/x")).job == JobIdentity("9")  # the latest


@pytest.mark.parametrize("code", [0, 1])
def test_submit_with_exit_code_0_is_never_a_refusal(sbatch: Path, code: int) -> None:
    sbatch.write_text(f"#!/bin/sh\ncat <<'END'\n{BANNER}job 24 is yours\nEND\n")
    queue(sbatch.parent, "7  /runs/w/job.log", code=code)
    with pytest.raises(MaybeSubmittedError, match="printed no job id, but: job 24 is yours"):
        scheduler.submit(plan("slurm", run_dir="/runs/x"))


def test_heterogeneous_job_is_found_by_its_first_component() -> None:
    lines = "".join(f"{number} /runs/x/job.log\n" for number in (3, 12, 11, 10))  # 3: of a run directory of before
    assert submit.parse_logs(lines, Path("/runs/x"), 3) == JobIdentity("10")
    assert submit.parse_logs("", Path("/runs/x")) is None
