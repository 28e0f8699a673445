"""Whether a job goes on with another attempt in its allocation after one has failed; on which hosts, and when. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from gridtf.bootstrap.judge.progress import MOST_IDLE, Progress
from gridtf.bootstrap.judge.verdict import Verdict
from gridtf.errors import BadHostError, GridtfError, PlacementError, RunDirError, TerminatedError, UsageError
from gridtf.jobspec.request import Request
from gridtf.jobspec.tasktypes import END
from gridtf.run.rundir import Record
from gridtf.schedulers.api import Host
from gridtf.states import NOT_RUN, JobState
from gridtf.text import counted, some
from gridtf.values import Value

_MAY_HEAL = frozenset({JobState.FAILED, JobState.NODE_FAIL, JobState.OUT_OF_MEMORY})
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0  # seconds before the first restart, which doubles with each, and the most
_MOST_FAILURES = 2  # of a host, which then stays out where the job can do without it
_WRONG_USAGE = 2  # exit code of Python without its script, and of argparse
_LASTING = (BadHostError, PlacementError, RunDirError, TerminatedError, UsageError)
_IMPORTING = frozenset({"ImportError", "ModuleNotFoundError", "SyntaxError", "IndentationError", "TabError"})


class Failure(Value):
    """What an attempt that has failed leaves to decide upon.

    Attributes:
        verdict: Its verdict.
        in_vain: Why any other attempt would fail as well; empty where it need not.
        host: The host of the first cause; None where it is on none.
        left: Host that has not proved that no process of the attempt is left -> seconds until that is certain.
        reached: How far the job has come.
        alone: Whether only the launcher's host has been heard of lately.
        bad: Hosts that spare ones replace, since the check before training has found them bad.
    """

    verdict: Verdict
    in_vain: str = ""
    host: str | None = None
    left: Mapping[str, float] = {}
    reached: Progress = Progress()
    alone: bool = False
    bad: tuple[str, ...] = ()


class History(Value):
    """What the attempts in this allocation have shown.

    Attributes:
        restarts: How many attempts have followed another one.
        idle: How many of the last attempts have made no progress.
        failures: Host -> how many attempts it has made fail.
        gone: Hosts that cannot be used any more.
        reached: How far the job has come in all of them, and before.
    """

    restarts: int = 0
    idle: int = 0
    failures: Mapping[str, int] = {}
    gone: tuple[str, ...] = ()
    reached: Progress = Progress()

    def after(self, failure: Failure) -> History:
        """What is known after another failure."""
        failures = dict(self.failures)
        for host in {*failure.left, failure.host} - {None}:
            failures[str(host)] = failures.get(str(host), 0) + 1
        return History(
            restarts=self.restarts + 1,
            idle=0 if failure.reached.beyond(self.reached) else self.idle + 1,
            failures=failures,
            gone=tuple(dict.fromkeys((*self.gone, *failure.left))),
            reached=self.reached.farthest(failure.reached),
        )


class Following(Value):
    """An attempt that follows another one.

    Attributes:
        hosts: Its hosts.
        pause: Seconds until it may start.
        why: Why it follows, for the status.
        history: What the attempts before it have shown.
    """

    hosts: tuple[Host, ...]
    pause: float
    why: str
    history: History


def following(
    failure: Failure, history: History, restarts: int, hosts: Sequence[Host], request: Request, here: str
) -> Following | str:
    """Decide whether another attempt follows.

    Args:
        failure: How the last attempt failed.
        history: What the attempts before that one have shown.
        restarts: As JobSpec.restarts.
        hosts: All hosts of the allocation.
        request: What the job requests.
        here: The launcher's host, as the allocation calls it.

    Returns:
        The attempt; or why there is none, empty where that goes without saying.
    """
    verdict = failure.verdict
    if failure.bad and (instead := without(failure.bad, hosts, request, history)):
        now = history.replace(gone=(*history.gone, *failure.bad))
        return Following(instead, max((*failure.left.values(), 0.0)), verdict.reason, now)
    # Nothing is heard of the attempt's other hosts: a spare one that can be reached shows that this one is not cut off.
    open_end = verdict.again is None and verdict.state == JobState.NODE_FAIL
    if not restarts or verdict.state not in _MAY_HEAL or not (verdict.again is False or open_end):
        return ""
    if failure.in_vain:
        return f"not restarted, since {failure.in_vain}"
    if history.restarts >= restarts:
        return f"after {counted(restarts, 'restart')}"
    now = history.after(failure)
    if now.idle >= MOST_IDLE:
        return f"not restarted, since {MOST_IDLE} attempts have made no progress"
    chosen = choose(hosts, request, now)
    if isinstance(chosen, str):
        return f"not restarted, since {chosen}"
    if (failure.alone or open_end) and [host.name for host in chosen] == [here]:
        return "not restarted, since this host may be the one that is cut off"
    pause = min(_FIRST_PAUSE * 2**history.restarts, _LONGEST_PAUSE)
    why = f"restart {now.restarts} of at most {restarts}, after: {verdict.reason}"
    return Following(chosen, max(pause, *failure.left.values(), 0.0), why, now)


def followed(end: Verdict, number: int) -> Verdict:
    """The verdict on an attempt that another one follows, of this number."""
    return end.noting(f"attempt {number} follows").replace(next=number, again=False)


def choose(hosts: Sequence[Host], request: Request, history: History) -> tuple[Host, ...] | str:
    """Choose the hosts of an attempt: without those that cannot be used, and without the spare ones.

    Args:
        hosts: All hosts of the allocation.
        request: What the job requests.
        history: What earlier attempts have shown.

    Returns:
        The hosts, in their order; or why there are too few.
    """
    own = [host for host in hosts if not host.component]
    low = (request.chosen("nodes") or (0, 0))[0]
    most = max(low, len(own) - request.spare_nodes, 1)
    fewest = low or most
    usable = [host for host in own if host.name not in history.gone]
    types = dict.fromkeys(host.gpu_type for host in usable)
    if history.gone and len(types) > 1:
        alike = ([host for host in usable if host.gpu_type == kind] for kind in types)
        usable = max(alike, key=lambda hosts: min(len(hosts), most))
        if len(usable) < fewest:
            shown, gone = (some(sorted(names)) for names in ((kind or "no type" for kind in types), history.gone))
            several = f"the others have GPUs of several types ({shown}), which are not used together after a loss"
            return f"the job needs {counted(fewest, 'host')}, {gone} cannot be used any more, and {several}"
    failing = [host for host in usable if history.failures.get(host.name, 0) >= _MOST_FAILURES]
    chosen = [host for host in usable if host not in failing][:most]
    if len(chosen) < fewest:
        chosen = usable[:most]
    if len(chosen) < fewest:
        lacks = f"{some(sorted(history.gone))} cannot be used any more" if history.gone else f"has {len(own)}"
        return f"the job needs {counted(fewest, 'host')}, and {lacks}"
    others = [host for host in hosts if host.component and host.name not in history.gone]
    names = {host.name for host in (*chosen, *others)}
    return tuple(host for host in hosts if host.name in names)


def without(bad: Collection[str], hosts: Sequence[Host], request: Request, history: History) -> tuple[Host, ...] | None:
    """As choose, with other hosts in place of bad ones; None where there are not as many."""
    usual, chosen = (choose(hosts, request, each) for each in (history, history.replace(gone=(*history.gone, *bad))))
    return None if isinstance(chosen, str) or len(chosen) < len(usual) else chosen


def replaceable(bad: Sequence[str], hosts: Sequence[Host], request: Request, history: History) -> tuple[str, ...]:
    """As many of the bad hosts, from the first one on, as other hosts can take the place of."""
    counts = range(len(bad), 0, -1)
    return next((tuple(bad[:count]) for count in counts if without(bad[:count], hosts, request, history)), ())


def in_vain(
    error: Exception | None, record: Record, on_failure: str | None = None, *, final: str = "", stalled: bool = False
) -> str:
    """Why another attempt would fail like this one, or is not wanted.

    Args:
        error: What ended the attempt; None: a task.
        record: The record of the task that failed first; empty without one.
        on_failure: As in TaskSpec, of that task.
        final: Why who has ended the attempt forbids another one; empty: it does not.
        stalled: As launchers of 0.1.0 say it that an upgrade in place has overtaken.

    Returns:
        A clause; empty where another attempt may succeed.
    """
    if error is not None and not isinstance(error, GridtfError):
        return "gridtf itself has failed"
    if final or stalled:
        return final or 'on_stall is "end"'
    if isinstance(error, _LASTING):
        return "that is the same for each attempt"
    if on_failure == END:
        return 'the table of that task has on_failure = "end"'
    if record.get("error") or record.get("exit") in NOT_RUN:
        return "a command that cannot be run does not heal"
    if (record.get("exception") or {}).get("type") in _IMPORTING:
        return "a program that cannot be imported does not heal"
    if record.get("exit") == _WRONG_USAGE and not record.get("exception"):
        return "exit code 2 stands for a wrong command line"
    return ""
