"""Where launchers of 0.1.0 that an upgrade in place has overtaken find what averaging has done. To go after 0.2.0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gridtf.bootstrap.judge.verdict import Verdict
from gridtf.bootstrap.plan.placement import PlacedTask
from gridtf.features.averaged import notes
from gridtf.run.rundir import Record


def noted(end: Verdict, tasks: Sequence[PlacedTask], records: Mapping[str, Record]) -> Verdict:
    """A verdict with it. They have loaded their other modules, so this one takes no newer names from those."""
    for note in notes(tasks, records):
        if end.state in note.on:
            hint = "; ".join(filter(None, (end.hint, note.hint)))
            end = end.replace(reason=f"{end.reason}; {note.what}", hint=hint)
    return end
