"""When a job would start, as its scheduler estimates it, on other partitions, hosts and walltimes; what `auto` means.

A question may take the locks of the scheduler's controller, which serves all users. So a command asks at most
QUESTIONS of them, one after another, and each answer is shared for a minute among the user's commands of this host.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gridtf import schedulers
from gridtf.errors import SpecError, UsageError, nearest
from gridtf.jobspec.layers import Layer, Sourced
from gridtf.jobspec.options import Key
from gridtf.jobspec.primitives import check_parsed
from gridtf.jobspec.units import format_walltime, parse_nodes, parse_walltime
from gridtf.login import submission
from gridtf.schedulers import answers
from gridtf.schedulers.api import Estimate, JobIdentity, Place, Plan
from gridtf.text import counted, duration, whole
from gridtf.values import Value

if TYPE_CHECKING:
    from gridtf.jobspec.config import Build, Configured
    from gridtf.jobspec.sweep import Sweep
    from gridtf.login.like import Like

QUESTIONS = 12
_NOW = 5.0  # seconds within which a start is one at once
_HOURS = (96, 48, 24, 12, 8, 4, 2, 1)  # walltimes that auto tries, the longest first
_PARTITION, _NODES, _TIME = ("partition",), ("nodes",), ("time",)
_SAME = ("account", "qos")  # what auto never changes, not even by the table of a partition


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
        chosen: The values, by key.
    """

    partition: str
    nodes: str
    walltime: int | None
    estimate: Estimate
    wait: float | None = None
    latest: float | None = None
    expected: float | None = None
    hours: tuple[float, str] | None = None
    chosen: Mapping[Key, str | int | None] = {}


class Forecast:
    """Makes the jobs that ``auto`` may stand for, and asks when they would start.

    Args:
        everything: Whether to ask about all of them, for `gridtf when`: without a choice.

    Attributes:
        like: The past job that tells how long it runs; None: none is named.
        elements: Makes the elements of a sweep; None: it is one job.
        rows: The jobs, the best one first.
        notes: What users should know, a line each.
    """

    def __init__(self, *, everything: bool = False) -> None:
        self.like: Like | None = None
        self.elements: Callable[[Configured], Sweep | None] = lambda given: None
        self.rows: list[Row] = []
        self.notes: list[str] = []
        self._everything = everything
        self._questions = self._of = 0
        self._now = time.time()  # of all that start at once, so that they compare

    def __call__(self, wanted: Layer, build: Build) -> Layer:
        """Choose.

        Args:
            wanted: The values that are auto.
            build: Makes the job with others.

        Returns:
            Those others; for `gridtf when` those of the first row.

        Raises:
            UsageError: When no job can be made, or nothing is known to choose by.
            SchedulerError: When the scheduler does not answer.
        """
        none: Layer = {key: Sourced(None, value.source) for key, value in wanted.items()}
        base = build(none, limited=False)
        if not self._everything:
            self._need(wanted, base)
        login = schedulers.get(base.spec.scheduler or schedulers.to_submit_to(os.environ)).login
        places = login.places()
        choices = _choices({key: str(value.value) for key, value in wanted.items()}, places)
        self._of = math.prod(map(len, choices.values()))
        errors: list[UsageError] = []
        left, shared = 0, dict[str, Any](places=places)
        for values in itertools.product(*choices.values()):
            if self._questions >= QUESTIONS:
                left += 1
                continue
            chosen = dict(zip(choices, values, strict=True))
            try:
                given = build({key: Sourced(value, wanted[key].source) for key, value in chosen.items()})
                swept = self.elements(given)
                plan = submission.prepare(given.spec, given.sources, given.trusted, given.origin, swept, shared)
                shared |= {"site": plan.site, "history": plan.history}
                plan = plan.replace(script=submission.script(plan))
            except UsageError as error:
                errors.append(error)
                refused = Estimate(why=error.what, never=True)
                partition, nodes = (str(chosen.get(key) or "") for key in (_PARTITION, _NODES))
                self.rows.append(Row(partition, nodes, None, refused, chosen=chosen))
                continue
            if not self._everything and any(given.spec.option(key) != base.spec.option(key) for key in _SAME):
                estimate = Estimate(why="its table has another account or QoS", never=True)
            elif plan.waits_for:
                estimate = Estimate(why="it starts after other jobs")
            else:
                estimate = login.foreseen(plan, places) or self._ask(plan, places)
            self.rows.append(self._row(plan, estimate, chosen))
            if not self._everything and _NODES not in wanted and self.rows[-1].wait == 0:
                break  # those that follow are no better
        if left:
            more = counted(left, "more combination")
            self.notes.append(f"{more} not asked about: a command asks {QUESTIONS} times; name fewer")
        if errors and len(errors) == len(self.rows):
            raise errors[0]
        self.rows.sort(key=lambda row: _rank(row, by_end=_NODES in wanted))  # those as good stay in the site's order
        best = self.rows[0]
        how = "" if self._everything else self._why(best, wanted)
        return {key: Sourced(best.chosen[key], f"{value.source} {value.value}, {how}") for key, value in wanted.items()}

    def _need(self, wanted: Layer, base: Configured) -> None:
        """Refuse what cannot be chosen for want of something else."""
        if _TIME in wanted and not base.spec.continuations:
            hint = "add continue = 10, say, and checkpoint_before = 5m; or write a walltime"
            raise SpecError("time", "auto is for jobs that go on after their walltime", hint=hint)
        if _NODES in wanted and not (self.like and self.like.runtime):
            why = "it is not known how long the job runs" if self.like is None else "that job has not completed at once"
            hint = "name a job that has completed with --like JOB, or write a number of hosts"
            raise SpecError("nodes", f"auto needs a past job's runtime: {why}", hint=hint)

    def _ask(self, plan: Plan, places: Sequence[Place]) -> Estimate:
        """The scheduler's estimate, as it is or was a minute ago."""
        login = plan.scheduler.login

        def ask() -> Estimate:
            self._questions += 1
            return login.estimate(plan, places)

        read = [line for line in plan.script.splitlines() if line.startswith(login.directive_prefix or "#")]
        variables = [f"{name}={text}" for name, text in sorted(os.environ.items()) if name.startswith("SBATCH_")]
        question = "\n".join([login.server(JobIdentity(""), os.environ), *variables, *read])
        return answers.shared(question, ask)

    def _row(self, plan: Plan, estimate: Estimate, chosen: Mapping[Key, str | int | None]) -> Row:
        request, start, now = plan.request, estimate.start, self._now
        low, high = request.nodes
        spread = plan.scheduler.login.slots(request) and request.chosen("nodes") is None  # over any number of hosts
        row = Row(
            plan.spec.partition or "",
            "" if spread else str(low) if low == high else f"{low}-{high}",
            request.walltime,
            estimate,
            hours=request.hours,
            chosen=chosen,
        )
        if start is None:
            return row
        start = now if start - now < _NOW else start
        runtime = self.like.runtime if self.like else None
        needed = runtime and (runtime[0] if spread else runtime[0] * runtime[1] / low)
        limit = request.walltime or math.inf
        if needed and needed > limit and not self._everything and not plan.spec.continuations:
            what = f"it needs {duration(needed)}, more than its walltime"
            return row.replace(estimate=Estimate(why=what, never=True))
        return row.replace(
            wait=start - now,
            latest=start + limit if request.walltime else None,
            expected=needed and start + needed,
        )

    def _why(self, best: Row, wanted: Layer) -> str:
        """Why the best row is chosen."""
        unknown, others = best.estimate.why, [key for key in wanted if key != _PARTITION]
        if best.estimate.never:
            reasons = "; ".join(dict.fromkeys(f"{row.partition}: {row.estimate.why}".lstrip(": ") for row in self.rows))
            raise SpecError(next(iter(wanted))[0], "nothing that auto may choose can run the job", why=reasons)
        if best.wait is None and others:
            raise SpecError(others[0][0], f"auto cannot choose: no start is known ({unknown})", hint="write a value")
        if best.wait is None:
            self.notes.append(f"partition {best.partition} is the first, since no start is known: {unknown}")
            return "the first, since no start is known"
        of = f"the first of {self._of} that" if best.wait == 0 and _NODES not in wanted else f"chosen of {self._of}:"
        end = best.expected or best.latest
        by = "" if end is None else f", {'should end' if best.expected else 'ends'} by {clock(end, time.time())}"
        return f"{of} starts {when(best, time.time())}{by}"


def _rank(row: Row, *, by_end: bool) -> tuple[bool, bool, float]:
    start = 0.0 if row.wait == 0 else row.estimate.start or 0.0
    return row.estimate.never, row.wait is None, (by_end and (row.expected or row.latest)) or start


def _choices(wanted: Mapping[Key, str], places: Sequence[Place]) -> dict[Key, list[str | int | None]]:
    """What each value may be: the longest walltimes first, and partitions in the order of the site."""
    names = [place.name for place in places]
    places = [place for place in places if not place.hidden]
    lists = {key: [*dict.fromkeys(text[5:].replace(",", " ").split())] for key, text in wanted.items()}
    for key, parse in ((_NODES, parse_nodes), (_TIME, parse_walltime)):  # else a row that never runs
        for text in lists.get(key, ()):
            check_parsed(key[0], text, parse, "values with commas between them")
    choices: dict[Key, list[str | int | None]] = {}
    if _NODES in wanted:
        span = re.fullmatch(r"(?a)([1-9]\d{0,5})-([1-9]\d{0,5})", wanted[_NODES][5:].strip())
        sizes = [place.most_nodes for place in places if place.most_nodes]
        if not span and not lists[_NODES] and not sizes:
            raise SpecError("nodes", "it is not known how many hosts there are", hint="write nodes = auto:2-16, say")
        low, high = map(int, span.groups()) if span else (1, max(sizes, default=1))
        powers = [1 << power for power in range(20) if low <= 1 << power <= high]
        choices[_NODES] = [*(powers if span or not lists[_NODES] else (whole(word) or word for word in lists[_NODES]))]
    for name in lists.get(_PARTITION, ()):  # of Grid Engine, it may be a pattern, or have a host
        if name not in names and not {*name} & {*"@*?"} and (near := nearest(name, names)):
            raise SpecError("partition", f"the site has no partition or queue {name!r}", hint=near)
    if _PARTITION in wanted:
        choices[_PARTITION] = [*lists[_PARTITION]] or [place.name for place in places] or [None]
    if _TIME in wanted:
        limits = {place.limit for place in places if place.limit}
        longest = max(limits) if limits and all(place.limit for place in places) else math.inf
        times = sorted({*limits, *(hour * 3600 for hour in _HOURS if hour * 3600 <= longest)}, reverse=True)
        choices[_TIME] = [*(sorted(lists[_TIME], key=parse_walltime, reverse=True) or map(format_walltime, times))]
        if not lists[_TIME]:  # fewer walltimes rather than not all partitions
            step = -(-math.prod(map(len, choices.values())) // QUESTIONS)
            choices[_TIME] = [*dict.fromkeys((*choices[_TIME][::step], choices[_TIME][-1]))]
    order = (_NODES, _TIME, _PARTITION)
    return {key: choices[key] for key in order if key in choices}


def hours(used: tuple[float, str] | None) -> str:
    """Request.hours in words: ``16 GPU-hours``; empty where they are not known."""
    number = f"{used[0]:,.1f}".removesuffix(".0") if used else ""
    return f"{number} {used[1]}-hour{'' if number == '1' else 's'}" if used else ""


def when(row: Row, now: float) -> str:
    """When a job would start: ``now``, ``in 2 h 10 min (15:40)``, or why it is not known."""
    if row.wait is None:
        return f"{'never' if row.estimate.never else 'unknown'}: {row.estimate.why}"
    return moment(now + row.wait, now)


def moment(start: float, now: float) -> str:
    """A start: ``now``, ``in 2 h 10 min (15:40)``."""
    return "now" if start - now < _NOW else f"in {duration(start - now)} ({clock(start, now)})"


def clock(moment: float, now: float) -> str:
    """A time of today's, or with its date: ``15:40``, ``Dec 1 15:40``."""
    at = time.localtime(moment)
    form = "%H:%M" if at[:3] == time.localtime(now)[:3] else "%b %d %H:%M"
    return time.strftime(form, at)
