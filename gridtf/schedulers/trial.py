"""A first job for `gridtf doctor`: judged by the check before a submission, and never submitted."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gridtf.errors import GridtfError, SpecError, nearest
from gridtf.findings import Finding, Items, Level, Setting, failure
from gridtf.jobspec import config, merging
from gridtf.jobspec.spec import JobSpec
from gridtf.schedulers import commands
from gridtf.schedulers.api import Plan, Scheduler
from gridtf.text import some
from gridtf.values import fields

CHECK = "submission"


def with_settings(given: config.Configured, settings: Sequence[Setting]) -> JobSpec:
    """The job of the files, variables and options, with the settings that an examination has found. Pure.

    Args:
        given: What files, variables and options set; that counts.
        settings: The settings. Those of a table are for other jobs; raw options contain the given ones.
    """
    own = [one for one in settings if not one.example and not one.table]
    return replaced(given.spec, {one.key: one.value for one in own if one.key == "native" or not _set(one.key, given)})


def _set(key: str, given: config.Configured) -> bool:
    return key in given.sources and given.spec.option(key) is not None


def replaced(spec: JobSpec, values: Mapping[str, object]) -> JobSpec:
    """A job with other values of some keys, also of those that only some schedulers know. Pure."""
    known = fields(JobSpec)
    options = {key: value for key, value in values.items() if key not in known}
    changes = {key: value for key, value in values.items() if key in known}
    return spec.replace(**{**changes, "options": {**spec.options, **options}})


def unknown_tables(given: config.Configured, names: Sequence[str], noun: str) -> Items:
    """Warn of tables in files that are for no partition or queue of this site. Pure.

    Args:
        given: What files set.
        names: The names of the site.
        noun: ``partition`` or ``queue``.
    """
    for name, source in given.partitions.items():
        if name.partition("@")[0] not in names and not set(name) & set(",*?@"):
            hint = nearest(name, [*names]) or f"there are: {some([*names])}"
            yield Finding(Level.WARNING, f"{noun}.table", f"{source}: there is no {noun} {name}", hint)


def judge(
    scheduler: Scheduler,
    given: config.Configured,
    spec: JobSpec,
    check: Callable[[Plan], Sequence[str]],
    *,
    accepted: str,
    hint: str,
) -> Items:
    """Judge a job as its submission would.

    Args:
        given: What files, variables and options set, to name the source of a value that is refused.
        spec: The job.
        check: The scheduler's check before a submission, less that of the folders; it takes a plan with a script.
        accepted: The message where the job is accepted.
        hint: What to do about a note.

    Raises:
        NoAnswerError: When the scheduler does not answer.
    """
    try:
        folder = Path(spec.chdir or os.getcwd())  # noqa: PTH109
        spec = spec.replace(chdir=str(folder))
        request = scheduler.login.resolve(spec)
        plan = Plan(spec, scheduler, request, folder, sys.executable, folder, given.sources)
        plan = scheduler.login.with_site(plan)
        lines = [f"{scheduler.login.directive_prefix} {line}\n" for line in scheduler.login.directives(plan)]
        notes = check(plan.replace(script=f"#!/bin/bash\n{''.join(lines)}true\n"))
    except commands.NoAnswerError:
        raise
    except SpecError as error:
        yield failure(CHECK, merging.located(error, given.sources))
    except GridtfError as error:
        yield failure(CHECK, error)
    else:
        yield from (Finding(Level.WARNING, CHECK, note, hint) for note in notes)
        if not notes:
            yield Finding(Level.OK, CHECK, accepted)
