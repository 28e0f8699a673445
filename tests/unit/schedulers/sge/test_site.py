"""What a cell offers. What qconf prints was recorded on Son of Grid Engine 8.1.9, unless a line says otherwise."""

from __future__ import annotations

import pytest

from gridtf.schedulers.client import Answer
from gridtf.schedulers.sge import advice, client
from gridtf.schedulers.sge.advice import PE, Queue, Resource

RR = """\
pe_name            rr
slots              999
user_lists         NONE
xuser_lists        NONE
start_proc_args    NONE
stop_proc_args     NONE
allocation_rule    $round_robin
control_slaves     TRUE
job_is_first_task  FALSE
urgency_slots      min
accounting_summary FALSE
qsort_args         NONE
"""
QUEUES = """\
qname                 short.q
hostlist              n1 n2
pe_list               rr
h_rt                  0:10:0
h_vmem                INFINITY
qname                 all.q
hostlist              @allhosts
seq_no                0,[n1=0],[n2=1],[n3=2],[n4=3]
pe_list               make smp,[@gpu=mpi \\
                      rr],[n4=NONE]
h_rt                  1:00:00,[n1=2:0:0]
qname                 long.q
pe_list               NONE
h_rt                  1:00:00,[n1=INFINITY]
"""
COMPLEX = """\
#name               shortcut   type      relop requestable consumable default  urgency 
#--------------------------------------------------------------------------------------
gpu                 g          INT       <=    YES         YES        0        0
h_rt                h_rt       TIME      <=    YES         NO         0:0:0    0
# >#< starts a comment but comments are not saved across edits --------
"""  # noqa: W291 - as qconf prints it


def test_a_parallel_environment() -> None:
    assert advice.parse_pe(RR) == PE("rr", 999, True, "$round_robin")
    other = RR.replace("$round_robin", "2").replace("TRUE", "FALSE").replace("user_lists         NONE", "user_lists ml")
    assert advice.parse_pe(other) == PE("rr", 999, False, "2", "ml")
    assert advice.parse_pe("") is None
    assert advice.parse_pe(f"Welcome to the grid\n{RR}") == advice.parse_pe(RR)
    odd = RR.replace("999", "9" * 5000).replace("$round_robin", "²")
    assert advice.parse_pe(odd) == PE("rr", 0, True, "²")
    # Open Cluster Scheduler's has more lines (its documentation; not seen live)
    assert advice.parse_pe(RR + "ignore_slave_requests_on_master_host   FALSE\n") == advice.parse_pe(RR)


@pytest.mark.parametrize(
    ("rule", "hosts"), [("$pe_slots", 1), ("$fill_up", 8), ("$round_robin", 8), ("4", 2), ("3", 3), ("8", 1)]
)
def test_the_most_hosts_of_eight_slots(rule: str, hosts: int) -> None:
    assert PE("x", 99, True, rule).hosts(8) == hosts


def test_queues() -> None:
    assert advice.parse_queues(QUEUES) == [
        Queue("short.q", frozenset({"rr"}), 600),
        Queue("all.q", frozenset({"make", "smp", "mpi", "rr"}), 7200),
        Queue("long.q", frozenset(), None),
    ]


def test_resources() -> None:
    assert advice.parse_resources(COMPLEX) == [
        Resource("gpu", "g", "INT", "YES"),
        Resource("h_rt", "h_rt", "TIME", "NO"),
    ]
    # Univa's and Open Cluster Scheduler's (their documentation; not seen live); Univa's has a column more
    assert advice.parse_resources("gpu  gpu  RSMAP  <=  YES  HOST  0  0  NO\n") == [
        Resource("gpu", "gpu", "RSMAP", "HOST")
    ]


def test_where_qconf_may_not_be_asked_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    denied = Answer(1, "", 'denied: host "login" is not an admin host\n')
    monkeypatch.setattr(client, "query", lambda argv, *, limit: denied)
    assert advice.known_pe("rr") is None
    assert (advice.known_pes(), advice.known_queues(), advice.known_resources(), advice.known_names("-ss")) == (
        [],
        [],
        [],
        [],
    )


def test_all_are_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def answers(argv: list[str], *, limit: float) -> Answer:
        texts = {"-spl": "rr\nxx\n", "-sql": "short.q\nall.q\n", "-sp": RR if argv[2:] == ["rr"] else ""}
        texts["-sq"] = QUEUES if argv[2:] == ["short.q,all.q"] else ""
        return Answer(0, texts[argv[1]], "")

    monkeypatch.setattr(client, "query", answers)
    assert [one.name for one in advice.known_pes()] == ["rr"]
    assert [one.name for one in advice.known_queues()] == ["short.q", "all.q", "long.q"]
