"""State of jobs, and how they ended. Output of qstat and qacct was recorded on Son of Grid Engine 8.1.9, unless a
comment names another source."""

from __future__ import annotations

import pytest

from gridtf.errors import SchedulerError, SpecError
from gridtf.schedulers.api import JobIdentity, JobStatus
from gridtf.schedulers.commands import Answer
from gridtf.schedulers.sge import accounting, advice, offers, query, scheduler
from gridtf.schedulers.sge.commands import sge
from gridtf.schedulers.sge.offers import Cell
from gridtf.schedulers.sge.query import NO, PER_SLOT, ResourceRequest, job_state, seconds
from gridtf.schedulers.sge.requested import Requested
from gridtf.states import JobState
from tests.support.rendering import plan

HEAD = "<?xml version='1.0'?>\n<job_info  xmlns:xsd=\"http://arc.liv.ac.uk/…/qstat.xsd\">\n  <queue_info>\n"
NONE = HEAD + "  </queue_info>\n  <job_info>\n  </job_info>\n</job_info>\n"
UNKNOWN_JOBS = "<?xml version='1.0'?>\n<unknown_jobs >\n    <ST_name>77</ST_name>\n</unknown_jobs>\n"
STAMP = "11/21/2026 14:10:52 [7001:11]: error: "


def job(number: int, state: str, tasks: str = "") -> str:
    where = "pending" if "q" in state else "running"
    elements = f"      <tasks>{tasks}</tasks>\n" if tasks else ""
    return (
        f'    <job_list state="{where}">\n      <JB_job_number>{number}</JB_job_number>\n'
        f"      <JAT_prio>0.25000</JAT_prio>\n      <JB_name>x</JB_name>\n      <JB_owner>alice</JB_owner>\n"
        f"      <state>{state}</state>\n      <queue_name></queue_name>\n      <slots>1</slots>\n{elements}"
        "    </job_list>\n"
    )


def listed(*jobs: str) -> str:
    running = "".join(one for one in jobs if "running" in one)
    pending = "".join(one for one in jobs if "pending" in one)
    return f"{HEAD}{running}  </queue_info>\n  <job_info>\n{pending}  </job_info>\n</job_info>\n"


def detail(number: int, *, error: str = "", after: int = 0, start: int = 0) -> str:
    errors = (
        f"<JAT_message_list><ulong_sublist><QIM_type>1</QIM_type><QIM_message>{error}</QIM_message></ulong_sublist>"
        "</JAT_message_list>"
    )
    before = (
        f"<JB_jid_predecessor_list><job_predecessors><JRE_job_number>{after}</JRE_job_number></job_predecessors>"
        "</JB_jid_predecessor_list>"
    )
    return (
        f"<element><JB_job_number>{number}</JB_job_number><JB_ja_tasks><ulong_sublist>"
        f"<JAT_task_number>1</JAT_task_number>{errors if error else ''}</ulong_sublist></JB_ja_tasks>"
        f"{before if after else ''}<JB_execution_time>{start}</JB_execution_time></element>"
    )


def messages_of(number: int, *messages: str) -> str:
    return "".join(
        f"<element><MES_job_number_list><ulong_sublist><ULNG_value>{number}</ULNG_value></ulong_sublist>"
        f"</MES_job_number_list><MES_message_number>24</MES_message_number><MES_message>{message}</MES_message></element>"
        for message in messages
    )


def detailed(jobs: str, messages: str = "", of_all: str = "") -> str:
    shared = f"<element><MES_message_number>37</MES_message_number><MES_message>{of_all}</MES_message></element>"
    return (
        "<?xml version='1.0'?>\n<detailed_job_info  xmlns:xsd=\"http://arc.liv.ac.uk/…/detailed_job_info.xsd\">\n"
        f"<djob_info>{jobs}</djob_info><messages><element><SME_message_list>{messages}</SME_message_list>"
        f"<SME_global_message_list>{shared if of_all else ''}</SME_global_message_list></element></messages>"
        "</detailed_job_info>\n"
    )


class Qstat:
    """Answers as qstat does, and records how it was called."""

    def __init__(self, listing: str, details: str = UNKNOWN_JOBS) -> None:
        self.listing, self.details = listing, details
        self.calls: list[list[str]] = []

    def __call__(self, argv: list[str], *, limit: float) -> Answer:
        self.calls.append(argv[1:])
        return Answer(0, self.details if "-j" in argv else self.listing, "")


def fake_qstat(monkeypatch: pytest.MonkeyPatch, listing: str, details: str = UNKNOWN_JOBS) -> Qstat:
    qstat = Qstat(listing, details)
    monkeypatch.setattr(sge, "run", qstat)
    return qstat


def test_running_jobs_take_one_qstat(monkeypatch: pytest.MonkeyPatch) -> None:
    qstat = fake_qstat(monkeypatch, listed(job(1, "r"), job(2, "Rr"), job(3, "t")))
    found = scheduler.login.query([JobIdentity(number, user="alice") for number in ("1", "2", "3", "1")])
    assert [(job_id, status.state) for job_id, status in found.items()] == [(n, JobState.RUNNING) for n in "123"]
    assert found["3"].reason == "its host has not confirmed the start yet"  # its tasks may run already
    assert [found[number].starting for number in "123"] == [False, False, True]
    assert qstat.calls == [["-xml", "-u", "alice", "-s", "a"]]


def test_query_without_jobs_runs_no_qstat(monkeypatch: pytest.MonkeyPatch) -> None:
    qstat = fake_qstat(monkeypatch, NONE)
    assert scheduler.login.query([]) == {}
    assert not qstat.calls


@pytest.mark.parametrize(
    ("users", "expected"), [(["bob", "alice", "bob"], "alice,bob"), (["x y"], "*"), (["", "alice"], "*")]
)
def test_qstat_lists_the_jobs_of_the_users(users: list[str], expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    qstat = fake_qstat(monkeypatch, NONE)
    scheduler.login.query([JobIdentity("1", user=user) for user in users])
    assert qstat.calls[0][2] == expected


def test_job_is_purged_only_when_qstat_j_does_not_know_it(monkeypatch: pytest.MonkeyPatch) -> None:
    qstat = fake_qstat(monkeypatch, NONE, detailed(detail(78)))
    found = scheduler.login.query([JobIdentity(number, user="alice") for number in ("77", "78")])
    assert found["77"].purged
    assert not found["78"].purged  # options in ~/.sge_qstat hide it
    assert (found["78"].state, "sge_qstat" in found["78"].reason) == (JobState.UNKNOWN, True)
    assert qstat.calls[1] == ["-xml", "-j", "77,78"]


def test_unknown_jobs_reported_without_xml_are_purged(monkeypatch: pytest.MonkeyPatch) -> None:
    def answers(argv: list[str], *, limit: float) -> Answer:
        return Answer(1, "", "Following jobs do not exist:\n77\n") if "-j" in argv else Answer(0, NONE, "")

    monkeypatch.setattr(sge, "run", answers)
    assert scheduler.login.query([JobIdentity("77")])["77"].purged


def test_failed_qstat_is_an_error_and_purges_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sge, "run", lambda argv, *, limit: Answer(1, "", "error: something else\n"))
    with pytest.raises(SchedulerError, match="qstat has failed: something else"):
        scheduler.login.query([JobIdentity("1")])
    fake_qstat(monkeypatch, "")
    with pytest.raises(SchedulerError, match="is not XML"):
        scheduler.login.query([JobIdentity("1")])


def test_job_in_error_has_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    why = "can&apos;t chdir to /nowhere: No such file or directory"
    fake_qstat(
        monkeypatch,
        listed(job(6, "Eqw")),
        detailed(detail(6, error=STAMP + why), messages_of(6, "Job is in error state")),
    )
    status = scheduler.login.query([JobIdentity("6", user="alice")])["6"]
    assert status.state == JobState.PENDING
    assert status.reason == ("in error (Eqw): can't chdir to /nowhere: No such file or directory; qmod -cj 6 clears it")


@pytest.mark.parametrize(
    ("state", "details", "reason"),
    [
        (
            "qw",
            detailed(
                detail(8),
                messages_of(
                    8,
                    '(-l slots=1) cannot run in queue "n1" because it offers only hc:slots=0.000000',
                    'cannot run in PE "rr" because it only offers 3 slots',
                ),
            ),
            'cannot run in PE "rr" because it only offers 3 slots',
        ),
        (
            "qw",
            detailed(
                detail(8),
                messages_of(
                    8,
                    'cannot run in queue "b.q" because it is not contained in its hard queue list (-q)',
                    'cannot run at host "n1" because it offers only hc:gpu=0.000000',
                ),
            ),
            'cannot run at host "n1" because it offers only hc:gpu=0.000000',
        ),
        (  # recorded on Son of Grid Engine 8.1.9: no host has such GPUs
            "qw",
            detailed(
                detail(8),
                messages_of(
                    8,
                    '(-l gpu_type=k80) cannot run in queue "n1" because it offers only hf:gpu_type=A100',
                    '(-l gpu_type=k80) cannot run in queue "n3" because it offers only hf:gpu_type=v100',
                    'cannot run in PE "rr" because it only offers 0 slots',
                ),
            ),
            '(-l gpu_type=k80) cannot run in queue "n1" because it offers only hf:gpu_type=A100',
        ),
        (  # n1 has them, and is full
            "qw",
            detailed(
                detail(8),
                messages_of(
                    8,
                    '(-l slots=1) cannot run in queue "n1" because it offers only hc:slots=0.000000',
                    '(-l gpu_type=A100) cannot run in queue "n3" because it offers only hf:gpu_type=v100',
                    'cannot run in PE "rr" because it only offers 0 slots',
                ),
            ),
            'cannot run in PE "rr" because it only offers 0 slots',
        ),
        (  # hosts without GPUs are full, and the GPUs of the others are in use
            "qw",
            detailed(
                detail(8),
                messages_of(
                    8,
                    'cannot run in queue "b.q" because it is not contained in its hard queue list (-q)',
                    '(-l slots=1) cannot run in queue "n1" because it offers only hc:slots=0.000000',
                    '(-l gpu=1) cannot run in queue "n2" because it offers only hc:gpu=0.000000',
                    'cannot run in PE "rr" because it only offers 0 slots',
                ),
            ),
            '(-l gpu=1) cannot run in queue "n2" because it offers only hc:gpu=0.000000',
        ),
        (
            "qw",
            detailed(detail(8), of_all='queue instance "all.q@n1" dropped because it is full'),
            "its queues are full",
        ),
        (  # recorded on Son of Grid Engine 8.1.9
            "qw",
            detailed(
                detail(8),
                messages_of(
                    8,
                    'cannot run in queue "csh.q" because PE "one" is not in PE list',
                    'cannot run in PE "one" because it only offers 0 slots',
                ),
                of_all='queue instance "all.q@n1" dropped because it is disabled',
            ),
            "its queues are disabled: all.q@n1",
        ),
        (
            "qw",
            detailed(
                detail(8),
                messages_of(8, 'cannot run in queue "csh.q" because it is not contained in its hard queue list (-q)'),
                of_all='queue instance "all.q@n1" dropped because it is disabled',
            ),
            "its queues are disabled: all.q@n1",
        ),
        (
            "qw",
            detailed(
                detail(8),
                messages_of(8, '(-l gpu=1) cannot run in queue "n2" because it offers only hc:gpu=0.000000'),
                of_all='queue instance "old.q@n1" dropped because it is disabled',
            ),
            '(-l gpu=1) cannot run in queue "n2" because it offers only hc:gpu=0.000000',
        ),
        ("qw", detailed(detail(8)), ""),  # schedd_job_info false
        ("hqw", detailed(detail(8)), "held: qrls 8 releases it"),
        ("hqw", detailed(detail(8, after=4)), "it waits for job 4"),
        ("qw", detailed(detail(8, start=4_000_000_000)), "it may not start before 2096-10-02"),
        ("Rq", detailed(detail(8)), "it was put back into the queue"),
    ],
)
def test_pending_job_has_its_reason(state: str, details: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_qstat(monkeypatch, listed(job(8, state)), details)
    status = scheduler.login.query([JobIdentity("8", user="alice")])["8"]
    assert status.state == JobState.PENDING
    assert status.reason.startswith(reason) if "before" in reason else status.reason == reason


def test_many_pending_jobs_take_one_qstat(monkeypatch: pytest.MonkeyPatch) -> None:
    qstat = fake_qstat(monkeypatch, listed(*(job(number, "qw") for number in range(200))))
    found = scheduler.login.query([JobIdentity(str(number), user="alice") for number in range(200)])
    assert {status.state for status in found.values()} == {JobState.PENDING}
    assert len(qstat.calls) == 1


ARRAY = listed(job(1, "r", "3"), job(1, "r", "5"), job(1, "qw", "7,9-13:2"))


@pytest.mark.parametrize(
    ("job_id", "state", "purged"),
    [
        ("1.3", JobState.RUNNING, False),
        ("1.7", JobState.PENDING, False),
        ("1.11", JobState.PENDING, False),
        ("1.2", JobState.UNKNOWN, True),
    ],
)
def test_status_of_array_elements(job_id: str, state: str, purged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_qstat(monkeypatch, ARRAY, detailed(detail(1)))
    status = scheduler.login.query([JobIdentity(job_id, user="alice")])[job_id]
    assert (status.state, status.purged) == (state, purged)


def test_array_element_listed_once_for_each_host(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_qstat(monkeypatch, listed(job(1, "r", "3"), job(1, "r", "3")))  # with -g t in ~/.sge_qstat
    status = scheduler.login.query([JobIdentity("1.3", user="alice")])["1.3"]
    assert status == JobStatus(JobState.RUNNING)


def test_status_of_an_array(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_qstat(monkeypatch, ARRAY, detailed(detail(1)))
    status = scheduler.login.query([JobIdentity("1", user="alice")])["1"]
    assert status.state == JobState.RUNNING
    assert status.reason == "elements of the array that have not ended: 2 RUNNING, 4 PENDING"


def test_status_of_an_array_with_an_element_in_error(monkeypatch: pytest.MonkeyPatch) -> None:
    listing = listed(job(1, "r", "2"), job(1, "Eqw", "1"))
    fake_qstat(monkeypatch, listing, detailed(detail(1, error=STAMP + "no such shell")))
    found = scheduler.login.query([JobIdentity(job_id, user="alice") for job_id in ("1", "1.1", "1.2")])
    assert "1 RUNNING, 1 PENDING (in error (Eqw): no such shell; " in found["1"].reason
    assert "no such shell" in found["1.1"].reason
    assert found["1.2"].reason == ""


def test_jobs_listed_below_their_queue_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    # with -f in ~/.sge_qstat they stand below their queue, with -g t once a host
    below = (
        job(5, "r")
        .replace("    <job_list", "    <Queue-List>\n<job_list")
        .replace("</job_list>", "</job_list></Queue-List>")
    )
    fake_qstat(monkeypatch, f"{HEAD}{below}{below}  </queue_info>\n<job_info/></job_info>")
    assert scheduler.login.query([JobIdentity("5", user="alice")])["5"].state == JobState.RUNNING


def test_unknown_fields_of_qstat_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    # Univa's, from users' reports; not seen live
    more = "<JAT_start_time>2016-11-01T16:40:15.092</JAT_start_time>\n<jclass_name></jclass_name>\n      <state>"
    fake_qstat(monkeypatch, listed(job(5, "r").replace("<state>", more)))
    assert scheduler.login.query([JobIdentity("5", user="alice")])["5"].state == JobState.RUNNING


@pytest.mark.parametrize(
    ("state", "expected", "piece"),
    [
        ("r", JobState.RUNNING, ""),
        ("hr", JobState.RUNNING, ""),
        ("s", JobState.RUNNING, "qmod -usj"),
        ("S", JobState.RUNNING, "with its queue"),
        ("T", JobState.RUNNING, "overloaded"),
        ("RtS", JobState.RUNNING, "with its queue"),
        ("dr", JobState.RUNNING, "being deleted"),
        ("dRr", JobState.RUNNING, "being deleted"),
        ("qw", JobState.PENDING, ""),
        ("hRwq", JobState.PENDING, "held"),
        ("EhRqw", JobState.PENDING, "in error"),
        ("N", JobState.RUNNING, "other jobs may use some of its resources"),
        ("Pr", JobState.RUNNING, "preempted"),
        ("Q", JobState.UNKNOWN, "Grid Engine reports an unknown state: Q"),
        ("", JobState.UNKNOWN, "Grid Engine reports an unknown state: none"),
    ],
)
def test_job_state(state: str, expected: str, piece: str) -> None:
    translated, reason = job_state(state)
    assert translated == expected
    assert piece in reason


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


def ended(text: str, job_id: str = "11", user: str = "", **details: str) -> JobStatus | None:
    return accounting.accounted_status(accounting.blocks(text), JobIdentity(job_id, details, user))


@pytest.mark.parametrize(
    ("text", "state", "reason"),
    [
        (block(), JobState.COMPLETED, ""),
        (block(code="7                   "), JobState.FAILED, "its script ended with exit code 7"),
        (block("30  : application error returned", "100"), JobState.FAILED, "its script ended with exit code 100"),
        (block(DELETED, "139                  (Segmentation fault)"), JobState.FAILED, "it was killed by SIGSEGV"),
        (
            block(DELETED, "137                  (Killed)"),
            JobState.FAILED,
            "SIGKILL: by qdel, for a limit of its queue, or by",
        ),
        (block(DELETED, "140                  (User defined signal 2)"), JobState.CANCELLED, "deleted with qdel"),
        (block(LIMIT, "140                  (User defined signal 2)"), JobState.TIMEOUT, "of the job or of its queue"),
        (block("²", "9" * 5000), JobState.COMPLETED, ""),
        (block(DELETED, "137", category="-l h_vmem=50M", memory="."), JobState.FAILED, "SIGKILL"),
        (block(LIMIT, "137", category="-l h_rt=3"), JobState.TIMEOUT, "the walltime is over (h_rt=3)"),
        (
            block(LIMIT, "137", category="-u alice -l h_cpu=2,gpu=1 -pe rr 8"),
            JobState.TIMEOUT,
            "the walltime or the CPU time of the job",
        ),
        (block(LIMIT, "137"), JobState.TIMEOUT, "of the job or of its queue"),
        (block("37", "137"), JobState.TIMEOUT, "of the job or of its queue"),
        (block("37", "137", category="-l h_vmem=50M"), JobState.OUT_OF_MEMORY, "more memory than allowed"),
        (block(DELETED, "0"), JobState.FAILED, "it was killed"),
        (block(DELETED, "9"), JobState.FAILED, "it was killed (exit code 9)"),
        (
            block(LIMIT, "137", category="-l h_vmem=50M", memory="2.1MB"),
            JobState.OUT_OF_MEMORY,
            "more memory than allowed",
        ),
        (
            block(DELETED, "138                  (User defined signal 1)", category="-l s_rt=3"),
            JobState.TIMEOUT,
            "(s_rt=3)",
        ),
        (block(DELETED, "137", category="-l h_rt=1:00:00", lasted=3601), JobState.TIMEOUT, "(h_rt=1:00:00)"),
        (block(DELETED, "137", category="-l h_rt=3600", lasted=10), JobState.FAILED, "SIGKILL"),
        (block(DELETED, "137", category="-l h_vmem=50M", memory="52.5MB"), JobState.OUT_OF_MEMORY, "(h_vmem=50M)"),
        (
            block("28  : changing into working directory", "0"),
            JobState.FAILED,
            "could not run it on n1: changing into working",
        ),
        # sge_status(5); not seen live
        (block("19  : before writing exit_status", "0"), JobState.NODE_FAIL, "its host n1 has failed"),
        # a field of Univa and Altair, from users' reports
        (block(DELETED, "137", more="deleted_by   bob@login\n"), JobState.CANCELLED, "by bob@login"),
        (block(more="deleted_by   NONE\n"), JobState.COMPLETED, ""),
    ],
)
def test_final_status_by_the_accounting(text: str, state: str, reason: str) -> None:
    status = ended(text)
    assert status is not None
    assert status.state == state
    assert reason in status.reason
    assert (status.reason == f"it was {status.killed}") == ("killed by" in status.reason)
    assert (status.reason == f"by {status.by}") == status.reason.startswith("by ")
    assert "exit code 0" not in status.reason


def test_accounting_of_open_cluster_scheduler() -> None:
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
    assert status.state == JobState.TIMEOUT


def test_accounting_uses_the_last_start() -> None:
    again = block("25  : rescheduling", "99")
    assert ended(again + block(code="3")) == JobStatus(JobState.FAILED, "its script ended with exit code 3")
    assert ended(again) is None


def test_accounting_without_task_ids_needs_equal_records() -> None:
    # without -m and without a pe_taskid, as up to 6.2u5 (its documentation; not seen live)
    parallel = "granted_pe   rr\n"
    assert ended(block(code="5", more=parallel) + block(more=parallel)) is None
    assert ended(block(more=parallel) + block(more=parallel)) == JobStatus(JobState.COMPLETED)


def test_accounting_of_an_array_is_its_worst_element() -> None:
    text = block(task="1") + block(LIMIT, "137", task="2") + block(task="3")
    assert (ended(text) or JobStatus(JobState.UNKNOWN)).state == JobState.TIMEOUT
    assert ended(text, "11.3") == JobStatus(JobState.COMPLETED)
    assert ended(text, "11.4") is None


def test_accounting_of_a_reused_job_number_is_ignored() -> None:
    assert ended(block(), user="bob") is None
    assert ended(block(), user="alice", name="y") is None
    assert ended(block(), user="alice", name="x") == JobStatus(JobState.COMPLETED)


def test_accounting_runs_qacct_and_tolerates_its_absence(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []

    def answers(argv: list[str], *, limit: float) -> Answer:
        calls.append(argv)
        return Answer(0, block(number=argv[3], task="3"), "") if argv[3] != "12" else Answer(1, "", "not found")

    monkeypatch.setattr(sge, "run", answers)
    found = scheduler.login.accounting([JobIdentity("11"), JobIdentity("12"), JobIdentity("13.3")])
    assert list(found) == ["11", "13.3"]
    assert calls == [["qacct", "-m", "-j", "11"], ["qacct", "-m", "-j", "12"], ["qacct", "-m", "-j", "13", "-t", "3"]]

    def older(argv: list[str], *, limit: float) -> Answer:
        return Answer(1, "", "usage: qacct …\n") if "-m" in argv else Answer(0, block(), "")

    monkeypatch.setattr(sge, "run", older)
    assert scheduler.login.accounting([JobIdentity("11")]) == {"11": JobStatus(JobState.COMPLETED)}

    def missing(argv: list[str], *, limit: float) -> Answer:
        raise SchedulerError("qacct is not there")

    monkeypatch.setattr(sge, "run", missing)
    assert scheduler.login.accounting([JobIdentity("11")]) == {}


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
def test_seconds_of_grid_engine_times(text: str, expected: int | None) -> None:
    assert seconds(text) == expected


XML = "<?xml version='1.0'?>\n<job_info><state>r</state></job_info>\n"


@pytest.mark.parametrize(
    "text",
    [XML, f"*** Maintenance on Friday! ***\n\n{XML}", f"{XML}\nHave a nice day\n", XML.partition("\n")[2]],
    ids=["as-it-is", "a-banner-before", "a-line-after", "no-declaration"],
)
def test_banners_around_xml_are_ignored(text: str) -> None:
    assert query.xml_tree(text, "qstat").findtext("state") == "r"


@pytest.mark.parametrize(
    "text",
    [
        '<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>',
        f'<?xml version="1.0"?><!--{"x" * 1000}>--><!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>',
        '<?xml version="1.0"?>\n<?p a>b?><!DOCTYPE a><a/>',
        "error: denied",
        "job-ID  prior",
        "",
        "<job_info>",
    ],
    ids=["entity", "behind-a-comment", "behind-an-instruction", "words", "table", "nothing", "half"],
)
def test_invalid_xml_and_document_types_are_refused(text: str) -> None:
    with pytest.raises(SchedulerError, match="the output of qstat is not XML"):
        query.xml_tree(text, "qstat")


# --- invalid numbers

QSTAT = (
    "<job_info><job_list><JB_job_number>{0}</JB_job_number><state>r</state><tasks>{0}-{0}:{0}</tasks></job_list>"
    "</job_info>"
)
QSTAT_J = (
    "<detailed_job_info><djob_info><element><JB_job_number>{0}</JB_job_number>"
    "<JB_execution_time>{0}</JB_execution_time><JB_hard_resource_list><qstat_l_requests><CE_name>gpu</CE_name>"
    "<CE_doubleval>{0}</CE_doubleval></qstat_l_requests></JB_hard_resource_list></element></djob_info></detailed_job_info>"
)
QACCT = (
    "====\njobnumber {0}\nfailed {0} : x\nexit_status {0}\nru_wallclock {0}s\nmaxvmem {0}G\n"
    "category -l h_rt={0},h_vmem={0}\n"
)
QSUB = 'cannot run in PE "rr" because it only offers {0} slots\ncannot run because it offers only hc:gpu={0}'


@pytest.mark.parametrize("number", ["²", "٣", "", ".", "-1", "inf", "nan", "1e999", "9" * 18, "9" * 30, "9" * 5000])
def test_invalid_numbers_raise_no_other_errors(number: str) -> None:
    """Parsers ignore them, and what they return is fit for arithmetic."""
    details = query.details(QSTAT_J.format(number))
    for row in query.rows(QSTAT.format(number)) if number else ():
        query.status(f"{row.number}.3", query.by_number([row]), details, 0.0)
    for detail in details.values():
        query.why_pending(query.Row("1", "qw"), detail, 0.0)
    for resource in query.parse_requests(QSTAT_J.format(number)).values():
        int(resource.amount)
    accounting.accounted_status(accounting.blocks(QACCT.format(number)), JobIdentity(number))
    offers.parse_pe(f"pe_name rr\nslots {number}\nallocation_rule {number}\n")
    offers.parse_queues(f"qname a\nh_rt {number},[n1={number}:{number}]\n")
    made = plan("sge", gpus_per_task=1, native=[f"-l gpu={number},h_rt={number}"])
    requested = Requested.of(made)
    with pytest.raises((SpecError, SchedulerError)):
        advice.refuse(Answer(1, "", QSUB.format(number)), requested, Cell())


def test_invalid_xml_of_older_versions_is_repaired() -> None:
    # names of jobs may hold control characters; up to 6.2u5 unknown jobs stood in elements without a name
    assert query.xml_tree("<a><JB_name>x\x07y</JB_name></a>", "qstat").findtext("JB_name") == "xy"
    unknown = "<?xml version='1.0'?><unknown_jobs><>\n<ST_name>77</ST_name></></unknown_jobs>"
    assert query.xml_tree(unknown, "qstat").findtext("ST_name") == "77"


# --- what a job requested


def test_parse_requests() -> None:
    text = """<?xml version='1.0'?>
<detailed_job_info><djob_info><element><JB_job_number>12</JB_job_number>
  <JB_hard_resource_list>
    <qstat_l_requests><CE_name>gpu</CE_name><CE_stringval>2</CE_stringval><CE_doubleval>2.000000</CE_doubleval>
      <CE_consumable>1</CE_consumable></qstat_l_requests>
    <qstat_l_requests><CE_name>h_rt</CE_name><CE_stringval>60</CE_stringval><CE_doubleval>60.000000</CE_doubleval>
      <CE_consumable>0</CE_consumable></qstat_l_requests>
    <qstat_l_requests><CE_name>arch</CE_name><CE_stringval>lx-amd64</CE_stringval></qstat_l_requests>
  </JB_hard_resource_list></element></djob_info></detailed_job_info>"""
    assert query.parse_requests(text) == {"gpu": ResourceRequest(2, PER_SLOT), "h_rt": ResourceRequest(60, NO)}
    with pytest.raises(SchedulerError, match="XML"):
        query.parse_requests("error: denied")


def test_parse_requests_of_open_cluster_scheduler() -> None:
    # in a list for the whole job, or for its first host and the others (its source; not seen live)
    one = (
        "<qstat_l_requests><CE_name>{}</CE_name><CE_doubleval>{}</CE_doubleval><CE_consumable>1</CE_consumable>"
        "</qstat_l_requests>"
    )
    sets = "".join(
        f"<ulong_sublist><JRS_scope>{scope}</JRS_scope><JRS_hard_resource_list>{one.format(*pair)}"
        "</JRS_hard_resource_list></ulong_sublist>"
        for scope, pair in enumerate((("gpu", "1.000000"), ("a", "inf"), ("b", "nan")))
    )
    text = f"<detailed_job_info><JB_request_set_list>{sets}</JB_request_set_list></detailed_job_info>"
    assert query.parse_requests(text) == {"gpu": ResourceRequest(1, PER_SLOT)}


def test_parse_variables() -> None:
    text = """<detailed_job_info><djob_info><element><JB_env_list>
  <job_sublist><VA_variable>CUDA_VISIBLE_DEVICES</VA_variable><VA_value>3</VA_value></job_sublist>
  <job_sublist><VA_variable>EMPTY</VA_variable></job_sublist></JB_env_list></element></djob_info></detailed_job_info>"""
    assert query.parse_variables(text) == {"CUDA_VISIBLE_DEVICES": "3", "EMPTY": ""}
