"""Whether another attempt follows one that has failed, on which hosts and when."""

from __future__ import annotations

from typing import Any

import pytest

from gridtf.bootstrap.judge.attempts import (
    Failure,
    Following,
    History,
    choose,
    following,
    in_vain,
    replaceable,
    without,
)
from gridtf.bootstrap.judge.progress import Progress
from gridtf.bootstrap.judge.verdict import Verdict
from gridtf.errors import (
    GridtfError,
    HostLostError,
    PlacementError,
    RendezvousError,
    RunDirError,
    SchedulerError,
    TerminatedError,
)
from gridtf.jobspec.request import Request
from gridtf.schedulers.api import Host
from gridtf.states import JobState

HOSTS = tuple(Host(f"n{number}", 1) for number in range(1, 5))
NOTHING = History()
FAILED = Verdict(JobState.FAILED, "worker:0 on n1: exit code 1")


def request(low: int | None = None, high: int | None = None, spare: int = 0) -> Request:
    nodes = (low or 4, high or low or 4)
    left_open = frozenset() if low else frozenset({"nodes"})
    return Request("slurm", "job", nodes, 1, 0, 0, None, (), spare_nodes=spare, left_open=left_open)


def names(hosts: tuple[Host, ...] | str) -> str:
    return hosts if isinstance(hosts, str) else " ".join(host.name for host in hosts)


def after(failure: Failure, history: History = NOTHING, restarts: int = 3, **of: Any) -> Following | str:
    return following(failure, history, restarts, HOSTS, request(**of), "n1")


# --- hosts


def test_all_hosts_are_used_at_first_but_the_spare_ones() -> None:
    assert names(choose(HOSTS, request(), History())) == "n1 n2 n3 n4"
    assert names(choose(HOSTS, request(spare=1), History())) == "n1 n2 n3"
    assert names(choose(HOSTS, request(3, spare=1), History())) == "n1 n2 n3"
    assert names(choose(HOSTS, request(2, 4), History())) == "n1 n2 n3 n4"


def test_hosts_that_are_gone_are_replaced_by_spare_ones() -> None:
    assert names(choose(HOSTS, request(spare=1), History(gone=("n2",)))) == "n1 n3 n4"
    assert names(choose(HOSTS, request(3, spare=1), History(gone=("n2",)))) == "n1 n3 n4"


def test_range_of_hosts_allows_fewer() -> None:
    assert names(choose(HOSTS, request(2, 4), History(gone=("n2", "n4")))) == "n1 n3"
    few = choose(HOSTS, request(3, 4), History(gone=("n2", "n4")))
    assert few == "the job needs 3 hosts, and n2, n4 cannot be used any more"
    assert choose(HOSTS, request(5), History()) == "the job needs 5 hosts, and has 4"
    assert choose(HOSTS, request(), History(gone=("n3",))) == "the job needs 4 hosts, and n3 cannot be used any more"


def test_host_that_failed_twice_stays_out_where_the_job_can_do_without_it() -> None:
    twice = History(failures={"n1": 2, "n3": 1})
    assert names(choose(HOSTS, request(spare=1), twice)) == "n2 n3 n4"
    assert names(choose(HOSTS, request(), twice)) == "n1 n2 n3 n4"
    assert names(choose(HOSTS, request(2, 4), twice)) == "n2 n3 n4"


def test_hosts_of_one_gpu_type_follow_a_loss() -> None:
    """A second step over several types brings slurmctld down when a node is lost."""
    hosts = tuple(host.replace(gpu_type=kind) for host, kind in zip(HOSTS, ("a", "a", "b", "a"), strict=True))
    assert names(choose(hosts, request(2, spare=2), History())) == "n1 n2"
    assert names(choose(hosts, request(2, spare=2), History(gone=("n2",)))) == "n1 n4"
    assert names(choose(hosts, request(1, 4), History(gone=("n4",)))) == "n1 n2"
    assert names(choose(hosts, request(1, 4), History(gone=("n1", "n2")))) == "n3"
    assert choose(hosts, request(3, spare=1), History(gone=("n2",))) == (
        "the job needs 3 hosts, n2 cannot be used any more, and the others have GPUs of several types (a, b), which "
        "are not used together after a loss"
    )


def test_hosts_of_other_components_are_not_spare() -> None:
    hosts = (*HOSTS, Host("p1", 1, component=1), Host("p2", 1, component=1))
    assert names(choose(hosts, request(spare=1), History(gone=("n1", "p1")))) == "n2 n3 n4 p2"


def test_spare_hosts_take_the_place_of_bad_ones_where_there_are_as_many() -> None:
    assert names(without(("n2",), HOSTS, request(spare=1), NOTHING) or ()) == "n1 n3 n4"
    assert names(without(("n2", "n3"), HOSTS, request(spare=2), NOTHING) or ()) == "n1 n4"
    assert without(("n2", "n3"), HOSTS, request(spare=1), NOTHING) is None
    assert without(("n2",), HOSTS, request(), NOTHING) is None
    assert without(("n2",), HOSTS, request(2, 4), NOTHING) is None, "fewer hosts are no better"
    hosts = (*HOSTS, Host("p1", 1, component=1))
    assert without(("p1",), hosts, request(spare=1), NOTHING) is None, "no other host can do what it is for"


# --- whether


def test_attempt_without_bad_hosts_follows_at_once_and_is_no_restart() -> None:
    bad = Verdict(JobState.FAILED, "n2: bandwidth 1 % of the median (9 of 900 MB/s)")
    found = after(Failure(bad, in_vain="that is the same for each attempt", bad=("n2",)), spare=1, restarts=1)
    assert isinstance(found, Following)
    assert (names(found.hosts), found.pause, found.why) == ("n1 n3 n4", 0, bad.reason)
    assert (found.history.restarts, found.history.gone) == (0, ("n2",))
    again = after(Failure(FAILED), found.history, spare=1, restarts=1)
    assert isinstance(again, Following)
    assert names(again.hosts) == "n1 n3 n4"


def test_as_many_bad_hosts_are_replaced_as_there_are_spare_ones() -> None:
    for spare, replaced in ((0, ""), (1, "n2"), (2, "n2 n3")):
        assert " ".join(replaceable(["n2", "n3"], HOSTS, request(spare=spare), NOTHING)) == replaced


def test_restart_follows_a_failure_after_a_pause_that_doubles() -> None:
    history, pauses = History(), []
    for number in range(1, 9):
        found = after(Failure(FAILED, reached=Progress(step=number)), history, restarts=8)
        assert isinstance(found, Following)
        assert found.why == f"restart {number} of at most 8, after: worker:0 on n1: exit code 1"
        pauses.append(found.pause)
        history = found.history
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    assert after(Failure(FAILED, reached=Progress(step=number)), history, restarts=8) == "after 8 restarts"


@pytest.mark.parametrize(
    "verdict",
    [
        Verdict(JobState.COMPLETED, ""),
        Verdict(JobState.SAVED, ""),
        Verdict(JobState.CANCELLED, ""),
        Verdict(JobState.TIMEOUT, ""),
        Verdict(JobState.PREEMPTED, ""),
        FAILED.replace(again=True),
        FAILED.replace(again=None),
    ],
)
def test_nothing_follows_an_end_that_is_not_a_failure_or_is_the_scheduler_s(verdict: Verdict) -> None:
    assert after(Failure(verdict)) == ""


def test_nothing_follows_without_restarts() -> None:
    assert after(Failure(FAILED), restarts=0) == ""


@pytest.mark.parametrize("state", [JobState.NODE_FAIL, JobState.OUT_OF_MEMORY])
def test_lost_hosts_and_memory_that_ran_out_are_failures(state: JobState) -> None:
    assert isinstance(after(Failure(Verdict(state, ""))), Following)


def test_two_attempts_without_progress_are_enough() -> None:
    first = after(Failure(FAILED))
    assert isinstance(first, Following)
    assert after(Failure(FAILED), first.history) == "not restarted, since 2 attempts have made no progress"
    second = after(Failure(FAILED, reached=Progress(step=7)), first.history)
    assert isinstance(second, Following)
    assert isinstance(after(Failure(FAILED), second.history), Following)


def test_steps_that_an_earlier_attempt_had_reached_are_no_progress() -> None:
    history = NOTHING
    for _ in range(2):
        found = after(Failure(FAILED, reached=Progress(step=7, written=8.0)), history)
        assert isinstance(found, Following)
        history = found.history
    again = after(Failure(FAILED, reached=Progress(step=6)), history)
    assert again == "not restarted, since 2 attempts have made no progress"
    assert isinstance(after(Failure(FAILED, reached=Progress(step=8)), history), Following)


def test_attempt_waits_until_hosts_that_are_left_out_have_certainly_ended_their_tasks() -> None:
    found = after(Failure(Verdict(JobState.NODE_FAIL, ""), left={"n2": 17.0}), spare=1)
    assert isinstance(found, Following)
    assert (found.pause, names(found.hosts), found.history.gone) == (17.0, "n1 n3 n4", ("n2",))


def test_too_few_hosts_are_the_reason_why_nothing_follows() -> None:
    found = after(Failure(Verdict(JobState.NODE_FAIL, ""), left={"n2": 17.0}))
    assert found == "not restarted, since the job needs 4 hosts, and n2 cannot be used any more"


def test_host_that_may_be_cut_off_does_not_go_on_alone() -> None:
    silent = {"n2": 1.0, "n3": 1.0, "n4": 1.0}
    found = after(Failure(Verdict(JobState.NODE_FAIL, ""), left=silent, alone=True), low=1, high=4)
    assert found == "not restarted, since this host may be the one that is cut off"
    others = after(Failure(Verdict(JobState.NODE_FAIL, ""), left={"n2": 1.0}, alone=True), low=1, high=4)
    assert isinstance(others, Following)


def test_spare_host_shows_whether_this_one_is_cut_off() -> None:
    """Of the only other host nothing is heard, so that only the scheduler knows which of the two is cut off."""
    silent = Failure(Verdict(JobState.NODE_FAIL, "", again=None), left={"n2": 9.0}, alone=True)

    def on_two_hosts(spare: int) -> Following | str:
        return following(silent, NOTHING, 3, HOSTS[: 2 + spare], request(2, spare=spare), "n1")

    found = on_two_hosts(spare=1)
    assert isinstance(found, Following)
    assert names(found.hosts) == "n1 n3"
    assert on_two_hosts(spare=0) == "not restarted, since the job needs 2 hosts, and n2 cannot be used any more"
    back = silent.replace(alone=False)  # the scheduler may have started the job again elsewhere meanwhile
    alone = following(back, NOTHING, 3, HOSTS[:2], request(1, 2), "n1")
    assert alone == "not restarted, since this host may be the one that is cut off"


def test_failures_are_counted_by_host() -> None:
    history = History().after(Failure(FAILED, host="n1", left={"n2": 0.0}))
    assert (history.restarts, history.failures, history.gone) == (1, {"n1": 1, "n2": 1}, ("n2",))
    assert history.after(Failure(FAILED, host="n1")).failures == {"n1": 2, "n2": 1}


# --- what cannot heal


@pytest.mark.parametrize("error", [PlacementError("x"), RunDirError("x"), TerminatedError("x")])
def test_errors_that_are_the_same_for_each_attempt(error: GridtfError) -> None:
    assert in_vain(error, {}) == "that is the same for each attempt"


def test_error_of_gridtf_s_own_does_not_heal() -> None:
    assert in_vain(KeyError("x"), {}) == "gridtf itself has failed"


@pytest.mark.parametrize(
    "error", [None, HostLostError("x"), RendezvousError("x"), SchedulerError("x"), GridtfError("an agent was killed")]
)
def test_errors_that_may_heal(error: GridtfError | None) -> None:
    assert in_vain(error, {}) == ""


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"error": "command not found: pyhton"}, "a command that cannot be run does not heal"),
        ({"exit": 127}, "a command that cannot be run does not heal"),
        ({"exit": 126}, "a command that cannot be run does not heal"),
        ({"exit": 1, "exception": {"type": "ModuleNotFoundError"}}, "a program that cannot be imported does not heal"),
        ({"exit": 1, "exception": {"type": "SyntaxError"}}, "a program that cannot be imported does not heal"),
        ({"exit": 2}, "exit code 2 stands for a wrong command line"),
        ({"exit": 1, "exception": {"type": "ValueError"}}, ""),
        ({"exit": 1}, ""),
        ({"signal": "SIGKILL", "exit": None}, ""),
    ],
)
def test_causes_that_cannot_heal(record: dict[str, Any], reason: str) -> None:
    assert in_vain(None, record) == reason


def test_task_whose_failure_ends_the_job() -> None:
    assert in_vain(None, {"exit": 1}, "end") == 'the table of that task has on_failure = "end"'
    assert in_vain(None, {"exit": 1}, "attempt") == ""


def test_who_has_ended_the_attempt_may_forbid_another_one() -> None:
    assert in_vain(None, {"exit": 1}, final='on_stall is "end"') == 'on_stall is "end"'
    assert in_vain(None, {"exit": 1}, stalled=True) == 'on_stall is "end"'  # a launcher of 0.1.0 asks so
