"""Runs Slurm's commands; recognizes when the controller (slurmctld) does not answer."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from gridtf.errors import SchedulerError
from gridtf.run.rundir import Record
from gridtf.schedulers.client import Answer, NoAnswerError, ask

# What they read from the environment: SQUEUE_USERS=bob, which somebody finds handy, would hide the jobs of others,
# and what is hidden looks like a job that is gone.
_FILTERS = re.compile(r"(SQUEUE|SINFO|SACCT)_")

# slurm_load_jobs error: Unable to contact slurm controller (connect failure)
_UNREACHABLE = re.compile(
    r"unable to contact slurm controller|socket timed out|zero bytes were transmitted|connection (refused|timed out)|"
    r"no route to host|standby mode|transport endpoint|batch job submission failed: i/o error",
    re.IGNORECASE,
)
_COMPLAINT = re.compile(r"^\w+:? (?:error|fatal): (.*\S)", re.MULTILINE)
# Slurmctld(primary) at ctl1 is DOWN        (scontrol(1), ping)
_PING = re.compile(r"Slurmctld\(\S+\) at (\S+) is (UP|DOWN)")


def run(argv: Sequence[str], *, limit: float, blame: bool = True) -> Answer:
    """What a command of Slurm answers, whatever its exit code.

    limit: seconds. blame: whether to spend some more on the name of the controller's host. Raises SchedulerError, whose
    message is one line, when the command is not there, or the controller does not answer.
    """
    try:
        answer = ask([*_without_filters(os.environ), *argv], limit=limit)
    except NoAnswerError:
        raise unreachable(f"{argv[0]} has waited for {limit:g} s", blame=blame) from None
    if answer.code and is_unreachable(answer.err):
        raise unreachable(message(answer), blame=blame)
    return answer


def cluster_option(submitted: Record) -> list[str]:
    """The option that names the cluster of a job, where it was submitted to one of several."""
    return [f"--clusters={submitted['cluster']}"] if submitted.get("cluster") else []


def is_unreachable(text: str) -> bool:
    """Whether a command says that the controller does not answer."""
    return _UNREACHABLE.search(text) is not None


def unreachable(words: str, *, blame: bool) -> SchedulerError:
    """The error for a controller that does not answer. words: what a command said of it."""
    hosts = _hosts() if blame else []
    return SchedulerError(
        f"Slurm's controller{' on ' + ' and '.join(hosts) if hosts else ''} does not answer: {words}",
        hint="jobs that run go on; try again later, or ask the administrators",
    )


def message(answer: Answer) -> str:
    """What a command complained of, without its own name before it; a site may print lines of its own beside it."""
    complaints = _COMPLAINT.findall(answer.err)
    return str(complaints[-1]) if complaints else answer.last_word


def _hosts() -> list[str]:
    try:
        return [host for host, _ in _PING.findall(ask(["scontrol", "ping"], limit=5).out)]
    except SchedulerError:
        return []


def _without_filters(environ: Mapping[str, str]) -> list[str]:
    names = sorted(name for name in environ if _FILTERS.match(name))
    return ["env", *(f"--unset={name}" for name in names)] if names else []
