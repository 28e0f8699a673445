"""Results of `gridtf doctor`: findings about a site, and the settings that follow from them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum

import gridtf
from gridtf.errors import GridtfError, SchedulerError
from gridtf.text import toml
from gridtf.values import Value

FIRST_TIME = 3600  # seconds: the walltime to propose where jobs need one


class Level(str, Enum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"

    __str__ = str.__str__


class Finding(Value):
    """The result of one check.

    Attributes:
        level: ok; warning: jobs run, but something will be missing or slow; failure: jobs will not run.
        check: What was checked, in short and the same on every site: ``pe.control_slaves``, ``run_root.shared``.
        message: What was found, in one line, with the names and numbers of this site.
        hint: What to do, in one line: the very line to write or the command to type; empty for ok.
    """

    level: Level
    check: str
    message: str
    hint: str = ""


class Setting(Value):
    """A key for the site's or the user's file.

    Attributes:
        key: A key of the job file.
        value: Its value, as TOML has it.
        comment: Why it has this value, in one line.
        table: The table it belongs to, such as ``partitions.gpu``; empty: the top of the file.
        example: Whether jobs run without it: it is written as a comment, to be uncommented where it fits.
    """

    key: str
    value: str | int | bool | list[str]
    comment: str
    table: str = ""
    example: bool = False

    @property
    def line(self) -> str:
        """The line of the file."""
        return f"{self.key} = {toml(self.value)}"


class Examination(Value):
    """What an examination of a scheduler, of this host or of a job of `gridtf doctor --probe` has shown.

    Attributes:
        findings: The findings in the order in which to print them.
        settings: Settings that this site needs, so that a first job runs without options.
    """

    findings: tuple[Finding, ...] = ()
    settings: tuple[Setting, ...] = ()

    @property
    def failures(self) -> list[Finding]:
        """The findings that are failures."""
        return [finding for finding in self.findings if finding.level == Level.FAILURE]


Items = Iterator[Finding | Setting]


def collect(items: Iterable[Finding | Setting]) -> Examination:
    """Make an examination from findings and settings in any order."""
    listed = list(items)
    findings = tuple(item for item in listed if isinstance(item, Finding))
    return Examination(findings, tuple(item for item in listed if isinstance(item, Setting)))


def with_first_job(judged: Items, first_job: Callable[[Sequence[Setting]], Items]) -> Examination:
    """Add what the submit command says of a first job, unless that has to fail.

    Args:
        judged: Findings and settings so far.
        first_job: Has the submit command judge a job with these settings.

    Returns:
        All findings and settings; a submit command that does not answer is a warning, since it takes longest where the
        scheduler has much to do.
    """
    found = list(judged)
    known = collect(found)
    try:
        found += [] if known.failures else first_job(known.settings)
    except SchedulerError as error:
        found.append(Finding(Level.WARNING, "submission", error.what, error.hint))
    return collect(found)


def failure(check: str, error: GridtfError) -> Finding:
    """A failure from an error that says what is wrong, why, and what to do."""
    return Finding(Level.FAILURE, check, "; ".join(filter(None, (error.what, error.why))), error.hint)


def missing(check: str, message: str, setting: Setting) -> Items:
    """A warning that jobs need a setting, with the line to write as its hint; and the setting."""
    yield Finding(Level.WARNING, check, message, f"write {setting.line}")
    yield setting


def result(scheduler: str, version: str, outcomes: Mapping[str, bool]) -> dict[str, str | list[str]]:
    """What a site can send of a test: versions and the names of what was tested, and none of hosts, users or jobs.

    Args:
        scheduler: Its title.
        version: As its commands tell it.
        outcomes: What was tested, a check or a test -> whether it passed.
    """
    import platform
    import time

    system = "Linux"
    with contextlib.suppress(OSError):  # it has no os-release
        system = platform.freedesktop_os_release()["PRETTY_NAME"]
    return {
        "scheduler": scheduler,
        "version": version,
        "system": f"{system}, {platform.machine()}",
        "python": platform.python_version(),
        "gridtf": gridtf.__version__,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "passed": sorted(name for name, passed in outcomes.items() if passed),
        "failed": sorted(name for name, passed in outcomes.items() if not passed),
    }
