"""The last error of each task, as the end of its log shows it."""

from __future__ import annotations

from gridtf.observe.logs import Choice, Chosen, Source, verdict_of
from gridtf.run.rundir import RunDir
from gridtf.run.tail import last_error

Failed = tuple[Source, list[str]]  # the message and the place of an exception, or a line that tells of an error


def errors(run: RunDir, choice: Choice) -> list[Failed]:
    """Find the last error in each log.

    Args:
        choice: Which logs, with ``attempt``, ``tasks`` and ``script``.

    Returns:
        Those of these attempts, oldest first; in each that of the task first that the verdict names as the first cause.
        The name of a task has the number of the attempt, if there are several.

    Raises:
        NotFoundError: For a task or an attempt that the job does not have.
        RunDirError: When the run directory cannot be read.
    """
    chosen = Chosen(run, choice)
    attempts = chosen.first()
    if not attempts:
        return _sorted(chosen, None)
    found: list[Failed] = []
    for attempt in attempts:
        chosen.enter(attempt)
        verdict = verdict_of(attempt) or {}
        of_attempt = _sorted(chosen, (verdict.get("cause") or {}).get("task"))
        if len(attempts) > 1:
            of_attempt = [
                (source.replace(name=f"attempt {attempt.number}, {source.name}"), lines) for source, lines in of_attempt
            ]
        found += of_attempt
    return found


def _sorted(chosen: Chosen, first: str | None) -> list[Failed]:
    """The last errors of the logs of one attempt, that of the task ``first`` first."""
    found = [(log.source, last_error(log.path)) for log in chosen.look(over=True)]
    return sorted(((source, lines) for source, lines in found if lines), key=lambda one: one[0].name != first)
