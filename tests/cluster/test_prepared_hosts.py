"""What runs on every host before its tasks start, and when something has happened to the job, on real schedulers."""

from __future__ import annotations

import json
import re
import tarfile
from typing import Any

from tests.support.beds import on_every_scheduler
from tests.support.cluster import CHECKOUT, Bed
from tests.support.clusterfaults import NODES, no_process_left
from tests.support.clusterjobs import ClusterJob

THREE_HOSTS = {"slurm": ("--nodes", "3", "--tasks-per-node", "1"), "sge": ("--pe", "one", "--slots", "3")}
NOTES = "cat >> ~/told-$GRIDTF_JOB_ID"
ENV = ("--env", "PATH", "--env", f"PYTHONPATH={CHECKOUT}", "--kill-grace", "1")


def job_on_three(bed: Bed, *words: str) -> ClusterJob:
    return ClusterJob(bed, *bed.options, *THREE_HOSTS[bed.kind], "--workers", "3", *ENV, *words)


def packed(bed: Bed, name: str) -> str:
    """Make an archive in alice's home folder; returns its path there."""
    path = bed.home() / f"{name}.tar.gz"
    member = bed.home() / name
    member.write_text("data\n")
    with tarfile.open(path, "w:gz") as archive:
        archive.add(member, "inside")
    path.chmod(0o644)
    return bed.seen(path)


def told(job: ClusterJob) -> list[dict[str, Any]]:
    """What the hooks were told, when they have been told the end."""
    path = job.bed.home() / f"told-{job.id}"

    def records() -> list[dict[str, Any]]:
        found = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return found if found and found[-1]["event"] == "end" else []

    return list(job.until(records, "the end to be told"))


def printed(job: ClusterJob) -> str:
    return str(job.until(lambda: job.logs().get("worker-0"), "its output"))


def copies(bed: Bed) -> dict[str, list[str]]:
    """Host -> the copies on it."""
    found = {}
    for host in NODES:
        listed = bed.run(host, "sh", "-c", "ls -d /tmp/gridtf-staged-*/*[!k] /tmp/*/gridtf-staged-*/*[!k]", check=False)
        found[host] = listed.stdout.split()
    return {host: paths for host, paths in found.items() if paths}


@on_every_scheduler
def test_every_host_is_prepared_once_and_its_tasks_get_what_was_exported(bed: Bed) -> None:
    archive = packed(bed, "lines")
    setup = [
        "uname -n >> ~/prepared-$GRIDTF_JOB_ID",
        'export WHERE="on $(uname -n)"',
        "test -f $GRIDTF_STAGED/lines/inside",
    ]
    words = [word for line in setup for word in ("--host-setup", line)]
    shows = "echo $WHERE; uname -n; cat $GRIDTF_STAGED/lines/inside; readlink $GRIDTF_STAGED/lines"
    job = job_on_three(bed, *words, "--stage", archive, "--on", NOTES, "--", "sh", "-c", shows)
    verdict = job.verdict()
    assert verdict["state"] == "COMPLETED", f"{verdict}{job.output}{job.agents_output()}"
    hosts = (bed.home() / f"prepared-{job.id}").read_text().split()
    assert len(hosts) == len({*hosts}) == 3
    for log in job.logs().values():
        where, host, data, link = log.splitlines()
        assert (where, data) == (f"on {host}", "data")
        assert re.match(r"/tmp/(\S+/)?gridtf-staged-\d+-", link)
    start, end = told(job)
    assert (start["event"], end["event"], end["state"]) == ("start", "end", "COMPLETED")
    assert (start["scheduler"], start["job_id"], len(start["hosts"])) == (bed.kind, job.id, 3)
    no_process_left(bed)
    assert copies(bed) == {}


@on_every_scheduler
def test_line_that_fails_on_one_host_names_it(bed: Bed) -> None:
    line = "[ $(uname -n) != n2 ] || { echo no such disk; exit 4; }"
    where = {"slurm": ("--nodes", "4", "--tasks-per-node", "1"), "sge": ("--pe", "one", "--slots", "4")}[bed.kind]
    lines = ("--host-setup", "true", "--host-setup", line)
    job = ClusterJob(bed, *bed.options, *where, "--workers", "4", *ENV, *lines, "--on", NOTES, "--", "true")
    verdict = job.verdict()
    what = r"host_setup failed with exit code 4 on host n2\b.*no such disk"
    assert re.search(what, verdict["reason"]), f"{verdict}{job.output}{job.agents_output()}"
    assert [record["event"] for record in told(job)] == ["failure", "end"]
    no_process_left(bed)


@on_every_scheduler
def test_two_jobs_at_once_on_a_host_share_a_copy_and_a_cancelled_one_leaves_nothing(bed: Bed) -> None:
    archive = packed(bed, "shared")
    one_host = {"slurm": ("--native=--nodelist=n1",), "sge": ("--pe", "one", "--native=-l h=n1")}[bed.kind]
    task = "ls -i $(readlink -f $GRIDTF_STAGED/shared)/inside; exec sleep 600"
    options = (*bed.options, *one_host, "--workers", "1", *ENV, "--stage", archive, "--on", NOTES)
    jobs = [ClusterJob(bed, *options, "--", "sh", "-c", task) for _ in range(2)]
    for job in jobs:
        job.running(1)
    assert len({printed(job) for job in jobs}) == 1
    assert {host: len(paths) for host, paths in copies(bed).items()} == {"n1": 1}
    for job in jobs:
        job.gridtf("cancel")
        assert job.verdict()["state"] == "CANCELLED"
        assert told(job)[-1]["state"] == "CANCELLED"
    no_process_left(bed)
    assert copies(bed) == {}
