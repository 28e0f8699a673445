"""Submitting with a stand-in for sbatch; tests/cluster has the real one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gridtf.errors import MaybeSubmittedError, SchedulerError
from gridtf.schedulers.api import JobIdentity
from gridtf.schedulers.commands import NoAnswerError
from gridtf.schedulers.slurm import scheduler, submit
from gridtf.schedulers.slurm.commands import complaint, slurm
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
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return path


def test_cancel_separates_the_job_id_from_scancel_options(tmp_path: Path, sbatch: Path) -> None:
    scancel = tmp_path / "scancel"
    scancel.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/called\n')
    scancel.chmod(0o755)
    scheduler.login.cancel(JobIdentity("4711_3", {"cluster": "east"}), force=True)
    called = (tmp_path / "called").read_text().split()
    assert called[-2:] == ["--", "4711_3"]
    assert "--clusters=east" in called


def scancel(tmp_path: Path, script: str) -> list[JobIdentity]:
    """Put a stand-in on the PATH that notes the job ids of its calls, a line each. Returns 450 jobs, 1 to 450."""
    note = f'while [ "$1" != -- ]; do shift; done; shift; echo "$@" >>{tmp_path}/called'
    for name, text in (("scancel", f"{note}\n{script}"), ("scontrol", "exit 1")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    return [JobIdentity(str(number)) for number in range(1, 451)]


def calls(tmp_path: Path) -> list[list[str]]:
    return [line.split() for line in (tmp_path / "called").read_text().splitlines()]


def test_many_jobs_are_cancelled_by_calls_of_200_ids(tmp_path: Path, sbatch: Path) -> None:
    jobs = scancel(tmp_path, "exit 0")
    assert list(scheduler.login.cancel_all(jobs)) == [None] * 450
    ids = [job.job_id for job in jobs]
    assert calls(tmp_path) == [ids[:200], ids[200:400], ids[400:]]


@pytest.mark.thorough
def test_refusal_of_one_of_many_jobs_is_told_of_that_job_alone(
    tmp_path: Path, sbatch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that refuses one job, which any of its jobs may be, is repeated for each of them."""
    monkeypatch.setattr("gridtf.schedulers.login._AT_ONCE", 4)
    denied = "scancel: error: Kill job error on job id 7: Access/permission denied"
    jobs = scancel(tmp_path, f'case " $* " in *" 7 "*) echo "{denied}" >&2; exit 210;; esac')
    told = list(scheduler.login.cancel_all(jobs[:10]))
    (refused,) = [error for error in told if error]
    assert told.index(refused) == 6
    assert refused.what == "Slurm does not cancel job 7: Kill job error on job id 7: Access/permission denied"
    assert [len(call) for call in calls(tmp_path)] == [4, 4, *[1] * 4, 2]


def test_controller_that_falls_silent_between_the_calls_is_asked_no_more(tmp_path: Path, sbatch: Path) -> None:
    silent = "scancel: error: Kill job error on job id 250: Unable to contact slurm controller (connect failure)"
    jobs = scancel(tmp_path, f'case " $* " in *" 250 "*) echo "{silent}" >&2; exit 1;; esac')
    told = list(scheduler.login.cancel_all(jobs))
    assert told[:200] == [None] * 200
    (error,) = {*told[200:]}
    assert isinstance(error, NoAnswerError)
    assert [len(call) for call in calls(tmp_path)] == [200, 200]


def test_scancel_that_cannot_be_run_is_told_of_each_job(
    tmp_path: Path, sbatch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    told = list(scheduler.login.cancel_all([JobIdentity("1"), JobIdentity("2")]))
    assert [error and error.what for error in told] == [f"scancel not found on {os.uname().nodename}"] * 2


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
        ("Submitted as 38\n38\nGood luck", {"job_id": "38"}),  # a cli_filter plugin, and a wrapper
    ],
)
def test_submit_finds_the_job_id_in_the_output(sbatch: Path, printed: str, record: dict[str, str]) -> None:
    sbatch.write_text(f"#!/bin/sh\necho '{printed}'\n")
    assert scheduler.login.submit(plan("slurm")).job.to_record() == record


# Standard error of sbatch 22.05, with plugins of a site: job_submit/lua with slurm.log_user, cli_filter/lua.
USER = "Your account has no GPU hours left."
HINT = "Apply for more: https://docs.example.org"


@pytest.mark.parametrize(
    ("printed", "notes"),
    [
        ("Welcome\n", ()),
        ("sbatch: partition set to short\n", ("sbatch says: partition set to short",)),
        ("sbatch: ----\nsbatch:   300 hours left.\nsbatch: See a.org\n", ("sbatch says: 300 hours left. See a.org",)),
        ("sbatch: lua: info\nsbatch: debug:  auth\n", ("sbatch says: lua: info",)),
    ],
)
def test_what_a_site_s_plugin_says_about_an_accepted_job_is_a_note(
    sbatch: Path, printed: str, notes: tuple[str, ...]
) -> None:
    sbatch.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{printed}END\necho 24\n")
    assert scheduler.login.submit(plan("slurm")).notes == notes


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        (f"sbatch: error: {USER}\nallocation failure: Unspecified error\n", USER),
        (
            f"sbatch: error: -----\nsbatch: error: {USER}\nsbatch: error: {HINT}\nsbatch: error: -----\n"
            "sbatch: error: Batch job submission failed: Unspecified error\n",
            f"{USER} {HINT}",
        ),
        (
            "sbatch: error: Pick an account: a, b\n"
            "allocation failure: Invalid account or account/partition combination specified\n",
            "Pick an account: a, b; Invalid account or account/partition combination specified",
        ),
        (
            "sbatch: error: lua: Please give --time.\nsbatch: error: cli_filter plugin terminated with error\n",
            "Please give --time.",
        ),
        # printed to standard output
        (
            "sbatch: error: cli_filter plugin terminated with error\n\nPlease give --account.\n",
            "Please give --account.",
        ),
        ("allocation failure: Unspecified error\n", "Unspecified error"),
        ("Welcome\nsbatch: unrecognized option '--x'\nTry \"sbatch --help\"\n", "unrecognized option '--x'"),
    ],
)
def test_refusal_by_a_site_s_plugin_is_told_in_its_own_words(printed: str, said: str) -> None:
    assert complaint(printed) == said


def test_submit_keeps_the_user_s_locale(sbatch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sbatch.write_text(f'#!/bin/sh\necho "${{LC_ALL-not set}}" >{tmp_path}/locale\necho 1\n')
    monkeypatch.delenv("LC_ALL", raising=False)
    scheduler.login.submit(plan("slurm"))
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
        pytest.param(
            "Batch job submission failed: Unable to contact slurm controller (connect failure)",
            NoAnswerError,
            "answer",
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_submit_errors_of_sbatch(sbatch: Path, error: str, kind: type[Exception], message: str) -> None:
    sbatch.write_text(f"#!/bin/sh\necho 'sbatch: error: {error}' >&2\nexit 1\n")
    with pytest.raises(SchedulerError, match=message) as caught:
        scheduler.login.submit(plan("slurm"))
    assert type(caught.value) is kind


def test_submit_that_times_out_may_have_succeeded(sbatch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sbatch.write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(type(slurm), "submit_limit", 0.2)
    with pytest.raises(MaybeSubmittedError, match=r"has not answered within 0\.2 s") as caught:
        scheduler.login.submit(plan("slurm", run_dir="/runs/x"))
    assert "/runs/x" in caught.value.why
    assert "squeue" in caught.value.hint


@pytest.mark.parametrize(
    "answer",
    [
        "echo 300; echo 4711",
        "echo Submitted batch job 24; echo 300",
        "exit 0",
        "echo '²'",
        "echo 24; exit 3",
        "kill -9 $$",
    ],
)
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
    assert scheduler.login.submit(plan("slurm", run_dir="/runs/x")).job == JobIdentity("9")  # the latest


@pytest.mark.parametrize(
    ("variable", "native"), [("all", []), ("a,b", []), ("", ["-M a,b"]), ("a,b", ["--clusters=c"])]
)
def test_submit_without_a_job_id_looks_in_the_clusters_that_are_named(
    variable: str, native: list[str], sbatch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CLUSTERS", variable)
    sbatch.write_text("#!/bin/sh\necho OK\n")
    rows = "CLUSTER: a\n8   a   /runs/w/job.log\n\nCLUSTER: b\n9   b   /runs/x/job.log\n"
    squeue = f"#!/bin/sh\ncase $* in *--clusters=a*Cluster:*) printf '{rows}';; esac\n"
    (sbatch.parent / "squeue").write_text(squeue)
    job = scheduler.login.submit(plan("slurm", run_dir="/runs/x", native=native)).job
    assert job == JobIdentity("9", {"cluster": "b"})  # never all, which scancel would take for every cluster


def test_cluster_of_the_login_node_is_remembered(sbatch: Path) -> None:
    sbatch.write_text("#!/bin/sh\necho 7\n")
    (sbatch.parent / "slurm.conf").write_text("ClusterName=east\n")
    assert scheduler.login.submit(plan("slurm")).job == JobIdentity("7", {"local_cluster": "east"})


@pytest.mark.parametrize("code", [0, 1])
def test_submit_with_exit_code_0_is_never_a_refusal(sbatch: Path, code: int) -> None:
    sbatch.write_text(f"#!/bin/sh\ncat <<'END'\n{BANNER}job 24 is yours\nEND\n")
    queue(sbatch.parent, "7  /runs/w/job.log", code=code)
    with pytest.raises(MaybeSubmittedError, match="printed no job id, but: job 24 is yours"):
        scheduler.login.submit(plan("slurm", run_dir="/runs/x"))


def test_heterogeneous_job_is_found_by_its_first_component() -> None:
    lines = "".join(f"{number} /runs/x/job.log\n" for number in (3, 12, 11, 10))  # 3: of a run directory of before
    assert submit.parse_logs(lines, Path("/runs/x"), 3) == JobIdentity("10")
    assert submit.parse_logs("", Path("/runs/x")) is None
