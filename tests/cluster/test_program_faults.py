"""Some faults of programs have the right first lines; by gridtf run in an allocation of each scheduler."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from gridtf.run.rundir import RunDir, read_record
from tests.faults.programs import ON_CLUSTERS, PROGRAM
from tests.support.beds import on_every_remote_scheduler
from tests.support.cluster import Bed
from tests.support.sgescripts import folder_on

_ALLOCATION = {"slurm": ("--nodes=3", "--ntasks-per-node=1"), "sge": ("-pe", "rr", "3")}


@pytest.mark.timeout(1500)
@on_every_remote_scheduler
def test_first_lines_are_right(bed: Bed) -> None:
    folder = folder_on(bed, "faults")
    (folder.path / "faults.py").write_text(PROGRAM)
    runs = [shlex.join(("gridtf", *fault.words_of(Path(folder.seen_as)))) for fault in ON_CLUSTERS]
    script = "\n".join(f"{run} > /dev/null 2>> faults.err" for run in runs)
    job = folder.submit(f"{script}\ntouch all-done\n", *_ALLOCATION[bed.kind])
    job.until((folder.path / "all-done").exists, "the end of all faults", 1000)
    wrong = {}
    for fault in ON_CLUSTERS:
        verdict = read_record(RunDir(folder.path / fault.name).attempt(1).verdict) or {"state": "", "reason": ""}
        if not fault.fits(verdict):
            wrong[fault.name] = verdict["reason"], verdict.get("cause")
    assert not wrong
