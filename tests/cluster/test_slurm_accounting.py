"""A Slurm cluster with accounting: the status of jobs that squeue no longer lists, and the user's accounts."""

from __future__ import annotations

from gridtf.run.rundir import read_record
from tests.support.cluster import Bed
from tests.support.clusterfaults import STUBBORN, admin, kill9, no_process_left, started
from tests.support.clusterjobs import gridtf
from tests.support.jobs import until


def test_accounting_has_the_status_of_purged_jobs_and_the_user_s_accounts(accounting_slurm: Bed) -> None:
    bed = accounting_slurm

    def says(text: str) -> None:
        """On a busy machine, an account may be known too late for doctor."""
        until(lambda: text in gridtf(bed, "doctor", check=False).stdout, text)

    says("failure  account ")
    admin(bed, "sacctmgr", "-i", "add", "account", "vision", "bio")
    admin(bed, "sacctmgr", "-i", "add", "user", "alice", "account=vision,bio", "defaultaccount=vision")
    says("jobs without `account` run on vision; also yours: bio")

    admin(bed, "sacctmgr", "-i", "modify", "account", "vision", "set", "GrpTRESMins=gres/gpu=6000,cpu=120000")
    asked = ("render", "--nodes", "2", "--gpus-per-node", "4", "--time", "3h", "--account")
    told = "24 GPU-hours; account vision has 100 of 100 GPU-hours and 2,000 of 2,000 core-hours left"
    until(lambda: told in gridtf(bed, *asked, "vision", "--", "true").stderr, told)
    assert "24 GPU-hours\n" in gridtf(bed, *asked, "bio", "--", "true").stderr

    words = ("--scheduler", "slurm", "--nodes", "1", "--workers", "1", "--account")
    refused = gridtf(bed, "submit", *words, "visoin", "--", "true", check=False)
    assert refused.returncode == 2
    assert "--account" in refused.stderr
    assert "vision" in refused.stderr.replace("visoin", "")

    job = started(bed, "--account", "vision", nodes=1, command=STUBBORN)
    launcher = read_record(job.attempt.launcher) or {}
    kill9(bed, launcher["host"], launcher["pid"])  # no process remains to write a verdict
    no_process_left(bed)

    def forgotten() -> bool:
        return not bed.run("login", "squeue", "-h", "-t", "all", "-o", "%i").stdout.strip()

    job.until(forgotten, "Slurm to forget its job")
    known = bed.run("login", "sacct", "-X", "-n", "-P", "-o", "State", f"--jobs={job.id}").stdout.split()[0]
    view = job.status()
    assert view["state"] == known != "COMPLETED"
    assert "ended without a verdict" in view["reason"]
    assert f"the scheduler reports {known}" in view["reason"]
