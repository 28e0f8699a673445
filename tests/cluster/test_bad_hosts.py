"""A host that two jobs have lost is known to the user, who is told, or whose jobs then run elsewhere."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from tests.support.beds import on_every_scheduler
from tests.support.cluster import Bed
from tests.support.clusterfaults import UNTIL_RELEASED, admin, ended, no_process_left, release, started
from tests.support.clusterjobs import PATIENCE, ClusterJob, gridtf

OUT = {"slurm": "scontrol update nodename=n2 state=drain reason=trial", "sge": "qmod -d *@n2"}
BACK = {"slurm": "scontrol update nodename=n2 state=resume", "sge": "qmod -e *@n2"}


def nodes(bed: Bed) -> list[dict[str, Any]]:
    return list(json.loads(gridtf(bed, "nodes", "--json").stdout))


def loses_n2(bed: Bed, *words: str, nodes: int = 3) -> ClusterJob:
    job = started(bed, "--heartbeat-timeout", "8", *words, nodes=nodes, name="loses")
    bed.kill("n2")
    ended(job, "NODE_FAIL", "n2")
    job.gridtf("cancel", check=False)
    bed.mend("n2")
    no_process_left(bed)
    return job


def rendered(bed: Bed, count: int, *words: str) -> str:
    options = (*bed.options, "--nodes", str(count), "--tasks-per-node", "1", *words)
    done = gridtf(bed, "render", *options, "--", "true")
    return done.stderr + done.stdout


def out_of_service(bed: Bed) -> bool:
    """Whether n2 takes no more jobs."""
    if bed.kind == "slurm":
        return "drain" in admin(bed, "sinfo", "--noheader", "--nodes=n2", "--format=%T")
    return all(
        line.split()[-1] == "d" for line in admin(bed, "qstat", "-f").splitlines() if line.split()[0].endswith("@n2")
    )


@on_every_scheduler
def test_host_that_two_jobs_have_lost_is_told_of_avoided_and_forgotten(bed: Bed) -> None:
    (bed.home() / ".local/state/gridtf/hosts.jsonl").unlink(missing_ok=True)
    # a program that fails, one that the kernel kills, and a job that is cancelled say nothing about their hosts
    for command in ("python3 -c 'raise MemoryError'", "[ $GRIDTF_TASK_INDEX = 0 ] || kill -9 $$; sleep 60"):
        ended(started(bed, nodes=2, command=command, running=False), "FAILED")
    cancelled = started(bed, nodes=2)
    cancelled.gridtf("cancel")
    ended(cancelled, "CANCELLED")
    assert nodes(bed) == []

    first = loses_n2(bed)
    (found,) = nodes(bed)
    assert (found["host"], found["bad"], found["jobs"], found["staff"]) == ("n2", False, 1, "")
    assert found["findings"][0]["job"] == first.id
    assert "n2" not in rendered(bed, 2, "--avoid-bad-hosts")

    pe = ("--pe", "one") if bed.kind == "sge" else ()
    loses_n2(bed, "--restarts", "1", "--spare-nodes", "1", *pe, nodes=2)  # which goes on without it
    (found,) = nodes(bed)
    assert (found["host"], found["bad"], found["jobs"], found["site"]) == ("n2", True, 2, False)
    assert "lost" in found["reason"]
    assert found["staff"] in gridtf(bed, "nodes").stdout
    assert "gridtf: n2 was bad in 2 of your jobs (lost: " in rendered(bed, 3)
    assert "--exclude n2 leaves it out" in rendered(bed, 3)
    assert "n2" not in rendered(bed, 3, "--exclude", "n2").replace('"n2"', "").replace("!(n2)", "").replace("=n2", "")
    without = rendered(bed, 3, "--avoid-bad-hosts")
    assert "avoid_bad_hosts leaves out n2: was bad in 2 of your jobs" in without
    assert ("--exclude=n2" if bed.kind == "slurm" else "h=!(n2)") in without
    assert "): it stays, since the job needs it" in rendered(bed, 4, "--avoid-bad-hosts")
    named = rendered(bed, 3, "--avoid-bad-hosts", "--nodelist", "n1,n2,n3")
    assert "): it stays, since nodelist chooses the job's hosts" in named

    job = started(bed, "--avoid-bad-hosts", nodes=3, name="avoids", command=UNTIL_RELEASED)
    assert {task["host"] for task in job.tasks().values()} == {"n1", "n3", "n4"}
    assert '"exclude"' not in job.run.job.read_text()  # a job that is submitted again may take other hosts
    release(job)
    ended(job, "COMPLETED")

    admin(bed, *shlex.split(found["staff"]))
    assert out_of_service(bed)
    admin(bed, *BACK[bed.kind].split())
    assert not out_of_service(bed)

    gridtf(bed, "nodes", "forget", "n2")
    assert nodes(bed) == []
    assert "n2" not in rendered(bed, 3, "--avoid-bad-hosts")


@on_every_scheduler
@pytest.mark.parametrize(("signal", "out"), [("STOP", False), ("KILL", False), ("STOP", True)])
def test_host_whose_processes_a_user_stops_or_kills_is_remembered_only_if_it_is_out_of_service(
    bed: Bed, signal: str, out: bool
) -> None:
    (bed.home() / ".local/state/gridtf/hosts.jsonl").unlink(missing_ok=True)
    job = started(bed, "--heartbeat-timeout", "8", nodes=3, name=signal, command="sleep 300")
    if out:
        admin(bed, *OUT[bed.kind].split())
    bed.run("n2", "pkill", f"-{signal}", "-u", "alice", "python")
    assert job.verdict(PATIENCE)["state"] == {"STOP": "NODE_FAIL", "KILL": "FAILED"}[signal]
    bed.run("n2", "pkill", "-CONT", "-u", "alice", "python", check=False)
    job.gridtf("cancel", check=False)
    no_process_left(bed)
    if out:
        admin(bed, *BACK[bed.kind].split())
    assert [host["host"] for host in nodes(bed)] == ["n2"] * out
