"""Slurm's words for jobs after jobs: sbatch(1), --dependency. Loaded only for them."""

from __future__ import annotations

from gridtf.errors import UsageError

# What sbatch calls a condition -> the key of the specification.
KEYS = {"afterok": "after", "afterany": "after_any", "afternotok": "after_failed"}


def of_slurm(value: str) -> dict[str, str]:
    """Translate a value of sbatch's --dependency.

    Args:
        value: Such as ``afterok:41:42,afterany:43``.

    Returns:
        Key of the specification -> the jobs, with commas between them.

    Raises:
        UsageError: For a condition that gridtf does not know.
    """
    found: dict[str, list[str]] = {}
    for part in value.split(","):
        kind, *jobs = part.split(":")
        if kind not in KEYS or not all(jobs) or not jobs:
            what = f"--dependency {value}: gridtf knows afterok:JOB, afterany:JOB and afternotok:JOB"
            raise UsageError(what, hint=f"for Slurm alone write --native=--dependency={value}")
        found.setdefault(KEYS[kind], []).extend(jobs)
    return {key: ",".join(jobs) for key, jobs in found.items()}
