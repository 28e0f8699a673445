"""Errors that users see: one line each for what is wrong, why, and what to do about it."""

from __future__ import annotations


class GridtfError(Exception):
    """An error that the user can understand and fix.

    Args:
        what: What is wrong and where, in one line.
        why: The cause, in one line; may be empty.
        hint: What to do about it, in one line; may be empty.

    Attributes:
        exit_code: Exit code of a command that fails with it.
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
    """A mistake on the command line, in a job file or in a JobSpec."""

    exit_code = 2


class SpecError(UsageError):
    """An invalid value.

    Args:
        key: Dotted name as in the job file, such as ``tasks.ps.count``.
        what: What is wrong with the value; the message puts the key before it.
        why: The cause, in one line; may be empty.
        hint: What to do about it, in one line; may be empty.

    Attributes:
        key: Dotted name of the key.
        problem: What is wrong with the value, without the key.
    """

    def __init__(self, key: str, what: str, *, why: str = "", hint: str = "") -> None:
        super().__init__(f"{key}: {what}", why=why, hint=hint)
        self.key = key
        self.problem = what

    def __reduce__(self) -> tuple[object, ...]:  # the default passes the message alone to __init__
        return type(self), (self.key, self.problem), self.__dict__


class UnknownKeyError(UsageError):
    """A key in the site's or the user's file that gridtf's own schedulers do not know; one of a plugin may."""


class NotFoundError(GridtfError):
    """No such job, file or template."""

    exit_code = 2


class NotBegunError(NotFoundError):
    """A job that waits or runs in its scheduler has no run directory, which a script of the user's makes later."""


class RunDirError(GridtfError):
    """The run directory cannot be read or written.

    Attributes:
        number: The error number (errno(3)) of the failed system call; None for other errors.
    """

    number: int | None = None


class DamagedError(RunDirError):
    """What is in the place of a record, or of another file of a run, is not what gridtf has written."""


class ReplacedError(RunDirError):
    """The run directory of a job now belongs to another job."""


class OutputError(GridtfError):
    """The output of a command cannot be written."""


class PlacementError(GridtfError):
    """The tasks do not fit into the allocation."""


class RendezvousError(GridtfError):
    """Hosts or tasks did not start in time, or a rendezvous file belongs to another job."""


class SchedulerError(GridtfError):
    """The scheduler refuses a request, is missing or does not respond."""


class MaybeSubmittedError(SchedulerError):
    """It is unknown whether the scheduler accepted the job. Its run directory is kept, since the job may need it."""


class TerminatedError(GridtfError):
    """Agents received a termination signal from outside gridtf: the scheduler is ending the job or a part of it."""


class OutOfMemoryError(GridtfError):
    """The kernel has killed what runs of a job on a host, which used more memory than it has."""


class HostError(GridtfError):
    """Something has happened to a host.

    Attributes:
        host: The host.
    """

    def __init__(self, what: str, *, why: str = "", hint: str = "", host: str = "") -> None:
        super().__init__(what, why=why, hint=hint)
        self.host = host


class HostLostError(HostError):
    """Contact with a host was lost."""


class CleanedUpError(HostError):
    """The scheduler has ended what runs on a host, while it cleaned up there after an earlier start of the job."""


class BadHostError(GridtfError):
    """The check before training has found hosts that are far from the others.

    Attributes:
        hosts: Those that spare ones replace in another attempt.
    """

    def __init__(self, what: str, *, why: str = "", hint: str = "", hosts: tuple[str, ...] = ()) -> None:
        super().__init__(what, why=why, hint=hint)
        self.hosts = hosts


_SLIP = 0.9  # by difflib; one wrong letter in a long word, beside which less similar words are no help
_SIMILAR = 0.72  # by difflib; one wrong letter in a word of four is 0.75


def nearest(word: str, known: list[str], *, before: str = "") -> str:
    """Make a hint "did you mean …?" for an unknown word.

    Args:
        word: The word that the user wrote.
        known: The valid words.
        before: What stands before each of them in the hint, such as the dashes of options.

    Returns:
        The hint, with the most similar words, at most three; empty when no valid word is similar. A wrong guess is
        worse than none: words with half of their letters in common, such as image and time, are not similar.
    """
    from difflib import get_close_matches

    lower = {name.lower(): name for name in known}
    slips = get_close_matches(word.lower(), lower, cutoff=_SLIP)
    matches = slips or get_close_matches(word.lower(), lower, cutoff=_SIMILAR)
    near = [lower[name] for name in matches]
    # what difflib rates too low: a short word with two letters swapped, and the beginning of a long word
    near = near or [name for key, name in lower.items() if sorted(key) == sorted(word.lower())]
    near = near or [name for key, name in lower.items() if len(word) > 2 and key.startswith(word.lower())][:3]
    return f"did you mean {' or '.join(before + name for name in near)}?" if near else ""
