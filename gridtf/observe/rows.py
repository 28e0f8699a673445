"""The samples of a job as a table, with a row for each task and time. Pure, except that the samples are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gridtf.observe import history
from gridtf.run import recordtypes
from gridtf.run.reading import known
from gridtf.run.rundir import RunDir

Row = dict[str, Any]
Gpus = Mapping[str, Sequence[str]]  # task -> the GPUs that it has on its host


def rows(run: RunDir) -> list[Row]:
    """The samples of all attempts, oldest first.

    Raises:
        RunDirError: When they cannot be read.
    """
    gpus = {attempt.number: _gpus(run, attempt.number) for attempt in run.attempts()}
    samples = history.samples(run).more()
    return [row for sample in samples for row in of_sample(sample, gpus.get(sample["attempt"], {}))]


def _gpus(run: RunDir, attempt: int) -> Gpus:
    hosts = known(run.attempt(attempt).summary, recordtypes.Summary).get("hosts", {})
    return {task: names for host in hosts.values() for task, names in host.get("gpus", {}).items()}


def of_sample(sample: Mapping[str, Any], gpus: Gpus) -> Iterator[Row]:
    """The rows of one sample. Pure.

    Args:
        sample: A record of samples.jsonl, with the number of its attempt.
        gpus: The GPUs of the tasks.

    Yields:
        Column -> value, as docs/seeing.md lists them: for each task what it used, what its host used, and what its
        GPUs did together. Tables in tables have names with a dot, such as ``values.loss``.
    """
    head = {"time": sample["time"], "attempt": sample["attempt"], "host": sample["host"]}
    of_host = {f"host.{name}": sample[name] for name in ("cpus", "cpu", "memory", "memory_total", "received", "sent")}
    for task, used in sample["tasks"].items():
        own = [sample["gpus"][name] for name in gpus.get(task, ()) if name in sample["gpus"]]
        yield {**head, "task": task, **{name: value for name, _, value in flat(used)}, **of_host, **_together(own)}


def flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str, Any]]:
    """(dotted key, last part of it, value) of a table and the tables in it."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(key), value


def _together(gpus: Sequence[Mapping[str, float]]) -> Row:
    """What several GPUs did: their mean use, and the sums of the rest."""
    found: Row = {}
    for name in ("use", "memory", "memory_total", "power"):
        known = [gpu[name] for gpu in gpus if name in gpu]
        if known:
            found[f"gpu.{name}"] = sum(known) / (len(known) if name == "use" else 1)
    return found
