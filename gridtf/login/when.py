"""When a job would start, as its scheduler estimates it, on other partitions, hosts and walltimes.

A question may take the locks of the scheduler's controller, which serves all users. So a command asks at most
QUESTIONS of them, one after another, and each answer is shared for a minute among the user's commands of this host.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gridtf import schedulers
from gridtf.errors import SpecError, UsageError, nearest
from gridtf.jobspec.primitives import check_parsed
from gridtf.jobspec.units import parse_nodes, parse_walltime
from gridtf.login import submission
from gridtf.schedulers import answers
from gridtf.schedulers.api import Estimate, JobIdentity, Place, Plan
from gridtf.text import counted, duration
from gridtf.values import Value

if TYPE_CHECKING:
    from gridtf.jobspec.config import Configured
    from gridtf.jobspec.sweep import Sweep
    from gridtf.login.like import Like

QUESTIONS = 12
_NOW = 5.0  # seconds within which a start is one at once


class Row(Value):
    """A job with other values, and when it would start.

    Attributes:
        partition: Its partition or queue; empty: none is named.
        nodes: Its hosts: ``4`` or ``2-4``; empty where it asks for slots, on any number of hosts.
        walltime: Its walltime in seconds; None: none is asked for.
        estimate: When it would start.
        wait: Seconds until then, 0 for a start at once; None where it is not known.
        latest: When it would end at the latest, by its walltime, in seconds since the epoch; None: not known.
        expected: When it would end by a past job's runtime; None: not known.
        hours: As Request.hours.
    """

    partition: str
    nodes: str
    walltime: int | None
    estimate: Estimate
    wait: float | None = None
    latest: float | None = None
    expected: float | None = None
    hours: tuple[float, str] | None = None


Configure = Callable[[Mapping[str, str]], "Configured"]  # makes the job with other values of partition, nodes and time


def forecast(
    base: Configured,
    listed: Mapping[str, Sequence[str]],
    configure: Configure,
    elements: Callable[[Configured], Sweep | None],
    like: Like | None,
) -> tuple[list[Row], list[str]]:
    """When a job would start with each combination of values.

    Args:
        base: The job, whatever the limits of the site are.
        listed: The values of ``nodes``, ``time`` and ``partition``; without any partitions, those that the site shows.
        configure: Makes the job with one value of each.
        elements: Makes the elements of a sweep; None: it is one job.
        like: The past job that tells how long it runs; None: none is named.

    Returns:
        The rows, those that start first, or with several numbers of nodes end first, before others, and notes for the
        user, a line each.

    Raises:
        UsageError: When no job can be made, or a value cannot be.
        SchedulerError: When the scheduler does not answer.
    """
    login = schedulers.get(base.spec.scheduler or schedulers.to_submit_to(os.environ)).login
    places = login.places()
    choices = _choices(listed, places)
    places = [place.replace(asked=place.name in choices.get("partition", ())) for place in places]
    rows: list[Row] = []
    errors: list[UsageError] = []
    asked: list[str] = []
    left, now, shared = 0, time.time(), dict[str, Any](places=places)
    for values in itertools.product(*choices.values()):
        if len(asked) >= QUESTIONS:
            left += 1
            continue
        chosen = dict(zip(choices, values, strict=True))
        try:
            given = configure(chosen)
            swept = elements(given)
            plan = submission.prepare(given.spec, given.sources, given.trusted, given.origin, swept, shared)
            shared |= {"site": plan.site, "history": plan.history}
            plan = plan.replace(script=submission.script(plan))
        except UsageError as error:
            errors.append(error)
            refused = Estimate(why=error.what, never=True)
            rows.append(Row(chosen.get("partition", ""), chosen.get("nodes", ""), None, refused))
            continue
        if plan.waits_for:
            estimate = Estimate(why="it starts after other jobs")
        else:
            estimate = login.foreseen(plan, places) or _ask(plan, places, asked)
        rows.append(_row(plan, estimate, like, now))
    if errors and len(errors) == len(rows):
        raise errors[0]
    more = f"{counted(left, 'more combination')} not asked about: a command asks {QUESTIONS} times; name fewer"
    by_end = len(choices.get("nodes", ())) > 1
    return sorted(rows, key=lambda row: _rank(row, by_end=by_end)), [more] * bool(left)


def _ask(plan: Plan, places: Sequence[Place], asked: list[str]) -> Estimate:
    """The scheduler's estimate, as it is or was a minute ago. asked: The questions that were asked, with it."""
    login = plan.scheduler.login
    read = [line for line in plan.script.splitlines() if line.startswith(login.directive_prefix or "#")]
    variables = [f"{name}={text}" for name, text in sorted(os.environ.items()) if name.startswith("SBATCH_")]
    question = "\n".join([login.server(JobIdentity(""), os.environ), *variables, *read])

    def ask() -> Estimate:
        asked.append(question)
        return login.estimate(plan, places)

    def kept(row: Any) -> Estimate:
        return Estimate(row["start"] and float(row["start"]), str(row["why"]), bool(row["never"]), bool(row["at_most"]))

    return answers.shared(question, ask, kept)


def _row(plan: Plan, estimate: Estimate, like: Like | None, now: float) -> Row:
    """now: That of all that start at once, so that they compare."""
    request, start = plan.request, estimate.start
    low, high = request.nodes
    spread = plan.scheduler.login.slots(request) and request.chosen("nodes") is None  # over any number of hosts
    row = Row(
        plan.spec.partition or "",
        "" if spread else str(low) if low == high else f"{low}-{high}",
        request.walltime,
        estimate,
        hours=request.hours,
    )
    if start is None:
        return row
    start = now if start - time.time() < _NOW else start
    runtime = like.runtime if like else None
    return row.replace(
        wait=start - now,
        latest=start + request.walltime if request.walltime else None,
        expected=runtime and start + (runtime[0] if spread else runtime[0] * runtime[1] / low),
    )


def _rank(row: Row, *, by_end: bool) -> tuple[bool, bool, float]:
    start = 0.0 if row.wait == 0 else row.estimate.start or 0.0
    return row.estimate.never, row.wait is None, (by_end and (row.expected or row.latest)) or start


def _choices(listed: Mapping[str, Sequence[str]], places: Sequence[Place]) -> dict[str, Sequence[str]]:
    """What each value may be, the partitions in the order of the site."""
    for key, parse in (("nodes", parse_nodes), ("time", parse_walltime)):  # else a row that never runs
        for text in listed.get(key, ()):
            check_parsed(key, text, parse, "values with commas between them")
    names = [place.name for place in places]
    for name in listed.get("partition", ()):  # of Grid Engine, it may be a pattern, or have a host
        if name not in names and not {*name} & {*"@*?"} and (near := nearest(name, names)):
            raise SpecError("partition", f"the site has no partition or queue {name!r}", hint=near)
    shown = [place.name for place in places if not place.hidden]
    choices = {**listed, "partition": listed.get("partition") or shown}
    return {key: choices[key] for key in ("nodes", "time", "partition") if choices.get(key)}


def hours(used: tuple[float, str] | None) -> str:
    """Request.hours in words: ``16 GPU-hours``; empty where they are not known."""
    number = f"{used[0]:,.1f}".removesuffix(".0") if used else ""
    return f"{number} {used[1]}-hour{'' if number == '1' else 's'}" if used else ""


def when(row: Row, now: float) -> str:
    """When a job would start: ``now``, ``in 2 h (15:40)``, ``at most in 2 h (15:40)``, or why it is not known."""
    if row.wait is None:
        return f"{'never' if row.estimate.never else 'unknown'}: {row.estimate.why}"
    return f"{'at most ' * row.estimate.at_most}{moment(now + row.wait, now)}"


def moment(start: float, now: float) -> str:
    """A start: ``now``, ``in 2 h 10 min (15:40)``."""
    return "now" if start - now < _NOW else f"in {duration(start - now)} ({clock(start, now)})"


def clock(moment: float, now: float) -> str:
    """A time of today's, or with its date: ``15:40``, ``Dec 1 15:40``."""
    at = time.localtime(moment)
    form = "%H:%M" if at[:3] == time.localtime(now)[:3] else "%b %d %H:%M"
    return time.strftime(form, at)
