"""How jobs stand. What qstat prints was recorded on Son of Grid Engine 8.1.9, unless a line says otherwise."""

from __future__ import annotations

import pytest

from gridtf.errors import SchedulerError
from gridtf.schedulers.base import PENDING, RUNNING, UNKNOWN
from gridtf.schedulers.client import Answer
from gridtf.schedulers.sge import client, query
from gridtf.schedulers.sge.query import our_state

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


def told(number: int, *messages: str) -> str:
    return "".join(
        f"<element><MES_job_number_list><ulong_sublist><ULNG_value>{number}</ULNG_value></ulong_sublist>"
        f"</MES_job_number_list><MES_message_number>24</MES_message_number><MES_message>{message}</MES_message></element>"
        for message in messages
    )


def detailed(jobs: str, messages: str = "", of_all: str = "") -> str:
    everybody = f"<element><MES_message_number>37</MES_message_number><MES_message>{of_all}</MES_message></element>"
    return (
        "<?xml version='1.0'?>\n<detailed_job_info  xmlns:xsd=\"http://arc.liv.ac.uk/…/detailed_job_info.xsd\">\n"
        f"<djob_info>{jobs}</djob_info><messages><element><SME_message_list>{messages}</SME_message_list>"
        f"<SME_global_message_list>{everybody if of_all else ''}</SME_global_message_list></element></messages>"
        "</detailed_job_info>\n"
    )


class Qstat:
    """Answers as qstat does, and remembers what it was asked."""

    def __init__(self, listing: str, details: str = UNKNOWN_JOBS) -> None:
        self.listing, self.details = listing, details
        self.asked: list[list[str]] = []

    def __call__(self, argv: list[str], *, limit: float) -> Answer:
        self.asked.append(argv[1:])
        return Answer(0, self.details if "-j" in argv else self.listing, "")


def asked(monkeypatch: pytest.MonkeyPatch, listing: str, details: str = UNKNOWN_JOBS) -> Qstat:
    qstat = Qstat(listing, details)
    monkeypatch.setattr(client, "query", qstat)
    return qstat


def test_one_qstat_for_jobs_that_run(monkeypatch: pytest.MonkeyPatch) -> None:
    qstat = asked(monkeypatch, listed(job(1, "r"), job(2, "Rr"), job(3, "t")))
    found = query.query([{"job_id": number, "user": "alice"} for number in ("1", "2", "3", "1")])
    assert [(job_id, status.state) for job_id, status in found.items()] == [(n, RUNNING) for n in "123"]
    assert found["3"].reason == ""  # its tasks may run already
    assert qstat.asked == [["-xml", "-u", "alice", "-s", "a"]]


def test_no_jobs_no_question(monkeypatch: pytest.MonkeyPatch) -> None:
    qstat = asked(monkeypatch, NONE)
    assert query.query([]) == {}
    assert not qstat.asked


@pytest.mark.parametrize(
    ("users", "expected"), [(["bob", "alice", "bob"], "alice,bob"), (["x y"], "*"), ([None, "alice"], "*")]
)
def test_whose_jobs_are_asked_for(users: list[str | None], expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    qstat = asked(monkeypatch, NONE)
    query.query([{"job_id": "1", **({"user": user} if user else {})} for user in users])
    assert qstat.asked[0][2] == expected


def test_gone_is_what_qstat_does_not_know_either(monkeypatch: pytest.MonkeyPatch) -> None:
    qstat = asked(monkeypatch, NONE, detailed(detail(78)))
    found = query.query([{"job_id": number, "user": "alice"} for number in ("77", "78")])
    assert found["77"].gone
    assert not found["78"].gone  # options in ~/.sge_qstat hide it
    assert (found["78"].state, "sge_qstat" in found["78"].reason) == (UNKNOWN, True)
    assert qstat.asked[1] == ["-xml", "-j", "77,78"]


def test_words_instead_of_xml_for_unknown_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    def answers(argv: list[str], *, limit: float) -> Answer:
        return Answer(1, "", "Following jobs do not exist:\n77\n") if "-j" in argv else Answer(0, NONE, "")

    monkeypatch.setattr(client, "query", answers)
    assert query.query([{"job_id": "77"}])["77"].gone


def test_a_qstat_that_fails_is_never_taken_for_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "query", lambda argv, *, limit: Answer(1, "", "error: something else\n"))
    with pytest.raises(SchedulerError, match="qstat has failed: something else"):
        query.query([{"job_id": "1"}])
    asked(monkeypatch, "")
    with pytest.raises(SchedulerError, match="no XML"):
        query.query([{"job_id": "1"}])


def test_a_job_in_error_is_shown_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    why = "can&apos;t chdir to /nowhere: No such file or directory"
    asked(monkeypatch, listed(job(6, "Eqw")), detailed(detail(6, error=STAMP + why), told(6, "Job is in error state")))
    status = query.query([{"job_id": "6", "user": "alice"}])["6"]
    assert status.state == PENDING
    assert status.reason == ("in error (Eqw): can't chdir to /nowhere: No such file or directory; qmod -cj 6 clears it")


@pytest.mark.parametrize(
    ("state", "details", "reason"),
    [
        (
            "qw",
            detailed(
                detail(8),
                told(
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
                told(
                    8,
                    'cannot run in queue "b.q" because it is not contained in its hard queue list (-q)',
                    'cannot run at host "n1" because it offers only hc:gpu=0.000000',
                ),
            ),
            'cannot run at host "n1" because it offers only hc:gpu=0.000000',
        ),
        (
            "qw",
            detailed(detail(8), of_all='queue instance "all.q@n1" dropped because it is full'),
            "its queues are full",
        ),
        ("qw", detailed(detail(8)), ""),  # schedd_job_info false
        ("hqw", detailed(detail(8)), "held: qrls 8 releases it"),
        ("hqw", detailed(detail(8, after=4)), "it waits for job 4"),
        ("qw", detailed(detail(8, start=4_000_000_000)), "it may not begin before 2096-10-02"),
        ("Rq", detailed(detail(8)), "it was put back into the queue"),
    ],
)
def test_why_a_job_waits(state: str, details: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked(monkeypatch, listed(job(8, state)), details)
    status = query.query([{"job_id": "8", "user": "alice"}])["8"]
    assert status.state == PENDING
    assert status.reason.startswith(reason) if "before" in reason else status.reason == reason


def test_too_many_that_wait_are_not_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    qstat = asked(monkeypatch, listed(*(job(number, "qw") for number in range(200))))
    found = query.query([{"job_id": str(number), "user": "alice"} for number in range(200)])
    assert {status.state for status in found.values()} == {PENDING}
    assert len(qstat.asked) == 1


ARRAY = listed(job(1, "r", "3"), job(1, "r", "5"), job(1, "qw", "7,9-13:2"))


@pytest.mark.parametrize(
    ("job_id", "state", "gone"),
    [("1.3", RUNNING, False), ("1.7", PENDING, False), ("1.11", PENDING, False), ("1.2", UNKNOWN, True)],
)
def test_elements_of_an_array(job_id: str, state: str, gone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked(monkeypatch, ARRAY, detailed(detail(1)))
    status = query.query([{"job_id": job_id, "user": "alice"}])[job_id]
    assert (status.state, status.gone) == (state, gone)


def test_an_array_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    asked(monkeypatch, ARRAY, detailed(detail(1)))
    status = query.query([{"job_id": "1", "user": "alice"}])["1"]
    assert status.state == RUNNING
    assert status.reason == "elements of the array that have not ended: 2 RUNNING, 4 PENDING"


def test_an_array_with_an_element_in_error(monkeypatch: pytest.MonkeyPatch) -> None:
    listing = listed(job(1, "r", "2"), job(1, "Eqw", "1"))
    asked(monkeypatch, listing, detailed(detail(1, error=STAMP + "no such shell")))
    found = query.query([{"job_id": job_id, "user": "alice"} for job_id in ("1", "1.1", "1.2")])
    assert "1 RUNNING, 1 PENDING (in error (Eqw): no such shell; " in found["1"].reason
    assert "no such shell" in found["1.1"].reason
    assert found["1.2"].reason == ""


def test_other_lists_of_the_same_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    # with -f in ~/.sge_qstat they stand below their queue, with -g t once a host
    below = (
        job(5, "r")
        .replace("    <job_list", "    <Queue-List>\n<job_list")
        .replace("</job_list>", "</job_list></Queue-List>")
    )
    asked(monkeypatch, f"{HEAD}{below}{below}  </queue_info>\n<job_info/></job_info>")
    assert query.query([{"job_id": "5", "user": "alice"}])["5"].state == RUNNING


def test_times_with_fractions_and_more_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    # Univa's, from users' reports; not seen live
    more = "<JAT_start_time>2016-11-01T16:40:15.092</JAT_start_time>\n<jclass_name></jclass_name>\n      <state>"
    asked(monkeypatch, listed(job(5, "r").replace("<state>", more)))
    assert query.query([{"job_id": "5", "user": "alice"}])["5"].state == RUNNING


@pytest.mark.parametrize(
    ("state", "expected", "words"),
    [
        ("r", RUNNING, ""),
        ("hr", RUNNING, ""),
        ("s", RUNNING, "qmod -usj"),
        ("S", RUNNING, "with its queue"),
        ("T", RUNNING, "overloaded"),
        ("RtS", RUNNING, "with its queue"),
        ("dr", RUNNING, "being deleted"),
        ("dRr", RUNNING, "being deleted"),
        ("qw", PENDING, ""),
        ("hRwq", PENDING, "held"),
        ("EhRqw", PENDING, "in error"),
        ("N", RUNNING, "some of what it holds is given to others"),
        ("Pr", RUNNING, "preempted"),
        ("Q", UNKNOWN, "Grid Engine says Q"),
        ("", UNKNOWN, "Grid Engine says nothing"),
    ],
)
def test_states(state: str, expected: str, words: str) -> None:
    found, said = our_state(state)
    assert found == expected
    assert words in said
