"""What averaging has done in a job: what the verdict tells of what the members have reported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gridtf.bootstrap.judge.evidence import NOTE, Evidence
from gridtf.bootstrap.launcher import api
from gridtf.bootstrap.plan.placement import PlacedTask
from gridtf.contract import TO_AVERAGE
from gridtf.run.rundir import Record
from gridtf.states import JobState
from gridtf.text import counted, percent


class InLauncher(api.Feature):
    """Tells it at the end."""

    vital = False

    def known(self, end: Evidence) -> Iterator[Evidence]:
        yield from notes(self.view.tasks, self.view.hosts.reports.tasks)


def notes(tasks: Sequence[PlacedTask], records: Mapping[str, Record]) -> Iterator[Evidence]:
    """What averaging has done, or that it has done nothing, for the verdict on a job that has completed. Pure.

    Args:
        tasks: All tasks of the job.
        records: Task name -> its record.
    """
    found = [(records.get(task.name, {}).get("progress") or {}).get("averaging") for task in tasks]
    told = [each for each in found if each]
    if not told:
        return
    made, steps = (max(each[key] for each in told) for key in ("exchanges", "steps"))
    fewest = min(each["steps"] for each in told)
    if made:
        far = percent(max(each.get("distance", 0.0) for each in told))
        within = f"{fewest}-{counted(steps, 'step')}" if fewest < steps else counted(steps, "step")
        done = f"averaging made {counted(made, 'exchange')} in {within}"
        done = f"{done}; before the last one, the tasks were up to {far} from the mean"
        yield Evidence(NOTE, done, on=(JobState.COMPLETED,))
    elif any(each.get("due") for each in told):
        warning = f"nothing was averaged: {counted(len(told), 'task')} made {counted(steps, 'step')}, each by itself"
        yield Evidence(NOTE, warning, hint=TO_AVERAGE, on=(JobState.COMPLETED,))
