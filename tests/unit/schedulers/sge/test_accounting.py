"""How jobs have ended. What qacct prints was recorded on Son of Grid Engine 8.1.9, unless a line says otherwise."""

from __future__ import annotations

import pytest

from gridtf.errors import SchedulerError
from gridtf.schedulers.base import (
    CANCELLED,
    COMPLETED,
    FAILED,
    NODE_FAIL,
    OUT_OF_MEMORY,
    TIMEOUT,
    JobStatus,
)
from gridtf.schedulers.client import Answer
from gridtf.schedulers.sge import client, query
from gridtf.schedulers.sge.query import seconds

BLOCK = """\
==============================================================
qname        all.q               
hostname     n1                  
owner        alice               
jobname      x                   
jobnumber    {number}
taskid       {task}
qsub_time    Sat Nov 21 14:12:11 2026
slots        1                   
failed       {failed}
exit_status  {code}
ru_wallclock {lasted}s
maxvmem      {memory}
arid         undefined
category     {category}
"""  # noqa: W291 - qacct pads with blanks
DELETED = "100 : assumedly after job"
LIMIT = "37  : qmaster enforced h_rt, h_cpu, or h_vmem limit"


def block(
    failed: str = "0    ", code: str = "0                   ", *, number: str = "11", task: str = "undefined",
    lasted: int = 4, memory: str = "4.773MB", category: str = "NONE", more: str = "",
) -> str:  # fmt: skip
    text = BLOCK.format(
        number=number, task=task, failed=failed, code=code, lasted=lasted, memory=memory, category=category
    )
    return text + more


def ended(text: str, job_id: str = "11", **record: str) -> JobStatus | None:
    return query.accounted_status(query.blocks(text), {"job_id": job_id, **record})


@pytest.mark.parametrize(
    ("text", "state", "reason"),
    [
        (block(), COMPLETED, ""),
        (block(code="7                   "), FAILED, "its script ended with exit code 7"),
        (block("30  : application error returned", "100"), FAILED, "its script ended with exit code 100"),
        (block(DELETED, "139                  (Segmentation fault)"), FAILED, "it was killed by SIGSEGV"),
        (block(DELETED, "137                  (Killed)"), FAILED, "SIGKILL: by qdel, for a limit of its queue, or by"),
        (block(DELETED, "140                  (User defined signal 2)"), CANCELLED, "deleted with qdel"),
        (block(LIMIT, "140                  (User defined signal 2)"), TIMEOUT, "of the job or of its queue"),
        (block("²", "9" * 5000), COMPLETED, ""),
        (block(DELETED, "137", category="-l h_vmem=50M", memory="."), FAILED, "SIGKILL"),
        (block(LIMIT, "137", category="-l h_rt=3"), TIMEOUT, "the walltime is over (h_rt=3)"),
        (block(LIMIT, "137", category="-u alice -l h_cpu=2,gpu=1 -pe rr 8"), TIMEOUT, "or the CPU time"),
        (block(LIMIT, "137"), TIMEOUT, "of the job or of its queue"),
        (block(LIMIT, "137", category="-l h_vmem=50M", memory="2.1MB"), OUT_OF_MEMORY, "more memory than it may"),
        (block(DELETED, "138                  (User defined signal 1)", category="-l s_rt=3"), TIMEOUT, "(s_rt=3)"),
        (block(DELETED, "137", category="-l h_rt=1:00:00", lasted=3601), TIMEOUT, "(h_rt=1:00:00)"),
        (block(DELETED, "137", category="-l h_rt=3600", lasted=10), FAILED, "SIGKILL"),
        (block(DELETED, "137", category="-l h_vmem=50M", memory="52.5MB"), OUT_OF_MEMORY, "(h_vmem=50M)"),
        (block("28  : changing into working directory", "0"), FAILED, "could not run it on n1: changing into working"),
        # sge_status(5); not seen live
        (block("19  : before writing exit_status", "0"), NODE_FAIL, "its host n1 has failed"),
        # a field of Univa and Altair, by hearsay
        (block(DELETED, "137", more="deleted_by   bob@login\n"), CANCELLED, "by bob@login"),
        (block(more="deleted_by   NONE\n"), COMPLETED, ""),
    ],
)
def test_how_it_ended(text: str, state: str, reason: str) -> None:
    status = ended(text)
    assert status is not None
    assert status.state == state
    assert reason in status.reason


def test_the_form_of_open_cluster_scheduler() -> None:
    # wider columns, no unit, times with fractions; the sums follow (its documentation; not seen live)
    text = (
        "==========================\nowner                   alice\njobname                 x\n"
        "jobnumber               8\ntaskid                  97\npe_taskid               NONE\n"
        "qsub_time               2024-09-27 07:41:44.421951\nslots                   1\n"
        "failed                  37 : qmaster enforced h_rt, h_cpu or h_vmem limit\nexit_status             137\n"
        "ru_wallclock            61\nmaxvmem                 21045248\n"
        "==========================\nowner                   alice\njobname                 x\n"
        "jobnumber               8\ntaskid                  97\npe_taskid               1.n2\nfailed    0\n"
        "exit_status    0\nTotal System Usage\n    WALLCLOCK   UTIME\n=====\n      72  25.861\n"
    )
    status = ended(text, "8.97", user="alice", name="x")
    assert status is not None
    assert status.state == TIMEOUT


def test_the_last_start_counts() -> None:
    again = block("25  : rescheduling", "99")
    assert ended(again + block(code="3")) == JobStatus(FAILED, "its script ended with exit code 3")
    assert ended(again) is None


def test_records_of_tasks_that_nothing_tells_from_the_jobs_own() -> None:
    # without -m and without a pe_taskid, as up to 6.2u5 (its documentation; not seen live)
    parallel = "granted_pe   rr\n"
    assert ended(block(code="5", more=parallel) + block(more=parallel)) is None
    assert ended(block(more=parallel) + block(more=parallel)) == JobStatus(COMPLETED)


def test_the_worst_of_an_array() -> None:
    text = block(task="1") + block(LIMIT, "137", task="2") + block(task="3")
    assert (ended(text) or JobStatus("")).state == TIMEOUT
    assert ended(text, "11.3") == JobStatus(COMPLETED)
    assert ended(text, "11.4") is None


def test_a_number_that_was_given_out_before() -> None:
    assert ended(block(), user="bob") is None
    assert ended(block(), user="alice", name="y") is None
    assert ended(block(), user="alice", name="x") == JobStatus(COMPLETED)


def test_nothing_where_there_is_no_accounting(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def answers(argv: list[str], *, limit: float) -> Answer:
        asked.append(argv)
        return Answer(0, block(number=argv[3], task="3"), "") if argv[3] != "12" else Answer(1, "", "not found")

    monkeypatch.setattr(client, "query", answers)
    found = query.accounting([{"job_id": "11"}, {"job_id": "12"}, {"job_id": "13.3"}])
    assert list(found) == ["11", "13.3"]
    assert asked == [["qacct", "-m", "-j", "11"], ["qacct", "-m", "-j", "12"], ["qacct", "-m", "-j", "13", "-t", "3"]]

    def older(argv: list[str], *, limit: float) -> Answer:
        return Answer(1, "", "usage: qacct …\n") if "-m" in argv else Answer(0, block(), "")

    monkeypatch.setattr(client, "query", older)
    assert query.accounting([{"job_id": "11"}]) == {"11": JobStatus(COMPLETED)}

    def missing(argv: list[str], *, limit: float) -> Answer:
        raise SchedulerError("qacct is not there")

    monkeypatch.setattr(client, "query", missing)
    assert query.accounting([{"job_id": "11"}]) == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90", 90),
        ("1:30", 90),
        (":1:30", 90),
        ("1:0:0", 3600),
        ("INFINITY", None),
        ("", None),
        ("::", None),
        ("9" * 5000, None),
    ],
)
def test_times(text: str, expected: int | None) -> None:
    assert seconds(text) == expected
