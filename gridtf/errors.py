"""Every error a user can meet: one line what, one line why, one line what to do."""

from __future__ import annotations


class GridtfError(Exception):
    """Something the user can understand and mend.

    what: one line, says what is wrong and where. why: one line, optional. hint: what to do, optional.
    """

    exit_code = 1

    def __init__(self, what: str, *, why: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.hint = hint

    def __str__(self) -> str:
        return "\n".join(line for line in (self.what, self.why, self.hint) if line)


class UsageError(GridtfError):
    """The command line, a job file or a specification says something that cannot be."""

    exit_code = 2


class SpecError(UsageError):
    """A value that cannot be. key: dotted name as in the job file, such as ``tasks.ps.count``."""

    def __init__(self, key: str, what: str, *, why: str = "", hint: str = "") -> None:
        super().__init__(f"{key}: {what}", why=why, hint=hint)
        self.key = key
        self.problem = what

    def __reduce__(self) -> tuple[object, ...]:  # the default would make it anew from the text alone
        return type(self), (self.key, self.problem), self.__dict__


class NotFoundError(GridtfError):
    """No such job, file or template."""

    exit_code = 2


class RunDirError(GridtfError):
    """The run directory cannot be read or written. number: of the error, as errno(3) has it, where there is one."""

    number: int | None = None


class ReplacedError(RunDirError):
    """What lies in the place of a job's run directory is another's."""


class OutputError(GridtfError):
    """What a command prints cannot be written."""


class PlacementError(GridtfError):
    """The tasks do not fit into the allocation."""


class RendezvousError(GridtfError):
    """Hosts or tasks that did not come in time, or a rendezvous that is not ours."""


class SchedulerError(GridtfError):
    """The scheduler refused, is missing or does not answer."""


class MaybeSubmittedError(SchedulerError):
    """Nobody knows whether the scheduler has taken the job; if it has, the job needs its run directory."""


class ToldToEndError(GridtfError):
    """Agents were told to end from outside, as a scheduler does that ends a job or a part of it."""


class HostLostError(GridtfError):
    """A host that is not heard of any more."""


def nearest(word: str, known: list[str], *, most: int = 3) -> str:
    """'did you mean …' for an unknown word; empty when nothing is near."""
    from difflib import get_close_matches

    near = get_close_matches(word, known, n=most, cutoff=0.6)
    return f"did you mean {' or '.join(near)}?" if near else ""
