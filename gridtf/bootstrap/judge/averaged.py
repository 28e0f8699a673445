"""What averaging has done in a job: what the verdict tells of what the members have reported. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gridtf.bootstrap.judge.verdict import Verdict
from gridtf.bootstrap.plan.placement import PlacedTask
from gridtf.contract import TO_AVERAGE
from gridtf.run.rundir import Record
from gridtf.states import JobState
from gridtf.text import counted, percent


def noted(end: Verdict, tasks: Sequence[PlacedTask], records: Mapping[str, Record]) -> Verdict:
    """Add to the verdict on a job that has completed what averaging has done, or that it has done nothing. Pure.

    Args:
        end: The verdict.
        tasks: All tasks of the job.
        records: Task name -> its record.
    """
    found = [(records.get(task.name, {}).get("progress") or {}).get("averaging") for task in tasks]
    told = [each for each in found if each]
    if not told or end.state != JobState.COMPLETED:
        return end
    made, steps = (max(each[key] for each in told) for key in ("exchanges", "steps"))
    fewest = min(each["steps"] for each in told)
    if made:
        far = percent(max(each.get("distance", 0.0) for each in told))
        within = f"{fewest}-{counted(steps, 'step')}" if fewest < steps else counted(steps, "step")
        done = f"averaging made {counted(made, 'exchange')} in {within}"
        return end.replace(
            reason=f"{end.reason}; {done}; before the last one, the tasks were up to {far} from the mean"
        )
    if not any(each.get("due") for each in told):
        return end
    warning = f"nothing was averaged: {counted(len(told), 'task')} made {counted(steps, 'step')}, each by itself"
    return end.replace(reason=f"{end.reason}; {warning}", hint="; ".join(filter(None, (end.hint, TO_AVERAGE))))
