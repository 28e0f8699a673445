"""Examines this host and its scheduler, all parts side by side and each within a time limit."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gridtf import files, schedulers
from gridtf.doctor import folders, mpi, shell
from gridtf.doctor.bounded import Aside
from gridtf.errors import GridtfError, SpecError, UsageError
from gridtf.findings import Examination, Finding, Items, Level, Setting, collect, failure
from gridtf.jobspec import config, merging
from gridtf.jobspec.layers import Given
from gridtf.jobspec.spec import JobSpec
from gridtf.run.rundir import RUN_ROOT
from gridtf.values import Value

if TYPE_CHECKING:
    from gridtf.schedulers.api import Scheduler

_FILES = "configuration"  # the check that files are valid
_EXAMINE_LIMIT = 8.0  # seconds for all parts, which run side by side
_NONE_FOUND = "no command of a cluster's scheduler was found on the PATH, so that jobs run on this machine"
_LOAD_OR_NAME = (
    'if this is a login node, load the module of its scheduler; if jobs are to run here, write scheduler = "local"'
)


class Site(Value):
    """What files and variables set, before the scheduler and the file systems are examined.

    Attributes:
        given: What the site's file, the user's file and variables set.
        scheduler: The scheduler that jobs go to; None where there is none to use.
        findings: The findings on files and variables, and on the scheduler if there is none to use.
        valid: Whether the files and variables are valid.
    """

    given: config.Configured
    scheduler: Scheduler | None
    findings: tuple[Finding, ...]
    valid: bool = True


def examine(environ: Mapping[str, str], folder: Path, options: Given = ()) -> Examination:
    """Examine this host and its scheduler, as a job submitted from a folder would meet them.

    Args:
        folder: The working folder.
        options: The options of jobs on the command line.

    Returns:
        Findings and settings; it takes ten seconds at most.

    Raises:
        UsageError: For an option that is not valid.
    """
    begin = time.monotonic()
    site = look(environ, folder, options)
    title = site.scheduler.title if site.scheduler else ""
    parts: list[tuple[Finding, Aside[Examination]]] = []

    def ask(check: str, silence: str, work: Callable[[], Items | Examination], level: Level = Level.FAILURE) -> None:
        hint = "try again later, or ask the administrators"
        parts.append((Finding(level, check, f"{silence} within {_EXAMINE_LIMIT:g} s", hint), _aside(check, work)))

    found: list[Finding | Setting] = [*site.findings]
    named = next((text for option, _, text in reversed(options) if option.key == "scheduler"), None)
    found += [Setting("scheduler", named, "chosen with --scheduler")] if named else []
    work: Callable[[], Items | Examination]
    try:
        if site.scheduler:
            work = partial(site.scheduler.login.examine, environ, site.given)
            ask("scheduler", f"{title} has not answered all questions", work)
        root = Path(folder, site.given.spec.run_root or RUN_ROOT)
        work = partial(folders.run_root, site.given, site.scheduler, environ, folder, root)
        ask("run_root", f"the file system of {root} has not answered", work)
        work = partial(shell.python, site.given.spec, environ)
        ask("python", "python has not answered", work, Level.WARNING)
        work = partial(shell.shell, site.given.spec, site.scheduler, environ)
        ask("shell", "bash has not answered", work, Level.WARNING)
        work = partial(mpi.mpi, site.given.spec, site.scheduler, environ)
        ask("mpi", "mpirun has not answered", work, Level.WARNING)
        for silent, part in parts:
            answer = part.result(begin + _EXAMINE_LIMIT)
            found += [silent] if answer is None else [*answer.findings, *answer.settings]
            if answer == Examination() and silent.check == "scheduler":
                found.append(Finding(Level.OK, "scheduler", f"jobs go to {title}, which says no more about this site"))
    finally:
        for _, part in parts:
            part.end()
    return collect(found) if site.valid else _without_settings(collect(found))


def _without_settings(found: Examination) -> Examination:
    """Leave out what may be missing, where a file that may have it is not valid."""
    hints = {f"write {setting.line}" for setting in found.settings}
    return Examination(tuple(finding for finding in found.findings if finding.hint not in hints))


def _aside(check: str, work: Callable[[], Items | Examination]) -> Aside[Examination]:
    def examination() -> Examination:
        found: list[Finding | Setting] = []
        try:
            made = work()
            found.extend((*made.findings, *made.settings) if isinstance(made, Examination) else made)
        except GridtfError as error:
            found.append(failure(check, error))
        except Exception as error:  # of a plugin, or of gridtf itself: the other parts go on
            hint = "this is a bug in gridtf, or in the plugin of the scheduler"
            found.append(Finding(Level.FAILURE, check, f"{type(error).__name__}: {error}", hint))
        return collect(found)

    return Aside(examination)


# --- files and scheduler


def look(environ: Mapping[str, str], folder: Path, options: Given = ()) -> Site:
    """Read files and variables, and find the scheduler that jobs go to.

    Args:
        folder: The working folder.
        options: The options of jobs on the command line.

    Raises:
        UsageError: For an option that is not valid.
    """
    given, findings = configuration(environ, folder, options)
    valid = not any(finding.level == Level.FAILURE and finding.check == _FILES for finding in findings)
    try:
        name = given.spec.scheduler or schedulers.to_submit_to(environ)
        if name == "local" and not given.spec.scheduler and valid:
            findings = (*findings, Finding(Level.WARNING, "scheduler.found", _NONE_FOUND, _LOAD_OR_NAME))
        return Site(given, schedulers.get(name), findings, valid)
    except GridtfError as error:  # a file that is not valid may name another one
        if isinstance(error, SpecError) and given.sources.get("scheduler", "").startswith("-"):
            raise merging.located(error, given.sources) from None
        return Site(given, None, (*findings, failure("scheduler", error)) if valid else findings, valid)


def configuration(
    environ: Mapping[str, str], folder: Path, options: Given = ()
) -> tuple[config.Configured, tuple[Finding, ...]]:
    """Read the site's file, the user's file, the variables and the options.

    Args:
        folder: The working folder.
        options: The options of jobs on the command line.

    Returns:
        Their values, or none where one is not valid; and findings.

    Raises:
        UsageError: For an option that is not valid.
    """
    check, any_program = _FILES, (sys.executable,)  # which is there even where the PATH is empty
    command = None if any(option.key == "entry" for option, _, _ in options) else any_program

    def read(use: config.Use) -> config.Configured:
        typed = config.Typed(None, options, command)
        return schedulers.with_options(
            lambda table, complete: config.configure(typed, environ, folder, table, complete=complete, use=use)
        )

    try:
        made = read(config.Use.LOOK)
    except GridtfError as error:
        if error.what.startswith("-"):
            raise
        return config.Configured(JobSpec(command=any_program), {}), (failure(check, error),)
    names = [str(path) for path, _, _ in config.general_files(environ) if files.is_file(path)]
    valid = f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} valid" if names else "no site's or user's file"
    notes = [note for note in made.notes if note != config.UNREAD]
    findings = [Finding(Level.WARNING, check, note, "correct or remove that line") for note in notes]
    findings = findings or [Finding(Level.OK, check, valid)]
    try:
        read(config.Use.SUBMIT)
    except UsageError as error:  # a key that the site requires, or a value that it does not allow
        source, _, what = error.what.partition(": ")
        message, hint = error.what, "choose a value that the site allows"
        if source.startswith("--") and not any(flag == source for _, flag, _ in options):  # no source has this key
            key = source.removeprefix("--").replace("-", "_")
            message, hint = f"{key}: {what}", f"write {key} = …"
        hint = "; ".join(filter(None, (hint, error.hint)))
        findings.append(Finding(Level.FAILURE, f"{check}.limits", f"{message} ({error.why})", hint))
    return made, tuple(findings)
